//! The states of an entry: admitted, released, returned, lost. Its end is in
//! [`endings`](super::endings). Part of applying decisions, like
//! [`apply`](super::apply).

use tidings_protocol::MemberId;

use super::State;
use crate::entry::{Admission, Entry, EntryId, JobNumber, Lease, PassId, RecordedRest};
use crate::frontier::ActiveEntry;
use crate::frontier::circuit::RequestEnd;
use crate::frontier::dormant::{DormantAdmission, DormantEntries};
use crate::frontier::entry_text::DormantRef;
use crate::frontier::keys::KeyId;
use crate::frontier::lane::lane_of;
use crate::frontier::runs::PackedLane;
use crate::jobs::{EntryChange, Job};
use crate::leases::LeaseEnd;
use crate::moment::Moment;
use crate::mutants::{self, Mutant};
use crate::record::NextStep;

impl State {
    /// Admits an entry. Also called for each link of an answer, before the decision about the answer.
    pub(crate) fn admit(&mut self, admission: &Admission, now: Moment) {
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

    /// Merges an event, with its priority, due time and attributes, into a waiting entry.
    pub(super) fn coalesce(
        &mut self,
        id: EntryId,
        announced: bool,
        event: (i16, Moment, &str),
        now: Moment,
    ) {
        let gate = self.detach(id);
        if self.frontier.coalesce(id, announced, event) {
            self.schedules.entry_waits_no_more(id);
        }
        self.enqueue(id, now);
        self.refresh(gate, now);
    }

    /// Gives entries that no member holds another priority.
    pub(super) fn bump(&mut self, entries: &[EntryId], prio: i16, now: Moment) {
        for id in entries {
            let gate = self.detach(*id);
            self.frontier.set_prio(*id, prio);
            self.enqueue(*id, now);
            self.refresh(gate, now);
        }
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
        let (key, demand, job) = (*key, entry.demand(), entry.admitted.job);
        let pinned_to = entry.again.as_ref().map(|again| again.member);
        self.remove_pin(pinned_to, id, job, key, now);
        self.leases.begin(id, &lease, demand);
        self.refresh(gate, now);
        if let Some(job) = job {
            self.change_job_entry(job.number, key, EntryChange::Leased(id), now);
        }
    }

    pub(super) fn apply_touch(
        &mut self,
        id: EntryId,
        until: Moment,
        over: bool,
        rest: RecordedRest,
        now: Moment,
    ) {
        let gate = if over {
            self.end_request(id, rest, RequestEnd::Unknown, now)
        } else {
            self.frontier.apply_rest(id, rest, now)
        };
        if let Some(before) = self.frontier.renew_lease(id, until, over) {
            self.leases.renew(id, before, until);
        }
        self.refresh(gate, now);
    }

    pub(super) fn apply_loss(&mut self, id: EntryId, now: Moment) {
        let end = match RequestEnd::Unknown {
            _ if mutants::is(Mutant::NoRestAfterLoss) => RequestEnd::NotMade,
            end => end,
        };
        let gate = self.end_request(id, RecordedRest::default(), end, now);
        self.end_lease(id, now);
        self.leases.count_end(id, LeaseEnd::Lost, now);
        self.frontier.count_loss(id, now);
        self.totals.lost += 1;
        self.enqueue(id, now);
        self.refresh(gate, now);
    }

    /// Ends the lease of an entry. The caller queues it with `enqueue`.
    pub(super) fn end_lease(&mut self, id: EntryId, now: Moment) {
        let Some(lease) = self.frontier.end_lease(id) else { return };
        let ActiveEntry { entry, key, .. } = self.frontier.get(id);
        let (key, job) = (*key, entry.admitted.job);
        self.leases.end(id, &lease, entry.demand());
        if let Some(job) = job {
            self.change_job_entry(job.number, key, EntryChange::Returned(id), now);
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
        let end = match back {
            NextStep::Uncounted { .. } => RequestEnd::NotMade,
            NextStep::Unanswered { .. } => RequestEnd::Unanswered,
            NextStep::Retry { .. } | NextStep::Again(_) | NextStep::Render => RequestEnd::Answered,
        };
        let gate = self.end_request(id, rest, end, now);
        self.end_lease(id, now);
        self.frontier.clear_again(id);
        match back {
            NextStep::Retry { due } => {
                self.leases.count_end(id, LeaseEnd::Failed, now);
                self.frontier.note_failure(id, *due, reason, true);
            }
            NextStep::Unanswered { due, counts } => {
                self.leases.count_end(id, LeaseEnd::Failed, now);
                self.frontier.note_failure(id, *due, reason, *counts);
            }
            NextStep::Uncounted { due } if mutants::is(Mutant::CountsUncounted) => {
                self.frontier.note_failure(id, *due, reason, true);
            }
            NextStep::Uncounted { due } => self.frontier.set_due(id, *due),
            NextStep::Render => self.frontier.require_render(id, now),
            NextStep::Again(again) => {
                self.frontier.set_again(id, again.clone(), now);
                self.leases.pin(again.member, id);
                let ActiveEntry { entry, key, .. } = self.frontier.get(id);
                if let (key, Some(job)) = (*key, entry.admitted.job) {
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
        let pinned_to = self.frontier.restart(id);
        let ActiveEntry { entry, key, .. } = self.frontier.get(id);
        let (key, job) = (*key, entry.admitted.job);
        self.remove_pin(pinned_to, id, job, key, now);
        self.enqueue(id, now);
        self.refresh(gate, now);
    }

    /// See `Frontier::end_request`.
    pub(super) fn end_request(
        &mut self,
        id: EntryId,
        rest: RecordedRest,
        end: RequestEnd,
        now: Moment,
    ) -> KeyId {
        self.frontier.end_request(id, rest, end, now, &self.config)
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
        let was_pinned_out = self.jobs.find(number).is_some_and(Job::is_pinned_out);
        if let Some(job) = self.jobs.change_entry(number, name, change) {
            self.frontier.block(number, job.is_blocked());
            let refreshes_all = job.is_pinned_out() != was_pinned_out;
            if job.limits_hosts() {
                self.refresh(key, now);
            }
            if refreshes_all {
                self.refresh_keys_of(number, now);
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
