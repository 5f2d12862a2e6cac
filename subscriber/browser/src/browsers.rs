//! The browsers of a crawler: one task owns the pool, and carries out what it decides.

#![expect(clippy::disallowed_methods, reason = "tasks run browsers and pages, and deadlines pass")]

use std::collections::HashMap;
use std::sync::Arc;

use tokio::select;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};

use crate::browser::Browser;
use crate::cdp::Connection;
use crate::pool::{
    BrowserId, BrowserStatus, Input, Output, PageEnd, PageId, Pool, PoolConfig, Reason,
};
use crate::process::{Launcher, Report};
use crate::visit::{self, Fetch, Page, PageError, PageLimits, Rendered};

/// Pages that wait until the owner takes them. If there is no room, a caller waits.
const WANTED_MAX: usize = 64;

/// How often a page is tried if its browser ends: another page may have caused that.
const ATTEMPTS: usize = 2;

/// How browsers are used.
#[derive(Clone, Debug)]
pub struct BrowsersConfig {
    /// How many there are, and when they are replaced.
    pub pool: PoolConfig,
    /// The limits of each page.
    pub page: PageLimits,
    /// The memory of one renderer at which it is killed, in bytes. Its page fails.
    pub renderer_bytes_max: u64,
}

impl Default for BrowsersConfig {
    fn default() -> Self {
        Self {
            pool: PoolConfig::default(),
            page: PageLimits::default(),
            renderer_bytes_max: 768 << 20,
        }
    }
}

/// The browsers. Cheap to clone. When the last one is dropped, pages that run end, and browsers
/// are closed.
#[derive(Clone, Debug)]
pub struct Browsers {
    commands: mpsc::Sender<Command>,
    status: watch::Receiver<Status>,
}

/// The task that owns the browsers.
#[derive(Debug)]
pub struct BrowsersTask(JoinHandle<()>);

#[derive(Debug)]
enum Command {
    Render(Wanted),
    Stop,
}

/// What the browsers do at present.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// Each browser.
    pub browsers: Vec<BrowserStatus>,
    /// How many have ended, in the order of [`Reason::ALL`].
    pub ended: [u64; Reason::ALL.len()],
}

/// A page that a caller waits for.
struct Wanted {
    page: Arc<Page>,
    fetch: Arc<dyn Fetch>,
    reply: oneshot::Sender<Result<Rendered, PageError>>,
}

impl std::fmt::Debug for Wanted {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_tuple("Wanted").field(&self.page.url).finish()
    }
}

impl Browsers {
    /// Browsers that are started when the first page is rendered. `seed` decides how far limits
    /// vary, so it differs between crawlers.
    pub fn new(launcher: Launcher, config: BrowsersConfig, seed: u64) -> (Self, BrowsersTask) {
        let (commands, waiting) = mpsc::channel(WANTED_MAX);
        let (sender, status) = watch::channel(Status::default());
        let owner = Owner {
            pool: Pool::new(config.pool.clone(), seed),
            launcher: Arc::new(launcher),
            config,
            started: Instant::now(),
            last_page: 0,
            wanted: HashMap::new(),
            running: HashMap::new(),
            pages: JoinSet::new(),
            tasks: JoinSet::new(),
            status: sender,
        };
        (Self { commands, status }, BrowsersTask(tokio::spawn(owner.run(waiting))))
    }

    /// Renders a page when a browser has a place for it, and once more if the browser ends before
    /// the page does. If this future is dropped, the page is closed.
    pub async fn render(&self, page: Page, fetch: Arc<dyn Fetch>) -> Result<Rendered, PageError> {
        let page = Arc::new(page);
        let mut rendered = Err(PageError::Unavailable);
        for _ in 0..ATTEMPTS {
            let (reply, answer) = oneshot::channel();
            let wanted = Wanted { page: Arc::clone(&page), fetch: Arc::clone(&fetch), reply };
            if self.commands.send(Command::Render(wanted)).await.is_err() {
                return Err(PageError::Unavailable);
            }
            rendered = answer.await.unwrap_or(Err(PageError::Unavailable));
            if rendered != Err(PageError::Lost) {
                break;
            }
        }
        rendered
    }

    /// What the browsers do.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.clone()
    }

    /// Refuses pages that wait, ends those that run, and closes the browsers.
    pub async fn stop(&self) {
        let _ = self.commands.send(Command::Stop).await;
    }
}

impl BrowsersTask {
    /// Waits until no browser is left, after a stop or the end of the last [`Browsers`].
    pub async fn ended(self) {
        self.0.await.expect("the owner of the browsers does not panic");
    }
}

/// What a browser reports.
enum Notice {
    Started(Connection),
    Measured(u64),
    Exited,
}

/// What a browser is ordered to do.
enum Order {
    Close,
    Kill,
}

struct Ended {
    page: PageId,
    end: PageEnd,
    rendered: Result<Rendered, PageError>,
    reply: oneshot::Sender<Result<Rendered, PageError>>,
}

struct Running {
    orders: mpsc::UnboundedSender<Order>,
    /// Set when it has started.
    connection: Option<Connection>,
}

struct Owner {
    pool: Pool,
    launcher: Arc<Launcher>,
    config: BrowsersConfig,
    started: Instant,
    last_page: u64,
    wanted: HashMap<PageId, Wanted>,
    running: HashMap<BrowserId, Running>,
    pages: JoinSet<Ended>,
    tasks: JoinSet<()>,
    status: watch::Sender<Status>,
}

