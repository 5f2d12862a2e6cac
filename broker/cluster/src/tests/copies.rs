//! A copy on a disk that loses what is not synced: a shared log made at random, and what must be in the
//! data directory when all of it is applied, however often the power was cut.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use fastrand::Rng;
use parking_lot::Mutex;
use tidings_log::{
    Disk, DiskFaults, InvalidRecord, JournalContents, LogId, LogPiece, SegmentStore, SimulatedDisk,
    Store, read_file, read_lines,
};
use tidings_protocol::Seq;

use crate::{CommunityId, Frame, Kind, Message, Position, Replica, ReplicaError, Slot, Stamp};

const COMMUNITY: CommunityId = CommunityId([5; 16]);

/// So few that a log has many segments.
const KEPT_BYTES: u64 = 8 * 700;

/// The records of a journal: `key value`, or `key` alone to remove it.
#[derive(Debug, Default, Clone)]
pub(super) struct Keys(Arc<Mutex<BTreeMap<String, String>>>);

impl JournalContents for Keys {
    fn apply(&mut self, records: &[&str]) -> Result<(), InvalidRecord> {
        let keys = &mut *self.0.lock();
        for record in records {
            match record.split_once(' ') {
                Some((key, value)) => keys.insert(key.to_owned(), value.to_owned()),
                None => keys.remove(*record),
            };
        }
        Ok(())
    }

    fn snapshot(&self) -> Box<dyn Iterator<Item = String> + '_> {
        let keys = self.0.lock().clone();
        Box::new(keys.into_iter().map(|(key, value)| format!("{key} {value}")))
    }
}

/// What a data directory must hold.
#[derive(Debug, Default)]
struct Model {
    logs: BTreeMap<LogId, ModelLog>,
    keys: Keys,
    files: BTreeMap<String, Bytes>,
}

#[derive(Debug)]
struct ModelLog {
    lines: BTreeMap<u64, String>,
    end: u64,
    /// Nothing below needs to be kept.
    below: u64,
    unix_ms: i64,
}

impl Model {
    /// A change at random.
    fn change(&mut self, rng: &mut Rng, number: u64) -> Frame {
        let log = match rng.u32(..4) {
            0 => LogId::Topic("a".parse().unwrap()),
            1 => LogId::Topic("b".parse().unwrap()),
            2 => LogId::Group("a".parse().unwrap()),
            _ => LogId::Group("b".parse().unwrap()),
        };
        let empty = ModelLog { lines: BTreeMap::new(), end: 1, below: 1, unix_ms: 0 };
        let model = self.logs.entry(log.clone()).or_insert(empty);
        match rng.u32(..100) {
            0..3 => {
                model.lines.clear();
                if matches!(log, LogId::Group(_)) {
                    // It is deleted, and created again.
                    model.end = 1;
                }
                model.below = model.end;
                Frame::Clear { log }
            }
            3..10 => {
                model.below = rng.u64(model.below..=model.end);
                Frame::Trim { log, below: Seq(model.below) }
            }
            10..20 => {
                let key = format!("key-{}", rng.u32(..5));
                let record = if rng.bool() { key } else { format!("{key} {number}") };
                self.keys.apply(&[&record]).unwrap();
                Frame::Journal { records: vec![record] }
            }
            20..25 => {
                let (name, bytes) = (format!("file-{}", rng.u32(..2)), number.to_string());
                self.files.insert(name.clone(), bytes.clone().into());
                Frame::File { name, bytes: bytes.into() }
            }
            _ => {
                let end = Seq(model.end);
                let pieces = (0..rng.u32(1..4)).map(|_| model.piece(rng, number)).collect();
                Frame::Append { log, end, kept_bytes: KEPT_BYTES, pieces }
            }
        }
    }
}

impl ModelLog {
    fn piece(&mut self, rng: &mut Rng, number: u64) -> LogPiece {
        if rng.u32(..10) == 0 {
            self.end += rng.u64(1..5);
        }
        self.unix_ms += 1;
        let (first, count) = (self.end, rng.u64(1..4));
        let mut wire = String::new();
        for _ in 0..count {
            let line = format!("{number} {}", "x".repeat(rng.usize(..40)));
            let _ = writeln!(wire, "{line}");
            self.lines.insert(self.end, line);
            self.end += 1;
        }
        let unix_ms = self.unix_ms;
        LogPiece { first: Seq(first), count, unix_ms, wire: wire.into(), identified: false }
    }
}

/// A shared log, and what it amounts to.
struct Shared {
    rng: Rng,
    slots: Vec<Bytes>,
    position: Position,
    model: Model,
}

impl Shared {
    fn new(seed: u64, commits: u64) -> Self {
        let mut shared = Self {
            rng: Rng::with_seed(seed),
            slots: Vec::new(),
            position: Position::default(),
            model: Model::default(),
        };
        shared.put(Kind::Founded, &[], false);
        shared.put(Kind::Opened, &[], false);
        for number in 1..=commits {
            match shared.rng.u32(..20) {
                0 => shared.put(Kind::Opened, &[], false),
                1 => {
                    shared.put(Kind::Left, &[], false);
                    shared.put(Kind::Opened, &[], false);
                }
                2 => shared.slots.push(Bytes::from_static(b"of no broker")),
                3 => {
                    // A leader that is deposed before it has sent all of a commit.
                    let mut bytes = Vec::new();
                    Frame::Journal { records: vec!["lost 1".to_owned()] }.encode(&mut bytes);
                    shared.put(Kind::Frames, &bytes, true);
                    shared.put(Kind::Opened, &[], false);
                }
                _ => shared.commit(number),
            }
            shared.position.slot = Slot(shared.slots.len() as u64);
        }
        shared
    }

