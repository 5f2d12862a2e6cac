//! The parts of a start: listeners, the data directory with its logs, and the audit.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use tidings_log::{FileSystem, SegmentStore, StopRecord, Store};
use tokio::net::UnixListener;

use tidings_protocol::TopicSettings;

use crate::audit::{Audit, AuditConfig};
use crate::catalog::Catalog;
use crate::clock::{Clock, Moment};
use crate::config::{BrokerConfig, UnixConfig};
use crate::data_dir::DataDir;
use crate::groups::{FoundGroups, GroupStorage, clock_continuing};
use crate::limits::Limits;
use crate::net;
use crate::net::http::HttpConfig;
use crate::net::unix::SocketFile;
use crate::net::{AcceptedElsewhere, Listener};
use crate::start_error::StartError;
use crate::topic::Topics;

/// Sockets that listen already: a service manager has passed them, or opening them needed
/// privileges that the process has dropped. A missing one is opened as configured.
#[derive(Debug, Default)]
pub struct Sockets {
    /// For lines.
    pub line: Option<std::net::TcpListener>,
    /// For HTTP.
    pub http: Option<std::net::TcpListener>,
    /// More connections for lines, without TLS if lines have none.
    pub accepted_lines: Option<AcceptedElsewhere>,
    /// The same for HTTP.
    pub accepted_http: Option<AcceptedElsewhere>,
}

/// What a broker takes over from one on another machine.
#[derive(Debug)]
pub struct Takeover {
    /// All that is stored.
    pub store: Arc<dyn Store>,
    /// The earliest moment that it may be now, by the clock of that broker.
    pub moment: Moment,
}

/// Opens a listening socket at this address, as a broker would.
pub fn bind(address: SocketAddr) -> Result<std::net::TcpListener, StartError> {
    net::bind(address).map_err(|source| StartError::listening(address, source))
}

/// The listeners, each with its address or file.
pub(crate) struct Listeners {
    pub(crate) lines: (Listener, SocketAddr),
    pub(crate) http: Option<(Listener, SocketAddr)>,
    pub(crate) unix: Option<(UnixListener, SocketFile)>,
}

impl Listeners {
    pub(crate) fn open(config: &BrokerConfig, sockets: Sockets) -> Result<Self, StartError> {
        let at = |address, socket: Option<std::net::TcpListener>, accepted| {
            let socket = socket.map_or_else(|| bind(address), Ok)?;
            net::listen(socket, accepted, &config.limits)
                .map_err(|source| StartError::listening(address, source))
        };
        let Sockets { line, http, accepted_lines, accepted_http } = sockets;
        let open_http = |config: &HttpConfig| at(config.listen, http, accepted_http);
        Ok(Self {
            lines: at(config.listen, line, accepted_lines)?,
            http: config.http.as_ref().map(open_http).transpose()?,
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

pub(crate) fn open_audit(config: &BrokerConfig, clock: Clock) -> Result<Audit, StartError> {
    Audit::open(config.audit.as_ref(), clock).map_err(|source| {
        let path = match &config.audit {
            Some(AuditConfig::File(path)) => path.clone(),
            _ => PathBuf::from("-"),
        };
        StartError::Audit { path, source }
    })
}

/// What a start found.
pub(crate) struct OpenedData {
    pub(crate) data: Option<DataDir>,
    /// Continues after the clock of the groups.
    pub(crate) clock: Clock,
    pub(crate) topics: Arc<Topics>,
    pub(crate) groups: Option<(GroupStorage, FoundGroups)>,
    pub(crate) store: Option<Arc<dyn Store>>,
}

impl OpenedData {
    /// Locks the data directory, or none in a takeover, and recovers what is stored.
    pub(crate) fn open(
        path: Option<PathBuf>,
        takeover: Option<Takeover>,
        limits: &Limits,
        defaults: TopicSettings,
    ) -> Result<Self, StartError> {
        let (data, Takeover { store, moment }) = match (path, takeover) {
            (_, Some(takeover)) => (None, takeover),
            (Some(path), None) => {
                let data = DataDir::open(&path)?;
                let store = Arc::new(open_store(&data));
                (Some(data), Takeover { store, moment: Moment(0) })
            }
            (None, None) => {
                let clock = Clock::new();
                let topics = Topics::in_memory(limits, clock);
                return Ok(Self { data: None, clock, topics, groups: None, store: None });
            }
        };
        let failed = |source| StartError::Data { path: store.place().into(), source };
        let log_bytes = limits.group_log_bytes;
        let storage = GroupStorage { store: Arc::clone(&store), log_bytes };
        let recovered = storage.recover().map_err(failed)?;
        let mut clock = clock_continuing(&recovered);
        clock.advance_to(moment);
        let (catalog, findings) = Catalog::open(&*store, limits, clock).map_err(failed)?;
        for finding in findings {
            tracing::error!("{finding}");
        }
        let topics = Topics::start(limits, clock, catalog, Some(Arc::clone(&store)), defaults);
        let topics = topics.map_err(failed)?;
        Ok(Self { data, clock, topics, groups: Some((storage, recovered)), store: Some(store) })
    }
}

fn open_store(data: &DataDir) -> SegmentStore {
    let store = SegmentStore::new(Arc::new(FileSystem), data.path());
    if let StopRecord::Damaged(damage) = store.stop_record() {
        tracing::error!("{damage}: damage at the end of a log looks like the result of a crash");
    }
    store
}

/// Closes logs, and records where they end.
pub(crate) fn close_store(store: Option<&dyn Store>, close_logs: impl FnOnce()) {
    close_logs();
    if let Some(Err(error)) = store.map(Store::close) {
        tracing::warn!(%error, "cannot record where the logs ended; the next start takes damage at their ends for a crash");
    }
}

/// Runs disk work on a thread where it blocks no other task.
#[expect(clippy::disallowed_methods, reason = "start and end of the broker wait for the disk")]
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
