//! Outputs of the group's actor, and when they are sent: to the local worker once the records are
//! written, to all others once they are durable.

use std::collections::VecDeque;

use tidings_protocol::status::Answer;
use tidings_protocol::{MemberId, ProtocolError};

use super::World;
use super::broker::{BrokerState, UnfinishedInput, is_repeated};
use super::commands::CommandOrigin;
use super::fetch_request::FetchRequest;
use super::promises::{BrokenPromise, CheckResult};
use super::task::ReceivedTask;
use crate::moment::Moment;
use crate::tests::site::host_number;
use crate::{ConnId, Input};

/// An output that depends on the records before a mark.
#[derive(Debug)]
pub(super) struct PendingOutput {
    mark: u64,
    unsent: SimulatedOutput,
    /// Whether the group visibly acts on it: it or a later output was sent.
    is_decided: bool,
    /// Whether it was sent to the local worker, because its records are written.
    has_left: bool,
}

/// Outputs that are sent when their records are safe.
#[derive(Debug, Clone)]
pub(super) enum SimulatedOutput {
    /// Requested fetches were consumed, with this decision number.
    Taken {
        order: u64,
        fetches: Vec<FetchRequest>,
        at: Moment,
    },
    /// `to`: the member, if it was released just now.
    Task {
        conn: ConnId,
        received: ReceivedTask,
        to: Option<MemberId>,
    },
    Answer {
        origin: CommandOrigin,
        answer: Result<Answer, ProtocolError>,
        at: Moment,
    },
    /// The answer for a connection that waits for the end of a pass.
    Ended(Result<Answer, ProtocolError>),
    Announce {
        serial: u64,
        topic: &'static str,
        payload: String,
    },
}

impl PendingOutput {
    pub(super) fn new(mark: u64, unsent: SimulatedOutput) -> Self {
        Self { mark, unsent, is_decided: false, has_left: false }
    }
}

impl SimulatedOutput {
    /// Whether it is sent on this connection.
    fn is_to(&self, own: ConnId) -> bool {
        match self {
            Self::Task { conn, .. }
            | Self::Answer {
                origin: CommandOrigin::Task { conn, .. } | CommandOrigin::Join { conn, .. },
                ..
            } => *conn == own,
            _ => false,
        }
    }
}

impl World {
    /// Sends outputs with durable records, and outputs for the local worker with written records.
    pub(super) fn send(&mut self) -> CheckResult {
        while let Some((decided, unsent)) = self.next_to_own() {
            for decided in &decided {
                self.mark_decided(decided);
            }
            self.send_output(unsent)?;
        }
        while let Some(pending) =
            self.broker.pending_outputs.pop_front_if(|pending| pending.mark <= self.broker.safe)
        {
            if !pending.is_decided {
                self.mark_decided(&pending.unsent);
            }
            self.output_is_safe(&pending.unsent)?;
            if !pending.has_left {
                self.send_output(pending.unsent)?;
            }
        }
        while self.broker.unsafe_inputs.front().is_some_and(|(mark, ..)| *mark <= self.broker.safe)
        {
            self.broker.unsafe_inputs.pop_front();
        }
        Ok(())
    }

    /// The next output for the local worker, after the outputs decided before it that it makes
    /// visible.
    fn next_to_own(&mut self) -> Option<(Vec<SimulatedOutput>, SimulatedOutput)> {
        let own = self.workers[self.local_worker?].conn?;
        let broker = &mut self.broker;
        let written = if broker.safe < broker.start_end { broker.safe } else { broker.written };
        let is_next = |pending: &PendingOutput| pending.unsent.is_to(own) && !pending.has_left;
        let at = broker.pending_outputs.iter().position(is_next)?;
        if broker.pending_outputs[at].mark > written {
            return None;
        }
        broker.pending_outputs[at].has_left = true;
        let unsent = broker.pending_outputs[at].unsent.clone();
        let before = broker.pending_outputs.iter_mut().take(at + 1);
        let decided = before.filter_map(|pending| {
            let is_new = !std::mem::replace(&mut pending.is_decided, true);
            is_new.then(|| pending.unsent.clone())
        });
        Some((decided.collect(), unsent))
    }

    /// Drops all outputs after a crash. Written decisions remain in force although their outputs
    /// are lost. Returns the inputs that their senders must repeat.
    pub(super) fn lose_unsent(
        &mut self,
    ) -> Result<VecDeque<(Input, CommandOrigin)>, BrokenPromise> {
        let upto = self.broker.appended;
        self.passes.forget_decided_ends();
        for pending in std::mem::take(&mut self.broker.pending_outputs) {
            if pending.mark <= upto {
                if !pending.is_decided {
                    self.mark_decided(&pending.unsent);
                }
                self.output_is_safe(&pending.unsent)?;
            }
        }
        let inputs = std::mem::take(&mut self.broker.unsafe_inputs).into_iter();
        let lost =
            inputs.filter(|(mark, ..)| *mark > upto).map(|(_, input, origin)| (input, origin));
        let mut lost: VecDeque<_> = lost.collect();
        let unfinished = std::mem::take(&mut self.broker.unfinished).into_iter();
        lost.extend(unfinished.filter_map(UnfinishedInput::repeated));
        if let BrokerState::Paused { inbox, .. } = &mut self.broker.state {
            let waiting = std::mem::take(inbox).into_iter();
            lost.extend(waiting.filter(|(input, _)| is_repeated(input)));
        }
        Ok(lost)
    }
}

