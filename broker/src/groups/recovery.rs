//! Recovers the groups at a start by replaying their logs.
//!
//! ```text
//!   <data>/groups/<group>/   the segments of its log
//! ```

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};

use tidings_log::{Disk, ReadOnlyDisk, SegmentLog, SegmentOptions, TopicLog, read_lines};
use tidings_protocol::{GroupName, Seq, TopicName};
use tidings_queue::record::GroupRecord;
use tidings_queue::replay::{FIRST_RECORD, GroupSummary, LogReplay, ReplayedGroup};
use tidings_queue::texts::{Paging, TextRequest};
use tidings_queue::{Group, GroupConfig};

use super::foreign_files::{DirectoryOwner, directory_owner};
use super::page_file::PageFile;
use super::repair;
use crate::clean_stop::{self, CleanStop};
use crate::clock::{Clock, ClockStamp, Moment};
use crate::limits::Limits;

/// Segments per log: a segment has this fraction of the bytes after which the log is cut.
const SEGMENTS_PER_LOG: u64 = 8;

/// Limits of the replay pipeline: records of a batch, bytes of lines that end a batch early, and
/// batches decoded in advance.
const BATCH_RECORDS: usize = 512;
const BATCH_LINES_BYTES: usize = 64 << 10;
const BATCHES_PREFETCHED: usize = 8;

/// Storage of the groups on disk.
#[derive(Debug, Clone)]
pub(crate) struct GroupStorage {
    /// The file system.
    pub(crate) disk: Arc<dyn Disk>,
    /// Parent directory of the groups' directories.
    pub(crate) dir: PathBuf,
    /// See [`Limits::group_log_bytes`](crate::Limits::group_log_bytes).
    pub(crate) log_bytes: u64,
    /// Names of directories that hold something else; no group can have such a name.
    pub(crate) foreign_names: BTreeSet<GroupName>,
    /// Ends of the logs at the last orderly stop.
    pub(crate) stopped: Arc<CleanStop>,
}

/// A group as restored from its log.
#[derive(Debug)]
pub(crate) struct RecoveredGroup {
    pub(crate) group: Group,
    /// Where its texts are, if not in memory.
    pub(crate) pages: PageFile,
    pub(crate) log: SegmentLog,
    /// Number of the next record.
    pub(crate) next: Seq,
    /// Time of the last start.
    pub(crate) started: ClockStamp,
    /// Time of the newest record.
    pub(crate) last: Moment,
}

/// All groups that a start finds.
#[derive(Debug, Default)]
pub(crate) struct FoundGroups {
    /// Groups with readable logs, ordered by name.
    pub(crate) whole: Vec<RecoveredGroup>,
    /// Groups with damaged logs. Their files are unchanged.
    pub(crate) damaged: Vec<UnreadableGroup>,
}

/// A group with a damaged log.
#[derive(Debug)]
pub(crate) struct UnreadableGroup {
    pub(crate) name: GroupName,
    /// What cannot be read, as text.
    pub(crate) reason: String,
    /// The group before the damage.
    pub(crate) last_good: GroupSummary,
}

impl GroupStorage {
    /// Storage in `dir` with the default limits of a broker.
    pub(super) fn at(disk: Arc<dyn Disk>, dir: &Path, stopped: Arc<CleanStop>) -> Self {
        let log_bytes = Limits::default().group_log_bytes;
        Self { disk, dir: dir.to_owned(), log_bytes, foreign_names: BTreeSet::new(), stopped }
    }

    fn options(&self, name: &GroupName, first: Seq) -> SegmentOptions {
        self.options_on(Arc::clone(&self.disk), name, first)
    }

    pub(super) fn options_on(
        &self,
        disk: Arc<dyn Disk>,
        name: &GroupName,
        first: Seq,
    ) -> SegmentOptions {
        let topic = TopicName::new(name.as_str()).expect("groups and topics are named alike");
        SegmentOptions {
            disk,
            dir: self.dir.join(name.as_str()),
            topic,
            first,
            segment_bytes: self.log_bytes / SEGMENTS_PER_LOG,
            reserve_part: 4,
            stopped: self.stopped.end_of(&clean_stop::group_log(name)).cloned(),
        }
    }

