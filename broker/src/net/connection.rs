//! One connection: what wakes it, in which order it acts, how it ends.
#![expect(clippy::disallowed_methods, reason = "waits for its deadline")]

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use tidings_protocol::{
    Answers, Durability, MemberId, ProtocolError, Seq, Session, SessionMode, Slot, encode_greeting,
};
use tokio::io::AsyncWrite;
use tokio::time::{Sleep, sleep_until};

use super::Hub;
use super::closing::{CloseReason, Closing};
use super::cursors::ConnectionCursors;
use super::listener::AdmittedConnection;
use super::login::LoginState;
use super::outbound::OutboundQueue;
use super::staged_links::StagedLinks;
use super::stream::{RemoteInfo, SocketStream};
use super::subscriptions::{SubscriptionKind, Subscriptions};
use crate::access::Identity;
use crate::audit::{AuditEvent, Initiator};
use crate::clock::Moment;
use crate::groups::TaskCommand;
use crate::mailbox::{ConnId, ConnMessage, GroupLines, Mailbox, MailboxBatch};
use crate::quota::Quantity;
use crate::topic::{LineForm, Topic, Topics, WaiterSlot};

/// Reads and writes of one connection before others have their turn.
const IO_ROUNDS_MAX: usize = 4;

/// The task of one connection. It never awaits anything in the middle of something: one `poll`
/// does what can be done, and everything that may change its answer wakes the task.
///
/// Idle, it holds no buffers: input is read into a buffer of the worker thread, and only an
/// unfinished line is kept; output is slices of the topics' memory.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own, and not a state")]
pub(super) struct Connection {
    pub(super) hub: Arc<Hub>,
    pub(super) id: ConnId,
    pub(super) mailbox: Mailbox,
    pub(super) stream: SocketStream,
    pub(super) session: Session,
    /// Who it is, and on which way those came for whom it speaks.
    pub(super) identity: Identity,
    /// Who is at the other end, and what becomes of saying so.
    pub(super) login: Box<LoginState>,
    /// What was read and not consumed: an unfinished line, or more if there is a backlog.
    pub(super) input_buffer: Vec<u8>,
    /// `input_buffer` may hold whole lines: too much was unanswered to go on.
    pub(super) has_backlog: bool,
    /// When something was read last, or reading was paused.
    pub(super) read_at: Moment,
    /// The topic that was published to last, to find it quickly.
    pub(super) last_topic: Option<Arc<Topic>>,
    /// A line was not kept, so that there is nothing to say farewell to a peer for.
    pub(super) has_dropped_line: bool,
    /// Where it waits for an event to be safe: the topic's id and its place there.
    durable_waiter: Option<(u64, WaiterSlot)>,
    /// What is owed, to peers the fate of what they published: the farewell says it all at once.
    pub(super) answers: Answers,
    /// Bytes of answers in `answers`; reset when it is empty, so never too low.
    pub(super) answer_bytes: usize,
    pub(super) worker: Option<Box<WorkerState>>,
    pub(super) cursors: Option<Box<ConnectionCursors>>,
    pub(super) subscriptions: Subscriptions,
    /// It hears the default topic as a peer does, until it turns out to be a client.
    pub(super) is_peer: bool,
    /// Tasks that wait for the outbound queue.
    pub(super) task_buffer: BytesMut,
    pub(super) outbound: OutboundQueue,
    /// The other side is gone and hears nothing; lines of it that have arrived still count.
    pub(super) is_write_closed: bool,
    /// Set once it is on its way to its end; nothing is read any more.
    pub(super) closing: Option<Box<Closing>>,
    timer: Option<Pin<Box<Sleep>>>,
}

