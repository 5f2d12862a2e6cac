//! The requests that an origin received, with checks of them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::Duration;

use tidings_bench::origin::HostRequests;

use super::Hit;

/// Requests in the order of their start.
#[derive(Debug, Clone)]
pub(crate) struct RequestLog(pub(crate) Vec<Hit>);

impl RequestLog {
    /// The requests for pages, without those for robots.txt.
    pub(crate) fn page_requests(&self) -> impl Iterator<Item = &Hit> {
        self.0.iter().filter(|hit| hit.path != "/robots.txt")
    }

    /// The requested paths without robots.txt, with repetitions.
    pub(crate) fn paths(&self) -> Vec<&str> {
        self.page_requests().map(|hit| hit.path.as_str()).collect()
    }

    /// The requested hosts and paths, without robots.txt and repetitions.
    pub(crate) fn distinct_pages(&self) -> BTreeSet<(Ipv4Addr, &str)> {
        self.page_requests().map(|hit| (hit.host, hit.path.as_str())).collect()
    }

    /// Checks that no page was requested twice.
    #[track_caller]
    pub(crate) fn expect_no_duplicates(&self) {
        let mut seen = BTreeSet::new();
        for hit in self.page_requests() {
            assert!(seen.insert((hit.host, &hit.path)), "requested twice: {hit:?}");
        }
    }

    /// Checks that nothing below this prefix was requested.
    #[track_caller]
    pub(crate) fn expect_none_under(&self, prefix: &str) {
        let found = self.0.iter().find(|hit| hit.path.starts_with(prefix));
        assert!(found.is_none(), "forbidden request: {found:?}");
    }

    /// Checks that each host had one request at a time, and that each began at least `delay` after
    /// the end of those before. Requests for robots.txt count as well.
    #[track_caller]
    pub(crate) fn expect_polite(&self, delay: Duration) {
        let mut hosts: BTreeMap<Ipv4Addr, (HostRequests, Vec<&Hit>)> = BTreeMap::new();
        for hit in &self.0 {
            let (requests, before) = hosts.entry(hit.host).or_default();
            let early = requests.early_by(hit.start, delay);
            assert!(early.is_zero(), "{early:?} too early: {hit:?}\nafter {before:#?}");
            requests.record(hit.start, hit.end);
            before.push(hit);
        }
    }
}
