//! The text formats of Prometheus: its own (0.0.4) and `OpenMetrics` 1.0.

use std::fmt;
use std::fmt::Write;

use crate::{Kind, Metric, Samples, Value};

/// A text format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// The text format of Prometheus, version 0.0.4.
    Classic,
    /// `OpenMetrics` 1.0, as text.
    OpenMetrics,
}

impl Format {
    /// `OpenMetrics` if an `Accept` header names it, otherwise the classic format, which every
    /// client reads.
    pub fn accepted(accept: Option<&str>) -> Self {
        let mut types = accept.unwrap_or_default().split(',').map(|range| {
            let mut parts = range.split(';').map(str::trim);
            let name = parts.next().unwrap_or_default();
            let is_excluded = parts.any(|part| {
                let weight = part.strip_prefix("q=").and_then(|weight| weight.parse().ok());
                weight == Some(0.0)
            });
            name.eq_ignore_ascii_case("application/openmetrics-text") && !is_excluded
        });
        if types.any(|is_open_metrics| is_open_metrics) { Self::OpenMetrics } else { Self::Classic }
    }

    /// The `Content-Type` of a text.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Classic => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Something that has a table of its own in the same text.
pub trait MetricsSource: fmt::Debug + Send + Sync {
    /// Adds the table.
    fn add_to(&self, text: &mut Exposition);

    /// What the operator must know, as a sentence, if this part of the process is not well.
    fn problem(&self) -> Option<&'static str> {
        None
    }

    /// What the operator should look at, as sentences.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }
}

/// The text of one scrape.
#[derive(Debug)]
pub struct Exposition {
    format: Format,
    text: String,
}

impl Exposition {
    /// A text without metrics.
    pub fn new(format: Format) -> Self {
        Self { format, text: String::new() }
    }

    /// Adds the metrics of a table. No two tables of a text have a name in common.
    pub fn add<S>(&mut self, table: &[Metric<S>], source: &S) {
        for metric in table {
            self.write_head(metric);
            let (text, name, labels) = (&mut self.text, metric.name, metric.labels);
            let mut take = |values: &[&str], value: Value| {
                write_sample(text, name, (labels, values), value);
            };
            (metric.read)(source, &mut Samples::new(&mut take));
        }
    }

    /// `HELP`, `TYPE` and `UNIT`. In `OpenMetrics` they are about the name without `_total`.
    fn write_head<S>(&mut self, metric: &Metric<S>) {
        let Metric { name, kind, help, .. } = metric;
        let is_open = self.format == Format::OpenMetrics;
        let name = if is_open { name.strip_suffix("_total").unwrap_or(name) } else { name };
        let text = &mut self.text;
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {}", kind.as_str());
        if let Some(unit) = metric.unit().filter(|_| is_open) {
            let _ = writeln!(text, "# UNIT {name} {unit}");
        }
    }

    /// The whole text.
    pub fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }
}

/// The labels of a sample: names, values, and the end of a bucket.
struct Labels<'a>(&'a [&'a str], &'a [&'a str], Option<&'a str>);

impl fmt::Display for Labels<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(names, values, bucket) = self;
        let pairs = names.iter().zip(*values).map(|(name, value)| (*name, *value));
        let all = pairs.filter(|(_, value)| !value.is_empty()).chain(bucket.map(|end| ("le", end)));
        let mut separator = '{';
        for (name, value) in all {
            write!(f, "{separator}{name}=\"")?;
            for char in value.chars() {
                match char {
                    '\\' | '"' => write!(f, "\\{char}")?,
                    '\n' => f.write_str("\\n")?,
                    char => f.write_char(char)?,
                }
            }
            f.write_char('"')?;
            separator = ',';
        }
        if separator == ',' { f.write_char('}') } else { Ok(()) }
    }
}

