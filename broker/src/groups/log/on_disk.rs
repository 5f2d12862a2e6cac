//! Records as lines of a log on disk. The owner writes what is little; the committers write the rest, and sync.

use std::fmt::Debug;
use std::sync::Arc;

use tidings_concurrent::Progress;
use tidings_protocol::{GroupName, Seq};
use tokio::sync::Notify;

use super::{GroupLog, Mark};
use crate::clock::Clock;
use crate::group::record::{Decision, Record};
use crate::log::committer::{Commit, Committers};
use crate::log::{LogError, Piece, Retention, TopicLog};
use crate::topic::{Health, waker_of};

/// Bytes of records that may wait for a slow disk before no more events are taken.
const BEHIND_BYTES: usize = 8 << 20;

/// Bytes of records that may wait for the disk before there is more of a snapshot, which could wait: what is
/// decided meanwhile is behind them, and that is to be no more than one sync takes at once. With so many, a sync
/// is due although nobody waits for it.
const BUSY_BYTES: usize = 32 << 10;

/// How often that is doubled at most: up to [`BEHIND_BYTES`], at which nothing else is taken.
const BUSY_DOUBLINGS_MAX: u32 = 8;

/// Bytes of records with which the disk begins although there will be more at once.
const MUCH_BYTES: usize = 128 << 10;

/// Bytes of records that the owner hands to the system itself: a few microseconds, where a committer would have to
/// wake up first and is perhaps with a sync. More than that would keep the group from its work.
const AT_ONCE_BYTES: usize = 16 << 10;

/// Records as lines of a log on disk.
#[derive(Debug)]
pub(in crate::groups) struct DiskLog {
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
    /// How far it is written and safe. Wakes the owner when a committer has written more, when there is more that is
    /// safe, or when the health has changed.
    state: Progress<State>,
}

#[derive(Debug)]
struct State {
    /// What a committer is to write, oldest first: each piece is written as a whole or not at all. While there is
    /// one, nobody else writes.
    pieces: Vec<Piece>,
    /// Bytes that were written and may not be synced.
    unsynced: usize,
    /// Somebody waits until everything before this mark is safe.
    awaited: Mark,
    health: Health,
    /// With a committer, or in its queue.
    queued: bool,
    /// Will be in that queue in a moment.
    queued_later: bool,
    /// A snapshot that is not safe yet, or before which something may be left: from where to where.
    snapshot: Option<(Seq, Seq)>,
}

