//! Checks that a drained member is given no task, and which members the operator has drained.

use std::collections::BTreeSet;

use tidings_protocol::{Code, MemberId, ProtocolError};

use super::World;
use super::commands::CommandOrigin;
use super::operator::operator;
use super::promises::{CheckResult, Promise};
use super::task::ReceivedTask;
use crate::{Input, Operation};

/// The members that the operator has drained.
#[derive(Debug, Default)]
pub(super) struct DrainCheck {
    /// Members that are drained, as the answers to the operator say.
    drained: BTreeSet<MemberId>,
    /// Members about which a command has no answer yet.
    changing: BTreeSet<MemberId>,
}

impl DrainCheck {
    /// Whether the group may give it tasks, as far as the operator knows.
    pub(super) fn is_free(&self, member: MemberId) -> bool {
        !self.drained.contains(&member) && !self.changing.contains(&member)
    }

    /// The command about a member is answered, and its effect is safe.
    pub(super) fn end(&mut self, member: MemberId, drained: bool, error: Option<&ProtocolError>) {
        self.changing.remove(&member);
        if let Some(error) = error {
            assert_eq!(error.code, Code::NotFound, "{error}");
        } else if drained {
            self.drained.insert(member);
        }
    }

    /// Checks a release to a member.
    pub(super) fn check_release(&self, received: &ReceivedTask, member: MemberId) -> CheckResult {
        let is_drained = self.drained.contains(&member);
        Promise::DrainKept
            .holds(!is_drained, || format!("drained {member:?} is given {}", received.id))
    }
}

impl World {
    /// The operator drains a worker, or ends that.
    pub(super) fn drain_some_worker(&mut self) -> CheckResult {
        let index = self.rng.usize(0..self.workers.len());
        let drained = self.rng.u32(0..3) == 0;
        self.drain(index, drained)
    }

    /// One command at a time about each member: until it is answered, either state is possible.
    pub(super) fn drain(&mut self, index: usize, drained: bool) -> CheckResult {
        let member = self.workers[index].member;
        if !self.drain_check.changing.insert(member) {
            return Ok(());
        }
        self.drain_check.drained.remove(&member);
        let operation = Operation::Drain { member: member.short().into(), drained };
        self.feed(
            Input::Operate { requester: operator(), operation },
            CommandOrigin::Drain { member, drained },
        )
    }
}
