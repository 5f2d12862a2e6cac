//! `tidings explain`: why a URL or a host does not move, and when it will.

use clap::Args;
use tidings_protocol::Command;

use crate::{
    broker_flag::BrokerFlag,
    failure::Failure,
    manage::{Broker, GroupFlag},
    output::Console,
};

const EXAMPLES: &str = "\
Examples:
  tidings explain https://example.org/docs/    where that page is: waiting for what, with whom
  tidings explain example.org                  what its host is at: asked now, or resting until when
  tidings explain example.org --group feeds    the same of another group

Exit codes: 0 it is known; 1 nothing of it waits, rests or is with anybody; 2 wrong usage.";

/// The label that the broker shows.
const NAME: &str = "tidings-explain";

/// The flags of `tidings explain`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ExplainArgs {
    /// A URL, or a host (or whatever the key of the group is)
    #[arg(value_name = "URL|HOST", value_parser = one_word)]
    what: String,

    #[command(flatten)]
    group: GroupFlag,

    #[command(flatten)]
    broker: BrokerFlag,
}

/// Prints what the broker says.
pub(crate) async fn run(args: ExplainArgs) -> Result<(), Failure> {
    let broker = Broker::connect(&args.broker, NAME).await?;
    let answer =
        broker.ask(&Command::Explain { what: &args.what, group: Some(args.group.group) }).await?;
    let mut console = Console::new();
    answer.more.iter().chain([&answer.ok]).try_for_each(|line| console.line(line))
}

fn one_word(text: &str) -> Result<String, String> {
    match text.split_whitespace().collect::<Vec<_>>()[..] {
        [word] => Ok(word.to_owned()),
        _ => Err("a URL or a host is one word".to_owned()),
    }
}
