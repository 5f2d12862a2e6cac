//! Answers to queries. A [`View`] reads a group and cannot change it.

mod explain;
pub mod job_change;
pub mod members;
pub mod metrics;
pub mod rules;
pub mod schedules;
pub mod task_list;
pub mod top_keys;
pub mod waiting;

use std::borrow::Cow;

use tidings_protocol::status::{
    Answer, BrowserFields, GroupStatus, JobListEnd, JobStatus, ListEnd, Rate, Status,
};
use tidings_protocol::{Code, GroupName, JobName, JobQuery, JobSettings, ProtocolError, StartAt};

use crate::entry::{Entry, EntryId};
use crate::jobs::{Job, JobState};
use crate::moment::Moment;
use crate::page_metrics::PageMetrics;
use crate::state::State;
use crate::{Group, GroupQuery, SettingWords, setting_pairs};

/// The work of comparing a short text with one pattern. Looking at an entry is 1.
const MATCH_WORK: usize = 8;

/// Bytes of a text that are compared with one pattern for a work of 1.
const COMPARED_BYTES: usize = 64;

/// The work of looking at an item and comparing its text with patterns.
fn match_work(patterns: usize, text_len: usize) -> usize {
    match patterns {
        0 => 1,
        _ => MATCH_WORK + patterns.saturating_mul(text_len) / COMPARED_BYTES,
    }
}

/// A group as it can be read.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    state: &'a State,
    metrics: &'a PageMetrics,
}

impl Group {
    /// Returns what can be read of the group.
    pub fn view(&self) -> View<'_> {
        View { state: &self.state, metrics: &self.metrics }
    }
}

impl<'a> View<'a> {
    pub(crate) fn show(&self, what: &GroupQuery, now: Moment) -> Result<Answer, ProtocolError> {
        match what {
            GroupQuery::Group => Ok(self.status().into()),
            GroupQuery::Job(name) => {
                let job = self.find_job(name)?;
                Ok(self.observed(job, job.full_status(self.queued_of(job))).into())
            }
            GroupQuery::Jobs(query) => Ok(self.list_jobs(*query)),
            GroupQuery::Explain(what) => self.explain(what, now),
            GroupQuery::Tasks(query) => self.describe_tasks(&self.select_tasks(query)?, now),
            GroupQuery::JobChange(change) => self.describe_change(&self.try_change(change)?),
            GroupQuery::Keys(query) => self.list_keys(query, now),
            GroupQuery::Schedules(query) => Ok(self.list_schedules(query, now)),
            GroupQuery::Members { range, with_addresses } => {
                Ok(self.list_members(*range, *with_addresses, now))
            }
            GroupQuery::Rules(range) => Ok(self.list_rules(*range, now)),
        }
    }

    /// Lists jobs, newest first; or a part of a walk over them.
    fn list_jobs(&self, query: JobQuery) -> Answer {
        let JobQuery { state, range } = query;
        let fits = |job: &&Job| state.is_none_or(|state| job.shown_state() == state);
        let (listed, jobs, next) = match range.after {
            None => {
                let mut newest: Vec<_> = self.state.jobs().iter().rev().filter(fits).collect();
                let jobs = newest.len() as u64;
                newest.truncate(range.limit);
                (newest, Some(jobs), None)
            }
            Some(after) => {
                let (jobs, next) =
                    self.walk(self.state.jobs().above(after), range.limit, |_| 1, fits);
                (jobs, None, next)
            }
        };
        let lines: Vec<_> = listed.into_iter().map(|job| self.job_status(job)).collect();
        let (group, listed) = (self.state.name().to_string(), lines.len() as u64);
        Answer::new(lines, JobListEnd { group, jobs, listed, next })
    }

    /// Takes the next part of a walk: of items with rising numbers, those that fit. Also returns the
    /// number at which the walk continues, if others may follow. Items with the same number are in
    /// the same part. `work` is that of an item, see [`match_work`].
    fn walk<T>(
        &self,
        items: impl Iterator<Item = (u64, T)>,
        limit: usize,
        work: impl Fn(&T) -> usize,
        fits: impl Fn(&T) -> bool,
    ) -> (Vec<T>, Option<u64>) {
        let (mut found, mut last, mut spent) = (Vec::new(), None, 0);
        for (number, item) in items {
            let is_full = spent >= self.state.config().looked_at_max || found.len() >= limit;
            if is_full && last != Some(number) {
                return (found, last);
            }
            last = Some(number);
            spent += work(&item);
            if fits(&item) {
                found.push(item);
            }
        }
        (found, None)
    }

    /// The lines of a list. `matched` counts all that match, if that is known; the list continues
    /// at `next`.
    fn list(
        &self,
        lines: impl ExactSizeIterator<Item: Into<Status>>,
        matched: Option<usize>,
        next: Option<u64>,
    ) -> Answer {
        let (group, listed) = (self.state.name().to_string(), lines.len() as u64);
        let matched = matched.map(|matched| matched as u64);
        Answer::new(lines, ListEnd { group, matched, listed, next })
    }

