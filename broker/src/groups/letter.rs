//! Messages to a group's actor, and the answers to the connections that sent them.

use bytes::BytesMut;
use tidings_protocol::{Code, GroupName, ProtocolError, TaskId, encode_more, encode_ok};

use super::watch::Watch;
use crate::group::{Answer, Asked, Input};
use crate::mailbox::{ConnId, Mailbox, Parcel};

/// A message to a group's actor. The channel is unbounded, but each connection may have only a
/// limited number of unanswered commands.
pub(super) enum Letter {
    /// Commands of a worker about its tasks, in order, and the mailbox for the answers.
    Asked(Vec<Input>, Mailbox),
    /// A command of an operator or script. It is rejected while the group is stalled.
    Managed(Input, Mailbox),
    /// A member's connection, and the mailbox for its tasks.
    Joined(Input, ConnId, Mailbox),
    /// A command that is answered later, as long as the connection exists.
    Waits(Input, ConnId, Mailbox),
    /// A request for progress lines, as long as the connection exists.
    Watches(Watch, ConnId, Mailbox),
    /// A member's connection is alive.
    Heard(ConnId),
    /// A connection ended.
    Gone(ConnId),
}

impl Letter {
    /// The connection that the message registers with the actor.
    pub(super) fn connects(&self) -> Option<ConnId> {
        match self {
            Self::Joined(_, conn, _) | Self::Waits(_, conn, _) | Self::Watches(_, conn, _) => {
                Some(*conn)
            }
            _ => None,
        }
    }
}

/// The error of a group that could not write its log.
pub(super) fn failed() -> ProtocolError {
    let text = "writing to the disk failed: the group is stalled until the broker is restarted";
    ProtocolError::new(Code::NotDurable, text)
}

/// The error of a group that has stopped after a panic.
pub(super) fn stopped(group: &GroupName) -> ProtocolError {
    let text = format!("group {group} has stopped because of a fault; restart the broker");
    ProtocolError::new(Code::Internal, text)
}

/// The error for a task that the member does not hold.
fn stale(task: &TaskId) -> ProtocolError {
    ProtocolError::new(Code::Stale, format!("{task} its group does not exist"))
}

/// Rejects a message by answering its commands with an error. Commands about tasks of a group that
/// does not exist are answered `stale`.
pub(super) fn refuse_letter(message: Letter, error: &ProtocolError) {
    let (asked, mailbox) = match message {
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

/// Answers each command with an error.
pub(super) fn refuse(asked: impl Iterator<Item = Asked>, mailbox: &Mailbox, error: &ProtocolError) {
    for Asked { slot, .. } in asked {
        let mut line = BytesMut::new();
        error.encode(&mut line);
        mailbox.send(Parcel::Answer { slot, line: line.freeze() });
    }
}

/// Encodes an answer as protocol lines.
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
