//! The counts of `STATS` and `GET /stats`, which are sums of metrics.

use serde_json::{Map, Value as Json};
use tidings_metrics::{Samples, Value};

use super::snapshot::Snapshot;
use super::table::BROKER;

/// The words of `STATS` and the keys of `GET /stats`, and the metrics that they add up.
const SUMS: [(&str, &str); 7] = [
    ("connections", "tidings_connections"),
    ("connected", "tidings_connections_opened_total"),
    ("turned-away", "tidings_connections_refused_total"),
    ("lines", "tidings_lines_total"),
    ("events", "tidings_events_published_total"),
    ("refused", "tidings_refused_lines_total"),
    ("bytes-in", "tidings_received_bytes_total"),
];

/// Keys of `GET /stats` with an object as value. It has a key for each value of the metric's label.
const OBJECTS: [(&str, &str); 2] =
    [("hooks", "tidings_webhooks_total"), ("notices", "tidings_notices_total")];

impl Snapshot {
    /// The words of `STATS`.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        SUMS.into_iter().map(|(key, metric)| (key, self.sum(metric)))
    }

    /// The sum of all values of a metric of the broker, which are whole numbers.
    pub(super) fn sum(&self, metric: &str) -> u64 {
        self.samples(metric).into_iter().map(|(_, count)| count).sum()
    }

    /// The counts of `GET /stats`.
    pub(crate) fn json(&self) -> Map<String, Json> {
        let mut counts: Map<_, _> =
            self.counts().map(|(key, count)| (key.to_owned(), count.into())).collect();
        for (key, metric) in OBJECTS {
            let values = self.samples(metric).into_iter();
            let values = values.map(|(label, count)| (label, count.into())).collect();
            counts.insert(key.to_owned(), Json::Object(values));
        }
        counts
    }

    /// The whole numbers of a metric of the broker, with the values of their first labels.
    fn samples(&self, metric: &str) -> Vec<(String, u64)> {
        let row = BROKER.iter().find(|row| row.name == metric).expect("the table has this metric");
        let mut samples = Vec::new();
        let mut take = |labels: &[&str], value: Value| {
            if let Value::Int(count) = value {
                samples.push((labels.first().copied().unwrap_or_default().to_owned(), count));
            }
        };
        (row.read)(self, &mut Samples::new(&mut take));
        samples
    }
}
