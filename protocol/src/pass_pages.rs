//! The pages of a pass of a job, from the events on `page-ready`.

use std::collections::{BTreeMap, BTreeSet};

use crate::status::PageStatus;
use crate::{AttributeFilter, FailureReason, GroupName, JobName, Outcome};

/// The word for a page without `reason=`.
const NO_REASON: &str = "unknown";

/// Why a group gives an entry up: the `reason=` of a page if its worker has no word.
pub const DEAD_REASONS: [&str; 4] = ["max-attempts", "max-losses", "retry-no", "down"];

/// Memory of a page in addition to its fields: its key, and what allocations cost.
const PAGE_BYTES: usize = 256;

/// The reason of a page that failed.
pub fn reason_of(page: &PageStatus) -> &str {
    page.reason.as_deref().unwrap_or(NO_REASON)
}

/// Checks words that select pages by their reasons: each is one of `others`, one of a crawler or a
/// group, or that of a page, because workers may have words of their own. The error is the rest of a
/// line that begins with the name of the option.
pub fn check_reasons(
    words: &[impl AsRef<str>],
    pages: &[PageStatus],
    others: &[&str],
) -> Result<(), String> {
    let known = FailureReason::ALL.map(FailureReason::as_str).into_iter();
    let known = known.chain(DEAD_REASONS).chain([NO_REASON]).chain(others.iter().copied());
    let known: BTreeSet<&str> = known.chain(pages.iter().map(reason_of)).collect();
    match words.iter().find(|word| !known.contains(word.as_ref())) {
        None => Ok(()),
        Some(word) => {
            let known = Vec::from_iter(known).join(", ");
            Err(format!("{}: expected one of {known}", word.as_ref()))
        }
    }
}

/// A pass of a job.
#[derive(Debug, Clone, Copy)]
pub struct PassName<'a> {
    /// The job.
    pub job: &'a JobName,
    /// Its group.
    pub group: &'a GroupName,
    /// The number of the job: another job may have had the same name.
    pub number: u64,
    /// The pass.
    pub pass: u64,
}

impl PassName<'_> {
    /// Selects the events of the pass.
    pub fn filter(&self) -> AttributeFilter {
        let Self { job, group, number, pass } = self;
        let conditions = [
            format!("in-job={job}"),
            format!("group={group}"),
            format!("number={number}"),
            format!("pass={pass}"),
        ];
        let conditions = conditions.iter().map(String::as_str);
        AttributeFilter::parse(conditions).expect("names and numbers are words")
    }
}

/// Pages of a pass, each with its newest outcome.
#[derive(Debug)]
pub struct PassPages {
    /// Only pages with `failed` as their newest outcome.
    only_failed: bool,
    /// `<group>.<since>` of the newest event. A group that is deleted and created again has another
    /// `since`, and numbers its jobs from 1 again.
    group: String,
    /// By `page=`, which stays the same when a page is retried. Each with the length of its event.
    pages: BTreeMap<String, (usize, PageStatus)>,
    /// The sum of these lengths.
    event_bytes: usize,
}

impl PassPages {
    /// No pages yet. `only_failed`: only those that failed are kept.
    pub fn new(only_failed: bool) -> Self {
        Self { only_failed, group: String::new(), pages: BTreeMap::new(), event_bytes: 0 }
    }

    /// Adds the next event of the pass. Pages of a deleted group of the same name are dropped.
    pub fn add(&mut self, event: &str) {
        let page = PageStatus::parse(event);
        // `page=<group>.<since>.<entry>`
        let group = page.page.rsplit_once('.').map_or("", |(group, _)| group);
        if group != self.group {
            self.pages.clear();
            self.event_bytes = 0;
            group.clone_into(&mut self.group);
        }
        let replaced = if self.only_failed && page.outcome != Outcome::Failed.as_str() {
            self.pages.remove(&page.page)
        } else {
            self.event_bytes += event.len();
            self.pages.insert(page.page.clone(), (event.len(), page))
        };
        self.event_bytes -= replaced.map_or(0, |(bytes, _)| bytes);
    }

