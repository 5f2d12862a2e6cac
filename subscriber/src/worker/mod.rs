//! The crawler's main loop: connects to the broker, takes tasks, and works on each until it is
//! answered.
//!
//! Every task is a future of its own, and many can be open; the group never releases two
//! tasks of one host at a time. A lost connection ends no task: tasks finish, and their replies are
//! sent on the next connection, which resumes the member's identity.

#![expect(clippy::disallowed_methods, reason = "the crawler's main loop owns its tasks and waits")]

mod feeds;
mod finish;
mod host_rests;
mod key_lock;
mod network;
mod page;
mod part_cache;
mod parts;
mod record;
mod rendering;
mod revisits;
mod robots_cache;
mod robots_rules;
mod task;
mod task_spec;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tidings_browser::process::LaunchError;
use tidings_client::{
    Backoff, ClientError, ClientOptions, Connector, ReplyOutcome, TASKS_MAX, Worker, WorkerEvent,
    WorkerLink, WorkerTask,
};
use tidings_protocol::{Code, Command, ProtocolError, TaskAction, TaskReply, trace_id};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{interval, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, Span};

use self::host_rests::HostRests;
use self::key_lock::KeyLocks;
use self::network::NetworkWatch;
use self::part_cache::PartCache;
use self::rendering::Renderer;
use self::revisits::RevisitIndex;
use self::robots_cache::RobotsCache;
use self::task::Task;
use self::task_spec::TaskSpec;
use crate::acked_links::AckedLinks;
use crate::config::CrawlerConfig;
use crate::fetch::{Fetcher, FetcherError};
use crate::report::{PageId, PageReport};
use crate::robots::product_token;
use crate::sink::{OpenError, STOP_CLOSE, Sinks};
use crate::spool::Spools;
use crate::state::StateStore;
use crate::traps::Traps;

/// The kind of a site's sitemaps in `crawler.db`.
const SITEMAPS_KIND: &str = "sitemaps";
/// Longest pause between two attempts to connect to the broker.
const RECONNECT_BACKOFF_MAX: Duration = Duration::from_secs(10);
/// After a stop, running requests may go on for this long; then they are aborted.
const STOP_GRACE: Duration = Duration::from_millis(400);
/// After that, replies may take this long to be sent.
const STOP_ANSWERS: Duration = Duration::from_millis(200);

/// How often the broker is informed about the browsers, if anything about them has changed.
const REPORT_BROWSERS_EVERY: Duration = Duration::from_secs(2);

