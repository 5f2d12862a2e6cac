//! The robots cache: the rules of each origin for a day, outages with the time of the next
//! retry, and redirects that are being followed. Pure; bounded. What must survive a restart is
//! passed in and out as values ([`RobotsRecord`]).

mod stored;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use indexmap::IndexMap;
use tidings_egress::failure::Failure;
use tidings_protocol::CanonicalUrl;
use tokio::time::Instant;

pub(super) use self::stored::RobotsRecord;
use self::stored::{StoredCopy, StoredOutage};
use crate::fetch::Fetched;
use crate::robots::{RobotsResponse, RobotsRules};

/// How long a robots.txt is used before it is fetched again (RFC 9309 section 2.4).
pub(crate) const ROBOTS_FRESH: Duration = Duration::from_hours(24);
/// How much longer a copy is used while the server has no newer one. Long enough to bridge an
/// outage, short enough that new rules take effect the same day.
const ROBOTS_STALE_EXTENSION: Duration = Duration::from_hours(1);
/// Authorities in the robots cache. At some 200 bytes each this is 20 MiB; the oldest tenth is
/// evicted first, and costs one more robots.txt request if its host comes again.
const ROBOTS_CACHE_MAX: usize = 100_000;
/// Bytes of all cached rules: a robots.txt of 500 KiB takes some megabytes once it is parsed, and a
/// hostile site can have many names. The oldest are evicted first, here too.
const ROBOTS_CACHE_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Authorities with a redirected robots.txt that wait for the next hop. Few sites redirect it; an
/// evicted one starts again from the first request.
const ROBOTS_REDIRECTS_MAX: usize = 10_000;
/// A redirect of a robots.txt that was not followed for this long starts again, as it may have
/// changed. A busy host delays the next hop far less than this.
const ROBOTS_REDIRECT_FRESH: Duration = Duration::from_mins(10);
/// A robots.txt that was unreachable for this long, without a stored copy, counts as missing (RFC
/// 9309 section 2.3.1.4 also says 30 days).
const ROBOTS_OUTAGE_LONG: Duration = Duration::from_hours(30 * 24);
/// An unreachable robots.txt is not requested again for this long, so that not every page of its
/// origin requests it. No longer than the first rest of a host that does not answer, and than the
/// group's first backoff: these decide when the next page is tried.
const ROBOTS_OUTAGE_PAUSE: Duration = Duration::from_secs(2);
/// Authorities with an unreachable robots.txt, each with a line of text. An evicted one costs a
/// request.
const ROBOTS_OUTAGES_MAX: usize = 10_000;

/// Both clocks at one moment. The monotonic clock measures how long a cached value is fresh; the
/// time of day measures the age of a stored copy and the start of an outage.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClockReading {
    pub(super) instant: Instant,
    /// In seconds since 1970; an operator may change it.
    pub(super) unix_s: u64,
}

/// The robots cache, by origin. The oldest entries are evicted when there are too many.
#[derive(Debug, Default)]
pub(super) struct RobotsCache {
    rules: IndexMap<String, CachedRules>,
    /// Of all `rules`; `<= ROBOTS_CACHE_BYTES_MAX`, unless there is only one.
    rules_bytes: usize,
    redirects: IndexMap<String, TimedRedirect>,
    outages: IndexMap<String, CachedOutage>,
}

#[derive(Debug)]
struct CachedRules {
    rules: Arc<RobotsRules>,
    fresh_until: Instant,
}

/// A robots.txt that is unreachable, so that nothing of its origin may be fetched.
#[derive(Debug)]
struct CachedOutage {
    failure: Failure,
    since_unix_s: u64,
    retry_at: Instant,
}

#[derive(Debug)]
struct TimedRedirect {
    redirect: RobotsRedirect,
    at: Instant,
}

/// A redirected robots.txt that waits for its next hop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RobotsRedirect {
    /// The URL of the next hop.
    pub(super) target: CanonicalUrl<'static>,
    /// Number of redirects so far, `target` included; `<= ROBOTS_HOPS_MAX`.
    pub(super) hops: u8,
}

/// The result of one robots.txt request.
#[derive(Debug)]
pub(super) enum RobotsStep {
    /// The rules are known now.
    Known(Arc<RobotsRules>),
    /// The server redirects to another URL, which is the next request.
    Redirected(RobotsRedirect),
    /// Unreachable: nothing of this origin may be fetched.
    Unreachable(Failure),
}

/// The values loaded from the disk for an origin.
#[derive(Debug, Default)]
pub(super) struct StoredRobots {
    pub(super) copy: Option<Bytes>,
    pub(super) outage: Option<Bytes>,
}

impl RobotsCache {
    /// The rules for a page, if they are fresh.
    pub(super) fn fresh(&self, page: &CanonicalUrl, now: Instant) -> Option<Arc<RobotsRules>> {
        let verdict = self.rules.get(page.origin())?;
        (now < verdict.fresh_until).then(|| Arc::clone(&verdict.rules))
    }

    /// The pending redirect of this page's robots.txt, if it is not too old.
    pub(super) fn pending_redirect(
        &self,
        page: &CanonicalUrl,
        now: Instant,
    ) -> Option<RobotsRedirect> {
        let begun = self.redirects.get(page.origin())?;
        (now < begun.at + ROBOTS_REDIRECT_FRESH).then(|| begun.redirect.clone())
    }

    /// Why a page's robots.txt is unreachable, until it may be requested again.
    pub(super) fn outage(&self, page: &CanonicalUrl, now: Instant) -> Option<Failure> {
        let outage = self.outages.get(page.origin())?;
        (now < outage.retry_at).then(|| outage.failure.clone())
    }

