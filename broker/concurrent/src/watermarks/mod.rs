//! The watermarks of a topic, readable without its lock, and the tasks that wait for them.

use std::fmt::Debug;
use std::task::Waker;

use slab::Slab;

use crate::mutants::{self, Mutant};
use crate::sync::{AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering, load_mark, store_mark};
use crate::waiters::{WaiterSlot, Waiters};

/// The watermarks of a topic. All are seqs and half-open: `visible <= head`, `durable <= head`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Levels {
    /// The next seq to assign.
    pub head: u64,
    /// The seq after the newest event that subscribers may see.
    pub visible: u64,
    /// The first seq that is neither as safe as the topic promises nor lost.
    pub durable: u64,
    /// Some events before `durable` were lost.
    pub has_lost: bool,
}

/// A watermark that tasks wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// [`Levels::visible`].
    Visible,
    /// [`Levels::durable`].
    Durable,
}

/// A value with watermarks, which only rise. Its lock protects it.
pub trait Watermarks {
    /// The current watermarks.
    fn levels(&self) -> Levels;

    /// The tasks to wake when a mark moves.
    fn waiters(&mut self, mark: Mark) -> &mut Waiters;
}

/// A value behind a lock, with watermarks that are read without the lock:
///
/// - A thread that sees a mark also sees everything done before the mark moved there.
/// - A thread that reads a mark again never sees a lower value.
/// - A thread that loads `visible` or `durable`, and then `head`, finds `visible <= head` and
///   `durable <= head`.
/// - A thread that sees a mark beyond lost events also sees that events were lost.
/// - A task that finds a mark unmoved under the lock, and registers its waker under the same lock,
///   is woken when the mark moves, and then sees the new value.
#[derive(Debug)]
pub struct Watermarked<T> {
    // Stored only under the lock, so that they never go back.
    head: AtomicU64,
    visible: AtomicU64,
    durable: AtomicU64,
    has_lost: AtomicBool,
    value: Mutex<T>,
}

impl<T: Watermarks> Watermarked<T> {
    /// Wraps a value for which no task waits yet.
    pub fn new(mut value: T) -> Self {
        let Levels { head, visible, durable, has_lost } = value.levels();
        value.waiters(Mark::Visible).take_if_moved(visible);
        value.waiters(Mark::Durable).take_if_moved(durable);
        Self {
            head: AtomicU64::new(head),
            visible: AtomicU64::new(visible),
            durable: AtomicU64::new(durable),
            has_lost: AtomicBool::new(has_lost),
            value: Mutex::new(value),
        }
    }

    /// Locks the value. A caller that moves a mark passes the guard to
    /// [`publish_and_wake`](Self::publish_and_wake).
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.value.lock()
    }

    /// Publishes the marks after one has moved, unlocks the value, and wakes `others` and the tasks
    /// that wait for a mark that has moved.
    pub fn publish_and_wake(&self, mut value: MutexGuard<'_, T>, others: Vec<Waker>) {
        let levels = value.levels();
        if !mutants::is(Mutant::WakesFirst) {
            self.publish(levels);
        }
        let visible = value.waiters(Mark::Visible).take_if_moved(levels.visible);
        let durable = value.waiters(Mark::Durable).take_if_moved(levels.durable);
        drop(value);
        if !(visible.is_empty() && durable.is_empty() && others.is_empty()) {
            self.wake(visible, durable, others);
        }
        if mutants::is(Mutant::WakesFirst) {
            self.publish(levels);
        }
    }

    fn wake(&self, mut visible: Slab<Waker>, mut durable: Slab<Waker>, others: Vec<Waker>) {
        for waker in visible.drain().chain(durable.drain()).chain(others) {
            waker.wake();
        }
        let mut value = self.lock();
        value.waiters(Mark::Visible).recycle(visible);
        value.waiters(Mark::Durable).recycle(durable);
    }

    fn publish(&self, Levels { head, visible, durable, has_lost }: Levels) {
        // Stored before the marks that pass the lost events. Their release stores order this one.
        if !mutants::is(Mutant::LossLast) {
            self.has_lost.store(has_lost, Ordering::Relaxed);
        }
        // Stored before the marks that it bounds.
        if !mutants::is(Mutant::HeadLast) {
            store_mark(&self.head, head);
        }
        store_mark(&self.visible, visible);
        store_mark(&self.durable, durable);
        if mutants::is(Mutant::HeadLast) {
            store_mark(&self.head, head);
        }
        if mutants::is(Mutant::LossLast) {
            self.has_lost.store(has_lost, Ordering::Relaxed);
        }
    }

    /// The next seq to assign.
    #[inline]
    pub fn head(&self) -> u64 {
        load_mark(&self.head)
    }

    /// The value of a mark.
    #[inline]
    pub fn mark(&self, mark: Mark) -> u64 {
        match mark {
            Mark::Visible => load_mark(&self.visible),
            Mark::Durable => load_mark(&self.durable),
        }
    }

    /// The value of a mark, and whether an event before it may have been lost.
    #[inline]
    pub fn mark_and_loss(&self, mark: Mark) -> (u64, bool) {
        // In this order, because the loss is published before the mark.
        let mark = self.mark(mark);
        (mark, self.has_lost())
    }

    /// Whether events were lost before a mark that this thread has seen.
    #[inline]
    pub fn has_lost(&self) -> bool {
        self.has_lost.load(Ordering::Relaxed)
    }

    /// Registers `waker` to be woken when `durable` moves; `None` if it is already beyond `number`.
    /// `place` is where the caller registered it before.
    pub fn wait_durable(
        &self,
        number: u64,
        place: Option<WaiterSlot>,
        waker: &Waker,
    ) -> Option<WaiterSlot> {
        let value = &mut *self.lock();
        let is_passed = value.levels().durable > number && !mutants::is(Mutant::ChecksOnce);
        (!is_passed).then(|| value.waiters(Mark::Durable).wait(place, waker))
    }
}

/// A reader's wait for a mark. It tells the reader when it need not take the lock.
#[derive(Debug)]
pub struct MarkWait {
    mark: Mark,
    /// The place of the registered waker.
    place: Option<WaiterSlot>,
    /// The value of the mark when the reader had everything. While the mark has this value, the
    /// waker is registered.
    seen: Option<u64>,
}

impl MarkWait {
    /// The wait of a new reader.
    pub fn new(mark: Mark) -> Self {
        Self { mark, place: None, seen: None }
    }

    /// The mark that the reader waits for.
    pub fn mark(&self) -> Mark {
        self.mark
    }

    /// Whether the reader had everything, and the mark has not moved since.
    #[inline]
    pub fn is_pending<T: Watermarks>(&self, on: &Watermarked<T>) -> bool {
        self.seen.is_some_and(|at| at == on.mark(self.mark))
    }

    /// Begins the wait of a reader that has everything. The caller holds the lock; `waker` is woken
    /// when the mark moves.
    pub fn begin(&mut self, value: &mut impl Watermarks, waker: &Waker) {
        let Levels { visible, durable, .. } = value.levels();
        self.place = Some(value.waiters(self.mark).wait(self.place, waker));
        self.seen = Some(if self.mark == Mark::Visible { visible } else { durable });
    }

    /// Ends the wait: the reader checks again, whether or not the mark has moved.
    pub fn end(&mut self) {
        self.seen = None;
    }

    /// Ends the wait and removes the waker. The caller holds the lock.
    pub fn leave(&mut self, value: &mut impl Watermarks) {
        self.seen = None;
        value.waiters(self.mark).leave(self.place.take());
    }
}

#[cfg(all(test, loom))]
mod tests;
