//! Simulations of topics with power cuts, full disks and failed syncs. The checks use only
//! confirmations, what subscribers saw, and what groups took.

use std::collections::BTreeMap;

use fastrand::Rng;
use tidings_log::{DiskFaults, SimulatedDisk, simulation};

use tidings_protocol::Sync;

use super::disk::{named, replay, settle, waker};
use super::*;

/// Starts of the broker in one simulation.
const LIVES: usize = 6;

/// Maximum number of steps between two starts.
const STEPS: usize = 25;

/// Simulations in a test run.
const RUNS: u64 = 30;

type History = BTreeMap<u64, String>;

/// A topic, with everything observed of it over all starts.
struct Witness {
    name: &'static str,
    sync: Sync,
    /// What any reader has seen.
    shown: History,
    /// Events that were confirmed, or consumed by a group, and so must be kept.
    kept: History,
    /// Ranges that readers received as missed.
    missed: Vec<Lag>,
}

impl Witness {
    fn new(name: &'static str, sync: Sync) -> Self {
        Self { name, sync, shown: History::new(), kept: History::new(), missed: Vec::new() }
    }

    fn show(&mut self, seq: u64, payload: &str) {
        let before = self.shown.entry(seq).or_insert_with(|| payload.to_owned());
        assert_eq!(before, payload, "seq {seq} of {} has two payloads", self.name);
    }

    fn keep(&mut self, seq: u64, payload: &str) {
        self.show(seq, payload);
        self.kept.insert(seq, payload.to_owned());
    }

    /// Checks that no confirmed event was reported as missed.
    fn compare(&mut self) {
        for missed in self.missed.drain(..).filter(|_| self.sync == Sync::Always) {
            let kept = self.kept.range(missed.from.0..=missed.to.0).next();
            assert_eq!(kept, None, "{missed:?}");
        }
    }

    /// Checks what is readable after a start.
    fn judge(&mut self, topics: &Topics) {
        let topic = named(topics, self.name);
        let (events, missed) = replay(&topic, StartAt::Seq(Seq(1)));
        let there: History = events.into_iter().collect();
        for (seq, payload) in &there {
            self.show(*seq, payload);
        }
        if self.sync == Sync::Always {
            for (seq, payload) in &self.kept {
                assert_eq!(there.get(seq), Some(payload), "{seq} was confirmed; {missed:?}");
            }
        }
        let newest: Vec<(u64, String)> = there.into_iter().collect();
        for count in [1, 2, 7, newest.len(), newest.len() + 3] {
            let wanted = &newest[newest.len().saturating_sub(count)..];
            let (events, _) = replay(&topic, StartAt::Newest(count.max(1) as u64));
            assert_eq!(events, wanted, "the newest {count} of {}", self.name);
        }
        let (last, missed) = replay(&topic, StartAt::Last);
        assert_eq!(last, newest[newest.len().saturating_sub(1)..], "{missed:?}");
        let seen = self.shown.keys().next_back().map_or(0, |last| *last);
        assert!(topic.head().0 > seen, "{seen} was seen, and would be assigned again");
    }
}

/// A topic during one run of the broker.
struct Life {
    topic: Arc<Topic>,
    reader: Reader,
    group: Reader,
    /// Events that are neither confirmed nor lost yet.
    open: History,
}

impl Life {
    fn begin(topics: &Topics, name: &str) -> Self {
        let topic = named(topics, name);
        let reader = topic.subscribe(None, LineForm::Wire, waker());
        let group = topic.reader(StartAt::Seq(topic.head()), Arc::new(Notify::new()));
        Self { topic, reader, group, open: History::new() }
    }

    fn append(&mut self, rng: &mut Rng, number: &mut u64) {
        let count = if rng.u8(..10) == 0 { 3_000 } else { rng.usize(1..30) };
        let length = rng.usize(..200);
        let payloads: Vec<String> = (0..count)
            .map(|_| {
                *number += 1;
                format!("{number}{}", "x".repeat(length))
            })
            .collect();
        if let Ok(numbers) = self.topic.append(ConnId(1), payloads.iter().map(String::as_str)) {
            self.open.extend((numbers.start.0..).zip(payloads));
        }
    }

    /// Records what readers see, groups take and publishers receive as answers.
    fn look(&mut self, witness: &mut Witness) {
        let mut runs = Vec::new();
        match self.reader.fetch(100_000, 10, |run| runs.push(run)) {
            Fetched::Delivered => {}
            Fetched::Lag(missed) | Fetched::Gap(missed) => witness.missed.push(missed),
        }
        for run in runs {
            for event in self.topic.decode(&run) {
                witness.show(event.seq.0, &event.payload);
            }
        }
        for event in self.group.next_events(100).events {
            witness.keep(event.seq.0, &event.payload);
        }
        while let Some((seq, payload)) = self.open.pop_first() {
            match self.topic.fate(Seq(seq)).0 {
                Durability::Durable => witness.keep(seq, &payload),
                Durability::Lost(_) => {}
                Durability::Pending => {
                    self.open.insert(seq, payload);
                    break;
                }
            }
        }
    }
}

