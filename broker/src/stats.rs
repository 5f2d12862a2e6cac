//! Counters for `STATS`, and a rate limit for log lines.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::Moment;

/// Counters since the start of the broker. Each only rises, and is read independently of the
/// others.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    /// Bytes received.
    pub(crate) bytes_in: Counter,
    /// Lines received, except empty ones, and HTTP requests.
    pub(crate) lines: Counter,
    /// Events that connections published.
    pub(crate) events: Counter,
    /// Lines and HTTP requests that were refused or dropped.
    pub(crate) refused_lines: Counter,
    /// Connections that were refused because there were too many.
    pub(crate) rejected_connections: Counter,
    /// Webhooks, including repeated ones.
    pub(crate) webhooks: RequestCounts,
    /// Requests that embedded handlers answer.
    pub(crate) receiver_requests: RequestCounts,
    /// Limits log lines about dropped lines of peers, which receive no answer.
    pub(crate) dropped_lines_log: LogRateLimit,
    /// Limits log lines about refused connections.
    pub(crate) rejected_connections_log: LogRateLimit,
}

/// Requests that identify their senders by their content.
#[derive(Debug, Default)]
pub(crate) struct RequestCounts {
    /// Requests that were accepted.
    pub(crate) accepted: Counter,
    /// Requests from unknown senders.
    pub(crate) refused: Counter,
    /// Requests beyond a rate limit.
    pub(crate) limited: Counter,
    /// Limits log lines about refused requests.
    log: LogRateLimit,
}

impl RequestCounts {
    /// Counts a refused request. Returns the number of suppressed log lines if this one may be
    /// logged.
    pub(crate) fn count_refused(&self, now: Moment) -> Option<u64> {
        self.refused.add(1);
        self.log.allow(now)
    }
}

/// A number that only rises.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        if n > 0 {
            self.0.fetch_add(n, Ordering::Relaxed);
        }
    }

    pub(crate) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Allows one log line about a subject each second, and counts those that it suppresses.
#[derive(Debug, Default)]
pub(crate) struct LogRateLimit {
    /// The moment from which the next line may be logged.
    next_at_ms: AtomicU64,
    suppressed: AtomicU64,
}

impl LogRateLimit {
    /// The number of lines that were suppressed since the last one, if this one may be logged.
    pub(crate) fn allow(&self, now: Moment) -> Option<u64> {
        let open_from_ms = self.next_at_ms.load(Ordering::Relaxed);
        let next_ms = (now + 1_000).0;
        let passes = now.0 >= open_from_ms
            && self
                .next_at_ms
                .compare_exchange(open_from_ms, next_ms, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if passes {
            Some(self.suppressed.swap(0, Ordering::Relaxed))
        } else {
            self.suppressed.fetch_add(1, Ordering::Relaxed);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_passes_and_reports_the_suppressed_ones() {
        let throttle = LogRateLimit::default();
        assert_eq!(throttle.allow(Moment(0)), Some(0));
        assert_eq!(throttle.allow(Moment(10)), None);
        assert_eq!(throttle.allow(Moment(999)), None);
        assert_eq!(throttle.allow(Moment(1_000)), Some(2));
        assert_eq!(throttle.allow(Moment(1_001)), None);
    }
    #[test]
    fn one_subject_does_not_suppress_the_other() {
        let stats = Stats::default();
        assert_eq!(stats.dropped_lines_log.allow(Moment(0)), Some(0));
        assert_eq!(stats.rejected_connections_log.allow(Moment(0)), Some(0));
    }
}
