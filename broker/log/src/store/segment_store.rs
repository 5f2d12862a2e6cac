//! Logs as segment files in a data directory.
//!
//! ```text
//!   <data>/topics/<topic>/  the segments of a topic's log
//!   <data>/groups/<group>/  the segments of a group's log
//!   <data>/groups/~<group>  a scratch file, which loses its name at once
//!   <data>/catalog.log      the journal
//!   <data>/clean-stop       where the logs ended at the last orderly stop
//! ```
//!
//! A topic or group name consists of letters, digits and three harmless signs and begins with a
//! letter or digit, so it is also a valid directory name.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use parking_lot::Mutex;
use tidings_protocol::{GroupName, Seq, TopicName};

use super::foreign_files::{DirectoryOwner, directory_owner};
use super::replacement::{is_copy, replaced_group};
use super::{LogId, LogPlan, ScratchFile, Store};
use crate::clean_stop::{CATALOG, CleanStop, StopRecord};
use crate::disk::{Disk, DiskSpace, ReadOnlyDisk};
use crate::journal::{Journal, JournalContents, JournalFile, check_journal};
use crate::segments::{Recovered, SegmentLog, SegmentOptions};
use crate::topic_log::{CheckedFile, TopicLog};

/// Bytes of a segment. Logs that keep little have smaller segments, so that trimming removes only a
/// part.
const SEGMENT_BYTES: u64 = 64 << 20;
const SEGMENTS_MIN: u64 = 8;

/// Prefix of a scratch file's temporary name. No group name begins with it.
const SCRATCH_PREFIX: &str = "~";

/// Logs in a data directory.
#[derive(Debug)]
pub struct SegmentStore {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) dir: PathBuf,
    stopped: Arc<CleanStop>,
    /// Its logs reserve seqs.
    reserves: bool,
    /// Groups that cannot have a log, because their directory holds something else.
    occupied: Mutex<BTreeSet<GroupName>>,
}

/// The names of the logs in a data directory, sorted.
#[derive(Debug, Default)]
pub struct StoredNames {
    /// The topics.
    pub topics: Vec<TopicName>,
    /// The groups.
    pub groups: Vec<GroupName>,
    /// Groups with an interrupted repair: the old log was set aside, and the new one is complete
    /// but not in its place yet.
    pub interrupted_repairs: Vec<GroupName>,
}

/// A log that was checked without changing it.
#[derive(Debug)]
pub struct CheckedLog {
    /// Its files, oldest first.
    pub files: Vec<CheckedFile>,
    /// What the next start will log about it. The torn end that a crash leaves is not damage.
    pub findings: Vec<String>,
    /// A file is completely unreadable: the next start will set it aside.
    pub has_unreadable_file: bool,
    /// At the last orderly stop the log was longer.
    pub has_lost_end: bool,
    /// The log, or why the next start will not open it.
    pub log: io::Result<Arc<dyn TopicLog>>,
}

impl SegmentStore {
    /// The logs in a directory, which need not exist. Only reads where they ended at the last
    /// orderly stop. Blocks.
    pub fn new(disk: Arc<dyn Disk>, dir: &Path) -> Self {
        let stopped = Arc::new(CleanStop::read(Arc::clone(&disk), dir));
        Self { disk, dir: dir.to_owned(), stopped, reserves: true, occupied: Mutex::default() }
    }

    /// Logs that are copies of other logs. Their seqs are assigned elsewhere, so they reserve none, and
    /// after a crash they go on where they end.
    pub fn of_copies(disk: Arc<dyn Disk>, dir: &Path) -> Self {
        Self { reserves: false, ..Self::new(disk, dir) }
    }

    /// Whether the ends of the logs at the last orderly stop are known.
    pub fn stop_record(&self) -> &StopRecord {
        self.stopped.state()
    }

