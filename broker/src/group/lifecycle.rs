//! An entry's way through the group: let in, released, given back, lost; how it ends is in
//! [`endings`](super::endings). Part of applying decisions, like [`apply`](super::apply): nothing here
//! decides anything.

use tidings_protocol::{CanonicalUrl, MemberId, UrlKey};

use super::Group;
use super::admit::merged;
use super::entry::{Admission, Entry, EntryId, JobNumber, JobRef, Key, Lease, Live, State};
use super::key_queue::Lane;
use super::keys::KeyId;
use super::mutants::{self, Mutant};
use super::parked::{Glance, Parked, Parking};
use super::record::{Back, Rest};
use super::runs::PackedLane;
use super::timers::{Expiry, Wake};
use crate::clock::Moment;
use crate::job::Job;

impl Group {
    /// Lets an entry in.
    pub(super) fn admit(&mut self, admission: &Admission, now: Moment) {
        if let Some(lane) = self.admit_unless_parked(admission, now) {
            self.park_and_refresh(&[(admission, lane)], now);
        }
    }

    /// Lets in what was let in together, which takes less time than one by one.
    pub(super) fn admit_all<'a>(
        &mut self,
        admissions: impl IntoIterator<Item = &'a Admission>,
        now: Moment,
    ) {
        let parked = admissions.into_iter().filter_map(|admission| {
            let lane = self.admit_unless_parked(admission, now)?;
            Some((admission, lane))
        });
        let parked: Vec<_> = parked.collect();
        self.park_and_refresh(&parked, now);
    }

    /// Lets an entry in, except that it is still to be parked if it is in a lane that is returned.
    fn admit_unless_parked(&mut self, admission: &Admission, now: Moment) -> Option<PackedLane> {
        let id = admission.id;
        self.last_entry = self.last_entry.max(id);
        let parks = Parked::takes(admission, lane_of(admission), now);
        if let Some(pass) = admission.job {
            self.forget_heads(pass.number);
        }
        if let Some(pass) = admission.job
            && let Some(job) = self.jobs.find_mut(pass.number)
        {
            job.counts.found += 1;
            // A seed's redirect keeps the seed's depth, and lets its target's host in.
            if admission.depth == 0
                && job.scope.has_rule()
                && let Ok(url) = CanonicalUrl::parse(&admission.text)
            {
                job.scope.admit(&url);
            }
        }
        if parks.is_some() {
            return parks;
        }
        if let Some(job) = admission.job.and_then(|job| self.jobs.find_mut(job.number)) {
            job.wait(id, &admission.key);
        }
        self.insert(Entry::new(admission.clone()));
        self.enqueue(id, now);
        None
    }

    /// A job is not done when what was noted is taken, as something of it waits again. One that is held
    /// waits for just that.
    pub(super) fn forget_heads(&mut self, number: JobNumber) {
        if let Some(job) = self.jobs.find_mut(number)
            && !job.is_held()
        {
            job.noted = None;
            self.noted.remove(&number);
        }
    }

    fn park_and_refresh(&mut self, some: &[Parking<'_>], now: Moment) {
        for key in self.park(some) {
            self.refresh(key, now);
        }
    }

    /// Parks entries that only wait. Returns the keys that are to be refreshed.
    pub(super) fn park(&mut self, some: &[Parking<'_>]) -> Vec<KeyId> {
        for (admission, _) in some {
            if let Some(job) = admission.job.and_then(|job| self.jobs.find_mut(job.number)) {
                job.park(&admission.key);
            }
        }
        self.parked.park(some, &mut self.keys)
    }

    /// Keeps an entry in full that is with nobody.
    pub(super) fn insert(&mut self, entry: Entry) {
        let key = self.keys.intern(&entry.admitted.key);
        self.insert_behind(key, entry);
    }

    pub(super) fn insert_behind(&mut self, key: KeyId, entry: Entry) {
        self.unhold(entry.admitted.url_key, entry.admitted.id);
        self.insert_unnoticed(key, entry);
    }

    /// Keeps an entry in full, which no announcement is to find: it goes to a member at once, or the
    /// caller sees to it.
    fn insert_unnoticed(&mut self, key: KeyId, entry: Entry) {
        let admitted = &entry.admitted;
        let id = admitted.id;
        if let (Some(pass), Some(url)) = (admitted.job, admitted.url_key) {
            self.seen.add(pass, url.print());
        }
        self.live_bytes += admitted.bytes();
        self.keys[key].acquire();
        let again = entry.again.as_ref().map(|again| self.keys.intern(&again.key));
        if let Some(again) = again {
            self.keys[again].acquire();
        }
        self.live.insert(id, Box::new(Live { entry, key, again }));
    }

    /// An entry is no more. Its keys are to be let go of.
    pub(super) fn remove(&mut self, id: EntryId) -> Live {
        let live = *self.live.remove(&id).expect("an entry that ends is there");
        self.live_bytes -= live.entry.admitted.bytes();
        live
    }

    /// An entry that is no more named these.
    pub(super) fn let_go(&mut self, key: KeyId, again: Option<KeyId>, now: Moment) {
        for key in std::iter::once(key).chain(again) {
            self.keys[key].release();
        }
        for key in std::iter::once(key).chain(again) {
            self.refresh(key, now);
        }
    }

    /// A parked entry is kept in full from now on, stands in no queue, and is found by no announcement.
    /// Its key is to be refreshed.
    fn unpark(&mut self, glance: Glance) {
        self.keep_in_snapshot(glance);
        let job = glance.job().and_then(|job| self.jobs.find_mut(job));
        let queue = &mut self.keys[glance.key];
        let pass = job.map(|job| {
            job.unpark(glance.id, queue.name());
            job.id
        });
        let admission = self.parked.unpark(glance, queue, pass);
        self.insert_unnoticed(glance.key, Entry::new(admission));
    }

    /// Takes an entry without a member out of its queue, off its timer, or out of where it is parked.
    /// Returns the key that is to be refreshed.
    pub(super) fn take_out(&mut self, id: EntryId) -> KeyId {
        if let Some(glance) = self.parked.find(id) {
            self.unpark(glance);
            self.unhold(self.live[&id].entry.admitted.url_key, id);
            return glance.key;
        }
        self.dequeue(id)
    }

    /// The same for one in full.
    fn dequeue(&mut self, id: EntryId) -> KeyId {
        let live = self.live.get_mut(&id).expect("an entry without a member is there");
        let (entry, gate) = (&mut live.entry, live.again.unwrap_or(live.key));
        match entry.state {
            State::Delayed => self.wakes.cancel(entry.admitted.due, Wake::Due(id)),
            State::Waiting => {
                let admitted = &entry.admitted;
                self.keys[gate].remove(id, lane_of(admitted), admitted.prio);
                entry.state = State::Delayed;
            }
            State::Held(_) => unreachable!("an entry with a member is in no queue"),
        }
        gate
    }

    /// Puts a due entry into its key's queue, and a later one on a timer.
    pub(super) fn enqueue(&mut self, id: EntryId, now: Moment) {
        let Some(live) = self.live.get_mut(&id) else { return };
        let gate = live.gate();
        let entry = &mut live.entry;
        if entry.lease().is_some() || entry.state == State::Waiting {
            return;
        }
        if entry.admitted.due > now && !mutants::is(Mutant::BeforeDue) {
            self.wakes.set(entry.admitted.due, Wake::Due(id));
            // Its key is not to be forgotten meanwhile.
            return self.refresh(gate, now);
        }
        entry.state = State::Waiting;
        // When it was due says nothing any more.
        entry.admitted.due = Moment(0);
        self.clock_times.forget(id);
        let (lane, prio) = (lane_of(&entry.admitted), entry.admitted.prio);
        let queue = &mut self.keys[gate];
        if goes_to_the_head(entry) {
            queue.push_head(id, lane, entry.again.is_some());
        } else {
            queue.push(id, lane, prio);
        }
        self.refresh(gate, now);
    }

    /// A waiting entry takes the better of what it has and what an event asks for, and the attributes of the event, which
    /// is the later one, unless it cannot hold them beside its own.
    pub(super) fn improve(
        &mut self,
        id: EntryId,
        announced: bool,
        (prio, due, carried): (i16, Moment, &str),
        now: Moment,
    ) {
        let gate = self.take_out(id);
        let admitted = &mut self.entry_mut(id).admitted;
        if !carried.is_empty()
            && let Some(all) = merged(carried, &admitted.carried)
        {
            let before = admitted.bytes();
            admitted.carried = all.into();
            let after = admitted.bytes();
            self.live_bytes = self.live_bytes + after - before;
        }
        let admitted = &mut self.entry_mut(id).admitted;
        let is_earlier = due < admitted.due;
        admitted.announced |= announced;
        admitted.prio = admitted.prio.max(prio);
        if !mutants::is(Mutant::StaysLate) {
            admitted.due = admitted.due.min(due);
        }
        if is_earlier {
            self.clock_times.forget(id);
        }
        self.enqueue(id, now);
        self.refresh(gate, now);
    }

    pub(super) fn apply_release(&mut self, id: EntryId, lease: Lease, now: Moment) {
        let gate = if let Some(glance) = self.parked.find(id) {
            self.unpark(glance);
            glance.key
        } else {
            self.rehold(self.live[&id].entry.admitted.url_key, id);
            self.dequeue(id)
        };
        let Live { entry, key, .. } = &mut **self.live.get_mut(&id).expect("it was taken out");
        let key = *key;
        entry.state = State::Held(lease);
        entry.releases += 1;
        let (lane, suspect) = (lane_of(&entry.admitted), entry.is_suspect());
        let job = entry.admitted.job;
        let pinned_to = entry.again.as_ref().map(|again| again.member);
        self.forget_pin(pinned_to, id, job, key, now);
        self.ready.served(lane);
        self.members.hold(lease.member, id, suspect);
        self.expiries.set(lease.until, Expiry::Lease(id));
        self.keys[gate].released(lane, lease.member);
        self.refresh(gate, now);
        if let Some(job) = job {
            self.change_job(job.number, key, now, |job, key| job.take(id, key));
        }
    }

    pub(super) fn apply_touch(
        &mut self,
        id: EntryId,
        until: Moment,
        over: bool,
        rest: Rest,
        now: Moment,
    ) {
        let gate = if over {
            self.end_request(id, rest, true, now)
        } else {
            let gate = self.live[&id].gate();
            self.keys[gate].hold(now, rest);
            gate
        };
        if let State::Held(lease) = &mut self.entry_mut(id).state {
            let before = std::mem::replace(&mut lease.until, until);
            lease.over |= over;
            self.expiries.cancel(before, Expiry::Lease(id));
            self.expiries.set(until, Expiry::Lease(id));
        }
        self.refresh(gate, now);
    }

    pub(super) fn apply_return(
        &mut self,
        id: EntryId,
        back: &Back,
        rest: Rest,
        reason: Option<Box<str>>,
        now: Moment,
    ) {
        let was_made = !matches!(back, Back::Uncounted { .. });
        let gate = self.end_request(id, rest, was_made, now);
        self.take_from_member(id, now);
        self.forget_again(id);
        let Live { entry, key, again: again_key } =
            &mut **self.live.get_mut(&id).expect("a returned entry is there");
        match back {
            Back::Retry { due } => {
                entry.failures += 1;
                entry.agains = 0;
                entry.admitted.due = *due;
                entry.last_reason = reason;
            }
            Back::Uncounted { due } => entry.admitted.due = *due,
            Back::Again(again) => {
                entry.agains += 1;
                entry.admitted.due = now;
                entry.again = Some(again.clone());
                let gate = self.keys.intern(&again.key);
                self.keys[gate].acquire();
                *again_key = Some(gate);
                let (job, key) = (entry.admitted.job, *key);
                self.pinned.entry(again.member).or_default().insert(id);
                if let Some(job) = job {
                    self.change_job(job.number, key, now, Job::pin);
                }
            }
        }
        self.enqueue(id, now);
        self.refresh(gate, now);
    }

    pub(super) fn apply_loss(&mut self, id: EntryId, now: Moment) {
        let rests = !mutants::is(Mutant::NoRestAfterLoss);
        let gate = self.end_request(id, Rest::default(), rests, now);
        self.take_from_member(id, now);
        self.forget_again(id);
        let entry = self.entry_mut(id);
        entry.losses += 1;
        entry.last_reason = Some("lost with its member".into());
        entry.agains = 0;
        entry.admitted.due = now;
        self.totals.lost += 1;
        self.enqueue(id, now);
        self.refresh(gate, now);
    }

    /// An entry forgets its `again`, and begins with its own request.
    pub(super) fn start_over(&mut self, id: EntryId, now: Moment) {
        let gate = self.take_out(id);
        let key = self.live[&id].key;
        let entry = self.entry_mut(id);
        entry.agains = 0;
        let (job, again) = (entry.admitted.job, entry.again.as_ref());
        let pinned_to = again.map(|again| again.member);
        self.forget_again(id);
        self.forget_pin(pinned_to, id, job, key, now);
        self.enqueue(id, now);
        self.refresh(gate, now);
    }

    /// The next request of an entry is its own. The key that gated it is to be refreshed.
    fn forget_again(&mut self, id: EntryId) {
        let live = self.live.get_mut(&id).expect("an entry without a member is there");
        live.entry.again = None;
        if let Some(gate) = live.again.take() {
            self.keys[gate].release();
        }
    }

    /// The key forgets a task, and rests if a request was `made`. Does nothing more than hold the
    /// key if the worker had declared the request over before. Returns the key, which is to be refreshed.
    pub(super) fn end_request(
        &mut self,
        id: EntryId,
        rest: Rest,
        made: bool,
        now: Moment,
    ) -> KeyId {
        let live = &self.live[&id];
        let gate = live.gate();
        let over = live.entry.lease().is_some_and(|lease| lease.over);
        let queue = &mut self.keys[gate];
        match (over, made) {
            (true, _) => queue.hold(now, rest),
            (false, true) => {
                let delay_ms = self.config.delay_of(queue.name());
                queue.ended(now, delay_ms, rest);
            }
            (false, false) => {
                queue.unmade();
                queue.hold(now, rest);
            }
        }
        gate
    }

    /// An entry is with nobody; it waits for `enqueue`.
    fn take_from_member(&mut self, id: EntryId, now: Moment) {
        let key = self.live[&id].key;
        let entry = self.entry_mut(id);
        let State::Held(lease) = entry.state else { return };
        let suspect = entry.is_suspect();
        entry.state = State::Delayed;
        let (job, url_key) = (entry.admitted.job, entry.admitted.url_key);
        self.expiries.cancel(lease.until, Expiry::Lease(id));
        self.members.release(lease.member, id, suspect);
        self.unhold(url_key, id);
        if let Some(job) = job {
            self.change_job(job.number, key, now, |job, key| job.give_back(id, key));
        }
    }

    /// Entries in full, by number.
    pub(super) fn live_ids(&self) -> Vec<EntryId> {
        let mut ids: Vec<EntryId> = self.live.keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    /// Changes a job, on account of an entry of this key; whether its budgets let anything go out
    /// may change with it.
    pub(super) fn change_job(
        &mut self,
        number: JobNumber,
        key: KeyId,
        now: Moment,
        change: impl FnOnce(&mut Job, &Key),
    ) {
        if let Some(job) = self.jobs.find_mut(number) {
            change(job, self.keys[key].name());
            self.ready.block(number, job.is_blocked());
            if job.limits_hosts() {
                self.refresh(key, now);
            }
        }
    }

    /// An entry does not wait for its member's next request any more.
    pub(super) fn forget_pin(
        &mut self,
        member: Option<MemberId>,
        id: EntryId,
        job: Option<JobRef>,
        key: KeyId,
        now: Moment,
    ) {
        let Some(member) = member else { return };
        let Some(pinned) = self.pinned.get_mut(&member) else { return };
        let was_pinned = pinned.remove(&id);
        if pinned.is_empty() {
            self.pinned.remove(&member);
        }
        if let Some(job) = job
            && was_pinned
        {
            self.change_job(job.number, key, now, Job::unpin);
        }
    }

    fn unhold(&mut self, url: Option<UrlKey>, id: EntryId) {
        if let Some(url) = url {
            let entries = self.unheld.entry(url.print()).or_default();
            if let Err(at) = entries.binary_search(&id) {
                entries.insert(at, id);
            }
        }
    }

    pub(super) fn rehold(&mut self, url: Option<UrlKey>, id: EntryId) {
        if let Some(url) = url
            && let Some(entries) = self.unheld.get_mut(&url.print())
        {
            entries.retain(|entry| *entry != id);
            if entries.is_empty() {
                self.unheld.remove(&url.print());
            }
        }
    }

    pub(super) fn entry_mut(&mut self, id: EntryId) -> &mut Entry {
        &mut self.live.get_mut(&id).expect("an entry that is changed is there").entry
    }
}

/// The lane in which an entry takes its turn.
pub(super) fn lane_of(admitted: &Admission) -> Lane {
    match admitted.job {
        _ if admitted.announced => Lane::Announced,
        job => Lane::Job(job.map_or(super::schedule::SCHEDULES, |job| job.number)),
    }
}

/// A redirect's target goes on where the redirect stood, and so does the second request of a task.
fn goes_to_the_head(entry: &Entry) -> bool {
    entry.again.is_some() || (entry.admitted.redirect && entry.releases == 0)
}
