//! Lists of entries (`GROUP tasks`), with the dead and the finished ones.

use std::collections::BinaryHeap;

use tidings_protocol::status::{Answer, ListEnd, Status, TaskFields, TaskState, TaskStatus};
use tidings_protocol::{EntrySelection, ProtocolError, TaskQuery};

use crate::Group;
use crate::entry::{Entry, EntryId, EntryState, JobNumber};
use crate::finished::{FinishedTask, TaskEnd, shown_text};
use crate::frontier::entry_text::DormantRef;
use crate::frontier::keys::KeyId;
use crate::frontier::{ActiveEntry, next_entry};
use crate::moment::Moment;

/// Entries for an answer to `GROUP tasks`.
#[derive(Debug)]
pub(crate) struct SelectedTasks {
    query: TaskQuery,
    /// The number of entries that match, without dead and finished ones.
    count: usize,
    /// Those that are listed, sorted.
    ids: Vec<EntryId>,
}

impl SelectedTasks {
    /// Returns the ids of the entries to list.
    pub(crate) fn ids(&self) -> impl Iterator<Item = EntryId> {
        self.ids.iter().copied()
    }
}

impl Group {
    /// Selects entries for a list. Visits every entry, unless only dead or finished ones are
    /// listed.
    pub(crate) fn select_tasks(&self, query: &TaskQuery) -> Result<SelectedTasks, ProtocolError> {
        let wanted = self.matcher(&query.selection)?;
        if let Some(TaskState::Dead | TaskState::Completed | TaskState::Failed) = query.state {
            return Ok(SelectedTasks { query: query.clone(), count: 0, ids: Vec::new() });
        }
        let is_in = |state| query.state.is_none_or(|wanted| wanted == state);
        let live = self.frontier.active().filter(|live| wanted(&live.entry));
        let live = live.filter(|live| is_in(self.state_of(live)));
        let live = live.map(|live| live.entry.admitted.id);
        let parked = self.dormant_among(&query.selection)?;
        let parked = parked.filter(|dormant| is_in(self.state_of_dormant(dormant)));
        let mut count = 0;
        // The lowest ids so far.
        let mut listed = BinaryHeap::new();
        for id in live.chain(parked.map(|dormant| dormant.id)) {
            count += 1;
            listed.push(id);
            if listed.len() > query.limit {
                listed.pop();
            }
        }
        let ids = listed.into_sorted_vec();
        Ok(SelectedTasks { query: query.clone(), count, ids })
    }

    /// Lists selected entries by id, then the dead ones, oldest first; or the finished ones, newest
    /// first. The texts of the dormant ones must be in memory. Entries that have ended since their
    /// selection are left out.
    pub(crate) fn describe_tasks(
        &self,
        selected: &SelectedTasks,
        now: Moment,
    ) -> Result<Answer, ProtocolError> {
        let SelectedTasks { query, count, ids } = selected;
        let wanted = self.matcher(&query.selection)?;
        let is_in = |state| query.state.is_none_or(|wanted| wanted == state);
        let mut more: Vec<_> =
            ids.iter().filter_map(|id| self.describe_waiting(*id, now)).collect();
        let mut count = count - (ids.len() - more.len());
        if let Some(TaskState::Completed | TaskState::Failed) = query.state {
            let finished = self.finished.newest_first().filter(|task| wanted(task.entry()));
            for task in finished.filter(|task| is_in(task.state())) {
                count += 1;
                if more.len() < query.limit {
                    more.push(self.describe_finished(task, now));
                }
            }
        }
        for dead in self.dead_letters.iter().filter(|dead| wanted(&dead.entry)) {
            if is_in(TaskState::Dead) {
                count += 1;
                if more.len() < query.limit {
                    let reason = Some(dead.reason);
                    more.push(self.describe_task(&dead.entry, TaskState::Dead, reason, now));
                }
            }
        }
        Ok(self.list(more.into_iter(), count))
    }

    /// The lines of a list. `matched` counts all entries that match.
    pub(crate) fn list(
        &self,
        lines: impl ExactSizeIterator<Item: Into<Status>>,
        matched: usize,
    ) -> Answer {
        let (group, listed) = (self.name.to_string(), lines.len() as u64);
        Answer::new(lines, ListEnd { group, matched: matched as u64, listed })
    }

    fn describe_waiting(&self, id: EntryId, now: Moment) -> Option<TaskStatus> {
        if let Some(live) = self.frontier.find(id) {
            return Some(self.describe_task(&live.entry, self.state_of(live), None, now));
        }
        let dormant = self.frontier.dormant().find(id)?;
        let state = self.state_of_dormant(&dormant);
        Some(self.describe_task(&self.dormant_entry(dormant), state, None, now))
    }

