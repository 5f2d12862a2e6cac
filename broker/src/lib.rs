//! The Tidings broker: stores topics, delivers their events to subscribers, and releases tasks to
//! workers.
//!
//! | module | content |
//! |---|---|
//! | `broker` | a running broker: start, reload, stop |
//! | `start`, `start_error`, `descriptors` | the parts of a start, and why it fails |
//! | [`topic`] | append-only streams of events, encoded once; readers are cursors on them |
//! | [`groups`] | the actors that own groups and feed them from topics |
//! | `catalog` | the journal of settings, reserved seqs, cursors and positions |
//! | `cursors` | which connection holds which durable cursor |
//! | `net` | listeners and connections, of lines and of HTTP: the only code with sockets |
//! | `tls` | certificates, reloaded when their files change |
//! | [`access`] | principals, permissions, tokens, transports |
//! | `quota` | limits for each source and principal |
//! | `audit` | audit records, one line of JSON each |
//! | [`mailbox`] | messages from groups to connections |
//! | `rate_limit` | token buckets |
//! | `stats` | counters for `STATS`, and log lines that are limited to one a second |
//! | [`data_dir`], [`verify`] | the data directory, locked by one process; checking it |
//! | [`clock`] | the one place that reads clocks |
//! | [`config`], `limits` | the configuration; limits of connections, topics and groups |
//! | `remote` | the remote end of a connection: its address and certificate |
//!
//! `net` calls `topic` and `groups`; `groups` calls `group` and `topic`. Calls in the other
//! direction go through a mailbox or a waker only.

pub mod access;
mod audit;
mod broker;
mod catalog;
pub mod clock;
#[cfg(test)]
mod concurrent_runs;
pub mod config;
mod cursors;
pub mod data_dir;
mod descriptors;
#[doc(hidden)]
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod groups;
mod limits;
pub mod mailbox;
mod metrics;
mod net;
mod quota;
mod remote;
mod start;
mod start_error;
mod stats;
mod tls;
pub mod topic;
pub mod verify;

pub use tidings_log::CheckedFile;

pub use self::audit::AuditConfig;
pub use self::broker::Broker;
pub use self::catalog::empty_catalog;
pub use self::clock::Moment;
pub use self::config::{BrokerConfig, UnixConfig};
pub use self::data_dir::DataDir;
pub use self::groups::repair::{RepairError, Repaired, repair};
pub use self::limits::Limits;
pub use self::net::http::{
    ClassifyFuture, CountersFuture, EmbeddedHandler, HTTP_PORT, HandlerFuture, HandlerReply,
    HttpConfig, RequestClass, add_security_headers, hooks, is_address_or_localhost, is_forwarded,
    openapi,
};
pub use self::net::{AcceptedElsewhere, Setting};
pub use self::quota::{Quantity, Quota, QuotaConfig};
pub use self::start::{Sockets, Takeover, bind};
pub use self::start_error::StartError;
pub use self::tls::{TlsConfig, TlsError};

/// How long any wait of a test may take before the test fails instead of hanging. On an idle machine
/// none takes more than a few seconds, so that only a broken program reaches the limit.
#[cfg(test)]
const TEST_LIMIT: std::time::Duration = std::time::Duration::from_mins(10);
