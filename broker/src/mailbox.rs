//! Messages from groups, and from the broker itself, to a connection.

use bytes::{Bytes, BytesMut};
use tidings_protocol::{ProtocolError, Slot};
pub use tidings_queue::ConnId;

/// A message to a connection.
#[derive(Debug)]
pub enum ConnMessage {
    /// The answer to a command. It is sent when all commands before it are answered.
    Answer {
        /// The place in the order of answers, reserved when the command was read.
        slot: Slot,
        /// One or more whole lines, each with its CRLF.
        line: Bytes,
    },
    /// A line before an answer. A newer one replaces one that has not been sent.
    Progress {
        /// As in [`Answer`](Self::Answer).
        slot: Slot,
        /// A whole line with its CRLF.
        line: Bytes,
    },
    /// The answer to a command that stores something.
    Stored {
        /// As in [`Answer`](Self::Answer).
        slot: Slot,
        /// `+OK`, or why it was not stored.
        result: Result<(), ProtocolError>,
    },
    /// All lines that a group has for this connection at one time.
    Lines(GroupLines),
    /// The connection ends: pending answers are sent as far as possible, then this error, then it
    /// is closed.
    End(ProtocolError),
}

/// Whole lines for one connection, each with its CRLF: tasks, and answers to commands. There are
/// many short ones at once, so each kind has one buffer. There are two buffers, so that an answer
/// that waits for an earlier one does not hold the memory of tasks.
#[derive(Debug, Default)]
pub struct GroupLines {
    tasks: BytesMut,
    answers: BytesMut,
    /// Where each answer ends.
    ends: Vec<(Slot, usize)>,
}

impl GroupLines {
    /// Adds a task, which `encode` writes. It never overtakes an answer that was added before it
    /// and could be sent.
    pub fn task(&mut self, encode: impl FnOnce(&mut BytesMut)) {
        encode(&mut self.tasks);
    }

    /// Adds the answer to a command, like [`ConnMessage::Answer`], which `encode` writes.
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

/// The mailbox of one connection.
///
/// The task of the connection empties it whenever it is woken. Its tasks are bounded by the
/// member's credit and `Limits::task_bytes_max`, its answers by the number of unanswered commands
/// (`Limits::unanswered_max`, long answers one at a time).
pub type Mailbox = tidings_concurrent::Mailbox<ConnMessage>;

/// The messages that were in a mailbox.
pub type MailboxBatch = tidings_concurrent::MailboxContents<ConnMessage>;

#[cfg(test)]
mod tests {
    use tidings_protocol::Answers;

    use super::*;

    #[test]
    fn an_answer_that_waits_holds_no_task() {
        let (mut slots, mut lines) = (Answers::new(), GroupLines::default());
        let (first, second) = (slots.reserve(), slots.reserve());
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
