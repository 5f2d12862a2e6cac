//! Release: which keys are free, which entry each offers, and which member receives it.

use tidings_protocol::KeyRest;

use super::Group;
use super::dormant::DormantRef;
use super::entry::{EndReason, EntryId, RecordedRest};
use super::key_queue::{CLOCK_GRAIN_MS, KeyQueue, Lane, NextEntry};
use super::keys::KeyId;
use super::leases::Member;
use super::lifecycle::lane_of;
use super::mutants::{self, Mutant};
use super::prefetch::PREFETCH_BATCH;
use super::record::Decision;
use super::release_order::{Pin, ReadyClass};
use super::timers::Wake;
use crate::moment::Moment;

impl Group {
    /// Releases while there is a free key and a member with credit for it.
    pub(super) fn release_all(&mut self, now: Moment) {
        if self.quiet_until.is_some_and(|until| now < until) {
            return;
        }
        self.quiet_until = None;
        // Texts that must be read, and how many more may be.
        let (mut missing, mut room) = (Vec::new(), None);
        for released in 0_usize.. {
            if self.is_paused {
                break;
            }
            let members = self.leases.members();
            let Some((key, place)) = self.ready.next(members) else {
                break;
            };
            if released.is_multiple_of(PREFETCH_BATCH) {
                self.prefetch_keys(self.ready.upcoming(place, PREFETCH_BATCH));
            }
            let queue = &self.keys[key];
            let id = self.next_entry(queue).expect("a ready key has a next entry").entry;
            if let Some(dormant) = self.dormant_to_read(id) {
                if missing.len() >= *room.get_or_insert_with(|| self.loading_room()) {
                    break;
                }
                missing.push(self.begin_loading(key, dormant));
                continue;
            }
            let member = match place {
                ReadyClass::Pinned(pin) => Some(pin.member),
                ReadyClass::Suspect(_) => members.choose(queue.last_member(), true),
                ReadyClass::Any(..) => members.choose(queue.last_member(), false),
            };
            if self.must_leave_job(id) {
                self.commit(Decision::Ended { entries: vec![id], end: EndReason::Budget }, now);
                continue;
            }
            let member = member.expect("a member with free credit was found for this class");
            let conn = members.find(member).and_then(Member::conn);
            let until = now + self.config.lease_ms;
            self.commit(Decision::Released { entry: id, member, until }, now);
            self.send_task(id, conn.expect("a member with free credit is connected"), now);
        }
        for missing in missing.chunks(PREFETCH_BATCH) {
            self.request_texts(missing.to_vec());
        }
    }

    /// Returns the entry if it is dormant and its text must be read before it is released.
    fn dormant_to_read(&self, id: EntryId) -> Option<DormantRef> {
        if !self.dormant.has_stored_texts() {
            return None;
        }
        self.dormant.find(id).filter(|dormant| self.dormant.must_read(*dormant))
    }

    /// Reports whether an announced entry is next while its job may not release anything. It is
    /// then released without the job, which has no page left.
    fn must_leave_job(&self, id: EntryId) -> bool {
        // An announced entry that is dormant has no job.
        let Some(live) = self.active.get(&id) else { return false };
        let entry = &live.entry;
        let job = entry.admitted.job.and_then(|job| self.jobs.find(job.number));
        lane_of(&entry.admitted) == Lane::Announced
            && entry.again.is_none()
            && job.is_some_and(|job| job.is_blocked_on(&entry.admitted.key))
    }

    /// Limits the rest that a worker requests for a key, and converts it to moments.
    pub(super) fn capped_rest(&self, hold: KeyRest, now: Moment) -> RecordedRest {
        let not_before_ms = hold.not_before_ms.map(|ms| ms.min(self.config.not_before_ms_max));
        RecordedRest {
            not_before: not_before_ms.map(|ms| now + ms + CLOCK_GRAIN_MS),
            pace_ms: hold.pace_ms.map(|ms| ms.min(self.config.pace_ms_max)),
        }
    }

    /// Updates whether a key is free and what it offers. Called after everything that may have
    /// changed this, also for keys that may have been removed since.
    pub(super) fn refresh(&mut self, key: KeyId, now: Moment) {
        let Some(queue) = self.keys.get_mut(key) else { return };
        let is_forgettable = queue.forgettable_at().is_some_and(|at| at <= now);
        let wake_at = queue.wake_at().filter(|at| *at > now && !mutants::is(Mutant::NeverWakes));
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
            self.reads.forget_key(key);
            return self.ready.set_class(key, None, &mut self.rng);
        }
        self.offer(key, now);
    }

    /// Offers a key for release under the class of its next entry, if it is free.
    pub(super) fn offer(&mut self, key: KeyId, now: Moment) {
        if !self.reads.is_loading(key) {
            let place = self.place_of(key, now);
            self.ready.set_class(key, place, &mut self.rng);
        }
    }

    /// Offers a key whose next entry was just read, so that it goes first in its class: its turn
    /// had come when the read began.
    pub(super) fn offer_next(&mut self, key: KeyId, now: Moment) {
        if self.keys.get_mut(key).is_some()
            && let Some(place) = self.place_of(key, now)
        {
            self.ready.set_next(key, place);
        }
    }

    fn place_of(&self, key: KeyId, now: Moment) -> Option<ReadyClass> {
        let queue = &self.keys[key];
        let is_free = queue.is_free(now, self.config.parallel);
        let next = if is_free { self.next_entry(queue) } else { None };
        next.map(|next| self.ready_class(next))
    }

    /// Reports whether a key only waits for a member's credit, or for a text that is being read.
    pub(super) fn is_offered(&self, key: KeyId) -> bool {
        self.ready.offers(key) || self.reads.is_loading(key)
    }

    /// Returns the entry that a key would release next.
    pub(super) fn next_entry(&self, queue: &KeyQueue) -> Option<NextEntry> {
        let job = |number| self.jobs.find(number);
        queue.next(|number| job(number).is_none_or(|job| job.may_release_on(queue.name())))
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
