//! The Tidings broker: stores topics, delivers their events to subscribers, and releases tasks to
//! workers.
//!
//! | module | content |
//! |---|---|
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
mod catalog;
pub mod clock;
#[cfg(test)]
mod concurrent_runs;
pub mod config;
mod cursors;
pub mod data_dir;
#[doc(hidden)]
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod groups;
mod limits;
pub mod mailbox;
mod net;
mod quota;
mod remote;
mod stats;
mod tls;
pub mod topic;
pub mod verify;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use tidings_log::CheckedFile;
use tidings_log::{FileSystem, SegmentStore, StopRecord, Store};
use tidings_protocol::{Code, Command, DEFAULT_GROUP, format_ms};
use tokio::net::{TcpListener, UnixListener};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use self::audit::AuditConfig;
use self::audit::{Audit, AuditEvent};
use self::catalog::Catalog;
pub use self::catalog::{Sync, TopicSettings};
use self::clock::Clock;
pub use self::config::{BrokerConfig, UnixConfig};
pub use self::data_dir::DataDir;
pub use self::groups::repair::{RepairError, Repaired, repair};
use self::groups::{FoundGroups, GroupStorage, Groups, clock_continuing};
pub use self::limits::Limits;
use self::net::Shared;
use self::net::http::HttpState;
pub use self::net::http::{
    ClassifyFuture, CountersFuture, EmbeddedHandler, HTTP_PORT, HandlerFuture, HandlerReply,
    HttpConfig, RequestClass, hooks, is_forwarded,
};
use self::net::unix::SocketFile;
pub use self::quota::{Quantity, Quota, QuotaConfig};
use self::tls::Tls;
pub use self::tls::{TlsConfig, TlsError};
use self::topic::Topics;

/// Time limit for an answer that needs no disk.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Time limit for the last audit records when the broker stops.
const AUDIT_FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// File descriptors that are reserved for neither connections nor logs, if there are that many.
const DESCRIPTORS_RESERVED: u64 = 128;

/// Files that the log of a topic or group has open at most: one to write, and one to read.
const DESCRIPTORS_PER_LOG: u64 = 2;

/// If not all logs fit, at least one in this number may be a group's.
const LOGS_PER_GROUP: u64 = 4;

/// A running broker. Dropping it stops it without waiting.
#[derive(Debug)]
pub struct Broker {
    local_addr: SocketAddr,
    http: Option<(SocketAddr, Arc<HttpState>)>,
    shared: Arc<Shared>,
    stop: CancellationToken,
    /// Stops the listeners; cancelled before `stop`, or with it.
    listening: CancellationToken,
    tasks: TaskTracker,
    socket_file: Option<SocketFile>,
    /// Held until no task writes there any more.
    _data: Option<DataDir>,
    /// Where an orderly stop records how the logs ended.
    store: Option<Arc<dyn Store>>,
}

/// Sockets that listen already: a service manager has passed them, or opening them needed
/// privileges that the process has dropped. A missing one is opened as configured.
#[derive(Debug, Default)]
pub struct Sockets {
    /// For lines.
    pub line: Option<std::net::TcpListener>,
    /// For HTTP.
    pub http: Option<std::net::TcpListener>,
}

/// Opens a listening socket at this address, as a broker would.
pub fn bind(address: SocketAddr) -> Result<std::net::TcpListener, StartError> {
    net::bind(address).map_err(|source| StartError::listening(address, source))
}

