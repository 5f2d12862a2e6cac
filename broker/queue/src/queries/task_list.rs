//! Lists of entries (`GROUP tasks`), with the dead and the finished ones.

use std::cell::RefCell;

use hashbrown::HashMap;
use tidings_protocol::status::{Answer, TaskFields, TaskState, TaskStatus};
use tidings_protocol::{EntrySelection, ListRange, Patterns, ProtocolError, TaskQuery};

use super::{View, match_work};
use crate::dead_letters::DeadLetter;
use crate::entry::{Entry, EntryId, EntryState, JobNumber};
use crate::finished::{FinishedTask, TaskEnd, shown_text};
use crate::frontier::entry_text::DormantRef;
use crate::frontier::keys::KeyId;
use crate::frontier::{ActiveEntry, AnyEntry, next_entry};
use crate::moment::Moment;

/// Most texts that a part of a walk waits for: as many as the longest list has.
const UNREAD_MAX: usize = 1000;

/// The states of the entries that are in the frontier.
const FRONTIER: [TaskState; 4] =
    [TaskState::Pending, TaskState::Retry, TaskState::Queued, TaskState::Processing];

/// The states that an entry has which waits for its turn, not for its time.
const WAITING: [TaskState; 2] = [TaskState::Pending, TaskState::Queued];

/// The work of finding out which of [`WAITING`] an entry has. Looking at an entry is 1.
const STATE_WORK: usize = 4;

/// Entries for an answer to `GROUP tasks`.
#[derive(Debug)]
pub(crate) struct SelectedTasks {
    query: TaskQuery,
    states: Vec<TaskState>,
    walked: WalkedEntries,
}

/// A part of a walk over the entries that are not final.
#[derive(Debug, Default)]
pub(crate) struct WalkedEntries {
    /// Those that may fit, sorted: a text that must be read is not compared yet.
    pub(crate) ids: Vec<EntryId>,
    /// The number of entries behind them that fit.
    more: usize,
    /// The last entry before the first of `more`, if there are any.
    listed_to: Option<EntryId>,
    /// The last entry that the walk has passed, if others may follow.
    pub(crate) stopped_at: Option<EntryId>,
}

/// Whether an entry fits a selection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fit {
    No,
    Yes,
    /// Its text must be read first.
    Unread,
}

/// A selection with what it names.
#[derive(Debug)]
pub(super) struct Selector<'a> {
    selection: &'a EntrySelection,
    job: Option<JobNumber>,
    /// The key that it names, if the group knows it.
    key: Option<KeyId>,
    queued: QueuedEntries,
}

/// The entry of each key that is queued, if one is, of those that need a browser and of the others.
/// To find it may take longer than all else, and many entries may have one key.
type QueuedEntries = RefCell<HashMap<(KeyId, bool), Option<EntryId>>>;

