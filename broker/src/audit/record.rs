//! The content and the form of an audit record.

use std::borrow::Cow;
use std::net::IpAddr;

use jiff::Timestamp;
use serde::Serialize;
use tidings_protocol::text::escape_json;
use tidings_protocol::{Command, GroupAction, JobAction, TopicAction};

use crate::access::{Identity, redact_tokens};
use crate::remote::{PeerAddr, RemoteInfo};

/// Bytes of a text that comes from a client; longer ones are cut off.
const TEXT_BYTES_MAX: usize = 1_024;

/// The actions that change something. Other actions read, or are refused.
const TOPIC_CHANGES: &[TopicAction<'_>] = &[
    TopicAction::Create,
    TopicAction::Set,
    TopicAction::Delete,
    TopicAction::Verify,
    TopicAction::Forget,
];
const GROUP_CHANGES: &[GroupAction<'_>] = &[
    GroupAction::Create,
    GroupAction::Set,
    GroupAction::Pause,
    GroupAction::Resume,
    GroupAction::Purge,
    GroupAction::Retry,
    GroupAction::Drop,
    GroupAction::Delete,
];
const JOB_CHANGES: &[JobAction<'_>] = &[
    JobAction::Open,
    JobAction::Close,
    JobAction::Cancel,
    JobAction::Pause,
    JobAction::Resume,
    JobAction::Delete,
];

/// A class of events that is limited for each name. Many records of one class suppress none of
/// another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum EventClass {
    LogIn,
    Publish,
    Change,
    Add,
}

