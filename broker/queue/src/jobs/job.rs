//! A job and its current or last pass.

use std::collections::{BTreeMap, BTreeSet};

use tidings_protocol::status::{
    self, DurationMs, JobEnd, JobEndReason, JobResult, JobStatus, PassCounts,
};
use tidings_protocol::{CanonicalUrl, JobName, JobSettings, Outcome, Render, Seq, TopicName};

use super::counts::{count_end, count_outcome, unfinished};
use super::hosts::{HostEntry, HostPages};
use super::scope::Scope;
use crate::entry::{EndReason, EntryId, Key, PassId};
use crate::moment::Moment;
use crate::mutants::{self, Mutant};

/// The changes of a job's settings in its current pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingsChanges {
    /// How many there were.
    pub count: u64,
    /// The settings with which the pass was opened.
    pub opened: JobSettings,
}

/// The state of a job's pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobState {
    /// Seeds may arrive.
    Open,
    /// All seeds were published; some may not be consumed yet.
    Closed,
    /// Its end was announced.
    Done,
}

/// A job and its current or last pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Number and pass of the job.
    pub id: PassId,
    /// Its name.
    pub name: JobName,
    /// Settings of the pass.
    pub settings: JobSettings,
    /// How they have changed since it was opened; `None`: not at all.
    pub changes: Option<Box<SettingsChanges>>,
    /// State of the pass.
    pub state: JobState,
    /// Whether the job was cancelled: no more entries are admitted.
    pub cancelled: bool,
    /// Whether the job is paused: nothing is released.
    pub paused: bool,
    /// Whether the time limit was reached.
    pub time_is_up: bool,
    /// When the time limit will be reached.
    pub time_until: Option<Moment>,
    /// When the pass was opened.
    pub opened_at: Moment,
    /// When the pass was done.
    pub ended_at: Option<Moment>,
    /// The links that belong to it.
    pub scope: Scope,
    /// Waiting entries that are active, due or not.
    pub waiting: BTreeSet<EntryId>,
    /// Number of waiting entries that are dormant.
    pub dormant: u64,
    /// Number of entries that members hold.
    pub held: u64,
    /// Entries and pages per key.
    hosts: HostPages,
    /// Counts of final results.
    pub counts: PassCounts,
    /// Heads of the feeding topics when the count became zero, or when a job with `hold` was
    /// closed. Once these are consumed, the job is done, or its hold ends.
    pub completion_heads: Option<BTreeMap<TopicName, Seq>>,
    /// When the job is closed if no further seed arrives.
    pub open_until: Moment,
    /// Entries that wait for their member's next request. They keep their part of the budget.
    pub pinned: u64,
}

/// Whether a waiting entry of a job belongs to it under these settings. Seeds, and the targets of
/// their redirects, always do.
pub(crate) fn admits_waiting(settings: &JobSettings, url: &str, depth: u32) -> bool {
    let fits = || CanonicalUrl::parse(url).is_ok_and(|url| settings.admits(&url));
    depth == 0 || (settings.depth_max.is_none_or(|max| depth <= max) && fits())
}

impl Job {
    /// A job without entries and counts.
    pub(crate) fn new(id: PassId, name: JobName, settings: JobSettings, state: JobState) -> Self {
        // A finished job needs no rules and no budget.
        let is_done = state == JobState::Done;
        Self {
            id,
            name,
            state,
            cancelled: false,
            paused: false,
            time_is_up: false,
            time_until: None,
            opened_at: Moment(0),
            ended_at: None,
            scope: if is_done { Scope::default() } else { Scope::new(settings.scope) },
            waiting: BTreeSet::new(),
            dormant: 0,
            held: 0,
            hosts: HostPages::new(settings.host_pages_max.filter(|_| !is_done)),
            settings,
            changes: None,
            counts: PassCounts::default(),
            completion_heads: None,
            open_until: Moment(0),
            pinned: 0,
        }
    }

    /// The job without its scope, page counts, changes and entries.
    pub(crate) fn bare(&self) -> Self {
        Self {
            changes: None,
            scope: self.scope.without_parts(),
            waiting: BTreeSet::new(),
            dormant: 0,
            held: 0,
            pinned: 0,
            hosts: self.hosts.without_counts(),
            ..self.clone()
        }
    }

    /// Keys with completed pages, and their numbers, if pages per key are limited.
    pub(crate) fn completed_pages(&self) -> impl Iterator<Item = (&Key, u64)> {
        self.hosts.completed()
    }

    /// Restores the number of completed pages of a key.
    pub(super) fn restore_host_pages(&mut self, key: &Key, completed: u64) {
        self.hosts.restore(key, completed);
    }

    /// The pass is done: what decided about further entries is not needed any more.
    pub(super) fn finish(&mut self, now: Moment) {
        self.state = JobState::Done;
        self.ended_at = Some(now);
        self.completion_heads = None;
        self.paused = false;
        self.time_until = None;
        self.changes = None;
        self.scope = Scope::default();
        self.hosts = HostPages::default();
    }

    /// The settings with which the pass was opened.
    pub(crate) fn opened_settings(&self) -> &JobSettings {
        self.changes.as_ref().map_or(&self.settings, |changes| &changes.opened)
    }

