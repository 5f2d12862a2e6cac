//! Misbehaving workers: they stall, disappear, answer late or twice, and answer for tasks of
//! others.

mod connection;

use std::collections::BTreeMap;

use tidings_protocol::status::{Answer, Status};
use tidings_protocol::{
    Code, KeyRest, MemberId, Outcome, ProtocolError, Render, RetryMode, TaskAction, TaskId,
    TaskReply,
};

use super::commands::{CommandOrigin, WorkerCommand, input_of, staged};
use super::promises::{CheckResult, Promise};
use super::task::ReceivedTask;
use super::{LEASE_MS, World, WorldEvent};
use crate::leases::Credit;
use crate::moment::Moment;
use crate::tests::bench::slot;
use crate::tests::site::{HOSTS, is_empty_page, redirect_of};
use crate::{ConnId, Input, Requester};

pub(super) const CREDIT_MAX: u32 = 8;

/// A worker. It remembers its tasks; the hosts keep its requests.
pub(super) struct Worker {
    pub(super) member: MemberId,
    pub(super) conn: Option<ConnId>,
    /// Increased when the worker is killed.
    incarnation: u64,
    tasks: BTreeMap<TaskId, HeldTask>,
    /// Credits that it requested on this connection, oldest first. The first one was confirmed.
    credits: Vec<Credit>,
    last_sent: Moment,
    /// When a lease of it last expired.
    lost_at: Moment,
}

/// A task that a worker holds.
struct HeldTask {
    received: ReceivedTask,
    request: RequestState,
    /// The answer that it will send.
    command: Option<WorkerCommand>,
    /// Whether it has sent the answer on this connection.
    is_sent: bool,
    /// Whether it has sent the answer before, without learning the result.
    may_be_stale: bool,
}

/// State of the request for a task.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RequestState {
    Unmade,
    Open,
    Ended,
    /// The request has ended and the group was informed.
    Over,
}

impl Worker {
    pub(super) fn new(member: MemberId) -> Self {
        Self {
            member,
            conn: None,
            incarnation: 0,
            tasks: BTreeMap::new(),
            credits: Vec::new(),
            last_sent: Moment(0),
            lost_at: Moment(0),
        }
    }

    /// The most tasks that it may be given. Until a change is confirmed, both the old and the new
    /// credit are allowed.
    fn credit(&self) -> usize {
        self.credits.iter().map(|credit| credit.tasks as usize).max().unwrap_or(0)
    }

    /// The same for tasks that need a browser.
    fn render_credit(&self) -> usize {
        self.credits.iter().filter_map(|credit| credit.render).max().unwrap_or(0) as usize
    }

    /// Its only task.
    pub(super) fn only_task(&self) -> TaskId {
        assert_eq!(self.tasks.len(), 1, "the worker has one task");
        self.tasks.keys().next().expect("the worker has one task").clone()
    }

    /// End of its lease of a task.
    pub(super) fn lease_of(&self, task: &TaskId) -> Option<Moment> {
        self.tasks.get(task).map(|held| held.received.until)
    }

    /// Ends its open request for a task. Returns the host.
    pub(super) fn ends_request(&mut self, task: &TaskId) -> Option<String> {
        let held = self.tasks.get_mut(task)?;
        if held.request != RequestState::Open {
            return None;
        }
        held.request = RequestState::Ended;
        Some(held.received.host())
    }

    /// Number of tasks that it surely holds, and of those of them that need a browser.
    fn held(&self, now: Moment) -> (usize, usize) {
        let is_held =
            |held: &&HeldTask| held.received.until > now && !held.is_sent && !held.may_be_stale;
        let held = || self.tasks.values().filter(is_held);
        (held().count(), held().filter(|held| held.received.needs_render()).count())
    }
}