    /// The pages that the group or a job has completed.
    pub fn completed(&self, job: Option<&JobName>) -> Option<u64> {
        match job {
            None => Some(self.state.totals().completed),
            Some(name) => Some(self.state.jobs().named(name.as_ref())?.counts.completed),
        }
    }

    /// A progress line of the group or a job, with this rate.
    pub fn progress(&self, job: Option<&JobName>, rate: Rate) -> Option<Status> {
        let rate = Some(rate);
        match job {
            None => Some(GroupStatus { rate, ..self.status() }.into()),
            Some(name) => {
                let job = self.state.jobs().named(name.as_ref())?;
                Some(JobStatus { rate, ..self.job_status(job) }.into())
            }
        }
    }

    pub(crate) fn find_job(&self, name: &JobName) -> Result<&'a Job, ProtocolError> {
        self.state.jobs().named(name.as_ref()).ok_or_else(|| unknown_job(name, self.state.name()))
    }

    /// Returns a job that is neither done nor cancelled.
    pub(crate) fn running_job(&self, name: &JobName) -> Result<&'a Job, ProtocolError> {
        let job = self.find_job(name)?;
        if job.state == JobState::Done || job.cancelled {
            let text = format!("job {name} is done or cancelled; open it again for its next pass");
            return Err(ProtocolError::new(Code::Conflict, text));
        }
        Ok(job)
    }

    /// Returns a job that runs, and its settings after a change.
    pub(crate) fn changed_job(
        &self,
        name: &JobName,
        changes: &SettingWords,
    ) -> Result<(&'a Job, JobSettings), ProtocolError> {
        let job = self.running_job(name)?;
        Ok((job, job.settings.changed_in_pass(setting_pairs(changes))?))
    }

    /// Returns the job and pass of an entry: those in which it waits, or the finished ones that it
    /// repairs.
    pub(crate) fn job_and_pass(&self, entry: &Entry) -> Option<(&'a Job, u32)> {
        let repaired = entry.repairs.filter(|pass| self.state.jobs().of_pass(*pass).is_some());
        let pass = entry.admitted.job.or(repaired)?;
        Some((self.state.jobs().find(pass.number)?, pass.pass))
    }

    /// Returns a waiting entry. Its text is in memory.
    pub(crate) fn unreleased(&self, id: EntryId) -> Cow<'a, Entry> {
        if let Some(live) = self.state.frontier().find(id) {
            return Cow::Borrowed(&live.entry);
        }
        let dormant = self.state.dormant().find(id);
        Cow::Owned(
            self.state.dormant_entry(dormant.expect("an entry that is not active is dormant")),
        )
    }

    pub(crate) fn job_status(&self, job: &Job) -> JobStatus {
        self.observed(job, job.status(self.queued_of(job)))
    }

    /// The status of a job, with what only the group knows: times, and metrics of its pages.
    fn observed(&self, job: &Job, status: JobStatus) -> JobStatus {
        let time = |at| StartAt::Time(self.state.schedules().unix_ms_at(at)).to_string();
        JobStatus {
            opened: time(job.opened_at),
            ended: job.ended_at.map(time),
            metrics: self.metrics.of_pass(job.id),
            ..status
        }
    }

    /// The entries of a job for which only a member's credit is missing.
    fn queued_of(&self, job: &Job) -> usize {
        let queued = |render| self.state.frontier().ready(render).queued_of(job.id.number);
        if self.state.is_paused() { 0 } else { queued(false) + queued(true) }
    }

    pub(crate) fn status(&self) -> GroupStatus {
        let held =
            self.state.leases().members().iter().map(|(_, member)| member.load()).sum::<usize>();
        let connected = self
            .state
            .leases()
            .members()
            .iter()
            .filter(|(_, member)| member.conn().is_some())
            .count();
        let totals = self.state.totals();
        let render_members = self.state.leases().members().can_render() as u64;
        let render_waiting =
            if self.state.is_paused() { 0 } else { self.state.frontier().ready(true).len() as u64 };
        let reports =
            self.state.leases().members().iter().filter_map(|(_, member)| member.browsers());
        let is_rendering = render_members > 0 || render_waiting > 0;
        GroupStatus {
            group: self.state.name().to_string(),
            paused: self.state.is_paused(),
            members: connected as u64,
            render_members: is_rendering.then_some(render_members),
            render_waiting: is_rendering.then_some(render_waiting),
            browsers: reports.fold(BrowserFields::default(), BrowserFields::plus),
            waiting: (self.state.frontier().len() - held) as u64,
            processing: held as u64,
            completed: totals.completed,
            failed: totals.failed,
            dead: totals.dead,
            dead_kept: self.state.dead_letters().len() as u64,
            scheduled: self.state.schedules().len() as u64,
            lost: totals.lost,
            unkeyed: totals.unkeyed,
            keys: self.state.frontier().keys().len() as u64,
            keys_down: self.state.frontier().keys_down() as u64,
            metrics: self.metrics.of_group(),
            settings: self.state.config().settings.clone(),
            rate: None,
        }
    }
}

/// The error about a job that the group does not remember.
pub fn unknown_job(job: &JobName, group: &GroupName) -> ProtocolError {
    let text = format!("no job {job} in group {group}; JOB open {job} creates it");
    ProtocolError::new(Code::NotFound, text)
}
