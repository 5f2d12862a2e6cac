//! Simulations of a log, each from one printed seed. `TIDINGS_LOG_SEED` sets the first seed, and
//! `TIDINGS_LOG_RUNS` the number of simulations.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use fastrand::Rng;
use tidings_protocol::Seq;

use super::model::{Event, Model};
use super::{BUFFER, Heard, hear, options, piece};
use crate::clean_stop::StopSlot;
use crate::segments::{Recovered, SegmentLog, SegmentOptions};
use crate::simulation::{DiskFaults, SimulatedDisk, seeds};
use crate::topic_log::{LogError, LogPiece, LogRead, Retention, TopicLog};

const RUNS: u64 = 400;
const STEPS: u32 = 120;

// PROTOCOL: R2, R6
#[test]
#[expect(clippy::print_stdout, clippy::print_stderr, reason = "the output must contain the seed")]
fn no_confirmed_event_is_lost_in_a_power_cut() {
    let seeds = seeds("LOG", RUNS);
    let runs = seeds.end - seeds.start;
    let mut totals = Totals::default();
    for seed in seeds.clone() {
        let mut life = Life::new(seed);
        let lived = catch_unwind(AssertUnwindSafe(|| {
            for _ in 0..STEPS {
                life.step();
            }
            life.finish();
        }));
        if let Err(panic) = lived {
            eprintln!("{}\nfailed with TIDINGS_LOG_SEED={seed}", life.trace.join("\n"));
            resume_unwind(panic);
        }
        totals.add(&life.totals);
    }
    println!("seeds {seeds:?}: {totals:?}");
    assert!(
        totals.cuts > runs * 5 && totals.cuts_in_recovery > runs,
        "there are enough power cuts"
    );
    assert!(totals.confirmed > runs * 50, "enough events are confirmed");
    assert!(totals.survived > 0 && totals.vanished > 0 && totals.full > 0 && totals.broken > 0);
    assert!(totals.let_go > 0 && totals.torn > 0, "{totals:?}");
}

/// Counts of what happened, to show that the simulations are hard enough.
#[derive(Debug, Default)]
struct Totals {
    cuts: u64,
    cuts_in_recovery: u64,
    kills: u64,
    confirmed: u64,
    survived: u64,
    vanished: u64,
    full: u64,
    broken: u64,
    let_go: u64,
    torn: u64,
}

impl Totals {
    fn add(&mut self, other: &Self) {
        self.cuts += other.cuts;
        self.cuts_in_recovery += other.cuts_in_recovery;
        self.kills += other.kills;
        self.confirmed += other.confirmed;
        self.survived += other.survived;
        self.vanished += other.vanished;
        self.full += other.full;
        self.broken += other.broken;
        self.let_go += other.let_go;
        self.torn += other.torn;
    }
}

/// One log, its disk, and the model that it must agree with.
struct Life {
    rng: Rng,
    disk: SimulatedDisk,
    options: SegmentOptions,
    log: Box<dyn TopicLog>,
    model: Model,
    /// Events of an append that broke the log.
    uncertain: Vec<(u64, Event)>,
    broken: bool,
    /// The disk does not allocate space.
    no_allocate: bool,
    clock: i64,
    trace: Vec<String>,
    totals: Totals,
}

/// Opens the log. Only this names which implementation runs.
fn open(options: &SegmentOptions) -> io::Result<(Box<dyn TopicLog>, Recovered)> {
    let (log, found) = SegmentLog::open(options.clone(), 3)?;
    Ok((Box::new(log), found))
}