impl Owner {
    async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        let (notices, mut reports) = mpsc::channel(16);
        let mut takes_commands = true;
        while !self.pool.has_ended() {
            let deadline = self.pool.deadline().map(|at| self.started + at);
            select! {
                command = commands.recv(), if takes_commands => {
                    match command {
                        Some(Command::Render(wanted)) => {
                            self.last_page += 1;
                            let page = PageId(self.last_page);
                            self.wanted.insert(page, wanted);
                            self.handle(Input::Wanted(page), &notices);
                        }
                        Some(Command::Stop) => {
                            // The commands that were sent before are still received, and then
                            // `None`.
                            commands.close();
                            self.handle(Input::Stop, &notices);
                        }
                        None => {
                            takes_commands = false;
                            self.handle(Input::Stop, &notices);
                        }
                    }
                }
                Some((id, notice)) = reports.recv() => self.take(id, notice, &notices),
                Some(ended) = self.pages.join_next() => {
                    let ended = ended.expect("a page's task does not panic");
                    self.handle(Input::Ended(ended.page, ended.end), &notices);
                    // Sent only now: if the caller tries the page again, the pool must not choose
                    // the same browser. The caller may be gone.
                    let _ = ended.reply.send(ended.rendered);
                }
                () = sleep_until(deadline.unwrap_or(self.started)), if deadline.is_some() => {
                    self.handle(Input::Tick, &notices);
                }
            }
        }
        while self.tasks.join_next().await.is_some() {}
    }

    fn take(&mut self, id: BrowserId, notice: Notice, notices: &Notices) {
        match notice {
            Notice::Started(connection) => {
                self.running.get_mut(&id).expect("it runs").connection = Some(connection);
                self.handle(Input::Started(id), notices);
            }
            Notice::Measured(bytes) => self.handle(Input::Memory(id, bytes), notices),
            Notice::Exited => {
                self.running.remove(&id);
                self.handle(Input::Exited(id), notices);
            }
        }
    }

    fn handle(&mut self, input: Input, notices: &Notices) {
        self.pool.handle(input, self.started.elapsed());
        while let Some(output) = self.pool.poll() {
            match output {
                Output::Start(id) => {
                    let (orders, ordered) = mpsc::unbounded_channel();
                    self.running.insert(id, Running { orders, connection: None });
                    let launcher = Arc::clone(&self.launcher);
                    let renderer_bytes_max = self.config.renderer_bytes_max;
                    let notices = notices.clone();
                    self.tasks.spawn(async move {
                        run_browser(id, &launcher, renderer_bytes_max, ordered, &notices).await;
                        // The owner receives until each browser has exited.
                        let _ = notices.send((id, Notice::Exited)).await;
                    });
                }
                Output::Assign(page, browser) => self.render(page, browser),
                Output::Refuse(page) => {
                    let wanted = self.wanted.remove(&page).expect("it waits");
                    // The caller may be gone.
                    let _ = wanted.reply.send(Err(PageError::Unavailable));
                }
                Output::Close(id) => self.order(id, Order::Close),
                Output::Kill(id) => self.order(id, Order::Kill),
            }
        }
        let browsers = self.pool.browsers().collect();
        self.status.send_replace(Status { browsers, ended: self.pool.ended() });
        // Tasks that have ended would stay in the set.
        while self.tasks.try_join_next().is_some() {}
    }

    fn order(&self, id: BrowserId, order: Order) {
        // A browser that has just exited takes no order.
        let _ = self.running[&id].orders.send(order);
    }

    fn render(&mut self, id: PageId, browser: BrowserId) {
        let Wanted { page, fetch, mut reply } = self.wanted.remove(&id).expect("it waits");
        let connection = self.running[&browser].connection.clone().expect("it has started");
        let limits = self.config.page.clone();
        self.pages.spawn(async move {
            let gone = reply.closed();
            let (rendered, end) = visit::render(&connection, &page, &limits, fetch, gone).await;
            Ended { page: id, end, rendered, reply }
        });
    }
}

type Notices = mpsc::Sender<(BrowserId, Notice)>;

/// Runs one browser until it has exited.
async fn run_browser(
    id: BrowserId,
    launcher: &Launcher,
    renderer_bytes_max: u64,
    mut orders: mpsc::UnboundedReceiver<Order>,
    notices: &Notices,
) {
    let started = select! {
        started = Browser::start(launcher, renderer_bytes_max) => started,
        // Dropping a browser kills it.
        _ = orders.recv() => return,
    };
    let mut browser = match started {
        Ok(browser) => browser,
        Err(error) => {
            warn!(browser = id.0, %error, "a browser did not start");
            return;
        }
    };
    info!(browser = id.0, version = browser.version(), "a browser has started");
    let _ = notices.send((id, Notice::Started(browser.connection().clone()))).await;
    loop {
        select! {
            order = orders.recv() => match order {
                Some(Order::Close) => browser.close(),
                Some(Order::Kill) | None => {
                    warn!(browser = id.0, "a browser is killed");
                    browser.kill();
                    while browser.report().await.is_some() {}
                    break;
                }
            },
            report = browser.report() => match report {
                Some(Report::Memory(bytes)) => {
                    let _ = notices.send((id, Notice::Measured(bytes))).await;
                }
                Some(Report::Killed(bytes)) => {
                    warn!(browser = id.0, bytes, "a renderer used too much memory and was killed");
                }
                Some(Report::Ended(status)) => debug!(browser = id.0, status, "a browser ends"),
                None => break,
            },
        }
    }
    info!(browser = id.0, "a browser has ended");
}
