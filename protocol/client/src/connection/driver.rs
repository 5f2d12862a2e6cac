//! The connection behind a client: its queues, and the task that moves the bytes.

#![expect(clippy::disallowed_methods, reason = "limits the last writes and the broker's silence")]

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tidings_protocol::{
    Command, HelloAnswer, LINE_BYTES_MAX, LineDecoder, LineItem, ProtocolError, Reply, Seq,
    TopicName, Verb, error_from_wire, text,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::{CommandAnswer, Delivery, dial};
use crate::error::ClientError;

/// Bytes of unconfirmed publishes: enough to keep a publisher busy during a sync of the disk. After
/// a lost connection, the outcome of no more than this is unknown.
pub(super) const PUBLISH_WINDOW_BYTES: usize = 4 * 1024 * 1024;
/// Bytes that wait for the socket before [`Client`](super::Client) makes its callers wait.
const OUTGOING_BYTES_MAX: usize = 1024 * 1024;
/// Bytes of deliveries that wait for [`Deliveries::next`](super::Deliveries::next) before the
/// socket is left unread.
const DELIVERIES_BYTES_MAX: usize = 8 * 1024 * 1024;
/// The approximate memory of a queued publish or delivery, or of a line of an answer, without its
/// text.
const OVERHEAD_BYTES: usize = 128;
/// Bytes that one read requests.
const READ_BYTES: usize = 64 * 1024;
/// Bytes of one answer that are kept, with [`OVERHEAD_BYTES`] for each line: a thousand of the
/// longest lines. A server that sends more is not a broker.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;
/// The silence after which a broker that owes an answer is sent a `PING`, and after which it counts
/// as lost if it does not answer that either.
const SILENCE_TIME_MAX: Duration = Duration::from_secs(10);
/// The time in which a dropped client may still send what it has accepted.
const FLUSH_TIME_MAX: Duration = Duration::from_secs(1);
/// The time after a failed write in which the broker's last line may still arrive.
const LAST_WORDS_TIME_MAX: Duration = Duration::from_secs(1);

type Sender<T> = oneshot::Sender<Result<T, ClientError>>;
pub(super) type Receiver<T> = oneshot::Receiver<Result<T, ClientError>>;
/// A delivery that was not taken yet, with its permit.
pub(super) type QueuedDelivery = (Delivery, OwnedSemaphorePermit);

/// Shared by the clones of a client, its deliveries, and the task of its connection.
#[derive(Debug)]
pub(super) struct SharedConnection {
    state: Mutex<ConnectionState>,
    pub(super) hello: HelloAnswer,
    /// Signals output, or that the last client was dropped.
    outgoing: Notify,
    /// Signals that queued output was taken, or that the connection has ended.
    drained: Notify,
    /// Signals that the last client was dropped.
    abandoned: Notify,
    /// Permits for unconfirmed publishes, in bytes; closed with the connection.
    publish_window: Arc<Semaphore>,
    /// Permits for deliveries that were not taken, in bytes; closed with
    /// [`Deliveries`](super::Deliveries).
    delivery_window: Arc<Semaphore>,
}

/// Used only under the lock, and never across an await.
#[derive(Debug, Default)]
struct ConnectionState {
    /// Whole lines for the socket. A line and the entry that waits for its answer are pushed under
    /// one lock, so both are in the same order.
    outgoing: Vec<u8>,
    /// The commands that wait for their answers, in order.
    answers: VecDeque<PendingCommand>,
    /// Unconfirmed publishes from number `publishes_done + 1` on; `None` for a refused one.
    publishes: VecDeque<Option<PendingPublish>>,
    publishes_done: u64,
    dropped: bool,
    ended: Option<ClientError>,
}

#[derive(Debug)]
struct PendingCommand {
    verb: Verb,
    sender: Sender<CommandAnswer>,
    /// Lines before the answer are delivered at once, and are not part of it.
    watches: bool,
}

#[derive(Debug)]
struct PendingPublish {
    sender: Sender<Seq>,
    /// Returned when the publish is answered.
    _room: OwnedSemaphorePermit,
}

impl SharedConnection {
    pub(super) fn new(hello: HelloAnswer) -> Self {
        SharedConnection {
            state: Mutex::default(),
            hello,
            outgoing: Notify::new(),
            drained: Notify::new(),
            abandoned: Notify::new(),
            publish_window: Arc::new(Semaphore::new(PUBLISH_WINDOW_BYTES)),
            delivery_window: Arc::new(Semaphore::new(DELIVERIES_BYTES_MAX)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionState> {
        // No code under the lock can panic half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the connection has ended.
    pub(super) fn reason(&self) -> ClientError {
        let ended = self.lock().ended.clone();
        ended.unwrap_or_else(abandoned_error)
    }

    /// Queues the line of a publish once the window has room for it.
    pub(super) async fn publish(&self, line: &[u8]) -> Result<Receiver<Seq>, ClientError> {
        let room = Arc::clone(&self.publish_window).acquire_many_owned(permit_count(line)).await;
        let room = room.map_err(|_closed| self.reason())?;
        let (sender, receiver) = oneshot::channel();
        let publish = PendingPublish { sender, _room: room };
        self.push(line, |state| state.publishes.push_back(Some(publish))).await?;
        Ok(receiver)
    }

    /// Queues lines; the last one is a command of this verb with an answer. With `watches`, lines
    /// before the answer are delivered.
    pub(super) async fn request(
        &self,
        lines: &[u8],
        verb: Verb,
        watches: bool,
    ) -> Result<Receiver<CommandAnswer>, ClientError> {
        let (sender, receiver) = oneshot::channel();
        let command = PendingCommand { verb, sender, watches };
        self.push(lines, |state| state.answers.push_back(command)).await?;
        Ok(receiver)
    }

    /// Queues a `PING` for a broker that owes an answer. Returns whether it does.
    fn ping_if_owed(&self) -> bool {
        let mut state = self.lock();
        let is_owed = state.is_answer_owed();
        if is_owed {
            Command::Ping.encode(&mut state.outgoing);
            let (sender, _) = oneshot::channel();
            let ping = PendingCommand { verb: Verb::Ping, sender, watches: false };
            state.answers.push_back(ping);
            drop(state);
            self.outgoing.notify_one();
        }
        is_owed
    }

    /// Queues lines that are not answered.
    pub(super) async fn send(&self, lines: &[u8]) -> Result<(), ClientError> {
        self.push(lines, |_state| ()).await
    }

    /// The last client was dropped: what is queued is sent, then the connection ends.
    pub(super) fn drop_clients(&self) {
        self.lock().dropped = true;
        self.outgoing.notify_one();
        self.abandoned.notify_one();
    }

    /// Deliveries are ignored from now on.
    pub(super) fn drop_deliveries(&self) {
        self.delivery_window.close();
    }

    /// Queues whole lines, and enters what waits for their answers, in one step. Waits while the
    /// socket is behind.
    async fn push(
        &self,
        lines: &[u8],
        enter: impl FnOnce(&mut ConnectionState),
    ) -> Result<(), ClientError> {
        loop {
            let drained = self.drained.notified();
            tokio::pin!(drained);
            // Registered before the check, so that no wake-up is lost in between.
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

    /// Ends everything that waits, with the reason.
    fn end(&self, reason: &ClientError) {
        let (answers, publishes) = {
            let mut state = self.lock();
            state.ended.get_or_insert_with(|| reason.clone());
            (std::mem::take(&mut state.answers), std::mem::take(&mut state.publishes))
        };
        let reason = self.reason();
        for asker in answers {
            let _ = asker.sender.send(Err(reason.clone()));
        }
        for publish in publishes.into_iter().flatten() {
            let _ = publish.sender.send(Err(reason.clone()));
        }
        self.publish_window.close();
        self.drained.notify_waiters();
    }
}

impl ConnectionState {
    /// Whether a working broker sends something soon, at the latest after a `PING`. It reads no
    /// `PING` before it has answered a command of these verbs, and `JOB wait` takes hours.
    fn is_answer_owed(&self) -> bool {
        let takes_long = |command: &PendingCommand| {
            matches!(command.verb, Verb::Group | Verb::Job | Verb::Topic | Verb::Explain)
        };
        let is_any_awaited = !self.answers.is_empty() || !self.publishes.is_empty();
        is_any_awaited && !self.answers.iter().any(takes_long)
    }
}

/// The task of a connection: reads and writes until one of the two ends, or until the last client
/// has been dropped.
///
/// Both halves are polled from here for as long as the connection lives, so neither is cancelled in
/// the middle of a line.
pub(super) async fn drive<R, W>(
    shared: Arc<SharedConnection>,
    input: LineReader,
    reader: R,
    writer: W,
    deliveries: mpsc::UnboundedSender<QueuedDelivery>,
) where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let reason = tokio::select! {
        reason = read(&shared, input, reader, &deliveries) => reason,
        reason = write(&shared, writer) => reason,
        reason = abandoned(&shared) => reason,
    };
    shared.end(&reason);
}

/// Limits how long a broker that does not read can keep an abandoned connection.
async fn abandoned(shared: &SharedConnection) -> ClientError {
    shared.abandoned.notified().await;
    tokio::time::sleep(FLUSH_TIME_MAX).await;
    abandoned_error()
}

/// Writes what is queued, in as large pieces as there are. Returns why it ended.
async fn write(shared: &SharedConnection, mut writer: impl AsyncWrite + Unpin) -> ClientError {
    let mut lines = Vec::new();
    loop {
        let dropped = {
            let mut state = shared.lock();
            std::mem::swap(&mut state.outgoing, &mut lines);
            state.dropped
        };
        if !lines.is_empty() {
            shared.drained.notify_waiters();
            let written = match writer.write_all(&lines).await {
                // Encrypted bytes may still wait for the socket.
                Ok(()) => writer.flush().await,
                Err(error) => Err(error),
            };
            if let Err(error) = written {
                // The broker's last line is the better reason, if the reader still finds it.
                tokio::time::sleep(LAST_WORDS_TIME_MAX).await;
                return closed_error(&error);
            }
            lines.clear();
        } else if dropped {
            let _ = writer.shutdown().await;
            return abandoned_error();
        } else {
            shared.outgoing.notified().await;
            // Lets other tasks of this thread queue their lines first, so that all leave as one
            // piece.
            tokio::task::yield_now().await;
        }
    }
}

/// Reads lines and passes them on. Returns why it ended.
async fn read(
    shared: &SharedConnection,
    mut input: LineReader,
    mut reader: impl AsyncRead + Unpin,
    deliveries: &mpsc::UnboundedSender<QueuedDelivery>,
) -> ClientError {
    let mut replies = ReplyRouter { shared, more: Vec::new(), more_bytes: 0, topic: None };
    loop {
        let line = match input.line(&mut reader, || silence(shared)).await {
            Ok(Some(line)) => line,
            Ok(None) => return ClientError::Closed("the broker closed it".into()),
            Err(error) => return error,
        };
        let delivery = match replies.route(line) {
            Ok(delivery) => delivery,
            Err(error) => return error,
        };
        if let Some(delivery) = delivery {
            // Closed: deliveries are ignored, but answers may still be awaited.
            let room = Arc::clone(&shared.delivery_window).acquire_many_owned(permit_count(line));
            if let Ok(room) = room.await {
                let _ = deliveries.send((delivery, room));
            }
        }
    }
}

/// Returns when the broker sends nothing although it owes an answer. Begins again with each read,
/// and does not count the time in which nothing is read.
async fn silence(shared: &SharedConnection) -> ClientError {
    let mut is_pinged = false;
    loop {
        tokio::time::sleep(SILENCE_TIME_MAX).await;
        if is_pinged {
            let seconds = SILENCE_TIME_MAX.as_secs();
            return ClientError::Closed(format!("the broker did not answer within {seconds} s"));
        }
        is_pinged = shared.ping_if_owed();
    }
}

/// Separates answers from deliveries.
struct ReplyRouter<'s> {
    shared: &'s SharedConnection,
    /// The lines so far of an answer with several lines.
    more: Vec<String>,
    /// See [`ANSWER_BYTES_MAX`].
    more_bytes: usize,
    /// The last topic, so that a run of events shares its name.
    topic: Option<TopicName>,
}

impl ReplyRouter<'_> {
    fn route(&mut self, line: &[u8]) -> Result<Option<Delivery>, ClientError> {
        let line = text::check(line).map_err(|error| ClientError::Protocol(error.text))?;
        let unknown = || ClientError::Protocol(format!("it sent {}", text::quote(line)));
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
            Reply::Skip { topic, seq } => {
                let topic = self.topic(topic).ok_or_else(unknown)?;
                Some(Delivery::Skip { topic, seq })
            }
            Reply::Published { seq, n } => {
                self.confirmed(seq, n)?;
                None
            }
            Reply::Err { code, n: Some(range), text } => {
                self.publishes_refused(range, &error_from_wire(code, text));
                None
            }
            Reply::Err { code, n: None, text } => {
                self.refused(error_from_wire(code, text))?.map(Delivery::Notice)
            }
            Reply::More(text) if self.is_watching() => Some(Delivery::More(text.to_owned())),
            Reply::More(text) => {
                self.more_bytes += text.len() + OVERHEAD_BYTES;
                if self.more_bytes > ANSWER_BYTES_MAX {
                    return Err(ClientError::Protocol("an answer is too long".into()));
                }
                self.more.push(text.to_owned());
                None
            }
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

    /// Whether the next answer belongs to a command with `watches`.
    fn is_watching(&self) -> bool {
        self.shared.lock().answers.front().is_some_and(|asker| asker.watches)
    }

    fn answered(&mut self, ok: String) -> Result<(), ClientError> {
        self.more_bytes = 0;
        let more = std::mem::take(&mut self.more);
        let waiting = self.shared.lock().answers.pop_front();
        let waiting =
            waiting.ok_or_else(|| ClientError::Protocol("it answered without a command".into()))?;
        let _ = waiting.sender.send(Ok(CommandAnswer { ok, more }));
        Ok(())
    }

    /// Returns the refusal if it answers no command. One that ends the connection answers none.
    fn refused(&mut self, error: ProtocolError) -> Result<Option<ProtocolError>, ClientError> {
        if error.code.ends_connection() {
            return Err(ClientError::Ended(error));
        }
        let Some(waiting) = self.shared.lock().answers.pop_front() else {
            return Ok(Some(error));
        };
        self.more_bytes = 0;
        self.more.clear();
        let _ = waiting.sender.send(Err(ClientError::Refused(error)));
        Ok(None)
    }

    /// `[A3]`: confirms everything up to n that no refusal named.
    fn confirmed(&self, seq: Seq, n: u64) -> Result<(), ClientError> {
        let mut state = self.shared.lock();
        let count = n.checked_sub(state.publishes_done).and_then(|n| usize::try_from(n).ok());
        let count = count.filter(|count| *count <= state.publishes.len());
        let count = count.ok_or_else(|| {
            ClientError::Protocol(format!("it confirmed publish {n}, which was not sent"))
        })?;
        state.publishes_done = n;
        for publish in state.publishes.drain(..count).flatten() {
            let _ = publish.sender.send(Ok(seq));
        }
        Ok(())
    }

    /// `[A4]`: refuses these, and no others.
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

/// Bytes that were read and not used yet, split into lines.
pub(super) struct LineReader {
    buffer: BytesMut,
    decoder: LineDecoder,
    /// Bytes of the line that was returned last; dropped before the next one.
    used: usize,
}

impl LineReader {
    pub(super) fn new() -> Self {
        LineReader { buffer: BytesMut::new(), decoder: LineDecoder::new(LINE_BYTES_MAX), used: 0 }
    }

    /// Whether the input begins as a TLS server answers a client that does not speak TLS (RFC 8446,
    /// section 5.1: an alert).
    pub(super) fn is_tls_alert(&self) -> bool {
        self.buffer.starts_with(&[21, 3])
    }

    /// The next line, reading as needed; `None` at the end of input. Each read ends with the error
    /// of `silence` if that comes first.
    pub(super) async fn line<F: Future<Output = ClientError>>(
        &mut self,
        reader: &mut (impl AsyncRead + Unpin),
        silence: impl Fn() -> F,
    ) -> Result<Option<&[u8]>, ClientError> {
        loop {
            self.buffer.advance(std::mem::take(&mut self.used));
            let (used, item) = self.decoder.next(&self.buffer);
            match item {
                None => self.buffer.advance(used),
                Some(LineItem::Line([])) => {
                    self.used = used;
                    continue;
                }
                Some(LineItem::Line(line)) => {
                    let length = line.len();
                    self.used = used;
                    return Ok(self.buffer.get(..length));
                }
                Some(LineItem::TooLong { .. } | LineItem::EndOfTransmission) => {
                    return Err(ClientError::Protocol(
                        "it sent a line that is too long or begins with Ctrl-D".into(),
                    ));
                }
            }
            self.buffer.reserve(READ_BYTES);
            let read = tokio::select! {
                biased;
                read = reader.read_buf(&mut self.buffer) => read,
                error = silence() => return Err(error),
            };
            if read.map_err(|error| closed_error(&error))? == 0 {
                return Ok(None);
            }
        }
    }
}

/// The number of permits for a line.
fn permit_count(line: &[u8]) -> u32 {
    u32::try_from(line.len() + OVERHEAD_BYTES).expect("lines are at most 64 KiB")
}

pub(super) fn closed_error(error: &io::Error) -> ClientError {
    ClientError::Closed(dial::io_error_text(error))
}

fn abandoned_error() -> ClientError {
    ClientError::Closed("this client closed it".into())
}
