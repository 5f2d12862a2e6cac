//! The content and the form of an audit record.

use std::borrow::Cow;
use std::net::IpAddr;

use jiff::Timestamp;
use serde::{Serialize, Serializer};
use serde_json::Value;
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
    GroupAction::Bump,
    GroupAction::Drain,
    GroupAction::Undrain,
    GroupAction::Rule,
    GroupAction::Unrule,
    GroupAction::Retry,
    GroupAction::Drop,
    GroupAction::Delete,
];
const JOB_CHANGES: &[JobAction<'_>] = &[
    JobAction::Open,
    JobAction::Set,
    JobAction::Close,
    JobAction::Cancel,
    JobAction::Pause,
    JobAction::Resume,
    JobAction::Delete,
];

/// The options of a change of a group that say what it is about, in the order of [`Field`].
const SELECTION: [&str; 5] = ["entry", "key", "job", "match", "after"];

/// A class of events that is limited for each name. Many records of one class suppress none of
/// another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum EventClass {
    LogIn,
    Publish,
    Change,
    /// Further parts of a change, each by its own command.
    ChangePart,
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
    /// A client changed a topic, group or job: the verb, its action, the name, and for a group its
    /// options.
    Changed {
        verb: &'static str,
        action: &'a str,
        name: Option<&'a str>,
        options: &'a [(&'a str, &'a str)],
    },
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
            // A dry run changes nothing.
            Command::Group(manage) if matches!(manage.is_dry(), Ok(true)) => return None,
            Command::Job(manage)
                if manage.action == JobAction::Set && matches!(manage.dry_run(), Ok(Some(_))) =>
            {
                return None;
            }
            Command::Group(manage) => {
                (GROUP_CHANGES.contains(&manage.action), manage.action.as_str(), manage.name)
            }
            Command::Job(manage) => {
                (JOB_CHANGES.contains(&manage.action), manage.action.as_str(), manage.name)
            }
            _ => return None,
        };
        let options = match command {
            Command::Group(manage) => &manage.settings[..],
            _ => &[],
        };
        is_change.then(|| Self::Changed { verb: command.verb().as_str(), action, name, options })
    }

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
            Self::Changed { options, .. } => {
                let is_part = options.iter().any(|(key, value)| *key == "after" && *value != "0");
                Some(if is_part { EventClass::ChangePart } else { EventClass::Change })
            }
            Self::UrlsAdded { .. } => Some(EventClass::Add),
            _ => None,
        }
    }

    /// Its name in records, and its fields, in the order of [`Field`].
    fn name_and_fields(self) -> (&'static str, Vec<Field>) {
        let why = |why| vec![field("why", why)];
        match self {
            Self::Connected => ("connected", Vec::new()),
            Self::Refused { why: text } => ("refused", why(text)),
            Self::LoggedIn => ("logged-in", Vec::new()),
            Self::LogInFailed { why: text } => ("failed-login", why(text)),
            Self::LimitReached { why: text } => ("limit", why(text)),
            Self::Denied { topic, why: text } => {
                let topic = topic.map(|topic| field("topic", topic));
                ("denied", topic.into_iter().chain(why(text)).collect())
            }
            Self::Published { topic, events } => {
                ("published", vec![field("topic", topic), ("events", events.into())])
            }
            Self::UrlsAdded { job, events } => {
                ("added", vec![("events", events.into()), field("name", job)])
            }
            Self::Changed { verb, action, name, options } => {
                let name = name.map(|name| field("name", name));
                let change = field("change", &format!("{verb} {action}"));
                let selection = SELECTION.into_iter().filter_map(|key| {
                    let (_, value) = options.iter().find(|(found, _)| *found == key)?;
                    Some(field(key, value))
                });
                ("changed", name.into_iter().chain([change]).chain(selection).collect())
            }
            Self::Revoked { why: text } => ("revoked", why(text)),
            Self::Disconnected { why: text } => ("left", why(text)),
            Self::Started => ("started", Vec::new()),
            Self::Stopped => ("stopped", Vec::new()),
            Self::Reloaded => ("configuration-reloaded", Vec::new()),
            Self::PrincipalChanged { name, change } => {
                ("principal", vec![field("name", name), ("change", change.into())])
            }
            Self::Suppressed { from, count, events } => {
                let events = (events > 0).then_some(("events", events.into()));
                let from = ("from", from.to_string().into());
                let fields = [from].into_iter().chain(events).chain([("count", count.into())]);
                ("held-back", fields.collect())
            }
            Self::Lost { count } => ("lost", vec![("count", count.into())]),
        }
    }
}

/// A field of a record. All records have their fields in this order: `time`, `what`, `who`, `from`,
/// `way`, `conn`, `topic`, `events`, `name`, `change`, `entry`, `key`, `job`, `match`,
/// `after`, `count`, `why`.
type Field = (&'static str, Value);

/// A field with a text that comes from a client.
fn field(name: &'static str, text: &str) -> Field {
    (name, sanitize(text).into())
}

/// The client that caused an event.
#[derive(Debug, Clone)]
pub(crate) struct Initiator {
    pub(crate) conn: u64,
    /// The principal; `None` before the client is identified.
    name: Option<Box<str>>,
    /// The address of the client.
    from: String,
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

    pub(crate) fn identified(conn: u64, remote: &RemoteInfo, pass: &Identity) -> Self {
        let mut party = Self::unidentified(conn, remote.peer, pass.transport().as_str());
        if pass.transport().is_publish_only() {
            // For relayed messages the transport of their sender counts.
            party.transport = pass.transport().as_str();
        }
        party.name = Some(pass.name().into());
        party
    }

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
        let (what, fields) = self.event.name_and_fields();
        let mut record: Vec<Field> = vec![("time", time.into()), ("what", what.into())];
        if let Some(by) = self.initiator {
            record.extend(by.name.as_deref().map(|name| field("who", name)));
            record.push(("from", by.from.as_str().into()));
            record.push(("way", by.transport.into()));
            record.push(("conn", by.conn.into()));
        }
        record.extend(fields);
        let json = serde_json::to_string(&OrderedFields(&record));
        let json = json.expect("texts and numbers serialize");
        format!("{}\n", escape_json(&json))
    }
}

/// Serializes as an object with the fields in their order.
struct OrderedFields<'a>(&'a [Field]);

impl Serialize for OrderedFields<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

/// A text that comes from a client: without tokens, and with a limit.
fn sanitize(text: &str) -> Cow<'_, str> {
    let text = redact_tokens(text);
    let end = text.floor_char_boundary(TEXT_BYTES_MAX);
    if end < text.len() { format!("{}..", &text[..end]).into() } else { text }
}
