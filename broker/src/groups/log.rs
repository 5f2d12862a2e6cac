//! Where a group's records go. The machine knows nothing of it; its owner writes here before it lets
//! an output leave.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tidings_protocol::{GroupName, Seq};
use tokio::sync::Notify;

use crate::clock::Clock;
use crate::group::record::{Decision, Record};
use crate::log::committer::{Commit, Committers};
use crate::log::{LogError, Piece, Retention, TopicLog};
use crate::topic::Health;

/// Bytes of records that may wait for a slow disk before no more events are taken.
const BEHIND_BYTES: usize = 8 << 20;

/// Bytes of records that may wait for the disk before there is more of a snapshot, which could wait: what is
/// decided meanwhile is behind them, and that is to be no more than one sync takes at once.
const BUSY_BYTES: usize = 32 << 10;

/// How often that is doubled at most: up to [`BEHIND_BYTES`], at which nothing else is taken.
const BUSY_DOUBLINGS_MAX: u32 = 8;

/// Bytes of records with which the disk begins although there will be more at once.
const MUCH_BYTES: usize = 128 << 10;

/// Place in a log: the number of the next record. Half-open, so that marks compare directly.
pub(super) type Mark = u64;

/// An append-only sequence of records.
pub(super) trait GroupLog: Send {
    /// Appends a record and returns the mark behind it.
    fn append(&mut self, record: &Record) -> Mark;

    /// What was appended since the last time is on its way: together, or not at all.
    fn flush(&mut self);

    /// The same, if it is so much that the disk should begin with it; whether it was. What one input
    /// led to must have been appended as a whole.
    fn flush_much(&mut self) -> bool;

    /// Everything before this mark is as safe as the log promises.
    /// Invariant: `durable <= ` the mark of the last append.
    fn durable(&self) -> Mark;

    /// Whether it can be written. What was appended while it cannot is written when it can again.
    fn health(&self) -> Health;

    /// Whether so much waits for the disk that nothing more should be begun. Who asks is woken when
    /// that has changed.
    fn is_behind(&self) -> bool;

    /// Whether so much waits for the disk that nothing should be added that could wait. As with
    /// [`is_behind`](Self::is_behind), who asks is woken.
    fn is_busy(&self) -> bool;

    /// Finds out whether a full disk has room again. To be called from time to time.
    fn retry(&self);

    /// Whether so much was written since the last snapshot that there should be another one.
    fn wants_snapshot(&self) -> bool;

    /// A snapshot begins with the next record.
    fn begin_snapshot(&mut self);

    /// It has ended with the last one: what is before it goes, once it is safe.
    fn end_snapshot(&mut self);

    /// What it is kept in, if anything.
    fn store(&self) -> Option<Arc<dyn TopicLog>>;
}

/// Without a data directory: safe as long as the process lives.
#[derive(Debug, Default)]
pub(super) struct MemoryLog(Mark);

impl GroupLog for MemoryLog {
    fn append(&mut self, _: &Record) -> Mark {
        self.0 += 1;
        self.0
    }

    fn flush(&mut self) {}

    fn flush_much(&mut self) -> bool {
        false
    }

    fn durable(&self) -> Mark {
        self.0
    }

    fn health(&self) -> Health {
        Health::Good
    }

    fn is_behind(&self) -> bool {
        false
    }

    fn is_busy(&self) -> bool {
        false
    }

    fn retry(&self) {}

    fn wants_snapshot(&self) -> bool {
        false
    }

    fn begin_snapshot(&mut self) {}

    fn end_snapshot(&mut self) {}

    fn store(&self) -> Option<Arc<dyn TopicLog>> {
        None
    }
}

/// Records as lines of a log on disk, which the committers write and sync.
#[derive(Debug)]
pub(super) struct DiskLog {
    /// Lines that were not flushed, and how many they are.
    open: String,
    count: u64,
    next: Mark,
    /// Bytes of decisions since the last whole snapshot began, and of that one.
    grown: u64,
    snapshot_bytes: u64,
    /// The same of the one that is being written: decisions before it, and its bytes so far.
    grown_before: u64,
    parts: u64,
    /// Where a snapshot began that is being written.
    began: Mark,
    /// Bytes after which there is a snapshot at all.
    grown_max: u64,
    clock: Clock,
    shared: Arc<Shared>,
}

