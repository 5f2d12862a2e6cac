//! Verdict on a crawl, from the request log of the origin.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::politeness::HostRequests;
use super::site::{RequestTarget, Site};

/// One request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OriginRequest {
    /// The number of the host.
    pub host: u32,
    /// The requested path.
    pub target: RequestTarget,
    /// When its first bytes were read, since the start of the origin.
    pub start: Duration,
    /// When the last byte of the response was about to be sent; `None`: not yet, or the client
    /// disconnected.
    pub end: Option<Duration>,
}

/// All requests of a crawl, in the order in which they began.
#[derive(Debug, Clone, Default)]
pub struct RequestLog {
    /// The requests.
    pub requests: Vec<OriginRequest>,
    /// Connections that were opened.
    pub connections: u64,
}

/// The quality of a crawl, as the hosts saw it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Pages that were requested, each counted once.
    pub pages: u64,
    /// Pages that were not requested.
    pub missing: u64,
    /// Requests for pages that had been requested before.
    pub repeated: u64,
    /// Parts of the data of pages that were not requested: these pages were not rendered.
    pub missing_data: u64,
    /// Requests for paths that no page links to, except robots.txt.
    pub unlinked: u64,
    /// Requests for pages before robots.txt of their host was answered.
    pub before_robots: u64,
    /// Requests that began during the request before, or sooner than the delay after its end;
    /// robots.txt included.
    pub too_early: u64,
    /// Requests that began during another one to the same host. A site without a delay allows them;
    /// at others they are `too_early`, too.
    pub overlapping: u64,
    /// The largest time by which one of the `too_early` requests came too early.
    pub early_by_max: Duration,
    /// Connections that were opened.
    pub connections: u64,
    /// From the start of the first request to the end of the last response.
    pub span: Duration,
}

impl RequestLog {
    /// Judges a crawl of this whole site.
    ///
    /// The verdict is never worse than the crawl: see [`super`].
    pub fn judge(&self, site: &Site) -> Verdict {
        let mut verdict = Verdict { connections: self.connections, ..Verdict::default() };
        let mut hosts: BTreeMap<u32, HostTimes> = BTreeMap::new();
        let mut requested =
            vec![false; usize::try_from(site.total_pages()).expect("pages fit into memory")];
        let mut data = BTreeSet::new();
        for request in &self.requests {
            let host = hosts.entry(request.host).or_default();
            let early_by = |delay| host.requests.early_by(request.start, delay);
            verdict.overlapping += u64::from(!early_by(Duration::ZERO).is_zero());
            if let Some(early) = site.crawl_delay.map(early_by) {
                verdict.too_early += u64::from(!early.is_zero());
                verdict.early_by_max = verdict.early_by_max.max(early);
            }
            host.requests.record(request.start, request.end);
            match request.target {
                RequestTarget::Robots => host.robots_end = host.robots_end.or(request.end),
                RequestTarget::Other => verdict.unlinked += 1,
                RequestTarget::Script | RequestTarget::Style => {}
                RequestTarget::Data(page, part) => {
                    data.insert((request.host, page, part));
                }
                RequestTarget::Page(page) => {
                    verdict.before_robots +=
                        u64::from(host.robots_end.is_none_or(|end| request.start < end));
                    let number = u64::from(request.host) * u64::from(site.pages) + u64::from(page);
                    let requested =
                        &mut requested[usize::try_from(number).expect("below the number of pages")];
                    *(if *requested { &mut verdict.repeated } else { &mut verdict.pages }) += 1;
                    *requested = true;
                }
            }
        }
        verdict.missing = site.total_pages() - verdict.pages;
        verdict.missing_data = site.total_data() - data.len() as u64;
        let first = self.requests.first().map_or(Duration::ZERO, |request| request.start);
        let last = hosts.values().filter_map(|host| host.requests.latest_end()).max();
        verdict.span = last.map_or(Duration::ZERO, |last| last.saturating_sub(first));
        verdict
    }
}

/// State of a host while the log is read.
#[derive(Debug, Default)]
struct HostTimes {
    requests: HostRequests,
    /// The end of the first response to robots.txt.
    robots_end: Option<Duration>,
}