    /// A number that rises whenever a link that was refused may belong to the job now. `None`
    /// until that happens, as in most jobs.
    pub(crate) fn extent(&self) -> Option<u64> {
        let seeds = self.scope.extent() as u64;
        match &self.changes {
            Some(changes) => Some(seeds + changes.count),
            None => Some(seeds).filter(|seeds| *seeds > 1),
        }
    }

    /// Changes the settings while the pass runs. `time_until` is when the time limit will be
    /// reached.
    pub(super) fn change(&mut self, settings: &JobSettings, time_until: Option<Moment>) {
        let before = std::mem::replace(&mut self.settings, settings.clone());
        let changes = SettingsChanges { count: 0, opened: before };
        self.changes.get_or_insert_with(|| changes.into()).count += 1;
        self.time_until = time_until;
        // Without a new limit, a limit that was reached stays.
        self.time_is_up &= time_until.is_none() && settings.time_ms_max.is_some();
    }

    /// Forgets the entries of each key, and counts further ones under the present limit.
    pub(super) fn restart_host_counts(&mut self) {
        self.hosts.restart(self.settings.host_pages_max);
    }

    /// Counts an entry of a key again.
    pub(super) fn count_on_host(&mut self, key: &Key, entry: HostEntry) {
        match entry {
            HostEntry::Dormant => self.hosts.add_dormant(key),
            HostEntry::Waiting(entry) => self.hosts.add_waiting(entry, key),
            HostEntry::InFlight => self.hosts.begin_page(key),
        }
    }

    /// Whether a link to this URL belongs to the job.
    pub fn contains(&self, url: &CanonicalUrl) -> bool {
        self.scope.contains(url) && self.settings.admits(url)
    }

    /// Whether the page of this URL is rendered, as far as the job says it.
    pub fn render_of(&self, url: &CanonicalUrl) -> Option<Render> {
        self.settings.render.as_ref().map(|rule| rule.of(url))
    }

    /// Number of entries without a final result.
    pub fn unfinished_count(&self) -> u64 {
        let held = if mutants::is(Mutant::DoneWhileHeld) { 0 } else { self.held };
        self.waiting_count() + held
    }

    /// Number of waiting entries.
    pub fn waiting_count(&self) -> u64 {
        self.waiting.len() as u64 + self.dormant
    }

    /// Whether the budget is used up or the time limit was reached. What still waits is dropped.
    pub fn is_exhausted(&self) -> bool {
        let has_all = self.settings.pages_max.is_some_and(|max| self.counts.completed >= max);
        has_all || self.time_is_up
    }

    /// Whether nothing may be released now: entries in flight use the rest of the budget, or the
    /// time limit was reached.
    pub fn is_blocked(&self) -> bool {
        let used = self.counts.completed + self.held + self.pinned;
        let used = used - u64::from(used > 0 && mutants::is(Mutant::OverBudget));
        self.time_is_up || self.settings.pages_max.is_some_and(|max| used >= max)
    }

    /// The same for one key.
    pub fn is_blocked_on(&self, key: &str) -> bool {
        self.is_blocked() || self.hosts.is_blocked(key)
    }

    /// Whether the job waits until all its seeds are known.
    pub fn awaits_seeds(&self) -> bool {
        self.settings.hold && !mutants::is(Mutant::IgnoresJobHold)
    }

    /// Whether entries that are pinned have the rest of the budget.
    pub fn is_pinned_out(&self) -> bool {
        let used = self.counts.completed + self.pinned;
        !self.is_exhausted() && self.settings.pages_max.is_some_and(|max| used >= max)
    }

    /// Whether an entry of the job may be the next one of this key. Entries in flight soon return
    /// their part of the budget of the whole job, so they are ignored; entries that are pinned may
    /// wait for a key that rests for hours, and the budget of a key may stay used up.
    pub fn may_release_on(&self, key: &str) -> bool {
        let is_out = self.hosts.is_blocked(key) || self.is_pinned_out();
        !self.paused && !self.awaits_seeds() && !is_out
    }

    /// Whether each key has its own budget.
    pub fn limits_hosts(&self) -> bool {
        self.hosts.is_limited()
    }

    /// Keys that have used up their budget while entries of the job still wait behind them.
    pub fn exhausted_hosts(&self) -> impl Iterator<Item = &Key> {
        self.hosts.exhausted()
    }

    /// Active entries that wait; with `key`, those behind that key, which has a budget.
    pub fn waiting(&self, key: Option<&str>) -> Vec<EntryId> {
        match key {
            None => self.waiting.iter().copied().collect(),
            Some(key) => self.hosts.waiting(key).collect(),
        }
    }

    /// Adds a dormant entry.
    pub(super) fn add_dormant(&mut self, key: &Key) {
        self.dormant += 1;
        self.hosts.add_dormant(key);
    }

    /// A dormant entry becomes active.
    pub(super) fn activate(&mut self, entry: EntryId, key: &Key) {
        self.dormant -= 1;
        self.hosts.remove_dormant(key);
        self.add_waiting(entry, key);
    }

