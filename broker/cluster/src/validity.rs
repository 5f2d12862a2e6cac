//! Which messages of the shared log count. Each reader decides that alone, from the messages before, so
//! all readers agree.
//!
//! The engine appends a message only to the slot for which it was sent. That alone does not depose a
//! leader with several messages in flight: one of them is refused because another candidate has
//! [opened](Kind::Opened) in its slot, and the next one fits again. Hence the rule: a message counts if
//! it is of the newest epoch and has the number after the last one that counts.

use bytes::Bytes;

use crate::message::{Chain, CommunityId, Kind, Message, MessageError, Slot};
use crate::mutants::{self, Mutant};

/// A position in the shared log: what a reader must know of everything before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Position {
    /// The last slot that was read.
    pub slot: Slot,
    /// The slot of the newest [`Kind::Opened`]; 0 before the first.
    pub epoch: Slot,
    /// The number of the last message of this epoch that counts.
    pub number: u64,
    /// The leader of this epoch has left.
    pub is_left: bool,
    /// The checksum of all messages that count.
    pub chain: Chain,
    /// The moment of the last message that counts, by the clock that continues over takeovers, in ms.
    pub moment: u64,
}

/// Whether a message counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It does. An [`Kind::Opened`] ends a commit that its epoch has not finished.
    Valid(Message),
    /// It does not: it is from a deposed leader, or a second copy, or from another program.
    Void,
}

/// Why a reader must not go on. Its data may differ from that of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LogFault {
    /// Slots are missing: this reader was too far behind, and they were removed.
    #[error("the shared log goes on at slot {found}, after slot {last}; take a copy of another broker", found = found.0, last = last.0)]
    Jump {
        /// The slot that was read last.
        last: Slot,
        /// The one that came next.
        found: Slot,
    },
    /// The log has another past than this reader.
    #[error("slot {slot} of the shared log follows messages that this broker has not read: the log was restored or has diverged", slot = .0.0)]
    OtherPast(Slot),
    /// The message is in another slot than the one for which it was sent.
    #[error("slot {slot} of the shared log holds a message for another slot", slot = .0.0)]
    Misplaced(Slot),
    /// The bytes are not those that a broker wrote, or not of this community.
    #[error("slot {slot} of the shared log: {error}", slot = .0.0, error = .1)]
    Unreadable(Slot, MessageError),
}

impl Position {
    /// Judges the message in the next slot, and moves there. After an error the position has not
    /// changed.
    pub fn read(
        &mut self,
        community: CommunityId,
        slot: Slot,
        bytes: &Bytes,
    ) -> Result<Verdict, LogFault> {
        if slot != self.slot.next() {
            return Err(LogFault::Jump { last: self.slot, found: slot });
        }
        let message = match Message::decode(bytes, community) {
            Ok(message) => message,
            Err(MessageError::Foreign) => {
                self.slot = slot;
                return Ok(Verdict::Void);
            }
            Err(error) => return Err(LogFault::Unreadable(slot, error)),
        };
        if message.slot != slot {
            return Err(LogFault::Misplaced(slot));
        }
        let counts = match message.kind {
            Kind::Founded => slot == Slot(1),
            Kind::Opened => message.epoch == slot && message.number == 0,
            Kind::Frames | Kind::Left => {
                let is_led = self.epoch > Slot(0) && !self.is_left;
                let is_newest = message.epoch == self.epoch;
                let is_next = message.number == self.number + 1 || mutants::is(Mutant::NumberGap);
                is_led && is_newest && is_next
            }
        };
        if !counts {
            self.slot = slot;
            return Ok(Verdict::Void);
        }
        if message.before != self.chain {
            return Err(LogFault::OtherPast(slot));
        }
        self.take(&message, bytes);
        Ok(Verdict::Valid(message))
    }

    /// Moves behind a message that counts.
    pub(crate) fn take(&mut self, message: &Message, bytes: &[u8]) {
        *self = Self {
            slot: message.slot,
            epoch: if message.kind == Kind::Opened { message.slot } else { self.epoch },
            number: message.number,
            is_left: message.kind == Kind::Left,
            chain: self.chain.after(bytes),
            moment: self.moment.max(message.moment),
        };
    }

