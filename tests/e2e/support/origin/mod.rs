//! A web server that remembers: many hosts (addresses in 127.0.0.0/8) on one port, good and bad
//! pages, and a record of every request as this side saw it.
//!
//! Times are taken so that the record can only be milder than what the client did. `start` is read
//! after the first byte of a request was received, so the client began no later. `end` is read
//! before the last byte of the answer is sent, so the client saw the end no earlier. A gap from
//! `end` to the next `start` is therefore never shorter than the one that the client kept, and an
//! overlap here was one there.

mod http_connection;
mod request_log;
mod site;

use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{fmt, io};

use socket2::SockRef;

pub(crate) use self::request_log::RequestLog;
pub(crate) use self::site::{BAD_PATHS, OriginResponse, Site, full_response, html_response};
use super::wait::WAIT_TIMEOUT;

/// Connections that wait to be accepted; the standard library would have 128 of them.
const BACKLOG: i32 = 4096;

/// One request.
#[derive(Debug, Clone)]
pub(crate) struct Hit {
    /// The address that was asked, which stands for the host.
    pub(crate) host: Ipv4Addr,
    /// The path with its query.
    pub(crate) path: String,
    /// All header lines of the request.
    pub(crate) head: String,
    /// When the first byte had come, since the origin began.
    pub(crate) start: Duration,
    /// When the last byte of the answer was about to be sent; none: not yet, or the client broke
    /// off.
    pub(crate) end: Option<Duration>,
}

impl Hit {
    /// The value of a header of the request.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let headers = self.head.lines().filter_map(|line| line.split_once(':'));
        headers
            .into_iter()
            .find(|(found, _)| found.eq_ignore_ascii_case(name))
            .map(|(_, v)| v.trim())
    }
}

/// Answers some requests; the others are the site's.
type ResponseOverride = dyn Fn(&Hit) -> Option<OriginResponse> + Send + Sync;

/// A running test origin; it stops when dropped.
#[derive(Debug)]
pub(crate) struct Origin {
    shared: Arc<OriginState>,
    port: u16,
    acceptor: Option<JoinHandle<()>>,
}

struct OriginState {
    site: Site,
    override_response: Box<ResponseOverride>,
    started: Instant,
    hits: Mutex<Vec<Hit>>,
    changed: Condvar,
    stopping: AtomicBool,
}

impl fmt::Debug for OriginState {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Shared").field("site", &self.site).finish_non_exhaustive()
    }
}

impl Origin {
    /// Serves the site on a free port of every loopback address.
    #[track_caller]
    pub(crate) fn serve(site: Site) -> Self {
        Self::serve_with(site, |_| None)
    }

    /// The same, with answers of its own for some requests.
    #[track_caller]
    pub(crate) fn serve_with(
        site: Site,
        answers: impl Fn(&Hit) -> Option<OriginResponse> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        // All hosts may be called at the same moment; who finds no place tries again a second
        // later.
        SockRef::from(&listener).listen(BACKLOG).unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(OriginState {
            site,
            override_response: Box::new(answers),
            started: Instant::now(),
            hits: Mutex::default(),
            changed: Condvar::new(),
            stopping: AtomicBool::new(false),
        });
        let acceptor = thread::spawn({
            let shared = Arc::clone(&shared);
            move || accept_connections(&listener, &shared)
        });
        Self { shared, port, acceptor: Some(acceptor) }
    }

    /// The URL of a path on the host with this number (from 0).
    pub(crate) fn url(&self, host: u16, path: &str) -> String {
        format!("http://{}:{}{path}", Site::host(host), self.port)
    }

    /// The URLs of the first page of every host.
    pub(crate) fn seed_urls(&self) -> Vec<String> {
        (0..self.shared.site.hosts).map(|host| self.url(host, "/p/0")).collect()
    }

    /// Everything asked so far.
    pub(crate) fn request_log(&self) -> RequestLog {
        let mut hits = self.shared.hits.lock().unwrap().clone();
        // Two connections may be noted in the other order.
        hits.sort_by_key(|hit| hit.start);
        RequestLog(hits)
    }

    /// How many requests have come.
    pub(crate) fn request_count(&self) -> usize {
        self.shared.hits.lock().unwrap().len()
    }

    /// How long ago this host was asked for the last time.
    pub(crate) fn last_request_age(&self, host: Ipv4Addr) -> Option<Duration> {
        let hits = self.shared.hits.lock().unwrap();
        let last = hits.iter().rev().find(|hit| hit.host == host)?;
        Some(self.shared.now().saturating_sub(last.start))
    }

    /// Waits until so many requests have come.
    #[track_caller]
    pub(crate) fn wait_for_hits(&self, count: usize) {
        let deadline = Instant::now() + WAIT_TIMEOUT;
        let mut hits = self.shared.hits.lock().unwrap();
        while hits.len() < count {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{} of {count} requests came: {hits:#?}", hits.len());
            hits = self.shared.changed.wait_timeout(hits, left).unwrap().0;
        }
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        // Wakes the acceptor.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        let _ = self.acceptor.take().map(JoinHandle::join);
    }
}

impl OriginState {
    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Notes a request; the returned number is for [`OriginState::record_end`].
    fn record_start(&self, hit: Hit) -> usize {
        let mut hits = self.hits.lock().unwrap();
        hits.push(hit);
        self.changed.notify_all();
        hits.len() - 1
    }

    /// To be called before the last byte is sent.
    fn record_end(&self, number: usize) {
        let now = self.now();
        self.hits.lock().unwrap()[number].end = Some(now);
    }

    /// The last byte could not be sent after all.
    fn clear_end(&self, number: usize) {
        self.hits.lock().unwrap()[number].end = None;
    }
}

fn accept_connections(listener: &TcpListener, shared: &Arc<OriginState>) {
    for stream in listener.incoming() {
        if shared.is_stopping() {
            return;
        }
        let Ok(stream) = stream else { continue };
        let shared = Arc::clone(shared);
        // Not waited for: each ends with its connection, which ends with the process under test.
        thread::spawn(move || serve_connection(stream, &shared));
    }
}

/// Serves one connection. Its errors are the client's business: what matters is in the record.
fn serve_connection(stream: TcpStream, shared: &OriginState) {
    let (Ok(host), Ok(peer)) = (stream.local_addr(), stream.peer_addr()) else {
        return;
    };
    let IpAddr::V4(host) = host.ip() else { return };
    // The port is open on every address of this machine, the pages are for this machine only.
    if peer.ip().is_loopback() {
        let _: io::Result<()> = http_connection::serve_requests(stream, host, shared);
    }
}
