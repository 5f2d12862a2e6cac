//! Time as a value. Nothing here reads a clock.

use std::fmt;

/// Milliseconds on the broker's clock, which never goes back. With groups on disk it continues
/// where it was when the broker stopped, plus the time in between.
///
/// Arithmetic saturates, so a far deadline is merely far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(pub u64);

impl Moment {
    /// Milliseconds from `earlier` to `self`, 0 if `earlier` is later.
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// `Moment + milliseconds`.
impl std::ops::Add<u64> for Moment {
    type Output = Self;

    fn add(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A moment as the machine knows it, from which the next start computes how much time has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockStamp {
    /// The moment on the broker's clock.
    pub moment: Moment,
    /// The run of the machine; 0 if unknown.
    pub boot_id: u128,
    /// Milliseconds since that run began, sleep included.
    pub uptime_ms: u64,
    /// The time of day in ms.
    pub unix_ms: i64,
}

impl ClockStamp {
    /// Whether the machine has been running since.
    pub fn is_same_boot(&self, later: &Self) -> bool {
        self.boot_id != 0 && self.boot_id == later.boot_id && self.uptime_ms <= later.uptime_ms
    }

    /// What a clock that was at `earlier`, and last showed `last`, would show now. While the
    /// machine runs, its uptime decides, not the time of day. After a reboot the time of day
    /// has to do, which may have been set. The result never goes back.
    pub fn moment_after(&self, earlier: &Self, last: Moment) -> Moment {
        let moment = if earlier.is_same_boot(self) {
            // Both uptimes are truncated, so up to 1 ms less has passed. A clock that is ahead
            // would end delays early.
            earlier.moment + (self.uptime_ms - earlier.uptime_ms).saturating_sub(1)
        } else {
            let last_ms = earlier.unix_ms.saturating_add_unsigned(last.since(earlier.moment));
            last + u64::try_from(self.unix_ms.saturating_sub(last_ms)).unwrap_or(0)
        };
        moment.max(last)
    }
}
