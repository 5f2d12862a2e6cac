//! What a group counts, for metrics.

use tidings_metrics::Durations;
use tidings_protocol::{FailureReason, JobName};

use super::View;
use crate::jobs::{Job, JobState};

/// Jobs of a group with metrics of their own, at most.
const JOBS_SHOWN_MAX: usize = 10;

/// The metrics of a group at one moment, or the sum of those of several groups.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GroupMetrics {
    /// Entries that no member holds.
    pub waiting: u64,
    /// Entries that members hold.
    pub processing: u64,
    /// Dead letters that are kept.
    pub dead_kept: u64,
    /// Those of them that belong to no job.
    pub dead_without_job: u64,
    /// Entries that only wait for a member with a browser while no member has one.
    pub without_browser: u64,
    /// Schedules.
    pub scheduled: u64,
    /// Connected members.
    pub members: u64,
    /// Entries that the members may receive now.
    pub credit: u64,
    /// Keys in memory.
    pub keys: u64,
    /// Keys with waiting entries whose host does not answer.
    pub keys_down: u64,
    /// Keys that only wait for a member; 0 while the group is paused.
    pub ready_keys: u64,
    /// Open, closed and finished jobs that the group remembers.
    pub jobs: [u64; 3],
    /// Tasks that were acknowledged, since the group was created.
    pub completed: u64,
    /// Attempts that failed, since the group was created.
    pub failed: u64,
    /// Leases that ended without an answer, since the group was created.
    pub lost: u64,
    /// Entries that were given up, since the group was created.
    pub dead: u64,
    /// Reported answers with status 200 to 299, 300 to 399, 400 to 499 and 500 to 599.
    pub classes: [u64; 4],
    /// Reported bytes of pages.
    pub body_bytes: u64,
    /// Reported times of requests.
    pub responses: Durations,
    /// How often each reason was reported, in the order of [`FailureReason::ALL`]; behind them, how
    /// often any other word.
    pub reasons: [u64; FailureReason::ALL.len() + 1],
    /// The newest jobs, those that are not done first; none in a sum.
    pub newest_jobs: Vec<JobMetrics>,
}

/// The metrics of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobMetrics {
    /// Its name.
    pub name: JobName,
    /// Whether its current pass is done.
    pub is_done: bool,
    /// Whether an operator has paused it.
    pub is_paused: bool,
    /// URLs that only wait for a member.
    pub queued: u64,
    /// URLs of the pass that have no final result yet.
    pub unfinished: u64,
    /// Pages of the pass.
    pub completed: u64,
    /// URLs of the pass that failed.
    pub failed: u64,
}

impl GroupMetrics {
    /// Adds the metrics of another group.
    pub fn merge(&mut self, other: &Self) {
        let Self {
            waiting,
            processing,
            dead_kept,
            dead_without_job,
            without_browser,
            scheduled,
            members,
            credit,
            keys,
            keys_down,
            ready_keys,
            jobs,
            completed,
            failed,
            lost,
            dead,
            classes,
            body_bytes,
            responses,
            reasons,
            newest_jobs: _,
        } = other;
        self.waiting += waiting;
        self.processing += processing;
        self.dead_kept += dead_kept;
        self.dead_without_job += dead_without_job;
        self.without_browser += without_browser;
        self.scheduled += scheduled;
        self.members += members;
        self.credit += credit;
        self.keys += keys;
        self.keys_down += keys_down;
        self.ready_keys += ready_keys;
        self.completed += completed;
        self.failed += failed;
        self.lost += lost;
        self.dead += dead;
        self.body_bytes = self.body_bytes.saturating_add(*body_bytes);
        self.responses.merge(responses);
        let counts = self.jobs.iter_mut().chain(&mut self.classes).chain(&mut self.reasons);
        for (count, more) in counts.zip(jobs.iter().chain(classes).chain(reasons)) {
            *count += more;
        }
    }
}

impl View<'_> {
    /// Returns the metrics of the group. Its cost rises with the numbers of members and jobs.
    pub fn metrics(&self) -> GroupMetrics {
        let status = self.status();
        let ready =
            self.state.frontier().ready(false).len() + self.state.frontier().ready(true).len();
        let (classes, body_bytes) = self.metrics.answers();
        let mut metrics = GroupMetrics {
            waiting: status.waiting,
            processing: status.processing,
            dead_kept: status.dead_kept,
            dead_without_job: self.state.dead_letters().without_job() as u64,
            without_browser: match status.render_members {
                Some(0) => status.render_waiting.unwrap_or(0),
                _ => 0,
            },
            scheduled: status.scheduled,
            members: status.members,
            credit: self.state.leases().members().free_credit() as u64,
            keys: status.keys,
            keys_down: status.keys_down,
            ready_keys: if self.state.is_paused() { 0 } else { ready as u64 },
            completed: status.completed,
            failed: status.failed,
            lost: status.lost,
            dead: status.dead,
            classes,
            body_bytes,
            responses: self.metrics.durations(),
            reasons: self.metrics.reasons(),
            jobs: [0; 3],
            newest_jobs: Vec::new(),
        };
        for job in self.state.jobs().iter() {
            let state = match job.state {
                JobState::Open => 0,
                JobState::Closed => 1,
                JobState::Done => 2,
            };
            metrics.jobs[state] += 1;
        }
        let is_done = |job: &&Job| job.state == JobState::Done;
        let jobs = || self.state.jobs().iter().rev();
        let open = jobs().filter(|job| !is_done(job));
        let newest = open.chain(jobs().filter(is_done)).take(JOBS_SHOWN_MAX);
        metrics.newest_jobs = newest.map(|job| self.job_metrics(job)).collect();
        metrics
    }

    fn job_metrics(&self, job: &Job) -> JobMetrics {
        JobMetrics {
            name: job.name.clone(),
            is_done: job.state == JobState::Done,
            is_paused: job.paused,
            queued: self.queued_of(job) as u64,
            unfinished: job.unfinished_count(),
            completed: job.counts.completed,
            failed: job.counts.failed,
        }
    }
}
