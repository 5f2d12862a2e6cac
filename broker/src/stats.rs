//! What connections count, and a rate limit for log lines.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidings_metrics::{Counter, Histogram};
use tidings_protocol::{Code, Verb};

use crate::clock::Moment;

/// Counters since the start of the broker. Each only rises, and is read independently of the
/// others.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    /// Bytes received over the line protocol.
    pub(crate) bytes_in: Counter,
    /// Bytes sent over the line protocol.
    pub(crate) bytes_out: Counter,
    /// Commands, in the order of [`Verb::ALL`].
    pub(crate) commands: [Counter; Verb::ALL.len()],
    /// Refusals that were sent, in the order of [`Code::ALL`].
    pub(crate) refusals: [Counter; Code::ALL.len()],
    /// Logins with a wrong token.
    pub(crate) failed_logins: Counter,
    /// Events that were handed to subscribers, and `LAG`s instead of events.
    pub(crate) delivered: Counter,
    pub(crate) lags: Counter,
    /// HTTP responses with status 200 to 299, 300 to 399, 400 to 499 and 500 to 599.
    pub(crate) responses: [Counter; 4],
    /// From an HTTP request to the head of its response.
    pub(crate) response_times: Histogram,
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

impl Stats {
    /// Counts a refusal.
    pub(crate) fn count_refusal(&self, code: Code) {
        self.refusals[code as usize].add(1);
    }

    /// Counts events that were handed to subscribers, and `LAG`s instead of events.
    pub(crate) fn count_delivered(&self, events: u64, lags: u64) {
        self.delivered.add(events);
        self.lags.add(lags);
    }

    /// Counts an HTTP response.
    pub(crate) fn count_response(&self, status: u16, time: Duration) {
        let class = usize::from(status / 100).checked_sub(2);
        if let Some(count) = class.and_then(|class| self.responses.get(class)) {
            count.add(1);
        }
        self.response_times.observe(time);
    }
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

/// Commands of one read, counted before they are added to those of all connections.
#[derive(Debug, Default)]
pub(crate) struct CommandCounts([u32; Verb::ALL.len()]);

impl CommandCounts {
    pub(crate) fn add(&mut self, verb: Verb, count: usize) {
        self.0[verb as usize] += u32::try_from(count).unwrap_or(u32::MAX);
    }

    pub(crate) fn flush(&self, stats: &Stats) {
        for (count, sum) in self.0.iter().zip(&stats.commands) {
            sum.add((*count).into());
        }
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