/// An entry that is listed.
#[derive(Debug, Clone, Copy)]
enum Listed<'a> {
    Unfinished(AnyEntry<'a>),
    Dead(&'a DeadLetter),
}

impl SelectedTasks {
    /// Returns the ids of the entries to list.
    pub(crate) fn ids(&self) -> impl Iterator<Item = EntryId> {
        self.walked.ids.iter().copied()
    }
}

impl View<'_> {
    /// Selects entries for a list.
    pub(crate) fn select_tasks(&self, query: &TaskQuery) -> Result<SelectedTasks, ProtocolError> {
        let is_in = |state: &TaskState| query.state.is_none_or(|wanted| wanted == *state);
        let states: Vec<_> = FRONTIER.into_iter().filter(is_in).collect();
        let patterns = query.selection.matching.as_ref().map_or(0, Patterns::len);
        let walked = self.walk_entries(&query.selection, &states, query.range, patterns)?;
        Ok(SelectedTasks { query: query.clone(), states, walked })
    }

    /// Walks over the entries in one of these states (those of the frontier), in the order of their
    /// ids, and returns those that fit a selection: one more than the limit, if there are as many.
    ///
    /// `patterns` is the number of patterns that each entry is compared with, here or later. The
    /// work for one answer is limited, so the part may be short, or empty, before the end. A walk
    /// in parts meets each entry once that exists from its begin to its end.
    pub(crate) fn walk_entries(
        &self,
        selection: &EntrySelection,
        states: &[TaskState],
        range: ListRange,
        patterns: usize,
    ) -> Result<WalkedEntries, ProtocolError> {
        let selector = self.selector(selection)?;
        let mut walked = WalkedEntries::default();
        if states.is_empty() {
            return Ok(walked);
        }
        let after = range.after.unwrap_or(0).max(selection.entry.map_or(0, |id| id - 1));
        let upto = selection.entry.unwrap_or(EntryId::MAX);
        let entries = self.state.frontier().entries_above(after).take_while(|(id, _)| *id <= upto);
        let is_wanted = WAITING.map(|state| states.contains(&state));
        let state_work = if is_wanted[0] == is_wanted[1] { 0 } else { STATE_WORK };
        let (mut fitting, mut unread, mut last, mut spent) = (0, 0, after, 0);
        for (id, entry) in entries {
            let is_full = fitting > range.limit;
            let may_look = spent < self.state.config().looked_at_max;
            spent += state_work + match_work(patterns, self.text_len(entry));
            match may_look.then(|| self.fit_of(&selector, states, entry)) {
                Some(Fit::No) => {}
                Some(Fit::Yes) if !is_full => {
                    fitting += 1;
                    walked.ids.push(id);
                }
                // Only the first part of a list counts what it does not list.
                Some(Fit::Yes) if range.after.is_none() => {
                    walked.more += 1;
                    walked.listed_to.get_or_insert(last);
                }
                Some(Fit::Unread) if !is_full && unread < UNREAD_MAX => {
                    unread += 1;
                    walked.ids.push(id);
                }
                _ => {
                    walked.stopped_at = Some(last);
                    break;
                }
            }
            last = id;
        }
        Ok(walked)
    }

    /// Lists selected entries, and the dead ones between them, by id; or the finished ones. The
    /// texts of the dormant ones must be in memory. Entries that have ended since their selection
    /// are left out.
    pub(crate) fn describe_tasks(
        &self,
        selected: &SelectedTasks,
        now: Moment,
    ) -> Result<Answer, ProtocolError> {
        let SelectedTasks { query, states, walked } = selected;
        let ListRange { after, limit } = query.range;
        let selector = self.selector(&query.selection)?;
        if let Some(TaskState::Completed | TaskState::Failed) = query.state {
            return Ok(self.list_finished(query, &selector, now));
        }
        let unfinished = walked.ids.iter().filter_map(|id| {
            let entry = self.state.frontier().find_any(*id)?;
            let fits = self.fit_of(&selector, states, entry) == Fit::Yes;
            fits.then_some((*id, Listed::Unfinished(entry)))
        });
        let mut all: Vec<_> = unfinished.collect();
        if query.state.is_none_or(|state| state == TaskState::Dead) {
            let upto = walked.stopped_at.unwrap_or(EntryId::MAX);
            let dead = self.state.dead_letters().iter().filter(|dead| {
                let id = dead.entry.admitted.id;
                id > after.unwrap_or(0) && id <= upto && self.fits(&selector, &dead.entry)
            });
            all.extend(dead.map(|dead| (dead.entry.admitted.id, Listed::Dead(dead))));
            all.sort_unstable_by_key(|(id, _)| *id);
        }
        let is_whole = after.is_none() && walked.stopped_at.is_none();
        let matched = is_whole.then_some(all.len() + walked.more);
        // Selected entries may have ended, so that all others fit, but those of `more` do not follow.
        let listed_to = walked.listed_to.or(walked.stopped_at);
        all.retain(|(id, _)| *id <= listed_to.unwrap_or(EntryId::MAX));
        let mut next = listed_to.filter(|_| limit > 0);
        if all.len() > limit {
            all.truncate(limit);
            next = all.last().map(|(id, _)| *id);
        }
        let lines =
            all.into_iter().map(|(_, listed)| self.describe_listed(listed, &selector.queued, now));
        Ok(self.list(lines, matched, next))
    }

    /// Lists finished tasks, newest first; or a part of a walk over them, which goes by the order in
    /// which they ended.
    fn list_finished(&self, query: &TaskQuery, selector: &Selector<'_>, now: Moment) -> Answer {
        let ListRange { after, limit } = query.range;
        let wanted = |task: &&FinishedTask| {
            query.state == Some(task.state()) && self.fits(selector, task.entry())
        };
        let (tasks, matched, next) = match after {
            None => {
                let newest = self.state.finished().newest_first().filter(wanted);
                let mut tasks: Vec<_> = newest.collect();
                let matched = tasks.len();
                tasks.truncate(limit);
                (tasks, Some(matched), None)
            }
            Some(after) => {
                let (tasks, next) =
                    self.walk(self.state.finished().above(after), limit, |_| 1, wanted);
                (tasks, None, next)
            }
        };
        let lines = tasks.into_iter().map(|task| self.describe_finished(task, now));
        self.list(lines, matched, next)
    }

    /// Reports whether an entry of the frontier is in one of these states and fits a selection.
    pub(super) fn fit_of(
        &self,
        selector: &Selector<'_>,
        states: &[TaskState],
        entry: AnyEntry<'_>,
    ) -> Fit {
        let Selector { selection, job, key, queued } = selector;
        match entry {
            AnyEntry::Active(live) => {
                let fits = self.fits(selector, &live.entry)
                    && is_one_of(states, possible_states(&live.entry), || {
                        self.state_of(live, queued)
                    });
                if fits { Fit::Yes } else { Fit::No }
            }
            AnyEntry::Dormant(dormant) => {
                let fits = (selection.key.is_none() || *key == Some(dormant.key))
                    && job.is_none_or(|job| dormant.job() == Some(job))
                    && is_one_of(states, &WAITING, || self.state_of_dormant(&dormant, queued));
                let texts = self.state.dormant();
                match &selection.matching {
                    _ if !fits => Fit::No,
                    Some(_) if texts.must_read(dormant) => Fit::Unread,
                    Some(patterns) if !matches(patterns, texts.text(dormant)) => Fit::No,
                    _ => Fit::Yes,
                }
            }
        }
    }

    /// Reports whether an entry in memory fits a selection.
    fn fits(&self, selector: &Selector<'_>, entry: &Entry) -> bool {
        let Selector { selection: EntrySelection { entry: id, key, matching, .. }, job, .. } =
            selector;
        let admitted = &entry.admitted;
        id.is_none_or(|id| admitted.id == id)
            && key.as_ref().is_none_or(|key| *admitted.key == **key)
            && job.is_none_or(|job| {
                self.job_and_pass(entry).is_some_and(|(owner, _)| owner.id.number == job)
            })
            && matching.as_ref().is_none_or(|patterns| matches(patterns, &admitted.text))
    }

    fn text_len(&self, entry: AnyEntry<'_>) -> usize {
        match entry {
            AnyEntry::Active(live) => live.entry.admitted.text.len(),
            AnyEntry::Dormant(dormant) => self.state.dormant().text_len(dormant),
        }
    }

    pub(super) fn selector<'a>(
        &self,
        selection: &'a EntrySelection,
    ) -> Result<Selector<'a>, ProtocolError> {
        let job = selection.job.as_ref().map(|name| self.find_job(name)).transpose()?;
        let key = selection.key.as_deref().and_then(|key| self.state.frontier().keys().find(key));
        let job = job.map(|job| job.id.number);
        Ok(Selector { selection, job, key, queued: QueuedEntries::default() })
    }

    fn describe_listed(
        &self,
        listed: Listed<'_>,
        queued: &QueuedEntries,
        now: Moment,
    ) -> TaskStatus {
        match listed {
            Listed::Unfinished(AnyEntry::Active(live)) => {
                self.describe_task(&live.entry, self.state_of(live, queued), None, now)
            }
            Listed::Unfinished(AnyEntry::Dormant(dormant)) => {
                let state = self.state_of_dormant(&dormant, queued);
                self.describe_task(&self.state.dormant_entry(dormant), state, None, now)
            }
            Listed::Dead(DeadLetter { entry, reason }) => {
                self.describe_task(entry, TaskState::Dead, Some(reason), now)
            }
        }
    }

    /// Returns the ids of the selected dead entries.
    pub(crate) fn dead_among(
        &self,
        selection: &EntrySelection,
    ) -> Result<Vec<EntryId>, ProtocolError> {
        let selector = self.selector(selection)?;
        let entries = self.state.dead_letters().iter().map(|dead| &dead.entry);
        let wanted = entries.filter(|entry| self.fits(&selector, entry));
        Ok(wanted.map(|entry| entry.admitted.id).collect())
    }

    fn state_of(&self, live: &ActiveEntry, queued: &QueuedEntries) -> TaskState {
        let admitted = &live.entry.admitted;
        match *possible_states(&live.entry) {
            [state] => state,
            _ if self.is_queued(admitted.id, admitted.needs_render(), live.gate(), queued) => {
                TaskState::Queued
            }
            _ => TaskState::Pending,
        }
    }

    fn state_of_dormant(&self, dormant: &DormantRef, queued: &QueuedEntries) -> TaskState {
        let is_queued = self.is_queued(dormant.id, dormant.needs_render(), dormant.key, queued);
        if is_queued { TaskState::Queued } else { TaskState::Pending }
    }

    /// Reports whether only a member's credit is missing: the key is free, and it is the entry's
    /// turn.
    fn is_queued(&self, id: EntryId, render: bool, gate: KeyId, queued: &QueuedEntries) -> bool {
        let find = || {
            let is_free = !self.state.is_paused() && self.state.frontier().is_offered(gate, render);
            let next =
                || next_entry(&self.state.frontier().keys()[gate], render, self.state.jobs());
            is_free.then(next).flatten().map(|next| next.entry)
        };
        *queued.borrow_mut().entry((gate, render)).or_insert_with(find) == Some(id)
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

/// The states that an active entry may have, without a look at its key.
fn possible_states(entry: &Entry) -> &'static [TaskState] {
    match entry.state {
        EntryState::Held(_) => &[TaskState::Processing],
        EntryState::Delayed if entry.failures + entry.losses > 0 => &[TaskState::Retry],
        EntryState::Delayed => &[TaskState::Pending],
        EntryState::Waiting => &WAITING,
    }
}

/// Reports whether the state of an entry is one of `states`. To find out the state may take longer
/// than all else, so it is left out if `states` has all `possible` ones, or none of them.
fn is_one_of(
    states: &[TaskState],
    possible: &[TaskState],
    state: impl FnOnce() -> TaskState,
) -> bool {
    let is_in = |state: &TaskState| states.contains(state);
    possible.iter().any(is_in) && (possible.iter().all(is_in) || is_in(&state()))
}

/// Reports whether one of the patterns matches the URL of an entry, or the first word of a payload
/// that is not a URL.
pub(crate) fn matches(patterns: &Patterns, text: &str) -> bool {
    patterns.match_text(text.split(' ').next().unwrap_or_default())
}
