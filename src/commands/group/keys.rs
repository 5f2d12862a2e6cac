//! `tidings group keys`: the keys (usually hosts) that hold up a group.

use std::time::Duration;

use clap::Args;
use tidings_protocol::status::KeyStatus;
use tidings_protocol::{DEFAULT_GROUP, GroupAction, GroupName, JobName};

use super::{command, print_listed};
use crate::client::manage::{OutputFlags, json_line};
use crate::terminal::failure::Failure;
use crate::terminal::output::{format_count, format_duration, printable};

const EXAMPLES: &str = "\
Examples:
  tidings group keys --limit 10        the hosts that take longest
  tidings group keys --job docs        the hosts that this job waits for

LEFT is the least time until the last page of a host is requested, with the delay between two
requests. The broker reads all its hosts for this command.";

/// The longest key in a table, in characters.
const KEY_CHARS_MAX: usize = 200;

/// The flags of `tidings group keys`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct KeysArgs {
    /// The group
    #[arg(default_value = DEFAULT_GROUP)]
    group: GroupName,

    /// Only keys with waiting entries of this job
    #[arg(long, value_name = "JOB")]
    job: Option<JobName>,

    /// List at most this many
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(0..=1000))]
    limit: u64,

    #[command(flatten)]
    output: OutputFlags,
}

/// Lists the keys.
pub(super) async fn run(args: &KeysArgs) -> Result<(), Failure> {
    let limit = args.limit.to_string();
    let mut settings = vec![("limit", limit.as_str())];
    settings.extend(args.job.as_ref().map(|job| ("job", job.as_str())));
    let keys = command(GroupAction::Keys, &args.group, settings);
    let object = |line: &str| json_line(&KeyStatus::parse(line));
    let headings = "KEY WAITING> PROCESSING> LEFT>";
    print_listed(&args.output, &keys, headings, object, |line| row(&KeyStatus::parse(line))).await
}

fn row(status: &KeyStatus) -> Vec<String> {
    vec![
        printable(&status.key, KEY_CHARS_MAX),
        format_count(status.waiting),
        format_count(status.processing),
        format_duration(Duration::from_millis(status.left_ms)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_a_row() {
        let line = "a.example waiting=1205 processing=1 left-ms=1204700 new=7";
        assert_eq!(row(&KeyStatus::parse(line)), ["a.example", "1,205", "1", "20m 04s"]);
        assert_eq!(row(&KeyStatus::parse("b")), ["b", "0", "0", "0 ms"]);
    }
}
