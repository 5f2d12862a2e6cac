//! Jobs: crawls of unknown size with exact counts. A job is done when it is closed, none of its
//! entries wait or are in flight, and the group has consumed everything that was published before
//! that moment.
//!
//! ```text
//!          seeds, close                 count = 0        consumed up to the heads, count still 0
//!   open ───────────────▶ closed ─────────────────▶ heads noted ───────────────────────────────▶ done
//!    ▲                       ▲                        │ a late seed                               │
//!    │                       └────────────────────────┘                                           │
//!    └──────────────────────────────── opened again: the next pass ──────────────────────────────┘
//! ```
//!
//! `Jobs` owns the jobs, their counts, budgets and scopes, the URLs that each pass has seen, the
//! timers of jobs and the clients that wait for them. It knows neither keys (only their names) nor
//! members, nor where an entry waits: the group tells it what happens to each entry, and asks it
//! what may be admitted and released.

mod counts;
mod hosts;
mod job;
mod scope;
mod seen_sets;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Bound;

use hashbrown::HashSet;
use tidings_protocol::{CanonicalUrl, JobName, JobSettings, Outcome, Seq, TopicName};

use self::counts::{count_end, count_outcome};
pub(crate) use self::hosts::HostEntry;
pub(crate) use self::job::admits_waiting;
pub use self::job::{Job, JobState, SettingsChanges};
pub use self::scope::Scope;
use self::seen_sets::SeenSets;
use crate::entry::{Admission, EndReason, EntryId, JobNumber, Key, PassId};
use crate::moment::Moment;
use crate::timers::Timers;

/// All jobs that a group remembers.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    by_number: BTreeMap<JobNumber, Job>,
    numbers: HashMap<JobName, JobNumber>,
    /// Finished jobs, oldest first.
    finished: VecDeque<JobNumber>,
    last_number: JobNumber,
    /// The URLs that each pass has met and that are not dormant.
    seen: SeenSets,
    /// Jobs whose settings were changed in the current pass.
    changed: BTreeSet<JobNumber>,
    /// Jobs with a count of zero, or on hold, that wait until the group has consumed all events
    /// published before that.
    completion_pending: BTreeSet<JobNumber>,
    timers: Timers<JobTimer>,
}

/// A moment at which the group must decide about a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum JobTimer {
    /// It was left open for too long.
    Open(JobNumber),
    /// Its time limit passes.
    Time(JobNumber),
}

/// What happens to an active entry of a job.
#[derive(Debug, Clone, Copy)]
pub(crate) enum EntryChange {
    /// A waiting entry is leased to a member.
    Leased(EntryId),
    /// A member returns an entry, which waits again.
    Returned(EntryId),
    /// An entry ends with a worker's result.
    Completed(Outcome),
    /// A waiting entry ends without a result.
    Dropped(EntryId, EndReason),
    /// A waiting entry reserves a part of the budget for its member's next request.
    Pinned,
    /// The reservation ends.
    Unpinned,
    /// A dead entry waits again.
    Readmitted(EntryId),
}

impl Jobs {
    /// The number that opening `name` would use: that of the existing job, or a new one.
    pub(crate) fn number_for(&self, name: &JobName) -> JobNumber {
        self.numbers.get(name).copied().unwrap_or(self.last_number + 1)
    }

    /// Opens a job, or the next pass of a finished one. It is closed at `until` unless seeds
    /// arrive.
    pub(crate) fn open(
        &mut self,
        number: JobNumber,
        name: &JobName,
        settings: JobSettings,
        now: Moment,
        until: Moment,
    ) {
        let pass = self.by_number.get(&number).map_or(1, |job| job.id.pass + 1);
        self.finished.retain(|finished| *finished != number);
        self.last_number = self.last_number.max(number);
        self.numbers.insert(name.clone(), number);
        let id = PassId { number, pass };
        let time_until = settings.time_ms_max.map(|ms| now + ms);
        let mut job = Job::new(id, name.clone(), settings, JobState::Open);
        job.opened_at = now;
        job.time_until = time_until;
        job.open_until = until;
        self.set_timers(&job);
        self.by_number.insert(number, job);
    }

    fn set_timers(&mut self, job: &Job) {
        let number = job.id.number;
        if job.state == JobState::Open {
            self.timers.set(job.open_until, JobTimer::Open(number));
        }
        if let Some(at) = job.time_until {
            self.timers.set(at, JobTimer::Time(number));
        }
    }

    /// Opens a job again that is not done: its pass continues.
    pub(crate) fn reopen(&mut self, number: JobNumber, until: Moment) {
        if let Some(job) = self.by_number.get_mut(&number) {
            job.state = JobState::Open;
            job.completion_heads = None;
            self.completion_pending.remove(&number);
        }
        self.extend_open_time(number, until);
    }

