//! `tidings pub`: publishes arguments or the lines of standard input, counts confirmations, and
//! reconnects when the connection is lost.

#![expect(clippy::disallowed_methods, reason = "waits before it connects again")]

use std::io;
use std::time::Duration;

use clap::Args;
use tidings_client::{Backoff, Client, ClientError, Deliveries};
use tidings_protocol::{TopicName, format_ms};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout_at};

use crate::client::publish_window::PublishWindow;
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
    let connection = connection::connect(&args.broker.broker, NAME).await?;
    let source = if args.payloads.is_empty() {
        LineSource::Input { chunks: read_input(), lines: NumberedLines::new(), unread: Vec::new() }
    } else {
        LineSource::Arguments(args.payloads)
    };
    let mut publisher = LinePublisher {
        broker: args.broker.broker,
        source,
        window: PublishWindow::new(args.topic, !args.retry.is_zero()),
        tally: PublishTally::default(),
        retry: args.retry,
        lost_at: None,
        quiet: args.quiet,
    };
    let result = tokio::select! {
        biased;
        result = publisher.publish(connection) => result,
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
        unread: Vec<u8>,
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

    /// Puts the lines of a piece into the window.
    fn push_lines(&mut self, chunk: Chunk, window: &mut PublishWindow) -> io::Result<()> {
        match (self, chunk) {
            (LineSource::Input { lines, unread, .. }, Some(Ok(chunk))) => {
                unread.extend_from_slice(&chunk);
                let mut done = 0;
                loop {
                    let (used, line) = lines.next(&unread[done..]);
                    done += used;
                    let Some((number, line)) = line else { break };
                    window.push(number, line);
                }
                unread.drain(..done);
            }
            (source, Some(Err(error))) => {
                *source = LineSource::Ended;
                return Err(error);
            }
            (source, _) => {
                match source {
                    LineSource::Arguments(payloads) => {
                        for (payload, line) in payloads.iter().zip(1..) {
                            window.push(line, Ok(payload.as_bytes()));
                        }
                    }
                    LineSource::Input { lines, unread, .. } => {
                        if let Some((number, line)) = lines.finish(unread) {
                            window.push(number, line);
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

type Connection = (Client, Deliveries);

/// The state of one run.
#[derive(Debug)]
struct LinePublisher {
    broker: BrokerAddress,
    source: LineSource,
    window: PublishWindow,
    tally: PublishTally,
    /// Try to reconnect for this long after a lost connection; 0 gives up at once
    retry: Duration,
    /// Since when no connection has answered anything.
    lost_at: Option<Instant>,
    quiet: bool,
}

impl LinePublisher {
    /// Publishes on this connection, and on new ones if it is lost, until everything is answered.
    /// The error is a message for people.
    async fn publish(&mut self, mut connection: Connection) -> Result<(), String> {
        loop {
            let Err(error) = self.publish_on_connection(&mut connection).await else {
                return Ok(());
            };
            if self.retry.is_zero() || !is_transient(&error) {
                return Err(broker_message::client_error(&error));
            }
            let doubtful = self.window.rewind();
            while self.window.is_empty() && !self.source.has_ended() {
                // Nothing was lost: the next connection can wait for the next line.
                let chunk = self.source.next().await;
                self.push_lines(chunk);
            }
            if self.window.is_empty() {
                return Ok(());
            }
            connection = self.reconnect(error, doubtful).await?;
        }
    }

    /// Publishes until everything is answered, or the connection is lost.
    async fn publish_on_connection(
        &mut self,
        connection: &mut Connection,
    ) -> Result<(), ClientError> {
        let (client, deliveries) = connection;
        loop {
            self.window.send(client).await?;
            if self.window.is_empty() && self.source.has_ended() {
                return Ok(());
            }
            let has_room = self.window.has_room();
            tokio::select! {
                // In this order, so that answers from before the loss of the connection count.
                biased;
                answer = self.window.answer() => {
                    let (line, answer) = answer?;
                    self.lost_at = None;
                    match answer {
                        Ok(()) => self.tally.confirmed += 1,
                        Err(refusal) => self.tally.reject(line, &refusal.reason),
                    }
                }
                () = wait_for_close(deliveries) => return Err(deliveries.reason()),
                chunk = self.source.next(), if has_room => self.push_lines(chunk),
            }
        }
    }

    fn push_lines(&mut self, chunk: Chunk) {
        if let Err(error) = self.source.push_lines(chunk, &mut self.window) {
            self.tally.read_error = Some(error);
        }
    }

    /// Connects again, until the time of `--retry` is over.
    async fn reconnect(
        &mut self,
        mut error: ClientError,
        doubtful: usize,
    ) -> Result<Connection, String> {
        let deadline = *self.lost_at.get_or_insert_with(Instant::now) + self.retry;
        let retry = format_ms(milliseconds(self.retry));
        let unconfirmed = plural(self.window.len() as u64, "event");
        let problem = broker_message::client_error(&error);
        self.note(&format!("{problem}; {unconfirmed} unconfirmed, reconnecting for up to {retry}"));
        let mut backoff = Backoff::up_to(BACKOFF_MAX);
        loop {
            let now = Instant::now();
            if now >= deadline {
                let problem = broker_message::client_error(&error);
                return Err(format!("{problem}; no connection within {retry}"));
            }
            sleep(backoff.next_pause().min(deadline - now)).await;
            match timeout_at(deadline, connection::try_connect(&self.broker, NAME)).await {
                Ok(Ok(connection)) => {
                    let twice = if doubtful == 0 {
                        String::new()
                    } else {
                        format!(
                            "; {} without an id may be stored twice",
                            format_count(doubtful as u64)
                        )
                    };
                    self.note(&format!("reconnected, sending {unconfirmed}{twice}"));
                    return Ok(connection);
                }
                Ok(Err(reason)) if is_transient(&reason) => error = reason,
                Ok(Err(reason)) => return Err(broker_message::client_error(&reason)),
                Err(_elapsed) => {}
            }
        }
    }

    /// Reports the results and returns the matching exit code.
    fn finish(&self, result: Result<(), String>) -> Result<(), Failure> {
        let PublishTally { rejected: refused, read_error: ref unreadable, .. } = self.tally;
        let confirmed = format_count(self.tally.confirmed);
        if let Err(error) = result {
            let rest = self.window.first_line().map_or(String::new(), |line| {
                format!("; line {line} is the first that may be lost")
            });
            let broker = &self.broker;
            return Err(Failure::failed(format!("{broker}: {error}; {confirmed} confirmed{rest}")));
        }
        if let Some(error) = unreadable {
            return Err(Failure::failed(format!(
                "cannot read standard input: {error}; {confirmed} confirmed"
            )));
        }
        if refused > REPORTED_MAX {
            note(&format!("and {} more lines", format_count(refused - REPORTED_MAX)));
        }
        if refused > 0 {
            let refused = format_count(refused);
            return Err(Failure::failed(format!("{confirmed} confirmed, {refused} rejected")));
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

/// Waits for the end of the connection. A publisher receives only answers, so it notices the end
/// only here.
async fn wait_for_close(deliveries: &mut Deliveries) {
    while deliveries.next().await.is_some() {}
}

/// Whether the same request may succeed later on another connection.
fn is_transient(error: &ClientError) -> bool {
    match error {
        ClientError::Connect { .. } | ClientError::Timeout { .. } | ClientError::Closed(_) => true,
        ClientError::Refused(error) | ClientError::Ended(error) => error.code.is_transient(),
        _ => false,
    }
}
