//! What each command does.

use std::task::Waker;

use bytes::{Bytes, BytesMut};
use tidings_protocol::{
    Code, Command, GroupName, Hello, HelloAnswer, KeyRest, MemberId, Outcome, Prio, ProtocolError,
    RetryMode, Slot, StartAt, TaskId, TopicName, encode_more, encode_ok, encode_pong,
};

use super::connection::{Connection, WorkerState};
use super::help::HELP;
use super::staged_links::StagedLinks;
use super::subscriptions::SubscriptionKind;
use super::topic_commands::{self, PendingReply, describe_topic};
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
const ACTIVITY_INTERVAL_MS: u64 = 100;

impl Connection {
    /// Does what a command says, and enters its answer.
    ///
    /// `PUB` is not among them: publishes are collected into batches.
    pub(super) fn handle_command(&mut self, command: Command<'_>, waker: &Waker) {
        let of_task = matches!(
            command,
            Command::Link { .. }
                | Command::Ack { .. }
                | Command::Nack { .. }
                | Command::Touch { .. }
        );
        if !of_task {
            self.flush_task_commands();
        }
        let allowed = self.identity.check_command(&command).inspect_err(|error| {
            self.audit(AuditEvent::Denied { topic: command_topic(&command), why: &error.text });
        });
        let allowed = allowed.and_then(|()| {
            let made = self.hub.check_creation(self.login.usage.as_deref(), &command);
            made.inspect_err(|error| self.audit(AuditEvent::LimitReached { why: &error.text }))
        });
        if let Err(error) = allowed {
            // A LINK is never answered (`[A1]`).
            if !matches!(command, Command::Link { .. }) {
                self.push_error(&error);
            }
            return;
        }
        self.hub.audit.record_command(&command, self.id.0, || self.initiator());
        match command {
            Command::Pub { .. } | Command::Quit => unreachable!("taken care of before"),
            Command::Hello(hello) => self.handle_hello(&hello),
            Command::Sub { topic, from, cursor, takeover } => {
                let subscribed = match cursor {
                    Some(cursor) => self.subscribe_durable(&topic, from, cursor, takeover, waker),
                    None if takeover => {
                        let text = "takeover= is of a cursor: as=<cursor> names it";
                        Err(ProtocolError::new(Code::BadArgument, text))
                    }
                    None => self.subscribe(&topic, from, waker),
                };
                self.push_if_error(subscribed);
            }
            Command::Seen { topic, seq } => {
                let seen = self.handle_seen(&topic, seq, waker);
                self.push_if_error(seen);
            }
            Command::Unsub { topic } => self.unsubscribe(&topic),
            Command::Join { group, credit } => {
                let joined = self.join(&group, credit);
                self.worker_mut().join_slot = Some(joined);
            }
            Command::Link { task, url, redirect, prio } => {
                // Before others, those of other jobs too, it is only with the right to that.
                let hub = self.hub.clone();
                let prio = prio.filter(|_| {
                    hub.access.allows_attribute(&self.identity, PrivilegedAttribute::Prio)
                });
                let prio = prio.map_or(0, Prio::value);
                let link = StagedLink { url: url.into(), redirect, prio };
                self.worker_mut().staged_links.stage(&hub.limits, task, link);
            }
            Command::Ack { task, outcome, rest: hold } => self.submit_ack(task, outcome, hold),
            Command::Nack { task, retry: back, rest: hold, reason } => {
                // One with again= may be refused, and then the task stays with its children. If
                // not, they are in nobody's way.
                if !matches!(back, RetryMode::OtherUrl { .. }) {
                    self.worker_mut().staged_links.discard(&task);
                }
                self.queue_task_command(TaskCommand::Nack {
                    task,
                    next_step: back,
                    rest: hold,
                    reason,
                });
            }
            Command::Touch { task, request_ended: over, rest: hold } => {
                self.queue_task_command(TaskCommand::Touch {
                    task,
                    request_over: over,
                    rest: hold,
                });
            }
            Command::Topic(manage) => topic_commands::handle_topic_command(
                &self.hub.clone(),
                &manage,
                self.pending_reply(),
            ),
            Command::Group(_) | Command::Job(_) | Command::Explain { .. } => {
                // A URL of a job is as good as an event.
                if matches!(&command, Command::Job(manage) if manage.action == "add")
                    && let Some(held) = &mut self.login.usage
                {
                    held.count_published(1);
                }
                self.submit_management(&command);
            }
            Command::Ping => {
                let now = self.hub.clock.now();
                self.push_answer(|lines| encode_pong(now.0, lines));
                self.report_activity(now);
            }
            Command::Stats => self.push_stats(),
            Command::Help => self.push_answer(|lines| {
                for line in HELP.lines() {
                    encode_more(line, lines);
                }
                encode_ok("", lines);
            }),
        }
    }

