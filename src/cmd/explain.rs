//! `tidings explain`: why a URL or a host waits, and until when.

use clap::Args;
use tidings_protocol::Command;

use crate::{
    broker_flag::BrokerFlag,
    failure::Failure,
    manage::{Broker, GroupFlag},
    output::{Console, readable_line},
};

const EXAMPLES: &str = "\
Examples:
  tidings explain https://example.org/docs/    what this page waits for, or which crawler fetches it
  tidings explain example.org                  whether its host is in use, or when it is next
  tidings explain example.org --group feeds    the same in another group

The broker forgets finished pages; pages.db has their results.

Exit codes: 0 the broker knows it; 1 it neither waits nor is being fetched; 2 wrong usage.";

/// The name of the connection, as the broker shows it.
const NAME: &str = "tidings-explain";

/// The flags of `tidings explain`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ExplainArgs {
    /// A URL, or a host (in general, a key of the group)
    #[arg(value_name = "URL|HOST", value_parser = one_word)]
    what: String,

    #[command(flatten)]
    group: GroupFlag,

    #[command(flatten)]
    broker: BrokerFlag,
}

/// Prints the broker's answer.
pub(crate) async fn run(args: ExplainArgs) -> Result<(), Failure> {
    let broker = Broker::connect(&args.broker, NAME).await?;
    let answer =
        broker.ask(&Command::Explain { what: &args.what, group: Some(args.group.group) }).await?;
    let mut console = Console::new();
    let lines = answer.more.iter().chain([&answer.ok]);
    lines.map(|line| readable_line(line)).try_for_each(|line| console.line(&line))
}

fn one_word(text: &str) -> Result<String, String> {
    match text.split_whitespace().collect::<Vec<_>>()[..] {
        [word] => Ok(word.to_owned()),
        _ => Err("expected one word: a URL or a host".to_owned()),
    }
}
