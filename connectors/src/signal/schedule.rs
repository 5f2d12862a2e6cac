//! When the program is signalled.

use std::time::{Duration, Instant};

/// Pause while the process does not run.
const NO_PROCESS_RETRY: Duration = Duration::from_secs(1);

/// Pause before a program that has left files is signalled again, at first and at most. Signals in
/// quick succession merge into one, and the program may have started before the signal.
const RESIGNAL_MIN: Duration = Duration::from_secs(1);
const RESIGNAL_MAX: Duration = Duration::from_mins(1);

/// Computes when the next signal is due. Pure.
#[derive(Debug)]
pub struct SignalSchedule {
    due: Option<Instant>,
    resignal_after: Duration,
}

impl SignalSchedule {
    /// No signal is due.
    pub fn new() -> Self {
        Self { due: None, resignal_after: RESIGNAL_MIN }
    }

    /// When to send the next signal; may change with each of the other calls.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// A file was added or found.
    pub fn file_added(&mut self, now: Instant) {
        self.due = Some(now);
        self.resignal_after = RESIGNAL_MIN;
    }

    /// The program was signalled; `files` were in the directory.
    pub fn signalled(&mut self, files: usize, now: Instant) {
        if files == 0 {
            *self = Self::new();
        } else {
            self.due = Some(now + self.resignal_after);
            self.resignal_after = (self.resignal_after * 2).min(RESIGNAL_MAX);
        }
    }

    /// The process does not run.
    pub fn no_process(&mut self, now: Instant) {
        self.due = Some(now + NO_PROCESS_RETRY);
    }

    /// The directory was empty when the signal was due, so no signal is needed.
    pub fn emptied(&mut self) {
        *self = Self::new();
    }
}

impl Default for SignalSchedule {
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
        let mut schedule = SignalSchedule::new();
        assert_eq!(schedule.due(), None);
        schedule.file_added(now);
        assert_eq!(schedule.due(), Some(now));
        schedule.no_process(now);
        assert_eq!(schedule.due(), Some(now + NO_PROCESS_RETRY));
        schedule.signalled(3, now);
        assert_eq!(schedule.due(), Some(now + RESIGNAL_MIN));
        for _ in 0..20 {
            schedule.signalled(1, now);
        }
        assert_eq!(schedule.due(), Some(now + RESIGNAL_MAX));
        // New files do not wait for that pause.
        schedule.file_added(now);
        schedule.signalled(4, now);
        assert_eq!(schedule.due(), Some(now + RESIGNAL_MIN));
        schedule.signalled(0, now);
        assert_eq!(schedule.due(), None);
        schedule.file_added(now);
        schedule.emptied();
        assert_eq!(schedule.due(), None);
    }
}
