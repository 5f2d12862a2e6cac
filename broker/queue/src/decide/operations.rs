//! Operations on a whole group and its dead letters.

use tidings_protocol::status::{Answer, ChangedEntriesStatus, GroupStatus};
use tidings_protocol::{
    Code, DEFAULT_GROUP, EntrySelection, ProtocolError, WaitingAction, format_ms,
};

use crate::entry::{EndReason, EntryId};
use crate::interface::Operation;
use crate::leases::Member;
use crate::moment::Moment;
use crate::mutants::{self, Mutant};
use crate::queries::waiting::SelectedWaiting;
use crate::record::Decision;
use crate::{Group, Output, Requester};

impl Group {
    pub(crate) fn operate(
        &mut self,
        requester: Requester,
        what: &Operation,
        now: Moment,
    ) -> Result<Option<Answer>, ProtocolError> {
        let answer = match what {
            Operation::Pause => self.pause(true, now).into(),
            Operation::Resume => self.pause(false, now).into(),
            Operation::Purge => self.purge(now).into(),
            Operation::ChangeWaiting(change) => {
                self.change_waiting(&self.view().select_waiting(change)?, now)?
            }
            Operation::Retry(selection) => self.retry(selection, now)?,
            Operation::Drop(selection) => self.drop_dead(selection, now)?,
            Operation::Drain { member, drained } => self.drain(member, *drained, now)?,
            Operation::SetRule { key, settings } => {
                return self.set_rule(requester, key, settings, now);
            }
            Operation::RemoveRule { key } => return self.unset_rule(requester, key, now),
            Operation::Delete { is_forced } => self.delete(*is_forced, now)?,
        };
        Ok(Some(answer))
    }

    fn pause(&mut self, paused: bool, now: Moment) -> GroupStatus {
        if self.state.is_paused() != paused {
            self.commit(Decision::Paused(paused), now);
        }
        self.view().status()
    }

    fn purge(&mut self, now: Moment) -> GroupStatus {
        self.commit(Decision::Purged, now);
        self.settle_unfinished_jobs(now);
        self.view().status()
    }

    /// Counts, drops or bumps selected entries. Each bumped one takes the memory of an active entry,
    /// so a full group rejects that.
    pub(crate) fn change_waiting(
        &mut self,
        selected: &SelectedWaiting,
        now: Moment,
    ) -> Result<Answer, ProtocolError> {
        let entries = self.view().fitting(selected)?;
        let (group, next) = (self.state.name().to_string(), selected.next());
        let mut status = ChangedEntriesStatus { group, next, ..ChangedEntriesStatus::default() };
        let count = Some(entries.len() as u64);
        match selected.change.action {
            WaitingAction::Count => status.matched = count,
            WaitingAction::Drop => {
                status.dropped = count;
                let drop = |entries| {
                    if mutants::is(Mutant::DropsUnselected) {
                        return Decision::Purged;
                    }
                    Decision::Ended { entries, end: EndReason::Purged }
                };
                self.commit_unless_empty(entries, drop, now);
                self.settle_unfinished_jobs(now);
            }
            WaitingAction::Bump(_) if self.is_full() => {
                let text = "the group is full; bump again when some entries are done";
                return Err(ProtocolError::new(Code::Limit, text));
            }
            WaitingAction::Bump(prio) => {
                status.bumped = count;
                if !mutants::is(Mutant::IgnoresBump) {
                    let bump = |entries| Decision::Bumped { prio, entries };
                    self.commit_unless_empty(entries, bump, now);
                }
            }
        }
        Ok(status.into())
    }

    fn drop_dead(
        &mut self,
        selection: &EntrySelection,
        now: Moment,
    ) -> Result<Answer, ProtocolError> {
        let entries = self.view().dead_among(selection)?;
        let (group, dropped) = (self.state.name().to_string(), Some(entries.len() as u64));
        self.commit_unless_empty(entries, |entries| Decision::DeadDropped { entries }, now);
        Ok(ChangedEntriesStatus { group, dropped, ..ChangedEntriesStatus::default() }.into())
    }

    fn retry(&mut self, selection: &EntrySelection, now: Moment) -> Result<Answer, ProtocolError> {
        let blocked = self.blocked_dead();
        let (blocked, entries): (Vec<_>, Vec<_>) =
            self.view().dead_among(selection)?.into_iter().partition(|id| blocked.contains(id));
        if self.is_full() {
            let text = "the group is full; retry when some entries are done";
            return Err(ProtocolError::new(Code::Limit, text));
        }
        let (group, retried) = (self.state.name().to_string(), Some(entries.len() as u64));
        self.commit_unless_empty(entries, |entries| Decision::DeadRetried { entries }, now);
        let blocked = Some(blocked.len() as u64).filter(|blocked| *blocked > 0);
        Ok(ChangedEntriesStatus { group, retried, blocked, ..ChangedEntriesStatus::default() }
            .into())
    }

    /// Commits a decision, unless it is about no entry.
    fn commit_unless_empty(
        &mut self,
        entries: Vec<EntryId>,
        decision: impl FnOnce(Vec<EntryId>) -> Decision,
        now: Moment,
    ) {
        if !entries.is_empty() {
            self.commit(decision(entries), now);
        }
    }

    /// Describes the task with the longest lease, if members hold any.
    fn describe_held(&self, now: Moment) -> Option<String> {
        let members = self.state.leases().members().iter().map(|(_, member)| member);
        let held = members.flat_map(Member::held).filter_map(|id| {
            let entry = &self.state.frontier().get(id).entry;
            entry.lease().map(|lease| (lease.until, id, lease.member))
        });
        let (until, id, member) = held.max()?;
        let (member, left_ms) = (member.short(), until.since(now).next_multiple_of(1000));
        let left = format_ms(left_ms);
        Some(format!(
            "entry {id} is held for another {left} by member {member}, which is not connected"
        ))
    }

    /// Deletes the group, with everything that waits.
    fn delete(&mut self, is_forced: bool, now: Moment) -> Result<Answer, ProtocolError> {
        let conflict = |text: String| Err(ProtocolError::new(Code::Conflict, text));
        if self.state.name().as_str() == DEFAULT_GROUP {
            return conflict(format!("group {DEFAULT_GROUP} cannot be deleted"));
        }
        let connected = self.view().status().members;
        if connected > 0 {
            return conflict(format!(
                "group {} has {connected} connected members; stop them first",
                self.state.name()
            ));
        }
        if let Some(held) = self.describe_held(now).filter(|_| !is_forced) {
            return conflict(format!(
                "group {}: {held}; force=yes deletes it now",
                self.state.name()
            ));
        }
        let unfinished = self.state.jobs().unfinished();
        if unfinished > 0 {
            return conflict(format!(
                "{unfinished} jobs of group {} are not done; cancel them first",
                self.state.name()
            ));
        }
        if !self.state.unpublished().is_empty() {
            let text =
                format!("group {} is publishing its last events; try again", self.state.name());
            return Err(ProtocolError::new(Code::Busy, text));
        }
        if self.is_blocked() {
            // No record may follow that of the deletion, and those of a snapshot would.
            let text =
                format!("group {} is reading texts for a snapshot; try again", self.state.name());
            return Err(ProtocolError::new(Code::Busy, text));
        }
        self.commit(Decision::Deleted, now);
        self.outputs.push_back(Output::Deleted);
        Ok(self.state.name().to_string().into())
    }
}