/// Why a broker did not start. Nothing is left running.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Another process listens there. Stop it, or choose another address.
    #[error("{address} is in use by another process")]
    AddrInUse {
        /// The configured address.
        address: SocketAddr,
    },
    /// The system does not allow it: an address of another machine, or a port that needs
    /// privileges.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The configured address.
        address: SocketAddr,
        /// The error of the system.
        source: io::Error,
    },
    /// The unix socket cannot be opened, for another reason than [`Self::UnixInUse`].
    #[error("cannot listen on {}: {source}", path.display())]
    Unix {
        /// The configured path.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// Another process listens on the unix socket.
    #[error("{} is in use by another process", path.display())]
    UnixInUse {
        /// The configured path.
        path: PathBuf,
    },
    /// The certificate, its key or the client authorities cannot be used.
    #[error("TLS: {0}")]
    Tls(#[from] TlsError),
    /// The audit file cannot be opened.
    #[error("cannot write the audit file {}: {source}", path.display())]
    Audit {
        /// The configured path.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// Another process uses the data directory. Stop it, or choose another directory.
    #[error("{} is in use by another tidings{}", path.display(), with_pid(*pid))]
    DataInUse {
        /// The directory.
        path: PathBuf,
        /// The id of that process, if it is known.
        pid: Option<u32>,
    },
    /// The data directory cannot be created, opened or locked.
    #[error("cannot use the data directory {}: {source}", path.display())]
    Data {
        /// The directory.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

impl StartError {
    fn listening(address: SocketAddr, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::AddrInUse => Self::AddrInUse { address },
            _ => Self::Listen { address, source },
        }
    }
}

fn with_pid(pid: Option<u32>) -> String {
    pid.map_or(String::new(), |pid| format!(" (pid {pid})"))
}

impl Broker {
    /// Listens and serves until it is stopped or dropped. To be called within a tokio runtime.
    pub async fn start(config: BrokerConfig) -> Result<Self, StartError> {
        Self::start_on(config, Sockets::default()).await
    }

    /// The same, with sockets that are open already.
    pub async fn start_on(mut config: BrokerConfig, sockets: Sockets) -> Result<Self, StartError> {
        if let Some(descriptors) = descriptors() {
            share_descriptors(descriptors, config.data.is_some(), &mut config.limits);
        }
        // Mistakes of the operator come first, and checks that leave nothing behind.
        let tls = config.tls.clone().map(Tls::open).transpose()?;
        let (limits, defaults) = (config.limits.clone(), config.topic_defaults);
        let path = config.data.clone();
        let OpenedData { data, clock, topics, groups, store } =
            blocking(move || OpenedData::open(path, &limits, defaults)).await?;
        let opened = Listeners::open(&config, sockets)
            .and_then(|listeners| Ok((listeners, open_audit(&config, clock)?)));
        let (Listeners { lines: (listener, local_addr), http, unix }, audit) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                // An orderly close skips no seqs.
                blocking(move || close_store(store.as_deref(), || topics.close())).await;
                return Err(error);
            }
        };
        let (unix, socket_file) = unix.unzip();
        let stop = CancellationToken::new();
        let tasks = TaskTracker::new();
        let http_config = config.http.clone();
        audit.record_broker(&AuditEvent::Started);
        let groups = Groups::new(
            Arc::clone(&topics),
            config.group.clone(),
            config.limits.groups_max,
            config.embedded_member,
            clock,
            stop.clone(),
            groups,
        );
        let shared = Shared::new(config.connections(), clock, topics, groups, (tls, audit));
        let listening = stop.child_token();
        net::serve_lines(listener, shared.clone(), listening.clone(), &tasks);
        if let Some(listener) = unix {
            net::serve_unix(listener, shared.clone(), listening.clone(), &tasks);
        }
        let http = http.zip(http_config).map(|((listener, address), config)| {
            let stops = (listening.clone(), stop.clone());
            (address, net::http::serve(listener, config, shared.clone(), stops, &tasks))
        });
        net::run_maintenance(shared.clone(), stop.clone(), &tasks);
        tracing::info!(%local_addr, "listening");
        Ok(Self {
            local_addr,
            http,
            shared,
            stop,
            listening,
            tasks,
            socket_file,
            _data: data,
            store,
        })
    }

    /// The address of the line protocol, with the actual port if port 0 was configured.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// The path of the unix socket, if there is one.
    pub fn unix_path(&self) -> Option<&std::path::Path> {
        self.socket_file.as_ref().map(SocketFile::path)
    }

    /// The address of HTTP, if it is served.
    pub fn http_addr(&self) -> Option<SocketAddr> {
        self.http.as_ref().map(|(address, _)| *address)
    }

    /// Applies the settings that may change while connections are open: transport policies, logging
    /// of lines, webhooks with their secrets, and the delay of the default group if `delay` says
    /// that it has changed. All other settings are ignored.
    pub async fn reload(&self, config: &BrokerConfig, delay: bool) {
        self.shared.reload(&config.connections());
        if let (Some((_, http)), Some(config)) = (&self.http, &config.http) {
            http.reload(config);
        }
        if delay {
            let delay = config.group.delay_ms.map_or("default".to_owned(), format_ms);
            let line = format!("GROUP set {DEFAULT_GROUP} delay={delay}");
            let command = Command::parse(&line).expect("the line is a command");
            if let Err(error) = net::http::run_command(&self.shared, &command, ANSWER_TIMEOUT).await
            {
                tracing::warn!(%error, "cannot change the delay of {DEFAULT_GROUP}");
            }
        }
    }

    /// Whether the broker still answers a command in time; any answer counts.
    pub async fn is_responsive(&self) -> bool {
        let command = Command::parse("GROUP list").expect("the line is a command");
        let answer = net::http::run_command(&self.shared, &command, ANSWER_TIMEOUT).await;
        !answer.is_err_and(|error| error.code == Code::Idle)
    }

    /// Becomes true when a job with a `callback=` is known, and is true at once if the data
    /// directory contains one. Until then no callback worker is needed.
    pub fn has_callbacks(&self) -> tokio::sync::watch::Receiver<bool> {
        self.shared.groups.watch_callbacks()
    }

    /// Whether no login is needed.
    pub fn is_open(&self) -> bool {
        self.shared.access.is_open()
    }

    /// Replaces the principals, and requires a login. Within a moment, every connection has the
    /// permissions that its principal has now, or ends.
    pub fn set_principals(&self, principals: Vec<access::Principal>) {
        self.shared.replace_principals(principals);
    }

    /// Stops accepting connections; open ones continue.
    pub fn stop_listening(&self) {
        self.listening.cancel();
    }

    /// Stops accepting connections, sends what is pending on each, and closes them all. Takes
    /// little longer than [`Limits::stop_ms`].
    pub async fn stop(self) {
        self.stop.cancel();
        self.tasks.close();
        self.shared.close_all();
        let bound = Duration::from_millis(self.shared.limits.stop_ms.saturating_add(100));
        if !net::completes_within(bound, self.tasks.wait()).await {
            tracing::warn!(tasks = self.tasks.len(), "connections did not end in time");
        }
        let (shared, store) = (self.shared.clone(), self.store.clone());
        blocking(move || {
            close_store(store.as_deref(), || {
                shared.topics.close();
                shared.groups.close_logs();
            });
        })
        .await;
        self.shared.audit.record_broker(&AuditEvent::Stopped);
        let shared = self.shared.clone();
        // A disk that takes no writes must not prevent the stop.
        if !net::completes_within(AUDIT_FLUSH_TIMEOUT, blocking(move || shared.audit.close())).await
        {
            tracing::error!("cannot write the last audit records in time; they are lost");
        }
    }

    /// Reopens the audit file after log rotation has moved it away.
    pub fn reopen_audit(&self) {
        self.shared.audit.reopen();
    }
}

/// The listeners, each with its address or file.
struct Listeners {
    lines: (TcpListener, SocketAddr),
    http: Option<(TcpListener, SocketAddr)>,
    unix: Option<(UnixListener, SocketFile)>,
}

impl Listeners {
    fn open(config: &BrokerConfig, sockets: Sockets) -> Result<Self, StartError> {
        let at = |address, socket: Option<std::net::TcpListener>| {
            let socket = socket.map_or_else(|| bind(address), Ok)?;
            net::listen(socket).map_err(|source| StartError::listening(address, source))
        };
        Ok(Self {
            lines: at(config.listen, sockets.line)?,
            http: config.http.as_ref().map(|http| at(http.listen, sockets.http)).transpose()?,
            unix: config.unix.as_ref().map(listen_unix).transpose()?,
        })
    }
}

fn listen_unix(config: &UnixConfig) -> Result<(UnixListener, SocketFile), StartError> {
    let path = config.path.clone();
    net::unix::listen(&path, config.mode).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => StartError::UnixInUse { path },
        _ => StartError::Unix { path, source },
    })
}

