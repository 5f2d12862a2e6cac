//! The result of a measurement.

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
        median(&self.runs)
    }

    /// The lowest and the highest run.
    pub fn range(&self) -> Option<(f64, f64)> {
        let sorted = sorted(&self.runs);
        Some((*sorted.first()?, *sorted.last()?))
    }
}

/// The median; of an even number of values, the lower one of the two in the middle.
pub fn median(runs: &[f64]) -> Option<f64> {
    sorted(runs).get(runs.len().saturating_sub(1) / 2).copied()
}

fn sorted(runs: &[f64]) -> Vec<f64> {
    let mut runs = runs.to_vec();
    runs.sort_by(f64::total_cmp);
    runs
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
    fn the_median_is_one_of_the_runs() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.0));
    }

    #[test]
    fn the_range_is_from_the_lowest_to_the_highest_run() {
        let figure = Figure::new("a", "a", 0).with_runs([2.0, 1.0, 3.0]);
        assert_eq!((figure.median(), figure.range()), (Some(2.0), Some((1.0, 3.0))));
    }
}
