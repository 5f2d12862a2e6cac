//! What a worker replies about a task that it holds: `ACK`, `NACK` and `TOUCH`.

use bytes::BufMut;

use super::{Outcome, TaskReport};
use crate::wire::LineWriter;
use crate::{TaskId, Verb, duration};

/// A reply about a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskReply {
    /// The task.
    pub task: TaskId,
    /// What becomes of it.
    pub action: TaskAction,
    /// `[not-before=..] [pace=..]`: what the host requested.
    pub rest: KeyRest,
    /// What is known about the page. None with `TOUCH`.
    pub report: Option<Box<TaskReport>>,
}

/// What becomes of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskAction {
    /// `ACK <task> [outcome=..]`: the task is done, and ended so; `done` without the option.
    Ack(Outcome),
    /// `NACK <task> [after=..] [count=no] [again=<url>] [need=render]`: it returns to the group.
    Nack(RetryMode),
    /// `TOUCH <task> [over=yes]`: the worker is still busy; renews the lease.
    Touch {
        /// `over=yes`: the task makes no further request, so its key is free for the next task.
        request_ended: bool,
    },
    /// `TOUCH <task> part=<url>`: the same, and asks whether a part of the rendered page may be
    /// requested.
    Part {
        /// An absolute URL, as one word.
        url: String,
    },
}

impl TaskReply {
    pub(super) fn verb(&self) -> Verb {
        match self.action {
            TaskAction::Ack(_) => Verb::Ack,
            TaskAction::Nack(_) => Verb::Nack,
            TaskAction::Touch { .. } | TaskAction::Part { .. } => Verb::Touch,
        }
    }

    /// Appends everything behind the verb.
    pub(super) fn encode<'b, B: BufMut>(&self, line: LineWriter<'b, B>) -> LineWriter<'b, B> {
        let line = line.task(&self.task);
        let line = match &self.action {
            TaskAction::Ack(outcome) => {
                line.option_if("outcome", (*outcome != Outcome::Done).then_some(outcome))
            }
            TaskAction::Nack(retry) => put_retry(line, retry),
            TaskAction::Touch { request_ended } => {
                line.option_if("over", request_ended.then_some("yes"))
            }
            TaskAction::Part { url } => line.option("part", url),
        };
        let line = put_rest(line, self.rest);
        match &self.report {
            Some(report) => line.put(report),
            None => line,
        }
    }
}

/// The rest of a key that its host requested. A worker can lengthen the rest, and never shorten it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KeyRest {
    /// `not-before=`: no request to the key for this time (Retry-After), once; in milliseconds from
    /// when the broker reads the line.
    pub not_before_ms: Option<u64>,
    /// `pace=`: the key's delay is at least this, until it is replaced or a day old (Crawl-delay);
    /// in milliseconds.
    pub pace_ms: Option<u64>,
}

/// When and how a returned task is retried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RetryMode {
    /// The task failed and counts as an attempt. It is due after `after_ms`, or after the group's
    /// backoff.
    Counted {
        /// `after=`, in milliseconds.
        after_ms: Option<u64>,
    },
    /// `count=no`: no request was made, so it is not an attempt.
    Uncounted {
        /// `after=`, in milliseconds.
        after_ms: Option<u64>,
    },
    /// `retry=no`: the task failed, and another attempt would fail as well. It is a dead letter.
    Never,
    /// `again=`: one request was made, and the task's next request is for another URL (robots.txt
    /// first, then the page). The task waits for the key of that URL.
    OtherUrl {
        /// An absolute URL, as one word.
        url: String,
    },
    /// `need=render`: one request was made, and the page needs a browser, which this worker lacks.
    /// It is not an attempt. A member with a browser gets the task, with `render=yes`.
    NeedsRender,
}

fn put_rest<B: BufMut>(line: LineWriter<'_, B>, rest: KeyRest) -> LineWriter<'_, B> {
    line.option_if("not-before", rest.not_before_ms.map(duration::format_ms))
        .option_if("pace", rest.pace_ms.map(duration::format_ms))
}

fn put_retry<'b, B: BufMut>(line: LineWriter<'b, B>, retry: &RetryMode) -> LineWriter<'b, B> {
    match retry {
        RetryMode::Counted { after_ms } => {
            line.option_if("after", after_ms.map(duration::format_ms))
        }
        RetryMode::Uncounted { after_ms } => {
            line.option_if("after", after_ms.map(duration::format_ms)).option("count", "no")
        }
        RetryMode::Never => line.option("retry", "no"),
        RetryMode::OtherUrl { url } => line.option("again", url),
        RetryMode::NeedsRender => line.option("need", "render"),
    }
}