/// What the owner and the committers share.
#[derive(Debug)]
struct Shared {
    /// Whose it is.
    name: GroupName,
    log: Arc<dyn TopicLog>,
    committers: Arc<Committers>,
    state: Mutex<State>,
    durable: AtomicU64,
    /// Woken when there is more that is safe, or when the health has changed.
    wake: Arc<Notify>,
}

#[derive(Debug)]
struct State {
    /// What is to be written, oldest first: each piece is written as a whole or not at all.
    pieces: Vec<Piece>,
    health: Health,
    /// With a committer, or in its queue.
    queued: bool,
    /// A snapshot that is not safe yet, or before which something may be left: from where to where.
    snapshot: Option<(Seq, Seq)>,
}

impl DiskLog {
    /// Goes on at `next`; wakes the owner by `wake`.
    pub(super) fn new(
        name: GroupName,
        log: Arc<dyn TopicLog>,
        next: Seq,
        grown_max: u64,
        clock: Clock,
        committers: Arc<Committers>,
        wake: Arc<Notify>,
    ) -> Self {
        let grown = log.bounds().bytes;
        let state =
            State { pieces: Vec::new(), health: Health::Good, queued: false, snapshot: None };
        let (state, durable) = (Mutex::new(state), AtomicU64::new(next.0));
        let shared = Arc::new(Shared { name, log, committers, state, durable, wake });
        Self {
            open: String::new(),
            count: 0,
            next: next.0,
            grown,
            snapshot_bytes: 0,
            grown_before: 0,
            parts: 0,
            began: next.0,
            grown_max,
            clock,
            shared,
        }
    }

    /// Bytes of decisions after which there is to be another snapshot.
    fn snapshot_due(&self) -> u64 {
        self.grown_max.max(2 * self.snapshot_bytes)
    }

    fn commit(&self) {
        self.shared.committers.push(Arc::clone(&self.shared) as Arc<dyn Commit>);
    }
}

impl GroupLog for DiskLog {
    fn append(&mut self, record: &Record) -> Mark {
        let before = self.open.len();
        record.encode(&mut self.open);
        let is_part = matches!(record.decision, Decision::Kept(_));
        let counter = if is_part { &mut self.parts } else { &mut self.grown };
        *counter += (self.open.len() - before) as u64;
        self.count += 1;
        self.next += 1;
        self.next
    }

    fn flush(&mut self) {
        if self.count == 0 {
            return;
        }
        // The next ones will be about as long together.
        let open = String::with_capacity(self.open.len());
        let lines = std::mem::replace(&mut self.open, open);
        let piece = Piece {
            first: Seq(self.next - self.count),
            count: self.count,
            unix_ms: self.clock.unix_ms(),
            wire: lines.into(),
            identified: false,
        };
        self.count = 0;
        let is_wanted = {
            let state = &mut *self.shared.state.lock();
            state.pieces.push(piece);
            state.wants_commit()
        };
        if is_wanted {
            self.commit();
        }
    }

    fn flush_much(&mut self) -> bool {
        let is_much = self.open.len() >= MUCH_BYTES;
        if is_much {
            self.flush();
        }
        is_much
    }

    fn durable(&self) -> Mark {
        self.shared.durable.load(Ordering::Acquire)
    }

    fn health(&self) -> Health {
        self.shared.state.lock().health
    }

    fn is_behind(&self) -> bool {
        self.shared.waiting_bytes() > BEHIND_BYTES
    }

    fn is_busy(&self) -> bool {
        // Twice as much may wait with every quarter that a snapshot is late: where a disk is always busy,
        // nothing would ever be cut from the log.
        let due = self.snapshot_due();
        let quarters = self.grown.saturating_sub(due) * 4 / due.max(1);
        let doublings = u32::try_from(quarters).unwrap_or(u32::MAX).min(BUSY_DOUBLINGS_MAX);
        self.shared.waiting_bytes() > BUSY_BYTES << doublings
    }

