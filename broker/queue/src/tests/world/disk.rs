//! Decides what part of a group's log survives a crash or a power failure: the real log, on a
//! simulated disk.

use std::path::Path;
use std::sync::Arc;

use tidings_log::{
    LogId, LogPiece, LogPlan, SegmentStore, SimulatedDisk, Store, TopicLog, read_lines,
};
use tidings_protocol::{GroupName, Seq};

use super::broker::Batch;
use crate::fuzzing::simulated_pages::SimulatedPages;
use crate::moment::{ClockStamp, Moment};
use crate::record::GroupRecord;
use crate::record::replay::{FIRST_RECORD, LogReplay, ReplayedGroup};
use crate::texts::Paging;
use crate::{Group, GroupConfig};

/// Makes most logs here a single segment.
const KEPT_BYTES: u64 = 8 << 20;

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
    /// Where its texts are, if not in memory.
    pub(super) pages: SimulatedPages,
    /// Time of the last start, as the machine knew it.
    pub(super) started: ClockStamp,
    /// Time of the newest record.
    pub(super) last: Moment,
    /// Number of records.
    pub(super) records: u64,
    store: SegmentStore,
    seed: u64,
    paging: Option<Paging>,
}

impl SurvivingLog {
    /// Recovers the group once more.
    pub(super) fn recover_again(&mut self) -> Group {
        let (recovered, pages) = recover(&self.store, self.seed, self.paging);
        let mut group = recovered.group;
        pages.read_all(&mut group);
        group
    }
}

/// Crashes a broker and recovers its log. The first `safe` batches were synced; `written` batches,
/// at least as many, were written. `first` is the number of the first record.
pub(super) fn crash_and_recover(
    first: Seq,
    safe: &[Batch],
    written: &[Batch],
    end: CrashKind,
    (rng, paging): (&mut fastrand::Rng, Option<Paging>),
) -> SurvivingLog {
    let disk = SimulatedDisk::new(rng.u64(..));
    let store = SegmentStore::new(Arc::new(disk.clone()), Path::new(""));
    let log = store.fresh(&id(), LogPlan { first, kept_bytes: KEPT_BYTES });
    let mut next = first.0;
    append(&*log, safe, &mut next);
    log.sync().expect("the simulated disk does not fail");
    append(&*log, written, &mut next);
    match end {
        CrashKind::Process => disk.kill(),
        CrashKind::Power => disk.cut_power(),
    }
    let seed = rng.u64(..);
    let (ReplayedGroup { group, started, last }, pages) = recover(&store, seed, paging);
    let checked = log.verify().expect("an undamaged log can be read");
    let records = checked.iter().map(|file| file.events).sum();
    SurvivingLog { group, pages, started, last, records, store, seed, paging }
}

fn name() -> GroupName {
    "crawlers".parse().expect("the name is valid")
}

fn id() -> LogId {
    LogId::Group(name())
}

/// Replays the log without changing it, and then opens it to continue it, as a start does.
fn recover(
    store: &SegmentStore,
    seed: u64,
    paging: Option<Paging>,
) -> (ReplayedGroup, SimulatedPages) {
    let mut group = Group::new(name(), 0, GroupConfig::default(), seed);
    if let Some(paging) = paging {
        group.set_paging(paging);
    }
    let mut pages = SimulatedPages::default();
    let log = store.open_read_only(&id()).expect("the log is whole");
    let first = log.bounds().first;
    let mut replay = LogReplay::new(group, first);
    let read = read_lines(&*log, first, |seq, line| {
        let record = GroupRecord::decode(line?).expect("a record survives whole or not at all");
        while let Some(request) = replay.poll_texts() {
            replay.texts_replied(pages.execute(request));
        }
        if let Some(request) = replay.prepare(&record) {
            replay.texts_replied(pages.execute(request));
        }
        replay.apply(seq, &mut Ok(record));
        Ok(())
    });
    read.expect("the log is whole");
    let plan = LogPlan { first: FIRST_RECORD, kept_bytes: KEPT_BYTES };
    let (log, found) = store.open(&id(), plan, 0).expect("the log is whole");
    if found.has_lost_end {
        log.begin_after_loss().expect("the simulated disk has room");
    }
    (replay.finish().expect("nothing is missing"), pages)
}

fn append(log: &dyn TopicLog, batches: &[Batch], next: &mut u64) {
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
