//! What a group holds: one URL (or line) that is to be worked on, and where it stands.

use smol_str::SmolStr;

use tidings_protocol::{MemberId, UrlKey};

use super::keys::KeyId;
use crate::clock::Moment;

/// Number of an entry within its group, rising from 1 and never reused within a run.
pub type EntryId = u64;

/// Number of a job within its group, rising from 1 and never reused.
pub type JobNumber = u64;

/// What must not be asked twice at once: the host, the domain, an attribute's value.
pub type Key = SmolStr;

/// An entry as it was judged and let in. A record holds exactly this, so replay judges nothing again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admission {
    /// Its number.
    pub id: EntryId,
    /// The canonical URL, or the whole payload in a group without keys.
    pub text: Box<str>,
    /// Identity of the URL within (job, pass); `None` in a group without keys.
    pub url_key: Option<UrlKey>,
    /// The key that gates it.
    pub key: Key,
    /// The job and pass that count it. Without one it is fetched alone.
    pub job: Option<JobRef>,
    /// Links away from a seed; a redirect keeps its parent's depth.
    pub depth: u32,
    /// Redirects in a row that led here.
    pub hops: u32,
    /// A redirect's target: goes to the head of its key's queue.
    pub redirect: bool,
    /// Was announced rather than found: takes turns with what jobs wait for.
    pub announced: bool,
    /// Higher goes first among the free keys of its lane.
    pub prio: i16,
    /// Not to be released before.
    pub due: Moment,
    /// Attributes of the announcement that are handed on as they came, each with a leading space.
    pub carried: Box<str>,
}

impl Admission {
    /// About what it costs in memory, with its places in queues and indexes.
    pub fn bytes(&self) -> usize {
        const FIXED_BYTES: usize = 400;
        FIXED_BYTES + self.text.len() + self.carried.len()
    }
}

/// A job and one run of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobRef {
    /// The job.
    pub number: JobNumber,
    /// Its pass, rising from 1.
    pub pass: u32,
}

/// An admitted entry and what has happened to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// As it was let in; `announced`, `prio` and `due` may have improved since.
    pub admitted: Admission,
    /// Where it stands.
    pub state: State,
    /// How often it was released: the attempt in its task id, so that every older answer is stale.
    pub releases: u32,
    /// Attempts that failed and count towards `max_attempts`.
    pub failures: u32,
    /// Attempts that ended with their member and count towards `max_losses`.
    pub losses: u32,
    /// Why the last attempt did not succeed.
    pub last_reason: Option<Box<str>>,
    /// The request to be made instead of its own, and for whom.
    pub again: Option<Box<Again>>,
    /// `again` answers in a row.
    pub agains: u32,
    /// The finished pass in which it failed before: the pass counts how the entry ends, and nothing else changes in the
    /// pass. If this is `Some`, `admitted.job` is `None`.
    pub repairs: Option<JobRef>,
}

/// The next request of a task is for another URL (robots.txt, say), which another key may gate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Again {
    /// The URL to request.
    pub url: Box<str>,
    /// The key that gates this request.
    pub key: Key,
    /// Only this member knows what it was about; forgotten when it goes.
    pub member: MemberId,
}

/// Where an entry stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Not due yet: only a timer knows it.
    Delayed,
    /// In its key's queue.
    Waiting,
    /// With a member.
    Held(Lease),
}

/// The time-bounded right of one member to one entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// Whose it is.
    pub member: MemberId,
    /// The run in which it was given, which the task's id carries: it may outlive that.
    pub run: u64,
    /// When it ends unless touched.
    pub until: Moment,
    /// Its request has ended: the key has forgotten it, credit and job have not.
    pub over: bool,
}

/// An entry and the places of its keys in memory, for as long as it is not final.
#[derive(Debug)]
pub(super) struct Live {
    /// The entry.
    pub(super) entry: Entry,
    /// Its key.
    pub(super) key: KeyId,
    /// The key of its `again`.
    pub(super) again: Option<KeyId>,
}

impl Live {
    /// The key that gates its next (or present) request.
    pub(super) fn gate(&self) -> KeyId {
        self.again.unwrap_or(self.key)
    }
}

/// Lost this often, an entry is suspected of killing those who take it.
pub const LOSSES_OF_A_SUSPECT: u32 = 2;

impl Entry {
    /// A freshly admitted entry, not yet in any queue.
    pub fn new(admitted: Admission) -> Self {
        Self {
            admitted,
            state: State::Delayed,
            releases: 0,
            failures: 0,
            losses: 0,
            last_reason: None,
            again: None,
            agains: 0,
            repairs: None,
        }
    }

    /// The key that gates its next (or present) request.
    pub fn gate(&self) -> &Key {
        self.again.as_ref().map_or(&self.admitted.key, |again| &again.key)
    }

    /// Whether nothing has happened to it since it was let in.
    pub fn is_untouched(&self) -> bool {
        let Self {
            admitted: _,
            state,
            releases,
            failures,
            losses,
            last_reason,
            again,
            agains,
            repairs,
        } = self;
        let counts = releases + failures + losses + agains;
        let has_history = last_reason.is_some() || again.is_some() || repairs.is_some();
        !matches!(state, State::Held(_)) && counts == 0 && !has_history
    }

    /// Its lease while a member has it.
    pub fn lease(&self) -> Option<&Lease> {
        match &self.state {
            State::Held(lease) => Some(lease),
            State::Delayed | State::Waiting => None,
        }
    }

    /// Whether a member may hold only one of this kind.
    pub fn is_suspect(&self) -> bool {
        self.losses >= LOSSES_OF_A_SUSPECT
    }
}
