//! One connection to a broker: commands and their answers, publishes and their confirmations,
//! deliveries.

#![expect(clippy::disallowed_methods, reason = "spawns a task, and limits the handshake in time")]

use std::future::{self, Future};
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tidings_protocol::{
    Code, Command, Hello, HelloAnswer, LINE_BYTES_MAX, MemberId, ProtocolError, Reply, Seq, TaskId,
    Token, TopicName, Verb, error_from_wire, field_number, text, with_defaults,
};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

use self::dial::dial;
pub use self::dial::{ClientTls, Security, TokenSource, UNIX_PREFIX};
use self::driver::{LineReader, QueuedDelivery, Receiver, SharedConnection, closed_error, drive};
use crate::error::ClientError;

mod dial;
mod driver;
#[cfg(test)]
mod tests;

/// The beginning of the first line of a broker.
const GREETING: &str = "Connected.";

with_defaults! {
    /// The options of a connection.
    #[derive(Debug, Clone)]
    pub struct ClientOptions {
        /// A label for logs and lists: one word of 1 to 64 bytes.
        pub name: Option<String> = None,
        /// The member to resume; without it, the broker creates a new one.
        pub resume: Option<MemberId> = None,
        /// The transport from which this client relays messages, if it does. It is then limited to
        /// what that transport may do.
        pub via: Option<String> = None,
        /// Encryption and credentials.
        pub security: Security = Security::default(),
        /// Covers the connection, TLS and the `HELLO` together.
        pub connect_timeout: Duration = Duration::from_secs(5),
    }
}

/// The answer to one command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandAnswer {
    /// The text behind `+OK` (behind `PONG` for a `PING`).
    pub ok: String,
    /// The lines before it, without their `+ `.
    pub more: Vec<String>,
}

/// What the broker sends other than answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delivery {
    /// An event of a subscribed topic.
    Msg {
        /// The topic.
        topic: TopicName,
        /// The seq.
        seq: Seq,
        /// The payload as it was published.
        payload: String,
    },
    /// A task.
    Task {
        /// The id that answers must name.
        id: TaskId,
        /// The broker's clock when it released the task, in milliseconds.
        clock_ms: u64,
        /// The time from then on for which this member holds it, in milliseconds.
        lease_ms: u64,
        /// The URL and its attributes.
        payload: String,
    },
    /// These events of the topic were kept and are gone.
    Lag {
        /// The topic.
        topic: TopicName,
        /// The first one.
        from: Seq,
        /// The last one.
        to: Seq,
    },
    /// These seqs of the topic are empty, after a crash or because the disk was full.
    Gap {
        /// The topic.
        topic: TopicName,
        /// The first one.
        from: Seq,
        /// The last one.
        to: Seq,
    },
    /// The subscription to the topic has passed all events up to this one. Those that did not
    /// arrive do not match its filter.
    Skip {
        /// The topic.
        topic: TopicName,
        /// The last event that was passed.
        seq: Seq,
    },
    /// A line before the answer to a command that [watches](Client::watch), without its `+ `.
    More(String),
    /// A refusal that answers nothing.
    Notice(ProtocolError),
}

/// Connects to `HOST:PORT`, or to the first of several that answers, with commas between them, or to
/// `unix:PATH`. Sends `HELLO`, and waits for its answer.
///
/// What arrives before that answer is meant for peers, and is dropped.
pub async fn connect(
    address: &str,
    options: ClientOptions,
) -> Result<(Client, Deliveries), ClientError> {
    let mut refusal = None;
    let connecting = async {
        // A token that cannot be read is reported even if no broker is running.
        let token = options.security.token.as_ref().map(TokenSource::token).transpose();
        let token = token.map_err(ClientError::Token)?;
        let (reader, writer) = dial(address, &options.security).await?;
        handshake(reader, writer, &options, token, &mut refusal).await
    };
    let connected = tokio::time::timeout(options.connect_timeout, connecting).await;
    match (connected, refusal) {
        (Ok(Ok(connected)), _) => Ok(connected),
        (_, Some(refusal)) => Err(ClientError::Refused(refusal)),
        (Ok(Err(error)), None) => Err(error),
        (Err(_elapsed), None) => {
            let after = options.connect_timeout;
            Err(ClientError::Timeout { address: address.to_owned(), after })
        }
    }
}

/// A new member: 128 bits from the system's random source.
pub fn random_member_id() -> MemberId {
    MemberId(random_bits())
}

/// The keys of `RandomState` come from the system; its hash is a keyed pseudo-random function.
fn random_bits() -> u128 {
    let keys = RandomState::new();
    (u128::from(keys.hash_one(0)) << 64) | u128::from(keys.hash_one(1))
}

