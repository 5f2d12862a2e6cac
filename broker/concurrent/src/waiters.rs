//! A set of tasks that one event wakes.

use std::task::Waker;

use slab::Slab;

use crate::mutants::{self, Mutant};
use crate::sync::Mutex;

/// Tasks that one event wakes, all at once. A lock protects the set.
#[derive(Debug, Default)]
pub struct Waiters {
    waiting: Slab<Waker>,
    /// Rises whenever all wakers are taken. A place is valid only in its own epoch.
    epoch: u64,
    /// The value of their mark when the wakers were last taken.
    mark: u64,
}

/// The place of a task's waker in a set.
#[derive(Debug, Clone, Copy)]
pub struct WaiterSlot {
    epoch: u64,
    key: usize,
}

impl Waiters {
    /// Registers `waker`, to be woken once, unless it is already registered at `place`.
    pub fn wait(&mut self, place: Option<WaiterSlot>, waker: &Waker) -> WaiterSlot {
        match place {
            Some(place) if place.epoch == self.epoch => place,
            _ => WaiterSlot { epoch: self.epoch, key: self.waiting.insert(waker.clone()) },
        }
    }

    /// Removes the waker at `place`, if it is still registered.
    pub fn leave(&mut self, place: Option<WaiterSlot>) {
        if let Some(place) = place.filter(|place| place.epoch == self.epoch) {
            self.waiting.remove(place.key);
        }
    }

    /// Takes all wakers, so that they can be woken without the lock.
    pub fn take(&mut self) -> Slab<Waker> {
        if self.waiting.is_empty() {
            return Slab::new();
        }
        self.epoch += 1;
        std::mem::take(&mut self.waiting)
    }

    /// Takes all wakers if their mark has moved since the last call; otherwise none. A task that
    /// has found its mark unmoved relies on its waker staying here.
    pub fn take_if_moved(&mut self, mark: u64) -> Slab<Waker> {
        let has_moved = std::mem::replace(&mut self.mark, mark) != mark;
        if has_moved { self.take() } else { Slab::new() }
    }

    /// Returns the memory of [`take`](Self::take) for reuse.
    pub fn recycle(&mut self, woken: Slab<Waker>) {
        if self.waiting.is_empty() && self.waiting.capacity() < woken.capacity() {
            self.waiting = woken;
        }
    }
}

/// The tasks that wait for a topic that does not exist yet. One set serves all names, because few
/// topics are ever created.
#[derive(Debug, Default)]
pub struct NewTopicWaiters(Mutex<Waiters>);

impl NewTopicWaiters {
    /// Returns what `look` finds. If it finds nothing, `waker` is registered at `place`, and the
    /// next [`wake_all`](Self::wake_all) wakes it.
    pub fn find_or_wait<T>(
        &self,
        place: &mut Option<WaiterSlot>,
        waker: &Waker,
        look: impl FnOnce() -> Option<T>,
    ) -> Option<T> {
        let is_late = mutants::is(Mutant::RegistersLate);
        if !is_late {
            // Register before the search, so that a topic created in between wakes the task.
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

    fn register(&self, place: Option<WaiterSlot>, waker: &Waker) -> WaiterSlot {
        let mut waiters = self.0.lock();
        // The task may have another waker by now.
        waiters.leave(place);
        waiters.wait(None, waker)
    }

    /// Stops waiting.
    pub fn leave(&self, place: Option<WaiterSlot>) {
        self.0.lock().leave(place);
    }

    /// Wakes all tasks. Call it once the topic can be found.
    pub fn wake_all(&self) {
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
    use crate::model::{assert_finds, check};

    /// A subscriber waits for a topic, while two topics are created.
    fn arrivals() {
        let shared = Arc::new((NewTopicWaiters::default(), Mutex::new(Vec::new())));
        let maker = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (arrivals, topics) = &*shared;
                for topic in ["other", "wanted"] {
                    topics.lock().push(topic);
                    arrivals.wake_all();
                }
            })
        };
        let (arrivals, topics) = &*shared;
        let mut place = None;
        block_on(poll_fn(|cx| {
            let look = || topics.lock().contains(&"wanted").then_some(());
            let found = arrivals.find_or_wait(&mut place, cx.waker(), look);
            if found.is_some() { Poll::Ready(()) } else { Poll::Pending }
        }));
        assert!(place.is_none());
        maker.join().expect("no thread of the model panics");
    }

    #[test]
    fn a_new_topic_wakes_the_task_that_waits_for_it() {
        check(arrivals);
    }

    #[test]
    fn a_waker_registered_after_the_search_is_found() {
        assert_finds(Mutant::RegistersLate, arrivals, "deadlock");
    }
}
