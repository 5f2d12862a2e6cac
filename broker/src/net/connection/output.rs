//! What a connection sends: answers, then tasks, then events, in whole lines.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use tidings_protocol::status::Answer;
use tidings_protocol::{ProtocolError, Seq, SessionMode, Slot};
use tokio::io::AsyncWrite;

use super::closing::CloseReason;
use super::outbound::OutboundQueue;
use super::{Connection, IoStatus};
use crate::clock::Moment;
use crate::mailbox::GroupBatch;
use crate::topic::WaiterSlot;

/// Usual length of the answer to an `ACK`.
const ANSWER_BYTES: usize = 80;

/// What a connection sends, except answers and events that still cost no memory.
#[derive(Debug, Default)]
pub(super) struct Output {
    /// Encoded tasks that are not in the queue yet.
    tasks: BytesMut,
    queue: OutboundQueue,
    /// The topic's id and the slot in which the connection waits for an event to become durable.
    durable_waiter: Option<(u64, WaiterSlot)>,
}

impl Output {
    /// Adds whole lines that are not events.
    pub(super) fn push(&mut self, lines: Bytes) {
        self.queue.push(lines);
    }

    /// Bytes of the tasks that are not in the queue yet.
    pub(super) fn task_bytes(&self) -> usize {
        self.tasks.len()
    }

    pub(super) fn drop_tasks(&mut self) {
        self.tasks = BytesMut::new();
    }

    /// Restarts the time of a stall, because the socket accepted bytes that TLS had buffered.
    pub(super) fn restart_stall_timer(&mut self, now: Moment) {
        self.queue.restart_stall_timer(now);
    }
}

impl Connection {
    pub(super) fn queue_batch(&mut self, GroupBatch { answers, tasks }: GroupBatch) {
        self.fill_answers(answers);
        // When a connection ends, its group is notified and releases the tasks to other members.
        if self.closing.is_none() {
            append(&mut self.output.tasks, tasks);
        }
    }

    /// Fills slots with answers, which share a buffer.
    pub(super) fn fill_answers(&mut self, answers: Vec<(Slot, Result<Answer, ProtocolError>)>) {
        let mut lines = BytesMut::with_capacity(answers.len() * ANSWER_BYTES);
        for (slot, answer) in answers {
            match answer {
                Ok(answer) => answer.encode(&mut lines),
                Err(error) => self.encode_refusal(&error, &mut lines),
            }
            self.fill(slot, lines.split().freeze());
        }
    }

    pub(super) fn fill(&mut self, slot: Slot, lines: Bytes) {
        if let Some(worker) = &mut self.worker {
            worker.end_command(slot);
        }
        self.answers.fill(slot, lines);
    }

    /// Whether the only output is confirmations of publishes, which can be merged into one.
    pub(super) fn awaits_only_confirmations(&self) -> bool {
        self.subscriptions.len() == 0
            && self.output.queue.is_empty()
            && self.output.tasks.is_empty()
            && self.answers.len() == 1
            && self.answers.blocking_publish().is_some()
    }

    /// Writes once, if there is something to write and the socket accepts it.
    pub(super) fn poll_output(&mut self, cx: &mut Context<'_>) -> IoStatus {
        if self.is_write_closed {
            return self.discard_output(cx.waker());
        }
        if self.output.queue.stalled_since().is_some()
            && self.stream.poll_write_ready(cx).is_pending()
        {
            return IoStatus::Idle;
        }
        // If so, written output does not allow more input.
        let only_events =
            self.answers.is_empty() && !self.input.has_backlog() && self.closing.is_none();
        let refilled = self.output.queue.is_empty() && self.refill_outbound(cx.waker());
        if self.output.queue.is_empty() {
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
        match self.output.queue.poll_write(cx, &mut self.stream, || clock.now()) {
            Poll::Ready(Ok(written)) => {
                self.shared.stats.bytes_out.add(written as u64);
                self.extend_closing_deadline();
                // Nearly every delivery ends here: all output is written, and new output wakes the
                // task.
                let is_done = only_events
                    && self.output.queue.is_empty()
                    && !self.refill_outbound(cx.waker());
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
        self.output.queue = OutboundQueue::default();
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
            if self.input.mode() == SessionMode::Peer {
                lines.clear();
            }
            let Some((topic, seq)) = self.answers.blocking_publish() else { break };
            if self.waits_for_durable(topic, seq, waker) {
                break;
            }
            // The event became durable after the drain, so no wake-up will come: drain again.
        }
        let join_slot = self.worker.as_ref().and_then(|worker| worker.join_slot());
        let may_send = join_slot.is_none_or(|slot| self.answers.is_drained(slot));
        if may_send {
            append(&mut lines, std::mem::take(&mut self.output.tasks));
        }
        self.output.queue.push(lines.freeze());
        let bytes_max = self.shared.limits.deliver_bytes;
        let clock = self.shared.clock;
        let delivered =
            self.subscriptions
                .fetch(&mut self.output.queue, &self.answers, bytes_max, || clock.now());
        self.shared.stats.count_delivered(delivered.events, delivered.lags);
        if delivered.has_more && self.output.queue.is_empty() {
            // Other tasks run between two parts of a search.
            waker.wake_by_ref();
        }
        !self.output.queue.is_empty()
    }

    /// Returns whether the event is not durable yet. If so, `waker` is woken when it is.
    fn waits_for_durable(&mut self, id: u64, seq: Seq, waker: &Waker) -> bool {
        let Some(topic) = self.shared.topics.by_id(id) else { return false };
        let waiter = self.output.durable_waiter.filter(|(other, _)| *other == id);
        let waiter = topic.wait_durable(seq, waiter.map(|(_, waiter)| waiter), waker);
        self.output.durable_waiter = waiter.map(|waiter| (id, waiter));
        waiter.is_some()
    }

    /// Whether the unsent tasks exceed the limit for a worker that does not read.
    fn exceeds_task_buffer(&self) -> bool {
        self.closing.is_none() && self.output.tasks.len() > self.shared.limits.task_bytes_max
    }

    /// Releases the memory of topics that a connection has kept for too long. A worker that reads no
    /// tasks is closed.
    pub(super) fn handle_stall(&mut self) {
        let subscriptions = &mut self.subscriptions;
        self.output.queue.release_topic_memory(|id, seq| subscriptions.rewind(id, seq));
        subscriptions.cancel_disk_reads();
        if self.exceeds_task_buffer() {
            self.start_closing(CloseReason::UnreadTasks);
        }
    }

    /// When to report skipped events. Unwritten output delays that.
    pub(super) fn skip_deadline(&self) -> Option<Moment> {
        let is_writable =
            self.output.queue.is_empty() && self.output.queue.stalled_since().is_none();
        if is_writable { self.subscriptions.skip_deadline() } else { None }
    }

    pub(super) fn stall_deadline(&self) -> Option<Moment> {
        let since = self.output.queue.stalled_since()?;
        let pins =
            self.output.queue.pins_topic_memory() || self.subscriptions.is_waiting_for_disk();
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
