//! Jobs: crawls of unknown size, counted exactly. A job is done when it is closed, nothing of it
//! waits or is in flight, and the group has taken everything that was published before that moment.
//!
//! ```text
//!          seeds, close                 count = 0            taken up to the note, count still 0
//!   open ───────────────▶ closed ─────────────────▶ noted ─────────────────────────────────────▶ done
//!    ▲                       ▲                        │ a late seed                               │
//!    │                       └────────────────────────┘                                           │
//!    └──────────────────────────────── opened again: the next pass ──────────────────────────────┘
//! ```

mod counts;
mod hosts;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt::Write;

use tidings_protocol::duration::{self, DURATION_MS_MAX};
use tidings_protocol::{CanonicalUrl, JobName, Outcome, ProtocolError, Seq, TopicName};

pub use self::counts::Counts;
use self::hosts::Hosts;
use crate::clock::Moment;
use crate::group::config::{bad, duration_within, number};
use crate::group::entry::{EntryId, JobNumber, JobRef, Key};
use crate::group::mutants::{self, Mutant};
use crate::group::pattern::Filter;
use crate::group::record::End;
use crate::group::scope::{Scope, ScopeRule};
use crate::group::snapshot::Item;

/// What a person sets when a job is opened; it holds for the pass.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct JobSettings {
    /// Which links belong to it ..
    pub scope: ScopeRule,
    /// .. and which of those do not.
    pub filter: Filter,
    /// Furthest number of links from a seed; `None`: no limit.
    pub depth_max: Option<u32>,
    /// Most pages that are completed; `None`: no limit.
    pub pages_max: Option<u64>,
    /// Most pages that are completed of one key of the group, which mostly is a host; `None`: no
    /// limit.
    pub host_pages_max: Option<u64>,
    /// How long the pass may release anything, from its opening, in ms; `None`: no limit.
    pub time_ms_max: Option<u64>,
    /// Nothing of it is released before it is closed and everything is taken that was published by
    /// then: what a page may link to is known only when all seeds are there. `false` from then on.
    pub hold: bool,
    /// Where to say that the pass is done; it stands in the announcement. A canonical URL.
    pub callback: Option<Box<str>>,
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
                "max-depth" | "depth" if parsed.depth_max.is_some() => {
                    return Err(bad("max-depth and depth are the same setting; give only one"));
                }
                "max-depth" | "depth" => {
                    parsed.depth_max = Some(number(name, value, 0, u64::from(u32::MAX))?);
                }
                "max-pages" => parsed.pages_max = Some(number(name, value, 1, u64::MAX)?),
                "max-per-host" => parsed.host_pages_max = Some(number(name, value, 1, u64::MAX)?),
                "max-time" => {
                    parsed.time_ms_max = Some(duration_within(name, value, 1, DURATION_MS_MAX)?);
                }
                "hold" => {
                    parsed.hold = match value {
                        "yes" => true,
                        "no" => false,
                        _ => return Err(bad(format!("hold={value}: expected yes or no"))),
                    };
                }
                "callback" => parsed.callback = Some(callback(value)?),
                _ => {
                    return Err(bad(format!(
                        "no job setting {name}; the settings are scope, include, exclude, max-depth, \
                         max-pages, max-per-host, max-time, hold, callback"
                    )));
                }
            }
        }
        Ok(parsed)
    }

    /// The settings as `name=value` words, in the form in which they are set.
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
        words + &self.filter.describe() + &self.describe_callback()
    }

    /// Refuses a callback to which no request can be sent. Not part of [`JobSettings::parse`], which reads records, too.
    pub(crate) fn check_callback(&self) -> Result<(), ProtocolError> {
        let callback = self.callback.as_deref().and_then(|url| CanonicalUrl::parse(url).ok());
        let check = callback.map_or(Ok(()), |url| url.check_callable());
        check.map_err(|error| bad(format!("callback=: {error}")))
    }

    /// ` callback=<url>`, if there is one.
    pub(crate) fn describe_callback(&self) -> String {
        self.callback.as_ref().map_or_else(String::new, |url| format!(" callback={url}"))
    }
}

fn callback(value: &str) -> Result<Box<str>, ProtocolError> {
    if value.len() > CALLBACK_BYTES_MAX {
        return Err(bad(format!("callback=: the URL is longer than {CALLBACK_BYTES_MAX} bytes")));
    }
    let url =
        CanonicalUrl::parse(value).map_err(|error| bad(format!("callback={value}: {error}")))?;
    Ok(url.as_str().into())
}

/// Where a job stands between its passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobState {
    /// Seeds may arrive.
    Open,
    /// Everything has been said; what was said may still be on its way.
    Closed,
    /// Its end has been announced.
    Done,
}

