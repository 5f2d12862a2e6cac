//! Commands for settings and jobs.

use tidings_protocol::status::{GroupStatus, JobListEnd, JobStatus, Rate};
use tidings_protocol::{Code, GroupSetting, JobName, KeyKind, ProtocolError};

use super::config::GroupConfig;
use super::entry::JobNumber;
use super::jobs::{Job, JobSettings, JobState};
use super::record::Decision;
use super::{Group, GroupAnswer, GroupQuery};
use crate::moment::Moment;

/// Most jobs in an answer to `JOB ls`, newest first.
const LISTED_JOBS_MAX: usize = 1000;

impl Group {
    pub(super) fn configure(
        &mut self,
        settings: Vec<GroupSetting>,
        now: Moment,
    ) -> Result<GroupAnswer, ProtocolError> {
        let config = self.config.with(settings);
        config.validate()?;
        let is_used = !self.is_idle()
            || !self.frontier.keys().is_empty()
            || !self.dead_letters.is_empty()
            || !self.schedules.is_empty()
            || self.jobs.unfinished() > 0;
        if config.key != self.config.key && is_used {
            return Err(ProtocolError::new(
                Code::Conflict,
                "the key cannot change while the group has entries, dead letters, schedules, jobs that \
                 are not done, or keys that rest",
            ));
        }
        let answer = GroupAnswer::new(format_args!("{} {}", self.name, config.describe()));
        self.commit(Decision::Configured(Box::new(config)), now);
        // A topic for which a job waited may no longer feed the group.
        for number in self.jobs.completion_pending() {
            self.complete_if_consumed(number, now);
        }
        Ok(answer)
    }

    /// Sets the delay of keys, if it differs.
    pub(super) fn set_delay(&mut self, delay_ms: Option<u64>, now: Moment) {
        if self.config.delay_ms != delay_ms {
            let config = GroupConfig { delay_ms, ..self.config.clone() };
            self.commit(Decision::Configured(Box::new(config)), now);
        }
    }

    pub(super) fn open_job(
        &mut self,
        name: &JobName,
        settings: JobSettings,
        now: Moment,
    ) -> Result<GroupAnswer, ProtocolError> {
        if self.config.key == KeyKind::None {
            let text = "a group with key=none cannot have jobs, because jobs count URLs";
            return Err(ProtocolError::new(Code::Conflict, text));
        }
        if let Some(job) = self.jobs.named(name.as_ref())
            && job.state != JobState::Done
        {
            return self.reopen_job(job.id.number, &settings, now);
        }
        if self.jobs.unfinished() >= self.config.jobs_max {
            return Err(ProtocolError::new(
                Code::Limit,
                format!(
                    "{} jobs are not done, which is the limit; try again when one is done",
                    self.config.jobs_max
                ),
            ));
        }
        let number = self.jobs.number_for(name);
        self.commit(Decision::JobOpened { number, name: name.clone(), settings }, now);
        let job = self.jobs.find(number);
        Ok(job.map(|job| GroupAnswer::new(self.job_status(job))).unwrap_or_default())
    }

    /// Reopens a job that is not done: its pass continues and accepts seeds again.
    fn reopen_job(
        &mut self,
        number: JobNumber,
        settings: &JobSettings,
        now: Moment,
    ) -> Result<GroupAnswer, ProtocolError> {
        let Some(job) = self.jobs.find(number) else { return Ok(GroupAnswer::default()) };
        if job.cancelled {
            let text = format!(
                "job {} was cancelled and has tasks in flight; try again when they have ended",
                job.name
            );
            return Err(ProtocolError::new(Code::Busy, text));
        }
        // `hold=` counts only when the pass begins, and changes none of its pages.
        if job.settings != (JobSettings { hold: job.settings.hold, ..settings.clone() }) {
            let text = format!("{} with other settings", self.job_status(job));
            return Err(ProtocolError::new(Code::Exists, text));
        }
        self.commit(Decision::JobReopened { number }, now);
        let job = self.jobs.find(number);
        Ok(job.map(|job| GroupAnswer::new(self.job_status(job))).unwrap_or_default())
    }