    /// The names of all logs. Changes nothing.
    pub fn names(&self) -> io::Result<StoredNames> {
        let (mut topics, _) = self.names_in("topics")?;
        topics.sort();
        let (groups, others) = self.names_in::<GroupName>("groups")?;
        let repairs = others.iter().filter_map(|name| replaced_group(name));
        let interrupted_repairs = repairs.filter(|group| !groups.contains(group)).collect();
        let is_own = |group: &GroupName| {
            // An error is found again when the log is opened.
            !matches!(self.owner(group), Ok(DirectoryOwner::Foreign(_)))
        };
        let mut groups: Vec<_> = groups.into_iter().filter(is_own).collect();
        groups.sort();
        Ok(StoredNames { topics, groups, interrupted_repairs })
    }

    /// Checks every checksum of a log. Changes nothing.
    pub fn check(&self, log: &LogId) -> CheckedLog {
        let disk = Arc::new(ReadOnlyDisk::new(Arc::clone(&self.disk)));
        let mut checked = CheckedLog {
            files: Vec::new(),
            findings: Vec::new(),
            has_unreadable_file: false,
            has_lost_end: false,
            log: Err(io::ErrorKind::NotFound.into()),
        };
        checked.log = self.open_on(disk.clone(), log).and_then(|(log, found)| {
            checked.findings = found.findings;
            checked.has_lost_end = found.has_lost_end;
            checked.files = log.verify().map_err(io::Error::other)?;
            Ok(log)
        });
        checked.has_unreadable_file = disk.sets_aside();
        checked
    }

    /// Checks the journal. Returns descriptions of damage, and whether kept data cannot be read.
    /// Changes nothing.
    pub fn check_journal(
        &self,
        contents: &mut dyn JournalContents,
    ) -> io::Result<(Vec<String>, bool)> {
        check_journal(&*self.disk, &self.dir, self.stopped.end_of(CATALOG), contents)
    }

    /// The names in a folder of the data directory that parse as `T`, and the others.
    fn names_in<T: FromStr>(&self, folder: &str) -> io::Result<(Vec<T>, Vec<String>)> {
        let names = match self.disk.list(&self.dir.join(folder)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            names => names?,
        };
        let (mut parsed, mut others) = (Vec::new(), Vec::new());
        for name in names {
            match name.parse() {
                Ok(name) => parsed.push(name),
                Err(_) => others.push(name),
            }
        }
        Ok((parsed, others))
    }

    fn owner(&self, group: &GroupName) -> io::Result<DirectoryOwner> {
        directory_owner(&*self.disk, &self.dir_of(&LogId::Group(group.clone())), group)
    }

    pub(super) fn dir_of(&self, log: &LogId) -> PathBuf {
        match log {
            LogId::Topic(name) => self.dir.join("topics").join(name.as_str()),
            LogId::Group(name) => self.dir.join("groups").join(name.as_str()),
        }
    }

    pub(super) fn options(
        &self,
        disk: Arc<dyn Disk>,
        log: &LogId,
        plan: LogPlan,
    ) -> SegmentOptions {
        let (topic, reserve_part) = match log {
            LogId::Topic(name) => (name.clone(), 1),
            LogId::Group(name) => {
                let name = TopicName::new(name.as_str());
                // Groups may use space that topics must leave free: answers to tasks are small, and
                // each lets a worker go on.
                (name.expect("groups and topics are named alike"), 4)
            }
        };
        SegmentOptions {
            disk,
            dir: self.dir_of(log),
            topic,
            first: plan.first,
            segment_bytes: SEGMENT_BYTES.min(plan.kept_bytes / SEGMENTS_MIN),
            reserve_part,
            reserves: self.reserves,
            stopped: self.stopped.slot(&log.to_string()),
        }
    }

    /// Opens a log on a disk that drops writes.
    fn open_on(
        &self,
        disk: Arc<ReadOnlyDisk>,
        log: &LogId,
    ) -> io::Result<(Arc<dyn TopicLog>, Recovered)> {
        if let LogId::Group(group) = log {
            self.owner(group)?;
        }
        let plan = LogPlan { first: Seq(1), kept_bytes: u64::MAX };
        let (log, found) = SegmentLog::open(self.options(disk, log, plan), 0)?;
        Ok((Arc::new(log), found))
    }
}

