//! Inputs and outputs of a group.

use std::collections::{BTreeMap, BTreeSet};

use tidings_protocol::{
    After, Hold, JobName, MemberId, Outcome, ProtocolError, Return, Seq, Slot, TaskId, TopicName,
};

use super::busiest::KeyQuery;
use super::entry::JobNumber;
use super::record::Record;
use super::schedule::ScheduleQuery;
use super::tasks::{Selection, TaskQuery};
use crate::clock::Stamp;
use crate::job::JobSettings;
use crate::mailbox::ConnId;

/// The sender of a command, and where its answer goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// The sender's connection.
    pub conn: ConnId,
    /// The worker on that connection.
    pub member: MemberId,
    /// The position of the answer among the answers of the connection.
    pub slot: Slot,
}

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

/// Everything that can happen to a group.
#[derive(Debug, Clone)]
pub enum Input {
    /// The group starts: for the first time, after its records were
    /// [replayed](super::Group::replay), or after it was suspended.
    Start {
        /// Above that of every earlier start; unchanged if the group was only suspended.
        run: u64,
        /// Becomes the group's number for life if this is its first start. No other group of its
        /// name has had it.
        since: u64,
        /// See [`Decision::Started`](super::record::Decision::Started).
        anew: bool,
        /// The current moment on all clocks of the machine.
        stamp: Stamp,
        /// The worker that runs inside the broker's process and ends with it.
        own: Option<MemberId>,
    },
    /// What the wall clock shows. Expected after [`Input::Start`], and whenever the clock differs
    /// from what the group assumes.
    Clock {
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
        elsewhere: BTreeSet<JobName>,
    },
    /// A worker joins or changes its credit.
    Join {
        /// The worker.
        asked: Asked,
        /// The number of tasks that it may hold at once; 0 drains it.
        credit: u32,
    },
    /// A worker sent a command that is not an input of the group: it is alive.
    Heard {
        /// Its connection.
        conn: ConnId,
    },
    /// A connection ended.
    Gone {
        /// The connection.
        conn: ConnId,
    },
    /// A worker finished a task (`ACK`).
    Ack {
        /// The worker.
        asked: Asked,
        /// The task.
        task: TaskId,
        /// How it ended.
        outcome: Outcome,
        /// How long the worker wants the key to rest.
        hold: Hold,
        /// The links that it found.
        links: Vec<StagedLink>,
        /// The number of links beyond the connection's limit, which are missing in `links`.
        over_limit: u64,
    },
    /// A worker returned a task (`NACK`).
    Nack {
        /// The worker.
        asked: Asked,
        /// The task.
        task: TaskId,
        /// How the task continues.
        back: Return,
        /// How long the worker wants the key to rest.
        hold: Hold,
        /// The reason, one word.
        reason: Option<String>,
    },
    /// A worker renews its lease (`TOUCH`).
    Touch {
        /// The worker.
        asked: Asked,
        /// The task.
        task: TaskId,
        /// Whether its request has ended and no other follows.
        over: bool,
        /// How long the worker wants the key to rest.
        hold: Hold,
    },
    /// A client changes settings.
    Configure {
        /// The client.
        asked: Asked,
        /// Names and values.
        settings: Vec<(String, String)>,
    },
    /// Settings from the start of the broker.
    Set {
        /// Names and values, which are valid.
        settings: Vec<(String, String)>,
    },
    /// An operator acts on the whole group or on its dead letters.
    Operate {
        /// The operator.
        asked: Asked,
        /// The operation.
        what: Operation,
    },
    /// Opens a job.
    OpenJob {
        /// The client.
        asked: Asked,
        /// The job's name.
        name: JobName,
        /// The job's settings.
        settings: JobSettings,
    },
    /// Closes a job: no further seeds follow.
    CloseJob {
        /// The client.
        asked: Asked,
        /// The job's name.
        name: JobName,
    },
    /// Cancels a job: drops its waiting entries, and ends it when nothing is in flight.
    CancelJob {
        /// The client.
        asked: Asked,
        /// The job's name.
        name: JobName,
    },
    /// Acts on an existing job.
    WithJob {
        /// The client.
        asked: Asked,
        /// The job's name.
        name: JobName,
        /// The action.
        what: JobAction,
    },
    /// Queries the group; changes nothing.
    Show {
        /// The client.
        asked: Asked,
        /// The query.
        what: Show,
    },
    /// The answer to [`Output::AskHeads`].
    Heads {
        /// The job.
        job: JobNumber,
        /// The next seq of each feeding topic.
        heads: BTreeMap<TopicName, Seq>,
    },
    /// An event that the group published is safe on its topic.
    Sent {
        /// Its serial.
        serial: u64,
        /// The topic.
        topic: &'static str,
        /// Its seq there.
        seq: Seq,
    },
    /// Time has passed.
    Tick,
}