    /// A new group with a page file, so that it need not keep all texts in memory.
    pub(crate) fn group(&self, name: &GroupName, config: GroupConfig) -> (Group, PageFile) {
        let mut group = Group::new(name.clone(), 0, config, fastrand::u64(..));
        group.set_paging(Paging::default());
        (group, PageFile::new(Arc::clone(&self.disk), &self.dir, name.as_str()))
    }

    /// Whether the directory with the group's name holds something else.
    pub(crate) fn is_foreign(&self, name: &GroupName) -> bool {
        self.foreign_names.contains(name)
    }

    /// The log of a new group.
    pub(crate) fn fresh(&self, name: &GroupName) -> (SegmentLog, Seq) {
        (self.fresh_at(name, FIRST_RECORD), FIRST_RECORD)
    }

    /// A new log that begins with the record `first`; earlier ones count as removed.
    pub(crate) fn fresh_at(&self, name: &GroupName, first: Seq) -> SegmentLog {
        SegmentLog::fresh(self.options(name, first))
    }

    /// Recovers every group that has a log. Blocks. A damaged group is not run: without a part of
    /// its decisions it would contact hosts too early and report jobs as done that are not. Fails
    /// if a later version of the program wrote a log.
    ///
    /// Other files are left alone; a group cannot have the name of such a file.
    pub(crate) fn recover(&mut self) -> io::Result<FoundGroups> {
        let mut names = match self.disk.list(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            names => names?,
        };
        self.complete_repairs(&mut names)?;
        let mut found = FoundGroups::default();
        for name in names {
            if PageFile::is_stale_file(&name) {
                continue;
            }
            if repair::is_copy(&name) || repair::repaired_group(&name).is_some() {
                tracing::warn!(
                    name,
                    "an interrupted repair has left this directory; it is ignored"
                );
                continue;
            }
            let Ok(name) = GroupName::new(&name) else {
                tracing::warn!(name, "this is not the directory of a group; it is ignored");
                continue;
            };
            let dir = self.dir.join(name.as_str());
            let held = directory_owner(&*self.disk, &dir, &name);
            let group = match held {
                Ok(DirectoryOwner::Own) => self.recover_one(&name),
                Ok(DirectoryOwner::Foreign(what)) => {
                    tracing::warn!("{} {what}: it is ignored", dir.display());
                    self.foreign_names.insert(name);
                    continue;
                }
                Err(error) => Err((error, GroupSummary::default())),
            };
            match group {
                Ok(group) => found.whole.extend(group),
                // This is not damage: a later version of the program can read the log.
                Err((error, _)) if error.kind() == io::ErrorKind::Unsupported => {
                    let text = format!("{}: {error}", dir.display());
                    return Err(io::Error::new(error.kind(), text));
                }
                Err((error, before)) => {
                    let reason = error.to_string();
                    found.damaged.push(UnreadableGroup { name, reason, last_good: before });
                }
            }
        }
        found.whole.sort_unstable_by(|a, b| a.group.name().cmp(b.group.name()));
        Ok(found)
    }

    /// Does the last step of each repair that was interrupted after the damaged log was moved away.
    fn complete_repairs(&self, names: &mut [String]) -> io::Result<()> {
        for at in 0..names.len() {
            let Some(group) = repair::repaired_group(&names[at]) else { continue };
            if names.iter().any(|name| name == group.as_str()) {
                continue;
            }
            let (from, to) = (self.dir.join(&names[at]), self.dir.join(group.as_str()));
            self.disk.rename(&from, &to)?;
            self.disk.sync_dir(&self.dir)?;
            tracing::warn!(%group, "its repair was cut short, and is complete now; the damaged log is in set-aside/");
            names[at] = group.to_string();
        }
        Ok(())
    }

