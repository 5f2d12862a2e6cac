//! What each command does.

use std::task::Waker;

use bytes::{Bytes, BytesMut};
use tidings_protocol::{
    Code, Command, GroupName, Hello, HelloAnswer, KeyRest, MemberId, Outcome, Prio, ProtocolError,
    RetryMode, Slot, StartAt, TaskId, TopicName, encode_more, encode_ok, encode_pong,
};

use super::connection::{Connection, Worker};
use super::help::HELP;
use super::staged::Staged;
use super::subscriptions::Kind;
use super::topics::{self, Reply, describe};
use crate::access::{PrivilegedAttribute, Transport};
use crate::audit::AuditEvent;
use crate::clock::Moment;
use crate::group::StagedLink;
use crate::groups::{Caller, TaskCommand};
use crate::mailbox::ConnMessage;
use crate::quota::Quantity;

/// The version that `HELLO` tells.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// How often groups are told that a member lives, at most, in milliseconds.
const HEARD_EVERY_MS: u64 = 100;

impl Connection {
    /// Does what a command says, and enters its answer.
    ///
    /// `PUB` is not among them: publishes are collected into batches.
    pub(super) fn command(&mut self, command: Command<'_>, waker: &Waker) {
        let of_task = matches!(
            command,
            Command::Link { .. }
                | Command::Ack { .. }
                | Command::Nack { .. }
                | Command::Touch { .. }
        );
        if !of_task {
            self.send_requests();
        }
        let allowed = self.pass.check_command(&command).inspect_err(|error| {
            self.audit(AuditEvent::Denied { topic: topic_of(&command), why: &error.text });
        });
        let allowed = allowed.and_then(|()| {
            let made = self.hub.may_make(self.login.held.as_deref(), &command);
            made.inspect_err(|error| self.audit(AuditEvent::LimitReached { why: &error.text }))
        });
        if let Err(error) = allowed {
            // A LINK is never answered (`[A1]`).
            if !matches!(command, Command::Link { .. }) {
                self.refuse(&error);
            }
            return;
        }
        self.hub.audit.record_command(&command, self.id.0, || self.party());
        match command {
            Command::Pub { .. } | Command::Quit => unreachable!("taken care of before"),
            Command::Hello(hello) => self.hello(&hello),
            Command::Sub { topic, from, cursor, takeover } => {
                let subscribed = match cursor {
                    Some(cursor) => self.subscribe_as(&topic, from, cursor, takeover, waker),
                    None if takeover => {
                        let text = "takeover= is of a cursor: as=<cursor> names it";
                        Err(ProtocolError::new(Code::BadArgument, text))
                    }
                    None => self.subscribe(&topic, from, waker),
                };
                self.refuse_if(subscribed);
            }
            Command::Seen { topic, seq } => {
                let seen = self.seen(&topic, seq, waker);
                self.refuse_if(seen);
            }
            Command::Unsub { topic } => self.unsubscribe(&topic),
            Command::Join { group, credit } => {
                let joined = self.join(&group, credit);
                self.worker().joined = Some(joined);
            }
            Command::Link { task, url, redirect, prio } => {
                // Before others, those of other jobs too, it is only with the right to that.
                let hub = self.hub.clone();
                let prio = prio
                    .filter(|_| hub.access.allows_attribute(&self.pass, PrivilegedAttribute::Prio));
                let prio = prio.map_or(0, Prio::value);
                let link = StagedLink { url: url.into(), redirect, prio };
                self.worker().staged.stage(&hub.limits, task, link);
            }
            Command::Ack { task, outcome, rest: hold } => self.ack(task, outcome, hold),
            Command::Nack { task, retry: back, rest: hold, reason } => {
                // One with again= may be refused, and then the task stays with its children. If
                // not, they are in nobody's way.
                if !matches!(back, RetryMode::OtherUrl { .. }) {
                    self.worker().staged.discard(&task);
                }
                self.submit(TaskCommand::Nack { task, next_step: back, rest: hold, reason });
            }
            Command::Touch { task, request_ended: over, rest: hold } => {
                self.submit(TaskCommand::Touch { task, request_over: over, rest: hold });
            }
            Command::Topic(manage) => topics::act(&self.hub.clone(), &manage, self.reply()),
            Command::Group(_) | Command::Job(_) | Command::Explain { .. } => {
                // A URL of a job is as good as an event.
                if matches!(&command, Command::Job(manage) if manage.action == "add")
                    && let Some(held) = &mut self.login.held
                {
                    held.count_published(1);
                }
                self.manage(&command);
            }
            Command::Ping => {
                let now = self.hub.clock.now();
                self.answer(|lines| encode_pong(now.0, lines));
                self.tell_groups_it_lives(now);
            }
            Command::Stats => self.stats(),
            Command::Help => self.answer(|lines| {
                for line in HELP.lines() {
                    encode_more(line, lines);
                }
                encode_ok("", lines);
            }),
        }
    }

