//! Verifies the log of a group without changing it.

use std::io;
use std::path::Path;
use std::sync::Arc;

use tidings_protocol::GroupName;

use super::foreign::{Held, look_into};
use super::restart::{FIRST, GroupStorage, invalid, read};
use crate::clean_stop::CleanStop;
use crate::group::record::{Decision, Record};
use crate::group::replay::Base;
use crate::log::disk::FileSystem;
use crate::log::read_only::ReadOnlyDisk;
use crate::log::{Checked, SegmentLog, TopicLog};

/// The result for one group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedGroup {
    /// Its name.
    pub name: GroupName,
    /// The files of its log, oldest first. Their "events" are the group's records.
    pub files: Vec<Checked>,
    /// Other problems, as text.
    pub findings: Vec<String>,
    /// Why the next start will reject work for this group; `None` if the group will run.
    pub refuses: Option<String>,
    /// Whether a whole file cannot be read.
    pub has_unreadable_file: bool,
    /// Whether the log is shorter than it was at the last orderly stop.
    pub has_lost_end: bool,
}

impl VerifiedGroup {
    /// Whether any stored data cannot be read.
    pub fn is_damaged(&self) -> bool {
        self.refuses.is_some()
            || self.has_unreadable_file
            || self.has_lost_end
            || self.files.iter().any(Checked::is_damaged)
    }
}

/// Verifies the log of a group in the directory `groups`. Returns `None` if the group's name
/// belongs to something else, such as a copy of another group's log.
pub(crate) fn check(
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
        refuses: None,
        has_unreadable_file: false,
        has_lost_end: false,
    };
    let checked = look_into(&*disk, &dir, &group.name).and_then(|held| match held {
        Held::Own => {
            let storage = GroupStorage::at(disk.clone(), groups, Arc::clone(stopped));
            check_log(&disk, &storage, &mut group).map(|()| true)
        }
        Held::Foreign(_) => Ok(false),
    });
    match checked {
        Ok(false) => return None,
        Ok(true) => {}
        Err(error) => group.refuses = Some(error.to_string()),
    }
    group.has_unreadable_file = disk.sets_aside();
    Some(group)
}

fn check_log(
    disk: &Arc<ReadOnlyDisk>,
    storage: &GroupStorage,
    group: &mut VerifiedGroup,
) -> io::Result<()> {
    let options = storage.options_on(disk.clone(), &group.name, FIRST);
    let (log, found) = SegmentLog::open(options, 0)?;
    group.findings = found.findings;
    group.has_lost_end = found.has_lost_end;
    group.files = log.verify().map_err(io::Error::other)?;
    let first = log.bounds().first;
    let (mut base, mut is_deleted) = (Base::new(first <= FIRST), false);
    let mut damage = (first > FIRST).then(|| format!("records before {first} are gone"));
    read(&log, first, |seq, line| {
        match line.and_then(|line| Record::decode(line).map_err(invalid)) {
            Ok(record) => {
                is_deleted = record.decision == Decision::Deleted;
                base.take(&record);
            }
            Err(error) => {
                base = Base::Missing;
                damage.get_or_insert(format!("record {seq}: {error}"));
            }
        }
        Ok(())
    })?;
    if base != Base::Whole && !is_deleted {
        group.refuses = damage.or_else(|| Some("the log has no complete beginning".to_owned()));
    }
    Ok(())
}