    /// Recovers one group. Returns `None`, and removes the log, if the group's first record was
    /// never safe (so its creation was never confirmed), or if the last record says that the group
    /// was deleted. A damaged log is not changed: the first reading is read-only.
    fn recover_one(
        &self,
        name: &GroupName,
    ) -> Result<Option<RecoveredGroup>, (io::Error, GroupSummary)> {
        let without_summary = |error| (error, GroupSummary::default());
        let (group, mut pages) = self.group(name, GroupConfig::default());
        let reading = self.replay_log(name, group, Some(&mut pages)).map_err(without_summary)?;
        let is_gone = reading.is_deleted() || reading.is_empty();
        if !is_gone && !reading.is_whole() {
            return Err(reading.damage());
        }
        let (log, found) =
            SegmentLog::open(self.options(name, FIRST_RECORD), 0).map_err(without_summary)?;
        for finding in &found.findings {
            tracing::warn!(group = %name, "{finding}");
        }
        if is_gone {
            log.clear().map_err(|error| without_summary(io::Error::other(error)))?;
            return Ok(None);
        }
        if found.has_lost_end {
            log.begin_after_loss().map_err(|error| without_summary(io::Error::other(error)))?;
        }
        if let Some(trouble) = reading.first_error() {
            tracing::warn!(group = %name, "{trouble}; a later snapshot of the group replaces these records");
        }
        let ReplayedGroup { group, started, last } = reading.finish()?;
        Ok(Some(RecoveredGroup { group, pages, log, next: found.next, started, last }))
    }

    /// Replays the log of a group without changing it. Without `pages`, all texts stay in memory.
    pub(super) fn replay_log(
        &self,
        name: &GroupName,
        group: Group,
        mut pages: Option<&mut PageFile>,
    ) -> io::Result<LogReplay> {
        let disk = Arc::new(ReadOnlyDisk::new(Arc::clone(&self.disk)));
        let (log, _) = SegmentLog::open(self.options_on(disk, name, FIRST_RECORD), 0)?;
        let mut reading = LogReplay::new(group, log.bounds().first);
        replay_records(&log, |seq, read| {
            if let (Some(pages), Ok(record)) = (&mut pages, &*read) {
                reading.prepare(record);
                exchange_texts(&mut reading, pages);
            }
            reading.apply(seq, read);
        });
        Ok(reading)
    }
}

/// Executes what a replay requests of its page file.
fn exchange_texts(replay: &mut LogReplay, pages: &mut PageFile) {
    loop {
        let done = match replay.poll_texts() {
            Some(TextRequest::Read { number, texts }) => Some(pages.read(number, &texts)),
            Some(write @ TextRequest::Write { .. }) => {
                pages.begin(write);
                continue;
            }
            // The replay is faster than the disk.
            None if replay.is_behind() => pages.wait_for_reply(),
            None => pages.poll_reply(),
        };
        let Some(done) = done else { return };
        replay.texts_replied(done);
    }
}

/// Passes every record of a log to `apply`. Another thread reads, decodes and finally frees the
/// records, because memory is cheapest to free on the thread that allocated it.
fn replay_records(log: &SegmentLog, mut take: impl FnMut(Seq, &mut io::Result<GroupRecord>)) {
    type Batch = Vec<(Seq, io::Result<GroupRecord>)>;
    let (sender, records) = mpsc::sync_channel::<Batch>(BATCHES_PREFETCHED);
    let (recycled_sender, recycled) = mpsc::channel::<Batch>();
    // The closure owns both channel ends, so that neither thread waits for the other after a panic.
    std::thread::scope(move |scope| {
        scope.spawn(move || {
            let mut batch = Vec::with_capacity(BATCH_RECORDS);
            let mut bytes = 0;
            // The receiver outlives this thread, so sending cannot fail.
            let mut put = |seq, record, line_bytes: usize| {
                batch.push((seq, record));
                bytes += line_bytes;
                if batch.len() == BATCH_RECORDS || bytes > BATCH_LINES_BYTES {
                    bytes = 0;
                    let mut next = recycled.try_recv().unwrap_or_default();
                    next.clear();
                    let _ = sender.send(std::mem::replace(&mut batch, next));
                }
            };
            let first = log.bounds().first;
            let mut next = first;
            let read = read_lines(log, first, |seq, line| {
                let bytes = line.as_ref().map_or(0, |line| line.len());
                next = Seq(seq.0 + 1);
                put(seq, line.and_then(|line| GroupRecord::decode(line).map_err(invalid)), bytes);
                Ok(())
            });
            if let Err(error) = read {
                put(next, Err(error), 0);
            }
            let _ = sender.send(batch);
        });
        for mut batch in records {
            for (seq, record) in &mut batch {
                take(*seq, record);
            }
            // If that thread has ended, the batch is freed here.
            let _ = recycled_sender.send(batch);
        }
    });
}

