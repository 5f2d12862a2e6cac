//! Repairs a group with a damaged log, while no broker uses the data directory.
//!
//! The group is restored to its state before the first unreadable record. If a snapshot follows
//! earlier damage, the state is restored from that snapshot on. The good records are copied to a
//! new log, which [replaces](SegmentStore::replace_log) the damaged one; nothing is deleted. The
//! group then consumes its topics again from that point, so tasks that were done after it are
//! repeated.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use tidings_log::{
    FileSystem, LogId, LogPiece, LogPlan, SegmentStore, Store, TopicLog, read_lines,
};
use tidings_protocol::{GroupName, Seq};
use tidings_queue::record::{Decision, GroupRecord};
use tidings_queue::{Group, GroupConfig};

use super::recovery::{invalid, replay_log};
use crate::StartError;
use crate::clock::wall_unix_ms;
use crate::data_dir::DataDir;
use crate::limits::Limits;

/// Bytes of records that are written to the new log at once.
const COPY_BATCH_BYTES: usize = 256 << 10;

/// The result of a repair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repaired {
    /// The new path of the damaged log.
    pub aside: PathBuf,
    /// Number of records that were kept; `None` if the whole group was set aside.
    pub kept: Option<u64>,
    /// Readable records after the damage, which were dropped, counted by kind.
    pub dropped: BTreeMap<&'static str, u64>,
    /// Number of unreadable records.
    pub unreadable: u64,
    /// Whether this repair only completed an earlier one that was interrupted.
    pub was_cut_short: bool,
}

/// Why a group was not repaired. The data directory is unchanged by every variant but the last.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RepairError {
    /// The data directory cannot be used.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The data directory has no such group.
    #[error("{} holds no group {name}", .dir.display())]
    Missing {
        /// The group.
        name: GroupName,
        /// The directory that the group would have.
        dir: PathBuf,
    },
    /// The log has no damage.
    #[error("the log of group {0} is whole: there is nothing to repair")]
    Whole(GroupName),
    /// No record before the damage can be read.
    #[error(
        "nothing of group {name} can be restored ({reason}); --set-aside moves its log away, so that \
         the group can be created again"
    )]
    Nothing {
        /// The group.
        name: GroupName,
        /// The damage.
        reason: String,
    },
    /// The operating system reports an error. The damaged log is where it was, or under
    /// `set-aside/`.
    #[error("cannot repair group {name}: {source}")]
    Io {
        /// The group.
        name: GroupName,
        /// The error of the operating system.
        source: io::Error,
    },
}

/// Restores a group from the records before the damage, or with `set_aside` only moves its log
/// away. Blocks.
pub fn repair(data: &Path, name: &GroupName, set_aside: bool) -> Result<Repaired, RepairError> {
    repair_in_steps(data, name, set_aside, &mut || Ok(()))
}

/// Does the same, and calls `step` between any two renames; an error of `step` stops the repair.
fn repair_in_steps(
    data: &Path,
    name: &GroupName,
    set_aside: bool,
    step: &mut dyn FnMut() -> io::Result<()>,
) -> Result<Repaired, RepairError> {
    let failed = |source| RepairError::Io { name: name.clone(), source };
    fs::metadata(data).map_err(|source| StartError::Data { path: data.to_owned(), source })?;
    let data = DataDir::open(data)?;
    let store = SegmentStore::new(Arc::new(FileSystem), data.path());
    if !store.has_group(name) {
        if !set_aside && store.finish_replacement(name).map_err(failed)? {
            return finished_repair(&store, name).map_err(failed);
        }
        return Err(RepairError::Missing { name: name.clone(), dir: data.path().join("groups") });
    }
    let mut repaired = Repaired {
        aside: PathBuf::new(),
        kept: None,
        dropped: BTreeMap::new(),
        unreadable: 0,
        was_cut_short: false,
    };
    if set_aside {
        repaired.aside = store.set_log_aside(name, wall_unix_ms(), step).map_err(failed)?;
        return Ok(repaired);
    }
    let nothing = |reason: String| RepairError::Nothing { name: name.clone(), reason };
    let log = store.open_read_only(&LogId::Group(name.clone()));
    let log = log.map_err(|error| nothing(error.to_string()))?;
    let group = Group::new(name.clone(), 0, GroupConfig::default(), 0);
    let mut reading = replay_log(&*log, group, None);
    if reading.is_whole() {
        return Err(RepairError::Whole(name.clone()));
    }
    let Some((from, until, _)) = reading.last_good.take() else {
        return Err(nothing(reading.damage().0.to_string()));
    };
    let plan = LogPlan { first: from, kept_bytes: Limits::default().group_log_bytes };
    let fill = |new: &dyn TopicLog| copy(&*log, new, (from, until), &mut repaired);
    let aside = store.replace_log(name, plan, wall_unix_ms(), fill, step);
    repaired.aside = aside.map_err(failed)?;
    Ok(repaired)
}