    /// The message that would count in the next slot.
    pub(crate) fn next_message(&self, kind: Kind, stamp: Stamp) -> Message {
        let slot = self.slot.next();
        let (epoch, number) = match kind {
            Kind::Founded => (Slot(0), 0),
            Kind::Opened => (slot, 0),
            Kind::Frames | Kind::Left => (self.epoch, self.number + 1),
        };
        Message {
            kind,
            more: false,
            epoch,
            number,
            slot,
            moment: stamp.moment,
            unix_ms: stamp.unix_ms,
            before: self.chain,
            payload: Bytes::new(),
        }
    }
}

/// When a message was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stamp {
    /// The time of the leader's clock, which continues over takeovers, in ms.
    pub moment: u64,
    /// The wall clock in ms.
    pub unix_ms: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMUNITY: CommunityId = CommunityId([1; 16]);

    /// A log that takes everything.
    #[derive(Default)]
    struct Log {
        position: Position,
        verdicts: Vec<bool>,
    }

    impl Log {
        fn put(&mut self, message: &Message) -> Result<Verdict, LogFault> {
            let bytes = message.encode(COMMUNITY);
            let read = self.position.read(COMMUNITY, self.position.slot.next(), &bytes);
            self.verdicts.extend(read.as_ref().ok().map(|read| matches!(read, Verdict::Valid(_))));
            read
        }

        fn put_next(&mut self, kind: Kind) -> Message {
            let message = self.position.next_message(kind, Stamp::default());
            self.put(&message).unwrap();
            message
        }
    }

    /// The same message, as its sender sends it for another slot.
    fn sent_for(message: &Message, position: &Position) -> Message {
        Message { slot: position.slot.next(), before: position.chain, ..message.clone() }
    }

    #[test]
    fn a_deposed_leader_is_void_even_where_its_slots_fit() {
        let mut log = Log::default();
        log.put_next(Kind::Founded);
        log.put_next(Kind::Opened);
        let first = log.put_next(Kind::Frames);
        // It has two more in flight, and the first of them is refused.
        let second = Message { number: 2, ..first.clone() };
        let third = Message { number: 3, ..first.clone() };
        log.put_next(Kind::Opened);
        log.put(&sent_for(&third, &log.position)).unwrap();
        // No leader can send this one, since its numbers are ahead of those of its successor.
        log.put(&sent_for(&first, &log.position)).unwrap();
        log.put_next(Kind::Frames);
        log.put(&sent_for(&second, &log.position)).unwrap();
        assert_eq!(log.verdicts, [true, true, true, true, false, false, true, false]);
    }

    #[test]
    fn a_message_counts_once_and_after_the_one_before() {
        let mut log = Log::default();
        log.put_next(Kind::Founded);
        log.put_next(Kind::Opened);
        let first = log.put_next(Kind::Frames);
        log.put(&sent_for(&first, &log.position)).unwrap();
        let third = Message { number: 3, ..sent_for(&first, &log.position) };
        log.put(&third).unwrap();
        log.put_next(Kind::Left);
        let after = log.position.next_message(Kind::Frames, Stamp::default());
        log.put(&after).unwrap();
        let founded = log.position.next_message(Kind::Founded, Stamp::default());
        log.put(&founded).unwrap();
        assert_eq!(log.verdicts, [true, true, true, false, false, true, false, false]);
    }

    #[test]
    fn what_no_broker_wrote_is_void_and_what_has_changed_stops_the_reader() {
        let mut log = Log::default();
        log.put_next(Kind::Founded);
        let slot = log.position.slot.next();
        let foreign = Bytes::from_static(b"hello");
        assert_eq!(log.position.read(COMMUNITY, slot, &foreign), Ok(Verdict::Void));
        let before = log.position;
        let slot = slot.next();
        let opened = log.position.next_message(Kind::Opened, Stamp::default());
        let mut changed = opened.encode(COMMUNITY).to_vec();
        changed[20] ^= 1;
        let fault = LogFault::Unreadable(slot, MessageError::Damaged);
        assert_eq!(log.position.read(COMMUNITY, slot, &changed.into()), Err(fault));
        let other = Message { before: Chain(1), ..opened.clone() };
        assert_eq!(log.put(&other), Err(LogFault::OtherPast(slot)));
        let misplaced = Message { slot: Slot(9), ..opened.clone() };
        assert_eq!(log.put(&misplaced), Err(LogFault::Misplaced(slot)));
        let jump = LogFault::Jump { last: before.slot, found: slot.next() };
        let bytes = opened.encode(COMMUNITY);
        assert_eq!(log.position.read(COMMUNITY, slot.next(), &bytes), Err(jump));
        assert_eq!(log.position, before);
        log.put(&opened).unwrap();
    }
}
