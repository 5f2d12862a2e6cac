//! Successful answers, whose lines are statuses.

use std::fmt;

use bytes::BufMut;
use serde::Serialize;

use super::{
    AckStatus, CursorStatus, DamagedGroupStatus, DeadLetterStatus, GroupStatus, JobEnd, JobListEnd,
    JobStatus, KeyStatus, ListEnd, MemberStatus, ScheduleStatus, SeedStatus, TaskStatus,
    TopicStatus, TouchStatus,
};
use crate::{encode_more, encode_ok};

/// Defines [`Status`]: a variant for each status, and a word before it on the wire if it has one.
macro_rules! statuses {
    ($($kind:ident($status:ident) $(after $word:literal)?,)*) => {
        /// What a line of an answer says. In JSON it is the object of its status, or a string.
        #[derive(Debug, Clone, PartialEq, Eq, Serialize)]
        #[serde(untagged)]
        pub enum Status {
            $(#[doc = concat!("[`", stringify!($status), "`]")] $kind(Box<$status>),)*
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
                Self::$kind(Box::new(status))
            }
        })*
    };
}

statuses! {
    Ack(AckStatus),
    Cursor(CursorStatus) after "cursor",
    DamagedGroup(DamagedGroupStatus),
    DeadLetter(DeadLetterStatus),
    Group(GroupStatus),
    Job(JobStatus),
    JobEnd(JobEnd),
    JobListEnd(JobListEnd),
    Key(KeyStatus),
    ListEnd(ListEnd),
    Member(MemberStatus),
    Schedule(ScheduleStatus),
    Seed(SeedStatus),
    Task(TaskStatus),
    Topic(TopicStatus),
    Touch(TouchStatus),
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
        for line in &self.lines {
            encode_more(&line.to_string(), out);
        }
        encode_ok(&self.ok.to_string(), out);
    }
}
