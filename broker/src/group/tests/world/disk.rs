//! What of a group's log a disk still has when the process or the power is gone: the real log, on a
//! simulated disk, and the real start from it.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use tidings_protocol::Seq;

use super::broker::Batch;
use crate::clock::{Moment, Stamp};
use crate::group::Group;
use crate::groups::restart::{GroupStorage, Recovered};
use crate::log::simulated::SimulatedDisk;
use crate::log::{Piece, SegmentLog, TopicLog};

/// So that a log here is one segment of a MiB mostly.
const LOG_BYTES: u64 = 8 << 20;

/// How a broker ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// The process is killed; what was handed to the system is written.
    Process,
    /// The power goes, and with it or torn whatever was not synced.
    Power,
}

/// What a start finds.
pub(super) struct Survivors {
    pub(super) group: Group,
    /// The last start, as the machine knew it.
    pub(super) started: Stamp,
    /// The newest record's moment.
    pub(super) last: Moment,
    /// How many records there are.
    pub(super) records: u64,
    storage: GroupStorage,
}

impl Survivors {
    /// Another start finds the same.
    pub(super) fn again(&mut self) -> Group {
        recover(&mut self.storage).group
    }
}

/// Ends a broker that has synced the `safe` batches of its log, of which the first record has the number
/// `first`, and handed those in `written`, no fewer, to the system.
pub(super) fn survive(
    first: Seq,
    safe: &[Batch],
    written: &[Batch],
    end: End,
    rng: &mut fastrand::Rng,
) -> Survivors {
    let disk = SimulatedDisk::new(rng.u64(..));
    let dir = PathBuf::from("groups");
    let (disk_of_it, taken) = (Arc::new(disk.clone()), BTreeSet::new());
    let mut storage = GroupStorage {
        disk: disk_of_it,
        dir,
        log_bytes: LOG_BYTES,
        taken,
        stopped: Arc::default(),
    };
    let name = "crawlers".parse().expect("it is a name");
    let (log, mut next) = (storage.fresh_at(&name, first), first.0);
    append(&log, safe, &mut next);
    log.sync().expect("this disk does not fail");
    append(&log, written, &mut next);
    match end {
        End::Process => disk.kill(),
        End::Power => disk.cut_power(),
    }
    // What the found group leaves to chance is drawn from the thread's source.
    fastrand::seed(rng.u64(..));
    let Recovered { group, log, started, last, .. } = recover(&mut storage);
    let checked = log.verify().expect("what is whole is read");
    let records = checked.iter().map(|file| file.events).sum();
    Survivors { group, started, last, records, storage }
}

fn recover(storage: &mut GroupStorage) -> Recovered {
    let mut groups = storage.recover().expect("what is whole is read").whole;
    groups.pop().expect("it has begun")
}

fn append(log: &SegmentLog, batches: &[Batch], next: &mut u64) {
    let pieces: Vec<Piece> = batches
        .iter()
        .map(|batch| {
            let mut wire = String::new();
            batch.records.iter().for_each(|record| record.encode(&mut wire));
            let (first, count) = (Seq(*next), batch.records.len() as u64);
            *next += count;
            Piece { first, count, unix_ms: 0, wire: wire.into(), identified: false }
        })
        .collect();
    let next = Seq(*next);
    if !pieces.is_empty() {
        log.append(&pieces, next, next).expect("this disk has room");
    }
}