    /// Enters an answer of whole lines.
    pub(super) fn answer(&mut self, encode: impl FnOnce(&mut BytesMut)) {
        let mut lines = BytesMut::new();
        encode(&mut lines);
        self.answer_bytes += lines.len();
        self.answers.push_lines(&lines);
    }

    /// Enters a refusal.
    pub(super) fn refuse(&mut self, error: &ProtocolError) {
        self.answer(|lines| error.encode(lines));
    }

    /// Enters a refusal if it is one; otherwise the answer was entered already.
    pub(super) fn refuse_if(&mut self, done: Result<(), ProtocolError>) {
        if let Err(error) = done {
            self.refuse(&error);
        }
    }

    fn answer_or_refuse(&mut self, result: Result<String, ProtocolError>) {
        match result {
            Ok(text) => self.answer(|lines| encode_ok(&text, lines)),
            Err(error) => self.refuse(&error),
        }
    }

    /// The worker that this connection is or becomes.
    pub(super) fn worker(&mut self) -> &mut Worker {
        self.worker.get_or_insert_with(|| {
            Box::new(Worker {
                member: self.hub.new_member(self.id),
                known_to_groups: false,
                has_waited: false,
                waiting: Vec::new(),
                watching: None,
                heard_at: Moment::default(),
                staged: Staged::default(),
                requests: Vec::new(),
                joined: None,
                asked: None,
            })
        })
    }

    fn hello(&mut self, hello: &Hello) {
        let Ok(pass) = self.show(hello.token.as_ref()) else { return };
        if let Err(error) = self.may_become(&pass) {
            return self.refuse(&error);
        }
        let way = match self.way_of(hello.via.as_deref()) {
            Ok(way) => way,
            Err(error) => return self.refuse(&error),
        };
        let member = match self.identify(hello.resume) {
            Ok(member) => member,
            Err(error) => return self.refuse(&error),
        };
        if let Err(error) = self.hub.belongs_to(&mut self.login.held, &pass) {
            return self.refuse(&error);
        }
        let is_another = !pass.is_same_principal(&self.pass);
        self.hub.audit.identity_changed(self.id.0);
        self.pass = pass;
        self.pass.set_transport(way);
        self.login.is_done(&self.pass);
        if is_another && !self.pass.is_anonymous() {
            self.audit(AuditEvent::LoggedIn);
        }
        if let Some(name) = &hello.name {
            tracing::debug!(conn = %self.id, name, "a client says who it is");
        }
        let answer = HelloAnswer {
            version: VERSION.to_owned(),
            id: self.id.0,
            clock_ms: self.hub.clock.now().0,
            echo: hello.echo.clone(),
            resume: member,
        };
        self.answer_or_refuse(Ok(answer.to_string()));
    }

