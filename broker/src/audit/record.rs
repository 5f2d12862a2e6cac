//! The content and the form of an audit record.

use std::borrow::Cow;
use std::net::IpAddr;

use jiff::Timestamp;
use serde::Serialize;
use tidings_protocol::Command;
use tidings_protocol::text::escape_json;

use crate::access::{Pass, without_tokens};
use crate::net::{Peer, Remote};

/// Bytes of a text that comes from a client; longer ones are cut off.
const TEXT_BYTES_MAX: usize = 1_024;

/// The actions that change something. Other actions read, or are refused.
pub(super) const CHANGES_OF_TOPICS: &[&str] = &["create", "set", "delete", "verify", "forget"];
pub(super) const CHANGES_OF_GROUPS: &[&str] =
    &["create", "set", "pause", "resume", "purge", "retry", "drop", "delete"];
pub(super) const CHANGES_OF_JOBS: &[&str] =
    &["open", "close", "cancel", "pause", "resume", "delete"];

/// A class of events that is limited for each name. Many records of one class suppress none of
/// another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Habit {
    LogIn,
    Publish,
    Change,
    Add,
}

/// What a client or the broker did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What<'a> {
    /// A connection was accepted.
    Connected,
    /// A connection or request was refused before its client was identified.
    Refused { why: &'a str },
    /// A client has logged in.
    LoggedIn,
    /// A client sent a credential that no principal has.
    FailedLogIn { why: &'a str },
    /// A limit was reached.
    Limit { why: &'a str },
    /// A client tried what it may not do.
    Denied { topic: Option<&'a str>, why: &'a str },
    /// Events on this topic since the last record of it.
    Published { topic: &'a str, events: u64 },
    /// URLs that a client added to this job since the last record of it.
    Added { job: &'a str, events: u64 },
    /// A client changed a topic, group or job: the verb, its action, and the name.
    Changed { verb: &'static str, action: &'a str, name: Option<&'a str> },
    /// Permissions that the connection needed were changed or revoked.
    Revoked { why: &'a str },
    /// The connection has ended.
    Left { why: &'a str },
    /// The broker has started.
    Started,
    /// The broker has stopped.
    Stopped,
    /// The configuration was reloaded.
    Reloaded,
    /// A principal was created, changed or revoked.
    Principal { name: &'a str, change: &'static str },
    /// Records of one source that were suppressed, and the events and URLs in them.
    HeldBack { from: IpAddr, count: u64, events: u64 },
    /// Records that did not fit in the queue, or could not be written.
    Lost { count: u64 },
}

impl<'a> What<'a> {
    /// The record of a command, if it changes something. URLs added to jobs are
    /// [totalled](What::Added) instead.
    pub(crate) fn asked(command: &'a Command<'a>) -> Option<Self> {
        let (manage, actions) = match command {
            Command::Topic(manage) => (manage, CHANGES_OF_TOPICS),
            Command::Group(manage) => (manage, CHANGES_OF_GROUPS),
            Command::Job(manage) => (manage, CHANGES_OF_JOBS),
            _ => return None,
        };
        actions.contains(&manage.action).then(|| Self::Changed {
            verb: command.verb().as_str(),
            action: manage.action,
            name: manage.name,
        })
    }
}

impl What<'_> {
    /// Whether any client that reaches a listener can cause it at any rate.
    pub(crate) fn is_at_will(self) -> bool {
        matches!(
            self,
            Self::Connected
                | Self::Refused { .. }
                | Self::FailedLogIn { .. }
                | Self::Limit { .. }
                | Self::Denied { .. }
                | Self::Left { .. }
        )
    }

    /// The number of events or URLs in it.
    pub(super) fn events(self) -> u64 {
        match self {
            Self::Published { events, .. } | Self::Added { events, .. } => events,
            _ => 0,
        }
    }

    /// Its class, if a logged-in client can cause it at any rate.
    pub(super) fn habit(self) -> Option<Habit> {
        match self {
            Self::LoggedIn => Some(Habit::LogIn),
            Self::Published { .. } => Some(Habit::Publish),
            Self::Changed { .. } => Some(Habit::Change),
            Self::Added { .. } => Some(Habit::Add),
            _ => None,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Connected => "connected",
            Self::Refused { .. } => "refused",
            Self::LoggedIn => "logged-in",
            Self::FailedLogIn { .. } => "failed-login",
            Self::Limit { .. } => "limit",
            Self::Denied { .. } => "denied",
            Self::Published { .. } => "published",
            Self::Added { .. } => "added",
            Self::Changed { .. } => "changed",
            Self::Revoked { .. } => "revoked",
            Self::Left { .. } => "left",
            Self::Started => "started",
            Self::Stopped => "stopped",
            Self::Reloaded => "configuration-reloaded",
            Self::Principal { .. } => "principal",
            Self::HeldBack { .. } => "held-back",
            Self::Lost { .. } => "lost",
        }
    }

    fn describe<'a>(&'a self, line: &mut Line<'a>) {
        match self {
            Self::Refused { why }
            | Self::FailedLogIn { why }
            | Self::Limit { why }
            | Self::Revoked { why }
            | Self::Left { why } => line.why = Some(text(why)),
            Self::Denied { topic, why } => {
                line.topic = topic.map(text);
                line.why = Some(text(why));
            }
            Self::Published { topic, events } => {
                line.topic = Some(text(topic));
                line.events = Some(*events);
            }
            Self::Added { job, events } => {
                line.name = Some(text(job));
                line.events = Some(*events);
            }
            Self::Changed { verb, action, name } => {
                line.name = name.map(text);
                line.change = Some(text(&format!("{verb} {action}")).into_owned().into());
            }
            Self::Principal { name, change } => {
                line.name = Some(text(name));
                line.change = Some((*change).into());
            }
            Self::HeldBack { from, count, events } => {
                line.from = Some(from.to_string().into());
                line.count = Some(*count);
                line.events = (*events > 0).then_some(*events);
            }
            Self::Lost { count } => line.count = Some(*count),
            Self::Connected | Self::LoggedIn | Self::Started | Self::Stopped | Self::Reloaded => {}
        }
    }
}

/// The fields of a record, in their order.
#[derive(Debug, Default, Serialize)]
struct Line<'a> {
    time: String,
    what: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    who: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    way: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    conn: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    topic: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    events: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    change: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<Cow<'a, str>>,
}

/// The client that caused an event.
#[derive(Debug, Clone)]
pub(crate) struct Party {
    /// The number of the connection.
    pub(crate) conn: u64,
    /// The principal; `None` before the client is identified.
    who: Option<Box<str>>,
    /// The address of the client.
    from: String,
    /// The transport.
    way: &'static str,
    /// The address by which limits are counted.
    pub(crate) source: IpAddr,
}

impl Party {
    /// The client of a connection before it is identified.
    pub(crate) fn at(conn: u64, peer: Peer, way: &'static str) -> Self {
        let way = if peer.is_unix() { "unix" } else { way };
        Self { conn, who: None, from: peer.to_string(), way, source: peer.ip() }
    }

    /// The client with this identity.
    pub(crate) fn of(conn: u64, remote: &Remote, pass: &Pass) -> Self {
        let mut party = Self::at(conn, remote.peer, pass.way().as_str());
        if pass.way().only_publishes() {
            // For relayed messages the transport of their sender counts.
            party.way = pass.way().as_str();
        }
        party.who = Some(pass.name().into());
        party
    }

    /// The principal, if it is known.
    pub(super) fn who(&self) -> Option<&str> {
        self.who.as_deref()
    }

    /// Whether both have the same principal and transport. Compares clients of one connection only.
    pub(super) fn is_as(&self, other: &Self) -> bool {
        (&self.who, self.way) == (&other.who, other.way)
    }

    /// With another name, such as that of a webhook.
    pub(crate) fn called(mut self, name: String) -> Self {
        self.who = Some(name.into());
        self
    }
}

/// One line of the file.
pub(super) struct Record<'a> {
    pub(super) unix_ms: i64,
    pub(super) what: &'a What<'a>,
    pub(super) by: Option<&'a Party>,
}

impl Record<'_> {
    /// The record as JSON, with its line end.
    pub(super) fn line(&self) -> String {
        // A clock that shows a year which cannot be written is wrong.
        let time = Timestamp::from_millisecond(self.unix_ms).unwrap_or_default();
        let time = format!("{time:.3}");
        let mut line = Line { time, what: self.what.word(), ..Line::default() };
        if let Some(by) = self.by {
            line.who = by.who.as_deref().map(text);
            line.from = Some(by.from.as_str().into());
            line.way = Some(by.way);
            line.conn = Some(by.conn);
        }
        self.what.describe(&mut line);
        let json = serde_json::to_string(&line).expect("texts and numbers serialize");
        format!("{}\n", escape_json(&json))
    }
}

/// A text that comes from a client: without tokens, and with a limit.
fn text(text: &str) -> Cow<'_, str> {
    let text = without_tokens(text);
    let end = text.floor_char_boundary(TEXT_BYTES_MAX);
    if end < text.len() { format!("{}..", &text[..end]).into() } else { text }
}
