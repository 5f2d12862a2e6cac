//! Verifies the log of a group without changing it.

use std::io;
use std::path::Path;
use std::sync::Arc;

use tidings_log::{CheckedFile, FileSystem, ReadOnlyDisk, SegmentLog, TopicLog, read_lines};
use tidings_protocol::GroupName;
use tidings_queue::record::{Decision, GroupRecord};
use tidings_queue::replay::{FIRST_RECORD, ReplayBase};

use super::foreign_files::{DirectoryOwner, directory_owner};
use super::recovery::{GroupStorage, invalid};
use crate::clean_stop::CleanStop;

/// The result for one group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedGroup {
    /// Its name.
    pub name: GroupName,
    /// The files of its log, oldest first. Their "events" are the group's records.
    pub files: Vec<CheckedFile>,
    /// Other problems, as text.
    pub findings: Vec<String>,
    /// Why the next start will reject work for this group; `None` if the group will run.
    pub refusal: Option<String>,
    /// Whether a whole file cannot be read.
    pub has_unreadable_file: bool,
    /// Whether the log is shorter than it was at the last orderly stop.
    pub has_lost_end: bool,
}

impl VerifiedGroup {
    /// Whether any stored data cannot be read.
    pub fn is_damaged(&self) -> bool {
        self.refusal.is_some()
            || self.has_unreadable_file
            || self.has_lost_end
            || self.files.iter().any(CheckedFile::is_damaged)
    }
}

/// Verifies the log of a group in the directory `groups`. Returns `None` if the group's name
/// belongs to something else, such as a copy of another group's log.
pub(crate) fn verify_group(
    groups: &Path,
    name: GroupName,
    stopped: &Arc<CleanStop>,
) -> Option<VerifiedGroup> {
    let dir = groups.join(name.as_str());
    let disk = Arc::new(ReadOnlyDisk::new(Arc::new(FileSystem)));
    let mut group = VerifiedGroup {
        name,
        files: Vec::new(),
        findings: Vec::new(),
        refusal: None,
        has_unreadable_file: false,
        has_lost_end: false,
    };
    let checked = directory_owner(&*disk, &dir, &group.name).and_then(|held| match held {
        DirectoryOwner::Own => {
            let storage = GroupStorage::at(disk.clone(), groups, Arc::clone(stopped));
            verify_log(&disk, &storage, &mut group).map(|()| true)
        }
        DirectoryOwner::Foreign(_) => Ok(false),
    });
    match checked {
        Ok(false) => return None,
        Ok(true) => {}
        Err(error) => group.refusal = Some(error.to_string()),
    }
    group.has_unreadable_file = disk.sets_aside();
    Some(group)
}

fn verify_log(
    disk: &Arc<ReadOnlyDisk>,
    storage: &GroupStorage,
    group: &mut VerifiedGroup,
) -> io::Result<()> {
    let options = storage.options_on(disk.clone(), &group.name, FIRST_RECORD);
    let (log, found) = SegmentLog::open(options, 0)?;
    group.findings = found.findings;
    group.has_lost_end = found.has_lost_end;
    group.files = log.verify().map_err(io::Error::other)?;
    let first = log.bounds().first;
    let (mut base, mut is_deleted) = (ReplayBase::new(first <= FIRST_RECORD), false);
    let mut damage = (first > FIRST_RECORD).then(|| format!("records before {first} are gone"));
    read_lines(&log, first, |seq, line| {
        match line.and_then(|line| GroupRecord::decode(line).map_err(invalid)) {
            Ok(record) => {
                is_deleted = record.decision == Decision::Deleted;
                base.apply(&record);
            }
            Err(error) => {
                base = ReplayBase::Missing;
                damage.get_or_insert(format!("record {seq}: {error}"));
            }
        }
        Ok(())
    })?;
    if base != ReplayBase::Complete && !is_deleted {
        group.refusal = damage.or_else(|| Some("the log has no complete beginning".to_owned()));
    }
    Ok(())
}
