//! Commands for groups, and their senders.

use tidings_protocol::{
    Command, GroupAction, GroupCommand, GroupName, JobAction, JobCommand, MemberId, Slot,
};
use tidings_queue::Requester;

use crate::mailbox::{ConnId, Mailbox};

/// A connection that sends commands, and the mailbox for its answers.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The connection.
    pub conn: ConnId,
    /// The worker on that connection.
    pub member: MemberId,
    /// Receives the answers and tasks.
    pub mailbox: Mailbox,
    /// Whether the client may read the state of the whole broker.
    pub is_monitor: bool,
}

impl Caller {
    pub(super) fn requester(&self, slot: Slot) -> Requester {
        Requester { conn: self.conn, member: self.member, slot }
    }
}

/// A command for a group.
#[derive(Debug, Clone, Copy)]
pub enum GroupRequest<'a> {
    /// `GROUP`
    Group(&'a GroupCommand<'a>),
    /// `JOB`
    Job(&'a JobCommand<'a>),
    /// `EXPLAIN`
    Explain {
        /// A URL or a key.
        what: &'a str,
        /// The group; the default one without it.
        group: Option<&'a GroupName>,
    },
}

impl<'a> GroupRequest<'a> {
    /// `None` if the command is not for a group.
    pub fn of(command: &'a Command<'a>) -> Option<Self> {
        match command {
            Command::Group(manage) => Some(Self::Group(manage)),
            Command::Job(manage) => Some(Self::Job(manage)),
            Command::Explain { what, group } => Some(Self::Explain { what, group: group.as_ref() }),
            _ => None,
        }
    }

    /// Whether its answer may come late: with the end of a job, or of the requests to a key.
    pub(crate) fn is_wait(self) -> bool {
        match self {
            Self::Group(manage) => {
                matches!(manage.action, GroupAction::Rule | GroupAction::Unrule)
            }
            Self::Job(manage) => manage.action == JobAction::Wait,
            Self::Explain { .. } => false,
        }
    }

    /// Whether progress lines come before its answer.
    pub(crate) fn is_watch(self) -> bool {
        match self {
            Self::Group(manage) => manage.action == GroupAction::Watch,
            Self::Job(manage) => manage.action == JobAction::Watch,
            Self::Explain { .. } => false,
        }
    }
}
