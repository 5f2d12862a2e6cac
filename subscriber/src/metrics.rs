//! What a crawler counts, and the table that names it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use tidings_browser::Status;
use tidings_browser::pool::{Reason, State};
use tidings_metrics::{Counter, Exposition, Histogram, Metric, MetricsSource};
use tidings_protocol::FailureReason;
use tidings_protocol::status::BrowserFields;
use tokio::sync::watch;

use crate::report::{PageOutcome, PageReport};

/// What a crawler has counted since its start. Any thread reads it without waiting.
#[derive(Debug, Default)]
pub struct CrawlerMetrics {
    /// Pages, in the order of [`PageOutcome::ALL`].
    outcomes: [Counter; PageOutcome::ALL.len()],
    /// Pages with each reason, in the order of [`FailureReason::ALL`]; behind them, those with
    /// another one.
    reasons: [Counter; FailureReason::ALL.len() + 1],
    /// Responses with status 200 to 299, 300 to 399, 400 to 499 and 500 to 599.
    responses: [Counter; 4],
    request_times: Histogram,
    body_bytes: Counter,
    wire_bytes: Counter,
    held_tasks: AtomicU64,
    credit: AtomicU64,
    is_connected: AtomicU64,
    sink_times: Histogram,
    sink_blocked: AtomicU64,
    network_away: AtomicU64,
    /// Set if the crawler has browsers.
    browsers: OnceLock<watch::Receiver<Status>>,
    /// Pages that are rendered, or wait for that.
    wanted_pages: AtomicU64,
}

/// A page that is rendered, or waits for that.
pub(crate) struct WantedPage<'a>(&'a CrawlerMetrics);

impl Drop for WantedPage<'_> {
    fn drop(&mut self) {
        self.0.wanted_pages.fetch_sub(1, Ordering::Relaxed);
    }
}

impl CrawlerMetrics {
    /// Whether the crawler is a member of its group now.
    pub fn is_connected(&self) -> bool {
        self.is_connected.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn set_connected(&self, is_connected: bool) {
        self.is_connected.store(is_connected.into(), Ordering::Relaxed);
    }

    /// How many tasks the crawler asks for, which is none while a sink cannot store pages or the
    /// network is away.
    pub(crate) fn set_credit(&self, credit: u32, is_blocked: bool, is_away: bool) {
        self.credit.store(credit.into(), Ordering::Relaxed);
        self.sink_blocked.store(is_blocked.into(), Ordering::Relaxed);
        self.network_away.store(is_away.into(), Ordering::Relaxed);
    }

    pub(crate) fn set_held_tasks(&self, count: usize) {
        self.held_tasks.store(count as u64, Ordering::Relaxed);
    }

    /// The crawler has these browsers.
    pub(crate) fn set_browsers(&self, status: watch::Receiver<Status>) {
        // A process has one crawler with these metrics.
        let _ = self.browsers.set(status);
    }

    /// Counts a page that is to be rendered, until this is dropped.
    pub(crate) fn want_browser(&self) -> WantedPage<'_> {
        self.wanted_pages.fetch_add(1, Ordering::Relaxed);
        WantedPage(self)
    }

    /// What the crawler reports about its browsers; nothing if it has none.
    pub fn browsers(&self) -> BrowserFields {
        let Some(status) = self.browsers.get() else { return BrowserFields::default() };
        let status = status.borrow();
        let running = || status.browsers.iter().filter(|browser| browser.state != State::Ended);
        let pages = status.browsers.iter().map(|browser| browser.pages as u64).sum::<u64>();
        let ready = running().filter(|browser| browser.state == State::Ready);
        let restarts = Reason::ALL.iter().zip(status.ended);
        let restarts = restarts.filter(|(reason, _)| **reason != Reason::Idle);
        BrowserFields {
            browsers: Some(running().count() as u64),
            pages: Some(pages),
            waiting: Some(self.wanted_pages.load(Ordering::Relaxed).saturating_sub(pages)),
            pages_left: ready.map(|browser| browser.pages_left.into()).min(),
            bytes: Some(running().map(|browser| browser.bytes).sum()),
            restarts: Some(restarts.map(|(_, count)| count).sum()),
        }
    }

    pub(crate) fn sink_times(&self) -> &Histogram {
        &self.sink_times
    }

    /// Counts a page that has ended.
    pub(crate) fn count_page(&self, page: &PageReport) {
        self.outcomes[page.outcome as usize].add(1);
        if let Some(reason) = page.reason {
            let known = FailureReason::from_word(reason).map(|reason| reason as usize);
            self.reasons[known.unwrap_or(FailureReason::ALL.len())].add(1);
        }
        let Some(status) = page.status else { return };
        let class = usize::from(status / 100).checked_sub(2);
        if let Some(count) = class.and_then(|class| self.responses.get(class)) {
            count.add(1);
        }
        self.request_times.observe(page.duration);
        self.body_bytes.add(page.bytes);
        self.wire_bytes.add(page.wire_bytes);
    }
}