fn write_sample(
    text: &mut String,
    name: &str,
    (names, values): (&[&'static str], &[&str]),
    value: Value,
) {
    debug_assert!(values.len() <= names.len(), "{name} has the labels {names:?}");
    let labels = |bucket| Labels(names, values, bucket);
    let _ = match value {
        Value::Int(value) => writeln!(text, "{name}{} {value}", labels(None)),
        Value::Float(value) => writeln!(text, "{name}{} {value}", labels(None)),
        Value::Durations(durations) => {
            for (end, count) in durations.cumulative() {
                let _ = writeln!(text, "{name}_bucket{} {count}", labels(Some(end)));
            }
            let (sum, count) = (durations.sum(), durations.count());
            writeln!(text, "{name}_sum{0} {sum}\n{name}_count{0} {count}", labels(None))
        }
    };
}

/// Panics unless a table keeps to the conventions: names and labels have the form that Prometheus
/// accepts, counters end in `_total` and histograms in `_seconds`, and each has one sentence.
pub fn check_table<S>(table: &[Metric<S>]) {
    let is_name = |name: &str| {
        name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
    };
    let mut names: Vec<_> = table.iter().map(|metric| metric.name).collect();
    for Metric { name, kind, labels, help, .. } in table {
        assert!(is_name(name) && labels.iter().all(|label| is_name(label)), "{name}");
        assert_eq!(*kind == Kind::Counter, name.ends_with("_total"), "{name}");
        assert!(*kind != Kind::Histogram || name.ends_with("_seconds"), "{name}");
        assert!(help.ends_with('.') && !help.contains(['\\', '\n', '|']), "{name}: {help}");
    }
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count, "a name is there twice");
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Durations;

    struct Source;

    const TABLE: [Metric<Source>; 3] = [
        Metric::counter("a_bytes_total", &["way"], "Bytes.", |Source, out| {
            out.labelled(&["li\"n\\e\n"], 3);
            out.labelled(&[""], 4);
        }),
        Metric::gauge("b", &[], "Half.", |Source, out| {
            out.float(&[], 0.5);
            out.value(None);
        }),
        Metric::histogram("c_seconds", &["group"], "Times.", |Source, out| {
            let mut durations = Durations::default();
            durations.observe(Duration::from_millis(200));
            out.durations(&["g"], durations);
        }),
    ];

    fn text(format: Format) -> String {
        let mut text = Exposition::new(format);
        text.add(&TABLE, &Source);
        text.finish()
    }

    #[test]
    fn both_formats_have_the_same_samples_and_heads_of_their_own() {
        check_table(&TABLE);
        let (classic, open) = (text(Format::Classic), text(Format::OpenMetrics));
        let samples = |text: &str| -> Vec<String> {
            text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
        };
        assert_eq!(samples(&classic), samples(&open));
        let begin = "# HELP a_bytes_total Bytes.\n# TYPE a_bytes_total counter\n\
                     a_bytes_total{way=\"li\\\"n\\\\e\\n\"} 3\na_bytes_total 4\n\
                     # HELP b Half.\n# TYPE b gauge\nb 0.5\n";
        assert!(classic.starts_with(begin), "{classic}");
        let open_begin = "# HELP a_bytes Bytes.\n# TYPE a_bytes counter\n# UNIT a_bytes bytes\n";
        assert!(open.starts_with(open_begin), "{open}");
        assert!(open.ends_with("c_seconds_count{group=\"g\"} 1\n# EOF\n"), "{open}");
        assert!(classic.contains("c_seconds_bucket{group=\"g\",le=\"0.1\"} 0\n"), "{classic}");
        assert!(classic.contains("c_seconds_bucket{group=\"g\",le=\"0.3\"} 1\n"), "{classic}");
        assert!(
            classic.ends_with("c_seconds_sum{group=\"g\"} 0.2\nc_seconds_count{group=\"g\"} 1\n")
        );
    }

    #[test]
    fn openmetrics_is_sent_only_to_clients_that_name_it() {
        let prometheus = "application/openmetrics-text;version=1.0.0,\
                          application/openmetrics-text;version=0.0.1;q=0.75,\
                          text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(Format::accepted(Some(prometheus)), Format::OpenMetrics);
        for other in [
            None,
            Some("*/*"),
            Some("text/plain"),
            Some("application/openmetrics-text; q=0"),
            Some("?"),
        ] {
            assert_eq!(Format::accepted(other), Format::Classic, "{other:?}");
        }
    }
}
