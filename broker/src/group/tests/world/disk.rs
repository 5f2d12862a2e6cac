//! Decides what part of a group's log survives a crash or a power failure: the real log and the
//! real recovery, on a simulated disk.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use tidings_log::{LogPiece, SegmentLog, SimulatedDisk, TopicLog};
use tidings_protocol::Seq;

use super::broker::Batch;
use crate::clock::{ClockStamp, Moment};
use crate::group::Group;
use crate::groups::recovery::{GroupStorage, RecoveredGroup};

/// Makes most logs here a single segment of 1 MiB.
const LOG_BYTES: u64 = 8 << 20;

/// Kinds of crashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CrashKind {
    /// The process is killed; written data survives.
    Process,
    /// The power fails; data that was not synced is lost or torn.
    Power,
}

/// The result of a recovery.
pub(super) struct SurvivingLog {
    pub(super) group: Group,
    /// Time of the last start, as the machine knew it.
    pub(super) started: ClockStamp,
    /// Time of the newest record.
    pub(super) last: Moment,
    /// Number of records.
    pub(super) records: u64,
    storage: GroupStorage,
}

impl SurvivingLog {
    /// Recovers the group once more.
    pub(super) fn recover_again(&mut self) -> Group {
        recover(&mut self.storage).group
    }
}

/// Crashes a broker and recovers its log. The first `safe` batches were synced; `written` batches,
/// at least as many, were written. `first` is the number of the first record.
pub(super) fn crash_and_recover(
    first: Seq,
    safe: &[Batch],
    written: &[Batch],
    end: CrashKind,
    rng: &mut fastrand::Rng,
) -> SurvivingLog {
    let disk = SimulatedDisk::new(rng.u64(..));
    let dir = PathBuf::from("groups");
    let (disk_of_it, taken) = (Arc::new(disk.clone()), BTreeSet::new());
    let mut storage = GroupStorage {
        disk: disk_of_it,
        dir,
        log_bytes: LOG_BYTES,
        foreign_names: taken,
        stopped: Arc::default(),
    };
    let name = "crawlers".parse().expect("the name is valid");
    let (log, mut next) = (storage.fresh_at(&name, first), first.0);
    append(&log, safe, &mut next);
    log.sync().expect("the simulated disk does not fail");
    append(&log, written, &mut next);
    match end {
        CrashKind::Process => disk.kill(),
        CrashKind::Power => disk.cut_power(),
    }
    // Random choices of the recovered group come from the thread's source.
    fastrand::seed(rng.u64(..));
    let RecoveredGroup { group, log, started, last, .. } = recover(&mut storage);
    let checked = log.verify().expect("an undamaged log can be read");
    let records = checked.iter().map(|file| file.events).sum();
    SurvivingLog { group, started, last, records, storage }
}

fn recover(storage: &mut GroupStorage) -> RecoveredGroup {
    let mut groups = storage.recover().expect("an undamaged log can be read").whole;
    groups.pop().expect("the group was created")
}

fn append(log: &SegmentLog, batches: &[Batch], next: &mut u64) {
    let pieces: Vec<LogPiece> = batches
        .iter()
        .map(|batch| {
            let mut wire = String::new();
            batch.records.iter().for_each(|record| record.encode(&mut wire));
            let (first, count) = (Seq(*next), batch.records.len() as u64);
            *next += count;
            LogPiece { first, count, unix_ms: 0, wire: wire.into(), identified: false }
        })
        .collect();
    let next = Seq(*next);
    if !pieces.is_empty() {
        log.append(&pieces, next, next).expect("the simulated disk has room");
    }
}
