//! What waits in a group: tasks, keys and schedules.

use std::fmt;

use serde::ser::{Serialize, SerializeMap, Serializer};

use super::fields::{Field, FieldSet};
use super::value;

words! {
    /// The state of an entry.
    TaskState {
        /// Waits for its due time, its key, its turn or its job.
        Pending = "pending",
        /// An attempt failed or was lost, and the next one is not due yet.
        Retry = "retry",
        /// Waits only for a member's credit.
        Queued = "queued",
        /// Held by a member.
        Processing = "processing",
        /// Given up, and kept as a dead letter.
        Dead = "dead",
        /// Ended with any outcome but `failed`.
        Completed = "completed",
        /// Ended with the outcome `failed`, or given up.
        Failed = "failed",
    }
}

fields! {
    /// What a line of `GROUP tasks` says about an entry.
    TaskFields {
        /// Its state.
        state: TaskState = "state",
        /// Its key.
        key: String = "key",
        /// Its job.
        job: Option<String> = "job",
        /// The pass of its job.
        pass: Option<u64> = "pass",
        /// Links between a seed and it.
        depth: u64 = "depth",
        /// Its priority.
        prio: i16 = "prio",
        /// Failed attempts.
        attempts: u64 = "attempts",
        /// Leases that ended without an answer.
        losses: u64 = "losses",
        /// The beginning of the id of the member that holds it, or held it last.
        member: Option<String> = "member",
        /// The rest of its lease, in milliseconds.
        lease_ms: Option<u64> = "lease-ms",
        /// The time until it is due, in milliseconds.
        due_ms: Option<u64> = "due-ms",
        /// Why it was given up.
        reason: Option<String> = "reason",
        /// The error of the last failure, or else its reason.
        last: Option<String> = "last",
        /// The time for which its member has held it, or held it, in milliseconds.
        held_ms: Option<u64> = "held-ms",
        /// The time since it ended, in milliseconds.
        ended_ms: Option<u64> = "ended-ms",
        /// The outcome with which it ended.
        outcome: Option<String> = "outcome",
    }
}

/// An entry: a line of `GROUP tasks`, `<entry> key=value .. <url>`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TaskStatus {
    /// Its number in the group.
    pub entry: u64,
    /// Its state and attributes.
    pub fields: TaskFields,
    /// Its URL, or the beginning of its payload if the group has `key=none`.
    pub url: String,
}

impl TaskStatus {
    /// Its fields in JSON.
    pub fn fields() -> Vec<Field> {
        let mut fields = vec![value::describe::<u64>("entry", "Its number in the group.")];
        TaskFields::describe(&mut fields);
        fields.push(value::describe::<String>("url", "Its URL, or the beginning of its payload."));
        fields
    }

    /// Reads a line. The URL begins at the first word that is not a field in the order of the
    /// fields: a payload may be any text, also one that looks like a field.
    pub fn parse(line: &str) -> Self {
        let (entry, mut rest) = line.split_once(' ').unwrap_or((line, ""));
        let mut status = Self::default();
        value::set(&mut status.entry, entry);
        let mut known = Vec::new();
        TaskFields::describe(&mut known);
        let mut known = known.into_iter();
        while let Some((word, after)) = rest.split_once(' ')
            && let Some((key, value)) = word.split_once('=')
            && known.any(|field| field.key == key)
        {
            status.fields.set(key, value);
            rest = after;
        }
        rest.clone_into(&mut status.url);
        status
    }
}

impl fmt::Display for TaskStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { entry, fields, url } = self;
        write!(f, "{entry}")?;
        fields.write(f)?;
        write!(f, " {url}")
    }
}

impl Serialize for TaskStatus {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_map(None)?;
        object.serialize_entry("entry", &self.entry)?;
        self.fields.serialize_into(&mut object)?;
        object.serialize_entry("url", &self.url)?;
        object.end()
    }
}

