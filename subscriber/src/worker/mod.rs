//! The crawler's main loop: connects to the broker, takes tasks, and works on each until it is
//! answered.
//!
//! Every task is a future of its own, and many can be open; the group never releases two
//! tasks of one host at a time. A lost connection ends no task: tasks finish, and their replies are
//! sent on the next connection, which resumes the member's identity.

#![expect(
    clippy::disallowed_methods,
    reason = "this is the crawler's main loop: it owns its tasks and waits"
)]

mod broker_link;
mod clock;
mod feeds;
mod finish;
mod key_lock;
mod page;
mod record;
mod revisits;
mod robots_cache;
mod task;
mod task_spec;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidings_client::{Backoff, Client, ClientError, ClientOptions, Deliveries, Delivery, connect};
use tidings_protocol::{Code, Command, MemberId, ProtocolError, TaskId, field_number};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::broker_link::BrokerLink;
use self::key_lock::KeyLocks;
use self::revisits::RevisitIndex;
use self::robots_cache::RobotsCache;
use self::task::Task;
use self::task_spec::TaskSpec;
use crate::acked_links::AckedLinks;
use crate::config::CrawlerConfig;
use crate::fetch::{Fetcher, FetcherError};
use crate::report::{PageId, PageReport};
use crate::robots::product_token;
use crate::sink::{OpenError, STOP_CLOSE, Sinks, StoreError};
use crate::spool::Spools;
use crate::state::StateStore;
use crate::traps::Traps;

/// The kind of a site's sitemaps in `crawler.db`.
const SITEMAPS_KIND: &str = "sitemaps";
/// Longest pause between two attempts to connect to the broker.
const RECONNECT_BACKOFF_MAX: Duration = Duration::from_secs(10);
/// How often the broker's clock is compared with ours.
const CLOCK_SAMPLE_EVERY: Duration = Duration::from_secs(10);
/// A broker that does not answer `PING` within this time counts as lost.
const BROKER_TIMEOUT: Duration = Duration::from_secs(10);
/// After a stop, running requests may go on for this long; then they are aborted.
const STOP_GRACE: Duration = Duration::from_millis(400);
/// After that, replies may take this long to be sent.
const STOP_ANSWERS: Duration = Duration::from_millis(200);

/// The key of an entry of the group, the same for every attempt: its run and its number.
type EntryKey = (u64, u64);

/// Why a crawler could not start, or ended by itself.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CrawlError {
    /// A sink cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The reader of standard output has closed it.
    #[error("standard output is closed")]
    OutputClosed,
    /// The headers or the proxy of the configuration cannot be used.
    #[error("cannot prepare requests: {0}")]
    Client(#[from] FetcherError),
    /// The broker refuses this crawler; a retry would not change that.
    #[error("the broker at {broker} refuses this crawler: {refusal}")]
    Refused {
        /// The address, as configured.
        broker: String,
        /// The broker's error.
        refusal: ProtocolError,
    },
    /// The program that listens there is not a broker.
    #[error("{broker}: {reason}")]
    NoBroker {
        /// The address, as configured.
        broker: String,
        /// What is wrong.
        reason: ClientError,
    },
    /// Another crawler has resumed this crawler's identity.
    #[error("another crawler has resumed the identity of this one at the broker {broker}")]
    Replaced {
        /// The address, as configured.
        broker: String,
    },
}

/// State that all tasks of a crawler share.
#[derive(Debug)]
struct Crawler {
    config: CrawlerConfig,
    /// The product token that robots.txt rules are matched with.
    product_token: String,
    /// Dropped before the connections: these close one by one, and files are closed meanwhile.
    sinks: Sinks,
    fetcher: Fetcher,
    reports: mpsc::Sender<PageReport>,
    broker: BrokerLink,
    robots_cache: Mutex<RobotsCache>,
    /// Links that an applied `ACK` has carried.
    acked_links: Mutex<AckedLinks>,
    traps: Mutex<Traps>,
    /// Which pages may have a stored record.
    revisits: Mutex<RevisitIndex>,
    /// One lock for each authority, so that one task at a time fetches its robots.txt.
    robots_locks: KeyLocks,
    /// Dropped together with the sinks.
    state: StateStore,
    running: Mutex<HashMap<EntryKey, RunningTask>>,
    /// The `since` of the group, if the broker sends it; the group keeps it for life.
    since: Mutex<Option<u64>>,
    /// The longest lease seen so far: a task with a shorter one was leased before.
    lease_max: Mutex<Duration>,
    tasks: TaskTracker,
    /// Cancelled: no new request begins.
    stop: CancellationToken,
    /// Cancelled: running requests are aborted.
    abandon: CancellationToken,
}