/// One job and its present (or last) pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Number and pass.
    pub id: JobRef,
    /// Its name.
    pub name: JobName,
    /// Settings of the pass.
    pub settings: JobSettings,
    /// Where it stands.
    pub state: JobState,
    /// No child is admitted any more.
    pub cancelled: bool,
    /// Nothing of it is released.
    pub paused: bool,
    /// Its time is over.
    pub time_is_up: bool,
    /// When that is, if it is not yet.
    pub time_until: Option<Moment>,
    /// What belongs to it.
    pub scope: Scope,
    /// Entries in full that wait, due or not.
    pub waiting: BTreeSet<EntryId>,
    /// How many others do.
    pub parked: u64,
    /// Entries with a member.
    pub held: u64,
    /// What it has of each key.
    hosts: Hosts,
    /// What became of the rest.
    pub counts: Counts,
    /// Heads of the feeding topics when the count was zero, or when it was closed if it is held.
    pub noted: Option<BTreeMap<TopicName, Seq>>,
    /// When it is closed if no further seed arrives.
    pub open_until: Moment,
    /// Entries that wait for their member's next request: they keep what they took of the budget.
    pub pinned: u64,
}

impl Job {
    /// A job to which nothing has happened yet.
    pub(crate) fn new(id: JobRef, name: JobName, settings: JobSettings, state: JobState) -> Self {
        // What is done needs no rule and no budget any more.
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
            parked: 0,
            held: 0,
            hosts: Hosts::new(settings.host_pages_max.filter(|_| !is_done)),
            settings,
            counts: Counts::default(),
            noted: None,
            open_until: Moment(0),
            pinned: 0,
        }
    }

    /// The job and what belongs to it, without its entries, as parts of a snapshot.
    pub(crate) fn items(&self, keep: &mut impl FnMut(Item)) {
        let bare = Self {
            scope: self.scope.bare(),
            waiting: BTreeSet::new(),
            parked: 0,
            held: 0,
            pinned: 0,
            hosts: self.hosts.bare(),
            ..self.clone()
        };
        let number = self.id.number;
        keep(Item::Job(Box::new(bare)));
        for part in self.scope.parts() {
            keep(Item::Scope { number, part: part.into() });
        }
        for (key, completed) in self.hosts.completed() {
            keep(Item::Pages { number, key: key.clone(), completed });
        }
    }

    /// So many pages of a key are completed.
    pub(crate) fn keep_pages(&mut self, key: &Key, completed: u64) {
        self.hosts.keep(key, completed);
    }

    /// Whether a link to this URL is one of its own.
    pub fn contains(&self, url: &CanonicalUrl) -> bool {
        self.scope.contains(url) && self.settings.filter.admits(url)
    }

    /// Entries that are not final.
    pub fn count(&self) -> u64 {
        let held = if mutants::is(Mutant::DoneWhileHeld) { 0 } else { self.held };
        self.waits() + held
    }

    /// How many entries wait.
    pub fn waits(&self) -> u64 {
        self.waiting.len() as u64 + self.parked
    }

    /// It has the pages it may have, or its time is over: what waits is dropped.
    pub fn is_exhausted(&self) -> bool {
        let has_all = self.settings.pages_max.is_some_and(|max| self.counts.completed >= max);
        has_all || self.time_is_up
    }

    /// Its budget is taken by what is in flight, and nothing is released until some of it is given
    /// back; or its time is over.
    pub fn is_blocked(&self) -> bool {
        let taken = self.counts.completed + self.held + self.pinned;
        let taken = taken - u64::from(taken > 0 && mutants::is(Mutant::OverBudget));
        self.time_is_up || self.settings.pages_max.is_some_and(|max| taken >= max)
    }

    /// The same, for one key.
    pub fn is_blocked_on(&self, key: &str) -> bool {
        self.is_blocked() || self.hosts.are_blocked(key)
    }

    /// It waits for its seeds.
    pub fn is_held(&self) -> bool {
        self.settings.hold && !mutants::is(Mutant::NeverHolds)
    }

    /// Whether something of it may be the next of this key: unlike the budget of the whole job,
    /// which what is in flight gives back soon, this may last.
    pub fn takes_turns_on(&self, key: &str) -> bool {
        !self.paused && !self.is_held() && !self.hosts.are_blocked(key)
    }

    /// Whether each key has a budget of its own.
    pub fn limits_hosts(&self) -> bool {
        self.hosts.are_limited()
    }

    /// Keys that have given enough, and behind which something of it waits.
    pub fn spent(&self) -> impl Iterator<Item = &Key> {
        self.hosts.spent()
    }

    /// Entries in full of it that wait; of those, the ones behind a key that is limited.
    pub fn waiting(&self, key: Option<&str>) -> Vec<EntryId> {
        match key {
            None => self.waiting.iter().copied().collect(),
            Some(key) => self.hosts.waiting(key).collect(),
        }
    }

    /// An entry of it is parked.
    pub fn park(&mut self, key: &Key) {
        self.parked += 1;
        self.hosts.park(key);
    }

    /// A parked entry of it is kept in full from now on.
    pub fn unpark(&mut self, entry: EntryId, key: &Key) {
        self.parked -= 1;
        self.hosts.unpark(key);
        self.wait(entry, key);
    }

    /// A parked entry of it ended.
    pub fn dropped_parked(&mut self, key: &Key, end: End) {
        self.parked -= 1;
        self.hosts.unpark(key);
        self.counts.end(end);
    }

    /// An entry in full of it waits.
    pub fn wait(&mut self, entry: EntryId, key: &Key) {
        self.waiting.insert(entry);
        self.hosts.wait(entry, key);
    }

    /// A waiting entry of it goes to a member.
    pub fn take(&mut self, entry: EntryId, key: &Key) {
        self.waiting.remove(&entry);
        self.hosts.leave(entry, key);
        self.held += 1;
        self.hosts.take(key);
    }

    /// An entry of it came back from its member, and waits.
    pub fn give_back(&mut self, entry: EntryId, key: &Key) {
        self.held -= 1;
        self.hosts.give_back(key);
        self.wait(entry, key);
    }

    /// A waiting entry keeps its part of the budget for its member's next request.
    pub fn pin(&mut self, key: &Key) {
        self.pinned += 1;
        self.hosts.take(key);
    }

    /// It does not any more.
    pub fn unpin(&mut self, key: &Key) {
        self.pinned -= 1;
        self.hosts.give_back(key);
    }

    /// An entry of it ended with a worker's answer.
    pub fn ended_with(&mut self, outcome: Outcome, key: &Key) {
        self.held -= 1;
        match outcome {
            Outcome::Done => self.hosts.complete(key),
            _ => self.hosts.give_back(key),
        }
        self.counts.outcome(outcome);
    }

    /// A waiting entry of it ended without one.
    pub fn dropped(&mut self, entry: EntryId, key: &Key, end: End) {
        assert!(self.waiting.remove(&entry), "only a waiting entry is dropped");
        self.hosts.leave(entry, key);
        self.counts.end(end);
    }

    /// Whether an entry of the pass that was given up may become a part of it again.
    pub fn takes_back(&self, key: &str) -> bool {
        let has_room = !self.is_exhausted() && !self.hosts.have_given(key);
        self.state != JobState::Done && !self.cancelled && has_room
    }

    /// Whether a failed page of this finished pass may be fetched again and count in the pass.
    ///
    /// The URLs that have not ended in a finished pass are its repairs, and each of them may complete a page. The pages
    /// of each host are no longer known.
    pub fn takes_repair(&self) -> bool {
        let taken = self.counts.completed + self.counts.unfinished();
        let has_room = self.settings.pages_max.is_none_or(|max| taken < max);
        self.state == JobState::Done && !self.cancelled && has_room
    }

    /// A failed page of this finished pass is fetched again.
    pub fn repair_begins(&mut self) {
        self.counts.failed -= 1;
    }

    /// A repair redirects to so many URLs, which are part of the repair.
    pub fn repair_moves(&mut self, targets: u64) {
        self.counts.found += targets;
    }

    /// A repair ended with a worker's answer.
    pub fn repair_ended(&mut self, outcome: Outcome) {
        self.counts.outcome(outcome);
    }

    /// A repair ended without one.
    pub fn repair_dropped(&mut self, end: End) {
        self.counts.end(end);
    }

    /// An entry that was given up waits again.
    pub fn takes_again(&mut self, entry: EntryId, key: &Key) {
        self.counts.failed -= 1;
        self.wait(entry, key);
    }

    /// The event that announces its end.
    pub fn announcement(&self) -> String {
        let result = match self.cancelled {
            true => "cancelled",
            false if self.counts.found == 0 => "done reason=empty",
            false => "done",
        };
        format!(
            "{} number={} pass={} result={result} {}{}",
            self.name,
            self.id.number,
            self.id.pass,
            self.counts,
            self.settings.describe_callback()
        )
    }

    /// Its state in `key=value` words. `queued` of what waits could be released at once.
    pub fn describe(&self, queued: usize) -> String {
        let state = match self.state {
            JobState::Done => "done",
            _ if self.paused && !self.cancelled => "paused",
            JobState::Open => "open",
            JobState::Closed => "closed",
        };
        format!(
            "{} number={} pass={} state={state} pending={} queued={queued} processing={} {}",
            self.name,
            self.id.number,
            self.id.pass,
            self.waits().saturating_sub(queued as u64),
            self.held,
            self.counts
        )
    }
}