/// After that, browsers may take this long to close.
const STOP_BROWSERS: Duration = Duration::from_millis(500);

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
    /// No browser can be started.
    #[error("cannot render pages: {0}")]
    Browser(#[from] LaunchError),
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
    /// The program that listens there is not a broker, or a file with certificates or the token
    /// cannot be used.
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
    spools: Spools,
    fetcher: Arc<Fetcher>,
    /// Renders pages, if there is a browser.
    renderer: Option<Renderer>,
    reports: mpsc::Sender<PageReport>,
    broker: WorkerLink,
    /// Whether the log has reported that the group was full.
    was_full: AtomicBool,
    robots_cache: Mutex<RobotsCache>,
    /// Links that an applied `ACK` has carried.
    acked_links: Mutex<AckedLinks>,
    traps: Mutex<Traps>,
    /// Which pages may have a stored record.
    revisits: RevisitIndex,
    /// One lock for each authority, so that one task at a time fetches its robots.txt.
    robots_locks: KeyLocks,
    /// One lock for each host that gets a request of a task, or for a part of a rendered page.
    host_locks: KeyLocks,
    /// Hosts that ask clients to wait, if pages are rendered.
    host_rests: Mutex<HostRests>,
    part_cache: PartCache,
    network: NetworkWatch,
    /// Dropped together with the sinks.
    state: StateStore,
    running: Mutex<HashMap<EntryKey, RunningTask>>,
    /// The `since` of the group, if the broker sends it; the group keeps it for life.
    since: Mutex<Option<u64>>,
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

/// Crawls until `stop`, or until the crawler has reached its limit of tasks or age: takes tasks
/// from the group, works on them, and sends a report of each page. Reconnects when the connection
/// to the broker is lost.
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
            let spools = Spools::with_trouble_reporter(&directory, Some(sinks.trouble_reporter()))
                .map_err(|source| OpenError::Io { path: directory, source })?;
            Ok::<_, OpenError>(((sinks, closing), state, spools))
        })
    };
    let fetcher = Fetcher::new(&config.fetch)?;
    let ((sinks, closing), (state, state_closing), spools) =
        opening.await.expect("opening files does not panic")?;
    let mut fetcher = fetcher.with_spools(spools.clone());
    if config.render.is_some() {
        fetcher = fetcher.with_signs();
    }
    if sinks.may_have_records() {
        fetcher = fetcher.with_text_hashes();
    }
    let (renderer, browsers) = match config.render.clone() {
        Some(render) => Some(Renderer::start(render, Arc::clone(&config.metrics)).await?).unzip(),
        None => (None, None),
    };
    let mut worker = worker(&config);
    let crawler = Arc::new(Crawler {
        product_token: product_token(&config.fetch.agent).to_owned(),
        fetcher: Arc::new(fetcher),
        renderer,
        revisits: RevisitIndex::default(),
        sinks,
        spools,
        reports,
        broker: worker.link(),
        was_full: AtomicBool::default(),
        robots_cache: Mutex::default(),
        acked_links: Mutex::default(),
        traps: Mutex::new(Traps::new(config.traps.clone(), this_year())),
        robots_locks: KeyLocks::default(),
        host_locks: KeyLocks::default(),
        host_rests: Mutex::default(),
        part_cache: PartCache::default(),
        network: NetworkWatch::default(),
        state,
        running: Mutex::default(),
        since: Mutex::default(),
        tasks: TaskTracker::new(),
        stop,
        abandon: CancellationToken::new(),
        config,
    });
    let result = crawl(&crawler, &mut worker).await;
    if let Some(renderer) = &crawler.renderer {
        renderer.stop().await;
    }
    drop(worker);
    drop(crawler);
    let closed = async { tokio::join!(closing.wait(), state_closing.wait()) };
    let browsers = async {
        if let Some(browsers) = browsers {
            browsers.ended().await;
        }
    };
    // Answered pages are on the disk already; the rest may wait long for another process's lock.
    // Browsers that do not close in time end with this process.
    let _ = tokio::join!(timeout(STOP_CLOSE, closed), timeout(STOP_BROWSERS, browsers));
    result
}

/// The year from which calendar traps are judged.
fn this_year() -> u16 {
    let now = jiff::Timestamp::now().to_zoned_datetime(jiff::tz::TimeZone::UTC);
    u16::try_from(now.year()).unwrap_or_default()
}

/// The member of the group that this crawler is.
fn worker(config: &CrawlerConfig) -> Worker {
    let options = ClientOptions {
        name: Some(config.name.clone()),
        resume: config.member,
        security: config.security.clone(),
        ..ClientOptions::default()
    };
    let backoff = Backoff::up_to(RECONNECT_BACKOFF_MAX);
    let connector = Connector::new(&config.broker, options).with_backoff(backoff);
    let mut worker = Worker::new(connector, config.group.clone(), config.credit);
    worker.set_render(
        config
            .render
            .as_ref()
            .map(|render| u32::try_from(render.browsers.pool.slots).unwrap_or(u32::MAX)),
    );
    worker
}

