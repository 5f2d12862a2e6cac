//! What the broker can be told, and the limits it keeps.
//!
//! | limits | are in |
//! |---|---|
//! | of connections and topics, and the number of groups | [`Limits`] |
//! | of requests by HTTP | [`HttpConfig`] |
//! | of a group: its settings, entries, jobs, dead letters | [`GroupConfig`], and the ranges beside it |
//! | of the wire: line, payload, name, URL, lines of garbage | constants of the protocol crate |
//!
//! Section 14 of PROTOCOL.md lists everything that a peer can run into. What it cannot, because it
//! only decides how work is cut into turns and memory into blocks, stands where it is used:
//! `TURN_MAX` (a group's events), `TURNS_MAX` and `PIECES_MAX` (a connection's turns and writes),
//! `BATCH_BYTES` and the blocks of the arena (a topic's memory).

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use tidings_protocol::{MemberId, PORT};

use crate::access::AccessConfig;
use crate::audit::AuditConfig;
use crate::catalog::TopicSettings;
use crate::group::config::GroupConfig;
use crate::net::http::HttpConfig;
use crate::tls::TlsConfig;

/// What a broker is started with.
#[derive(Debug, Clone)]
pub struct BrokerConfig {
    /// Where to listen for the line protocol. Port 0 takes a free one. Default `127.0.0.1:12345`.
    pub listen: SocketAddr,
    /// Where else to listen for the line protocol: a unix socket. Default `None`: nowhere.
    pub unix: Option<UnixConfig>,
    /// With what connections over the network are encrypted, of lines and of HTTP. Default `None`: they are not.
    pub tls: Option<TlsConfig>,
    /// Where to listen for HTTP, and how. Default `None`: nowhere.
    pub http: Option<HttpConfig>,
    /// Who may do what.
    pub access: AccessConfig,
    /// The directory for everything that survives the broker. Default `None`: nothing is on disk,
    /// and every topic is `sync=memory`.
    pub data: Option<PathBuf>,
    /// What a topic is told that was given no settings of its own.
    pub topic_defaults: TopicSettings,
    /// Bounds of everything that grows.
    pub limits: Limits,
    /// What a group is that was created without settings. A delay that is given here is given to the
    /// default group, too, if it is there already.
    pub group: GroupConfig,
    /// A worker in this process: when the process has ended, so have its requests, and nobody waits
    /// for its leases.
    pub own_member: Option<MemberId>,
    /// Where records of who did what go. Default `None`: there are none.
    pub audit: Option<AuditConfig>,
    /// Writes one log line per received line (target `tidings::line`), for finding faults.
    pub log_lines: bool,
}

impl Default for BrokerConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, PORT)),
            unix: None,
            tls: None,
            http: None,
            access: AccessConfig::default(),
            data: None,
            topic_defaults: TopicSettings::default(),
            limits: Limits::default(),
            group: GroupConfig::default(),
            own_member: None,
            audit: None,
            log_lines: false,
        }
    }
}

/// A unix socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnixConfig {
    /// Its file. A socket that is there already gives way if nobody listens on it.
    pub path: PathBuf,
    /// The permissions of the file: who may connect. 0o600 is this user alone.
    pub mode: u32,
}

