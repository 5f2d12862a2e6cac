//! What goes into a group and what comes out of it.

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

/// Who asks, and where the answer goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// The connection.
    pub conn: ConnId,
    /// The worker behind it.
    pub member: MemberId,
    /// The place of the answer among the connection's answers.
    pub slot: Slot,
}

/// A child that a worker found in what a task fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StagedLink {
    /// As the worker wrote it.
    pub url: Box<str>,
    /// The target of the redirect that was the task's answer.
    pub redirect: bool,
    /// Priority.
    pub prio: i16,
}

/// What can happen to a group.
#[derive(Debug, Clone)]
pub enum Input {
    /// The group begins to move: at first, after its records were [replayed](super::Group::replay),
    /// and when it had to stand still.
    Start {
        /// Above that of every earlier start; the same when it only stood still.
        run: u64,
        /// What no group of its name was ever given: the number for its whole life, if this is its
        /// first start.
        since: u64,
        /// See [`Decision::Started`](super::record::Decision::Started).
        anew: bool,
        /// The moment as the machine knows it.
        stamp: Stamp,
        /// The member that lives in the broker's process, and ends with it.
        own: Option<MemberId>,
    },
    /// The wall clock shows this, in ms since 1970. To be said after [`Input::Start`], and whenever it
    /// is not what the group believes.
    Clock {
        /// What it shows.
        unix_ms: i64,
    },
    /// A feeding topic is durable up to `next`; these are its events since the last time.
    Events {
        /// The topic.
        topic: TopicName,
        /// First number that is not among them.
        next: Seq,
        /// Number and payload.
        events: Vec<(Seq, String)>,
        /// Jobs that they name and that other groups have: without a job of its own by that name,
        /// the group takes such an event as one without a job.
        elsewhere: BTreeSet<JobName>,
    },
    /// A worker connects, or changes its credit.
    Join {
        /// Who.
        asked: Asked,
        /// Most tasks it wants at once; 0 drains.
        credit: u32,
    },
    /// A worker has said something that is nothing else here: it is alive.
    Heard {
        /// Its connection.
        conn: ConnId,
    },
    /// A connection ended.
    Gone {
        /// Which.
        conn: ConnId,
    },
    /// A final answer.
    Ack {
        /// Who.
        asked: Asked,
        /// To which task.
        task: TaskId,
        /// How it ended.
        outcome: Outcome,
        /// What is asked of the key.
        hold: Hold,
        /// What was found.
        links: Vec<StagedLink>,
        /// Links that were over the connection's limit and so are not among `links`.
        over_limit: u64,
    },
    /// A task is given back.
    Nack {
        /// Who.
        asked: Asked,
        /// Which task.
        task: TaskId,
        /// How it is to go on.
        back: Return,
        /// What is asked of the key.
        hold: Hold,
        /// Why, in a word.
        reason: Option<String>,
    },
    /// A task is still worked on.
    Touch {
        /// Who.
        asked: Asked,
        /// Which task.
        task: TaskId,
        /// Its request has ended and it makes no more.
        over: bool,
        /// What is asked of the key.
        hold: Hold,
    },
    /// New settings, as a person wrote them.
    Configure {
        /// Who.
        asked: Asked,
        /// Names and values.
        settings: Vec<(String, String)>,
    },
    /// New settings, from whoever starts the broker.
    Set {
        /// Names and values, which are right.
        settings: Vec<(String, String)>,
    },
    /// What an operator does with the group.
    Operate {
        /// Who.
        asked: Asked,
        /// What.
        what: Operation,
    },
    /// Opens a job.
    OpenJob {
        /// Who.
        asked: Asked,
        /// Its name.
        name: JobName,
        /// Its settings.
        settings: JobSettings,
    },
    /// No more seeds.
    CloseJob {
        /// Who.
        asked: Asked,
        /// Its name.
        name: JobName,
    },
    /// Drops what waits and ends the job when nothing is in flight any more.
    CancelJob {
        /// Who.
        asked: Asked,
        /// Its name.
        name: JobName,
    },
    /// What is done with a job on its way and after it.
    WithJob {
        /// Who.
        asked: Asked,
        /// Its name.
        name: JobName,
        /// What.
        what: JobAction,
    },
    /// Says something; changes nothing.
    Show {
        /// Who.
        asked: Asked,
        /// What.
        what: Show,
    },
    /// The answer to [`Output::AskHeads`].
    Heads {
        /// For which job.
        job: JobNumber,
        /// Next number of each feeding topic.
        heads: BTreeMap<TopicName, Seq>,
    },
    /// An announcement is safe on its topic.
    Sent {
        /// Which.
        serial: u64,
        /// On which topic.
        topic: &'static str,
        /// The event's number there.
        seq: Seq,
    },
    /// Time has passed.
    Tick,
}

