//! Logs repeated problems at most once a second. No problem is left uncounted: the numbers in the
//! log add up to the total.

#![expect(clippy::disallowed_methods, reason = "log lines are limited by the clock")]

use std::fmt::{Display, Write};
use std::time::{Duration, Instant};

/// The least time between two log lines of one kind.
const COMPLAINT_PACE: Duration = Duration::from_secs(1);

/// Problems of one kind. Those that are not logged yet are logged with the next one, by
/// [`flush`](Self::flush), or on drop.
#[derive(Debug)]
pub(crate) struct Complaints {
    what: &'static str,
    /// Problems since the last log line, and the reason of the latest.
    count: u64,
    reason: String,
    next: Option<Instant>,
    total: u64,
}

impl Complaints {
    /// `what` is the problem as it appears in the log.
    pub(crate) fn new(what: &'static str) -> Self {
        Self { what, count: 0, reason: String::new(), next: None, total: 0 }
    }

    /// All problems so far.
    #[cfg(any(feature = "zeromq", feature = "libzmq"))]
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Adds `count` problems. The reason must not contain text from outside.
    pub(crate) fn add(&mut self, count: u64, reason: impl Display) {
        self.note(count, reason);
        self.log_if_due();
    }

    /// Logs what is due. For callers with a timer: without one, the rest of a burst is logged only
    /// with the next problem.
    #[cfg(any(feature = "zeromq", feature = "libzmq"))]
    pub(crate) fn flush(&mut self) {
        self.log_if_due();
    }

    fn log_if_due(&mut self) {
        if let Some(count) = self.take(Instant::now()) {
            self.log(count);
        }
    }

    fn log(&self, count: u64) {
        tracing::warn!("{}: {count}; last reason: {}", self.what, self.reason);
    }

    fn note(&mut self, count: u64, reason: impl Display) {
        self.count += count;
        self.total += count;
        self.reason.clear();
        write!(self.reason, "{reason}").expect("writing to a string does not fail");
    }

    /// How many problems are to be logged now, if the interval has passed.
    fn take(&mut self, now: Instant) -> Option<u64> {
        if self.count == 0 || self.next.is_some_and(|next| now < next) {
            return None;
        }
        self.next = Some(now + COMPLAINT_PACE);
        Some(std::mem::take(&mut self.count))
    }
}

impl Drop for Complaints {
    fn drop(&mut self) {
        if self.count > 0 {
            self.log(self.count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logged_counts_add_up_and_are_logged_once_a_second() {
        let begin = Instant::now();
        let mut complaints = Complaints::new("messages dropped");
        let mut logged = Vec::new();
        // Four in a burst, one later, and none after that.
        for (ms, count) in [(0, 1), (1, 2), (2, 1), (1_500, 1), (1_600, 0), (2_499, 0), (2_500, 0)]
        {
            complaints.note(count, format_args!("at {ms}"));
            logged.extend(complaints.take(begin + Duration::from_millis(ms)).map(|it| (ms, it)));
        }
        assert_eq!(logged, [(0, 1), (1_500, 4)]);
        complaints.note(3, "at the end");
        assert_eq!(complaints.take(begin + Duration::from_millis(1_501)), None);
        assert_eq!(complaints.take(begin + Duration::from_millis(2_500)), Some(3));
        assert_eq!(complaints.take(begin + Duration::from_secs(9)), None, "everything was logged");
    }
}
