//! A job and its current or last pass.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use tidings_protocol::duration::{self, DURATION_MS_MAX};
use tidings_protocol::status::{
    self, DurationMs, JobEnd, JobEndReason, JobResult, JobStatus, PassCounts,
};
use tidings_protocol::{
    CanonicalUrl, JobName, Outcome, ProtocolError, Render, RenderRule, Seq, TRACEPARENT, TopicName,
    UrlFilter, bad_argument, duration_within, is_traceparent, whole_number,
};

use super::counts::{count_end, count_outcome, unfinished};
use super::hosts::{HostEntry, HostPages};
use super::scope::{Scope, ScopeRule};
use crate::entry::{EndReason, EntryId, Key, PassId};
use crate::moment::Moment;
use crate::mutants::{self, Mutant};

/// Settings that an operator gives when opening a job; they hold for the pass. Some can be
/// [changed](JobSettings::changed) while it runs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct JobSettings {
    /// Links that belong to the job ..
    pub scope: ScopeRule,
    /// .. except those that this filter rejects.
    pub filter: UrlFilter,
    /// Which of its pages are rendered; `None`: the workers decide.
    pub render: Option<RenderRule>,
    /// Largest number of links from a seed; `None`: no limit.
    pub depth_max: Option<u32>,
    /// Most completed pages; `None`: no limit.
    pub pages_max: Option<u64>,
    /// Most completed pages per key of the group, which usually is a host; `None`: no limit.
    pub host_pages_max: Option<u64>,
    /// How long after its opening the pass may release entries, in ms; `None`: no limit.
    pub time_ms_max: Option<u64>,
    /// Whether entries are released only after the job was closed and all seeds published by then
    /// were consumed: until all seeds are known, it is not known which links belong to the job.
    /// Becomes `false` at that moment.
    pub hold: bool,
    /// URL that receives a request when the pass is done, in canonical form. It is part of the
    /// announcement.
    pub callback: Option<Box<str>>,
    /// The trace context of the pass. It is part of the announcement.
    pub traceparent: Option<Box<str>>,
}

/// The longest `callback=`, in bytes.
const CALLBACK_BYTES_MAX: usize = 2_048;

impl JobSettings {
    /// Reads `key=value` settings.
    pub fn parse<'a>(
        settings: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, ProtocolError> {
        let mut parsed = Self::default();
        for (name, value) in settings {
            match name {
                "scope" => parsed.scope = value.parse()?,
                "include" => parsed.filter.include = value.parse()?,
                "exclude" => parsed.filter.exclude = value.parse()?,
                "render" => parsed.render = Some(value.parse()?),
                "max-depth" | "depth" if parsed.depth_max.is_some() => {
                    return Err(bad_argument(
                        "max-depth and depth are the same setting; give only one",
                    ));
                }
                "max-depth" | "depth" => {
                    parsed.depth_max = Some(whole_number(name, value, 0, u64::from(u32::MAX))?);
                }
                "max-pages" => parsed.pages_max = Some(whole_number(name, value, 1, u64::MAX)?),
                "max-per-host" => {
                    parsed.host_pages_max = Some(whole_number(name, value, 1, u64::MAX)?);
                }
                "max-time" => {
                    parsed.time_ms_max = Some(duration_within(name, value, 1, DURATION_MS_MAX)?);
                }
                "hold" => {
                    parsed.hold = match value {
                        "yes" => true,
                        "no" => false,
                        _ => return Err(bad_argument(format!("hold={value}: expected yes or no"))),
                    };
                }
                "callback" => parsed.callback = Some(parse_callback(value)?),
                TRACEPARENT if is_traceparent(value) => parsed.traceparent = Some(value.into()),
                TRACEPARENT => {
                    return Err(bad_argument(format!(
                        "traceparent={value}: expected a trace context such as \
                         00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
                    )));
                }
                _ => {
                    return Err(bad_argument(format!(
                        "no job setting {name}; the settings are scope, include, exclude, render, \
                         max-depth, max-pages, max-per-host, max-time, hold, callback, traceparent"
                    )));
                }
            }
        }
        Ok(parsed)
    }

