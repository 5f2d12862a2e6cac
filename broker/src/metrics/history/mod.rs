//! Metrics of the last day, in memory: a sample for each second of 5 minutes, for 10 seconds of an
//! hour, for 5 minutes of a day.
//!
//! Its memory has a limit: only the groups, topics and jobs that matter most have series. The
//! others have none until they replace one of these. Nothing is stored. The time is an argument.

mod series;
mod shelf;
#[cfg(test)]
mod tests;

use tidings_metrics::Durations;
use tidings_protocol::{GroupName, JobName, TopicName};
use tidings_queue::queries::metrics::JobMetrics;

pub(crate) use self::series::RANGES;
use self::series::{COLUMNS_MAX, Columns, Kind, Reading, Series, Timeline};
use self::shelf::{Candidate, Shelf};
use super::snapshot::{Snapshot, TopicMetrics};
use crate::groups::PublishedMetrics;

const STATS: Columns = &[
    ("published", Kind::Rate),
    ("delivered", Kind::Rate),
    ("done", Kind::Rate),
    ("failed", Kind::Rate),
    ("connections", Kind::Gauge),
    ("memory", Kind::Gauge),
    ("commit-p50-ms", Kind::Quantile(0.5)),
    ("commit-p99-ms", Kind::Quantile(0.99)),
];

const GROUP: Columns = &[
    ("waiting", Kind::Gauge),
    ("processing", Kind::Gauge),
    ("done", Kind::Rate),
    ("failed", Kind::Rate),
    ("p50-ms", Kind::Quantile(0.5)),
    ("p95-ms", Kind::Quantile(0.95)),
    ("p99-ms", Kind::Quantile(0.99)),
    ("members", Kind::Gauge),
];

const TOPIC: Columns = &[("published", Kind::Rate), ("log-bytes", Kind::Gauge)];

const JOB: Columns = &[
    ("queued", Kind::Gauge),
    ("unfinished", Kind::Gauge),
    ("completed", Kind::Gauge),
    ("failed", Kind::Gauge),
];

const GROUPS_MAX: usize = 12;
const TOPICS_MAX: usize = 40;
const JOBS_MAX: usize = 10;

/// What a history is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Subject {
    /// The whole broker.
    Stats,
    Group(GroupName),
    Topic(TopicName),
    /// The events published to each topic; the columns are the topics.
    Topics,
    Job(GroupName, JobName),
}

/// The values of a subject in a range.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) columns: Vec<String>,
    /// When each step began, in seconds since 1970, oldest first.
    pub(crate) times: Vec<i64>,
    /// A value for each step, column by column. NaN is unknown.
    pub(crate) values: Vec<Vec<f32>>,
}

/// The history of the broker.
#[derive(Debug)]
pub(crate) struct History {
    timeline: Timeline,
    stats: Series,
    groups: Shelf,
    topics: Shelf,
    jobs: Shelf,
}

impl History {
    /// A history without samples.
    pub(crate) fn new() -> Self {
        Self {
            timeline: Timeline::default(),
            stats: Series::new(STATS),
            groups: Shelf::new(GROUP, GROUPS_MAX),
            topics: Shelf::new(TOPIC, TOPICS_MAX),
            jobs: Shelf::new(JOB, JOBS_MAX),
        }
    }