impl World {
    /// A worker receives a task.
    pub(super) fn receive_task(
        &mut self,
        conn: ConnId,
        received: ReceivedTask,
        is_new: bool,
    ) -> CheckResult {
        let Some(index) = self.workers.iter().position(|worker| worker.conn == Some(conn)) else {
            return Ok(()); // Nobody is there any more.
        };
        let without_network = self.answer_without_network();
        let worker = &mut self.workers[index];
        if let Some(held) = worker.tasks.get_mut(&received.id) {
            held.received.until = held.received.until.max(received.until);
            return Ok(());
        }
        let (id, at, until) = (received.id.clone(), received.at, received.until);
        let needs_render = received.needs_render();
        let (request, host) = (received.request().to_owned(), received.host());
        let mut held = HeldTask {
            received,
            request: RequestState::Unmade,
            command: None,
            is_sent: false,
            may_be_stale: false,
        };
        self.begun.insert(request.clone(), self.now);
        if without_network.is_some() {
            held.command = without_network;
            worker.tasks.insert(id.clone(), held);
            let fails_after_ms = self.rng.u64(..1_500).min(until.since(self.now) / 2);
            self.schedule(fails_after_ms, WorldEvent::WorkerAnswers { worker: index, task: id });
            return self.check_credit(index, is_new, needs_render);
        }
        // It does not begin a task that it receives too late.
        if until.since(self.now) < 10 || (!self.is_scripted && self.rng.u32(0..30) == 0) {
            held.command = Some(if self.rng.bool() || held.received.is_next_request() {
                WorkerCommand::Nack {
                    back: RetryMode::Uncounted { after_ms: None },
                    hold: KeyRest::default(),
                }
            } else {
                let unasked = [Outcome::Robots, Outcome::Scope, Outcome::Trap];
                WorkerCommand::ack(self.rng.choice(unasked).expect("the list is not empty"), false)
            });
            worker.tasks.insert(id.clone(), held);
            self.schedule(0, WorldEvent::WorkerAnswers { worker: index, task: id });
            return self.check_credit(index, is_new, needs_render);
        }
        held.request = RequestState::Open;
        worker.tasks.insert(id.clone(), held);
        self.check_credit(index, is_new, needs_render)?;
        self.note(|| format!("{request} requested"));
        self.hosts.begin(&host, at, self.now)?;
        self.totals.requests += 1;
        if self.is_scripted {
            return Ok(());
        }
        // A request never outlives its lease: the worker must ensure that.
        let left_ms = until.since(self.now);
        let most_ms = if self.rng.u32(0..8) == 0 && self.is_faulty { left_ms } else { 1500 };
        let lasts_ms = self.rng.u64(1..most_ms.min(left_ms));
        let incarnation = self.workers[index].incarnation;
        self.schedule(
            lasts_ms,
            WorldEvent::RequestEnds { host, worker: index, incarnation, task: id },
        );
        Ok(())
    }

    /// Checks that a member receives no more tasks than its credit allows. A task that is sent
    /// again does not count.
    fn check_credit(&self, index: usize, is_new: bool, needs_render: bool) -> CheckResult {
        let worker = &self.workers[index];
        let ((held, rendered), credit) = (worker.held(self.now), worker.credit());
        Promise::CreditKept.holds(!is_new || held <= credit, || {
            format!("worker {index} holds {held} tasks with credit {credit}")
        })?;
        let credit = worker.render_credit();
        Promise::CreditKept.holds(!is_new || !needs_render || rendered <= credit, || {
            format!("worker {index} holds {rendered} tasks that need a browser, with {credit}")
        })
    }

    /// A request ends at its host; its worker notices if it still exists.
    pub(super) fn request_ends(
        &mut self,
        host: &str,
        index: usize,
        incarnation: u64,
        task: &TaskId,
    ) -> CheckResult {
        let is_alive = self.workers[index].incarnation == incarnation;
        if !is_alive && self.is_own(index) {
            return Ok(()); // It ended with the broker.
        }
        self.hosts.end(host, self.now);
        let Some(held) = self.workers[index].tasks.get_mut(task).filter(|_| is_alive) else {
            return Ok(());
        };
        held.request = RequestState::Ended;
        held.received.has_ended = true;
        let received = held.received.clone();
        self.decide(index, &received)
    }

