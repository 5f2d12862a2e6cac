//! What is known of robots.txt: the rules of each authority for a day, since when one cannot be had (and how soon it
//! is asked for again), and how far walks through redirects have come. Pure; bounded. What is to outlast the process comes in
//! and goes out as values ([`Remember`]).

mod stored;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use indexmap::IndexMap;
use tidings_protocol::CanonicalUrl;
use tokio::time::Instant;

pub(super) use self::stored::Remember;
use self::stored::{Outage, StoredCopy};
use crate::config::{
    ROBOTS_CACHE_BYTES_MAX, ROBOTS_CACHE_MAX, ROBOTS_FRESH, ROBOTS_OUTAGE_LONG,
    ROBOTS_OUTAGE_PAUSE_MAX, ROBOTS_OUTAGE_PAUSE_MIN, ROBOTS_OUTAGES_MAX, ROBOTS_STALE_EXTENSION,
    ROBOTS_WALK_FRESH, ROBOTS_WALKS_MAX,
};
use crate::fetch::Fetched;
use crate::outcome::Failure;
use crate::robots::{Answer, Rules};

/// Both clocks at one moment. The one of the machine tells how long something is known here; the time of
/// day how old is what was stored, and since when there is an outage.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    pub(super) instant: Instant,
    /// In seconds since 1970; somebody may set it.
    pub(super) unix_s: u64,
}

/// By authority. The oldest go first when there are too many.
#[derive(Debug, Default)]
pub(super) struct Verdicts {
    rules: IndexMap<String, Verdict>,
    /// Of all `rules`; `<= ROBOTS_CACHE_BYTES_MAX`, or there is only one.
    rules_bytes: usize,
    walks: IndexMap<String, Begun>,
    outages: IndexMap<String, Unreachable>,
}

#[derive(Debug)]
struct Verdict {
    rules: Arc<Rules>,
    fresh_until: Instant,
}

/// A robots.txt that could not be had, so that nothing of its authority may be asked for.
#[derive(Debug)]
struct Unreachable {
    failure: Failure,
    since_unix_s: u64,
    ask_again: Instant,
}

#[derive(Debug)]
struct Begun {
    walk: Walk,
    at: Instant,
}

/// A robots.txt that was redirected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Walk {
    /// Where the next hop leads.
    pub(super) target: CanonicalUrl<'static>,
    /// Redirects so far, `target` included; `<= ROBOTS_HOPS_MAX`.
    pub(super) hops: u8,
}

/// What one robots.txt request brought.
#[derive(Debug)]
pub(super) enum Step {
    /// The rules are known now.
    Known(Arc<Rules>),
    /// The file is said to be elsewhere: the next request is for that.
    Elsewhere(Walk),
    /// It cannot be had, so nothing of this authority may be asked for, nor it again for so long.
    Unknown(Failure, Duration),
}

/// What was stored of an authority, as it was loaded.
#[derive(Debug, Default)]
pub(super) struct Remembered {
    pub(super) copy: Option<Bytes>,
    pub(super) outage: Option<Bytes>,
}

/// A robots.txt holds for one scheme, host and port.
pub(super) fn authority(url: &CanonicalUrl) -> String {
    format!("{}://{}", url.scheme(), url.authority())
}

impl Verdicts {
    /// The rules for a page, if they are fresh.
    pub(super) fn fresh(&self, page: &CanonicalUrl, now: Instant) -> Option<Arc<Rules>> {
        let verdict = self.rules.get(&authority(page))?;
        (now < verdict.fresh_until).then(|| Arc::clone(&verdict.rules))
    }

    /// How far somebody has come on the way to this page's robots.txt.
    pub(super) fn walk(&self, page: &CanonicalUrl, now: Instant) -> Option<Walk> {
        let begun = self.walks.get(&authority(page))?;
        (now < begun.at + ROBOTS_WALK_FRESH).then(|| begun.walk.clone())
    }

    /// Why a page's robots.txt could not be had lately, and for how long it is not asked for again.
    pub(super) fn outage(&self, page: &CanonicalUrl, now: Instant) -> Option<(Failure, Duration)> {
        let outage = self.outages.get(&authority(page))?;
        let left = outage.ask_again.saturating_duration_since(now);
        (!left.is_zero()).then(|| (outage.failure.clone(), left))
    }

    /// Takes over a copy that was stored, unless what is known is as new. One that is from the future
    /// by the clock of today may have any age: it is known, and not fresh.
    pub(super) fn learn(&mut self, page: &CanonicalUrl, stored: &Remembered, now: Now) {
        let Some(copy) = stored.copy.as_deref().and_then(StoredCopy::read) else { return };
        let age = now.unix_s.checked_sub(copy.fetched_unix_s).map(Duration::from_secs);
        let left = age.map_or(Duration::ZERO, |age| ROBOTS_FRESH.saturating_sub(age));
        let known = self.rules.get(&authority(page));
        if known.is_none_or(|known| known.fresh_until < now.instant + left) {
            self.know(page, Arc::new(copy.rules), left, now.instant);
        }
    }

