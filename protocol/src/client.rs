//! The async client: the only file of this crate that knows a runtime.

#![expect(
    clippy::disallowed_methods,
    reason = "spawns the task of a connection and bounds the handshake in time"
)]

use std::collections::VecDeque;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::line::{Item, LineDecoder};
use crate::reply::{HelloAnswer, Reply, field_number, refusal_from};
use crate::{Code, Command, Hello, LINE_BYTES_MAX, MemberId, ProtocolError, Seq, TaskId, TopicName};
use crate::{Verb, text};

/// Bytes of publishes that may be on their way without a confirmation: enough to keep a producer
/// busy over a sync of the disk, and what it may lose sight of with the connection.
const PUBLISH_WINDOW_BYTES: usize = 4 * 1024 * 1024;
/// Bytes that wait for the socket before [`Client`] makes its callers wait.
const OUTGOING_BYTES_MAX: usize = 1024 * 1024;
/// Bytes of deliveries that wait for [`Deliveries::next`] before the socket is left unread.
const DELIVERIES_BYTES_MAX: usize = 8 * 1024 * 1024;
/// What a waiting publish or delivery costs besides its text, roughly.
const OVERHEAD_BYTES: usize = 128;
/// How much the socket is asked for at once.
const READ_BYTES: usize = 64 * 1024;
/// Lines of one answer that are kept; a broker that sends more is not one.
const ANSWER_LINES_MAX: usize = 100_000;
/// How long a client that was dropped may take to send what was entrusted to it.
const FLUSH_TIME_MAX: Duration = Duration::from_secs(1);

/// How to connect.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// A label for people: one word of 1 to 64 bytes.
    pub name: Option<String>,
    /// The member to come back as; without it the broker makes a new one.
    pub resume: Option<MemberId>,
    /// For the connection and the `HELLO` together.
    pub connect_timeout: Duration,
}

impl Default for ClientOptions {
    fn default() -> Self {
        ClientOptions { name: None, resume: None, connect_timeout: Duration::from_secs(5) }
    }
}

/// Why something could not be had from the broker. Shown on one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No connection came about. Nothing was sent; try again when the broker is there.
    #[error("cannot connect to {address}: {reason}")]
    Connect {
        /// Where to.
        address: String,
        /// What the system says.
        reason: String,
    },
    /// Nobody answered `HELLO` in time. Nothing else was sent.
    #[error("no Tidings broker answered at {address} within {} ms", .after.as_millis())]
    Timeout {
        /// Where to.
        address: String,
        /// The limit.
        after: Duration,
    },
    /// The broker refused it. Nothing has changed unless the code says otherwise; the connection
    /// lives. Also when the client itself saw that the broker would.
    #[error("refused: {0}")]
    Refused(ProtocolError),
    /// The broker ended the connection, saying why. Whatever was not answered may or may not
    /// have happened.
    #[error("the broker ended the connection: {0}")]
    Ended(ProtocolError),
    /// The connection is gone. Whatever was not answered may or may not have happened.
    #[error("the connection to the broker is gone: {0}")]
    Closed(String),
    /// The other side does not speak the protocol, or another version of it. The connection was
    /// given up.
    #[error("the other side does not speak the Tidings protocol: {0}")]
    Protocol(String),
}

/// The answer to one command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The text behind `+OK` (behind `PONG` for a `PING`).
    pub ok: String,
    /// The lines before it, without their `+ `.
    pub more: Vec<String>,
}

/// What the broker sends without having been asked for it just now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delivery {
    /// An event of a subscribed topic.
    Msg {
        /// The topic.
        topic: TopicName,
        /// Its number there.
        seq: Seq,
        /// The payload as it was published.
        payload: String,
    },
    /// A task.
    Task {
        /// What answers must name.
        id: TaskId,
        /// The broker's clock when it was released, in milliseconds.
        clock_ms: u64,
        /// How long it is this member's from then, in milliseconds.
        lease_ms: u64,
        /// URL and attributes.
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
    /// A crash left these numbers of the topic empty.
    Gap {
        /// The topic.
        topic: TopicName,
        /// The first one.
        from: Seq,
        /// The last one.
        to: Seq,
    },
    /// A refusal that answers nothing.
    Notice(ProtocolError),
}

