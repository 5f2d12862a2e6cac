//! The active entries that wait for a key, in the order of their turns.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::lane::Lane;
use crate::entry::{EntryId, JobNumber};

/// Active entries that wait for a key.
#[derive(Debug, Default)]
pub(super) struct ActiveQueue {
    /// Targets of redirects and `again` requests. They go before everything else, the oldest entry
    /// first.
    heads: BTreeMap<EntryId, HeadEntry>,
    announced: ByPriority,
    /// No value is empty.
    jobs: BTreeMap<JobNumber, ByPriority>,
}

/// An entry at the head of the queue.
#[derive(Debug, Clone, Copy)]
struct HeadEntry {
    lane: Lane,
    /// Whether the task has begun, and this is its next request.
    is_begun: bool,
}

/// Highest priority first, oldest first within a priority.
type ByPriority = BTreeSet<(Reverse<i16>, EntryId)>;

impl ActiveQueue {
    /// Adds an entry to its lane.
    pub(super) fn push(&mut self, entry: EntryId, lane: Lane, prio: i16) {
        let queued = match lane {
            Lane::Announced => &mut self.announced,
            Lane::Job(job) => self.jobs.entry(job).or_default(),
        };
        queued.insert((Reverse(prio), entry));
    }

    /// Adds an entry before all lanes.
    pub(super) fn push_head(&mut self, entry: EntryId, lane: Lane, is_begun: bool) {
        self.heads.insert(entry, HeadEntry { lane, is_begun });
    }

    /// Removes an entry of this lane and priority, wherever it is.
    pub(super) fn remove(&mut self, entry: EntryId, lane: Lane, prio: i16) {
        let queued = (Reverse(prio), entry);
        let was_in_lane = match lane {
            Lane::Announced => self.announced.remove(&queued),
            Lane::Job(job) => self.remove_from_job(job, &queued),
        };
        if !was_in_lane {
            self.heads.remove(&entry);
        }
    }

    fn remove_from_job(&mut self, job: JobNumber, queued: &(Reverse<i16>, EntryId)) -> bool {
        let Some(of_job) = self.jobs.get_mut(&job) else { return false };
        let was_there = of_job.remove(queued);
        if of_job.is_empty() {
            self.jobs.remove(&job);
        }
        was_there
    }

    /// Returns the first entry at the head, among the jobs that take turns. A task that has begun
    /// goes first, and without a turn: its job may have no budget for another entry until it ends.
    pub(super) fn first_head(
        &self,
        takes_turns: impl Fn(JobNumber) -> bool,
    ) -> Option<(EntryId, Lane)> {
        let may_go = |head: &HeadEntry| match head.lane {
            Lane::Job(job) => head.is_begun || takes_turns(job),
            Lane::Announced => true,
        };
        let heads = self.heads.iter().filter(|(_, head)| may_go(head));
        let first = heads.min_by_key(|(entry, head)| (!head.is_begun, **entry));
        first.map(|(entry, head)| (*entry, head.lane))
    }

    /// Returns the first entry of a lane, not counting those at the head.
    pub(super) fn first_of(&self, lane: Lane) -> Option<(Reverse<i16>, EntryId)> {
        let queued = match lane {
            Lane::Announced => Some(&self.announced),
            Lane::Job(job) => self.jobs.get(&job),
        };
        queued.and_then(BTreeSet::first).copied()
    }

    /// Returns the first job from this number on, not counting entries at the head.
    pub(super) fn job_from(&self, number: JobNumber) -> Option<JobNumber> {
        self.jobs.range(number..).next().map(|(job, _)| *job)
    }

    /// Reports whether it has an entry of the job.
    pub(super) fn has_job(&self, job: JobNumber) -> bool {
        let mut heads = self.heads.values();
        self.jobs.contains_key(&job) || heads.any(|head| head.lane == Lane::Job(job))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.heads.is_empty() && self.announced.is_empty() && self.jobs.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        let of_jobs: usize = self.jobs.values().map(BTreeSet::len).sum();
        self.heads.len() + self.announced.len() + of_jobs
    }
}
