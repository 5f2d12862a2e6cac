//! Inputs and outputs of a group.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidings_protocol::status::Answer;
use tidings_protocol::{
    After, EntrySelection, JobName, JobQuery, JobSettings, KeyQuery, ListRange, MemberId,
    ProtocolError, RuleSettings, ScheduleQuery, Seq, TaskId, TaskQuery, TaskReply, TopicName,
    WaitingChange,
};

use crate::entry::{EntryId, JobNumber};
use crate::moment::ClockStamp;
use crate::record::GroupRecord;
use crate::requester::{ClientLabel, ConnId, Requester};
use crate::texts::{TextReply, TextRequest};

/// A link that a worker found in the result of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StagedLink {
    /// The URL as the worker wrote it.
    pub url: Box<str>,
    /// Whether this is the target of the redirect that the task's request received.
    pub redirect: bool,
    /// Its priority.
    pub prio: i16,
}

/// A worker's reply about a task, with the links of its page.
#[derive(Debug, Clone)]
pub struct WorkerReply {
    /// The reply.
    pub reply: TaskReply,
    /// The links that it found; none unless it acknowledges the task.
    pub links: Vec<StagedLink>,
    /// The number of links beyond the connection's limit, which are missing in `links`.
    pub over_limit: u64,
}

impl WorkerReply {
    /// The task that it is about.
    pub fn task(&self) -> &TaskId {
        &self.reply.task
    }
}

impl From<TaskReply> for WorkerReply {
    /// A reply without links.
    fn from(reply: TaskReply) -> Self {
        Self { reply, links: Vec::new(), over_limit: 0 }
    }
}

/// Everything that can happen to a group.
#[derive(Debug, Clone)]
pub enum Input {
    /// The group starts: for the first time, after its records were
    /// replayed, or after it was suspended.
    Start {
        /// Above that of every earlier start; unchanged if the group was only suspended.
        run: u64,
        /// Becomes the group's permanent number if this is its first start. No other group of its
        /// name has this number.
        since: u64,
        /// See [`Decision::Started`](super::record::Decision::Started).
        elapsed_unknown: bool,
        /// The current moment on all clocks of the machine.
        stamp: ClockStamp,
        /// The worker that runs inside the broker's process and ends with it.
        local_member: Option<MemberId>,
    },
    /// What the wall clock shows. Expected after [`Input::Start`], and whenever the clock differs
    /// from what the group assumes.
    WallClock {
        /// Milliseconds since 1970.
        unix_ms: i64,
    },
    /// New events of a feeding topic, which is durable up to `next`.
    Events {
        /// The topic.
        topic: TopicName,
        /// The first seq after these events.
        next: Seq,
        /// Seq and payload of each event.
        events: Vec<(Seq, String)>,
        /// Jobs that these events name and that other groups have. Unless this group has a job of
        /// that name, it takes such an event as one without a job.
        foreign_jobs: BTreeSet<JobName>,
    },
    /// A worker joins or changes its credit.
    Join {
        /// The worker.
        requester: Requester,
        /// The number of tasks that it may hold at once; 0 drains it.
        credit: u32,
        /// How many of them may need a browser; `None` for a worker without one.
        render: Option<u32>,
        /// What people see of it.
        label: ClientLabel,
    },
    /// A worker sent a command that is not an input of the group: it is alive.
    Activity {
        /// Its connection.
        conn: ConnId,
    },
    /// A connection ended.
    Disconnected {
        /// The connection.
        conn: ConnId,
    },
    /// A worker replies about a task.
    Reply {
        /// The worker.
        requester: Requester,
        /// The reply.
        reply: WorkerReply,
    },
    /// A client changes settings.
    Configure {
        /// The client.
        requester: Requester,
        /// What changes.
        changes: SettingWords,
    },
    /// The delay of keys, from the start of the broker or a reload of its settings.
    SetDelay {
        /// In ms; `None` is the default of each key.
        delay_ms: Option<u64>,
    },
    /// An operator acts on the whole group or on its dead letters.
    Operate {
        /// The operator.
        requester: Requester,
        /// The operation.
        operation: Operation,
    },
    /// Opens a job.
    OpenJob {
        /// The client.
        requester: Requester,
        /// The job's name.
        name: JobName,
        /// The job's settings.
        settings: Box<JobSettings>,
    },
    /// Acts on an existing job.
    JobAction {
        /// The client.
        requester: Requester,
        /// The job's name.
        name: JobName,
        /// The action.
        action: JobOperation,
    },
    /// Queries the group; changes nothing.
    Query {
        /// The client.
        requester: Requester,
        /// The query.
        query: GroupQuery,
    },
    /// The answer to [`Output::RequestTopicHeads`].
    TopicHeads {
        /// The job.
        job: JobNumber,
        /// The next seq of each feeding topic.
        heads: BTreeMap<TopicName, Seq>,
    },
    /// An event that the group published is safe on its topic.
    Published {
        /// Its serial.
        serial: u64,
        /// The topic.
        topic: &'static str,
        /// Its seq there.
        seq: Seq,
    },
    /// The reply to [`Output::Texts`].
    Texts(TextReply),
    /// Time has passed.
    Tick,
}

impl Input {
    /// Returns the task that the input is about, if it answers or renews one.
    pub fn task(&self) -> Option<&TaskId> {
        match self {
            Self::Reply { reply, .. } => Some(reply.task()),
            _ => None,
        }
    }

