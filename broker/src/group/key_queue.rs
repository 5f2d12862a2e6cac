//! One key: what waits behind it, whether it may be asked, and whose turn it is when it may.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use tidings_protocol::MemberId;

use super::config::PACE_MS_VALID;
use super::entry::{EntryId, JobNumber};
use super::mutants::{self, Mutant};
use super::record::Rest;
use crate::clock::Moment;

/// Who an entry waits for: the two sides that take turns, and on the second side, the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Lane {
    /// Somebody said that there is something new.
    Announced,
    /// A job found it or was given it.
    Job(JobNumber),
}

/// Everything the group knows of one key.
///
/// Invariant: an entry is released only while `busy < parallel` and `free_at <= now`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct KeyQueue {
    /// Tasks in flight whose request is not over.
    busy: u32,
    /// Closed until then: the delay after the last request, or longer.
    free_at: Moment,
    /// When its last request ended.
    ended_at: Option<Moment>,
    /// For when the group is to look at it again: at most one timer a key.
    pub(super) timer: Option<Moment>,
    /// The worker's own minimum delay in ms, and until when it is believed.
    pace: Option<(u64, Moment)>,
    /// Who served it last: connections and robots verdicts are there.
    pub(super) last_member: Option<MemberId>,
    /// Redirects and `again`: before everything else, the oldest entry first.
    heads: BTreeMap<EntryId, Head>,
    announced: Ordered,
    jobs: BTreeMap<JobNumber, Ordered>,
    /// The lane that was served last, so that the other is next.
    last_lane: Option<Lane>,
    /// The job that was served last, so that the following one is next.
    last_job: JobNumber,
}

/// What is remembered of a key besides what waits there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyState {
    /// See [`KeyQueue`].
    pub(super) free_at: Moment,
    pub(super) ended_at: Option<Moment>,
    pub(super) pace: Option<(u64, Moment)>,
    pub(super) last_member: Option<MemberId>,
    pub(super) last_lane: Option<Lane>,
    pub(super) last_job: JobNumber,
}

/// A moment is cut to a whole millisecond, so what happened at `now` may have happened up to one
/// later. What must not be too short is counted from there.
pub(super) const GRAIN_MS: u64 = 1;

/// What goes before everything else of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    lane: Lane,
    /// It is the next request of a task that was begun.
    begun: bool,
}

/// Highest priority first, oldest first within it.
type Ordered = BTreeSet<(Reverse<i16>, EntryId)>;

impl KeyQueue {
    /// What is to be remembered of it.
    pub(super) fn state(&self) -> KeyState {
        let Self { free_at, ended_at, pace, last_member, last_lane, last_job, .. } = *self;
        KeyState { free_at, ended_at, pace, last_member, last_lane, last_job }
    }

    /// A key of which that was remembered, and where nothing waits yet.
    pub(super) fn kept(state: KeyState) -> Self {
        let KeyState { free_at, ended_at, pace, last_member, last_lane, last_job } = state;
        Self { free_at, ended_at, pace, last_member, last_lane, last_job, ..Self::default() }
    }

    /// A task is in flight.
    pub(super) fn keep_busy(&mut self) {
        self.busy += 1;
    }

    /// Puts a due entry into its lane.
    pub(super) fn push(&mut self, entry: EntryId, lane: Lane, prio: i16) {
        self.lane_mut(lane).insert((Reverse(prio), entry));
    }

    /// Puts an entry before all others of the key. One that was `begun` goes on whatever its job.
    pub(super) fn push_head(&mut self, entry: EntryId, lane: Lane, begun: bool) {
        self.heads.insert(entry, Head { lane, begun });
    }

    /// Takes an entry out, wherever it stands. `lane` and `prio` are those it was put in with.
    pub(super) fn remove(&mut self, entry: EntryId, lane: Lane, prio: i16) {
        let removed = self.lane_mut(lane).remove(&(Reverse(prio), entry));
        if let Lane::Job(job) = lane
            && self.jobs.get(&job).is_some_and(BTreeSet::is_empty)
        {
            self.jobs.remove(&job);
        }
        if !removed {
            self.heads.remove(&entry);
        }
    }

    /// The entry to be released next if the key were free, of a job that takes turns here.
    /// May change after `push`, `push_head`, `remove` and `released`, and with what `takes_turns` says.
    pub(super) fn next(&self, takes_turns: impl Fn(JobNumber) -> bool) -> Option<(EntryId, Lane)> {
        let may_go = |head: &Head| match head.lane {
            Lane::Job(job) => head.begun || takes_turns(job),
            Lane::Announced => true,
        };
        if let Some((entry, head)) = self.heads.iter().find(|(_, head)| may_go(head)) {
            return Some((*entry, head.lane));
        }
        let announced = self.announced.first().map(|(_, entry)| (*entry, Lane::Announced));
        if self.last_lane == Some(Lane::Announced) && !mutants::is(Mutant::AnnouncedFirst) {
            self.next_of_jobs(takes_turns).or(announced)
        } else {
            announced.or_else(|| self.next_of_jobs(takes_turns))
        }
    }

