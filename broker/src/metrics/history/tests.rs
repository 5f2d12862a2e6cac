use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tidings_metrics::Durations;
use tidings_protocol::{NAME_BYTES_MAX, Seq};

use super::series::{Range, Series, Timeline};
use super::*;
use crate::clock::Moment;
use crate::topic::{Health, TopicStats};

/// A simulated broker: its clocks and what it has counted.
struct World {
    history: History,
    unix_s: i64,
    snapshot: Snapshot,
}

impl World {
    fn new() -> Self {
        let snapshot = Snapshot {
            stats: Arc::default(),
            connections: Vec::new(),
            topics: Vec::new(),
            groups: Vec::new(),
            answered: [0; 2],
            damaged_groups: Vec::new(),
            group_log_bytes: 0,
            commits: None,
            disk: None,
            audit_lost: 0,
            certificate_expiry_unix_s: None,
            now: Moment(5_000),
        };
        Self { history: History::new(), unix_s: 1_800_000_000, snapshot }
    }

    /// Lets seconds pass and takes a sample.
    fn sample_after(&mut self, seconds: u64) {
        self.snapshot.now = self.snapshot.now + seconds * 1_000;
        self.unix_s += seconds.cast_signed();
        self.history.sample(&self.snapshot, None, self.unix_s);
    }

    fn publish(&mut self, topic: &str, events: u64) {
        let topics = &mut self.snapshot.topics;
        let at = topics.binary_search_by(|other| other.name[..].cmp(topic)).unwrap_or_else(|at| {
            topics.insert(at, topic_metrics(topic));
            at
        });
        topics[at].stats.head.0 += events;
        topics[at].stats.per_second = float(events);
    }

    fn values(&self, of: &Subject, range: usize, column: &str) -> Vec<f32> {
        let Table { columns, values, .. } = self.history.table(of, range);
        let at = columns.iter().position(|name| *name == column).unwrap();
        values[at].clone()
    }

    /// The last values of a column, oldest first. -1 is unknown.
    #[track_caller]
    fn expect_last(&self, of: &Subject, (range, column): (usize, &str), expected: &[f32]) {
        let values = self.values(of, range, column);
        let last = values[values.len() - expected.len()..].iter();
        let last: Vec<_> = last.map(|value| if value.is_nan() { -1.0 } else { *value }).collect();
        assert_eq!(last, expected, "{column} of {}", RANGES[range].name);
    }
}

fn topic_metrics(name: &str) -> TopicMetrics {
    let stats = TopicStats {
        head: Seq(1),
        durable: Seq(1),
        first_kept: Seq(1),
        kept: 0,
        bytes: 0,
        waiting_bytes: 0,
        batches: 0,
        readers: 0,
        per_second: 0.0,
        log_bytes: 0,
        segments: 0,
        health: Health::Good,
    };
    TopicMetrics { name: name.to_owned(), stats, cursor_behind_max: 0, cursor_kept_min: None }
}

fn topic(name: &str) -> Subject {
    Subject::Topic(name.parse().unwrap())
}

#[test]
fn the_memory_has_a_limit_below_a_mebibyte() {
    let history = History::new();
    let columns =
        STATS.len() + GROUPS_MAX * GROUP.len() + TOPICS_MAX * TOPIC.len() + JOBS_MAX * JOB.len();
    assert!(columns <= 256, "{columns}");
    let names = [NAME_BYTES_MAX, NAME_BYTES_MAX, 2 * NAME_BYTES_MAX + 1];
    let shelves = [&history.groups, &history.topics, &history.jobs].into_iter().zip(names);
    let bytes = size_of::<History>()
        + Series::bytes_max(STATS.len())
        + shelves.map(|(shelf, name)| shelf.bytes_max(name)).sum::<usize>();
    assert!(bytes < 1 << 20, "{bytes}");
    for columns in [STATS, GROUP, TOPIC, JOB] {
        assert!(columns.len() <= COLUMNS_MAX);
    }
}