    /// How many pages there are.
    pub fn count(&self) -> u64 {
        self.pages.len() as u64
    }

    /// Their approximate memory.
    pub fn bytes(&self) -> usize {
        self.event_bytes + self.pages.len() * (size_of::<PageStatus>() + PAGE_BYTES)
    }

    /// The pages, sorted by URL.
    pub fn finish(self) -> Vec<PageStatus> {
        let mut pages: Vec<_> = self.pages.into_values().map(|(_, page)| page).collect();
        pages.sort_by(|a, b| a.url.cmp(&b.url));
        pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The URLs and outcomes that these events leave of pass 2 of job 7, `docs`.
    fn fold(only_failed: bool, events: &[&str]) -> Vec<String> {
        let (job, group) = ("docs".parse().unwrap(), "crawlers".parse().unwrap());
        let filter = PassName { job: &job, group: &group, number: 7, pass: 2 }.filter();
        let mut pages = PassPages::new(only_failed);
        events.iter().filter(|event| filter.matches(event)).for_each(|event| pages.add(event));
        let pages = pages.finish().into_iter();
        pages.map(|page| format!("{} {}", page.url, page.outcome)).collect()
    }

    const OF_PASS: &str = "group=crawlers in-job=docs pass=2 depth=0 number=7";

    #[test]
    fn the_newest_outcome_of_a_page_counts() {
        let events = [
            ("http://b.org/ outcome=failed page=crawlers.5.1"),
            ("http://c.org/ outcome=done page=crawlers.5.2"),
            ("http://a.org/ outcome=failed page=crawlers.5.3"),
            ("http://b.org/ outcome=done page=crawlers.5.1"),
            ("http://d.org/ outcome=failed page=crawlers.5.4"),
            ("http://d.org/ outcome=done page=crawlers.5.4"),
            ("http://d.org/ outcome=failed page=crawlers.5.4"),
        ]
        .map(|event| format!("{event} {OF_PASS}"));
        let events = events.each_ref().map(String::as_str);
        assert_eq!(fold(true, &events), ["http://a.org/ failed", "http://d.org/ failed"]);
        let all = [
            "http://a.org/ failed",
            "http://b.org/ done",
            "http://c.org/ done",
            "http://d.org/ failed",
        ];
        assert_eq!(fold(false, &events), all);
    }

    #[test]
    fn pages_of_a_deleted_group_do_not_count() {
        let events = [
            "http://a.org/ outcome=failed page=crawlers.5.1",
            "http://b.org/ outcome=failed page=crawlers.5.2",
            "http://a.org/ outcome=done page=crawlers.9.1",
            "http://c.org/ outcome=failed page=crawlers.9.3",
        ]
        .map(|event| format!("{event} {OF_PASS}"));
        let events = events.each_ref().map(String::as_str);
        assert_eq!(fold(true, &events[..3]), [""; 0]);
        assert_eq!(fold(true, &events), ["http://c.org/ failed"]);
        assert_eq!(fold(false, &events), ["http://a.org/ done", "http://c.org/ failed"]);
    }

    #[test]
    fn pages_of_others_do_not_count() {
        let own = format!("http://a.org/ outcome=failed page=crawlers.5.1 {OF_PASS}");
        let mut events = vec![own.clone()];
        for (word, other) in [
            ("group=crawlers", "group=others"),
            ("in-job=docs", "in-job=blog"),
            ("pass=2", "pass=1"),
            ("number=7", "number=6"),
            ("in-job=docs pass=2 depth=0 number=7", "item=5"),
        ] {
            events.push(own.replace(word, other).replace("crawlers.5.1", "crawlers.5.2"));
        }
        let events: Vec<_> = events.iter().map(String::as_str).collect();
        assert_eq!(fold(false, &events), ["http://a.org/ failed"]);
    }
}
