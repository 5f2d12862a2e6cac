//! Idle connections for the next request to the same scheme, host and port. One for each is enough,
//! because a host has one request at a time. Their total number is limited.

#![expect(clippy::disallowed_methods, reason = "unused connections are closed after a while")]

use std::sync::{Arc, Weak};
use std::time::Duration;

use indexmap::IndexMap;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::http_connection::HttpConnection;

/// An unused connection is closed after this time: longer than usual delays between two requests to
/// a host, short enough that many hosts do not use up the file descriptors.
pub const POOL_IDLE: Duration = Duration::from_secs(20);
/// Idle connections kept, over all hosts. Each is a file descriptor and some 20 KiB.
const POOL_CONNECTIONS_MAX: usize = 4096;
/// When the pool is full, one of this many new connections replaces another.
const POOL_REPLACE_ONE_IN: u32 = 16;
/// After a server has closed a kept connection instead of answering, its connections are not kept
/// for this long: each such closure costs one more request and one more delay.
const POOL_DISABLED_FOR: Duration = Duration::from_mins(10);
/// Origins in this state. Each takes some 100 bytes.
const POOL_DISABLED_MAX: usize = 4096;
/// How often idle connections are checked: those that the server has closed go before
/// `POOL_IDLE`.
const POOL_SWEEP_EVERY: Duration = Duration::from_secs(5);

/// Dropping the pool closes all connections.
#[derive(Default)]
pub(super) struct ConnectionPool(Arc<Mutex<PoolState>>);

#[derive(Default)]
struct PoolState {
    /// By origin; `<= POOL_CONNECTIONS_MAX`.
    idle: IndexMap<Box<str>, IdleConnection>,
    /// Origins that ended a reused connection without a response. Until the given time no
    /// connection to them is kept; `<= POOL_NONE_KEPT_MAX`.
    no_reuse: IndexMap<Box<str>, Instant>,
    /// A task closes expired connections. It ends when none is left.
    has_sweeper: bool,
}

struct IdleConnection {
    http: HttpConnection,
    since: Instant,
}

impl IdleConnection {
    fn is_usable(&mut self, now: Instant) -> bool {
        now < self.since + POOL_IDLE && self.http.is_ready()
    }
}

impl ConnectionPool {
    /// A connection that was open a moment ago.
    pub(super) fn take(&self, origin: &str) -> Option<HttpConnection> {
        let mut idle = self.0.lock().idle.swap_remove(origin)?;
        idle.is_usable(Instant::now()).then_some(idle.http)
    }

    /// Keeps a connection for a while, and replaces an older one to the same origin.
    pub(super) fn put(&self, origin: &str, http: HttpConnection) {
        let now = Instant::now();
        let mut shared = self.0.lock();
        if shared.no_reuse.get(origin).is_some_and(|until| now < *until) {
            return;
        }
        let mut closed = None;
        if shared.idle.len() >= POOL_CONNECTIONS_MAX && !shared.idle.contains_key(origin) {
            // A crawl of more hosts than that uses each host about equally often. If every
            // connection evicted another, none would live until its reuse. Hosts that are used more
            // often get in eventually.
            if fastrand::u32(..POOL_REPLACE_ONE_IN) > 0 {
                return;
            }
            let index = fastrand::usize(..shared.idle.len());
            closed = shared.idle.swap_remove_index(index).map(|(_, idle)| idle);
        }
        let replaced = shared.idle.insert(origin.into(), IdleConnection { http, since: now });
        if !shared.has_sweeper {
            shared.has_sweeper = true;
            tokio::spawn(sweep(Arc::downgrade(&self.0)));
        }
        drop(shared);
        // Closing a connection is a system call, so it happens outside of the lock.
        drop((closed, replaced));
    }

    /// Keeps no connection to this origin for a while.
    pub(super) fn suspend_reuse(&self, origin: &str) {
        let mut shared = self.0.lock();
        if shared.no_reuse.len() >= POOL_DISABLED_MAX && !shared.no_reuse.contains_key(origin) {
            let index = fastrand::usize(..shared.no_reuse.len());
            shared.no_reuse.swap_remove_index(index);
        }
        shared.no_reuse.insert(origin.into(), Instant::now() + POOL_DISABLED_FOR);
        let closed = shared.idle.swap_remove(origin);
        drop(shared);
        drop(closed);
    }

    pub(super) fn len(&self) -> usize {
        self.0.lock().idle.len()
    }
}

async fn sweep(pool: Weak<Mutex<PoolState>>) {
    loop {
        sleep(POOL_SWEEP_EVERY).await;
        let Some(pool) = pool.upgrade() else { return };
        let now = Instant::now();
        let mut shared = pool.lock();
        let closed: Vec<_> = shared.idle.extract_if(.., |_, idle| !idle.is_usable(now)).collect();
        shared.has_sweeper = !shared.idle.is_empty();
        let is_over = !shared.has_sweeper;
        drop(shared);
        drop(closed);
        if is_over {
            return;
        }
    }
}
