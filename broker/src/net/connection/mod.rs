//! The task of one connection: its state, the order of its work, and its deadlines.
#![expect(clippy::disallowed_methods, reason = "waits for its deadline")]

mod closing;
mod closing_state;
mod cursors;
mod dispatch;
mod help;
mod input;
mod line_client;
mod login;
mod outbound;
mod staged_links;
mod subscribe;
mod subscriptions;
#[cfg(test)]
mod tests;

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use tidings_protocol::status::Answer;
use tidings_protocol::{
    Answers, AttributeFilter, MemberId, ProtocolError, Seq, Session, SessionMode, Slot,
    encode_greeting, encode_more,
};
use tidings_queue::WorkerReply;
use tokio::io::AsyncWrite;
use tokio::time::{Sleep, sleep_until};

use self::closing_state::{CloseReason, Closing};
use self::cursors::ConnectionCursors;
use self::line_client::LineClient;
use self::outbound::OutboundQueue;
use self::staged_links::StagedLinks;
use self::subscriptions::{SubscriptionKind, Subscriptions};
use crate::access::Transport;
use crate::audit::AuditEvent;
use crate::clock::Moment;
use crate::mailbox::{ConnId, ConnMessage, GroupBatch, Mailbox, MailboxBatch};
use crate::net::Shared;
use crate::net::client_session::{AdmittedConnection, ClientSession};
use crate::net::stream::SocketStream;
use crate::quota::Quantity;
use crate::remote::RemoteInfo;
use crate::topic::{LineForm, Topic, WaiterSlot};

/// Rounds of reading and writing in one poll; after them other tasks run.
const IO_ROUNDS_MAX: usize = 4;

/// Usual length of the answer to an `ACK`.
const ANSWER_BYTES: usize = 80;

/// A connection, polled as one task. It never awaits in the middle of an operation: one `poll` does
/// all that is possible now, and each change that makes more possible wakes the task.
///
/// An idle connection holds no buffers. Input is read into a buffer of the thread, and only a
/// partial line is kept. Output consists of slices of the topics' memory.
#[derive(Debug)]
pub(super) struct Connection {
    shared: Arc<Shared>,
    id: ConnId,
    mailbox: Mailbox,
    stream: SocketStream,
    session: Session,
    /// Boxed, because the task of an idle connection must be small.
    client: Box<LineClient>,
    /// Input that is not processed yet: a partial line, or more if `has_backlog`.
    input_buffer: Vec<u8>,
    /// `input_buffer` may hold whole lines, because too many answers were pending.
    has_backlog: bool,
    /// The time of the last read, or of the last poll in which reading was paused.
    read_at: Moment,
    /// The topic of the last publish, which saves a lookup.
    last_topic: Option<Arc<Topic>>,
    /// The topic's id and the slot in which the connection waits for an event to become durable.
    durable_waiter: Option<(u64, WaiterSlot)>,
    /// Pending answers. For a peer: the pending confirmations of its lines, which one farewell
    /// reports together.
    answers: Answers,
    worker: Option<Box<WorkerState>>,
    cursors: Option<Box<ConnectionCursors>>,
    subscriptions: Subscriptions,
    /// The connection is subscribed to the default topic, as a peer is. Cleared when the first line
    /// shows that it is a client.
    is_peer: bool,
    /// Encoded tasks that are not in the outbound queue yet.
    task_buffer: BytesMut,
    outbound: OutboundQueue,
    /// The remote end has closed and receives nothing more. Lines that it sent before are still
    /// processed.
    is_write_closed: bool,
    /// Set once the connection is closing; from then on no commands are read.
    closing: Option<Box<Closing>>,
    timer: Option<Pin<Box<Sleep>>>,
}

/// State of a connection that uses groups or has sent `HELLO`.
#[derive(Debug)]
struct WorkerState {
    pub(super) member: MemberId,
    /// The name that the client sent.
    pub(super) name: Option<Box<str>>,
    /// Groups know this member, so its id cannot change any more.
    pub(super) is_known_to_groups: bool,
    /// The connection has used `wait` or `watch`, so groups must be notified when it ends.
    pub(super) has_waited: bool,
    /// The commands without an answer yet whose answers may come late (`is_wait`).
    pub(super) wait_slots: Vec<Slot>,
    /// The running `JOB watch` or `GROUP watch`. There is one at a time, because answers keep their
    /// order and a second one could not be sent.
    pub(super) watch_slot: Option<Slot>,
    /// When groups were last notified that the member is active.
    pub(super) last_active_at: Moment,
    pub(super) staged_links: StagedLinks,
    /// Replies about tasks of one group that were read together and not handed over yet.
    pub(super) pending_replies: Vec<(Slot, WorkerReply)>,
    /// The answer of the newest `JOIN`. No task is sent before it (`[D3]`).
    pub(super) join_slot: Option<Slot>,
    /// The pending `TOPIC`, `GROUP`, `JOB` or `EXPLAIN`, except those that may be answered late. Its
    /// answer may be long, so there is one at a time.
    pub(super) pending_slot: Option<Slot>,
}

