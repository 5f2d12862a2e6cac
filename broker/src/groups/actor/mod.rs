//! The actor of one group: consumes its feeding topics, receives commands from connections, writes
//! the state machine's records, and sends the outputs that depend on them.
#![expect(clippy::disallowed_methods, reason = "spawns the actor and waits for its deadlines")]

mod deletion;
mod failure;
mod feeding_topics;
mod held_answers;
mod metrics;
mod notices;
mod output_queue;
mod snapshots;
mod supervisor;
mod unanswered_commands;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use hashbrown::HashMap;
use tidings_protocol::{
    Code, JOB_DONE_TOPIC, JobName, MemberId, ProtocolError, Seq, TopicName, encode_task,
};
use tidings_queue::record::Decision;
use tidings_queue::{Group, GroupQuery, Input, JobOperation, Output, Requester, TaskMessage};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use self::held_answers::HeldAnswers;
use self::metrics::MetricsSchedule;
use self::output_queue::{OutputQueue, Parcel, QueuedEvent};
use self::unanswered_commands::UnansweredCommands;
use super::job_names::{JobNames, JobStatus};
use super::log::{GroupLog, RecordMark};
use super::message::{GroupMessage, log_failed, reject_message};
use super::outbox::AnnouncementOutbox;
use super::page_file::PageFile;
use super::registry::GroupRegistry;
use super::unknown_group;
use super::watchers::Watchers;
use crate::clock::{Clock, Moment, wall_unix_ms};
use crate::mailbox::{ConnId, Mailbox};
use crate::topic::{Health, Reader, Topics};

/// A deadline missed by this many milliseconds was missed because the process was stopped.
const STALL_MS_MIN: u64 = 250;
/// After such a stall, time for reading input that arrived meanwhile.
const STALL_GRACE_MS: u64 = 100;
/// Interval at which a stalled group checks whether it can continue, in ms.
const RETRY_MS: u64 = 1000;
/// Interval at which the wall clock is checked while entries wait for a time of day, in ms.
const WALL_CLOCK_POLL_MS: u64 = 1000;

/// The task that owns and drives one group.
pub(super) struct GroupActor {
    group: Group,
    /// Where texts of the group are, if they are not in memory.
    pages: Option<PageFile>,
    topics: Arc<Topics>,
    clock: Clock,
    log: Box<dyn GroupLog>,
    readers: BTreeMap<TopicName, Reader>,
    /// Consumed positions of the topics, each with the mark of its records, until these are
    /// durable. Marks rise.
    consumed: VecDeque<(RecordMark, TopicName, Seq)>,
    /// Mailboxes of the members, for their tasks.
    members: HashMap<ConnId, Mailbox>,
    /// Connections of the member that runs in the broker's own process.
    local_conns: BTreeSet<ConnId>,
    watchers: Watchers,
    metrics: MetricsSchedule,
    commands: UnansweredCommands,
    held_answers: HeldAnswers,
    /// Whether the settings were recorded since the topics were opened.
    is_configured: bool,
    outgoing: OutputQueue,
    appended: RecordMark,
    /// The mark after this start's records. Until they are durable, task ids might be given again.
    start_mark: RecordMark,
    /// After a stall: when time-outs are processed again.
    grace_until: Option<Moment>,
    /// Woken by the feeding topics and by the log.
    wake: Arc<Notify>,
    /// Messages that arrived while the log could not be written, in order.
    deferred: VecDeque<GroupMessage>,
    /// Whether the log cannot be written.
    is_stalled: bool,
    /// When to check the log again.
    retry_at: Moment,
    outbox: AnnouncementOutbox,
    /// When to retry announcements that could not be published.
    announce_at: Option<Moment>,
    /// Sends messages to this actor until the group is deleted.
    registry: Arc<GroupRegistry>,
    /// Job names of all groups.
    job_names: Arc<JobNames>,
    is_deleted: bool,
    /// Why the group has stopped: the error for all commands.
    failure: Option<ProtocolError>,
}

