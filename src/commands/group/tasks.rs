//! `tidings group tasks`: lists the entries of a group.

use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::Value;
use tidings_client::CommandAnswer;
use tidings_protocol::{DEFAULT_GROUP, GroupName, JobName};

use super::{NAME, command};
use crate::client::manage::{BrokerClient, OutputFlags, note_unlisted, object, print_table};
use crate::terminal::failure::Failure;
use crate::terminal::output::{Console, printable, time_or};

const EXAMPLES: &str = "\
Examples:
  tidings group tasks --state processing        tasks of members, and how long their leases last
  tidings group tasks --key example.org         all entries of that host
  tidings group tasks --job docs --limit 1000 --json

The broker reads every entry of the group for this command.";

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
    #[arg(long, value_name = "KEY")]
    key: Option<String>,

    /// Only entries of this job
    #[arg(long, value_name = "JOB")]
    job: Option<JobName>,

    /// List at most this many
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(0..=1000))]
    limit: u64,
}

/// The states of an entry, as they are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EntryState {
    /// Waits for its time, its key, or its place in the queue of the key
    Pending,
    /// Waits only for a worker
    Queued,
    /// A worker holds it
    Processing,
    /// A dead letter
    Dead,
}

impl EntryState {
    fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Queued => "queued",
            Self::Processing => "processing",
            Self::Dead => "dead",
        }
    }
}

/// Lists the entries.
pub(super) async fn run(args: &TasksArgs) -> Result<(), Failure> {
    let headings =
        ["ENTRY>", "STATE", "KEY", "JOB", "DEPTH>", "PRIO>", "ATTEMPTS>", "LOSSES>", "WHEN", "URL"];
    list(&args.group, args.state, &args.filter, &args.output, &headings, row).await
}

/// Lists the entries of a group in these columns.
pub(crate) async fn list(
    group: &GroupName,
    state: Option<EntryState>,
    filter: &EntryFilter,
    output: &OutputFlags,
    headings: &[&str],
    row: impl Fn(&EntryLine<'_>) -> Vec<String>,
) -> Result<(), Failure> {
    let answer = request(group, state, filter, output).await?;
    let entries = answer.more.iter().map(|line| EntryLine::parse(line));
    let mut console = Console::new();
    if output.json {
        return entries.into_iter().try_for_each(|entry| console.line(&entry.json().to_string()));
    }
    print_table(&mut console, headings, entries.map(|entry| row(&entry)))?;
    note_unlisted(&mut console, &answer.ok);
    Ok(())
}

async fn request(
    group: &GroupName,
    state: Option<EntryState>,
    filter: &EntryFilter,
    output: &OutputFlags,
) -> Result<CommandAnswer, Failure> {
    let limit = filter.limit.to_string();
    let mut settings: Vec<(&str, &str)> = Vec::new();
    settings.extend(state.map(|state| ("state", state.as_str())));
    settings.extend(filter.key.as_deref().map(|key| ("key", key)));
    settings.extend(filter.job.as_ref().map(|job| ("job", job.as_ref())));
    settings.push(("limit", &limit));
    BrokerClient::connect(&output.broker, NAME)
        .await?
        .request(&command("tasks", group, settings))
        .await
}

/// A line of the answer to `GROUP tasks`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct EntryLine<'a> {
    number: &'a str,
    fields: Vec<(&'a str, &'a str)>,
    /// The URL, or the payload if the group has `key=none`.
    text: &'a str,
}

impl<'a> EntryLine<'a> {
    /// Reads `<entry> key=value .. <url or text>`. A text may look like a field; a repeated key
    /// belongs to the text.
    fn parse(line: &'a str) -> Self {
        let (number, mut text) = line.split_once(' ').unwrap_or((line, ""));
        let mut fields: Vec<(&str, &str)> = Vec::new();
        while let Some((key, value, rest)) = leading_field(text)
            && fields.iter().all(|(known, _)| *known != key)
        {
            fields.push((key, value));
            text = rest;
        }
        Self { number, fields, text }
    }

    /// A value, or `-`.
    pub(crate) fn value(&self, key: &str) -> String {
        self.field(key).unwrap_or("-").to_owned()
    }

    /// Its number.
    pub(crate) fn number(&self) -> String {
        self.number.to_owned()
    }

    /// The URL, or the payload if the group has `key=none`.
    pub(crate) fn text(&self) -> String {
        printable(self.text, TEXT_CHARS_MAX)
    }

    fn field(&self, key: &str) -> Option<&'a str> {
        self.fields.iter().find(|(found, _)| *found == key).map(|(_, value)| *value)
    }

    /// The time left of its lease, or until it is due.
    fn timing(&self) -> String {
        let number = |key| self.field(key).and_then(|value| value.parse().ok());
        match (number("lease-ms"), number("due-ms")) {
            (Some(left), _) => format!("lease {}", duration(left)),
            (None, Some(due)) if due > 0 => format!("in {}", duration(due)),
            _ => "-".to_owned(),
        }
    }

    fn json(&self) -> Value {
        let mut entry =
            object([("entry", self.number)].into_iter().chain(self.fields.iter().copied()));
        entry["entry"] = self.number.parse::<u64>().map_or_else(|_| self.number.into(), Into::into);
        entry["text"] = self.text.into();
        entry
    }
}

/// An entry as a row of `tasks`.
fn row(entry: &EntryLine<'_>) -> Vec<String> {
    let values = ["state", "key", "job", "depth", "prio", "attempts", "losses"];
    let values = values.map(|key| entry.value(key));
    [vec![entry.number()], values.to_vec(), vec![entry.timing(), entry.text()]].concat()
}

/// A field at the beginning of a text, and the rest. Keys are lower-case letters and dashes, so a
/// URL is not a field.
fn leading_field(text: &str) -> Option<(&str, &str, &str)> {
    let (word, rest) = text.split_once(' ')?;
    let (key, value) = word.split_once('=')?;
    let is_key =
        !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
    is_key.then_some((key, value, rest))
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
    use super::*;

    const LINE: &str = "42 state=processing key=a.example job=docs pass=2 depth=1 prio=0 attempts=1 \
                        losses=0 member=5b0c lease-ms=59400 http://a.example/?state=x y";

    #[test]
    fn an_entry_ends_with_its_text() {
        let entry = EntryLine::parse(LINE);
        assert_eq!((entry.number, entry.text), ("42", "http://a.example/?state=x y"));
        assert_eq!(entry.value("member"), "5b0c");
        assert_eq!(entry.value("due-ms"), "-");
        assert_eq!(entry.json()["entry"], 42);
        assert_eq!(entry.json()["depth"], 1);
        let text = EntryLine::parse("7 state=dead key=none state=of the art");
        assert_eq!((text.value("state"), text.text()), ("dead".into(), "state=of the art".into()));
        assert_eq!(
            EntryLine::parse("7 state=dead"),
            EntryLine { number: "7", fields: vec![], text: "state=dead" }
        );
    }

    #[test]
    fn an_entry_is_a_row() {
        let row = row(&EntryLine::parse(LINE));
        assert_eq!(row[..4], ["42", "processing", "a.example", "docs"]);
        assert_eq!(row[8..], ["lease 59 s", "http://a.example/?state=x y"]);
    }

    #[test]
    fn a_duration_has_one_unit() {
        let shown = [0, 999, 1_000, 119_999, 120_000, 7_199_999, 7_200_000, 172_800_000];
        let shown = shown.map(duration).join(" | ");
        assert_eq!(shown, "0 ms | 999 ms | 1 s | 119 s | 2 min | 119 min | 2 h | 2 d");
    }
}