#[test]
fn a_history_keeps_to_its_limits_whatever_comes_and_goes() {
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let mut world = World::new();
    // What was published in each second, by topic.
    let mut published: BTreeMap<(String, i64), u64> = BTreeMap::new();
    for second in 0..2_000 {
        for _ in 0..random.usize(..4) {
            let name = format!("t{:03}", random.u32(..300));
            if random.u32(..20) == 0 {
                world.snapshot.topics.retain(|topic| topic.name != name);
            } else {
                let events = random.u64(..1_000);
                world.publish(&name, events);
                *published.entry((name, world.unix_s + 1)).or_default() += events;
            }
        }
        world.sample_after(1);
        if second % 10 > 0 {
            // A value stays for five minutes, so it is compared often enough.
            continue;
        }
        let kept = world.snapshot.topics.iter().filter(|metrics| {
            let Table { times, .. } = world.history.table(&topic(&metrics.name), 0);
            !times.is_empty()
        });
        let expected = world.snapshot.topics.len().min(TOPICS_MAX);
        assert_eq!(kept.count(), expected, "seed {seed}");
        for metrics in &world.snapshot.topics {
            let of = topic(&metrics.name);
            let Table { times, values, .. } = world.history.table(&of, 0);
            for (time, rate) in times.into_iter().zip(&values[0]).filter(|(_, rate)| !rate.is_nan())
            {
                let events = published.get(&(metrics.name.clone(), time)).copied();
                let expected = float(events.unwrap_or(0));
                let difference = (f64::from(*rate) - expected).abs();
                assert!(difference < 1e-3, "seed {seed}, {of:?} at {time}: {rate}, not {expected}");
            }
        }
    }
}

#[test]
fn a_busier_topic_replaces_a_quiet_one_but_two_do_not_take_turns() {
    let mut world = World::new();
    for number in 0..TOPICS_MAX as u64 {
        world.publish(&format!("kept{number:02}"), 100);
    }
    world.sample_after(1);
    let has = |world: &World, name| !world.history.table(&topic(name), 0).times.is_empty();
    world.publish("other", 150);
    world.publish("kept00", 50);
    world.sample_after(1);
    assert!(has(&world, "other") && !has(&world, "kept00"));
    world.publish("kept00", 150);
    world.sample_after(1);
    assert!(!has(&world, "kept00"), "it has less than twice as many");
    world.snapshot.topics.retain(|topic| topic.name != "kept07");
    world.sample_after(1);
    assert!(has(&world, "kept00") && !has(&world, "kept07"));
}

#[test]
fn coarse_rates_are_means_and_coarse_gauges_are_last_values() {
    let mut world = World::new();
    let of = topic("log");
    world.publish("log", 7);
    world.sample_after(10);
    for second in 1..=30 {
        world.publish("log", second);
        world.snapshot.topics[0].stats.log_bytes = 1_000 * second;
        world.sample_after(1);
    }
    world.expect_last(&of, (0, "published"), &[28.0, 29.0, 30.0]);
    // The step that has begun is the mean so far: of the seconds 10 to 19, and 20 to 29.
    world.expect_last(&of, (1, "published"), &[-1.0, 5.0, 14.5, 24.5, 30.0]);
    world.expect_last(&of, (1, "log-bytes"), &[-1.0, 9_000.0, 19_000.0, 29_000.0, 30_000.0]);
    world.expect_last(&of, (2, "published"), &[-1.0, 15.5]);
    let Table { times, .. } = world.history.table(&of, 1);
    assert_eq!(times[times.len() - 2..], [1_800_000_030, 1_800_000_040]);
}

#[test]
fn missed_seconds_are_unknown_and_lose_no_event() {
    let mut world = World::new();
    let of = topic("log");
    world.publish("log", 0);
    world.sample_after(10);
    world.publish("log", 9);
    world.sample_after(3);
    world.publish("log", 4);
    world.sample_after(1);
    world.expect_last(&of, (0, "published"), &[-1.0, -1.0, -1.0, 3.0, 4.0]);
    world.expect_last(&of, (1, "published"), &[3.25]);
    world.sample_after(10_000);
    world.expect_last(&of, (0, "published"), &[-1.0, -1.0, 0.0]);
    assert_eq!(world.values(&of, 0, "published").iter().filter(|it| !it.is_nan()).count(), 1);
}

