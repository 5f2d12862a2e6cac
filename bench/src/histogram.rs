//! A histogram of times in constant memory, exact to 1/64.

use std::time::Duration;

/// Values below this have a bucket each; every power of two above has half as many buckets.
const EXACT_BUCKETS: usize = 128;
const BUCKETS_PER_POWER: usize = EXACT_BUCKETS / 2;

/// Counts of times, in microseconds.
#[derive(Debug)]
pub(crate) struct Histogram {
    buckets: Vec<u64>,
    count: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

impl Histogram {
    pub(crate) fn new() -> Self {
        Self { buckets: vec![0; EXACT_BUCKETS + BUCKETS_PER_POWER * 58], count: 0 }
    }

    pub(crate) fn record(&mut self, time: Duration) {
        let microseconds = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.buckets[bucket_of(microseconds)] += 1;
        self.count += 1;
    }

    /// The time in microseconds that this part of all times, 0 to 1, does not exceed.
    #[expect(clippy::cast_precision_loss, reason = "a quantile of a benchmark")]
    pub(crate) fn quantile(&self, part: f64) -> f64 {
        let wanted = self.count as f64 * part;
        let mut below = 0;
        for (index, count) in self.buckets.iter().enumerate() {
            below += count;
            if *count > 0 && below as f64 >= wanted {
                return bucket_floor(index) as f64;
            }
        }
        0.0
    }
}

fn bucket_of(value: u64) -> usize {
    let bits = usize::try_from(u64::BITS - value.leading_zeros()).expect("at most 64");
    let shift = bits.saturating_sub(7);
    usize::try_from(value >> shift).expect("below 128") + shift * BUCKETS_PER_POWER
}

/// The smallest value of a bucket.
fn bucket_floor(bucket: usize) -> u64 {
    let shift = bucket.saturating_sub(BUCKETS_PER_POWER) / BUCKETS_PER_POWER;
    u64::try_from(bucket - shift * BUCKETS_PER_POWER).expect("below 128") << shift
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_values_within_1_64_of_each_other() {
        for value_in in (0..1000).chain([4096, 12_345, 1 << 40, u64::MAX / 3, u64::MAX]) {
            let lowest = bucket_floor(bucket_of(value_in));
            assert!(lowest <= value_in && value_in - lowest <= value_in / 64, "{value_in}");
        }
    }

    #[test]
    fn quantiles_of_100_values() {
        let mut histogram = Histogram::new();
        (1..=100).for_each(|time| histogram.record(Duration::from_micros(time)));
        let shown = [0.5, 0.99, 0.999].map(|part| histogram.quantile(part).to_string());
        assert_eq!(shown, ["50", "99", "100"]);
    }
}
