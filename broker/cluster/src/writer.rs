//! How a leader writes into the shared log: what it has in flight, what it sends again, and what is
//! committed.
//!
//! The owner hands in commits, sends what [`Writer::poll`] returns, and reports each answer:
//!
//! ```text
//!   commits ──▶ waiting ──▶ unsettled, up to 8 sent ──answers, in order──▶ committed
//!                              ▲                 │
//!                              │                 │ one is refused, or has no answer
//!                              └── read on from the last message that is known to be in the log
//! ```
//!
//! - A message is committed when it and all before it were acknowledged in the slots for which they
//!   were sent. Then no other leader has opened between them.
//! - Without an answer a message may be in the log or not. So the writer reads on. It finds its own
//!   messages, or another leader, and sends again what is missing.
//! - What was only read is committed when a later message is acknowledged: nothing else proves that a
//!   read has reached the end of the log.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::message::{CommunityId, Kind, Message, Slot};
use crate::mutants::{self, Mutant};
use crate::validity::{LogFault, Position, Stamp, Verdict};

/// Messages in flight at most.
pub const IN_FLIGHT_MAX: usize = 8;

/// Identifies a commit: its number among all that this writer was given, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Ticket(pub u64);

/// An attempt to append a message. Answers to an earlier attempt have no effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// The slot to which the engine may append it, and to no other.
    pub slot: Slot,
    /// To be given back with the answer.
    pub round: u64,
    /// The message.
    pub bytes: Bytes,
}

/// Why a writer has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Another broker leads since this slot.
    Deposed(Slot),
    /// It has left, and its last message is committed.
    Left,
    /// It cannot read the log.
    Fault(LogFault),
}

/// The writer of a leader.
#[derive(Debug)]
pub struct Writer {
    community: CommunityId,
    payload_max: usize,
    /// Behind the last message that is known to be in the log.
    known: Position,
    /// Behind the last message that was sent in this round, if all of them arrive.
    sent: Position,
    /// Commits, the first perhaps in part, that are in no message yet.
    waiting: VecDeque<(Ticket, Bytes)>,
    /// Messages that are not known to be in the log, oldest first.
    unsettled: VecDeque<Unsettled>,
    /// How many of them were sent in this round.
    in_flight: usize,
    round: u64,
    is_reading: bool,
    last_ticket: Ticket,
    /// The last commit that is known to be in the log, and the last one that is committed.
    seen: Ticket,
    committed: Ticket,
    /// Behind the message with which each of them ends.
    seen_at: Position,
    committed_at: Position,
    is_leaving: bool,
    ended: Option<Ended>,
}

/// A message without its place. Its place decides the rest, so that it has the same bytes whenever it
/// is sent for the same slot: another copy may still arrive.
#[derive(Debug)]
struct Unsettled {
    kind: Kind,
    more: bool,
    payload: Bytes,
    stamp: Stamp,
    /// The last commit that ends in it.
    ends: Option<Ticket>,
    /// Where the log is behind it, while it is in flight.
    after: Position,
    is_acknowledged: bool,
}

impl Writer {
    /// The writer of a broker that has just [opened](Kind::Opened) its term. `opened` is the position
    /// behind this message, and `payload_max` the bytes of a payload at most, usually
    /// [`PAYLOAD_BYTES_MAX`](crate::PAYLOAD_BYTES_MAX).
    pub fn new(community: CommunityId, opened: Position, payload_max: usize) -> Self {
        Self {
            community,
            payload_max,
            known: opened,
            sent: opened,
            waiting: VecDeque::new(),
            unsettled: VecDeque::new(),
            in_flight: 0,
            round: 0,
            is_reading: false,
            last_ticket: Ticket(0),
            seen: Ticket(0),
            committed: Ticket(0),
            seen_at: opened,
            committed_at: opened,
            is_leaving: false,
            ended: None,
        }
    }

    /// Takes the frames of a commit. The owner bounds how many bytes wait.
    ///
    /// # Panics
    /// After [`leave`](Self::leave).
    pub fn submit(&mut self, frames: Bytes) -> Ticket {
        assert!(!self.is_leaving, "a leader that leaves commits nothing");
        self.last_ticket.0 += 1;
        self.waiting.push_back((self.last_ticket, frames));
        self.last_ticket
    }

    /// Leaves after everything that was submitted.
    pub fn leave(&mut self) {
        self.is_leaving = true;
    }

    /// Whether [`leave`](Self::leave) was called.
    pub fn is_leaving(&self) -> bool {
        self.is_leaving
    }

    /// All commits up to this one are committed.
    pub fn committed(&self) -> Ticket {
        self.committed
    }

    /// Behind the message with which the last of them ends.
    pub fn committed_at(&self) -> Position {
        self.committed_at
    }

    /// Why the writer has ended, if it has. What is not committed then may be in the log or not.
    pub fn ended(&self) -> Option<Ended> {
        self.ended
    }

