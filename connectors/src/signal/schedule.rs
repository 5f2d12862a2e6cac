//! When a program is signalled.

use std::time::{Duration, Instant};

/// How soon it is tried again where no program runs that could be signalled.
const HELD_RETRY: Duration = Duration::from_secs(1);

/// How soon a program is signalled again that has left something, at first and at most: signals that come fast are one
/// signal to it, and it may have begun before that came.
const AGAIN_MIN: Duration = Duration::from_secs(1);
const AGAIN_MAX: Duration = Duration::from_mins(1);

/// Says when the next signal is due. Pure.
#[derive(Debug)]
pub struct Schedule {
    due: Option<Instant>,
    again: Duration,
}

impl Schedule {
    /// Nothing is due.
    pub fn new() -> Self {
        Self { due: None, again: AGAIN_MIN }
    }

    /// When to signal; may change after each of the other calls.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Something was put into the directory, or is found there.
    pub fn filled(&mut self, now: Instant) {
        self.due = Some(now);
        self.again = AGAIN_MIN;
    }

    /// The program was signalled, while so many files were there.
    pub fn signalled(&mut self, files: usize, now: Instant) {
        if files == 0 {
            *self = Self::new();
        } else {
            self.due = Some(now + self.again);
            self.again = (self.again * 2).min(AGAIN_MAX);
        }
    }

    /// There was none to signal.
    pub fn held(&mut self, now: Instant) {
        self.due = Some(now + HELD_RETRY);
    }

    /// The directory was empty when the signal was due: nobody has to be told.
    pub fn emptied(&mut self) {
        *self = Self::new();
    }
}

impl Default for Schedule {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "there is no other way to make a first moment")]
    fn a_program_is_signalled_until_nothing_is_left() {
        let now = Instant::now();
        let mut schedule = Schedule::new();
        assert_eq!(schedule.due(), None);
        schedule.filled(now);
        assert_eq!(schedule.due(), Some(now));
        schedule.held(now);
        assert_eq!(schedule.due(), Some(now + HELD_RETRY));
        schedule.signalled(3, now);
        assert_eq!(schedule.due(), Some(now + AGAIN_MIN));
        for _ in 0..20 {
            schedule.signalled(1, now);
        }
        assert_eq!(schedule.due(), Some(now + AGAIN_MAX));
        // What is new does not wait for that.
        schedule.filled(now);
        schedule.signalled(4, now);
        assert_eq!(schedule.due(), Some(now + AGAIN_MIN));
        schedule.signalled(0, now);
        assert_eq!(schedule.due(), None);
        schedule.filled(now);
        schedule.emptied();
        assert_eq!(schedule.due(), None);
    }
}
