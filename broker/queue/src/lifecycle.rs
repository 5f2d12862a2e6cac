//! The states of an entry: admitted, released, returned, lost. Its end is in
//! [`endings`](super::endings). Part of applying decisions, like [`apply`](super::apply): nothing
//! here decides anything.

use tidings_protocol::MemberId;

use super::Group;
use super::admit::merge_attributes;
use super::entry::{Admission, Entry, EntryId, JobNumber, Lease, PassId, RecordedRest};
use super::frontier::ActiveEntry;
use super::frontier::dormant::{DormantAdmission, DormantEntries, DormantRef};
use super::frontier::keys::KeyId;
use super::frontier::lane_of;
use super::frontier::runs::PackedLane;
use super::jobs::EntryChange;
use super::mutants::{self, Mutant};
use super::record::NextStep;
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
        self.frontier.note_id(id);
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
        self.frontier.insert(Entry::new(admission.clone()), &mut self.jobs);
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
        self.frontier.store_dormant(some)
    }

    /// Releases the keys of an entry that was removed.
    pub(super) fn release_keys(&mut self, key: KeyId, again: Option<KeyId>, now: Moment) {
        for key in std::iter::once(key).chain(again) {
            self.frontier.release_key(key);
        }
        for key in std::iter::once(key).chain(again) {
            self.refresh(key, now);
        }
    }

    /// Turns a dormant entry into an active one that is in no queue and not indexed by URL. The
    /// caller refreshes its key.
    fn activate(&mut self, dormant: DormantRef) {
        self.snapshot_before_change(dormant);
        self.frontier.activate(dormant, &mut self.jobs);
    }

    /// Removes an entry that no member holds from its queue, its timer or the dormant store.
    /// Returns the key that the caller must refresh.
    pub(super) fn detach(&mut self, id: EntryId) -> KeyId {
        if let Some(dormant) = self.frontier.dormant().find(id) {
            self.activate(dormant);
            self.frontier.index_waiting(self.frontier.get(id).entry.admitted.url_key, id);
            return dormant.key;
        }
        self.frontier.dequeue(id)
    }

    /// Queues an entry that is due, or sets a timer for it.
    pub(super) fn enqueue(&mut self, id: EntryId, now: Moment) {
        let Some((gate, is_queued)) = self.frontier.enqueue(id, now) else { return };
        if is_queued {
            self.schedules.entry_waits_no_more(id);
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
        let admitted = &self.frontier.get(id).entry.admitted;
        if !carried.is_empty()
            && let Some(all) = merge_attributes(carried, &admitted.forwarded)
        {
            self.frontier.set_forwarded(id, all.into());
        }
        let admitted = &mut self.frontier.entry_mut(id).admitted;
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
        let gate = if let Some(dormant) = self.frontier.dormant().find(id) {
            self.activate(dormant);
            dormant.key
        } else {
            self.frontier.unindex_waiting(self.frontier.get(id).entry.admitted.url_key, id);
            self.frontier.dequeue(id)
        };
        let ActiveEntry { entry, key, .. } = self.frontier.lease(id, lease, gate);
        let (key, suspect, job) = (*key, entry.is_suspect(), entry.admitted.job);
        let pinned_to = entry.again.as_ref().map(|again| again.member);
        self.remove_pin(pinned_to, id, job, key, now);
        self.leases.begin(id, &lease, suspect);
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
        self.frontier.clear_again(id);
        let entry = self.frontier.entry_mut(id);
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
                let job = entry.admitted.job;
                self.frontier.set_again(id, again.clone());
                self.leases.pin(again.member, id);
                if let Some(job) = job {
                    let key = self.frontier.get(id).key;
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
        let key = self.frontier.get(id).key;
        let entry = self.frontier.entry_mut(id);
        entry.again_count = 0;
        let (job, again) = (entry.admitted.job, entry.again.as_ref());
        let pinned_to = again.map(|again| again.member);
        self.frontier.clear_again(id);
        self.remove_pin(pinned_to, id, job, key, now);
        self.enqueue(id, now);
        self.refresh(gate, now);
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
        self.frontier.end_request(id, rest, made, now, &self.config)
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
        let name = self.frontier.keys()[key].name();
        if let Some(job) = self.jobs.change_entry(number, name, change) {
            self.frontier.block(number, job.is_blocked());
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
}
