//! The values of a few columns over time, in rings of three resolutions.

use std::array;
use std::mem;
use std::time::Duration;

use tidings_metrics::Durations;

use crate::clock::Moment;

/// How long a history is, and how fine.
#[derive(Debug)]
pub(crate) struct Range {
    /// Its name in requests.
    pub(crate) name: &'static str,
    /// Seconds of a step, which has one value.
    pub(crate) step_s: i64,
    steps: u16,
}

/// All ranges, shortest first.
pub(crate) const RANGES: [Range; 3] = [
    Range { name: "5m", step_s: 1, steps: 300 },
    Range { name: "1h", step_s: 10, steps: 360 },
    Range { name: "24h", step_s: 300, steps: 288 },
];

/// The values of a column.
const SLOTS: usize = (RANGES[0].steps + RANGES[1].steps + RANGES[2].steps) as usize;

/// The most columns of one series.
pub(super) const COLUMNS_MAX: usize = 8;

/// How the values of a column come from readings.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    /// The number that was read last.
    Gauge,
    /// How much a counter rose in a second.
    Rate,
    /// A quantile of the durations, in ms.
    Quantile(f64),
}

/// The names of the columns of a series, and their kinds.
pub(super) type Columns = &'static [(&'static str, Kind)];

/// What was read at one moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reading {
    pub(super) at: Moment,
    /// One for each column, NaN if it is unknown. Those of quantiles are ignored.
    pub(super) numbers: [f64; COLUMNS_MAX],
    pub(super) durations: Durations,
}

impl Reading {
    /// The value of a column, where `begin` was read at the begin of the step. NaN is unknown.
    #[expect(clippy::cast_possible_truncation, reason = "seven digits are enough to be shown")]
    fn value(&self, begin: &Self, column: usize, kind: Kind) -> f32 {
        let value = match kind {
            Kind::Gauge => self.numbers[column],
            Kind::Rate => {
                let seconds = Duration::from_millis(self.at.since(begin.at)).as_secs_f64();
                let more = self.numbers[column] - begin.numbers[column];
                // A counter that is lower than before has begun again.
                if seconds > 0.0 && more >= 0.0 { more / seconds } else { f64::NAN }
            }
            Kind::Quantile(fraction) => {
                let durations = self.durations.since(&begin.durations);
                durations.quantile(fraction).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
            }
        };
        value as f32
    }
}

/// The step of a range that a sample belongs to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    slot: usize,
    /// Whether the sample before belongs to another step.
    is_new: bool,
}

/// Which steps the slots of all series have values of. A step is a number of seconds since 1970,
/// divided by those of a step; so a clock that is set only leads to other slots.
#[derive(Debug)]
pub(super) struct Timeline {
    steps: [Option<i64>; SLOTS],
    /// The steps of the last sample.
    current: [Option<i64>; RANGES.len()],
}

impl Default for Timeline {
    fn default() -> Self {
        Self { steps: [None; SLOTS], current: [None; RANGES.len()] }
    }
}

impl Timeline {
    /// Begins a sample at `unix_s`. Returns its step of each range.
    pub(super) fn advance(&mut self, unix_s: i64) -> [Step; RANGES.len()] {
        array::from_fn(|range| {
            let step = unix_s.div_euclid(RANGES[range].step_s);
            let slot = slot(range, step);
            self.steps[slot] = Some(step);
            let is_new = self.current[range].replace(step) != Some(step);
            Step { slot, is_new }
        })
    }

    /// The steps of a range up to the last sample, oldest first: when they began, in seconds since
    /// 1970, and their slots if there was a sample.
    pub(super) fn steps(&self, range: usize) -> impl Iterator<Item = (i64, Option<usize>)> {
        let Range { step_s, steps, .. } = RANGES[range];
        let last = self.current[range];
        let begin = move |last| last - i64::from(steps) + 1..=last;
        last.into_iter().flat_map(begin).map(move |step| {
            let slot = slot(range, step);
            (step * step_s, Some(slot).filter(|slot| self.steps[*slot] == Some(step)))
        })
    }
}

fn slot(range: usize, step: i64) -> usize {
    let before: u16 = RANGES[..range].iter().map(|range| range.steps).sum();
    let within = step.rem_euclid(RANGES[range].steps.into());
    usize::from(before) + usize::try_from(within).expect("a remainder is small and not negative")
}

/// The values of a few columns.
#[derive(Debug)]
pub(super) struct Series {
    columns: Columns,
    /// Those of the first column, then of the second. NaN is unknown.
    values: Box<[f32]>,
    last: Option<Reading>,
    /// What was read when the step of each range began.
    begins: [Option<Reading>; RANGES.len()],
}

impl Series {
    /// The most bytes of a series with this number of columns.
    #[cfg(test)]
    pub(super) const fn bytes_max(columns: usize) -> usize {
        size_of::<Self>() + columns * SLOTS * size_of::<f32>()
    }

    /// A series without values.
    pub(super) fn new(columns: Columns) -> Self {
        let values = vec![f32::NAN; columns.len() * SLOTS].into();
        Self { columns, values, last: None, begins: [None; RANGES.len()] }
    }

    /// Adds a sample; `None` if its subject is gone.
    pub(super) fn add(&mut self, steps: &[Step; RANGES.len()], reading: Option<Reading>) {
        let last = mem::replace(&mut self.last, reading);
        for (Step { slot, is_new }, begin) in steps.iter().zip(&mut self.begins) {
            if *is_new {
                *begin = last;
            }
            let values = self.values.iter_mut().skip(*slot).step_by(SLOTS);
            if let Some(reading) = reading {
                let begin = begin.get_or_insert(reading);
                for (column, (value, (_, kind))) in values.zip(self.columns).enumerate() {
                    *value = reading.value(begin, column, *kind);
                }
            } else {
                *begin = None;
                if *is_new {
                    values.for_each(|value| *value = f32::NAN);
                }
            }
        }
    }

    /// The values in these slots, column by column. NaN is unknown.
    pub(super) fn values(&self, slots: &[Option<usize>]) -> Vec<Vec<f32>> {
        self.values.chunks(SLOTS).map(|column| read(column, slots)).collect()
    }

    /// The same of the first column alone.
    pub(super) fn first(&self, slots: &[Option<usize>]) -> Vec<f32> {
        read(&self.values[..SLOTS], slots)
    }
}

fn read(column: &[f32], slots: &[Option<usize>]) -> Vec<f32> {
    slots.iter().map(|slot| slot.map_or(f32::NAN, |slot| column[slot])).collect()
}
