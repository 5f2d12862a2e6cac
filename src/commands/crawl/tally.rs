//! Counts and times of a crawl, with a limit on memory.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use tidings_protocol::FailureReason;
use tidings_subscriber::{PageOutcome, PageReport, RenderReport};

use crate::terminal::output::printable;

/// The limit of hosts with known times, each about 100 bytes. Beyond it the faster half is
/// forgotten, so the slowest hosts are right unless they were fast at first.
const HOSTS_MAX: usize = 10_000;

/// The longest example of a failure, in characters.
const EXAMPLE_CHARS_MAX: usize = 100;

/// Failed pages that are named for each reason, and the longest URL of one, in characters.
const FAILED_URLS_MAX: usize = 3;
const URL_CHARS_MAX: usize = 200;

/// The answers among which the slowest recent ones are found, and their greatest age.
const RECENT_MAX: usize = 500;
const RECENT: Duration = Duration::from_secs(15);

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct AnswerTimes {
    pub(crate) answers: u64,
    total: Duration,
    pub(crate) longest: Duration,
    /// When the first request began and the last answer arrived, since the start.
    began: Duration,
    ended: Duration,
}

impl AnswerTimes {
    /// Adds an answer that took `time` and arrived at `at`.
    fn add(&mut self, time: Duration, at: Duration) {
        let began = at.saturating_sub(time);
        self.began = if self.answers == 0 { began } else { self.began.min(began) };
        self.ended = self.ended.max(at);
        self.answers += 1;
        self.total += time;
        self.longest = self.longest.max(time);
    }

    /// The average; 0 without answers.
    pub(crate) fn mean(&self) -> Duration {
        let answers = u32::try_from(self.answers).unwrap_or(u32::MAX);
        self.total.checked_div(answers).unwrap_or_default()
    }

    /// The time from the first request to the last answer, with the pauses between.
    pub(crate) fn span(&self) -> Duration {
        self.ended.saturating_sub(self.began)
    }
}

/// Pages that failed for the same reason, with the same status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FailureCount {
    /// The word for the reason.
    pub(crate) reason: &'static str,
    pub(crate) count: u64,
    /// The error of the first of them.
    pub(crate) example: String,
    /// The URLs of the first ones.
    pub(crate) urls: Vec<String>,
}

/// Pages that the crawler tried to render.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RenderCounts {
    pub(crate) rendered: u64,
    /// They are stored as they were fetched.
    pub(crate) failed: u64,
    /// Links to pages of the same host that are only on the rendered pages.
    pub(crate) new_links: u64,
    /// Rendered pages without new links or much more text.
    pub(crate) without_gain: u64,
}

/// Counts of a crawl.
#[derive(Debug, Default)]
pub(crate) struct CrawlTally {
    outcomes: BTreeMap<&'static str, u64>,
    /// By the first digit of the status; 0: a request without a response.
    classes: [u64; 6],
    pub(crate) bytes: u64,
    pub(crate) wire_bytes: u64,
    pub(crate) renders: RenderCounts,
    pub(crate) times: AnswerTimes,
    hosts: HashMap<Box<str>, AnswerTimes>,
    /// Some hosts were forgotten.
    has_evicted: bool,
    /// By the word for the reason and the status; the list of words is closed.
    failures: BTreeMap<(&'static str, Option<u16>), FailureCount>,
    /// Hosts that did not answer their newest request, and why; at most `HOSTS_MAX`.
    down: BTreeMap<Box<str>, String>,
    /// The time since the start, the host, and how long the answer took.
    recent: VecDeque<(Duration, Box<str>, Duration)>,
}

impl RenderCounts {
    fn record(&mut self, render: &RenderReport) {
        if render.error.is_some() {
            self.failed += 1;
            return;
        }
        self.rendered += 1;
        self.new_links += render.gain.links as u64;
        self.without_gain += u64::from(!render.gain.is_some());
    }
}

impl CrawlTally {
    /// Counts a page that was finished at `at`.
    pub(crate) fn record_page(&mut self, report: &PageReport, at: Duration) {
        *self.outcomes.entry(report.outcome.as_str()).or_default() += 1;
        // An unchanged page was answered without its body.
        if report.status != Some(304) {
            self.bytes += report.bytes;
        }
        self.wire_bytes += report.wire_bytes;
        if report.outcome == PageOutcome::Failed {
            self.record_failure(report);
        }
        self.record_down(report);
        if let Some(render) = &report.render {
            self.renders.record(render);
        }
        if report.status.is_none() && report.duration.is_zero() {
            // No request was made.
            return;
        }
        let class = usize::from(report.status.unwrap_or_default() / 100);
        self.classes[if class < self.classes.len() { class } else { 0 }] += 1;
        self.record_time(host_of(&report.url), report.duration, at);
    }

