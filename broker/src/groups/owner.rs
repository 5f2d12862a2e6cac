//! The shell of one group: reads its feeding topics, takes what connections ask, writes the records
//! of its state machine and sends what rests on them.
#![expect(clippy::disallowed_methods, reason = "spawns the owner and waits for its deadlines")]

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tidings_protocol::{
    ProtocolError, Seq, StartAt, TopicName, encode_more, encode_ok, encode_task,
};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use super::job_names::JobNames;
use super::{Registry, no_such};
use crate::catalog::Record;
use crate::clock::{Clock, Moment};
use crate::group::log::{GroupLog, Mark, MemoryLog};
use crate::group::{Answer, Group, Input, Output, Task};
use crate::mailbox::{ConnId, Mailbox, Parcel};
use crate::topic::{Reader, Topics};

/// Events of each topic that an owner takes before it looks at anything else.
const TURN_MAX: usize = 1024;
/// A deadline that was missed by so many milliseconds was missed because this process stood still.
const STALL_MS: u64 = 250;
/// Time to read, after that, what has come meanwhile.
const GRACE_MS: u64 = 100;
/// Records that the log in memory keeps, for looking at.
const RECORDS_KEPT: usize = 1024;

/// What reaches an owner. The channel has no bound of its own: a connection has a limited number
/// of unanswered commands.
pub(super) enum Letter {
    /// An input, and where its answer goes.
    Asked(Input, Mailbox),
    /// A member's connection, and where its tasks go.
    Joined(Input, ConnId, Mailbox),
    /// An input whose answer may come much later, while the connection is there.
    Waits(Input, ConnId, Mailbox),
    /// A member's connection is alive.
    Heard(ConnId),
    /// A connection ended.
    Gone(ConnId),
}

/// The one task that drives a group.
pub(super) struct Owner {
    group: Group,
    topics: Arc<Topics>,
    clock: Clock,
    log: Box<dyn GroupLog>,
    readers: BTreeMap<TopicName, Reader>,
    /// Where the members' tasks go.
    members: HashMap<ConnId, Mailbox>,
    /// Where the answers of those go who wait.
    waiting: HashMap<ConnId, Mailbox>,
    /// What rests on records up to a mark, in order.
    unsent: VecDeque<(Mark, Unsent)>,
    appended: Mark,
    /// After a stall: when time is let pass at last.
    grace_until: Option<Moment>,
    /// Woken by the feeding topics.
    wake: Arc<Notify>,
    /// Where a restart would take up each topic.
    noted: HashMap<TopicName, Seq>,
    /// A position is on its way to the catalog.
    noting: Arc<AtomicBool>,
    /// Where letters for it are sent from, until it is deleted.
    registry: Arc<Mutex<Registry>>,
    /// Jobs of all groups.
    job_names: Arc<JobNames>,
    is_deleted: bool,
}

enum Unsent {
    Parcel(Mailbox, Parcel),
    Event(&'static str, String),
}

impl Owner {
    /// An owner that reads the group's feeding topics from where the group is.
    pub(super) fn new(
        group: Group,
        topics: Arc<Topics>,
        clock: Clock,
        registry: Arc<Mutex<Registry>>,
        job_names: Arc<JobNames>,
    ) -> Result<Self, ProtocolError> {
        let mut owner = Self {
            group,
            topics,
            clock,
            log: Box::new(MemoryLog::new(RECORDS_KEPT)),
            readers: BTreeMap::new(),
            members: HashMap::new(),
            waiting: HashMap::new(),
            unsent: VecDeque::new(),
            appended: 0,
            grace_until: None,
            wake: Arc::new(Notify::new()),
            noted: HashMap::new(),
            noting: Arc::default(),
            registry,
            job_names,
            is_deleted: false,
        };
        for name in owner.group.job_names() {
            owner.job_names.set(name, owner.group.name(), true);
        }
        owner.follow_topics()?;
        Ok(owner)
    }

    /// Lets it live until the broker stops.
    pub(super) fn spawn(self, letters: mpsc::UnboundedReceiver<Letter>, stop: CancellationToken) {
        tokio::spawn(self.run(letters, stop));
    }

    /// Takes what there is, lets time pass, waits; until the broker stops.
    async fn run(mut self, mut letters: mpsc::UnboundedReceiver<Letter>, stop: CancellationToken) {
        loop {
            // What has arrived is read before leases are expired.
            let more_letters = self.take_letters(&mut letters);
            if self.is_deleted {
                return self.leave(&mut letters);
            }
            let more_events = self.take_events();
            let now = self.clock.now();
            if self.is_due(now) {
                self.handle(Input::Tick, None);
            }
            self.send();
            self.note_positions();
            if more_letters || more_events {
                tokio::task::yield_now().await;
                if stop.is_cancelled() {
                    return;
                }
                continue;
            }
            let due = self.grace_until.or_else(|| self.group.deadline());
            let due = due.map(|moment| self.clock.instant(moment));
            let timer = async {
                match due {
                    Some(instant) => tokio::time::sleep_until(instant).await,
                    None => std::future::pending().await,
                }
            };
            // Cancel-safe: a letter is either received or still in the channel, a wake-up leaves a
            // permit, and a deadline is asked for again.
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                letter = letters.recv() => match letter {
                    Some(letter) => self.open(letter),
                    None => return,
                },
                () = self.wake.notified() => {}
                () = timer => {}
            }
        }
    }

