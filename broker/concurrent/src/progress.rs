//! The watermarks of a group's log: written and synced. The group's owner reads them without a
//! lock.

use std::fmt::Debug;
use std::task::Waker;

use crate::mutants::{self, Mutant};
use crate::sync::{AtomicU64, Mutex, MutexGuard, load_mark, store_mark};

/// The watermarks of a log, and the state that its owner and the committers share behind a lock.
///
/// - `durable <= written`, for a thread that loads `durable` first.
/// - A thread that sees a mark also sees everything done before the mark moved there. So an answer
///   that depends on records before `durable` may be sent.
/// - An owner that finds nothing new and then waits for `waker` is woken when a committer moves a
///   mark.
#[derive(Debug)]
pub struct LogProgress<S> {
    written: AtomicU64,
    durable: AtomicU64,
    state: Mutex<S>,
    waker: Waker,
}

impl<S> LogProgress<S> {
    /// Both marks at `next`; `waker` wakes the owner.
    pub fn new(state: S, next: u64, waker: Waker) -> Self {
        let (written, durable) = (AtomicU64::new(next), AtomicU64::new(next));
        Self { written, durable, state: Mutex::new(state), waker }
    }

    /// Locks the state.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, S> {
        self.state.lock()
    }

    /// Everything before this mark survives a crash of the process.
    #[inline]
    pub fn written(&self) -> u64 {
        load_mark(&self.written)
    }

    /// Everything before this mark is as safe as the log promises.
    #[inline]
    pub fn durable(&self) -> u64 {
        load_mark(&self.durable)
    }

    /// The owner has written everything before `mark` itself. It holds the lock, so that no
    /// committer writes meanwhile.
    pub fn set_written_by_owner(&self, _lock: &MutexGuard<'_, S>, mark: u64) {
        store_mark(&self.written, mark);
    }

    /// A committer has written everything before `mark`; `change` updates the state.
    pub fn set_written(&self, mark: u64, change: impl FnOnce(&mut S)) {
        self.advance(&self.written, mark, change);
    }

    /// A committer has synced everything before `mark`; `change` updates the state.
    pub fn set_durable(&self, mark: u64, change: impl FnOnce(&mut S)) {
        self.advance(&self.durable, mark, change);
    }

    fn advance(&self, which: &AtomicU64, mark: u64, change: impl FnOnce(&mut S)) {
        if mutants::is(Mutant::WakesFirst) {
            self.wake();
        }
        {
            let state = &mut *self.lock();
            change(state);
            store_mark(which, mark);
        }
        // After the lock is released, because the woken owner takes it.
        if !mutants::is(Mutant::WakesFirst) {
            self.wake();
        }
    }

    /// Wakes the owner, because the state has changed.
    #[inline]
    pub fn wake(&self) {
        self.waker.wake_by_ref();
    }
}

#[cfg(all(test, loom))]
mod models {
    use std::sync::Arc as StdArc;

    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::model::{NotifyPermit, assert_finds, check};
    use crate::sync::Ordering;

    /// A log, with the mark up to which the disk has really synced.
    struct Log {
        synced: AtomicU64,
        progress: LogProgress<u64>,
    }

    impl Log {
        fn new(wake: &StdArc<NotifyPermit>) -> Arc<Self> {
            let (synced, progress) = (AtomicU64::new(0), LogProgress::new(0, 0, wake.waker()));
            Arc::new(Self { synced, progress })
        }

        fn commit(&self, mark: u64) {
            self.progress.set_written(mark, |state| *state += 1);
            self.synced.store(mark, Ordering::Relaxed);
            self.progress.set_durable(mark, |state| *state -= 1);
        }
    }

    /// The owner waits until its records are durable, and only then sends a confirmation.
    fn owner_and_committer() {
        let wake = StdArc::new(NotifyPermit::default());
        let log = Log::new(&wake);
        let committer = {
            let log = Arc::clone(&log);
            thread::spawn(move || {
                log.commit(1);
                log.commit(2);
            })
        };
        let mut before = (0, 0);
        loop {
            let durable = log.progress.durable();
            let written = log.progress.written();
            assert!(durable <= written, "durable {durable} is beyond written {written}");
            assert!(before.0 <= durable && before.1 <= written, "a mark goes back");
            let synced = log.synced.load(Ordering::Relaxed);
            assert!(durable <= synced, "durable {durable} is beyond synced {synced}");
            if durable == 2 {
                break;
            }
            before = (durable, written);
            wake.wait();
        }
        committer.join().expect("no thread of the model panics");
    }

    /// The owner and a committer write, and each changes the state only under the lock.
    fn owner_writes_too() {
        let wake = StdArc::new(NotifyPermit::default());
        let log = Log::new(&wake);
        let committer = {
            let log = Arc::clone(&log);
            thread::spawn(move || {
                // The owner writes only while no piece waits for a committer.
                let synced = *log.progress.lock();
                log.progress.set_durable(synced, |_| {});
            })
        };
        {
            let mut state = log.progress.lock();
            *state = 1;
            log.progress.set_written_by_owner(&state, 1);
        }
        let durable = log.progress.durable();
        assert!(durable <= log.progress.written());
        committer.join().expect("no thread of the model panics");
        assert!(log.progress.durable() <= log.progress.written());
    }

    #[test]
    fn every_sync_wakes_the_owner_and_precedes_the_confirmation() {
        check(owner_and_committer);
    }

    #[test]
    fn durable_stays_behind_what_the_owner_writes() {
        check(owner_writes_too);
    }

    #[test]
    fn a_relaxed_store_is_found() {
        assert_finds(Mutant::RelaxedStore, owner_and_committer, " is beyond ");
    }

    #[test]
    fn a_relaxed_load_is_found() {
        assert_finds(Mutant::RelaxedLoad, owner_and_committer, " is beyond ");
    }

    #[test]
    fn a_wake_up_before_the_mark_is_found() {
        assert_finds(Mutant::WakesFirst, owner_and_committer, "deadlock");
    }
}