    fn record_time(&mut self, host: &str, time: Duration, at: Duration) {
        self.times.add(time, at);
        if let Some(times) = self.hosts.get_mut(host) {
            times.add(time, at);
        } else {
            self.evict_fast_hosts();
            self.hosts.entry(host.into()).or_default().add(time, at);
        }
        self.recent.push_back((at, host.into(), time));
        if self.recent.len() > RECENT_MAX {
            self.recent.pop_front();
        }
    }

    fn evict_fast_hosts(&mut self) {
        if self.hosts.len() < HOSTS_MAX {
            return;
        }
        let mut means: Vec<Duration> = self.hosts.values().map(AnswerTimes::mean).collect();
        let (_, median, _) = means.select_nth_unstable(HOSTS_MAX / 2);
        let median = *median;
        self.has_evicted = true;
        self.hosts.retain(|_, times| times.mean() > median);
    }

    fn record_failure(&mut self, report: &PageReport) {
        let reason = report.reason.unwrap_or("unnamed");
        // With statuses beyond the usual ones the list would have no bound.
        let status = report.status.filter(|status| (400..600).contains(status));
        let failures = self.failures.entry((reason, status)).or_insert_with(|| {
            let error = report.error.as_deref().unwrap_or_default();
            let example = printable(error, EXAMPLE_CHARS_MAX);
            FailureCount { reason, count: 0, example, urls: Vec::new() }
        });
        failures.count += 1;
        if failures.urls.len() < FAILED_URLS_MAX {
            failures.urls.push(printable(&report.url, URL_CHARS_MAX));
        }
    }

    /// The broker gives up the pages of a host that does not answer. Most have no final report.
    fn record_down(&mut self, report: &PageReport) {
        let host = host_of(&report.url);
        let reason = report.reason.and_then(FailureReason::from_word);
        let is_unanswered = reason.is_some_and(FailureReason::is_unanswered);
        if !is_unanswered {
            self.down.remove(host);
        } else if self.down.len() < HOSTS_MAX {
            let error = printable(report.error.as_deref().unwrap_or_default(), EXAMPLE_CHARS_MAX);
            let why = format!("{} ({error})", report.reason.unwrap_or_default());
            self.down.insert(host.into(), why);
        }
    }

    /// The hosts that did not answer their newest request, and why.
    pub(crate) fn down(&self) -> &BTreeMap<Box<str>, String> {
        &self.down
    }

    /// The number of finished pages, without attempts after which a page is tried again.
    pub(crate) fn pages(&self) -> u64 {
        let retries = self.outcomes.get(PageOutcome::Retry.as_str()).copied().unwrap_or_default();
        self.outcomes.values().sum::<u64>() - retries
    }

    /// The numbers of pages by outcome.
    pub(crate) fn outcomes(&self) -> &BTreeMap<&'static str, u64> {
        &self.outcomes
    }

    /// The numbers of answers by class of status, without zeros: `2xx`, `no answer`.
    pub(crate) fn classes(&self) -> impl Iterator<Item = (&'static str, u64)> {
        const NAMES: [&str; 6] = ["no answer", "1xx", "2xx", "3xx", "4xx", "5xx"];
        let classes = NAMES.into_iter().zip(self.classes);
        // Requests without a response come last.
        classes.clone().skip(1).chain(classes.take(1)).filter(|(_, count)| *count > 0)
    }

    /// The number of hosts that answered; `None`: some were forgotten.
    pub(crate) fn host_count(&self) -> Option<usize> {
        (!self.has_evicted).then_some(self.hosts.len())
    }

