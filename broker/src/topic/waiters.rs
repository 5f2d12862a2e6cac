//! Who waits for a mark to move.

use std::task::Waker;

use parking_lot::Mutex;
use slab::Slab;

/// Tasks that are woken, all of them at once, when something has happened.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    waiting: Slab<Waker>,
    /// Rises when all are taken: a place is valid in its own epoch only.
    epoch: u64,
}

/// The place of a task among those that wait.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    epoch: u64,
    key: usize,
}

impl Waiters {
    /// Has `waker` woken once.
    pub(super) fn wait(&mut self, place: Option<Place>, waker: &Waker) -> Place {
        match place {
            Some(place) if place.epoch == self.epoch => place,
            _ => Place { epoch: self.epoch, key: self.waiting.insert(waker.clone()) },
        }
    }

    /// Waits no longer.
    pub(super) fn leave(&mut self, place: Option<Place>) {
        if let Some(place) = place.filter(|place| place.epoch == self.epoch) {
            self.waiting.remove(place.key);
        }
    }

    /// Takes all who wait, for being woken without a lock.
    pub(super) fn take(&mut self) -> Slab<Waker> {
        if self.waiting.is_empty() {
            return Slab::new();
        }
        self.epoch += 1;
        std::mem::take(&mut self.waiting)
    }

    /// Gives the memory of [`take`](Self::take) back for the next time.
    pub(super) fn give_back(&mut self, woken: Slab<Waker>) {
        if self.waiting.is_empty() && self.waiting.capacity() < woken.capacity() {
            self.waiting = woken;
        }
    }
}

/// Those who wait for a topic that is not there yet, whichever it is: topics are few, and seldom made.
#[derive(Debug, Default)]
pub(crate) struct Arrivals(Mutex<Waiters>);

impl Arrivals {
    /// Has `waker` woken when the next topic comes into being. Who looks for one looks behind this.
    pub(crate) fn wait(&self, place: Option<Place>, waker: &Waker) -> Place {
        let mut waiters = self.0.lock();
        // The task may have another waker by now.
        waiters.leave(place);
        waiters.wait(None, waker)
    }

    /// Waits no longer.
    pub(crate) fn leave(&self, place: Option<Place>) {
        self.0.lock().leave(place);
    }

    /// There is a new topic.
    pub(super) fn tell(&self) {
        let woken = self.0.lock().take();
        for (_, waker) in woken {
            waker.wake();
        }
    }
}
