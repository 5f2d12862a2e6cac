//! Commands sent to the broker, with their senders.

use tidings_protocol::{
    KeyRest, MemberId, Outcome, RetryMode, TaskAction, TaskId, TaskReply, TaskReport,
};

use super::part_check::PartVerdict;
use super::pass_check::Narrowing;
use super::steering::PageSelection;
use super::task::ReceivedTask;
use crate::tests::site::{links_of, redirect_of};
use crate::{ConnId, Input, Requester, StagedLink, WorkerReply};

/// A worker's command about a task.
#[derive(Debug, Clone)]
pub(super) enum WorkerCommand {
    /// `links`: whether it reports the links of the page.
    Ack {
        outcome: Outcome,
        hold: KeyRest,
        links: bool,
    },
    Nack {
        back: RetryMode,
        hold: KeyRest,
    },
    /// The host did not answer, with this word for it.
    Unanswered {
        word: &'static str,
    },
    /// `part`: the URL of a part of the page that it wants to request. Then `over` says that it has
    /// reported the end of its requests before.
    Touch {
        over: bool,
        part: Option<String>,
        hold: KeyRest,
    },
}

impl WorkerCommand {
    pub(super) fn ack(outcome: Outcome, links: bool) -> Self {
        Self::Ack { outcome, hold: KeyRest::default(), links }
    }
}

/// The sender of a command, for matching its answer.
#[derive(Debug, Clone)]
pub(super) enum CommandOrigin {
    Nothing,
    /// Drops these pages.
    Purge(PageSelection),
    /// Gives these pages a priority.
    Bump(PageSelection, i16),
    /// Retries all dead letters.
    Retry,
    /// Sets another delay.
    Delay(u64),
    Delete {
        name: String,
        opened: u64,
    },
    /// Sets or removes the rule of a key.
    Rule {
        key: String,
        command: u64,
    },
    /// Narrows the pass of a job that was opened at `opened`.
    Narrow {
        name: String,
        opened: u64,
        by: Narrowing,
    },
    Drain {
        member: MemberId,
        drained: bool,
    },
    Join {
        worker: usize,
        conn: ConnId,
    },
    /// A command of a task's holder.
    Task {
        worker: usize,
        conn: ConnId,
        received: ReceivedTask,
        command: WorkerCommand,
        may_be_stale: bool,
        /// With `part`, from when the command has reached the group.
        verdict: Option<PartVerdict>,
    },
    /// A command about a task of another worker, or of none.
    Lie(TaskId),
}

impl CommandOrigin {
    /// Whether it is a worker's command about a task.
    pub(super) fn is_of_worker(&self) -> bool {
        matches!(self, Self::Task { .. } | Self::Lie(_))
    }
}

/// The sender of a command.
pub(super) fn requester_mut(input: &mut Input) -> Option<&mut Requester> {
    match input {
        Input::Join { requester, .. }
        | Input::Reply { requester, .. }
        | Input::Configure { requester, .. }
        | Input::Operate { requester, .. }
        | Input::OpenJob { requester, .. }
        | Input::JobAction { requester, .. }
        | Input::Query { requester, .. } => Some(requester),
        _ => None,
    }
}

/// The same command as an input of the group.
pub(super) fn input_of(
    requester: Requester,
    received: &ReceivedTask,
    command: &WorkerCommand,
) -> Input {
    let task = received.id.clone();
    let mut report = None;
    let (action, rest, links) = match command.clone() {
        WorkerCommand::Ack { outcome, hold, links } => {
            (TaskAction::Ack(outcome), hold, staged(&received.url, outcome, links))
        }
        WorkerCommand::Nack { back, hold } => (TaskAction::Nack(back), hold, Vec::new()),
        WorkerCommand::Unanswered { word } => {
            report = TaskReport::of_reason(Some(word.to_owned()));
            let back = RetryMode::Counted { after_ms: None };
            (TaskAction::Nack(back), KeyRest::default(), Vec::new())
        }
        WorkerCommand::Touch { part: Some(url), hold, .. } => {
            (TaskAction::Part { url }, hold, Vec::new())
        }
        WorkerCommand::Touch { over, part: None, hold } => {
            (TaskAction::Touch { request_ended: over }, hold, Vec::new())
        }
    };
    let reply = TaskReply { task, action, rest, report };
    Input::Reply { requester, reply: WorkerReply { reply, links, over_limit: 0 } }
}

/// The links of a page if requested, its redirect target, and an invalid link.
pub(super) fn staged(url: &str, outcome: Outcome, links: bool) -> Vec<StagedLink> {
    let link = |url: &str| StagedLink { url: url.into(), redirect: false, prio: 0 };
    let mut staged: Vec<_> = links_of(url).filter(|_| links).map(link).collect();
    if outcome == Outcome::Redirect {
        staged.push(StagedLink { redirect: true, ..link(&redirect_of(url)) });
    }
    staged.push(link("gopher:// this is no URL"));
    staged
}