impl Life {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let disk = SimulatedDisk::new(rng.u64(..));
        let no_allocate = rng.u32(..4) == 0;
        disk.set_faults(DiskFaults { no_allocate, ..DiskFaults::default() });
        let options = options(disk.clone(), [600, 1500, 4000][rng.usize(..3)]);
        let (log, found) = open(&options).unwrap();
        assert_eq!(found.next, Seq(1));
        Self {
            rng,
            disk,
            options,
            log,
            model: Model::new(),
            uncertain: Vec::new(),
            broken: false,
            no_allocate,
            clock: 0,
            trace: Vec::new(),
            totals: Totals::default(),
        }
    }

    fn step(&mut self) {
        self.clock += self.rng.i64(0..10);
        match self.rng.u32(..100) {
            0..30 => self.append(),
            30..50 => self.sync(),
            50..65 => self.read(),
            65..70 => self.read_since(),
            70..75 => self.retain(),
            75 => self.clear(),
            76..80 => self.close(),
            80..84 => self.crash(false),
            84..92 => self.crash(true),
            92..96 => self.spoil(),
            _ => self.disk.set_room(1 << 40),
        }
    }

    fn finish(&mut self) {
        self.crash(true);
        self.append();
        self.sync();
        assert!(!self.broken, "the log works without faults");
        self.crash(true);
    }

    /// Plans a fault.
    fn spoil(&mut self) {
        let (soon, rng) = (self.rng.u64(..12), &mut self.rng);
        let mut faults = DiskFaults { no_allocate: self.no_allocate, ..DiskFaults::default() };
        match rng.u32(..4) {
            0 => faults.power_off_after = Some(soon),
            1 => faults.fail_sync_after = Some(soon / 3),
            2 => faults.fail_read_after = Some(soon),
            _ => {
                faults.hides_full = rng.bool();
                self.disk.set_room(self.disk.used() + rng.u64(..2000));
            }
        }
        self.trace.push(format!("spoil {faults:?}"));
        self.disk.set_faults(faults);
    }

    /// Assigns seqs to some events; now and then leaves one out.
    fn pieces(&mut self) -> Vec<LogPiece> {
        (0..self.rng.u64(..5))
            .map(|_| {
                if self.rng.u32(..8) == 0 {
                    self.model.next += self.rng.u64(1..4);
                }
                let (first, count) = (self.model.next, self.rng.u64(1..5));
                let piece = piece(first, count, self.clock, self.rng.u64(..1 << 32));
                for line in piece.wire.split_inclusive(|byte| *byte == b'\n') {
                    self.model.give(line);
                }
                piece
            })
            .collect()
    }

    fn append(&mut self) {
        let pieces = self.pieces();
        let next = self.model.next;
        let ahead = if self.rng.bool() { self.rng.u64(1..50) } else { 0 };
        let before = self.log.bounds();
        let at_once = match &pieces[..] {
            [piece] if self.rng.bool() => self.log.try_append(piece),
            _ => false,
        };
        let result =
            if at_once { Ok(()) } else { self.log.append(&pieces, Seq(next), Seq(next + ahead)) };
        self.trace.push(format!("append {:?} {next}+{ahead} {result:?}", numbers(&pieces)));
        match result {
            Ok(()) => {
                assert!(!self.broken, "a broken log stays broken");
                self.model.unsynced.extend(numbers(&pieces));
                self.model.events.extend(events(&pieces));
            }
            Err(LogError::Full) => {
                self.totals.full += 1;
                assert_eq!(self.log.bounds().end, before.end, "a failed append changes nothing");
                self.model.refused.extend(numbers(&pieces));
            }
            Err(LogError::Broken(_)) => {
                // No reader can get it now, and a start may find it.
                self.uncertain.extend(events(&pieces));
                self.breaks();
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn breaks(&mut self) {
        self.totals.broken += u64::from(!self.broken);
        self.broken = true;
    }

    fn sync(&mut self) {
        let result = self.log.sync();
        self.trace.push(format!("sync {result:?}"));
        match result {
            Ok(synced) => {
                assert!(!self.broken, "a broken log stays broken");
                assert_eq!(synced.durable, self.log.bounds().end);
                assert!(synced.durable.0 >= self.model.end());
                self.totals.confirmed += self.model.unsynced.len() as u64;
                self.model.synced(synced.reserved.0);
            }
            Err(LogError::Broken(_)) => self.breaks(),
            Err(error) => panic!("{error}"),
        }
    }

    fn read(&mut self) {
        let from = self.rng.u64(1..self.model.next + 5);
        match hear(&*self.log, from, BUFFER + self.rng.usize(..BUFFER)) {
            Ok(heard) => self.model.check(from, &heard),
            Err(error) => assert!(matches!(error, LogError::Io { .. }), "{error}"),
        }
        let count = self.rng.u64(1..40);
        match self.newest(count) {
            Ok(()) | Err(LogError::Io { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Compares the newest `count` events with those that a reader of everything receives.
    fn newest(&self, count: u64) -> Result<(), LogError> {
        let before = Seq(self.model.next);
        let found = loop {
            let found = self.log.newest(count, before);
            match found.unknown {
                Some(base) => self.log.index(base)?,
                None => break found,
            }
        };
        let heard = hear(&*self.log, 1, BUFFER)?;
        let event = |heard: &Heard| match heard {
            Heard::Event(seq, _) if *seq < before.0 => Some(*seq),
            _ => None,
        };
        let events: Vec<u64> = heard.iter().rev().filter_map(event).collect();
        let nth = usize::try_from(count - 1).ok().and_then(|nth| events.get(nth));
        match nth {
            Some(seq) => assert_eq!((found.from, found.missing), (Seq(*seq), 0), "{count}"),
            None => assert_eq!(found.missing, count - events.len() as u64, "{found:?}"),
        }
        Ok(())
    }

    /// Reads from a time on, up to the first lines.
    fn read_since(&mut self) {
        let since = self.clock - self.rng.i64(..300);
        let mut cursor = self.rng.u64(1..self.model.next + 5);
        let mut buffer = vec![0; BUFFER];
        let model = &self.model;
        let owed = |from: u64, to: u64| {
            let mut range = model.events.range(from.max(model.kept_from)..to.max(model.kept_from));
            range.find(|(_, event)| event.unix_ms >= since)
        };
        loop {
            match self.log.read(Seq(cursor), None, Some(since), &mut buffer) {
                Ok(LogRead::Lines { first, end, .. }) => {
                    assert_eq!(owed(cursor, first.0), None);
                    assert!(first.0 >= cursor && end > first);
                    return;
                }
                Ok(LogRead::Skip(to)) => {
                    assert!(to.0 > cursor);
                    assert_eq!(owed(cursor, to.0), None, "{cursor}..{to} since {since}");
                    cursor = to.0;
                }
                Ok(LogRead::Lag(first, last)) => {
                    assert_eq!(owed(cursor, first.0), None);
                    assert!(last.0 < model.kept_from, "{first}..={last} should be kept");
                    cursor = last.0 + 1;
                }
                Ok(LogRead::Gap(..)) => panic!("a read from a time on reports no gap"),
                Ok(LogRead::End) => {
                    assert_eq!(owed(cursor, u64::MAX), None);
                    return;
                }
                Err(LogError::Io { .. }) => return,
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn retain(&mut self) {
        let rng = &mut self.rng;
        let keep_from = if rng.bool() { self.model.next } else { rng.u64(..self.model.next) };
        let retention = Retention {
            bytes_max: rng.u64(1000..10_000),
            oldest_unix_ms: rng.bool().then(|| self.clock - rng.i64(..400)),
            segments_max: rng.usize(1..10),
            keep_from: Seq(keep_from),
            removals_max: if rng.bool() { rng.usize(1..3) } else { usize::MAX },
        };
        let before = self.log.bounds().first.0;
        let result = self.log.retain(&retention);
        let bounds = self.log.bounds();
        self.trace.push(format!("{retention:?}: {result:?} {bounds:?}"));
        assert!(bounds.first.0 <= keep_from.max(before), "retention has removed too much");
        if let Ok(removed) = result {
            assert!(removed <= retention.removals_max);
        }
        if result.as_ref().is_ok_and(|removed| *removed < retention.removals_max)
            && keep_from == self.model.next
        {
            assert!(bounds.segments <= retention.segments_max);
            assert!(bounds.bytes <= retention.bytes_max || bounds.segments == 1);
        }
        match result {
            Ok(removed) => self.totals.let_go += removed as u64,
            Err(LogError::Broken(_)) => self.breaks(),
            Err(error) => assert!(matches!(error, LogError::Io { .. }), "{error}"),
        }
        self.model.let_go(bounds.first.0);
    }

    /// Deletes the topic; its next seq is stored elsewhere.
    fn clear(&mut self) {
        self.sync();
        if self.broken {
            return;
        }
        let next = self.model.next;
        self.options.first = Seq(next);
        (self.model.kept_from, self.model.floor, self.model.reserved) = (next, next, next);
        let result = self.log.clear();
        self.trace.push(format!("clear at {next} {result:?}"));
        if result.is_err() {
            return self.crash(false);
        }
        self.model.cleared_to = next;
        let heard = hear(&*self.log, 1, BUFFER).unwrap();
        self.model.check(1, &heard);
    }

    fn close(&mut self) {
        let next = self.model.next;
        let has_files = self.log.bounds().segments > 0;
        let result = self.log.close(Seq(next));
        self.trace.push(format!("close at {next} {result:?}"));
        if result.is_err() || !has_files {
            // What it wrote may still be found.
            self.model.floor = self.model.floor.min(next);
            return self.crash(false);
        }
        // The record of a stop holds for every later start, until the next stop.
        result.expect("the log was closed");
        self.options.stopped = StopSlot::after(self.options.stopped.new_end());
        self.model.synced(0);
        self.model.floor = next;
        self.crash(true);
        assert_eq!(self.model.next, next, "no gap after an orderly stop");
    }

    /// Ends the process and starts another one; `power`: after a power cut.
    fn crash(&mut self, power: bool) {
        let mut certain = (!power).then(|| self.model.unsynced.clone());
        self.model.unsynced.extend(self.uncertain.iter().map(|(seq, _)| *seq));
        self.model.events.extend(self.uncertain.drain(..));
        if power {
            self.totals.cuts += 1;
            self.disk.cut_power();
        } else {
            self.totals.kills += 1;
            self.disk.kill();
        }
        let (log, found) = loop {
            if self.rng.u32(..3) == 0 {
                self.spoil();
            }
            match open(&self.options) {
                Ok(opened) => break opened,
                Err(error) => self.trace.push(format!("open {error}")),
            }
            self.totals.cuts_in_recovery += 1;
            if self.rng.bool() {
                certain = None;
                self.disk.cut_power();
            } else {
                self.disk.kill();
            }
        };
        self.disk.set_faults(DiskFaults { no_allocate: self.no_allocate, ..DiskFaults::default() });
        (self.log, self.broken) = (log, false);
        self.found(&found, &certain.unwrap_or_default());
    }

    fn found(&mut self, found: &Recovered, certain: &[u64]) {
        let heard = hear(&*self.log, 1, BUFFER).unwrap();
        self.trace.push(format!("recovered {} {:?} {heard:?}", found.next, found.findings));
        assert_eq!(found.reserved, found.next);
        for finding in &found.findings {
            // Allocated space may be lost although the data written into it is not.
            let uncertain = finding.contains("may be missing");
            let torn = finding.contains("as after a crash");
            assert!(torn || uncertain, "a power cut damages nothing: {finding}");
            self.totals.torn += u64::from(torn);
        }
        for checked in self.log.verify().unwrap() {
            // When a topic was being deleted, some of its files are gone.
            let gone = checked.lost.iter().all(|(_, last)| last.0 < self.model.kept_from);
            assert!(gone && checked.lost.is_empty() == checked.problems.is_empty(), "{checked:?}");
        }
        for (first, lines) in &found.identified {
            let event = &self.model.events[&first.0];
            assert!(lines.starts_with(&event.line), "an id belongs to the event that had it");
        }
        let before = self.model.unsynced.clone();
        self.model.recovered(&heard, found.next.0);
        let is_there = |seq: &u64| self.model.events.contains_key(seq);
        assert!(certain.iter().all(is_there), "data in the system's memory survives a kill");
        let survived = before.iter().filter(|seq| is_there(seq)).count() as u64;
        self.totals.survived += survived;
        self.totals.vanished += before.len() as u64 - survived;
    }
}

fn numbers(pieces: &[LogPiece]) -> Vec<u64> {
    events(pieces).map(|(seq, _)| seq).collect()
}

fn events(pieces: &[LogPiece]) -> impl Iterator<Item = (u64, Event)> {
    pieces.iter().flat_map(|piece| {
        let lines = piece.wire.split_inclusive(|byte| *byte == b'\n');
        (piece.first.0..).zip(lines).map(|(seq, line)| {
            let line = line.to_vec();
            (seq, Event { line, unix_ms: piece.unix_ms, confirmed: false })
        })
    })
}
