//! A web server that uses little of the machine and records every request, to measure and judge
//! crawlers. It has one thread and prepared responses.
//!
//! Its hosts are addresses of 127.1.0.0/16 on one port, so thousands of them need neither names nor
//! root.
//!
//! The recorded times can only be milder than what the client did. The start of a request is read
//! after its first bytes arrived, so the client began no later. The end is read before the last
//! byte of the response is sent, so the client saw the end no earlier. A recorded pause between the
//! two is therefore never shorter than the pause of the client.

#![expect(clippy::disallowed_methods, reason = "the origin has a thread and timestamps")]

mod politeness;
mod scripted;
mod server;
mod site;
mod verdict;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tokio::runtime;
use tokio::sync::oneshot;

pub use self::politeness::HostRequests;
pub use self::site::{HOSTS_MAX, RequestTarget, Site};
pub use self::verdict::{OriginRequest, RequestLog, Verdict};

/// Connections that wait to be accepted. A crawler may connect to all hosts at the same moment, and
/// a connection that does not fit is tried again a second later. The kernel limits this to
/// `net.core.somaxconn`.
const ACCEPT_BACKLOG: i32 = 16_384;

/// A running origin. It stops when dropped.
#[derive(Debug)]
pub struct Origin {
    state: Arc<OriginState>,
    site: Site,
    port: u16,
    /// Dropped to stop the thread.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

#[derive(Debug)]
struct OriginState {
    began: Instant,
    log: Mutex<RequestLog>,
    changed: Condvar,
}

impl OriginState {
    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn lock_log(&self) -> MutexGuard<'_, RequestLog> {
        self.log.lock().expect("no code panics while it holds the lock")
    }

    /// Records a request, and returns its index in the log.
    fn record_start(&self, host: u32, target: RequestTarget, start: Duration) -> usize {
        let mut log = self.lock_log();
        log.requests.push(OriginRequest { host, target, start, end: None });
        self.changed.notify_all();
        log.requests.len() - 1
    }

    fn record_end(&self, request: usize, end: Option<Duration>) {
        self.lock_log().requests[request].end = end;
        self.changed.notify_all();
    }
}

impl Origin {
    /// Serves a site. `listen` must cover all of 127.1.0.0/16, such as `0.0.0.0:0`. Connections
    /// from other machines are closed.
    pub fn serve(site: Site, listen: SocketAddr) -> Result<Self> {
        ensure!(site.hosts <= HOSTS_MAX, "{} hosts: expected at most {HOSTS_MAX}", site.hosts);
        let listener =
            TcpListener::bind(listen).with_context(|| format!("cannot listen on {listen}"))?;
        rustix::net::listen(&listener, ACCEPT_BACKLOG)?;
        let port = listener.local_addr()?.port();
        // The log does not grow even if a crawler requests everything twice.
        let expected = 2 * (site.total_pages() + site.total_data() + u64::from(site.hosts));
        let requests = Vec::with_capacity(usize::try_from(expected)?);
        let state = Arc::new(OriginState {
            began: Instant::now(),
            log: Mutex::new(RequestLog { requests, connections: 0 }),
            changed: Condvar::new(),
        });
        let (stop, stopped) = oneshot::channel::<()>();
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let serving = server::serve(site, listener, Arc::clone(&state));
        let thread = thread::Builder::new().name("origin".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    result = serving => result,
                    _ = stopped => Ok(()),
                }
            })
        })?;
        Ok(Self { state, site, port, stop: Some(stop), thread: Some(thread) })
    }

    /// The site that it serves.
    pub fn site(&self) -> &Site {
        &self.site
    }

    /// The port that it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL of a page.
    pub fn url(&self, host: u32, page: u32) -> String {
        format!("http://{}:{}/p/{page}", Site::host_address(host), self.port)
    }

    /// The URL of the first page of each host.
    pub fn seeds(&self) -> impl Iterator<Item = String> {
        (0..self.site.hosts).map(|host| self.url(host, 0))
    }

    /// The time since the start, on the clock of the request log.
    pub fn now(&self) -> Duration {
        self.state.now()
    }

    /// A copy of the request log.
    pub fn request_log(&self) -> RequestLog {
        self.state.lock_log().clone()
    }

    /// Number of requests so far.
    pub fn request_count(&self) -> usize {
        self.state.lock_log().requests.len()
    }

    /// Applies `find` to the log after each request and each response until it returns `Some`, for
    /// `timeout` at most.
    pub fn wait_for<T>(
        &self,
        timeout: Duration,
        mut find: impl FnMut(&RequestLog) -> Option<T>,
    ) -> Result<T> {
        let deadline = Instant::now() + timeout;
        let mut log = self.state.lock_log();
        loop {
            if let Some(value) = find(&log) {
                return Ok(value);
            }
            let remaining = deadline.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                bail!("the expected request did not arrive within {timeout:?}");
            }
            let waited = self.state.changed.wait_timeout(log, remaining);
            log = waited.expect("no code panics while it holds the lock").0;
        }
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        drop(self.stop.take());
        // If the thread failed, a caller that waited for requests has already seen a timeout.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
