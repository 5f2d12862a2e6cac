//! Turns: which keys are free, which entry each offers, and under which class.

use super::key_queue::{KeyQueue, NextEntry};
use super::keys::KeyId;
use super::release_order::{Pin, ReadyClass};
use super::{Frontier, Wake};
use crate::jobs::Jobs;
use crate::moment::Moment;
use crate::mutants::{self, Mutant};

/// What decides about the turns of a key, besides the frontier itself.
#[derive(Debug)]
pub(crate) struct Turns<'a> {
    /// Their state and budgets decide which of them may release.
    pub(crate) jobs: &'a Jobs,
    /// Requests in flight per key.
    pub(crate) parallel: u32,
    /// The present moment.
    pub(crate) now: Moment,
}

impl Frontier {
    /// Updates whether a key is free and what it offers. Called after everything that may have
    /// changed this, also for keys that may have been removed since.
    pub(crate) fn refresh(&mut self, key: KeyId, turns: &Turns<'_>) {
        let Some(queue) = self.keys.get_mut(key) else { return };
        let is_forgettable = queue.forgettable_at().is_some_and(|at| at <= turns.now);
        let wake_at =
            queue.wake_at().filter(|at| *at > turns.now && !mutants::is(Mutant::NeverWakes));
        if queue.timer != wake_at {
            if let Some(at) = std::mem::replace(&mut queue.timer, wake_at) {
                self.wakes.cancel(at, Wake::Key(key));
            }
            if let Some(at) = wake_at {
                self.wakes.set(at, Wake::Key(key));
            }
        }
        if is_forgettable {
            self.keys.remove(key);
            self.loading.remove(&key);
            return self.ready.set_class(key, None, &mut self.rng);
        }
        self.offer(key, turns);
    }

    /// Offers a key for release under the class of its next entry, if it is free.
    pub(crate) fn offer(&mut self, key: KeyId, turns: &Turns<'_>) {
        if !self.loading.contains_key(&key) {
            let place = self.place_of(key, turns);
            self.ready.set_class(key, place, &mut self.rng);
        }
    }

    /// Offers a key whose next entry was just read, so that it goes first in its class: its turn
    /// had come when the read began.
    pub(crate) fn offer_next(&mut self, key: KeyId, turns: &Turns<'_>) {
        if self.keys.get_mut(key).is_some()
            && let Some(place) = self.place_of(key, turns)
        {
            self.ready.set_next(key, place);
        }
    }

    fn place_of(&self, key: KeyId, turns: &Turns<'_>) -> Option<ReadyClass> {
        let queue = &self.keys[key];
        let is_free = queue.is_free(turns.now, turns.parallel);
        let next = if is_free { next_entry(queue, turns.jobs) } else { None };
        next.map(|next| self.ready_class(next))
    }

    /// Reports whether a key only waits for a member's credit, or for a text that is being read.
    pub(crate) fn is_offered(&self, key: KeyId) -> bool {
        self.ready.offers(key) || self.loading.contains_key(&key)
    }

    fn ready_class(&self, NextEntry { entry, lane, prio }: NextEntry) -> ReadyClass {
        let Some(live) = self.active.get(&entry) else {
            return ReadyClass::Any(lane, prio);
        };
        let entry = &live.entry;
        if let Some(again) = &entry.again {
            ReadyClass::Pinned(Pin { member: again.member, suspect: entry.is_suspect() })
        } else if entry.is_suspect() {
            ReadyClass::Suspect(lane)
        } else {
            ReadyClass::Any(lane, entry.admitted.prio)
        }
    }
}

/// Returns the entry that a key would release next.
pub(crate) fn next_entry(queue: &KeyQueue, jobs: &Jobs) -> Option<NextEntry> {
    let job = |number| jobs.find(number);
    queue.next(|number| job(number).is_none_or(|job| job.may_release_on(queue.name())))
}
