//! `--no-follow`: the stop at the newest event that the topic has when the subscription begins.

use tidings_client::Client;
use tidings_protocol::{Command, CursorName, Seq, StartAt, TopicName, field, field_number};

use crate::client::manage::{self, manage_command};
use crate::flags::address::BrokerAddress;
use crate::terminal::failure::Failure;

/// Rejects starts without a known end.
pub(super) fn check_flags(
    from: Option<StartAt>,
    cursor: Option<&CursorName>,
) -> Result<(), Failure> {
    let problem = match (from, cursor) {
        (None, None) => "--no-follow prints stored events; say where to start with --from or --as",
        (Some(StartAt::Time(_)), _) => {
            "--no-follow cannot start at a time; use --from first, a seq or -N, or --as NAME"
        }
        _ => return Ok(()),
    };
    Err(Failure::Usage(format!("{problem} (see tidings sub --help)")))
}

/// The last seq to print for a subscription with this start; 0: there is nothing to print.
pub(super) async fn end_seq(
    client: &Client,
    broker: &BrokerAddress,
    topic: &TopicName,
    (from, cursor): (Option<StartAt>, Option<&CursorName>),
) -> Result<Seq, Failure> {
    let show = Command::Topic(manage_command("show", Some(topic.as_str()), Vec::new()));
    let shown = client.request(&show).await.map_err(|error| manage::failure(broker, error))?;
    let number = |key| field_number(&shown.ok, key).unwrap_or(0);
    let (next, kept) = (number("next"), number("kept"));
    let start = match (cursor, from) {
        (Some(cursor), _) => {
            let is_it = |line: &&String| line.split(' ').nth(1) == Some(cursor.as_str());
            let line = shown.more.iter().find(is_it);
            line.and_then(|line| field(line, "next")?.parse().ok()).unwrap_or(next)
        }
        (None, Some(StartAt::Seq(seq))) => seq.0,
        _ if kept == 0 => next,
        _ => 0,
    };
    Ok(Seq(if start >= next { 0 } else { next - 1 }))
}