/// Connects, says `HELLO`, and waits for its answer.
///
/// Everything up to that answer is what peers hear, and is dropped.
pub async fn connect(
    address: &str,
    options: ClientOptions,
) -> Result<(Client, Deliveries), ClientError> {
    let connecting = async {
        let stream = TcpStream::connect(address).await.map_err(|error| ClientError::Connect {
            address: address.to_owned(),
            reason: error.to_string(),
        })?;
        // Lines are gathered here, so nothing is gained by the kernel's waiting for more.
        let _ = stream.set_nodelay(true);
        let (reader, writer) = stream.into_split();
        handshake(reader, writer, &options).await
    };
    tokio::time::timeout(options.connect_timeout, connecting).await.unwrap_or_else(|_| {
        let after = options.connect_timeout;
        Err(ClientError::Timeout { address: address.to_owned(), after })
    })
}

impl MemberId {
    /// A new member: 128 bits from the system's randomness.
    pub fn random() -> Self {
        MemberId(random_bits())
    }
}

/// The keys of `RandomState` come from the system; its hash is a keyed pseudo-random function.
fn random_bits() -> u128 {
    let keys = RandomState::new();
    (u128::from(keys.hash_one(0)) << 64) | u128::from(keys.hash_one(1))
}

/// Says `HELLO` on a connection of any kind and starts its task.
async fn handshake<R, W>(
    mut reader: R,
    mut writer: W,
    options: &ClientOptions,
) -> Result<(Client, Deliveries), ClientError>
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let echo = format!("{:032x}", random_bits());
    let hello = Command::Hello(Hello {
        name: options.name.clone(),
        token: None,
        echo: Some(echo.clone()),
        resume: options.resume,
    });
    let mut line = Vec::new();
    encode_checked(&hello, &mut line)?;
    writer.write_all(&line).await.map_err(closed)?;
    let mut input = Input::new();
    let hello = loop {
        match input.line(&mut reader).await? {
            None => return Err(ClientError::Closed("it ended before HELLO was answered".into())),
            Some(line) => {
                if let Some(answer) = hello_answer(line, &echo)? {
                    break answer;
                }
            }
        }
    };
    let (sender, receiver) = mpsc::unbounded_channel();
    let shared = Arc::new(Shared {
        state: Mutex::default(),
        hello,
        outgoing: Notify::new(),
        drained: Notify::new(),
        window: Arc::new(Semaphore::new(PUBLISH_WINDOW_BYTES)),
        undelivered: Arc::new(Semaphore::new(DELIVERIES_BYTES_MAX)),
    });
    tokio::spawn(drive(Arc::clone(&shared), input, reader, writer, sender));
    let client = Client(Arc::new(Handle(Arc::clone(&shared))));
    Ok((client, Deliveries { receiver, shared }))
}

/// `None`: a line from before the `HELLO`, which is not for a client.
fn hello_answer(line: &[u8], echo: &str) -> Result<Option<HelloAnswer>, ClientError> {
    match std::str::from_utf8(line).ok().and_then(|line| Reply::parse(line).ok()) {
        Some(Reply::Ok(answer)) => {
            Ok(HelloAnswer::parse(answer).filter(|hello| hello.echo.as_deref() == Some(echo)))
        }
        // A peer's line may look like this, too; but then the answer would have come before a
        // person could type it, and a broker that refuses HELLO would otherwise never be heard.
        Some(Reply::Err { code, n: None, text }) => {
            Err(ClientError::Refused(refusal_from(code, text)))
        }
        _ => Ok(None),
    }
}

/// One connection to a broker. Cheap to clone; all clones share the connection, which ends when
/// the last one is dropped and what was entrusted to it has been sent.
///
/// - Commands reach the broker in the order in which these methods return.
/// - Nothing is ever sent on its own: a silent connection stays as it is. Who must know whether
///   the broker is still there, pings.
/// - When deliveries are waiting in megabytes, the socket is not read any more, and answers wait
///   with them: take deliveries in another task than the one that awaits answers.
#[derive(Debug, Clone)]
pub struct Client(Arc<Handle>);

impl Client {
    /// What the broker said about itself and this connection.
    pub fn hello(&self) -> &HelloAnswer {
        &self.0.0.hello
    }

