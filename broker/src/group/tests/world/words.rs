//! What is said to the broker, and by whom.

use tidings_protocol::{Hold, Outcome, Return, TaskId};

use super::task::Told;
use crate::group::tests::site::{links_of, redirect_of};
use crate::group::{Asked, Input, StagedLink};
use crate::mailbox::ConnId;

/// What a worker says about a task.
#[derive(Debug, Clone)]
pub(super) enum Say {
    /// `links`: with what it found.
    Ack {
        outcome: Outcome,
        hold: Hold,
        links: bool,
    },
    Nack {
        back: Return,
        hold: Hold,
    },
    Touch {
        over: bool,
        hold: Hold,
    },
}

impl Say {
    pub(super) fn ack(outcome: Outcome, links: bool) -> Self {
        Self::Ack { outcome, hold: Hold::default(), links }
    }
}

/// Whose answer it is that comes.
#[derive(Debug, Clone)]
pub(super) enum Said {
    Nothing,
    Purge,
    /// Another delay is set.
    Delay(u64),
    Delete {
        name: String,
        opened: u64,
    },
    Join {
        worker: usize,
        conn: ConnId,
    },
    /// The holder of a task, about that.
    Task {
        worker: usize,
        conn: ConnId,
        told: Told,
        say: Say,
        may_be_stale: bool,
    },
    /// About a task that is somebody else's, or nobody's.
    Lie(TaskId),
}

impl Said {
    /// Whether it is what a worker says of a task.
    pub(super) fn is_of_worker(&self) -> bool {
        matches!(self, Self::Task { .. } | Self::Lie(_))
    }
}

/// The same, as the group hears it.
pub(super) fn input_of(asked: Asked, told: &Told, say: &Say) -> Input {
    let task = told.id.clone();
    match say.clone() {
        Say::Ack { outcome, hold, links } => {
            let links = staged(&told.url, outcome, links);
            Input::Ack { asked, task, outcome, hold, links, over_limit: 0 }
        }
        Say::Nack { back, hold } => Input::Nack { asked, task, back, hold, reason: None },
        Say::Touch { over, hold } => Input::Touch { asked, task, over, hold },
    }
}

/// A page's links if it has any to say, where it has moved to, and a link that nobody should stage.
pub(super) fn staged(url: &str, outcome: Outcome, links: bool) -> Vec<StagedLink> {
    let link = |url: &str| StagedLink { url: url.into(), redirect: false, prio: 0 };
    let mut staged: Vec<_> = links_of(url).filter(|_| links).map(link).collect();
    if outcome == Outcome::Redirect {
        staged.push(StagedLink { redirect: true, ..link(&redirect_of(url)) });
    }
    staged.push(link("gopher:// this is no URL"));
    staged
}
