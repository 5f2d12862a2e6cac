//! Simulations of a journal, each from one printed seed, with power cuts and other faults.
//! `TIDINGS_LOG_SEED` sets the first seed, and `TIDINGS_LOG_RUNS` the number of simulations.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use fastrand::Rng;
use tidings_log::{DiskFaults, SimulatedDisk, simulation_seeds};

use super::*;

const RUNS: u64 = 1_500;
const STEPS: u32 = 40;

/// A broker that writes records of all kinds, on a failing disk.
struct Life {
    rng: Rng,
    disk: SimulatedDisk,
    journal: Journal,
    /// The contents that were confirmed.
    contents: CatalogContents,
    /// Other contents that a restart may find, because a write failed.
    perhaps: Option<CatalogContents>,
    /// The end at the last orderly stop, which holds for every later start.
    stopped: Option<LogEnd>,
    crashes: u32,
    refusals: u32,
}

fn open(
    disk: &SimulatedDisk,
    stopped: Option<&LogEnd>,
) -> io::Result<(Journal, CatalogContents, Vec<String>)> {
    Journal::open(Arc::new(disk.clone()), Path::new("d"), Clock::new(), stopped)
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

    fn records(&mut self) -> Vec<CatalogRecord> {
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
                let _ = self.journal.rewrite(self.contents.snapshot());
            }
            _ => self.append(),
        }
    }

    fn append(&mut self) {
        let records = self.records();
        let mut after = self.contents.clone();
        for record in &records {
            after.apply(record);
        }
        let was_broken = self.journal.broken;
        match self.journal.append(&records, &self.contents) {
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

fn record(rng: &mut Rng) -> CatalogRecord {
    let topic = ["new-url", "a", "TDB1"][rng.usize(..3)];
    let name = ["indexer", "b"][rng.usize(..2)];
    let (next, unix_ms) = (rng.u64(1..1_000), rng.i64(..));
    let line = match rng.u32(..10) {
        0 => format!("deleted {topic} {next}"),
        1 => format!("settings {topic} sync=memory retain-bytes={next}m retain-age=0"),
        2 => format!("forgotten {topic} {name}"),
        3 => format!("reserved {topic} {next}"),
        4 => format!("cursor {topic} other {next} {unix_ms}"),
        5 => format!("cursor {topic} {name} {next} {unix_ms}"),
        _ => format!("moved {topic} {name} {next} {unix_ms}"),
    };
    line.parse().unwrap()
}

#[test]
#[expect(clippy::print_stdout, clippy::print_stderr, reason = "the output must contain the seed")]
fn confirmed_records_survive_power_cuts() {
    let seeds = simulation_seeds::seeds("LOG", RUNS);
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
    let (mut journal, contents, _) = open(&disk, None).unwrap();
    journal.append(&["deleted a 7".parse().unwrap()], &contents).unwrap();
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
    for line in ["deleted a 7", "cursor b c 3 0", "reserved b 5"] {
        let record: CatalogRecord = line.parse().unwrap();
        journal.append(std::slice::from_ref(&record), &contents).unwrap();
        contents.apply(&record);
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
    for line in ["reserved a 5", "reserved b 6"] {
        let record: CatalogRecord = line.parse().unwrap();
        journal.append(std::slice::from_ref(&record), &contents).unwrap();
        contents.apply(&record);
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
        let (problems, is_damaged) = check(&disk, Path::new("d"), Some(&end)).unwrap();
        assert!(is_damaged && !problems.is_empty(), "bit {bit}: {problems:?}");
    }
    // A start reports it, and keeps the damaged file.
    let (journal, found, problems) = open(&disk, Some(&end)).unwrap();
    let is_reported = problems.iter().any(|it| it.contains("at the last orderly stop"));
    assert!(found != contents && is_reported, "{problems:?}");
    assert!(disk.files().iter().any(|(path, _)| path.to_string_lossy().contains("damaged-")));
    // The file is a new one now, so the old end does not apply.
    drop(journal);
    assert_eq!(check(&disk, Path::new("d"), Some(&end)).unwrap(), (Vec::new(), false));
}
