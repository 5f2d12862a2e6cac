//! Why a request, or a connection, failed.

use std::time::Duration;

use tidings_protocol::{GroupName, ProtocolError, TopicName};

/// Why a request to the broker failed. Shown on one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The connection failed. Nothing was sent; try again when the broker is running.
    #[error("cannot connect to {address}: {reason}")]
    Connect {
        /// The address of the broker.
        address: String,
        /// The error of the system.
        reason: String,
    },
    /// The encrypted connection failed. Nothing was sent. The settings or certificate files of one
    /// side must change.
    #[error("no secure connection to {address}: {reason}")]
    Tls {
        /// The address of the broker.
        address: String,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// The token could not be read. Nothing was sent.
    #[error("cannot read the token: {0}")]
    Token(String),
    /// `HELLO` was not answered in time. Nothing else was sent.
    #[error("no Tidings broker answered at {address} within {} ms", .after.as_millis())]
    Timeout {
        /// The address of the broker.
        address: String,
        /// The time limit.
        after: Duration,
    },
    /// The broker refused the request, or the client did because the broker would. Nothing has
    /// changed unless the code says otherwise; the connection stays open.
    #[error("refused: {0}")]
    Refused(ProtocolError),
    /// The broker ended the connection and said why. Commands without an answer may or may not have
    /// had their effect.
    #[error("the broker ended the connection: {0}")]
    Ended(ProtocolError),
    /// The connection is closed. Commands without an answer may or may not have had their effect.
    #[error("the connection to the broker is gone: {0}")]
    Closed(String),
    /// The server does not speak the protocol, or another version of it. The client closed the
    /// connection.
    #[error("the server does not speak the Tidings protocol: {0}")]
    Protocol(String),
    /// The group of a worker would never receive the events of the topic.
    #[error(
        "group {group} has topics {topics}, without {topic}; add it with: tidings group set {group} \
         topics={topics},{topic}"
    )]
    TopicMissing {
        /// The existing group.
        group: GroupName,
        /// Its topics.
        topics: String,
        /// The topic that is missing.
        topic: TopicName,
    },
    /// The group of a worker selects other events.
    #[error(
        "group {group} has {found}, and not {wanted}: use another name, or change it for all its \
         members with: tidings group set {group} {wanted}"
    )]
    OtherFilter {
        /// The existing group.
        group: GroupName,
        /// Its conditions.
        found: String,
        /// Those that it should have.
        wanted: String,
    },
    /// The group of a worker that needs it for itself has other topics or another key.
    #[error(
        "group {group} has topics={topics} key={key}, and not topics={topic} key={expected_key}: \
         use another name, or delete it with: tidings group delete {group}"
    )]
    OtherGroup {
        /// The existing group.
        group: GroupName,
        /// Its topics.
        topics: String,
        /// Its key.
        key: String,
        /// The only topic that it should have.
        topic: TopicName,
        /// The key that it should have.
        expected_key: &'static str,
    },
}
