//! `tidings pub`: publishes arguments or the lines of standard input, and counts what the broker
//! confirmed.

use std::io;

use clap::Args;
use tidings_protocol::{
    PAYLOAD_BYTES_MAX, TopicName,
    client::{Client, ClientError, Deliveries, Published},
    text,
};
use tokio::sync::mpsc;

use crate::{
    address::BrokerAddress,
    failure::Failure,
    flags::BrokerFlag,
    lines::{Line, Lines, read_input},
    link,
    output::{count, note},
    signals::stop_on_signal,
};

const EXAMPLES: &str = "\
Examples:
  tidings pub new-url https://example.org/                 one event
  tidings pub new-url 'https://example.org/ prio=5'        with an attribute
  find /srv/out -name '*.pdf' | tidings pub file-ready     one event a line

Exit codes: 0 everything is confirmed; 1 something is not, and standard error says what.";

/// Lines that are sent and not confirmed.
const UNCONFIRMED_MAX: usize = 4096;

/// Refused lines that are named one by one.
const NAMED_MAX: u64 = 20;

/// The flags of `tidings pub`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PubArgs {
    /// The topic; it comes into being if it is new
    topic: TopicName,

    /// An event each; none: the lines of standard input
    #[arg(value_name = "PAYLOAD")]
    payloads: Vec<String>,

    #[command(flatten)]
    broker: BrokerFlag,

    /// Say nothing when all went well
    #[arg(long, short)]
    quiet: bool,
}

/// What became of the lines so far.
#[derive(Debug, Default)]
struct Tally {
    confirmed: u64,
    refused: u64,
    /// Number of the first line that was sent and is not answered, once the broker is gone.
    unanswered: Option<u64>,
    /// Why standard input ended early.
    unreadable: Option<io::Error>,
}

impl Tally {
    fn refuse(&mut self, line: u64, reason: &str) {
        self.refused += 1;
        if self.refused <= NAMED_MAX {
            note(&format!("line {line} is refused: {reason}"));
        }
    }
}

/// A line on its way to the tally, with its number counted from 1.
#[derive(Debug)]
enum Sent {
    Unconfirmed(u64, Published),
    Refused(u64, String),
    /// The broker is gone; nothing comes after this.
    Failed(u64, ClientError),
    /// Standard input is broken; nothing comes after this.
    Unreadable(io::Error),
}

/// Nobody tallies any more.
type Ended = mpsc::error::SendError<Sent>;

/// Publishes all there is.
pub(crate) async fn run(args: PubArgs) -> Result<(), Failure> {
    let broker = &args.broker.broker;
    let stop = stop_on_signal()?;
    let (client, mut deliveries) = link::connect(broker, "tidings-pub").await?;
    let mut tally = Tally::default();
    let (sender, sent) = mpsc::channel(UNCONFIRMED_MAX);
    let sending = async {
        // The tally ends when the sender is dropped at the end of this block.
        let sender = sender;
        let _: Result<(), Ended> = if args.payloads.is_empty() {
            send_input(&client, &args.topic, &sender).await
        } else {
            send_arguments(&client, &args.topic, &args.payloads, &sender).await
        };
        drop(sender);
        std::future::pending::<()>().await;
    };
    let result = tokio::select! {
        // In this order: what the tally says of a lost connection is more exact.
        biased;
        result = settle(sent, &mut tally) => result,
        () = connection_ends(&mut deliveries) => Err(deliveries.reason()),
        () = sending => unreachable!("it waits for the tally"),
        () = stop.cancelled() => {
            let confirmed = count(tally.confirmed);
            return Err(Failure::Interrupted(format!("interrupted; {confirmed} confirmed")));
        }
    };
    finish(result, &tally, broker, args.quiet)
}

/// A publisher is told nothing but answers, so it may only notice here that the broker is gone.
async fn connection_ends(deliveries: &mut Deliveries) {
    while deliveries.next().await.is_some() {}
}

