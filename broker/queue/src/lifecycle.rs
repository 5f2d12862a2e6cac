//! The states of an entry: admitted, released, returned, lost. Its end is in
//! [`endings`](super::endings). Part of applying decisions, like [`apply`](super::apply): nothing
//! here decides anything.

use tidings_protocol::{MemberId, UrlKey};

use super::Group;
use super::admit::merge_attributes;
use super::dormant::{DormantAdmission, DormantEntries, DormantRef};
use super::entry::{
    ActiveEntry, Admission, Entry, EntryId, EntryState, JobNumber, Lease, PassId, RecordedRest,
};
use super::jobs::EntryChange;
use super::key_queue::Lane;
use super::keys::KeyId;
use super::mutants::{self, Mutant};
use super::record::NextStep;
use super::runs::PackedLane;
use super::timers::Wake;
use crate::moment::Moment;

impl Group {
    /// Admits an entry.
    pub(super) fn admit(&mut self, admission: &Admission, now: Moment) {
        if let Some(lane) = self.admit_unless_dormant(admission, now) {
            self.store_dormant_and_refresh(&[(admission, lane)], now);
        }
    }

    /// Admits several entries, faster than one by one.
    pub(super) fn admit_all<'a>(
        &mut self,
        admissions: impl IntoIterator<Item = &'a Admission>,
        now: Moment,
    ) {
        let parked = admissions.into_iter().filter_map(|admission| {
            let lane = self.admit_unless_dormant(admission, now)?;
            Some((admission, lane))
        });
        let parked: Vec<_> = parked.collect();
        self.store_dormant_and_refresh(&parked, now);
    }

    /// Admits an entry, unless it becomes dormant: then returns its lane, and the caller stores it.
    fn admit_unless_dormant(&mut self, admission: &Admission, now: Moment) -> Option<PackedLane> {
        let id = admission.id;
        self.last_entry_id = self.last_entry_id.max(id);
        let parks = DormantEntries::lane_for(admission, lane_of(admission), now);
        if let Some(pass) = admission.job {
            self.jobs.admit(pass.number, admission);
        }
        if parks.is_some() {
            return parks;
        }
        if let Some(pass) = admission.job {
            self.jobs.add_waiting(pass.number, id, &admission.key);
        }
        self.insert_active(Entry::new(admission.clone()));
        self.enqueue(id, now);
        None
    }

    fn store_dormant_and_refresh(&mut self, some: &[DormantAdmission<'_>], now: Moment) {
        for key in self.store_dormant(some) {
            self.refresh(key, now);
        }
    }

    /// Stores dormant entries. Returns the keys that the caller must refresh.
    pub(super) fn store_dormant(&mut self, some: &[DormantAdmission<'_>]) -> Vec<KeyId> {
        for (admission, _) in some {
            if let Some(pass) = admission.job {
                self.jobs.add_dormant(pass.number, &admission.key);
            }
        }
        self.dormant.insert_all(some, &mut self.keys)
    }

    /// Stores an active entry that no member holds.
    pub(super) fn insert_active(&mut self, entry: Entry) {
        let key = self.keys.intern(&entry.admitted.key);
        self.insert_active_for_key(key, entry);
    }

    pub(super) fn insert_active_for_key(&mut self, key: KeyId, entry: Entry) {
        self.index_waiting(entry.admitted.url_key, entry.admitted.id);
        self.insert_unindexed(key, entry);
    }

    /// Stores an active entry without indexing it by URL: it is released at once, or the caller
    /// indexes it.
    fn insert_unindexed(&mut self, key: KeyId, entry: Entry) {
        let admitted = &entry.admitted;
        let id = admitted.id;
        if let (Some(pass), Some(url)) = (admitted.job, admitted.url_key) {
            self.jobs.mark_seen(pass, url.fingerprint());
        }
        self.active_bytes += admitted.bytes();
        self.keys[key].add_reference();
        let again = entry.again.as_ref().map(|again| self.keys.intern(&again.key));
        if let Some(again) = again {
            self.keys[again].add_reference();
        }
        self.active.insert(id, Box::new(ActiveEntry { entry, key, again_key: again }));
    }

    /// Removes an active entry. The caller releases its keys.
    pub(super) fn remove_active(&mut self, id: EntryId) -> ActiveEntry {
        let live = *self.active.remove(&id).expect("an entry that ends is active");
        self.active_bytes -= live.entry.admitted.bytes();
        live
    }

    /// Releases the keys of an entry that was removed.
    pub(super) fn release_keys(&mut self, key: KeyId, again: Option<KeyId>, now: Moment) {
        for key in std::iter::once(key).chain(again) {
            self.keys[key].drop_reference();
        }
        for key in std::iter::once(key).chain(again) {
            self.refresh(key, now);
        }
    }

    /// Turns a dormant entry into an active one that is in no queue and not indexed by URL. The
    /// caller refreshes its key.
    fn activate(&mut self, dormant: DormantRef) {
        self.snapshot_before_change(dormant);
        let queue = &mut self.keys[dormant.key];
        let job = dormant.job();
        let pass = job.and_then(|job| self.jobs.activate(job, dormant.id, queue.name()));
        let admission = self.dormant.take(dormant, queue, pass);
        self.insert_unindexed(dormant.key, Entry::new(admission));
    }

    /// Removes an entry that no member holds from its queue, its timer or the dormant store.
    /// Returns the key that the caller must refresh.
    pub(super) fn detach(&mut self, id: EntryId) -> KeyId {
        if let Some(dormant) = self.dormant.find(id) {
            self.activate(dormant);
            self.index_waiting(self.active[&id].entry.admitted.url_key, id);
            return dormant.key;
        }
        self.dequeue(id)
    }

    /// Does this for an active entry.
    fn dequeue(&mut self, id: EntryId) -> KeyId {
        let live = self.active.get_mut(&id).expect("an entry that no member holds is active");
        let (entry, gate) = (&mut live.entry, live.again_key.unwrap_or(live.key));
        match entry.state {
            EntryState::Delayed => self.wakes.cancel(entry.admitted.due, Wake::Due(id)),
            EntryState::Waiting => {
                let admitted = &entry.admitted;
                self.keys[gate].remove(id, lane_of(admitted), admitted.prio);
                entry.state = EntryState::Delayed;
            }
            EntryState::Held(_) => unreachable!("a held entry is in no queue"),
        }
        gate
    }

    /// Queues an entry that is due, or sets a timer for it.
    pub(super) fn enqueue(&mut self, id: EntryId, now: Moment) {
        let Some(live) = self.active.get_mut(&id) else { return };
        let gate = live.gate();
        let entry = &mut live.entry;
        if entry.lease().is_some() || entry.state == EntryState::Waiting {
            return;
        }
        if entry.admitted.due > now && !mutants::is(Mutant::BeforeDue) {
            self.wakes.set(entry.admitted.due, Wake::Due(id));
            // Refreshing keeps the key from being removed until then.
            return self.refresh(gate, now);
        }
        entry.state = EntryState::Waiting;
        // A queued entry no longer needs its due time.
        entry.admitted.due = Moment(0);
        self.schedules.entry_waits_no_more(id);
        let (lane, prio) = (lane_of(&entry.admitted), entry.admitted.prio);
        let queue = &mut self.keys[gate];
        if goes_to_head(entry) {
            queue.push_head(id, lane, entry.again.is_some());
        } else {
            queue.push(id, lane, prio);
        }
        self.refresh(gate, now);
    }

    /// Merges an event into a waiting entry: the higher priority, the earlier due time, and the
    /// attributes of the event, unless they do not fit.
    pub(super) fn coalesce(
        &mut self,
        id: EntryId,
        announced: bool,
        (prio, due, carried): (i16, Moment, &str),
        now: Moment,
    ) {
        let gate = self.detach(id);
        let admitted = &mut self.entry_mut(id).admitted;
        if !carried.is_empty()
            && let Some(all) = merge_attributes(carried, &admitted.forwarded)
        {
            let before = admitted.bytes();
            admitted.forwarded = all.into();
            let after = admitted.bytes();
            self.active_bytes = self.active_bytes + after - before;
        }
        let admitted = &mut self.entry_mut(id).admitted;
        let is_earlier = due < admitted.due;
        admitted.announced |= announced;
        admitted.prio = admitted.prio.max(prio);
        if !mutants::is(Mutant::IgnoresEarlierDue) {
            admitted.due = admitted.due.min(due);
        }
        if is_earlier {
            self.schedules.entry_waits_no_more(id);
        }
        self.enqueue(id, now);
        self.refresh(gate, now);
    }

    pub(super) fn apply_release(&mut self, id: EntryId, lease: Lease, now: Moment) {
        let gate = if let Some(dormant) = self.dormant.find(id) {
            self.activate(dormant);
            dormant.key
        } else {
            self.unindex_waiting(self.active[&id].entry.admitted.url_key, id);
            self.dequeue(id)
        };
        let ActiveEntry { entry, key, .. } =
            &mut **self.active.get_mut(&id).expect("it was made active");
        let key = *key;
        entry.state = EntryState::Held(lease);
        entry.releases += 1;
        let (lane, suspect) = (lane_of(&entry.admitted), entry.is_suspect());
        let job = entry.admitted.job;
        let pinned_to = entry.again.as_ref().map(|again| again.member);
        self.remove_pin(pinned_to, id, job, key, now);
        self.ready.served(lane);
        self.leases.begin(id, &lease, suspect);
        self.keys[gate].mark_released(lane, lease.member);
        self.refresh(gate, now);
        if let Some(job) = job {
            self.change_job_entry(job.number, key, EntryChange::Leased(id), now);
        }
    }

    pub(super) fn apply_return(
        &mut self,
        id: EntryId,
        back: &NextStep,
        rest: RecordedRest,
        reason: Option<Box<str>>,
        now: Moment,
    ) {
        let was_made = !matches!(back, NextStep::Uncounted { .. });
        let gate = self.end_request(id, rest, was_made, now);
        self.end_lease(id, now);
        self.clear_again(id);
        let ActiveEntry { entry, key, again_key } =
            &mut **self.active.get_mut(&id).expect("a returned entry is active");
        match back {
            NextStep::Retry { due } => {
                entry.failures += 1;
                entry.again_count = 0;
                entry.admitted.due = *due;
                entry.last_reason = reason;
            }
            NextStep::Uncounted { due } => entry.admitted.due = *due,
            NextStep::Again(again) => {
                entry.again_count += 1;
                entry.admitted.due = now;
                entry.again = Some(again.clone());
                let gate = self.keys.intern(&again.key);
                self.keys[gate].add_reference();
                *again_key = Some(gate);
                let (job, key) = (entry.admitted.job, *key);
                self.leases.pin(again.member, id);
                if let Some(job) = job {
                    self.change_job_entry(job.number, key, EntryChange::Pinned, now);
                }
            }
        }
        self.enqueue(id, now);
        self.refresh(gate, now);
    }

    /// Drops the `again` request of an entry, which restarts with its own request.
    pub(super) fn restart_from_own_request(&mut self, id: EntryId, now: Moment) {
        let gate = self.detach(id);
        let key = self.active[&id].key;
        let entry = self.entry_mut(id);
        entry.again_count = 0;
        let (job, again) = (entry.admitted.job, entry.again.as_ref());
        let pinned_to = again.map(|again| again.member);
        self.clear_again(id);
        self.remove_pin(pinned_to, id, job, key, now);
        self.enqueue(id, now);
        self.refresh(gate, now);
    }

    /// Drops the `again` request of an entry. The caller refreshes the key of that request.
    pub(super) fn clear_again(&mut self, id: EntryId) {
        let live = self.active.get_mut(&id).expect("an entry that no member holds is active");
        live.entry.again = None;
        if let Some(gate) = live.again_key.take() {
            self.keys[gate].drop_reference();
        }
    }

    /// Ends the request of a task at its key, which rests if a request was `made`. If the worker
    /// had already reported the end of the request, only the requested rest is applied. Returns the
    /// key, which the caller must refresh.
    pub(super) fn end_request(
        &mut self,
        id: EntryId,
        rest: RecordedRest,
        made: bool,
        now: Moment,
    ) -> KeyId {
        let live = &self.active[&id];
        let gate = live.gate();
        let over = live.entry.lease().is_some_and(|lease| lease.request_over);
        let queue = &mut self.keys[gate];
        match (over, made) {
            (true, _) => queue.apply_rest(now, rest),
            (false, true) => {
                let delay_ms = self.config.delay_of(queue.name());
                queue.request_ended(now, delay_ms, rest);
            }
            (false, false) => {
                queue.request_not_made();
                queue.apply_rest(now, rest);
            }
        }
        gate
    }

    /// Returns the ids of all active entries, sorted.
    pub(super) fn active_ids(&self) -> Vec<EntryId> {
        let mut ids: Vec<EntryId> = self.active.keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    /// Tells a job what happens to its entry behind this key. Then its budgets may allow other
    /// releases.
    pub(super) fn change_job_entry(
        &mut self,
        number: JobNumber,
        key: KeyId,
        change: EntryChange,
        now: Moment,
    ) {
        let name = self.keys[key].name();
        if let Some(job) = self.jobs.change_entry(number, name, change) {
            self.ready.block(number, job.is_blocked());
            if job.limits_hosts() {
                self.refresh(key, now);
            }
        }
    }

    /// Removes the pin of an entry to its member.
    pub(super) fn remove_pin(
        &mut self,
        member: Option<MemberId>,
        id: EntryId,
        job: Option<PassId>,
        key: KeyId,
        now: Moment,
    ) {
        let Some(member) = member else { return };
        let was_pinned = self.leases.unpin(member, id);
        if let Some(job) = job
            && was_pinned
        {
            self.change_job_entry(job.number, key, EntryChange::Unpinned, now);
        }
    }

    pub(super) fn index_waiting(&mut self, url: Option<UrlKey>, id: EntryId) {
        if let Some(url) = url {
            let entries = self.waiting_by_url.entry(url.fingerprint()).or_default();
            if let Err(at) = entries.binary_search(&id) {
                entries.insert(at, id);
            }
        }
    }

    pub(super) fn unindex_waiting(&mut self, url: Option<UrlKey>, id: EntryId) {
        if let Some(url) = url
            && let Some(entries) = self.waiting_by_url.get_mut(&url.fingerprint())
        {
            entries.retain(|entry| *entry != id);
            if entries.is_empty() {
                self.waiting_by_url.remove(&url.fingerprint());
            }
        }
    }

    pub(super) fn entry_mut(&mut self, id: EntryId) -> &mut Entry {
        &mut self.active.get_mut(&id).expect("a changed entry is active").entry
    }
}

/// Returns the lane of an entry.
pub(super) fn lane_of(admitted: &Admission) -> Lane {
    match admitted.job {
        _ if admitted.announced => Lane::Announced,
        job => Lane::Job(job.map_or(super::schedules::SCHEDULES_JOB, |job| job.number)),
    }
}

/// Reports whether an entry goes to the head of its key's queue: the target of a redirect, and the
/// next request of a task.
fn goes_to_head(entry: &Entry) -> bool {
    entry.again.is_some() || (entry.admitted.redirect && entry.releases == 0)
}