/// While no publisher is active, the newest events are the last ones of all.
fn look_back(topic: &Arc<Topic>, rng: &mut Rng) {
    let is_calm = topic.visible() == topic.head() && topic.stats().health == Health::Good;
    if !is_calm {
        return;
    }
    let before = replay(topic, StartAt::Seq(Seq(1)));
    let count = rng.usize(1..2 + before.0.len());
    let (events, _) = replay(topic, StartAt::Newest(count as u64));
    // If the disk fails meanwhile, events cannot be read.
    let fails = topic.is_logged() && before.1.iter().any(|range| range.starts_with("lag"));
    if !fails && before == replay(topic, StartAt::Seq(Seq(1))) {
        let wanted = &before.0[before.0.len().saturating_sub(count)..];
        assert_eq!(events, wanted, "the newest {count} of {}", topic.name());
    }
}

fn some_faults(rng: &mut Rng) -> DiskFaults {
    match rng.u8(..3) {
        0 => DiskFaults { power_off_after: Some(rng.u64(..30)), ..DiskFaults::default() },
        1 => DiskFaults { fail_sync_after: Some(rng.u64(..10)), ..DiskFaults::default() },
        _ => DiskFaults { hides_full: true, ..DiskFaults::default() },
    }
}

/// Kills the broker or cuts the power.
fn crash(disk: &SimulatedDisk, topics: Option<Arc<Topics>>, rng: &mut Rng) {
    disk.set_faults(DiskFaults { power_off_after: Some(0), ..DiskFaults::default() });
    if let Some(topics) = topics {
        // The disk takes no more writes, so the old broker cannot write after the next start.
        topics.close();
    }
    if rng.bool() {
        disk.cut_power();
    } else {
        disk.kill();
    }
    disk.set_room(1 << 40);
}

fn live(seed: u64) {
    let rng = &mut Rng::with_seed(seed);
    let disk = SimulatedDisk::new(rng.u64(..));
    let limits = Limits { tail_bytes_max: 20_000, ..Limits::default() };
    let mut witnesses = [
        Witness::new("always", Sync::Always),
        Witness::new("interval", Sync::Interval),
        Witness::new("memory", Sync::Memory),
    ];
    let mut number = 0;
    for life in 0..=LIVES {
        if life > 0 && rng.u8(..3) == 0 {
            disk.set_faults(DiskFaults {
                power_off_after: Some(rng.u64(..40)),
                ..DiskFaults::default()
            });
        }
        let topics = Topics::simulated(&disk, &limits, Sync::Always).or_else(|_| {
            crash(&disk, None, rng);
            Topics::simulated(&disk, &limits, Sync::Always)
        });
        let topics = topics.expect("the disk works again");
        disk.set_faults(DiskFaults::default());
        for witness in &mut witnesses {
            let settings = TopicSettings { sync: witness.sync, ..topics.defaults() };
            let name = witness.name.parse().unwrap();
            let _ = topics.create(&name, settings, |_| {});
            witness.judge(&topics);
        }
        let mut lives = witnesses.each_ref().map(|witness| Life::begin(&topics, witness.name));
        for _ in 0..rng.usize(..STEPS) {
            let at = rng.usize(..lives.len());
            match rng.u8(..20) {
                0 => disk.set_faults(some_faults(rng)),
                1 => disk.set_room(disk.used() + rng.u64(..20_000)),
                2 => disk.set_room(1 << 40),
                3 => lives[at].topic.maintain(),
                4..8 => {
                    // `tend` reserves the missing seqs, or fails to.
                    lives[at].topic.maintain();
                    settle(&lives[at].topic);
                    if rng.u8(..3) == 0 {
                        look_back(&lives[at].topic, rng);
                    }
                }
                _ => lives[at].append(rng, &mut number),
            }
            for (life, witness) in lives.iter_mut().zip(&mut witnesses) {
                life.look(witness);
            }
        }
        drop(lives);
        witnesses.iter_mut().for_each(Witness::compare);
        if rng.u8(..4) == 0 {
            topics.close();
            drop(topics);
        } else {
            crash(&disk, Some(topics), rng);
        }
    }
}

// PROTOCOL: R1, R2, R3
#[test]
#[expect(clippy::print_stderr, reason = "the output must contain the seed")]
fn no_confirmed_event_is_lost_and_no_seq_is_reused() {
    for seed in simulation::seeds("TOPIC", RUNS) {
        // Several threads take part, so a seed makes a failure likely but not certain.
        eprintln!("TIDINGS_TOPIC_SEED={seed}");
        live(seed);
    }
}