    /// A worker chooses its answer for a task.
    fn decide(&mut self, index: usize, received: &ReceivedTask) -> CheckResult {
        if self.needs_part(received, 8) {
            return self.ask_for_part(index, received, false);
        }
        let hold = self.any_hold();
        let chance = self.rng.u32(0..100);
        let command = match chance {
            17..35 if self.outages.is_silent(&received.host()) => {
                WorkerCommand::Touch { over: true, part: None, hold: KeyRest::default() }
            }
            _ if self.outages.is_silent(&received.host()) => self.unanswered(),
            _ if received.is_elsewhere() => WorkerCommand::Nack {
                back: RetryMode::OtherUrl { url: received.url.clone() },
                hold,
            },
            _ if self.nature.render && finds_empty(received) => {
                WorkerCommand::Nack { back: RetryMode::NeedsRender, hold }
            }
            0..7 => WorkerCommand::Nack { back: RetryMode::Counted { after_ms: None }, hold },
            7 => WorkerCommand::Nack { back: RetryMode::Never, hold },
            8..14 => {
                let host = self.rng.u64(0..HOSTS);
                let robots = format!("http://h{host}.org/robots.txt");
                let url = if self.rng.bool() { received.url.clone() } else { robots };
                WorkerCommand::Nack { back: RetryMode::OtherUrl { url }, hold }
            }
            14..17 if self.is_faulty => {
                // Stalls past its lease and answers then.
                self.totals.faults += 1;
                let late_ms = LEASE_MS + self.rng.u64(..5_000);
                let command = WorkerCommand::Ack { outcome: Outcome::Done, hold, links: true };
                return self.schedule_answer(late_ms, index, &received.id, command);
            }
            17..35 => WorkerCommand::Touch { over: self.rng.u32(0..4) > 0, part: None, hold },
            35..38 => {
                let outcomes = [Outcome::Failed, Outcome::Redirect];
                let outcome = self.rng.choice(outcomes).expect("the list is not empty");
                WorkerCommand::Ack { outcome, hold, links: false }
            }
            _ => WorkerCommand::Ack { outcome: Outcome::Done, hold, links: true },
        };
        self.schedule_answer(0, index, &received.id, command)
    }

    fn any_hold(&mut self) -> KeyRest {
        match self.rng.u32(0..60) {
            0 => KeyRest { not_before_ms: Some(self.rng.u64(..6_000)), pace_ms: None },
            1 => KeyRest { not_before_ms: None, pace_ms: Some(self.rng.u64(..3_000)) },
            _ => KeyRest::default(),
        }
    }

    pub(super) fn schedule_answer(
        &mut self,
        ms: u64,
        index: usize,
        task: &TaskId,
        command: WorkerCommand,
    ) -> CheckResult {
        if let Some(held) = self.workers[index].tasks.get_mut(task) {
            held.command = Some(command);
        }
        if ms == 0 {
            return self.send_answer(index, task);
        }
        self.schedule(ms, WorldEvent::WorkerAnswers { worker: index, task: task.clone() });
        Ok(())
    }

    /// A worker sends its answer for a task, if it is connected and has not sent it.
    pub(super) fn send_answer(&mut self, index: usize, task: &TaskId) -> CheckResult {
        let worker = &mut self.workers[index];
        let Some(conn) = worker.conn else { return Ok(()) };
        let requester = Requester { conn, member: worker.member, slot: slot() };
        let Some(held) = worker.tasks.get_mut(task).filter(|held| !held.is_sent) else {
            return Ok(());
        };
        let Some(command) = held.command.clone() else { return Ok(()) };
        held.is_sent = true;
        let (received, may_be_stale, verdict) = (held.received.clone(), held.may_be_stale, None);
        worker.last_sent = self.now;
        if !matches!(command, WorkerCommand::Touch { over: false, .. }) {
            self.hosts.end_parts(task);
        }
        if matches!(command, WorkerCommand::Ack { outcome: Outcome::Redirect, .. })
            && self.announced.contains(&received.url)
        {
            // The redirect target of an announced page counts as announced, too.
            self.announced.insert(redirect_of(&received.url));
        }
        let input = input_of(requester, &received, &command);
        self.feed(
            input,
            CommandOrigin::Task { worker: index, conn, received, command, may_be_stale, verdict },
        )
    }

