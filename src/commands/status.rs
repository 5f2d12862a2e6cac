//! `tidings status`: whether all is well, and the figures of a broker on one screen.

#![expect(clippy::disallowed_methods, reason = "the answers have a time limit")]

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};
use tidings_protocol::status::{BrowserFields, GroupStatus, Rate, TopicStatus};
use tokio::time::timeout;

use crate::client::manage::{self, BrokerClient, OutputFlags};
use crate::client::overview::{GroupOverview, Overview};
use crate::terminal::failure::Failure;
use crate::terminal::output::{Console, format_bytes, format_count, plural, terminal_safe};

pub(crate) const EXAMPLES: &str = "\
Examples:
  tidings status                           the broker of this machine
  tidings status --broker 10.0.0.1:12345   another one
  tidings status --json | jq .problems     for scripts

The first line is that of the dashboard. Not well is: a topic that rejects events; a group that is
damaged, stands still, is paused with waiting work, or has no worker for it or too few; a paused job
with unfinished URLs; many dead letters outside of jobs; a running job with many failed pages; a disk
that is nearly full; a certificate that expires within two weeks; a crawler of this process that
cannot store pages or has lost its network; a receiver of a push or of callbacks that refuses one
request after the other; lost audit records; no answer.

Exit codes: 0 all is well; 1 it is not, or the broker cannot be reached; 2 wrong usage.";

/// The name of the connection, as the broker shows it.
const NAME: &str = "tidings-status";

/// The time limit for all answers of the broker.
const ANSWERS_MAX: Duration = Duration::from_secs(5);

/// Problems in the sentence, as on the dashboard; more are counted.
const PROBLEMS_MAX: usize = 10;

/// Groups with a line of their own; more are counted.
const GROUPS_MAX: usize = 8;

/// Prints the sentence and the figures.
pub(crate) async fn run(output: OutputFlags) -> Result<(), Failure> {
    let mut console = Console::new();
    let overview = match read(&output).await {
        Err(failure) if output.json => {
            let object = json!({ "well": false, "problems": [failure.text()] });
            console.line(&object.to_string())?;
            return Err(Failure::Unsuccessful);
        }
        overview => overview?,
    };
    let address = output.broker.broker.as_str();
    if output.json {
        console.line(&object(&overview, address).to_string())?;
    } else {
        let lines = lines(&overview, address);
        lines.iter().try_for_each(|line| console.line(&terminal_safe(line)))?;
    }
    if overview.is_well() { Ok(()) } else { Err(Failure::Unsuccessful) }
}

async fn read(output: &OutputFlags) -> Result<Overview, Failure> {
    let read = async {
        let broker = BrokerClient::connect(&output.broker, NAME).await?;
        Overview::read(&broker).await
    };
    let late = || {
        let (broker, seconds) = (&output.broker.broker, ANSWERS_MAX.as_secs());
        Failure::failed(format!("{broker}: no answer within {seconds} s"))
    };
    timeout(ANSWERS_MAX, read).await.unwrap_or_else(|_| Err(late()))
}

/// The figures as an object.
pub(crate) fn object(overview: &Overview, address: &str) -> Value {
    let group = |group: &GroupOverview| match group {
        GroupOverview::Sound(status) => manage::json(&**status),
        GroupOverview::Damaged(status) => manage::json(status),
        GroupOverview::Still { group, reason } => json!({ "group": group, "still": reason }),
    };
    json!({
        "well": overview.is_well(),
        "problems": overview.problems,
        "broker": address,
        "version": overview.version,
        "connections": overview.connections,
        "topics": overview.topics.iter().map(manage::json).collect::<Vec<_>>(),
        "groups": overview.groups.iter().map(group).collect::<Vec<_>>(),
    })
}