    /// A dormant entry ends.
    pub(super) fn drop_dormant(&mut self, key: &Key, end: EndReason) {
        self.dormant -= 1;
        self.hosts.remove_dormant(key);
        count_end(&mut self.counts, end);
    }

    /// Adds a waiting active entry.
    pub(super) fn add_waiting(&mut self, entry: EntryId, key: &Key) {
        self.waiting.insert(entry);
        self.hosts.add_waiting(entry, key);
    }

    /// A waiting entry is leased to a member.
    pub(super) fn lease_entry(&mut self, entry: EntryId, key: &Key) {
        self.waiting.remove(&entry);
        self.hosts.remove_waiting(entry, key);
        self.held += 1;
        self.hosts.begin_page(key);
    }

    /// A member returns an entry, which waits again.
    pub(super) fn return_entry(&mut self, entry: EntryId, key: &Key) {
        self.held -= 1;
        self.hosts.cancel_page(key);
        self.add_waiting(entry, key);
    }

    /// A waiting entry reserves a part of the budget for its member's next request.
    pub(super) fn pin(&mut self, key: &Key) {
        self.pinned += 1;
        self.hosts.begin_page(key);
    }

    /// Ends the reservation.
    pub(super) fn unpin(&mut self, key: &Key) {
        self.pinned -= 1;
        self.hosts.cancel_page(key);
    }

    /// An entry ends with a worker's result.
    pub(super) fn complete_entry(&mut self, outcome: Outcome, key: &Key) {
        self.held -= 1;
        match outcome {
            Outcome::Done => self.hosts.complete_page(key),
            _ => self.hosts.cancel_page(key),
        }
        count_outcome(&mut self.counts, outcome);
    }

    /// A waiting entry ends without a result.
    pub(super) fn drop_waiting(&mut self, entry: EntryId, key: &Key, end: EndReason) {
        assert!(self.waiting.remove(&entry), "only a waiting entry is dropped");
        self.hosts.remove_waiting(entry, key);
        count_end(&mut self.counts, end);
    }

    /// Whether a dead entry of the pass may be retried as a part of it.
    pub fn may_readmit(&self, key: &str) -> bool {
        let has_room = !self.is_exhausted() && !self.hosts.is_exhausted(key);
        self.state != JobState::Done && !self.cancelled && has_room
    }

    /// Whether a failed page of this finished pass may be fetched again and counted in the pass.
    ///
    /// URLs of a finished pass without a final result are repairs in progress, and each may
    /// complete a page. The page counts of the keys were dropped when the pass was done.
    pub fn may_repair(&self) -> bool {
        let used = self.counts.completed + unfinished(&self.counts);
        let has_room = self.settings.pages_max.is_none_or(|max| used < max);
        self.state == JobState::Done && !self.cancelled && has_room
    }

    /// A dead entry waits again.
    pub(super) fn readmit(&mut self, entry: EntryId, key: &Key) {
        self.counts.failed -= 1;
        self.add_waiting(entry, key);
    }

    /// The end of the pass, without what only the group knows.
    pub fn end(&self) -> JobEnd {
        let is_empty = !self.cancelled && self.counts.found == 0;
        JobEnd {
            job: self.name.to_string(),
            number: self.id.number,
            pass: self.id.pass.into(),
            result: if self.cancelled { JobResult::Cancelled } else { JobResult::Done },
            reason: is_empty.then_some(JobEndReason::Empty),
            counts: self.counts,
            callback: self.callback(),
            traceparent: self.settings.traceparent.as_deref().map(str::to_owned),
            ..JobEnd::default()
        }
    }

    /// The job without its settings. `queued` is the number of waiting entries that could be
    /// released at once.
    pub fn status(&self, queued: usize) -> JobStatus {
        let queued = queued as u64;
        JobStatus {
            job: self.name.to_string(),
            number: self.id.number,
            pass: self.id.pass.into(),
            state: self.shown_state(),
            pending: self.waiting_count().saturating_sub(queued),
            queued,
            processing: self.held,
            counts: self.counts,
            ..JobStatus::default()
        }
    }

    /// The state as it is shown.
    pub fn shown_state(&self) -> status::JobState {
        match self.state {
            JobState::Done => status::JobState::Done,
            _ if self.paused && !self.cancelled => status::JobState::Paused,
            JobState::Open => status::JobState::Open,
            JobState::Closed => status::JobState::Closed,
        }
    }

    /// The job with the settings that a client cannot see in its counts.
    pub fn full_status(&self, queued: usize) -> JobStatus {
        let settings = &self.settings;
        JobStatus {
            scope_rule: Some(settings.scope.as_str().to_owned()),
            max_depth: settings.depth_max.map(u64::from),
            max_pages: settings.pages_max,
            max_per_host: settings.host_pages_max,
            max_time: settings.time_ms_max.map(DurationMs),
            include: settings.include.texts(),
            exclude: settings.exclude.texts(),
            render: settings.render.as_ref().map(ToString::to_string),
            callback: self.callback(),
            ..self.status(queued)
        }
    }

    fn callback(&self) -> Option<String> {
        self.settings.callback.as_deref().map(str::to_owned)
    }
}
