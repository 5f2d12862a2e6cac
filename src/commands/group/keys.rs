//! `tidings group keys`: the keys (usually hosts) that hold up a group.

use std::time::Duration;

use clap::Args;
use tidings_protocol::status::KeyStatus;
use tidings_protocol::{DEFAULT_GROUP, GroupAction, GroupName, JobName};

use super::tasks::duration;
use super::{NAME, command};
use crate::client::lists::{Columns, ListFlags, print_listed};
use crate::client::manage::{OutputFlags, json_line};
use crate::flags::one_word;
use crate::terminal::failure::Failure;
use crate::terminal::output::{format_count, format_duration, printable};

const EXAMPLES: &str = "\
Examples:
  tidings group keys --limit 10        the hosts that take longest
  tidings group keys --job docs        the hosts that this job waits for
  tidings group keys --all --json      all hosts, in no particular order

BECAUSE is what the next page of a host waits for: its request in flight, a rest and its end, a job, a
worker. LEFT is the least time until the last page of a host is requested, with the delay between two
requests; it is - while a rule without an end pauses or blocks the host. At most 100,000 hosts are
compared. A host whose pages all wait for a later time or another attempt is not listed; `tidings
explain HOST` and `tidings group tasks` name these pages.";

/// The headings of the table.
pub(crate) const HEADINGS: &str = "KEY WAITING> PROCESSING> LEFT> BECAUSE";

/// The longest key in a table, in characters.
const KEY_CHARS_MAX: usize = 200;

/// The flags of `tidings group keys`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct KeysArgs {
    /// The group
    #[arg(default_value = DEFAULT_GROUP)]
    group: GroupName,

    /// Only this key, usually a host, even if nothing waits for it
    #[arg(long, value_name = "KEY", value_parser = one_word)]
    key: Option<String>,

    /// Only keys with waiting entries of this job
    #[arg(long, value_name = "JOB")]
    job: Option<JobName>,

    #[command(flatten)]
    list: ListFlags,

    #[command(flatten)]
    output: OutputFlags,
}

/// Lists the keys.
pub(super) async fn run(args: &KeysArgs) -> Result<(), Failure> {
    let key = args.key.iter().map(|key| ("key", key.as_str()));
    let job = args.job.iter().map(|job| ("job", job.as_str()));
    let settings = key.chain(job).collect();
    let keys = command(GroupAction::Keys, &args.group, settings);
    let columns = Columns {
        object: |line: &str| json_line(&KeyStatus::parse(line)),
        headings: HEADINGS,
        row: |line: &str| row(&KeyStatus::parse(line)),
    };
    print_listed(NAME, &keys, &args.list, &args.output, columns).await
}

/// A key as a row.
pub(crate) fn row(status: &KeyStatus) -> Vec<String> {
    vec![
        printable(&status.key, KEY_CHARS_MAX),
        format_count(status.waiting),
        format_count(status.processing),
        status
            .left_ms
            .map_or_else(|| "-".to_owned(), |ms| format_duration(Duration::from_millis(ms))),
        match status.free_in {
            Some(ms) => format!("{} {}", status.because, duration(ms)),
            None => status.because.as_str().to_owned(),
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_a_row() {
        let line = "a.example waiting=1205 processing=1 left-ms=1204700 because=pace free-in=7000 \
                    new=7";
        let shown = ["a.example", "1,205", "1", "20m 04s", "pace 7 s"];
        let row = |line: &str| row(&KeyStatus::parse(line));
        assert_eq!(row(line), shown);
        let line = "b waiting=0 processing=0 left-ms=0 because=free";
        assert_eq!(row(line), ["b", "0", "0", "0 ms", "free"]);
        assert_eq!(row("c waiting=40 because=rule"), ["c", "40", "0", "-", "rule"]);
    }
}
