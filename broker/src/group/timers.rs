//! What is due when: ordered sets, so that the shell owes a single wake-up.

use std::collections::BTreeSet;

use super::entry::{EntryId, JobNumber};
use super::keys::KeyId;
use crate::clock::Moment;

/// What time alone changes, whoever looks: it is let pass before anything else.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Wake {
    /// A delayed entry may queue.
    Due(EntryId),
    /// A key has rested, or can be forgotten.
    Key(KeyId),
}

/// What has to be decided when its time has come, and only after everything that has arrived.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Expiry {
    /// A lease runs out.
    Lease(EntryId),
    /// A job that was left open is closed.
    JobOpen(JobNumber),
    /// The time of a job is over.
    JobTime(JobNumber),
    /// The URL of this print is to be looked at again.
    Schedule(u64),
}

/// Timers in the order of their moments.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Timers<T> {
    set: BTreeSet<(Moment, T)>,
}

impl<T> Default for Timers<T> {
    fn default() -> Self {
        Self { set: BTreeSet::new() }
    }
}

impl<T: Ord> Timers<T> {
    /// Sets a timer; the same one at the same moment counts once.
    pub(super) fn set(&mut self, at: Moment, timer: T) {
        self.set.insert((at, timer));
    }

    /// Takes back a timer that was set for exactly this moment.
    pub(super) fn cancel(&mut self, at: Moment, timer: T) {
        self.set.remove(&(at, timer));
    }

    /// The earliest moment at which something is due.
    pub(super) fn next(&self) -> Option<Moment> {
        self.set.first().map(|(at, _)| *at)
    }

    /// All of them, the earliest first.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn iter(&self) -> impl Iterator<Item = &(Moment, T)> {
        self.set.iter()
    }

    /// How many are set.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.set.len()
    }

    /// Takes the earliest timer that is due at `now`.
    pub(super) fn pop(&mut self, now: Moment) -> Option<T> {
        if self.next()? > now {
            return None;
        }
        self.set.pop_first().map(|(_, timer)| timer)
    }
}