#[test]
fn a_clock_that_is_set_moves_later_samples_only() {
    let mut world = World::new();
    let of = topic("log");
    world.publish("log", 0);
    for second in 1..=20 {
        world.publish("log", second);
        world.sample_after(1);
    }
    world.unix_s -= 6;
    world.publish("log", 100);
    world.sample_after(1);
    world.expect_last(&of, (0, "published"), &[13.0, 14.0, 100.0]);
    world.publish("log", 101);
    world.sample_after(1);
    world.expect_last(&of, (0, "published"), &[14.0, 100.0, 101.0]);
    world.unix_s += 60;
    world.publish("log", 102);
    world.sample_after(1);
    world.expect_last(&of, (0, "published"), &[-1.0, 102.0]);
    world.expect_last(&of, (1, "published"), &[-1.0, 102.0]);
}

#[test]
fn a_counter_that_begins_again_is_unknown_once() {
    let mut world = World::new();
    let of = topic("log");
    for events in [50, 60] {
        world.publish("log", events);
        world.sample_after(1);
    }
    world.snapshot.topics.clear();
    world.publish("log", 5);
    world.sample_after(1);
    world.publish("log", 6);
    world.sample_after(1);
    world.expect_last(&of, (0, "published"), &[-1.0, 60.0, -1.0, 6.0]);
    let topics = std::mem::take(&mut world.snapshot.topics);
    world.sample_after(1);
    world.snapshot.topics = topics;
    world.publish("log", 7);
    world.sample_after(1);
    world.publish("log", 8);
    world.sample_after(1);
    world.expect_last(&of, (0, "published"), &[6.0, -1.0, -1.0, 8.0]);
}

#[test]
fn quantiles_are_those_of_their_step() {
    let mut world = World::new();
    let mut commits = Durations::default();
    for second in 0..20 {
        for _ in 0..10 {
            commits.observe(Duration::from_millis(if second < 9 { 2 } else { 200 }));
        }
        world.snapshot.commits = Some(commits);
        world.sample_after(1);
    }
    world.sample_after(1);
    world.expect_last(&Subject::Stats, (0, "commit-p99-ms"), &[298.0, -1.0]);
    world.expect_last(&Subject::Stats, (1, "commit-p50-ms"), &[2.0, 200.0, 200.0]);
}

#[test]
fn newest_jobs_of_each_group_have_series_and_those_that_are_not_done_come_first() {
    let mut world = World::new();
    for group in ["a", "b"] {
        let mut metrics = PublishedMetrics::default();
        let job = |number: u64| JobMetrics {
            name: format!("j{number}").parse().unwrap(),
            is_done: number < 4,
            is_paused: false,
            queued: 1,
            unfinished: 2,
            completed: number,
            failed: 4,
        };
        metrics.group.newest_jobs = (0..10).rev().map(job).collect();
        metrics.group.waiting = 7;
        world.snapshot.groups.push((group.to_owned(), metrics.into()));
    }
    world.sample_after(1);
    let job = |group: &str, number| {
        Subject::Job(group.parse().unwrap(), format!("j{number}").parse().unwrap())
    };
    for number in 5..10_u8 {
        for group in ["a", "b"] {
            let completed = [f32::from(number)];
            world.expect_last(&job(group, number), (0, "completed"), &completed);
            world.expect_last(&job(group, number), (0, "unfinished"), &[2.0]);
        }
    }
    assert!(world.history.table(&job("a", 4), 0).times.is_empty());
    world.expect_last(&Subject::Group("b".parse().unwrap()), (0, "waiting"), &[7.0]);
}

#[test]
fn a_range_has_a_step_for_each_time() {
    let mut timeline = Timeline::default();
    assert_eq!(timeline.steps(0).count(), 0);
    for unix_s in [-301, -5, 0, 1_000] {
        timeline.advance(unix_s);
        for (range, Range { step_s, .. }) in RANGES.iter().enumerate() {
            let steps: Vec<_> = timeline.steps(range).collect();
            let (last, slot) = *steps.last().unwrap();
            assert_eq!((last, slot.is_some()), (unix_s.div_euclid(*step_s) * step_s, true));
            assert!(steps.windows(2).all(|pair| pair[1].0 - pair[0].0 == *step_s));
        }
    }
}
