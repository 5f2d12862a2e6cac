//! The decisions of a group. Its log is a sequence of these; applying them in order to an empty
//! group gives the same group again, without asking a topic, a clock or chance.

mod line;

use std::collections::BTreeMap;

use tidings_protocol::{JobName, MemberId, Outcome, Seq, TopicName, UrlKey};

use super::clock_times::ClockTime;
use super::config::GroupConfig;
use super::entry::{Admission, Again, EntryId, JobNumber};
use super::schedule::Schedule;
use super::snapshot::Item;
use crate::clock::{Moment, Stamp};
use crate::job::JobSettings;

/// One decision and the moment at which it was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// When it was decided, on the broker's clock.
    pub at: Moment,
    /// What was decided.
    pub decision: Decision,
}

/// What a group can decide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// The group begins to move, at a start of the broker or after its log could not be written.
    Started {
        /// Ids of tasks that are released from here on carry this.
        run: u64,
        /// How much time has passed since the last record is not known well enough (the machine
        /// was restarted, or the group stood still): leases and rests begin anew.
        anew: bool,
        /// The moment as the machine knows it.
        stamp: Stamp,
        /// The member that lives in the broker's process, and ends with it.
        own: Option<MemberId>,
    },
    /// The number for its whole life. Once, at its first start; groups of earlier versions have it from
    /// their first start with this one.
    Born {
        /// What no other group of its name was given.
        since: u64,
    },
    /// The settings from here on.
    Configured(Box<GroupConfig>),
    /// Everything of a topic before `next` was taken, with what became of it.
    Taken {
        /// The feeding topic.
        topic: TopicName,
        /// First number not yet taken.
        next: Seq,
        /// What became of the events, in their order; those that changed nothing are left out.
        items: Vec<Taking>,
    },
    /// An entry went to a member.
    Released {
        /// Which.
        entry: EntryId,
        /// To whom.
        member: MemberId,
        /// End of the lease.
        until: Moment,
    },
    /// A lease was extended, and perhaps its request declared over.
    Touched {
        /// Which.
        entry: EntryId,
        /// New end of the lease.
        until: Moment,
        /// Set when its request has ended: the key's delay starts.
        over: bool,
        /// What the worker asks of the key.
        rest: Rest,
    },
    /// A final answer: outcome and children take effect together.
    Answered {
        /// Which.
        entry: EntryId,
        /// How it ended.
        outcome: Outcome,
        /// Children that were new, as admitted.
        children: Vec<Admission>,
        /// Children for which an earlier version had no room: over the budget of the whole group.
        no_room: u64,
        /// What the worker asks of the key.
        rest: Rest,
    },
    /// A member gave an entry back.
    Returned {
        /// Which.
        entry: EntryId,
        /// How it goes on.
        back: Back,
        /// What the worker asks of the key.
        rest: Rest,
        /// Why, in the worker's word.
        reason: Option<Box<str>>,
    },
    /// A lease ran out.
    Lost {
        /// Which.
        entry: EntryId,
    },
    /// An entry came to its last attempt, or its job wants it no more.
    Ended {
        /// Which, each waiting or just returned.
        entries: Vec<EntryId>,
        /// As what they count.
        end: End,
    },
    /// What of a job waits ended: all of it, or what is behind a key.
    Cleared {
        /// Whose.
        number: JobNumber,
        /// Behind which key.
        key: Option<Box<str>>,
        /// As what it counts.
        end: End,
    },
    /// A member is gone: what only it could go on with starts from the beginning.
    Unpinned {
        /// Which entries forget their `again`.
        entries: Vec<EntryId>,
    },
    /// Nothing is released from here on, or it is again.
    Paused(bool),
    /// Everything that waits is dropped.
    Purged,
    /// Dead entries go back into the queue.
    Retried {
        /// Which.
        entries: Vec<EntryId>,
        /// Those of a finished pass repair it. Earlier versions have written `false`.
        repairs: bool,
    },
    /// Dead entries are looked at no more.
    Forgotten {
        /// Which.
        entries: Vec<EntryId>,
    },
    /// A part of a snapshot. Between decisions it changes nothing: it is for a replay that begins
    /// with [`Item::Begin`].
    Kept(Box<Item>),
    /// The group is no more: nothing comes after this.
    Deleted,
    /// A job's pass began (or the job was opened anew).
    JobOpened {
        /// Number of the job; new ones rise by one.
        number: JobNumber,
        /// Its name.
        name: JobName,
        /// Its settings for this pass.
        settings: JobSettings,
    },
    /// Seeds are expected again.
    JobReopened {
        /// Which.
        number: JobNumber,
    },
    /// No more seeds are expected.
    JobClosed {
        /// Which.
        number: JobNumber,
    },
    /// Its count was zero: it is done when the topics have been taken this far and it still is.
    JobNoted {
        /// Which.
        number: JobNumber,
        /// Head of each feeding topic at that moment.
        heads: BTreeMap<TopicName, Seq>,
    },
    /// What waits is dropped and no child is admitted any more.
    JobCancelled {
        /// Which.
        number: JobNumber,
    },
    /// A URL was due.
    FellDue {
        /// Which.
        url: UrlKey,
        /// When it is again.
        next: Moment,
        /// What became of it; nothing, if it had been looked at or was still to be.
        item: Option<Box<Taking>>,
    },
    /// These are due at times of the wall clock, which shows them at these moments.
    ClockTimes(Vec<ClockTime>),
    /// Something is to be said to others.
    Announced {
        /// Rises by one with each.
        serial: u64,
        /// On which of the group's own topics.
        topic: &'static str,
        /// The event.
        payload: Box<str>,
    },
    /// It is safe on its topic.
    Sent {
        /// What was announced.
        serial: u64,
        /// On which topic.
        topic: &'static str,
        /// The event's number there.
        seq: Seq,
    },
    /// A seed came by command.
    SeedAdded(Box<Taking>),
    /// Nothing of it is released, or it is again.
    JobPaused {
        /// Which.
        number: JobNumber,
        /// Whether it is paused from here on.
        paused: bool,
    },
    /// It is held no more: its seeds are there.
    JobBegun {
        /// Which.
        number: JobNumber,
    },
    /// Its time is over: what waits is dropped, and nothing of it is released any more.
    JobTimeUp {
        /// Which.
        number: JobNumber,
    },
    /// It was done, and is forgotten.
    JobDeleted {
        /// Which.
        number: JobNumber,
    },
    /// Announced as done: the pass is over.
    JobDone {
        /// Which.
        number: JobNumber,
    },
}

