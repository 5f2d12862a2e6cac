//! The task of one connection: its state, the order of its work, and its deadlines.
#![expect(clippy::disallowed_methods, reason = "waits for its deadline")]

mod closing;
mod cursors;
mod dispatch;
mod help;
mod input;
mod line_client;
mod login;
mod outbound;
mod output;
mod staged_links;
mod subscribe;
mod subscriptions;
#[cfg(test)]
pub(super) mod tests;
mod worker;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::BytesMut;
use tidings_protocol::{Answers, AttributeFilter, ProtocolError, encode_greeting, encode_more};
use tokio::time::{Sleep, sleep_until};

use self::closing::{CloseReason, Closing};
use self::cursors::ConnectionCursors;
use self::input::LineInput;
use self::line_client::LineClient;
use self::output::Output;
use self::subscriptions::{SubscriptionKind, Subscriptions};
use self::worker::Worker;
use crate::access::Transport;
use crate::audit::AuditEvent;
use crate::clock::Moment;
use crate::mailbox::{ConnId, ConnMessage, Mailbox, MailboxBatch};
use crate::net::Shared;
use crate::net::client_session::{AdmittedConnection, ClientSession};
use crate::net::stream::SocketStream;
use crate::quota::Quantity;
use crate::remote::RemoteInfo;
use crate::topic::{LineForm, Topic};

/// Rounds of reading and writing in one poll; after them other tasks run.
const IO_ROUNDS_MAX: usize = 4;

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
    /// Boxed, because the task of an idle connection must be small.
    client: Box<LineClient>,
    input: LineInput,
    /// The topic of the last publish, which saves a lookup.
    last_topic: Option<Arc<Topic>>,
    /// Pending answers. For a peer: the pending confirmations of its lines, which one farewell
    /// reports together.
    answers: Answers,
    worker: Option<Box<Worker>>,
    cursors: Option<Box<ConnectionCursors>>,
    subscriptions: Subscriptions,
    /// The connection is subscribed to the default topic, as a peer is. Cleared when the first line
    /// shows that it is a client.
    is_peer: bool,
    output: Output,
    /// The remote end has closed and receives nothing more. Lines that it sent before are still
    /// processed. Not in `Output`, where it would make each connection larger by a word.
    is_write_closed: bool,
    /// Set once the connection is closing; from then on no commands are read.
    closing: Option<Box<Closing>>,
    timer: Option<Pin<Box<Sleep>>>,
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
            input: LineInput::new(shared.clock.now()),
            client: Box::new(LineClient::begin(&shared, session)),
            shared,
            mailbox,
            stream,
            last_topic: None,
            answers: Answers::new(),
            worker: None,
            cursors: None,
            subscriptions: Subscriptions::default(),
            is_peer: true,
            output: Output::default(),
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
        self.output.push(greeting.freeze());
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

    /// Reports buffered bytes and subscriptions to the quotas. Fails if a quota is exceeded.
    fn update_usage(&mut self) -> Result<(), ProtocolError> {
        self.client.session.hold(Quantity::Subscriptions, self.subscriptions.len())?;
        if self.closing.is_some() {
            return Ok(());
        }
        let staged = self.worker.as_ref().map_or(0, |worker| worker.staged_bytes());
        let buffered =
            self.input.unread() + self.answers.bytes() + self.output.task_bytes() + staged;
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

    /// Whether no more may be read: too many answers are pending, or a login or rate limit pauses
    /// the connection.
    fn is_congested(&self) -> bool {
        let (pending, max) = (self.answers.len(), self.shared.limits.unanswered_max);
        // A paused connection resumes only when at most half of the answers remain, so that it does
        // not resume for a single line.
        let too_many = if self.input.has_backlog() { pending > max / 2 } else { pending >= max };
        too_many
            || self.answers.bytes() >= self.shared.limits.answer_bytes_max
            || self.worker.as_ref().is_some_and(|worker| worker.has_pending_command())
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
            self.handle_stall();
        }
        IoStatus::Progress
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        tracing::debug!(conn = %self.id, peer = %self.client.session.remote(), "closed");
        let why = self.closing.as_ref().map_or("connection lost", |closing| closing.reason());
        self.client.session.audit(AuditEvent::Disconnected { why });
        self.release_cursors(None);
        self.mailbox.discard();
        self.shared.registry.unregister(self.id);
        if let Some(worker) = &self.worker {
            self.shared.registry.release_member(worker.member(), self.id);
            if worker.must_report_end() {
                self.shared.groups.connection_ended(self.id);
            }
        }
    }
}