impl World {
    /// The group may act on an output, even if a crash can still undo it.
    fn mark_decided(&mut self, unsent: &SimulatedOutput) {
        if let SimulatedOutput::Answer {
            origin: CommandOrigin::Task { received, command, .. },
            answer: Ok(_),
            at,
        } = unsent
        {
            self.answer_is_decided(received, command, *at);
        }
    }

    /// An output is safe: the group cannot forget it any more, even if its receiver is gone.
    fn output_is_safe(&mut self, unsent: &SimulatedOutput) -> CheckResult {
        match unsent {
            SimulatedOutput::Taken { order, fetches, at } => {
                for fetch in fetches {
                    self.fetch_requested(fetch, *order, *at);
                }
                Ok(())
            }
            SimulatedOutput::Task { received, to: Some(member), .. } => {
                self.drain_check.check_release(received, *member)?;
                self.due_check.check_release(received)?;
                self.passes.check_depth(received)?;
                self.outages.released(received)?;
                self.priority_check.take(received)?;
                self.fairness_check.lease(received, *member);
                self.fairness_check.take(received, &self.announcement_check, &self.passes)
            }
            SimulatedOutput::Answer { origin, answer, at } => {
                Self::check_answer(origin, answer, *at)?;
                match origin {
                    CommandOrigin::Task { received, command, .. } if answer.is_ok() => {
                        self.answer_is_safe(received, command, *at)
                    }
                    CommandOrigin::Purge(pages) if answer.is_ok() => {
                        self.announcement_check.purge(pages);
                        self.priority_check.purge(pages);
                        Ok(())
                    }
                    CommandOrigin::Bump(pages, prio) if answer.is_ok() => {
                        self.totals.bumps += 1;
                        self.priority_check.bump(pages, *prio);
                        Ok(())
                    }
                    CommandOrigin::Retry => {
                        self.outages.retried();
                        Ok(())
                    }
                    CommandOrigin::Delay(delay_ms) => {
                        self.hosts.set_delay(*delay_ms);
                        Ok(())
                    }
                    CommandOrigin::Rule { key, command } => {
                        self.rule_is_answered(key, *command, answer)
                    }
                    CommandOrigin::Drain { member, drained } => {
                        self.drain_check.end(*member, *drained, answer.as_ref().err());
                        Ok(())
                    }
                    CommandOrigin::Narrow { name, opened, by } if answer.is_ok() => {
                        self.narrowed(name, *opened, by);
                        Ok(())
                    }
                    CommandOrigin::Delete { name, opened } => self.deleted(name, *opened, answer),
                    _ => Ok(()),
                }
            }
            SimulatedOutput::Task { .. }
            | SimulatedOutput::Ended(_)
            | SimulatedOutput::Announce { .. } => Ok(()),
        }
    }

    /// The group knows, since `at`, of a requested fetch.
    fn fetch_requested(&mut self, fetch: &FetchRequest, order: u64, at: Moment) {
        let FetchRequest { url, job, after_ms, is_schedule, .. } = fetch;
        self.due_check.want(url, at + *after_ms);
        let host = host_number(url);
        if *is_schedule || self.hosts.rules.may_rule(host) {
            self.priority_check.ignore(url);
        } else {
            self.priority_check.want(fetch, order, at);
        }
        if job.is_some() || self.hosts.rules.may_end(url) {
            return;
        }
        if *is_schedule || *after_ms > 0 || self.hosts.rules.may_wait(url) {
            self.fairness_check.announce_for_later(url, &self.announcement_check, &self.passes);
        } else {
            self.fairness_check.announce(url, &self.passes);
        }
        // A schedule may end before its first fetch has succeeded.
        if !is_schedule {
            self.announcement_check.promise(url, order);
        }
    }

    /// Makes an output effective and sends it.
    fn send_output(&mut self, unsent: SimulatedOutput) -> CheckResult {
        match unsent {
            SimulatedOutput::Taken { .. } => Ok(()),
            SimulatedOutput::Task { conn, received, to } => {
                self.receive_task(conn, received, to.is_some())
            }
            SimulatedOutput::Answer { origin, answer, at } => {
                self.receive_answer(origin, answer, at)
            }
            SimulatedOutput::Ended(answer) => self.check_wait_answer(&answer),
            SimulatedOutput::Announce { serial, topic, payload } => {
                self.receive_announcement(serial, topic, &payload)
            }
        }
    }
}