    fn retry(&self) {
        let is_wanted = {
            let state = &mut *self.shared.state.lock();
            let wants = state.health == Health::Full && !state.queued;
            state.queued |= wants;
            wants
        };
        if is_wanted {
            self.commit();
        }
    }

    fn wants_snapshot(&self) -> bool {
        self.grown > self.snapshot_due()
    }

    fn begin_snapshot(&mut self) {
        self.flush();
        (self.began, self.grown_before, self.parts) = (self.next, self.grown, 0);
    }

    fn end_snapshot(&mut self) {
        self.shared.state.lock().snapshot = Some((Seq(self.began), Seq(self.next)));
        self.flush();
        self.snapshot_bytes = self.parts;
        self.grown -= self.grown_before;
    }

    fn store(&self) -> Option<Arc<dyn TopicLog>> {
        Some(Arc::clone(&self.shared.log))
    }
}

impl Shared {
    /// Lets go of what is before a snapshot, if that ends before `safe`.
    fn forget_before(self: &Arc<Self>, safe: Seq) {
        let snapshot = self.state.lock().snapshot.take_if(|(_, end)| *end <= safe);
        if let Some((keep_from, _)) = snapshot {
            let removal = Removal { group: Arc::clone(self), keep_from };
            self.committers.push(Arc::new(removal));
        }
    }
}

impl State {
    /// Whether a commit is to be asked for, which is noted as done.
    fn wants_commit(&mut self) -> bool {
        let wants = self.health == Health::Good && !self.queued && !self.pieces.is_empty();
        self.queued |= wants;
        wants
    }
}

impl Commit for Shared {
    fn commit(self: Arc<Self>) -> Option<usize> {
        let (pieces, health) = {
            let state = &mut *self.state.lock();
            (state.pieces.clone(), state.health)
        };
        let written = match pieces.last() {
            // Only now is it known whether there is room.
            _ if health == Health::Full && !self.log.has_room() => Err(LogError::Full),
            Some(last) => {
                let next = Seq(last.first.0 + last.count);
                // Nobody sees these numbers, so none are reserved.
                self.log.append(&pieces, next, next).and_then(|()| self.log.sync()).map(|_| next.0)
            }
            None => Ok(self.durable.load(Ordering::Acquire)),
        };
        if let Ok(next) = written {
            self.forget_before(Seq(next));
        }
        let state = &mut *self.state.lock();
        let before = (state.health, self.durable.load(Ordering::Acquire));
        match written {
            Ok(next) => {
                state.pieces.drain(..pieces.len());
                state.health = Health::Good;
                self.durable.store(next, Ordering::Release);
            }
            Err(LogError::Full) => {
                if health == Health::Good {
                    tracing::error!(group = %self.name, "there is no room for what it decides: it stands still");
                }
                state.health = Health::Full;
            }
            Err(error) => {
                tracing::error!(group = %self.name, %error, "what it decided was not kept: it stands still");
                state.health = Health::Failed;
            }
        }
        // Whoever looks whether there is room again is not to be told that there is none.
        if before != (state.health, self.durable.load(Ordering::Acquire)) {
            self.wake.notify_one();
        }
        state.queued = false;
        let wants = state.wants_commit();
        wants.then(|| state.pieces.iter().map(|piece| piece.wire.len()).sum())
    }

    fn waiting_bytes(&self) -> usize {
        self.state.lock().pieces.iter().map(|piece| piece.wire.len()).sum()
    }
}

/// The end of records that a snapshot stands for: one segment after the other, with pauses. A disk that is
/// told that hundreds of megabytes are free has no time for anything else.
#[derive(Debug)]
struct Removal {
    group: Arc<Shared>,
    keep_from: Seq,
}

