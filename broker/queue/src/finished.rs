//! The tasks that ended last, for lists. They are only in memory, and nothing depends on them.

use std::collections::VecDeque;

use tidings_protocol::Outcome;
use tidings_protocol::status::TaskState;

use crate::entry::{Entry, EntryState};
use crate::frontier::ActiveEntry;
use crate::leases::EndedLease;
use crate::moment::Moment;

/// Most finished tasks of a group. At the limit the oldest is removed.
pub(crate) const FINISHED_MAX: usize = 1000;

/// Bytes that are kept of a text.
pub(crate) const TEXT_BYTES_MAX: usize = 1024;

/// How a task ended.
#[derive(Debug, Clone, Copy)]
pub(crate) enum TaskEnd {
    /// A member finished it.
    Answered(Outcome),
    /// It was given up for this reason.
    GivenUp(&'static str),
}

/// A task that ended.
#[derive(Debug)]
pub(crate) struct FinishedTask {
    /// As it was removed from the frontier. No member holds it. Boxed as there, so that each end of
    /// a task moves a pointer; its key ids are valid no more.
    pub(crate) removed: Box<ActiveEntry>,
    pub(crate) end: TaskEnd,
    pub(crate) ended_at: Moment,
    /// Its last lease.
    pub(crate) lease: Option<EndedLease>,
}

impl FinishedTask {
    pub(crate) fn entry(&self) -> &Entry {
        &self.removed.entry
    }

    /// Whether it is listed as completed or as failed.
    pub(crate) fn state(&self) -> TaskState {
        match self.end {
            TaskEnd::Answered(Outcome::Failed) | TaskEnd::GivenUp(_) => TaskState::Failed,
            TaskEnd::Answered(_) => TaskState::Completed,
        }
    }
}

/// The newest finished tasks, oldest first.
#[derive(Debug, Default)]
pub(crate) struct FinishedTasks {
    tasks: VecDeque<FinishedTask>,
    /// How many were removed, so that each has a number: the first one 1.
    removed: u64,
}

impl FinishedTasks {
    /// Adds a task, without what lists do not show.
    pub(crate) fn push(&mut self, mut task: FinishedTask) {
        let entry = &mut task.removed.entry;
        let admitted = &mut entry.admitted;
        admitted.forwarded = Box::default();
        if admitted.text.len() > TEXT_BYTES_MAX {
            admitted.text = shown_text(&admitted.text).into();
        }
        (entry.state, entry.again) = (EntryState::Delayed, None);
        if self.tasks.len() == FINISHED_MAX {
            self.tasks.pop_front();
            self.removed += 1;
        }
        self.tasks.push_back(task);
    }

    /// Iterates over the tasks, newest first.
    pub(crate) fn newest_first(&self) -> impl Iterator<Item = &FinishedTask> {
        self.tasks.iter().rev()
    }

    /// Iterates over the tasks with numbers above `after`, oldest first.
    pub(crate) fn above(&self, after: u64) -> impl Iterator<Item = (u64, &FinishedTask)> {
        let skipped = after.saturating_sub(self.removed);
        let skipped = usize::try_from(skipped).unwrap_or(usize::MAX);
        let numbered = (self.removed + 1..).zip(&self.tasks);
        numbered.skip(skipped)
    }
}

/// The beginning of a text that is not shown in full.
pub(crate) fn shown_text(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_BYTES_MAX)]
}
