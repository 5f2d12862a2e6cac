//! Lists that a broker answers in parts: entries, keys, schedules, members and jobs. As tables, and
//! as one JSON object on each line.

use clap::Args;
use tidings_protocol::Command;
use tidings_protocol::status::{JobListEnd, ListEnd};

use super::manage::{BrokerClient, OutputFlags, Table};
use crate::process::signals::stop_on_signal;
use crate::terminal::failure::Failure;
use crate::terminal::output::{Console, format_count};

/// The most lines of one answer.
const PART_LINES_MAX: u64 = 1000;

/// The flags of commands that list something.
#[derive(Debug, Clone, Args)]
pub(crate) struct ListFlags {
    /// List at most this many
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(0..=PART_LINES_MAX))]
    limit: u64,

    /// List all, in the order in which the broker goes through them
    #[arg(long, conflicts_with = "limit")]
    all: bool,
}

/// How a list is printed: a line as a JSON object, or as a row below headings (see [`Table`]).
pub(crate) struct Columns<O, R> {
    pub(crate) object: O,
    pub(crate) headings: &'static str,
    pub(crate) row: R,
}

/// Prints what a command lists, over a connection of this name. Asks for further parts until there
/// are enough lines, or until the end.
pub(crate) async fn print_listed(
    name: &str,
    command: &Command<'_>,
    flags: &ListFlags,
    output: &OutputFlags,
    columns: Columns<impl Fn(&str) -> String, impl Fn(&str) -> Vec<String>>,
) -> Result<(), Failure> {
    let broker = BrokerClient::connect(&output.broker, name).await?;
    let stop = stop_on_signal()?;
    let mut console = Console::new();
    let mut table = Table::new(columns.headings);
    let (mut after, mut left) = if flags.all { (Some(0), u64::MAX) } else { (None, flags.limit) };
    loop {
        let (after_text, limit) = (after.map(|after| after.to_string()), left.min(PART_LINES_MAX));
        let limit = limit.to_string();
        let range = after_text.iter().map(|after| ("after", after.as_str()));
        let part = with_settings(command, range.chain([("limit", limit.as_str())]));
        let answer = tokio::select! {
            biased;
            () = stop.cancelled() => {
                return Err(Failure::Interrupted("stopped; the list is not complete".to_owned()));
            }
            answer = broker.request(&part) => answer?,
        };
        let lines = answer.more.iter();
        if output.json {
            lines.map(|line| (columns.object)(line)).try_for_each(|line| console.line(&line))?;
        } else {
            table.print(&mut console, lines.map(|line| (columns.row)(line)))?;
        }
        left = left.saturating_sub(answer.more.len() as u64);
        let ListEnd { matched, listed, next, .. } = ListEnd::parse(&answer.ok);
        if left > 0 && next.is_some() {
            after = next;
            continue;
        }
        let matched = matched.or(JobListEnd::parse(&answer.ok).jobs);
        if !output.json
            && let Some(note) = note_unlisted(listed, matched, next)
        {
            console.note(&note);
        }
        return Ok(());
    }
}

/// The note about a list that is not complete.
fn note_unlisted(listed: u64, matched: Option<u64>, next: Option<u64>) -> Option<String> {
    let rest = match matched {
        Some(matched) if listed < matched => {
            format!("{} of {} listed", format_count(listed), format_count(matched))
        }
        None if next.is_some() => "there may be more".to_owned(),
        _ => return None,
    };
    Some(format!("{rest}; --limit N lists up to 1,000, --all lists all"))
}

/// A command with further settings.
fn with_settings<'a>(
    command: &Command<'a>,
    settings: impl Iterator<Item = (&'a str, &'a str)>,
) -> Command<'a> {
    let mut command = command.clone();
    match &mut command {
        Command::Group(manage) => manage.settings.extend(settings),
        Command::Job(manage) => manage.settings.extend(settings),
        _ => unreachable!("only groups and jobs have lists"),
    }
    command
}
