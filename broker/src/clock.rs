//! The one place that reads clocks.
//!
//! Everything that decides gets its time as a value ([`Moment`]); only the shells around it ask the
//! [`Clock`]. Under tokio's paused time the clock is virtual, too.
#![expect(clippy::disallowed_methods, reason = "the only module that may ask what time it is")]

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// Milliseconds since the broker's start, on the monotonic clock.
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

/// Tells the time since the broker's start, and the time of day.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    start: Instant,
    start_unix_ms: i64,
}

impl Clock {
    /// A clock that starts now.
    #[expect(clippy::new_without_default, reason = "a clock that starts should be asked for")]
    pub fn new() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            start: Instant::now(),
            start_unix_ms: i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX),
        }
    }

    /// The time since the start.
    pub fn now(&self) -> Moment {
        let ms = self.start.elapsed().as_millis();
        Moment(u64::try_from(ms).unwrap_or(u64::MAX))
    }

    /// The time of day in milliseconds since 1970, UTC.
    ///
    /// It is the wall clock of the start plus the monotonic time since, so that setting the wall
    /// clock neither moves events in time nor makes it run backwards. The price is a drift of some
    /// seconds a month against a disciplined clock.
    pub fn unix_ms(&self) -> i64 {
        let elapsed = i64::try_from(self.now().0).unwrap_or(i64::MAX);
        self.start_unix_ms.saturating_add(elapsed)
    }

    /// The runtime's instant of `moment`, for timers.
    pub fn instant(&self, moment: Moment) -> Instant {
        // A moment beyond what the platform can represent never comes; a century serves as well.
        let century = Duration::from_hours(100 * 365 * 24);
        self.start + Duration::from_millis(moment.0).min(century)
    }
}
