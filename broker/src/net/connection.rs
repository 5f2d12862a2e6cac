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
use super::cursors::CursorUse;
use super::ending::{Cause, Ending};
use super::listener::Entered;
use super::login::Login;
use super::outbound::Outbound;
use super::staged::Staged;
use super::stream::{Remote, Stream};
use super::subscriptions::{Kind, Subscriptions};
use crate::access::Identity;
use crate::audit::{AuditEvent, Initiator};
use crate::clock::Moment;
use crate::groups::TaskCommand;
use crate::mailbox::{ConnId, ConnMessage, GroupLines, Mailbox, MailboxBatch};
use crate::quota::Quantity;
use crate::topic::{LineForm, Topic, Topics, WaiterSlot};

/// Reads and writes of one connection before others have their turn.
const TURNS_MAX: usize = 4;

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
    pub(super) stream: Stream,
    pub(super) session: Session,
    /// Who it is, and on which way those came for whom it speaks.
    pub(super) pass: Identity,
    /// Who is at the other end, and what becomes of saying so.
    pub(super) login: Box<Login>,
    /// What was read and not consumed: an unfinished line, or more if there is a backlog.
    pub(super) unread: Vec<u8>,
    /// `unread` may hold whole lines: too much was unanswered to go on.
    pub(super) backlog: bool,
    /// When something was read last, or reading was paused.
    pub(super) read_at: Moment,
    /// The topic that was published to last, to find it quickly.
    pub(super) published: Option<Arc<Topic>>,
    /// A line was not kept, so that there is nothing to say farewell to a peer for.
    pub(super) unkept: bool,
    /// Where it waits for an event to be safe: the topic's id and its place there.
    settling: Option<(u64, WaiterSlot)>,
    /// What is owed, to peers the fate of what they published: the farewell says it all at once.
    pub(super) answers: Answers,
    /// Bytes of answers in `answers`; reset when it is empty, so never too low.
    pub(super) answer_bytes: usize,
    pub(super) worker: Option<Box<Worker>>,
    pub(super) cursors: Option<Box<CursorUse>>,
    pub(super) subscriptions: Subscriptions,
    /// It hears the default topic as a peer does, until it turns out to be a client.
    pub(super) is_peer: bool,
    /// Tasks that wait for the outbound queue.
    pub(super) tasks: BytesMut,
    pub(super) outbound: Outbound,
    /// The other side is gone and hears nothing; lines of it that have arrived still count.
    pub(super) is_deaf: bool,
    /// Set once it is on its way to its end; nothing is read any more.
    pub(super) ending: Option<Box<Ending>>,
    timer: Option<Pin<Box<Sleep>>>,
}

/// What only a connection has that works for groups, or said `HELLO`.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) member: MemberId,
    /// Groups know it, so the identity cannot change any more.
    pub(super) known_to_groups: bool,
    /// It has waited for a job or watched something, so that groups are to be told when it is gone.
    pub(super) has_waited: bool,
    /// The `JOB wait` that have no answer yet.
    pub(super) waiting: Vec<Slot>,
    /// The `JOB watch` or `GROUP watch` that has not ended. There is one at a time: what another
    /// one had to say could not leave.
    pub(super) watching: Option<Slot>,
    /// When groups were told last that it lives.
    pub(super) heard_at: Moment,
    pub(super) staged: Staged,
    /// What it said of tasks of one group since the group heard of it last: of what was read at
    /// once.
    pub(super) requests: Vec<(Slot, TaskCommand)>,
    /// The answer of the newest `JOIN`, before which no task leaves (`[D3]`).
    pub(super) joined: Option<Slot>,
    /// The `GROUP`, `JOB` (but for `wait` and `watch`) or `EXPLAIN` whose answer has not come yet.
    /// It may be long, so there is one at a time.
    pub(super) asked: Option<Slot>,
}

/// What a part of a turn came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Something was done; there may be more.
    Progress,
    /// Nothing to do; what may change that wakes the task.
    Waiting,
    /// The connection is gone.
    Over,
}

