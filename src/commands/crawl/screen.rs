//! The display of a crawl: lines for pages, progress that is redrawn below them, and a summary; or
//! JSON lines.

#![expect(clippy::disallowed_methods, reason = "measures the duration of a crawl")]

use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use tidings_protocol::status::{JobEnd, JobStatus, KeyStatus, WaitReason};
use tidings_subscriber::PageReport;

use crate::client::job::{
    JobProgress, RecentRate, end_json, has_succeeded, progress_line, summary_line,
};
use crate::commands::crawl::tally::{CrawlTally, FailureCount, RenderCounts};
use crate::terminal::failure::Failure;
use crate::terminal::output::{Console, format_bytes, format_count, format_duration, plural};
use crate::terminal::page_line::{page_json, page_line};

/// The numbers of hosts in the summary and in the progress.
const SLOWEST: usize = 5;
const SLOWEST_NOW: usize = 3;

/// Faster answers are not listed as slow.
const SLOW_ANSWER_MIN: Duration = Duration::from_millis(500);
/// Hosts with a shorter wait or span are not listed.
const LONG_HOST_MIN: Duration = Duration::from_secs(1);

/// The kind of output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ScreenStyle {
    /// No line for each page.
    pub(crate) quiet: bool,
    /// JSON only.
    pub(crate) json: bool,
}

/// The display of a job.
#[derive(Debug)]
pub(crate) struct Screen {
    pub(crate) console: Console,
    style: ScreenStyle,
    started: Instant,
    rates: CrawlRates,
    /// The pages that this process fetched.
    tally: CrawlTally,
}

impl Screen {
    /// `max_pages`: the limit of the job.
    pub(crate) fn new(style: ScreenStyle, max_pages: Option<u64>) -> Self {
        let (console, tally) = (Console::new(), CrawlTally::default());
        let rates = CrawlRates { max_pages, ..CrawlRates::default() };
        Self { console, style, started: Instant::now(), rates, tally }
    }

    /// Leaves standard output to the sink that writes pages there.
    pub(crate) fn use_stderr(&mut self) {
        self.console.use_stderr();
        self.style.quiet = true;
    }

    /// [`CrawlTally::pages`]
    pub(crate) fn pages(&self) -> u64 {
        self.tally.pages()
    }

    /// Counts and prints a page that this process finished.
    pub(crate) fn print_page(&mut self, report: &PageReport) -> Result<(), Failure> {
        self.tally.record_page(report, self.started.elapsed());
        match self.style {
            ScreenStyle { quiet: true, .. } => Ok(()),
            ScreenStyle { json: true, .. } => self.console.line_above(&page_json(report)),
            ScreenStyle { json: false, .. } => self.console.line_above(&page_line(report)),
        }
    }

    /// Redraws the progress.
    pub(crate) fn draw_progress(&mut self, progress: &JobProgress) {
        let elapsed = self.started.elapsed();
        let transferred = (self.tally.bytes, self.tally.wire_bytes);
        self.rates.update(elapsed, &progress.job, transferred);
        let lines = progress_lines(progress, &self.tally, &self.rates, elapsed);
        self.console.progress(&lines.join("\n"));
    }

    /// Prints the result and where the pages are stored. Pages that robots.txt, the scope or a
    /// limit excluded have not failed.
    pub(crate) fn print_summary(&mut self, end: &JobEnd, stored: &str) -> Result<(), Failure> {
        let elapsed = self.started.elapsed();
        if self.style.json {
            let mut summary = self.figures(elapsed);
            summary.extend(end_json(end));
            summary.insert("stored".into(), stored.into());
            self.console.line(&json!({ "summary": summary }).to_string())?;
        } else {
            self.print_details()?;
            let line = summary_line(end, elapsed.as_secs_f64());
            self.console.line(&format!("{line}; stored {stored}"))?;
        }
        if has_succeeded(end) { Ok(()) } else { Err(Failure::Unsuccessful) }
    }

    /// Prints what is known of an interrupted job.
    pub(crate) fn print_interrupted(&mut self) -> Result<(), Failure> {
        if !self.style.json {
            return self.print_details();
        }
        let mut summary = self.figures(self.started.elapsed());
        summary.insert("result".into(), "interrupted".into());
        self.console.line(&json!({ "summary": summary }).to_string())
    }

    /// Prints all lines of a summary except the last.
    fn print_details(&mut self) -> Result<(), Failure> {
        detail_lines(&self.tally).iter().try_for_each(|line| self.console.line(line))
    }