    /// The hosts with the slowest answers on average, slowest first.
    pub(crate) fn slowest(&self, count: usize) -> Vec<(&str, AnswerTimes)> {
        self.top_hosts(count, AnswerTimes::mean)
    }

    /// The hosts with the longest time from the first request to the last answer, longest first.
    pub(crate) fn longest(&self, count: usize) -> Vec<(&str, AnswerTimes)> {
        self.top_hosts(count, AnswerTimes::span)
    }

    fn top_hosts(
        &self,
        count: usize,
        of: impl Fn(&AnswerTimes) -> Duration,
    ) -> Vec<(&str, AnswerTimes)> {
        let mut hosts: Vec<_> = self.hosts.iter().map(|(host, times)| (&**host, *times)).collect();
        hosts.sort_unstable_by_key(|(host, times)| (Reverse(of(times)), *host));
        hosts.truncate(count);
        hosts
    }

    /// The hosts with the slowest recent answers, slowest first.
    pub(crate) fn slowest_now(&self, count: usize, now: Duration) -> Vec<(&str, Duration)> {
        let recent = self.recent.iter().filter(|(at, ..)| *at + RECENT >= now);
        let mut hosts: BTreeMap<&str, Duration> = BTreeMap::new();
        for (_, host, time) in recent {
            let longest = hosts.entry(host).or_default();
            *longest = (*longest).max(*time);
        }
        let mut hosts: Vec<_> = hosts.into_iter().collect();
        hosts.sort_by_key(|(_, time)| Reverse(*time));
        hosts.truncate(count);
        hosts
    }

    /// The reasons of failures, most frequent first.
    pub(crate) fn failures(&self) -> Vec<&FailureCount> {
        let mut failures: Vec<_> = self.failures.values().collect();
        failures.sort_by_key(|failures| Reverse(failures.count));
        failures
    }
}

/// The host and port of a URL.
fn host_of(url: &str) -> &str {
    url.split('/').nth(2).unwrap_or(url)
}

#[cfg(test)]
pub(super) mod tests {
    use std::borrow::Borrow;

    use tidings_subscriber::render_auto::Gain;

    use super::*;

    /// The report of a page. Status 0 stands for no answer.
    pub(in crate::commands::crawl) fn report(url: &str, status: u16, ms: u64) -> PageReport {
        PageReport {
            url: url.to_owned(),
            status: (status > 0).then_some(status),
            outcome: PageOutcome::Done,
            bytes: 1000,
            wire_bytes: 400,
            duration: Duration::from_millis(ms),
            title: None,
            links: 0,
            job: None,
            reason: None,
            error: None,
            render: None,
        }
    }

    fn failed(url: &str, reason: &'static str, error: &str) -> PageReport {
        let (outcome, error) = (PageOutcome::Failed, Some(error.to_owned()));
        PageReport { outcome, reason: Some(reason), error, ..report(url, 0, 0) }
    }

    pub(in crate::commands::crawl) fn tally(
        reports: impl IntoIterator<Item: Borrow<PageReport>>,
    ) -> CrawlTally {
        let mut tally = CrawlTally::default();
        for report in reports {
            tally.record_page(report.borrow(), Duration::ZERO);
        }
        tally
    }

    #[test]
    fn statuses_bytes_and_outcomes_are_counted() {
        let robots = PageReport { outcome: PageOutcome::Robots, ..report("http://a/", 0, 0) };
        let statuses =
            [200, 204, 301, 404, 503, 99, 999, 0].map(|status| report("http://a/", status, 7));
        let tally = tally(statuses.into_iter().chain([robots]));
        let classes: Vec<_> = tally.classes().collect();
        let expected = [("2xx", 2), ("3xx", 1), ("4xx", 1), ("5xx", 1), ("no answer", 3)];
        assert_eq!(classes, expected, "robots.txt forbids a request");
        assert_eq!((tally.pages(), tally.bytes, tally.wire_bytes), (9, 9000, 3600));
        assert_eq!(tally.outcomes()["robots"], 1);
        assert_eq!((tally.times.answers, tally.times.mean()), (8, Duration::from_millis(7)));
    }