    /// The next message to send. `stamp` is that of a message that is made now.
    pub fn poll(&mut self, stamp: Stamp) -> Option<Attempt> {
        if self.is_reading || self.ended.is_some() || self.in_flight == IN_FLIGHT_MAX {
            return None;
        }
        if self.in_flight == self.unsettled.len() {
            let made = self.make(stamp)?;
            self.unsettled.push_back(made);
        }
        let message = &mut self.unsettled[self.in_flight];
        if mutants::is(Mutant::OtherBytes) {
            message.stamp = stamp;
        }
        let next = Message {
            more: message.more,
            payload: message.payload.clone(),
            ..self.sent.next_message(message.kind, message.stamp)
        };
        let bytes = next.encode(self.community);
        self.sent.take(&next, &bytes);
        message.after = self.sent;
        message.is_acknowledged = false;
        self.in_flight += 1;
        Some(Attempt { slot: next.slot, round: self.round, bytes })
    }

    /// The engine has appended the message of an attempt to its slot.
    pub fn acknowledged(&mut self, slot: Slot, round: u64) {
        if round != self.round {
            return;
        }
        let sent = self.unsettled.iter_mut().take(self.in_flight);
        for message in sent.filter(|message| message.after.slot == slot) {
            message.is_acknowledged = true;
            if mutants::is(Mutant::OutOfOrder) {
                self.committed = self.committed.max(message.ends.unwrap_or_default());
            }
        }
        while self.in_flight > 0 && self.unsettled[0].is_acknowledged {
            self.settle();
            self.in_flight -= 1;
            (self.committed, self.committed_at) = (self.seen, self.seen_at);
        }
    }

    /// The engine has refused the message of an attempt because its slot is not the next one, or it
    /// has not answered. Then the log must be read.
    pub fn unanswered(&mut self, round: u64) {
        if round != self.round || self.ended.is_some() {
            return;
        }
        self.round += 1;
        self.in_flight = 0;
        self.sent = self.known;
        self.is_reading = true;
    }

    /// The slot from which the log must be read, if it must.
    pub fn read_from(&self) -> Option<Slot> {
        (self.is_reading && self.ended.is_none()).then(|| self.known.slot.next())
    }

    /// Takes the message in that slot.
    pub fn read(&mut self, slot: Slot, bytes: &Bytes) {
        let mut position = self.known;
        match position.read(self.community, slot, bytes) {
            Err(fault) => self.ended = Some(Ended::Fault(fault)),
            Ok(Verdict::Void) => self.known = position,
            Ok(Verdict::Valid(message)) if message.kind == Kind::Opened => {
                self.ended = Some(Ended::Deposed(slot));
            }
            // Only this writer sends messages of this epoch.
            Ok(Verdict::Valid(_)) => match self.unsettled.front_mut() {
                Some(message) if !mutants::is(Mutant::UnansweredIsUnwritten) => {
                    message.after = position;
                    self.settle();
                }
                _ => self.known = position,
            },
        }
    }

    /// Nothing is behind the slot that was read last, or seems to be.
    pub fn read_to_end(&mut self) {
        self.is_reading = false;
        self.sent = self.known;
        if self.seen > self.committed && self.unsettled.is_empty() && self.waiting.is_empty() {
            // An acknowledgement of an empty message proves that this was the end.
            self.waiting.push_back((self.seen, Bytes::new()));
        }
    }

    /// The oldest message is in the log.
    fn settle(&mut self) {
        if let Some(message) = self.unsettled.pop_front() {
            self.known = message.after;
            if let Some(ticket) = message.ends {
                (self.seen, self.seen_at) = (self.seen.max(ticket), self.known);
            }
            if self.known.is_left {
                self.ended = Some(Ended::Left);
            }
        }
    }

    /// Makes a message of what waits.
    fn make(&mut self, stamp: Stamp) -> Option<Unsettled> {
        let (kind, more, payload, ends) = match self.waiting.front_mut() {
            Some((_, frames)) if frames.len() > self.payload_max => {
                (Kind::Frames, true, frames.split_to(self.payload_max), None)
            }
            Some(_) => {
                let (payload, ends) = self.pack();
                (Kind::Frames, false, payload, Some(ends))
            }
            None if self.is_leaving && !self.unsettled.iter().any(|it| it.kind == Kind::Left) => {
                (Kind::Left, false, Bytes::new(), None)
            }
            None => return None,
        };
        let after = Position::default();
        Some(Unsettled { kind, more, payload, stamp, ends, after, is_acknowledged: false })
    }

    /// Takes as many whole commits as fit into a message.
    fn pack(&mut self) -> (Bytes, Ticket) {
        let (mut last, mut packed) = (Ticket::default(), Vec::new());
        while let Some((ticket, frames)) = self.waiting.front() {
            if last > Ticket(0) && packed.len() + frames.len() > self.payload_max {
                break;
            }
            last = *ticket;
            packed.extend_from_slice(frames);
            self.waiting.pop_front();
        }
        (packed.into(), last)
    }
}