    /// Sends one event and gives a future for its confirmation, which need not be awaited
    /// before the next publish. Waits while too much is unconfirmed.
    ///
    /// Once sent, the event may be kept even if the confirmation never arrives.
    pub async fn publish(
        &self,
        topic: &TopicName,
        payload: &str,
    ) -> Result<Published, ClientError> {
        let mut line = Vec::with_capacity(payload.len() + 80);
        encode_checked(&Command::Pub { topic: topic.as_str(), payload }, &mut line)?;
        let shared = &self.0.0;
        let weight = u32::try_from(line.len() + OVERHEAD_BYTES).expect("lines are short");
        let room = Arc::clone(&shared.window).acquire_many_owned(weight).await;
        let room = room.map_err(|_| shared.reason())?;
        let (sender, receiver) = oneshot::channel();
        shared
            .push(&line, |state| state.publishes.push_back(Some(Publish { sender, _room: room })))
            .await?;
        Ok(Published { receiver })
    }

    /// Sends a command and waits for its answer.
    pub async fn request(&self, command: &Command<'_>) -> Result<Answer, ClientError> {
        self.start(&[], command).await?.await
    }

    /// Sends a command that is never answered: `LINK`.
    pub async fn send(&self, command: &Command<'_>) -> Result<(), ClientError> {
        assert!(command.verb() == Verb::Link, "only LINK has no answer");
        let mut line = Vec::new();
        encode_checked(command, &mut line)?;
        self.0.0.push(&line, |_| ()).await
    }

    /// Sends `LINK`s and then a command in one go, and gives a future for its answer, which need
    /// not be awaited before the next command.
    ///
    /// A `LINK` that cannot be on a line is left out: one odd link must not cost a page its
    /// answer.
    pub async fn start(
        &self,
        links: &[Command<'_>],
        command: &Command<'_>,
    ) -> Result<Answering, ClientError> {
        let mut lines = Vec::new();
        for link in links {
            assert!(link.verb() == Verb::Link, "only LINK has no answer");
            let _ = encode_checked(link, &mut lines);
        }
        assert!(!matches!(command.verb(), Verb::Link | Verb::Pub), "LINK and PUB answer otherwise");
        encode_checked(command, &mut lines)?;
        let (sender, receiver) = oneshot::channel();
        self.0.0.push(&lines, |state| state.answers.push_back(sender)).await?;
        Ok(Answering { receiver })
    }

    /// Asks for the broker's clock, in milliseconds since some fixed moment of its own.
    pub async fn ping(&self) -> Result<u64, ClientError> {
        let answer = self.request(&Command::Ping).await?;
        field_number(&answer.ok, "clock")
            .ok_or_else(|| ClientError::Protocol("PING was answered without a clock".into()))
    }
}

/// The confirmation of one publish, to come. Dropping it changes nothing about the publish.
///
/// Gives the number of the event in its topic; where the broker confirmed several publishes with
/// one line, that of the last of them.
#[derive(Debug)]
#[must_use = "a publish is safe only when it was confirmed"]
pub struct Published {
    receiver: oneshot::Receiver<Result<Seq, ClientError>>,
}

impl Future for Published {
    type Output = Result<Seq, ClientError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        flat(Pin::new(&mut self.receiver).poll(context))
    }
}

/// The answer to one command, to come. Dropping it changes nothing about the command.
#[derive(Debug)]
pub struct Answering {
    receiver: oneshot::Receiver<Result<Answer, ClientError>>,
}

impl Future for Answering {
    type Output = Result<Answer, ClientError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        flat(Pin::new(&mut self.receiver).poll(context))
    }
}

type Received<T> = Result<Result<T, ClientError>, oneshot::error::RecvError>;

/// Senders are dropped without a word only when the runtime itself ends.
fn flat<T>(received: Poll<Received<T>>) -> Poll<Result<T, ClientError>> {
    received.map(|received| {
        received.unwrap_or_else(|_| Err(ClientError::Closed("the runtime has stopped".into())))
    })
}

/// What the broker delivers on this connection, in its order. Dropped, deliveries are ignored.
#[derive(Debug)]
pub struct Deliveries {
    receiver: mpsc::UnboundedReceiver<(Delivery, Option<OwnedSemaphorePermit>)>,
    shared: Arc<Shared>,
}

impl Deliveries {
    /// The next one; `None` when the connection is gone and everything was taken.
    ///
    /// Cancel-safe: nothing is lost if the future is dropped.
    pub async fn next(&mut self) -> Option<Delivery> {
        self.receiver.recv().await.map(|(delivery, _room)| delivery)
    }