/// An attempt in progress.
#[derive(Debug)]
struct RunningTask {
    attempt: u32,
    /// Ends after its request has ended.
    task: JoinHandle<()>,
    /// Ends the attempt without a reply when it is dropped.
    _alive: oneshot::Sender<Infallible>,
}

/// Why the service of a connection ended.
enum ConnectionEnd {
    Stop(Client, Deliveries),
    OutputClosed(Client, Deliveries),
    Lost(ClientError),
}

/// Crawls until `stop`: takes tasks from the group, works on them, and sends a report of each page.
/// Reconnects whenever the connection to the broker is lost.
///
/// After `stop` it returns within a second. Tasks that have not begun are returned uncounted. Tasks
/// with a running request, or with a page that is not stored yet, get half of that time; then they
/// are aborted and returned uncounted, but as tasks that made a request, so that the host's delay
/// applies. Read the receiver of `reports` until it ends; if it is dropped, only reports are lost.
pub async fn run(
    config: CrawlerConfig,
    reports: mpsc::Sender<PageReport>,
    stop: CancellationToken,
) -> Result<(), CrawlError> {
    // The certificates are read meanwhile.
    let opening = {
        let config = config.clone();
        tokio::task::spawn_blocking(move || {
            let (sinks, closing) = Sinks::open(&config.sinks(), &config.sink_context())?;
            let state = StateStore::open(&config.data);
            let directory = config.data.join("spool");
            let spools = Spools::with_trouble_reporter(&directory, sinks.trouble_reporter())
                .map_err(|source| OpenError::Io { path: directory, source })?;
            Ok::<_, OpenError>(((sinks, closing), state, spools))
        })
    };
    let fetcher = Fetcher::new(&config.fetch)?;
    let ((sinks, closing), (state, state_closing), spools) =
        opening.await.expect("opening files does not panic")?;
    let fetcher = fetcher.with_spools(spools);
    let crawler = Arc::new(Crawler {
        product_token: product_token(&config.fetch.agent).to_owned(),
        fetcher,
        revisits: Mutex::new(RevisitIndex::new(sinks.have_records())),
        sinks,
        reports,
        broker: BrokerLink::new(),
        robots_cache: Mutex::default(),
        acked_links: Mutex::default(),
        traps: Mutex::new(Traps::new(config.traps.clone(), this_year())),
        robots_locks: KeyLocks::default(),
        state,
        running: Mutex::default(),
        since: Mutex::default(),
        lease_max: Mutex::default(),
        tasks: TaskTracker::new(),
        stop,
        abandon: CancellationToken::new(),
        config,
    });
    let result = crawl(&crawler).await;
    drop(crawler);
    // Answered pages are on the disk already; the rest may wait long for another process's lock.
    let _ = timeout(STOP_CLOSE, async { tokio::join!(closing.wait(), state_closing.wait()) }).await;
    result
}

/// The year from which calendar traps are judged.
fn this_year() -> u16 {
    let now = jiff::Timestamp::now().to_zoned_datetime(jiff::tz::TimeZone::UTC);
    u16::try_from(now.year()).unwrap_or_default()
}

/// Connects, serves the connection, and reconnects, until the crawler stops or fails.
async fn crawl(crawler: &Arc<Crawler>) -> Result<(), CrawlError> {
    let (mut member, mut was_connected) = (crawler.config.member, false);
    let mut backoff = Backoff::up_to(RECONNECT_BACKOFF_MAX);
    let mut is_logged = false;
    loop {
        let error = tokio::select! {
            biased;
            () = crawler.stop.cancelled() => {
                drain(crawler, None).await;
                return Ok(());
            }
            joined = join(crawler, &mut member) => match joined {
                Ok((client, deliveries, credit)) => {
                    let broker = &crawler.config.broker;
                    tracing::info!("joined group {} at {broker}", crawler.config.group);
                    (is_logged, was_connected) = (false, true);
                    backoff.reset();
                    match serve(crawler, client, deliveries, credit).await {
                        ConnectionEnd::Stop(client, deliveries) => {
                            drain(crawler, Some((client, deliveries))).await;
                            return Ok(());
                        }
                        ConnectionEnd::OutputClosed(client, deliveries) => {
                            drain(crawler, Some((client, deliveries))).await;
                            return Err(CrawlError::OutputClosed);
                        }
                        ConnectionEnd::Lost(error) => error,
                    }
                }
                Err(error) => error,
            },
        };
        if let Some(fatal) = fatal_error(crawler, &error, was_connected) {
            drain(crawler, None).await;
            return Err(fatal);
        }
        if !std::mem::replace(&mut is_logged, true) {
            let running = crawler.running.lock().len();
            tracing::warn!("{error}; reconnecting ({running} tasks are held meanwhile)");
        }
        tokio::select! {
            () = crawler.stop.cancelled() => {}
            () = sleep(backoff.next_pause()) => {}
        }
    }
}

