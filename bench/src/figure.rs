//! What comes out of a measurement.

/// A figure, with one value of each run.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// Its name in JSON, with its unit.
    pub key: &'static str,
    /// Its name for people, with its unit.
    pub label: &'static str,
    /// Digits behind the point that mean something.
    pub decimals: usize,
    /// One value of each run.
    pub runs: Vec<f64>,
}

impl Figure {
    /// A figure without values yet.
    pub const fn new(key: &'static str, label: &'static str, decimals: usize) -> Self {
        Self { key, label, decimals, runs: Vec::new() }
    }

    /// With these values.
    #[must_use]
    pub fn with_runs(mut self, runs: impl IntoIterator<Item = f64>) -> Self {
        self.runs.extend(runs);
        self
    }

    /// The middle one of the runs.
    pub fn median(&self) -> Option<f64> {
        median(&self.runs)
    }

    /// From where to where the runs went.
    pub fn range(&self) -> Option<(f64, f64)> {
        let sorted = sorted(&self.runs);
        Some((*sorted.first()?, *sorted.last()?))
    }
}

/// The middle one; of an even number the lower of the two.
pub fn median(runs: &[f64]) -> Option<f64> {
    sorted(runs).get(runs.len().saturating_sub(1) / 2).copied()
}

fn sorted(runs: &[f64]) -> Vec<f64> {
    let mut runs = runs.to_vec();
    runs.sort_by(f64::total_cmp);
    runs
}

/// A count as a number to calculate with.
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
