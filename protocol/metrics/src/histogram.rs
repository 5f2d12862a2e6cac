//! Durations, counted in fixed buckets.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The upper ends of all buckets but the last, which has none: in microseconds, and as the formats
/// write them, in seconds. From a sync of a fast disk to the longest request.
pub const BUCKETS: [(u64, &str); 11] = [
    (1_000, "0.001"),
    (3_000, "0.003"),
    (10_000, "0.01"),
    (30_000, "0.03"),
    (100_000, "0.1"),
    (300_000, "0.3"),
    (1_000_000, "1.0"),
    (3_000_000, "3.0"),
    (10_000_000, "10.0"),
    (30_000_000, "30.0"),
    (100_000_000, "100.0"),
];

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// The bucket of a duration. The upper end belongs to it.
fn bucket_of(micros: u64) -> usize {
    BUCKETS.iter().position(|(end, _)| micros <= *end).unwrap_or(BUCKETS.len())
}

/// Counts that one owner changes, or a copy of those of a [`Histogram`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Durations {
    /// How many fell in each bucket, not cumulative.
    counts: [u64; BUCKETS.len() + 1],
    sum_micros: u64,
}

impl Durations {
    /// Counts a duration.
    pub fn observe(&mut self, duration: Duration) {
        let micros = micros(duration);
        self.counts[bucket_of(micros)] += 1;
        self.sum_micros = self.sum_micros.saturating_add(micros);
    }

    /// Adds the counts of another one.
    pub fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
        self.sum_micros = self.sum_micros.saturating_add(other.sum_micros);
    }

    /// The sum in seconds.
    pub fn sum(&self) -> f64 {
        Duration::from_micros(self.sum_micros).as_secs_f64()
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// What was counted after `earlier`, a former copy; nothing if the counts have begun again since.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let counts: [_; BUCKETS.len() + 1] =
            std::array::from_fn(|at| self.counts[at].checked_sub(earlier.counts[at]));
        if counts.contains(&None) {
            return Self::default();
        }
        let sum_micros = self.sum_micros.saturating_sub(earlier.sum_micros);
        Self { counts: counts.map(Option::unwrap_or_default), sum_micros }
    }

    /// Estimates the duration that a fraction of all durations does not exceed: it assumes that the
    /// durations of a bucket are evenly spread, as `histogram_quantile` of Prometheus does. `None` if
    /// nothing was counted. A duration beyond the last end counts as that end.
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    pub fn quantile(&self, fraction: f64) -> Option<Duration> {
        let rank = fraction * self.count() as f64;
        let (mut begin, mut below) = (0, 0.0);
        for (count, (end, _)) in self.counts.into_iter().zip(BUCKETS) {
            let count = count as f64;
            if count > 0.0 && below + count >= rank {
                let micros = (end - begin) as f64 * ((rank - below) / count);
                return Some(Duration::from_secs_f64((begin as f64 + micros) / 1e6));
            }
            (begin, below) = (end, below + count);
        }
        (self.count() > 0).then(|| Duration::from_micros(begin))
    }

    /// The end of each bucket, in seconds, and how many durations are not above it.
    pub fn cumulative(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let ends = BUCKETS.iter().map(|(_, end)| *end).chain(["+Inf"]);
        let counts = self.counts.into_iter().scan(0, |sum, count| {
            *sum += count;
            Some(*sum)
        });
        ends.zip(counts)
    }
}

/// Counts that any number of threads change. An observation is two additions; nothing is allocated.
#[derive(Debug, Default)]
pub struct Histogram {
    counts: [AtomicU64; BUCKETS.len() + 1],
    sum_micros: AtomicU64,
}

impl Histogram {
    /// Counts a duration.
    pub fn observe(&self, duration: Duration) {
        let micros = micros(duration);
        self.counts[bucket_of(micros)].fetch_add(1, Ordering::Relaxed);
        self.sum_micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// A copy. An observation at the same time may be in one of its parts only.
    pub fn durations(&self) -> Durations {
        Durations {
            counts: self.counts.each_ref().map(|count| count.load(Ordering::Relaxed)),
            sum_micros: self.sum_micros.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_bucket_belongs_to_it() {
        let histogram = Histogram::default();
        for micros in [0, 1_000, 1_001, 100_000_000, 100_000_001] {
            histogram.observe(Duration::from_micros(micros));
        }
        let durations = histogram.durations();
        let buckets: Vec<_> = durations.cumulative().collect();
        assert_eq!(buckets.len(), 12);
        assert_eq!(buckets[..2], [("0.001", 2), ("0.003", 3)]);
        assert_eq!(buckets[9..], [("30.0", 3), ("100.0", 4), ("+Inf", 5)]);
        assert_eq!(durations.count(), 5);
        assert!((durations.sum() - 200.002_002).abs() < 1e-9, "{}", durations.sum());
    }

    #[test]
    fn the_ends_are_the_same_in_both_units() {
        for (micros, seconds) in BUCKETS {
            let seconds: f64 = seconds.parse().unwrap();
            assert_eq!(Duration::from_micros(micros), Duration::from_secs_f64(seconds));
        }
    }

    #[test]
    fn quantiles_are_those_of_what_was_counted_in_between() {
        let mut durations = Durations::default();
        assert_eq!(durations.quantile(0.5), None);
        for _ in 0..100 {
            durations.observe(Duration::from_secs(20));
        }
        let earlier = durations;
        assert_eq!(durations.since(&earlier).quantile(0.5), None);
        for micros in [2_000, 2_000, 2_000, 200_000] {
            durations.observe(Duration::from_micros(micros));
        }
        let later = durations.since(&earlier);
        assert_eq!((later.count(), later.sum()), (4, 0.206));
        assert_eq!(later.quantile(0.0), Some(Duration::from_millis(1)));
        assert_eq!(later.quantile(0.75), Some(Duration::from_millis(3)));
        assert_eq!(later.quantile(1.0), Some(Duration::from_millis(300)));
        durations.observe(Duration::from_secs(1_000));
        assert_eq!(durations.since(&earlier).quantile(0.99), Some(Duration::from_secs(100)));
        assert_eq!(earlier.since(&durations), Durations::default(), "it begins again");
    }

    #[test]
    fn merged_counts_are_those_of_all_observations() {
        let (mut both, mut one, mut other) = Default::default();
        for (at, part) in [(5, &mut one), (70, &mut other)] {
            Durations::observe(part, Duration::from_millis(at));
            Durations::observe(&mut both, Duration::from_millis(at));
        }
        one.merge(&other);
        assert_eq!(one, both);
    }
}
