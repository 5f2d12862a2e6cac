//! A group's log on disk, one record per line. The actor writes small amounts itself; the
//! committers write the rest, and sync.

use std::fmt::Debug;
use std::sync::Arc;

use tidings_concurrent::LogProgress;
use tidings_log::{CommitLog, Committers, LogError, LogPiece, Retention, TopicLog};
use tidings_protocol::{GroupName, Seq};
use tidings_queue::record::{Decision, GroupRecord};
use tokio::sync::Notify;

use super::{GroupLog, RecordMark};
use crate::clock::Clock;
use crate::topic::{Health, waker_of};

/// Bytes of records that may wait for a slow disk; beyond this the group consumes no more events.
const BEHIND_BYTES: usize = 8 << 20;

/// Bytes of records that may wait for the disk; beyond this the snapshot pauses. New decisions are
/// queued behind the snapshot's records, and should not have to wait for more than one sync. With
/// this many unsynced bytes a sync is due even if nothing waits for it.
const BUSY_BYTES: usize = 128 << 10;

/// Most doublings of [`BUSY_BYTES`]: it then reaches [`BEHIND_BYTES`], at which the group consumes
/// nothing else.
const BUSY_DOUBLINGS_LIMIT: u32 = 6;

/// With this many bytes of records the log is flushed within a turn, so that the disk can start
/// early.
const EARLY_FLUSH_BYTES: usize = 128 << 10;

/// Most bytes that the actor writes itself. That takes tens of microseconds at most, whereas a
/// committer would have to wake up, may be in a sync, and syncs what it wrote. Longer writes would
/// delay the group.
const DIRECT_WRITE_BYTES_MAX: usize = 64 << 10;

/// A group's log on disk.
#[derive(Debug)]
pub(in crate::groups) struct DiskLog {
    /// Records that were not flushed, and their number.
    unflushed: String,
    unflushed_count: u64,
    next: RecordMark,
    /// Bytes of decisions since the last complete snapshot began, and bytes of that snapshot.
    bytes_since_snapshot: u64,
    snapshot_bytes: u64,
    /// The same for the snapshot in progress: decisions before it, and its bytes so far.
    bytes_before_snapshot: u64,
    snapshot_bytes_so_far: u64,
    /// Start of the snapshot in progress.
    snapshot_start: RecordMark,
    /// Bytes of decisions before the first snapshot.
    snapshot_after_bytes: u64,
    clock: Clock,
    shared: Arc<DiskLogShared>,
}

/// State shared by the actor and the committers.
#[derive(Debug)]
struct DiskLogShared {
    /// The group.
    name: GroupName,
    log: Arc<dyn TopicLog>,
    committers: Arc<Committers>,
    /// Written and durable marks. Wakes the actor when either mark rises through a committer, or
    /// when the health changes.
    state: LogProgress<DiskLogState>,
}

#[derive(Debug)]
struct DiskLogState {
    /// Pieces for a committer to write, oldest first; each is written completely or not at all.
    /// While there is one, the actor does not write itself.
    pieces: Vec<LogPiece>,
    /// Bytes that were written and may not be synced yet.
    unsynced: usize,
    /// Everything before this mark should become durable as soon as possible.
    wanted_durable: RecordMark,
    health: Health,
    /// Whether it is with a committer, or in the committers' queue.
    is_queued: bool,
    /// Whether it will be queued shortly, for a sync that is not urgent.
    is_sync_scheduled: bool,
    /// Start and end of the last snapshot, until the records before it can be removed.
    snapshot: Option<(Seq, Seq)>,
}

impl DiskLog {
    /// Continues the log at `next`; `wake` wakes the actor.
    pub(in crate::groups) fn new(
        name: GroupName,
        log: Arc<dyn TopicLog>,
        next: Seq,
        snapshot_after_bytes: u64,
        clock: Clock,
        committers: Arc<Committers>,
        wake: Arc<Notify>,
    ) -> Self {
        let bytes_since_snapshot = log.bounds().bytes;
        let state = DiskLogState {
            pieces: Vec::new(),
            unsynced: 0,
            wanted_durable: next.0,
            health: Health::Good,
            is_queued: false,
            is_sync_scheduled: false,
            snapshot: None,
        };
        let state = LogProgress::new(state, next.0, waker_of(wake));
        let shared = Arc::new(DiskLogShared { name, log, committers, state });
        Self {
            unflushed: String::new(),
            unflushed_count: 0,
            next: next.0,
            bytes_since_snapshot,
            snapshot_bytes: 0,
            bytes_before_snapshot: 0,
            snapshot_bytes_so_far: 0,
            snapshot_start: next.0,
            snapshot_after_bytes,
            clock,
            shared,
        }
    }

