//! Commands for settings and jobs.

use tidings_protocol::{Code, JobName, ProtocolError};

use crate::config::KeyKind;
use crate::entry::JobNumber;
use crate::jobs::{JobSettings, JobState};
use crate::moment::Moment;
use crate::record::Decision;
use crate::{Group, GroupAnswer};

impl Group {
    pub(crate) fn configure(
        &mut self,
        settings: &[(String, String)],
        now: Moment,
    ) -> Result<GroupAnswer, ProtocolError> {
        let pairs = settings.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let config = self.config.with_settings(pairs)?;
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

    pub(crate) fn open_job(
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

    pub(crate) fn close_job(
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

    pub(crate) fn cancel_job(
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
}
