//! Idle connections for the next request to the same scheme, host and port. One for each is enough,
//! because a host has one request at a time. Their total number is limited.

#![expect(clippy::disallowed_methods, reason = "unused connections are closed after a while")]

use std::sync::{Arc, Weak};

use indexmap::IndexMap;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::wire::Http;
use crate::config::{
    POOL_CONNECTIONS_MAX, POOL_EXCHANGE, POOL_IDLE, POOL_NONE_KEPT, POOL_NONE_KEPT_MAX,
    POOL_SWEEP_EVERY,
};

/// Dropping the pool closes all connections.
#[derive(Default)]
pub(super) struct Pool(Arc<Mutex<Shared>>);

#[derive(Default)]
struct Shared {
    /// By origin; `<= POOL_CONNECTIONS_MAX`.
    idle: IndexMap<Box<str>, Idle>,
    /// Origins that ended a reused connection without a response. Until the given time no
    /// connection to them is kept; `<= POOL_NONE_KEPT_MAX`.
    none_kept: IndexMap<Box<str>, Instant>,
    /// A task closes expired connections. It ends when none is left.
    is_swept: bool,
}

struct Idle {
    http: Http,
    since: Instant,
}

impl Idle {
    fn is_usable(&mut self, now: Instant) -> bool {
        now < self.since + POOL_IDLE && self.http.is_ready()
    }
}

impl Pool {
    /// A connection that was open a moment ago.
    pub(super) fn take(&self, origin: &str) -> Option<Http> {
        let mut idle = self.0.lock().idle.swap_remove(origin)?;
        idle.is_usable(Instant::now()).then_some(idle.http)
    }

    /// Keeps a connection for a while, and replaces an older one to the same origin.
    pub(super) fn put(&self, origin: &str, http: Http) {
        let now = Instant::now();
        let mut shared = self.0.lock();
        if shared.none_kept.get(origin).is_some_and(|until| now < *until) {
            return;
        }
        let mut closed = None;
        if shared.idle.len() >= POOL_CONNECTIONS_MAX && !shared.idle.contains_key(origin) {
            // A crawl of more hosts than that uses each host about equally often. If every
            // connection evicted another, none would live until its reuse. Hosts that are used more
            // often get in eventually.
            if fastrand::u32(..POOL_EXCHANGE) > 0 {
                return;
            }
            let index = fastrand::usize(..shared.idle.len());
            closed = shared.idle.swap_remove_index(index).map(|(_, idle)| idle);
        }
        let replaced = shared.idle.insert(origin.into(), Idle { http, since: now });
        if !shared.is_swept {
            shared.is_swept = true;
            tokio::spawn(sweep(Arc::downgrade(&self.0)));
        }
        drop(shared);
        // Closing a connection is a system call, so it happens outside of the lock.
        drop((closed, replaced));
    }

    /// Keeps no connection to this origin for a while.
    pub(super) fn keep_none(&self, origin: &str) {
        let mut shared = self.0.lock();
        if shared.none_kept.len() >= POOL_NONE_KEPT_MAX && !shared.none_kept.contains_key(origin) {
            let index = fastrand::usize(..shared.none_kept.len());
            shared.none_kept.swap_remove_index(index);
        }
        shared.none_kept.insert(origin.into(), Instant::now() + POOL_NONE_KEPT);
        let closed = shared.idle.swap_remove(origin);
        drop(shared);
        drop(closed);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.lock().idle.len()
    }
}

async fn sweep(pool: Weak<Mutex<Shared>>) {
    loop {
        sleep(POOL_SWEEP_EVERY).await;
        let Some(pool) = pool.upgrade() else { return };
        let now = Instant::now();
        let mut shared = pool.lock();
        let closed: Vec<_> = shared.idle.extract_if(.., |_, idle| !idle.is_usable(now)).collect();
        shared.is_swept = !shared.idle.is_empty();
        let is_over = !shared.is_swept;
        drop(shared);
        drop(closed);
        if is_over {
            return;
        }
    }
}