impl GroupActor {
    /// An actor that reads the feeding topics from the group's position. The log wakes it by
    /// `wake`, and continues at `appended`.
    pub(super) fn new(
        (group, pages): (Group, Option<PageFile>),
        topics: Arc<Topics>,
        clock: Clock,
        log: Box<dyn GroupLog>,
        wake: Arc<Notify>,
        (registry, job_names): (Arc<GroupRegistry>, Arc<JobNames>),
    ) -> Self {
        let appended = log.durable();
        let outbox = AnnouncementOutbox::new(Arc::clone(&topics), Arc::clone(&wake));
        if let Some(pages) = &pages {
            pages.set_wake(Arc::clone(&wake));
        }
        Self {
            group,
            pages,
            topics,
            clock,
            log,
            readers: BTreeMap::new(),
            consumed: VecDeque::new(),
            members: HashMap::new(),
            local_conns: BTreeSet::new(),
            watchers: Watchers::default(),
            metrics: MetricsSchedule::default(),
            commands: UnansweredCommands::default(),
            held_answers: HeldAnswers::default(),
            is_configured: false,
            outgoing: OutputQueue::default(),
            appended,
            start_mark: appended,
            grace_until: None,
            wake,
            deferred: VecDeque::new(),
            is_stalled: false,
            retry_at: Moment(0),
            outbox,
            announce_at: None,
            registry,
            job_names,
            is_deleted: false,
            failure: None,
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
            self.publish_job_status(name);
        }
        for (serial, topic, payload) in self.group.unpublished() {
            self.outbox.push_again(serial, topic, payload, self.group.next_own_seq(topic))?;
        }
        let stamp = self.clock.stamp();
        self.handle(
            Input::Start { run, since, elapsed_unknown: anew, stamp, local_member: own },
            None,
        );
        self.start_mark = self.appended;
        self.poll_wall_clock();
        self.follow_topics()
    }

    /// Sets the group's delay.
    pub(super) fn set_delay(&mut self, delay_ms: Option<u64>) {
        self.handle(Input::SetDelay { delay_ms }, None);
    }

    /// Runs the actor in a task of its own until the broker stops.
    pub(super) fn spawn(
        self,
        messages: mpsc::UnboundedReceiver<GroupMessage>,
        stop: CancellationToken,
    ) {
        tokio::spawn(supervisor::supervise(self, messages, stop));
    }

    /// Runs the group until the broker stops or the group was deleted. If the group fails, rejects
    /// everything.
    async fn run(
        &mut self,
        messages: &mut mpsc::UnboundedReceiver<GroupMessage>,
        stop: &CancellationToken,
    ) {
        if self.failure.is_none() {
            self.work(messages, stop).await;
        }
        if let Some(error) = self.failure.clone() {
            self.publish_failure();
            self.reject_all(&error, messages, stop).await;
        }
    }

