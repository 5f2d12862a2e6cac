//! Successful answers. Their lines are statuses.

use std::fmt::{self, Write as _};

use bytes::BufMut;
use serde::Serialize;

use super::{
    AckStatus, ChangedEntriesStatus, CursorStatus, DamagedGroupStatus, DrainStatus, GroupStatus,
    JobDryRun, JobEnd, JobListEnd, JobStatus, KeyStatus, ListEnd, ListedMember, ListedRule,
    MemberStatus, RuleStatus, ScheduleStatus, SeedStatus, TaskStatus, TopicStatus, TouchStatus,
};
use crate::{encode_more, encode_ok};

/// Usual length of the answer to an `ACK`.
const OK_BYTES: usize = 80;

/// Defines [`Status`]: a variant for each status, and a word before it on the wire if it has one.
/// The statuses are boxed, except those that the broker sends for each task.
macro_rules! statuses {
    ($($kind:ident($type:ty) from $status:ident $(after $word:literal)?,)*) => {
        /// What a line of an answer says. In JSON it is the object of its status, or a string.
        #[derive(Debug, Clone, PartialEq, Eq, Serialize)]
        #[serde(untagged)]
        pub enum Status {
            $(#[doc = concat!("`", stringify!($status), "`")] $kind($type),)*
            /// A name, or text for people.
            Text(String),
        }

        impl fmt::Display for Status {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$kind(status) => {
                        $(f.write_str(concat!($word, " "))?;)?
                        status.fmt(f)
                    })*
                    Self::Text(text) => f.write_str(text),
                }
            }
        }

        $(impl From<$status> for Status {
            fn from(status: $status) -> Self {
                Self::$kind(status.into())
            }
        })*
    };
}

statuses! {
    Ack(AckStatus) from AckStatus,
    Cursor(Box<CursorStatus>) from CursorStatus after "cursor",
    DamagedGroup(Box<DamagedGroupStatus>) from DamagedGroupStatus,
    ChangedEntries(Box<ChangedEntriesStatus>) from ChangedEntriesStatus,
    Drain(Box<DrainStatus>) from DrainStatus,
    Group(Box<GroupStatus>) from GroupStatus,
    Job(Box<JobStatus>) from JobStatus,
    JobDryRun(Box<JobDryRun>) from JobDryRun,
    JobEnd(Box<JobEnd>) from JobEnd,
    JobListEnd(Box<JobListEnd>) from JobListEnd,
    Key(Box<KeyStatus>) from KeyStatus,
    ListEnd(Box<ListEnd>) from ListEnd,
    ListedMember(Box<ListedMember>) from ListedMember,
    ListedRule(Box<ListedRule>) from ListedRule,
    Member(Box<MemberStatus>) from MemberStatus,
    Rule(Box<RuleStatus>) from RuleStatus,
    Schedule(Box<ScheduleStatus>) from ScheduleStatus,
    Seed(Box<SeedStatus>) from SeedStatus,
    Task(Box<TaskStatus>) from TaskStatus,
    Topic(Box<TopicStatus>) from TopicStatus,
    Touch(TouchStatus) from TouchStatus,
}

impl From<String> for Status {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

/// The answer to a command that succeeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The lines before the last one.
    pub lines: Vec<Status>,
    /// The last line.
    pub ok: Status,
}

impl<S: Into<Status>> From<S> for Answer {
    /// An answer of one line.
    fn from(ok: S) -> Self {
        Self { lines: Vec::new(), ok: ok.into() }
    }
}

impl Answer {
    /// An answer of several lines.
    pub fn new(lines: impl IntoIterator<Item: Into<Status>>, ok: impl Into<Status>) -> Self {
        Self { lines: lines.into_iter().map(Into::into).collect(), ok: ok.into() }
    }

    /// Appends `+ <line>` for each line, and `+OK <ok>`.
    pub fn encode(&self, out: &mut impl BufMut) {
        let mut text = String::with_capacity(OK_BYTES);
        for line in &self.lines {
            encode_more(write(line, &mut text), out);
        }
        encode_ok(write(&self.ok, &mut text), out);
    }
}

/// Writes a status into a buffer that is used again.
fn write<'a>(status: &Status, text: &'a mut String) -> &'a str {
    text.clear();
    write!(text, "{status}").expect("a String takes every write");
    text
}