impl Input {
    /// The task that a worker answers or keeps, if the input is about one.
    pub(crate) fn task(&self) -> Option<&TaskId> {
        match self {
            Self::Ack { task, .. } | Self::Nack { task, .. } | Self::Touch { task, .. } => {
                Some(task)
            }
            _ => None,
        }
    }

    /// Whose command it is, if it is one.
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

/// What an operator can do with a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Release nothing.
    Pause,
    /// Release again.
    Resume,
    /// Drop everything that waits.
    Purge,
    /// Send dead entries back into the queue.
    Retry(Selection),
    /// Forget dead entries.
    Drop(Selection),
    /// End the group, if nobody needs it.
    Delete,
}

/// What can be done with a job on its way and after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobAction {
    /// Release nothing of it.
    Pause,
    /// Release it again.
    Resume,
    /// Take a seed.
    Add {
        /// As it was written.
        url: Box<str>,
        /// Its priority.
        prio: i16,
        /// Not before.
        after: After,
    },
    /// Say when its pass is over.
    Wait,
    /// Forget it.
    Delete,
}

/// What can be looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Show {
    /// The group: settings and totals.
    Group,
    /// One job.
    Job(JobName),
    /// All jobs.
    Jobs,
    /// Why a URL or key is not moving.
    Explain(String),
    /// Entries, one by one.
    Tasks(TaskQuery),
    /// Keys behind which something waits.
    Keys(KeyQuery),
    /// URLs that are looked at again and again.
    Schedules(ScheduleQuery),
}

/// What the shell is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Write this; later outputs rest on it.
    Record(Record),
    /// Send a task to a worker.
    Task {
        /// Where it is connected.
        conn: ConnId,
        /// What it is to do.
        task: Task,
    },
    /// Answer a command.
    Answer {
        /// Whose.
        asked: Asked,
        /// Lines before the last, and the words after `+OK`; or the refusal.
        answer: Result<Answer, ProtocolError>,
    },
    /// Publish on a topic, once, and say [`Input::Sent`] when it is safe there.
    Announce {
        /// Number of the announcement.
        serial: u64,
        /// Which.
        topic: &'static str,
        /// The event.
        payload: String,
    },
    /// Tell other groups that there is a job of that name here, or that there is none.
    JobName {
        /// The name.
        name: JobName,
        /// Whether there is one.
        known: bool,
    },
    /// The group is no more: let go of everything that is its own. No input follows.
    Deleted,
    /// Say (as [`Input::Heads`], now) how far the feeding topics are numbered.
    AskHeads {
        /// For which job.
        job: JobNumber,
    },
}

/// An answer that is not a refusal.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Answer {
    /// Lines that go before the last one.
    pub more: Vec<String>,
    /// What follows `+OK`.
    pub ok: String,
}

/// A released entry as a worker is told of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// Its name for this attempt.
    pub id: TaskId,
    /// The broker's clock at the moment it is sent.
    pub clock_ms: u64,
    /// What is left of the lease.
    pub lease_ms: u64,
    /// URL and attributes.
    pub payload: String,
}
