//! Entries: URLs (or texts) to work on, with their state and lease.

use smol_str::SmolStr;
use tidings_protocol::{MemberId, Render, UrlKey};

use crate::moment::Moment;

/// Id of an entry within its group, rising from 1 and never reused within a run.
pub type EntryId = u64;

/// Number of a job within its group, rising from 1 and never reused.
pub type JobNumber = u64;

/// Schedules take turns with jobs, as if they were one. No job has this number.
pub(crate) const SCHEDULES_JOB: JobNumber = 0;

/// The thing that is never worked on twice at once: the host, the domain, or the value of an
/// attribute.
pub type Key = SmolStr;

/// Bytes of forwarded attributes. A line must hold them, the URL, and the URL of `again=`.
pub(crate) const FORWARDED_BYTES_MAX: usize = 32 << 10;

/// An entry as it was admitted. Records contain exactly this, so that a replay does not have to
/// judge again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admission {
    /// Its id.
    pub id: EntryId,
    /// The canonical URL, or the whole payload in a group without keys.
    pub text: Box<str>,
    /// Identity of the URL within (job, pass); `None` in a group without keys.
    pub url_key: Option<UrlKey>,
    /// The key that limits its requests.
    pub key: Key,
    /// The job and pass that count it. `None`: it is fetched alone.
    pub job: Option<PassId>,
    /// Links between a seed and this entry. A redirect keeps its parent's depth.
    pub depth: u32,
    /// Redirects in a row that led here.
    pub hops: u32,
    /// Whether it is the target of a redirect, which goes to the head of its key's queue.
    pub redirect: bool,
    /// Whether an event announced it, rather than a job found it. Announced entries take turns with
    /// those of jobs.
    pub announced: bool,
    /// Among the free keys of a lane, higher goes first.
    pub prio: i16,
    /// Earliest release.
    pub due: Moment,
    /// Attributes of the event that are forwarded unchanged, each with a leading space.
    pub forwarded: Box<str>,
}

impl Admission {
    /// Its approximate memory, with its places in queues and indexes.
    pub fn bytes(&self) -> usize {
        const FIXED_BYTES: usize = 400;
        FIXED_BYTES + self.text.len() + self.forwarded.len()
    }

    /// Returns whether its page is rendered, if the event, the job or a worker has said it.
    pub(crate) fn render(&self) -> Option<Render> {
        render_of(&self.forwarded)
    }

    /// Reports whether only a member with a browser may receive it.
    pub(crate) fn needs_render(&self) -> bool {
        self.render() == Some(Render::Yes)
    }
}

/// A job and one of its passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PassId {
    /// The job.
    pub number: JobNumber,
    /// The pass, rising from 1.
    pub pass: u32,
}

/// An admitted entry and its history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// As it was admitted; `announced`, `prio` and `due` may have improved since.
    pub admitted: Admission,
    /// Its state.
    pub state: EntryState,
    /// The number of releases. It is the attempt in the task id, so that every answer to an older
    /// attempt is stale.
    pub releases: u32,
    /// Failed attempts, limited by `max_attempts`.
    pub failures: u32,
    /// Attempts that ended with a lost lease, limited by `max_losses`.
    pub losses: u32,
    /// Why the last attempt failed.
    pub last_reason: Option<Box<str>>,
    /// The next request of the task, if it is not for its own URL.
    pub again: Option<Box<AgainRequest>>,
    /// `again` answers in a row.
    pub again_count: u32,
    /// The finished pass in which the entry failed. The pass counts how the entry ends; nothing
    /// else in the pass changes. If this is `Some`, `admitted.job` is `None`.
    pub repairs: Option<PassId>,
}

/// The next request of a task, for another URL such as robots.txt, which may have another key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgainRequest {
    /// The URL to request.
    pub url: Box<str>,
    /// The key of this request.
    pub key: Key,
    /// The member that asked for it. No other member can continue, so this is dropped when the
    /// member leaves.
    pub member: MemberId,
}

/// The rest that a worker requests for a key, already limited. It can lengthen the delay, never
/// shorten it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RecordedRest {
    /// The key rests at least until then, once.
    pub not_before: Option<Moment>,
    /// Minimum delay of the key from here on, in ms.
    pub pace_ms: Option<u64>,
}

/// Why entries ended without a worker's outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndReason {
    /// Attempts or losses used up: a dead letter, counted as failed.
    Dead,
    /// The host does not answer and is given up: a dead letter, counted as failed.
    Down,
    /// The job has completed its pages.
    Budget,
    /// The job was cancelled.
    Cancelled,
    /// Everything that waited was purged.
    Purged,
    /// The scope of its job changed and excludes it.
    Scope,
    /// A rule of the operator blocks its key or URL.
    Blocked,
}

