//! Counters for people, and a brake for repetitive log lines.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::Moment;

/// What a broker has done since its start. Each only rises, and is read without the others.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    /// Bytes received.
    pub(crate) bytes_in: Counter,
    /// Lines received that meant something.
    pub(crate) lines: Counter,
    /// Events that connections published.
    pub(crate) events: Counter,
    /// Lines that were refused, with an answer or without.
    pub(crate) refused: Counter,
    /// Connections that found no room.
    pub(crate) turned_away: Counter,
    /// Webhooks, also those that were sent again.
    pub(crate) hooks: Visits,
    /// Requests that are answered by receivers.
    pub(crate) notices: Visits,
    /// For the log lines about refused lines of peers, whom nobody else tells.
    pub(crate) dropped_log: Throttle,
    /// For the log lines about connections that found no room.
    pub(crate) turned_away_log: Throttle,
}

/// What came from the network that is known by what it says.
#[derive(Debug, Default)]
pub(crate) struct Visits {
    /// From those who are expected.
    pub(crate) taken: Counter,
    /// From others.
    pub(crate) refused: Counter,
    /// Too many.
    pub(crate) limited: Counter,
    /// For the log lines about those that were refused.
    log: Throttle,
}

impl Visits {
    /// Counts one that was refused. With the number of those that were held back, it may be told in the log.
    pub(crate) fn refuse(&self, now: Moment) -> Option<u64> {
        self.refused.add(1);
        self.log.pass(now)
    }
}

/// A number that rises.
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

/// Lets one log line about a subject through a second, with the number of those that it held back.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    /// The moment from which on the next one may pass.
    open_from_ms: AtomicU64,
    held_back: AtomicU64,
}

impl Throttle {
    /// How many were held back since the last one, if this one may pass.
    pub(crate) fn pass(&self, now: Moment) -> Option<u64> {
        let open_from_ms = self.open_from_ms.load(Ordering::Relaxed);
        let next_ms = (now + 1_000).0;
        let passes = now.0 >= open_from_ms
            && self
                .open_from_ms
                .compare_exchange(open_from_ms, next_ms, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if passes {
            Some(self.held_back.swap(0, Ordering::Relaxed))
        } else {
            self.held_back.fetch_add(1, Ordering::Relaxed);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_passes_and_counts_the_others() {
        let throttle = Throttle::default();
        assert_eq!(throttle.pass(Moment(0)), Some(0));
        assert_eq!(throttle.pass(Moment(10)), None);
        assert_eq!(throttle.pass(Moment(999)), None);
        assert_eq!(throttle.pass(Moment(1_000)), Some(2));
        assert_eq!(throttle.pass(Moment(1_001)), None);
    }
    #[test]
    fn one_subject_does_not_hold_back_the_other() {
        let stats = Stats::default();
        assert_eq!(stats.dropped_log.pass(Moment(0)), Some(0));
        assert_eq!(stats.turned_away_log.pass(Moment(0)), Some(0));
    }
}