    /// Handles input, processes time-outs and waits, until the broker stops, the group was deleted,
    /// or it fails.
    async fn work(
        &mut self,
        messages: &mut mpsc::UnboundedReceiver<GroupMessage>,
        stop: &CancellationToken,
    ) {
        loop {
            if self.is_running() {
                self.poll_wall_clock();
            }
            // Input that has arrived is handled before leases expire.
            let more_messages = self.drain_messages(messages);
            if !self.is_deleted && self.is_running() {
                self.take_text_replies();
            }
            if self.is_deleted {
                return self.finish_deletion(messages, stop).await;
            }
            let more_events = self.is_running() && !self.log.is_behind() && self.consume_events();
            if self.is_running() && self.is_tick_due(self.clock.now()) {
                self.handle(Input::Tick, None);
            }
            self.flush_and_send();
            let mut more_snapshot = false;
            if self.is_running() {
                self.publish_announcements();
                more_snapshot = self.continue_snapshot();
                self.update_watchers();
                self.flush_and_send();
            }
            if self.failure.is_some() {
                return;
            }
            self.publish_metrics();
            if more_messages || more_events || more_snapshot {
                tokio::task::yield_now().await;
                if stop.is_cancelled() {
                    return;
                }
                continue;
            }
            let due = self.next_wakeup().map(|moment| self.clock.instant(moment));
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
    fn poll_wall_clock(&mut self) {
        let unix_ms = wall_unix_ms();
        if self.group.is_wall_clock_off(unix_ms, self.clock.now()) {
            self.handle(Input::WallClock { unix_ms }, None);
        }
    }

    /// When to wake up even if nothing arrives.
    fn next_wakeup(&self) -> Option<Moment> {
        match self.log.health() {
            Health::Good => {
                let due = self.grace_until.or_else(|| self.group.deadline());
                // Setting the wall clock wakes no timer, so it is polled.
                let look =
                    self.group.has_wall_clock_dues().then(|| self.clock.now() + WALL_CLOCK_POLL_MS);
                let outcomes = self.outgoing.next_outcomes(self.clock.now());
                let (metrics, watchers) = (self.metrics.deadline(), self.watchers.next_poll());
                let others = [self.announce_at, outcomes, look, watchers, metrics];
                due.into_iter().chain(others.into_iter().flatten()).min()
            }
            Health::Full => Some(self.retry_at),
            Health::Failed => None,
        }
    }

    /// Whether the group can decide, because its decisions can be written. After a stall all leases
    /// start again, because workers could not answer meanwhile.
    fn is_running(&mut self) -> bool {
        if self.failure.is_some() {
            return false;
        }
        match self.log.health() {
            Health::Good => {}
            Health::Full => {
                let now = self.clock.now();
                self.metrics.is_stale = true;
                if !std::mem::replace(&mut self.is_stalled, true) || self.retry_at <= now {
                    self.retry_at = now + RETRY_MS;
                    self.log.retry();
                }
                return false;
            }
            Health::Failed => {
                self.failure = Some(log_failed());
                return false;
            }
        }
        if std::mem::take(&mut self.is_stalled) {
            tracing::info!(group = %self.group.name(), "the log can be written again: the group continues");
            let (run, stamp) = (self.group.run(), self.clock.stamp());
            let (own, since) = (self.group.local_member(), self.group.since().unwrap_or(run));
            self.handle(
                Input::Start { run, since, elapsed_unknown: true, stamp, local_member: own },
                None,
            );
            while let Some(message) = self.deferred.pop_front() {
                self.apply_message(message);
            }
        }
        true
    }

    /// Whether the group must process time-outs. After a stall of this process that waits a little:
    /// answers that arrived in time may still be in sockets.
    fn is_tick_due(&mut self, now: Moment) -> bool {
        let Some(deadline) = self.group.deadline().filter(|deadline| *deadline <= now) else {
            self.grace_until = None;
            return false;
        };
        if now.since(deadline) < STALL_MS_MIN {
            self.grace_until = None;
            return true;
        }
        let until = *self.grace_until.get_or_insert(now + STALL_GRACE_MS);
        if now >= until {
            self.grace_until = None;
        }
        now >= until
    }

    /// Handles the messages that are queued now, but none that arrive meanwhile, so that a flood
    /// does not delay other work for long. Returns whether there are more.
    fn drain_messages(&mut self, messages: &mut mpsc::UnboundedReceiver<GroupMessage>) -> bool {
        for _ in 0..messages.len() {
            match messages.try_recv() {
                Ok(message) => self.receive(message),
                Err(_) => return false,
            }
        }
        !messages.is_empty()
    }

    fn receive(&mut self, message: GroupMessage) {
        if self.is_running() { self.apply_message(message) } else { self.defer(message) }
    }

    /// Keeps a message until there is room on the disk, or rejects it.
    fn defer(&mut self, message: GroupMessage) {
        if let Some(error) = &self.failure {
            return self.reject_message(message, error);
        }
        match message {
            GroupMessage::Manage(..) | GroupMessage::Watch(..)
                if self.log.health() == Health::Full =>
            {
                let text = "the disk is full: the group is stalled until there is room";
                self.reject_message(message, &ProtocolError::new(Code::Full, text));
            }
            // Silence is not counted while the group is stalled.
            GroupMessage::Activity(_) => {}
            message => {
                if let GroupMessage::Disconnected(gone) = &message {
                    self.deferred.retain(|message| message.connection() != Some(*gone));
                }
                self.deferred.push_back(message);
            }
        }
    }

    /// Rejects a message. If it opens a job, the name that was reserved for it is released.
    fn reject_message(&self, message: GroupMessage, error: &ProtocolError) {
        if let GroupMessage::Manage(Input::OpenJob { name, .. }, _) = &message {
            self.job_names.release(name, self.group.name());
        }
        reject_message(message, error);
    }

    /// Updates the index of job names with the state of this group's job.
    fn publish_job_status(&self, name: &JobName) {
        let done = self.group.is_done(name).filter(|_| !self.is_deleted);
        let job = done.map(|done| if done { JobStatus::Done } else { JobStatus::Unfinished });
        self.job_names.set(name, self.group.name(), job);
    }

    fn apply_message(&mut self, message: GroupMessage) {
        if self.is_deleted {
            return self.reject_message(message, &unknown_group(self.group.name()));
        }
        match message {
            GroupMessage::Replies(inputs, mailbox) => self.handle_all(inputs, &mailbox),
            GroupMessage::Manage(input, mailbox) | GroupMessage::Wait(input, mailbox) => {
                if matches!(input, Input::Query { query: GroupQuery::Group, .. }) {
                    self.publish_metrics_now();
                }
                self.handle(input, Some(&mailbox));
            }
            GroupMessage::Join(input, mailbox) => {
                if let Some(Requester { conn, member, .. }) = input.requester() {
                    self.members.insert(conn, mailbox.clone());
                    if self.group.local_member() == Some(member) {
                        self.local_conns.insert(conn);
                    }
                }
                self.handle(input, Some(&mailbox));
            }
            GroupMessage::Watch(watch, mailbox) => {
                let (requester, job) = (watch.asked, watch.job.clone());
                self.watchers.add(watch, mailbox.clone(), self.clock.now());
                match job {
                    // The end of the job is the final answer, and removes the watcher.
                    Some(name) => {
                        let action = JobOperation::Wait;
                        self.handle(Input::JobAction { requester, name, action }, Some(&mailbox));
                    }
                    None => self.commands.add(requester, None, &mailbox),
                }
            }
            GroupMessage::SetDelay(delay_ms) => self.set_delay(delay_ms),
            GroupMessage::SetNeverList(list) => self.group.set_never_list(list),
            GroupMessage::Activity(conn) => self.handle(Input::Activity { conn }, None),
            GroupMessage::Disconnected(conn) => {
                self.remove_connection(conn);
                self.handle(Input::Disconnected { conn }, None);
            }
        }
    }

    /// Removes a connection; nothing more is sent to it.
    fn remove_connection(&mut self, conn: ConnId) {
        self.members.remove(&conn);
        self.local_conns.remove(&conn);
        self.commands.remove(conn);
        self.watchers.remove(conn);
    }

    /// Passes an input to the state machine and handles all its outputs. `mailbox` belongs to the
    /// sender of the input.
    fn handle(&mut self, input: Input, mailbox: Option<&Mailbox>) {
        let is_start = matches!(input, Input::Start { .. });
        if let Some(mailbox) = mailbox {
            self.commands.add_inputs(std::slice::from_ref(&input), mailbox);
        }
        self.group.handle(input, self.clock.now());
        self.drain_outputs();
        let configured = std::mem::take(&mut self.is_configured) && !is_start;
        if configured && let Err(error) = self.follow_topics() {
            tracing::error!(group = %self.group.name(), %error, "cannot read a feeding topic");
        }
    }

    /// The same for several commands of one worker.
    fn handle_all(&mut self, inputs: Vec<Input>, mailbox: &Mailbox) {
        self.commands.add_inputs(&inputs, mailbox);
        self.group.handle_all(inputs, self.clock.now());
        self.drain_outputs();
    }

    /// Passes the replies of the page file to the group.
    fn take_text_replies(&mut self) {
        while self.failure.is_none()
            && !self.is_deleted
            && let Some(reply) = self.pages.as_mut().and_then(PageFile::poll_reply)
        {
            self.handle(Input::Texts(reply), None);
        }
    }

    /// Handles all outputs of the state machine.
    fn drain_outputs(&mut self) {
        self.watchers.changed();
        self.metrics.is_stale = true;
        while let Some(output) = self.group.poll() {
            match output {
                Output::Record(record) => {
                    self.appended = self.log.append(&record);
                    self.is_configured |= matches!(record.decision, Decision::Configured(_));
                    if let Decision::Consumed { topic, next, .. } = record.decision {
                        self.consumed.push_back((self.appended, topic, next));
                    }
                }
                Output::Task { conn, task } => {
                    if let Some(mailbox) = self.members.get(&conn) {
                        let TaskMessage { id, clock_ms, lease_ms, payload } = &task;
                        let tasks = &mut self.outgoing.batch(conn, mailbox).tasks;
                        encode_task(id, *clock_ms, *lease_ms, payload, tasks);
                    }
                }
                Output::Answer { requester, answer } => self.answer(requester, answer),
                Output::Publish { serial, topic, payload } => {
                    // The payload begins with the job's name.
                    if topic == JOB_DONE_TOPIC
                        && let Some(Ok(name)) = payload.split(' ').next().map(str::parse)
                    {
                        self.publish_job_status(&name);
                    }
                    let event = QueuedEvent { serial, topic, payload };
                    self.outgoing.push_event(self.appended, event);
                }
                Output::JobNameChanged { name, .. } => self.publish_job_status(&name),
                Output::Deleted => self.is_deleted = true,
                Output::RequestTopicHeads { job } => {
                    let heads = self.topic_heads();
                    self.group.handle(Input::TopicHeads { job, heads }, self.clock.now());
                }
                Output::Texts(request) => {
                    if let Some(pages) = &mut self.pages {
                        pages.begin(request);
                    }
                }
                Output::Notice(notice) => self.log_notice(&notice),
            }
        }
        self.check_texts();
        if self.log.flush_if_large() {
            self.outgoing.mark(self.appended, &self.local_conns);
        }
    }

    /// Flushes the log and sends all outputs with safe records.
    fn flush_and_send(&mut self) {
        self.flush_and_send_up_to(RecordMark::MAX);
    }

    /// The same for outputs that depend on records before `mark`.
    fn flush_and_send_up_to(&mut self, mark: RecordMark) {
        self.outgoing.mark(self.appended, &self.local_conns);
        let now = self.clock.now();
        self.log.flush(self.outgoing.last_mark(now).max(self.start_mark));
        let safe = self.log.durable();
        self.trim_topics(safe);
        let written = if safe < self.start_mark { safe } else { self.log.written() };
        while let Some(Parcel(mailbox, message)) =
            self.outgoing.pop(safe.min(mark), written.min(mark))
        {
            mailbox.send(message);
        }
        for QueuedEvent { serial, topic, payload } in self.outgoing.take_events(safe.min(mark), now)
        {
            self.outbox.push(serial, topic, payload);
        }
    }

    /// Queues progress lines for the watchers. Like all outputs they wait until the records are
    /// durable.
    fn update_watchers(&mut self) {
        // Outputs that wait for texts are not appended yet.
        if self.group.is_blocked() {
            return;
        }
        let (outgoing, appended) = (&mut self.outgoing, self.appended);
        self.watchers.poll(&self.group, self.clock.now(), |mailbox, parcel| {
            outgoing.push(appended, Parcel(mailbox.clone(), parcel));
        });
    }

    /// Publishes waiting announcements and records those that are safe on their topics.
    fn publish_announcements(&mut self) {
        if self.announce_at.is_some_and(|at| self.clock.now() < at) {
            return;
        }
        // The newest of each topic: one record says it for all before.
        let mut sent = BTreeMap::new();
        let announced = self.outbox.advance(|serial, topic, seq| {
            sent.insert(topic, (serial, seq));
        });
        let was_deferred = self.announce_at.take().is_some();
        if let Err(error) = announced {
            if !was_deferred {
                let group = self.group.name();
                tracing::error!(%group, %error, "cannot publish the announcements of the group; it tries again every second");
            }
            self.announce_at = Some(self.clock.now() + RETRY_MS);
        }
        for (topic, (serial, seq)) in sent {
            self.handle(Input::Published { serial, topic, seq }, None);
        }
        self.send_held_answers();
    }
}