/// Takes tasks until the crawler stops, has reached its limit of tasks or age, or fails. At such a
/// limit the tasks that it has taken are finished.
async fn crawl(crawler: &Arc<Crawler>, worker: &mut Worker) -> Result<(), CrawlError> {
    let mut is_logged = false;
    let trouble = crawler.sinks.trouble();
    let (mut is_blocked, mut is_away) = (trouble.is_some(), false);
    crawler.update_credit(worker, is_blocked, is_away);
    let change = crawler.sinks.trouble_change(is_blocked);
    tokio::pin!(change);
    let network = crawler.network.change(is_away);
    tokio::pin!(network);
    let mut tasks_left = crawler.config.max_tasks;
    let age_limit = crawler.age_limit();
    tokio::pin!(age_limit);
    let (mut is_old, mut has_drained) = (false, false);
    let mut report = interval(REPORT_BROWSERS_EVERY);
    loop {
        tokio::select! {
            biased;
            () = crawler.stop.cancelled() => {
                drain(crawler, worker).await;
                return Ok(());
            }
            () = crawler.tasks.wait(), if has_drained => return Ok(()),
            () = &mut age_limit, if !is_old => {
                is_old = true;
                worker.drain();
            }
            _ = report.tick(), if crawler.renderer.is_some() => {
                worker.set_browsers(crawler.config.metrics.browsers());
            }
            event = worker.next() => match event {
                Ok(WorkerEvent::Drained) => {
                    crawler.tasks.close();
                    has_drained = true;
                }
                Ok(event) => {
                    if let (WorkerEvent::Task(_), Some(left)) = (&event, &mut tasks_left) {
                        *left = left.saturating_sub(1);
                        if *left == 0 {
                            worker.drain();
                        }
                    }
                    crawler.handle_event(event, worker, &mut is_logged);
                }
                Err(error) => {
                    drain(crawler, worker).await;
                    return Err(fatal_error(crawler, error));
                }
            },
            trouble = &mut change => {
                if trouble.as_ref().is_some_and(|trouble| trouble.closed) {
                    drain(crawler, worker).await;
                    return Err(CrawlError::OutputClosed);
                }
                is_blocked = trouble.is_some();
                crawler.update_credit(worker, is_blocked, is_away);
                change.set(crawler.sinks.trouble_change(is_blocked));
            }
            () = &mut network => {
                is_away = !is_away;
                crawler.update_credit(worker, is_blocked, is_away);
                network.set(crawler.network.change(is_away));
            }
        }
    }
}

/// The error of a worker that has ended.
fn fatal_error(crawler: &Crawler, error: ClientError) -> CrawlError {
    let broker = crawler.config.broker.clone();
    match error {
        ClientError::Ended(refusal) if refusal.code == Code::Replaced => {
            CrawlError::Replaced { broker }
        }
        ClientError::Refused(refusal) => CrawlError::Refused { broker, refusal },
        reason => CrawlError::NoBroker { broker, reason },
    }
}

