//! Commands for settings and jobs.

use tidings_protocol::status::Answer;
use tidings_protocol::{Code, GroupSettings, JobName, JobSettings, ProtocolError};

use crate::config::GroupConfig;
use crate::jobs::{Job, JobState};
use crate::moment::Moment;
use crate::record::Decision;
use crate::{Group, SettingWords, setting_pairs};

impl Group {
    pub(crate) fn configure(
        &mut self,
        changes: &SettingWords,
        now: Moment,
    ) -> Result<Answer, ProtocolError> {
        let config = self.state.config().with_settings(setting_pairs(changes))?;
        config.validate()?;
        let is_used = !self.is_idle()
            || !self.state.frontier().keys().is_empty()
            || !self.state.dead_letters().is_empty()
            || !self.state.schedules().is_empty()
            || self.state.frontier().rules().len() > 0
            || self.state.jobs().unfinished() > 0;
        if config.settings.key != self.state.config().settings.key && is_used {
            return Err(ProtocolError::new(
                Code::Conflict,
                "the key cannot change while the group has entries, dead letters, schedules, rules, \
                 jobs that are not done, or keys that rest",
            ));
        }
        let ok = format!("{} {}", self.state.name(), config.settings);
        self.commit(Decision::Configured(Box::new(config)), now);
        // A topic for which a job waited may no longer feed the group.
        for number in self.state.jobs().completion_pending() {
            self.complete_if_consumed(number, now);
        }
        Ok(ok.into())
    }

    /// Sets the delay of keys, if it differs.
    pub(crate) fn set_delay(&mut self, delay_ms: Option<u64>, now: Moment) {
        if self.state.config().settings.delay_ms != delay_ms {
            let settings = GroupSettings { delay_ms, ..self.state.config().settings.clone() };
            let config = GroupConfig { settings, ..self.state.config().clone() };
            self.commit(Decision::Configured(Box::new(config)), now);
        }
    }

    pub(crate) fn open_job(
        &mut self,
        name: &JobName,
        settings: Box<JobSettings>,
        now: Moment,
    ) -> Result<Answer, ProtocolError> {
        if self.state.config().settings.key.is_own() {
            let text = "a group with key=none or seq cannot have jobs, because jobs count URLs";
            return Err(ProtocolError::new(Code::Conflict, text));
        }
        let decision = match self.state.jobs().named(name.as_ref()) {
            Some(job) if job.state != JobState::Done => {
                self.check_reopening(job, &settings)?;
                Decision::JobReopened { number: job.id.number }
            }
            _ => {
                let max = self.state.config().jobs_max;
                if self.state.jobs().unfinished() >= max {
                    let text = format!(
                        "{max} jobs are not done, which is the limit; try again when one is done"
                    );
                    return Err(ProtocolError::new(Code::Limit, text));
                }
                let number = self.state.jobs().number_for(name);
                Decision::JobOpened { number, name: name.clone(), settings }
            }
        };
        self.commit(decision, now);
        Ok(self.view().job_status(self.view().find_job(name)?).into())
    }

    /// Checks whether a job that is not done can be reopened: then its pass continues and accepts
    /// seeds again.
    fn check_reopening(&self, job: &Job, settings: &JobSettings) -> Result<(), ProtocolError> {
        if job.cancelled {
            let text = format!(
                "job {} was cancelled and has tasks in flight; try again when they have ended",
                job.name
            );
            return Err(ProtocolError::new(Code::Busy, text));
        }
        // Those of `JOB set` stay, so that a command that opens the job is repeatable. `hold=` and
        // `traceparent=` count only when the pass begins, and change none of its pages.
        let opened = job.opened_settings();
        let (hold, traceparent) = (opened.hold, opened.traceparent.clone());
        if *opened != (JobSettings { hold, traceparent, ..settings.clone() }) {
            let text = format!("{} with other settings", self.view().job_status(job));
            return Err(ProtocolError::new(Code::Exists, text));
        }
        Ok(())
    }
}