/// Sends `HELLO` on a connection of any kind and starts its task.
///
/// A refusal that arrives in place of the answer is only noted: until the answer, the connection
/// also receives the lines of peers, and a peer may have typed it.
async fn handshake<R, W>(
    mut reader: R,
    mut writer: W,
    options: &ClientOptions,
    token: Option<Token>,
    refusal: &mut Option<ProtocolError>,
) -> Result<(Client, Deliveries), ClientError>
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let echo = format!("{:032x}", random_bits());
    let hello = Command::Hello(Hello {
        name: options.name.clone(),
        token,
        echo: Some(echo.clone()),
        resume: options.resume,
        via: options.via.clone(),
    });
    let mut line = Vec::new();
    encode_checked(&hello, &mut line)?;
    writer.write_all(&line).await.map_err(|error| closed_error(&error))?;
    writer.flush().await.map_err(|error| closed_error(&error))?;
    let mut input = LineReader::new();
    let mut is_first = true;
    let hello = loop {
        let Some(line) = input.line(&mut reader, future::pending).await? else { break None };
        if std::mem::take(&mut is_first) {
            check_first_line(line)?;
        }
        match text::check(line).ok().and_then(|line| Reply::parse(line).ok()) {
            Some(Reply::Ok(answer)) => {
                let answer = HelloAnswer::parse(answer);
                if let Some(answer) = answer.filter(|it| it.echo.as_ref() == Some(&echo)) {
                    break Some(answer);
                }
            }
            Some(Reply::Err { code, n: None, text }) => {
                *refusal = Some(error_from_wire(code, text));
            }
            _ => {}
        }
    };
    let hello = hello.ok_or_else(|| {
        if input.is_tls_alert() {
            let text =
                "it speaks TLS: --tls, and --ca FILE unless this system trusts its authority";
            return ClientError::Protocol(text.into());
        }
        ClientError::Closed("it ended before HELLO was answered".into())
    })?;
    let (sender, receiver) = mpsc::unbounded_channel();
    let shared = Arc::new(SharedConnection::new(hello));
    tokio::spawn(drive(Arc::clone(&shared), input, reader, writer, sender));
    let client = Client(Arc::new(ClientHandle(Arc::clone(&shared))));
    Ok((client, Deliveries { receiver, shared }))
}

/// Rejects a server if no broker sends its first line, so that no caller waits for its answers.
fn check_first_line(line: &[u8]) -> Result<(), ClientError> {
    let line = String::from_utf8_lossy(line);
    let is_of_broker = match Reply::parse(&line) {
        Ok(Reply::Err { code, .. }) => code.parse::<Code>().is_ok(),
        Ok(_) => true,
        Err(_) => line.starts_with(GREETING),
    };
    // A TLS alert, which the caller explains.
    if is_of_broker || line.contains(char::is_control) {
        return Ok(());
    }
    let is_http = line.starts_with("HTTP/") || line.starts_with('<');
    let hint =
        if is_http { "; that is HTTP, and the broker has another port for clients" } else { "" };
    Err(ClientError::Protocol(format!("it sent {}{hint}", text::quote(&line))))
}

/// One connection to a broker. Cheap to clone; all clones share the connection. It ends when the
/// last clone is dropped and everything accepted has been sent.
///
/// - Commands reach the broker in the order in which these methods return.
/// - A silent connection stays open. But a broker that owes an answer and sends nothing for 10 s
///   gets a `PING`, and the connection ends if nothing arrives for another 10 s. Excepted are
///   `GROUP`, `JOB`, `TOPIC` and `EXPLAIN`, because their answers may take long.
/// - While megabytes of deliveries wait, the socket is not read, and answers wait with them. So
///   take deliveries in another task than the one that awaits answers.
#[derive(Debug, Clone)]
pub struct Client(Arc<ClientHandle>);

impl Client {
    /// The broker's answer to `HELLO`.
    pub fn hello(&self) -> &HelloAnswer {
        &self.shared().hello
    }

    /// Sends one event, and returns a future for its confirmation, which need not be awaited before
    /// the next publish. Waits while too much is unconfirmed.
    ///
    /// Once sent, the event may be kept even if the confirmation never arrives.
    pub async fn publish(
        &self,
        topic: &TopicName,
        payload: &str,
    ) -> Result<PendingConfirmation, ClientError> {
        let mut line = Vec::with_capacity(payload.len() + 80);
        encode_checked(&Command::Pub { topic: topic.as_str(), payload }, &mut line)?;
        let receiver = self.shared().publish(&line).await?;
        Ok(Pending { receiver })
    }

    /// Sends a command and waits for its answer.
    pub async fn request(&self, command: &Command<'_>) -> Result<CommandAnswer, ClientError> {
        self.start_request(&[], command).await?.await
    }