/// What a client or the broker did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AuditEvent<'a> {
    /// A connection was accepted.
    Connected,
    /// A connection or request was refused before its client was identified.
    Refused { why: &'a str },
    /// A client has logged in.
    LoggedIn,
    /// A client sent a credential that no principal has.
    LogInFailed { why: &'a str },
    /// A limit was reached.
    LimitReached { why: &'a str },
    /// A client tried what it may not do.
    Denied { topic: Option<&'a str>, why: &'a str },
    /// Events on this topic since the last record of it.
    Published { topic: &'a str, events: u64 },
    /// URLs that a client added to this job since the last record of it.
    UrlsAdded { job: &'a str, events: u64 },
    /// A client changed a topic, group or job: the verb, its action, and the name.
    Changed { verb: &'static str, action: &'a str, name: Option<&'a str> },
    /// Permissions that the connection needed were changed or revoked.
    Revoked { why: &'a str },
    /// The connection has ended.
    Disconnected { why: &'a str },
    /// The broker has started.
    Started,
    /// The broker has stopped.
    Stopped,
    /// The configuration was reloaded.
    Reloaded,
    /// A principal was created, changed or revoked.
    PrincipalChanged { name: &'a str, change: &'static str },
    /// Records of one source that were suppressed, and the events and URLs in them.
    Suppressed { from: IpAddr, count: u64, events: u64 },
    /// Records that did not fit in the queue, or could not be written.
    Lost { count: u64 },
}

impl<'a> AuditEvent<'a> {
    /// The record of a command, if it changes something. URLs added to jobs are
    /// [totalled](AuditEvent::UrlsAdded) instead.
    pub(crate) fn for_command(command: &'a Command<'a>) -> Option<Self> {
        let (is_change, action, name) = match command {
            Command::Topic(manage) => {
                (TOPIC_CHANGES.contains(&manage.action), manage.action.as_str(), manage.name)
            }
            Command::Group(manage) => {
                (GROUP_CHANGES.contains(&manage.action), manage.action.as_str(), manage.name)
            }
            Command::Job(manage) => {
                (JOB_CHANGES.contains(&manage.action), manage.action.as_str(), manage.name)
            }
            _ => return None,
        };
        is_change.then(|| Self::Changed { verb: command.verb().as_str(), action, name })
    }
}

impl AuditEvent<'_> {
    /// Whether any client that reaches a listener can cause it at any rate.
    pub(crate) fn is_limited_by_source(self) -> bool {
        matches!(
            self,
            Self::Connected
                | Self::Refused { .. }
                | Self::LogInFailed { .. }
                | Self::LimitReached { .. }
                | Self::Denied { .. }
                | Self::Disconnected { .. }
        )
    }

    /// The number of events or URLs in it.
    pub(super) fn events(self) -> u64 {
        match self {
            Self::Published { events, .. } | Self::UrlsAdded { events, .. } => events,
            _ => 0,
        }
    }

    /// Its class, if a logged-in client can cause it at any rate.
    pub(super) fn class(self) -> Option<EventClass> {
        match self {
            Self::LoggedIn => Some(EventClass::LogIn),
            Self::Published { .. } => Some(EventClass::Publish),
            Self::Changed { .. } => Some(EventClass::Change),
            Self::UrlsAdded { .. } => Some(EventClass::Add),
            _ => None,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Connected => "connected",
            Self::Refused { .. } => "refused",
            Self::LoggedIn => "logged-in",
            Self::LogInFailed { .. } => "failed-login",
            Self::LimitReached { .. } => "limit",
            Self::Denied { .. } => "denied",
            Self::Published { .. } => "published",
            Self::UrlsAdded { .. } => "added",
            Self::Changed { .. } => "changed",
            Self::Revoked { .. } => "revoked",
            Self::Disconnected { .. } => "left",
            Self::Started => "started",
            Self::Stopped => "stopped",
            Self::Reloaded => "configuration-reloaded",
            Self::PrincipalChanged { .. } => "principal",
            Self::Suppressed { .. } => "held-back",
            Self::Lost { .. } => "lost",
        }
    }

    fn fill<'a>(&'a self, line: &mut RecordLine<'a>) {
        match self {
            Self::Refused { why }
            | Self::LogInFailed { why }
            | Self::LimitReached { why }
            | Self::Revoked { why }
            | Self::Disconnected { why } => line.why = Some(sanitize(why)),
            Self::Denied { topic, why } => {
                line.topic = topic.map(sanitize);
                line.why = Some(sanitize(why));
            }
            Self::Published { topic, events } => {
                line.topic = Some(sanitize(topic));
                line.events = Some(*events);
            }
            Self::UrlsAdded { job, events } => {
                line.name = Some(sanitize(job));
                line.events = Some(*events);
            }
            Self::Changed { verb, action, name } => {
                line.name = name.map(sanitize);
                line.change = Some(sanitize(&format!("{verb} {action}")).into_owned().into());
            }
            Self::PrincipalChanged { name, change } => {
                line.name = Some(sanitize(name));
                line.change = Some((*change).into());
            }
            Self::Suppressed { from, count, events } => {
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
struct RecordLine<'a> {
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
pub(crate) struct Initiator {
    /// The number of the connection.
    pub(crate) conn: u64,
    /// The principal; `None` before the client is identified.
    name: Option<Box<str>>,
    /// The address of the client.
    from: String,
    /// The transport.
    transport: &'static str,
    /// The address by which limits are counted.
    pub(crate) source: IpAddr,
}

impl Initiator {
    /// The client of a connection before it is identified.
    pub(crate) fn unidentified(conn: u64, peer: PeerAddr, way: &'static str) -> Self {
        let transport = if peer.is_unix() { "unix" } else { way };
        Self { conn, name: None, from: peer.to_string(), transport, source: peer.ip() }
    }

    /// The client with this identity.
    pub(crate) fn identified(conn: u64, remote: &RemoteInfo, pass: &Identity) -> Self {
        let mut party = Self::unidentified(conn, remote.peer, pass.transport().as_str());
        if pass.transport().is_publish_only() {
            // For relayed messages the transport of their sender counts.
            party.transport = pass.transport().as_str();
        }
        party.name = Some(pass.name().into());
        party
    }

    /// The principal, if it is known.
    pub(super) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Whether both have the same principal and transport. Compares clients of one connection only.
    pub(super) fn has_same_identity(&self, other: &Self) -> bool {
        (&self.name, self.transport) == (&other.name, other.transport)
    }

    /// With another name, such as that of a webhook.
    pub(crate) fn with_name(mut self, name: String) -> Self {
        self.name = Some(name.into());
        self
    }
}

/// One line of the file.
pub(super) struct AuditRecord<'a> {
    pub(super) unix_ms: i64,
    pub(super) event: &'a AuditEvent<'a>,
    pub(super) initiator: Option<&'a Initiator>,
}

impl AuditRecord<'_> {
    /// The record as JSON, with its line end.
    pub(super) fn line(&self) -> String {
        // A clock that shows a year which cannot be written is wrong.
        let time = Timestamp::from_millisecond(self.unix_ms).unwrap_or_default();
        let time = format!("{time:.3}");
        let mut line = RecordLine { time, what: self.event.as_str(), ..RecordLine::default() };
        if let Some(by) = self.initiator {
            line.who = by.name.as_deref().map(sanitize);
            line.from = Some(by.from.as_str().into());
            line.way = Some(by.transport);
            line.conn = Some(by.conn);
        }
        self.event.fill(&mut line);
        let json = serde_json::to_string(&line).expect("texts and numbers serialize");
        format!("{}\n", escape_json(&json))
    }
}

/// A text that comes from a client: without tokens, and with a limit.
fn sanitize(text: &str) -> Cow<'_, str> {
    let text = redact_tokens(text);
    let end = text.floor_char_boundary(TEXT_BYTES_MAX);
    if end < text.len() { format!("{}..", &text[..end]).into() } else { text }
}