words! {
    /// Why an entry or a key waits.
    WaitReason {
        /// As many tasks of the key are in flight as may be.
        InFlight = "in-flight",
        /// The delay of the group after the last request.
        Delay = "delay",
        /// The delay that a worker asked for: that of robots.txt, for example.
        Pace = "pace",
        /// A rest that a worker asked for: that of `Retry-After`, for example.
        NotBefore = "not-before",
        /// Its host does not answer, and is tried again after a rest.
        Down = "down",
        /// An attempt failed or was lost, and the next one is not due yet.
        Retry = "retry",
        /// `after=`, or the next due time.
        Later = "later",
        /// A rule of the operator pauses or blocks the key.
        Rule = "rule",
        /// The group is paused.
        GroupPaused = "group-paused",
        /// Its job is paused.
        JobPaused = "job-paused",
        /// Its job is on hold until all of its seeds are taken.
        JobHeld = "job-held",
        /// Its job has used up its pages.
        Budget = "budget",
        /// The jobs of all entries of the key release nothing, each for its own reason.
        Job = "job",
        /// The events that the group publishes are not written yet.
        UnpublishedEvents = "unpublished-events",
        /// No member takes tasks.
        NoMembers = "no-members",
        /// The members hold as many tasks as they may.
        NoCredit = "no-credit",
        /// No member has a browser.
        NoRenderMember = "no-render-member",
        /// The members with a browser hold as many tasks as they may.
        NoRenderCredit = "no-render-credit",
        /// Nothing: the next request may begin.
        Free = "free",
    }
}

status! {
    /// A key with waiting entries: a line of `GROUP keys`.
    KeyStatus(key: String) {
        /// Waiting entries.
        waiting: u64 = "waiting",
        /// Tasks in flight.
        processing: u64 = "processing",
        /// The least time until the last of them may begin, in milliseconds; absent while a rule
        /// without an end holds the key.
        left_ms: Option<u64> = "left-ms",
        /// Why the next one waits.
        because: WaitReason = "because",
        /// The time until its next request may begin, in milliseconds, as far as rests and a rule
        /// decide it; absent if it may begin at once, or while a rule without an end holds the key.
        free_in: Option<u64> = "free-in",
        /// The delay that a worker asked for, in milliseconds, while it is in force.
        pace_ms: Option<u64> = "pace-ms",
        /// The time since its last request ended, in milliseconds, if the group knows it.
        ended_ms: Option<u64> = "ended-ms",
    }
}

status! {
    /// A schedule: a line of `GROUP schedules`.
    ScheduleStatus(url: String) {
        /// Its interval, or the time of day.
        every: String = "every",
        /// The time until it is due, in milliseconds.
        due_ms: u64 = "due-ms",
        /// Its key.
        key: String = "key",
        /// The priority of its entries.
        prio: i16 = "prio",
        /// The entry that is in progress.
        entry: Option<u64> = "entry",
        /// `true` if the next run is left out; absent otherwise.
        skips: Option<bool> = "skips",
        /// The `feed=` of its event: it is a feed that crawlers watch.
        feed: Option<String> = "feed",
    }
}

status! {
    /// The end of `GROUP tasks`, `keys`, `schedules` and `members`.
    ListEnd(group: String) {
        /// How many match, if the answer looked at the whole list.
        matched: Option<u64> = "matched",
        /// How many are listed.
        listed: u64 = "listed",
        /// Where the list continues, if there may be more.
        next: Option<u64> = "next",
    }
}

status! {
    /// The answer to `ACK`, with what became of the links that the worker found.
    AckStatus(task: String) {
        /// Links that were queued.
        new: u64 = "new",
        /// Links that the pass has met before.
        known: u64 = "known",
        /// Links that are out of scope, too deep, not URLs, or more than can be staged.
        refused: u64 = "refused",
    }
}

status! {
    /// The answer to `TOUCH`.
    TouchStatus(task: String) {
        /// The time for which the member holds the task from now on, in milliseconds.
        lease: u64 = "lease",
    }
}
