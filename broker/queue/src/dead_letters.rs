//! Dead entries: those that the group gave up, kept for inspection and retry.

use std::collections::{BTreeSet, VecDeque};

use crate::config::GroupConfig;
use crate::entry::{Entry, EntryId};

/// The reason of an entry with a host that is given up.
pub(super) const DOWN: &str = "down";

/// The reason of an entry that ended because its worker said that a retry would not help.
pub(super) const RETRY_NO: &str = "retry-no";

/// A dead entry, in the state in which it was given up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DeadLetter {
    pub(super) entry: Entry,
    pub(super) reason: &'static str,
}

/// The newest dead entries, oldest first.
///
/// Their number and bytes are limited. At a limit the oldest is evicted; the dead letter that was
/// published for it remains on its topic.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct DeadLetters {
    letters: VecDeque<DeadLetter>,
    bytes: usize,
    /// Those that belong to no job, which counts its failed pages itself.
    without_job: usize,
}

impl DeadLetters {
    /// Adds an entry, and evicts the oldest ones beyond the limits.
    pub(super) fn push(&mut self, entry: Entry, reason: &'static str, config: &GroupConfig) {
        self.bytes += entry.admitted.bytes();
        self.without_job += usize::from(entry.admitted.job.is_none());
        self.letters.push_back(DeadLetter { entry, reason });
        while self.letters.len() > config.dead_max || self.bytes > config.dead_bytes_max {
            let Some(oldest) = self.letters.pop_front() else { return };
            self.uncount(&oldest);
        }
    }

    /// Removes and returns the entries with these ids.
    pub(super) fn take(&mut self, entries: &[EntryId]) -> Vec<DeadLetter> {
        let wanted: BTreeSet<EntryId> = entries.iter().copied().collect();
        let (taken, kept): (Vec<_>, _) = std::mem::take(&mut self.letters)
            .into_iter()
            .partition(|buried| wanted.contains(&buried.entry.admitted.id));
        self.letters = kept.into();
        for buried in &taken {
            self.uncount(buried);
        }
        taken
    }

    fn uncount(&mut self, removed: &DeadLetter) {
        let admitted = &removed.entry.admitted;
        self.bytes -= admitted.bytes();
        self.without_job -= usize::from(admitted.job.is_none());
    }

    /// Counts those that belong to no job.
    pub(super) fn without_job(&self) -> usize {
        self.without_job
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &DeadLetter> {
        self.letters.iter()
    }

    pub(super) fn len(&self) -> usize {
        self.letters.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.letters.is_empty()
    }
}

impl GroupConfig {
    /// Returns why an entry is given up, if its attempts or losses are used up.
    pub(super) fn dead_reason(&self, entry: &Entry) -> Option<&'static str> {
        if entry.failures >= self.settings.max_attempts {
            Some("max-attempts")
        } else if entry.losses >= self.settings.max_losses {
            Some("max-losses")
        } else {
            None
        }
    }
}
