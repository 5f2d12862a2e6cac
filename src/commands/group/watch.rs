//! `tidings group watch`: shows the counts of a group as they change.

use clap::Args;
use tidings_client::Delivery;
use tidings_protocol::status::GroupStatus;
use tidings_protocol::{DEFAULT_GROUP, GroupAction, GroupName, format_ms};

use super::{NAME, command};
use crate::client::connection;
use crate::client::manage::{self, OutputFlags, named_object};
use crate::commands::job::wait::EveryFlag;
use crate::flags::milliseconds;
use crate::process::signals::stop_on_signal;
use crate::terminal::failure::Failure;
use crate::terminal::output::{Console, format_count, plural};

const EXAMPLES: &str = "\
Examples:
  tidings group watch                             the default group, on a line that is redrawn
  tidings group watch thumbs --json --every 10s   one object a line, at most every ten seconds

On a terminal the line is redrawn; a file or a pipe receives one line for each change. While nothing
changes there is no output.

Exit codes: 0 stopped by Ctrl-C; 1 the group does not exist, or the broker is gone; 2 wrong usage.";

/// The flags of `tidings group watch`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct WatchArgs {
    /// The group
    #[arg(default_value = DEFAULT_GROUP)]
    group: GroupName,

    #[command(flatten)]
    every: EveryFlag,

    #[command(flatten)]
    output: OutputFlags,
}

/// Runs until a signal, or until the group or the broker is gone.
pub(crate) async fn run(args: WatchArgs) -> Result<(), Failure> {
    let stop = stop_on_signal()?;
    let broker = &args.output.broker.broker;
    let (client, mut deliveries) = connection::connect(broker, NAME).await?;
    let every = format_ms(milliseconds(args.every.every));
    let watch = command(GroupAction::Watch, &args.group, vec![("every", &every)]);
    let failure = |error| manage::failure(broker, error);
    let mut end = client.watch(&watch).await.map_err(failure)?;
    let (mut console, mut drawn) = (Console::new(), None);
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => {
                // Replaces the drawn line by a line that stays.
                return drawn.map_or(Ok(()), |line: String| console.line(&line));
            }
            Some(delivery) = deliveries.next() => {
                let Delivery::More(line) = delivery else { continue };
                if args.output.json {
                    console.line(&named_object(&line, "group").to_string())?;
                } else if console.shows_progress() {
                    console.progress(&in_words(&line));
                    drawn = Some(in_words(&line));
                } else {
                    console.line(&in_words(&line))?;
                }
            }
            end = &mut end => return end.map(drop).map_err(failure),
        }
    }
}

/// The counts of a group in words.
fn in_words(line: &str) -> String {
    let group = GroupStatus::parse(line);
    format!(
        "{}{}, {} waiting, {} processing, {} completed, {} failed, {} dead, {}/s",
        if group.paused { "paused, " } else { "" },
        plural(group.members, "member"),
        format_count(group.waiting),
        format_count(group.processing),
        format_count(group.completed),
        format_count(group.failed),
        format_count(group.dead_kept),
        group.rate.unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counts_of_a_group_are_one_line() {
        let line = "crawlers paused=no members=2 waiting=1043 processing=7 completed=12 failed=0 \
                    dead=1 dead-kept=1 rate=3.5";
        let words = "2 members, 1,043 waiting, 7 processing, 12 completed, 0 failed, 1 dead, 3.5/s";
        assert_eq!(in_words(line), words);
        assert!(in_words("crawlers members=1").starts_with("1 member, 0 waiting"));
        assert_eq!(in_words(&line.replace("=no", "=yes")), format!("paused, {words}"));
    }
}
