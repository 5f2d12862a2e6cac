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

/// Whole lines for one connection, each with its CRLF: tasks, and answers to commands. Each kind is in one
/// buffer, as there are many at once and each is short. In two, so that an answer that has to wait for
/// an earlier one does not hold the memory of tasks.
#[derive(Debug, Default)]
pub struct Lines {
    tasks: BytesMut,
    answers: BytesMut,
    /// Where each answer ends.
    ends: Vec<(Slot, usize)>,
}

impl Lines {
    /// Adds a task, which `encode` writes. It never overtakes an answer that was sent before it and could
    /// leave.
    pub fn task(&mut self, encode: impl FnOnce(&mut BytesMut)) {
        encode(&mut self.tasks);
    }

    /// Adds the answer to a command, as [`Parcel::Answer`], which `encode` writes.
    pub fn answer(&mut self, slot: Slot, encode: impl FnOnce(&mut BytesMut)) {
        encode(&mut self.answers);
        self.ends.push((slot, self.answers.len()));
    }

    /// The slots of the answers.
    pub fn slots(&self) -> impl Iterator<Item = Slot> {
        self.ends.iter().map(|(slot, _)| *slot)
    }

    /// The answers in their order, and all tasks.
    pub fn into_parts(self) -> (impl Iterator<Item = (Slot, Bytes)>, BytesMut) {
        let (answers, mut start) = (self.answers.freeze(), 0);
        let answers = self.ends.into_iter().map(move |(slot, end)| {
            let lines = answers.slice(start..end);
            start = end;
            (slot, lines)
        });
        (answers, self.tasks)
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
    renewing: bool,
    gone: bool,
    owner: Option<Waker>,
}

/// What was in a mailbox.
#[derive(Debug)]
pub struct Taken {
    /// In order.
    pub parcels: VecDeque<Parcel>,
    /// [`Mailbox::renew`] was called since the last look.
    pub renewing: bool,
    /// [`Mailbox::close`] was called.
    pub closing: bool,
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

    /// Has the connection renew its pass, because somebody's rights have changed.
    pub fn renew(&self) {
        let owner = {
            let mut inbox = self.0.lock();
            inbox.renewing = true;
            inbox.owner.clone()
        };
        if let Some(owner) = owner {
            owner.wake();
        }
    }

    /// Takes all there is; has `owner` woken for what comes next.
    pub fn take(&self, owner: &Waker) -> Taken {
        let mut inbox = self.0.lock();
        match &mut inbox.owner {
            Some(known) => known.clone_from(owner),
            none => *none = Some(owner.clone()),
        }
        let parcels = std::mem::take(&mut inbox.parcels);
        Taken { parcels, renewing: std::mem::take(&mut inbox.renewing), closing: inbox.closing }
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

#[cfg(test)]
mod tests {
    use tidings_protocol::Answers;

    use super::*;

    #[test]
    fn an_answer_that_waits_holds_no_task() {
        let (mut slots, mut lines) = (Answers::new(), Lines::default());
        let (first, second) = (slots.later(), slots.later());
        lines.answer(first, |out| out.extend_from_slice(b"+OK 1\r\n"));
        lines.task(|out| out.resize(60 << 10, b'x'));
        lines.answer(second, |out| out.extend_from_slice(b"+OK 2\r\n"));
        assert_eq!(lines.slots().collect::<Vec<_>>(), [first, second]);
        assert!(lines.answers.capacity() < 1 << 10);
        let (answers, tasks) = lines.into_parts();
        let texts = [(first, Bytes::from("+OK 1\r\n")), (second, Bytes::from("+OK 2\r\n"))];
        assert_eq!(answers.collect::<Vec<_>>(), texts);
        assert_eq!(tasks.len(), 60 << 10);
    }
}
