//! Actions on existing jobs: pause, resume, add a seed, wait for the end, delete.

use tidings_protocol::status::{Answer, JobEnd, JobStatus, SeedStatus};
use tidings_protocol::{After, CanonicalUrl, Code, JobName, ProtocolError, bad_argument};

use super::admit::EventRequest;
use super::wall_clock::wall_clock_dues_of;
use crate::entry::{FORWARDED_BYTES_MAX, JobNumber};
use crate::interface::JobOperation;
use crate::jobs::JobState;
use crate::moment::Moment;
use crate::record::{Decision, EventEffect};
use crate::{Group, Output, Requester, SettingWords};

impl Group {
    /// Runs an action. Returns `None` if the answer comes with the end of the pass.
    pub(crate) fn run_job_action(
        &mut self,
        requester: Requester,
        name: &JobName,
        action: &JobOperation,
        now: Moment,
    ) -> Result<Option<Answer>, ProtocolError> {
        let answer = match action {
            JobOperation::Close => self.end_job(name, false, now)?.into(),
            JobOperation::Cancel => self.end_job(name, true, now)?.into(),
            JobOperation::Pause => self.set_job_paused(name, true, now)?.into(),
            JobOperation::Resume => self.set_job_paused(name, false, now)?.into(),
            JobOperation::Add { url, prio, after, attributes } => {
                self.add_seed(name, (url, *prio, *after, attributes), now)?.into()
            }
            JobOperation::Set(changes) => self.set_job(name, changes, now)?.into(),
            JobOperation::Wait => {
                let job = self.view().find_job(name)?;
                if job.state != JobState::Done {
                    let number = job.id.number;
                    self.job_waiters.entry(number).or_default().push(requester);
                    return Ok(None);
                }
                job.end().into()
            }
            JobOperation::Delete => self.delete_job(name, now)?.into(),
        };
        Ok(Some(answer))
    }

    /// Closes or cancels a job.
    fn end_job(
        &mut self,
        name: &JobName,
        cancels: bool,
        now: Moment,
    ) -> Result<JobStatus, ProtocolError> {
        let job = self.view().find_job(name)?;
        let number = job.id.number;
        let decision = if cancels {
            let is_running = job.state != JobState::Done && !job.cancelled;
            is_running.then_some(Decision::JobCancelled { number })
        } else {
            (job.state == JobState::Open).then_some(Decision::JobClosed { number })
        };
        if let Some(decision) = decision {
            self.commit(decision, now);
            self.settle_job(number, now);
        }
        Ok(self.view().job_status(self.view().find_job(name)?))
    }

    fn set_job_paused(
        &mut self,
        name: &JobName,
        paused: bool,
        now: Moment,
    ) -> Result<JobStatus, ProtocolError> {
        let job = self.view().find_job(name)?;
        let number = job.id.number;
        if job.state == JobState::Done {
            return Err(conflict(format!("job {name} is already done")));
        }
        if job.paused != paused {
            self.commit(Decision::JobPaused { number, paused }, now);
        }
        Ok(self.view().job_status(self.view().find_job(name)?))
    }

    /// Changes settings of a job that runs. Entries that do not belong to it any more end when they
    /// would be released.
    pub(crate) fn set_job(
        &mut self,
        name: &JobName,
        changes: &SettingWords,
        now: Moment,
    ) -> Result<JobStatus, ProtocolError> {
        let (job, settings) = self.view().changed_job(name, changes)?;
        let number = job.id.number;
        let is_timed = changes.iter().any(|(key, _)| **key == *"max-time");
        let time_until = match settings.time_ms_max.filter(|_| is_timed) {
            Some(ms) => Some(now + ms),
            None => job.time_until.filter(|_| !is_timed),
        };
        self.commit(Decision::JobSet { number, time_until, settings: settings.into() }, now);
        self.settle_job(number, now);
        Ok(self.view().job_status(self.view().find_job(name)?))
    }

    /// Adds a seed by command. It is judged like an event of the job.
    fn add_seed(
        &mut self,
        name: &JobName,
        (url, prio, after, attributes): (&str, i16, After, &str),
        now: Moment,
    ) -> Result<SeedStatus, ProtocolError> {
        let number = self.view().find_job(name)?.id.number;
        let url = CanonicalUrl::parse(url)
            .map_err(|error| bad_argument(format!("url={url}: {error}")))?;
        let key = self.state.config().key_of_url(&url).ok_or_else(|| {
            conflict("a group with key=attr:<name> takes seeds only as events with this attribute")
        })?;
        self.check_request(&url, |rule| rule.block)?;
        if self.is_full() {
            let text = "the group is full; add the seed again when some entries are done";
            return Err(ProtocolError::new(Code::Limit, text));
        }
        if attributes.len() > FORWARDED_BYTES_MAX {
            let text = format!("item= and source= have more than {FORWARDED_BYTES_MAX} bytes");
            return Err(bad_argument(text));
        }
        let (due, at) = self.state.schedules().due_after(after, now);
        let request = EventRequest {
            text: url.as_str(),
            url_key: Some(url.url_key()),
            key: key.into(),
            job: Some(name.as_ref()),
            prio,
            due,
            forwarded: attributes.into(),
        };
        let taking = self
            .judge_seed(name.as_ref(), request)
            .map_err(|reason| conflict(format!("job {name} accepts no seed: {reason}")))?;
        let is_new = matches!(taking, EventEffect::Admitted(_));
        let times =
            at.into_iter().flat_map(|unix_ms| wall_clock_dues_of(&taking, unix_ms)).collect();
        self.commit(Decision::SeedAdded(taking.into()), now);
        self.record_wall_clock_dues(times, now);
        self.settle_job(number, now);
        let job = name.to_string();
        Ok(SeedStatus { job, new: u64::from(is_new), known: u64::from(!is_new) })
    }

    fn delete_job(&mut self, name: &JobName, now: Moment) -> Result<String, ProtocolError> {
        let job = self.view().find_job(name)?;
        if job.state != JobState::Done {
            return Err(conflict(format!("job {name} is not done; JOB cancel {name} ends it")));
        }
        self.commit(Decision::JobDeleted { number: job.id.number }, now);
        self.report_job_name(name);
        Ok(name.to_string())
    }

    /// Tells other groups whether this group has a job of that name.
    pub(crate) fn report_job_name(&mut self, name: &JobName) {
        let known = self.state.jobs().named(name.as_ref()).is_some();
        self.outputs.push_back(Output::JobNameChanged { name: name.clone(), exists: known });
    }

    /// Answers all clients that wait for the end of a pass.
    pub(crate) fn answer_waiters(&mut self, number: JobNumber, end: &JobEnd) {
        for requester in self.job_waiters.remove(&number).unwrap_or_default() {
            self.answer(requester, Ok(end.clone().into()));
        }
    }

    /// Ends a job after its time limit.
    pub(crate) fn end_job_time(&mut self, number: JobNumber, now: Moment) {
        self.commit(Decision::JobTimeUp { number }, now);
        self.settle_job(number, now);
    }
}

fn conflict(text: impl Into<String>) -> ProtocolError {
    ProtocolError::new(Code::Conflict, text)
}
