//! `tidings pub`: publishes arguments or the lines of standard input, counts confirmations, and
//! reconnects when the connection is lost.

#![expect(clippy::disallowed_methods, reason = "the time to connect again is limited")]

use std::io;
use std::time::Duration;

use clap::Args;
use tidings_client::{Backoff, ClientError, PublishEvent, Publisher};
use tidings_protocol::{
    After, EVERY_MS_MIN, PAYLOAD_BYTES_MAX, Payload, Prio, ProtocolError, TopicName, bad_argument,
    format_ms, text,
};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::client::{broker_message, connection};
use crate::flags::address::BrokerAddress;
use crate::flags::broker::BrokerFlag;
use crate::flags::{self, milliseconds};
use crate::process::signals::stop_on_signal;
use crate::terminal::failure::Failure;
use crate::terminal::lines::{NumberedLines, read_input};
use crate::terminal::output::{format_count, note, plural};

const EXAMPLES: &str = "\
Examples:
  tidings pub new-url https://example.org/                 one event
  tidings pub new-url 'https://example.org/ prio=5'        with an attribute
  find /srv/out -name '*.pdf' | tidings pub file-ready     one event for each line

When the connection is lost, the command reconnects and sends again what was not confirmed. Events
that begin with a URL or an absolute path are sent with an id= (unless they have one), so that the
topic stores them once. Other text cannot carry an id and may be stored twice. With --retry 0 each
event is sent once, without an id.

Exit codes: 0 everything is confirmed; 1 some events are not, and standard error names them.";

/// Rejected lines that are reported one by one.
const REPORTED_MAX: u64 = 20;

/// Longest pause between two attempts to reconnect.
const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// The name of the connection, as the broker shows it.
const NAME: &str = "tidings-pub";

/// The flags of `tidings pub`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PubArgs {
    /// Topic to publish on; created if it does not exist
    topic: TopicName,

    /// Events; without them, the lines of standard input
    #[arg(value_name = "PAYLOAD")]
    payloads: Vec<String>,

    #[command(flatten)]
    broker: BrokerFlag,

    /// Try to reconnect for this long after a lost connection; 0 gives up at once
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = flags::parse_duration)]
    retry: Duration,

    /// Print nothing on success
    #[arg(long, short)]
    quiet: bool,
}

/// Publishes everything and reports the result.
pub(crate) async fn run(args: PubArgs) -> Result<(), Failure> {
    let stop = stop_on_signal()?;
    let (connector, connected) = connection::open(&args.broker.broker, NAME).await?;
    let connector = connector.with_backoff(Backoff::up_to(BACKOFF_MAX));
    let publisher = Publisher::new(connector).on(connected);
    let source = if args.payloads.is_empty() {
        LineSource::Input { chunks: read_input(), lines: NumberedLines::new() }
    } else {
        LineSource::Arguments(args.payloads)
    };
    let mut publisher = LinePublisher {
        broker: args.broker.broker,
        source,
        topic: args.topic,
        publisher: if args.retry.is_zero() { publisher } else { publisher.with_ids() },
        tally: PublishTally::default(),
        retry: args.retry,
        lost_at: None,
        loss: None,
        quiet: args.quiet,
    };
    let result = tokio::select! {
        biased;
        result = publisher.publish() => result,
        () = stop.cancelled() => {
            let confirmed = format_count(publisher.tally.confirmed);
            return Err(Failure::Interrupted(format!("interrupted; {confirmed} confirmed")));
        }
    };
    publisher.finish(result)
}

/// The results so far.
#[derive(Debug, Default)]
struct PublishTally {
    confirmed: u64,
    rejected: u64,
    /// Why standard input ended early.
    read_error: Option<io::Error>,
}

impl PublishTally {
    fn reject(&mut self, line: u64, reason: &str) {
        self.rejected += 1;
        if self.rejected <= REPORTED_MAX {
            note(&format!("line {line} is rejected: {reason}"));
        }
    }
}

/// The source of the events.
#[derive(Debug)]
enum LineSource {
    /// The payloads of the command line.
    Arguments(Vec<String>),
    Input {
        chunks: mpsc::Receiver<io::Result<Vec<u8>>>,
        lines: NumberedLines,
    },
    /// All events were read.
    Ended,
}

/// A piece of standard input; `None`: the end.
type Chunk = Option<io::Result<Vec<u8>>>;