/// All jobs of a group that are remembered.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Jobs {
    by_number: BTreeMap<JobNumber, Job>,
    numbers: HashMap<JobName, JobNumber>,
    /// Done, oldest first.
    finished: VecDeque<JobNumber>,
    last_number: JobNumber,
}

impl Jobs {
    /// The number that opening `name` would give: its own, or a new one.
    pub fn number_for(&self, name: &JobName) -> JobNumber {
        self.numbers.get(name).copied().unwrap_or(self.last_number + 1)
    }

    /// Opens a job, or the next pass of a finished one. Without seeds it is closed at `until`.
    pub fn open(
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
        let id = JobRef { number, pass };
        let time_until = settings.time_ms_max.map(|ms| now + ms);
        let mut job = Job::new(id, name.clone(), settings, JobState::Open);
        job.time_until = time_until;
        job.open_until = until;
        self.by_number.insert(number, job);
    }

    /// The pass is over; of the finished jobs the `remembered` last ones are kept.
    pub fn finish(&mut self, number: JobNumber, remembered: usize) {
        if let Some(job) = self.by_number.get_mut(&number) {
            job.state = JobState::Done;
            job.noted = None;
            job.paused = false;
            job.time_until = None;
            job.scope = Scope::default();
            job.hosts = Hosts::default();
            self.finished.push_back(number);
        }
        while self.finished.len() > remembered
            && let Some(oldest) = self.finished.pop_front()
            && let Some(job) = self.by_number.remove(&oldest)
        {
            self.numbers.remove(&job.name);
        }
    }

