//! A broker's own copy: applies what counts in the shared log to its data directory.
//!
//! ```text
//!   slots ──▶ validity ──▶ commit, whole ──▶ its frames ──▶ logs, journal, files
//!                                                             │ synced, now and then
//!                                                             └──▶ checkpoint
//! ```
//!
//! A restart applies some frames again, because the logs hold more than the checkpoint says. That
//! changes nothing:
//!
//! - events below the end of their log are left out;
//! - records of the journal say what is, not what changes;
//! - a cleared log begins with a checkpoint, so that no frame from before it reaches the new log.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tidings_log::{
    Disk, Journal, JournalContents, JournalError, LogError, LogId, LogPiece, LogPlan, Recovered,
    Retention, SegmentStore, Store, TopicLog, replace_file,
};
use tidings_protocol::Seq;

use crate::checkpoint::{Applied, Checkpoint, CheckpointError, CheckpointFile};
use crate::frame::{Frame, FrameError};
use crate::message::{CommunityId, Kind, Slot};
use crate::mutants::{self, Mutant};
use crate::validity::{LogFault, Position, Verdict};

/// A copy. Every call but [`position`](Self::position) blocks. After an error it must be opened again.
#[derive(Debug)]
pub struct Replica {
    community: CommunityId,
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    store: Arc<dyn Store>,
    /// The logs that are open.
    logs: BTreeMap<LogId, Arc<dyn TopicLog>>,
    journal: Box<dyn Journal>,
    contents: Box<dyn JournalContents>,
    file: Arc<CheckpointFile>,
    /// What has changed since the last checkpoint.
    changed: BTreeSet<LogId>,
    /// Behind the last message that was read.
    read: Position,
    /// The payloads of a commit that goes on.
    unfinished: BytesMut,
    applied: Applied,
    /// How many of the next frames were applied before the restart.
    skipped: u64,
}

