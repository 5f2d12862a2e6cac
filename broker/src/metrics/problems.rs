//! What is not well: each rule with its sentence. `tidings status` and the dashboard show these
//! sentences.

use std::cmp::Reverse;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value as Json, json};
use tidings_metrics::MetricsSource;
use tidings_protocol::GroupName;
use tidings_protocol::readable::{format_bytes, format_count, format_duration, plural};
use tidings_queue::queries::metrics::{GroupMetrics, JobMetrics};

use super::snapshot::Snapshot;
use crate::groups::{PublishedMetrics, StopReason};
use crate::topic::Health;

const DAY_S: u64 = 86_400;

/// Bytes above the reserve of the disk from which there is room enough.
const ROOM_BYTES: u64 = 1_000_000_000;

/// Problems that are listed; the others are counted.
const PROBLEMS_MAX: usize = 20;

/// Topics that a sentence names.
const NAMES_MAX: usize = 5;

/// Seconds for which the workers of a group may be busy.
const BUSY_S_MAX: u64 = 60;

/// Dead letters of a group that are a problem, whatever their share.
const DEAD_MAX: u64 = 1000;

/// Fewer are a problem if they are more than one in this many of what has ended.
const DEAD_SHARE: u64 = 20;

/// Failed pages of a running job that are a problem, if they are more than one in this many of its
/// ended pages. Some hosts of every long list are dead.
const JOB_FAILED_MIN: u64 = 100;
const JOB_FAILED_SHARE: u64 = 4;

/// One thing that is not well. Its text is `<severity> <sentence>`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    severity: Severity,
    sentence: String,
    /// The page of the dashboard that shows more, such as `groups/crawlers`; may be empty.
    page: String,
}

/// How urgent a problem is, the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Severity {
    /// Something does not work.
    Bad,
    /// Something may stop working.
    Warn,
}

impl Problem {
    /// The broker stops.
    pub(crate) fn stopping() -> Self {
        bad("The broker is stopping.", "")
    }

    /// An object of `GET /stats`.
    pub(crate) fn json(&self) -> Json {
        let Self { severity, sentence, page } = self;
        json!({ "kind": severity.as_str(), "text": sentence, "page": page })
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.severity.as_str(), self.sentence)
    }
}

impl Severity {
    fn as_str(self) -> &'static str {
        match self {
            Self::Bad => "bad",
            Self::Warn => "warn",
        }
    }
}

impl Snapshot {
    /// What is not well, the worst first. `groups` are all groups, `others` the other parts of the
    /// process, and `unix_s` is now in seconds since 1970.
    pub(crate) fn problems(
        &self,
        groups: &[(GroupName, Arc<PublishedMetrics>)],
        others: &[Arc<dyn MetricsSource>],
        unix_s: u64,
    ) -> Vec<Problem> {
        let mut problems = self.topic_problems();
        problems.extend(self.damaged_groups.iter().map(|group| {
            let sentence = format!("Group {group} has a damaged log and rejects work.");
            bad(sentence, format!("groups/{group}"))
        }));
        let mut groups: Vec<_> = groups.iter().collect();
        groups.sort_by_key(|(name, metrics)| {
            (Reverse(metrics.group.waiting + metrics.group.processing), name)
        });
        for (name, metrics) in groups {
            let busy_s = metrics.starved_since.map_or(0, |since| self.now.since(since) / 1000);
            problems.extend(group_problem(name, metrics, busy_s));
            problems.extend(metrics.group.newest_jobs.iter().filter_map(paused_job));
            problems.extend(dead_problem(name, &metrics.group));
            problems.extend(metrics.group.newest_jobs.iter().filter_map(job_problem));
        }
        problems.extend(self.disk.and_then(|disk| disk_problem(disk.free, disk.reserve())));
        let expiry = self.certificate_expiry_unix_s;
        problems.extend(expiry.and_then(|expiry| certificate_problem(expiry, unix_s)));
        for other in others {
            problems.extend(other.problem().map(|sentence| bad(sentence, "")));
            problems.extend(other.warnings().into_iter().map(|sentence| warn(sentence, "")));
        }
        if self.audit_lost > 0 {
            let lost = plural(self.audit_lost, "audit record");
            problems.push(bad(format!("{lost} lost: the disk was slow or full."), "system"));
        }
        problems.sort_by_key(|problem| problem.severity);
        shortened(problems)
    }

    fn topic_problems(&self) -> Vec<Problem> {
        let reasons =
            [(Health::Failed, "a write to the disk failed"), (Health::Full, "the disk is full")];
        let of = |(health, why)| {
            let topics = self.topics.iter().filter(move |topic| topic.stats.health == health);
            topic_problem(topics.map(|topic| &*topic.name), why)
        };
        reasons.into_iter().filter_map(of).collect()
    }
}

