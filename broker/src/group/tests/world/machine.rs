//! The machine on which the broker runs: what it knows of time.

use crate::clock::{Moment, Stamp};

/// An uptime that counts true milliseconds, and a wall clock that anybody may set.
#[derive(Debug)]
pub(super) struct Machine {
    boot: u128,
    booted: Moment,
    /// The wall clock is ahead of true time by so much.
    ahead_ms: i64,
    rng: fastrand::Rng,
    next_jump: Moment,
}

/// A correction, the change to summer time and back, a leap of years, a battery that was empty.
const JUMPS_MS: [i64; 6] =
    [90_000, -1_000, 3_600_000, -3_600_000, 10 * 365 * 86_400_000, -56 * 365 * 86_400_000];
const JUMP_EVERY_MS: u64 = 15 * 60_000;

impl Machine {
    /// Without a `seed` nobody sets the wall clock.
    pub(super) fn new(seed: Option<u64>) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed.unwrap_or(0));
        let next_jump = seed.map_or(Moment(u64::MAX), |_| Moment(rng.u64(..JUMP_EVERY_MS)));
        Self { boot: 1, booted: Moment(0), ahead_ms: 1_700_000_000_000, rng, next_jump }
    }

    /// Time has passed; whether somebody has set the wall clock meanwhile.
    pub(super) fn pass(&mut self, now: Moment) -> bool {
        if now < self.next_jump {
            return false;
        }
        self.next_jump = now + self.rng.u64(..2 * JUMP_EVERY_MS);
        self.jump();
        true
    }

    /// It begins anew, perhaps with a clock that nobody kept.
    pub(super) fn reboot(&mut self, now: Moment) {
        self.boot += 1;
        self.booted = now;
        if self.next_jump < Moment(u64::MAX) && self.rng.bool() {
            self.jump();
        }
    }

    fn jump(&mut self) {
        self.ahead_ms += self.rng.choice(JUMPS_MS).expect("there are some");
    }

    /// What it knows of this moment, which is `moment` on the broker's clock.
    pub(super) fn stamp(&self, now: Moment, moment: Moment) -> Stamp {
        Stamp {
            moment,
            boot: self.boot,
            uptime_ms: now.since(self.booted),
            unix_ms: self.ahead_ms.saturating_add_unsigned(now.0),
        }
    }
}
