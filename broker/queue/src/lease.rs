//! Leases: renewal by `TOUCH`, expiry, and the end of a lease.

use tidings_protocol::{Code, KeyRest, ProtocolError, TaskId};

use super::entry::{EntryId, EntryState, RecordedRest};
use super::jobs::EntryChange;
use super::mutants::{self, Mutant};
use super::record::Decision;
use super::{Group, GroupAnswer, Notice, Requester};
use crate::moment::Moment;

impl Group {
    pub(super) fn touch(
        &mut self,
        requester: Requester,
        task: &TaskId,
        over: bool,
        hold: KeyRest,
        now: Moment,
    ) -> Result<GroupAnswer, ProtocolError> {
        let entry = self.held_entry(requester, task)?;
        let over =
            over && self.frontier.get(entry).entry.lease().is_some_and(|lease| !lease.request_over);
        let until = now + self.config.lease_ms;
        let rest = self.capped_rest(hold, now);
        self.commit(Decision::Touched { entry, until, request_over: over, rest }, now);
        let ok = format!("{task} lease={}", self.config.lease_ms);
        Ok(GroupAnswer { lines: Vec::new(), ok })
    }

    /// Returns the entry of a task that this member holds at this attempt.
    pub(super) fn held_entry(
        &self,
        requester: Requester,
        task: &TaskId,
    ) -> Result<EntryId, ProtocolError> {
        let stale = || ProtocolError::new(Code::Stale, task.to_string());
        let entry = &self.frontier.find(task.entry).ok_or_else(stale)?.entry;
        let lease = entry.lease().ok_or_else(stale)?;
        let is_its = lease.member == requester.member
            && task.group == self.name
            && (task.run, task.attempt) == (lease.run, entry.releases);
        if !is_its && !mutants::is(Mutant::AnyTaskId) {
            return Err(stale());
        }
        Ok(task.entry)
    }

    /// Expires a lease: the member did not answer in time, and what it did with the task is
    /// unknown.
    pub(super) fn expire_lease(&mut self, id: EntryId, now: Moment) {
        let Some(lease) = self.frontier.find(id).and_then(|live| live.entry.lease()) else {
            return;
        };
        let member = lease.member;
        self.notice(Notice::LeaseExpired { entry: id, member });
        self.leases.mark_silent(member);
        self.commit(Decision::Lost { entry: id }, now);
        self.dead_letter_if_exhausted(id, now);
        self.unpin(member, now);
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
            self.end_request(id, rest, true, now)
        } else {
            self.frontier.apply_rest(id, rest, now)
        };
        if let EntryState::Held(lease) = &mut self.frontier.entry_mut(id).state {
            let before = std::mem::replace(&mut lease.until, until);
            lease.request_over |= over;
            self.leases.renew(id, before, until);
        }
        self.refresh(gate, now);
    }

    pub(super) fn apply_loss(&mut self, id: EntryId, now: Moment) {
        let rests = !mutants::is(Mutant::NoRestAfterLoss);
        let gate = self.end_request(id, RecordedRest::default(), rests, now);
        self.end_lease(id, now);
        self.frontier.clear_again(id);
        let entry = self.frontier.entry_mut(id);
        entry.losses += 1;
        entry.last_reason = Some("lost with its member".into());
        entry.again_count = 0;
        entry.admitted.due = now;
        self.totals.lost += 1;
        self.enqueue(id, now);
        self.refresh(gate, now);
    }

    /// Ends the lease of an entry. The caller queues it with `enqueue`.
    pub(super) fn end_lease(&mut self, id: EntryId, now: Moment) {
        let key = self.frontier.get(id).key;
        let entry = self.frontier.entry_mut(id);
        let EntryState::Held(lease) = entry.state else { return };
        let suspect = entry.is_suspect();
        entry.state = EntryState::Delayed;
        let (job, url_key) = (entry.admitted.job, entry.admitted.url_key);
        self.leases.end(id, &lease, suspect);
        self.frontier.index_waiting(url_key, id);
        if let Some(job) = job {
            self.change_job_entry(job.number, key, EntryChange::Returned(id), now);
        }
    }
}
