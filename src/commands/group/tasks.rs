//! `tidings group tasks`: lists the entries of a group.

use std::time::Duration;

use clap::{Args, ValueEnum};
use tidings_protocol::status::{TaskFields, TaskStatus};
use tidings_protocol::{DEFAULT_GROUP, GroupAction, GroupName, JobName, Patterns};

use super::{NAME, command};
use crate::client::lists::{Columns, ListFlags, print_listed};
use crate::client::manage::{OutputFlags, json_line};
use crate::flags::one_word;
use crate::terminal::failure::Failure;
use crate::terminal::output::{printable, time_or};

const EXAMPLES: &str = "\
Examples:
  tidings group tasks --state processing        tasks of members, and how long their leases last
  tidings group tasks --state completed         the newest finished ones, newest first
  tidings group tasks --state failed            the newest that failed or were given up
  tidings group tasks --key example.org         all entries of that host
  tidings group tasks --match '/docs/*,*.pdf'   entries with such paths
  tidings group tasks --all --json > queue.jsonl

Without --state, unfinished entries and dead letters are listed. With --all, an entry that exists
all the time is listed exactly once, even if others come and go meanwhile. Of finished entries the
broker keeps the newest 1,000 in memory.";

/// The longest URL or text in a table, in characters.
const TEXT_CHARS_MAX: usize = 200;

/// The flags of `tidings group tasks`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TasksArgs {
    /// The group
    #[arg(default_value = DEFAULT_GROUP)]
    group: GroupName,

    /// Only entries in this state
    #[arg(long, value_enum)]
    state: Option<EntryState>,

    #[command(flatten)]
    filter: EntryFilter,

    #[command(flatten)]
    output: OutputFlags,
}

/// Flags that select entries.
#[derive(Debug, Clone, Args)]
pub(crate) struct EntryFilter {
    /// Only entries of this key, usually a host
    #[arg(long, value_name = "KEY", value_parser = one_word)]
    key: Option<String>,

    /// Only entries of this job
    #[arg(long, value_name = "JOB")]
    job: Option<JobName>,

    /// Only entries with a URL that one of these patterns matches, such as /docs/*
    #[arg(long = "match", value_name = "PATTERN,..")]
    matching: Option<Patterns>,

    #[command(flatten)]
    list: ListFlags,
}

/// The states of an entry, as they are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EntryState {
    /// Waits for its time, its key, or its place in the queue of the key
    Pending,
    /// An attempt failed or was lost; waits for the time of the next one
    Retry,
    /// Waits only for a worker
    Queued,
    /// A worker holds it
    Processing,
    /// A dead letter: given up, and kept
    Dead,
    /// Finished lately
    Completed,
    /// Failed and not retried, or given up, lately
    Failed,
}

/// Lists the entries.
pub(super) async fn run(args: &TasksArgs) -> Result<(), Failure> {
    let headings = "ENTRY> STATE KEY JOB DEPTH> PRIO> ATTEMPTS> LOSSES> MEMBER WHEN URL";
    list(&args.group, args.state, &args.filter, &args.output, headings, row).await
}

/// Lists the entries of a group in these columns.
pub(crate) async fn list(
    group: &GroupName,
    state: Option<EntryState>,
    filter: &EntryFilter,
    output: &OutputFlags,
    headings: &'static str,
    row: impl Fn(&TaskStatus) -> Vec<String>,
) -> Result<(), Failure> {
    let matching = filter.matching.as_ref().map(Patterns::to_string);
    let state = state.and_then(|state| state.to_possible_value());
    let mut settings: Vec<(&str, &str)> = Vec::new();
    settings.extend(state.iter().map(|state| ("state", state.get_name())));
    settings.extend(filter.key.as_deref().map(|key| ("key", key)));
    settings.extend(filter.job.as_ref().map(|job| ("job", job.as_ref())));
    settings.extend(matching.as_deref().map(|matching| ("match", matching)));
    let tasks = command(GroupAction::Tasks, group, settings);
    let columns = Columns {
        object: |line: &str| json_line(&TaskStatus::parse(line)),
        headings,
        row: |line: &str| row(&TaskStatus::parse(line)),
    };
    print_listed(NAME, &tasks, &filter.list, output, columns).await
}