fn open_audit(config: &BrokerConfig, clock: Clock) -> Result<Audit, StartError> {
    Audit::open(config.audit.as_ref(), clock).map_err(|source| {
        let path = match &config.audit {
            Some(AuditConfig::File(path)) => path.clone(),
            _ => PathBuf::from("-"),
        };
        StartError::Audit { path, source }
    })
}

/// What a start found.
struct OpenedData {
    data: Option<DataDir>,
    /// Continues after the clock of the groups.
    clock: Clock,
    topics: Arc<Topics>,
    groups: Option<(GroupStorage, FoundGroups)>,
    store: Option<Arc<dyn Store>>,
}

impl OpenedData {
    /// Locks the data directory, and recovers what is in it.
    fn open(
        path: Option<PathBuf>,
        limits: &Limits,
        defaults: TopicSettings,
    ) -> Result<Self, StartError> {
        let Some(path) = path else {
            let clock = Clock::new();
            let topics = Topics::in_memory(limits, clock);
            return Ok(Self { data: None, clock, topics, groups: None, store: None });
        };
        let data = DataDir::open(&path)?;
        let failed = |source| StartError::Data { path: path.clone(), source };
        let store = SegmentStore::new(Arc::new(FileSystem), data.path());
        if let StopRecord::Damaged(damage) = store.stop_record() {
            tracing::error!(
                "{damage}: damage at the end of a log looks like the result of a crash"
            );
        }
        let store: Arc<dyn Store> = Arc::new(store);
        let log_bytes = limits.group_log_bytes;
        let storage = GroupStorage { store: Arc::clone(&store), log_bytes };
        let recovered = storage.recover().map_err(failed)?;
        let clock = clock_continuing(&recovered);
        let (catalog, findings) = Catalog::open(&*store, limits, clock).map_err(failed)?;
        for finding in findings {
            tracing::error!("{finding}");
        }
        let topics = Topics::start(limits, clock, catalog, Some(Arc::clone(&store)), defaults);
        let topics = topics.map_err(failed)?;
        let (data, groups) = (Some(data), Some((storage, recovered)));
        Ok(Self { data, clock, topics, groups, store: Some(store) })
    }
}

