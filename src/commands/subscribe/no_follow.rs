//! `--no-follow`: the stop at the newest event that the topic has when the subscription begins.

use tidings_client::Client;
use tidings_protocol::status::{CursorStatus, TopicStatus};
use tidings_protocol::{Command, CursorName, Seq, StartAt, TopicAction, TopicCommand, TopicName};

use crate::client::manage;
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
    let show = Command::Topic(TopicCommand::new(TopicAction::Show, topic.as_str(), Vec::new()));
    let shown = client.request(&show).await.map_err(|error| manage::failure(broker, error))?;
    let TopicStatus { next: Seq(next), kept, .. } = TopicStatus::parse(&shown.ok);
    let start = match (cursor, from) {
        (Some(cursor), _) => {
            let lines = shown.more.iter().filter_map(|line| line.strip_prefix("cursor "));
            let mut cursors = lines.map(CursorStatus::parse);
            cursors.find(|status| status.cursor == cursor.as_str()).map_or(next, |it| it.next.0)
        }
        (None, Some(StartAt::Seq(seq))) => seq.0,
        _ if kept == 0 => next,
        _ => 0,
    };
    Ok(Seq(if start >= next { 0 } else { next - 1 }))
}