impl Store for SegmentStore {
    fn place(&self) -> String {
        self.dir.display().to_string()
    }

    fn space(&self) -> io::Result<DiskSpace> {
        self.disk.space(&self.dir)
    }

    fn topics(&self) -> io::Result<Vec<TopicName>> {
        let ignored = |name: &str| {
            tracing::warn!(name, "this is not the directory of a topic; it is ignored");
        };
        let (mut topics, others) = self.names_in::<TopicName>("topics")?;
        for name in &others {
            ignored(name);
        }
        topics.retain(|name| {
            let files = self.disk.list(&self.dir_of(&LogId::Topic(name.clone())));
            let is_file = files.is_err_and(|error| error.kind() == io::ErrorKind::NotADirectory);
            if is_file {
                ignored(name.as_str());
            }
            !is_file
        });
        Ok(topics)
    }

    fn groups(&self) -> io::Result<Vec<GroupName>> {
        let (mut groups, others) = self.names_in::<GroupName>("groups")?;
        for name in others {
            if let Some(group) = replaced_group(&name).filter(|group| !groups.contains(group)) {
                self.finish_replacement(&group)?;
                tracing::warn!(%group, "its repair was cut short, and is complete now; the damaged log is in set-aside/");
                groups.push(group);
            } else if is_copy(&name) || replaced_group(&name).is_some() {
                tracing::warn!(
                    name,
                    "an interrupted repair has left this directory; it is ignored"
                );
            } else if !is_scratch_file(&name) {
                tracing::warn!(name, "this is not the directory of a group; it is ignored");
            }
        }
        let mut occupied = self.occupied.lock();
        groups.retain(|group| match self.owner(group) {
            Ok(DirectoryOwner::Foreign(what)) => {
                let dir = self.dir_of(&LogId::Group(group.clone()));
                tracing::warn!("{} {what}: it is ignored", dir.display());
                occupied.insert(group.clone());
                false
            }
            // An error is found again when the log is opened.
            Ok(DirectoryOwner::Own) | Err(_) => true,
        });
        Ok(groups)
    }

    fn is_occupied(&self, group: &GroupName) -> bool {
        self.occupied.lock().contains(group)
    }

    fn fresh(&self, log: &LogId, plan: LogPlan) -> Arc<dyn TopicLog> {
        Arc::new(SegmentLog::fresh(self.options(Arc::clone(&self.disk), log, plan)))
    }

    fn open(
        &self,
        log: &LogId,
        plan: LogPlan,
        identified_max: usize,
    ) -> io::Result<(Arc<dyn TopicLog>, Recovered)> {
        let options = self.options(Arc::clone(&self.disk), log, plan);
        let (log, found) = SegmentLog::open(options, identified_max)?;
        Ok((Arc::new(log), found))
    }

    fn open_read_only(&self, log: &LogId) -> io::Result<Arc<dyn TopicLog>> {
        let disk = Arc::new(ReadOnlyDisk::new(Arc::clone(&self.disk)));
        Ok(self.open_on(disk, log)?.0)
    }

    fn open_journal(
        &self,
        unix_ms: i64,
        contents: &mut dyn JournalContents,
    ) -> io::Result<(Box<dyn Journal>, Vec<String>)> {
        let (disk, slot) = (Arc::clone(&self.disk), self.stopped.slot(CATALOG));
        let (journal, findings) = JournalFile::open(disk, &self.dir, unix_ms, slot, contents)?;
        Ok((Box::new(journal), findings))
    }

    fn scratch_file(&self, group: &GroupName) -> ScratchFile {
        let path = self.dir.join("groups").join(format!("{SCRATCH_PREFIX}{group}"));
        ScratchFile::new(Arc::clone(&self.disk), path)
    }

    fn close(&self) -> io::Result<()> {
        self.stopped.write()
    }
}

/// Whether a process that was killed may have left a scratch file of that name. Such a file is
/// empty.
fn is_scratch_file(name: &str) -> bool {
    name.strip_prefix(SCRATCH_PREFIX).is_some_and(|group| GroupName::new(group).is_ok())
}