/// The sentence, and the figures for people.
pub(crate) fn lines(overview: &Overview, address: &str) -> Vec<String> {
    let Overview { version, connections, problems, topics, groups } = overview;
    let mut lines = vec![sentence(problems)];
    let connections = plural(*connections, "connection");
    lines.push(format!("broker {address}, version {version}, {connections}"));
    let sum = |count: fn(&TopicStatus) -> u64| topics.iter().map(count).sum();
    lines.push(format!(
        "{} with {}, {} on disk, {} new events a second",
        plural(topics.len() as u64, "topic"),
        plural(sum(|topic| topic.kept), "event"),
        format_bytes(sum(|topic| topic.log_bytes)),
        Rate { tenths: sum(|topic| topic.rate.tenths) },
    ));
    let shown = groups.iter().take(GROUPS_MAX).map(|group| match group {
        GroupOverview::Sound(status) => group_line(status),
        GroupOverview::Damaged(status) => format!("group {}: damaged", status.group),
        GroupOverview::Still { group, .. } => format!("group {group}: stands still"),
    });
    lines.extend(shown);
    if groups.len() > GROUPS_MAX {
        lines.push(format!("and {} more groups", groups.len() - GROUPS_MAX));
    }
    lines
}

/// `All is well.`, or what is not.
fn sentence(problems: &[String]) -> String {
    if problems.is_empty() {
        return "All is well.".to_owned();
    }
    let mut sentence = problems[..problems.len().min(PROBLEMS_MAX)].join(" ");
    if problems.len() > PROBLEMS_MAX {
        let _ = write!(sentence, " And {} more.", problems.len() - PROBLEMS_MAX);
    }
    sentence
}

fn group_line(status: &GroupStatus) -> String {
    let GroupStatus { group, members, waiting, processing, completed, failed, dead_kept, .. } =
        status;
    let counts = [
        (waiting, "waiting"),
        (processing, "in work"),
        (completed, "completed"),
        (failed, "failed"),
    ];
    let counts = counts.map(|(count, what)| format!("{} {what}", format_count(*count)));
    let members = plural(*members, "worker");
    let browsers = browsers(&status.browsers);
    let dead = plural(*dead_kept, "dead letter");
    let paused = if status.paused { "paused, " } else { "" };
    let down = match status.keys_down {
        0 => String::new(),
        1 => ", 1 host does not answer".to_owned(),
        hosts => format!(", {} do not answer", plural(hosts, "host")),
    };
    format!("group {group}: {paused}{members}{browsers}, {}, {dead}{down}", counts.join(", "))
}

/// What crawlers report about their browsers.
fn browsers(report: &BrowserFields) -> String {
    let Some(browsers) = report.browsers else { return String::new() };
    let left = report.pages_left.map(|pages| format!(", {} left", plural(pages, "page")));
    let memory = format_bytes(report.bytes.unwrap_or(0));
    let restarts = plural(report.restarts.unwrap_or(0), "restart");
    let browsers = plural(browsers, "browser");
    format!(", {browsers} ({memory}{}, {restarts})", left.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_fit_on_a_screen() {
        let topic = "log kept=1042 rate=0.5 log-bytes=2100000 state=ok";
        let topic = TopicStatus::parse(topic);
        let group = "crawlers members=2 browsers=2 browser-pages-left=87 browser-bytes=412000000 \
             browser-restarts=1 waiting=1499 processing=7 completed=12 failed=0 keys-down=20";
        let group = GroupStatus::parse(group);
        let groups = (0..30).map(|_| GroupOverview::Sound(group.clone().into())).collect();
        let overview = Overview {
            version: "0.1.0".to_owned(),
            connections: 3,
            problems: Vec::new(),
            topics: vec![topic.clone(), topic],
            groups,
        };
        let lines = lines(&overview, "127.0.0.1:1");
        assert_eq!(
            lines[..4],
            [
                "All is well.",
                "broker 127.0.0.1:1, version 0.1.0, 3 connections",
                "2 topics with 2,084 events, 4.2 MB on disk, 1.0 new events a second",
                "group crawlers: 2 workers, 2 browsers (412 MB, 87 pages left, 1 restart), \
                 1,499 waiting, 7 in work, 12 completed, 0 failed, 0 dead letters, 20 hosts do not answer",
            ]
        );
        assert_eq!((lines.len(), lines.last().unwrap().as_str()), (12, "and 22 more groups"));
    }

    #[test]
    fn the_first_problems_stand_on_one_line() {
        let problems: Vec<_> = (1..=12).map(|number| format!("P{number}.")).collect();
        assert_eq!(sentence(&problems[..2]), "P1. P2.");
        assert_eq!(sentence(&problems), "P1. P2. P3. P4. P5. P6. P7. P8. P9. P10. And 2 more.");
    }
}
