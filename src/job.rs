//! What `tidings crawl URL..` asks for: a job, with a name that is a function of what is asked, so
//! that the same command means the same job.

use std::{
    collections::{BTreeSet, VecDeque},
    fmt::Write,
    time::Duration,
};

use clap::ValueEnum;
use serde_json::{Map, Value};
use tidings_broker::job::JobSettings;
use tidings_protocol::{CanonicalUrl, JobName, format_ms};

use crate::{
    flags::milliseconds,
    output::{count, plural, printable},
    waiting::Waiting,
};

/// Hexadecimal digits of the hash in a job's name: 64 bits, far more than jobs on one broker need.
const HASH_DIGITS: usize = 16;

/// What the rate on the progress line is averaged over.
const RATE_SECONDS: f64 = 5.0;

/// Which links belong to a job.
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

impl Scope {
    fn word(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Domain => "domain",
            Self::Prefix => "prefix",
            Self::Any => "any",
        }
    }
}

/// What belongs to a job, and how much of it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Bounds {
    pub(crate) scope: Scope,
    /// Patterns: links match one of these, if there are any, ..
    pub(crate) include: Vec<String>,
    /// .. and none of these.
    pub(crate) exclude: Vec<String>,
    /// Furthest number of links from a seed.
    pub(crate) depth: Option<u32>,
    /// Most pages that are fetched ..
    pub(crate) max_pages: Option<u64>,
    /// .. of one host ..
    pub(crate) max_per_host: Option<u64>,
    /// .. and in this time.
    pub(crate) max_time: Option<Duration>,
}

impl Bounds {
    /// In the words of `JOB open`.
    fn settings(&self) -> Vec<(&'static str, String)> {
        let mut settings = vec![("scope", self.scope.word().to_owned())];
        settings.extend(self.depth.map(|depth| ("depth", depth.to_string())));
        settings.extend(self.max_pages.map(|pages| ("max-pages", pages.to_string())));
        settings.extend(self.max_per_host.map(|pages| ("max-per-host", pages.to_string())));
        settings.extend(self.max_time.map(|time| ("max-time", format_ms(milliseconds(time)))));
        for (name, patterns) in [("include", &self.include), ("exclude", &self.exclude)] {
            // Their order means nothing.
            let patterns: BTreeSet<&str> = patterns.iter().map(String::as_str).collect();
            if !patterns.is_empty() {
                settings.push((name, Vec::from_iter(patterns).join(",")));
            }
        }
        settings
    }
}

/// Seeds and bounds.
#[derive(Debug, Clone)]
pub(crate) struct JobRequest {
    /// Each once, sorted: the order in which they were typed means nothing.
    pub(crate) seeds: Vec<CanonicalUrl<'static>>,
    bounds: Bounds,
}

impl JobRequest {
    /// A request for these seeds; `Err` is what is wrong with the bounds.
    pub(crate) fn new(
        mut seeds: Vec<CanonicalUrl<'static>>,
        bounds: Bounds,
    ) -> Result<Self, String> {
        let settings = bounds.settings();
        let settings = settings.iter().map(|(name, value)| (*name, value.as_str()));
        JobSettings::parse(settings).map_err(|error| error.text)?;
        seeds.sort_unstable();
        seeds.dedup();
        Ok(Self { seeds, bounds })
    }

    /// The settings in the words of `JOB open`.
    pub(crate) fn settings(&self) -> Vec<(&'static str, String)> {
        self.bounds.settings()
    }

    /// Most pages that it may have.
    pub(crate) fn max_pages(&self) -> Option<u64> {
        self.bounds.max_pages
    }

    /// `crawl-` and a hash of seeds, scope and limits. Stable: an interrupted command finds its
    /// job by it, also after an upgrade.
    pub(crate) fn name(&self) -> JobName {
        let mut hasher = blake3::Hasher::new();
        // No URL and no setting contains a line end, so the lines are told apart.
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

/// What a broker says of a job: while it runs (`JOB show`) and at its end (`job-done`). What it
/// does not say is empty or 0.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Counts {
    /// All of it as it was said.
    pub(crate) words: String,
    pub(crate) name: String,
    pub(crate) number: String,
    pub(crate) pass: String,
    /// `open`, `closed` or `done`.
    pub(crate) state: String,
    /// `done` or `cancelled`; only at the end.
    pub(crate) result: String,
    /// Waiting for their host to be free.
    pub(crate) pending: u64,
    /// Waiting for a crawler to have room.
    pub(crate) queued: u64,
    pub(crate) processing: u64,
    pub(crate) completed: u64,
    pub(crate) redirects: u64,
    pub(crate) failed: u64,
    pub(crate) robots: u64,
    pub(crate) scope: u64,
    pub(crate) trap: u64,
    pub(crate) budget: u64,
    pub(crate) cancelled: u64,
    /// Everything that was ever in it.
    pub(crate) found: u64,
    /// Pages a second lately; only where it is watched.
    pub(crate) rate: f64,
    /// Hosts that it waits for; only while it is crawled.
    pub(crate) waiting: Vec<Waiting>,
}

impl Counts {
    /// Reads `<name> key=value ..`. Unknown keys come from a newer broker and mean nothing here.
    pub(crate) fn parse(text: &str) -> Self {
        let mut words = text.split_ascii_whitespace();
        let name = words.next().unwrap_or_default().to_owned();
        let mut counts = Self { words: text.to_owned(), name, ..Self::default() };
        for (key, value) in words.filter_map(|word| word.split_once('=')) {
            match key {
                "number" => value.clone_into(&mut counts.number),
                "pass" => value.clone_into(&mut counts.pass),
                "state" => value.clone_into(&mut counts.state),
                "result" => value.clone_into(&mut counts.result),
                "rate" => counts.rate = value.parse().unwrap_or(0.0),
                _ => {
                    if let (Some(count), Ok(value)) = (counts.count_mut(key), value.parse()) {
                        *count = value;
                    }
                }
            }
        }
        counts
    }