    /// Why the connection is gone; to be asked after [`next`](Self::next) gave `None`.
    pub fn reason(&self) -> ClientError {
        self.shared.reason()
    }
}

impl Drop for Deliveries {
    fn drop(&mut self) {
        self.shared.undelivered.close();
    }
}

/// The clones' common end: when the last one is dropped, the connection is to end.
#[derive(Debug)]
struct Handle(Arc<Shared>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.lock().dropped = true;
        self.0.outgoing.notify_one();
    }
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    hello: HelloAnswer,
    /// There is something to send, or the last client was dropped.
    outgoing: Notify,
    /// What was to be sent has been taken, or the connection has ended.
    drained: Notify,
    /// Room for unconfirmed publishes, in bytes; closed with the connection.
    window: Arc<Semaphore>,
    /// Room for deliveries that nobody has taken, in bytes; closed with [`Deliveries`].
    undelivered: Arc<Semaphore>,
}

/// Only touched under the lock, and never across an await.
#[derive(Debug, Default)]
struct State {
    /// Whole lines for the socket. What is pushed here and what is awaited below is pushed under
    /// one lock, so both are in the same order.
    outgoing: Vec<u8>,
    /// Who waits for the answers to commands, in their order.
    answers: VecDeque<oneshot::Sender<Result<Answer, ClientError>>>,
    /// Unconfirmed publishes from number `publishes_done + 1` on; `None` where one was refused.
    publishes: VecDeque<Option<Publish>>,
    publishes_done: u64,
    dropped: bool,
    ended: Option<ClientError>,
}

#[derive(Debug)]
struct Publish {
    sender: oneshot::Sender<Result<Seq, ClientError>>,
    /// Given back when the publish is answered.
    _room: OwnedSemaphorePermit,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that is done under the lock leaves it half done by panicking.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reason(&self) -> ClientError {
        let ended = self.lock().ended.clone();
        ended.unwrap_or_else(|| ClientError::Closed("it was given up by this side".into()))
    }

    /// Hands over whole lines, and enters who waits for their answers, in one step. Waits while
    /// the socket is behind.
    async fn push(&self, lines: &[u8], enter: impl FnOnce(&mut State)) -> Result<(), ClientError> {
        loop {
            let drained = self.drained.notified();
            tokio::pin!(drained);
            // Registered before the look, so that no wake-up falls between the two.
            drained.as_mut().enable();
            {
                let mut state = self.lock();
                if let Some(reason) = &state.ended {
                    return Err(reason.clone());
                }
                if state.outgoing.len() < OUTGOING_BYTES_MAX {
                    state.outgoing.extend_from_slice(lines);
                    enter(&mut state);
                    break;
                }
            }
            drained.await;
        }
        self.outgoing.notify_one();
        Ok(())
    }

    /// Ends everything that waits, each with the reason.
    fn end(&self, reason: &ClientError) {
        let (answers, publishes) = {
            let mut state = self.lock();
            state.ended.get_or_insert_with(|| reason.clone());
            (std::mem::take(&mut state.answers), std::mem::take(&mut state.publishes))
        };
        let reason = self.reason();
        for sender in answers {
            let _ = sender.send(Err(reason.clone()));
        }
        for publish in publishes.into_iter().flatten() {
            let _ = publish.sender.send(Err(reason.clone()));
        }
        self.window.close();
        self.drained.notify_waiters();
    }
}

/// The task of a connection: reads and writes until one of the two ends, or nobody is left.
///
/// Both halves are polled from here for as long as the connection lives, so neither is ever
/// cancelled half-way through a line.
async fn drive<R, W>(
    shared: Arc<Shared>,
    input: Input,
    reader: R,
    writer: W,
    deliveries: mpsc::UnboundedSender<(Delivery, Option<OwnedSemaphorePermit>)>,
) where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let reason = tokio::select! {
        reason = read(&shared, input, reader, &deliveries) => reason,
        reason = write(&shared, writer) => reason,
    };
    shared.end(&reason);
}