    /// Restores a stored copy, unless the cached one is as new. A copy from the future (the clock
    /// was set back) has an unknown age: it is cached, but not fresh.
    pub(super) fn restore(
        &mut self,
        page: &CanonicalUrl,
        stored: &StoredRobots,
        now: ClockReading,
    ) {
        let Some(copy) = stored.copy.as_deref().and_then(StoredCopy::read) else { return };
        let age = now.unix_s.checked_sub(copy.fetched_unix_s).map(Duration::from_secs);
        let left = age.map_or(Duration::ZERO, |age| ROBOTS_FRESH.saturating_sub(age));
        let known = self.rules.get(page.origin());
        if known.is_none_or(|known| known.fresh_until < now.instant + left) {
            self.insert_rules(page, Arc::new(copy.rules), left, now.instant);
        }
    }

    /// Processes the answer to a robots.txt request for `page`, made after `hops` redirects (RFC
    /// 9309 section 2.3.1). Returns the result and the values to store.
    pub(super) fn process_response(
        &mut self,
        page: &CanonicalUrl,
        (requested, hops): (&CanonicalUrl, u8),
        fetched: &Fetched,
        (token, outage): (&str, Option<&Bytes>),
        now: ClockReading,
    ) -> (RobotsStep, Vec<RobotsRecord>) {
        let outage = outage.and_then(|outage| StoredOutage::read(outage));
        let (rules, text) = match fetched.robots_response(requested, hops) {
            RobotsResponse::Redirect(target) => {
                let walk = RobotsRedirect { target, hops: hops + 1 };
                let begun = TimedRedirect { redirect: walk.clone(), at: now.instant };
                insert_bounded(
                    &mut self.redirects,
                    page.origin().to_owned(),
                    begun,
                    ROBOTS_REDIRECTS_MAX,
                );
                return (RobotsStep::Redirected(walk), Vec::new());
            }
            RobotsResponse::Unreachable(failure) => {
                self.redirects.swap_remove(page.origin());
                return self.unreachable(page, failure, outage, now);
            }
            RobotsResponse::Text(text) => (RobotsRules::parse(text, token), text),
            RobotsResponse::Missing => (RobotsRules::default(), &[][..]),
        };
        self.redirects.swap_remove(page.origin());
        let mut remember = vec![RobotsRecord::copy(&rules, text, now.unix_s)];
        remember.extend(outage.map(|_| RobotsRecord::no_outage()));
        (self.insert_rules(page, Arc::new(rules), ROBOTS_FRESH, now.instant), remember)
    }

    fn insert_rules(
        &mut self,
        page: &CanonicalUrl,
        rules: Arc<RobotsRules>,
        fresh: Duration,
        now: Instant,
    ) -> RobotsStep {
        self.outages.swap_remove(page.origin());
        let verdict = CachedRules { rules: Arc::clone(&rules), fresh_until: now + fresh };
        self.rules_bytes += rules.memory_bytes();
        let bytes_of = |verdict: &CachedRules| verdict.rules.memory_bytes();
        let dropped =
            insert_bounded(&mut self.rules, page.origin().to_owned(), verdict, ROBOTS_CACHE_MAX);
        self.rules_bytes -= dropped.iter().map(bytes_of).sum::<usize>();
        while self.rules_bytes > ROBOTS_CACHE_BYTES_MAX && self.rules.len() > 1 {
            // Many at once, since removal from the front moves all that remain.
            let dropped = self.rules.drain(..self.rules.len().div_ceil(10));
            self.rules_bytes -= dropped.map(|(_, verdict)| bytes_of(&verdict)).sum::<usize>();
        }
        RobotsStep::Known(rules)
    }

    /// Uses an older copy of any age during an outage. Without a copy nothing may be fetched, until
    /// the outage has lasted so long that the file counts as missing (section 2.3.1.4).
    fn unreachable(
        &mut self,
        page: &CanonicalUrl,
        failure: Failure,
        outage: Option<StoredOutage>,
        now: ClockReading,
    ) -> (RobotsStep, Vec<RobotsRecord>) {
        let origin = page.origin();
        let stored = outage.map(|outage| outage.since_unix_s);
        let known = self.outages.get(origin).map(|outage| outage.since_unix_s);
        // If the time of day was set back, a start in the future is impossible.
        let since = stored.into_iter().chain(known).fold(now.unix_s, u64::min);
        let age = Duration::from_secs(now.unix_s - since);
        let remember = vec![RobotsRecord::outage(since, now.unix_s)];
        let copy = self.rules.get(origin).map(|verdict| Arc::clone(&verdict.rules));
        let copy = copy.or_else(|| (age >= ROBOTS_OUTAGE_LONG).then(Arc::default));
        let step = if let Some(rules) = copy {
            self.insert_rules(page, rules, ROBOTS_STALE_EXTENSION, now.instant)
        } else {
            let failure = failure.with_context("robots.txt: ");
            let outage = CachedOutage {
                failure: failure.clone(),
                since_unix_s: since,
                retry_at: now.instant + ROBOTS_OUTAGE_PAUSE,
            };
            insert_bounded(&mut self.outages, origin.to_owned(), outage, ROBOTS_OUTAGES_MAX);
            RobotsStep::Unreachable(failure)
        };
        (step, remember)
    }
}

/// Inserts the newest value at the end; evicts the oldest tenth when the map is full. Returns the
/// evicted and replaced values.
pub(super) fn insert_bounded<K: std::hash::Hash + Eq, V>(
    map: &mut IndexMap<K, V>,
    key: K,
    value: V,
    max: usize,
) -> Vec<V> {
    let mut dropped: Vec<V> = map.shift_remove(&key).into_iter().collect();
    if map.len() >= max {
        dropped.extend(map.drain(..max.div_ceil(10)).map(|(_, value)| value));
    }
    map.insert(key, value);
    dropped
}