    /// The group acts on a worker's answer about a host. A power failure may undo that, but then
    /// all hosts rest.
    pub(super) fn answer_is_decided(
        &mut self,
        received: &ReceivedTask,
        command: &WorkerCommand,
        at: Moment,
    ) {
        if let WorkerCommand::Ack { hold, .. }
        | WorkerCommand::Nack { hold, .. }
        | WorkerCommand::Touch { hold, .. } = command
        {
            self.hosts.request_rest(&received.host(), *hold, at);
        }
        if let WorkerCommand::Nack { back: RetryMode::OtherUrl { url: next }, .. } = command {
            self.next_request(received.id.entry, &received.url, next);
        }
        if received.has_ended && !matches!(command, WorkerCommand::Touch { over: false, .. }) {
            self.hosts.end_is_known(&received.host(), &received.id, at);
        }
    }

    /// A worker's answer for a held task is safe: the group cannot forget it.
    pub(super) fn answer_is_safe(
        &mut self,
        received: &ReceivedTask,
        command: &WorkerCommand,
        at: Moment,
    ) -> CheckResult {
        if !matches!(command, WorkerCommand::Touch { .. }) {
            self.priority_check.ended(received, matches!(command, WorkerCommand::Ack { .. }), at);
        }
        if let WorkerCommand::Touch { .. } = command {
            self.fairness_check.extend(&received.id, at + LEASE_MS);
            return Ok(());
        }
        self.fairness_check.release(&received.id);
        self.outages.answered(received, command, at)?;
        if let WorkerCommand::Nack { back: RetryMode::OtherUrl { url }, .. } = command {
            self.fairness_check.goes_elsewhere(received, url);
        }
        self.released.remove(&received.id);
        if let WorkerCommand::Ack { outcome, links, .. } = command {
            self.announcement_check.ended(&received.url, received.released);
            self.outcome_check.answered(received.id.entry, *outcome)?;
            if let Some(name) = &received.job {
                self.passes.answered(name, received, *outcome, *links)?;
            }
            if *outcome == Outcome::Redirect {
                self.due_check.want(&redirect_of(&received.url), at);
            }
        }
        Ok(())
    }

    /// Checks that only ids of held tasks are accepted.
    pub(super) fn check_answer(
        origin: &CommandOrigin,
        answer: &Result<Answer, ProtocolError>,
        at: Moment,
    ) -> CheckResult {
        let code = answer.as_ref().err().map(|error| error.code);
        match origin {
            CommandOrigin::Lie(id) => Promise::IdsHold.holds(code == Some(Code::Stale), || {
                format!("{id} is not held by the sender, and got {answer:?}")
            }),
            CommandOrigin::Task { received, command, may_be_stale, verdict, .. } => {
                let in_time = at < received.until && !may_be_stale;
                Promise::IdsHold.holds(code != Some(Code::Stale) || !in_time, || {
                    format!("{} is held until {}, but stale at {at}", received.id, received.until)
                })?;
                let Some((promise, expected)) = verdict else { return Ok(()) };
                promise.holds(code == *expected || code == Some(Code::Stale), || {
                    format!("{command:?} must get {expected:?}, and got {answer:?}")
                })
            }
            _ => Ok(()),
        }
    }