    /// Adds a sample, about once a second. `unix_s` is the time of day in seconds since 1970, and may
    /// go back. `memory` is that of the process, in bytes.
    pub(crate) fn sample(&mut self, it: &Snapshot, memory: Option<u64>, unix_s: i64) {
        let steps = self.timeline.advance(unix_s);
        let at = (&steps, it.now);
        let [connections, published, delivered] = [
            "tidings_connections",
            "tidings_events_published_total",
            "tidings_events_delivered_total",
        ]
        .map(|metric| it.sum(metric));
        let [done, failed] = it.answered;
        let numbers = [published, delivered, done, failed, connections].map(Some);
        let numbers = numbers.into_iter().chain([memory]);
        let reading = |numbers, durations| Reading { at: it.now, numbers, durations };
        self.stats.add(&steps, Some(reading(row(numbers), it.commits.unwrap_or_default())));

        // The sum of the groups without metrics of their own has no name.
        let groups = it.groups.iter().filter(|(name, _)| !name.is_empty());
        let groups: Vec<_> = groups
            .map(|(name, source)| {
                let entries = source.group.waiting + source.group.processing;
                Candidate { name, weight: float(entries), source: &**source }
            })
            .collect();
        self.groups.add(at, &groups, |PublishedMetrics { group, .. }| {
            let numbers = [group.waiting, group.processing, group.completed, group.failed];
            let numbers =
                numbers.map(Some).into_iter().chain([None; 3]).chain([Some(group.members)]);
            reading(row(numbers), group.responses)
        });

        let topics = it.topics.iter();
        let topics: Vec<_> = topics
            .map(|source| Candidate { name: &source.name, weight: source.stats.per_second, source })
            .collect();
        self.topics.add(at, &topics, |TopicMetrics { stats, .. }| {
            reading(row([stats.head.0, stats.log_bytes].map(Some)), Durations::default())
        });

        let jobs = newest_jobs(it);
        let jobs: Vec<_> = jobs
            .iter()
            .map(|(name, source)| Candidate { name, weight: 0.0, source: *source })
            .collect();
        self.jobs.add(at, &jobs, |job: &JobMetrics| {
            let numbers = [job.queued, job.unfinished, job.completed, job.failed];
            reading(row(numbers.map(Some)), Durations::default())
        });
    }

    /// The values of a subject, oldest first; no steps if it has no series. `range` is an index of
    /// [`RANGES`].
    pub(crate) fn table(&self, subject: &Subject, range: usize) -> Table {
        let (times, slots): (Vec<_>, Vec<_>) = self.timeline.steps(range).unzip();
        let (columns, series) = match subject {
            Subject::Stats => (STATS, Some(&self.stats)),
            Subject::Group(name) => (GROUP, self.groups.find(name.as_str())),
            Subject::Topic(name) => (TOPIC, self.topics.find(name.as_str())),
            Subject::Topics => {
                let topics = self.topics.iter();
                let (columns, values) =
                    topics.map(|(name, series)| (name.to_owned(), series.first(&slots))).unzip();
                return Table { columns, times, values };
            }
            Subject::Job(group, name) => (JOB, self.jobs.find(&job_name(group.as_str(), name))),
        };
        let columns: Vec<_> = columns.iter().map(|(name, _)| (*name).to_owned()).collect();
        let Some(series) = series else {
            return Table { values: vec![Vec::new(); columns.len()], times: Vec::new(), columns };
        };
        Table { columns, times, values: series.values(&slots) }
    }
}

/// The name of the series of a job. A group has no space in its name.
fn job_name(group: &str, job: &JobName) -> String {
    format!("{group} {job}")
}

/// The jobs that have series: those that are not done first, and of these the newest of each group
/// before the second newest.
fn newest_jobs(it: &Snapshot) -> Vec<(String, &JobMetrics)> {
    let jobs = it.groups.iter().flat_map(|(group, metrics)| {
        let jobs = metrics.group.newest_jobs.iter().enumerate();
        jobs.map(move |(age, job)| ((job.is_done, age, group), job))
    });
    let mut jobs: Vec<_> = jobs.collect();
    jobs.sort_by_key(|(rank, _)| *rank);
    let newest = jobs.into_iter().take(JOBS_MAX);
    newest.map(|((_, _, group), job)| (job_name(group, &job.name), job)).collect()
}

/// Numbers in the order of the columns. Unknown ones, and columns without a number, are NaN.
fn row(numbers: impl IntoIterator<Item = Option<u64>>) -> [f64; COLUMNS_MAX] {
    let mut row = [f64::NAN; COLUMNS_MAX];
    for (cell, number) in row.iter_mut().zip(numbers) {
        *cell = number.map_or(f64::NAN, float);
    }
    row
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn float(number: u64) -> f64 {
    number as f64
}