/// Closes logs, and records where they end.
fn close_store(store: Option<&dyn Store>, close_logs: impl FnOnce()) {
    close_logs();
    if let Some(Err(error)) = store.map(Store::close) {
        tracing::warn!(%error, "cannot record where the logs ended; the next start takes damage at their ends for a crash");
    }
}

/// Runs disk work on a thread where it blocks no other task.
#[expect(clippy::disallowed_methods, reason = "start and end of the broker wait for the disk")]
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// File descriptors that this process may have; `None`: any number.
fn descriptors() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current
}

/// Lowers the limits to what the number of descriptors allows. At least half of them are for
/// connections. Some are reserved for everything else, not least for accepting one connection too
/// many in order to refuse it.
fn share_descriptors(descriptors: u64, has_data: bool, limits: &mut Limits) {
    let count = |limit: usize| u64::try_from(limit).unwrap_or(u64::MAX);
    let mut kept = DESCRIPTORS_RESERVED.min(descriptors / 2);
    if has_data {
        let logs = count(limits.topics_max).saturating_add(count(limits.groups_max));
        let wanted = logs.saturating_mul(DESCRIPTORS_PER_LOG);
        kept = wanted.saturating_add(DESCRIPTORS_RESERVED).min(descriptors / 2);
        let others = DESCRIPTORS_RESERVED.min(kept / 2);
        let reachable = (kept - others) / DESCRIPTORS_PER_LOG;
        if reachable < logs {
            // Topics get what groups do not need, and the other way round.
            let for_groups = reachable.saturating_sub(count(limits.topics_max));
            let for_groups = for_groups.max(reachable / LOGS_PER_GROUP);
            lower_limit(&mut limits.groups_max, for_groups, "groups");
            let for_topics = reachable - count(limits.groups_max);
            lower_limit(&mut limits.topics_max, for_topics, "topics");
        }
    }
    lower_limit(&mut limits.connections_max, descriptors - kept, "connections");
}

fn lower_limit(limit: &mut usize, reachable: u64, what: &str) {
    let reachable = usize::try_from(reachable).unwrap_or(usize::MAX);
    if reachable < *limit {
        let wanted = *limit;
        tracing::warn!(reachable, wanted, "the limit of open files allows fewer {what}");
        *limit = reachable;
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.stop.cancel();
        self.shared.close_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_shared_between_connections_topics_groups_and_the_rest() {
        let share = |descriptors, has_data| {
            let mut limits = Limits::default();
            share_descriptors(descriptors, has_data, &mut limits);
            (limits.connections_max, limits.topics_max, limits.groups_max)
        };
        assert_eq!(share(1_024, false), (896, 1_000, 1_000));
        assert_eq!(share(64, false), (32, 1_000, 1_000));
        assert_eq!(share(0, false), (0, 1_000, 1_000));
        assert_eq!(share(1 << 20, true), (16_384, 1_000, 1_000));
        assert_eq!(share(8_256, true), (4_128, 1_000, 1_000));
        assert_eq!(share(8_254, true), (4_127, 1_000, 999));
        assert_eq!(share(1_024, true), (512, 144, 48));
        assert_eq!(share(64, true), (32, 6, 2));
    }

    #[test]
    fn topics_get_the_descriptors_that_groups_do_not_need() {
        let share = |topics_max, groups_max| {
            let mut limits = Limits { groups_max, topics_max, ..Limits::default() };
            share_descriptors(1_024, true, &mut limits);
            (limits.topics_max, limits.groups_max)
        };
        assert_eq!(share(1_000, 10), (182, 10));
        assert_eq!(share(10, 1_000), (10, 182));
        assert_eq!(share(100, 50), (100, 50));
    }
}
