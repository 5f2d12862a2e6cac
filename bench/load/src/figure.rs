//! The result of a measurement.

use crate::text::format_count;

/// A quantity, with one value per run.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// Name in JSON, with the unit.
    pub key: &'static str,
    /// Name in tables, with the unit.
    pub label: &'static str,
    /// Digits after the decimal point.
    pub decimals: usize,
    /// One value per run.
    pub runs: Vec<f64>,
}

impl Figure {
    /// A figure without values.
    pub const fn new(key: &'static str, label: &'static str, decimals: usize) -> Self {
        Self { key, label, decimals, runs: Vec::new() }
    }

    /// Adds the values of runs.
    #[must_use]
    pub fn with_runs(mut self, runs: impl IntoIterator<Item = f64>) -> Self {
        self.runs.extend(runs);
        self
    }

    /// The median of the runs.
    pub fn median(&self) -> Option<f64> {
        quantile(&self.runs, 0.5)
    }

    /// The lowest and the highest run.
    pub fn range(&self) -> Option<(f64, f64)> {
        Some((quantile(&self.runs, 0.0)?, quantile(&self.runs, 1.0)?))
    }

    /// A value with the digits of this figure: `12,345` or `0.13`.
    pub fn format(&self, value: f64) -> String {
        match self.decimals {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate")]
            0 => format_count(value as u64),
            digits => format!("{value:.digits$}"),
        }
    }
}

/// The value that this part of all values, 0 to 1, does not exceed. The median (0.5) of an even
/// number of values is the lower one of the two in the middle.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "an index in the values, rounded up"
)]
pub fn quantile(values: &[f64], part: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (part * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

/// Converts a count to a number for calculations.
#[expect(clippy::cast_precision_loss, reason = "counts of a benchmark, shown with few digits")]
pub fn to_f64(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_one_of_the_values() {
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(quantile(&[3.0, 1.0, 2.0], 0.5), Some(2.0));
        assert_eq!(quantile(&[4.0, 1.0, 2.0, 3.0], 0.5), Some(2.0));
        assert_eq!(quantile(&[4.0, 1.0, 2.0, 3.0], 0.99), Some(4.0));
        let figure = Figure::new("a", "a", 0).with_runs([2.0, 1.0, 3.0]);
        assert_eq!((figure.median(), figure.range()), (Some(2.0), Some((1.0, 3.0))));
    }

    #[test]
    fn a_value_has_the_digits_of_its_figure() {
        assert_eq!(Figure::new("a", "a", 0).format(1_234_567.8), "1,234,567");
        assert_eq!(Figure::new("a", "a", 2).format(12.345), "12.35");
    }
}
