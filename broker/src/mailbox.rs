//! How groups, and the broker itself, reach a connection.

use std::fmt;

use bytes::{Bytes, BytesMut};
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

/// The way to one connection.
///
/// Its owner empties it whenever it is woken. Tasks in it are bounded by the member's credit and `Limits::task_bytes_max`,
/// answers by the number of commands that a connection may have unanswered (`Limits::unanswered_max`, long ones one at a
/// time).
pub type Mailbox = tidings_concurrent::Mailbox<Parcel>;

/// What was in a mailbox.
pub type Taken = tidings_concurrent::Taken<Parcel>;

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