    /// The measurements of this process as JSON.
    fn figures(&self, elapsed: Duration) -> Map<String, Value> {
        let mut figures = Map::new();
        figures.insert("seconds".into(), elapsed.as_secs_f64().into());
        if self.tally.pages() > 0 {
            figures.extend(tally_json(&self.tally));
        }
        figures
    }
}

/// Rates of a crawl, and an estimate of the time that is left.
#[derive(Debug, Default)]
struct CrawlRates {
    max_pages: Option<u64>,
    completed: RecentRate,
    bytes: RecentRate,
    wire_bytes: RecentRate,
    found: RecentRate,
    ended: RecentRate,
    pages_per_second: f64,
    bytes_per_second: f64,
    wire_bytes_per_second: f64,
    time_left: Option<Duration>,
}

impl CrawlRates {
    /// `transferred`: bytes of bodies, decoded and as received.
    fn update(&mut self, elapsed: Duration, job: &JobStatus, transferred: (u64, u64)) {
        let seconds = elapsed.as_secs_f64();
        let JobStatus { pending, queued, processing, counts, .. } = job;
        let open = pending + queued + processing;
        self.pages_per_second = self.completed.record(seconds, counts.completed);
        self.bytes_per_second = self.bytes.record(seconds, transferred.0);
        self.wire_bytes_per_second = self.wire_bytes.record(seconds, transferred.1);
        let found_per_second = self.found.record(seconds, counts.found);
        let ended_per_second = self.ended.record(seconds, counts.found.saturating_sub(open));
        let to_come = self.max_pages.map(|max| max.saturating_sub(counts.completed));
        self.time_left = match to_come {
            Some(pages) if pages <= open => time_for(pages, self.pages_per_second),
            // While new links appear, the end cannot be estimated.
            _ if found_per_second > 0.0 || !self.found.is_full() => None,
            _ => time_for(open, ended_per_second),
        };
    }
}

#[expect(clippy::cast_precision_loss, reason = "two digits are shown")]
fn time_for(pages: u64, per_second: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(pages as f64 / per_second).ok()
}

/// The lines that are redrawn while the job runs.
fn progress_lines(
    progress: &JobProgress,
    tally: &CrawlTally,
    pace: &CrawlRates,
    elapsed: Duration,
) -> Vec<String> {
    let mut speed = vec![format!("{:.1} pages/s", pace.pages_per_second)];
    if tally.bytes > 0 {
        let rate = bytes_per_second(pace.bytes_per_second);
        let wire_rate = bytes_per_second(pace.wire_bytes_per_second);
        let is_compressed = tally.wire_bytes < tally.bytes;
        speed.push(if is_compressed { format!("{rate} ({wire_rate} on the wire)") } else { rate });
    }
    speed.push(format!("{} so far", format_duration(elapsed)));
    let is_held = progress.waiting.iter().any(|host| host.left_ms.is_none());
    let left = pace.time_left.filter(|left| left.as_secs() > 0 && !is_held);
    speed.extend(left.map(|left| format!("about {} to go", format_duration(left))));
    let mut lines = vec![progress_line(&progress.job), speed.join(", ")];
    let slow = tally.slowest_now(SLOWEST_NOW, elapsed);
    let slow = slow.into_iter().filter(|(_, took)| *took >= SLOW_ANSWER_MIN);
    let slow: Vec<_> =
        slow.map(|(host, took)| format!("{host} {}", format_duration(took))).collect();
    if !slow.is_empty() {
        lines.push(format!("slow: {}", slow.join(", ")));
    }
    let waiting = progress.waiting.iter();
    let waiting: Vec<_> = waiting
        .map(|host| (host, host.left_ms.map(Duration::from_millis)))
        .filter(|(_, left)| left.is_none_or(|left| left >= LONG_HOST_MIN))
        .map(|(KeyStatus { key, waiting, because, .. }, left)| {
            let down = if *because == WaitReason::Down { "does not answer, " } else { "" };
            let held = || "held by a rule".to_owned();
            let left = left.map_or_else(held, |left| format!("at least {}", format_duration(left)));
            format!("{key} {} ({down}{left})", plural(*waiting, "page"))
        })
        .collect();
    if !waiting.is_empty() {
        lines.push(format!("waiting: {}", waiting.join(", ")));
    }
    lines
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "digits are dropped")]
fn bytes_per_second(rate: f64) -> String {
    format!("{}/s", format_bytes(rate as u64))
}

