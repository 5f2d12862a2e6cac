//! The decisions of a group, which its log contains. Applying them in order to an empty group gives
//! the same group again, without topics, clocks or random numbers.

mod line;
pub mod replay;
pub mod snapshot;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use tidings_protocol::{JobName, JobSettings, MemberId, Outcome, Seq, TopicName, UrlKey};

use self::snapshot::SnapshotItem;
use crate::config::GroupConfig;
use crate::entry::{Admission, AgainRequest, EndReason, EntryId, JobNumber, Key, RecordedRest};
use crate::frontier::rules::KeyRule;
use crate::moment::{ClockStamp, Moment};
use crate::schedules::{Schedule, WallClockDue};

/// A decision and its moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupRecord {
    /// When the group decided, on the broker's clock.
    pub at: Moment,
    /// The decision.
    pub decision: Decision,
}

/// All decisions of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// The group started, with the broker or after its log could not be written.
    Started {
        /// Task ids that are released from here on carry this run.
        run: u64,
        /// At the first start, the permanent number of the group: no other group of its name ever
        /// has it. Later starts have another number, without effect.
        since: u64,
        /// Whether the time since the last record is not known reliably, because the machine was
        /// restarted or the group was suspended. Then leases and rests restart.
        elapsed_unknown: bool,
        /// The current moment on all clocks of the machine.
        stamp: ClockStamp,
        /// The worker that runs inside the broker's process and ends with it.
        local_member: Option<MemberId>,
    },
    /// The settings changed to these.
    Configured(Box<GroupConfig>),
    /// All events of a topic before `next` were consumed, with these effects.
    Consumed {
        /// The feeding topic.
        topic: TopicName,
        /// First seq not consumed.
        next: Seq,
        /// The effects of the events, in order. Events without effect are left out.
        effects: Vec<EventEffect>,
    },
    /// An entry was leased to a member.
    Released {
        /// The entry.
        entry: EntryId,
        /// The member.
        member: MemberId,
        /// End of the lease.
        until: Moment,
    },
    /// A member renewed its lease, and may have ended its request.
    Touched {
        /// The entry.
        entry: EntryId,
        /// New end of the lease.
        until: Moment,
        /// Whether the request has ended, so that the key's delay begins.
        request_over: bool,
        /// The rest that the worker requests for the key.
        rest: RecordedRest,
    },
    /// A member finished a task. Outcome and links take effect together.
    Answered {
        /// The entry.
        entry: EntryId,
        /// The outcome.
        outcome: Outcome,
        /// The new links, as admitted.
        children: Vec<Admission>,
        /// The rest that the worker requests for the key.
        rest: RecordedRest,
    },
    /// A member returned an entry.
    Returned {
        /// The entry.
        entry: EntryId,
        /// How it continues.
        next_step: NextStep,
        /// The rest that the worker requests for the key.
        rest: RecordedRest,
        /// The worker's reason, one word.
        reason: Option<Box<str>>,
    },
    /// A lease expired.
    Lost {
        /// The entry.
        entry: EntryId,
    },
    /// Entries used up their attempts, or their job dropped them.
    Ended {
        /// The entries, each waiting or just returned.
        entries: Vec<EntryId>,
        /// How they are counted.
        end: EndReason,
    },
    /// Waiting entries have another priority.
    Bumped {
        /// The priority.
        prio: i16,
        /// The entries.
        entries: Vec<EntryId>,
    },
    /// Waiting entries of a job ended: all of them, or those of one key.
    JobCleared {
        /// The job.
        number: JobNumber,
        /// The key; `None`: all keys.
        key: Option<Box<str>>,
        /// How they are counted.
        end: EndReason,
    },
    /// A member is gone: the entries pinned to it restart with their own request.
    Unpinned {
        /// The entries, which lose their `again` request.
        entries: Vec<EntryId>,
    },
    /// The group was paused or resumed.
    Paused(bool),
    /// An operator drained a member, or ended that.
    MemberDrained {
        /// The member.
        member: MemberId,
        /// Whether it is drained from here on.
        drained: bool,
    },
    /// An operator set a rule. What waited for the keys that it blocks ended.
    RuleSet(Box<KeyRule>),
    /// A rule ended. What waited for keys that another rule blocks ended.
    RuleRemoved {
        /// Its name.
        name: Key,
        /// Whether it was also about all names below.
        below: bool,
    },
    /// Everything that waited was dropped.
    Purged,
    /// Dead entries returned to the queue.
    DeadRetried {
        /// The entries.
        entries: Vec<EntryId>,
    },
    /// Dead entries were deleted.
    DeadDropped {
        /// The entries.
        entries: Vec<EntryId>,
    },
    /// A part of a snapshot. It matters only to a replay that begins with its
    /// [`SnapshotItem::Begin`].
    SnapshotPart(Box<SnapshotItem>),
    /// The group was deleted. This is the last record.
    Deleted,
    /// A pass of a job began.
    JobOpened {
        /// The number of the job; new numbers rise by one.
        number: JobNumber,
        /// Its name.
        name: JobName,
        /// Its settings for this pass.
        settings: Box<JobSettings>,
    },
    /// A job accepts seeds again.
    JobReopened {
        /// The job.
        number: JobNumber,
    },
    /// A job accepts no further seeds.
    JobClosed {
        /// The job.
        number: JobNumber,
    },
    /// The count of a job was zero. It is done if the count is still zero when the group has
    /// consumed the topics up to these heads.
    JobCompletionPending {
        /// The job.
        number: JobNumber,
        /// The head of each feeding topic at that moment.
        heads: BTreeMap<TopicName, Seq>,
    },
    /// A job was cancelled: its waiting entries were dropped, and it admits no links.
    JobCancelled {
        /// The job.
        number: JobNumber,
    },
    /// A schedule was due.
    ScheduleDue {
        /// Its URL.
        url: UrlKey,
        /// The next due time.
        next: Moment,
        /// The effect; `None` if another fetch replaced this one or the last one has not ended.
        effect: Option<Box<EventEffect>>,
    },
    /// These are due at a time of day, which the wall clock shows at these moments.
    WallClockDues(Vec<WallClockDue>),
    /// The group published an event on one of its own topics.
    PublishQueued {
        /// Rises by one with each.
        serial: u64,
        /// The topic.
        topic: &'static str,
        /// The payload.
        payload: Arc<str>,
    },
    /// A published event is safe on its topic.
    Published {
        /// Its serial.
        serial: u64,
        /// The topic.
        topic: &'static str,
        /// Its seq there.
        seq: Seq,
    },
    /// A command added a seed.
    SeedAdded(Box<EventEffect>),
    /// The settings of a job that runs were changed.
    JobSet {
        /// The job.
        number: JobNumber,
        /// When its time limit will be reached.
        time_until: Option<Moment>,
        /// All its settings from here on.
        settings: Box<JobSettings>,
    },
    /// A job was paused or resumed.
    JobPaused {
        /// The job.
        number: JobNumber,
        /// Whether it is paused from here on.
        paused: bool,
    },
    /// The hold of a job ended, because its seeds are there.
    JobHoldEnded {
        /// The job.
        number: JobNumber,
    },
    /// The time limit of a job passed: its waiting entries were dropped, and nothing of it is
    /// released.
    JobTimeUp {
        /// The job.
        number: JobNumber,
    },
    /// A finished job was deleted.
    JobDeleted {
        /// The job.
        number: JobNumber,
    },
    /// A pass is done, and its end was published.
    JobDone {
        /// The job.
        number: JobNumber,
    },
}