impl Commit for Removal {
    fn commit(self: Arc<Self>) -> Option<usize> {
        let retention = Retention {
            bytes_max: 0,
            oldest_unix_ms: None,
            segments_max: usize::MAX,
            keep_from: self.keep_from,
            at_once: 1,
        };
        match self.group.log.retain(&retention) {
            Ok(0) | Err(LogError::Broken(_)) => {}
            Ok(_) => self.group.committers.push_later(Arc::clone(&self) as Arc<dyn Commit>),
            Err(error) => {
                tracing::error!(group = %self.group.name, %error, "old records stay");
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

    use super::*;
    use crate::clock::Moment;
    use crate::group::record::Decision;
    use crate::groups::GroupStorage;
    use crate::log::SegmentLog;
    use crate::log::simulated::SimulatedDisk;

    /// A log on a disk of its own, whose segments have an eighth of `log_bytes`.
    struct Rig {
        disk: SimulatedDisk,
        committers: Arc<Committers>,
        store: Arc<SegmentLog>,
        log: DiskLog,
        wake: Arc<Notify>,
    }

    const DIR: &str = "groups";

    impl Rig {
        fn new(log_bytes: u64) -> Self {
            let (disk, dir) = (SimulatedDisk::new(1), Path::new(DIR).to_owned());
            let storage =
                GroupStorage { disk: Arc::new(disk.clone()), dir, log_bytes, taken: [].into() };
            let (name, committers) = ("g".parse().unwrap(), Arc::new(Committers::start()));
            let ((store, next), wake) = (storage.fresh(&name), Arc::new(Notify::new()));
            let (store, clock) = (Arc::new(store), Clock::new());
            let (log, to_wake) = (Arc::clone(&store), Arc::clone(&wake));
            let log =
                DiskLog::new(name, log, next, log_bytes, clock, Arc::clone(&committers), to_wake);
            Self { disk, committers, store, log, wake }
        }

        /// Writes a record of so many bytes, and a little more.
        fn write(&mut self, bytes: usize) {
            let payload = "x".repeat(bytes).into();
            let decision = Decision::Announced { serial: 1, topic: "job-done", payload };
            self.log.append(&Record { at: Moment(1), decision });
            self.log.flush();
        }

        async fn until_durable(&self) {
            while self.log.durable() < self.log.next {
                self.wake.notified().await;
            }
        }
    }

    #[tokio::test]
    async fn a_log_is_behind_when_more_waits_for_a_slow_disk_than_may_and_says_when_it_is_not() {
        let mut rig = Rig::new(1 << 30);
        rig.disk.hold_syncs(Path::new(DIR));
        let mut written = 0;
        while written < BEHIND_BYTES {
            assert!(!rig.log.is_behind(), "{written} bytes wait");
            rig.write(1 << 20);
            written += 1 << 20;
        }
        assert!(rig.log.is_behind());
        assert!(rig.log.durable() < rig.log.next);
        rig.disk.release_syncs();
        rig.until_durable().await;
        assert!(!rig.log.is_behind());
        rig.committers.close();
    }

    #[tokio::test]
    async fn a_snapshot_waits_for_a_busy_disk_and_not_for_ever() {
        let mut rig = Rig::new(1 << 20);
        rig.disk.hold_syncs(Path::new(DIR));
        rig.write(2 * BUSY_BYTES);
        assert!(rig.log.is_busy());
        // Three times what a snapshot is due after.
        rig.write(3 << 20);
        assert!(rig.log.wants_snapshot());
        rig.disk.release_syncs();
        rig.until_durable().await;
        rig.disk.hold_syncs(Path::new(DIR));
        rig.write(2 * BUSY_BYTES);
        assert!(!rig.log.is_busy());
        rig.disk.release_syncs();
        rig.until_durable().await;
        rig.committers.close();
    }

    #[tokio::test]
    async fn everything_before_a_snapshot_goes_in_the_end() {
        let mut rig = Rig::new(8_000);
        for _ in 0..10 {
            rig.write(1_000);
            rig.until_durable().await;
        }
        assert!(rig.store.bounds().segments >= 10);
        rig.log.begin_snapshot();
        let began = Seq(rig.log.began);
        rig.disk.hold_syncs(Path::new(DIR));
        rig.write(1_000);
        rig.log.end_snapshot();
        rig.disk.release_syncs();
        rig.until_durable().await;
        // What was put off is done before the end.
        rig.committers.close();
        let bounds = rig.store.bounds();
        assert_eq!((bounds.first, bounds.segments), (began, 1));
    }
}