/// One sentence for all topics that reject events for the same reason.
fn topic_problem<'a>(topics: impl Iterator<Item = &'a str>, why: &str) -> Option<Problem> {
    let topics: Vec<_> = topics.collect();
    match &topics[..] {
        [] => None,
        [name] => {
            Some(bad(format!("Topic {name} rejects events: {why}."), format!("topics/{name}")))
        }
        [first @ .., _] => {
            let named = topics[..topics.len().min(NAMES_MAX)].join(", ");
            let more = if first.len() < NAMES_MAX { "" } else { ", .." };
            let count = plural(topics.len() as u64, "topic");
            Some(bad(format!("{count} reject events: {why} ({named}{more})."), "topics"))
        }
    }
}

/// The first problems, and the number of the others.
fn shortened(mut problems: Vec<Problem>) -> Vec<Problem> {
    let others = problems.split_off(problems.len().min(PROBLEMS_MAX));
    if let Some(Problem { severity, .. }) = others.first() {
        let count = plural(others.len() as u64, "more problem");
        problems.push(Problem { severity: *severity, ..bad(format!("{count}."), "") });
    }
    problems
}

/// What keeps a group from its work. Workers were busy for `busy_s` seconds.
fn group_problem(name: &GroupName, metrics: &PublishedMetrics, busy_s: u64) -> Option<Problem> {
    let group = &metrics.group;
    let waiting = match group.waiting {
        1 => "1 entry".to_owned(),
        waiting => format!("{} entries", format_count(waiting)),
    };
    let stopped = StopReason::ALL.into_iter().zip(metrics.stopped);
    let stopped = stopped.filter(|(_, count)| *count > 0).map(|(why, _)| why).next();
    let page = format!("groups/{name}");
    let still = |why| bad(format!("Group {name} stands still: {why}."), page.clone());
    match stopped {
        Some(StopReason::Full) => return Some(still("the disk is full")),
        Some(StopReason::SyncFailed) => return Some(still("a write to the disk failed")),
        Some(StopReason::Fault) => return Some(still("an error in the broker")),
        Some(StopReason::Paused) => {
            let sentence = format!("Group {name} is paused with {waiting} waiting.");
            return (group.waiting > 0).then(|| warn(sentence, page));
        }
        None => {}
    }
    if group.waiting > 0 && group.members == 0 {
        let sentence = format!("Group {name} has {waiting} waiting, and no worker is connected.");
        Some(bad(sentence, page))
    } else if group.without_browser > 0 {
        let tasks = plural(group.without_browser, "task");
        Some(bad(format!("Group {name} has {tasks} for a browser, which no worker has."), page))
    } else if busy_s > BUSY_S_MAX {
        let time = format_duration(Duration::from_secs(busy_s));
        let sentence =
            format!("All workers of group {name} have been busy for {time}: one more would help.");
        Some(warn(sentence, page))
    } else {
        None
    }
}

fn paused_job(job: &JobMetrics) -> Option<Problem> {
    let JobMetrics { name, is_paused, unfinished, .. } = job;
    let sentence = format!("Job {name} is paused with {} unfinished.", plural(*unfinished, "URL"));
    (*is_paused && *unfinished > 0).then(|| warn(sentence, format!("jobs/{name}")))
}

/// Failed pages of a job are a result of the job, and not dead letters that somebody must look at.
fn dead_problem(name: &GroupName, group: &GroupMetrics) -> Option<Problem> {
    let dead = group.dead_without_job;
    let is_many = dead >= DEAD_MAX || dead * DEAD_SHARE > group.completed + group.dead;
    let sentence = format!("{} in group {name}.", plural(dead, "dead letter"));
    is_many.then(|| warn(sentence, "dead"))
}

fn job_problem(job: &JobMetrics) -> Option<Problem> {
    let JobMetrics { name, is_done, completed, failed, .. } = job;
    let ended = completed + failed;
    let is_many = *failed >= JOB_FAILED_MIN && failed * JOB_FAILED_SHARE > ended;
    let (failed, ended) = (format_count(*failed), plural(ended, "page"));
    let sentence = format!("{failed} of {ended} of job {name} have failed.");
    (is_many && !is_done).then(|| warn(sentence, format!("jobs/{name}")))
}

fn disk_problem(free: u64, reserve: u64) -> Option<Problem> {
    let problem = if free < 4 * reserve { bad } else { warn };
    let (left, reserved) = (format_bytes(free), format_bytes(reserve));
    let sentence =
        format!("Only {left} are free on the disk; below {reserved}, events are rejected.");
    (free <= reserve + ROOM_BYTES).then(|| problem(sentence, "system".to_owned()))
}

fn certificate_problem(expiry_unix_s: u64, unix_s: u64) -> Option<Problem> {
    let left = expiry_unix_s.saturating_sub(unix_s);
    let problem = if left < 3 * DAY_S { bad } else { warn };
    let sentence = if left == 0 {
        "The certificate has expired.".to_owned()
    } else {
        format!("The certificate expires in {}.", format_duration(Duration::from_secs(left)))
    };
    (left < 14 * DAY_S).then(|| problem(sentence, "system".to_owned()))
}

fn bad(sentence: impl Into<String>, page: impl Into<String>) -> Problem {
    Problem { severity: Severity::Bad, sentence: sentence.into(), page: page.into() }
}

