//! When the program is signalled.

use std::time::{Duration, Instant};

/// Pause while the process does not run.
const HELD_RETRY: Duration = Duration::from_secs(1);

/// Pause before a program that has left files is signalled again, at first and at most. Signals in
/// quick succession merge into one, and the program may have started before the signal.
const AGAIN_MIN: Duration = Duration::from_secs(1);
const AGAIN_MAX: Duration = Duration::from_mins(1);

/// Computes when the next signal is due. Pure.
#[derive(Debug)]
pub struct Schedule {
    due: Option<Instant>,
    again: Duration,
}

impl Schedule {
    /// No signal is due.
    pub fn new() -> Self {
        Self { due: None, again: AGAIN_MIN }
    }

    /// When to send the next signal; may change with each of the other calls.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// A file was added or found.
    pub fn filled(&mut self, now: Instant) {
        self.due = Some(now);
        self.again = AGAIN_MIN;
    }

    /// The program was signalled; `files` were in the directory.
    pub fn signalled(&mut self, files: usize, now: Instant) {
        if files == 0 {
            *self = Self::new();
        } else {
            self.due = Some(now + self.again);
            self.again = (self.again * 2).min(AGAIN_MAX);
        }
    }

    /// The process does not run.
    pub fn held(&mut self, now: Instant) {
        self.due = Some(now + HELD_RETRY);
    }

    /// The directory was empty when the signal was due, so no signal is needed.
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
    #[expect(clippy::disallowed_methods, reason = "a test needs a first instant")]
    fn a_program_is_signalled_until_the_directory_is_empty() {
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
        // New files do not wait for that pause.
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
