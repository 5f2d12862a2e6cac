//! Job completion (`job-done`): a job is done when nothing of it is left and the group has consumed
//! everything that was published before.

use std::collections::{BTreeMap, BTreeSet};

use tidings_protocol::status::JobEnd;
use tidings_protocol::{JOB_DONE_TOPIC, Seq, TopicName};

use crate::entry::{EndReason, JobNumber};
use crate::jobs::{Job, JobState};
use crate::moment::Moment;
use crate::mutants::{self, Mutant};
use crate::record::Decision;
use crate::{Group, Notice, Output};

impl Group {
    /// Called after the count, the pages or the state of a job may have changed. Drops the entries
    /// that it may no longer release, and requests the topic heads when nothing of it is left.
    pub(crate) fn settle_job(&mut self, number: JobNumber, now: Moment) {
        let Some(job) = self.state.jobs().find(number) else {
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
        let Some(job) = self.state.jobs().find(number) else {
            return;
        };
        if awaits_consumption(job) && job.completion_heads.is_none() {
            self.outputs.push_back(Output::RequestTopicHeads { job: number });
        }
    }

    /// Does this for all jobs that are not done.
    pub(crate) fn settle_unfinished_jobs(&mut self, now: Moment) {
        let unfinished = self.state.jobs().iter().filter(|job| job.state != JobState::Done);
        let numbers: Vec<JobNumber> = unfinished.map(|job| job.id.number).collect();
        for number in numbers {
            self.settle_job(number, now);
        }
    }

    /// Notes the heads of the feeding topics for a job that is on hold or has a count of zero.
    /// When the group has consumed everything below them, the hold ends, or the job is done if its
    /// count is still zero.
    pub(crate) fn note_heads(
        &mut self,
        number: JobNumber,
        heads: BTreeMap<TopicName, Seq>,
        now: Moment,
    ) {
        if self.state.jobs().find(number).is_some_and(awaits_consumption) {
            self.commit(Decision::JobCompletionPending { number, heads }, now);
            self.complete_if_consumed(number, now);
        }
    }

    /// Called after events were consumed: settles the jobs that received seeds, and those that
    /// waited for these events.
    pub(crate) fn settle_after_consuming(&mut self, seeded: BTreeSet<JobNumber>, now: Moment) {
        for number in seeded {
            self.settle_job(number, now);
        }
        for number in self.state.jobs().completion_pending() {
            self.complete_if_consumed(number, now);
        }
    }

    pub(crate) fn complete_if_consumed(&mut self, number: JobNumber, now: Moment) {
        let Some(job) = self.state.jobs().find(number) else {
            return;
        };
        let Some(heads) = &job.completion_heads else { return };
        // A topic that no longer feeds the group is not waited for.
        let feeds = |topic: &TopicName| self.state.config().settings.topics.contains(topic);
        let all_taken =
            heads.iter().all(|(topic, head)| !feeds(topic) || self.next_to_consume(topic) >= *head);
        // A full group consumes further events only after some entries have ended.
        if job.unfinished_count() > 0 && job.awaits_seeds() && (all_taken || self.is_full()) {
            self.commit(Decision::JobHoldEnded { number }, now);
        } else if job.unfinished_count() == 0
            && (all_taken || mutants::is(Mutant::DoneBeforeConsumed))
        {
            let end = job.end();
            let serial = format!("{}.{}", self.state.run(), self.state.last_serial() + 1);
            let group = Some(self.state.name().to_string());
            let announced = JobEnd { group, serial: Some(serial), ..end.clone() }.to_string();
            let forgotten =
                self.state.jobs().next_evicted(self.state.config().finished_jobs_max).cloned();
            self.commit(Decision::JobDone { number }, now);
            if let Some(name) = forgotten {
                self.report_job_name(&name);
            }
            if mutants::is(Mutant::DoneTwice) {
                self.publish(JOB_DONE_TOPIC, announced.clone());
            }
            self.publish(JOB_DONE_TOPIC, announced);
            self.answer_waiters(number, &end);
        }
    }

    /// Closes a job that was left open for too long.
    pub(crate) fn close_abandoned_job(&mut self, number: JobNumber, now: Moment) {
        let Some(job) = self.state.jobs().find(number) else {
            return;
        };
        if job.state != JobState::Open {
            return;
        }
        let name = job.name.clone();
        self.notice(Notice::AbandonedJobClosed(name));
        self.commit(Decision::JobClosed { number }, now);
        self.settle_job(number, now);
    }
}

/// Reports whether events that are published but not consumed matter to the job.
fn awaits_consumption(job: &Job) -> bool {
    job.state == JobState::Closed && (job.unfinished_count() == 0 || job.awaits_seeds())
}