    /// A worker receives the result of its command.
    pub(super) fn receive_answer(
        &mut self,
        origin: CommandOrigin,
        answer: Result<Answer, ProtocolError>,
        at: Moment,
    ) -> CheckResult {
        match origin {
            CommandOrigin::Join { worker, conn } => {
                let Ok(Answer { ok: Status::Member(joined), .. }) = answer else {
                    panic!("JOIN is not rejected: {answer:?}");
                };
                let since = joined.since.unwrap_or_default();
                let is_same = since == *self.since.get_or_insert(since);
                Promise::IdsHold.holds(is_same && since > 0, || {
                    format!("{joined}, but since was {:?} before", self.since)
                })?;
                let worker = &mut self.workers[worker];
                if worker.conn == Some(conn) {
                    worker.credits.remove(0);
                }
                Ok(())
            }
            CommandOrigin::Task { worker, conn, received, command, .. } => {
                if self.workers[worker].conn != Some(conn) {
                    return Ok(());
                }
                self.go_on(worker, &received, &command, answer, at)
            }
            _ => Ok(()),
        }
    }

    fn go_on(
        &mut self,
        index: usize,
        received: &ReceivedTask,
        command: &WorkerCommand,
        answer: Result<Answer, ProtocolError>,
        at: Moment,
    ) -> CheckResult {
        let worker = &mut self.workers[index];
        let Some(held) = worker.tasks.get_mut(&received.id) else { return Ok(()) };
        match (command, answer) {
            (WorkerCommand::Touch { over, part, .. }, answer) if !is_stale(&answer) => {
                (held.command, held.is_sent, held.may_be_stale) = (None, false, false);
                let extended = answer.is_ok().then_some(at + LEASE_MS);
                held.received.until = held.received.until.max(extended.unwrap_or(Moment(0)));
                if *over {
                    held.request = RequestState::Over;
                }
                if let Some(url) = part {
                    self.part_is_answered(url, received, extended)?;
                }
                if self.needs_part(received, 2) {
                    return self.ask_for_part(index, received, *over);
                }
                let stores_ms = self.rng.u64(1..3_000);
                let command = match self.rng.u32(0..16) {
                    _ if self.outages.is_silent(&received.host()) => self.unanswered(),
                    0 if *over => WorkerCommand::ack(Outcome::Scope, false),
                    1 if *over => WorkerCommand::ack(Outcome::Trap, false),
                    _ => WorkerCommand::ack(Outcome::Done, true),
                };
                self.schedule_answer(stores_ms, index, &received.id, command)
            }
            (WorkerCommand::Ack { .. }, Err(error))
                if error.code == Code::Limit && self.rng.bool() =>
            {
                // The group has no room for the links, which the worker will find again.
                held.is_sent = false;
                let back = RetryMode::Uncounted { after_ms: Some(self.rng.u64(..60_000)) };
                let command = if held.request == RequestState::Over {
                    WorkerCommand::Nack { back, hold: KeyRest::default() }
                } else {
                    WorkerCommand::Touch { over: true, part: None, hold: KeyRest::default() }
                };
                self.schedule_answer(1, index, &received.id, command)
            }
            (_, Err(error)) if error.code == Code::Limit => {
                // It has requested robots.txt often enough; it still holds the task.
                held.is_sent = false;
                let command = WorkerCommand::ack(Outcome::Failed, false);
                self.schedule_answer(1, index, &received.id, command)
            }
            (WorkerCommand::Ack { outcome, links, .. }, Ok(answer)) => {
                worker.tasks.remove(&received.id);
                self.answered.push((index, received.id.clone()));
                let Status::Ack(counts) = &answer.ok else { panic!("{answer:?}") };
                let staged = staged(&received.url, *outcome, *links).len() as u64;
                assert_eq!(counts.new + counts.known + counts.refused, staged);
                Ok(())
            }
            _ => {
                worker.tasks.remove(&received.id);
                Ok(())
            }
        }
    }

    pub(super) fn change_credit(&mut self) -> CheckResult {
        let index = self.rng.usize(0..self.workers.len());
        let credit = self.rng.u32(0..=CREDIT_MAX);
        let render = self.any_render_credit();
        self.join(index, credit, render)
    }

    /// A worker reports that it is alive.
    pub(super) fn ping(&mut self) -> CheckResult {
        let index = self.rng.usize(0..self.workers.len());
        let Some(conn) = self.workers[index].conn else { return Ok(()) };
        self.workers[index].last_sent = self.now;
        self.feed(Input::Activity { conn }, CommandOrigin::Nothing)
    }