/// What only a connection has that works for groups, or said `HELLO`.
#[derive(Debug)]
pub(super) struct WorkerState {
    pub(super) member: MemberId,
    /// Groups know it, so the identity cannot change any more.
    pub(super) is_known_to_groups: bool,
    /// It has waited for a job or watched something, so that groups are to be told when it is gone.
    pub(super) has_waited: bool,
    /// The `JOB wait` that have no answer yet.
    pub(super) wait_slots: Vec<Slot>,
    /// The `JOB watch` or `GROUP watch` that has not ended. There is one at a time: what another
    /// one had to say could not leave.
    pub(super) watch_slot: Option<Slot>,
    /// When groups were told last that it lives.
    pub(super) last_active_at: Moment,
    pub(super) staged_links: StagedLinks,
    /// What it said of tasks of one group since the group heard of it last: of what was read at
    /// once.
    pub(super) pending_commands: Vec<(Slot, TaskCommand)>,
    /// The answer of the newest `JOIN`, before which no task leaves (`[D3]`).
    pub(super) join_slot: Option<Slot>,
    /// The `GROUP`, `JOB` (but for `wait` and `watch`) or `EXPLAIN` whose answer has not come yet.
    /// It may be long, so there is one at a time.
    pub(super) pending_slot: Option<Slot>,
}

/// What a part of a turn came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IoStatus {
    /// Something was done; there may be more.
    Progress,
    /// Nothing to do; what may change that wakes the task.
    Idle,
    /// The connection is gone.
    Closed,
}