/// The error that ends the crawler, if a retry cannot help.
fn fatal_error(crawler: &Crawler, error: &ClientError, was_connected: bool) -> Option<CrawlError> {
    let broker = crawler.config.broker.clone();
    match error {
        ClientError::Ended(refusal) if refusal.code == Code::Replaced => {
            Some(CrawlError::Replaced { broker })
        }
        // The group's log is damaged: an operator can repair it, as the broker's error text says.
        ClientError::Refused(refusal) if refusal.code == Code::Conflict => None,
        ClientError::Refused(refusal) if !refusal.code.is_transient() => {
            Some(CrawlError::Refused { broker, refusal: refusal.clone() })
        }
        ClientError::Protocol(_) | ClientError::Tls { .. } if !was_connected => {
            Some(CrawlError::NoBroker { broker, reason: error.clone() })
        }
        _ => None,
    }
}

/// Connects, resumes the member's identity if there is one, and joins the group. Returns the credit
/// that was sent.
async fn join(
    crawler: &Crawler,
    member: &mut Option<MemberId>,
) -> Result<(Client, Deliveries, u32), ClientError> {
    let options = ClientOptions {
        name: Some(crawler.config.name.clone()),
        resume: *member,
        security: crawler.config.security.clone(),
        ..ClientOptions::default()
    };
    let patience = options.connect_timeout;
    let sent_ms = crawler.broker.now_ms();
    let (client, deliveries) = connect(&crawler.config.broker, options).await?;
    crawler.broker.restart_clock(sent_ms, client.hello().clock_ms);
    *member = Some(client.hello().resume);
    let credit = crawler.credit(crawler.sinks.trouble().as_ref());
    let join = crawler.join(credit);
    let silent =
        || ClientError::Timeout { address: crawler.config.broker.clone(), after: patience };
    let joined = timeout(patience, client.request(&join)).await.map_err(|_| silent())??;
    *crawler.since.lock() = field_number(&joined.ok, "since");
    Ok((client, deliveries, credit))
}

/// Handles deliveries until the connection is lost or the crawler must stop.
async fn serve(
    crawler: &Arc<Crawler>,
    client: Client,
    mut deliveries: Deliveries,
    credit: u32,
) -> ConnectionEnd {
    crawler.broker.connected(client.clone());
    let lost = {
        let watch = watch_clock(crawler, &client);
        let sinks = watch_sinks(crawler, &client, credit);
        tokio::pin!(watch, sinks);
        loop {
            tokio::select! {
                biased;
                () = crawler.stop.cancelled() => break None,
                delivery = deliveries.next() => match delivery {
                    Some(delivery) => crawler.handle_delivery(delivery),
                    None => break Some(deliveries.reason()),
                },
                error = &mut watch => break Some(error),
                ended = &mut sinks => break ended,
            }
        }
    };
    match lost {
        None if crawler.stop.is_cancelled() => ConnectionEnd::Stop(client, deliveries),
        None => ConnectionEnd::OutputClosed(client, deliveries),
        Some(lost) => {
            crawler.broker.disconnected();
            ConnectionEnd::Lost(lost)
        }
    }
}

/// Sets the credit to 0 while a sink is in trouble, and restores it afterwards. Returns the error
/// of a lost connection, or `None` when a sink can never be written again.
async fn watch_sinks(crawler: &Crawler, client: &Client, mut credit: u32) -> Option<ClientError> {
    loop {
        let trouble = crawler.sinks.trouble_change(credit == 0).await;
        if trouble.as_ref().is_some_and(|trouble| trouble.closed) {
            return None;
        }
        credit = crawler.credit(trouble.as_ref());
        match client.request(&crawler.join(credit)).await {
            Ok(_) => {}
            Err(ClientError::Refused(refusal)) => tracing::warn!("the broker reports: {refusal}"),
            Err(lost) => return Some(lost),
        }
    }
}

/// Samples the broker's clock at intervals; returns when the broker does not answer.
async fn watch_clock(crawler: &Crawler, client: &Client) -> ClientError {
    loop {
        match timeout(BROKER_TIMEOUT, crawler.broker.read_clock(client)).await {
            Ok(Ok(())) => sleep(CLOCK_SAMPLE_EVERY).await,
            Ok(Err(error)) => return error,
            Err(_) => {
                let address = crawler.config.broker.clone();
                return ClientError::Timeout { address, after: BROKER_TIMEOUT };
            }
        }
    }
}