/// The details of pages that this process fetched, one in each line.
fn detail_lines(tally: &CrawlTally) -> Vec<String> {
    let mut lines = if tally.times.answers > 0 { answer_lines(tally) } else { Vec::new() };
    let failures = tally.failures();
    if !failures.is_empty() {
        lines.push("failed   because of:".to_owned());
    }
    for FailureCount { reason, count, example, urls } in failures {
        lines.push(format!("  {:>7}  {reason} ({example})", format_count(*count)));
        lines.extend(urls.iter().map(|url| format!("           {url}")));
        if *count > urls.len() as u64 {
            lines.push("           ..".to_owned());
        }
    }
    let down = tally.down();
    if !down.is_empty() {
        lines.push(format!(
            "down     without an answer from {}:",
            plural(down.len() as u64, "host")
        ));
    }
    lines.extend(down.iter().take(SLOWEST).map(|(host, why)| format!("  {host}: {why}")));
    if down.len() > SLOWEST {
        lines.push(format!("  and {} more", format_count((down.len() - SLOWEST) as u64)));
    }
    lines
}

/// What is known of the answers.
fn answer_lines(tally: &CrawlTally) -> Vec<String> {
    let mut lines = Vec::new();
    let classes = tally.classes().map(|(class, n)| format!("{class} {}", format_count(n)));
    lines.push(format!("status   {}", classes.collect::<Vec<_>>().join(", ")));
    let times = tally.times;
    let wire = (tally.wire_bytes < tally.bytes)
        .then(|| format!(" ({} on the wire)", format_bytes(tally.wire_bytes)));
    lines.push(format!(
        "answers  {}{} in all, {} on average, {} at most",
        format_bytes(tally.bytes),
        wire.unwrap_or_default(),
        format_duration(times.mean()),
        format_duration(times.longest)
    ));
    lines.extend(render_line(tally));
    if tally.host_count() != Some(1) {
        let hosts =
            tally.host_count().map_or("many hosts".to_owned(), |n| plural(n as u64, "host"));
        lines.push(format!("slowest  of {hosts}:"));
        for (host, times) in tally.slowest(SLOWEST) {
            let (mean, answers) = (format_duration(times.mean()), plural(times.answers, "answer"));
            lines.push(format!("  {mean:>7}  {host}, on average of {answers}"));
        }
        let longest = tally.longest(SLOWEST);
        let longest: Vec<_> =
            longest.into_iter().filter(|(_, times)| times.span() >= LONG_HOST_MIN).collect();
        if !longest.is_empty() {
            lines.push("longest  from the first request to the last answer:".to_owned());
        }
        for (host, times) in longest {
            let (span, answers) = (format_duration(times.span()), plural(times.answers, "answer"));
            lines.push(format!("  {span:>7}  {host}, {answers}"));
        }
    }
    lines
}

/// What a browser has added, if it was used.
fn render_line(tally: &CrawlTally) -> Option<String> {
    let RenderCounts { rendered, failed, new_links, without_gain } = tally.renders;
    let (rendered, all) = (format_count(rendered), plural(tally.pages(), "page"));
    let mut parts = vec![plural(new_links, "new link")];
    for (count, what) in [(without_gain, "gained nothing"), (failed, "could not be rendered")] {
        parts.extend((count > 0).then(|| format!("{} {what}", format_count(count))));
    }
    let line = format!("rendered {rendered} of {all}: {}", parts.join("; "));
    (tally.renders != RenderCounts::default()).then_some(line)
}

/// The details as JSON. Times are in ms.
fn tally_json(tally: &CrawlTally) -> Map<String, Value> {
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let slowest = tally.slowest(SLOWEST).into_iter().map(|(host, times)| {
        let (mean, longest) = (ms(times.mean()), ms(times.longest));
        json!({ "host": host, "answers": times.answers, "mean_ms": mean, "max_ms": longest })
    });
    let longest = tally.longest(SLOWEST).into_iter().map(|(host, times)| {
        json!({ "host": host, "answers": times.answers, "span_ms": ms(times.span()) })
    });
    let reasons = tally
        .failures()
        .into_iter()
        .map(|FailureCount { reason, count, urls, .. }| json!({ "reason": reason, "count": count, "urls": urls }));
    let classes = tally.classes().map(|(class, n)| (class.replace(' ', "_"), n.into()));
    let mut figures = Map::new();
    figures.insert("outcomes".into(), json!(tally.outcomes()));
    figures.insert("status".into(), Value::Object(classes.collect()));
    figures.insert("bytes".into(), tally.bytes.into());
    figures.insert("wire_bytes".into(), tally.wire_bytes.into());
    if tally.renders != RenderCounts::default() {
        let RenderCounts { rendered, failed, new_links, without_gain } = tally.renders;
        let counts = json!({
            "rendered": rendered,
            "failed": failed,
            "new_links": new_links,
            "without_gain": without_gain,
        });
        figures.insert("render".into(), counts);
    }
    figures.insert("mean_ms".into(), ms(tally.times.mean()).into());
    figures.insert("max_ms".into(), ms(tally.times.longest).into());
    figures.insert("hosts".into(), tally.host_count().into());
    figures.insert("slowest".into(), slowest.collect());
    figures.insert("longest".into(), longest.collect());
    figures.insert("reasons".into(), reasons.collect());
    figures.insert("hosts_down".into(), tally.down().len().into());
    figures
}