/// An entry as a row of `tasks`.
fn row(task: &TaskStatus) -> Vec<String> {
    let TaskFields { state, key, job, depth, prio, attempts, losses, member, .. } = &task.fields;
    let numbers = [depth.to_string(), prio.to_string(), attempts.to_string(), losses.to_string()];
    [
        vec![task.entry.to_string(), state.to_string(), key.clone(), or_dash(job.as_ref())],
        numbers.to_vec(),
        vec![or_dash(member.as_ref()), timing(&task.fields), text(task)],
    ]
    .concat()
}

/// A word, or `-`.
pub(crate) fn or_dash(word: Option<&String>) -> String {
    word.map_or("-", String::as_str).to_owned()
}

/// The URL, or the payload if the group has `key=none`.
pub(crate) fn text(task: &TaskStatus) -> String {
    printable(&task.url, TEXT_CHARS_MAX)
}

/// The time left of its lease, until it is due, or since its end.
fn timing(task: &TaskFields) -> String {
    match (task.lease_ms, task.due_ms, task.ended_ms) {
        (Some(left), ..) => format!("lease {}", duration(left)),
        (_, Some(due), _) if due > 0 => format!("in {}", duration(due)),
        (.., Some(ended)) => format!("{} ago", duration(ended)),
        _ => "-".to_owned(),
    }
}

/// A time from now: as `9m 59s` on a terminal, else in one unit.
pub(crate) fn duration(ms: u64) -> String {
    let rounded = match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..120_000 => format!("{} s", ms / 1_000),
        120_000..7_200_000 => format!("{} min", ms / 60_000),
        7_200_000..172_800_000 => format!("{} h", ms / 3_600_000),
        _ => format!("{} d", ms / 86_400_000),
    };
    time_or(Duration::from_millis(ms), rounded)
}

#[cfg(test)]
mod tests {
    use tidings_protocol::status::TaskState;

    use super::*;

    const LINE: &str = "42 state=processing key=a.example job=docs pass=2 depth=1 prio=0 attempts=1 \
                        losses=0 member=5b0c lease-ms=59400 http://a.example/?state=x y";

    #[test]
    fn an_entry_ends_with_its_text() {
        let line = json_line(&TaskStatus::parse(LINE));
        assert!(line.contains(r#""entry":42,"#) && line.contains(r#""depth":1,"#), "{line}");
        assert!(line.contains(r#""member":"5b0c","#), "{line}");
        assert!(line.contains(r#""url":"http://a.example/?state=x y""#), "{line}");
        assert!(!line.contains("due-ms"), "{line}");
        let task = TaskStatus::parse("7 state=dead key=none state=of the art");
        assert_eq!((task.fields.state, &*text(&task)), (TaskState::Dead, "state=of the art"));
        assert_eq!(text(&TaskStatus::parse("7 state=dead")), "state=dead");
    }

    #[test]
    fn an_entry_is_a_row() {
        let row = row(&TaskStatus::parse(LINE));
        assert_eq!(row[..4], ["42", "processing", "a.example", "docs"]);
        assert_eq!(row[8..], ["5b0c", "lease 59 s", "http://a.example/?state=x y"]);
    }

    #[test]
    fn a_finished_entry_shows_when_it_ended() {
        let line = "42 state=completed key=none depth=0 prio=0 attempts=0 losses=0 held-ms=7 \
                    ended-ms=2500 outcome=done text";
        let row = row(&TaskStatus::parse(line));
        assert_eq!(
            (&*row[1], &row[8..]),
            ("completed", &["-", "2 s ago", "text"].map(String::from)[..])
        );
    }

    #[test]
    fn a_duration_has_one_unit() {
        let shown = [0, 999, 1_000, 119_999, 120_000, 7_199_999, 7_200_000, 172_800_000];
        let shown = shown.map(duration).join(" | ");
        assert_eq!(shown, "0 ms | 999 ms | 1 s | 119 s | 2 min | 119 min | 2 h | 2 d");
    }
}