    /// Commits that are sent together, in one message or several.
    fn commit(&mut self, number: u64) {
        let mut bytes = Vec::new();
        for _ in 0..self.rng.u32(1..4) {
            self.model.change(&mut self.rng, number).encode(&mut bytes);
        }
        let parts = self.rng.usize(1..4);
        let part = bytes.len().div_ceil(parts);
        for (index, payload) in bytes.chunks(part).enumerate() {
            self.put(Kind::Frames, payload, (index + 1) * part < bytes.len());
        }
    }

    fn put(&mut self, kind: Kind, payload: &[u8], more: bool) {
        let stamp = Stamp { moment: self.slots.len() as u64, unix_ms: 0 };
        let payload = Bytes::copy_from_slice(payload);
        let message = Message { more, payload, ..self.position.next_message(kind, stamp) };
        let bytes = message.encode(COMMUNITY);
        self.position.take(&message, &bytes);
        self.slots.push(bytes);
    }
}

/// What happened in a run.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) cuts: usize,
    pub(super) restarts: usize,
    pub(super) checkpoints: usize,
}

/// Applies a shared log on a disk whose power is cut at random, and compares what is there in the end.
/// The error names the seed.
pub(super) fn run(seed: u64) -> Result<Counts, String> {
    let problem = |what: String| format!("{what}; again with TIDINGS_COPY_SEED={seed}");
    let shared = Shared::new(seed, 300);
    let disk = SimulatedDisk::new(seed);
    let mut rng = Rng::with_seed(seed ^ 1);
    let mut counts = Counts::default();
    let mut cuts_left = rng.usize(..12);
    loop {
        if cuts_left > 0 {
            let power_off_after = Some(rng.u64(1..1_000));
            disk.set_faults(DiskFaults { power_off_after, ..DiskFaults::default() });
        }
        match follow(&disk, &shared, &mut rng, &mut counts) {
            Ok(true) => break,
            Ok(false) => counts.restarts += 1,
            Err(error) if cuts_left == 0 || is_of_the_log(&error) => {
                return Err(problem(error.to_string()));
            }
            Err(_) => {
                cuts_left -= 1;
                counts.cuts += 1;
                disk.cut_power();
            }
        }
    }
    check(&disk, &shared.model).map_err(problem)?;
    Ok(counts)
}

/// Whether the disk cannot be the cause.
fn is_of_the_log(error: &ReplicaError) -> bool {
    matches!(
        error,
        ReplicaError::Fault(_)
            | ReplicaError::Frame { .. }
            | ReplicaError::OtherEnd { .. }
            | ReplicaError::LostEnd(_)
            | ReplicaError::Record(_)
    )
}

/// Opens the copy, and applies what it does not hold. Returns whether it has reached the end of the log;
/// it can stop before.
fn follow(
    disk: &SimulatedDisk,
    shared: &Shared,
    rng: &mut Rng,
    counts: &mut Counts,
) -> Result<bool, ReplicaError> {
    let (on, dir) = (Arc::new(disk.clone()), Path::new("data").to_owned());
    on.create_dir(&dir)?;
    let (mut replica, _) = Replica::open(on, dir, COMMUNITY, Box::<Keys>::default(), 0)?;
    loop {
        let slot = replica.position().slot.next();
        let Some(bytes) = shared.slots.get(usize::try_from(slot.0 - 1).unwrap()) else { break };
        replica.read(slot, bytes)?;
        match rng.u32(..200) {
            0..10 => {
                counts.checkpoints += 1;
                replica.checkpoint().write()?;
            }
            10 => {
                replica.close()?;
                return Ok(false);
            }
            _ => {}
        }
    }
    replica.close()?;
    Ok(true)
}

fn check(disk: &SimulatedDisk, model: &Model) -> Result<(), String> {
    disk.set_faults(DiskFaults::default());
    let dir = Path::new("data");
    let store = SegmentStore::new(Arc::new(disk.clone()), dir);
    for (id, expected) in &model.logs {
        let log = store.open_read_only(id).map_err(|error| error.to_string())?;
        let mut found = BTreeMap::new();
        read_lines(&*log, log.bounds().first, |seq, line| {
            found.insert(seq.0, line?.to_owned());
            Ok(())
        })
        .map_err(|error| format!("{id}: {error}"))?;
        // Trimming removes whole segments, so a few lines before may be left.
        let kept = expected.lines.range(found.keys().next().copied().unwrap_or(expected.end)..);
        let kept: BTreeMap<_, _> = kept.map(|(seq, line)| (*seq, line.clone())).collect();
        if kept != found {
            return Err(format!("{id} holds {found:?}, and should hold {kept:?}"));
        }
        let needed = expected.lines.range(expected.below..).next();
        if needed.is_some_and(|(seq, _)| !found.contains_key(seq)) {
            return Err(format!(
                "{id} was trimmed to {:?}, not to {needed:?}",
                found.keys().next()
            ));
        }
        let old = found.range(..expected.below).count();
        if old > 100 {
            return Err(format!("{id} was not trimmed: it has {old} lines too many"));
        }
    }
    let mut keys = Keys::default();
    store.open_journal(0, &mut keys).map_err(|error| error.to_string())?;
    if *keys.0.lock() != *model.keys.0.lock() {
        return Err(format!("the journal holds {keys:?}, and should hold {:?}", model.keys));
    }
    for (name, bytes) in &model.files {
        let found = read_file(disk, &dir.join(name), 1 << 20).map_err(|error| error.to_string())?;
        if found != *bytes {
            return Err(format!("{name} holds {found:?}, and should hold {bytes:?}"));
        }
    }
    Ok(())
}