    /// Bytes of decisions after which another snapshot is due.
    fn snapshot_due(&self) -> u64 {
        self.snapshot_after_bytes.max(2 * self.snapshot_bytes)
    }

    /// The records appended since the last flush.
    fn take_piece(&mut self) -> Option<LogPiece> {
        if self.unflushed_count == 0 {
            return None;
        }
        // The next piece will have about the same length.
        let open = String::with_capacity(self.unflushed.len());
        let lines = std::mem::replace(&mut self.unflushed, open);
        let count = std::mem::take(&mut self.unflushed_count);
        let (first, unix_ms) = (Seq(self.next - count), self.clock.unix_ms());
        Some(LogPiece { first, count, unix_ms, wire: lines.into(), identified: false })
    }
}

impl GroupLog for DiskLog {
    fn append(&mut self, record: &GroupRecord) -> RecordMark {
        let before = self.unflushed.len();
        record.encode(&mut self.unflushed);
        let is_part = matches!(record.decision, Decision::SnapshotPart(_));
        let counter =
            if is_part { &mut self.snapshot_bytes_so_far } else { &mut self.bytes_since_snapshot };
        *counter += (self.unflushed.len() - before) as u64;
        self.unflushed_count += 1;
        self.next += 1;
        self.next
    }

    fn flush(&mut self, awaited: RecordMark) {
        let piece = self.take_piece();
        let shared = &self.shared;
        let mut state = shared.state.lock();
        state.wanted_durable = state.wanted_durable.max(awaited);
        if let Some(piece) = piece {
            let bytes = piece.wire.len();
            let is_next = state.pieces.is_empty() && state.health == Health::Good;
            if is_next && bytes <= DIRECT_WRITE_BYTES_MAX && shared.log.try_append(&piece) {
                state.unsynced += bytes;
                shared.state.set_written_by_owner(&state, self.next);
            } else {
                state.pieces.push(piece);
            }
        }
        shared.request_commit(&mut state);
    }

    fn flush_if_large(&mut self) -> bool {
        let is_much = self.unflushed.len() >= EARLY_FLUSH_BYTES;
        if is_much {
            self.flush(self.next);
        }
        is_much
    }

    fn written(&self) -> RecordMark {
        self.shared.state.written()
    }

    fn durable(&self) -> RecordMark {
        self.shared.durable()
    }

    fn health(&self) -> Health {
        self.shared.state.lock().health
    }

    fn is_behind(&self) -> bool {
        self.shared.waiting_bytes() > BEHIND_BYTES
    }

    fn is_busy(&self) -> bool {
        // The limit doubles with every quarter by which the snapshot is late. Otherwise a disk that
        // is always busy would never allow a snapshot, and the log would never be cut.
        let due = self.snapshot_due();
        let quarters = self.bytes_since_snapshot.saturating_sub(due) * 4 / due.max(1);
        let doublings = u32::try_from(quarters).unwrap_or(u32::MAX).min(BUSY_DOUBLINGS_LIMIT);
        self.shared.waiting_bytes() > BUSY_BYTES << doublings
    }

    fn retry(&self) {
        let state = &mut *self.shared.state.lock();
        if state.health == Health::Full && !state.is_queued {
            self.shared.queue(state);
        }
    }

    fn wants_snapshot(&self) -> bool {
        self.bytes_since_snapshot > self.snapshot_due()
    }

    fn begin_snapshot(&mut self) {
        self.flush(self.next);
        (self.snapshot_start, self.bytes_before_snapshot, self.snapshot_bytes_so_far) =
            (self.next, self.bytes_since_snapshot, 0);
    }

    fn end_snapshot(&mut self) {
        self.shared.state.lock().snapshot = Some((Seq(self.snapshot_start), Seq(self.next)));
        self.flush(self.next);
        self.snapshot_bytes = self.snapshot_bytes_so_far;
        self.bytes_since_snapshot -= self.bytes_before_snapshot;
    }

    fn segment_log(&self) -> Option<Arc<dyn TopicLog>> {
        Some(Arc::clone(&self.shared.log))
    }
}

impl DiskLogShared {
    fn durable(&self) -> RecordMark {
        self.state.durable()
    }

    /// Queues the log for a committer: at once if something waits for it, otherwise after a moment.
    fn request_commit(self: &Arc<Self>, state: &mut DiskLogState) {
        if state.is_queued || state.health != Health::Good {
            return;
        }
        if state.is_due(self.durable()) {
            self.queue(state);
        } else if state.unsynced > 0 && !state.is_sync_scheduled {
            state.is_sync_scheduled = true;
            self.committers.enqueue_later(Arc::new(DeferredSync(Arc::clone(self))));
        }
    }