    /// Sends a command that is never answered: `LINK`.
    pub async fn send(&self, command: &Command<'_>) -> Result<(), ClientError> {
        assert!(command.verb() == Verb::Link, "only LINK has no answer");
        let mut line = Vec::new();
        encode_checked(command, &mut line)?;
        self.shared().send(&line).await
    }

    /// Sends `LINK`s and then a command as one piece, and returns a future for its answer, which
    /// need not be awaited before the next command.
    ///
    /// A `LINK` that does not fit on a line is left out: one odd link must not cost a page its
    /// answer.
    pub async fn start_request(
        &self,
        children: &[Command<'_>],
        command: &Command<'_>,
    ) -> Result<PendingAnswer, ClientError> {
        let mut lines = Vec::new();
        for link in children {
            assert!(link.verb() == Verb::Link, "only LINK has no answer");
            let _ = encode_checked(link, &mut lines);
        }
        assert!(!matches!(command.verb(), Verb::Link | Verb::Pub), "LINK and PUB answer otherwise");
        encode_checked(command, &mut lines)?;
        let receiver = self.shared().request(&lines, command.verb(), false).await?;
        Ok(Pending { receiver })
    }

    /// Sends a command with an answer that grows over time, such as `JOB watch`, and returns a
    /// future for its end. The lines before the end are delivered as [`Delivery::More`].
    pub async fn watch(&self, command: &Command<'_>) -> Result<PendingAnswer, ClientError> {
        let mut line = Vec::new();
        encode_checked(command, &mut line)?;
        let receiver = self.shared().request(&line, command.verb(), true).await?;
        Ok(Pending { receiver })
    }

    /// Requests the broker's clock, in milliseconds since a fixed moment of its own.
    pub async fn ping(&self) -> Result<u64, ClientError> {
        let answer = self.request(&Command::Ping).await?;
        field_number(&answer.ok, "clock")
            .ok_or_else(|| ClientError::Protocol("PING was answered without a clock".into()))
    }

    fn shared(&self) -> &SharedConnection {
        &self.0.0
    }
}

/// The result of a command that is still to come. Dropping it does not cancel the command.
#[derive(Debug)]
#[must_use = "a command may have failed"]
pub struct Pending<T> {
    receiver: Receiver<T>,
}

/// The answer to a command.
pub type PendingAnswer = Pending<CommandAnswer>;

/// The confirmation of a publish, which is safe only then: the seq of the event. If the broker
/// confirmed several publishes with one line, it is the seq of the last of them.
pub type PendingConfirmation = Pending<Seq>;

impl<T> Future for Pending<T> {
    type Output = Result<T, ClientError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let received = Pin::new(&mut self.receiver).poll(context);
        // A sender is dropped without a result only when the runtime ends.
        let stopped = || ClientError::Closed("the runtime has stopped".into());
        received.map(|received| received.unwrap_or_else(|_| Err(stopped())))
    }
}

/// The output of a future, which never comes if there is none.
pub(crate) async fn output_of<F: Future>(future: Option<F>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => future::pending().await,
    }
}

/// The deliveries of this connection, in their order. If this is dropped, they are ignored.
#[derive(Debug)]
pub struct Deliveries {
    receiver: mpsc::UnboundedReceiver<QueuedDelivery>,
    shared: Arc<SharedConnection>,
}

impl Deliveries {
    /// The next one; `None` when the connection is closed and everything was taken.
    ///
    /// Cancel-safe: nothing is lost if the future is dropped.
    pub async fn next(&mut self) -> Option<Delivery> {
        self.receiver.recv().await.map(|(delivery, _room)| delivery)
    }

    /// Why the connection is closed. To be called after [`next`](Self::next) returned `None`.
    pub fn reason(&self) -> ClientError {
        self.shared.reason()
    }
}

impl Drop for Deliveries {
    fn drop(&mut self) {
        self.shared.drop_deliveries();
    }
}

/// Shared by all clones. When the last one is dropped, the connection ends.
#[derive(Debug)]
struct ClientHandle(Arc<SharedConnection>);

impl Drop for ClientHandle {
    fn drop(&mut self) {
        self.0.drop_clients();
    }
}

/// Appends the line of a command if the broker would read it as that command, and nothing
/// otherwise: no text inside a command can become another line or option.
fn encode_checked(command: &Command<'_>, lines: &mut Vec<u8>) -> Result<(), ClientError> {
    let before = lines.len();
    command.encode(lines);
    let line = lines.get(before..lines.len() - 1).unwrap_or_default();
    let checked = if line.len() > LINE_BYTES_MAX {
        Err(ProtocolError::new(
            Code::TooLong,
            format!("the line is over the limit of {LINE_BYTES_MAX} bytes"),
        ))
    } else {
        text::check(line).and_then(Command::parse).map(|_| ())
    };
    checked.map_err(|error| {
        lines.truncate(before);
        ClientError::Refused(error)
    })
}
