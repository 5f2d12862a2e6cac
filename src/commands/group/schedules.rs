//! `tidings group schedules`: URLs that are fetched again and again.

use clap::Args;
use tidings_protocol::status::ScheduleStatus;
use tidings_protocol::{DEFAULT_GROUP, GroupAction, GroupName, Patterns};

use super::tasks::duration;
use super::{NAME, command};
use crate::client::lists::{Columns, ListFlags, print_listed};
use crate::client::manage::{OutputFlags, named_object};
use crate::flags::one_word;
use crate::terminal::failure::Failure;
use crate::terminal::output::printable;

const EXAMPLES: &str = "\
Examples:
  tidings pub new-url 'https://example.org/feed every=30m'   fetch it every half hour
  tidings pub new-url 'https://example.org/ every=06:00'     every day at six, in UTC
  tidings group schedules                                    what is due next
  tidings group schedules --key example.org --json
  tidings group schedules --match '/news/*' --all            of these URLs, in no particular order
  tidings pub new-url 'https://example.org/feed every=0'     end the schedule

Without --all, the schedules are listed by due time. STATE is `in progress` while the URL is
fetched, and `skips next` if it was fetched since the last due time, so that the next one is left
out.";

/// The longest URL in a table, in characters.
const URL_CHARS_MAX: usize = 200;

/// The flags of `tidings group schedules`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SchedulesArgs {
    /// The group
    #[arg(default_value = DEFAULT_GROUP)]
    group: GroupName,

    /// Only schedules of this key, usually a host
    #[arg(long, value_name = "KEY", value_parser = one_word)]
    key: Option<String>,

    /// Only URLs that one of these patterns matches, such as /news/*
    #[arg(long = "match", value_name = "PATTERN,..")]
    matching: Option<Patterns>,

    #[command(flatten)]
    list: ListFlags,

    #[command(flatten)]
    output: OutputFlags,
}

/// Lists the schedules.
pub(crate) async fn run(args: &SchedulesArgs) -> Result<(), Failure> {
    let matching = args.matching.as_ref().map(Patterns::to_string);
    let key = args.key.as_deref().map(|key| ("key", key));
    let settings = key.into_iter().chain(matching.as_deref().map(|matching| ("match", matching)));
    let schedules = command(GroupAction::Schedules, &args.group, settings.collect());
    let columns = Columns {
        object: |line: &str| named_object(line, "url").to_string(),
        headings: "NEXT EVERY KEY PRIO> STATE URL",
        row,
    };
    print_listed(NAME, &schedules, &args.list, &args.output, columns).await
}

fn row(line: &str) -> Vec<String> {
    let ScheduleStatus { url, every, due_ms, key, prio, entry, skips, .. } =
        ScheduleStatus::parse(line);
    let state = match (entry, skips) {
        (Some(_), _) => "in progress",
        (None, Some(true)) => "skips next",
        (None, _) => "-",
    };
    let url = printable(&url, URL_CHARS_MAX);
    vec![format!("in {}", duration(due_ms)), every, key, prio.to_string(), state.to_owned(), url]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_is_a_row() {
        let line = "http://a.example/?every=1 every=06:00 due-ms=90000 key=a.example prio=-3";
        let shown = ["in 90 s", "06:00", "a.example", "-3", "-", "http://a.example/?every=1"];
        assert_eq!(row(line), shown);
        assert_eq!(row(&format!("{line} skips=yes"))[4], "skips next");
        assert_eq!(row(&format!("{line} entry=7 skips=yes"))[4], "in progress");
    }
}
