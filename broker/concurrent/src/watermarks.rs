//! How far a topic has come, read without its lock, and the tasks that wait for that to change.

use std::fmt::Debug;
use std::task::Waker;

use slab::Slab;

use crate::mutants::{self, Mutant};
use crate::sync::{AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering, look, publish};
use crate::waiters::{Place, Waiters};

/// How far a topic has come. Marks are numbers of events, half-open: `visible <= head`, `durable <= head`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Levels {
    /// The next number to be given.
    pub head: u64,
    /// The number after the newest event that subscribers are shown.
    pub visible: u64,
    /// The first number that is not yet as safe as the topic promises, or lost.
    pub durable: u64,
    /// Some events before `durable` were lost.
    pub has_lost: bool,
}

/// A mark that tasks wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// [`Levels::visible`].
    Visible,
    /// [`Levels::durable`].
    Durable,
}

/// A value with watermarks, as its lock protects it. No mark ever goes back.
pub trait Watermarks {
    /// Where the marks are.
    fn levels(&self) -> Levels;

    /// The tasks that are woken when a mark moves.
    fn waiters(&mut self, mark: Mark) -> &mut Waiters;
}

/// A value behind a lock. Its watermarks are read without the lock:
///
/// - A thread that sees a mark sees what was done before the mark moved there.
/// - A thread that looks again never sees a mark further back.
/// - A thread that loads `visible` or `durable`, and then `head`, finds `visible <= head` and `durable <= head`.
/// - A thread that sees a mark behind lost events sees that events were lost.
/// - A task that finds a mark unmoved under the lock, and registers its waker under the same lock, is woken when the mark
///   moves, and sees the new mark then.
#[derive(Debug)]
pub struct Watermarked<T> {
    // Stored under the lock only, so that they do not go back.
    head: AtomicU64,
    visible: AtomicU64,
    durable: AtomicU64,
    has_lost: AtomicBool,
    value: Mutex<T>,
}

impl<T: Watermarks> Watermarked<T> {
    /// A value that nothing waits for yet.
    pub fn new(mut value: T) -> Self {
        let Levels { head, visible, durable, has_lost } = value.levels();
        value.waiters(Mark::Visible).take_at(visible);
        value.waiters(Mark::Durable).take_at(durable);
        Self {
            head: AtomicU64::new(head),
            visible: AtomicU64::new(visible),
            durable: AtomicU64::new(durable),
            has_lost: AtomicBool::new(has_lost),
            value: Mutex::new(value),
        }
    }

    /// Locks the value. A caller that moves a mark hands the lock to [`moved`](Self::moved).
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.value.lock()
    }

    /// After a mark has moved: publishes the marks, unlocks the value, and wakes the tasks that wait for a mark that has
    /// moved, and `others`.
    pub fn moved(&self, mut value: MutexGuard<'_, T>, others: Vec<Waker>) {
        let levels = value.levels();
        if !mutants::is(Mutant::WakesFirst) {
            self.publish(levels);
        }
        let visible = value.waiters(Mark::Visible).take_at(levels.visible);
        let durable = value.waiters(Mark::Durable).take_at(levels.durable);
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
        value.waiters(Mark::Visible).give_back(visible);
        value.waiters(Mark::Durable).give_back(durable);
    }

    fn publish(&self, Levels { head, visible, durable, has_lost }: Levels) {
        // Before the marks that pass lost events. The stores of these order this one.
        if !mutants::is(Mutant::LossLast) {
            self.has_lost.store(has_lost, Ordering::Relaxed);
        }
        // Before the marks that it bounds.
        if !mutants::is(Mutant::HeadLast) {
            publish(&self.head, head);
        }
        publish(&self.visible, visible);
        publish(&self.durable, durable);
        if mutants::is(Mutant::HeadLast) {
            publish(&self.head, head);
        }
        if mutants::is(Mutant::LossLast) {
            self.has_lost.store(has_lost, Ordering::Relaxed);
        }
    }

    /// The next number to be given.
    #[inline]
    pub fn head(&self) -> u64 {
        look(&self.head)
    }

    /// Where a mark is.
    #[inline]
    pub fn mark(&self, mark: Mark) -> u64 {
        match mark {
            Mark::Visible => look(&self.visible),
            Mark::Durable => look(&self.durable),
        }
    }

    /// Where a mark is, and whether an event before it may have been lost.
    #[inline]
    pub fn mark_and_loss(&self, mark: Mark) -> (u64, bool) {
        // In this order: the loss is published before the mark.
        let mark = self.mark(mark);
        (mark, self.has_lost())
    }

    /// Whether events were lost before a mark that this thread has seen.
    #[inline]
    pub fn has_lost(&self) -> bool {
        self.has_lost.load(Ordering::Relaxed)
    }

    /// Registers `waker`, which is woken when `durable` moves; `None` if it is beyond `number` already. A caller that has
    /// registered it before says at which `place`.
    pub fn wait_durable(&self, number: u64, place: Option<Place>, waker: &Waker) -> Option<Place> {
        let value = &mut *self.lock();
        let is_passed = value.levels().durable > number && !mutants::is(Mutant::LooksOnce);
        (!is_passed).then(|| value.waiters(Mark::Durable).wait(place, waker))
    }
}

/// A reader's wait for a mark: whether the reader has to look under the lock at all.
#[derive(Debug)]
pub struct Wait {
    mark: Mark,
    /// Where the waker is registered, if it is.
    place: Option<Place>,
    /// Where the mark was when the reader had everything. As long as it is there, the waker is registered.
    at: Option<u64>,
}

impl Wait {
    /// For a reader that has not looked yet.
    pub fn new(mark: Mark) -> Self {
        Self { mark, place: None, at: None }
    }

    /// Which mark it waits for.
    pub fn mark(&self) -> Mark {
        self.mark
    }

    /// Whether the reader had everything before the mark, and the mark has not moved since.
    #[inline]
    pub fn goes_on<T: Watermarks>(&self, on: &Watermarked<T>) -> bool {
        self.at.is_some_and(|at| at == on.mark(self.mark))
    }

    /// Under the lock: the reader has everything, and `waker` is woken when there is more.
    pub fn begin(&mut self, value: &mut impl Watermarks, waker: &Waker) {
        let Levels { visible, durable, .. } = value.levels();
        self.place = Some(value.waiters(self.mark).wait(self.place, waker));
        self.at = Some(if self.mark == Mark::Visible { visible } else { durable });
    }

    /// The reader looks again, whether the mark has moved or not.
    pub fn end(&mut self) {
        self.at = None;
    }

    /// Under the lock: the waker is not woken any more.
    pub fn leave(&mut self, value: &mut impl Watermarks) {
        self.at = None;
        value.waiters(self.mark).leave(self.place.take());
    }
}

#[cfg(all(test, loom))]
mod models;