/// What became of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Taking {
    /// It became an entry.
    Admitted(Admission),
    /// Waiting entries of the same URL take the better of both.
    Improved {
        /// Which.
        entries: Vec<EntryId>,
        /// Whether they move into the announced lane.
        announced: bool,
        /// Priority of the event.
        prio: i16,
        /// Due time of the event.
        due: Moment,
        /// Attributes of the event that are handed on, which count for more than those that came before; none of
        /// what is no event without a job.
        carried: Box<str>,
    },
    /// A seed that its pass has seen already.
    Duplicate(JobNumber),
    /// Its URL is looked at again and again from here on, after what came of the event itself.
    Scheduled(Box<Schedule>),
    /// Its URL is not any more.
    Unscheduled(UrlKey),
    /// The group can do nothing with it: counted, and perhaps a dead letter.
    Unusable,
}

/// How a returned entry goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Back {
    /// A request failed: it counts, and is due again later.
    Retry {
        /// Earliest next release.
        due: Moment,
    },
    /// No request was made.
    Uncounted {
        /// Earliest next release.
        due: Moment,
    },
    /// A request was made; the next one is for another URL.
    Again(Box<Again>),
}

/// What a worker asks of a key after a request, already capped: it can lengthen, never shorten.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rest {
    /// Hold the key once until then.
    pub not_before: Option<Moment>,
    /// Minimum delay of the key from now on, in ms.
    pub pace_ms: Option<u64>,
}

/// Why entries ended without a worker's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Out of attempts, or lost too often: a dead letter, counted as failed.
    Dead,
    /// Its job has as many pages as it may have.
    Budget,
    /// Its job was cancelled.
    Cancelled,
    /// Everything that waited was dropped.
    Purged,
}

impl End {
    /// Every end.
    pub(crate) const ALL: [Self; 4] = [Self::Dead, Self::Budget, Self::Cancelled, Self::Purged];

    /// The word in records.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Dead => "dead",
            Self::Budget => "budget",
            Self::Cancelled => "cancelled",
            Self::Purged => "purged",
        }
    }
}
