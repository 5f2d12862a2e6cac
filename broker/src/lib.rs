//! The Tidings broker: whoever knows something says it in one line, and everybody who cares hears
//! it at once.
//!
//! | module | what it is |
//! |---|---|
//! | [`topic`] | append-only streams of events, encoded once; readers are cursors on them |
//! | [`group`], [`job`] | pure state machines: shared, keyed, paced queues; counted crawls |
//! | [`groups`] | the tasks that own them and feed them from topics |
//! | `catalog` | what must survive besides events: settings, cursors, positions, in one journal |
//! | `net` | the listener and the connections: the only code with sockets |
//! | [`mailbox`] | how groups reach connections |
//! | `stats` | counters for `STATS`, and the log lines that many peers may cause |
//! | [`data_dir`] | the directory on disk, held by one process at a time |
//! | [`clock`], [`config`] | the one place that reads clocks, the place for limits |
//!
//! `net` calls `topic` and `groups`; `groups` calls `group` and `topic`; nobody calls back except
//! through a mailbox or a waker.

mod catalog;
pub mod clock;
pub mod config;
pub mod data_dir;
pub mod group;
pub mod groups;
pub mod job;
mod log;
pub mod mailbox;
mod net;
mod stats;
pub mod topic;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::catalog::Catalog;
pub use self::catalog::{Sync, TopicSettings};
use self::clock::Clock;
pub use self::config::{BrokerConfig, Limits};
pub use self::data_dir::DataDir;
use self::log::disk::{Disk, FileSystem};
use self::net::Hub;
use self::topic::{Storage, Topics};

/// File descriptors that are not for connections.
const DESCRIPTORS_KEPT: u64 = 128;

/// A running broker. Dropping it stops it without waiting.
#[derive(Debug)]
pub struct Broker {
    local_addr: SocketAddr,
    hub: Arc<Hub>,
    stop: CancellationToken,
    tasks: TaskTracker,
    /// Held until nobody writes there any more.
    _data: Option<DataDir>,
}

/// Why a broker did not start. Nothing runs then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Another process listens there. Stop it, or choose another address.
    #[error("{address} is in use by another process")]
    AddrInUse {
        /// The address that was asked for.
        address: SocketAddr,
    },
    /// The system does not allow it: a foreign address, a port that needs rights.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address that was asked for.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// Another process works in the data directory. Stop it, or choose another directory.
    #[error("{} is in use by another tidings{}", path.display(), with_pid(*pid))]
    DataInUse {
        /// The directory.
        path: PathBuf,
        /// The number of that process, if it is known.
        pid: Option<u32>,
    },
    /// The data directory cannot be made, opened or locked.
    #[error("cannot use the data directory {}: {source}", path.display())]
    Data {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

fn with_pid(pid: Option<u32>) -> String {
    pid.map_or(String::new(), |pid| format!(" (pid {pid})"))
}

impl Broker {
    /// Listens and serves until it is stopped or dropped. To be called within a tokio runtime.
    pub async fn start(mut config: BrokerConfig) -> Result<Self, StartError> {
        let connections_max = &mut config.limits.connections_max;
        let reachable = descriptors().map_or(usize::MAX, connections_within);
        if reachable < *connections_max {
            let wanted = *connections_max;
            tracing::warn!(reachable, wanted, "the limit of open files allows fewer connections");
            *connections_max = reachable;
        }
        let clock = Clock::new();
        let (limits, defaults) = (config.limits.clone(), config.topic_defaults);
        let path = config.data.clone();
        let (data, topics) = blocking(move || open_topics(path, &limits, defaults, clock)).await?;
        let address = config.listen;
        let (listener, local_addr) =
            net::listen(address).map_err(|source| match source.kind() {
                io::ErrorKind::AddrInUse => StartError::AddrInUse { address },
                _ => StartError::Listen { address, source },
            })?;
        let stop = CancellationToken::new();
        let tasks = TaskTracker::new();
        let hub = Hub::new(config, clock, topics, stop.clone());
        net::serve(listener, hub.clone(), stop.clone(), &tasks);
        net::tend(hub.clone(), stop.clone(), &tasks);
        tracing::info!(%local_addr, "listening");
        Ok(Self { local_addr, hub, stop, tasks, _data: data })
    }

    /// Where it listens; tells the port if port 0 was asked for.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Stops accepting, sends every connection what is pending for it, and closes them all.
    /// Bounded by [`Limits::stop_ms`] and a little.
    pub async fn stop(self) {
        self.stop.cancel();
        self.tasks.close();
        self.hub.close_all();
        let bound = Duration::from_millis(self.hub.limits.stop_ms.saturating_add(100));
        if !net::within(bound, self.tasks.wait()).await {
            tracing::warn!(tasks = self.tasks.len(), "connections did not end in time");
        }
        let hub = self.hub.clone();
        blocking(move || hub.topics.close()).await;
    }
}

/// Takes the data directory, and finds out what is in it.
fn open_topics(
    path: Option<PathBuf>,
    limits: &Limits,
    defaults: TopicSettings,
    clock: Clock,
) -> Result<(Option<DataDir>, Arc<Topics>), StartError> {
    let Some(path) = path else { return Ok((None, Topics::in_memory(limits, clock))) };
    let data = DataDir::open(&path)?;
    let failed = |source| StartError::Data { path: path.clone(), source };
    let disk: Arc<dyn Disk> = Arc::new(FileSystem);
    let (catalog, findings) =
        Catalog::open(Arc::clone(&disk), data.path(), limits, clock).map_err(failed)?;
    for finding in findings {
        tracing::error!("{finding}");
    }
    let storage = Storage { disk, dir: data.topics() };
    let topics = Topics::start(limits, clock, catalog, Some(storage), defaults).map_err(failed)?;
    Ok((Some(data), topics))
}

/// Runs what waits for the disk where it keeps nobody waiting.
#[expect(clippy::disallowed_methods, reason = "start and end of the broker wait for the disk")]
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// File descriptors that this process may have; `None`: any number.
fn descriptors() -> Option<u64> {
    #[cfg(unix)]
    return rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    #[cfg(not(unix))]
    None
}

/// How many of so many descriptors are for connections. Some are kept for everything else, not
/// least for accepting one connection too many and telling it so.
fn connections_within(descriptors: u64) -> usize {
    let connections = descriptors - DESCRIPTORS_KEPT.min(descriptors / 2);
    usize::try_from(connections).unwrap_or(usize::MAX)
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.stop.cancel();
        self.hub.close_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_kept_for_other_things_than_connections() {
        assert_eq!(connections_within(1_024), 896);
        assert_eq!(connections_within(64), 32);
        assert_eq!(connections_within(0), 0);
    }
}