    /// Enters an answer of whole lines.
    pub(super) fn push_answer(&mut self, encode: impl FnOnce(&mut BytesMut)) {
        let mut lines = BytesMut::new();
        encode(&mut lines);
        self.answer_bytes += lines.len();
        self.answers.push_lines(&lines);
    }

    /// Enters a refusal.
    pub(super) fn push_error(&mut self, error: &ProtocolError) {
        self.push_answer(|lines| error.encode(lines));
    }

    /// Enters a refusal if it is one; otherwise the answer was entered already.
    pub(super) fn push_if_error(&mut self, done: Result<(), ProtocolError>) {
        if let Err(error) = done {
            self.push_error(&error);
        }
    }

    fn push_result(&mut self, result: Result<String, ProtocolError>) {
        match result {
            Ok(text) => self.push_answer(|lines| encode_ok(&text, lines)),
            Err(error) => self.push_error(&error),
        }
    }

    /// The worker that this connection is or becomes.
    pub(super) fn worker_mut(&mut self) -> &mut WorkerState {
        self.worker.get_or_insert_with(|| {
            Box::new(WorkerState {
                member: self.hub.new_member_id(self.id),
                is_known_to_groups: false,
                has_waited: false,
                wait_slots: Vec::new(),
                watch_slot: None,
                last_active_at: Moment::default(),
                staged_links: StagedLinks::default(),
                pending_commands: Vec::new(),
                join_slot: None,
                pending_slot: None,
            })
        })
    }