/// Why a copy cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    /// The shared log cannot be read on.
    #[error(transparent)]
    Fault(#[from] LogFault),
    /// A commit cannot be read, although its messages can: another version of the broker wrote it.
    #[error("the commit that ends in slot {slot} of the shared log: {source}", slot = .slot.0)]
    Frame {
        /// Where the commit ends.
        slot: Slot,
        /// What is wrong.
        source: FrameError,
    },
    /// This broker holds commits that the shared log does not.
    #[error("this broker holds commits from behind slot {slot} of the shared log, which ends there: the log was restored to an older state", slot = .0.0)]
    Shorter(Slot),
    /// A log of this broker has another end than that of the leader.
    #[error("{log} ends at {found} here, and at {expected} in the shared log; take a copy of another broker", found = .found.0, expected = .expected.0)]
    OtherEnd {
        /// The log.
        log: LogId,
        /// Where it ends here.
        found: Seq,
        /// Where it ends at the leader.
        expected: Seq,
    },
    /// At the last orderly stop a log of this broker was longer.
    #[error("{0} has lost its end; take a copy of another broker")]
    LostEnd(LogId),
    /// A log of this broker cannot be written.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The journal cannot be written.
    #[error("the catalog: {0}")]
    Journal(#[from] JournalError),
    /// A record of the journal cannot be read: another version of the broker wrote it.
    #[error("the catalog in the shared log: {0}")]
    Record(#[from] tidings_log::InvalidRecord),
    /// A file cannot be read or written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The end of a log could not be recorded.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}

impl Replica {
    /// Opens the copy in a data directory, with empty `contents` for its journal. To apply its newest
    /// records again must change nothing. `unix_ms` is the wall clock. Returns the copy with descriptions
    /// of damage to the journal.
    pub fn open(
        disk: Arc<dyn Disk>,
        dir: PathBuf,
        community: CommunityId,
        mut contents: Box<dyn JournalContents>,
        unix_ms: i64,
    ) -> io::Result<(Self, Vec<String>)> {
        let (file, applied) = CheckpointFile::open(Arc::clone(&disk), dir.clone(), community)?;
        let store: Arc<dyn Store> = Arc::new(SegmentStore::of_copies(Arc::clone(&disk), &dir));
        let (journal, findings) = store.open_journal(unix_ms, &mut *contents)?;
        let replica = Self {
            community,
            disk,
            dir,
            store,
            logs: BTreeMap::new(),
            journal,
            contents,
            file: Arc::new(file),
            changed: BTreeSet::new(),
            read: applied.position,
            unfinished: BytesMut::new(),
            applied: Applied { frames: 0, ..applied },
            skipped: applied.frames,
        };
        Ok((replica, findings))
    }

    /// Behind the last message that was read.
    pub fn position(&self) -> Position {
        self.read
    }

    /// Reads the message in the next slot, and applies the commits that end with it.
    pub fn read(&mut self, slot: Slot, bytes: &Bytes) -> Result<Verdict, ReplicaError> {
        let verdict = self.read.read(self.community, slot, bytes)?;
        if let Verdict::Valid(message) = &verdict {
            if message.kind == Kind::Frames {
                self.unfinished.extend_from_slice(&message.payload);
                if !message.more {
                    let commits = self.unfinished.split().freeze();
                    self.apply(commits, message.unix_ms)?;
                }
            } else if !mutants::is(Mutant::UnfinishedCommit) {
                self.unfinished.clear();
            }
        }
        if self.unfinished.is_empty() {
            self.applied = Applied { position: self.read, frames: 0 };
        }
        Ok(verdict)
    }

    /// Applies whole commits. A leader calls this with its own, in order, when they are committed, and
    /// then [`settled`](Self::settled).
    pub(crate) fn apply(&mut self, commits: Bytes, unix_ms: i64) -> Result<(), ReplicaError> {
        let slot = self.read.slot;
        let frames =
            Frame::decode_all(commits).map_err(|source| ReplicaError::Frame { slot, source })?;
        for frame in frames {
            if self.skipped > 0 {
                self.skipped -= 1;
                self.applied.frames += 1;
                continue;
            }
            let is_clear = matches!(frame, Frame::Clear { .. });
            self.apply_frame(frame, unix_ms)?;
            self.applied.frames += 1;
            if is_clear && !mutants::is(Mutant::ClearWithoutCheckpoint) {
                self.checkpoint().write()?;
            }
        }
        Ok(())
    }

    /// This broker leads from this position on.
    pub(crate) fn lead(&mut self, opened: Position) -> Result<(), ReplicaError> {
        if self.skipped > 0 {
            return Err(ReplicaError::Shorter(self.read.slot));
        }
        self.settled(opened);
        Ok(())
    }

    /// A leader has applied everything before this position, with which a commit ends.
    pub(crate) fn settled(&mut self, position: Position) {
        self.read = position;
        self.unfinished.clear();
        self.applied = Applied { position, frames: 0 };
    }

    /// Begins a checkpoint of what is applied.
    pub fn checkpoint(&mut self) -> Checkpoint {
        let changed = std::mem::take(&mut self.changed);
        let logs = changed.iter().filter_map(|log| self.logs.get(log).cloned()).collect();
        Checkpoint { file: Arc::clone(&self.file), applied: self.applied, logs }
    }

    /// Closes the logs, so that others may open them.
    pub fn close(mut self) -> Result<(), ReplicaError> {
        for log in self.logs.values() {
            log.close(log.bounds().end)?;
        }
        self.close_store()
    }

    /// Closes the copy after its logs were closed.
    pub(crate) fn close_store(&mut self) -> Result<(), ReplicaError> {
        self.checkpoint().write()?;
        self.journal.close();
        Ok(self.store.close()?)
    }

    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    pub(crate) fn contents(&self) -> &dyn JournalContents {
        &*self.contents
    }

    /// A log that does not exist yet.
    pub(crate) fn fresh_log(&mut self, id: &LogId, plan: LogPlan) -> Arc<dyn TopicLog> {
        let log = self.store.fresh(id, plan);
        self.logs.insert(id.clone(), Arc::clone(&log));
        log
    }

    /// Opens a log, with its newest events that have ids.
    pub(crate) fn open_log(
        &mut self,
        id: &LogId,
        plan: LogPlan,
        identified_max: usize,
    ) -> Result<(Arc<dyn TopicLog>, Recovered), ReplicaError> {
        let (log, found) = self.open_existing(id, plan, identified_max)?;
        self.logs.insert(id.clone(), Arc::clone(&log));
        Ok((log, found))
    }

    fn apply_frame(&mut self, frame: Frame, unix_ms: i64) -> Result<(), ReplicaError> {
        match frame {
            Frame::Append { log, end, kept_bytes, pieces } => {
                self.append(log, LogPlan { first: end, kept_bytes }, &pieces)
            }
            Frame::Trim { log, below } => self.trim(&log, below),
            Frame::Clear { log } => self.clear(&log),
            Frame::Journal { records } => {
                self.journal.append(&records, &*self.contents, unix_ms)?;
                let lines: Vec<_> = records.iter().map(String::as_str).collect();
                self.contents.apply(&lines)?;
                self.journal.compact_if_due(&*self.contents, unix_ms);
                Ok(())
            }
            Frame::File { name, bytes } => {
                replace_file(&*self.disk, &self.dir, &name, &bytes)?;
                Ok(())
            }
        }
    }

    fn append(
        &mut self,
        id: LogId,
        plan: LogPlan,
        pieces: &[LogPiece],
    ) -> Result<(), ReplicaError> {
        let log = match self.logs.get(&id) {
            // A log without events begins where the leader says.
            Some(log) if log.bounds().segments > 0 || log.bounds().end == plan.first => {
                Arc::clone(log)
            }
            _ => self.open_log(&id, plan, 0)?.0,
        };
        let found = log.bounds().end;
        let is_new = |piece: &&LogPiece| piece.first.0 + piece.count > found.0;
        let new: Vec<_> = pieces.iter().filter(is_new).cloned().collect();
        let begins_at = new.first().map_or(found, |piece| piece.first);
        if found < plan.first || begins_at < found {
            return Err(ReplicaError::OtherEnd { log: id, found, expected: plan.first });
        }
        if let Some(last) = new.last() {
            let next = Seq(last.first.0 + last.count);
            log.append(&new, next, next)?;
        }
        // What was left out may not be synced either.
        self.changed.insert(id);
        Ok(())
    }

    fn open_existing(
        &self,
        id: &LogId,
        plan: LogPlan,
        identified_max: usize,
    ) -> Result<(Arc<dyn TopicLog>, Recovered), ReplicaError> {
        let (log, found) = self.store.open(id, plan, identified_max)?;
        if found.has_lost_end {
            return Err(ReplicaError::LostEnd(id.clone()));
        }
        for finding in &found.findings {
            tracing::warn!(log = %id, "{finding}");
        }
        Ok((log, found))
    }

    /// A log that has events.
    fn existing_log(&self, id: &LogId) -> Result<Option<Arc<dyn TopicLog>>, ReplicaError> {
        if let Some(log) = self.logs.get(id) {
            return Ok(Some(Arc::clone(log)));
        }
        let exists = match id {
            LogId::Topic(name) => self.store.topics()?.contains(name),
            LogId::Group(name) => self.store.groups()?.contains(name),
        };
        // It is not kept open, since the leader's plan is not known.
        let plan = LogPlan { first: Seq(1), kept_bytes: u64::MAX };
        Ok(if exists { Some(self.open_existing(id, plan, 0)?.0) } else { None })
    }

    fn trim(&self, id: &LogId, below: Seq) -> Result<(), ReplicaError> {
        if let Some(log) = self.existing_log(id)? {
            log.retain(&Retention {
                bytes_max: 0,
                oldest_unix_ms: None,
                segments_max: 0,
                keep_from: below,
                removals_max: usize::MAX,
            })?;
        }
        Ok(())
    }

    fn clear(&self, id: &LogId) -> Result<(), ReplicaError> {
        if let Some(log) = self.existing_log(id)? {
            log.clear()?;
        }
        Ok(())
    }
}