    /// Returns the sender of a command.
    pub fn requester(&self) -> Option<Requester> {
        match self {
            Self::Join { requester, .. }
            | Self::Reply { requester, .. }
            | Self::Configure { requester, .. }
            | Self::Operate { requester, .. }
            | Self::OpenJob { requester, .. }
            | Self::JobAction { requester, .. }
            | Self::Query { requester, .. } => Some(*requester),
            Self::Start { .. }
            | Self::WallClock { .. }
            | Self::SetDelay { .. }
            | Self::Events { .. }
            | Self::Activity { .. }
            | Self::Disconnected { .. }
            | Self::TopicHeads { .. }
            | Self::Published { .. }
            | Self::Texts(_)
            | Self::Tick => None,
        }
    }
}

/// Operations on a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Releases nothing.
    Pause,
    /// Releases tasks again.
    Resume,
    /// Drops everything that waits.
    Purge,
    /// Drops selected entries that wait, or gives them another priority.
    ChangeWaiting(WaitingChange),
    /// Returns dead letters to the queue.
    Retry(EntrySelection),
    /// Deletes dead letters.
    Drop(EntrySelection),
    /// Gives a member no further tasks, or ends that.
    Drain {
        /// The name or the first digits of the member.
        member: Box<str>,
        /// Whether it is drained from here on.
        drained: bool,
    },
    /// Sets the rule of a key.
    SetRule {
        /// The key as an operator writes it.
        key: Box<str>,
        /// What the rule says.
        settings: RuleSettings,
    },
    /// Ends the rule of a key.
    RemoveRule {
        /// The key as an operator writes it.
        key: Box<str>,
    },
    /// Deletes the group, if it is not in use.
    Delete {
        /// Tasks of members that are not connected do not count.
        is_forced: bool,
    },
}

/// Names and values of settings.
pub type SettingWords = Vec<(Box<str>, Box<str>)>;

/// The names and values of settings.
pub fn setting_pairs(words: &SettingWords) -> impl Iterator<Item = (&str, &str)> + Clone {
    words.iter().map(|(name, value)| (&**name, &**value))
}

/// Actions on an existing job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobOperation {
    /// Closes the job: no further seeds follow.
    Close,
    /// Drops the waiting entries of the job, and ends it when nothing is in flight.
    Cancel,
    /// Releases none of its entries.
    Pause,
    /// Releases its entries again.
    Resume,
    /// Adds a seed.
    Add {
        /// The URL as the client wrote it.
        url: Box<str>,
        /// Its priority.
        prio: i16,
        /// The delay or time of day before which it is not released.
        after: After,
        /// The attributes of its tasks, each with a leading space.
        attributes: Box<str>,
    },
    /// Changes settings while it runs ([`JobSettings::changed_in_pass`]).
    Set(SettingWords),
    /// Answers when its pass is over.
    Wait,
    /// Forgets the job.
    Delete,
}

/// A change of a job, and the part of its entries that an answer is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobChange {
    /// The job.
    pub name: JobName,
    /// The changes, as in [`JobOperation::Set`].
    pub changes: SettingWords,
    /// The entries with greater numbers.
    pub after: EntryId,
}

/// Queries about a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupQuery {
    /// Settings and totals of the group.
    Group,
    /// One job.
    Job(JobName),
    /// Jobs.
    Jobs(JobQuery),
    /// Why a URL or key waits.
    Explain(String),
    /// Single entries.
    Tasks(TaskQuery),
    /// What a change of a job would drop.
    JobChange(JobChange),
    /// Keys with waiting entries.
    Keys(KeyQuery),
    /// Schedules.
    Schedules(ScheduleQuery),
    /// Members.
    Members {
        /// The part of the list.
        range: ListRange,
        /// Whether the client may know their addresses.
        with_addresses: bool,
    },
    /// Rules.
    Rules(ListRange),
}

/// What the group's owner must do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Write this record. Later outputs depend on it.
    Record(GroupRecord),
    /// Send a task to a worker.
    Task {
        /// The worker's connection.
        conn: ConnId,
        /// The task.
        task: TaskMessage,
    },
    /// Answer a command.
    Answer {
        /// The sender of the command.
        requester: Requester,
        /// The answer, or the error.
        answer: Result<Answer, ProtocolError>,
    },
    /// Publish an event once, and feed [`Input::Published`] when it is safe on its topic.
    Publish {
        /// The serial of the event.
        serial: u64,
        /// The topic.
        topic: &'static str,
        /// The payload.
        payload: Arc<str>,
    },
    /// Tell other groups whether this group has a job of that name.
    JobNameChanged {
        /// The name.
        name: JobName,
        /// Whether there is one.
        exists: bool,
    },
    /// The group was deleted: remove everything that belongs to it. No input follows.
    Deleted,
    /// Feed the next seq of each feeding topic, as [`Input::TopicHeads`], at once.
    RequestTopicHeads {
        /// The job.
        job: JobNumber,
    },
    /// Write or read texts of dormant entries outside memory, and feed [`Input::Texts`] when that
    /// is done. Needs no record.
    Texts(TextRequest),
    /// Tell the operator. Depends on no record.
    Notice(Notice),
}

/// What an operator should know, and no command answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// A job was closed that was left open without seeds.
    AbandonedJobClosed(JobName),
    /// A scheduled fetch of this URL was skipped, because the group is full.
    FetchSkipped(Box<str>),
    /// A lease expired.
    LeaseExpired {
        /// The entry.
        entry: EntryId,
        /// The member that held it.
        member: MemberId,
    },
}

/// A released entry, as it is sent to a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskMessage {
    /// Its id for this attempt.
    pub id: TaskId,
    /// The broker's clock when the task is sent.
    pub clock_ms: u64,
    /// The remaining time of the lease.
    pub lease_ms: u64,
    /// URL and attributes.
    pub payload: String,
}
