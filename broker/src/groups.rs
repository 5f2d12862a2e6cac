//! The shell of the groups: one task owns each state machine, reads its feeding topics, takes what
//! connections ask, writes its records and sends what rests on them.
#![expect(clippy::disallowed_methods, reason = "spawns the owners and waits for their deadlines")]

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tidings_protocol::{
    Code, Command, DEFAULT_GROUP, GroupName, Hold, JobName, Manage, MemberId, Outcome,
    ProtocolError, Return, Seq, Slot, StartAt, TaskId, TopicName, encode_more, encode_ok,
    encode_task,
};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::group::config::{CREDIT_MAX, GroupConfig, bad};
use crate::group::log::{GroupLog, Mark, MemoryLog};
use crate::group::{Answer, Asked, Group, Input, Output, Show, StagedLink, Task};
use crate::job::JobSettings;
use crate::mailbox::{ConnId, Mailbox, Parcel};
use crate::topic::{Reader, Topics};

/// Groups at once; one more is refused.
const GROUPS_MAX: usize = 1000;
/// Inputs, and events of each topic, that an owner takes before it looks at anything else.
const TURN_MAX: usize = 1024;
/// Records that the log in memory keeps, for looking at.
const RECORDS_KEPT: usize = 1024;

/// The connection that asks, and the way back to it.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The connection.
    pub conn: ConnId,
    /// The worker behind it.
    pub member: MemberId,
    /// Where answers and tasks go.
    pub mailbox: Mailbox,
}

/// What a connection can ask of a group.
#[derive(Debug, Clone)]
pub enum Request {
    /// `JOIN`.
    Join {
        /// Which group.
        group: GroupName,
        /// Most tasks at once; default 1.
        credit: Option<u32>,
    },
    /// `ACK`, with the `LINK` lines before it.
    Ack {
        /// Which task.
        task: TaskId,
        /// How it ended.
        outcome: Outcome,
        /// What is asked of the key.
        hold: Hold,
        /// Children.
        links: Vec<StagedLink>,
        /// Children over the connection's limit, counted only.
        over_limit: u64,
    },
    /// `NACK`.
    Nack {
        /// Which task.
        task: TaskId,
        /// How it goes on.
        back: Return,
        /// What is asked of the key.
        hold: Hold,
        /// Why.
        reason: Option<String>,
    },
    /// `TOUCH`.
    Touch {
        /// Which task.
        task: TaskId,
        /// Its request has ended.
        over: bool,
        /// What is asked of the key.
        hold: Hold,
    },
}

/// All groups of the broker.
pub struct Groups {
    topics: Arc<Topics>,
    defaults: GroupConfig,
    clock: Clock,
    stop: CancellationToken,
    /// Number of this start: above that of every earlier one, as long as the wall clock is.
    run: u64,
    registry: Mutex<Registry>,
}

#[derive(Default)]
struct Registry {
    groups: BTreeMap<GroupName, mpsc::UnboundedSender<Letter>>,
    /// Groups that each connection has joined, to tell them when it is gone.
    joined: HashMap<ConnId, BTreeSet<GroupName>>,
}

/// What reaches an owner. The channel has no bound of its own: a connection has a limited number
/// of unanswered commands.
enum Letter {
    Asked(Input, Mailbox),
    Joined(Input, ConnId, Mailbox),
    Gone(ConnId),
}

impl Groups {
    /// No group yet. Groups that are created later begin with the settings in `defaults`.
    pub fn new(
        topics: Arc<Topics>,
        defaults: GroupConfig,
        clock: Clock,
        stop: CancellationToken,
    ) -> Arc<Self> {
        let run = u64::try_from(clock.unix_ms() / 1000).unwrap_or(1);
        let registry = Mutex::default();
        Arc::new(Self { topics, defaults, clock, stop, run, registry })
    }