#[cfg(test)]
mod tests {
    use tidings_protocol::status::PassCounts;
    use tidings_subscriber::render_auto::Gain;
    use tidings_subscriber::{PageOutcome, RenderReport};

    use super::*;
    use crate::commands::crawl::tally::tests::{report, tally};

    fn failed(url: &str, error: &str) -> PageReport {
        let (outcome, reason) = (PageOutcome::Failed, Some("connect-timeout"));
        PageReport { outcome, reason, error: Some(error.to_owned()), ..report(url, 0, 3000) }
    }

    fn job(completed: u64, pending: u64, processing: u64) -> JobStatus {
        let found = completed + pending + processing;
        let counts = PassCounts { completed, found, ..PassCounts::default() };
        JobStatus { pending, processing, counts, ..JobStatus::default() }
    }

    #[test]
    fn the_progress_shows_counts_and_rates() {
        let mut pace = CrawlRates::default();
        for second in 0..10 {
            let transferred = (1000 * second, 400 * second);
            pace.update(Duration::from_secs(second), &job(10 * second, 5, 2), transferred);
        }
        let waiting = |host: &str, seconds: u64| KeyStatus {
            key: host.to_owned(),
            waiting: 5,
            processing: 1,
            left_ms: Some(1000 * seconds),
            ..KeyStatus::default()
        };
        let down = KeyStatus { because: WaitReason::Down, ..waiting("c.example", 60) };
        let waiting = vec![waiting("a.example", 200), waiting("b.example", 0), down];
        let progress = JobProgress { job: job(90, 5, 2), waiting };
        let tally =
            tally(&[report("http://a.example/", 200, 20), report("http://b.example/", 200, 1500)]);
        let at = Duration::from_secs(9);
        let lines = progress_lines(&progress, &tally, &pace, at);
        assert_eq!(
            lines,
            [
                "90 completed, 5 waiting, 2 processing, 0 failed",
                "10.0 pages/s, 1.0 kB/s (400 B/s on the wire), 9.0 s so far",
                "slow: b.example 1.5 s",
                "waiting: a.example 5 pages (at least 3m 20s), \
                 c.example 5 pages (does not answer, at least 1m 00s)"
            ]
        );
        pace.time_left = Some(Duration::from_mins(3));
        let lines = progress_lines(&progress, &tally, &pace, at);
        assert!(lines[1].ends_with(", 9.0 s so far, about 3m 00s to go"), "{lines:?}");
        // A rule without an end holds a host, so the end cannot be estimated.
        let held = KeyStatus { left_ms: None, ..progress.waiting[0].clone() };
        let progress = JobProgress { waiting: vec![held], ..progress };
        let lines = progress_lines(&progress, &tally, &pace, at);
        assert!(lines[1].ends_with(", 9.0 s so far"), "{lines:?}");
        assert_eq!(lines[3], "waiting: a.example 5 pages (held by a rule)");
        // Bytes and hosts are unknown if other crawlers fetch.
        let progress = JobProgress { waiting: Vec::new(), ..progress };
        let lines = progress_lines(
            &progress,
            &CrawlTally::default(),
            &CrawlRates::default(),
            Duration::from_secs(100),
        );
        assert_eq!(lines[1..], ["0.0 pages/s, 1m 40s so far"]);
    }

