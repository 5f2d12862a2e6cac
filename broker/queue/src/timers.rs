//! Timers: sets ordered by moment, so that the owner needs a single wake-up.

use std::collections::BTreeSet;

use crate::moment::Moment;

/// Timers, ordered by moment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Timers<T> {
    set: BTreeSet<(Moment, T)>,
}

impl<T> Default for Timers<T> {
    fn default() -> Self {
        Self { set: BTreeSet::new() }
    }
}

impl<T: Ord> Timers<T> {
    /// Sets a timer. Setting it again for the same moment has no effect.
    pub(crate) fn set(&mut self, at: Moment, timer: T) {
        self.set.insert((at, timer));
    }

    /// Cancels a timer that was set for exactly this moment.
    pub(crate) fn cancel(&mut self, at: Moment, timer: T) {
        self.set.remove(&(at, timer));
    }

    /// Returns the earliest moment of a timer.
    pub(crate) fn next(&self) -> Option<Moment> {
        self.set.first().map(|(at, _)| *at)
    }

    /// Returns all timers, the earliest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &(Moment, T)> {
        self.set.iter()
    }

    /// Removes and returns the earliest timer that is due at `now`.
    pub(crate) fn pop(&mut self, now: Moment) -> Option<T> {
        if self.next()? > now {
            return None;
        }
        self.set.pop_first().map(|(_, timer)| timer)
    }
}