    /// The job that is forgotten when the next one finishes, of which `remembered` are kept.
    pub fn next_forgotten(&self, remembered: usize) -> Option<&JobName> {
        let oldest = self.finished.front().filter(|_| self.finished.len() >= remembered)?;
        self.find(*oldest).map(|job| &job.name)
    }

    /// Forgets a finished job. Its number is not given again.
    pub fn delete(&mut self, number: JobNumber) {
        self.finished.retain(|finished| *finished != number);
        if let Some(job) = self.by_number.remove(&number) {
            self.numbers.remove(&job.name);
        }
    }

    /// All jobs, those that are done last, in the order in which they are forgotten.
    pub(crate) fn in_order(&self) -> impl Iterator<Item = &Job> {
        let unfinished = self.by_number.values().filter(|job| job.state != JobState::Done);
        unfinished.chain(self.finished.iter().filter_map(|number| self.find(*number)))
    }

    /// A job that was there before.
    pub(crate) fn keep(&mut self, job: Job) {
        let number = job.id.number;
        if job.state == JobState::Done {
            self.finished.push_back(number);
        }
        self.numbers.insert(job.name.clone(), number);
        self.by_number.insert(number, job);
    }

    /// The newest job's number, also if that job was forgotten.
    pub(crate) fn last_number(&self) -> JobNumber {
        self.last_number
    }

    /// New jobs have higher numbers.
    pub(crate) fn go_on_after(&mut self, last: JobNumber) {
        self.last_number = self.last_number.max(last);
    }

    /// A job by its number.
    pub fn find(&self, number: JobNumber) -> Option<&Job> {
        self.by_number.get(&number)
    }

    /// A job by its number, to be changed.
    pub fn find_mut(&mut self, number: JobNumber) -> Option<&mut Job> {
        self.by_number.get_mut(&number)
    }

    /// The job whose newest pass this is.
    pub fn of_pass(&self, pass: JobRef) -> Option<&Job> {
        self.find(pass.number).filter(|job| job.id == pass)
    }

    /// The job whose newest pass this is, to be changed.
    pub fn of_pass_mut(&mut self, pass: JobRef) -> Option<&mut Job> {
        self.find_mut(pass.number).filter(|job| job.id == pass)
    }

    /// A job by its name.
    pub fn named(&self, name: &str) -> Option<&Job> {
        self.numbers.get(name).and_then(|number| self.by_number.get(number))
    }

    /// How many are not done.
    pub fn unfinished(&self) -> usize {
        self.by_number.len() - self.finished.len()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_number.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.by_number.is_empty()
    }

    /// All jobs, oldest number first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Job> {
        self.by_number.values()
    }
}