    /// Hands a worker's request to its group. The answer comes as a parcel for `slot`, unless it is
    /// refused at once.
    pub fn submit(
        &self,
        caller: &Caller,
        slot: Slot,
        request: Request,
    ) -> Result<(), ProtocolError> {
        let asked = Asked { conn: caller.conn, member: caller.member, slot };
        let (group, input) = match request {
            Request::Join { group, credit } => return self.join(caller, asked, &group, credit),
            Request::Ack { task, outcome, hold, links, over_limit } => {
                (task.group.clone(), Input::Ack { asked, task, outcome, hold, links, over_limit })
            }
            Request::Nack { task, back, hold, reason } => {
                (task.group.clone(), Input::Nack { asked, task, back, hold, reason })
            }
            Request::Touch { task, over, hold } => {
                (task.group.clone(), Input::Touch { asked, task, over, hold })
            }
        };
        self.send(&group, Letter::Asked(input, caller.mailbox.clone()))
    }

    /// Hands `GROUP`, `JOB` or `EXPLAIN` to its group; the answer comes as a parcel for `slot`.
    pub fn manage(
        &self,
        caller: &Caller,
        slot: Slot,
        command: &Command<'_>,
    ) -> Result<(), ProtocolError> {
        let asked = Asked { conn: caller.conn, member: caller.member, slot };
        let (group, input) = match command {
            Command::Group(manage) => match manage.action {
                "ls" => {
                    self.list(caller, slot);
                    return Ok(());
                }
                _ => self.group_input(asked, manage)?,
            },
            Command::Job(manage) => job_input(asked, manage)?,
            Command::Explain { what } => {
                let show = Show::Explain((*what).to_owned());
                (default_group(), Input::Show { asked, what: show })
            }
            _ => unreachable!("only commands of groups are handed to groups"),
        };
        if group.as_str() == DEFAULT_GROUP {
            self.ensure(&group)?;
        }
        self.send(&group, Letter::Asked(input, caller.mailbox.clone()))
    }

    /// A connection ended.
    pub fn gone(&self, conn: ConnId) {
        let joined = self.registry.lock().joined.remove(&conn).unwrap_or_default();
        for group in joined {
            // A group that has ended needs no telling.
            let _ = self.send(&group, Letter::Gone(conn));
        }
    }

    /// Names of all groups.
    pub fn names(&self) -> Vec<GroupName> {
        self.registry.lock().groups.keys().cloned().collect()
    }

    fn join(
        &self,
        caller: &Caller,
        asked: Asked,
        group: &GroupName,
        credit: Option<u32>,
    ) -> Result<(), ProtocolError> {
        let credit = credit.unwrap_or(1);
        if credit > CREDIT_MAX {
            return Err(bad(format!("credit={credit}: it is a number from 0 to {CREDIT_MAX}")));
        }
        if group.as_str() == DEFAULT_GROUP {
            self.ensure(group)?;
        }
        let letter =
            Letter::Joined(Input::Join { asked, credit }, caller.conn, caller.mailbox.clone());
        self.send(group, letter)?;
        self.registry.lock().joined.entry(caller.conn).or_default().insert(group.clone());
        Ok(())
    }

    fn group_input(
        &self,
        asked: Asked,
        manage: &Manage<'_>,
    ) -> Result<(GroupName, Input), ProtocolError> {
        let name = || -> Result<GroupName, ProtocolError> { manage.required_name()?.parse() };
        let settings = || {
            manage.settings.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
        };
        match manage.action {
            "create" => {
                let config = self.defaults.with(manage.settings.iter().copied())?;
                let group = name()?;
                self.create(&group, config)?;
                Ok((group, Input::Show { asked, what: Show::Group }))
            }
            "set" => Ok((name()?, Input::Configure { asked, settings: settings() })),
            "show" => Ok((name()?, Input::Show { asked, what: Show::Group })),
            "pause" | "resume" | "purge" | "tasks" | "delete" | "watch" => Err(not_yet("GROUP", manage)),
            action => Err(bad(format!(
                "no action {action}; GROUP has ls, show, create, set (and later pause, resume, \
                 purge, tasks, delete, watch)"
            ))),
        }
    }

    fn list(&self, caller: &Caller, slot: Slot) {
        let names = self.names();
        let ok = format!("groups={}", names.len());
        let more = names.iter().map(ToString::to_string).collect();
        caller.mailbox.send(Parcel::Answer { slot, line: encode_answer(&Ok(Answer { more, ok })) });
    }