impl Input {
    /// Returns the task that the input is about, if it answers or renews one.
    pub(crate) fn task(&self) -> Option<&TaskId> {
        match self {
            Self::Ack { task, .. } | Self::Nack { task, .. } | Self::Touch { task, .. } => {
                Some(task)
            }
            _ => None,
        }
    }

    /// Returns the sender of a command.
    pub(crate) fn asked(&self) -> Option<Asked> {
        match self {
            Self::Join { asked, .. }
            | Self::Ack { asked, .. }
            | Self::Nack { asked, .. }
            | Self::Touch { asked, .. }
            | Self::Configure { asked, .. }
            | Self::Operate { asked, .. }
            | Self::OpenJob { asked, .. }
            | Self::CloseJob { asked, .. }
            | Self::CancelJob { asked, .. }
            | Self::WithJob { asked, .. }
            | Self::Show { asked, .. } => Some(*asked),
            Self::Start { .. }
            | Self::Clock { .. }
            | Self::Set { .. }
            | Self::Events { .. }
            | Self::Heard { .. }
            | Self::Gone { .. }
            | Self::Heads { .. }
            | Self::Sent { .. }
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
    /// Returns dead letters to the queue.
    Retry(Selection),
    /// Deletes dead letters.
    Drop(Selection),
    /// Deletes the group, if it is not in use.
    Delete,
}

/// Actions on an existing job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobAction {
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
    },
    /// Answers when its pass is over.
    Wait,
    /// Forgets the job.
    Delete,
}

/// Queries about a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Show {
    /// Settings and totals of the group.
    Group,
    /// One job.
    Job(JobName),
    /// All jobs.
    Jobs,
    /// Why a URL or key waits.
    Explain(String),
    /// Single entries.
    Tasks(TaskQuery),
    /// Keys with waiting entries.
    Keys(KeyQuery),
    /// Schedules.
    Schedules(ScheduleQuery),
}

/// What the group's owner must do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Write this record. Later outputs depend on it.
    Record(Record),
    /// Send a task to a worker.
    Task {
        /// The worker's connection.
        conn: ConnId,
        /// The task.
        task: Task,
    },
    /// Answer a command.
    Answer {
        /// The sender of the command.
        asked: Asked,
        /// The answer, or the error.
        answer: Result<Answer, ProtocolError>,
    },
    /// Publish an event once, and feed [`Input::Sent`] when it is safe on its topic.
    Announce {
        /// The serial of the event.
        serial: u64,
        /// The topic.
        topic: &'static str,
        /// The payload.
        payload: String,
    },
    /// Tell other groups whether this group has a job of that name.
    JobName {
        /// The name.
        name: JobName,
        /// Whether there is one.
        known: bool,
    },
    /// The group was deleted: remove everything that belongs to it. No input follows.
    Deleted,
    /// Feed the next seq of each feeding topic, as [`Input::Heads`], at once.
    AskHeads {
        /// The job.
        job: JobNumber,
    },
}

/// A successful answer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Answer {
    /// Lines before the last one.
    pub more: Vec<String>,
    /// The words after `+OK`.
    pub ok: String,
}

/// A released entry, as it is sent to a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// Its id for this attempt.
    pub id: TaskId,
    /// The broker's clock when the task is sent.
    pub clock_ms: u64,
    /// The remaining time of the lease.
    pub lease_ms: u64,
    /// URL and attributes.
    pub payload: String,
}