    fn next_of_jobs(&self, takes_turns: impl Fn(JobNumber) -> bool) -> Option<(EntryId, Lane)> {
        let after = self.jobs.range(self.last_job + 1..);
        let upto = self.jobs.range(..=self.last_job);
        let (job, queue) = after.chain(upto).find(|(job, _)| takes_turns(**job))?;
        queue.first().map(|(_, entry)| (*entry, Lane::Job(*job)))
    }

    /// An entry of this lane goes to a member.
    pub(super) fn released(&mut self, lane: Lane, member: MemberId) {
        self.busy += 1;
        self.last_member = Some(member);
        self.last_lane = Some(lane);
        if let Lane::Job(job) = lane {
            self.last_job = job;
        }
    }

    /// A request ended (or its lease did) at `now`: the key rests for at least `delay_ms`.
    pub(super) fn ended(&mut self, now: Moment, delay_ms: u64, rest: Rest) {
        self.unmade();
        self.ended_at = Some(now);
        self.hold(now, rest);
        self.rest_for(delay_ms.max(self.pace_at(now).unwrap_or(0)));
    }

    /// When its last request ended is not known any more: it rests as if that had been at `now`.
    pub(super) fn rest_anew(&mut self, now: Moment, delay_ms: u64) {
        self.ended_at = Some(now);
        self.rest_for(delay_ms.max(self.pace_at(now).unwrap_or(0)));
    }

    fn rest_for(&mut self, rest_ms: u64) {
        if let Some(ended_at) = self.ended_at
            && rest_ms > 0
        {
            self.free_at = self.free_at.max(ended_at + rest_ms + GRAIN_MS);
            if mutants::is(Mutant::ShortRest) {
                self.free_at = ended_at + (rest_ms - 1);
            }
        }
    }

    /// The task came back and no request was made: nothing to rest from.
    pub(super) fn unmade(&mut self) {
        assert!(self.busy > 0, "only a busy key can be given back");
        self.busy -= 1;
    }

    /// What a worker asks for: it lengthens the rest, never shortens it.
    pub(super) fn hold(&mut self, now: Moment, rest: Rest) {
        if let Some(pace_ms) = rest.pace_ms {
            self.pace = Some((pace_ms, now + PACE_MS_VALID));
            self.rest_for(pace_ms);
        }
        if let Some(not_before) = rest.not_before {
            self.free_at = self.free_at.max(not_before);
        }
    }

    /// Minimum delay in ms that a worker asked for, while it is believed.
    fn pace_at(&self, now: Moment) -> Option<u64> {
        self.pace.filter(|(_, until)| now < *until).map(|(pace_ms, _)| pace_ms)
    }

    /// Whether a request may start at `now`.
    pub(super) fn is_free(&self, now: Moment, parallel: u32) -> bool {
        (self.busy < parallel || mutants::is(Mutant::TwoAtOnce)) && self.free_at <= now
    }

    /// Requests in flight.
    pub(super) fn busy(&self) -> u32 {
        self.busy
    }

    /// Earliest start of the next request as far as delays decide it.
    pub(super) fn free_at(&self) -> Moment {
        self.free_at
    }

    /// Whether anything waits.
    pub(super) fn has_waiting(&self) -> bool {
        !(self.heads.is_empty() && self.announced.is_empty() && self.jobs.is_empty())
    }

    /// How many entries wait.
    pub(super) fn waiting(&self) -> usize {
        let jobs: usize = self.jobs.values().map(BTreeSet::len).sum();
        self.heads.len() + self.announced.len() + jobs
    }

    /// When the group is to look at it again, if time alone can change something.
    pub(super) fn wake_at(&self) -> Option<Moment> {
        if self.has_waiting() { Some(self.free_at) } else { self.forgettable_at() }
    }

    /// When nothing more needs to be remembered of it; `None` while something does.
    pub(super) fn forgettable_at(&self) -> Option<Moment> {
        let idle = self.busy == 0 && !self.has_waiting();
        idle.then(|| self.pace.map_or(self.free_at, |(_, until)| until.max(self.free_at)))
    }

    fn lane_mut(&mut self, lane: Lane) -> &mut Ordered {
        match lane {
            Lane::Announced => &mut self.announced,
            Lane::Job(job) => self.jobs.entry(job).or_default(),
        }
    }
}