/// The state of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryState {
    /// Not due yet; a timer queues it.
    Delayed,
    /// In its key's queue.
    Waiting,
    /// Leased to a member.
    Held(Lease),
}

/// The time-bounded right of one member to one entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// The member.
    pub member: MemberId,
    /// The run in which the task was released, which its task id carries. The lease may outlive
    /// that run.
    pub run: u64,
    /// When it expires unless the member renews it.
    pub until: Moment,
    /// When it began. Snapshots lack this: a lease that is read from one begins when it is read.
    pub began_at: Moment,
    /// Whether its request has ended. Then credit and job still count it, and the key does
    /// not.
    pub request_over: bool,
}

impl Lease {
    /// Creates a lease as a snapshot contains it. Its request has not ended.
    pub fn new(member: MemberId, run: u64, until: Moment) -> Self {
        Self { member, run, until, began_at: Moment(0), request_over: false }
    }
}

/// An entry that was lost this often is suspected of killing its workers.
pub const SUSPECT_LOSSES: u32 = 2;

impl Entry {
    /// Creates a newly admitted entry, not yet in any queue.
    pub fn new(admitted: Admission) -> Self {
        Self {
            admitted,
            state: EntryState::Delayed,
            releases: 0,
            failures: 0,
            losses: 0,
            last_reason: None,
            again: None,
            again_count: 0,
            repairs: None,
        }
    }

    /// Returns the key of its next (or current) request.
    pub fn gate(&self) -> &Key {
        self.again.as_ref().map_or(&self.admitted.key, |again| &again.key)
    }

    /// Reports whether nothing has happened to it since its admission.
    pub fn is_untouched(&self) -> bool {
        let Self {
            admitted: _,
            state,
            releases,
            failures,
            losses,
            last_reason,
            again,
            again_count: agains,
            repairs,
        } = self;
        let counts = releases + failures + losses + agains;
        let has_history = last_reason.is_some() || again.is_some() || repairs.is_some();
        !matches!(state, EntryState::Held(_)) && counts == 0 && !has_history
    }

    /// Returns its lease while a member holds it.
    pub fn lease(&self) -> Option<&Lease> {
        match &self.state {
            EntryState::Held(lease) => Some(lease),
            EntryState::Delayed | EntryState::Waiting => None,
        }
    }

    /// Reports whether it is a suspect. A member may hold only one suspect.
    pub fn is_suspect(&self) -> bool {
        self.losses >= SUSPECT_LOSSES
    }

    /// Returns what a member must have for it. Changes only while no member holds it.
    pub(crate) fn demand(&self) -> Demand {
        Demand { suspect: self.is_suspect(), render: self.admitted.needs_render() }
    }
}

/// What a member must have for an entry, in addition to free credit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Demand {
    /// No other suspect.
    pub(crate) suspect: bool,
    /// A browser that is free.
    pub(crate) render: bool,
}

/// Returns the value of an attribute among forwarded ones. `name` is its name between a space and
/// an equals sign.
pub(crate) fn attribute<'a>(forwarded: &'a str, name: &str) -> Option<&'a str> {
    let (_, behind) = forwarded.split_once(name)?;
    behind.split(' ').next()
}

/// Returns the value of `render=` among forwarded attributes.
pub(crate) fn render_of(forwarded: &str) -> Option<Render> {
    // Most entries have no attributes, and this runs several times for each.
    if forwarded.is_empty() {
        return None;
    }
    attribute(forwarded, " render=").and_then(Render::from_word)
}

/// Returns forwarded attributes with this value of `render=`, or without one.
pub(crate) fn with_render(forwarded: &str, render: Option<Render>) -> String {
    let render = render.map_or_else(String::new, |render| format!(" render={render}"));
    render + &without_attribute(forwarded, "render=")
}

/// Returns forwarded attributes without one of them. `name` ends with an equals sign.
pub(crate) fn without_attribute(forwarded: &str, name: &str) -> String {
    let words = forwarded.split(' ').skip(1).filter(|word| !word.starts_with(name));
    words.flat_map(|word| [" ", word]).collect()
}

/// Adds the attributes of `others` with names that `carried` lacks. `None` if the result is too
/// long to forward.
pub(crate) fn merge_attributes(carried: &str, others: &str) -> Option<String> {
    let name = |word| str::split_once(word, '=').map_or(word, |(name, _)| name);
    let names: Vec<&str> = carried.split(' ').map(name).collect();
    let mut all = carried.to_owned();
    for word in others.split(' ').skip(1) {
        let has_namesake = word.split_once('=').is_some_and(|(name, _)| names.contains(&name));
        if !has_namesake {
            all.extend([" ", word]);
        }
    }
    (all.len() <= FORWARDED_BYTES_MAX).then_some(all)
}
