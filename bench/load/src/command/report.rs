//! The output of a benchmark.

use serde_json::{Map, Value, json};

use crate::Figure;

/// The settings and results of a measurement.
#[derive(Debug)]
pub struct BenchReport {
    /// The first line of the table.
    pub title: String,
    /// The flags and the disk, for JSON.
    pub settings: Map<String, Value>,
    /// The results.
    pub figures: Vec<Figure>,
    /// Lines below the table.
    pub notes: Vec<String>,
}

impl BenchReport {
    /// The report as lines.
    pub fn table(&self) -> Vec<String> {
        let mut lines = vec![self.title.clone()];
        lines.extend(self.figures.iter().filter_map(row));
        lines.extend(self.notes.iter().map(|note| format!("  {note}")));
        lines
    }

    /// The report as one object: the settings, and for each figure its median and the runs.
    pub fn json(&self) -> Value {
        let mut object = self.settings.clone();
        for figure in &self.figures {
            let value = json!({ "p50": figure.median(), "runs": figure.runs });
            object.insert(figure.key.to_owned(), value);
        }
        Value::Object(object)
    }
}

/// The median and the range of the runs; `None` for a figure without runs.
fn row(figure: &Figure) -> Option<String> {
    let (median, (low, high)) = (figure.format(figure.median()?), figure.range()?);
    let spread = match figure.runs.len() {
        1 => String::new(),
        _ => format!("   ({} to {})", figure.format(low), figure.format(high)),
    };
    Some(format!("  {:<24} {median:>14}{spread}", figure.label))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Figure = Figure::new("rate", "deliveries/s", 0);

    #[test]
    fn a_row_shows_the_spread() {
        let shown = row(&RATE.with_runs([1000.0, 3000.4, 2000.0])).unwrap();
        assert_eq!(shown, "  deliveries/s                      2,000   (1,000 to 3,000)");
        assert_eq!(
            row(&RATE.with_runs([7.0])).unwrap(),
            "  deliveries/s                          7"
        );
        assert_eq!(row(&RATE), None);
    }

    #[test]
    fn json_has_settings_and_figures() {
        let report = BenchReport {
            title: String::new(),
            settings: Map::from_iter([("size".to_owned(), json!(128))]),
            figures: vec![RATE.with_runs([1.0, 2.0, 3.0])],
            notes: Vec::new(),
        };
        let expected = json!({ "size": 128, "rate": { "p50": 2.0, "runs": [1.0, 2.0, 3.0] } });
        assert_eq!(report.json(), expected);
    }
}