    /// Returns the selected dormant entries.
    fn dormant_among(
        &self,
        selection: &EntrySelection,
    ) -> Result<impl Iterator<Item = DormantRef>, ProtocolError> {
        let job = match &selection.job {
            None => None,
            Some(name) => Some(self.find_job(name)?.id.number),
        };
        let is_any_key = selection.key.is_none();
        let key = selection.key.as_deref().and_then(|key| self.frontier.keys().find(key));
        // An entry that is selected by its id is found in the index.
        let named = selection.entry.map(|id| self.frontier.dormant().find(id));
        let all = named.is_none().then(|| self.frontier.dormant().iter());
        let some = named.flatten().into_iter().chain(all.into_iter().flatten());
        Ok(some.filter(move |dormant| {
            (is_any_key || key == Some(dormant.key))
                && job.is_none_or(|job| dormant.job() == Some(job))
        }))
    }

    /// Returns the ids of the selected dead entries.
    pub(crate) fn dead_among(
        &self,
        selection: &EntrySelection,
    ) -> Result<Vec<EntryId>, ProtocolError> {
        let wanted = self.matcher(selection)?;
        let entries = self.dead_letters.iter().map(|dead| &dead.entry);
        Ok(entries.filter(|entry| wanted(entry)).map(|entry| entry.admitted.id).collect())
    }

    /// Returns a predicate for a selection.
    fn matcher<'a>(
        &'a self,
        selection: &'a EntrySelection,
    ) -> Result<impl Fn(&Entry) -> bool + use<'a>, ProtocolError> {
        let job: Option<JobNumber> = match &selection.job {
            None => None,
            Some(name) => Some(self.find_job(name)?.id.number),
        };
        Ok(move |entry: &Entry| {
            let admitted = &entry.admitted;
            selection.entry.is_none_or(|id| admitted.id == id)
                && selection.key.as_ref().is_none_or(|key| *admitted.key == **key)
                && job.is_none_or(|job| {
                    self.job_and_pass(entry).is_some_and(|(owner, _)| owner.id.number == job)
                })
        })
    }

    fn state_of(&self, live: &ActiveEntry) -> TaskState {
        match live.entry.state {
            EntryState::Held(_) => TaskState::Processing,
            EntryState::Waiting
                if self.is_queued(
                    live.entry.admitted.id,
                    live.entry.admitted.needs_render(),
                    live.gate(),
                ) =>
            {
                TaskState::Queued
            }
            EntryState::Delayed if live.entry.failures + live.entry.losses > 0 => TaskState::Retry,
            EntryState::Waiting | EntryState::Delayed => TaskState::Pending,
        }
    }

    fn state_of_dormant(&self, dormant: &DormantRef) -> TaskState {
        let is_queued = self.is_queued(dormant.id, dormant.needs_render(), dormant.key);
        if is_queued { TaskState::Queued } else { TaskState::Pending }
    }

    /// Reports whether only a member's credit is missing: the key is free, and it is the entry's
    /// turn.
    fn is_queued(&self, id: EntryId, render: bool, gate: KeyId) -> bool {
        let is_next = || {
            let next = next_entry(&self.frontier.keys()[gate], render, &self.jobs);
            next.is_some_and(|next| next.entry == id)
        };
        !self.is_paused && self.frontier.is_offered(gate, render) && is_next()
    }

    fn describe_finished(&self, task: &FinishedTask, now: Moment) -> TaskStatus {
        let FinishedTask { removed, end, ended_at, lease } = task;
        let (outcome, reason) = match end {
            TaskEnd::Answered(outcome) => (Some(outcome.to_string()), None),
            TaskEnd::GivenUp(reason) => (None, Some(*reason)),
        };
        let mut status = self.describe_task(&removed.entry, task.state(), reason, now);
        status.fields.member = lease.map(|lease| lease.member.short());
        status.fields.held_ms = lease.map(|lease| ended_at.since(lease.began_at));
        status.fields.ended_ms = Some(now.since(*ended_at));
        status.fields.outcome = outcome;
        status
    }

    fn describe_task(
        &self,
        entry: &Entry,
        state: TaskState,
        reason: Option<&str>,
        now: Moment,
    ) -> TaskStatus {
        let admitted = &entry.admitted;
        let (job, pass) =
            self.job_and_pass(entry).map(|(job, pass)| (job.name.to_string(), pass.into())).unzip();
        let lease = entry.lease();
        let waits = matches!(state, TaskState::Pending | TaskState::Retry | TaskState::Queued);
        let fields = TaskFields {
            state,
            key: admitted.key.to_string(),
            job,
            pass,
            depth: admitted.depth.into(),
            prio: admitted.prio,
            attempts: entry.failures.into(),
            losses: entry.losses.into(),
            // Only a part of the member id, because the whole id would let any client rejoin as
            // this member.
            member: lease.map(|lease| lease.member.short()),
            lease_ms: lease.map(|lease| lease.until.since(now)),
            due_ms: (waits && admitted.due > now).then(|| admitted.due.since(now)),
            reason: reason.map(str::to_owned),
            last: entry.last_reason.as_ref().map(|last| last.replace(' ', "_")),
            held_ms: lease.map(|lease| now.since(lease.began_at)),
            ended_ms: None,
            outcome: None,
        };
        let shown = match admitted.url_key {
            Some(_) => &*admitted.text,
            None => shown_text(&admitted.text),
        };
        TaskStatus { entry: admitted.id, fields, url: shown.to_owned() }
    }
}
