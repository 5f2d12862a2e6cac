//! The maximum age of a task, from samples of the broker's clock. Pure.
//!
//! A reading that was requested at our time `sent` was taken at `sent` or later. So at our time
//! `sent` the broker's clock showed at most that reading. The smallest `reading - sent` of several
//! samples is the tightest bound on how far the broker's clock is ahead of ours. Network delay
//! makes the bound looser, never wrong.

use std::collections::VecDeque;

/// Samples of the broker's clock that count: the tightest of the last minute or so.
const CLOCK_SAMPLES: usize = 6;

/// Samples of one broker's clock. Both clocks are monotonic, in milliseconds.
#[derive(Debug, Default)]
pub(crate) struct BrokerClock {
    /// `reading - sent` of the newest samples.
    ahead_ms: VecDeque<i64>,
}

impl BrokerClock {
    /// Drops all samples: the broker is another one, or has restarted with a new clock.
    pub(crate) fn reset(&mut self) {
        self.ahead_ms.clear();
    }

    /// Adds a reading that was requested at our time `sent_ms`. The oldest sample is dropped, since
    /// clocks drift apart.
    pub(crate) fn add_sample(&mut self, sent_ms: u64, reading_ms: u64) {
        if self.ahead_ms.len() == CLOCK_SAMPLES {
            self.ahead_ms.pop_front();
        }
        self.ahead_ms.push_back(signed(reading_ms).saturating_sub(signed(sent_ms)));
    }

    /// The longest time that may have passed since the broker's clock showed `then_ms`; `None`
    /// without a sample.
    pub(crate) fn task_age_max_ms(&self, now_ms: u64, then_ms: u64) -> Option<u64> {
        let ahead_ms = self.ahead_ms.iter().min()?;
        let broker_now_ms = signed(now_ms).saturating_add(*ahead_ms);
        Some(u64::try_from(broker_now_ms.saturating_sub(signed(then_ms))).unwrap_or(0))
    }
}

fn signed(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    // PROTOCOL: T3
    #[test]
    fn the_tightest_of_the_newest_readings_counts() {
        let mut clock = BrokerClock::default();
        assert_eq!(clock.task_age_max_ms(5, 5), None);
        clock.add_sample(100, 1_000_300); // 300 ms on the way: looks 300 ms further ahead than it is
        assert_eq!(clock.task_age_max_ms(200, 1_000_100), Some(300));
        clock.add_sample(150, 1_000_051);
        assert_eq!(clock.task_age_max_ms(200, 1_000_100), Some(1));
        for sent in 0..CLOCK_SAMPLES as u64 {
            clock.add_sample(200 + sent, 1_000_210 + sent);
        }
        assert_eq!(clock.task_age_max_ms(300, 1_000_300), Some(10));
        clock.reset();
        assert_eq!(clock.task_age_max_ms(300, 0), None);
    }

    proptest! {
        /// Network delay never makes a task look younger than it is.
        // PROTOCOL: T3
        #[test]
        fn the_age_is_never_underestimated(
            ahead in 0_u64..1 << 40,
            samples in prop::collection::vec((0_u64..10_000, 0_u64..500), 1..10),
            released in 10_000_u64..20_000,
            waited in 0_u64..5_000,
        ) {
            let mut clock = BrokerClock::default();
            for (sent, way) in samples {
                clock.add_sample(sent, sent + way + ahead);
            }
            let age = clock.task_age_max_ms(released + waited, released + ahead).unwrap();
            prop_assert!(age >= waited);
        }
    }
}
