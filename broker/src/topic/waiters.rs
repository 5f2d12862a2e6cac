//! Who waits for a mark to move.

use std::task::Waker;

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
