//! ZeroMQ sockets of a broker: events go out on a PUB socket, messages to a PULL socket become
//! events, and the bridge publishes the messages of a foreign PUB socket on a topic.
//!
//! All of this runs in a process of its own, on a runtime with one thread. With either library an
//! unknown peer can end that process with a few bytes. The parent process restarts it, and it
//! continues where it was.
//!
//! | module | content |
//! |---|---|
//! | [`frames`] | events as frames; pure |
//! | `topic_forwarder` | sends topics to the PUB socket, from a durable cursor on each |
//! | `ingest` | publishes the messages of a PULL or SUB socket |
//! | `reachability` | waits until a foreign socket accepts connections |
//! | `socket` | the sockets of the library that was built in, with limits |

mod endpoint;
pub mod frames;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod ingest;
mod limits;
mod reachability;
mod run;
mod socket;
mod topic_forwarder;

use std::io;
use std::net::SocketAddr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tidings_client::{ClientError, Security};
use tidings_protocol::{TopicName, is_name};

pub use self::endpoint::{BindEndpoint, ConnectEndpoint};
pub use self::limits::ADDRESS_SPACE_BYTES_MAX;
pub use self::run::run;

/// Configuration of the ZeroMQ process.
#[derive(Debug, Clone)]
pub struct ZmqConfig {
    /// Address of the broker: `HOST:PORT`, or `unix:PATH`.
    pub broker: String,
    /// TLS and token of the connections to the broker.
    pub security: Security,
    /// The server's secret CURVE key in Z85. With it both listening sockets accept only peers that
    /// know the public key.
    pub curve_key: Option<String>,
    /// The sockets.
    pub sockets: ZmqSockets,
    /// An earlier process has ended, so its peers will reconnect.
    pub is_restart: bool,
}

/// The sockets of the ZeroMQ process, which gets them as JSON.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ZmqSockets {
    /// Address of the PUB socket.
    pub publish: Option<BindEndpoint>,
    /// The topics that are sent; empty: all.
    pub topics: Vec<TopicPattern>,
    /// Address of the PULL socket.
    pub pull: Option<BindEndpoint>,
    /// A foreign PUB socket to read.
    pub bridge: Option<BridgeConfig>,
}

/// A foreign PUB socket, and the topic for its messages.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BridgeConfig {
    /// Address of the PUB socket.
    pub connect: ConnectEndpoint,
    /// Prefixes of the messages to subscribe to; an empty one matches all.
    pub prefixes: Vec<String>,
    /// The frame that holds the payload.
    pub frame: frames::PayloadFrame,
    /// The topic on which the payloads are published.
    #[serde(serialize_with = "write_name", deserialize_with = "read_name")]
    pub topic: TopicName,
}

fn write_name<S: Serializer>(name: &TopicName, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(name)
}

fn read_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<TopicName, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
}

/// The addresses of listening sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BoundAddresses {
    /// The PUB socket.
    pub publish: Option<SocketAddr>,
    /// The PULL socket.
    pub pull: Option<SocketAddr>,
}

/// The final counts of a bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BridgeReport {
    /// Messages that were published.
    pub published: u64,
    /// Messages that were not valid events, or that the broker rejected.
    pub dropped: u64,
    /// Seqs of another Tidings that were skipped.
    pub missed: u64,
    /// Messages with a seq that was not higher than the one before.
    pub repeated: u64,
    /// Messages that the broker has not confirmed. Some of them may have been published.
    pub unconfirmed: u64,
    /// The broker was unreachable at the end. Messages since then are neither published nor
    /// counted.
    pub has_lost_broker: bool,
}

impl BridgeReport {
    /// Whether all received messages were processed.
    pub fn is_complete(&self) -> bool {
        self.unconfirmed == 0 && !self.has_lost_broker
    }
}

impl std::fmt::Display for BridgeReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { published, dropped, missed, repeated, unconfirmed, has_lost_broker } = self;
        write!(
            f,
            "{published} published, {dropped} dropped, {missed} missed, {repeated} repeated"
        )?;
        if *unconfirmed > 0 {
            write!(f, ", {unconfirmed} not confirmed")?;
        }
        if *has_lost_broker {
            f.write_str(
                "; the broker was unreachable at the end, and later messages were not published",
            )?;
        }
        Ok(())
    }
}

/// The name of a topic, or a prefix followed by `*`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopicPattern {
    literal: String,
    is_prefix: bool,
}

impl TopicPattern {
    /// Whether it matches this topic.
    pub fn matches(&self, topic: &str) -> bool {
        if self.is_prefix { topic.starts_with(&self.literal) } else { topic == self.literal }
    }
}

impl std::fmt::Display for TopicPattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.literal)?;
        f.write_str(if self.is_prefix { "*" } else { "" })
    }
}

impl std::str::FromStr for TopicPattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (literal, is_prefix) = match text.strip_suffix('*') {
            Some(literal) => (literal, true),
            None => (text, false),
        };
        if !(is_name(literal) || is_prefix && literal.is_empty()) {
            return Err("expected a topic name, or a prefix followed by *".to_owned());
        }
        Ok(Self { literal: literal.to_owned(), is_prefix })
    }
}

/// Why a socket cannot be opened. Nothing was sent or received.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ZmqStartError {
    /// The address cannot be used; perhaps another process uses it.
    #[error("cannot listen on {address}: {reason}", address = BindEndpoint(*.address))]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The error of the system.
        reason: String,
    },
    /// The secret key is invalid.
    #[error("the secret CURVE key must have 40 characters of Z85")]
    InvalidKey,
    /// The system's libzmq was built without CURVE.
    #[error("this libzmq was built without CURVE")]
    NoCurve,
    /// The SUB socket cannot be created.
    #[error("cannot subscribe: {reason}")]
    Subscribe {
        /// The error of the library.
        reason: String,
    },
}

impl ZmqStartError {
    /// The error of a listening socket.
    fn bind(address: SocketAddr, error: &io::Error) -> Self {
        Self::Bind { address, reason: error.to_string() }
    }
}

/// Why the process ends. The parent process restarts it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ZmqRunError {
    /// A socket could not be opened.
    #[error(transparent)]
    Start(#[from] ZmqStartError),
    /// The connection to the broker ended, or the broker rejected a necessary command.
    #[error("the broker: {0}")]
    Broker(#[from] ClientError),
    /// A socket failed, or a slow subscriber could not be disconnected.
    #[error("the sockets: {0}")]
    Socket(#[from] io::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_a_name_or_a_prefix() {
        let matches =
            |pattern: &str, topic: &str| pattern.parse::<TopicPattern>().unwrap().matches(topic);
        assert!(matches("log", "log") && !matches("log", "log-2"));
        assert!(matches("log*", "log") && matches("log*", "log-2") && !matches("log*", "lo"));
        assert!(matches("*", "anything"));
        for invalid in ["", "a b", "**", "-x"] {
            assert!(invalid.parse::<TopicPattern>().is_err(), "{invalid}");
        }
    }
}
