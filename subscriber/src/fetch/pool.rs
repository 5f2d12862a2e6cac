//! Connections that wait for the next request to their scheme, host and port: one for each, since
//! a host has one request at a time, and a bounded number of all.

#![expect(clippy::disallowed_methods, reason = "what nobody uses is closed after a while")]

use std::sync::{Arc, Weak};

use indexmap::IndexMap;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::wire::Http;
use crate::config::{
    POOL_CONNECTIONS_MAX, POOL_EXCHANGE, POOL_IDLE, POOL_NONE_KEPT, POOL_NONE_KEPT_MAX,
    POOL_SWEEP_EVERY,
};

/// Dropping it closes them all.
#[derive(Default)]
pub(super) struct Pool(Arc<Mutex<Shared>>);

#[derive(Default)]
struct Shared {
    /// By origin; `<= POOL_CONNECTIONS_MAX`.
    idle: IndexMap<Box<str>, Idle>,
    /// Origins that ended a kept connection instead of answering, and until when no connection to them is
    /// kept; `<= POOL_NONE_KEPT_MAX`.
    none_kept: IndexMap<Box<str>, Instant>,
    /// A task closes what nobody uses. It ends when there is nothing left.
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
    /// A connection that was still open a moment ago.
    pub(super) fn take(&self, origin: &str) -> Option<Http> {
        let mut idle = self.0.lock().idle.swap_remove(origin)?;
        idle.is_usable(Instant::now()).then_some(idle.http)
    }

    /// Keeps it for a while, instead of another one to the same.
    pub(super) fn put(&self, origin: &str, http: Http) {
        let now = Instant::now();
        let mut shared = self.0.lock();
        if shared.none_kept.get(origin).is_some_and(|until| now < *until) {
            return;
        }
        let mut closed = None;
        if shared.idle.len() >= POOL_CONNECTIONS_MAX && !shared.idle.contains_key(origin) {
            // In a crawl of more hosts each is used again after about the same time: if every one took the
            // place of another, none would live until then. Who is used more often comes in in the end.
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
        // To close a connection asks the system, which nobody else should wait for.
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
