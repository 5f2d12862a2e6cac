//! Recovers the groups at a start by replaying their logs.

use std::io;
use std::sync::{Arc, mpsc};

use tidings_log::{LogId, LogPlan, Store, TopicLog, read_lines};
use tidings_protocol::{GroupName, Seq};
use tidings_queue::record::GroupRecord;
use tidings_queue::record::replay::{FIRST_RECORD, GroupSummary, LogReplay, ReplayedGroup};
use tidings_queue::texts::{Paging, TextRequest};
use tidings_queue::{Group, GroupConfig};

use super::page_file::PageFile;
use crate::clock::{Clock, ClockStamp, Moment};

/// Limits of the replay pipeline: records of a batch, bytes of lines that end a batch early, and
/// batches decoded in advance.
const BATCH_RECORDS: usize = 512;
const BATCH_LINES_BYTES: usize = 64 << 10;
const BATCHES_PREFETCHED: usize = 8;

/// Storage of the groups that survive a restart.
#[derive(Debug, Clone)]
pub(crate) struct GroupStorage {
    /// The logs.
    pub(crate) store: Arc<dyn Store>,
    /// See [`Limits::group_log_bytes`](crate::Limits::group_log_bytes).
    pub(crate) log_bytes: u64,
}

/// A group as restored from its log.
#[derive(Debug)]
pub(crate) struct RecoveredGroup {
    pub(crate) group: Group,
    /// Where its texts are, if not in memory.
    pub(crate) pages: Option<PageFile>,
    pub(crate) log: Arc<dyn TopicLog>,
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
    fn plan(&self) -> LogPlan {
        LogPlan { first: FIRST_RECORD, kept_bytes: self.log_bytes }
    }

    /// A new group with a page file, so that it need not keep all texts in memory.
    pub(crate) fn group(&self, name: &GroupName, config: GroupConfig) -> (Group, PageFile) {
        let mut group = Group::new(name.clone(), 0, config, fastrand::u64(..));
        group.set_paging(Paging::default());
        (group, PageFile::new(name.clone(), self.store.scratch_file(name)))
    }

    /// The log of a new group, and the number of its first record.
    pub(crate) fn fresh(&self, name: &GroupName) -> (Arc<dyn TopicLog>, Seq) {
        let log = self.store.fresh(&LogId::Group(name.clone()), self.plan());
        (log, FIRST_RECORD)
    }

