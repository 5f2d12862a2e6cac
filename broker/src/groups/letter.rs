//! What reaches the owner of a group, and what goes back to whoever asked.

use bytes::BytesMut;
use tidings_protocol::{Code, GroupName, ProtocolError, TaskId, encode_more, encode_ok};

use super::watch::Watch;
use crate::group::{Answer, Asked, Input};
use crate::mailbox::{ConnId, Mailbox, Parcel};

/// What reaches an owner. The channel has no bound of its own: a connection has a limited number
/// of unanswered commands.
pub(super) enum Letter {
    /// What a worker says, one after the other, and where the answers go.
    Asked(Vec<Input>, Mailbox),
    /// A person's, or a script's: refused while the group stands still.
    Managed(Input, Mailbox),
    /// A member's connection, and where its tasks go.
    Joined(Input, ConnId, Mailbox),
    /// An input whose answer may come much later, while the connection is there.
    Waits(Input, ConnId, Mailbox),
    /// Somebody wants to see how something goes, while the connection is there.
    Watches(Watch, ConnId, Mailbox),
    /// A member's connection is alive.
    Heard(ConnId),
    /// A connection ended.
    Gone(ConnId),
}

impl Letter {
    /// The connection that it makes known.
    pub(super) fn connects(&self) -> Option<ConnId> {
        match self {
            Self::Joined(_, conn, _) | Self::Waits(_, conn, _) | Self::Watches(_, conn, _) => {
                Some(*conn)
            }
            _ => None,
        }
    }
}

/// The refusal of a group whose log has failed.
pub(super) fn failed() -> ProtocolError {
    let text = "writing to the disk failed: the group stands still until the broker starts anew";
    ProtocolError::new(Code::NotDurable, text)
}

/// The refusal of a group that has stopped.
pub(super) fn stopped(group: &GroupName) -> ProtocolError {
    let text = format!("group {group} has stopped because of a fault; restart the broker");
    ProtocolError::new(Code::Internal, text)
}

/// The answer for a task that the member does not hold.
fn stale(task: &TaskId) -> ProtocolError {
    ProtocolError::new(Code::Stale, format!("{task} its group does not exist"))
}

/// Answers whoever asked with a refusal. For a task of a group that does not exist that is `stale`.
pub(super) fn refuse_letter(letter: Letter, error: &ProtocolError) {
    let (asked, mailbox) = match letter {
        Letter::Asked(inputs, mailbox) => {
            for input in &inputs {
                let stale = input.task().filter(|_| error.code == Code::NotFound).map(stale);
                refuse(input.asked().into_iter(), &mailbox, stale.as_ref().unwrap_or(error));
            }
            return;
        }
        Letter::Managed(input, mailbox)
        | Letter::Joined(input, _, mailbox)
        | Letter::Waits(input, _, mailbox) => (input.asked(), mailbox),
        Letter::Watches(watch, _, mailbox) => (Some(watch.asked), mailbox),
        Letter::Heard(_) | Letter::Gone(_) => return,
    };
    refuse(asked.into_iter(), &mailbox, error);
}

/// Answers those who asked with a refusal.
pub(super) fn refuse(asked: impl Iterator<Item = Asked>, mailbox: &Mailbox, error: &ProtocolError) {
    for Asked { slot, .. } in asked {
        let mut line = BytesMut::new();
        error.encode(&mut line);
        mailbox.send(Parcel::Answer { slot, line: line.freeze() });
    }
}

/// Appends the lines of an answer.
pub(super) fn encode_answer(answer: &Result<Answer, ProtocolError>, lines: &mut BytesMut) {
    match answer {
        Ok(answer) => {
            for line in &answer.more {
                encode_more(line, lines);
            }
            encode_ok(&answer.ok, lines);
        }
        Err(error) => error.encode(lines),
    }
}