    /// Returns the settings after a change of the job while it runs: for each of the settings that
    /// can change, a value, or `none` to remove it.
    pub fn changed<'a>(
        &self,
        changes: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, ProtocolError> {
        let mut new = self.clone();
        for (name, value) in changes {
            let given = match value {
                "none" => Self::default(),
                value => Self::parse([(name, value)])?,
            };
            match name {
                "include" => new.filter.include = given.filter.include,
                "exclude" => new.filter.exclude = given.filter.exclude,
                "max-depth" | "depth" => new.depth_max = given.depth_max,
                "max-pages" => new.pages_max = given.pages_max,
                "max-per-host" => new.host_pages_max = given.host_pages_max,
                "max-time" => new.time_ms_max = given.time_ms_max,
                _ => {
                    return Err(bad_argument(format!(
                        "{name}={value}: of a job that runs, only include, exclude, max-depth, \
                         max-pages, max-per-host and max-time can change"
                    )));
                }
            }
        }
        Ok(new)
    }

    /// Reports whether a waiting entry of the job belongs to it under these settings. Seeds, and
    /// the targets of their redirects, always do.
    pub(crate) fn admit_waiting(&self, url: &str, depth: u32) -> bool {
        let fits = || CanonicalUrl::parse(url).is_ok_and(|url| self.filter.admits(&url));
        depth == 0 || (self.depth_max.is_none_or(|max| depth <= max) && fits())
    }

    /// The settings as `name=value` words that [`JobSettings::parse`] accepts.
    pub fn describe(&self) -> String {
        let mut words = format!("scope={}", self.scope.as_str());
        if let Some(depth) = self.depth_max {
            // Writing into a string cannot fail.
            let _ = write!(words, " max-depth={depth}");
        }
        if let Some(pages) = self.pages_max {
            let _ = write!(words, " max-pages={pages}");
        }
        if let Some(pages) = self.host_pages_max {
            let _ = write!(words, " max-per-host={pages}");
        }
        if let Some(ms) = self.time_ms_max {
            let _ = write!(words, " max-time={}", duration::format_ms(ms));
        }
        if self.hold {
            words.push_str(" hold=yes");
        }
        words += &self.filter.describe();
        if let Some(rule) = &self.render {
            let _ = write!(words, " render={rule}");
        }
        if let Some(url) = &self.callback {
            let _ = write!(words, " callback={url}");
        }
        if let Some(trace) = &self.traceparent {
            let _ = write!(words, " {TRACEPARENT}={trace}");
        }
        words
    }

    /// Rejects a callback to which no request can be sent. Not part of [`JobSettings::parse`],
    /// which also reads records.
    pub fn check_callback(&self) -> Result<(), ProtocolError> {
        let callback = self.callback.as_deref().and_then(|url| CanonicalUrl::parse(url).ok());
        let check = callback.map_or(Ok(()), |url| url.check_callable());
        check.map_err(|error| bad_argument(format!("callback=: {error}")))
    }
}

fn parse_callback(value: &str) -> Result<Box<str>, ProtocolError> {
    if value.len() > CALLBACK_BYTES_MAX {
        return Err(bad_argument(format!(
            "callback=: the URL is longer than {CALLBACK_BYTES_MAX} bytes"
        )));
    }
    let url = CanonicalUrl::parse(value)
        .map_err(|error| bad_argument(format!("callback={value}: {error}")))?;
    Ok(url.as_str().into())
}

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
    pub(super) fn finish(&mut self) {
        self.state = JobState::Done;
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
        self.scope.contains(url) && self.settings.filter.admits(url)
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
            include: settings.filter.include.texts(),
            exclude: settings.filter.exclude.texts(),
            render: settings.render.as_ref().map(ToString::to_string),
            callback: self.callback(),
            ..self.status(queued)
        }
    }

    fn callback(&self) -> Option<String> {
        self.settings.callback.as_deref().map(str::to_owned)
    }
}
