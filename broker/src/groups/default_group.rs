//! The group that commands mean if they name none. It need not be created, and reading does not
//! create it.

use tidings_protocol::{DEFAULT_GROUP, DELAY_MS_MAX, GroupName, ProtocolError};
use tidings_queue::{Group, Input, Operation, Output, Requester};

use super::Groups;
use super::message::GroupMessage;
use super::request::Caller;
use crate::mailbox::ConnMessage;

impl Groups {
    /// Answers a command for the default group, which does not exist, as if it were empty.
    pub(super) fn answer_as_empty(&self, group: &GroupName, input: Input, caller: &Caller) {
        let mut empty = Group::new(group.clone(), 0, self.defaults.lock().clone(), 0);
        empty.handle(input, self.clock.now());
        while let Some(output) = empty.poll() {
            if let Output::Answer { requester: Requester { slot, .. }, answer } = output {
                caller.mailbox.send(ConnMessage::Answer { slot, answer });
            }
        }
    }

    /// Sets the delay of the default group, also if it is created later.
    pub(crate) fn set_default_delay(&self, delay_ms: Option<u64>) -> Result<(), ProtocolError> {
        let delay_ms = delay_ms.map(|ms| ms.min(DELAY_MS_MAX));
        // No group is created meanwhile with the delay of before.
        let _creation = self.registry.lock_creation();
        self.defaults.lock().settings.delay_ms = delay_ms;
        let group = default_group();
        if !self.has(&group) {
            return Ok(());
        }
        self.send(&group, GroupMessage::SetDelay(delay_ms))
    }
}

/// Reports whether a command leaves something in an empty group, so that the default group must
/// exist for it.
pub(super) fn fills_empty_group(input: &Input) -> bool {
    matches!(
        input,
        Input::OpenJob { .. }
            | Input::Configure { .. }
            | Input::Operate { operation: Operation::Pause | Operation::SetRule { .. }, .. }
    )
}

pub(super) fn default_group() -> GroupName {
    DEFAULT_GROUP.parse().expect("the default group has a valid name")
}
