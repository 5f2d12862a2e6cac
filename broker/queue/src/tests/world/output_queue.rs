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
