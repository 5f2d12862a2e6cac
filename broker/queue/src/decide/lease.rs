//! Decisions about leases: renewal by `TOUCH`, and expiry.

use tidings_protocol::status::{Answer, TouchStatus};
use tidings_protocol::{Code, KeyRest, ProtocolError, TaskId};

use crate::entry::EntryId;
use crate::moment::Moment;
use crate::mutants::{self, Mutant};
use crate::record::Decision;
use crate::{Group, Notice, Requester};

impl Group {
    pub(crate) fn touch(
        &mut self,
        requester: Requester,
        task: &TaskId,
        over: bool,
        hold: KeyRest,
        now: Moment,
    ) -> Result<Answer, ProtocolError> {
        let entry = self.held_entry(requester, task)?;
        let over = over
            && self
                .state
                .frontier()
                .get(entry)
                .entry
                .lease()
                .is_some_and(|lease| !lease.request_over);
        let until = now + self.state.config().settings.lease_ms;
        let rest = self.capped_rest(hold, now);
        self.commit(Decision::Touched { entry, until, request_over: over, rest }, now);
        Ok(TouchStatus { task: task.to_string(), lease: self.state.config().settings.lease_ms }
            .into())
    }

    /// Returns the entry of a task that this member holds at this attempt.
    pub(crate) fn held_entry(
        &self,
        requester: Requester,
        task: &TaskId,
    ) -> Result<EntryId, ProtocolError> {
        let stale = || ProtocolError::new(Code::Stale, task.to_string());
        let entry = &self.state.frontier().find(task.entry).ok_or_else(stale)?.entry;
        let lease = entry.lease().ok_or_else(stale)?;
        let is_its = lease.member == requester.member
            && task.group == *self.state.name()
            && (task.run, task.attempt) == (lease.run, entry.releases);
        if !is_its && !mutants::is(Mutant::AnyTaskId) {
            return Err(stale());
        }
        Ok(task.entry)
    }

    /// Expires a lease: the member did not answer in time, and what it did with the task is
    /// unknown.
    pub(crate) fn expire_lease(&mut self, id: EntryId, now: Moment) {
        let Some(lease) = self.state.frontier().find(id).and_then(|live| live.entry.lease()) else {
            return;
        };
        let member = lease.member;
        self.notice(Notice::LeaseExpired { entry: id, member });
        self.state.members_mut().mark_silent(member);
        self.commit(Decision::Lost { entry: id }, now);
        self.give_up_if_exhausted(id, (None, false), now);
        self.unpin(member, now);
    }
}