    /// Extends the time for which an open job may wait for seeds.
    pub(crate) fn extend_open_time(&mut self, number: JobNumber, until: Moment) {
        if let Some(job) = self.by_number.get_mut(&number)
            && job.state == JobState::Open
        {
            self.timers.cancel(job.open_until, JobTimer::Open(number));
            job.open_until = until;
            self.timers.set(until, JobTimer::Open(number));
        }
    }

    /// Closes a job: no further seeds follow.
    pub(crate) fn close(&mut self, number: JobNumber) {
        if let Some(job) = self.by_number.get_mut(&number) {
            self.timers.cancel(job.open_until, JobTimer::Open(number));
            job.state = JobState::Closed;
        }
    }

    /// Cancels a job: it admits nothing more.
    pub(crate) fn cancel(&mut self, number: JobNumber) {
        self.close(number);
        if let Some(job) = self.by_number.get_mut(&number) {
            job.cancelled = true;
            // A cancelled job must request new topic heads before it is done.
            job.completion_heads = None;
            self.completion_pending.remove(&number);
        }
    }

    /// Pauses or resumes a job.
    pub(crate) fn set_paused(&mut self, number: JobNumber, paused: bool) {
        if let Some(job) = self.by_number.get_mut(&number) {
            job.paused = paused;
        }
    }

    /// Changes the settings of a job that runs. Returns whether the limit of pages per key is
    /// another one: then the caller counts the entries of the job again.
    pub(crate) fn change(
        &mut self,
        number: JobNumber,
        settings: &JobSettings,
        time_until: Option<Moment>,
    ) -> bool {
        let Some(job) = self.by_number.get_mut(&number) else { return false };
        if let Some(at) = job.time_until {
            self.timers.cancel(at, JobTimer::Time(number));
        }
        if let Some(at) = time_until {
            self.timers.set(at, JobTimer::Time(number));
        }
        self.changed.insert(number);
        let has_other_limit = job.settings.host_pages_max != settings.host_pages_max;
        job.change(settings, time_until);
        if has_other_limit {
            job.restart_host_counts();
        }
        has_other_limit
    }

    /// Counts an entry of a key again.
    pub(crate) fn count_on_host(&mut self, number: JobNumber, key: &Key, entry: HostEntry) {
        if let Some(job) = self.by_number.get_mut(&number) {
            job.count_on_host(key, entry);
        }
    }

    /// Ends the hold of a job: its seeds have been consumed.
    pub(crate) fn end_hold(&mut self, number: JobNumber) {
        if let Some(job) = self.by_number.get_mut(&number) {
            job.settings.hold = false;
            job.completion_heads = None;
            self.completion_pending.remove(&number);
        }
    }

    /// The time limit of a job passed. Returns whether there is such a job.
    pub(crate) fn end_time(&mut self, number: JobNumber) -> bool {
        let Some(job) = self.by_number.get_mut(&number) else { return false };
        job.time_is_up = true;
        if let Some(at) = job.time_until.take() {
            self.timers.cancel(at, JobTimer::Time(number));
        }
        true
    }

    /// The job is done, or its hold ends, once the group has consumed everything below these heads.
    pub(crate) fn await_heads(&mut self, number: JobNumber, heads: &BTreeMap<TopicName, Seq>) {
        if let Some(job) = self.by_number.get_mut(&number) {
            job.completion_heads = Some(heads.clone());
            self.completion_pending.insert(number);
        }
    }

    /// Cancels the completion of a job, because an entry of it waits again. A job on hold still
    /// needs the noted heads.
    pub(crate) fn cancel_completion(&mut self, number: JobNumber) {
        if let Some(job) = self.by_number.get_mut(&number)
            && !job.awaits_seeds()
        {
            job.completion_heads = None;
            self.completion_pending.remove(&number);
        }
    }

    /// Returns the jobs that wait until the group has consumed events.
    pub(crate) fn completion_pending(&self) -> Vec<JobNumber> {
        self.completion_pending.iter().copied().collect()
    }

    /// Finishes the pass. Keeps the newest `remembered` finished jobs.
    pub(crate) fn finish(&mut self, number: JobNumber, remembered: usize, now: Moment) {
        self.completion_pending.remove(&number);
        self.changed.remove(&number);
        if let Some(job) = self.by_number.get_mut(&number) {
            self.seen.remove(job.id);
            if let Some(at) = job.time_until.take() {
                self.timers.cancel(at, JobTimer::Time(number));
            }
            job.finish(now);
            self.finished.push_back(number);
        }
        while self.finished.len() > remembered
            && let Some(oldest) = self.finished.pop_front()
            && let Some(job) = self.by_number.remove(&oldest)
        {
            self.numbers.remove(&job.name);
        }
    }