fn warn(sentence: impl Into<String>, page: impl Into<String>) -> Problem {
    Problem { severity: Severity::Warn, ..bad(sentence, page) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(problem: Option<Problem>) -> Option<String> {
        problem.map(|problem| problem.to_string())
    }

    #[test]
    fn many_problems_stay_short() {
        let names = ["t0", "t1", "t2", "t3", "t4", "t5", "t6", "t7", "t8"];
        for (count, expected) in [
            (0, None),
            (1, Some("bad Topic t0 rejects events: why.")),
            (5, Some("bad 5 topics reject events: why (t0, t1, t2, t3, t4).")),
            (9, Some("bad 9 topics reject events: why (t0, t1, t2, t3, t4, ..).")),
        ] {
            assert_eq!(
                shown(topic_problem(names.into_iter().take(count), "why")).as_deref(),
                expected
            );
        }
        let many = |count| shortened((0..count).map(|n| warn(n.to_string(), "")).collect());
        assert_eq!(many(PROBLEMS_MAX).len(), PROBLEMS_MAX);
        let last = many(PROBLEMS_MAX + 2).pop();
        assert_eq!(shown(last).as_deref(), Some("warn 2 more problems."));
    }

    #[test]
    fn a_certificate_is_a_problem_two_weeks_before_it_expires() {
        let now = 1_800_000_000;
        for (left_s, expected) in [
            (14 * DAY_S, None),
            (5 * DAY_S - 1, Some("warn The certificate expires in 4d 23h.")),
            (3 * DAY_S - 1, Some("bad The certificate expires in 2d 23h.")),
            (0, Some("bad The certificate has expired.")),
        ] {
            let problem = certificate_problem(now + left_s, now);
            assert_eq!(shown(problem).as_deref(), expected, "{left_s}");
        }
    }

    #[test]
    fn a_disk_is_a_problem_a_gigabyte_above_its_reserve() {
        let reserve = 1 << 29;
        assert_eq!(disk_problem(reserve + ROOM_BYTES + 1, reserve), None);
        let expected = "bad Only 1.5 GB are free on the disk; below 537 MB, events are rejected.";
        assert_eq!(shown(disk_problem(reserve + ROOM_BYTES, reserve)).unwrap(), expected);
        assert!(shown(disk_problem(900, 10)).unwrap().starts_with("warn "));
    }

    #[test]
    fn dead_letters_are_a_problem_by_their_share_or_number() {
        let group = "g".parse().unwrap();
        for (dead_without_job, dead, completed, expected) in [
            (0, 20, 0, None),
            (1, 1, 0, Some("warn 1 dead letter in group g.")),
            (20, 20, 2_000, None),
            (101, 101, 1_900, Some("warn 101 dead letters in group g.")),
            (999, 9_999, 1_000_000, None),
            (1_000, 9_999, 1_000_000, Some("warn 1,000 dead letters in group g.")),
        ] {
            let metrics =
                GroupMetrics { dead_without_job, dead, completed, ..GroupMetrics::default() };
            assert_eq!(shown(dead_problem(&group, &metrics)).as_deref(), expected);
        }
        for (is_done, completed, failed, expected) in [
            (false, 2_000, 20, None),
            (false, 0, 99, None),
            (false, 300, 100, None),
            (false, 299, 100, Some("warn 100 of 399 pages of job docs have failed.")),
            (true, 0, 2_020, None),
        ] {
            let name = "docs".parse().unwrap();
            let (is_paused, queued, unfinished) = (false, 0, 0);
            let job =
                JobMetrics { name, is_done, is_paused, queued, unfinished, completed, failed };
            assert_eq!(shown(job_problem(&job)).as_deref(), expected);
        }
    }

    #[test]
    fn each_group_has_the_problem_that_keeps_it_from_its_work() {
        let group = "g".parse().unwrap();
        let problem = |stopped: Option<StopReason>, counts: [u64; 3], busy_s| {
            let [waiting, members, without_browser] = counts;
            let stopped = StopReason::ALL.map(|each| u64::from(stopped == Some(each)));
            let mut metrics = PublishedMetrics { stopped, ..PublishedMetrics::default() };
            let group_metrics = &mut metrics.group;
            (group_metrics.waiting, group_metrics.members) = (waiting, members);
            group_metrics.without_browser = without_browser;
            shown(group_problem(&group, &metrics, busy_s)).unwrap_or_default()
        };
        let (full, paused) = (Some(StopReason::Full), Some(StopReason::Paused));
        for (stopped, counts, busy_s, expected) in [
            (None, [3, 1, 0], 60, ""),
            (full, [0, 1, 0], 0, "bad Group g stands still: the disk is full."),
            (paused, [0, 0, 0], 0, ""),
            (paused, [1, 0, 0], 0, "warn Group g is paused with 1 entry waiting."),
            (
                None,
                [1_499, 0, 0],
                0,
                "bad Group g has 1,499 entries waiting, and no worker is connected.",
            ),
            (None, [2, 1, 2], 0, "bad Group g has 2 tasks for a browser, which no worker has."),
            (
                None,
                [2, 1, 0],
                61,
                "warn All workers of group g have been busy for 1m 01s: one more would help.",
            ),
        ] {
            assert_eq!(problem(stopped, counts, busy_s), expected);
        }
    }
}
