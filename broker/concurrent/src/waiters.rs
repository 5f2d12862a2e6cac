//! A set of tasks that one event wakes.

use std::task::Waker;

use slab::Slab;

use crate::mutants::{self, Mutant};
use crate::sync::Mutex;

/// Tasks that are woken, all of them at once, when something has happened. A lock protects the set.
#[derive(Debug, Default)]
pub struct Waiters {
    waiting: Slab<Waker>,
    /// Rises when all are taken: a place is valid in its own epoch only.
    epoch: u64,
    /// Where the mark that they wait for was when they were taken last.
    mark: u64,
}

/// The place of a task in a set.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    epoch: u64,
    key: usize,
}

impl Waiters {
    /// Registers `waker`, which is woken once, unless it is registered at `place` already.
    pub fn wait(&mut self, place: Option<Place>, waker: &Waker) -> Place {
        match place {
            Some(place) if place.epoch == self.epoch => place,
            _ => Place { epoch: self.epoch, key: self.waiting.insert(waker.clone()) },
        }
    }

    /// Removes the waker at this place, if it was not taken.
    pub fn leave(&mut self, place: Option<Place>) {
        if let Some(place) = place.filter(|place| place.epoch == self.epoch) {
            self.waiting.remove(place.key);
        }
    }

    /// Takes all wakers, for being woken without the lock.
    pub fn take(&mut self) -> Slab<Waker> {
        if self.waiting.is_empty() {
            return Slab::new();
        }
        self.epoch += 1;
        std::mem::take(&mut self.waiting)
    }

    /// The same if they wait for a mark that has moved to `mark` since; otherwise takes none. A task that finds its mark
    /// unmoved relies on its waker being here still.
    pub fn take_at(&mut self, mark: u64) -> Slab<Waker> {
        let has_moved = std::mem::replace(&mut self.mark, mark) != mark;
        if has_moved { self.take() } else { Slab::new() }
    }

    /// Returns the memory of [`take`](Self::take) for the next time.
    pub fn give_back(&mut self, woken: Slab<Waker>) {
        if self.waiting.is_empty() && self.waiting.capacity() < woken.capacity() {
            self.waiting = woken;
        }
    }
}

/// The tasks that wait for a topic that does not exist yet. One set for all names: topics are few, and seldom made.
#[derive(Debug, Default)]
pub struct Arrivals(Mutex<Waiters>);

impl Arrivals {
    /// Returns what `look` finds. If it finds nothing, the next [`announce`](Self::announce) wakes `waker`, which is
    /// registered at `place` then.
    pub fn look<T>(
        &self,
        place: &mut Option<Place>,
        waker: &Waker,
        look: impl FnOnce() -> Option<T>,
    ) -> Option<T> {
        let is_late = mutants::is(Mutant::RegistersLate);
        if !is_late {
            // Before the look, so that what comes between the two wakes the task.
            *place = Some(self.register(*place, waker));
        }
        let found = look();
        if is_late {
            *place = Some(self.register(*place, waker));
        }
        if found.is_some() {
            self.leave(place.take());
        }
        found
    }

    fn register(&self, place: Option<Place>, waker: &Waker) -> Place {
        let mut waiters = self.0.lock();
        // The task may have another waker by now.
        waiters.leave(place);
        waiters.wait(None, waker)
    }

    /// Waits no longer.
    pub fn leave(&self, place: Option<Place>) {
        self.0.lock().leave(place);
    }

    /// Wakes all tasks. To be called when what they look for is there.
    pub fn announce(&self) {
        let woken = self.0.lock().take();
        for (_, waker) in woken {
            waker.wake();
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use std::future::poll_fn;
    use std::task::Poll;

    use loom::future::block_on;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::model::{check, finds};

    /// A subscriber waits for a topic, while two topics are made.
    fn arrivals() {
        let shared = Arc::new((Arrivals::default(), Mutex::new(Vec::new())));
        let maker = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (arrivals, topics) = &*shared;
                for topic in ["other", "wanted"] {
                    topics.lock().push(topic);
                    arrivals.announce();
                }
            })
        };
        let (arrivals, topics) = &*shared;
        let mut place = None;
        block_on(poll_fn(|cx| {
            let look = || topics.lock().contains(&"wanted").then_some(());
            let found = arrivals.look(&mut place, cx.waker(), look);
            if found.is_some() { Poll::Ready(()) } else { Poll::Pending }
        }));
        assert!(place.is_none());
        maker.join().expect("a thread of a model ends");
    }

    #[test]
    fn a_task_never_sleeps_through_the_topic_that_it_waits_for() {
        check(arrivals);
    }

    #[test]
    fn a_waker_that_is_registered_after_the_look_is_found() {
        finds(Mutant::RegistersLate, arrivals, "deadlock");
    }
}
