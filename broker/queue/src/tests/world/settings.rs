//! Changes the group's settings while it runs.

use super::commands::CommandOrigin;
use super::operator::operator;
use super::promises::CheckResult;
use super::{DELAY_MS, World};
use crate::Input;

const DELAYS_MS: [u64; 3] = [500, DELAY_MS, 2000];

impl World {
    pub(super) fn change_delay(&mut self) -> CheckResult {
        let delay_ms = self.rng.choice(DELAYS_MS).expect("the list is not empty");
        self.set_delay(delay_ms)
    }

    /// One change at a time: until it is known to be safe, a crash may undo it.
    pub(super) fn set_delay(&mut self, delay_ms: u64) -> CheckResult {
        if self.hosts.is_delay_changing() {
            return Ok(());
        }
        self.hosts.begin_delay(delay_ms);
        let changes = vec![("delay".into(), format!("{delay_ms}ms").into())];
        self.feed(
            Input::Configure { requester: operator(), changes },
            CommandOrigin::Delay(delay_ms),
        )
    }
}