    fn queue(self: &Arc<Self>, state: &mut DiskLogState) {
        state.is_queued = true;
        self.committers.enqueue(Arc::clone(self) as Arc<dyn CommitLog>);
    }

    /// Writes the waiting pieces and moves the written mark.
    fn write(&self) -> Result<(), LogError> {
        let (pieces, health) = {
            let state = self.state.lock();
            (state.pieces.clone(), state.health)
        };
        let Some(last) = pieces.last() else { return Ok(()) };
        // The room is checked as late as possible.
        if health == Health::Full && !self.log.has_room() {
            return Err(LogError::Full);
        }
        let next = Seq(last.first.0 + last.count);
        // These numbers are internal, so none are reserved in advance.
        self.log.append(&pieces, next, next)?;
        self.state.set_written(next.0, |state| {
            let done = state.pieces.drain(..pieces.len());
            state.unsynced += done.map(|piece| piece.wire.len()).sum::<usize>();
        });
        Ok(())
    }

    /// Syncs the written bytes and moves the durable mark.
    fn sync(self: &Arc<Self>) -> Result<(), LogError> {
        let unsynced = self.state.lock().unsynced;
        if unsynced == 0 {
            return Ok(());
        }
        let safe = self.log.sync()?.durable;
        self.remove_before_snapshot(safe);
        self.state.set_durable(safe.0, |state| state.unsynced -= unsynced);
        Ok(())
    }

    /// Queues the removal of the records before a snapshot, if the snapshot ends before `safe`.
    fn remove_before_snapshot(self: &Arc<Self>, safe: Seq) {
        let snapshot = self.state.lock().snapshot.take_if(|(_, end)| *end <= safe);
        if let Some((keep_from, _)) = snapshot {
            let removal = SegmentRemoval { group: Arc::clone(self), keep_from };
            self.committers.enqueue(Arc::new(removal));
        }
    }
}

impl DiskLogState {
    /// Whether a committer has urgent work.
    fn is_due(&self, durable: RecordMark) -> bool {
        let is_awaited = durable < self.wanted_durable || self.unsynced > BUSY_BYTES;
        !self.pieces.is_empty() || is_awaited && self.unsynced > 0
    }

    fn waiting_bytes(&self) -> usize {
        self.unsynced + self.pieces.iter().map(|piece| piece.wire.len()).sum::<usize>()
    }
}

impl CommitLog for DiskLogShared {
    fn commit(self: Arc<Self>) -> Option<usize> {
        let written = self.write();
        // The part that was written is synced, even if the rest was not.
        let done = match &written {
            Ok(()) | Err(LogError::Full) => self.sync().and(written),
            Err(_) => written,
        };
        let state = &mut *self.state.lock();
        let before = state.health;
        state.health = match done {
            Ok(()) => Health::Good,
            Err(LogError::Full) => {
                if before == Health::Good {
                    tracing::error!(group = %self.name, "the disk is full: the group is stalled until there is room");
                }
                Health::Full
            }
            Err(error) => {
                tracing::error!(group = %self.name, %error, "cannot write the log of the group: it is stalled until the broker is restarted");
                Health::Failed
            }
        };
        // The actor polls for room and must not be woken when there is still none.
        if before != state.health {
            self.state.wake();
        }
        if state.health == Health::Good && state.is_due(self.durable()) {
            return Some(state.waiting_bytes());
        }
        state.is_queued = false;
        self.request_commit(state);
        None
    }

    fn waiting_bytes(&self) -> usize {
        self.state.lock().waiting_bytes()
    }
}

/// A sync that nothing waits for. It limits how much a power failure loses.
#[derive(Debug)]
struct DeferredSync(Arc<DiskLogShared>);

impl CommitLog for DeferredSync {
    fn commit(self: Arc<Self>) -> Option<usize> {
        let state = &mut *self.0.state.lock();
        state.is_sync_scheduled = false;
        if state.health == Health::Good && !state.is_queued {
            self.0.queue(state);
        }
        None
    }

    fn waiting_bytes(&self) -> usize {
        0
    }
}

/// Removes the records that a snapshot replaces, one segment after the other with pauses. A disk
/// that frees hundreds of megabytes at once is blocked for all other work.
#[derive(Debug)]
struct SegmentRemoval {
    group: Arc<DiskLogShared>,
    keep_from: Seq,
}