    /// Whether the machine is to be told that time has passed. After a stall of this process not at
    /// once: answers that came meanwhile may still be in sockets, and they are in time.
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

    /// Takes the letters that are there, and none that come meanwhile, so that a flood of them
    /// keeps nothing else waiting for long; whether there are more.
    fn take_letters(&mut self, letters: &mut mpsc::UnboundedReceiver<Letter>) -> bool {
        for _ in 0..letters.len() {
            match letters.try_recv() {
                Ok(letter) => self.open(letter),
                Err(_) => return false,
            }
        }
        !letters.is_empty()
    }

    fn open(&mut self, letter: Letter) {
        if self.is_deleted {
            return self.refuse(letter);
        }
        match letter {
            Letter::Asked(input, mailbox) => self.handle(input, Some(&mailbox)),
            Letter::Joined(input, conn, mailbox) => {
                self.members.insert(conn, mailbox.clone());
                self.handle(input, Some(&mailbox));
            }
            Letter::Waits(input, conn, mailbox) => {
                self.waiting.insert(conn, mailbox);
                self.handle(input, None);
            }
            Letter::Heard(conn) => self.handle(Input::Heard { conn }, None),
            Letter::Gone(conn) => {
                self.members.remove(&conn);
                self.waiting.remove(&conn);
                self.handle(Input::Gone { conn }, None);
            }
        }
    }

    /// The group was deleted: whoever asks for it from here on is told so.
    fn leave(&mut self, letters: &mut mpsc::UnboundedReceiver<Letter>) {
        // Letters are sent with the lock held, so none comes after this.
        self.registry.lock().groups.remove(self.group.name());
        self.job_names.forget(self.group.name());
        while let Ok(letter) = letters.try_recv() {
            self.open(letter);
        }
        for topic in self.readers.keys() {
            let group = self.group.name().clone();
            let record = Record::Taken { group, topic: topic.clone(), next: Seq(1) };
            self.topics.catalog().write(record, |result| {
                if let Err(error) = result {
                    tracing::warn!(%error, "the position of a deleted group stays behind");
                }
            });
        }
        self.send();
    }

    fn refuse(&self, letter: Letter) {
        let (Letter::Asked(input, mailbox)
        | Letter::Joined(input, _, mailbox)
        | Letter::Waits(input, _, mailbox)) = letter
        else {
            return;
        };
        if let Some(asked) = input.asked() {
            let line = encode_answer(&Err(no_such(self.group.name())));
            mailbox.send(Parcel::Answer { slot: asked.slot, line });
        }
    }

    /// Takes what the feeding topics brought; whether there may be more.
    fn take_events(&mut self) -> bool {
        let mut more = false;
        let names: Vec<TopicName> = self.readers.keys().cloned().collect();
        for topic in names {
            let Some(reader) = self.readers.get_mut(&topic) else {
                continue;
            };
            if self.group.is_full() {
                // It may be for long, and others could use what the disk answers with.
                reader.rewind(reader.cursor());
                continue;
            }
            let found = reader.next_events(TURN_MAX);
            if let Some(lag) = found.lag {
                tracing::warn!(
                    group = %self.group.name(), %topic, from = %lag.from, to = %lag.to,
                    "events were gone before the group could take them"
                );
            }
            // The disk wakes us when it has answered.
            more |= reader.is_behind() && !reader.waits_for_disk();
            let next = reader.cursor();
            let payloads = found.events.iter().map(|event| event.payload.as_str());
            let elsewhere = self.job_names.elsewhere(self.group.name(), payloads);
            let events = found.events.into_iter().map(|event| (event.seq, event.payload)).collect();
            if next > self.group.taken(&topic) {
                self.handle(Input::Events { topic, next, events, elsewhere }, None);
            }
        }
        more
    }