    /// Draws the conclusion from a robots.txt request that was made for `page`, `hops` redirects
    /// after the first one (RFC 9309 section 2.3.1), and says what is to be stored.
    pub(super) fn conclude(
        &mut self,
        page: &CanonicalUrl,
        (asked, hops): (&CanonicalUrl, u8),
        fetched: &Fetched,
        (token, outage): (&str, Option<&Bytes>),
        now: Now,
    ) -> (Step, Vec<Remember>) {
        let outage = outage.and_then(|outage| Outage::read(outage));
        let (rules, text) = match Answer::of(fetched, asked, hops) {
            Answer::Elsewhere(target) => {
                let walk = Walk { target, hops: hops + 1 };
                let begun = Begun { walk: walk.clone(), at: now.instant };
                keep(&mut self.walks, authority(page), begun, ROBOTS_WALKS_MAX);
                return (Step::Elsewhere(walk), Vec::new());
            }
            Answer::Unknown(failure) => {
                self.walks.swap_remove(&authority(page));
                return self.unreachable(page, failure, outage, now);
            }
            Answer::Text(text) => (Rules::parse(text, token), text),
            Answer::Nothing => (Rules::default(), &[][..]),
        };
        self.walks.swap_remove(&authority(page));
        let mut remember = vec![Remember::copy(&rules, text, now.unix_s)];
        remember.extend(outage.map(|_| Remember::no_outage()));
        (self.know(page, Arc::new(rules), ROBOTS_FRESH, now.instant), remember)
    }

    fn know(
        &mut self,
        page: &CanonicalUrl,
        rules: Arc<Rules>,
        fresh: Duration,
        now: Instant,
    ) -> Step {
        self.outages.swap_remove(&authority(page));
        let verdict = Verdict { rules: Arc::clone(&rules), fresh_until: now + fresh };
        self.rules_bytes += rules.memory_bytes();
        let bytes_of = |verdict: &Verdict| verdict.rules.memory_bytes();
        let dropped = keep(&mut self.rules, authority(page), verdict, ROBOTS_CACHE_MAX);
        self.rules_bytes -= dropped.iter().map(bytes_of).sum::<usize>();
        while self.rules_bytes > ROBOTS_CACHE_BYTES_MAX && self.rules.len() > 1 {
            // Many at once, since what is left moves up.
            let dropped = self.rules.drain(..self.rules.len().div_ceil(10));
            self.rules_bytes -= dropped.map(|(_, verdict)| bytes_of(&verdict)).sum::<usize>();
        }
        Step::Known(rules)
    }

    /// An older copy is better than none, however old it is. Without one nothing is allowed, until the
    /// outage has been so long that there seems to be no file (section 2.3.1.4).
    fn unreachable(
        &mut self,
        page: &CanonicalUrl,
        failure: Failure,
        outage: Option<Outage>,
        now: Now,
    ) -> (Step, Vec<Remember>) {
        let authority = authority(page);
        let stored = outage.map(|outage| outage.since_unix_s);
        let known = self.outages.get(&authority).map(|outage| outage.since_unix_s);
        // A time of day that was set back cannot have seen its beginning.
        let since = stored.into_iter().chain(known).fold(now.unix_s, u64::min);
        let age = Duration::from_secs(now.unix_s - since);
        let remember = vec![Remember::outage(since, now.unix_s)];
        let copy = self.rules.get(&authority).map(|verdict| Arc::clone(&verdict.rules));
        let copy = copy.or_else(|| (age >= ROBOTS_OUTAGE_LONG).then(Arc::default));
        let step = if let Some(rules) = copy {
            self.know(page, rules, ROBOTS_STALE_EXTENSION, now.instant)
        } else {
            let failure = failure.within("robots.txt: ");
            let pause = age.clamp(ROBOTS_OUTAGE_PAUSE_MIN, ROBOTS_OUTAGE_PAUSE_MAX);
            let (told, ask_again) = (failure.clone(), now.instant + pause);
            let outage = Unreachable { failure: told, since_unix_s: since, ask_again };
            keep(&mut self.outages, authority, outage, ROBOTS_OUTAGES_MAX);
            Step::Unknown(failure, pause)
        };
        (step, remember)
    }
}

/// Puts the newest at the end; drops the oldest tenth when there are too many. Gives what is not
/// kept any more.
fn keep<K: std::hash::Hash + Eq, V>(
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
