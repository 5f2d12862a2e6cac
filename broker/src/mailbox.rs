//! How groups, and the broker itself, reach a connection.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::task::Waker;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tidings_protocol::{ProtocolError, Slot};

/// Names a connection: counted from 1 in the order of arrival, never reused in a run of the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u64);

impl ConnId {
    /// The broker itself, as the origin of events that no connection sent.
    pub const BROKER: Self = Self(0);
}

impl fmt::Display for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Something for a connection to send or to do.
#[derive(Debug)]
pub enum Parcel {
    /// The answer to a command; leaves when all commands before it are answered.
    Answer {
        /// The place in the order of answers that was taken when the command was read.
        slot: Slot,
        /// One or more whole lines, each with its CRLF.
        line: Bytes,
    },
    /// A line that comes before an answer: a newer one takes the place of one that has not left.
    Progress {
        /// As in [`Answer`](Self::Answer).
        slot: Slot,
        /// A whole line with its CRLF.
        line: Bytes,
    },
    /// What a command asked to be stored is, or is not: its answer.
    Stored {
        /// As in [`Answer`](Self::Answer).
        slot: Slot,
        /// `+OK`, or why not.
        result: Result<(), ProtocolError>,
    },
    /// What a group has for it at once.
    Lines(Lines),
    /// The connection ends: what can be answered is, then this error leaves as a line, then it
    /// is closed.
    End(ProtocolError),
}

/// Whole lines for one connection, each with its CRLF: tasks, and answers to commands. One buffer holds
/// them all, as there are many at once and each is short.
#[derive(Debug, Default)]
pub struct Lines {
    bytes: BytesMut,
    /// Where each answer ends, or a row of tasks.
    parts: Vec<(Part, usize)>,
}

/// What a part of [`Lines`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// One or more tasks. They never overtake an answer that was sent before them and could leave.
    Tasks,
    /// The answer to a command, as [`Parcel::Answer`].
    Answer(Slot),
}

impl Lines {
    /// Adds a task, or an answer, which `encode` writes.
    pub fn push(&mut self, part: Part, encode: impl FnOnce(&mut BytesMut)) {
        encode(&mut self.bytes);
        let end = self.bytes.len();
        match self.parts.last_mut() {
            Some((Part::Tasks, last)) if part == Part::Tasks => *last = end,
            _ => self.parts.push((part, end)),
        }
    }

    /// The slots of the answers.
    pub fn slots(&self) -> impl Iterator<Item = Slot> {
        self.parts.iter().filter_map(|(part, _)| match part {
            Part::Tasks => None,
            Part::Answer(slot) => Some(*slot),
        })
    }

    /// The parts, in their order.
    pub fn into_parts(self) -> impl Iterator<Item = (Part, Bytes)> {
        let (bytes, mut start) = (self.bytes.freeze(), 0);
        self.parts.into_iter().map(move |(part, end)| {
            let lines = bytes.slice(start..end);
            start = end;
            (part, lines)
        })
    }
}

/// The way to one connection. Cheap to clone; sending never blocks and never fails: what reaches a
/// connection that is gone is dropped.
///
/// It has no bound of its own: its owner empties it whenever it is woken, tasks are bounded by the
/// member's credit and `Limits::task_bytes_max`, and answers by the number of commands that a
/// connection may have unanswered (`Limits::unanswered_max`, long ones one at a time).
#[derive(Clone, Default)]
pub struct Mailbox(Arc<Mutex<Inbox>>);

#[derive(Default)]
struct Inbox {
    parcels: VecDeque<Parcel>,
    closing: bool,
    gone: bool,
    owner: Option<Waker>,
}

impl Mailbox {
    /// An empty mailbox without an owner yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts a parcel in, after all that are there, and wakes the connection.
    pub fn send(&self, parcel: Parcel) {
        let mut inbox = self.0.lock();
        if inbox.gone {
            return;
        }
        inbox.parcels.push_back(parcel);
        // Only the first parcel wakes: the owner takes all there are.
        let owner = if inbox.parcels.len() == 1 { inbox.owner.clone() } else { None };
        drop(inbox);
        if let Some(owner) = owner {
            owner.wake();
        }
    }

    /// Asks the connection to send what is pending and to close, because the broker stops.
    pub fn close(&self) {
        let owner = {
            let mut inbox = self.0.lock();
            inbox.closing = true;
            inbox.owner.clone()
        };
        if let Some(owner) = owner {
            owner.wake();
        }
    }

    /// Takes all parcels in order, and whether [`close`](Self::close) was called; has `owner` woken
    /// for what comes next.
    pub fn take(&self, owner: &Waker) -> (VecDeque<Parcel>, bool) {
        let mut inbox = self.0.lock();
        match &mut inbox.owner {
            Some(known) => known.clone_from(owner),
            none => *none = Some(owner.clone()),
        }
        (std::mem::take(&mut inbox.parcels), inbox.closing)
    }

    /// Drops what is in it and whatever comes: the connection is gone.
    pub fn abandon(&self) {
        let mut inbox = self.0.lock();
        inbox.gone = true;
        inbox.owner = None;
        let parcels = std::mem::take(&mut inbox.parcels);
        drop(inbox);
        drop(parcels);
    }
}

impl fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inbox = self.0.lock();
        f.debug_struct("Mailbox")
            .field("parcels", &inbox.parcels.len())
            .field("closing", &inbox.closing)
            .finish_non_exhaustive()
    }
}
