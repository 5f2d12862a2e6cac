//! The job of `tidings crawl URL..`. Its name is a hash of the request, so the same command means
//! the same job.

use std::collections::{BTreeSet, VecDeque};
use std::fmt::Write;
use std::net::IpAddr;
use std::time::Duration;

use clap::ValueEnum;
use serde_json::{Map, Value};
use tidings_protocol::status::{JobEnd, JobResult, JobState, JobStatus, KeyStatus};
use tidings_protocol::{CanonicalUrl, JobName, JobSettings, RenderRule, Settings, format_ms};

use crate::flags::milliseconds;
use crate::terminal::output::{format_count, plural, printable, time_or};

/// Hexadecimal digits of the hash in the name of a job: 64 bits, enough for the jobs of one broker.
const HASH_DIGITS: usize = 16;

/// The time over which the rate on the progress line is averaged.
const RATE_SECONDS: f64 = 5.0;

/// The links that belong to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Scope {
    // The hosts of the seeds.
    #[default]
    Host,
    // Their registrable domains: www.example.org and docs.example.org.
    Domain,
    // What is below the seeds' own paths.
    Prefix,
    // Everything.
    Any,
}

/// The limits of a job.
#[derive(Debug, Clone, Default)]
pub(crate) struct JobLimits {
    pub(crate) scope: Scope,
    /// If there are any, links must match one of these patterns.
    pub(crate) include: Vec<String>,
    /// Links must match none of these patterns.
    pub(crate) exclude: Vec<String>,
    /// The largest number of links from a seed.
    pub(crate) depth: Option<u32>,
    /// The largest number of pages in all.
    pub(crate) max_pages: Option<u64>,
    /// The largest number of pages of one host.
    pub(crate) max_per_host: Option<u64>,
    /// The longest time.
    pub(crate) max_time: Option<Duration>,
    /// The pages that are rendered; `None`: the crawlers of the job decide.
    pub(crate) render: Option<RenderRule>,
}

impl JobLimits {
    /// The limits as settings of `JOB open`.
    fn settings(&self) -> Vec<(&'static str, String)> {
        let scope = self.scope.to_possible_value().expect("no scope is hidden");
        let mut settings = vec![("scope", scope.get_name().to_owned())];
        settings.extend(self.depth.map(|depth| ("depth", depth.to_string())));
        settings.extend(self.max_pages.map(|pages| ("max-pages", pages.to_string())));
        settings.extend(self.max_per_host.map(|pages| ("max-per-host", pages.to_string())));
        settings.extend(self.max_time.map(|time| ("max-time", format_ms(milliseconds(time)))));
        settings.extend(self.render.as_ref().map(|rule| ("render", rule.to_string())));
        for (name, patterns) in [("include", &self.include), ("exclude", &self.exclude)] {
            // Their order has no meaning.
            let patterns: BTreeSet<&str> = patterns.iter().map(String::as_str).collect();
            if !patterns.is_empty() {
                settings.push((name, Vec::from_iter(patterns).join(",")));
            }
        }
        settings
    }
}

/// Seeds and limits of a job.
#[derive(Debug, Clone)]
pub(crate) struct JobRequest {
    /// Sorted and without duplicates: the order on the command line has no meaning.
    pub(crate) seeds: Vec<CanonicalUrl<'static>>,
    limits: JobLimits,
    name: Option<JobName>,
}

impl JobRequest {
    /// A request for these seeds; `Err` names a wrong limit.
    pub(crate) fn new(
        mut seeds: Vec<CanonicalUrl<'static>>,
        bounds: JobLimits,
    ) -> Result<Self, String> {
        let settings = bounds.settings();
        let settings = settings.iter().map(|(name, value)| (*name, value.as_str()));
        JobSettings::parse(settings).map_err(|error| error.text)?;
        seeds.sort_unstable();
        seeds.dedup();
        Ok(Self { seeds, limits: bounds, name: None })
    }