    /// A worker repeats the answer for an answered task.
    pub(super) fn answer_twice(&mut self) -> CheckResult {
        if self.answered.is_empty() {
            return Ok(());
        }
        let (index, task) = self.answered.swap_remove(self.rng.usize(0..self.answered.len()));
        self.send_false_answer(index, task)
    }

    /// A worker answers for a task that it does not hold.
    pub(super) fn answer_for_others(&mut self) -> CheckResult {
        let index = self.rng.usize(0..self.workers.len());
        let others = self.workers.iter().enumerate().filter(|(other, _)| *other != index);
        let others: Vec<_> = others.flat_map(|(_, other)| other.tasks.keys()).collect();
        let own: Vec<_> = self.workers[index].tasks.keys().collect();
        let task = match self.rng.choice(others) {
            Some(task) if self.rng.bool() => task.clone(),
            _ => {
                let Some(task) = self.rng.choice(own).cloned() else { return Ok(()) };
                match self.rng.u32(0..3) {
                    0 => TaskId { run: task.run + 1000, ..task },
                    1 => TaskId { attempt: task.attempt + 1000, ..task },
                    _ => TaskId { entry: task.entry + 1_000_000, ..task },
                }
            }
        };
        self.send_false_answer(index, task)
    }

    fn send_false_answer(&mut self, index: usize, task: TaskId) -> CheckResult {
        let worker = &mut self.workers[index];
        let Some(conn) = worker.conn else { return Ok(()) };
        worker.last_sent = self.now;
        self.totals.faults += 1;
        let requester = Requester { conn, member: worker.member, slot: slot() };
        let id = task.clone();
        let action = match self.rng.u32(0..3) {
            _ if self.nature.render && self.render_rng.u32(0..4) == 0 => {
                TaskAction::Part { url: self.any_part_url() }
            }
            0 => TaskAction::Touch { request_ended: true },
            1 => {
                let retry = RetryMode::Counted { after_ms: Some(0) };
                TaskAction::Nack(retry)
            }
            _ => TaskAction::Ack(Outcome::Done),
        };
        let reply = TaskReply { task, action, rest: KeyRest::default(), report: None }.into();
        let input = Input::Reply { requester, reply };
        self.feed(input, CommandOrigin::Lie(id))
    }

    /// Whether any worker has credit, as far as the group can know; with `render`, for a page that
    /// needs a browser.
    pub(super) fn any_has_credit(&self, render: bool) -> bool {
        let has_room = |worker: &Worker| {
            let credit = worker.credits.first().copied().unwrap_or_default();
            let browsers = credit.render.unwrap_or(0) as usize;
            if render && self.fairness_check.rendered_by(worker.member) >= browsers {
                return false;
            }
            let credit = credit.tasks as usize;
            let is_heard = worker.last_sent > worker.lost_at;
            let settled = worker.credits.len() == 1 && worker.conn.is_some();
            let is_free = self.drain_check.is_free(worker.member);
            settled && is_heard && is_free && self.fairness_check.held_by(worker.member) < credit
        };
        self.workers.iter().any(has_room)
    }

    /// Notes leases that have expired. Their members receive nothing until they send something.
    pub(super) fn note_losses(&mut self) {
        for worker in &mut self.workers {
            if let Some(at) = self.fairness_check.lost_by(worker.member, self.now) {
                worker.lost_at = worker.lost_at.max(at);
            }
        }
    }
}

fn is_stale(answer: &Result<Answer, ProtocolError>) -> bool {
    answer.as_ref().is_err_and(|error| error.code == Code::Stale)
}

/// Whether a worker finds that a page needs a browser, and nothing has said whether it is rendered.
fn finds_empty(received: &ReceivedTask) -> bool {
    let is_open = matches!(received.render, None | Some(Render::Auto));
    is_open && is_empty_page(&received.url)
}