    pub(super) fn close_job(
        &mut self,
        name: &JobName,
        now: Moment,
    ) -> Result<GroupAnswer, ProtocolError> {
        let job = self.find_job(name)?;
        let number = job.id.number;
        if job.state == JobState::Open {
            self.commit(Decision::JobClosed { number }, now);
            self.settle_job(number, now);
        }
        Ok(GroupAnswer::new(self.job_status(self.find_job(name)?)))
    }

    pub(super) fn cancel_job(
        &mut self,
        name: &JobName,
        now: Moment,
    ) -> Result<GroupAnswer, ProtocolError> {
        let job = self.find_job(name)?;
        let number = job.id.number;
        if job.state != JobState::Done && !job.cancelled {
            self.commit(Decision::JobCancelled { number }, now);
            self.settle_job(number, now);
        }
        Ok(GroupAnswer::new(self.job_status(self.find_job(name)?)))
    }

    pub(super) fn show(
        &self,
        what: &GroupQuery,
        now: Moment,
    ) -> Result<GroupAnswer, ProtocolError> {
        match what {
            GroupQuery::Group => Ok(GroupAnswer::new(self.status())),
            GroupQuery::Job(name) => {
                let job = self.find_job(name)?;
                Ok(GroupAnswer::new(job.full_status(self.queued_of(job))))
            }
            GroupQuery::Jobs => {
                let newest = self.jobs.iter().rev().take(LISTED_JOBS_MAX);
                let lines: Vec<String> =
                    newest.map(|job| self.job_status(job).to_string()).collect();
                let (jobs, listed) = (self.jobs.len() as u64, lines.len() as u64);
                let ok = JobListEnd { group: self.name.to_string(), jobs, listed };
                Ok(GroupAnswer { lines, ok: ok.to_string() })
            }
            GroupQuery::Explain(what) => self.explain(what, now),
            GroupQuery::Tasks(query) => self.describe_tasks(&self.select_tasks(query)?, now),
            GroupQuery::Keys(query) => self.list_keys(query, now),
            GroupQuery::Schedules(query) => Ok(self.list_schedules(query, now)),
        }
    }

    /// The pages that the group or a job has completed.
    pub fn completed(&self, job: Option<&JobName>) -> Option<u64> {
        match job {
            None => Some(self.totals.completed),
            Some(name) => Some(self.jobs.named(name.as_ref())?.counts.completed),
        }
    }

    /// A progress line of the group or a job, with this rate.
    pub fn progress(&self, job: Option<&JobName>, rate: Rate) -> Option<String> {
        let rate = Some(rate);
        match job {
            None => Some(GroupStatus { rate, ..self.status() }.to_string()),
            Some(name) => {
                let job = self.jobs.named(name.as_ref())?;
                Some(JobStatus { rate, ..self.job_status(job) }.to_string())
            }
        }
    }

    pub(super) fn find_job(&self, name: &JobName) -> Result<&Job, ProtocolError> {
        self.jobs.named(name.as_ref()).ok_or_else(|| {
            ProtocolError::new(
                Code::NotFound,
                format!("no job {name} in group {}; JOB open {name} creates it", self.name),
            )
        })
    }

    pub(super) fn job_status(&self, job: &Job) -> JobStatus {
        job.status(self.queued_of(job))
    }

    /// The entries of a job for which only a member's credit is missing.
    fn queued_of(&self, job: &Job) -> usize {
        if self.is_paused { 0 } else { self.frontier.ready().queued_of(job.id.number) }
    }

    pub(super) fn status(&self) -> GroupStatus {
        let held = self.leases.members().iter().map(|(_, member)| member.load()).sum::<usize>();
        let connected =
            self.leases.members().iter().filter(|(_, member)| member.conn().is_some()).count();
        let totals = self.totals;
        GroupStatus {
            group: self.name.to_string(),
            paused: self.is_paused,
            members: connected as u64,
            waiting: (self.entry_count() - held) as u64,
            processing: held as u64,
            completed: totals.completed,
            failed: totals.failed,
            dead: totals.dead,
            dead_kept: self.dead_letters.len() as u64,
            scheduled: self.schedules.len() as u64,
            lost: totals.lost,
            unkeyed: totals.unkeyed,
            keys: self.frontier.keys().len() as u64,
            settings: self.config.status(),
            rate: None,
        }
    }
}
