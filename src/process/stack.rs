//! A broker and its crawler in one process. They communicate over a socket, as they would on two
//! machines.

#![expect(clippy::disallowed_methods, reason = "the crawler is a task beside its printer")]

use std::fs::DirBuilder;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use tidings_broker::{Broker, BrokerConfig, DataDir, Sockets, StartError};
use tidings_client::ClientError;
use tidings_protocol::MemberId;
use tidings_subscriber::{CrawlError, CrawlerConfig, PageReport};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::flags::address::BrokerAddress;
use crate::terminal::failure::Failure;

/// The limit of fetched pages that are not printed yet; at this limit the crawler waits.
const REPORTS_MAX: usize = 1024;
/// The shortest time between two batches of printed pages, which is faster than people read.
const REPORTS_INTERVAL: Duration = Duration::from_millis(10);

/// The file in the data directory of a broker of a community.
pub(crate) const COPY_FILE: &str = "cluster";

/// The time limit of a stop as a whole. Most stops are much faster.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StopTimeout(pub(crate) Duration);

impl Default for StopTimeout {
    /// Less than a second.
    fn default() -> Self {
        Self(Duration::from_millis(930))
    }
}

impl StopTimeout {
    /// The part for the crawler, which returns its tasks before the broker closes connections.
    pub(crate) fn crawler(self) -> Duration {
        self.0 * 7 / 8
    }

    /// The limit for the broker's connections: what is left after the crawler, but at most this.
    pub(crate) fn connections(self) -> Duration {
        self.0 / 4
    }
}

/// The clock of a stop.
#[derive(Debug)]
pub(crate) struct StopTimer {
    began: Instant,
    time: Duration,
}

impl StopTimer {
    /// Starts the clock of a stop with this time limit.
    pub(crate) fn begin(time: Duration) -> Self {
        Self { began: Instant::now(), time }
    }

    /// The time that is left.
    pub(crate) fn left(&self) -> StopTimeout {
        StopTimeout(self.time.saturating_sub(self.began.elapsed()))
    }
}

/// Starts a broker; the failure names the address or directory that is not available, and a remedy.
pub(crate) async fn start_broker(config: BrokerConfig) -> Result<Broker, Failure> {
    start_broker_on(config, Sockets::default()).await
}

/// The same with sockets that are already open.
pub(crate) async fn start_broker_on(
    config: BrokerConfig,
    sockets: Sockets,
) -> Result<Broker, Failure> {
    let listen = config.listen;
    check_is_no_copy(&config)?;
    Broker::start_on(config, sockets).await.map_err(|error| match error {
        StartError::AddrInUse { address } if address != listen => start_failure(error, "--http"),
        error => start_failure(error, "--listen"),
    })
}

/// Refuses the data of a broker of a community, which would no longer be a copy.
fn check_is_no_copy(config: &BrokerConfig) -> Result<(), Failure> {
    let Some(data) = config.data.as_deref().filter(|data| data.join(COPY_FILE).exists()) else {
        return Ok(());
    };
    let data = data.display();
    Err(Failure::failed(format!(
        "{data} belongs to a broker of a community; start it with --cluster, or make it a broker of \
         its own with `tidings cluster leave --data {data}`"
    )))
}

/// Binds a socket at the address that this flag sets.
pub(crate) fn bind(address: SocketAddr, flag: &str) -> Result<TcpListener, Failure> {
    tidings_broker::bind(address).map_err(|error| start_failure(error, flag))
}

/// The failure of a start, where `flag` sets the address that is in use.
pub(crate) fn start_failure(error: StartError, flag: &str) -> Failure {
    match error {
        StartError::AddrInUse { address } => {
            let or_off = if flag == "--http" { ", or --http off" } else { "" };
            Failure::failed(format!(
                "{address} is in use, perhaps by another Tidings; stop that one or choose another \
                 port with {flag}, such as {flag} {}:0 for a free one{or_off}",
                address.ip()
            ))
        }
        StartError::UnixInUse { .. } => Failure::failed(format!(
            "{error}, perhaps by another Tidings; stop that one or choose another path with --unix"
        )),
        StartError::Unix { .. } => {
            Failure::failed(format!("{error}; choose another path with --unix"))
        }
        StartError::DataInUse { .. } => {
            Failure::failed(format!("{error}; stop it or use --data with another directory"))
        }
        error => Failure::failed(error.to_string()),
    }
}

/// Reserves the member id of the crawler in this process. After both have ended, the next broker
/// does not wait for the leases of that member.
pub(crate) fn set_own_member(config: &mut BrokerConfig) -> MemberId {
    *config.embedded_member.insert(tidings_client::random_member_id())
}

/// Stops a broker within the default time limit.
pub(crate) async fn stop_broker(broker: Broker) {
    stop_broker_within(broker, StopTimeout::default()).await;
}

/// The same within this time limit.
pub(crate) async fn stop_broker_within(broker: Broker, StopTimeout(time): StopTimeout) {
    if tokio::time::timeout(time, broker.stop()).await.is_err() {
        tracing::warn!("the broker did not stop in time; its connections are cut off");
    }
}

