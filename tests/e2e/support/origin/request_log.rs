//! What the record of an origin says about whoever asked.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::Duration;

use super::Hit;

/// All requests of a while, in the order in which they began.
#[derive(Debug, Clone)]
pub(crate) struct RequestLog(pub(crate) Vec<Hit>);

impl RequestLog {
    /// The requests for pages: all but those for robots.txt.
    pub(crate) fn page_requests(&self) -> impl Iterator<Item = &Hit> {
        self.0.iter().filter(|hit| hit.path != "/robots.txt")
    }

    /// The paths asked for, robots.txt aside, as often as they were asked for.
    pub(crate) fn paths(&self) -> Vec<&str> {
        self.page_requests().map(|hit| hit.path.as_str()).collect()
    }

    /// Hosts and paths that were asked for, robots.txt aside.
    pub(crate) fn distinct_pages(&self) -> BTreeSet<(Ipv4Addr, &str)> {
        self.page_requests().map(|hit| (hit.host, hit.path.as_str())).collect()
    }

    /// No page was asked for twice.
    #[track_caller]
    pub(crate) fn expect_no_duplicates(&self) {
        let mut seen = BTreeSet::new();
        for hit in self.page_requests() {
            assert!(seen.insert((hit.host, &hit.path)), "a second time: {hit:?}");
        }
    }

    /// Nothing below this prefix was asked for.
    #[track_caller]
    pub(crate) fn expect_none_under(&self, prefix: &str) {
        let found = self.0.iter().find(|hit| hit.path.starts_with(prefix));
        assert!(found.is_none(), "not allowed: {found:?}");
    }

    /// To no host there were two requests at once, nor one begun sooner than `delay` after the end
    /// of the one before. Requests for robots.txt count: politeness is about requests.
    ///
    /// The end of a request that the client broke off is not known here; its start stands in, which
    /// is never later.
    #[track_caller]
    pub(crate) fn expect_polite(&self, delay: Duration) {
        let mut last: BTreeMap<Ipv4Addr, &Hit> = BTreeMap::new();
        for hit in &self.0 {
            if let Some(before) = last.insert(hit.host, hit) {
                let free = before.end.unwrap_or(before.start) + delay;
                let early = free.saturating_sub(hit.start);
                assert!(early.is_zero(), "{early:?} early: {hit:?}\nafter {before:?}");
            }
        }
    }
}