/// The limits of connections, topics and groups: name, unit, default, and what happens at it.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Groups. Default 1,000. One more is refused (`-ERR limit`). If the process may not have as many
    /// file descriptors, the broker lowers it when it starts.
    pub groups_max: usize,
    /// Bytes by which a group's log grows before it is cut to what the group holds, at least. Default
    /// 64 MiB: less than a second to read at a start.
    pub group_log_bytes: u64,
    /// Connections at once. Default 16,384: an idle one costs about a kibibyte here and the
    /// kernel's buffers. One more is told `-ERR limit` and closed. If the process may not have as
    /// many file descriptors, the broker lowers it when it starts.
    pub connections_max: usize,
    /// Milliseconds that a TLS handshake may take. Default 10,000. Then the connection, which counts from its
    /// beginning, is closed.
    pub handshake_ms: u64,
    /// Milliseconds that a line may be silent half-way. Default 30,000: longer than a person
    /// hesitates with telnet in character mode. Then the connection is closed (`-ERR timeout`).
    pub half_line_ms: u64,
    /// Milliseconds that somebody has to log in who can do nothing else. Default 10,000. Then the connection is closed
    /// (`-ERR timeout`).
    pub log_in_ms: u64,
    /// Milliseconds that an ending connection may make no progress with what is pending, before it
    /// is cut off. Default 5,000.
    pub closing_ms: u64,
    /// Milliseconds that a closed connection waits for the other side to close, too, so that
    /// what it sent last does not turn our last words into a reset. Default 500.
    pub linger_ms: u64,
    /// Milliseconds that all connections together have when the broker stops. Default 250, so
    /// that a crawler and a broker in one process stop within a second, one after the other.
    pub stop_ms: u64,
    /// Milliseconds after which a reader that takes nothing no longer pins the memory of what
    /// it is in the middle of, and has to go if tasks pile up (`task_bytes_max`). Default 1,000;
    /// it costs one copied line.
    pub stalled_ms: u64,

    /// Bytes that the kernel keeps for a connection which the other side has no room for yet. Default
    /// 131,072. Left alone it takes megabytes for whoever does not read, and a thousand of them
    /// take what all sockets of a machine may have together, so that nobody is served any more.
    pub unsent_bytes: u32,
    /// Bytes that one read of a socket brings at most, and so about the size of a batch.
    /// Default 65,536, range 1,024 up; a worker thread has one such buffer, a connection none.
    pub read_bytes: usize,
    /// Bytes of events that a connection takes from the tail in one go. Default 262,144: enough
    /// to fill a socket. Range: 1 up; one batch is always taken.
    pub deliver_bytes: usize,
    /// Commands of one connection without an answer that has left. Default 4,096 (more than the
    /// largest useful credit or publish window; confirmed publishes fold and count as one).
    /// At it, the connection is not read until half of them have left.
    pub unanswered_max: usize,
    /// Bytes of answers that wait for the socket, except confirmations. Default 262,144.
    /// At it, the connection is not read until answers have left. It is also not read while the
    /// answer to a `GROUP`, `JOB` or `EXPLAIN` has not come, so one long answer may be on top.
    pub answer_bytes_max: usize,
    /// Bytes of tasks that wait for a socket which takes nothing. Default 16 MiB. Above it for
    /// `stalled_ms`, the connection is ended (`-ERR timeout`): its leases run out unread, and
    /// their lines would pile up.
    pub task_bytes_max: usize,

    /// Topics. Default 1,000, range 3 up: the fixed ones are among them. One more is refused
    /// (`-ERR limit`). Lowered as `groups_max` is.
    pub topics_max: usize,
    /// Bytes that the tail of one topic keeps in memory. Default 16 MiB. The oldest batches
    /// go; a reader that wants them reads them from the disk, or gets `LAG` if they are not there.
    pub tail_bytes_max: usize,
    /// Bytes that all tails together keep. Default 64 MiB. The longest tail gives up a quarter, and
    /// what is left of it lies in no more memory than it needs.
    pub tails_bytes_max: usize,
    /// Bytes of one topic's events that are not safe yet. Default 8 MiB, half a tail. At it,
    /// whoever publishes there is not read until some of them are.
    pub ahead_bytes_max: usize,
    /// Bytes of events on their way from the disk to readers that lag, all together. Default
    /// 16 MiB, at least 512 KiB. At it, the next one waits its turn.
    pub cold_bytes_max: usize,
    /// Subscriptions of one connection. Default 1,000. One more is refused (`-ERR limit`).
    pub subscriptions_max: usize,
    /// Durable cursors on all topics together. Default 10,000: a few megabytes of memory and disk.
    /// One more is refused (`-ERR limit`).
    pub cursors_max: usize,
    /// Milliseconds after which a durable cursor is forgotten that nobody held or moved. Default
    /// 30 days, as long as events are kept by default.
    pub cursor_idle_ms: u64,
    /// Deleted topics of which the next number is remembered, so that it is not given twice.
    /// Default 10,000. Then no further topic can be deleted (`-ERR limit`).
    pub deleted_topics_max: usize,

    /// Children staged for one task. Default 65,536: a sitemap has 50,000 at most. More are counted and reported with the
    /// answer. What they take is bounded by `staged_bytes_max`.
    pub staged_links_max: usize,
    /// Bytes staged on one connection for all its tasks. Default 16 MiB. At it the children of the
    /// oldest task give way; they are counted and reported with its answer.
    pub staged_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            groups_max: 1_000,
            group_log_bytes: 64 << 20,
            connections_max: 16_384,
            handshake_ms: 10_000,
            half_line_ms: 30_000,
            log_in_ms: 10_000,
            closing_ms: 5_000,
            linger_ms: 500,
            stop_ms: 250,
            stalled_ms: 1_000,
            unsent_bytes: 128 << 10,
            read_bytes: 64 << 10,
            deliver_bytes: 256 << 10,
            unanswered_max: 4_096,
            answer_bytes_max: 256 << 10,
            task_bytes_max: 16 << 20,
            topics_max: 1_000,
            tail_bytes_max: 16 << 20,
            tails_bytes_max: 64 << 20,
            ahead_bytes_max: 8 << 20,
            cold_bytes_max: 16 << 20,
            subscriptions_max: 1_000,
            cursors_max: 10_000,
            cursor_idle_ms: 30 * 24 * 60 * 60 * 1_000,
            deleted_topics_max: 10_000,
            staged_links_max: 65_536,
            staged_bytes_max: 16 << 20,
        }
    }
}