    /// The job that is forgotten when the next one finishes, if `remembered` jobs are kept.
    pub(crate) fn next_evicted(&self, remembered: usize) -> Option<&JobName> {
        let oldest = self.finished.front().filter(|_| self.finished.len() >= remembered)?;
        self.find(*oldest).map(|job| &job.name)
    }

    /// Removes a finished job. Its number is not used again.
    pub(crate) fn delete(&mut self, number: JobNumber) {
        self.finished.retain(|finished| *finished != number);
        if let Some(job) = self.by_number.remove(&number) {
            self.numbers.remove(&job.name);
        }
    }

    /// All jobs. Finished ones come last, in the order in which they will be forgotten.
    pub(crate) fn in_order(&self) -> impl Iterator<Item = &Job> {
        let unfinished = self.by_number.values().filter(|job| job.state != JobState::Done);
        unfinished.chain(self.finished.iter().filter_map(|number| self.find(*number)))
    }

    /// Restores a job of a snapshot.
    pub(crate) fn restore(&mut self, job: Job) {
        let number = job.id.number;
        self.set_timers(&job);
        if job.completion_heads.is_some() {
            self.completion_pending.insert(number);
        }
        if job.state == JobState::Done {
            self.finished.push_back(number);
        }
        self.numbers.insert(job.name.clone(), number);
        self.by_number.insert(number, job);
    }

    /// Restores a part of a job's scope.
    pub(crate) fn restore_scope(&mut self, number: JobNumber, part: &str) {
        if let Some(job) = self.by_number.get_mut(&number) {
            job.scope.restore_part(part);
        }
    }

    /// Restores the changes of a job's settings.
    pub(crate) fn restore_changes(&mut self, number: JobNumber, changes: &SettingsChanges) {
        if let Some(job) = self.by_number.get_mut(&number) {
            job.changes = Some(Box::new(changes.clone()));
            self.changed.insert(number);
        }
    }

    /// Restores the number of completed pages of a key.
    pub(crate) fn restore_pages(&mut self, number: JobNumber, key: &Key, completed: u64) {
        if let Some(job) = self.by_number.get_mut(&number) {
            job.restore_host_pages(key, completed);
        }
    }

    /// The newest job's number, even if that job was forgotten.
    pub(crate) fn last_number(&self) -> JobNumber {
        self.last_number
    }

    /// Restores the last number; new jobs get higher ones.
    pub(crate) fn restore_last_number(&mut self, last: JobNumber) {
        self.last_number = self.last_number.max(last);
    }

    /// The job with this number.
    pub(crate) fn find(&self, number: JobNumber) -> Option<&Job> {
        self.by_number.get(&number)
    }

    /// The job with this number, if its settings were changed in the current pass.
    pub(crate) fn find_changed(&self, number: JobNumber) -> Option<&Job> {
        if self.changed.contains(&number) { self.find(number) } else { None }
    }

    /// Whether there are such jobs.
    pub(crate) fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// The job with this newest pass.
    pub(crate) fn of_pass(&self, pass: PassId) -> Option<&Job> {
        self.find(pass.number).filter(|job| job.id == pass)
    }

    fn of_pass_mut(&mut self, pass: PassId) -> Option<&mut Job> {
        self.by_number.get_mut(&pass.number).filter(|job| job.id == pass)
    }

    /// The job with this name.
    pub(crate) fn named(&self, name: &str) -> Option<&Job> {
        self.numbers.get(name).and_then(|number| self.by_number.get(number))
    }

    /// Number of unfinished jobs.
    pub(crate) fn unfinished(&self) -> usize {
        self.by_number.len() - self.finished.len()
    }

    /// All jobs, lowest number first.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Job> {
        self.by_number.values()
    }

    /// The jobs with numbers above `after`, lowest number first.
    pub(crate) fn above(&self, after: JobNumber) -> impl Iterator<Item = (JobNumber, &Job)> {
        let above = (Bound::Excluded(after), Bound::Unbounded);
        self.by_number.range(above).map(|(number, job)| (*number, job))
    }
}

/// Entries of jobs.
impl Jobs {
    /// Counts an admitted entry. It may widen the scope of its job.
    pub(crate) fn admit(&mut self, number: JobNumber, admission: &Admission) {
        self.cancel_completion(number);
        let Some(job) = self.by_number.get_mut(&number) else { return };
        job.counts.found += 1;
        // The target of a seed's redirect keeps the seed's depth, and its host becomes part of
        // the scope.
        if admission.depth == 0
            && job.scope.has_rule()
            && let Ok(url) = CanonicalUrl::parse(&admission.text)
        {
            job.scope.admit(&url);
        }
    }

