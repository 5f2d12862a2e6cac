//! Messages from groups, and from the broker itself, to a connection.

use bytes::BytesMut;
use tidings_protocol::status::{Answer, Status};
use tidings_protocol::{ProtocolError, Slot};
pub use tidings_queue::ConnId;

/// A message to a connection.
#[derive(Debug)]
pub enum ConnMessage {
    /// The answer to a command. It is sent when all commands before it are answered.
    Answer {
        /// The place in the order of answers, reserved when the command was read.
        slot: Slot,
        /// The answer, or why the command was rejected.
        answer: Result<Answer, ProtocolError>,
    },
    /// A line before an answer. A newer one replaces one that has not been sent.
    Progress {
        /// As in [`Answer`](Self::Answer).
        slot: Slot,
        /// The line.
        status: Status,
    },
    /// The answer to a command that stores something.
    Stored {
        /// As in [`Answer`](Self::Answer).
        slot: Slot,
        /// `+OK`, or why it was not stored.
        result: Result<(), ProtocolError>,
    },
    /// Tasks and answers of a group.
    Group(GroupBatch),
    /// The connection ends: pending answers are sent as far as possible, then this error, then it
    /// is closed.
    End(ProtocolError),
}

/// What a group has for one connection at one time. It has many short answers and tasks at once.
#[derive(Debug, Default)]
pub struct GroupBatch {
    /// Tasks as whole lines, each with its CRLF. They never overtake an answer that was added
    /// before them and could be sent.
    pub tasks: BytesMut,
    /// Answers, each like a [`ConnMessage::Answer`].
    pub answers: Vec<(Slot, Result<Answer, ProtocolError>)>,
}

/// The mailbox of one connection.
///
/// The task of the connection empties it whenever it is woken. Its tasks are bounded by the
/// member's credit and `Limits::task_bytes_max`, its answers by the number of unanswered commands
/// (`Limits::unanswered_max`, long answers one at a time).
pub type Mailbox = tidings_concurrent::Mailbox<ConnMessage>;

/// The messages that were in a mailbox.
pub type MailboxBatch = tidings_concurrent::MailboxContents<ConnMessage>;
