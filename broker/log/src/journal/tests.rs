//! Simulations of a journal, each from one printed seed, with power cuts and other faults.
//! `TIDINGS_LOG_SEED` sets the first seed, and `TIDINGS_LOG_RUNS` the number of simulations.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use fastrand::Rng;
use proptest::prelude::*;

use super::*;
use crate::simulation::{DiskFaults, SimulatedDisk, seeds};

const RUNS: u64 = 1_500;
const STEPS: u32 = 40;

/// Contents for tests: numbers with names.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Numbers(BTreeMap<String, u64>);

/// `set <name> <number>`, `raise <name> <number>` for an existing number, or `remove <name>`.
fn parse(record: &str) -> Option<(&str, String, Option<u64>)> {
    let words: Vec<_> = record.split(' ').collect();
    match words[..] {
        [verb @ ("set" | "raise"), name, number] => {
            Some((verb, name.to_owned(), Some(number.parse().ok()?)))
        }
        ["remove", name] => Some(("remove", name.to_owned(), None)),
        _ => None,
    }
}

impl JournalContents for Numbers {
    fn apply(&mut self, records: &[&str]) -> Result<(), InvalidRecord> {
        let records = records.iter().map(|record| parse(record)).collect::<Option<Vec<_>>>();
        for (verb, name, number) in records.ok_or(InvalidRecord)? {
            match (verb, number) {
                ("set", Some(number)) => _ = self.0.insert(name, number),
                (_, Some(number)) => {
                    self.0.entry(name).and_modify(|kept| *kept = number.max(*kept));
                }
                (_, None) => _ = self.0.remove(&name),
            }
        }
        Ok(())
    }

    fn snapshot(&self) -> Box<dyn Iterator<Item = String> + '_> {
        Box::new(self.0.iter().map(|(name, number)| format!("set {name} {number}")))
    }
}

pub(super) fn any_record() -> impl Strategy<Value = String> {
    ("set|raise|remove", "[a-c]|TDB1", any::<u64>()).prop_map(|(verb, name, number)| match verb {
        verb if verb == "remove" => format!("remove {name}"),
        verb => format!("{verb} {name} {number}"),
    })
}

/// A broker that writes records of all kinds, on a failing disk.
struct Life {
    rng: Rng,
    disk: SimulatedDisk,
    journal: JournalFile,
    /// The contents that were confirmed.
    contents: Numbers,
    /// Other contents that a restart may find, because a write failed.
    perhaps: Option<Numbers>,
    /// The end at the last orderly stop, which holds for every later start.
    stopped: Option<LogEnd>,
    crashes: u32,
    refusals: u32,
}

fn open(
    disk: &SimulatedDisk,
    stopped: Option<&LogEnd>,
) -> io::Result<(JournalFile, Numbers, Vec<String>)> {
    let slot = StopSlot::after(stopped.cloned());
    let mut contents = Numbers::default();
    let (journal, findings) =
        JournalFile::open(Arc::new(disk.clone()), Path::new("d"), 7, slot, &mut contents)?;
    Ok((journal, contents, findings))
}

/// Appends a record and applies it.
fn append(journal: &mut JournalFile, contents: &mut Numbers, record: &str) {
    journal.append(&[record.to_owned()], contents, 7).unwrap();
    contents.apply(&[record]).unwrap();
}

impl Life {
    fn new(seed: u64) -> Self {
        let disk = SimulatedDisk::new(seed);
        disk.create_dir(Path::new("d")).unwrap();
        disk.sync_dir(Path::new("")).unwrap();
        let (journal, contents, _) = open(&disk, None).unwrap();
        let rng = Rng::with_seed(seed);
        let (perhaps, stopped) = (None, None);
        Self { rng, disk, journal, contents, perhaps, stopped, crashes: 0, refusals: 0 }
    }

    fn records(&mut self) -> Vec<String> {
        let count = self.rng.usize(1..20);
        (0..count).map(|_| record(&mut self.rng)).collect()
    }

    fn step(&mut self) {
        match self.rng.u32(..10) {
            0 => self.crash(),
            1 => {
                // Room for little more than the disk holds, or for everything.
                let room = self.disk.used() + self.rng.u64(..4_000);
                self.disk.set_room(if self.rng.bool() { room } else { 1 << 30 });
            }
            2 => {
                let in_a_few = |rng: &mut Rng| rng.bool().then(|| rng.u64(..8));
                let off_in = in_a_few(&mut self.rng);
                let sync_in = in_a_few(&mut self.rng);
                self.disk.set_faults(DiskFaults {
                    power_off_after: off_in,
                    fail_sync_after: sync_in,
                    ..DiskFaults::default()
                });
            }
            3 if !self.journal.broken => {
                // Success or not, the contents stay the same.
                let _ = self.journal.rewrite(self.contents.snapshot(), 7);
            }
            _ => self.append(),
        }
    }

    fn append(&mut self) {
        let records = self.records();
        let mut after = self.contents.clone();
        for record in &records {
            after.apply(&[record]).unwrap();
        }
        let was_broken = self.journal.broken;
        match self.journal.append(&records, &self.contents, 7) {
            Ok(()) => {
                assert!(!was_broken, "no record is confirmed after a failure");
                self.contents = after;
            }
            Err(JournalError::Full) => self.refusals += 1,
            Err(JournalError::Broken) if was_broken => {}
            Err(JournalError::Broken) => self.perhaps = Some(after),
        }
    }