    fn count_mut(&mut self, key: &str) -> Option<&mut u64> {
        Some(match key {
            "pending" => &mut self.pending,
            "queued" => &mut self.queued,
            "processing" => &mut self.processing,
            "completed" => &mut self.completed,
            "redirects" => &mut self.redirects,
            "failed" => &mut self.failed,
            "robots" => &mut self.robots,
            "scope" => &mut self.scope,
            "trap" => &mut self.trap,
            "budget" => &mut self.budget,
            "cancelled" => &mut self.cancelled,
            "found" => &mut self.found,
            _ => return None,
        })
    }

    /// Where its pages are, in a line.
    pub(crate) fn progress_line(&self) -> String {
        format!(
            "{} completed, {} waiting, {} processing, {} failed",
            count(self.completed),
            count(self.pending + self.queued),
            count(self.processing),
            count(self.failed),
        )
    }

    /// The same, and how fast that goes: the line that is redrawn while somebody watches it.
    pub(crate) fn watch_line(&self) -> String {
        format!("{}, {:.1} pages/s", self.progress_line(), self.rate)
    }

    /// How it ended, for machines.
    pub(crate) fn json(&self) -> Map<String, Value> {
        let result = if self.result.is_empty() { "done" } else { &self.result };
        let mut object = Map::new();
        object.insert("job".into(), self.name.as_str().into());
        object.insert("result".into(), result.into());
        for (name, n) in [
            ("pages", self.completed),
            ("redirects", self.redirects),
            ("failed", self.failed),
            ("robots", self.robots),
            ("scope", self.scope),
            ("trap", self.trap),
            ("budget", self.budget),
            ("cancelled", self.cancelled),
            ("found", self.found),
        ] {
            object.insert(name.into(), n.into());
        }
        object
    }

    /// Where it stands, in a line.
    pub(crate) fn state_line(&self) -> String {
        format!("{}: pass {}, {}", self.name, self.pass, self.state)
    }

    /// Whether it ended with nothing that failed and was not cancelled.
    pub(crate) fn went_well(&self) -> bool {
        self.failed == 0 && self.result != "cancelled"
    }

    /// The line at the end of one that was crawled here.
    pub(crate) fn summary_line(&self, seconds: f64) -> String {
        let mut line = self.end_line();
        #[expect(clippy::cast_precision_loss, reason = "one digit is shown")]
        let rate = self.completed as f64 / seconds.max(0.001);
        let digits = if seconds < 10.0 { 2 } else { 1 };
        let _ = write!(line, "; {seconds:.digits$} s, {rate:.1} pages/s");
        line
    }

    /// How it ended: always pages and failures, the rest where there is something to say.
    pub(crate) fn end_line(&self) -> String {
        let result = if self.result.is_empty() { "done" } else { &self.result };
        let mut line =
            format!("{result}: {}, {} failed", plural(self.completed, "page"), count(self.failed));
        for (n, what) in [
            (self.redirects, "redirects"),
            (self.robots, "kept out by robots.txt"),
            (self.scope, "out of scope"),
            (self.trap, "taken for traps"),
            (self.budget, "over budget"),
            (self.cancelled, "cancelled"),
        ] {
            if n > 0 {
                let _ = write!(line, ", {} {what}", count(n));
            }
        }
        line
    }
}

/// So many a second over the last few seconds, from how many there were at which time.
#[derive(Debug, Default)]
pub(crate) struct Rate {
    /// Seconds since the start, and pages by then; oldest first, spanning `RATE_SECONDS`.
    samples: VecDeque<(f64, u64)>,
}

impl Rate {
    /// Whether it is one over those few seconds, and not over the first moments.
    pub(crate) fn is_settled(&self) -> bool {
        let span = self.samples.front().zip(self.samples.back());
        span.is_some_and(|((from, _), (to, _))| to - from >= RATE_SECONDS)
    }