    /// The same with a name of the user's choice.
    pub(crate) fn named(mut self, name: Option<JobName>) -> Self {
        self.name = name;
        self
    }

    /// The same with a rule for the pages that are rendered.
    pub(crate) fn with_render(mut self, rule: Option<RenderRule>) -> Self {
        self.limits.render = rule;
        self
    }

    /// The settings of `JOB open`.
    pub(crate) fn settings(&self) -> Vec<(&'static str, String)> {
        self.limits.settings()
    }

    /// The largest number of pages.
    pub(crate) fn max_pages(&self) -> Option<u64> {
        self.limits.max_pages
    }

    /// The chosen name; else `crawl-` and a hash of seeds, scope and limits. Stable, so that an
    /// interrupted command finds its job again, also after an upgrade.
    pub(crate) fn name(&self) -> JobName {
        if let Some(name) = &self.name {
            return name.clone();
        }
        let mut hasher = blake3::Hasher::new();
        // No URL and no setting contains a line end, so the lines are unambiguous.
        for seed in &self.seeds {
            hasher.update(format!("seed {}\n", seed.as_str()).as_bytes());
        }
        for (key, value) in self.settings() {
            hasher.update(format!("{key}={value}\n").as_bytes());
        }
        let hash = hasher.finalize().to_hex();
        format!("crawl-{}", &hash[..HASH_DIGITS]).parse().expect("letters, digits and a dash")
    }
}

/// A running job.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct JobProgress {
    pub(crate) job: JobStatus,
    /// The hosts that the job waits for; only while it is crawled.
    pub(crate) waiting: Vec<KeyStatus>,
}

/// The numbers of pages by state, in a line.
pub(crate) fn progress_line(job: &JobStatus) -> String {
    format!(
        "{} completed, {} waiting, {} processing, {} failed",
        format_count(job.counts.completed),
        format_count(job.pending + job.queued),
        format_count(job.processing),
        format_count(job.counts.failed),
    )
}

/// The same with the rate: the line that is redrawn while the job is watched.
pub(crate) fn watch_line(job: &JobStatus) -> String {
    format!("{}, {} pages/s", progress_line(job), job.rate.unwrap_or_default())
}

/// The state in a line.
pub(crate) fn state_line(job: &JobStatus) -> String {
    let seeds = if job.state == JobState::Closed { ", takes no more seeds" } else { "" };
    format!("{}: pass {}, {}{seeds}", job.job, job.pass, state_word(&job.state))
}

/// The state of a job for a person. One that takes no more seeds is `closed` for programs, and runs.
pub(crate) fn state_word(state: &JobState) -> &str {
    if *state == JobState::Closed { "running" } else { state.as_str() }
}

/// The end of a pass that ended unobserved, from the status of its job afterwards.
pub(crate) fn end_of(job: JobStatus) -> JobEnd {
    let JobStatus { job, number, pass, counts, .. } = job;
    JobEnd { job, number, pass, result: JobResult::Done, counts, ..JobEnd::default() }
}

/// The result as JSON.
pub(crate) fn end_json(end: &JobEnd) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("job".into(), end.job.as_str().into());
    object.insert("result".into(), result_word(end).into());
    let counts = &end.counts;
    for (name, n) in [
        ("pages", counts.completed),
        ("redirects", counts.redirects),
        ("failed", counts.failed),
        ("robots", counts.robots),
        ("scope", counts.scope),
        ("blocked", counts.blocked),
        ("trap", counts.trap),
        ("budget", counts.budget),
        ("cancelled", counts.cancelled),
        ("found", counts.found),
    ] {
        object.insert(name.into(), n.into());
    }
    object
}

/// Whether nothing failed and the job was not cancelled.
pub(crate) fn has_succeeded(end: &JobEnd) -> bool {
    end.counts.failed == 0 && end.result != JobResult::Cancelled
}

