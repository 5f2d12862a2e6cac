//! The one place that reads clocks.
//!
//! State machines receive time as a value ([`Moment`]); only the code around them reads the
//! [`Clock`]. Under tokio's paused time this clock is virtual, too.
#![expect(clippy::disallowed_methods, reason = "the only module that may read clocks")]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub use tidings_queue::moment::{ClockStamp, Moment};
use tokio::time::Instant;

/// The present moment as the machine knows it, at moment 0.
fn stamp_now() -> ClockStamp {
    let uptime = rustix::time::clock_gettime(UPTIME);
    ClockStamp {
        moment: Moment(0),
        boot_id: boot_id().unwrap_or(0),
        uptime_ms: Duration::try_from(uptime).map_or(0, millis),
        unix_ms: wall_unix_ms(),
    }
}

#[cfg(target_os = "linux")]
const UPTIME: rustix::time::ClockId = rustix::time::ClockId::Boottime;
#[cfg(not(target_os = "linux"))]
const UPTIME: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

/// A number that the system draws at random when it boots.
fn boot_id() -> Option<u128> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    u128::from_str_radix(&text.trim().replace('-', ""), 16).ok()
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// What the wall clock shows now, in milliseconds since 1970, UTC (and 1970 if that is before). It
/// may be set at any time, so it is only for what an operator wants at a time of day.
pub(crate) fn wall_unix_ms() -> i64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX)
}

/// Reads the moment and the time of day.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    start: Instant,
    /// The start, as the machine knows it.
    start_stamp: ClockStamp,
}

impl Clock {
    /// A clock that starts now, with moment 0.
    #[expect(clippy::new_without_default, reason = "starting a clock should be explicit")]
    pub fn new() -> Self {
        Self { start: Instant::now(), start_stamp: stamp_now() }
    }

    /// Sets this clock forward to what an earlier clock would show now, which was at `stamp` and
    /// last showed `last`.
    pub fn resume_from(&mut self, stamp: ClockStamp, last: Moment) {
        let here = &mut self.start_stamp;
        here.moment = here.moment.max(here.moment_after(&stamp, last));
    }

    /// Sets this clock forward to a moment, unless it is later already.
    pub fn advance_to(&mut self, moment: Moment) {
        self.start_stamp.moment = self.start_stamp.moment.max(moment);
    }

    /// The present moment.
    pub fn now(&self) -> Moment {
        self.start_stamp.moment + millis(self.start.elapsed())
    }

    /// The present moment as the machine knows it.
    pub fn stamp(&self) -> ClockStamp {
        let elapsed = millis(self.start.elapsed());
        let ClockStamp { moment, boot_id: boot, uptime_ms, unix_ms } = self.start_stamp;
        ClockStamp {
            moment: moment + elapsed,
            boot_id: boot,
            uptime_ms: uptime_ms.saturating_add(elapsed),
            unix_ms: unix_ms.saturating_add_unsigned(elapsed),
        }
    }

    /// The time of day in milliseconds since 1970, UTC.
    ///
    /// It is the wall clock of the start plus the monotonic time since, so that setting the wall
    /// clock neither moves events in time nor makes it run backwards. The price is a drift of some
    /// seconds a month against a disciplined clock.
    pub fn unix_ms(&self) -> i64 {
        self.start_stamp.unix_ms.saturating_add_unsigned(millis(self.start.elapsed()))
    }

    /// The runtime's instant of `moment`, for timers.
    pub fn instant(&self, moment: Moment) -> Instant {
        // A moment beyond what the platform can represent never comes; a century serves as well.
        let century = Duration::from_hours(100 * 365 * 24);
        self.start + Duration::from_millis(moment.since(self.start_stamp.moment)).min(century)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // PROTOCOL: N7
    #[test]
    fn a_clock_continues_where_the_last_one_would_be() {
        let here =
            ClockStamp { moment: Moment(0), boot_id: 7, uptime_ms: 50_000, unix_ms: 1_000_000 };
        let after = |stamp, last| {
            let mut clock = Clock { start_stamp: here, ..Clock::new() };
            clock.resume_from(ClockStamp { moment: Moment(100), ..stamp }, Moment(last));
            clock.start_stamp.moment.0
        };
        let same = ClockStamp { uptime_ms: 20_000, unix_ms: 5, ..here };
        assert_eq!(after(same, 4_000), 30_099, "the uptime decides, and the clock is not ahead");
        assert_eq!(after(same, 40_000), 40_000, "it never goes back");
        let other = ClockStamp { boot_id: 8, unix_ms: 990_000, ..same };
        assert_eq!(after(other, 4_000), 10_100, "the time of day decides");
        assert_eq!(
            after(ClockStamp { unix_ms: 2_000_000, ..other }, 4_000),
            4_000,
            "it was set back"
        );
        assert_eq!(after(ClockStamp { boot_id: 0, ..other }, 4_000), 10_100, "the boot is unknown");
        assert_eq!(after(ClockStamp { uptime_ms: 60_000, ..same }, 4_000), 999_995 + 100);
    }
    // PROTOCOL: N7
    #[test]
    fn setting_the_wall_clock_moves_no_moment() {
        let earlier = ClockStamp {
            moment: Moment(100),
            boot_id: 7,
            uptime_ms: 20_000,
            unix_ms: 1_000_000_000,
        };
        for unix_ms in [i64::MIN, 0, 999_999_999, 1_000_030_000, i64::MAX] {
            let here = ClockStamp { moment: Moment(0), uptime_ms: 50_000, unix_ms, ..earlier };
            assert_eq!(here.moment_after(&earlier, Moment(4_000)), Moment(30_099), "{unix_ms}");
        }
    }
}