    fn create(&self, name: &GroupName, config: GroupConfig) -> Result<(), ProtocolError> {
        let mut registry = self.registry.lock();
        if registry.groups.contains_key(name) {
            let text = format!("group {name} exists; GROUP set {name} changes it");
            return Err(ProtocolError::new(Code::Exists, text));
        }
        self.start(&mut registry, name, config)
    }

    fn ensure(&self, name: &GroupName) -> Result<(), ProtocolError> {
        let mut registry = self.registry.lock();
        if registry.groups.contains_key(name) {
            return Ok(());
        }
        self.start(&mut registry, name, self.defaults.clone())
    }

    fn start(
        &self,
        registry: &mut Registry,
        name: &GroupName,
        config: GroupConfig,
    ) -> Result<(), ProtocolError> {
        if registry.groups.len() >= GROUPS_MAX {
            let text = format!("there are {GROUPS_MAX} groups already");
            return Err(ProtocolError::new(Code::Limit, text));
        }
        let (sender, letters) = mpsc::unbounded_channel();
        let mut owner = Owner {
            group: Group::new(name.clone(), self.run, config, fastrand::u64(..)),
            topics: self.topics.clone(),
            clock: self.clock,
            log: Box::new(MemoryLog::new(RECORDS_KEPT)),
            readers: BTreeMap::new(),
            members: HashMap::new(),
            unsent: VecDeque::new(),
            appended: 0,
            wake: Arc::new(Notify::new()),
        };
        owner.follow_topics()?;
        registry.groups.insert(name.clone(), sender);
        tokio::spawn(owner.run(letters, self.stop.clone()));
        Ok(())
    }

    fn send(&self, group: &GroupName, letter: Letter) -> Result<(), ProtocolError> {
        let registry = self.registry.lock();
        let sent = registry.groups.get(group).map(|owner| owner.send(letter));
        match (sent, self.stop.is_cancelled()) {
            (Some(Ok(())), _) => Ok(()),
            (_, true) => Err(ProtocolError::new(Code::Internal, "the broker stops")),
            _ => Err(ProtocolError::new(
                Code::NotFound,
                format!("no group {group}; GROUP create {group} makes it"),
            )),
        }
    }
}

fn default_group() -> GroupName {
    DEFAULT_GROUP.parse().expect("the default group has a valid name")
}

fn not_yet(verb: &str, manage: &Manage<'_>) -> ProtocolError {
    let text = format!("{verb} {} is part of the grammar but not built yet", manage.action);
    ProtocolError::new(Code::NotYet, text)
}

fn job_input(asked: Asked, manage: &Manage<'_>) -> Result<(GroupName, Input), ProtocolError> {
    let group = match manage.setting("group") {
        Some(name) => name.parse()?,
        None => default_group(),
    };
    let name = || -> Result<JobName, ProtocolError> { manage.required_name()?.parse() };
    let input = match manage.action {
        "open" => {
            let settings = manage.settings.iter().copied().filter(|(key, _)| *key != "group");
            Input::OpenJob { asked, name: name()?, settings: JobSettings::parse(settings)? }
        }
        "close" | "cancel" | "show" | "ls" => {
            manage.allow_only(&["group"])?;
            match manage.action {
                "close" => Input::CloseJob { asked, name: name()? },
                "cancel" => Input::CancelJob { asked, name: name()? },
                "show" => Input::Show { asked, what: Show::Job(name()?) },
                _ => Input::Show { asked, what: Show::Jobs },
            }
        }
        "add" | "wait" | "watch" | "pause" | "resume" | "delete" => {
            return Err(not_yet("JOB", manage));
        }
        action => {
            return Err(bad(format!(
                "no action {action}; JOB has ls, show, open, close, cancel (and later add, wait, \
                 watch, pause, resume, delete)"
            )));
        }
    };
    Ok((group, input))
}

