//! Decisions about entries and schedules that are due at a time of day, when the wall clock is set.

use std::slice;

use crate::Group;
use crate::moment::Moment;
use crate::record::{Decision, EventEffect};
use crate::schedules::{WallClockDue, WallClockTarget};

/// Maximum number of due times in one record.
const RECORD_DUES_MAX: usize = 1024;

impl Group {
    /// Reports whether the wall clock differs from what the group assumes.
    pub fn is_wall_clock_off(&self, unix_ms: i64, now: Moment) -> bool {
        self.state.schedules().is_wall_clock_off(unix_ms, now)
    }

    /// Reports whether anything is due at a time of day.
    pub fn has_wall_clock_dues(&self) -> bool {
        self.state.schedules().has_wall_clock_dues()
    }

    /// Stores what the wall clock shows, and adjusts the due times.
    pub(crate) fn set_wall_clock(&mut self, unix_ms: i64, now: Moment) {
        let changed = self.state.set_wall_clock(unix_ms, now);
        for some in changed.chunks(RECORD_DUES_MAX) {
            self.commit(Decision::WallClockDues(some.to_vec()), now);
        }
    }

    /// Records the times of day of newly admitted entries and schedules that are still pending.
    pub(crate) fn record_wall_clock_dues(&mut self, mut times: Vec<WallClockDue>, now: Moment) {
        times.retain(|time| self.state.pending_due(time.target) == Some(time.due));
        for some in times.chunks(RECORD_DUES_MAX) {
            self.commit(Decision::WallClockDues(some.to_vec()), now);
        }
    }
}

/// Returns the entries of an event that are due at this time of day.
pub(super) fn wall_clock_dues_of(
    taking: &EventEffect,
    unix_ms: i64,
) -> impl Iterator<Item = WallClockDue> {
    let (entries, due) = match taking {
        EventEffect::Admitted(admission) => (slice::from_ref(&admission.id), admission.due),
        EventEffect::Coalesced { entries, due, .. } => (&entries[..], *due),
        _ => (&[][..], Moment(0)),
    };
    entries.iter().map(move |id| WallClockDue { target: WallClockTarget::Entry(*id), unix_ms, due })
}