impl CommitLog for SegmentRemoval {
    fn commit(self: Arc<Self>) -> Option<usize> {
        let retention = Retention {
            bytes_max: 0,
            oldest_unix_ms: None,
            segments_max: usize::MAX,
            keep_from: self.keep_from,
            removals_max: 1,
        };
        match self.group.log.retain(&retention) {
            Ok(0) | Err(LogError::Broken(_)) => {}
            Ok(_) => self.group.committers.enqueue_later(Arc::clone(&self) as Arc<dyn CommitLog>),
            Err(error) => {
                tracing::error!(group = %self.group.name, %error, "cannot remove old records of the group");
            }
        }
        None
    }

    fn waiting_bytes(&self) -> usize {
        0
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tidings_log::{SegmentStore, SimulatedDisk};
    use tidings_queue::record::Decision;

    use super::*;
    use crate::clock::Moment;
    use crate::groups::GroupStorage;

    /// A log on a simulated disk; its segments have an eighth of `log_bytes`.
    struct Rig {
        disk: SimulatedDisk,
        committers: Arc<Committers>,
        store: Arc<dyn TopicLog>,
        log: DiskLog,
        wake: Arc<Notify>,
    }

    const DIR: &str = "data/groups";

    impl Rig {
        fn new(log_bytes: u64) -> Self {
            let disk = SimulatedDisk::new(1);
            let store = SegmentStore::new(Arc::new(disk.clone()), Path::new("data"));
            let storage = GroupStorage { store: Arc::new(store), log_bytes };
            let (name, committers) = ("g".parse().unwrap(), Arc::new(Committers::start(2)));
            let ((store, next), wake) = (storage.fresh(&name), Arc::new(Notify::new()));
            let clock = Clock::new();
            let (log, to_wake) = (Arc::clone(&store), Arc::clone(&wake));
            let log =
                DiskLog::new(name, log, next, log_bytes, clock, Arc::clone(&committers), to_wake);
            Self { disk, committers, store, log, wake }
        }

        /// Writes a record of a little more than `bytes` bytes.
        fn write(&mut self, bytes: usize) {
            let payload = "x".repeat(bytes).into();
            let decision = Decision::PublishQueued { serial: 1, topic: "job-done", payload };
            self.log.append(&GroupRecord { at: Moment(1), decision });
            self.log.flush(self.log.next);
        }

        async fn until_durable(&self) {
            while self.log.durable() < self.log.next {
                self.wake.notified().await;
            }
        }
    }

    #[tokio::test]
    async fn log_is_behind_while_too_much_waits_for_a_slow_disk() {
        let mut rig = Rig::new(1 << 30);
        rig.disk.stall_syncs(Path::new(DIR));
        let mut written = 0;
        while written < BEHIND_BYTES {
            assert!(!rig.log.is_behind(), "{written} bytes wait");
            rig.write(1 << 20);
            written += 1 << 20;
        }
        assert!(rig.log.is_behind());
        assert!(rig.log.durable() < rig.log.next);
        rig.disk.resume_syncs();
        rig.until_durable().await;
        assert!(!rig.log.is_behind());
        rig.committers.close();
    }

    #[tokio::test]
    async fn snapshot_waits_for_a_busy_disk_but_not_forever() {
        let mut rig = Rig::new(1 << 20);
        rig.disk.stall_syncs(Path::new(DIR));
        rig.write(2 * BUSY_BYTES);
        assert!(rig.log.is_busy());
        // Three times the bytes after which a snapshot is due.
        rig.write(3 << 20);
        assert!(rig.log.wants_snapshot());
        rig.disk.resume_syncs();
        rig.until_durable().await;
        rig.disk.stall_syncs(Path::new(DIR));
        rig.write(2 * BUSY_BYTES);
        assert!(!rig.log.is_busy());
        rig.disk.resume_syncs();
        rig.until_durable().await;
        rig.committers.close();
    }

    #[tokio::test]
    async fn records_before_a_snapshot_are_removed() {
        let mut rig = Rig::new(8_000);
        for _ in 0..10 {
            rig.write(1_000);
            rig.until_durable().await;
        }
        assert!(rig.store.bounds().segments >= 10);
        rig.log.begin_snapshot();
        let began = Seq(rig.log.snapshot_start);
        rig.disk.stall_syncs(Path::new(DIR));
        rig.write(1_000);
        rig.log.end_snapshot();
        rig.disk.resume_syncs();
        rig.until_durable().await;
        // Deferred work is completed before the committers end.
        rig.committers.close();
        let bounds = rig.store.bounds();
        assert_eq!((bounds.first, bounds.segments), (began, 1));
    }
}
