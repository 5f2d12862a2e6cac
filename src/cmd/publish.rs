//! `tidings pub`: publishes arguments or the lines of standard input, and counts what the broker
//! confirmed.

#![expect(clippy::disallowed_methods, reason = "standard input is read on a thread of its own")]

use std::io::Read;

use clap::Args;
use tidings_protocol::{
    Item, LINE_BYTES_MAX, LineDecoder, PAYLOAD_BYTES_MAX, TopicName,
    client::{Client, ClientError, Deliveries, Published},
    text,
};
use tokio::sync::mpsc;

use crate::{
    address::BrokerAddress,
    failure::Failure,
    flags::BrokerFlag,
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

/// One read of standard input, and how many may wait for the broker.
const CHUNK_BYTES: usize = 64 * 1024;
const CHUNKS_MAX: usize = 4;

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
        unread.extend_from_slice(&chunk);
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

/// A line with its number, or why it cannot be an event.
type Line<'a> = (u64, Result<&'a [u8], String>);

/// The numbered lines of a stream. Used as a [`LineDecoder`] is.
#[derive(Debug)]
struct Lines {
    decoder: LineDecoder,
    number: u64,
    /// The present line begins with 0x04, which means something on the wire and nothing in a file.
    control: bool,
}

impl Lines {
    fn new() -> Self {
        Self { decoder: LineDecoder::new(LINE_BYTES_MAX), number: 0, control: false }
    }

    fn next<'a>(&mut self, unread: &'a [u8]) -> (usize, Option<Line<'a>>) {
        let mut done = 0;
        loop {
            let (used, item) = self.decoder.next(&unread[done..]);
            done += used;
            match item {
                None => return (done, None),
                Some(Item::EndOfTransmission) => self.control = true,
                Some(Item::Line(line)) => return (done, Some(self.numbered(Ok(line)))),
                Some(Item::TooLong { .. }) => return (done, Some(self.numbered(Err(too_long())))),
            }
        }
    }

    /// At the end of the stream: the last line, if it has no line end.
    fn finish<'a>(&mut self, unread: &'a [u8]) -> Option<Line<'a>> {
        match self.decoder.finish(unread) {
            Some(Item::Line(line)) => Some(self.numbered(Ok(line))),
            _ => self.control.then(|| self.numbered(Err(control_byte()))),
        }
    }

    fn numbered<'a>(&mut self, line: Result<&'a [u8], String>) -> Line<'a> {
        self.number += 1;
        let control = std::mem::take(&mut self.control);
        (self.number, if control { Err(control_byte()) } else { line })
    }
}

fn too_long() -> String {
    format!("longer than {LINE_BYTES_MAX} bytes")
}

fn control_byte() -> String {
    "control byte 0x04 at its beginning".to_owned()
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

/// Reads standard input on a thread, which may be blocked in it for ever: it ends with the process.
fn read_input() -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel(CHUNKS_MAX);
    std::thread::spawn(move || {
        let mut input = std::io::stdin().lock();
        let mut buffer = vec![0; CHUNK_BYTES];
        loop {
            match input.read(&mut buffer) {
                Ok(0) => return,
                Ok(n) if sender.blocking_send(buffer[..n].to_vec()).is_err() => return,
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return note(&format!("cannot read standard input: {error}")),
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(chunks: &[&[u8]]) -> Vec<String> {
        let (mut lines, mut unread, mut shown) = (Lines::new(), Vec::new(), Vec::new());
        let show = |(number, line): Line<'_>| match line {
            Ok(line) => format!("{number} {}", String::from_utf8_lossy(line)),
            Err(reason) => format!("{number}! {reason}"),
        };
        for chunk in chunks {
            unread.extend_from_slice(chunk);
            while let (used, Some(line)) = lines.next(&unread) {
                shown.push(show(line));
                unread.drain(..used);
            }
        }
        shown.extend(lines.finish(&unread).map(show));
        shown
    }

    #[test]
    fn lines_are_numbered_in_any_split() {
        let whole = b"one\r\n\ntwo\nthree";
        for split in 0..whole.len() {
            let (a, b) = whole.split_at(split);
            assert_eq!(lines(&[a, b]), ["1 one", "2 ", "3 two", "4 three"], "{split}");
        }
    }

    #[test]
    fn a_line_that_begins_with_ctrl_d_is_refused_as_a_whole() {
        let refused = format!("1! {}", control_byte());
        assert_eq!(lines(&[b"\x04\x04rest\nnext\n"]), [refused.as_str(), "2 next"]);
        assert_eq!(lines(&[b"\x04rest"]), [refused.as_str()]);
        assert_eq!(lines(&[b"\x04"]), [refused.as_str()]);
    }

    #[test]
    fn a_line_over_the_limit_is_refused_once_and_the_next_is_read() {
        let long = vec![b'x'; LINE_BYTES_MAX + 10];
        let shown = lines(&[b"a\n", &long, &long, b"\nb\n"]);
        assert_eq!(shown, ["1 a", &format!("2! {}", too_long()), "3 b"]);
    }
}