impl MetricsSource for CrawlerMetrics {
    fn add_to(&self, text: &mut Exposition) {
        text.add(CRAWLER, self);
    }

    fn problem(&self) -> Option<&'static str> {
        let is_set = |flag: &AtomicU64| flag.load(Ordering::Relaxed) != 0;
        if is_set(&self.sink_blocked) {
            Some("The crawler of this process cannot store pages.")
        } else if is_set(&self.network_away) {
            Some("The crawler of this process reaches no server: the network is away.")
        } else {
            None
        }
    }
}

static CRAWLER: &[Metric<CrawlerMetrics>] = &[
    Metric::counter(
        "tidings_crawler_outcomes_total",
        &["outcome"],
        "Pages of a crawler by their outcome; retry is an attempt that failed.",
        |it, out| {
            for (outcome, count) in PageOutcome::ALL.iter().zip(&it.outcomes) {
                out.labelled(&[outcome.as_str()], count.value());
            }
        },
    ),
    Metric::counter(
        "tidings_crawler_failures_total",
        &["reason"],
        "Pages of a crawler with a reason why there is no page; other: a trap.",
        |it, out| {
            let words = FailureReason::ALL.map(FailureReason::as_str).into_iter().chain(["other"]);
            for (reason, count) in words.zip(&it.reasons) {
                out.labelled(&[reason], count.value());
            }
        },
    ),
    Metric::counter(
        "tidings_crawler_requests_total",
        &["class"],
        "Requests for pages that got a response, by the class of its status.",
        |it, out| {
            for (class, count) in ["2xx", "3xx", "4xx", "5xx"].iter().zip(&it.responses) {
                out.labelled(&[class], count.value());
            }
        },
    ),
    Metric::histogram(
        "tidings_crawler_request_duration_seconds",
        &[],
        "Time from the start of a request for a page to the end of the response.",
        |it, out| out.durations(&[], it.request_times.durations()),
    ),
    Metric::counter(
        "tidings_crawler_body_bytes_total",
        &[],
        "Bytes of decoded pages.",
        |it, out| out.value(it.body_bytes.value()),
    ),
    Metric::counter(
        "tidings_crawler_wire_bytes_total",
        &[],
        "Bytes of pages as they were received.",
        |it, out| out.value(it.wire_bytes.value()),
    ),
    Metric::gauge("tidings_crawler_held_tasks", &[], "Tasks that the crawler holds.", |it, out| {
        out.value(it.held_tasks.load(Ordering::Relaxed));
    }),
    Metric::gauge(
        "tidings_crawler_credit",
        &[],
        "Tasks that the crawler takes at once; 0 while it cannot store pages or reach servers.",
        |it, out| out.value(it.credit.load(Ordering::Relaxed)),
    ),
    Metric::gauge(
        "tidings_crawler_broker_connected",
        &[],
        "1 while the crawler is a member of its group.",
        |it, out| out.value(u64::from(it.is_connected())),
    ),
    Metric::histogram(
        "tidings_crawler_sink_write_duration_seconds",
        &[],
        "Time to store a batch of pages in a sink.",
        |it, out| out.durations(&[], it.sink_times.durations()),
    ),
    Metric::gauge(
        "tidings_crawler_sink_blocked",
        &[],
        "1 while a sink cannot store pages.",
        |it, out| out.value(it.sink_blocked.load(Ordering::Relaxed)),
    ),
    Metric::gauge(
        "tidings_crawler_network_away",
        &[],
        "1 while none of the servers that answered last can be reached.",
        |it, out| out.value(it.network_away.load(Ordering::Relaxed)),
    ),
    Metric::gauge("tidings_crawler_browsers", &[], "Browsers that run.", |it, out| {
        out.value(it.browsers().browsers);
    }),
    Metric::gauge(
        "tidings_crawler_browser_resident_memory_bytes",
        &[],
        "Memory of the browsers, without what their files back.",
        |it, out| out.value(it.browsers().bytes),
    ),
    Metric::gauge(
        "tidings_crawler_browser_pages",
        &["state"],
        "Pages that browsers render, and pages that wait for a browser.",
        |it, out| {
            let BrowserFields { pages, waiting, .. } = it.browsers();
            out.labelled(&["rendering"], pages);
            out.labelled(&["waiting"], waiting);
        },
    ),
    Metric::gauge(
        "tidings_crawler_browser_pages_left",
        &[],
        "Pages until the next browser is replaced.",
        |it, out| out.value(it.browsers().pages_left),
    ),
    Metric::counter(
        "tidings_crawler_browsers_ended_total",
        &["reason"],
        "Browsers that have ended: replaced at a limit, idle without a successor, lost by themselves.",
        |it, out| {
            let Some(status) = it.browsers.get() else { return };
            for (reason, count) in Reason::ALL.iter().zip(status.borrow().ended) {
                out.labelled(&[reason.as_str()], count);
            }
        },
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_keeps_to_the_conventions() {
        tidings_metrics::check_table(CRAWLER);
    }
}