    /// Feeds the machine and takes everything it puts out. `mailbox` is the asker's.
    fn handle(&mut self, input: Input, mailbox: Option<&Mailbox>) {
        let configures = matches!(input, Input::Configure { .. });
        self.group.handle(input, self.clock.now());
        while let Some(output) = self.group.poll() {
            match output {
                Output::Record(record) => self.appended = self.log.append(record),
                Output::Task { conn, task } => {
                    if let Some(mailbox) = self.members.get(&conn).cloned() {
                        let parcel = Parcel::Task(encode_line(&task));
                        self.unsent.push_back((self.appended, Unsent::Parcel(mailbox, parcel)));
                    }
                }
                Output::Answer { asked, answer } => {
                    let waiting = self.waiting.get(&asked.conn);
                    if let Some(mailbox) = waiting.or(mailbox) {
                        let line = encode_answer(&answer);
                        let parcel = Parcel::Answer { slot: asked.slot, line };
                        let unsent = Unsent::Parcel(mailbox.clone(), parcel);
                        self.unsent.push_back((self.appended, unsent));
                    }
                }
                Output::Announce { topic, payload } => {
                    self.unsent.push_back((self.appended, Unsent::Event(topic, payload)));
                }
                Output::JobName { name, known } => {
                    self.job_names.set(&name, self.group.name(), known);
                }
                Output::Deleted => self.is_deleted = true,
                Output::AskHeads { job } => {
                    let heads = self.heads();
                    self.group.handle(Input::Heads { job, heads }, self.clock.now());
                }
            }
        }
        if configures && let Err(error) = self.follow_topics() {
            tracing::error!(group = %self.group.name(), %error, "cannot read a feeding topic");
        }
    }

    /// Notes where a restart is to take up each topic, whenever everything that was taken has come to
    /// its end. What is taken after that is taken again after a restart.
    fn note_positions(&mut self) {
        if !self.group.is_idle() || self.noting.load(Ordering::Acquire) {
            return;
        }
        let moved = self.readers.keys().find_map(|topic| {
            let next = self.group.taken(topic);
            (self.noted.get(topic) != Some(&next)).then(|| (topic.clone(), next))
        });
        let Some((topic, next)) = moved else { return };
        self.noting.store(true, Ordering::Release);
        self.noted.insert(topic.clone(), next);
        let (noting, wake) = (Arc::clone(&self.noting), Arc::clone(&self.wake));
        let record = Record::Taken { group: self.group.name().clone(), topic, next };
        self.topics.catalog().write(record, move |result| {
            if let Err(error) = result {
                tracing::warn!(%error, "a restart will take up a topic further back");
            }
            noting.store(false, Ordering::Release);
            wake.notify_one();
        });
    }

    /// How far each feeding topic is numbered.
    fn heads(&self) -> BTreeMap<TopicName, Seq> {
        let head = |(name, reader): (&TopicName, &Reader)| (name.clone(), reader.topic().head());
        self.readers.iter().map(head).collect()
    }

    /// Sends what rests on records that are safe.
    fn send(&mut self) {
        let durable = self.log.durable();
        while self.unsent.front().is_some_and(|(mark, _)| *mark <= durable) {
            match self.unsent.pop_front() {
                Some((_, Unsent::Parcel(mailbox, parcel))) => mailbox.send(parcel),
                Some((_, Unsent::Event(topic, payload))) => self.publish(topic, &payload),
                None => {}
            }
        }
    }

    fn publish(&self, topic: &'static str, payload: &str) {
        let name: TopicName = topic.parse().expect("the group's own topics have valid names");
        match self.topics.open(&name) {
            Ok(topic) => {
                if let Err(error) = topic.append(ConnId::BROKER, [payload]) {
                    tracing::error!(%error, payload, "an announcement of the group is lost");
                }
            }
            Err(error) => tracing::error!(topic, %error, "an announcement of the group is lost"),
        }
    }

    /// Reads the topics of the settings, each from where the group is, and no others.
    fn follow_topics(&mut self) -> Result<(), ProtocolError> {
        let wanted = self.group.config().topics.clone();
        self.readers.retain(|name, _| wanted.contains(name));
        for name in wanted {
            if self.readers.contains_key(&name) {
                continue;
            }
            let noted = self.topics.catalog().contents().taken(self.group.name(), &name);
            let next = self.group.taken(&name).max(noted.unwrap_or_default());
            let reader = self.topics.open(&name)?.reader(StartAt::Seq(next), self.wake.clone());
            // A job that begins now is not to wait for what was taken before this start.
            let (topic, next) = (name.clone(), reader.cursor());
            let (events, elsewhere) = (Vec::new(), BTreeSet::new());
            self.group.handle(Input::Events { topic, next, events, elsewhere }, self.clock.now());
            self.readers.insert(name, reader);
        }
        self.wake.notify_one();
        Ok(())
    }
}

fn encode_line(task: &Task) -> Bytes {
    let mut line = BytesMut::new();
    encode_task(&task.id, task.clock_ms, task.lease_ms, &task.payload, &mut line);
    line.freeze()
}

/// The lines of an answer.
pub(super) fn encode_answer(answer: &Result<Answer, ProtocolError>) -> Bytes {
    let mut lines = BytesMut::new();
    match answer {
        Ok(answer) => {
            for line in &answer.more {
                encode_more(line, &mut lines);
            }
            encode_ok(&answer.ok, &mut lines);
        }
        Err(error) => error.encode(&mut lines),
    }
    lines.freeze()
}