/// Writes what is pushed, in as large pieces as it has become. Gives the reason of its end.
async fn write(shared: &Shared, mut writer: impl AsyncWrite + Unpin) -> ClientError {
    let mut lines = Vec::new();
    loop {
        let dropped = {
            let mut state = shared.lock();
            std::mem::swap(&mut state.outgoing, &mut lines);
            state.dropped
        };
        if !lines.is_empty() {
            shared.drained.notify_waiters();
            let writing = writer.write_all(&lines);
            let written = if dropped {
                tokio::time::timeout(FLUSH_TIME_MAX, writing).await.unwrap_or(Ok(()))
            } else {
                writing.await
            };
            if let Err(error) = written {
                return closed(error);
            }
            lines.clear();
        } else if dropped {
            let _ = tokio::time::timeout(FLUSH_TIME_MAX, writer.shutdown()).await;
            return ClientError::Closed("it was given up by this side".into());
        } else {
            shared.outgoing.notified().await;
        }
    }
}

/// Reads lines and hands them to whom they are for. Gives the reason of its end.
async fn read(
    shared: &Shared,
    mut input: Input,
    mut reader: impl AsyncRead + Unpin,
    deliveries: &mpsc::UnboundedSender<(Delivery, Option<OwnedSemaphorePermit>)>,
) -> ClientError {
    let mut replies = Replies { shared, more: Vec::new(), topic: None };
    loop {
        let line = match input.line(&mut reader).await {
            Ok(Some(line)) => line,
            Ok(None) => return ClientError::Closed("the broker closed it".into()),
            Err(error) => return error,
        };
        let delivery = match replies.take(line) {
            Ok(delivery) => delivery,
            Err(error) => return error,
        };
        if let Some(delivery) = delivery {
            let weight = u32::try_from(line.len() + OVERHEAD_BYTES).expect("lines are short");
            // Closed: nobody listens to deliveries, but answers may still be awaited.
            if let Ok(room) = Arc::clone(&shared.undelivered).acquire_many_owned(weight).await {
                let _ = deliveries.send((delivery, Some(room)));
            }
        }
    }
}

/// Tells the answers from the deliveries.
struct Replies<'s> {
    shared: &'s Shared,
    /// The lines so far of an answer of several.
    more: Vec<String>,
    /// The last topic, so that a run of events shares its name.
    topic: Option<TopicName>,
}

impl Replies<'_> {
    fn take(&mut self, line: &[u8]) -> Result<Option<Delivery>, ClientError> {
        let line = text::check(line).map_err(|error| ClientError::Protocol(error.text))?;
        let unknown = || ClientError::Protocol(format!("it said {}", text::quoted(line)));
        let reply = Reply::parse(line).map_err(|_| unknown())?;
        let delivery = match reply {
            Reply::Msg { topic, seq, payload } => {
                let topic = self.topic(topic).ok_or_else(unknown)?;
                Some(Delivery::Msg { topic, seq, payload: payload.to_owned() })
            }
            Reply::Task { id, clock_ms, lease_ms, payload } => {
                Some(Delivery::Task { id, clock_ms, lease_ms, payload: payload.to_owned() })
            }
            Reply::Lag { topic, from, to } => {
                let topic = topic.and_then(|topic| self.topic(topic)).ok_or_else(unknown)?;
                Some(Delivery::Lag { topic, from, to })
            }
            Reply::Gap { topic, from, to } => {
                let topic = self.topic(topic).ok_or_else(unknown)?;
                Some(Delivery::Gap { topic, from, to })
            }
            Reply::Published { seq, n } => {
                self.confirmed(seq, n)?;
                None
            }
            Reply::Err { code, n: Some(range), text } => {
                self.publishes_refused(range, &refusal_from(code, text));
                None
            }
            Reply::Err { code, n: None, text } => {
                self.refused(refusal_from(code, text))?.map(Delivery::Notice)
            }
            Reply::More(text) if self.more.len() < ANSWER_LINES_MAX => {
                self.more.push(text.to_owned());
                None
            }
            Reply::More(_) => return Err(ClientError::Protocol("an answer never ends".into())),
            Reply::Ok(text) => {
                self.answered(text.to_owned())?;
                None
            }
            Reply::Pong { clock_ms } => {
                self.answered(format!("clock={clock_ms}"))?;
                None
            }
        };
        Ok(delivery)
    }

    fn topic(&mut self, name: &str) -> Option<TopicName> {
        if self.topic.as_ref().is_none_or(|topic| topic.as_str() != name) {
            self.topic = Some(TopicName::new(name).ok()?);
        }
        self.topic.clone()
    }

    fn answered(&mut self, ok: String) -> Result<(), ClientError> {
        let more = std::mem::take(&mut self.more);
        let waiting = self.shared.lock().answers.pop_front();
        let waiting =
            waiting.ok_or_else(|| ClientError::Protocol("it answered without a question".into()))?;
        let _ = waiting.send(Ok(Answer { ok, more }));
        Ok(())
    }

    /// Gives the refusal back if it answers nothing. One that ends the connection never does.
    fn refused(&mut self, error: ProtocolError) -> Result<Option<ProtocolError>, ClientError> {
        if error.code.ends_connection() {
            return Err(ClientError::Ended(error));
        }
        let Some(waiting) = self.shared.lock().answers.pop_front() else {
            return Ok(Some(error));
        };
        self.more.clear();
        let _ = waiting.send(Err(ClientError::Refused(error)));
        Ok(None)
    }

    /// [A3]: everything up to n that no refusal named.
    fn confirmed(&self, seq: Seq, n: u64) -> Result<(), ClientError> {
        let mut state = self.shared.lock();
        let count = n.checked_sub(state.publishes_done).and_then(|n| usize::try_from(n).ok());
        let count = count.filter(|count| *count <= state.publishes.len());
        let count = count.ok_or_else(|| {
            ClientError::Protocol(format!("it confirmed a publish {n} that there is not"))
        })?;
        state.publishes_done = n;
        for publish in state.publishes.drain(..count).flatten() {
            let _ = publish.sender.send(Ok(seq));
        }
        Ok(())
    }

    /// [A4]: each of these, and no other.
    fn publishes_refused(&self, (first, last): (u64, u64), error: &ProtocolError) {
        let mut state = self.shared.lock();
        let done = state.publishes_done;
        for (n, publish) in (done + 1..).zip(&mut state.publishes) {
            if (first..=last).contains(&n)
                && let Some(publish) = publish.take()
            {
                let _ = publish.sender.send(Err(ClientError::Refused(error.clone())));
            }
        }
        // Refused ones at the front are done; those behind unconfirmed ones wait for them.
        while let Some(None) = state.publishes.front() {
            state.publishes.pop_front();
            state.publishes_done += 1;
        }
    }
}

