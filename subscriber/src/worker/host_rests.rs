//! Remembers `Retry-After` of hosts that serve only parts of rendered pages: the broker sends no task
//! for these hosts, so it keeps no delay for them.

#![expect(clippy::disallowed_methods, reason = "stamps requests")]

use std::time::Duration;

use indexmap::IndexMap;
use tidings_protocol::{CanonicalUrl, KeyRest};
use tokio::time::Instant;

use super::Crawler;
use super::robots_cache::insert_bounded;
use super::task::not_before;
use crate::fetch::{FetchRequest, Fetched};

/// Hosts that are remembered, at some 100 bytes each. The oldest tenth is forgotten first, and may
/// get one more request each.
const HOSTS_MAX: usize = 10_000;

/// Until when hosts ask clients to wait.
#[derive(Debug, Default)]
pub(super) struct HostRests(IndexMap<String, Instant>);

impl HostRests {
    /// For how long a host rests.
    fn left(&self, host: &str, now: Instant) -> Option<Duration> {
        let left = self.0.get(host)?.saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }

    fn remember(&mut self, host: &str, rest: Duration, now: Instant) {
        insert_bounded(&mut self.0, host.to_owned(), now + rest, HOSTS_MAX);
    }
}

impl Crawler {
    /// The rest that the host of a URL has asked for.
    pub(super) fn rest_of(&self, url: &CanonicalUrl<'_>) -> KeyRest {
        not_before(self.host_rests.lock().left(url.host(), Instant::now()))
    }

    /// Makes a request, unless its host rests. The caller has the host's turn.
    pub(super) async fn fetch_unless_resting(&self, request: &FetchRequest<'_>) -> Option<Fetched> {
        let host = request.url.host();
        if self.host_rests.lock().left(host, Instant::now()).is_some() {
            return None;
        }
        let fetched = self.fetcher.fetch(request).await;
        if let Some(rest) = fetched.retry_after {
            self.host_rests.lock().remember(host, rest, Instant::now());
        }
        Some(fetched)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REST: Duration = Duration::from_mins(1);

    #[test]
    fn a_host_rests_for_as_long_as_it_asked_last() {
        let (mut rests, now) = (HostRests::default(), Instant::now());
        rests.remember("a.example", REST, now);
        assert_eq!(rests.left("a.example", now + REST / 3), Some(REST * 2 / 3));
        assert_eq!(rests.left("a.example", now + REST), None);
        assert_eq!(rests.left("b.example", now), None);
        rests.remember("a.example", REST, now + REST);
        assert_eq!(rests.left("a.example", now + REST), Some(REST));
    }

    #[test]
    fn the_hosts_that_asked_first_are_forgotten_first() {
        let (mut rests, now) = (HostRests::default(), Instant::now());
        let host = |number: usize| format!("{number}.example");
        for number in 0..=HOSTS_MAX {
            rests.remember(&host(number), REST, now);
        }
        assert_eq!(rests.left(&host(0), now), None);
        assert_eq!(rests.left(&host(HOSTS_MAX), now), Some(REST));
        assert!(rests.0.len() <= HOSTS_MAX);
    }
}
