//! Complaints that come once a second at most, however often there is a reason. None is forgotten: the numbers that were
//! logged add up to all of them.

#![expect(clippy::disallowed_methods, reason = "the pace of a log is that of a clock")]

use std::fmt::{Display, Write};
use std::time::{Duration, Instant};

/// How often complaints of one kind are logged at most.
const COMPLAINT_PACE: Duration = Duration::from_secs(1);

/// Complaints of one kind. What is not logged yet is logged by the next one, by [`flush`](Self::flush), or at the end.
#[derive(Debug)]
pub(crate) struct Complaints {
    what: &'static str,
    /// Since those that were logged last, and the reason of the last one.
    count: u64,
    reason: String,
    next: Option<Instant>,
    total: u64,
}

impl Complaints {
    /// `what`: what is wrong, in the words of the log.
    pub(crate) fn new(what: &'static str) -> Self {
        Self { what, count: 0, reason: String::new(), next: None, total: 0 }
    }

    /// So many came in all.
    #[cfg(any(feature = "zeromq", feature = "libzmq"))]
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// One more. The reason must not hold anything that comes from outside.
    pub(crate) fn add(&mut self, count: u64, reason: impl Display) {
        self.note(count, reason);
        self.log_if_due();
    }

    /// Logs what is left, if it is time for that. For who has a tick: without one a burst shows when the next comes.
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
        tracing::warn!("{}: {count}, the last one because {}", self.what, self.reason);
    }

    fn note(&mut self, count: u64, reason: impl Display) {
        self.count += count;
        self.total += count;
        self.reason.clear();
        write!(self.reason, "{reason}").expect("a string takes everything");
    }

    /// How many are to be logged now, if that is due.
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
    fn what_is_logged_adds_up_and_comes_once_a_second() {
        let begin = Instant::now();
        let mut complaints = Complaints::new("messages dropped");
        let mut logged = Vec::new();
        // Four of them in a burst, one later, and nothing behind that.
        for (ms, count) in [(0, 1), (1, 2), (2, 1), (1_500, 1), (1_600, 0), (2_499, 0), (2_500, 0)]
        {
            complaints.note(count, format_args!("of {ms}"));
            logged.extend(complaints.take(begin + Duration::from_millis(ms)).map(|it| (ms, it)));
        }
        assert_eq!(logged, [(0, 1), (1_500, 4)]);
        complaints.note(3, "of the end");
        assert_eq!(complaints.take(begin + Duration::from_millis(1_501)), None);
        assert_eq!(complaints.take(begin + Duration::from_millis(2_500)), Some(3));
        assert_eq!(complaints.take(begin + Duration::from_secs(9)), None, "all of it was logged");
    }
}