/// Stops in order: takes no new tasks, returns those not begun, lets requests finish, aborts the
/// rest. Without a connection, everything is aborted at once.
async fn drain(crawler: &Arc<Crawler>, worker: &mut Worker) {
    crawler.tasks.close();
    if !worker.is_joined() {
        crawler.abandon.cancel();
        crawler.broker.give_up();
        crawler.tasks.wait().await;
        return;
    }
    worker.drain();
    let drained = CancellationToken::new();
    // Tasks that the broker has sent already are returned as they arrive.
    let delivering = async {
        while let Ok(event) = worker.next().await {
            match event {
                WorkerEvent::Task(task) => crawler.start_task(task),
                WorkerEvent::Drained => drained.cancel(),
                WorkerEvent::Lost(_) => break,
                WorkerEvent::Joined { .. } | WorkerEvent::Notice(_) => {}
            }
        }
        crawler.broker.give_up();
        std::future::pending::<()>().await;
    };
    let ending = async {
        let (_, _) = tokio::join!(
            timeout(STOP_GRACE, drained.cancelled()),
            timeout(STOP_GRACE, crawler.tasks.wait())
        );
        crawler.abandon.cancel();
        let _ = timeout(STOP_ANSWERS, crawler.tasks.wait()).await;
        crawler.broker.give_up();
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
    /// Sets the number of tasks to ask for: 0 while a sink is in trouble or the network is away, and
    /// never more than all.
    fn update_credit(&self, worker: &mut Worker, is_blocked: bool, is_away: bool) {
        let tasks_max = self.config.max_tasks.and_then(|tasks| u32::try_from(tasks).ok());
        let credit = self.config.credit.min(tasks_max.unwrap_or(u32::MAX));
        let credit = if is_blocked || is_away { 0 } else { credit };
        self.config.metrics.set_credit(credit, is_blocked, is_away);
        worker.set_credit(credit);
    }

    /// Waits until the crawler has reached its limit of age.
    async fn age_limit(&self) {
        match self.config.max_age {
            Some(age) => sleep(age.mul_f64(1.0 + fastrand::f64() / 10.0)).await,
            None => std::future::pending().await,
        }
    }

    fn handle_event(
        self: &Arc<Self>,
        event: WorkerEvent,
        worker: &mut Worker,
        is_loss_logged: &mut bool,
    ) {
        let broker = &self.config.broker;
        match event {
            WorkerEvent::Task(task) => {
                if self.running.lock().len() < TASKS_MAX {
                    self.start_task(task);
                } else {
                    tracing::warn!("{broker} sends too many tasks; reconnecting");
                    worker.disconnect();
                }
            }
            WorkerEvent::Joined { since } => {
                self.config.metrics.set_connected(true);
                tracing::info!("joined group {} at {broker}", self.config.group);
                *self.since.lock() = since;
                *is_loss_logged = false;
            }
            WorkerEvent::Notice(refusal) => tracing::warn!("the broker reports: {refusal}"),
            WorkerEvent::Lost(error) => {
                self.config.metrics.set_connected(false);
                if !std::mem::replace(is_loss_logged, true) {
                    let running = self.running.lock().len();
                    tracing::warn!("{error}; reconnecting ({running} tasks are held meanwhile)");
                }
            }
            WorkerEvent::Drained => {}
        }
    }

    /// Sends a reply with its links, and logs why the broker refuses it.
    async fn reply(&self, links: &[Command<'_>], reply: &Command<'_>) -> ReplyOutcome {
        let outcome = self.broker.reply(links, reply).await;
        if let ReplyOutcome::Refused(refusal) = &outcome {
            log_refusal(refusal, reply);
        }
        outcome
    }

    /// Logs once that the group is full: this may change back and forth many times.
    fn log_group_full(&self) {
        if !self.was_full.swap(true, Ordering::Relaxed) {
            tracing::warn!("the group is full; pages with new links will be fetched again later");
        }
    }

    /// Starts a task, unless this attempt runs already: after a reconnection the broker sends again
    /// the tasks that the member holds. An older attempt of the same entry ends first, so there are
    /// never two requests for it.
    fn start_task(self: &Arc<Self>, task: WorkerTask) {
        let WorkerTask { id, payload, lease } = task;
        let page = PageId::of(&id, *self.since.lock());
        let spec = TaskSpec::parse(payload, id.run);
        let task = Task { id, page, lease, spec };
        let (entry, attempt) = (task.entry(), task.id.attempt);
        let mut running = self.running.lock();
        if running.get(&entry).is_some_and(|same| same.attempt == attempt) {
            return;
        }
        // Dropping its sender aborts the request of the earlier attempt, then the attempt itself.
        let earlier = running.remove(&entry).map(|earlier| earlier.task);
        let (alive, overtaken) = oneshot::channel::<Infallible>();
        // Log records of this page name its trace.
        let span = task.spec.traceparent.as_deref().map_or_else(Span::none, |trace| {
            tracing::error_span!("page", trace_id = trace_id(trace))
        });
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
                () = Box::pin(task::work(&guard.crawler, task).instrument(span)) => {}
            }
        });
        running.insert(entry, RunningTask { attempt, task, _alive: alive });
        self.config.metrics.set_held_tasks(running.len());
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
            self.crawler.config.metrics.set_held_tasks(running.len());
        }
    }
}

/// Logs a refused reply. A stale reply is normal after a stall or a lost connection, and so is a
/// full group; any other refusal is a bug in the crawler.
fn log_refusal(refusal: &ProtocolError, reply: &Command<'_>) {
    let is_ack = matches!(reply, Command::Reply(TaskReply { action: TaskAction::Ack(_), .. }));
    match refusal.code {
        Code::Stale => tracing::debug!("{:?}: {}", reply.verb(), refusal.text),
        Code::Limit if is_ack => tracing::debug!("ACK: {}", refusal.text),
        _ => tracing::error!("the broker refused {:?}: {refusal}", reply.verb()),
    }
}
