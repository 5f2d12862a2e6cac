//! The machine of the broker and its clocks.

use crate::moment::{ClockStamp, Moment};

/// An uptime that counts true milliseconds, and a wall clock that may be set.
#[derive(Debug)]
pub(super) struct Machine {
    boot: u128,
    booted: Moment,
    /// How far the wall clock is ahead of true time.
    ahead_ms: i64,
    rng: fastrand::Rng,
    next_jump: Moment,
}

/// A correction, a change to summer time and back, a leap of years, an empty battery.
const JUMPS_MS: [i64; 6] =
    [90_000, -1_000, 3_600_000, -3_600_000, 10 * 365 * 86_400_000, -56 * 365 * 86_400_000];
const JUMP_EVERY_MS: u64 = 15 * 60_000;

impl Machine {
    /// Without a `seed` the wall clock is never set.
    pub(super) fn new(seed: Option<u64>) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed.unwrap_or(0));
        let next_jump = seed.map_or(Moment(u64::MAX), |_| Moment(rng.u64(..JUMP_EVERY_MS)));
        Self { boot: 1, booted: Moment(0), ahead_ms: 1_700_000_000_000, rng, next_jump }
    }

    /// Time has passed; returns whether the wall clock was set meanwhile.
    pub(super) fn pass(&mut self, now: Moment) -> bool {
        if now < self.next_jump {
            return false;
        }
        self.next_jump = now + self.rng.u64(..2 * JUMP_EVERY_MS);
        self.jump();
        true
    }

    /// Reboots, perhaps with a wall clock that was reset.
    pub(super) fn reboot(&mut self, now: Moment) {
        self.boot += 1;
        self.booted = now;
        if self.next_jump < Moment(u64::MAX) && self.rng.bool() {
            self.jump();
        }
    }

    fn jump(&mut self) {
        self.ahead_ms += self.rng.choice(JUMPS_MS).expect("the list is not empty");
    }

    /// The machine's clocks at this moment, which is `moment` on the broker's clock.
    pub(super) fn stamp(&self, now: Moment, moment: Moment) -> ClockStamp {
        ClockStamp {
            moment,
            boot_id: self.boot,
            uptime_ms: now.since(self.booted),
            unix_ms: self.ahead_ms.saturating_add_unsigned(now.0),
        }
    }
}
