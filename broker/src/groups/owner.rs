//! The actor of one group: consumes its feeding topics, receives commands from connections, writes
//! the state machine's records, and sends the outputs that depend on them.
#![expect(clippy::disallowed_methods, reason = "spawns the actor and waits for its deadlines")]

mod feeding;
mod leaving;
mod machine;
mod outgoing;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use hashbrown::HashMap;
use tidings_protocol::{
    Code, JOB_DONE_TOPIC, JobName, MemberId, ProtocolError, Seq, TopicName, duration, encode_task,
};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use self::machine::Machine;
use self::outgoing::{Leaving, Outgoing};
use super::job_names::{JobNames, Remembered};
use super::letter::{Letter, encode_answer, failed, refuse, refuse_letter, stopped};
use super::log::{GroupLog, Mark};
use super::no_such;
use super::outbox::Outbox;
use super::registry::Registry;
use super::watch::Watchers;
use crate::clock::{Clock, Moment, wall_unix_ms};
use crate::group::record::Record;
use crate::group::{Asked, Group, Input, JobAction, Output, Task};
use crate::mailbox::{ConnId, Mailbox};
use crate::topic::{Health, Reader, Topics};

/// A deadline missed by this many milliseconds was missed because the process was stopped.
const STALL_MS: u64 = 250;
/// After such a stall, time for reading input that arrived meanwhile.
const GRACE_MS: u64 = 100;
/// Records of a snapshot that are flushed together.
const SNAPSHOT_PIECE: u64 = 64;
/// Parts of the group's state that one turn writes to a snapshot: less than a millisecond of work.
const SNAPSHOT_TURN: usize = 256;
/// Interval at which a stalled group checks whether it can continue, in ms.
const RETRY_MS: u64 = 1000;
/// Interval at which the wall clock is checked while entries wait for a time of day, in ms.
const CLOCK_LOOK_MS: u64 = 1000;

/// The task that owns and drives one group.
pub(super) struct Owner {
    group: Machine,
    topics: Arc<Topics>,
    clock: Clock,
    log: Box<dyn GroupLog>,
    readers: BTreeMap<TopicName, Reader>,
    /// Consumed positions of the topics, each with the mark of its records, until these are
    /// durable. Marks rise.
    taken: VecDeque<(Mark, TopicName, Seq)>,
    /// Mailboxes of the members, for their tasks.
    members: HashMap<ConnId, Mailbox>,
    /// Connections of the member that runs in the broker's own process.
    own: BTreeSet<ConnId>,
    /// Mailboxes for answers that come later (`JOB wait`, `JOB watch`).
    waiting: HashMap<ConnId, Mailbox>,
    watchers: Watchers,
    outgoing: Outgoing,
    appended: Mark,
    /// The mark after this start's records. Until they are durable, task ids might be given again.
    begun: Mark,
    /// After a stall: when time-outs are processed again.
    grace_until: Option<Moment>,
    /// Woken by the feeding topics and by the log.
    wake: Arc<Notify>,
    /// Messages that arrived while the log could not be written, in order.
    backlog: VecDeque<Letter>,
    /// Whether the log cannot be written.
    still: bool,
    /// When to check the log again.
    retry_at: Moment,
    outbox: Outbox,
    /// When to retry announcements that could not be published.
    announce_at: Option<Moment>,
    /// Sends messages to this actor until the group is deleted.
    registry: Arc<Registry>,
    /// Job names of all groups.
    job_names: Arc<JobNames>,
    is_deleted: bool,
}

impl Owner {
    /// An actor that reads the feeding topics from the group's position. The log wakes it by
    /// `wake`, and continues at `appended`.
    pub(super) fn new(
        group: Group,
        topics: Arc<Topics>,
        clock: Clock,
        log: Box<dyn GroupLog>,
        wake: Arc<Notify>,
        (registry, job_names): (Arc<Registry>, Arc<JobNames>),
    ) -> Self {
        let appended = log.durable();
        let outbox = Outbox::new(Arc::clone(&topics), Arc::clone(&wake));
        Self {
            group: Machine::new(group),
            topics,
            clock,
            log,
            readers: BTreeMap::new(),
            taken: VecDeque::new(),
            members: HashMap::new(),
            own: BTreeSet::new(),
            waiting: HashMap::new(),
            watchers: Watchers::default(),
            outgoing: Outgoing::default(),
            appended,
            begun: appended,
            grace_until: None,
            wake,
            backlog: VecDeque::new(),
            still: false,
            retry_at: Moment(0),
            outbox,
            announce_at: None,
            registry,
            job_names,
            is_deleted: false,
        }
    }