impl Verdict {
    /// Each page was requested exactly once, and none too early.
    pub fn is_clean(&self) -> bool {
        self.faults() == 0
    }

    /// How often a page was missing, repeated, not rendered, or requested too early.
    pub fn faults(&self) -> u64 {
        self.missing + self.repeated + self.missing_data + self.before_robots + self.too_early
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(delay: Option<u64>) -> Site {
        let delay = delay.map(Duration::from_millis);
        Site {
            hosts: 2,
            pages: 2,
            page_bytes: 0,
            links: 1,
            response_delay: Duration::ZERO,
            crawl_delay: delay,
            is_scripted: false,
        }
    }

    fn request(
        host: u32,
        target: RequestTarget,
        start: u64,
        end: impl Into<Option<u64>>,
    ) -> OriginRequest {
        let end = end.into().map(Duration::from_millis);
        OriginRequest { host, target, start: Duration::from_millis(start), end }
    }

    fn judge(site: &Site, requests: &[OriginRequest]) -> Verdict {
        RequestLog { requests: requests.to_vec(), connections: 1 }.judge(site)
    }

    #[test]
    fn a_polite_crawl_is_clean() {
        let requests = [
            request(0, RequestTarget::Robots, 5, 10),
            request(1, RequestTarget::Robots, 6, 11),
            request(0, RequestTarget::Page(0), 110, 115),
            request(1, RequestTarget::Page(0), 111, 116),
            request(0, RequestTarget::Page(1), 215, 220),
            request(1, RequestTarget::Page(1), 300, 310),
        ];
        let verdict = judge(&site(Some(100)), &requests);
        let span = Duration::from_millis(305);
        assert_eq!(verdict, Verdict { pages: 4, connections: 1, span, ..Verdict::default() });
        assert!(verdict.is_clean());
    }

    #[test]
    fn each_kind_of_fault_is_counted() {
        let requests = [
            request(0, RequestTarget::Page(0), 0, 40),
            request(0, RequestTarget::Robots, 50, 60),
            request(0, RequestTarget::Page(0), 160, 170),
            request(0, RequestTarget::Other, 200, None),
            // The end of the request before is unknown: 100 ms after its start would be in time.
            request(0, RequestTarget::Other, 299, 300),
        ];
        let verdict = judge(&site(Some(100)), &requests);
        let early_by_max = Duration::from_millis(90);
        let span = Duration::from_millis(300);
        let faults = Verdict {
            pages: 1,
            missing: 3,
            missing_data: 0,
            overlapping: 0,
            repeated: 1,
            unlinked: 2,
            before_robots: 1,
            too_early: 3,
            early_by_max,
            connections: 1,
            span,
        };
        assert_eq!(verdict, faults);
        assert!(!verdict.is_clean());
    }

    #[test]
    fn overlapping_requests_count_from_the_last_end() {
        let requests = [
            request(0, RequestTarget::Robots, 0, 500),
            request(0, RequestTarget::Other, 100, 110),
            request(0, RequestTarget::Other, 550, 560),
        ];
        let [delayed, free] = [Some(100), None].map(|delay| judge(&site(delay), &requests));
        assert_eq!((delayed.too_early, delayed.overlapping), (2, 1));
        assert_eq!((free.too_early, free.overlapping), (0, 1));
    }

    #[test]
    fn a_page_whose_data_is_not_requested_is_not_rendered() {
        let requests = [
            request(0, RequestTarget::Robots, 0, 1),
            request(0, RequestTarget::Page(0), 10, 11),
            request(0, RequestTarget::Script, 20, 21),
            request(0, RequestTarget::Data(0, 0), 30, 31),
            request(0, RequestTarget::Data(0, 1), 40, 41),
            request(0, RequestTarget::Data(0, 1), 50, 51),
        ];
        let site = Site { hosts: 1, pages: 1, is_scripted: true, ..site(None) };
        let verdict = judge(&site, &requests);
        assert_eq!((verdict.missing_data, verdict.faults()), (1, 1));
    }
}
