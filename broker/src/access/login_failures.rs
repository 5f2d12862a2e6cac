//! Counts wrong tokens by source: each one is answered later than the one before, and only a few
//! are checked per minute. Pure: time is an argument, and memory has a limit.

use std::collections::HashMap;

use tidings_rate_limit::Source;

use crate::clock::Moment;

/// Wrong tokens that one source may try within [`WINDOW_MS`].
pub(crate) const FAILURES_MAX: usize = 10;
/// One minute.
const WINDOW_MS: u64 = 60_000;

/// Milliseconds before the first wrong token is answered. Each further one within a minute takes
/// twice as long, up to [`DELAY_MS_MAX`].
const DELAY_MS: u64 = 100;
const DELAY_MS_MAX: u64 = 5_000;

/// Sources that are remembered, about 100 bytes each.
const SOURCES_MAX: usize = 16_384;

/// The sources that tried wrong tokens within the last minute.
#[derive(Debug, Default)]
pub(super) struct LoginFailures {
    by_source: HashMap<Source, FailureTimes>,
}

/// The times of the last attempts, newest first.
#[derive(Debug, Clone, Copy, Default)]
struct FailureTimes([Option<Moment>; FAILURES_MAX]);

impl FailureTimes {
    /// The number of attempts within the last minute.
    fn count(&self, now: Moment) -> usize {
        self.0.iter().flatten().filter(|at| now.since(**at) < WINDOW_MS).count()
    }
}

impl LoginFailures {
    /// Checks whether a token from this source may be tried now. An error is the number of
    /// milliseconds until one may be tried.
    pub(super) fn check(&self, source: Source, now: Moment) -> Result<(), u64> {
        let recent = self.by_source.get(&source).copied().unwrap_or_default();
        match recent.0[FAILURES_MAX - 1].map(|oldest| now.since(oldest)) {
            Some(past_ms @ ..WINDOW_MS) => Err(WINDOW_MS - past_ms),
            _ => Ok(()),
        }
    }

    /// Records a wrong token. Returns the number of milliseconds to wait before the answer.
    pub(super) fn record(&mut self, source: Source, now: Moment) -> u64 {
        if self.by_source.len() >= SOURCES_MAX && !self.by_source.contains_key(&source) {
            self.evict(now);
        }
        let recent = self.by_source.entry(source).or_default();
        recent.0.rotate_right(1);
        recent.0[0] = Some(now);
        let earlier = u32::try_from(recent.count(now) - 1).unwrap_or(u32::MAX);
        DELAY_MS.saturating_mul(1_u64.checked_shl(earlier).unwrap_or(u64::MAX)).min(DELAY_MS_MAX)
    }

    /// Removes the sources that have not tried a token for a minute. If none is removed, removes
    /// all: this limit does not stop a client with many networks, and no client can guess
    /// 256 bits.
    fn evict(&mut self, now: Moment) {
        self.by_source.retain(|_, recent| recent.count(now) > 0);
        if self.by_source.len() >= SOURCES_MAX {
            self.by_source.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use proptest::prelude::*;

    use super::*;

    fn source(number: u32) -> Source {
        IpAddr::from(number.to_be_bytes()).into()
    }

    // PROTOCOL: S16
    #[test]
    fn each_failure_is_answered_later_than_the_one_before() {
        let mut failures = LoginFailures::default();
        let delays: Vec<_> = (0..10).map(|at| failures.record(source(1), Moment(at))).collect();
        assert_eq!(delays, [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000, 5_000, 5_000]);
        assert_eq!(failures.check(source(1), Moment(9)), Err(60_000 - 9));
        assert_eq!(failures.check(source(2), Moment(9)), Ok(()), "another source");
        assert_eq!(failures.check(source(1), Moment(60_000)), Ok(()));
        assert_eq!(
            failures.record(source(1), Moment(200_000)),
            100,
            "the others are over a minute old"
        );
    }

    #[test]
    fn memory_is_bounded() {
        let mut failures = LoginFailures::default();
        for number in 0..100_000 {
            failures.record(source(number), Moment(u64::from(number)));
            assert!(failures.by_source.len() <= SOURCES_MAX);
        }
    }

    proptest! {
        // PROTOCOL: S16
        #[test]
        fn no_minute_has_more_than_ten(pauses in prop::collection::vec(0..20_000_u64, 1..200)) {
            let (mut failures, mut now, mut tried) = (LoginFailures::default(), 0, Vec::new());
            for pause in pauses {
                now += pause;
                if failures.check(source(7), Moment(now)).is_ok() {
                    failures.record(source(7), Moment(now));
                    tried.push(now);
                }
                let within = tried.iter().filter(|at| now - **at < WINDOW_MS).count();
                prop_assert!(within <= FAILURES_MAX, "{within} at {now}");
            }
            prop_assert!(!tried.is_empty());
        }
    }
}