/// The result if only the last step of an earlier repair was missing.
fn finished_repair(store: &SegmentStore, name: &GroupName) -> io::Result<Repaired> {
    let checked = store.check(&LogId::Group(name.clone()));
    checked.log?;
    Ok(Repaired {
        aside: store.newest_aside(name)?,
        kept: Some(checked.files.iter().map(|file| file.events).sum()),
        dropped: BTreeMap::new(),
        unreadable: 0,
        was_cut_short: true,
    })
}

/// Copies the records of a range to a new log, and counts the readable records outside of it.
fn copy(
    log: &dyn TopicLog,
    new: &dyn TopicLog,
    (from, until): (Seq, Seq),
    repaired: &mut Repaired,
) -> io::Result<()> {
    let mut piece = Vec::new();
    let (mut first, mut next, mut kept) = (from, from, 0);
    let write = |first: Seq, next: Seq, lines: Vec<u8>| {
        let (count, unix_ms) = (next.0 - first.0, wall_unix_ms());
        if count == 0 {
            return Ok(());
        }
        let piece = LogPiece { first, count, unix_ms, wire: lines.into(), identified: false };
        new.append(&[piece], next, next).map_err(io::Error::other)
    };
    read_lines(log, log.bounds().first, |seq, line| {
        if seq < from {
            return Ok(());
        }
        let record = line.and_then(|line| Ok((line, GroupRecord::decode(line).map_err(invalid)?)));
        match record {
            Ok((line, _)) if seq < until => {
                if seq != next || piece.len() > COPY_BATCH_BYTES {
                    write(first, next, std::mem::take(&mut piece))?;
                    first = seq;
                }
                piece.extend_from_slice(line.as_bytes());
                piece.push(b'\n');
                next = Seq(seq.0 + 1);
                kept += 1;
            }
            Ok((_, record)) => {
                *repaired.dropped.entry(record_kind(&record.decision)).or_default() += 1;
            }
            Err(_) => {}
        }
        Ok(())
    })?;
    write(first, next, piece)?;
    new.sync().map_err(io::Error::other)?;
    new.close(next).map_err(io::Error::other)?;
    let lost = log.verify().map_err(io::Error::other)?;
    let lost = lost.iter().flat_map(|file| &file.lost);
    repaired.unreadable =
        lost.filter(|(first, _)| *first >= from).map(|(first, last)| last.0 - first.0 + 1).sum();
    repaired.kept = Some(kept);
    Ok(())
}