    #[test]
    fn the_slowest_hosts_come_first() {
        let tally = tally([
            report("http://a.example/", 200, 10),
            report("http://b.example:8080/x", 200, 500),
            report("http://b.example:8080/y", 200, 100),
            report("http://c.example/", 200, 400),
        ]);
        let ms = Duration::from_millis;
        let slowest = tally.slowest(2);
        let slowest: Vec<_> = slowest.iter().map(|(host, times)| (*host, times.mean())).collect();
        assert_eq!(slowest, [("c.example", ms(400)), ("b.example:8080", ms(300))]);
        let now = tally.slowest_now(2, Duration::ZERO);
        assert_eq!(now, [("b.example:8080", ms(500)), ("c.example", ms(400))]);
        assert_eq!(tally.slowest_now(2, RECENT + ms(1)), []);
        assert_eq!(tally.host_count(), Some(3));
    }

    #[test]
    fn the_longest_host_may_answer_fast() {
        let (ms, mut tally) = (Duration::from_millis, CrawlTally::default());
        tally.record_page(&report("http://slow.example/", 200, 900), ms(1000));
        for second in 1..=60 {
            tally.record_page(&report("http://large.example/", 200, 20), ms(1000 * second));
        }
        let longest = tally.longest(2);
        let longest: Vec<_> = longest.iter().map(|(host, times)| (*host, times.span())).collect();
        assert_eq!(longest, [("large.example", ms(59_020)), ("slow.example", ms(900))]);
        assert_eq!(tally.times.span(), ms(59_900));
    }

    #[test]
    fn many_hosts_use_bounded_memory() {
        let mut tally = tally([report("http://slow.example/", 200, 9000)]);
        for number in 0..3 * HOSTS_MAX as u64 {
            let page = report(&format!("http://h{number}.example/"), 200, number % 100);
            tally.record_page(&page, Duration::ZERO);
            assert!(tally.hosts.len() <= HOSTS_MAX && tally.recent.len() <= RECENT_MAX);
        }
        assert_eq!(tally.slowest(1)[0].0, "slow.example");
        assert_eq!(tally.host_count(), None);
        assert_eq!(tally.times.answers, 3 * HOSTS_MAX as u64 + 1);
    }

    #[test]
    fn gains_of_rendered_pages_are_counted() {
        let rendered = |error: Option<&str>, links, has_text| PageReport {
            render: Some(RenderReport {
                error: error.map(str::to_owned),
                duration: Duration::from_secs(1),
                requests: 3,
                links_fetched: 1,
                gain: Gain { links, has_text },
            }),
            ..report("http://a/", 200, 1)
        };
        let counts = tally([
            report("http://a/", 200, 1),
            rendered(None, 40, true),
            rendered(None, 2, false),
            rendered(None, 0, true),
            rendered(None, 0, false),
            rendered(Some("the page crashed"), 0, false),
        ])
        .renders;
        let expected = RenderCounts { rendered: 4, failed: 1, new_links: 42, without_gain: 1 };
        assert_eq!(counts, expected);
    }

    #[test]
    fn failures_are_grouped_by_reason() {
        let tally = tally([
            failed("http://a.example/", "dns", "a.example: no such name"),
            failed("http://c.example/", "address", "10.1.2.3 is a private address"),
            failed("http://d.example/", "address", "[fe80::1]:80 is a private address"),
            failed("http://f.example/", "status", &"x".repeat(1000)),
            failed("http://g.example/", "address", "10.1.2.4 is a private address"),
            PageReport { status: Some(410), ..failed("http://h.example/", "status", "410") },
            PageReport { status: Some(404), ..failed("http://i.example/", "status", "404") },
            PageReport { outcome: PageOutcome::Retry, ..report("http://j.example/", 503, 1) },
        ]);
        assert_eq!(tally.pages(), 7, "an attempt is no page");
        let failures = tally.failures();
        let counts: Vec<_> = failures.iter().map(|some| (some.reason, some.count)).collect();
        let expected = [("address", 3), ("dns", 1), ("status", 1), ("status", 1), ("status", 1)];
        assert_eq!(counts, expected);
        assert_eq!(failures[0].example, "10.1.2.3 is a private address");
        assert_eq!(failures[2].example.chars().count(), EXAMPLE_CHARS_MAX);
        assert_eq!([&*failures[3].example, &*failures[4].example], ["404", "410"]);
    }
}