/// Stops in order: takes no new tasks, returns those not begun, lets requests finish, aborts the
/// rest.
async fn drain(crawler: &Arc<Crawler>, connection: Option<(Client, Deliveries)>) {
    crawler.tasks.close();
    let Some((client, mut deliveries)) = connection else {
        crawler.abandon.cancel();
        crawler.broker.cancel_replies();
        crawler.tasks.wait().await;
        return;
    };
    // Tasks that the broker has sent already are returned as they arrive.
    let delivering = async {
        while let Some(delivery) = deliveries.next().await {
            crawler.handle_delivery(delivery);
        }
        crawler.broker.disconnected();
        crawler.broker.cancel_replies();
        std::future::pending::<()>().await;
    };
    let ending = async {
        let leaving = async {
            let none = crawler.join(0);
            let _ = client.request(&none).await;
            // Tasks sent before the answer to `JOIN` arrive before the answer to `PING` [T11].
            let _ = client.ping().await;
        };
        let (_, _) =
            tokio::join!(timeout(STOP_GRACE, leaving), timeout(STOP_GRACE, crawler.tasks.wait()));
        crawler.abandon.cancel();
        let _ = timeout(STOP_ANSWERS, crawler.tasks.wait()).await;
        crawler.broker.cancel_replies();
        crawler.tasks.wait().await;
    };
    tokio::select! {
        // Biased: deliveries that have arrived are handled before the connection is closed.
        biased;
        () = delivering => {}
        () = ending => {}
    }
}

impl Crawler {
    fn join(&self, credit: u32) -> Command<'static> {
        Command::Join { group: self.config.group.clone(), credit: Some(credit) }
    }

    /// The number of tasks to ask for: 0 while a sink is in trouble.
    fn credit(&self, trouble: Option<&StoreError>) -> u32 {
        if trouble.is_some() { 0 } else { self.config.credit }
    }

    fn handle_delivery(self: &Arc<Self>, delivery: Delivery) {
        match delivery {
            Delivery::Task { id, clock_ms, lease_ms, payload } => {
                self.start_task(id, clock_ms, Duration::from_millis(lease_ms), payload);
            }
            Delivery::Notice(refusal) => tracing::warn!("the broker reports: {refusal}"),
            // The crawler subscribes to no topic and watches no group.
            Delivery::Msg { .. }
            | Delivery::Lag { .. }
            | Delivery::Gap { .. }
            | Delivery::More(_) => {}
        }
    }

    /// Starts a task, unless this attempt runs already: after a reconnection the broker sends again
    /// the tasks that the member holds. An older attempt of the same entry ends first, so there are
    /// never two requests for it.
    fn start_task(self: &Arc<Self>, id: TaskId, clock_ms: u64, lease: Duration, payload: String) {
        let resumed = {
            let mut lease_max = self.lease_max.lock();
            *lease_max = lease.max(*lease_max);
            lease < *lease_max
        };
        let page = PageId::of(&id, *self.since.lock());
        let order = TaskSpec::parse(payload, id.run);
        let task = Task { id, page, clock_ms, lease, spec: order, resumed };
        let (entry, attempt) = (task.entry(), task.id.attempt);
        let mut running = self.running.lock();
        if running.get(&entry).is_some_and(|same| same.attempt == attempt) {
            return;
        }
        // Dropping its sender aborts the request of the earlier attempt, then the attempt itself.
        let earlier = running.remove(&entry).map(|earlier| earlier.task);
        let (alive, overtaken) = oneshot::channel::<Infallible>();
        let guard = TaskEndGuard { crawler: Arc::clone(self), entry, attempt };
        let task = self.tasks.spawn(async move {
            if let Some(earlier) = earlier {
                // A panic of the earlier attempt does not matter here.
                let _ = earlier.await;
            }
            tokio::select! {
                biased;
                _ = overtaken => {}
                // Boxed: otherwise the runtime would copy its kilobytes whenever it moves the
                // future.
                () = Box::pin(task::work(&guard.crawler, task)) => {}
            }
        });
        running.insert(entry, RunningTask { attempt, task, _alive: alive });
    }
}

/// Removes an attempt from `running` when it ends for any reason.
struct TaskEndGuard {
    crawler: Arc<Crawler>,
    entry: EntryKey,
    attempt: u32,
}

impl Drop for TaskEndGuard {
    fn drop(&mut self) {
        let mut running = self.crawler.running.lock();
        if running.get(&self.entry).is_some_and(|running| running.attempt == self.attempt) {
            running.remove(&self.entry);
        }
    }
}
