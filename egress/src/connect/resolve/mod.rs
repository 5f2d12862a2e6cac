//! Resolves names to addresses: one lookup per name at a time, a limited number at once, and cached
//! for a while.

#![expect(clippy::disallowed_methods, reason = "answers expire, and each lookup is a task")]

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use futures_util::future::BoxFuture;
use indexmap::IndexMap;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout_at};

use crate::failure::{Failure, Reason};

/// Time limit of a name look-up; the system's resolver tries several servers meanwhile.
const DNS_TIMEOUT: Duration = Duration::from_secs(5);
/// Look-ups at once. Each takes a thread of the system's resolver until it ends by itself, which
/// takes tens of seconds for a name without an answering server. Half of the runtime's threads for
/// such work.
const DNS_LOOKUPS_MAX: usize = 256;
/// Names in the cache. At some 200 bytes each this is 6 MiB; the oldest tenth is evicted first.
const DNS_CACHE_MAX: usize = 32 * 1024;
/// How long an address is used. The system's resolver returns no lifetime; browsers also use a
/// minute.
const DNS_FRESH: Duration = Duration::from_mins(1);
/// How long a failed look-up is cached.
const DNS_FRESH_FAILURE: Duration = Duration::from_secs(10);
/// Addresses of one name that are used.
const DNS_ADDRESSES_MAX: usize = 16;

/// Looks up the addresses of a name, best first.
pub trait Lookup: fmt::Debug + Send + Sync + 'static {
    /// All addresses; an empty list counts as a failure.
    fn lookup(&self, name: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>>;
}

/// The system's resolver, in the order of RFC 6724. It returns no time to live.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemLookup;

impl Lookup for SystemLookup {
    fn lookup(&self, name: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        Box::pin(async move {
            let addresses = tokio::net::lookup_host((name, 0)).await.map_err(in_own_words)?;
            Ok(addresses.map(|address| address.ip()).collect())
        })
    }
}

/// Replaces the words of the standard library before those of the system.
fn in_own_words(error: io::Error) -> io::Error {
    let text = error.to_string();
    match text.strip_prefix("failed to lookup address information: ") {
        Some(reason) => io::Error::other(format!("cannot look up the name: {reason}")),
        None => error,
    }
}

type LookupResult = Result<Arc<[IpAddr]>, Failure>;

/// The state of a lookup.
#[derive(Clone, Debug)]
enum LookupStage {
    /// Waiting for a free slot.
    Queued,
    Started(Instant),
    Finished(LookupResult),
}

/// A cache in front of a [`Lookup`].
#[derive(Debug)]
pub(super) struct Resolver(Arc<ResolverState>);

#[derive(Debug)]
struct ResolverState {
    lookup: Arc<dyn Lookup>,
    /// Oldest first, except where removals have changed the order; `<= DNS_CACHE_MAX`.
    names: Mutex<IndexMap<String, CachedName>>,
    lookup_permits: Semaphore,
}

#[derive(Debug)]
enum CachedName {
    Resolved {
        answer: LookupResult,
        until: Instant,
    },
    /// Requests for this name subscribe to the sender.
    Pending(Arc<watch::Sender<LookupStage>>),
}

impl Resolver {
    pub(super) fn new(lookup: Arc<dyn Lookup>) -> Self {
        let lookups = Semaphore::new(DNS_LOOKUPS_MAX);
        Self(Arc::new(ResolverState { lookup, names: Mutex::default(), lookup_permits: lookups }))
    }