impl DiskLog {
    /// Goes on at `next`; wakes the owner by `wake`.
    pub(in crate::groups) fn new(
        name: GroupName,
        log: Arc<dyn TopicLog>,
        next: Seq,
        grown_max: u64,
        clock: Clock,
        committers: Arc<Committers>,
        wake: Arc<Notify>,
    ) -> Self {
        let grown = log.bounds().bytes;
        let state = State {
            pieces: Vec::new(),
            unsynced: 0,
            awaited: next.0,
            health: Health::Good,
            queued: false,
            queued_later: false,
            snapshot: None,
        };
        let state = Progress::new(state, next.0, waker_of(wake));
        let shared = Arc::new(Shared { name, log, committers, state });
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

    /// What was appended since the last time.
    fn take_piece(&mut self) -> Option<Piece> {
        if self.count == 0 {
            return None;
        }
        // The next ones will be about as long together.
        let open = String::with_capacity(self.open.len());
        let lines = std::mem::replace(&mut self.open, open);
        let count = std::mem::take(&mut self.count);
        let (first, unix_ms) = (Seq(self.next - count), self.clock.unix_ms());
        Some(Piece { first, count, unix_ms, wire: lines.into(), identified: false })
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

    fn flush(&mut self, awaited: Mark) {
        let piece = self.take_piece();
        let shared = &self.shared;
        let mut state = shared.state.lock();
        state.awaited = state.awaited.max(awaited);
        if let Some(piece) = piece {
            let bytes = piece.wire.len();
            let is_next = state.pieces.is_empty() && state.health == Health::Good;
            if is_next && bytes <= AT_ONCE_BYTES && shared.log.append_at_once(&piece) {
                state.unsynced += bytes;
                shared.state.owner_wrote(&state, self.next);
            } else {
                state.pieces.push(piece);
            }
        }
        shared.ask(&mut state);
    }

    fn flush_much(&mut self) -> bool {
        let is_much = self.open.len() >= MUCH_BYTES;
        if is_much {
            self.flush(self.next);
        }
        is_much
    }

    fn written(&self) -> Mark {
        self.shared.state.written()
    }

    fn durable(&self) -> Mark {
        self.shared.durable()
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
        let state = &mut *self.shared.state.lock();
        if state.health == Health::Full && !state.queued {
            self.shared.queue(state);
        }
    }

    fn wants_snapshot(&self) -> bool {
        self.grown > self.snapshot_due()
    }

    fn begin_snapshot(&mut self) {
        self.flush(self.next);
        (self.began, self.grown_before, self.parts) = (self.next, self.grown, 0);
    }

    fn end_snapshot(&mut self) {
        self.shared.state.lock().snapshot = Some((Seq(self.began), Seq(self.next)));
        self.flush(self.next);
        self.snapshot_bytes = self.parts;
        self.grown -= self.grown_before;
    }

    fn store(&self) -> Option<Arc<dyn TopicLog>> {
        Some(Arc::clone(&self.shared.log))
    }
}

impl Shared {
    fn durable(&self) -> Mark {
        self.state.durable()
    }

    /// Has a committer do what there is to do: now if somebody waits for it, otherwise in a moment.
    fn ask(self: &Arc<Self>, state: &mut State) {
        if state.queued || state.health != Health::Good {
            return;
        }
        if state.is_due(self.durable()) {
            self.queue(state);
        } else if state.unsynced > 0 && !state.queued_later {
            state.queued_later = true;
            self.committers.push_later(Arc::new(Later(Arc::clone(self))));
        }
    }

    fn queue(self: &Arc<Self>, state: &mut State) {
        state.queued = true;
        self.committers.push(Arc::clone(self) as Arc<dyn Commit>);
    }

    /// Writes what waits for it, and says so.
    fn write(&self) -> Result<(), LogError> {
        let (pieces, health) = {
            let state = self.state.lock();
            (state.pieces.clone(), state.health)
        };
        let Some(last) = pieces.last() else { return Ok(()) };
        // Only now is it known whether there is room.
        if health == Health::Full && !self.log.has_room() {
            return Err(LogError::Full);
        }
        let next = Seq(last.first.0 + last.count);
        // Nobody sees these numbers, so none are reserved.
        self.log.append(&pieces, next, next)?;
        self.state.wrote(next.0, |state| {
            let done = state.pieces.drain(..pieces.len());
            state.unsynced += done.map(|piece| piece.wire.len()).sum::<usize>();
        });
        Ok(())
    }

    /// Syncs what was written, and says so.
    fn sync(self: &Arc<Self>) -> Result<(), LogError> {
        let unsynced = self.state.lock().unsynced;
        if unsynced == 0 {
            return Ok(());
        }
        let safe = self.log.sync()?.durable;
        self.forget_before(safe);
        self.state.synced(safe.0, |state| state.unsynced -= unsynced);
        Ok(())
    }

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
    /// Whether a committer has something to do that does not wait.
    fn is_due(&self, durable: Mark) -> bool {
        let is_awaited = durable < self.awaited || self.unsynced > BUSY_BYTES;
        !self.pieces.is_empty() || is_awaited && self.unsynced > 0
    }

    fn waiting_bytes(&self) -> usize {
        self.unsynced + self.pieces.iter().map(|piece| piece.wire.len()).sum::<usize>()
    }
}

impl Commit for Shared {
    fn commit(self: Arc<Self>) -> Option<usize> {
        let written = self.write();
        // What there was room for is safe, whatever becomes of the rest.
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
                    tracing::error!(group = %self.name, "there is no room for what it decides: it stands still");
                }
                Health::Full
            }
            Err(error) => {
                tracing::error!(group = %self.name, %error, "what it decided was not kept: it stands still");
                Health::Failed
            }
        };
        // Whoever looks whether there is room again is not to be told that there is none.
        if before != state.health {
            self.state.wake();
        }
        if state.health == Health::Good && state.is_due(self.durable()) {
            return Some(state.waiting_bytes());
        }
        state.queued = false;
        self.ask(state);
        None
    }

    fn waiting_bytes(&self) -> usize {
        self.state.lock().waiting_bytes()
    }
}

/// A sync for which nobody waits: so that no more is lost with the power than a moment.
#[derive(Debug)]
struct Later(Arc<Shared>);

impl Commit for Later {
    fn commit(self: Arc<Self>) -> Option<usize> {
        let state = &mut *self.0.state.lock();
        state.queued_later = false;
        if state.health == Health::Good && !state.queued {
            self.0.queue(state);
        }
        None
    }

    fn waiting_bytes(&self) -> usize {
        0
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
            let storage = GroupStorage {
                disk: Arc::new(disk.clone()),
                dir,
                log_bytes,
                taken: [].into(),
                stopped: Arc::default(),
            };
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
            self.log.flush(self.log.next);
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
