//! What a record says, and how it looks.

use std::borrow::Cow;
use std::net::IpAddr;

use jiff::Timestamp;
use serde::Serialize;
use tidings_protocol::Command;
use tidings_protocol::text::escape_json;

use crate::access::{Pass, without_tokens};
use crate::net::{Peer, Remote};

/// Bytes of a text that others had a part in; what is beyond is cut off.
const TEXT_BYTES_MAX: usize = 1_024;

/// What changes something, of what there is to ask. Whatever else is asked is refused.
pub(super) const CHANGES_OF_TOPICS: &[&str] = &["create", "set", "delete", "verify", "forget"];
pub(super) const CHANGES_OF_GROUPS: &[&str] =
    &["create", "set", "pause", "resume", "purge", "retry", "drop", "delete"];
pub(super) const CHANGES_OF_JOBS: &[&str] =
    &["open", "close", "cancel", "pause", "resume", "delete"];

/// Records of which one name has only so many. A lot of one kind hides none of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Habit {
    LogIn,
    Publish,
    Change,
    Add,
}

/// What somebody did, or was done to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What<'a> {
    /// A connection came.
    Connected,
    /// It, or one request of it, was refused before anybody asked who it is.
    Refused { why: &'a str },
    /// Somebody is known from here on.
    LoggedIn,
    /// Somebody showed what nobody has.
    FailedLogIn { why: &'a str },
    /// A limit was met.
    Limit { why: &'a str },
    /// Somebody asked for what they may not do.
    Denied { topic: Option<&'a str>, why: &'a str },
    /// So many events on that topic, since the last record of it.
    Published { topic: &'a str, events: u64 },
    /// Somebody asked for so many URLs to be added to that job, since the last record of it.
    Added { job: &'a str, events: u64 },
    /// Somebody who may do so asked for a change of a topic, group or job: a verb, its action, and the name.
    Changed { verb: &'static str, action: &'a str, name: Option<&'a str> },
    /// What somebody may do was changed or taken away, and the connection rested on it.
    Revoked { why: &'a str },
    /// The connection has ended.
    Left { why: &'a str },
    /// The broker serves.
    Started,
    /// It does not any more.
    Stopped,
    /// The configuration was read again.
    Reloaded,
    /// Somebody is known, or not any more, or may do something else.
    Principal { name: &'a str, change: &'static str },
    /// So many records of what one source can cause at will were left out, and with them so many events and URLs.
    HeldBack { from: IpAddr, count: u64, events: u64 },
    /// So many records found no room, or could not be written.
    Lost { count: u64 },
}

impl<'a> What<'a> {
    /// That somebody asked for what a command does, if it changes something. What is added to jobs is [summed](What::Added).
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
    /// Whether anybody can cause it who reaches a listener, as often as they like.
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

    /// So many events or URLs it tells of.
    pub(super) fn events(self) -> u64 {
        match self {
            Self::Published { events, .. } | Self::Added { events, .. } => events,
            _ => 0,
        }
    }

    /// What somebody can cause who has a name, as often as they like.
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

/// Who did it.
#[derive(Debug, Clone)]
pub(crate) struct Party {
    /// The number of the connection.
    pub(crate) conn: u64,
    /// Who that is by now; nothing before that is looked at.
    who: Option<Box<str>>,
    /// Where it comes from.
    from: String,
    /// By which way.
    way: &'static str,
    /// Who is counted as one.
    pub(crate) source: IpAddr,
}

impl Party {
    /// Whoever is at the other end of a connection, by `way`, before they are somebody.
    pub(crate) fn at(conn: u64, peer: Peer, way: &'static str) -> Self {
        let way = if peer.is_unix() { "unix" } else { way };
        Self { conn, who: None, from: peer.to_string(), way, source: peer.ip() }
    }

    /// Whoever has that pass.
    pub(crate) fn of(conn: u64, remote: &Remote, pass: &Pass) -> Self {
        let mut party = Self::at(conn, remote.peer, pass.way().as_str());
        if pass.way().only_publishes() {
            // Of whoever hands it on, the way is what counts.
            party.way = pass.way().as_str();
        }
        party.who = Some(pass.name().into());
        party
    }

    /// Who that is by now.
    pub(super) fn who(&self) -> Option<&str> {
        self.who.as_deref()
    }

    /// Whether both are as one, if they are on the same connection.
    pub(super) fn is_as(&self, other: &Self) -> bool {
        (&self.who, self.way) == (&other.who, other.way)
    }

    /// The same for what comes in the name of another, such as a webhook.
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
    /// With its line end.
    pub(super) fn line(&self) -> String {
        // A clock that is set to a year without name is set wrong.
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
        let json = serde_json::to_string(&line).expect("texts and numbers can be written");
        format!("{}\n", escape_json(&json))
    }
}

/// What others had a part in: no tokens, and not without end.
fn text(text: &str) -> Cow<'_, str> {
    let text = without_tokens(text);
    let end = text.floor_char_boundary(TEXT_BYTES_MAX);
    if end < text.len() { format!("{}..", &text[..end]).into() } else { text }
}