    /// The addresses of a name, never empty. Times out at `until`, which is extended by the time in
    /// which the lookup waited for others.
    pub(super) async fn resolve(&self, name: &str, until: &mut Instant) -> LookupResult {
        let mut pending = match self.0.cached_or_pending(name) {
            Ok(answer) => return answer,
            Err(pending) => pending,
        };
        let queued_at = Instant::now();
        let begun = pending.wait_for(|stage| !matches!(stage, LookupStage::Queued));
        let begun = timeout_at(*until, begun).await;
        let late_at = match begun.map(|stage| stage.map(|stage| stage.clone())) {
            Ok(Ok(LookupStage::Finished(answer))) => return answer,
            Ok(Ok(LookupStage::Started(at))) => at + DNS_TIMEOUT,
            Ok(Ok(LookupStage::Queued) | Err(_)) => {
                return Err(Failure::new(Reason::Dns, "the resolver gave up"));
            }
            Err(_) => {
                let text = "lookups of other names did not end in time";
                return Err(Failure::new(Reason::Busy, text));
            }
        };
        *until += queued_at.elapsed();
        let ended = pending.wait_for(|stage| matches!(stage, LookupStage::Finished(_)));
        match timeout_at(late_at.min(*until), ended).await {
            Ok(ended) => match ended.as_deref() {
                Ok(LookupStage::Finished(answer)) => answer.clone(),
                _ => Err(Failure::new(Reason::Dns, "the resolver gave up")),
            },
            Err(_) if *until < late_at => {
                let text = "no connection in time: no answer from the resolver";
                Err(Failure::new(Reason::ConnectTimeout, text))
            }
            Err(_) => {
                let text = format!("no answer from the resolver within {DNS_TIMEOUT:?}");
                Err(Failure::new(Reason::Dns, text))
            }
        }
    }
}

impl ResolverState {
    fn cached_or_pending(
        self: &Arc<Self>,
        name: &str,
    ) -> Result<LookupResult, watch::Receiver<LookupStage>> {
        let mut names = self.names.lock();
        match names.get(name) {
            Some(CachedName::Resolved { answer, until }) if Instant::now() < *until => {
                return Ok(answer.clone());
            }
            Some(CachedName::Pending(sender)) => return Err(sender.subscribe()),
            _ => {}
        }
        let (sender, receiver) = watch::channel(LookupStage::Queued);
        let sender = Arc::new(sender);
        cache_name(&mut names, name.to_owned(), CachedName::Pending(Arc::clone(&sender)));
        tokio::spawn(Arc::clone(self).look_up(name.to_owned(), sender));
        Err(receiver)
    }

    /// Ends when there is an answer, or when no request waits any more and the lookup has not
    /// begun. A system lookup cannot be cancelled, so it keeps its slot until it ends.
    async fn look_up(self: Arc<Self>, name: String, sender: Arc<watch::Sender<LookupStage>>) {
        let slot = loop {
            tokio::select! {
                biased;
                () = sender.closed() => {}
                slot = self.lookup_permits.acquire() => break slot.expect("the semaphore is never closed"),
            }
            // A request that arrived in between has subscribed under this lock.
            let mut names = self.names.lock();
            if sender.receiver_count() == 0 {
                if matches!(names.get(&name), Some(CachedName::Pending(pending)) if Arc::ptr_eq(pending, &sender))
                {
                    names.swap_remove(&name);
                }
                return;
            }
        };
        sender.send_replace(LookupStage::Started(Instant::now()));
        let found = self.lookup.lookup(name.clone()).await;
        drop(slot);
        let answer = match found {
            Ok(addresses) if addresses.is_empty() => {
                Err(Failure::new(Reason::Dns, "the name has no address"))
            }
            Ok(mut addresses) => {
                addresses.truncate(DNS_ADDRESSES_MAX);
                Ok(addresses.into())
            }
            Err(error) => Err(Failure::of(Reason::Dns, &error)),
        };
        let fresh = if answer.is_ok() { DNS_FRESH } else { DNS_FRESH_FAILURE };
        let resolved =
            CachedName::Resolved { answer: answer.clone(), until: Instant::now() + fresh };
        cache_name(&mut self.names.lock(), name, resolved);
        sender.send_replace(LookupStage::Finished(answer));
    }
}

/// A full cache drops its oldest tenth.
fn cache_name(names: &mut IndexMap<String, CachedName>, name: String, entry: CachedName) {
    if names.len() >= DNS_CACHE_MAX && !names.contains_key(&name) {
        names.drain(..DNS_CACHE_MAX.div_ceil(10));
    }
    names.insert(name, entry);
}

#[cfg(test)]
mod tests;