/// Fails if a broker of another process works in this data directory.
pub(crate) fn check_unused(data: &Path) -> Result<(), Failure> {
    DataDir::open_read_only(data).map(drop).map_err(|error| start_failure(error, "--data"))
}

/// Creates the data directory, for its owner only.
pub(crate) fn make_data_directory(data: &Path) -> Result<(), Failure> {
    let mut builder = DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder
        .recursive(true)
        .create(data)
        .with_context(|| format!("cannot create the data directory {}", data.display()))?;
    Ok(())
}

/// A crawler that runs as a task.
#[derive(Debug)]
pub(crate) struct Crawler {
    task: JoinHandle<Result<(), CrawlError>>,
    reports: mpsc::Receiver<PageReport>,
    /// Reports accumulate until then.
    next_read: Instant,
    stop: CancellationToken,
    /// The task has ended, and the reason was reported.
    has_ended: bool,
}

impl Crawler {
    /// Starts it. It connects and reconnects by itself.
    pub(crate) fn start(config: CrawlerConfig) -> Self {
        let (sender, reports) = mpsc::channel(REPORTS_MAX);
        let stop = CancellationToken::new();
        let task = tokio::spawn(tidings_subscriber::run(config, sender, stop.clone()));
        Self { task, reports, next_read: Instant::now(), stop, has_ended: false }
    }

    /// The next finished pages; `None` when the crawler has reached its limit of tasks or age,
    /// `Err` when it has failed. Cancel-safe.
    pub(crate) async fn pages(&mut self) -> Result<Option<Vec<PageReport>>, Failure> {
        tokio::time::sleep_until(self.next_read.into()).await;
        let mut pages = Vec::new();
        if self.reports.recv_many(&mut pages, REPORTS_MAX).await > 0 {
            self.next_read = Instant::now() + REPORTS_INTERVAL;
            return Ok(Some(pages));
        }
        let result = (&mut self.task).await;
        self.has_ended = true;
        if matches!(result, Ok(Ok(()))) { Ok(None) } else { Err(crawler_failure(result)) }
    }

    /// Stops it; it returns the tasks that it has not started. Returns the pages that ended
    /// meanwhile.
    pub(crate) async fn stop(mut self, time: Duration) -> Vec<PageReport> {
        self.stop.cancel();
        let mut last = Vec::new();
        let drain = async {
            while let Some(report) = self.reports.recv().await {
                last.push(report);
            }
            if self.has_ended { Ok(Ok(())) } else { (&mut self.task).await }
        };
        match tokio::time::timeout(time, drain).await {
            Ok(Ok(Ok(()))) => {}
            Ok(result) => tracing::warn!("{}", crawler_failure(result).text().unwrap_or_default()),
            Err(_) => {
                tracing::info!("requests that were still open are cut off");
                self.task.abort();
            }
        }
        last
    }
}

/// A broker and its crawler.
#[derive(Debug)]
pub(crate) struct Stack {
    pub(crate) broker: Broker,
    pub(crate) crawler: Crawler,
}

impl Stack {
    /// Stops the crawler, then its broker.
    pub(crate) async fn stop(self, time: StopTimeout) -> Vec<PageReport> {
        let stopping = StopTimer::begin(time.0);
        let last = self.crawler.stop(time.crawler()).await;
        stop_broker_within(self.broker, stopping.left()).await;
        last
    }
}

/// The URL of the HTTP at this address, for clients on this machine.
pub(crate) fn http_url(address: SocketAddr, is_encrypted: bool) -> String {
    let scheme = if is_encrypted { "https" } else { "http" };
    format!("{scheme}://{}/", reachable_address(address))
}

/// The address through which parts of this process, and commands on its data directory, reach the
/// broker: its unix socket, if it has one.
pub(crate) fn client_address(broker: &Broker) -> BrokerAddress {
    match broker.unix_path() {
        Some(path) => BrokerAddress::unix(path),
        None => BrokerAddress::from(reachable_address(broker.local_addr())),
    }
}

/// The address at which a listener is reached from the same machine: loopback, if it listens on all
/// addresses.
pub(crate) fn reachable_address(listening: SocketAddr) -> SocketAddr {
    let mut address = listening;
    if address.ip().is_unspecified() {
        address.set_ip(match listening {
            SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}

fn crawler_failure(result: Result<Result<(), CrawlError>, tokio::task::JoinError>) -> Failure {
    match result {
        Ok(Ok(())) => Failure::failed("the crawler has stopped unexpectedly"),
        Ok(Err(CrawlError::OutputClosed)) => Failure::OutputClosed,
        // Only before the first connection.
        Ok(Err(CrawlError::NoBroker { reason: error @ ClientError::Token(_), .. })) => {
            Failure::Usage(error.to_string())
        }
        Ok(Err(error)) => Failure::Failed(anyhow::Error::new(error)),
        Err(error) => {
            Failure::Failed(anyhow::Error::new(error).context("the crawler has panicked"))
        }
    }
}
