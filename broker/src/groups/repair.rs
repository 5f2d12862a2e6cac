//! Repairing a group whose log is damaged, while no broker works in the data directory.
//!
//! The group is restored as it was before the first record that cannot be read: these records are copied to a
//! new log, from the last snapshot on where that came after earlier damage. The damaged log is moved to
//! `<data>/set-aside/`. Nothing is deleted. What the group had taken from its topics after that point is taken
//! again, so tasks that were done after it are done again.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidings_protocol::{GroupName, Seq};

use super::restart::{FIRST, GroupStorage, invalid, read};
use crate::StartError;
use crate::clean_stop::CleanStop;
use crate::clock::wall_unix_ms;
use crate::data_dir::DataDir;
use crate::group::record::{Decision, Record};
use crate::group::{Group, GroupConfig};
use crate::log::disk::FileSystem;
use crate::log::read_only::ReadOnlyDisk;
use crate::log::{Piece, SegmentLog, TopicLog};

/// Bytes of records that are written to the new log together.
const PIECE_BYTES: usize = 256 << 10;

/// What was done to a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repaired {
    /// Where the damaged log is now.
    pub aside: PathBuf,
    /// Records that the group has kept; `None`: it was set aside as a whole.
    pub kept: Option<u64>,
    /// Records after the damage that can be read and were dropped, by what they are.
    pub dropped: BTreeMap<&'static str, u64>,
    /// Records that cannot be read.
    pub unreadable: u64,
}

/// Why nothing was done. The data directory is unchanged by every variant but the last.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RepairError {
    /// The data directory cannot be used.
    #[error(transparent)]
    Start(#[from] StartError),
    /// There is no such group.
    #[error("{} holds no group {name}", .dir.display())]
    Missing {
        /// The group.
        name: GroupName,
        /// Where it would be.
        dir: PathBuf,
    },
    /// The log can be read as a whole.
    #[error("the log of group {0} is whole: there is nothing to repair")]
    Whole(GroupName),
    /// Nothing can be read before the damage.
    #[error(
        "nothing of group {name} can be restored ({reason}); --set-aside moves its log away, and the \
         group can be created again"
    )]
    Nothing {
        /// The group.
        name: GroupName,
        /// What is wrong.
        reason: String,
    },
    /// The system says no. The damaged log is where it was, or under `set-aside/`.
    #[error("cannot repair group {name}: {source}")]
    Io {
        /// The group.
        name: GroupName,
        /// What the system says.
        source: io::Error,
    },
}

/// Restores a group from what can be read before the damage, or only sets its log aside. Blocks.
pub fn repair(data: &Path, name: &GroupName, set_aside: bool) -> Result<Repaired, RepairError> {
    let failed = |source| RepairError::Io { name: name.clone(), source };
    fs::metadata(data).map_err(|source| StartError::Data { path: data.to_owned(), source })?;
    let data = DataDir::open(data)?;
    let dir = data.groups().join(name.as_str());
    if !dir.is_dir() {
        return Err(RepairError::Missing { name: name.clone(), dir: data.groups() });
    }
    let mut repaired =
        Repaired { aside: PathBuf::new(), kept: None, dropped: BTreeMap::new(), unreadable: 0 };
    let unfinished = data.groups().join(format!("~{name}.repair"));
    if !set_aside {
        let (stopped, _) = CleanStop::read(Arc::new(FileSystem), data.path());
        let storage = GroupStorage::at(Arc::new(FileSystem), &data.groups(), Arc::new(stopped));
        let group = Group::new(name.clone(), 0, GroupConfig::default(), 0);
        let nothing = |reason: String| RepairError::Nothing { name: name.clone(), reason };
        let mut reading = storage.read(name, group).map_err(|error| nothing(error.to_string()))?;
        if reading.is_whole() {
            return Err(RepairError::Whole(name.clone()));
        }
        let Some((from, until, _)) = reading.good.take() else {
            return Err(nothing(reading.damage().0.to_string()));
        };
        if unfinished.exists() {
            fs::remove_dir_all(&unfinished).map_err(failed)?;
        }
        copy(&storage, name, (from, until), &unfinished, &mut repaired).map_err(failed)?;
    }
    repaired.aside = move_aside(data.path(), &dir, name).map_err(failed)?;
    if !set_aside {
        fs::rename(&unfinished, &dir).map_err(failed)?;
    }
    File::open(data.groups()).and_then(|dir| dir.sync_all()).map_err(failed)?;
    Ok(repaired)
}

/// Copies the records of a range to a new log, and counts what is not in it.
fn copy(
    storage: &GroupStorage,
    name: &GroupName,
    (from, until): (Seq, Seq),
    to: &Path,
    repaired: &mut Repaired,
) -> io::Result<()> {
    let disk = Arc::new(ReadOnlyDisk::new(Arc::new(FileSystem)));
    let (log, _) = SegmentLog::open(storage.options_on(disk, name, FIRST), 0)?;
    let mut options = storage.options_on(Arc::new(FileSystem), name, from);
    to.clone_into(&mut options.dir);
    let new = SegmentLog::fresh(options);
    let mut piece = Vec::new();
    let (mut first, mut next, mut kept) = (from, from, 0);
    let write = |first: Seq, next: Seq, lines: Vec<u8>| {
        let (count, unix_ms) = (next.0 - first.0, wall_unix_ms());
        if count == 0 {
            return Ok(());
        }
        let piece = Piece { first, count, unix_ms, wire: lines.into(), identified: false };
        new.append(&[piece], next, next).map_err(io::Error::other)
    };
    read(&log, log.bounds().first, |seq, line| {
        if seq < from {
            return Ok(());
        }
        let record = line.and_then(|line| Ok((line, Record::decode(line).map_err(invalid)?)));
        match record {
            Ok((line, _)) if seq < until => {
                if seq != next || piece.len() > PIECE_BYTES {
                    write(first, next, std::mem::take(&mut piece))?;
                    first = seq;
                }
                piece.extend_from_slice(line.as_bytes());
                piece.push(b'\n');
                next = Seq(seq.0 + 1);
                kept += 1;
            }
            Ok((_, record)) => *repaired.dropped.entry(kind(&record.decision)).or_default() += 1,
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

/// What a record is about, for people.
fn kind(decision: &Decision) -> &'static str {
    match decision {
        Decision::Taken { .. } => "events taken from topics",
        Decision::Released { .. } | Decision::Touched { .. } => "tasks handed out",
        Decision::Answered { .. } => "tasks answered",
        Decision::Returned { .. } | Decision::Lost { .. } | Decision::Ended { .. } => {
            "tasks returned"
        }
        Decision::Configured(_) | Decision::Paused(_) => "settings",
        Decision::Kept(_) => "parts of snapshots",
        _ => "others",
    }
}

/// Moves the directory of a group to a place that no start reads.
fn move_aside(data: &Path, dir: &Path, name: &GroupName) -> io::Result<PathBuf> {
    let place = data.join("set-aside");
    DirBuilder::new().recursive(true).mode(0o700).create(&place)?;
    let aside = place.join(format!("group-{name}-{}", wall_unix_ms()));
    if aside.exists() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    fs::rename(dir, &aside)?;
    File::open(&place)?.sync_all()?;
    Ok(aside)
}
