//! Commands for settings and jobs, and the completion of jobs.

use std::collections::{BTreeMap, BTreeSet};

use tidings_protocol::{Code, JOB_DONE_TOPIC, JobName, ProtocolError, Seq, TopicName};

use super::config::KeyKind;
use super::entry::JobNumber;
use super::mutants::{self, Mutant};
use super::record::{Decision, EndReason};
use super::{Group, GroupAnswer, GroupQuery, Output};
use crate::clock::Moment;
use crate::job::{Job, JobSettings, JobState};

/// Most jobs in an answer to `JOB ls`, newest first.
const LISTED_JOBS_MAX: usize = 1000;

impl Group {
    pub(super) fn configure(
        &mut self,
        settings: &[(String, String)],
        now: Moment,
    ) -> Result<GroupAnswer, ProtocolError> {
        let pairs = settings.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let config = self.config.with_settings(pairs)?;
        config.validate()?;
        let is_used = !self.is_idle()
            || !self.keys.is_empty()
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
        let ok = format!("{} {}", self.name, config.describe());
        self.commit(Decision::Configured(Box::new(config)), now);
        // A topic for which a job waited may no longer feed the group.
        for number in self.completion_pending.clone() {
            self.complete_if_consumed(number, now);
        }
        Ok(GroupAnswer { lines: Vec::new(), ok })
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
        let ok = self.jobs.find(number).map(|job| self.describe_job(job)).unwrap_or_default();
        Ok(GroupAnswer { lines: Vec::new(), ok })
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
            let text = format!("{} with other settings", self.describe_job(job));
            return Err(ProtocolError::new(Code::Exists, text));
        }
        self.commit(Decision::JobReopened { number }, now);
        let ok = self.jobs.find(number).map(|job| self.describe_job(job)).unwrap_or_default();
        Ok(GroupAnswer { lines: Vec::new(), ok })
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
        let ok = self.describe_job(self.find_job(name)?);
        Ok(GroupAnswer { lines: Vec::new(), ok })
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
        let ok = self.describe_job(self.find_job(name)?);
        Ok(GroupAnswer { lines: Vec::new(), ok })
    }

    /// Closes a job that was left open for too long.
    pub(super) fn close_abandoned_job(&mut self, number: JobNumber, now: Moment) {
        let Some(job) = self.jobs.find(number) else {
            return;
        };
        if job.state != JobState::Open {
            return;
        }
        let group = &self.name;
        tracing::info!(%group, job = %job.name, "closed a job that was left open without seeds");
        self.commit(Decision::JobClosed { number }, now);
        self.settle_job(number, now);
    }

    /// Called after the count, the pages or the state of a job may have changed. Drops the entries
    /// that it may no longer release, and requests the topic heads when nothing of it is left.
    pub(super) fn settle_job(&mut self, number: JobNumber, now: Moment) {
        let Some(job) = self.jobs.find(number) else {
            return;
        };
        let ends_as = if job.cancelled {
            Some(EndReason::Cancelled)
        } else {
            job.is_exhausted().then_some(EndReason::Budget)
        };
        let end = ends_as.unwrap_or(EndReason::Budget);
        let keys: Vec<Option<Box<str>>> = if ends_as.is_some() {
            (job.waiting_count() > 0).then_some(None).into_iter().collect()
        } else {
            job.exhausted_hosts().map(|key| Some((**key).into())).collect()
        };
        for key in keys {
            self.commit(Decision::JobCleared { number, key, end }, now);
        }
        let Some(job) = self.jobs.find(number) else {
            return;
        };
        if awaits_consumption(job) && job.completion_heads.is_none() {
            self.outputs.push_back(Output::RequestTopicHeads { job: number });
        }
    }

    /// Notes the heads of the feeding topics for a job that is on hold or has a count of zero.
    /// When the group has consumed everything below them, the hold ends, or the job is done if its
    /// count is still zero.
    pub(super) fn note_heads(
        &mut self,
        number: JobNumber,
        heads: BTreeMap<TopicName, Seq>,
        now: Moment,
    ) {
        if self.jobs.find(number).is_some_and(awaits_consumption) {
            self.commit(Decision::JobCompletionPending { number, heads }, now);
            self.complete_if_consumed(number, now);
        }
    }

    /// Called after events were consumed: settles the jobs that received seeds, and those that
    /// waited for these events.
    pub(super) fn settle_after_consuming(&mut self, seeded: BTreeSet<JobNumber>, now: Moment) {
        for number in seeded {
            self.settle_job(number, now);
        }
        for number in self.completion_pending.clone() {
            self.complete_if_consumed(number, now);
        }
    }

    fn complete_if_consumed(&mut self, number: JobNumber, now: Moment) {
        let Some(job) = self.jobs.find(number) else {
            return;
        };
        let Some(heads) = &job.completion_heads else { return };
        // A topic that no longer feeds the group is not waited for.
        let feeds = |topic: &TopicName| self.config.topics.contains(topic);
        let all_taken =
            heads.iter().all(|(topic, head)| !feeds(topic) || self.next_to_consume(topic) >= *head);
        // A full group consumes further events only after some entries have ended.
        if job.unfinished_count() > 0 && job.awaits_seeds() && (all_taken || self.is_full()) {
            self.commit(Decision::JobHoldEnded { number }, now);
        } else if job.unfinished_count() == 0
            && (all_taken || mutants::is(Mutant::DoneBeforeConsumed))
        {
            let (end, group, serial) = (job.announcement(), &self.name, self.last_serial + 1);
            let announcement = format!("{end} group={group} serial={}.{serial}", self.run);
            let forgotten = self.jobs.next_evicted(self.config.finished_jobs_max).cloned();
            self.commit(Decision::JobDone { number }, now);
            if let Some(name) = forgotten {
                self.report_job_name(&name);
            }
            if mutants::is(Mutant::DoneTwice) {
                self.publish(JOB_DONE_TOPIC, announcement.clone());
            }
            self.publish(JOB_DONE_TOPIC, announcement);
            self.answer_waiters(number, &end);
        }
    }

    pub(super) fn show(
        &self,
        what: &GroupQuery,
        now: Moment,
    ) -> Result<GroupAnswer, ProtocolError> {
        match what {
            GroupQuery::Group => Ok(GroupAnswer { lines: Vec::new(), ok: self.describe() }),
            GroupQuery::Job(name) => {
                let job = self.find_job(name)?;
                let settings = &job.settings;
                let others = settings.filter.describe() + &settings.describe_callback();
                let ok = self.describe_job(job) + &others;
                Ok(GroupAnswer { lines: Vec::new(), ok })
            }
            GroupQuery::Jobs => {
                let newest = self.jobs.iter().rev().take(LISTED_JOBS_MAX);
                let more: Vec<String> = newest.map(|job| self.describe_job(job)).collect();
                let ok = format!("{} jobs={} listed={}", self.name, self.jobs.len(), more.len());
                Ok(GroupAnswer { lines: more, ok })
            }
            GroupQuery::Explain(what) => self.explain(what, now),
            GroupQuery::Tasks(query) => self.list_tasks(query, now),
            GroupQuery::Keys(query) => self.list_keys(query, now),
            GroupQuery::Schedules(query) => Ok(self.list_schedules(query, now)),
        }
    }

    /// Returns the status line of the group or of a job, and how much has been completed.
    pub(crate) fn progress(&self, job: Option<&JobName>) -> Option<(String, u64)> {
        match job {
            None => Some((self.describe(), self.totals.completed)),
            Some(name) => {
                let job = self.jobs.named(name.as_ref())?;
                Some((self.describe_job(job), job.counts.completed))
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

    pub(super) fn describe_job(&self, job: &Job) -> String {
        let queued = if self.is_paused { 0 } else { self.ready.queued_of(job.id.number) };
        job.describe(queued)
    }

    pub(super) fn describe(&self) -> String {
        let held = self.members.iter().map(|(_, member)| member.load()).sum::<usize>();
        let connected = self.members.iter().filter(|(_, member)| member.conn.is_some()).count();
        let totals = self.totals;
        format!(
            "{} paused={} members={connected} waiting={} processing={held} completed={} failed={} \
             dead={} dead-kept={} scheduled={} lost={} unkeyed={} keys={} {}",
            self.name,
            if self.is_paused { "yes" } else { "no" },
            self.entry_count() - held,
            totals.completed,
            totals.failed,
            totals.dead,
            self.dead_letters.len(),
            self.schedules.len(),
            totals.lost,
            totals.unkeyed,
            self.keys.len(),
            self.config.describe(),
        )
    }
}

/// Reports whether events that are published but not consumed matter to the job.
fn awaits_consumption(job: &Job) -> bool {
    job.state == JobState::Closed && (job.unfinished_count() == 0 || job.awaits_seeds())
}
