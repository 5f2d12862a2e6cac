//! Decides what part of a group's log survives a crash or a power failure.

use tidings_protocol::Seq;

use super::broker::Batch;
use crate::moment::{ClockStamp, Moment};
use crate::record::{Decision, GroupRecord};
use crate::replay::Replay;
use crate::snapshot::SnapshotItem;
use crate::{Group, GroupConfig};

/// Kinds of crashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CrashKind {
    /// The process is killed; written data survives.
    Process,
    /// The power fails; data that was not synced is lost.
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
    first: Seq,
    lines: String,
}

impl SurvivingLog {
    /// Recovers the group once more.
    pub(super) fn recover_again(&mut self) -> Group {
        recover(self.first, &self.lines, 0).0
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
    let left = match end {
        CrashKind::Process => written.len(),
        CrashKind::Power => rng.usize(..=written.len()),
    };
    let batches = safe.iter().chain(&written[..left]);
    let (mut lines, mut records) = (String::new(), 0);
    for record in batches.flat_map(|batch| &batch.records) {
        record.encode(&mut lines);
        records += 1;
    }
    let (group, started, last) = recover(first, &lines, rng.u64(..));
    SurvivingLog { group, started, last, records, first, lines }
}

fn recover(first: Seq, lines: &str, seed: u64) -> (Group, ClockStamp, Moment) {
    let name = "crawlers".parse().expect("the name is valid");
    let group = Group::new(name, 0, GroupConfig::default(), seed);
    let mut replay = Replay::new(group, first == Seq(1));
    let (mut started, mut last) = (None, Moment(0));
    for line in lines.lines() {
        let record = GroupRecord::decode(line).expect("the record was encoded");
        last = record.at;
        match &record.decision {
            Decision::Started { stamp, .. } => started = Some(*stamp),
            Decision::SnapshotPart(item) => {
                if let SnapshotItem::Begin { stamp, .. } = **item {
                    started = Some(stamp);
                }
            }
            _ => {}
        }
        replay.apply(&record);
    }
    let group = replay.finish().expect("the log is complete");
    (group, started.expect("the group was started"), last)
}