/// The one task that drives a group.
struct Owner {
    group: Group,
    topics: Arc<Topics>,
    clock: Clock,
    log: Box<dyn GroupLog>,
    readers: BTreeMap<TopicName, Reader>,
    /// Where the members' tasks go.
    members: HashMap<ConnId, Mailbox>,
    /// What rests on records up to a mark, in order.
    unsent: VecDeque<(Mark, Unsent)>,
    appended: Mark,
    /// Woken by the feeding topics.
    wake: Arc<Notify>,
}

enum Unsent {
    Parcel(Mailbox, Parcel),
    Event(&'static str, String),
}

impl Owner {
    /// Takes what there is, lets time pass, waits; until the broker stops.
    async fn run(mut self, mut letters: mpsc::UnboundedReceiver<Letter>, stop: CancellationToken) {
        loop {
            // What has arrived is read before leases are expired: after a stall of this process
            // the answers that came meanwhile are in time.
            let more_letters = self.take_letters(&mut letters);
            let more_events = self.take_events();
            let now = self.clock.now();
            if !more_letters && self.group.deadline().is_some_and(|deadline| deadline <= now) {
                self.handle(Input::Tick, None);
            }
            self.send();
            if more_letters || more_events {
                tokio::task::yield_now().await;
                if stop.is_cancelled() {
                    return;
                }
                continue;
            }
            let deadline = self.group.deadline().map(|moment| self.clock.instant(moment));
            let timer = async {
                match deadline {
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

    /// Takes what connections sent; whether there may be more.
    fn take_letters(&mut self, letters: &mut mpsc::UnboundedReceiver<Letter>) -> bool {
        for _ in 0..TURN_MAX {
            match letters.try_recv() {
                Ok(letter) => self.open(letter),
                Err(_) => return false,
            }
        }
        true
    }

    fn open(&mut self, letter: Letter) {
        match letter {
            Letter::Asked(input, mailbox) => self.handle(input, Some(&mailbox)),
            Letter::Joined(input, conn, mailbox) => {
                self.members.insert(conn, mailbox.clone());
                self.handle(input, Some(&mailbox));
            }
            Letter::Gone(conn) => {
                self.members.remove(&conn);
                self.handle(Input::Gone { conn }, None);
            }
        }
    }

    /// Takes what the feeding topics brought; whether there may be more.
    fn take_events(&mut self) -> bool {
        let mut more = false;
        let names: Vec<TopicName> = self.readers.keys().cloned().collect();
        for topic in names {
            if self.group.is_full() {
                return false;
            }
            let Some(reader) = self.readers.get_mut(&topic) else { continue };
            let found = reader.next_events(TURN_MAX);
            if let Some(lag) = found.lag {
                tracing::warn!(
                    group = %self.group.name(), %topic, from = %lag.from, to = %lag.to,
                    "events were gone before the group could take them"
                );
            }
            more |= found.events.len() == TURN_MAX;
            let next = reader.cursor();
            let events = found.events.into_iter().map(|event| (event.seq, event.payload)).collect();
            if next > self.group.taken(&topic) {
                self.handle(Input::Events { topic, next, events }, None);
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
                    if let Some(mailbox) = mailbox {
                        let line = encode_answer(&answer);
                        let parcel = Parcel::Answer { slot: asked.slot, line };
                        let unsent = Unsent::Parcel(mailbox.clone(), parcel);
                        self.unsent.push_back((self.appended, unsent));
                    }
                }
                Output::Announce { topic, payload } => {
                    self.unsent.push_back((self.appended, Unsent::Event(topic, payload)));
                }
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
                topic.append(ConnId::BROKER, [payload]);
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
            let from = StartAt::Seq(self.group.taken(&name));
            let reader = self.topics.open(&name)?.reader(from, self.wake.clone());
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

fn encode_answer(answer: &Result<Answer, ProtocolError>) -> Bytes {
    let mut lines = BytesMut::new();
    match answer {
        Ok(answer) => {
            answer.more.iter().for_each(|line| encode_more(line, &mut lines));
            encode_ok(&answer.ok, &mut lines);
        }
        Err(error) => error.encode(&mut lines),
    }
    lines.freeze()
}