    /// Counts a seed that the pass has already met.
    pub(crate) fn count_duplicate(&mut self, number: JobNumber) {
        if let Some(job) = self.by_number.get_mut(&number) {
            job.counts.duplicates += 1;
        }
    }

    /// Adds a waiting active entry.
    pub(crate) fn add_waiting(&mut self, number: JobNumber, entry: EntryId, key: &Key) {
        if let Some(job) = self.by_number.get_mut(&number) {
            job.add_waiting(entry, key);
        }
    }

    /// Adds a dormant entry.
    pub(crate) fn add_dormant(&mut self, number: JobNumber, key: &Key) {
        if let Some(job) = self.by_number.get_mut(&number) {
            job.add_dormant(key);
        }
    }

    /// A dormant entry becomes active. Returns its pass.
    pub(crate) fn activate(
        &mut self,
        number: JobNumber,
        entry: EntryId,
        key: &Key,
    ) -> Option<PassId> {
        let job = self.by_number.get_mut(&number)?;
        job.activate(entry, key);
        Some(job.id)
    }

    /// A dormant entry ends. Its pass has seen the URL.
    pub(crate) fn drop_dormant(
        &mut self,
        number: JobNumber,
        fingerprint: u64,
        key: &Key,
        end: EndReason,
    ) {
        if let Some(job) = self.by_number.get_mut(&number) {
            job.drop_dormant(key, end);
            self.seen.insert(job.id, fingerprint);
        }
    }

    /// Changes an active entry behind this key. Returns the job, because its budgets may allow
    /// other releases than before.
    pub(crate) fn change_entry(
        &mut self,
        number: JobNumber,
        key: &Key,
        change: EntryChange,
    ) -> Option<&Job> {
        let job = self.by_number.get_mut(&number)?;
        match change {
            EntryChange::Leased(entry) => job.lease_entry(entry, key),
            EntryChange::Returned(entry) => job.return_entry(entry, key),
            EntryChange::Completed(outcome) => job.complete_entry(outcome, key),
            EntryChange::Dropped(entry, end) => job.drop_waiting(entry, key, end),
            EntryChange::Pinned => job.pin(key),
            EntryChange::Unpinned => job.unpin(key),
            EntryChange::Readmitted(entry) => job.readmit(entry, key),
        }
        Some(job)
    }

    /// A failed page of a finished pass is fetched again.
    pub(crate) fn begin_repair(&mut self, pass: PassId) {
        if let Some(job) = self.of_pass_mut(pass) {
            job.counts.failed -= 1;
        }
    }

    /// A repair redirects to `targets` URLs, which become part of the repair. Returns whether the
    /// pass is still known.
    pub(crate) fn redirect_repair(&mut self, pass: PassId, targets: usize) -> bool {
        let job = self.of_pass_mut(pass).map(|job| job.counts.found += targets as u64);
        job.is_some()
    }

    /// A repair ends with a worker's result.
    pub(crate) fn complete_repair(&mut self, pass: PassId, outcome: Outcome) {
        if let Some(job) = self.of_pass_mut(pass) {
            count_outcome(&mut job.counts, outcome);
        }
    }

    /// A repair ends without a result.
    pub(crate) fn drop_repair(&mut self, pass: PassId, end: EndReason) {
        if let Some(job) = self.of_pass_mut(pass) {
            count_end(&mut job.counts, end);
        }
    }
}

/// URLs that passes have seen.
impl Jobs {
    /// Reports whether a pass has seen a URL that is not dormant.
    pub(crate) fn has_seen(&self, pass: PassId, fingerprint: u64) -> bool {
        self.seen.contains(pass, fingerprint)
    }

    /// A pass has seen a URL.
    pub(crate) fn mark_seen(&mut self, pass: PassId, fingerprint: u64) {
        self.seen.insert(pass, fingerprint);
    }

    /// Returns all passes with seen URLs.
    pub(crate) fn seen_passes(&self) -> Vec<PassId> {
        self.seen.passes()
    }

    /// Returns a part of the URLs that a pass has seen; the parts are numbered from 0. `None`
    /// beyond the last.
    pub(crate) fn seen_set(&self, pass: PassId, number: usize) -> Option<&HashSet<u64>> {
        self.seen.set(pass, number)
    }
}

/// Timers.
impl Jobs {
    /// Returns when the group must decide about a job.
    pub(crate) fn next_timer(&self) -> Option<Moment> {
        self.timers.next()
    }

    /// Returns the next timer that is due at `now`, and ends it.
    pub(crate) fn pop_timer(&mut self, now: Moment) -> Option<JobTimer> {
        self.timers.pop(now)
    }

    /// Returns the timers, the earliest first.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn timers(&self) -> impl Iterator<Item = (Moment, JobTimer)> {
        self.timers.iter().copied()
    }
}