impl LineSource {
    /// Waits for the next piece, to be passed to `push_lines`. Cancel-safe.
    async fn next(&mut self) -> Chunk {
        match self {
            LineSource::Arguments(_) => None,
            LineSource::Input { chunks, .. } => chunks.recv().await,
            LineSource::Ended => std::future::pending().await,
        }
    }

    /// Pushes the lines of a piece.
    fn push_lines(
        &mut self,
        chunk: Chunk,
        topic: &TopicName,
        publisher: &mut Publisher,
    ) -> io::Result<()> {
        let mut push = |number: u64, line: Result<&[u8], String>| {
            push_line(publisher, topic, number, line);
        };
        match (self, chunk) {
            (LineSource::Input { lines, .. }, Some(Ok(chunk))) => {
                lines.push(&chunk);
                while let Some((number, line)) = lines.next_line() {
                    push(number, line);
                }
            }
            (source, Some(Err(error))) => {
                *source = LineSource::Ended;
                return Err(error);
            }
            (source, _) => {
                match source {
                    LineSource::Arguments(payloads) => {
                        for (payload, line) in payloads.iter().zip(1..) {
                            let is_empty = payload.is_empty();
                            let refusal = || "an event has at least one byte".to_owned();
                            push(
                                line,
                                if is_empty { Err(refusal()) } else { Ok(payload.as_bytes()) },
                            );
                        }
                    }
                    LineSource::Input { lines, .. } => {
                        if let Some((number, line)) = lines.finish() {
                            push(number, line);
                        }
                    }
                    LineSource::Ended => {}
                }
                *source = LineSource::Ended;
            }
        }
        Ok(())
    }

    fn has_ended(&self) -> bool {
        matches!(self, LineSource::Ended)
    }
}

/// The state of one run.
#[derive(Debug)]
struct LinePublisher {
    broker: BrokerAddress,
    source: LineSource,
    topic: TopicName,
    publisher: Publisher,
    tally: PublishTally,
    /// Try to reconnect for this long after a lost connection; 0 gives up at once
    retry: Duration,
    /// Since when no connection has answered anything.
    lost_at: Option<Instant>,
    loss: Option<Loss>,
    quiet: bool,
}

/// A lost connection.
#[derive(Debug)]
struct Loss {
    /// Why the connection was lost, or why the last attempt failed.
    error: ClientError,
    /// Until when to try, and the number of unconfirmed events; `None`: nothing was lost, so the
    /// next connection can wait for the next line.
    awaited: Option<(Instant, String)>,
}

impl LinePublisher {
    /// Publishes, on new connections if one is lost, until everything is answered. The error is a
    /// message for people.
    async fn publish(&mut self) -> Result<(), String> {
        loop {
            if self.publisher.is_empty() && self.source.has_ended() {
                return Ok(());
            }
            self.await_connection();
            let is_idle = self.loss.as_ref().is_some_and(|loss| loss.awaited.is_none());
            let awaited = self.loss.as_ref().and_then(|loss| loss.awaited.as_ref());
            let deadline = awaited.map(|(deadline, _)| *deadline);
            let reads = is_idle || (self.publisher.is_connected() && self.publisher.has_room());
            tokio::select! {
                biased;
                event = self.publisher.next(), if !is_idle => {
                    self.handle(event.map_err(|error| broker_message::client_error(&error))?)?;
                }
                () = wait_until(deadline) => return Err(self.no_connection()),
                chunk = self.source.next(), if reads => {
                    if let Err(error) = self.source.push_lines(chunk, &self.topic, &mut self.publisher) {
                        self.tally.read_error = Some(error);
                    }
                }
            }
        }
    }

    fn handle(&mut self, event: PublishEvent) -> Result<(), String> {
        match event {
            PublishEvent::Confirmed { .. } => {
                self.lost_at = None;
                self.tally.confirmed += 1;
            }
            PublishEvent::Refused { number, refusal }
            | PublishEvent::Deferred { number, refusal } => {
                self.lost_at = None;
                self.tally.reject(number, &broker_message::rejection(&refusal));
            }
            PublishEvent::Lost(error) => {
                if self.retry.is_zero() || !is_transient(&error) {
                    return Err(broker_message::client_error(&error));
                }
                match &mut self.loss {
                    Some(loss) => loss.error = error,
                    None => self.loss = Some(Loss { error, awaited: None }),
                }
            }
            PublishEvent::Connected { doubtful } => {
                let loss = self.loss.take();
                let Some((_, unconfirmed)) = loss.and_then(|loss| loss.awaited) else {
                    return Ok(());
                };
                let doubtful_count = format_count(doubtful as u64);
                let twice = match doubtful {
                    0 => String::new(),
                    _ => format!("; {doubtful_count} without an id may be stored twice"),
                };
                self.note(&format!("reconnected, sending {unconfirmed}{twice}"));
            }
        }
        Ok(())
    }