    /// The way of those for whom it speaks from now on. There is none back, nor one for who has
    /// asked for what those may not have.
    fn way_of(&self, via: Option<&str>) -> Result<Transport, ProtocolError> {
        let Some(via) = via else { return Ok(self.pass.transport()) };
        let way = via.parse::<Transport>();
        let way =
            way.map_err(|text| ProtocolError::new(Code::BadArgument, format!("via={text}")))?;
        if self.pass.transport() != way && self.pass.transport() != Transport::Line {
            let text = format!(
                "this connection speaks for those who came by {}",
                self.pass.transport().as_str()
            );
            return Err(ProtocolError::new(Code::Denied, text));
        }
        let works = self.worker.as_ref().is_some_and(|worker| worker.known_to_groups);
        if self.pass.transport() != way && (works || self.subscriptions.len() > 0) {
            let text = "this connection hears or works already; via= comes first";
            return Err(ProtocolError::new(Code::Conflict, text));
        }
        Ok(way)
    }

    /// Becomes the member that comes back, whose older connection ends.
    fn identify(&mut self, resume: Option<MemberId>) -> Result<MemberId, ProtocolError> {
        let (conn, worker) = (self.id, self.worker());
        let (before, after) = (worker.member, resume.unwrap_or(worker.member));
        if before != after && worker.known_to_groups {
            let text = "this connection works as another member already; resume= comes first";
            return Err(ProtocolError::new(Code::Conflict, text));
        }
        worker.member = after;
        if before != after {
            self.hub.registry.disclaim(before, conn);
        }
        if let Some(older) = self.hub.registry.claim(after, conn) {
            let text = "the same member came back on another connection";
            older.send(ConnMessage::End(ProtocolError::new(Code::Replaced, text)));
        }
        Ok(after)
    }

    /// Whether there may be a subscription to that topic.
    pub(super) fn may_subscribe(&mut self, name: &TopicName) -> Result<(), ProtocolError> {
        let max = self.hub.limits.subscriptions_max;
        if self.subscriptions.has(name.as_str()) {
            let text = format!("this connection hears {name} already; UNSUB {name} ends that");
            return Err(ProtocolError::new(Code::Exists, text));
        }
        if self.subscriptions.len() >= max {
            let text = format!("this connection has {max} subscriptions, the most there may be");
            return Err(ProtocolError::new(Code::Limit, text));
        }
        let Some(held) = &mut self.login.held else { return Ok(()) };
        // What becomes of it is counted when the turn is over.
        held.set(Quantity::Subscriptions, self.subscriptions.len() as u64 + 1)
    }

    fn subscribe(
        &mut self,
        name: &TopicName,
        from: Option<StartAt>,
        waker: &Waker,
    ) -> Result<(), ProtocolError> {
        self.may_subscribe(name)?;
        let reader = self.hub.topics.subscribe(name, from, waker.clone())?;
        let slot = self.answers.reserve();
        self.answers.fill(slot, Bytes::from_static(b"+OK\r\n"));
        self.subscriptions.add(reader, Kind::Command(slot));
        Ok(())
    }

    fn unsubscribe(&mut self, name: &TopicName) {
        if self.subscriptions.remove(name.as_str()) {
            self.release_cursor(name.as_str());
            self.answer_or_refuse(Ok(String::new()));
        } else {
            let text = format!("this connection does not hear {name}");
            self.refuse(&ProtocolError::new(Code::NotFound, text));
        }
    }

    fn ack(&mut self, task: TaskId, outcome: Outcome, hold: KeyRest) {
        let (links, over_limit) = self.worker().staged.take(&task);
        self.submit(TaskCommand::Ack { task, outcome, rest: hold, links, over_limit });
    }

    /// Who asks, for groups.
    fn caller(&mut self) -> Caller {
        let member = self.worker().member;
        Caller { member, conn: self.id, mailbox: self.mailbox.clone() }
    }

    fn join(&mut self, group: &GroupName, credit: Option<u32>) -> Slot {
        let (caller, slot) = (self.caller(), self.answers.reserve());
        if let Some(held) = &mut self.login.held
            && let Err(error) = held.set_credit(group, credit.unwrap_or(1))
        {
            self.fill_with(slot, &error);
            return slot;
        }
        self.worker().known_to_groups = true;
        if let Err(error) = self.hub.groups.join(&caller, slot, group, credit) {
            self.fill_with(slot, &error);
        }
        slot
    }

