//! The settings of groups.

use std::fmt;
use std::str::FromStr;

use super::value::with_commas;
use super::{Kind, NAME, settings};
use crate::error::{ProtocolError, bad_argument};
use crate::payload::is_key;
use crate::{AttributeFilter, DAY_MS, DEFAULT_TOPIC, DELAY_MS_MAX, PARALLEL_MAX, TopicName};

const ATTEMPTS: Kind = Kind::Number(1, 100);

settings! {
    /// The settings of a group: `GROUP create` and `set`. Durations are in milliseconds.
    GroupSettings of "a group" {
        /// The topics that feed it, from the oldest event kept.
        topics: Vec<TopicName> = vec![DEFAULT_TOPIC.parse().expect("it is a valid name")]
            => "topics": Kind::List { range: "1 to 16 names with commas", pattern: NAME, max: 16 },
        /// The thing that is never worked on twice at once.
        key: KeyKind = KeyKind::Host => "key": Kind::Text {
            range: "host, domain, attr:<name>, none, seq",
            pattern: "^(host|domain|none|seq|attr:[A-Za-z][A-Za-z0-9._-]*)$",
        },
        /// Tasks in flight per key.
        parallel: u32 = 1 => "parallel": Kind::Number(1, PARALLEL_MAX),
        /// Rest of a key between the end of a request and the next.
        delay_ms: Option<u64> = None => "delay": Kind::DurationOrDefault(0, DELAY_MS_MAX),
        /// How long a member may be silent about a task.
        lease_ms: u64 = 60_000 => "lease": Kind::Duration(100, DAY_MS),
        /// Failed attempts until an entry is a dead letter.
        max_attempts: u32 = 3 => "max-attempts": ATTEMPTS,
        /// Lost leases until an entry is a dead letter.
        max_losses: u32 = 4 => "max-losses": ATTEMPTS,
        /// Rest of an entry after its first failure; doubles each time.
        backoff_ms: u64 = 2000 => "backoff": Kind::Duration(0, DAY_MS),
        /// Whether the final outcome of each URL is an event on `page-ready`.
        page_ready: bool = true => "page-ready": Kind::ON_OFF,
        /// Whether a key rests longer and longer while its host does not answer.
        circuit: bool = true => "circuit": Kind::ON_OFF,
        /// Only events for which all these conditions hold become entries.
        filter: AttributeFilter = AttributeFilter::default() => "where": Kind::Conditions,
    }
}

impl GroupSettings {
    /// The topics with commas between them.
    pub fn topic_list(&self) -> String {
        with_commas(&self.topics)
    }
}

/// The part of an event that may not be worked on twice at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyKind {
    /// `host`: the URL's host, lower case, without scheme and port.
    Host,
    /// `domain`: the registrable domain, by the public suffix list.
    Domain,
    /// `attr:<name>`: the value of an attribute of the event.
    Attribute(String),
    /// `none`: each event has its own key and identity: no delay, no coalescing.
    None,
    /// `seq`: the same; the key is `<topic>/<seq>`, and stands before the payload of the task.
    Seq,
}

impl KeyKind {
    /// Whether each event has its own key. Its payload is then any text.
    pub fn is_own(&self) -> bool {
        matches!(self, Self::None | Self::Seq)
    }
}

impl fmt::Display for KeyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::Domain => f.write_str("domain"),
            Self::Attribute(name) => write!(f, "attr:{name}"),
            Self::None => f.write_str("none"),
            Self::Seq => f.write_str("seq"),
        }
    }
}

impl FromStr for KeyKind {
    type Err = ProtocolError;

    fn from_str(value: &str) -> Result<Self, ProtocolError> {
        match (value, value.strip_prefix("attr:")) {
            ("host", _) => Ok(Self::Host),
            ("domain", _) => Ok(Self::Domain),
            ("none", _) => Ok(Self::None),
            ("seq", _) => Ok(Self::Seq),
            (_, Some(name)) if is_key(name) => Ok(Self::Attribute(name.to_owned())),
            _ => Err(bad_argument(format!(
                "key={value}: expected host, domain, attr:<name>, none or seq"
            ))),
        }
    }
}