    /// Recovers every group that has a log. Blocks. A damaged group is not run: without a part of
    /// its decisions it would contact hosts too early and report jobs as done that are not. Fails
    /// if a later version of the program wrote a log.
    pub(crate) fn recover(&self) -> io::Result<FoundGroups> {
        let mut found = FoundGroups::default();
        for name in self.store.groups()? {
            match self.recover_one(&name) {
                Ok(group) => found.whole.extend(group),
                // This is not damage: a later version of the program can read the log.
                Err((error, _)) if error.kind() == io::ErrorKind::Unsupported => {
                    let (place, log) = (self.store.place(), LogId::Group(name));
                    return Err(io::Error::new(error.kind(), format!("{place}/{log}: {error}")));
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

    /// Recovers one group. Returns `None`, and removes the log, if the group's first record was
    /// never safe (so its creation was never confirmed), or if the last record says that the group
    /// was deleted. A damaged log is not changed: the first reading is read-only.
    fn recover_one(
        &self,
        name: &GroupName,
    ) -> Result<Option<RecoveredGroup>, (io::Error, GroupSummary)> {
        let without_summary = |error| (error, GroupSummary::default());
        let id = LogId::Group(name.clone());
        let log = self.store.open_read_only(&id).map_err(without_summary)?;
        let (reading, pages) = replay_paged(&*log, self.group(name, GroupConfig::default()));
        drop(log);
        let is_gone = reading.is_deleted() || reading.is_empty();
        if !is_gone && !reading.is_whole() {
            return Err(reading.damage());
        }
        let (log, found) = self.store.open(&id, self.plan(), 0).map_err(without_summary)?;
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
}

/// Replays a log into an empty group. If its page file cannot be read, all texts stay in memory
/// until the next start.
fn replay_paged(
    log: &dyn TopicLog,
    (group, mut pages): (Group, PageFile),
) -> (LogReplay, Option<PageFile>) {
    let name = group.name().clone();
    let reading = replay_log(log, group, Some(&mut pages));
    let Some(problem) = reading.problem() else { return (reading, Some(pages)) };
    tracing::warn!(
        group = %name, %problem,
        "cannot read back texts of waiting entries; until the next start they stay in memory"
    );
    let group = Group::new(name, 0, GroupConfig::default(), fastrand::u64(..));
    (replay_log(log, group, None), None)
}

/// Replays a log into an empty group. Without `pages`, all texts stay in memory.
pub(super) fn replay_log(
    log: &dyn TopicLog,
    group: Group,
    mut pages: Option<&mut PageFile>,
) -> LogReplay {
    let mut reading = LogReplay::new(group, log.bounds().first);
    replay_records(log, |seq, read| {
        if let (Some(pages), Ok(record)) = (&mut pages, &*read) {
            exchange_texts(&mut reading, pages);
            if let Some(TextRequest::Read { number, texts }) = reading.prepare(record) {
                reading.texts_replied(pages.read(number, &texts));
            }
        }
        reading.apply(seq, read);
    });
    reading
}

/// Executes what a replay requests of its page file, and passes on what was written meanwhile.
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
fn replay_records(log: &dyn TopicLog, mut take: impl FnMut(Seq, &mut io::Result<GroupRecord>)) {
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
    use std::path::{Path, PathBuf};

    use tidings_log::{Disk, DiskFaults, FileSystem, LogPiece, SegmentStore, SimulatedDisk};
    use tidings_protocol::status::Rate;
    use tidings_protocol::{Answers, MemberId};
    use tidings_queue::record::Decision;
    use tidings_queue::{ClientLabel, ConnId, Input, Output, Requester};

    use super::*;

    fn storage(dir: &Path) -> GroupStorage {
        let store = Arc::new(SegmentStore::new(Arc::new(FileSystem), dir));
        GroupStorage { store, log_bytes: 8_000 }
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
        let files = std::fs::read_dir(dir.join("groups/g")).unwrap();
        let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
        files.sort();
        files
    }

    #[test]
    fn log_that_was_removed_in_part_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let storage = storage(dir.path());
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
        let storage = storage(dir.path());
        write(&storage, &[Decision::Purged]);
        std::fs::remove_file(&segments(dir.path())[1]).unwrap();
        let before = segments(dir.path());
        assert!(damage(&storage).starts_with("records "));
        std::fs::remove_file(&segments(dir.path())[0]).unwrap();
        assert!(damage(&storage).ends_with("are gone"));
        assert_eq!(segments(dir.path()), before[1..]);
    }

    /// The decisions of a group that consumes events one by one and releases some of them.
    fn some_releases(waiting: u64, released: u32) -> Vec<Decision> {
        let config = GroupConfig::default().with_settings([("key", "none")]).unwrap();
        let mut group = Group::new("g".parse().unwrap(), 1, config, 1);
        let moment = Moment(1);
        let stamp = ClockStamp { moment, boot_id: 0, uptime_ms: 1, unix_ms: 1 };
        let mut inputs = vec![Input::Start {
            run: 1,
            since: 1,
            elapsed_unknown: true,
            stamp,
            local_member: None,
        }];
        for seq in 1..=waiting + u64::from(released) {
            let (topic, next) = ("t".parse().unwrap(), Seq(seq + 1));
            let events = vec![(Seq(seq), format!("event {seq} {}", "x".repeat(100)))];
            inputs.push(Input::Events { topic, next, events, foreign_jobs: [].into() });
        }
        let (conn, member) = (ConnId(1), MemberId(1));
        let requester = Requester { conn, member, slot: Answers::new().reserve() };
        let label = ClientLabel::default();
        inputs.push(Input::Join { requester, credit: released, render: None, label });
        group.handle_all(inputs, moment);
        let outputs = std::iter::from_fn(|| group.poll());
        let decisions = outputs.filter_map(|output| match output {
            Output::Record(record) => Some(record.decision),
            _ => None,
        });
        decisions.collect()
    }

    #[test]
    fn unreadable_page_file_is_not_a_damaged_log() {
        const WAITING: u64 = 100;
        const RELEASED: u32 = 50;
        let dir = tempfile::tempdir().unwrap();
        let storage = storage(dir.path());
        write(&storage, &some_releases(WAITING, RELEASED));
        let name: GroupName = "g".parse().unwrap();
        let log = storage.store.open_read_only(&LogId::Group(name.clone())).unwrap();
        let disk = SimulatedDisk::new(1);
        disk.create_dir(Path::new("data/groups")).unwrap();
        let pages = SegmentStore::new(Arc::new(disk.clone()), Path::new("data"));
        let pages = pages.scratch_file(&name);
        let mut group = Group::new(name.clone(), 0, GroupConfig::default(), 1);
        let (chunk_bytes, chunks_in_memory, dead_bytes_min) = (256, 1, 1024);
        group.set_paging(Paging { chunk_bytes, chunks_in_memory, dead_bytes_min });
        disk.set_faults(DiskFaults { fail_read_after: Some(0), ..DiskFaults::default() });
        let (reading, pages) = replay_paged(&*log, (group, PageFile::new(name, pages)));
        assert!(pages.is_none(), "a text was read back");
        let group = reading.finish().map_err(|damage| damage.0).unwrap().group;
        assert!(group.problem().is_none());
        let status = group.view().progress(None, Rate { tenths: 0 }).unwrap().to_string();
        assert!(status.contains(&format!(" waiting={WAITING} processing={RELEASED} ")), "{status}");
    }

    /// Returns the damage of the only group.
    #[track_caller]
    fn damage(storage: &GroupStorage) -> String {
        let found = storage.recover().unwrap();
        assert!(found.whole.is_empty(), "{found:?}");
        let [damaged] = &found.damaged[..] else { panic!("{found:?}") };
        damaged.reason.clone()
    }
}
