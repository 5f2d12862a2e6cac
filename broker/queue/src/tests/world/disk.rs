//! Decides what part of a group's log survives a crash or a power failure: the real log, on a
//! simulated disk.

use std::path::PathBuf;
use std::sync::Arc;

use tidings_log::{
    Disk, LogPiece, ReadOnlyDisk, SegmentLog, SegmentOptions, SimulatedDisk, TopicLog, read_lines,
};
use tidings_protocol::Seq;

use super::broker::Batch;
use crate::moment::{ClockStamp, Moment};
use crate::record::GroupRecord;
use crate::replay::{FIRST_RECORD, LogReplay, ReplayedGroup};
use crate::simulated_pages::{SimulatedPages, TINY};
use crate::{Group, GroupConfig};

/// Makes most logs here a single segment.
const SEGMENT_BYTES: u64 = 1 << 20;

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
    disk: Arc<dyn Disk>,
    seed: u64,
    paged: bool,
}

impl SurvivingLog {
    /// Recovers the group once more.
    pub(super) fn recover_again(&mut self) -> Group {
        let (recovered, pages) = recover(&self.disk, self.seed, self.paged);
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
    (rng, paged): (&mut fastrand::Rng, bool),
) -> SurvivingLog {
    let disk = SimulatedDisk::new(rng.u64(..));
    let storage: Arc<dyn Disk> = Arc::new(disk.clone());
    let log = SegmentLog::fresh(options(Arc::clone(&storage), first));
    let mut next = first.0;
    append(&log, safe, &mut next);
    log.sync().expect("the simulated disk does not fail");
    append(&log, written, &mut next);
    match end {
        CrashKind::Process => disk.kill(),
        CrashKind::Power => disk.cut_power(),
    }
    let seed = rng.u64(..);
    let (ReplayedGroup { group, started, last }, pages) = recover(&storage, seed, paged);
    let checked = log.verify().expect("an undamaged log can be read");
    let records = checked.iter().map(|file| file.events).sum();
    SurvivingLog { group, pages, started, last, records, disk: storage, seed, paged }
}

fn options(disk: Arc<dyn Disk>, first: Seq) -> SegmentOptions {
    SegmentOptions {
        disk,
        dir: PathBuf::from("groups/crawlers"),
        topic: "crawlers".parse().expect("the name is valid"),
        first,
        segment_bytes: SEGMENT_BYTES,
        reserve_part: 4,
        stopped: None,
    }
}

/// Replays the log without changing it, and then opens it to continue it, as a start does.
fn recover(disk: &Arc<dyn Disk>, seed: u64, paged: bool) -> (ReplayedGroup, SimulatedPages) {
    let name = "crawlers".parse().expect("the name is valid");
    let mut group = Group::new(name, 0, GroupConfig::default(), seed);
    if paged {
        group.set_paging(TINY);
    }
    let mut pages = SimulatedPages::default();
    let reader = Arc::new(ReadOnlyDisk::new(Arc::clone(disk)));
    let (log, _) = SegmentLog::open(options(reader, FIRST_RECORD), 0).expect("the log is whole");
    let first = log.bounds().first;
    let mut replay = LogReplay::new(group, first);
    let read = read_lines(&log, first, |seq, line| {
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
    let (log, found) =
        SegmentLog::open(options(Arc::clone(disk), FIRST_RECORD), 0).expect("the log is whole");
    if found.has_lost_end {
        log.begin_after_loss().expect("the simulated disk has room");
    }
    (replay.finish().expect("nothing is missing"), pages)
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