    /// The broker ends, perhaps in a power cut, and starts again, perhaps with another power cut in
    /// between.
    fn crash(&mut self) {
        self.crashes += 1;
        self.disk.set_room(1 << 30);
        if self.rng.bool()
            && let Some(end) = self.journal.end()
        {
            // This was an orderly stop.
            self.stopped = Some(end);
        }
        loop {
            if self.rng.bool() {
                self.disk.cut_power();
            } else {
                self.disk.kill();
            }
            let off_in = self.rng.bool().then(|| self.rng.u64(..8));
            self.disk.set_faults(DiskFaults { power_off_after: off_in, ..DiskFaults::default() });
            let opened = open(&self.disk, self.stopped.as_ref());
            let Ok((journal, contents, findings)) = opened else { continue };
            let expected = contents == self.contents || self.perhaps.as_ref() == Some(&contents);
            assert!(
                expected,
                "{contents:#?}\ndiffers from what was confirmed: {:#?}",
                self.contents
            );
            assert!(journal.damaged_copy.is_none(), "a crash is not damage: {findings:?}");
            // From here on only the contents that were found count.
            (self.journal, self.contents, self.perhaps) = (journal, contents, None);
            return;
        }
    }
}

fn record(rng: &mut Rng) -> String {
    let name = ["new-url", "a", "TDB1"][rng.usize(..3)];
    let number = rng.u64(1..1_000);
    match rng.u32(..10) {
        0 | 1 => format!("remove {name}"),
        2..5 => format!("set {name} {number}"),
        _ => format!("raise {name} {number}"),
    }
}

#[test]
#[expect(clippy::print_stdout, clippy::print_stderr, reason = "the output must contain the seed")]
fn confirmed_records_survive_power_cuts() {
    let seeds = seeds("LOG", RUNS);
    let runs = seeds.end - seeds.start;
    let (mut crashes, mut refusals) = (0, 0);
    for seed in seeds.clone() {
        let mut life = Life::new(seed);
        let lived = catch_unwind(AssertUnwindSafe(|| {
            (0..STEPS).for_each(|_| life.step());
            life.crash();
        }));
        if let Err(panic) = lived {
            eprintln!("failed with TIDINGS_LOG_SEED={seed}");
            resume_unwind(panic);
        }
        crashes += life.crashes;
        refusals += life.refusals;
    }
    println!("seeds {seeds:?}: {crashes} crashes, {refusals} refusals");
    if runs >= RUNS {
        assert!(crashes > 4_000 && refusals > 300, "there are enough faults");
    }
}

#[test]
fn an_unreadable_file_is_not_treated_as_empty() {
    let disk = SimulatedDisk::new(1);
    disk.create_dir(Path::new("d")).unwrap();
    let (mut journal, mut contents, _) = open(&disk, None).unwrap();
    append(&mut journal, &mut contents, "set a 7");
    disk.set_faults(DiskFaults { fail_read_after: Some(0), ..DiskFaults::default() });
    let error = open(&disk, None).unwrap_err().to_string();
    assert_eq!(error, "d/catalog.log: the disk cannot read that");
    assert_eq!(open(&disk, None).unwrap().1.snapshot().count(), 1);
}

#[test]
fn any_flipped_bit_is_reported_and_loses_one_batch_at_most() {
    let disk = SimulatedDisk::new(1);
    disk.create_dir(Path::new("d")).unwrap();
    let (mut journal, mut contents, _) = open(&disk, None).unwrap();
    let mut after = vec![contents.clone()];
    for record in ["set a 7", "set b 3", "set c 5"] {
        append(&mut journal, &mut contents, record);
        after.push(contents.clone());
    }
    let path = Path::new("d/catalog.log");
    let bytes = disk.files()[0].1.len();
    for bit in 0..bytes * 8 {
        let disk = disk.copy();
        disk.damage(path, |file| file[bit / 8] ^= 1 << (bit % 8));
        let (_, found, findings) = open(&disk, None).unwrap();
        assert!(!findings.is_empty(), "bit {bit}");
        assert!(found.snapshot().count() >= 2, "bit {bit}: {findings:?}");
        let kept = disk
            .files()
            .into_iter()
            .any(|(path, _)| path.to_string_lossy().contains("catalog.log.damaged-"));
        assert!(kept || found == after[2], "bit {bit}: {findings:?}");
    }
}

#[test]
fn the_end_after_an_orderly_stop_is_not_torn() {
    let disk = SimulatedDisk::new(1);
    disk.create_dir(Path::new("d")).unwrap();
    let (mut journal, mut contents, _) = open(&disk, None).unwrap();
    for record in ["set a 5", "set b 6"] {
        append(&mut journal, &mut contents, record);
    }
    let end = journal.end().unwrap();
    drop(journal);
    let path = Path::new("d").join(FILE);
    let (_, whole) = disk.files().into_iter().find(|(file, _)| *file == path).unwrap();
    assert_eq!(end.bytes, whole.len() as u64);
    for bit in 0..whole.len() * 8 {
        disk.damage(&path, |file| {
            file.clone_from(&whole);
            file[bit / 8] ^= 1 << (bit % 8);
        });
        let (problems, is_damaged) =
            check_journal(&disk, Path::new("d"), Some(&end), &mut Numbers::default()).unwrap();
        assert!(is_damaged && !problems.is_empty(), "bit {bit}: {problems:?}");
    }
    // A start reports it, and keeps the damaged file.
    let (journal, found, problems) = open(&disk, Some(&end)).unwrap();
    let is_reported = problems.iter().any(|it| it.contains("at the last orderly stop"));
    assert!(found != contents && is_reported, "{problems:?}");
    assert!(disk.files().iter().any(|(path, _)| path.to_string_lossy().contains("damaged-")));
    // The file is a new one now, so the old end does not apply.
    drop(journal);
    assert_eq!(
        check_journal(&disk, Path::new("d"), Some(&end), &mut Numbers::default()).unwrap(),
        (Vec::new(), false)
    );
}