impl Decision {
    /// Returns the waiting entries that it is about, as far as it names them.
    pub(super) fn entries(&self) -> Cow<'_, [EntryId]> {
        match self {
            Self::Released { entry, .. } => std::slice::from_ref(entry).into(),
            Self::Ended { entries, .. }
            | Self::Bumped { entries, .. }
            | Self::Unpinned { entries } => entries.into(),
            Self::Consumed { effects, .. } => {
                effects.iter().flat_map(EventEffect::entries).copied().collect()
            }
            Self::SeedAdded(effect) | Self::ScheduleDue { effect: Some(effect), .. } => {
                effect.entries().into()
            }
            Self::WallClockDues(dues) => dues.iter().filter_map(WallClockDue::entry).collect(),
            _ => Cow::default(),
        }
    }
}

/// The effect of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventEffect {
    /// It became an entry.
    Admitted(Admission),
    /// Waiting entries of the same URL took the better of both values.
    Coalesced {
        /// The entries.
        entries: Vec<EntryId>,
        /// Whether they move to the announced lane.
        announced: bool,
        /// Priority of the event.
        prio: i16,
        /// Due time of the event.
        due: Moment,
        /// Attributes of the event to forward, which override earlier ones. Empty unless the event
        /// has no job.
        forwarded: Box<str>,
    },
    /// A seed that its pass has already seen.
    Duplicate(JobNumber),
    /// Its URL has this schedule from here on.
    Scheduled(Box<Schedule>),
    /// The schedule of its URL ended.
    Unscheduled(UrlKey),
    /// The group cannot use the event. It is counted, and may become a dead letter.
    Unusable,
}

impl EventEffect {
    /// Returns the waiting entries that it changes.
    fn entries(&self) -> &[EntryId] {
        if let Self::Coalesced { entries, .. } = self { entries } else { &[] }
    }

    /// Returns the entry as which the event's URL will be fetched, if it will be.
    pub(crate) fn entry(&self) -> Option<EntryId> {
        match self {
            Self::Admitted(admission) => Some(admission.id),
            Self::Coalesced { entries, .. } => entries.first().copied(),
            _ => None,
        }
    }
}

/// How a returned entry continues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NextStep {
    /// A request failed. It counts, and is retried later.
    Retry {
        /// Earliest next release.
        due: Moment,
    },
    /// A request got no answer from the host, and is retried later.
    Unanswered {
        /// Earliest next release.
        due: Moment,
        /// Whether it counts as an attempt. Recorded, because the state of the key is not known
        /// between the beginning of a snapshot and its [`Key`](SnapshotItem::Key).
        counts: bool,
    },
    /// No request was made.
    Uncounted {
        /// Earliest next release.
        due: Moment,
    },
    /// A request was made; the next one of the task is for another URL.
    Again(Box<AgainRequest>),
    /// A request was made, and is not counted. Only a member with a browser continues.
    Render,
}