impl Connection {
    pub(super) fn new(
        hub: Arc<Hub>,
        Entered { conn: id, mailbox, held }: Entered,
        stream: Stream,
        remote: Remote,
    ) -> Self {
        let (pass, login) = Login::begin(&hub, remote, held);
        Self {
            read_at: hub.clock.now(),
            login,
            hub,
            id,
            mailbox,
            stream,
            session: Session::new(),
            pass,
            unread: Vec::new(),
            backlog: false,
            published: None,
            unkept: false,
            settling: None,
            answers: Answers::new(),
            answer_bytes: 0,
            worker: None,
            cursors: None,
            subscriptions: Subscriptions::default(),
            is_peer: true,
            tasks: BytesMut::new(),
            outbound: Outbound::default(),
            is_deaf: false,
            ending: None,
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
                self.greet(cx);
            }
            self.poll(cx)
        })
    }

    /// Notes what whoever is at the other end does, if that is kept.
    pub(super) fn audit(&self, what: AuditEvent<'_>) {
        self.hub.audit.record(|| (what, self.party()));
    }

    pub(super) fn party(&self) -> Initiator {
        Initiator::identified(self.id.0, &self.login.remote, &self.pass)
    }

    /// Says hello, before anything that comes in is looked at. From here on it hears the default
    /// topic, unless its first line says otherwise.
    fn greet(&mut self, cx: &mut Context<'_>) {
        self.audit(AuditEvent::Connected);
        if let Err(error) = self.hub.belongs_to(&mut self.login.held, &self.pass) {
            self.is_peer = false;
            return self.end(Cause::Broker(error));
        }
        let form = LineForm::Bare { origin: self.id };
        if let Some(topic) = self.notifier() {
            let reader = topic.subscribe(None, form, cx.waker().clone());
            self.subscriptions.add(reader, Kind::Peer);
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
        for turn in 1..=TURNS_MAX {
            self.take_parcels(cx.waker());
            self.store_settled(cx.waker());
            let input = self.poll_input(cx);
            if input == Step::Progress && turn < TURNS_MAX && self.only_publishes() {
                // One confirmation for several reads costs what one for each does.
                continue;
            }
            let output = if input == Step::Over { input } else { self.poll_output(cx) };
            if let Err(error) = self.tally() {
                self.end(Cause::Broker(error));
                cx.waker().wake_by_ref();
            }
            let mut step = output;
            if output == Step::Waiting {
                step = if input == Step::Waiting { self.poll_deadline(cx) } else { input };
            }
            match step {
                Step::Progress => {}
                Step::Waiting => return Poll::Pending,
                Step::Over => return Poll::Ready(()),
            }
        }
        // Whoever keeps it busy does not keep it from its deadlines.
        if self.poll_deadline(cx) == Step::Over {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Whether there is nothing to send but confirmations of publishes, which fold.
    fn only_publishes(&self) -> bool {
        self.subscriptions.len() == 0
            && self.outbound.is_empty()
            && self.tasks.is_empty()
            && self.answers.len() == 1
            && self.answers.blocking_publish().is_some()
    }

    /// Counts what waits for it, and what it hears. Refused if that is too much for whose it is.
    fn tally(&mut self) -> Result<(), ProtocolError> {
        let Some(held) = &mut self.login.held else { return Ok(()) };
        let staged = self.worker.as_ref().map_or(0, |worker| worker.staged.bytes());
        let parked = self.unread.len() + self.answer_bytes + self.tasks.len() + staged;
        held.set(Quantity::Subscriptions, self.subscriptions.len() as u64)?;
        if self.ending.is_some() {
            return Ok(());
        }
        held.set(Quantity::BufferedBytes, parked as u64)
    }

    /// Does what groups and the broker want; `waker` is woken when they want more.
    pub(super) fn take_parcels(&mut self, waker: &Waker) {
        let MailboxBatch { messages: parcels, renew_requested: renewing, close_requested: closing } =
            self.mailbox.drain(waker);
        if renewing {
            self.renew();
        }
        for parcel in parcels {
            match parcel {
                ConnMessage::Answer { slot, line } => self.fill(slot, line),
                ConnMessage::Progress { slot, line } => self.answers.progress(slot, line),
                ConnMessage::Stored { slot, result } => self.stored(slot, result),
                ConnMessage::Lines(lines) => self.take_group_lines(lines),
                ConnMessage::End(error) => self.end(Cause::Broker(error)),
            }
        }
        if closing {
            self.end(Cause::Stop);
        }
    }

    fn take_group_lines(&mut self, lines: GroupLines) {
        let (answers, tasks) = lines.into_parts();
        for (slot, lines) in answers {
            self.fill(slot, lines);
        }
        // If it ends, the group hears that it is gone, and gives the tasks to others.
        if self.ending.is_none() {
            if self.tasks.is_empty() {
                self.tasks = tasks;
            } else {
                self.tasks.extend_from_slice(&tasks);
            }
        }
    }

    /// The answer of a slot has come.
    pub(super) fn fill(&mut self, slot: Slot, lines: Bytes) {
        if let Some(worker) = &mut self.worker {
            worker.asked.take_if(|asked| *asked == slot);
            worker.watching.take_if(|watching| *watching == slot);
            worker.waiting.retain(|waiting| *waiting != slot);
        }
        self.answer_bytes += lines.len();
        self.answers.fill(slot, lines);
    }

    /// Writes until the socket takes no more or there is nothing to write.
    fn poll_output(&mut self, cx: &mut Context<'_>) -> Step {
        if self.is_deaf {
            return self.discard_output(cx.waker());
        }
        if self.outbound.stalled_since().is_some() && self.stream.poll_write_ready(cx).is_pending()
        {
            return Step::Waiting;
        }
        // Then nothing that leaves makes room for more input.
        let only_listens = self.answers.is_empty() && !self.backlog && self.ending.is_none();
        let refilled = self.outbound.is_empty() && self.refill(cx.waker());
        if self.outbound.is_empty() {
            // Of what was encrypted something may be left.
            return match Pin::new(&mut self.stream).poll_flush(cx) {
                Poll::Ready(Ok(())) => self.conclude(cx),
                Poll::Ready(Err(error)) => self.turn_deaf(&error),
                Poll::Pending => {
                    self.end_later_if_taken();
                    Step::Waiting
                }
            };
        }
        let clock = self.hub.clock;
        match self.outbound.poll_write(cx, &mut self.stream, || clock.now()) {
            Poll::Ready(Ok(())) => {
                self.end_later();
                // Nearly every delivery ends here: there is nothing more, and whatever comes wakes
                // it.
                let is_done = only_listens && self.outbound.is_empty() && !self.refill(cx.waker());
                if is_done { Step::Waiting } else { Step::Progress }
            }
            Poll::Ready(Err(error)) => self.turn_deaf(&error),
            Poll::Pending => {
                self.end_later_if_taken();
                // What was refilled made room for more input.
                if refilled { Step::Progress } else { Step::Waiting }
            }
        }
    }

    /// The other side has closed without having read everything, or is gone. What it sent before
    /// that is read to its end, like that of anybody else.
    fn turn_deaf(&mut self, error: &io::Error) -> Step {
        let closed =
            matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe);
        if !closed || self.ending.is_some() {
            return Step::Over;
        }
        self.is_deaf = true;
        self.subscriptions.clear();
        Step::Progress
    }

    /// Nobody hears it. Answers are taken all the same, so that reading goes on.
    fn discard_output(&mut self, waker: &Waker) -> Step {
        if self.ending.is_some() {
            return Step::Over;
        }
        self.refill(waker);
        self.outbound = Outbound::default();
        Step::Waiting
    }

    /// Takes what may leave: answers, then tasks, then events. It waits in `answers` and in the
    /// topics until then, because there it folds, and costs nothing. Whether there was something.
    fn refill(&mut self, waker: &Waker) -> bool {
        let mut lines = BytesMut::new();
        while !self.answers.is_empty() {
            let (topics, lost) = (&self.hub.topics, Cell::new(false));
            self.answers.drain(fates(topics, &lost), &mut lines);
            self.unkept |= lost.get();
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
        let joined = self.worker.as_ref().and_then(|worker| worker.joined);
        let may_leave = joined.is_none_or(|slot| self.answers.is_drained(slot));
        let tasks = if may_leave { std::mem::take(&mut self.tasks) } else { BytesMut::new() };
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
        let place = self.settling.filter(|(id, _)| *id == topic.id()).map(|(_, place)| place);
        let place = topic.wait_durable(seq, place, waker);
        self.settling = place.map(|place| (topic.id(), place));
        place.is_some()
    }

    /// Whether so much is unanswered that no more is read.
    pub(super) fn is_congested(&self) -> bool {
        let (waiting, max) = (self.answers.len(), self.hub.limits.unanswered_max);
        // Whoever was stopped goes on when there is room for more than the next line.
        let crowded = if self.backlog { waiting > max / 2 } else { waiting >= max };
        crowded
            || self.answer_bytes >= self.hub.limits.answer_bytes_max
            || self.worker.as_ref().is_some_and(|worker| worker.asked.is_some())
            || self.login.is_punished()
            || (self.login.is_due() && !self.answers.is_empty())
            || self.paused_until().is_some()
    }

    /// Until when it is not read, because it or others of its address or name were too fast.
    fn paused_until(&self) -> Option<Moment> {
        self.login.held.as_ref().and_then(|held| held.paused_until())
    }

    /// Whether reading has to pause, also after what can be folded was.
    pub(super) fn must_pause(&mut self) -> bool {
        if self.is_congested() {
            let (topics, lost) = (&self.hub.topics, Cell::new(false));
            self.answers.fold(fates(topics, &lost));
            self.unkept |= lost.get();
        }
        self.is_congested()
    }

    /// Whether a group must take some of what was published before more is read. A waker is woken
    /// when that may have changed.
    pub(super) fn is_held_up(&self, waker: Option<&Waker>) -> bool {
        self.published.as_ref().is_some_and(|topic| topic.is_backpressured(waker))
    }

    /// Whether more tasks wait than may for somebody who does not read.
    fn has_too_many_tasks(&self) -> bool {
        self.ending.is_none() && self.tasks.len() > self.hub.limits.task_bytes_max
    }

    /// Waits for the next deadline, or acts on those that have passed.
    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Step {
        let deadlines = [
            self.ending_deadline(),
            self.half_line_deadline(),
            self.stall_deadline(),
            self.login.deadline(),
            self.paused_until(),
        ];
        let Some(deadline) = deadlines.into_iter().flatten().min() else {
            // A timer that is set stays: under load deadlines come and go with every read.
            if self.timer.as_mut().is_some_and(|timer| timer.as_mut().poll(cx).is_ready()) {
                self.timer = None;
            }
            return Step::Waiting;
        };
        if deadline <= self.hub.clock.now() {
            return self.expire();
        }
        let at = self.hub.clock.instant(deadline);
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(at)));
        if timer.is_elapsed() || timer.deadline() > at {
            timer.as_mut().reset(at);
        }
        // An older, earlier time may be what it was set to; then it is set anew.
        match timer.as_mut().poll(cx) {
            Poll::Ready(()) => Step::Progress,
            Poll::Pending => Step::Waiting,
        }
    }

    fn expire(&mut self) -> Step {
        let now = self.hub.clock.now();
        let passed = |deadline: Option<Moment>| deadline.is_some_and(|deadline| deadline <= now);
        if passed(self.ending_deadline()) {
            return Step::Over;
        }
        if passed(self.login.deadline()) {
            self.log_in_is_over();
        }
        if passed(self.paused_until())
            && let Some(held) = &mut self.login.held
        {
            held.resume(now);
        }
        if passed(self.half_line_deadline()) {
            self.end(Cause::HalfLine);
        }
        if passed(self.stall_deadline()) {
            let subscriptions = &mut self.subscriptions;
            self.outbound.release(|id, seq| subscriptions.rewind(id, seq));
            subscriptions.give_back();
            if self.has_too_many_tasks() {
                self.end(Cause::Unread);
            }
        }
        Step::Progress
    }

    fn ending_deadline(&self) -> Option<Moment> {
        self.ending.as_ref().map(|ending| ending.deadline)
    }

    /// Not while reading is paused: the rest of the line may be waiting for us.
    fn half_line_deadline(&self) -> Option<Moment> {
        let owed = self.session.is_mid_line() && !self.backlog && self.ending.is_none();
        (owed && !self.is_congested() && !self.is_held_up(None))
            .then(|| self.read_at + self.hub.limits.partial_line_timeout_ms)
    }

    fn stall_deadline(&self) -> Option<Moment> {
        let since = self.outbound.stalled_since()?;
        let pins = self.outbound.pins_topic() || self.subscriptions.wait_for_disk();
        let matters = pins || self.has_too_many_tasks();
        matters.then(|| since + self.hub.limits.stalled_ms)
    }
}

/// What has become of events; `lost` is set when one of them is lost.
fn fates<'a>(
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
        self.audit(AuditEvent::Disconnected { why: self.login.why });
        self.release_cursors();
        self.mailbox.discard();
        self.hub.registry.leave(self.id);
        if let Some(worker) = &self.worker {
            self.hub.registry.disclaim(worker.member, self.id);
            if worker.known_to_groups || worker.has_waited {
                self.hub.groups.connection_ended(self.id);
            }
        }
    }
}