/// The result of one step of a poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IoStatus {
    /// Something was done, and there may be more to do.
    Progress,
    /// There is nothing to do until the task is woken.
    Idle,
    /// The connection is closed.
    Closed,
}

impl Connection {
    pub(super) fn new(
        shared: Arc<Shared>,
        admitted: AdmittedConnection,
        stream: SocketStream,
        remote: RemoteInfo,
    ) -> Self {
        let (session, mailbox) =
            ClientSession::begin(Arc::clone(&shared), admitted, Transport::Line, remote);
        Self {
            id: session.conn(),
            read_at: shared.clock.now(),
            client: Box::new(LineClient::begin(&shared, session)),
            shared,
            mailbox,
            stream,
            session: Session::new(),
            input_buffer: Vec::new(),
            has_backlog: false,
            last_topic: None,
            durable_waiter: None,
            answers: Answers::new(),
            worker: None,
            cursors: None,
            subscriptions: Subscriptions::default(),
            is_peer: true,
            task_buffer: BytesMut::new(),
            outbound: OutboundQueue::default(),
            is_write_closed: false,
            closing: None,
            timer: None,
        }
    }

    /// Sends the greeting and serves until the connection ends. Must be a task of its own, because
    /// topics and the mailbox keep the task's waker.
    pub(super) fn run(mut self) -> impl Future<Output = ()> {
        let mut greeted = false;
        // An async block would contain the connection twice: before and after the first poll.
        poll_fn(move |cx| {
            if !greeted {
                greeted = true;
                self.send_greeting(cx);
            }
            self.poll(cx)
        })
    }

    /// Sends the greeting before any input is read. The connection is then subscribed to the
    /// default topic, until its first line shows that it is a client.
    fn send_greeting(&mut self, cx: &mut Context<'_>) {
        self.client.session.audit(AuditEvent::Connected);
        if let Err(error) = self.client.session.count_principal() {
            self.is_peer = false;
            return self.start_closing(CloseReason::Error(error));
        }
        let form = LineForm::Bare { origin: self.id };
        let name = self.client.session.peer_topic();
        if let Some(topic) = name.and_then(|name| self.shared.topics.open(name).ok()) {
            let reader = topic.subscribe(None, form, cx.waker().clone());
            self.subscriptions.add(reader, SubscriptionKind::Peer, AttributeFilter::default());
        }
        let mut greeting = BytesMut::new();
        encode_greeting(self.id.0, &mut greeting);
        self.outbound.push(greeting.freeze());
        // The next poll handles a greeting that cannot be written now, or never.
        let _ = self.poll_output(cx);
    }

