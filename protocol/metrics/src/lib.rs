//! What a process counts: counters, histograms, and the tables that name them.
//!
//! A table is a list of [`Metric`]s. Each names one metric and reads its values from a source, so a
//! value that is not in a table is shown nowhere. An [`Exposition`] writes tables in the text formats
//! of Prometheus; other readers take the values as they are.
//!
//! Labels have values from closed lists. The exceptions are names of groups and topics, and their
//! number is limited where the source is made.

mod counter;
mod exposition;
mod histogram;
mod memory;

use std::fmt;

pub use self::counter::Counter;
pub use self::exposition::{Exposition, Format, MetricsSource, check_table};
pub use self::histogram::{BUCKETS, Durations, Histogram};
pub use self::memory::resident_bytes;

/// What a metric means over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It only rises, and begins at 0 with the process. Its name ends in `_total`.
    Counter,
    /// It rises and falls.
    Gauge,
    /// Durations, counted in the [`BUCKETS`]. Its name ends in `_seconds`.
    Histogram,
}

impl Kind {
    /// The word in the text formats.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// A value of a metric.
#[derive(Debug, Clone, Copy)]
pub enum Value {
    /// A whole number.
    Int(u64),
    /// Any other number.
    Float(f64),
    /// The counts of a histogram.
    Durations(Durations),
}

/// A row of a table.
pub struct Metric<S: 'static> {
    /// Its name, with the unit as its end: `_seconds`, `_bytes`; without a unit it is a number of
    /// what the name says.
    pub name: &'static str,
    /// Its kind.
    pub kind: Kind,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// One sentence.
    pub help: &'static str,
    /// Passes each value to the [`Samples`].
    pub read: fn(&S, &mut Samples<'_>),
}

impl<S> Metric<S> {
    /// A counter.
    pub const fn counter(
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
        read: fn(&S, &mut Samples<'_>),
    ) -> Self {
        Self { name, kind: Kind::Counter, labels, help, read }
    }

    /// A gauge.
    pub const fn gauge(
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
        read: fn(&S, &mut Samples<'_>),
    ) -> Self {
        Self { name, kind: Kind::Gauge, labels, help, read }
    }

    /// A histogram.
    pub const fn histogram(
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
        read: fn(&S, &mut Samples<'_>),
    ) -> Self {
        Self { name, kind: Kind::Histogram, labels, help, read }
    }

    /// The unit at the end of the name, if it has one.
    pub fn unit(&self) -> Option<&'static str> {
        let name = self.name.strip_suffix("_total").unwrap_or(self.name);
        ["seconds", "bytes"]
            .into_iter()
            .find(|unit| name.strip_suffix(unit).is_some_and(|rest| rest.ends_with('_')))
    }
}

impl<S> fmt::Debug for Metric<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metric").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Receives the values of one metric.
pub struct Samples<'a>(&'a mut dyn FnMut(&[&str], Value));

impl fmt::Debug for Samples<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Samples").finish_non_exhaustive()
    }
}

impl<'a> Samples<'a> {
    /// Passes the values, each with those of its labels, to `take`.
    pub fn new(take: &'a mut dyn FnMut(&[&str], Value)) -> Self {
        Self(take)
    }

    /// The value of a metric without labels, if there is one.
    pub fn value(&mut self, value: impl Into<Option<u64>>) {
        self.labelled(&[], value);
    }

    /// A value with those of its labels, in the order of the table. The label of an empty value is
    /// left out.
    pub fn labelled(&mut self, labels: &[&str], value: impl Into<Option<u64>>) {
        if let Some(value) = value.into() {
            (self.0)(labels, Value::Int(value));
        }
    }

    /// A number that need not be whole.
    pub fn float(&mut self, labels: &[&str], value: f64) {
        (self.0)(labels, Value::Float(value));
    }

    /// The counts of a histogram.
    pub fn durations(&mut self, labels: &[&str], value: Durations) {
        (self.0)(labels, Value::Durations(value));
    }
}
