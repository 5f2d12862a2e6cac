//! Runs the commands of a client.

use std::task::Waker;

use bytes::{Bytes, BytesMut};
use tidings_protocol::{
    AttributeFilter, CREDIT_DEFAULT, Code, Command, GroupName, Hello, HelloAnswer, JobAction,
    MemberId, Prio, ProtocolError, RetryMode, Slot, StartAt, TaskAction, TaskReply, TopicName,
    bad_argument, encode_more, encode_ok, encode_pong,
};
use tidings_queue::{ClientLabel, StagedLink, WorkerReply};

use super::connection::{Connection, WorkerState};
use super::help::HELP;
use super::staged_links::StagedLinks;
use super::subscriptions::SubscriptionKind;
use super::topic_commands::{self, PendingReply, topic_status};
use crate::access::{Action, PrivilegedAttribute, Transport};
use crate::audit::AuditEvent;
use crate::clock::Moment;
use crate::groups::{Caller, GroupRequest};
use crate::mailbox::ConnMessage;
use crate::quota::Quantity;

/// The version in the answer to `HELLO`.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Minimum time between two notices to groups that a member is active, in milliseconds.
const ACTIVITY_INTERVAL_MS: u64 = 100;

impl Connection {
    /// Runs a command and queues its answer, or reserves the slot for it.
    ///
    /// `PUB` is handled elsewhere, because publishes are collected into batches.
    pub(super) fn handle_command(&mut self, command: Command<'_>, waker: &Waker) {
        if !matches!(command, Command::Link { .. } | Command::Reply(_)) {
            self.flush_replies();
        }
        let allowed = self.identity.check_command(&command).inspect_err(|error| {
            self.audit(AuditEvent::Denied { topic: command_topic(&command), why: &error.text });
        });
        let allowed = allowed.and_then(|()| {
            let checked = self.shared.check_creation(self.login.usage.as_deref(), &command);
            checked.inspect_err(|error| self.audit(AuditEvent::LimitReached { why: &error.text }))
        });
        if let Err(error) = allowed {
            // A `LINK` has no answer (`[A1]`).
            if !matches!(command, Command::Link { .. }) {
                self.push_error(&error);
            }
            return;
        }
        self.shared.audit.record_command(&command, self.id.0, || self.initiator());
        match command {
            Command::Pub { .. } | Command::Quit => unreachable!("handled before"),
            Command::Hello(hello) => self.handle_hello(&hello),
            Command::Sub { topic, from, cursor, takeover, filter } => {
                let subscribed = match cursor {
                    Some(cursor) => {
                        self.subscribe_durable(&topic, from, cursor, takeover, filter, waker)
                    }
                    None if takeover => {
                        let text = "takeover= needs a cursor; name it with as=<cursor>";
                        Err(bad_argument(text))
                    }
                    None => self.subscribe(&topic, from, filter, waker),
                };
                self.push_if_error(subscribed);
            }
            Command::Seen { topic, seq } => {
                let seen = self.handle_seen(&topic, seq, waker);
                self.push_if_error(seen);
            }
            Command::Unsub { topic } => self.unsubscribe(&topic),
            Command::Join { group, credit, render } => {
                let slot = self.join(&group, credit.unwrap_or(CREDIT_DEFAULT), render);
                self.worker_mut().join_slot = Some(slot);
            }
            Command::Link { task, url, redirect, prio } => {
                // A priority also overtakes URLs of other jobs, so it needs its own permission.
                let shared = self.shared.clone();
                let prio = prio.filter(|_| {
                    shared.access.allows_attribute(&self.identity, PrivilegedAttribute::Prio)
                });
                let prio = prio.map_or(0, Prio::value);
                let link = StagedLink { url: url.into(), redirect, prio };
                self.worker_mut().staged_links.stage(&shared.limits, task, link);
            }
            Command::Reply(reply) => self.queue_reply(reply),
            Command::Topic(manage) => topic_commands::handle_topic_command(
                &self.shared.clone(),
                &manage,
                self.pending_reply(),
            ),
            Command::Group(manage) => self.submit_request(GroupRequest::Group(&manage)),
            Command::Job(manage) => {
                // A URL added to a job counts as an event.
                if manage.action == JobAction::Add
                    && let Some(usage) = &mut self.login.usage
                {
                    usage.count_published(1);
                }
                self.submit_request(GroupRequest::Job(&manage));
            }
            Command::Explain { what, group } => {
                self.submit_request(GroupRequest::Explain { what, group: group.as_ref() });
            }
            Command::Ping => {
                let now = self.shared.clock.now();
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

    /// Queues an answer of whole lines.
    pub(super) fn push_answer(&mut self, encode: impl FnOnce(&mut BytesMut)) {
        let mut lines = BytesMut::new();
        encode(&mut lines);
        self.answer_bytes += lines.len();
        self.answers.push_lines(&lines);
    }

    pub(super) fn push_error(&mut self, error: &ProtocolError) {
        let mut lines = BytesMut::new();
        self.encode_refusal(error, &mut lines);
        self.push_answer(|answer| answer.unsplit(lines));
    }

    /// Queues the error of a failed command. A successful one has already queued its answer.
    pub(super) fn push_if_error(&mut self, result: Result<(), ProtocolError>) {
        if let Err(error) = result {
            self.push_error(&error);
        }
    }

    fn push_result(&mut self, result: Result<String, ProtocolError>) {
        match result {
            Ok(text) => self.push_answer(|lines| encode_ok(&text, lines)),
            Err(error) => self.push_error(&error),
        }
    }

    /// The worker state, which is created at the first use.
    pub(super) fn worker_mut(&mut self) -> &mut WorkerState {
        self.worker.get_or_insert_with(|| {
            Box::new(WorkerState {
                member: self.shared.new_member_id(self.id),
                name: None,
                is_known_to_groups: false,
                has_waited: false,
                wait_slots: Vec::new(),
                watch_slot: None,
                last_active_at: Moment::default(),
                staged_links: StagedLinks::default(),
                pending_replies: Vec::new(),
                join_slot: None,
                pending_slot: None,
            })
        })
    }

    fn handle_hello(&mut self, hello: &Hello) {
        let Ok(identity) = self.log_in(hello.token.as_ref()) else { return };
        if let Err(error) = self.check_identity_change(&identity) {
            return self.push_error(&error);
        }
        let transport = match self.transport_for_via(hello.via.as_deref()) {
            Ok(transport) => transport,
            Err(error) => return self.push_error(&error),
        };
        let member = match self.resume_member(hello.resume) {
            Ok(member) => member,
            Err(error) => return self.push_error(&error),
        };
        if let Err(error) = self.shared.assign_usage(&mut self.login.usage, &identity) {
            return self.push_error(&error);
        }
        let is_other_principal = !identity.is_same_principal(&self.identity);
        self.shared.audit.identity_changed(self.id.0);
        self.identity = identity;
        self.identity.set_transport(transport);
        self.login.clear_deadline_if_permitted(&self.identity);
        if is_other_principal && !self.identity.is_anonymous() {
            self.audit(AuditEvent::LoggedIn);
        }
        if let Some(name) = &hello.name {
            tracing::debug!(conn = %self.id, name, "HELLO from a client");
            self.worker_mut().name = Some(name.as_str().into());
        }
        let answer = HelloAnswer {
            version: VERSION.to_owned(),
            id: self.id.0,
            clock_ms: self.shared.clock.now().0,
            echo: hello.echo.clone(),
            resume: member,
        };
        self.push_result(Ok(answer.to_string()));
    }

    /// The transport of the clients that this connection acts for from now on. It cannot change
    /// back, and it must be set before the first subscription or task: those were checked for the
    /// old transport.
    fn transport_for_via(&self, via: Option<&str>) -> Result<Transport, ProtocolError> {
        let Some(via) = via else { return Ok(self.identity.transport()) };
        let transport = via.parse::<Transport>();
        let transport = transport.map_err(|text| bad_argument(format!("via={text}")))?;
        if self.identity.transport() != transport && self.identity.transport() != Transport::Line {
            let text = format!(
                "this connection already acts for clients of {}; use another connection",
                self.identity.transport().as_str()
            );
            return Err(ProtocolError::new(Code::Denied, text));
        }
        let is_working = self.worker.as_ref().is_some_and(|worker| worker.is_known_to_groups);
        if self.identity.transport() != transport && (is_working || self.subscriptions.len() > 0) {
            let text = "this connection already subscribes or works; send via= in its first HELLO";
            return Err(ProtocolError::new(Code::Conflict, text));
        }
        Ok(transport)
    }

    /// Resumes a member and ends its older connection.
    fn resume_member(&mut self, resume: Option<MemberId>) -> Result<MemberId, ProtocolError> {
        let (conn, worker) = (self.id, self.worker_mut());
        let (before, after) = (worker.member, resume.unwrap_or(worker.member));
        if before != after && worker.is_known_to_groups {
            let text =
                "this connection already works as another member; send resume= in its first HELLO";
            return Err(ProtocolError::new(Code::Conflict, text));
        }
        worker.member = after;
        if before != after {
            self.shared.registry.release_member(before, conn);
        }
        if let Some(older) = self.shared.registry.claim_member(after, conn) {
            let text = "another connection has resumed this member";
            older.send(ConnMessage::End(ProtocolError::new(Code::Replaced, text)));
        }
        Ok(after)
    }

    /// Checks that another subscription, to that topic, is allowed.
    pub(super) fn check_subscription(&mut self, name: &TopicName) -> Result<(), ProtocolError> {
        let max = self.shared.limits.subscriptions_max;
        if self.subscriptions.contains(name.as_str()) {
            let text =
                format!("this connection already subscribes to {name}; end it with UNSUB {name}");
            return Err(ProtocolError::new(Code::Exists, text));
        }
        if self.subscriptions.len() >= max {
            let text =
                format!("this connection has {max} subscriptions, the maximum; end one with UNSUB");
            return Err(ProtocolError::new(Code::Limit, text));
        }
        let Some(usage) = &mut self.login.usage else { return Ok(()) };
        // The end of the poll corrects the count if the subscription fails.
        usage.set(Quantity::Subscriptions, self.subscriptions.len() as u64 + 1)
    }

    fn subscribe(
        &mut self,
        name: &TopicName,
        from: Option<StartAt>,
        filter: AttributeFilter,
        waker: &Waker,
    ) -> Result<(), ProtocolError> {
        self.check_subscription(name)?;
        let reader = self.shared.topics.subscribe(name, from, waker.clone())?;
        let slot = self.answers.reserve();
        self.answers.fill(slot, Bytes::from_static(b"+OK\r\n"));
        self.subscriptions.add(reader, SubscriptionKind::Command(slot), filter);
        Ok(())
    }

    fn unsubscribe(&mut self, name: &TopicName) {
        if self.subscriptions.remove(name.as_str()) {
            self.release_cursor(name.as_str());
            // Before the answer: another connection may use at once what this one has returned.
            if let Some(usage) = &mut self.login.usage {
                usage.remove(Quantity::Subscriptions);
            }
            self.push_result(Ok(String::new()));
        } else {
            let text = format!("this connection has no subscription to {name}");
            self.push_error(&ProtocolError::new(Code::NotFound, text));
        }
    }

    /// Collects a reply with the links that belong to it, so that a group receives together what
    /// was read together.
    fn queue_reply(&mut self, reply: TaskReply) {
        let replies = &self.worker_mut().pending_replies;
        if replies.first().is_some_and(|(_, first)| first.task().group != reply.task.group) {
            self.flush_replies();
        }
        let slot = self.answers.reserve();
        let worker = self.worker_mut();
        worker.is_known_to_groups = true;
        let (links, over_limit) = match &reply.action {
            TaskAction::Ack(_) => worker.staged_links.take(&reply.task),
            // A NACK with again= or need= may be rejected; the task then stays, and so do its links.
            // If it is accepted, the links are evicted later.
            TaskAction::Nack(RetryMode::OtherUrl { .. } | RetryMode::NeedsRender)
            | TaskAction::Touch { .. }
            | TaskAction::Part { .. } => (Vec::new(), 0),
            TaskAction::Nack(_) => {
                worker.staged_links.discard(&reply.task);
                (Vec::new(), 0)
            }
        };
        worker.pending_replies.push((slot, WorkerReply { reply, links, over_limit }));
    }

    /// Identifies this connection to groups.
    fn caller(&mut self) -> Caller {
        let member = self.worker_mut().member;
        Caller { member, conn: self.id, mailbox: self.mailbox.clone(), is_monitor: false }
    }

    fn join(&mut self, group: &GroupName, credit: u32, render: Option<u32>) -> Slot {
        let (caller, slot) = (self.caller(), self.answers.reserve());
        if let Some(usage) = &mut self.login.usage
            && let Err(error) = usage.set_credit(group, credit)
        {
            self.fill_error(slot, &error);
            return slot;
        }
        let address = Some(self.login.remote.peer.to_string().into());
        let worker = self.worker_mut();
        worker.is_known_to_groups = true;
        let label = ClientLabel { name: worker.name.clone(), address };
        let joined = self.shared.groups.join(&caller, slot, group, (credit, render), label);
        if let Err(error) = joined {
            self.fill_error(slot, &error);
        }
        slot
    }

    /// Passes the collected replies to their group. It applies them now; its answers come later.
    pub(super) fn flush_replies(&mut self) {
        let Some(worker) = &mut self.worker else { return };
        let replies = std::mem::take(&mut worker.pending_replies);
        let Some((_, first)) = replies.first() else { return };
        let group = first.task().group.clone();
        self.shared.clone().groups.submit(&self.caller(), &group, replies);
    }

    /// Notifies groups that the member is active: after a lease has expired, a member receives no
    /// tasks until it sends something. A flood of `PING` causes one notice.
    fn report_activity(&mut self, now: Moment) {
        if let Some(worker) = &mut self.worker
            && worker.is_known_to_groups
            && now.since(worker.last_active_at) >= ACTIVITY_INTERVAL_MS
        {
            worker.last_active_at = now;
            self.shared.groups.connection_active(self.id);
        }
    }

    /// Reserves the slot of an answer that comes later. There is one such answer at a time, because
    /// it may be long.
    fn pending_reply(&mut self) -> PendingReply {
        let slot = self.answers.reserve();
        self.worker_mut().pending_slot = Some(slot);
        PendingReply { mailbox: self.mailbox.clone(), slot }
    }

    fn submit_request(&mut self, request: GroupRequest<'_>) {
        let (is_wait, is_watch) = (request.is_wait(), request.is_watch());
        if is_watch && self.worker_mut().watch_slot.is_some() {
            let text = "this connection already has a running watch; use another connection";
            return self.push_error(&ProtocolError::new(Code::Limit, text));
        }
        let is_monitor = self.identity.check_action(Action::Monitor).is_ok();
        let (caller, slot) = (Caller { is_monitor, ..self.caller() }, self.answers.reserve());
        // These may take long, so the connection is read in the meantime.
        let worker = self.worker_mut();
        worker.has_waited |= is_wait || is_watch;
        if is_watch {
            worker.watch_slot = Some(slot);
        } else if is_wait {
            worker.wait_slots.push(slot);
        } else {
            worker.pending_slot = Some(slot);
        }
        if let Err(error) = self.shared.groups.manage(&caller, slot, request) {
            self.fill_error(slot, &error);
        }
    }

    /// Encodes a refusal, and counts it.
    pub(super) fn encode_refusal(&self, error: &ProtocolError, lines: &mut BytesMut) {
        self.shared.stats.count_refusal(error.code);
        error.encode(lines);
    }

    pub(super) fn fill_error(&mut self, slot: Slot, error: &ProtocolError) {
        let mut line = BytesMut::new();
        self.encode_refusal(error, &mut line);
        self.fill(slot, line.freeze());
    }

    fn push_stats(&mut self) {
        let shared = self.shared.clone();
        let topics = shared.topics.list();
        self.push_answer(|lines| {
            let counts = shared.snapshot();
            let problems = shared.problems(&counts);
            // So that a client knows whether this broker reports them.
            let all = counts.counts().chain([("problems", problems.len() as u64)]);
            let words: Vec<_> = all.map(|(key, value)| format!("{key}={value}")).collect();
            encode_more(&words.join(" "), lines);
            for problem in problems {
                encode_more(&format!("problem {problem}"), lines);
            }
            for topic in &topics {
                encode_more(&format!("topic {}", topic_status(topic)), lines);
            }
            for group in shared.groups.names() {
                encode_more(&format!("group {group}"), lines);
            }
            encode_ok(&format!("clock={}", shared.clock.now()), lines);
        });
    }
}

/// The topic that a command names, for audit records.
fn command_topic<'a>(command: &'a Command<'_>) -> Option<&'a str> {
    match command {
        Command::Sub { topic, .. } | Command::Seen { topic, .. } | Command::Unsub { topic } => {
            Some(topic.as_str())
        }
        Command::Topic(manage) => manage.name,
        _ => None,
    }
}
