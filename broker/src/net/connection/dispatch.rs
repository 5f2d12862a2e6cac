//! Runs the commands of a client.

use std::task::Waker;

use bytes::BytesMut;
use tidings_protocol::status::BrowserFields;
use tidings_protocol::{
    CREDIT_DEFAULT, Code, Command, GroupName, JobAction, Prio, ProtocolError, Slot, TaskReply,
    bad_argument, encode_more, encode_ok, encode_pong,
};
use tidings_queue::StagedLink;

use super::Connection;
use super::help::HELP;
use super::worker::Worker;
use crate::clock::Moment;
use crate::groups::{Caller, GroupRequest};
use crate::net::topic_commands::{PendingReply, handle_topic_command, topic_status};

impl Connection {
    /// Runs a command and queues its answer, or reserves the slot for it.
    ///
    /// `PUB` is handled elsewhere, because publishes are collected into batches.
    pub(super) fn handle_command(&mut self, command: Command<'_>, waker: &Waker) {
        if !matches!(command, Command::Link { .. } | Command::Reply(_)) {
            self.flush_replies();
        }
        // It sees the positions that the connection has stored with earlier commands (`[K5]`).
        let reads_cursors =
            matches!(command, Command::Topic(_) | Command::Sub { cursor: Some(_), .. });
        if let Some(cursors) = self.cursors.as_mut().filter(|_| reads_cursors)
            && cursors.defer(&command)
        {
            return;
        }
        // A `LINK` has no answer (`[A1]`).
        let has_answer = !matches!(command, Command::Link { .. });
        let authorized = self.client.session.authorize(&command);
        if let Err(error) = authorized.and_then(|()| self.run_command(command, waker))
            && has_answer
        {
            self.push_error(&error);
        }
    }

    /// Runs an authorized command. A successful one has queued its answer.
    fn run_command(&mut self, command: Command<'_>, waker: &Waker) -> Result<(), ProtocolError> {
        match command {
            Command::Pub { .. } | Command::Quit => unreachable!("handled before"),
            Command::Hello(hello) => self.handle_hello(&hello)?,
            Command::Sub { takeover: true, cursor: None, .. } => {
                return Err(bad_argument("takeover= needs a cursor; name it with as=<cursor>"));
            }
            Command::Sub { topic, from, cursor, takeover, filter } => {
                let cursor = cursor.map(|cursor| (cursor, takeover));
                self.subscribe(&topic, from, cursor, filter, waker)?;
            }
            Command::Seen { topic, seq } => self.handle_seen(&topic, seq, waker)?,
            Command::Unsub { topic } => self.unsubscribe(&topic)?,
            Command::Join { group, credit, render, browsers } => {
                let credit = (credit.unwrap_or(CREDIT_DEFAULT), render);
                self.join(&group, credit, browsers);
            }
            Command::Link { task, url, redirect, prio } => {
                let prio =
                    prio.filter(|_| self.client.session.may_set_priority()).map_or(0, Prio::value);
                let link = StagedLink { url: url.into(), redirect, prio };
                let limits = &self.shared.clone().limits;
                self.worker_mut().stage_link(limits, task, link);
            }
            Command::Reply(reply) => self.queue_reply(reply),
            Command::Topic(manage) => {
                let reply = self.pending_reply();
                handle_topic_command(&self.shared, &manage, reply);
            }
            Command::Group(manage) => self.submit_request(GroupRequest::Group(&manage))?,
            Command::Job(manage) => {
                // A URL added to a job counts as an event.
                if manage.action == JobAction::Add {
                    self.client.session.count_events(1);
                }
                self.submit_request(GroupRequest::Job(&manage))?;
            }
            Command::Explain { what, group } => {
                self.submit_request(GroupRequest::Explain { what, group: group.as_ref() })?;
            }
            Command::Ping => {
                let now = self.shared.clock.now();
                self.answers.push(|lines| encode_pong(now.0, lines));
                self.report_activity(now);
            }
            Command::Stats => self.push_stats(),
            Command::Help => self.answers.push(|lines| {
                for line in HELP.lines() {
                    encode_more(line, lines);
                }
                encode_ok("", lines);
            }),
        }
        Ok(())
    }

    pub(super) fn push_error(&mut self, error: &ProtocolError) {
        self.shared.stats.count_refusal(error.code);
        self.answers.push(|lines| error.encode(lines));
    }

    /// The worker, which is created at the first use.
    pub(super) fn worker_mut(&mut self) -> &mut Worker {
        self.worker.get_or_insert_with(|| Box::new(Worker::new(self.shared.new_member_id(self.id))))
    }

    fn queue_reply(&mut self, reply: TaskReply) {
        if !self.worker_mut().collects_for(&reply.task.group) {
            self.flush_replies();
        }
        let slot = self.answers.reserve();
        self.worker_mut().collect(slot, reply);
    }

    /// Identifies this connection to groups.
    fn caller(&mut self) -> Caller {
        let member = self.worker_mut().member();
        Caller { member, conn: self.id, mailbox: self.mailbox.clone(), is_monitor: false }
    }

    fn join(&mut self, group: &GroupName, credit: (u32, Option<u32>), browsers: BrowserFields) {
        let (caller, slot) = (self.caller(), self.answers.reserve());
        self.worker_mut().begin_join(slot);
        let joined = self.client.session.hold_credit(group, credit.0).and_then(|()| {
            let address = self.client.session.remote().peer.to_string();
            let label = self.worker_mut().join_as(&address, browsers);
            self.shared.groups.join(&caller, slot, group, credit, label)
        });
        if let Err(error) = joined {
            self.fill_error(slot, &error);
        }
    }

    /// Passes the collected replies to their group. It applies them now; its answers come later.
    pub(super) fn flush_replies(&mut self) {
        let replies = self.worker.as_mut().and_then(|worker| worker.take_replies());
        let Some((group, replies)) = replies else { return };
        self.shared.clone().groups.submit(&self.caller(), &group, replies);
    }

    /// Notifies groups that the member is active: after a lease has expired, a member receives no
    /// tasks until it sends something.
    fn report_activity(&mut self, now: Moment) {
        if self.worker.as_mut().is_some_and(|worker| worker.report_activity(now)) {
            self.shared.groups.connection_active(self.id);
        }
    }

    /// Reserves the slot of an answer that comes later. There is one such answer at a time, because
    /// it may be long.
    fn pending_reply(&mut self) -> PendingReply {
        let slot = self.answers.reserve();
        self.worker_mut().begin_command(slot);
        PendingReply { mailbox: self.mailbox.clone(), slot }
    }

    fn submit_request(&mut self, request: GroupRequest<'_>) -> Result<(), ProtocolError> {
        let (is_wait, is_watch) = (request.is_wait(), request.is_watch());
        if is_watch && self.worker_mut().is_watching() {
            let text = "this connection already has a running watch; use another connection";
            return Err(ProtocolError::new(Code::Limit, text));
        }
        let is_monitor = self.client.session.may_monitor();
        let (caller, slot) = (Caller { is_monitor, ..self.caller() }, self.answers.reserve());
        let worker = self.worker_mut();
        if is_watch {
            worker.begin_watch(slot);
        } else if is_wait {
            worker.begin_wait(slot);
        } else {
            worker.begin_command(slot);
        }
        if let Err(error) = self.shared.groups.manage(&caller, slot, request) {
            self.fill_error(slot, &error);
        }
        Ok(())
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
        self.answers.push(|lines| {
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