    /// Handles the mailbox, then input, output and deadlines. Returns after a bounded number of
    /// reads and writes, so that other tasks run.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        for round in 1..=IO_ROUNDS_MAX {
            self.process_mailbox(cx.waker());
            self.store_durable_positions(cx.waker());
            let input = self.poll_input(cx);
            if input == IoStatus::Progress
                && round < IO_ROUNDS_MAX
                && self.awaits_only_confirmations()
            {
                // One confirmation of several reads costs as much as one of a single read.
                continue;
            }
            let output = if input == IoStatus::Closed { input } else { self.poll_output(cx) };
            if let Err(error) = self.update_usage() {
                self.start_closing(CloseReason::Error(error));
                cx.waker().wake_by_ref();
            }
            let mut step = output;
            if output == IoStatus::Idle {
                step = if input == IoStatus::Idle { self.poll_deadline(cx) } else { input };
            }
            match step {
                IoStatus::Progress => {}
                IoStatus::Idle => return Poll::Pending,
                IoStatus::Closed => return Poll::Ready(()),
            }
        }
        // Deadlines hold even if the client keeps the connection busy.
        if self.poll_deadline(cx) == IoStatus::Closed {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Whether the only output is confirmations of publishes, which can be merged into one.
    fn awaits_only_confirmations(&self) -> bool {
        self.subscriptions.len() == 0
            && self.outbound.is_empty()
            && self.task_buffer.is_empty()
            && self.answers.len() == 1
            && self.answers.blocking_publish().is_some()
    }

    /// Reports buffered bytes and subscriptions to the quotas. Fails if a quota is exceeded.
    fn update_usage(&mut self) -> Result<(), ProtocolError> {
        self.client.session.hold(Quantity::Subscriptions, self.subscriptions.len())?;
        if self.closing.is_some() {
            return Ok(());
        }
        let staged = self.worker.as_ref().map_or(0, |worker| worker.staged_links.bytes);
        let buffered =
            self.input_buffer.len() + self.answers.bytes() + self.task_buffer.len() + staged;
        self.client.session.hold(Quantity::BufferedBytes, buffered)
    }

    /// Handles messages of groups and of the broker. `waker` is woken by the next message.
    fn process_mailbox(&mut self, waker: &Waker) {
        let MailboxBatch { messages, renew_requested, close_requested } = self.mailbox.drain(waker);
        if renew_requested {
            self.renew_identity();
        }
        for message in messages {
            match message {
                ConnMessage::Answer { slot, answer } => self.fill_answers(vec![(slot, answer)]),
                ConnMessage::Progress { slot, status } => {
                    let mut line = BytesMut::new();
                    encode_more(&status.to_string(), &mut line);
                    self.answers.progress(slot, line.freeze());
                }
                ConnMessage::Stored { slot, result } => self.handle_stored(slot, result),
                ConnMessage::Group(batch) => self.queue_batch(batch),
                ConnMessage::End(error) => self.start_closing(CloseReason::Error(error)),
            }
        }
        if close_requested {
            self.start_closing(CloseReason::Shutdown);
        }
    }

    fn queue_batch(&mut self, GroupBatch { answers, tasks }: GroupBatch) {
        self.fill_answers(answers);
        // When a connection ends, its group is notified and releases the tasks to other members.
        if self.closing.is_none() {
            append(&mut self.task_buffer, tasks);
        }
    }

    /// Fills slots with answers, which share a buffer.
    fn fill_answers(&mut self, answers: Vec<(Slot, Result<Answer, ProtocolError>)>) {
        let mut lines = BytesMut::with_capacity(answers.len() * ANSWER_BYTES);
        for (slot, answer) in answers {
            match answer {
                Ok(answer) => answer.encode(&mut lines),
                Err(error) => self.encode_refusal(&error, &mut lines),
            }
            self.fill(slot, lines.split().freeze());
        }
    }

    fn fill(&mut self, slot: Slot, lines: Bytes) {
        if let Some(worker) = &mut self.worker {
            worker.pending_slot.take_if(|pending| *pending == slot);
            worker.watch_slot.take_if(|watched| *watched == slot);
            worker.wait_slots.retain(|waited| *waited != slot);
        }
        self.answers.fill(slot, lines);
    }

    /// Writes once, if there is something to write and the socket accepts it.
    fn poll_output(&mut self, cx: &mut Context<'_>) -> IoStatus {
        if self.is_write_closed {
            return self.discard_output(cx.waker());
        }
        if self.outbound.stalled_since.is_some() && self.stream.poll_write_ready(cx).is_pending() {
            return IoStatus::Idle;
        }
        // If so, written output does not allow more input.
        let only_events = self.answers.is_empty() && !self.has_backlog && self.closing.is_none();
        let refilled = self.outbound.is_empty() && self.refill_outbound(cx.waker());
        if self.outbound.is_empty() {
            // TLS may still hold encrypted bytes.
            return match Pin::new(&mut self.stream).poll_flush(cx) {
                Poll::Ready(Ok(())) => self.poll_close(cx),
                Poll::Ready(Err(error)) => self.handle_write_error(&error),
                Poll::Pending => {
                    self.extend_deadlines_if_sent();
                    IoStatus::Idle
                }
            };
        }
        let clock = self.shared.clock;
        match self.outbound.poll_write(cx, &mut self.stream, || clock.now()) {
            Poll::Ready(Ok(written)) => {
                self.shared.stats.bytes_out.add(written as u64);
                self.extend_closing_deadline();
                // Nearly every delivery ends here: all output is written, and new output wakes the
                // task.
                let is_done =
                    only_events && self.outbound.is_empty() && !self.refill_outbound(cx.waker());
                if is_done { IoStatus::Idle } else { IoStatus::Progress }
            }
            Poll::Ready(Err(error)) => self.handle_write_error(&error),
            Poll::Pending => {
                self.extend_deadlines_if_sent();
                // The refill drained answers, which may allow more input.
                if refilled { IoStatus::Progress } else { IoStatus::Idle }
            }
        }
    }

    /// Handles a failed write. If the remote end has closed, its remaining input is still read to
    /// the end; any other error closes the connection.
    fn handle_write_error(&mut self, error: &io::Error) -> IoStatus {
        let is_remote_closed =
            matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe);
        if !is_remote_closed || self.closing.is_some() {
            return IoStatus::Closed;
        }
        self.is_write_closed = true;
        self.subscriptions.clear();
        IoStatus::Progress
    }

    /// Drops all output after the remote end has closed. Answers are drained anyway, so that
    /// reading can continue.
    fn discard_output(&mut self, waker: &Waker) -> IoStatus {
        if self.closing.is_some() {
            return IoStatus::Closed;
        }
        self.refill_outbound(waker);
        self.outbound = OutboundQueue::default();
        IoStatus::Idle
    }

    /// Moves output to the outbound queue: answers, then tasks, then events. Returns whether there
    /// is any. Until then it stays in `answers` and in the topics, where confirmations are merged
    /// and events cost no memory.
    fn refill_outbound(&mut self, waker: &Waker) -> bool {
        let mut lines = BytesMut::new();
        while !self.answers.is_empty() {
            let topics = &self.shared.topics;
            self.answers.drain(|topic, seq| topics.fate(topic, seq), &mut lines);
            if self.session.mode() == SessionMode::Peer {
                lines.clear();
            }
            let Some((topic, seq)) = self.answers.blocking_publish() else { break };
            if self.waits_for_durable(topic, seq, waker) {
                break;
            }
            // The event became durable after the drain, so no wake-up will come: drain again.
        }
        let join_slot = self.worker.as_ref().and_then(|worker| worker.join_slot);
        let may_send = join_slot.is_none_or(|slot| self.answers.is_drained(slot));
        if may_send {
            append(&mut lines, std::mem::take(&mut self.task_buffer));
        }
        self.outbound.push(lines.freeze());
        let bytes_max = self.shared.limits.deliver_bytes;
        let clock = self.shared.clock;
        let delivered =
            self.subscriptions.fetch(&mut self.outbound, &self.answers, bytes_max, || clock.now());
        self.shared.stats.count_delivered(delivered.events, delivered.lags);
        if delivered.has_more && self.outbound.is_empty() {
            // Other tasks run between two parts of a search.
            waker.wake_by_ref();
        }
        !self.outbound.is_empty()
    }

    /// Returns whether the event is not durable yet. If so, `waker` is woken when it is.
    fn waits_for_durable(&mut self, id: u64, seq: Seq, waker: &Waker) -> bool {
        let Some(topic) = self.shared.topics.by_id(id) else { return false };
        let waiter = self.durable_waiter.filter(|(other, _)| *other == id);
        let waiter = topic.wait_durable(seq, waiter.map(|(_, waiter)| waiter), waker);
        self.durable_waiter = waiter.map(|waiter| (id, waiter));
        waiter.is_some()
    }

    /// Whether no more may be read: too many answers are pending, or a login or rate limit pauses
    /// the connection.
    fn is_congested(&self) -> bool {
        let (pending, max) = (self.answers.len(), self.shared.limits.unanswered_max);
        // A paused connection resumes only when at most half of the answers remain, so that it does
        // not resume for a single line.
        let too_many = if self.has_backlog { pending > max / 2 } else { pending >= max };
        too_many
            || self.answers.bytes() >= self.shared.limits.answer_bytes_max
            || self.worker.as_ref().is_some_and(|worker| worker.pending_slot.is_some())
            || self.cursors.as_ref().is_some_and(|cursors| cursors.has_deferred())
            || self.client.is_rejection_delayed()
            || (self.client.must_log_in() && !self.answers.is_empty())
            || self.client.session.paused_until().is_some()
    }

    /// Whether reading must pause even after confirmations were merged.
    fn should_pause_reading(&mut self) -> bool {
        if self.is_congested() {
            let topics = &self.shared.topics;
            self.answers.fold(|topic, seq| topics.fate(topic, seq));
        }
        self.is_congested()
    }

    /// Whether the topic of the last publish applies back-pressure. `waker` is woken when that may
    /// have changed.
    fn is_backpressured(&self, waker: Option<&Waker>) -> bool {
        self.last_topic.as_ref().is_some_and(|topic| topic.is_backpressured(waker))
    }

    /// Whether the unsent tasks exceed the limit for a worker that does not read.
    fn exceeds_task_buffer(&self) -> bool {
        self.closing.is_none() && self.task_buffer.len() > self.shared.limits.task_bytes_max
    }

    /// Handles deadlines that have passed, or waits for the next one.
    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> IoStatus {
        let deadlines = [
            self.closing_deadline(),
            self.partial_line_deadline(),
            self.stall_deadline(),
            self.skip_deadline(),
            self.client.deadline(),
            self.client.session.paused_until(),
        ];
        let Some(deadline) = deadlines.into_iter().flatten().min() else {
            // The timer is not reset, because under load deadlines come and go with every read.
            if self.timer.as_mut().is_some_and(|timer| timer.as_mut().poll(cx).is_ready()) {
                self.timer = None;
            }
            return IoStatus::Idle;
        };
        if deadline <= self.shared.clock.now() {
            return self.handle_expired_deadlines();
        }
        let at = self.shared.clock.instant(deadline);
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(at)));
        if timer.is_elapsed() || timer.deadline() > at {
            timer.as_mut().reset(at);
        }
        // The timer may be set to an older and earlier deadline; the next poll then sets it again.
        match timer.as_mut().poll(cx) {
            Poll::Ready(()) => IoStatus::Progress,
            Poll::Pending => IoStatus::Idle,
        }
    }

    fn handle_expired_deadlines(&mut self) -> IoStatus {
        let now = self.shared.clock.now();
        let passed = |deadline: Option<Moment>| deadline.is_some_and(|deadline| deadline <= now);
        if passed(self.closing_deadline()) {
            if !self.end_waits() {
                return IoStatus::Closed;
            }
            self.extend_closing_deadline();
        }
        if passed(self.client.deadline()) {
            self.handle_login_deadline();
        }
        if passed(self.client.session.paused_until()) {
            self.client.session.end_pause(now);
        }
        if passed(self.partial_line_deadline()) {
            self.start_closing(CloseReason::PartialLineTimeout);
        }
        if passed(self.stall_deadline()) {
            let subscriptions = &mut self.subscriptions;
            self.outbound.release_topic_memory(|id, seq| subscriptions.rewind(id, seq));
            subscriptions.cancel_disk_reads();
            if self.exceeds_task_buffer() {
                self.start_closing(CloseReason::UnreadTasks);
            }
        }
        IoStatus::Progress
    }

    fn closing_deadline(&self) -> Option<Moment> {
        self.closing.as_ref().map(|ending| ending.deadline)
    }

    /// `None` while reading is paused, because the rest of the line may already be in the socket.
    fn partial_line_deadline(&self) -> Option<Moment> {
        let is_partial = self.session.is_mid_line() && !self.has_backlog && self.closing.is_none();
        (is_partial && !self.is_congested() && !self.is_backpressured(None))
            .then(|| self.read_at + self.shared.limits.partial_line_timeout_ms)
    }

    /// When to report skipped events. Unwritten output delays that.
    fn skip_deadline(&self) -> Option<Moment> {
        let is_writable = self.outbound.is_empty() && self.outbound.stalled_since.is_none();
        if is_writable { self.subscriptions.skip_deadline() } else { None }
    }

    fn stall_deadline(&self) -> Option<Moment> {
        let since = self.outbound.stalled_since?;
        let pins = self.outbound.pins_topic_memory() || self.subscriptions.is_waiting_for_disk();
        let is_relevant = pins || self.exceeds_task_buffer();
        is_relevant.then(|| since + self.shared.limits.stalled_ms)
    }
}

/// Appends bytes, without a copy if there are none before them.
fn append(lines: &mut BytesMut, more: BytesMut) {
    if lines.is_empty() {
        *lines = more;
    } else {
        lines.extend_from_slice(&more);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        tracing::debug!(conn = %self.id, peer = %self.client.session.remote(), "closed");
        let why = self.closing.as_ref().map_or("connection lost", |closing| closing.reason);
        self.client.session.audit(AuditEvent::Disconnected { why });
        self.release_cursors(None);
        self.mailbox.discard();
        self.shared.registry.unregister(self.id);
        if let Some(worker) = &self.worker {
            self.shared.registry.release_member(worker.member, self.id);
            if worker.is_known_to_groups || worker.has_waited {
                self.shared.groups.connection_ended(self.id);
            }
        }
    }
}
