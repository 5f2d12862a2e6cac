//! Messages to a group's actor, and the answers to the connections that sent them.

use std::sync::Arc;

use tidings_protocol::{Code, GroupName, ProtocolError, TaskId};
use tidings_queue::texts::TextError;
use tidings_queue::{Input, NeverList, Requester};

use super::watchers::WatchRequest;
use crate::mailbox::{ConnId, ConnMessage, Mailbox};

/// A message to a group's actor. The channel is unbounded, but each connection may have only a
/// limited number of unanswered commands.
pub(super) enum GroupMessage {
    /// Replies of a worker about its tasks, in order, and the mailbox for the answers.
    Replies(Vec<Input>, Mailbox),
    /// A command of an operator or script. It is rejected while the group is stalled.
    Manage(Input, Mailbox),
    /// A member's connection, and the mailbox for its tasks.
    Join(Input, Mailbox),
    /// A command that is answered later, as long as the connection exists.
    Wait(Input, Mailbox),
    /// A request for progress lines, as long as the connection exists.
    Watch(WatchRequest, Mailbox),
    /// A new delay of keys, from a reload of the broker's settings.
    SetDelay(Option<u64>),
    /// What nothing may request from now on.
    SetNeverList(Arc<NeverList>),
    /// A member's connection is alive.
    Activity(ConnId),
    /// A connection ended.
    Disconnected(ConnId),
}

impl GroupMessage {
    /// The connection that the message registers with the actor.
    pub(super) fn connection(&self) -> Option<ConnId> {
        let requester = match self {
            Self::Join(input, _) | Self::Wait(input, _) => input.requester(),
            Self::Watch(watch, _) => Some(watch.asked),
            _ => None,
        };
        requester.map(|requester| requester.conn)
    }
}

/// The error of a group that could not write its log.
pub(super) fn log_failed() -> ProtocolError {
    let text = "writing to the disk failed: the group is stalled until the broker is restarted";
    ProtocolError::new(Code::NotDurable, text)
}

/// The error of a group that has stopped after a panic.
pub(super) fn group_stopped(group: &GroupName) -> ProtocolError {
    let text = format!("group {group} has stopped because of a fault; restart the broker");
    ProtocolError::new(Code::Internal, text)
}

/// The error of a group that has stopped because a text of a waiting entry cannot be read.
pub(super) fn texts_unreadable(group: &GroupName, problem: &TextError) -> ProtocolError {
    let text = format!(
        "group {group} has stopped because texts of waiting entries cannot be read ({problem}). Its \
         log has them: restart the broker"
    );
    ProtocolError::new(Code::Internal, text)
}

/// The error for a task that the member does not hold.
fn stale_task(task: &TaskId) -> ProtocolError {
    ProtocolError::new(Code::Stale, format!("{task} its group does not exist"))
}

/// Rejects a message by answering its commands with an error. Commands about tasks of a group that
/// does not exist are answered `stale`.
pub(super) fn reject_message(message: GroupMessage, error: &ProtocolError) {
    let (asked, mailbox) = match message {
        GroupMessage::Replies(inputs, mailbox) => {
            for input in &inputs {
                let stale = input.task().filter(|_| error.code == Code::NotFound).map(stale_task);
                if let Some(requester) = input.requester() {
                    reject(requester, &mailbox, stale.as_ref().unwrap_or(error));
                }
            }
            return;
        }
        GroupMessage::Manage(input, mailbox)
        | GroupMessage::Join(input, mailbox)
        | GroupMessage::Wait(input, mailbox) => (input.requester(), mailbox),
        GroupMessage::Watch(watch, mailbox) => (Some(watch.asked), mailbox),
        GroupMessage::SetDelay(_)
        | GroupMessage::SetNeverList(_)
        | GroupMessage::Activity(_)
        | GroupMessage::Disconnected(_) => return,
    };
    if let Some(requester) = asked {
        reject(requester, &mailbox, error);
    }
}

/// Answers a command with an error.
pub(super) fn reject(requester: Requester, mailbox: &Mailbox, error: &ProtocolError) {
    mailbox.send(ConnMessage::Answer { slot: requester.slot, answer: Err(error.clone()) });
}