    #[test]
    fn the_time_left_is_shown_when_it_can_be_estimated() {
        let left = |max_pages, found_more: u64| {
            let mut pace = CrawlRates { max_pages, ..CrawlRates::default() };
            for second in 0..=10 {
                // Ten per second of a hundred, and of the links that appear meanwhile.
                let job = job(10 * second, 100 - 10 * second + found_more * second, 0);
                pace.update(Duration::from_secs(second), &job, (0, 0));
            }
            pace.time_left
        };
        let seconds = Duration::from_secs;
        assert_eq!(left(None, 0), Some(seconds(0)));
        assert_eq!(left(None, 1), None, "links appear");
        assert_eq!(left(Some(105), 1), Some(Duration::from_millis(500)), "and there are enough");
        assert_eq!(left(Some(1000), 1), None, "and there may not be enough");
        let mut pace = CrawlRates::default();
        pace.update(seconds(0), &job(0, 10, 0), (0, 0));
        pace.update(seconds(1), &job(1, 9, 0), (0, 0));
        assert_eq!(pace.time_left, None, "too early to know");
        pace.update(seconds(60), &job(1, 9, 0), (0, 0));
        pace.update(seconds(120), &job(1, 9, 0), (0, 0));
        assert_eq!(pace.time_left, None, "nothing moves");
    }

    #[test]
    fn a_summary_lists_slow_hosts_and_failures() {
        let reports = [
            report("http://a.example/", 200, 20),
            report("http://b.example/", 200, 1500),
            failed("http://c.example/", "no connection in time"),
            PageReport { outcome: PageOutcome::Retry, ..failed("http://d.example/", "why") },
        ];
        let lines = [
            "status   2xx 3, no answer 2",
            "answers  5.0 kB (2.0 kB on the wire) in all, 1.8 s on average, 3.0 s at most",
            "slowest  of 4 hosts:",
            "    3.0 s  c.example, on average of 1 answer",
            "    3.0 s  d.example, on average of 1 answer",
            "    1.5 s  b.example, on average of 2 answers",
            "    20 ms  a.example, on average of 1 answer",
            "longest  from the first request to the last answer:",
            "   1m 05s  b.example, 2 answers",
            "failed   because of:",
            "        1  connect-timeout (no connection in time)",
            "           http://c.example/",
            "down     without an answer from 2 hosts:",
            "  c.example: connect-timeout (no connection in time)",
            "  d.example: connect-timeout (why)",
        ];
        let mut tally_of_all = tally(&reports);
        tally_of_all.record_page(&reports[1], Duration::from_secs(65));
        assert_eq!(detail_lines(&tally_of_all), lines);
        assert_eq!(
            detail_lines(&tally(&reports[..1])).len(),
            2,
            "one host is not the slowest of many"
        );
        assert!(detail_lines(&CrawlTally::default()).is_empty());
    }

    #[test]
    fn a_summary_shows_what_rendering_gained() {
        let render = RenderReport {
            error: None,
            duration: Duration::from_secs(1),
            requests: 3,
            links_fetched: 0,
            gain: Gain { links: 1204, has_text: false },
        };
        let rendered = |render| PageReport { render: Some(render), ..report("http://a/", 200, 20) };
        let nothing = RenderReport { gain: Gain::default(), ..render.clone() };
        let failed = RenderReport { error: Some("crashed".to_owned()), ..nothing.clone() };
        let mut reports = vec![report("http://a/", 200, 20), rendered(render)];
        let line = render_line(&tally(&reports)).unwrap();
        assert_eq!(line, "rendered 1 of 2 pages: 1,204 new links");
        reports.extend([rendered(nothing), rendered(failed)]);
        let tally = tally(&reports);
        assert_eq!(
            detail_lines(&tally)[2],
            "rendered 2 of 4 pages: 1,204 new links; 1 gained nothing; 1 could not be rendered"
        );
        let expected = json!({ "rendered": 2, "failed": 1, "new_links": 1204, "without_gain": 1 });
        assert_eq!(tally_json(&tally)["render"], expected);
    }

    #[test]
    fn a_summary_as_json_has_the_same_values() {
        let summary =
            tally_json(&tally(&[report("http://a.example/", 200, 20), failed("http://b/", "why")]));
        let expected = json!({
            "outcomes": { "done": 1, "failed": 1 },
            "status": { "2xx": 1, "no_answer": 1 },
            "bytes": 2000,
            "wire_bytes": 800,
            "mean_ms": 1510,
            "max_ms": 3000,
            "hosts": 2,
            "slowest": [
                { "host": "b", "answers": 1, "mean_ms": 3000, "max_ms": 3000 },
                { "host": "a.example", "answers": 1, "mean_ms": 20, "max_ms": 20 },
            ],
            "longest": [
                { "host": "a.example", "answers": 1, "span_ms": 0 },
                { "host": "b", "answers": 1, "span_ms": 0 },
            ],
            "reasons": [{ "reason": "connect-timeout", "count": 1, "urls": ["http://b/"] }],
            "hosts_down": 1,
        });
        assert_eq!(Value::Object(summary), expected);
    }
}