    fn handle_hello(&mut self, hello: &Hello) {
        let Ok(pass) = self.log_in(hello.token.as_ref()) else { return };
        if let Err(error) = self.check_identity_change(&pass) {
            return self.push_error(&error);
        }
        let way = match self.transport_for_via(hello.via.as_deref()) {
            Ok(way) => way,
            Err(error) => return self.push_error(&error),
        };
        let member = match self.resume_member(hello.resume) {
            Ok(member) => member,
            Err(error) => return self.push_error(&error),
        };
        if let Err(error) = self.hub.assign_usage(&mut self.login.usage, &pass) {
            return self.push_error(&error);
        }
        let is_another = !pass.is_same_principal(&self.identity);
        self.hub.audit.identity_changed(self.id.0);
        self.identity = pass;
        self.identity.set_transport(way);
        self.login.clear_deadline_if_permitted(&self.identity);
        if is_another && !self.identity.is_anonymous() {
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
        self.push_result(Ok(answer.to_string()));
    }

    /// The way of those for whom it speaks from now on. There is none back, nor one for who has
    /// asked for what those may not have.
    fn transport_for_via(&self, via: Option<&str>) -> Result<Transport, ProtocolError> {
        let Some(via) = via else { return Ok(self.identity.transport()) };
        let way = via.parse::<Transport>();
        let way =
            way.map_err(|text| ProtocolError::new(Code::BadArgument, format!("via={text}")))?;
        if self.identity.transport() != way && self.identity.transport() != Transport::Line {
            let text = format!(
                "this connection speaks for those who came by {}",
                self.identity.transport().as_str()
            );
            return Err(ProtocolError::new(Code::Denied, text));
        }
        let works = self.worker.as_ref().is_some_and(|worker| worker.is_known_to_groups);
        if self.identity.transport() != way && (works || self.subscriptions.len() > 0) {
            let text = "this connection hears or works already; via= comes first";
            return Err(ProtocolError::new(Code::Conflict, text));
        }
        Ok(way)
    }

    /// Becomes the member that comes back, whose older connection ends.
    fn resume_member(&mut self, resume: Option<MemberId>) -> Result<MemberId, ProtocolError> {
        let (conn, worker) = (self.id, self.worker_mut());
        let (before, after) = (worker.member, resume.unwrap_or(worker.member));
        if before != after && worker.is_known_to_groups {
            let text = "this connection works as another member already; resume= comes first";
            return Err(ProtocolError::new(Code::Conflict, text));
        }
        worker.member = after;
        if before != after {
            self.hub.registry.release_member(before, conn);
        }
        if let Some(older) = self.hub.registry.claim_member(after, conn) {
            let text = "the same member came back on another connection";
            older.send(ConnMessage::End(ProtocolError::new(Code::Replaced, text)));
        }
        Ok(after)
    }

    /// Whether there may be a subscription to that topic.
    pub(super) fn check_subscription(&mut self, name: &TopicName) -> Result<(), ProtocolError> {
        let max = self.hub.limits.subscriptions_max;
        if self.subscriptions.contains(name.as_str()) {
            let text = format!("this connection hears {name} already; UNSUB {name} ends that");
            return Err(ProtocolError::new(Code::Exists, text));
        }
        if self.subscriptions.len() >= max {
            let text = format!("this connection has {max} subscriptions, the most there may be");
            return Err(ProtocolError::new(Code::Limit, text));
        }
        let Some(held) = &mut self.login.usage else { return Ok(()) };
        // What becomes of it is counted when the turn is over.
        held.set(Quantity::Subscriptions, self.subscriptions.len() as u64 + 1)
    }

    fn subscribe(
        &mut self,
        name: &TopicName,
        from: Option<StartAt>,
        waker: &Waker,
    ) -> Result<(), ProtocolError> {
        self.check_subscription(name)?;
        let reader = self.hub.topics.subscribe(name, from, waker.clone())?;
        let slot = self.answers.reserve();
        self.answers.fill(slot, Bytes::from_static(b"+OK\r\n"));
        self.subscriptions.add(reader, SubscriptionKind::Command(slot));
        Ok(())
    }

    fn unsubscribe(&mut self, name: &TopicName) {
        if self.subscriptions.remove(name.as_str()) {
            self.release_cursor(name.as_str());
            self.push_result(Ok(String::new()));
        } else {
            let text = format!("this connection does not hear {name}");
            self.push_error(&ProtocolError::new(Code::NotFound, text));
        }
    }

    fn submit_ack(&mut self, task: TaskId, outcome: Outcome, hold: KeyRest) {
        let (links, over_limit) = self.worker_mut().staged_links.take(&task);
        self.queue_task_command(TaskCommand::Ack { task, outcome, rest: hold, links, over_limit });
    }

    /// Who asks, for groups.
    fn caller(&mut self) -> Caller {
        let member = self.worker_mut().member;
        Caller { member, conn: self.id, mailbox: self.mailbox.clone() }
    }

    fn join(&mut self, group: &GroupName, credit: Option<u32>) -> Slot {
        let (caller, slot) = (self.caller(), self.answers.reserve());
        if let Some(held) = &mut self.login.usage
            && let Err(error) = held.set_credit(group, credit.unwrap_or(1))
        {
            self.fill_error(slot, &error);
            return slot;
        }
        self.worker_mut().is_known_to_groups = true;
        if let Err(error) = self.hub.groups.join(&caller, slot, group, credit) {
            self.fill_error(slot, &error);
        }
        slot
    }

    /// Keeps what a member says of a task for its group, which hears what was read at once
    /// together.
    fn queue_task_command(&mut self, request: TaskCommand) {
        let requests = &self.worker_mut().pending_commands;
        if requests.first().is_some_and(|(_, first)| first.task().group != request.task().group) {
            self.flush_task_commands();
        }
        let slot = self.answers.reserve();
        let worker = self.worker_mut();
        worker.is_known_to_groups = true;
        worker.pending_commands.push((slot, request));
    }

    /// Hands over what was kept for a group, which acts on it now and answers in its turn.
    pub(super) fn flush_task_commands(&mut self) {
        let Some(worker) = &mut self.worker else { return };
        let requests = std::mem::take(&mut worker.pending_commands);
        let Some((_, first)) = requests.first() else { return };
        let group = first.task().group.clone();
        self.hub.clone().groups.submit(&self.caller(), &group, requests);
    }

    /// A member of which a lease ran out is given nothing until it is heard from. A flood of `PING`
    /// is heard as one.
    fn report_activity(&mut self, now: Moment) {
        if let Some(worker) = &mut self.worker
            && worker.is_known_to_groups
            && now.since(worker.last_active_at) >= ACTIVITY_INTERVAL_MS
        {
            worker.last_active_at = now;
            self.hub.groups.connection_active(self.id);
        }
    }

    /// The way back for an answer that comes later. There is one at a time, as it may be long.
    fn pending_reply(&mut self) -> PendingReply {
        let slot = self.answers.reserve();
        self.worker_mut().pending_slot = Some(slot);
        PendingReply { mailbox: self.mailbox.clone(), slot }
    }

    fn submit_management(&mut self, command: &Command<'_>) {
        let (waits, watches) = match command {
            Command::Group(manage) => (false, manage.action == "watch"),
            Command::Job(manage) => (manage.action == "wait", manage.action == "watch"),
            _ => (false, false),
        };
        if watches && self.worker_mut().watch_slot.is_some() {
            let text = "this connection watches something already; another one can watch this";
            return self.push_error(&ProtocolError::new(Code::Limit, text));
        }
        let (caller, slot) = (self.caller(), self.answers.reserve());
        // It may take for ever: the connection is heard meanwhile, also when it ends.
        let worker = self.worker_mut();
        worker.has_waited |= waits || watches;
        if watches {
            worker.watch_slot = Some(slot);
        } else if waits {
            worker.wait_slots.push(slot);
        } else {
            worker.pending_slot = Some(slot);
        }
        if let Err(error) = self.hub.groups.manage(&caller, slot, command) {
            self.fill_error(slot, &error);
        }
    }

    pub(super) fn fill_error(&mut self, slot: Slot, error: &ProtocolError) {
        let mut line = BytesMut::new();
        error.encode(&mut line);
        self.fill(slot, line.freeze());
    }

    fn push_stats(&mut self) {
        let hub = self.hub.clone();
        let topics = hub.topics.list();
        self.push_answer(|lines| {
            let stats = &hub.stats;
            let text = format!(
                "connections={} connected={} turned-away={} lines={} events={} refused={} \
                 bytes-in={}",
                hub.registry.len(),
                hub.registry.total_connections(),
                stats.rejected_connections.value(),
                stats.lines.value(),
                stats.events.value(),
                stats.refused_lines.value(),
                stats.bytes_in.value(),
            );
            encode_more(&text, lines);
            for topic in &topics {
                encode_more(&format!("topic {}", describe_topic(topic)), lines);
            }
            for group in hub.groups.names() {
                encode_more(&format!("group {group}"), lines);
            }
            encode_ok(&format!("clock={}", hub.clock.now()), lines);
        });
    }
}

/// What a command that is about a topic is about.
fn command_topic<'a>(command: &'a Command<'_>) -> Option<&'a str> {
    match command {
        Command::Sub { topic, .. } | Command::Seen { topic, .. } | Command::Unsub { topic } => {
            Some(topic.as_str())
        }
        Command::Topic(manage) => manage.name,
        _ => None,
    }
}