/// The last line of a job that was crawled by this command.
pub(crate) fn summary_line(end: &JobEnd, seconds: f64) -> String {
    let mut line = end_line(end);
    #[expect(clippy::cast_precision_loss, reason = "one digit is shown")]
    let rate = end.counts.completed as f64 / seconds.max(0.001);
    let digits = if seconds < 10.0 { 2 } else { 1 };
    let time = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    let time = time_or(time, format!("{seconds:.digits$} s"));
    let _ = write!(line, "; {time}, {rate:.1} pages/s");
    line
}

/// The result: always pages and failures, other numbers only above 0.
pub(crate) fn end_line(end: &JobEnd) -> String {
    let counts = &end.counts;
    let mut line = format!(
        "{}: {}, {} failed",
        result_word(end),
        plural(counts.completed, "page"),
        format_count(counts.failed)
    );
    for (n, what) in [
        (counts.redirects, "redirects"),
        (counts.robots, "kept out by robots.txt"),
        (counts.scope, "out of scope"),
        (counts.blocked, "blocked by a rule"),
        (counts.trap, "in traps"),
        (counts.budget, "over budget"),
        (counts.cancelled, "cancelled"),
    ] {
        if n > 0 {
            let _ = write!(line, ", {} {what}", format_count(n));
        }
    }
    line
}

fn result_word(end: &JobEnd) -> &'static str {
    let known = Some(end.result).filter(|result| *result != JobResult::Unknown);
    known.unwrap_or(JobResult::Done).as_str()
}

/// The average per second of a counter over the last few seconds.
#[derive(Debug, Default)]
pub(crate) struct RecentRate {
    /// Seconds since the start, and the counter at that time; oldest first, spanning
    /// `RATE_SECONDS`.
    samples: VecDeque<(f64, u64)>,
}

impl RecentRate {
    /// Whether the samples span the full time, so that the first moments have no weight.
    pub(crate) fn is_full(&self) -> bool {
        let span = self.samples.front().zip(self.samples.back());
        span.is_some_and(|((from, _), (to, _))| to - from >= RATE_SECONDS)
    }

    /// Adds the counter at `seconds` since the start and returns the rate; `seconds` never falls.
    pub(crate) fn record(&mut self, seconds: f64, pages: u64) -> f64 {
        self.samples.push_back((seconds, pages));
        while self.samples.len() > 2 && self.samples[1].0 <= seconds - RATE_SECONDS {
            self.samples.pop_front();
        }
        let (from, pages_then) = self.samples[0];
        #[expect(clippy::cast_precision_loss, reason = "one digit is shown")]
        let new_pages = pages.saturating_sub(pages_then) as f64;
        if seconds > from { new_pages / (seconds - from) } else { 0.0 }
    }
}

/// The scheme of a host, with or without a path, that has none: an address, and a host with a port,
/// get http.
pub(crate) fn usual_scheme(text: &str) -> &'static str {
    let authority = text.split(['/', '?', '#']).next().unwrap_or_default();
    let port = authority.rsplit_once(':').map(|(_, port)| port);
    let has_port = port.is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()));
    let is_address = authority.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    if has_port || is_address { "http" } else { "https" }
}

/// Parses a URL as people type it; the error suggests a correction if there is one.
pub(crate) fn parse_seed(text: &str) -> Result<CanonicalUrl<'static>, String> {
    text.parse().map_err(|error| {
        let url = format!("{}://{text}", usual_scheme(text));
        if !text.contains("://") && CanonicalUrl::parse(&url).is_ok() {
            format!("{text} is not a URL; did you mean {url} ?")
        } else {
            format!("{}: {error}", printable(text, 200))
        }
    })
}

#[cfg(test)]
mod tests {
    use tidings_protocol::status::Rate;

    use super::*;

    fn request(seeds: &[&str]) -> JobRequest {
        request_within(seeds, JobLimits::default())
    }

    fn request_within(seeds: &[&str], bounds: JobLimits) -> JobRequest {
        JobRequest::new(seeds.iter().map(|text| parse_seed(text).unwrap()).collect(), bounds)
            .unwrap()
    }