    /// Starts the group, see [`Input::Start`]. Fails if a feeding topic cannot be opened.
    pub(super) fn begin(
        &mut self,
        run: u64,
        anew: bool,
        own: Option<MemberId>,
        since: u64,
    ) -> Result<(), ProtocolError> {
        for name in self.group.job_names() {
            self.tell_of(name);
        }
        for (serial, topic, payload) in self.group.unsent() {
            self.outbox.push_again(serial, topic, payload, self.group.sent(topic))?;
        }
        let stamp = self.clock.stamp();
        self.handle(Input::Start { run, since, anew, stamp, own }, None);
        self.begun = self.appended;
        self.look_at_clock();
        self.follow_topics()
    }

    /// Sets the group's delay, if it differs.
    pub(super) fn set_delay(&mut self, delay_ms: u64) {
        if self.group.config().delay_ms != Some(delay_ms) {
            let settings = vec![("delay".to_owned(), duration::format_ms(delay_ms))];
            self.handle(Input::Set { settings }, None);
        }
    }

    /// Runs the actor in a task of its own until the broker stops.
    pub(super) fn spawn(self, messages: mpsc::UnboundedReceiver<Letter>, stop: CancellationToken) {
        tokio::spawn(self.run(messages, stop));
    }

    /// Handles input, processes time-outs and waits, until the broker stops.
    async fn run(mut self, mut messages: mpsc::UnboundedReceiver<Letter>, stop: CancellationToken) {
        loop {
            if self.moves() {
                self.look_at_clock();
            }
            // Input that has arrived is handled before leases expire.
            let more_messages = self.take_letters(&mut messages);
            if self.is_deleted {
                return self.leave(messages, stop).await;
            }
            let more_events = self.moves() && !self.log.is_behind() && self.take_events();
            if self.moves() && self.is_due(self.clock.now()) {
                self.handle(Input::Tick, None);
            }
            self.send();
            let mut more_snapshot = false;
            if self.moves() {
                self.announce();
                more_snapshot = self.take_stock();
                self.show();
                self.send();
            }
            if more_messages || more_events || more_snapshot {
                tokio::task::yield_now().await;
                if stop.is_cancelled() {
                    return;
                }
                continue;
            }
            let due = self.next_look().map(|moment| self.clock.instant(moment));
            let timer = async {
                match due {
                    Some(instant) => tokio::time::sleep_until(instant).await,
                    None => std::future::pending().await,
                }
            };
            // Cancel-safe: a message is either received or still in the channel, a wake-up leaves a
            // permit, and the deadline is computed again.
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                message = messages.recv() => match message {
                    Some(message) => self.receive(message),
                    None => return,
                },
                () = self.wake.notified() => {}
                () = timer => {}
            }
        }
    }

    /// Passes the wall clock to the group if it differs from the group's.
    fn look_at_clock(&mut self) {
        let unix_ms = wall_unix_ms();
        if self.group.is_clock_off(unix_ms, self.clock.now()) {
            self.handle(Input::Clock { unix_ms }, None);
        }
    }

    /// When to wake up even if nothing arrives.
    fn next_look(&self) -> Option<Moment> {
        match self.health() {
            Health::Good => {
                let due = self.grace_until.or_else(|| self.group.deadline());
                // Setting the wall clock wakes no timer, so it is polled.
                let look = self.group.has_clock_times().then(|| self.clock.now() + CLOCK_LOOK_MS);
                let others = [self.announce_at, look, self.watchers.next_look()];
                due.into_iter().chain(others.into_iter().flatten()).min()
            }
            Health::Full => Some(self.retry_at),
            Health::Failed => None,
        }
    }

    /// Whether the group can decide and write.
    fn health(&self) -> Health {
        if self.group.is_broken() { Health::Failed } else { self.log.health() }
    }

    /// The error for commands that cannot be answered before a restart.
    fn failure(&self) -> ProtocolError {
        if self.group.is_broken() { stopped(self.group.name()) } else { failed() }
    }

    /// Whether the group can decide, because its decisions can be written. After a stall all leases
    /// start again, because workers could not answer meanwhile.
    fn moves(&mut self) -> bool {
        let health = self.health();
        if health != Health::Good {
            let now = self.clock.now();
            if !std::mem::replace(&mut self.still, true) || self.retry_at <= now {
                self.retry_at = now + RETRY_MS;
                self.log.retry();
            }
            if health == Health::Failed {
                self.give_up();
            }
            return false;
        }
        if std::mem::take(&mut self.still) {
            tracing::info!(group = %self.group.name(), "the log can be written again: the group continues");
            let (run, stamp) = (self.group.run(), self.clock.stamp());
            let (own, since) = (self.group.own(), self.group.since().unwrap_or(run));
            self.handle(Input::Start { run, since, anew: true, stamp, own }, None);
            while let Some(message) = self.backlog.pop_front() {
                self.open(message);
            }
        }
        true
    }

    /// Whether the group must process time-outs. After a stall of this process that waits a little:
    /// answers that arrived in time may still be in sockets.
    fn is_due(&mut self, now: Moment) -> bool {
        let Some(deadline) = self.group.deadline().filter(|deadline| *deadline <= now) else {
            self.grace_until = None;
            return false;
        };
        if now.since(deadline) < STALL_MS {
            self.grace_until = None;
            return true;
        }
        let until = *self.grace_until.get_or_insert(now + GRACE_MS);
        if now >= until {
            self.grace_until = None;
        }
        now >= until
    }

    /// Handles the messages that are queued now, but none that arrive meanwhile, so that a flood
    /// does not delay other work for long. Returns whether there are more.
    fn take_letters(&mut self, messages: &mut mpsc::UnboundedReceiver<Letter>) -> bool {
        for _ in 0..messages.len() {
            match messages.try_recv() {
                Ok(message) => self.receive(message),
                Err(_) => return false,
            }
        }
        !messages.is_empty()
    }

    fn receive(&mut self, message: Letter) {
        if self.moves() { self.open(message) } else { self.put_off(message) }
    }

    /// Keeps a message until it can be handled, or rejects it.
    fn put_off(&mut self, message: Letter) {
        match (message, self.health()) {
            (message @ (Letter::Managed(..) | Letter::Watches(..)), Health::Full) => {
                let text = "the disk is full: the group is stalled until there is room";
                self.refuse_letter(message, &ProtocolError::new(Code::Full, text));
            }
            (Letter::Gone(gone), Health::Failed) => self.forget(gone),
            (message, Health::Failed) => self.refuse_letter(message, &self.failure()),
            // Silence is not counted while the group is stalled.
            (Letter::Heard(_), _) => {}
            (message, _) => {
                if let Letter::Gone(gone) = &message {
                    self.backlog.retain(|message| message.connects() != Some(*gone));
                }
                self.backlog.push_back(message);
            }
        }
    }

    /// Rejects everything that waits for an answer: nothing is decided or written until the broker
    /// restarts and replays the log.
    fn give_up(&mut self) {
        let failure = self.failure();
        self.send();
        self.outgoing.fail(&failure);
        for message in std::mem::take(&mut self.backlog) {
            self.refuse_letter(message, &failure);
        }
        for (asked, mailbox) in self.watchers.take() {
            refuse([asked].into_iter(), &mailbox, &failure);
        }
        for asked in self.group.take_waiters() {
            if let Some(mailbox) = self.waiting.get(&asked.conn) {
                refuse([asked].into_iter(), mailbox, &failure);
            }
        }
    }

    /// Rejects a message. If it opens a job, the name that was reserved for it is released, unless
    /// the group has such a job already.
    fn refuse_letter(&self, message: Letter, error: &ProtocolError) {
        if let Letter::Managed(Input::OpenJob { name, .. }, _) = &message {
            self.tell_of(name);
        }
        refuse_letter(message, error);
    }

    /// Updates the index of job names with the state of this group's job.
    fn tell_of(&self, name: &JobName) {
        let done = self.group.is_done(name).filter(|_| !self.is_deleted);
        let job = done.map(|done| if done { Remembered::Done } else { Remembered::Unfinished });
        self.job_names.set(name, self.group.name(), job);
    }

    fn open(&mut self, message: Letter) {
        if self.is_deleted {
            return self.refuse_letter(message, &no_such(self.group.name()));
        }
        match message {
            Letter::Asked(inputs, mailbox) => self.handle_all(inputs, Some(&mailbox)),
            Letter::Managed(input, mailbox) => self.handle(input, Some(&mailbox)),
            Letter::Joined(input, conn, mailbox) => {
                self.members.insert(conn, mailbox.clone());
                let member = input.asked().map(|asked| asked.member);
                if member.is_some() && member == self.group.own() {
                    self.own.insert(conn);
                }
                self.handle(input, Some(&mailbox));
            }
            Letter::Waits(input, conn, mailbox) => {
                self.waiting.insert(conn, mailbox);
                self.handle(input, None);
            }
            Letter::Watches(watch, conn, mailbox) => {
                let (asked, job) = (watch.asked, watch.job.clone());
                self.watchers.add(watch, mailbox.clone(), self.clock.now());
                if let Some(name) = job {
                    // The end of the job is the final answer, and removes the watcher.
                    self.waiting.insert(conn, mailbox);
                    self.handle(Input::WithJob { asked, name, what: JobAction::Wait }, None);
                }
            }
            Letter::Heard(conn) => self.handle(Input::Heard { conn }, None),
            Letter::Gone(conn) => {
                self.forget(conn);
                self.handle(Input::Gone { conn }, None);
            }
        }
    }

    /// Removes a connection; nothing more is sent to it.
    fn forget(&mut self, conn: ConnId) {
        self.members.remove(&conn);
        self.own.remove(&conn);
        self.waiting.remove(&conn);
        self.watchers.gone(conn);
    }

    /// Passes an input to the state machine and handles all its outputs. `mailbox` belongs to the
    /// sender of the input.
    fn handle(&mut self, input: Input, mailbox: Option<&Mailbox>) {
        let (configures, asked) = (matches!(input, Input::Configure { .. }), input.asked());
        let opens =
            if let Input::OpenJob { name, .. } = &input { Some(name.clone()) } else { None };
        self.group.handle(input, self.clock.now());
        self.take_outputs(asked.as_slice(), mailbox);
        if let Some(name) = opens {
            self.tell_of(&name);
        }
        if configures && let Err(error) = self.follow_topics() {
            tracing::error!(group = %self.group.name(), %error, "cannot read a feeding topic");
        }
    }

    /// The same for several commands of one worker.
    fn handle_all(&mut self, inputs: Vec<Input>, mailbox: Option<&Mailbox>) {
        let asked: Vec<Asked> = inputs.iter().filter_map(Input::asked).collect();
        self.group.handle_all(inputs, self.clock.now());
        self.take_outputs(&asked, mailbox);
    }

    /// Handles all outputs of the state machine; `asked` are the commands just handled.
    fn take_outputs(&mut self, asked: &[Asked], mailbox: Option<&Mailbox>) {
        self.watchers.changed();
        while let Some(output) = self.group.poll() {
            match output {
                Output::Record(record) => self.appended = self.log.append(&record),
                Output::Task { conn, task } => {
                    if let Some(mailbox) = self.members.get(&conn) {
                        let Task { id, clock_ms, lease_ms, payload } = &task;
                        let lines = self.outgoing.lines(conn, mailbox);
                        lines.task(|out| encode_task(id, *clock_ms, *lease_ms, payload, out));
                    }
                }
                Output::Answer { asked, answer } => {
                    self.watchers.answered(&asked);
                    let Asked { conn, slot, .. } = asked;
                    if let Some(mailbox) = self.waiting.get(&conn).or(mailbox) {
                        let lines = self.outgoing.lines(conn, mailbox);
                        lines.answer(slot, |out| encode_answer(&answer, out));
                    }
                }
                Output::Announce { serial, topic, payload } => {
                    // The payload begins with the job's name.
                    let job = payload.split(' ').next().map(str::parse);
                    if let Some(Ok(name)) = job.filter(|_| topic == JOB_DONE_TOPIC) {
                        self.tell_of(&name);
                    }
                    let event = Leaving::Event(serial, topic, payload);
                    self.outgoing.push(self.appended, event);
                }
                Output::JobName { name, .. } => self.tell_of(&name),
                Output::Deleted => self.is_deleted = true,
                Output::AskHeads { job } => {
                    let heads = self.heads();
                    self.group.handle(Input::Heads { job, heads }, self.clock.now());
                }
            }
        }
        if self.group.is_broken() {
            for asked in asked {
                if let Some(mailbox) = self.waiting.get(&asked.conn).or(mailbox) {
                    refuse([*asked].into_iter(), mailbox, &self.failure());
                }
            }
            // The other waiting connections are answered in the next turn.
            return self.wake.notify_one();
        }
        if self.log.flush_much() {
            self.outgoing.mark(self.appended, &self.own);
        }
    }

    /// Flushes the log and sends all outputs with safe records.
    fn send(&mut self) {
        self.send_up_to(Mark::MAX);
    }

    /// The same for outputs that depend on records before `mark`.
    fn send_up_to(&mut self, mark: Mark) {
        self.outgoing.mark(self.appended, &self.own);
        // Decisions that a panic interrupted are not written.
        if !self.group.is_broken() {
            self.log.flush(self.outgoing.awaited().max(self.begun));
        }
        let safe = self.log.durable();
        self.let_go(safe);
        let written = if safe < self.begun { safe } else { self.log.written() };
        while let Some(leaving) = self.outgoing.pop(safe.min(mark), written.min(mark)) {
            match leaving {
                Leaving::Parcel(mailbox, parcel) => mailbox.send(parcel),
                Leaving::Event(serial, topic, payload) => self.outbox.push(serial, topic, payload),
            }
        }
    }

    /// Queues progress lines for the watchers. Like all outputs they wait until the records are
    /// durable.
    fn show(&mut self) {
        if self.group.is_broken() {
            return;
        }
        let (outgoing, appended) = (&mut self.outgoing, self.appended);
        self.watchers.look(&self.group, self.clock.now(), |mailbox, parcel| {
            outgoing.push(appended, Leaving::Parcel(mailbox.clone(), parcel));
        });
    }

    /// Writes a part of a snapshot of the group's state, if the log has grown enough to be replaced
    /// by one. Other work continues between the parts. Returns whether there is more.
    fn take_stock(&mut self) -> bool {
        if self.group.is_broken() {
            return false;
        }
        let begins = !self.group.is_in_snapshot();
        if begins && !self.log.wants_snapshot() || self.log.is_busy() {
            // A busy log wakes the actor when it has room.
            return false;
        }
        if begins {
            self.log.begin_snapshot();
        }
        let (at, stamp) = (self.clock.now(), self.clock.stamp());
        let mut records = 0_u64;
        let write = |decision| {
            self.appended = self.log.append(&Record { at, decision });
            records += 1;
            if records.is_multiple_of(SNAPSHOT_PIECE) {
                self.log.flush(0);
            }
        };
        let is_whole = self.group.decide(|group| {
            if !begins {
                return group.snapshot_more(SNAPSHOT_TURN, write);
            }
            group.begin_snapshot(stamp, write);
            false
        });
        match is_whole {
            Some(true) => self.log.end_snapshot(),
            Some(false) => self.log.flush(0),
            None => self.wake.notify_one(),
        }
        is_whole == Some(false)
    }

    /// Publishes waiting announcements and records those that are safe on their topics.
    fn announce(&mut self) {
        if self.announce_at.is_some_and(|at| self.clock.now() < at) {
            return;
        }
        let mut sent = Vec::new();
        let announced = self.outbox.advance(|serial, topic, seq| sent.push((serial, topic, seq)));
        let was_deferred = self.announce_at.take().is_some();
        if let Err(error) = announced {
            if !was_deferred {
                let group = self.group.name();
                tracing::error!(%group, %error, "cannot publish the announcements of the group; it tries again every second");
            }
            self.announce_at = Some(self.clock.now() + RETRY_MS);
        }
        for (serial, topic, seq) in sent {
            self.handle(Input::Sent { serial, topic, seq }, None);
        }
    }
}
