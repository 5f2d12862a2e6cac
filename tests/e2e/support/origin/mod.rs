//! A web server that records its requests: many hosts (addresses in 127.0.0.0/8) on one port, with
//! good and bad pages.
//!
//! The recorded times never make a client look less polite than it was. `start` is read after the
//! first byte of a request was received, so the client began no later. `end` is read before the
//! last byte of the response is sent, so the client saw the end no earlier. The client's own pause
//! is therefore never longer than the recorded gap from `end` to the next `start`, and requests
//! that overlap in the record overlapped at the client.

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
pub(crate) use self::site::{OriginResponse, Site, full_response, html_response, redirect};
use super::wait::time_left;

/// The length of the accept queue; the standard library would use 128.
const BACKLOG: i32 = 4096;

/// One request.
#[derive(Debug, Clone)]
pub(crate) struct Hit {
    /// The requested address, which stands for the host.
    pub(crate) host: Ipv4Addr,
    /// The path with its query.
    pub(crate) path: String,
    /// All header lines of the request.
    pub(crate) head: String,
    /// When the first byte arrived, since the origin started.
    pub(crate) start: Duration,
    /// The time just before the last byte of the response was sent; `None` if that has not happened
    /// or the client disconnected.
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

/// Responds to some requests; the site responds to the others.
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

    /// Like `serve`, but `override_response` may respond to some requests.
    #[track_caller]
    pub(crate) fn serve_with(
        site: Site,
        override_response: impl Fn(&Hit) -> Option<OriginResponse> + Send + Sync + 'static,
    ) -> Self {
        Self::serve_at(0, site, override_response)
    }

    /// Like `serve_with`, on this port.
    #[track_caller]
    pub(crate) fn serve_at(
        port: u16,
        site: Site,
        override_response: impl Fn(&Hit) -> Option<OriginResponse> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).unwrap();
        // A crawler may connect to all hosts at once; with a full queue it would retry a second
        // later.
        SockRef::from(&listener).listen(BACKLOG).unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(OriginState {
            site,
            override_response: Box::new(override_response),
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

    /// The URL of a path on the host with this number, counted from 0.
    pub(crate) fn url(&self, host: u16, path: &str) -> String {
        self.url_at(Site::host(host), path)
    }

    /// The same with any name of a host.
    pub(crate) fn url_at(&self, name: impl fmt::Display, path: &str) -> String {
        format!("http://{name}:{}{path}", self.port)
    }

    /// The time since the origin started, as in its record.
    pub(crate) fn now(&self) -> Duration {
        self.shared.now()
    }

    /// The URL of the first page of every host.
    pub(crate) fn seed_urls(&self) -> Vec<String> {
        (0..self.shared.site.hosts).map(|host| self.url(host, "/p/0")).collect()
    }

    /// All requests so far.
    pub(crate) fn request_log(&self) -> RequestLog {
        let mut hits = self.shared.hits.lock().unwrap().clone();
        // Two connections may be recorded in reverse order.
        hits.sort_by_key(|hit| hit.start);
        RequestLog(hits)
    }

    /// The number of requests so far.
    pub(crate) fn request_count(&self) -> usize {
        self.shared.hits.lock().unwrap().len()
    }

    /// The time since the start of the last request to this host.
    pub(crate) fn last_request_age(&self, host: Ipv4Addr) -> Option<Duration> {
        let hits = self.shared.hits.lock().unwrap();
        let last = hits.iter().rev().find(|hit| hit.host == host)?;
        Some(self.shared.now().saturating_sub(last.start))
    }

    /// Waits until `count` requests have arrived.
    #[track_caller]
    pub(crate) fn wait_for_hits(&self, count: usize) {
        let deadline = Instant::now() + time_left();
        let mut hits = self.shared.hits.lock().unwrap();
        while hits.len() < count {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{} of {count} requests arrived: {hits:#?}", hits.len());
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

    /// Records a request; the returned number identifies it in [`OriginState::record_end`].
    fn record_start(&self, hit: Hit) -> usize {
        let mut hits = self.hits.lock().unwrap();
        hits.push(hit);
        self.changed.notify_all();
        hits.len() - 1
    }

    /// Must be called before the last byte is sent.
    fn record_end(&self, number: usize) {
        let now = self.now();
        self.hits.lock().unwrap()[number].end = Some(now);
    }

    /// Clears the end of a request after its last byte could not be sent.
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
        // Not joined: the thread ends with its connection, which ends with the process under test.
        thread::spawn(move || serve_connection(stream, &shared));
    }
}

/// Serves one connection. Ignores its errors: the request log shows what matters.
fn serve_connection(stream: TcpStream, shared: &OriginState) {
    let (Ok(host), Ok(peer)) = (stream.local_addr(), stream.peer_addr()) else {
        return;
    };
    let IpAddr::V4(host) = host.ip() else { return };
    // The port is open on every address of this machine, but only this machine may read the pages.
    if peer.ip().is_loopback() {
        let _: io::Result<()> = http_connection::serve_requests(stream, host, shared);
    }
}
