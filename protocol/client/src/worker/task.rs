//! A task, and how it ends.

use std::time::Duration;

use tidings_protocol::{
    Command, KeyRest, Outcome, Payload, Render, RetryMode, TaskAction, TaskId, TaskReply,
};

/// A task that this worker holds.
#[derive(Debug, Clone)]
pub struct WorkerTask {
    /// The id that answers name.
    pub id: TaskId,
    /// The payload, as in `[T1]`.
    pub payload: String,
    /// Until when the worker holds it.
    pub lease: TaskLease,
}

impl WorkerTask {
    /// Whether the page must be rendered, if the URL or its job says it; else the worker decides.
    pub fn render(&self) -> Option<Render> {
        Payload::parse(&self.payload).attribute("render").and_then(Render::from_word)
    }
}

/// The time for which a worker holds a task.
#[derive(Debug, Clone)]
pub struct TaskLease {
    /// The broker's clock when the task was sent.
    pub clock_ms: u64,
    /// The rest of the lease at that time; the whole lease once the broker has renewed it.
    pub length: Duration,
    /// The lease began before this delivery, at an unknown time.
    pub is_resumed: bool,
}

/// How a task ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskEnd {
    /// Acknowledged with an outcome.
    Ack(Outcome, KeyRest),
    /// Returned to the group; the reason is sent with it.
    Nack(RetryMode, KeyRest, Option<String>),
    /// Returned uncounted. A request was interrupted, so the key rests first.
    Interrupted,
}

impl TaskEnd {
    /// Done.
    pub fn done() -> Self {
        Self::Ack(Outcome::Done, KeyRest::default())
    }

    /// Failed for this reason; the group decides when to retry.
    pub fn failed(reason: String) -> Self {
        Self::Nack(RetryMode::Counted { after_ms: None }, KeyRest::default(), Some(reason))
    }

    /// Acknowledged as failed: a retry would not help.
    pub fn given_up() -> Self {
        Self::Ack(Outcome::Failed, KeyRest::default())
    }

    /// Returned uncounted, to be released again after this time.
    pub fn postponed(after_ms: u64) -> Self {
        let retry = RetryMode::Uncounted { after_ms: Some(after_ms) };
        Self::Nack(retry, KeyRest::default(), None)
    }

    /// Returned uncounted; nothing was done.
    pub fn not_started() -> Self {
        Self::Nack(RetryMode::Uncounted { after_ms: None }, KeyRest::default(), None)
    }
}

/// A reply to a task, as a command.
pub(crate) fn task_reply(task: &TaskId, action: TaskAction, rest: KeyRest) -> Command<'static> {
    Command::Reply(TaskReply { task: task.clone(), action, rest, report: None })
}

/// `TOUCH`.
pub(crate) fn touch(task: &TaskId, request_ended: bool) -> Command<'static> {
    task_reply(task, TaskAction::Touch { request_ended }, KeyRest::default())
}
