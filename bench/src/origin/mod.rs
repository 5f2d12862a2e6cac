//! A web server that takes as little of the machine as it can, and remembers every request: what
//! crawlers are measured with and judged by. One thread, answers made beforehand, and nothing
//! allocated for a request.
//!
//! Its hosts are addresses of 127.1.0.0/16 on one port, so that thousands of them need neither
//! names nor root.
//!
//! Times are taken so that the record can only be milder than what the client did. The start of a
//! request is read after its first bytes were received, so the client began no later. The end is
//! read before the last byte of the answer is sent, so the client saw the end no earlier. A pause
//! between the two is therefore never shorter here than the one that the client kept.

#![expect(clippy::disallowed_methods, reason = "it owns a thread, and notes when it is asked")]

mod server;
mod site;
mod verdict;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

pub use self::site::{HOSTS_MAX, RequestTarget, Site};
pub use self::verdict::{OriginRequest, RequestLog, Verdict};

/// Connections that wait to be accepted: all hosts may be called at the same moment, and who finds
/// no place tries again a second later. The kernel takes what `net.core.somaxconn` allows.
const ACCEPT_BACKLOG: i32 = 16_384;

/// A running origin; it stops when dropped.
#[derive(Debug)]
pub struct Origin {
    state: Arc<OriginState>,
    site: Site,
    port: u16,
    thread: Option<JoinHandle<io::Result<()>>>,
}

#[derive(Debug)]
struct OriginState {
    began: Instant,
    log: Mutex<RequestLog>,
    changed: Condvar,
    stopping: AtomicBool,
}

impl OriginState {
    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn lock_log(&self) -> MutexGuard<'_, RequestLog> {
        self.log.lock().expect("nobody panics with the record in hand")
    }
}

impl Origin {
    /// Serves a site. `listen` has to cover all of 127.1.0.0/16, such as `0.0.0.0:0`; whoever asks
    /// from another machine is not answered.
    pub fn serve(site: Site, listen: SocketAddr) -> anyhow::Result<Self> {
        ensure!(site.hosts <= HOSTS_MAX, "there are only {HOSTS_MAX} hosts");
        let listener =
            TcpListener::bind(listen).with_context(|| format!("cannot listen on {listen}"))?;
        rustix::net::listen(&listener, ACCEPT_BACKLOG)?;
        let port = listener.local_addr()?.port();
        // A crawler that asks for some things twice leaves it without another allocation, too.
        let expected = 2 * (site.total_pages() + u64::from(site.hosts));
        let hits = Vec::with_capacity(usize::try_from(expected)?);
        let shared = Arc::new(OriginState {
            began: Instant::now(),
            log: Mutex::new(RequestLog { requests: hits, connections: 0 }),
            changed: Condvar::new(),
            stopping: AtomicBool::new(false),
        });
        let thread = thread::Builder::new().name("origin".to_owned()).spawn({
            let shared = Arc::clone(&shared);
            move || server::serve(site, listener, shared)
        })?;
        Ok(Self { state: shared, site, port, thread: Some(thread) })
    }

    /// The site that it serves.
    pub fn site(&self) -> &Site {
        &self.site
    }

    /// Where it listens.
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

    /// How long it has been running, which is what the times of the record count from.
    pub fn now(&self) -> Duration {
        self.state.now()
    }

    /// What was asked so far.
    pub fn request_log(&self) -> RequestLog {
        self.state.lock_log().clone()
    }

    /// How much was asked so far.
    pub fn request_count(&self) -> usize {
        self.state.lock_log().requests.len()
    }

    /// Looks at the record after each request and each answer until there is what is looked for,
    /// for `patience` at most.
    pub fn wait_for<T>(
        &self,
        patience: Duration,
        mut look: impl FnMut(&RequestLog) -> Option<T>,
    ) -> anyhow::Result<T> {
        let deadline = Instant::now() + patience;
        let mut record = self.state.lock_log();
        loop {
            if let Some(found) = look(&record) {
                return Ok(found);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!("the crawler did not come within {patience:?}");
            }
            let waited = self.state.changed.wait_timeout(record, left);
            record = waited.expect("nobody panics with the record in hand").0;
        }
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.state.stopping.store(true, Ordering::Release);
        // Whoever waited for requests has found that none came.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
