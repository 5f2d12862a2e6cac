//! `tidings explain`: why a URL or a host waits, and what became of a URL that does not wait.

mod stored;

use clap::Args;
use tidings_protocol::{Code, Command, client::ClientError};

use crate::{
    broker_flag::BrokerFlag,
    failure::Failure,
    flags::DataFlag,
    manage::{Broker, GroupFlag},
    output::Console,
};

const EXAMPLES: &str = "\
Examples:
  tidings explain https://example.org/docs/    what this page waits for, or which crawler fetches it
  tidings explain example.org                  whether its host is in use, or when it is next
  tidings explain example.org --group feeds    the same in another group

The broker forgets finished pages. For a URL that neither waits nor is fetched, the result of the last fetch is
read from pages.db in the --data directory, if it is there.

Exit codes: 0 the broker knows it; 1 it neither waits nor is fetched now; 2 wrong usage.";

/// The label that the broker shows.
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
    data: DataFlag,

    #[command(flatten)]
    broker: BrokerFlag,
}

/// Prints the broker's answer, or the stored result of the last fetch.
pub(crate) async fn run(args: ExplainArgs) -> Result<(), Failure> {
    let broker = Broker::connect(&args.broker, NAME).await?;
    let explain = Command::Explain { what: &args.what, group: Some(args.group.group) };
    let mut console = Console::new();
    match broker.client.request(&explain).await {
        Ok(answer) => {
            answer.more.iter().chain([&answer.ok]).try_for_each(|line| console.line(line))
        }
        Err(ClientError::Refused(error)) if error.code == Code::NotFound => {
            let became = stored::became(&args.data.data, &args.what)?;
            let Some(became) = became else {
                return Err(broker.failure(ClientError::Refused(error)));
            };
            console.line(&became)?;
            Err(Failure::Unsuccessful)
        }
        Err(error) => Err(broker.failure(error)),
    }
}

fn one_word(text: &str) -> Result<String, String> {
    match text.split_whitespace().collect::<Vec<_>>()[..] {
        [word] => Ok(word.to_owned()),
        _ => Err("expected one word: a URL or a host".to_owned()),
    }
}