    /// After a loss, once there is something to send: says so, and sets the time limit.
    fn await_connection(&mut self) {
        let unconfirmed = self.publisher.len() as u64;
        let Some(loss) = self.loss.as_mut().filter(|loss| loss.awaited.is_none()) else { return };
        if unconfirmed == 0 {
            return;
        }
        let deadline = *self.lost_at.get_or_insert_with(Instant::now) + self.retry;
        let unconfirmed = plural(unconfirmed, "event");
        let problem = broker_message::client_error(&loss.error);
        let retry = format_ms(milliseconds(self.retry));
        let text = format!("{problem}; {unconfirmed} unconfirmed, reconnecting for up to {retry}");
        loss.awaited = Some((deadline, unconfirmed));
        self.note(&text);
    }

    fn no_connection(&self) -> String {
        let error = self.loss.as_ref().map(|loss| broker_message::client_error(&loss.error));
        let retry = format_ms(milliseconds(self.retry));
        format!("{}; no connection within {retry}", error.unwrap_or_default())
    }

    /// Reports the results and returns the matching exit code.
    fn finish(&self, result: Result<(), String>) -> Result<(), Failure> {
        let PublishTally { rejected, ref read_error, .. } = self.tally;
        let confirmed = format_count(self.tally.confirmed);
        if let Err(error) = result {
            let rest = self.publisher.first_unanswered().map_or(String::new(), |line| {
                format!("; line {line} is the first that may be lost")
            });
            let broker = &self.broker;
            return Err(Failure::failed(format!("{broker}: {error}; {confirmed} confirmed{rest}")));
        }
        if let Some(error) = read_error {
            return Err(Failure::failed(format!(
                "cannot read standard input: {error}; {confirmed} confirmed"
            )));
        }
        if rejected > REPORTED_MAX {
            note(&format!("and {} more lines", format_count(rejected - REPORTED_MAX)));
        }
        if rejected > 0 {
            let rejected = format_count(rejected);
            return Err(Failure::failed(format!("{confirmed} confirmed, {rejected} rejected")));
        }
        self.note(&format!("{confirmed} confirmed"));
        Ok(())
    }

    fn note(&self, text: &str) {
        if !self.quiet {
            note(text);
        }
    }
}

/// Pushes a line. An empty one is ignored; one that cannot be an event is rejected in its turn.
fn push_line(
    publisher: &mut Publisher,
    topic: &TopicName,
    number: u64,
    line: Result<&[u8], String>,
) {
    let line = line.map_err(bad_argument).and_then(|line| {
        if line.len() > PAYLOAD_BYTES_MAX {
            return Err(bad_argument(format!("longer than {PAYLOAD_BYTES_MAX} bytes")));
        }
        let line = text::check(line).map_err(|error| bad_argument(error.to_string()))?;
        check_times(&Payload::parse(line)).map(|()| line)
    });
    match line {
        Ok("") => {}
        Ok(line) => publisher.push(number, topic, line),
        Err(refusal) => publisher.push_refused(number, topic, refusal),
    }
}

/// Rejects an event with a time or priority that every group would reject.
fn check_times(payload: &Payload<'_>) -> Result<(), ProtocolError> {
    payload.attribute("prio").map_or(Ok(()), |prio| prio.parse::<Prio>().map(drop))?;
    for key in ["after", "every", "was"] {
        let Some(value) = payload.attribute(key) else { continue };
        let time = After::parse_option(key, value)?;
        if key != "after" && matches!(time, After::Ms(1..EVERY_MS_MIN)) {
            let text = format!("{key}={value}: expected 0, or at least {EVERY_MS_MIN}ms");
            return Err(bad_argument(text));
        }
    }
    Ok(())
}

async fn wait_until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Whether the same request may succeed later on another connection.
fn is_transient(error: &ClientError) -> bool {
    match error {
        ClientError::Connect { .. } | ClientError::Timeout { .. } | ClientError::Closed(_) => true,
        ClientError::Refused(error) | ClientError::Ended(error) => error.code.is_transient(),
        _ => false,
    }
}