    #[test]
    fn equal_requests_have_the_same_name() {
        let name = request(&["http://a.example/", "http://b.example/x"]).name();
        let typed = ["HTTP://B.example:80/x#top", "http://a.example", "http://a.example/"];
        assert_eq!(request(&typed).name(), name);
    }

    #[test]
    fn different_requests_have_different_names() {
        let (all, patterns) = (JobLimits::default, || vec!["/x".to_owned()]);
        let bounds = [
            all(),
            JobLimits { scope: Scope::Any, ..all() },
            JobLimits { depth: Some(1), ..all() },
            JobLimits { max_pages: Some(1), ..all() },
            JobLimits { max_per_host: Some(1), ..all() },
            JobLimits { max_time: Some(Duration::from_secs(1)), ..all() },
            JobLimits { include: patterns(), ..all() },
            JobLimits { exclude: patterns(), ..all() },
        ];
        let mut names: BTreeSet<String> =
            [request(&["http://a.example/x"]).name().to_string()].into();
        for bounds in bounds {
            let name = request_within(&["http://a.example/"], bounds.clone()).name();
            assert!(names.insert(name.to_string()), "{bounds:?}");
        }
    }

    #[test]
    fn patterns_are_unordered_and_wrong_ones_are_rejected() {
        let patterns = |exclude: &[&str]| {
            let exclude = exclude.iter().map(ToString::to_string).collect();
            JobLimits { exclude, ..JobLimits::default() }
        };
        let name = |exclude| request_within(&["http://a.example/"], patterns(exclude)).name();
        assert_eq!(name(&["/a", "/b"]), name(&["/b", "/a", "/b"]));
        let wrong = JobRequest::new(Vec::new(), patterns(&["/a", "b"])).unwrap_err();
        assert!(wrong.contains("at the beginning"), "{wrong}");
    }

    #[test]
    fn names_are_stable() {
        // With another name every interrupted crawl would begin again: do not change it.
        let name = request(&["https://example.org/"]).name();
        assert_eq!(AsRef::<str>::as_ref(&name), "crawl-282765a1e6ca9f34");
    }

    #[test]
    fn a_wrong_url_is_rejected_with_a_hint() {
        let refuse = |text: &str| parse_seed(text).unwrap_err();
        assert_eq!(
            refuse("example.org"),
            "example.org is not a URL; did you mean https://example.org ?"
        );
        assert!(refuse("localhost:24080").ends_with("did you mean http://localhost:24080 ?"));
        assert!(refuse("127.0.0.1/a").ends_with("did you mean http://127.0.0.1/a ?"));
        assert!(refuse("ftp://example.org/").starts_with("ftp://example.org/: "));
    }

    const SHOWN: &str = "crawl-1 number=7 pass=2 state=closed pending=3 queued=1 processing=2 \
                         completed=1234 redirects=5 failed=1 robots=0 trap=0 fresh=9 found=10";

    #[test]
    fn progress_and_summary_are_one_line_each() {
        let job = JobStatus { rate: Some(Rate::per_second(3.04)), ..JobStatus::parse(SHOWN) };
        assert_eq!(
            watch_line(&job),
            "1,234 completed, 4 waiting, 2 processing, 1 failed, 3.0 pages/s"
        );
        assert_eq!(
            summary_line(&end_of(job), 10.0),
            "done: 1,234 pages, 1 failed, 5 redirects; 10.0 s, 123.4 pages/s"
        );
    }

    #[test]
    fn the_rate_forgets_old_samples() {
        let mut rate = RecentRate::default();
        let rates = [(0.0, 0), (1.0, 10), (5.0, 50), (6.0, 50), (100.0, 50)];
        let rates = rates.map(|(seconds, pages)| rate.record(seconds, pages));
        assert_eq!(rates.map(|rate| format!("{rate:.1}")), ["0.0", "10.0", "10.0", "8.0", "0.0"]);
    }
}
