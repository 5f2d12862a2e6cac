//! Outputs of the group's actor, and when they are sent: to the local worker once the records are
//! written, to all others once they are durable.

use std::collections::VecDeque;

use tidings_protocol::{MemberId, ProtocolError};

use super::World;
use super::broker::{Running, is_said_again};
use super::promises::{Broken, Kept};
use super::task::Told;
use super::wish::Wish;
use super::words::Said;
use crate::clock::Moment;
use crate::group::{Answer, Input};
use crate::mailbox::ConnId;

/// An output that depends on the records before a mark.
#[derive(Debug)]
pub(super) struct Pending {
    mark: u64,
    unsent: Unsent,
    /// Whether the group visibly acts on it: it or a later output was sent.
    is_decided: bool,
    /// Whether it was sent to the local worker, because its records are written.
    has_left: bool,
}

/// Outputs that are sent when their records are safe.
#[derive(Debug, Clone)]
pub(super) enum Unsent {
    /// Requested fetches were consumed, with this decision number.
    Taken {
        order: u64,
        wishes: Vec<Wish>,
        at: Moment,
    },
    /// `to`: the member, if it was released just now.
    Task {
        conn: ConnId,
        told: Told,
        to: Option<MemberId>,
    },
    Answer {
        said: Said,
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

impl Pending {
    pub(super) fn new(mark: u64, unsent: Unsent) -> Self {
        Self { mark, unsent, is_decided: false, has_left: false }
    }
}

impl Unsent {
    /// Whether it is sent on this connection.
    fn is_to(&self, own: ConnId) -> bool {
        match self {
            Self::Task { conn, .. }
            | Self::Answer { said: Said::Task { conn, .. } | Said::Join { conn, .. }, .. } => {
                *conn == own
            }
            _ => false,
        }
    }
}

impl World {
    /// Sends outputs with durable records, and outputs for the local worker with written records.
    pub(super) fn send(&mut self) -> Kept {
        while let Some((decided, unsent)) = self.next_to_own() {
            for decided in &decided {
                self.is_decided(decided);
            }
            self.leave(unsent)?;
        }
        while let Some(pending) =
            self.broker.unsent.pop_front_if(|pending| pending.mark <= self.broker.safe)
        {
            if !pending.is_decided {
                self.is_decided(&pending.unsent);
            }
            self.takes_effect(&pending.unsent)?;
            if !pending.has_left {
                self.leave(pending.unsent)?;
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
    fn next_to_own(&mut self) -> Option<(Vec<Unsent>, Unsent)> {
        let own = self.workers[self.own?].conn?;
        let broker = &mut self.broker;
        let written = if broker.safe < broker.begun { broker.safe } else { broker.written };
        let is_next = |pending: &Pending| pending.unsent.is_to(own) && !pending.has_left;
        let at = broker.unsent.iter().position(is_next)?;
        if broker.unsent[at].mark > written {
            return None;
        }
        broker.unsent[at].has_left = true;
        let unsent = broker.unsent[at].unsent.clone();
        let before = broker.unsent.iter_mut().take(at + 1);
        let decided = before.filter_map(|pending| {
            let is_new = !std::mem::replace(&mut pending.is_decided, true);
            is_new.then(|| pending.unsent.clone())
        });
        Some((decided.collect(), unsent))
    }

    /// Drops all outputs after a crash. Written decisions remain in force although their outputs
    /// are lost. Returns the inputs that their senders must repeat.
    pub(super) fn lose_unsent(&mut self) -> Result<VecDeque<(Input, Said)>, Broken> {
        let upto = self.broker.appended;
        for pending in std::mem::take(&mut self.broker.unsent) {
            if pending.mark <= upto {
                if !pending.is_decided {
                    self.is_decided(&pending.unsent);
                }
                self.takes_effect(&pending.unsent)?;
            }
        }
        let inputs = std::mem::take(&mut self.broker.unsafe_inputs).into_iter();
        let lost = inputs.filter(|(mark, ..)| *mark > upto).map(|(_, input, said)| (input, said));
        let mut lost: VecDeque<_> = lost.collect();
        if let Running::Still { inbox, .. } = &mut self.broker.state {
            let waiting = std::mem::take(inbox).into_iter();
            lost.extend(waiting.filter(|(input, _)| is_said_again(input)));
        }
        Ok(lost)
    }
}