/// The kind of a record, as shown to an operator.
fn record_kind(decision: &Decision) -> &'static str {
    match decision {
        Decision::Consumed { .. } => "events taken from topics",
        Decision::Released { .. } | Decision::Touched { .. } => "tasks released",
        Decision::Answered { .. } => "tasks answered",
        Decision::Returned { .. } | Decision::Lost { .. } | Decision::Ended { .. } => {
            "tasks returned"
        }
        Decision::Configured(_) | Decision::Paused(_) => "settings",
        Decision::SnapshotPart(_) => "parts of snapshots",
        _ => "others",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{ClockStamp, Moment};
    use crate::groups::GroupStorage;

    const RECORDS: u64 = 12;

    fn storage(data: &Path) -> GroupStorage {
        let store = SegmentStore::new(Arc::new(FileSystem), data);
        GroupStorage { store: Arc::new(store), log_bytes: Limits::default().group_log_bytes }
    }

    /// Creates a data directory with a group `g` and damages a record in the middle of its log.
    fn damaged(data: &Path) -> GroupName {
        let name: GroupName = "g".parse().unwrap();
        let (log, mut next) = storage(data).fresh(&name);
        let stamp = ClockStamp { moment: Moment(1), boot_id: 0, uptime_ms: 1, unix_ms: 1 };
        let started = Decision::Started {
            run: 1,
            since: 1,
            elapsed_unknown: true,
            stamp,
            local_member: None,
        };
        let others = (1..RECORDS).map(|_| Decision::Configured(Box::default()));
        for decision in std::iter::once(started).chain(others) {
            let mut line = String::new();
            GroupRecord { at: Moment(1), decision }.encode(&mut line);
            let (first, wire) = (next, line.into());
            next = Seq(next.0 + 1);
            let piece = LogPiece { first, count: 1, unix_ms: 0, wire, identified: false };
            log.append(&[piece], next, next).unwrap();
            log.sync().unwrap();
        }
        log.close(next).unwrap();
        let file = fs::read_dir(data.join("groups/g")).unwrap().next().unwrap().unwrap().path();
        let mut bytes = fs::read(&file).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(file, bytes).unwrap();
        name
    }

    /// Whether the next start finds the group whole; if not, it finds it damaged.
    #[track_caller]
    fn is_whole_at_start(data: &Path) -> bool {
        let found = storage(data).recover().unwrap();
        assert_eq!(found.whole.len() + found.damaged.len(), 1, "the group is gone: {found:?}");
        found.whole.len() == 1
    }

    fn records(data: &Path, name: &GroupName) -> u64 {
        let store = SegmentStore::new(Arc::new(FileSystem), data);
        let checked = crate::groups::check::verify_group(&store, name.clone());
        assert!(!checked.is_damaged(), "{checked:?}");
        checked.files.iter().map(|file| file.events).sum()
    }

    fn left_over(data: &Path) -> Vec<String> {
        let entries = fs::read_dir(data.join("groups")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with('~')).collect()
    }

    /// Runs a repair that is interrupted after `steps` steps.
    fn stop_after(data: &Path, name: &GroupName, set_aside: bool, steps: usize) {
        let mut left = steps;
        let stopped = repair_in_steps(data, name, set_aside, &mut || {
            left = left.checked_sub(1).ok_or(io::ErrorKind::Interrupted)?;
            Ok(())
        });
        assert!(matches!(stopped, Err(RepairError::Io { .. })), "{stopped:?}");
    }

    #[test]
    fn repair_interrupted_at_any_step_loses_no_group() {
        for steps in 0..4 {
            for by_start in [false, true] {
                let folder = tempfile::tempdir().unwrap();
                let data = folder.path();
                let name = damaged(data);
                stop_after(data, &name, false, steps);
                let is_moved = !data.join("groups/g").exists();
                assert_eq!(is_moved, steps == 2);
                let is_repaired = steps >= 2;
                if by_start {
                    assert_eq!(is_whole_at_start(data), is_repaired, "after {steps} steps");
                }
                let repaired = repair(data, &name, false);
                match repaired {
                    Ok(repaired) => {
                        assert_eq!(repaired.was_cut_short, is_moved);
                        assert!(repaired.aside.is_dir(), "{repaired:?}");
                        assert!(repaired.kept.unwrap() >= RECORDS / 2 - 1, "{repaired:?}");
                    }
                    Err(error) => {
                        assert!(matches!(error, RepairError::Whole(_)) && is_repaired, "{error}");
                    }
                }
                assert!(is_whole_at_start(data) && records(data, &name) >= RECORDS / 2 - 1);
                assert_eq!(left_over(data), [""; 0]);
            }
        }
    }

    #[test]
    fn leftovers_of_a_repair_do_not_replace_a_group_that_was_set_aside() {
        for steps in 0..2 {
            let folder = tempfile::tempdir().unwrap();
            let data = folder.path();
            let name = damaged(data);
            stop_after(data, &name, false, steps);
            stop_after(data, &name, true, 1);
            assert_eq!(left_over(data), [""; 0]);
            let found = storage(data).recover().unwrap();
            assert!(found.whole.is_empty() && found.damaged.is_empty(), "{found:?}");
            assert!(matches!(repair(data, &name, false), Err(RepairError::Missing { .. })));
        }
    }
}
