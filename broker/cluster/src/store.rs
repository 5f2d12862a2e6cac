//! The place of the logs of a leader: it writes to the shared log, and reads its own copy.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use tidings_log::{
    CheckedFile, DiskSpace, Journal, JournalContents, JournalError, LogBounds, LogError, LogId,
    LogPiece, LogPlan, LogRead, NewestEvents, ReadPosition, Recovered, Retention, ScratchFile,
    Store, SyncedMarks, TopicLog,
};
use tidings_protocol::{GroupName, Seq, TopicName};

use crate::commits::Commits;
use crate::frame::Frame;
use crate::mutants::{self, Mutant};
use crate::replica::Replica;

/// The logs of a leader. Writing calls block until the leader has applied what they write.
#[derive(Debug)]
pub struct ReplicatedStore {
    local: Arc<dyn Store>,
    replica: Arc<Mutex<Replica>>,
    commits: Arc<Commits>,
}

impl ReplicatedStore {
    /// The store of a leader.
    pub fn new(replica: Arc<Mutex<Replica>>, commits: Arc<Commits>) -> Self {
        let local = Arc::clone(replica.lock().store());
        Self { local, replica, commits }
    }

    fn log(&self, id: &LogId, plan: LogPlan, local: Arc<dyn TopicLog>) -> Arc<dyn TopicLog> {
        let (id, commits) = (id.clone(), Arc::clone(&self.commits));
        Arc::new(ReplicatedLog { id, kept_bytes: plan.kept_bytes, local, commits })
    }
}

impl Store for ReplicatedStore {
    fn place(&self) -> String {
        self.local.place()
    }

    fn is_replicated(&self) -> bool {
        true
    }

    fn space(&self) -> io::Result<DiskSpace> {
        self.local.space()
    }

    fn topics(&self) -> io::Result<Vec<TopicName>> {
        self.local.topics()
    }

    fn groups(&self) -> io::Result<Vec<GroupName>> {
        self.local.groups()
    }

    fn is_occupied(&self, group: &GroupName) -> bool {
        self.local.is_occupied(group)
    }

    fn fresh(&self, log: &LogId, plan: LogPlan) -> Arc<dyn TopicLog> {
        let local = self.replica.lock().fresh_log(log, plan);
        self.log(log, plan, local)
    }

    fn open(
        &self,
        log: &LogId,
        plan: LogPlan,
        identified_max: usize,
    ) -> io::Result<(Arc<dyn TopicLog>, Recovered)> {
        let opened = self.replica.lock().open_log(log, plan, identified_max);
        let (local, found) = opened.map_err(io::Error::other)?;
        Ok((self.log(log, plan, local), found))
    }

    fn open_read_only(&self, log: &LogId) -> io::Result<Arc<dyn TopicLog>> {
        self.local.open_read_only(log)
    }

    fn open_journal(
        &self,
        _unix_ms: i64,
        contents: &mut dyn JournalContents,
    ) -> io::Result<(Box<dyn Journal>, Vec<String>)> {
        let replica = self.replica.lock();
        for record in replica.contents().snapshot() {
            contents.apply(&[&record]).map_err(io::Error::other)?;
        }
        Ok((Box::new(ReplicatedJournal { commits: Arc::clone(&self.commits) }), Vec::new()))
    }

    fn scratch_file(&self, group: &GroupName) -> ScratchFile {
        self.local.scratch_file(group)
    }

    fn end_waits(&self) {
        self.commits.release();
    }

    fn close(&self) -> io::Result<()> {
        self.replica.lock().close_store().map_err(io::Error::other)
    }
}

#[derive(Debug)]
struct ReplicatedLog {
    id: LogId,
    kept_bytes: u64,
    local: Arc<dyn TopicLog>,
    commits: Arc<Commits>,
}

impl TopicLog for ReplicatedLog {
    /// Reserves nothing: events are shown only when they are committed.
    fn append(&self, pieces: &[LogPiece], next: Seq, reserve: Seq) -> Result<(), LogError> {
        if pieces.is_empty() {
            return Ok(());
        }
        let end = self.local.bounds().end;
        if mutants::is(Mutant::LocalFirst) {
            self.local.append(pieces, next, reserve)?;
        }
        let (log, kept_bytes, pieces) = (self.id.clone(), self.kept_bytes, pieces.to_vec());
        self.commits.commit(&Frame::Append { log, end, kept_bytes, pieces })
    }

    fn try_append(&self, _piece: &LogPiece) -> bool {
        false
    }

    /// What was appended is in the shared log, and needs no sync here.
    fn sync(&self) -> Result<SyncedMarks, LogError> {
        let end = self.local.bounds().end;
        Ok(SyncedMarks { durable: end, reserved: end })
    }

    fn has_room(&self) -> bool {
        self.local.has_room()
    }

    fn read(
        &self,
        from: Seq,
        at: Option<ReadPosition>,
        since: Option<i64>,
        buffer: &mut [u8],
    ) -> Result<LogRead, LogError> {
        self.local.read(from, at, since, buffer)
    }

    fn newest(&self, count: u64, before: Seq) -> NewestEvents {
        self.local.newest(count, before)
    }

    fn index(&self, base: Seq) -> Result<(), LogError> {
        self.local.index(base)
    }

    fn bounds(&self) -> LogBounds {
        self.local.bounds()
    }

    /// The other brokers follow later.
    fn retain(&self, retention: &Retention) -> Result<usize, LogError> {
        let removed = self.local.retain(retention)?;
        if removed > 0 {
            let below = self.local.bounds().first;
            self.commits.submit(&Frame::Trim { log: self.id.clone(), below })?;
        }
        Ok(removed)
    }

    fn close(&self, next: Seq) -> Result<(), LogError> {
        self.local.close(next)
    }

    fn begin_after_loss(&self) -> Result<(), LogError> {
        Err(LogError::Broken(format!("{} has lost its end", self.id)))
    }

    fn clear(&self) -> Result<(), LogError> {
        self.commits.commit(&Frame::Clear { log: self.id.clone() })
    }

    fn verify(&self) -> Result<Vec<CheckedFile>, LogError> {
        self.local.verify()
    }
}

#[derive(Debug)]
struct ReplicatedJournal {
    commits: Arc<Commits>,
}

impl Journal for ReplicatedJournal {
    fn append(
        &mut self,
        records: &[String],
        _contents: &dyn JournalContents,
        _unix_ms: i64,
    ) -> Result<(), JournalError> {
        if records.is_empty() {
            return Ok(());
        }
        let committed = self.commits.commit(&Frame::Journal { records: records.to_vec() });
        committed.map_err(|_| JournalError::Broken)
    }

    /// The copy is compacted where it is written.
    fn compact_if_due(&mut self, _contents: &dyn JournalContents, _unix_ms: i64) {}

    fn close(&self) {}
}
