//! Turns: which keys are free, which entry each offers, and under which class.

use super::entry_text::DormantRef;
use super::key_queue::{KeyQueue, NextEntry};
use super::keys::KeyId;
use super::release_order::{Pin, Rank, ReadyClass};
use super::{Frontier, Wake};
use crate::jobs::Jobs;
use crate::moment::Moment;
use crate::mutants::{self, Mutant};

/// What the frontier needs from the group to decide the turns of a key.
#[derive(Debug)]
pub(crate) struct Turns<'a> {
    /// Their state and budgets decide which of them may release.
    pub(crate) jobs: &'a Jobs,
    /// Requests in flight per key.
    pub(crate) parallel: u32,
    /// Whether the oldest entry goes first, because the group has no keys.
    pub(crate) is_by_age: bool,
    /// The present moment.
    pub(crate) now: Moment,
}

impl Frontier {
    /// Updates whether a key is free and what it offers. Called after everything that may have
    /// changed this, also for keys that may have been removed since.
    pub(crate) fn refresh(&mut self, key: KeyId, turns: &Turns<'_>) {
        let Some(queue) = self.keys.get_mut(key) else { return };
        let is_forgettable = queue.forgettable_at().is_some_and(|at| at <= turns.now);
        let wake_at = queue
            .wake_at(turns.now)
            .filter(|at| *at > turns.now && !mutants::is(Mutant::NeverWakes));
        if queue.timer != wake_at {
            if let Some(at) = std::mem::replace(&mut queue.timer, wake_at) {
                self.wakes.cancel(at, Wake::Key(key));
            }
            if let Some(at) = wake_at {
                self.wakes.set(at, Wake::Key(key));
            }
        }
        let is_down = queue.is_down() && queue.has_waiting();
        let was_down = std::mem::replace(&mut queue.is_counted_down, is_down);
        self.keys_down = self.keys_down + usize::from(is_down) - usize::from(was_down);
        if is_forgettable {
            self.keys.remove(key);
            self.loading.iter_mut().for_each(|loading| loading.end(key));
            return self.set_classes(key, None, None);
        }
        self.offer(key, turns);
    }

    /// Offers a key for release under the classes of its next entries, if it is free.
    pub(crate) fn offer(&mut self, key: KeyId, turns: &Turns<'_>) {
        let place = self.place_of(key, false, turns);
        let has_rendered = self.keys[key].has_rendered();
        let rendered = if has_rendered { self.place_of(key, true, turns) } else { None };
        self.set_classes(key, place, rendered);
    }

    /// Lists a key under the classes of its next entries: any, and that which needs a browser.
    fn set_classes(&mut self, key: KeyId, any: Option<ReadyClass>, rendered: Option<ReadyClass>) {
        let [ready, ready_rendered] = &mut self.ready;
        ready.set_class(key, any, &mut self.rng);
        ready_rendered.set_class(key, rendered, &mut self.rng);
    }

    /// Offers the key of an entry after its text was read. The key goes first in its class, because
    /// its turn had come when the read began.
    pub(crate) fn offer_next(&mut self, dormant: DormantRef, turns: &Turns<'_>) {
        let (key, render) = (dormant.key, dormant.needs_render());
        if self.keys.get_mut(key).is_some()
            && let Some(place) = self.place_of(key, render, turns)
        {
            self.ready[usize::from(render)].set_next(key, place);
        }
    }

    fn place_of(&self, key: KeyId, render: bool, turns: &Turns<'_>) -> Option<ReadyClass> {
        let queue = &self.keys[key];
        let is_held_back = !render && mutants::is(Mutant::RenderHoldsBack) && queue.has_rendered();
        let is_free = !is_held_back
            && !self.loading(render).contains(key)
            && queue.is_free(turns.now, turns.parallel);
        let next = if is_free { next_entry(queue, render, turns.jobs) } else { None };
        next.filter(|next| queue.circuit_lets_pass(next.entry, turns.now))
            .map(|next| self.ready_class(next, turns.is_by_age))
    }

    /// Reports whether the next entry of a key only waits for a member's credit, or for its text,
    /// which is being read. With `render`, this is about its next entry that needs a browser.
    pub(crate) fn is_offered(&self, key: KeyId, render: bool) -> bool {
        self.ready(render).offers(key) || self.loading(render).contains(key)
    }

    fn ready_class(
        &self,
        NextEntry { entry: id, lane, prio }: NextEntry,
        is_by_age: bool,
    ) -> ReadyClass {
        let rank = |prio| Rank::new(prio, is_by_age.then_some(id));
        let Some(live) = self.active.get(&id) else {
            return ReadyClass::Any(lane, rank(prio));
        };
        let entry = &live.entry;
        if let Some(again) = &entry.again {
            ReadyClass::Pinned(Pin { member: again.member, suspect: entry.is_suspect() })
        } else if entry.is_suspect() {
            ReadyClass::Suspect(lane)
        } else {
            ReadyClass::Any(lane, rank(entry.admitted.prio))
        }
    }
}

/// Returns the entry that a key would release next, of those that need a browser or of the others.
pub(crate) fn next_entry(queue: &KeyQueue, render: bool, jobs: &Jobs) -> Option<NextEntry> {
    let job = |number| jobs.find(number);
    queue.next(render, |number| job(number).is_none_or(|job| job.may_release_on(queue.name())))
}
