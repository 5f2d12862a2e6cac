//! ZeroMQ: events as messages of a PUB socket, messages to a PULL socket as events, and somebody
//! else's PUB socket as a topic.
//!
//! All of it runs in a process of its own, on a runtime of one thread: peers that nobody knows can
//! end such a process with a few bytes, whichever library reads them. Its parent starts it again,
//! and it goes on where it was.
//!
//! | module | |
//! |---|---|
//! | [`frames`] | what an event is in frames; pure |
//! | `topic_forwarder` | topics to the PUB socket, from a durable cursor on each |
//! | `ingest` | messages of a PULL or SUB socket to the broker |
//! | `retrying_publisher` | what is on its way to the broker, until that has confirmed it |
//! | `reachability` | waits until somebody else's socket is there |
//! | `socket` | the sockets of the library that was built in, with limits |

mod endpoint;
pub mod frames;

#[cfg(any(feature = "zeromq", feature = "libzmq"))]
mod ingest;
#[cfg(any(feature = "zeromq", feature = "libzmq"))]
mod limits;
#[cfg(any(feature = "zeromq", feature = "libzmq"))]
mod reachability;
#[cfg(any(feature = "zeromq", feature = "libzmq"))]
mod retrying_publisher;
#[cfg(any(feature = "zeromq", feature = "libzmq"))]
mod run;
#[cfg(any(feature = "zeromq", feature = "libzmq"))]
mod socket;
#[cfg(any(feature = "zeromq", feature = "libzmq"))]
mod topic_forwarder;

use std::io;
use std::net::SocketAddr;

use tidings_protocol::client::{ClientError, Security};
use tidings_protocol::{TopicName, is_name};

pub use self::endpoint::{BindEndpoint, ConnectEndpoint};
#[cfg(any(feature = "zeromq", feature = "libzmq"))]
pub use self::limits::ADDRESS_SPACE_BYTES_MAX;
pub use self::run::run;

/// Whether a library was built in.
pub const IS_BUILT_IN: bool = cfg!(any(feature = "zeromq", feature = "libzmq"));
/// Whether that library can encrypt.
pub const HAS_CURVE: bool = cfg!(feature = "libzmq");

/// What the process is to do.
#[derive(Debug, Clone, Default)]
pub struct ZmqConfig {
    /// The broker: `HOST:PORT`, or `unix:PATH`.
    pub broker: String,
    /// Within what connections to it are encrypted, if they are.
    pub security: Security,
    /// Send events there.
    pub publish: Option<BindEndpoint>,
    /// Only those of these topics.
    pub topics: Vec<TopicPattern>,
    /// Receive events there.
    pub pull: Option<BindEndpoint>,
    /// The server's secret key of CURVE, in Z85: both sockets take only peers that know the public
    /// one.
    pub curve_key: Option<String>,
    /// Hear somebody else.
    pub bridge: Option<BridgeConfig>,
    /// There was a process before this one: its peers come back.
    pub is_restart: bool,
}

/// Whom to hear, and where that goes.
#[derive(Debug, Clone)]
pub struct BridgeConfig {
    /// Where their PUB socket is.
    pub connect: ConnectEndpoint,
    /// What messages begin with; the empty one is all.
    pub prefixes: Vec<String>,
    /// Which frame is the payload.
    pub frame: frames::PayloadFrame,
    /// The topic that gets it.
    pub topic: TopicName,
}

/// Where sockets listen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BoundAddresses {
    /// The PUB socket.
    pub publish: Option<SocketAddr>,
    /// The PULL socket.
    pub pull: Option<SocketAddr>,
}

/// What a bridge has done by its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BridgeReport {
    /// Messages that became events.
    pub published: u64,
    /// Messages that could not.
    pub dropped: u64,
    /// Numbers of another Tidings that never came.
    pub missed: u64,
    /// Messages with numbers that had come before.
    pub repeated: u64,
    /// Messages that the broker has not confirmed. Some may be events all the same.
    pub unconfirmed: u64,
    /// The broker was not there at the end: what came since it went is not counted anywhere, and
    /// not published.
    pub has_lost_broker: bool,
}

impl BridgeReport {
    /// Whether all that was sent to it may have been published.
    pub fn is_complete(&self) -> bool {
        self.unconfirmed == 0 && !self.has_lost_broker
    }
}

impl std::fmt::Display for BridgeReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { published, dropped, missed, repeated, unconfirmed, has_lost_broker: is_cut } =
            self;
        write!(
            f,
            "{published} published, {dropped} dropped, {missed} missed, {repeated} came again"
        )?;
        if *unconfirmed > 0 {
            write!(f, ", {unconfirmed} not confirmed")?;
        }
        if *is_cut {
            f.write_str("; the broker was away, and what came meanwhile is not published")?;
        }
        Ok(())
    }
}

/// A name of a topic, or with `*` at its end the beginning of names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicPattern {
    literal: String,
    is_prefix: bool,
}

impl TopicPattern {
    /// Whether it means this topic.
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
        let (beginning, is_prefix) = match text.strip_suffix('*') {
            Some(beginning) => (beginning, true),
            None => (text, false),
        };
        if !(is_name(beginning) || is_prefix && beginning.is_empty()) {
            return Err("write names of topics, or beginnings with * behind them".to_owned());
        }
        Ok(Self { literal: beginning.to_owned(), is_prefix })
    }
}

/// Why sockets are not there. Nothing was sent or received.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ZmqStartError {
    /// Nobody can listen there, perhaps because somebody does.
    #[error("cannot listen on {address}: {reason}", address = BindEndpoint(*.address))]
    Bind {
        /// Where.
        address: SocketAddr,
        /// What the system says.
        reason: String,
    },
    /// The secret key is none.
    #[error("the secret key of CURVE has 40 characters of Z85")]
    InvalidKey,
    /// The system's libzmq was built without it.
    #[error("this libzmq knows no CURVE")]
    NoCurve,
    /// A SUB socket could not be made.
    #[error("cannot subscribe: {reason}")]
    Subscribe {
        /// What the library says.
        reason: String,
    },
}

impl ZmqStartError {
    /// Of a socket that was to listen there.
    #[cfg(any(feature = "zeromq", feature = "libzmq"))]
    fn bind(address: SocketAddr, error: &io::Error) -> Self {
        Self::Bind { address, reason: error.to_string() }
    }
}

/// Why the process cannot go on. It is to be started again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ZmqRunError {
    /// It did not come so far.
    #[error(transparent)]
    Start(#[from] ZmqStartError),
    /// The broker is gone, or does not do as it is asked.
    #[error("the broker: {0}")]
    Broker(#[from] ClientError),
    /// A socket does not work any more, or who does not read cannot be cut off.
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
        for wrong in ["", "a b", "**", "-x"] {
            assert!(wrong.parse::<TopicPattern>().is_err(), "{wrong}");
        }
    }
}