    /// Notes that there are `pages` at `seconds` since the start; `seconds` never falls.
    pub(crate) fn at(&mut self, seconds: f64, pages: u64) -> f64 {
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

/// A URL as a person writes it; the error says what is wrong, and perhaps what was meant.
pub(crate) fn seed(text: &str) -> Result<CanonicalUrl<'static>, String> {
    text.parse().map_err(|error| {
        if !text.contains("://") && CanonicalUrl::parse(&format!("https://{text}")).is_ok() {
            format!("{text} is no URL; did you mean https://{text} ?")
        } else {
            format!("{}: {error}", printable(text, 200))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(seeds: &[&str]) -> JobRequest {
        request_within(seeds, Bounds::default())
    }

    fn request_within(seeds: &[&str], bounds: Bounds) -> JobRequest {
        JobRequest::new(seeds.iter().map(|text| seed(text).unwrap()).collect(), bounds).unwrap()
    }

    #[test]
    fn the_same_crawl_has_the_same_name_however_it_is_typed() {
        let name = request(&["http://a.example/", "http://b.example/x"]).name();
        let typed = ["HTTP://B.example:80/x#top", "http://a.example", "http://a.example/"];
        assert_eq!(request(&typed).name(), name);
    }

    #[test]
    fn another_seed_scope_or_limit_is_another_crawl() {
        let (all, patterns) = (Bounds::default, || vec!["/x".to_owned()]);
        let bounds = [
            all(),
            Bounds { scope: Scope::Any, ..all() },
            Bounds { depth: Some(1), ..all() },
            Bounds { max_pages: Some(1), ..all() },
            Bounds { max_per_host: Some(1), ..all() },
            Bounds { max_time: Some(Duration::from_secs(1)), ..all() },
            Bounds { include: patterns(), ..all() },
            Bounds { exclude: patterns(), ..all() },
        ];
        let mut names: BTreeSet<String> =
            [request(&["http://a.example/x"]).name().to_string()].into();
        for bounds in bounds {
            let name = request_within(&["http://a.example/"], bounds.clone()).name();
            assert!(names.insert(name.to_string()), "{bounds:?}");
        }
    }

    #[test]
    fn the_order_of_patterns_means_nothing_and_wrong_ones_are_refused() {
        let patterns = |exclude: &[&str]| {
            let exclude = exclude.iter().map(ToString::to_string).collect();
            Bounds { exclude, ..Bounds::default() }
        };
        let name = |exclude| request_within(&["http://a.example/"], patterns(exclude)).name();
        assert_eq!(name(&["/a", "/b"]), name(&["/b", "/a", "/b"]));
        let wrong = JobRequest::new(Vec::new(), patterns(&["/a", "b"])).unwrap_err();
        assert!(wrong.contains("begins with"), "{wrong}");
    }

    #[test]
    fn names_stay_what_they_are() {
        // A change here makes every interrupted crawl a new one: do not change it.
        let name = request(&["https://example.org/"]).name();
        assert_eq!(AsRef::<str>::as_ref(&name), "crawl-282765a1e6ca9f34");
    }

    #[test]
    fn what_is_no_url_is_named_with_a_hint() {
        let refuse = |text: &str| seed(text).unwrap_err();
        assert_eq!(
            refuse("example.org"),
            "example.org is no URL; did you mean https://example.org ?"
        );
        assert!(refuse("ftp://example.org/").starts_with("ftp://example.org/: "));
    }

    const SHOWN: &str = "crawl-1 number=7 pass=2 state=closed pending=3 queued=1 processing=2 \
                         completed=1234 redirects=5 failed=1 robots=0 trap=0 fresh=9 found=10";

    #[test]
    fn counts_are_read_and_unknown_ones_ignored() {
        let counts = Counts::parse(SHOWN);
        assert_eq!((counts.name.as_str(), counts.number.as_str()), ("crawl-1", "7"));
        assert_eq!((counts.pass.as_str(), counts.state.as_str()), ("2", "closed"));
        assert_eq!((counts.pending, counts.queued, counts.processing), (3, 1, 2));
        assert_eq!((counts.completed, counts.failed, counts.budget), (1234, 1, 0));
        assert_eq!(Counts::parse(""), Counts::default());
        assert_eq!(Counts::parse("x completed=-1 failed=y").completed, 0);
    }

    #[test]
    fn progress_and_summary_are_one_line_each() {
        let counts = Counts::parse(SHOWN);
        let counts = Counts { rate: 3.04, ..counts };
        assert_eq!(
            counts.watch_line(),
            "1,234 completed, 4 waiting, 2 processing, 1 failed, 3.0 pages/s"
        );
        assert_eq!(
            counts.summary_line(10.0),
            "done: 1,234 pages, 1 failed, 5 redirects; 10.0 s, 123.4 pages/s"
        );
    }

    #[test]
    fn the_rate_forgets_what_is_long_ago() {
        let mut rate = Rate::default();
        let rates = [(0.0, 0), (1.0, 10), (5.0, 50), (6.0, 50), (100.0, 50)];
        let rates = rates.map(|(seconds, pages)| rate.at(seconds, pages));
        assert_eq!(rates.map(|rate| format!("{rate:.1}")), ["0.0", "10.0", "10.0", "8.0", "0.0"]);
    }
}