    /// Keeps what a member says of a task for its group, which hears what was read at once
    /// together.
    fn submit(&mut self, request: TaskCommand) {
        let requests = &self.worker().requests;
        if requests.first().is_some_and(|(_, first)| first.task().group != request.task().group) {
            self.send_requests();
        }
        let slot = self.answers.reserve();
        let worker = self.worker();
        worker.known_to_groups = true;
        worker.requests.push((slot, request));
    }

    /// Hands over what was kept for a group, which acts on it now and answers in its turn.
    pub(super) fn send_requests(&mut self) {
        let Some(worker) = &mut self.worker else { return };
        let requests = std::mem::take(&mut worker.requests);
        let Some((_, first)) = requests.first() else { return };
        let group = first.task().group.clone();
        self.hub.clone().groups.submit(&self.caller(), &group, requests);
    }

    /// A member of which a lease ran out is given nothing until it is heard from. A flood of `PING`
    /// is heard as one.
    fn tell_groups_it_lives(&mut self, now: Moment) {
        if let Some(worker) = &mut self.worker
            && worker.known_to_groups
            && now.since(worker.heard_at) >= HEARD_EVERY_MS
        {
            worker.heard_at = now;
            self.hub.groups.connection_active(self.id);
        }
    }

    /// The way back for an answer that comes later. There is one at a time, as it may be long.
    fn reply(&mut self) -> Reply {
        let slot = self.answers.reserve();
        self.worker().asked = Some(slot);
        Reply { mailbox: self.mailbox.clone(), slot }
    }

    fn manage(&mut self, command: &Command<'_>) {
        let (waits, watches) = match command {
            Command::Group(manage) => (false, manage.action == "watch"),
            Command::Job(manage) => (manage.action == "wait", manage.action == "watch"),
            _ => (false, false),
        };
        if watches && self.worker().watching.is_some() {
            let text = "this connection watches something already; another one can watch this";
            return self.refuse(&ProtocolError::new(Code::Limit, text));
        }
        let (caller, slot) = (self.caller(), self.answers.reserve());
        // It may take for ever: the connection is heard meanwhile, also when it ends.
        let worker = self.worker();
        worker.has_waited |= waits || watches;
        if watches {
            worker.watching = Some(slot);
        } else if waits {
            worker.waiting.push(slot);
        } else {
            worker.asked = Some(slot);
        }
        if let Err(error) = self.hub.groups.manage(&caller, slot, command) {
            self.fill_with(slot, &error);
        }
    }

    pub(super) fn fill_with(&mut self, slot: Slot, error: &ProtocolError) {
        let mut line = BytesMut::new();
        error.encode(&mut line);
        self.fill(slot, line.freeze());
    }

    fn stats(&mut self) {
        let hub = self.hub.clone();
        let topics = hub.topics.list();
        self.answer(|lines| {
            let stats = &hub.stats;
            let text = format!(
                "connections={} connected={} turned-away={} lines={} events={} refused={} \
                 bytes-in={}",
                hub.registry.len(),
                hub.registry.total(),
                stats.rejected_connections.value(),
                stats.lines.value(),
                stats.events.value(),
                stats.refused_lines.value(),
                stats.bytes_in.value(),
            );
            encode_more(&text, lines);
            for topic in &topics {
                encode_more(&format!("topic {}", describe(topic)), lines);
            }
            for group in hub.groups.names() {
                encode_more(&format!("group {group}"), lines);
            }
            encode_ok(&format!("clock={}", hub.clock.now()), lines);
        });
    }
}

/// What a command that is about a topic is about.
fn topic_of<'a>(command: &'a Command<'_>) -> Option<&'a str> {
    match command {
        Command::Sub { topic, .. } | Command::Seen { topic, .. } | Command::Unsub { topic } => {
            Some(topic.as_str())
        }
        Command::Topic(manage) => manage.name,
        _ => None,
    }
}