/// The bytes that were read and not used yet, cut into lines.
struct Input {
    buffer: BytesMut,
    decoder: LineDecoder,
    /// Bytes of the line that was given out last; dropped before the next one.
    used: usize,
}

impl Input {
    fn new() -> Self {
        Input { buffer: BytesMut::new(), decoder: LineDecoder::new(LINE_BYTES_MAX), used: 0 }
    }

    /// The next line, reading as needed; `None` at the end of input.
    async fn line(
        &mut self,
        reader: &mut (impl AsyncRead + Unpin),
    ) -> Result<Option<&[u8]>, ClientError> {
        loop {
            self.buffer.advance(std::mem::take(&mut self.used));
            let (used, item) = self.decoder.next(&self.buffer);
            match item {
                None => self.buffer.advance(used),
                Some(Item::Line([])) => {
                    self.used = used;
                    continue;
                }
                Some(Item::Line(line)) => {
                    let length = line.len();
                    self.used = used;
                    return Ok(self.buffer.get(..length));
                }
                Some(Item::TooLong { .. } | Item::EndOfTransmission) => {
                    return Err(ClientError::Protocol("a line that cannot be".into()));
                }
            }
            self.buffer.reserve(READ_BYTES);
            if reader.read_buf(&mut self.buffer).await.map_err(closed)? == 0 {
                return Ok(None);
            }
        }
    }
}

/// Appends a command's line if the broker would take it as that, and nothing otherwise: no text
/// inside a command can become another line or another option.
fn encode_checked(command: &Command<'_>, lines: &mut Vec<u8>) -> Result<(), ClientError> {
    let before = lines.len();
    command.encode(lines);
    let line = lines.get(before..lines.len() - 1).unwrap_or_default();
    let checked = if line.len() > LINE_BYTES_MAX {
        Err(ProtocolError::new(Code::TooLong, "the line would be over the limit"))
    } else {
        text::check(line).and_then(Command::parse).map(|_| ())
    };
    checked.map_err(|error| {
        lines.truncate(before);
        ClientError::Refused(error)
    })
}

fn closed(error: std::io::Error) -> ClientError {
    ClientError::Closed(error.to_string())
}
