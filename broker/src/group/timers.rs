//! What is due when: one ordered set, so that the shell owes a single wake-up.

use std::collections::BTreeSet;

use super::entry::{EntryId, JobNumber, Key};
use crate::clock::Moment;

/// What happens at a moment. Firing early or twice must be harmless: the handler looks again.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// A lease runs out.
    Lease(EntryId),
    /// A delayed entry may queue.
    Due(EntryId),
    /// A key's delay has passed, or its pace is out of date.
    Key(Key),
    /// A job that was left open is closed.
    JobOpen(JobNumber),
}

/// Timers in the order of their moments.
#[derive(Debug, Default)]
pub(super) struct Timers {
    set: BTreeSet<(Moment, Timer)>,
}

impl Timers {
    /// Sets a timer; the same one at the same moment counts once.
    pub(super) fn set(&mut self, at: Moment, timer: Timer) {
        self.set.insert((at, timer));
    }

    /// Takes back a timer that was set for exactly this moment.
    pub(super) fn cancel(&mut self, at: Moment, timer: Timer) {
        self.set.remove(&(at, timer));
    }

    /// The earliest moment at which something is due.
    pub(super) fn next(&self) -> Option<Moment> {
        self.set.first().map(|(at, _)| *at)
    }

    /// Takes the earliest timer that is due at `now`.
    pub(super) fn pop(&mut self, now: Moment) -> Option<Timer> {
        if self.next()? > now {
            return None;
        }
        self.set.pop_first().map(|(_, timer)| timer)
    }
}