/// Says what became of the lines, and ends accordingly.
fn finish(
    result: Result<(), ClientError>,
    tally: &Tally,
    broker: &BrokerAddress,
    quiet: bool,
) -> Result<(), Failure> {
    let confirmed = count(tally.confirmed);
    if let Err(error) = result {
        let rest = tally.unanswered.map_or(String::new(), |line| {
            format!("; line {line} is the first that may not have arrived")
        });
        return Err(Failure::failed(format!("{broker}: {error}; {confirmed} confirmed{rest}")));
    }
    if let Some(error) = &tally.unreadable {
        return Err(Failure::failed(format!(
            "cannot read standard input: {error}; {confirmed} confirmed"
        )));
    }
    if tally.refused > NAMED_MAX {
        note(&format!("and {} more lines", count(tally.refused - NAMED_MAX)));
    }
    if tally.refused > 0 {
        let refused = count(tally.refused);
        return Err(Failure::failed(format!("{confirmed} confirmed, {refused} refused")));
    }
    if !quiet {
        note(&format!("{confirmed} confirmed"));
    }
    Ok(())
}

/// Waits for the confirmations, in the order of the lines.
async fn settle(mut sent: mpsc::Receiver<Sent>, tally: &mut Tally) -> Result<(), ClientError> {
    while let Some(line) = sent.recv().await {
        match line {
            Sent::Refused(line, reason) => tally.refuse(line, &reason),
            Sent::Unreadable(error) => tally.unreadable = Some(error),
            Sent::Failed(line, error) => {
                tally.unanswered = Some(line);
                return Err(error);
            }
            Sent::Unconfirmed(line, published) => match published.await {
                Ok(_seq) => tally.confirmed += 1,
                Err(ClientError::Refused(error)) => tally.refuse(line, &error.to_string()),
                Err(error) => {
                    tally.unanswered = Some(line);
                    return Err(error);
                }
            },
        }
    }
    Ok(())
}

async fn send_arguments(
    client: &Client,
    topic: &TopicName,
    payloads: &[String],
    sender: &mpsc::Sender<Sent>,
) -> Result<(), Ended> {
    for (payload, line) in payloads.iter().zip(1..) {
        send(client, topic, line, payload.as_bytes(), sender).await?;
    }
    Ok(())
}

async fn send_input(
    client: &Client,
    topic: &TopicName,
    sender: &mpsc::Sender<Sent>,
) -> Result<(), Ended> {
    let mut chunks = read_input();
    let mut lines = Lines::new();
    let mut unread = Vec::new();
    while let Some(chunk) = chunks.recv().await {
        match chunk {
            Ok(chunk) => unread.extend_from_slice(&chunk),
            Err(error) => return sender.send(Sent::Unreadable(error)).await,
        }
        let mut done = 0;
        loop {
            let (used, line) = lines.next(&unread[done..]);
            done += used;
            let Some(line) = line else { break };
            send_line(client, topic, line, sender).await?;
        }
        unread.drain(..done);
    }
    match lines.finish(&unread) {
        Some(line) => send_line(client, topic, line, sender).await,
        None => Ok(()),
    }
}

async fn send_line(
    client: &Client,
    topic: &TopicName,
    (number, line): Line<'_>,
    sender: &mpsc::Sender<Sent>,
) -> Result<(), Ended> {
    match line {
        Ok(line) => send(client, topic, number, line, sender).await,
        Err(reason) => refuse(number, reason, sender).await,
    }
}

/// Publishes one line. What could not stand on one is refused here: it never reaches the broker.
async fn send(
    client: &Client,
    topic: &TopicName,
    line: u64,
    payload: &[u8],
    sender: &mpsc::Sender<Sent>,
) -> Result<(), Ended> {
    if payload.is_empty() {
        return Ok(());
    }
    if payload.len() > PAYLOAD_BYTES_MAX {
        return refuse(line, format!("longer than {PAYLOAD_BYTES_MAX} bytes"), sender).await;
    }
    match text::check(payload) {
        Ok(payload) => {
            let sent = match client.publish(topic, payload).await {
                Ok(published) => Sent::Unconfirmed(line, published),
                Err(error) => Sent::Failed(line, error),
            };
            sender.send(sent).await
        }
        Err(error) => refuse(line, error.to_string(), sender).await,
    }
}

async fn refuse(line: u64, reason: String, sender: &mpsc::Sender<Sent>) -> Result<(), Ended> {
    sender.send(Sent::Refused(line, reason)).await
}