pub(super) fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// A clock that continues after the latest time in the groups' logs.
pub(crate) fn clock_continuing(groups: &FoundGroups) -> Clock {
    let mut clock = Clock::new();
    for group in &groups.whole {
        clock.resume_from(group.started, group.last);
    }
    clock
}

#[cfg(test)]
mod tests {
    use tidings_log::{FileSystem, LogPiece};
    use tidings_queue::record::Decision;

    use super::*;

    fn storage(dir: &Path) -> GroupStorage {
        let taken = BTreeSet::new();
        let (disk, stopped) = (Arc::new(FileSystem), Arc::default());
        GroupStorage { disk, dir: dir.to_owned(), log_bytes: 8_000, foreign_names: taken, stopped }
    }

    /// Writes a log of several segments that ends with these decisions.
    fn write(storage: &GroupStorage, decisions: &[Decision]) {
        let (log, mut next) = storage.fresh(&"g".parse().unwrap());
        let filler = Decision::Configured(Box::default());
        let filler = std::iter::repeat_n(&filler, 20);
        for decision in filler.chain(decisions) {
            let (at, decision) = (Moment(1), decision.clone());
            let mut line = String::new();
            GroupRecord { at, decision }.encode(&mut line);
            let (first, wire) = (next, line.into());
            next = Seq(next.0 + 1);
            let piece = LogPiece { first, count: 1, unix_ms: 0, wire, identified: false };
            log.append(&[piece], next, next).unwrap();
        }
        log.sync().unwrap();
    }

    fn segments(dir: &Path) -> Vec<PathBuf> {
        let files = std::fs::read_dir(dir.join("g")).unwrap();
        let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
        files.sort();
        files
    }

    #[test]
    fn log_that_was_removed_in_part_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let mut storage = storage(dir.path());
        write(&storage, &[Decision::Deleted]);
        assert!(segments(dir.path()).len() > 2);
        std::fs::remove_file(&segments(dir.path())[0]).unwrap();
        let found = storage.recover().unwrap();
        assert!(found.whole.is_empty() && found.damaged.is_empty(), "{found:?}");
        assert_eq!(segments(dir.path()), Vec::<PathBuf>::new());
    }

    #[test]
    fn log_with_a_missing_segment_is_damaged() {
        let dir = tempfile::tempdir().unwrap();
        let mut storage = storage(dir.path());
        write(&storage, &[Decision::Purged]);
        std::fs::remove_file(&segments(dir.path())[1]).unwrap();
        let before = segments(dir.path());
        assert!(damage(&mut storage).starts_with("records "));
        std::fs::remove_file(&segments(dir.path())[0]).unwrap();
        assert!(damage(&mut storage).ends_with("are gone"));
        assert_eq!(segments(dir.path()), before[1..]);
    }

    /// Returns the damage of the only group.
    #[track_caller]
    fn damage(storage: &mut GroupStorage) -> String {
        let found = storage.recover().unwrap();
        assert!(found.whole.is_empty(), "{found:?}");
        let [damaged] = &found.damaged[..] else { panic!("{found:?}") };
        damaged.reason.clone()
    }
}
