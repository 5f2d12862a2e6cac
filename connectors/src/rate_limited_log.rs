//! Logs repeated problems at most once a second. No problem is left uncounted: the numbers in the
//! log add up to the total.

#![expect(clippy::disallowed_methods, reason = "log lines are limited by the clock")]

use std::fmt::{Display, Write};
use std::time::{Duration, Instant};

/// The least time between two log lines of one kind.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// Problems of one kind. Those that are not logged yet are logged with the next one, by
/// [`flush`](Self::flush), or on drop.
#[derive(Debug)]
pub(crate) struct RateLimitedLog {
    message: &'static str,
    /// Problems since the last log line, and the reason of the latest.
    unlogged: u64,
    last_reason: String,
    next_at: Option<Instant>,
    total: u64,
}

impl RateLimitedLog {
    /// `message` is the problem as it appears in the log.
    pub(crate) fn new(message: &'static str) -> Self {
        Self { message, unlogged: 0, last_reason: String::new(), next_at: None, total: 0 }
    }

    /// All problems so far.
    #[cfg(any(feature = "zeromq", feature = "libzmq"))]
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Adds `unlogged` problems. The reason must not contain text from outside.
    pub(crate) fn add(&mut self, count: u64, reason: impl Display) {
        self.record(count, reason);
        self.flush();
    }

    /// Logs what is due. For callers with a timer: without one, the rest of a burst is logged only
    /// with the next problem.
    pub(crate) fn flush(&mut self) {
        if let Some(count) = self.take_due(Instant::now()) {
            self.log(count);
        }
    }

    fn log(&self, count: u64) {
        tracing::warn!("{}: {count}; last reason: {}", self.message, self.last_reason);
    }

    fn record(&mut self, count: u64, reason: impl Display) {
        self.unlogged += count;
        self.total += count;
        self.last_reason.clear();
        write!(self.last_reason, "{reason}").expect("writing to a string does not fail");
    }

    /// How many problems are to be logged now, if the interval has passed.
    fn take_due(&mut self, now: Instant) -> Option<u64> {
        if self.unlogged == 0 || self.next_at.is_some_and(|next| now < next) {
            return None;
        }
        self.next_at = Some(now + LOG_INTERVAL);
        Some(std::mem::take(&mut self.unlogged))
    }
}

impl Drop for RateLimitedLog {
    fn drop(&mut self) {
        if self.unlogged > 0 {
            self.log(self.unlogged);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logged_counts_add_up_and_are_logged_once_a_second() {
        let begin = Instant::now();
        let mut complaints = RateLimitedLog::new("messages dropped");
        let mut logged = Vec::new();
        // Four in a burst, one later, and none after that.
        for (ms, count) in [(0, 1), (1, 2), (2, 1), (1_500, 1), (1_600, 0), (2_499, 0), (2_500, 0)]
        {
            complaints.record(count, format_args!("at {ms}"));
            logged
                .extend(complaints.take_due(begin + Duration::from_millis(ms)).map(|it| (ms, it)));
        }
        assert_eq!(logged, [(0, 1), (1_500, 4)]);
        complaints.record(3, "at the end");
        assert_eq!(complaints.take_due(begin + Duration::from_millis(1_501)), None);
        assert_eq!(complaints.take_due(begin + Duration::from_millis(2_500)), Some(3));
        assert_eq!(
            complaints.take_due(begin + Duration::from_secs(9)),
            None,
            "everything was logged"
        );
    }
}