impl Connection {
    pub(super) fn new(
        hub: Arc<Hub>,
        AdmittedConnection { conn: id, mailbox, usage: held }: AdmittedConnection,
        stream: SocketStream,
        remote: RemoteInfo,
    ) -> Self {
        let (identity, login) = LoginState::begin(&hub, remote, held);
        Self {
            read_at: hub.clock.now(),
            login,
            hub,
            id,
            mailbox,
            stream,
            session: Session::new(),
            identity,
            input_buffer: Vec::new(),
            has_backlog: false,
            last_topic: None,
            has_dropped_line: false,
            durable_waiter: None,
            answers: Answers::new(),
            answer_bytes: 0,
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

    /// Greets, and serves until the connection ends. Must be a task of its own, because whoever
    /// wakes it keeps the task's waker.
    pub(super) fn run(mut self) -> impl Future<Output = ()> {
        let mut greeted = false;
        // No async block: it would hold the connection twice, before and after the first poll.
        poll_fn(move |cx| {
            if !greeted {
                greeted = true;
                self.send_greeting(cx);
            }
            self.poll(cx)
        })
    }

    /// Notes what whoever is at the other end does, if that is kept.
    pub(super) fn audit(&self, what: AuditEvent<'_>) {
        self.hub.audit.record(|| (what, self.initiator()));
    }

    pub(super) fn initiator(&self) -> Initiator {
        Initiator::identified(self.id.0, &self.login.remote, &self.identity)
    }

    /// Says hello, before anything that comes in is looked at. From here on it hears the default
    /// topic, unless its first line says otherwise.
    fn send_greeting(&mut self, cx: &mut Context<'_>) {
        self.audit(AuditEvent::Connected);
        if let Err(error) = self.hub.assign_usage(&mut self.login.usage, &self.identity) {
            self.is_peer = false;
            return self.start_closing(CloseReason::Error(error));
        }
        let form = LineForm::Bare { origin: self.id };
        if let Some(topic) = self.peer_topic() {
            let reader = topic.subscribe(None, form, cx.waker().clone());
            self.subscriptions.add(reader, SubscriptionKind::Peer);
        }
        let mut greeting = BytesMut::new();
        encode_greeting(self.id.0, &mut greeting);
        self.outbound.push(greeting.freeze());
        // If it cannot be written now, or ever, that comes up again.
        let _ = self.poll_output(cx);
    }

    /// One turn: what the broker wants, then input, then output, then time. Others get a turn
    /// after a bounded number of reads and writes.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        for turn in 1..=IO_ROUNDS_MAX {
            self.process_mailbox(cx.waker());
            self.store_durable_positions(cx.waker());
            let input = self.poll_input(cx);
            if input == IoStatus::Progress
                && turn < IO_ROUNDS_MAX
                && self.awaits_only_confirmations()
            {
                // One confirmation for several reads costs what one for each does.
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
        // Whoever keeps it busy does not keep it from its deadlines.
        if self.poll_deadline(cx) == IoStatus::Closed {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Whether there is nothing to send but confirmations of publishes, which fold.
    fn awaits_only_confirmations(&self) -> bool {
        self.subscriptions.len() == 0
            && self.outbound.is_empty()
            && self.task_buffer.is_empty()
            && self.answers.len() == 1
            && self.answers.blocking_publish().is_some()
    }

    /// Counts what waits for it, and what it hears. Refused if that is too much for whose it is.
    fn update_usage(&mut self) -> Result<(), ProtocolError> {
        let Some(held) = &mut self.login.usage else { return Ok(()) };
        let staged = self.worker.as_ref().map_or(0, |worker| worker.staged_links.bytes());
        let parked = self.input_buffer.len() + self.answer_bytes + self.task_buffer.len() + staged;
        held.set(Quantity::Subscriptions, self.subscriptions.len() as u64)?;
        if self.closing.is_some() {
            return Ok(());
        }
        held.set(Quantity::BufferedBytes, parked as u64)
    }

    /// Does what groups and the broker want; `waker` is woken when they want more.
    pub(super) fn process_mailbox(&mut self, waker: &Waker) {
        let MailboxBatch { messages: parcels, renew_requested: renewing, close_requested: closing } =
            self.mailbox.drain(waker);
        if renewing {
            self.renew_identity();
        }
        for parcel in parcels {
            match parcel {
                ConnMessage::Answer { slot, line } => self.fill(slot, line),
                ConnMessage::Progress { slot, line } => self.answers.progress(slot, line),
                ConnMessage::Stored { slot, result } => self.handle_stored(slot, result),
                ConnMessage::Lines(lines) => self.queue_group_lines(lines),
                ConnMessage::End(error) => self.start_closing(CloseReason::Error(error)),
            }
        }
        if closing {
            self.start_closing(CloseReason::Shutdown);
        }
    }

    fn queue_group_lines(&mut self, lines: GroupLines) {
        let (answers, tasks) = lines.into_parts();
        for (slot, lines) in answers {
            self.fill(slot, lines);
        }
        // If it ends, the group hears that it is gone, and gives the tasks to others.
        if self.closing.is_none() {
            if self.task_buffer.is_empty() {
                self.task_buffer = tasks;
            } else {
                self.task_buffer.extend_from_slice(&tasks);
            }
        }
    }

    /// The answer of a slot has come.
    pub(super) fn fill(&mut self, slot: Slot, lines: Bytes) {
        if let Some(worker) = &mut self.worker {
            worker.pending_slot.take_if(|asked| *asked == slot);
            worker.watch_slot.take_if(|watching| *watching == slot);
            worker.wait_slots.retain(|waiting| *waiting != slot);
        }
        self.answer_bytes += lines.len();
        self.answers.fill(slot, lines);
    }

    /// Writes until the socket takes no more or there is nothing to write.
    fn poll_output(&mut self, cx: &mut Context<'_>) -> IoStatus {
        if self.is_write_closed {
            return self.discard_output(cx.waker());
        }
        if self.outbound.stalled_since().is_some() && self.stream.poll_write_ready(cx).is_pending()
        {
            return IoStatus::Idle;
        }
        // Then nothing that leaves makes room for more input.
        let only_listens = self.answers.is_empty() && !self.has_backlog && self.closing.is_none();
        let refilled = self.outbound.is_empty() && self.refill_outbound(cx.waker());
        if self.outbound.is_empty() {
            // Of what was encrypted something may be left.
            return match Pin::new(&mut self.stream).poll_flush(cx) {
                Poll::Ready(Ok(())) => self.poll_close(cx),
                Poll::Ready(Err(error)) => self.handle_write_error(&error),
                Poll::Pending => {
                    self.extend_deadlines_if_sent();
                    IoStatus::Idle
                }
            };
        }
        let clock = self.hub.clock;
        match self.outbound.poll_write(cx, &mut self.stream, || clock.now()) {
            Poll::Ready(Ok(())) => {
                self.extend_closing_deadline();
                // Nearly every delivery ends here: there is nothing more, and whatever comes wakes
                // it.
                let is_done =
                    only_listens && self.outbound.is_empty() && !self.refill_outbound(cx.waker());
                if is_done { IoStatus::Idle } else { IoStatus::Progress }
            }
            Poll::Ready(Err(error)) => self.handle_write_error(&error),
            Poll::Pending => {
                self.extend_deadlines_if_sent();
                // What was refilled made room for more input.
                if refilled { IoStatus::Progress } else { IoStatus::Idle }
            }
        }
    }

    /// The other side has closed without having read everything, or is gone. What it sent before
    /// that is read to its end, like that of anybody else.
    fn handle_write_error(&mut self, error: &io::Error) -> IoStatus {
        let closed =
            matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe);
        if !closed || self.closing.is_some() {
            return IoStatus::Closed;
        }
        self.is_write_closed = true;
        self.subscriptions.clear();
        IoStatus::Progress
    }

    /// Nobody hears it. Answers are taken all the same, so that reading goes on.
    fn discard_output(&mut self, waker: &Waker) -> IoStatus {
        if self.closing.is_some() {
            return IoStatus::Closed;
        }
        self.refill_outbound(waker);
        self.outbound = OutboundQueue::default();
        IoStatus::Idle
    }

    /// Takes what may leave: answers, then tasks, then events. It waits in `answers` and in the
    /// topics until then, because there it folds, and costs nothing. Whether there was something.
    fn refill_outbound(&mut self, waker: &Waker) -> bool {
        let mut lines = BytesMut::new();
        while !self.answers.is_empty() {
            let (topics, lost) = (&self.hub.topics, Cell::new(false));
            self.answers.drain(durability_lookup(topics, &lost), &mut lines);
            self.has_dropped_line |= lost.get();
            if self.session.mode() == SessionMode::Peer {
                lines.clear();
            }
            if self.answers.is_empty() {
                self.answer_bytes = 0;
            }
            let Some((topic, seq)) = self.answers.blocking_publish() else { break };
            let topic = topics.by_id(topic);
            if topic.is_some_and(|topic| self.wait_durable(&topic, seq, waker)) {
                break;
            }
            // Nobody wakes it: the event has become safe since the look at its fate.
        }
        let joined = self.worker.as_ref().and_then(|worker| worker.join_slot);
        let may_leave = joined.is_none_or(|slot| self.answers.is_drained(slot));
        let tasks = if may_leave { std::mem::take(&mut self.task_buffer) } else { BytesMut::new() };
        if lines.is_empty() {
            lines = tasks;
        } else {
            lines.extend_from_slice(&tasks);
        }
        self.outbound.push(lines.freeze());
        let bytes_max = self.hub.limits.deliver_bytes;
        self.subscriptions.fetch(&mut self.outbound, &self.answers, bytes_max);
        !self.outbound.is_empty()
    }

    /// Has the connection woken when an event is safe; whether it is not yet.
    pub(super) fn wait_durable(&mut self, topic: &Topic, seq: Seq, waker: &Waker) -> bool {
        let place = self.durable_waiter.filter(|(id, _)| *id == topic.id()).map(|(_, place)| place);
        let place = topic.wait_durable(seq, place, waker);
        self.durable_waiter = place.map(|place| (topic.id(), place));
        place.is_some()
    }

    /// Whether so much is unanswered that no more is read.
    pub(super) fn is_congested(&self) -> bool {
        let (waiting, max) = (self.answers.len(), self.hub.limits.unanswered_max);
        // Whoever was stopped goes on when there is room for more than the next line.
        let crowded = if self.has_backlog { waiting > max / 2 } else { waiting >= max };
        crowded
            || self.answer_bytes >= self.hub.limits.answer_bytes_max
            || self.worker.as_ref().is_some_and(|worker| worker.pending_slot.is_some())
            || self.login.is_rejection_delayed()
            || (self.login.must_log_in() && !self.answers.is_empty())
            || self.paused_until().is_some()
    }

    /// Until when it is not read, because it or others of its address or name were too fast.
    fn paused_until(&self) -> Option<Moment> {
        self.login.usage.as_ref().and_then(|held| held.paused_until())
    }

    /// Whether reading has to pause, also after what can be folded was.
    pub(super) fn should_pause_reading(&mut self) -> bool {
        if self.is_congested() {
            let (topics, lost) = (&self.hub.topics, Cell::new(false));
            self.answers.fold(durability_lookup(topics, &lost));
            self.has_dropped_line |= lost.get();
        }
        self.is_congested()
    }

    /// Whether a group must take some of what was published before more is read. A waker is woken
    /// when that may have changed.
    pub(super) fn is_backpressured(&self, waker: Option<&Waker>) -> bool {
        self.last_topic.as_ref().is_some_and(|topic| topic.is_backpressured(waker))
    }

    /// Whether more tasks wait than may for somebody who does not read.
    fn exceeds_task_buffer(&self) -> bool {
        self.closing.is_none() && self.task_buffer.len() > self.hub.limits.task_bytes_max
    }

    /// Waits for the next deadline, or acts on those that have passed.
    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> IoStatus {
        let deadlines = [
            self.closing_deadline(),
            self.partial_line_deadline(),
            self.stall_deadline(),
            self.login.deadline(),
            self.paused_until(),
        ];
        let Some(deadline) = deadlines.into_iter().flatten().min() else {
            // A timer that is set stays: under load deadlines come and go with every read.
            if self.timer.as_mut().is_some_and(|timer| timer.as_mut().poll(cx).is_ready()) {
                self.timer = None;
            }
            return IoStatus::Idle;
        };
        if deadline <= self.hub.clock.now() {
            return self.handle_expired_deadlines();
        }
        let at = self.hub.clock.instant(deadline);
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(at)));
        if timer.is_elapsed() || timer.deadline() > at {
            timer.as_mut().reset(at);
        }
        // An older, earlier time may be what it was set to; then it is set anew.
        match timer.as_mut().poll(cx) {
            Poll::Ready(()) => IoStatus::Progress,
            Poll::Pending => IoStatus::Idle,
        }
    }

    fn handle_expired_deadlines(&mut self) -> IoStatus {
        let now = self.hub.clock.now();
        let passed = |deadline: Option<Moment>| deadline.is_some_and(|deadline| deadline <= now);
        if passed(self.closing_deadline()) {
            return IoStatus::Closed;
        }
        if passed(self.login.deadline()) {
            self.handle_login_deadline();
        }
        if passed(self.paused_until())
            && let Some(held) = &mut self.login.usage
        {
            held.resume(now);
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

    /// Not while reading is paused: the rest of the line may be waiting for us.
    fn partial_line_deadline(&self) -> Option<Moment> {
        let owed = self.session.is_mid_line() && !self.has_backlog && self.closing.is_none();
        (owed && !self.is_congested() && !self.is_backpressured(None))
            .then(|| self.read_at + self.hub.limits.partial_line_timeout_ms)
    }

    fn stall_deadline(&self) -> Option<Moment> {
        let since = self.outbound.stalled_since()?;
        let pins = self.outbound.pins_topic_memory() || self.subscriptions.is_waiting_for_disk();
        let matters = pins || self.exceeds_task_buffer();
        matters.then(|| since + self.hub.limits.stalled_ms)
    }
}

/// What has become of events; `lost` is set when one of them is lost.
fn durability_lookup<'a>(
    topics: &'a Topics,
    lost: &'a Cell<bool>,
) -> impl Fn(u64, Seq) -> (Durability, Seq) + 'a {
    |topic, seq| {
        let (fate, end) = topics.fate(topic, seq);
        lost.set(lost.get() || matches!(fate, Durability::Lost(_)));
        (fate, end)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        tracing::debug!(conn = %self.id, peer = %self.login.remote, "closed");
        self.audit(AuditEvent::Disconnected { why: self.login.close_reason });
        self.release_cursors();
        self.mailbox.discard();
        self.hub.registry.unregister(self.id);
        if let Some(worker) = &self.worker {
            self.hub.registry.release_member(worker.member, self.id);
            if worker.is_known_to_groups || worker.has_waited {
                self.hub.groups.connection_ended(self.id);
            }
        }
    }
}
