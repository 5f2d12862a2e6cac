//! Time from an announcement to its request, as the host sees it, on an idle system.

#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock and sleeps")]

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use tidings_load::{Figure, Progress};

use crate::histogram::Histogram;
use crate::origin::{Origin, RequestTarget};

/// A crawler that polls takes less time than this.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Shortest pause between the last answer and the next announcement, after which the crawler is
/// idle.
const IDLE_MIN: Duration = Duration::from_millis(5);

/// The fractional parts of its multiples are spread evenly over 0 to 1, for any number of them.
const GOLDEN_RATIO: f64 = 0.618_034;

/// Announces pages of different hosts, one after the other: first one page of each host, when its
/// robots.txt is unknown, and then a second page.
#[derive(Debug, Clone, Copy)]
pub struct Announce {
    /// Announcements of each kind; at most one per host of the origin.
    pub hosts: u32,
    /// Time limit of each kind; a slow crawler receives fewer announcements.
    pub time_max: Duration,
}

impl Announce {
    /// Measures the time; `announce` announces a URL.
    pub fn measure(
        &self,
        origin: &Origin,
        mut announce: impl FnMut(&str) -> Result<()>,
        progress: Progress<'_>,
    ) -> Result<Vec<Figure>> {
        let hosts = self.hosts.min(origin.site().hosts - 1);
        // The crawler may still be starting.
        announce_and_wait(origin, hosts, 0, &mut announce)?;
        let mut reached = hosts;
        let mut of_page = |page, what: &str| {
            let mut times = Histogram::new();
            let began = Instant::now();
            for host in 0..reached {
                if began.elapsed() > self.time_max {
                    reached = host;
                    break;
                }
                if host % 100 == 0 {
                    progress(&format!("{what}, {host} of {reached}"))?;
                }
                let took = announce_and_wait(origin, host, page, &mut announce)?;
                times.record(took);
                // Crawlers that poll must not always meet the announcement at the same point of
                // their interval.
                thread::sleep(IDLE_MIN + took.mul_f64((f64::from(host) * GOLDEN_RATIO).fract()));
            }
            anyhow::Ok(times)
        };
        let unknown = of_page(0, "unknown hosts")?;
        let known = of_page(1, "known hosts")?;
        let ms = |key, label, value: f64| Figure::new(key, label, 2).with_runs([value / 1000.0]);
        Ok(vec![
            ms("known_p50_ms", "host known, p50, ms", known.quantile(0.5)),
            ms("known_p99_ms", "host known, p99, ms", known.quantile(0.99)),
            ms("unknown_p50_ms", "host unknown, p50, ms", unknown.quantile(0.5)),
            ms("unknown_p99_ms", "host unknown, p99, ms", unknown.quantile(0.99)),
        ])
    }
}

/// Announces a page and waits until it was fetched. Returns the time until the first request to its
/// host.
fn announce_and_wait(
    origin: &Origin,
    host: u32,
    page: u32,
    announce: &mut impl FnMut(&str) -> Result<()>,
) -> Result<Duration> {
    let count_before = origin.request_count();
    let url = origin.url(host, page);
    let announced = origin.now();
    announce(&url)?;
    let start = origin.wait_for(REQUEST_TIMEOUT, |log| {
        log.requests[count_before..]
            .iter()
            .find(|request| request.host == host)
            .map(|request| request.start)
    })?;
    origin.wait_for(REQUEST_TIMEOUT, |log| {
        let mut requests = log.requests[count_before..].iter();
        requests
            .find(|request| {
                request.host == host
                    && request.target == RequestTarget::Page(page)
                    && request.end.is_some()
            })
            .map(|_| ())
    })?;
    Ok(start.saturating_sub(announced))
}
