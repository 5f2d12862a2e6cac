//! Times of day: entries and schedules that follow the wall clock, also when it is set.
//!
//! The state machine knows only its own clock and learns what the wall clock shows from
//! [`Input::WallClock`]. Each due time is a moment of its own clock, decided once and recorded. The
//! time of the wall clock is stored beside it, and the moment is decided again when the two differ.
//!
//! [`Input::WallClock`]: crate::Input::WallClock

use std::collections::BTreeMap;

use tidings_protocol::{After, TimeOfDay, UrlKey};

use super::Schedules;
use crate::entry::EntryId;
use crate::moment::Moment;

/// A smaller drift of the wall clock, in ms, is ignored: the system corrects the clock all the
/// time.
const DRIFT_MS_MIN: u64 = 1000;

/// What can be due at a time of day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WallClockTarget {
    /// An entry: `after=06:00`.
    Entry(EntryId),
    /// The next fetch of a schedule: `every=06:00`.
    Schedule(UrlKey),
}

/// A due time by the wall clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WallClockDue {
    /// What is due.
    pub target: WallClockTarget,
    /// When, on the wall clock, in ms since 1970.
    pub unix_ms: i64,
    /// When, on the broker's clock.
    pub due: Moment,
}

impl WallClockDue {
    /// Returns the entry that is due, if it is one.
    pub(crate) fn entry(&self) -> Option<EntryId> {
        match self.target {
            WallClockTarget::Entry(entry) => Some(entry),
            WallClockTarget::Schedule(_) => None,
        }
    }
}

/// Everything that is due at a time of day.
#[derive(Debug, Default)]
pub(super) struct TimesOfDay {
    /// What the wall clock shows at moment 0. Not recorded, because each start provides it.
    offset_ms: i64,
    /// Entries that are not due yet.
    entries: BTreeMap<EntryId, i64>,
    /// Schedules with a time of day, which are due once a day.
    schedules: BTreeMap<UrlKey, i64>,
}

/// The times of day at which an event's entry and its schedule are due, if they have any.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct WallClockTimes {
    pub(crate) entry: Option<i64>,
    pub(crate) schedule: Option<i64>,
}

impl TimesOfDay {
    /// Returns what the wall clock shows at a moment.
    fn unix_ms_at(&self, at: Moment) -> i64 {
        self.offset_ms.saturating_add_unsigned(at.0)
    }

    /// Returns when the wall clock will show a time, or `now` if that is past.
    fn moment_of(&self, unix_ms: i64, now: Moment) -> Moment {
        now + u64::try_from(unix_ms.saturating_sub(self.unix_ms_at(now))).unwrap_or(0)
    }

    /// Everything that is due at a time of day, and that time.
    fn wanted(&self) -> impl Iterator<Item = (WallClockTarget, i64)> {
        let entries = self.entries.iter().map(|(id, ms)| (WallClockTarget::Entry(*id), *ms));
        let urls = self.schedules.iter().map(|(url, ms)| (WallClockTarget::Schedule(*url), *ms));
        entries.chain(urls)
    }

    /// Removes a schedule.
    pub(super) fn remove_schedule(&mut self, url: UrlKey) {
        self.schedules.remove(&url);
    }

    /// Returns the time of day of a schedule.
    pub(super) fn time_of_day(&self, url: UrlKey) -> Option<TimeOfDay> {
        self.schedules.get(&url).copied().map(TimeOfDay::from_unix_ms)
    }
}

/// Returns the next time after `unix_ms` at the same time of day as `wanted`. If `wanted` is past,
/// it is returned itself, because a clock that was set forward has skipped it.
fn next_occurrence(wanted: i64, unix_ms: i64) -> i64 {
    if wanted <= unix_ms { wanted } else { TimeOfDay::from_unix_ms(wanted).next_after(unix_ms) }
}

impl Schedules {
    /// Returns what the wall clock shows at a moment.
    pub(crate) fn unix_ms_at(&self, at: Moment) -> i64 {
        self.times.unix_ms_at(at)
    }

    /// Reports whether the wall clock differs from what the group assumes.
    pub(crate) fn is_wall_clock_off(&self, unix_ms: i64, now: Moment) -> bool {
        self.times.unix_ms_at(now).abs_diff(unix_ms) >= DRIFT_MS_MIN
    }

    /// Reports whether anything is due at a time of day.
    pub(crate) fn has_wall_clock_dues(&self) -> bool {
        !(self.times.entries.is_empty() && self.times.schedules.is_empty())
    }

    /// Returns when an event with `after=` is due, and the time of the wall clock if it names one.
    pub(crate) fn due_after(&self, after: After, now: Moment) -> (Moment, Option<i64>) {
        match after {
            After::Ms(ms) => (now + ms, None),
            After::Time(time) => {
                let unix_ms = time.next_after(self.times.unix_ms_at(now));
                (self.times.moment_of(unix_ms, now), Some(unix_ms))
            }
        }
    }

    /// Returns the first moment after `at` at which the wall clock shows that time of day.
    pub(crate) fn due_at(&self, time: TimeOfDay, at: Moment) -> (Moment, i64) {
        let unix_ms = time.next_after(self.times.unix_ms_at(at));
        (self.times.moment_of(unix_ms, at), unix_ms)
    }

    /// Returns the next due time of a schedule that is due now, if it has a time of day.
    pub(crate) fn due_next_day(&self, url: UrlKey, now: Moment) -> Option<WallClockDue> {
        let unix_ms = *self.times.schedules.get(&url)?;
        let passed = unix_ms.max(self.times.unix_ms_at(now));
        let unix_ms = TimeOfDay::from_unix_ms(unix_ms).next_after(passed);
        let due = self.times.moment_of(unix_ms, now);
        Some(WallClockDue { target: WallClockTarget::Schedule(url), unix_ms, due })
    }

    /// Stores what the wall clock shows, and returns the due times that this moves. `due_of` says
    /// when an entry is due that is not due yet.
    pub(crate) fn set_wall_clock(
        &mut self,
        unix_ms: i64,
        now: Moment,
        due_of: impl Fn(EntryId) -> Option<Moment>,
    ) -> Vec<WallClockDue> {
        let now_ms = i64::try_from(now.0).unwrap_or(i64::MAX);
        self.times.offset_ms = unix_ms.saturating_sub(now_ms);
        let changed = self.times.wanted().filter_map(|(target, wanted)| {
            let unix_ms = next_occurrence(wanted, unix_ms);
            let due = self.times.moment_of(unix_ms, now);
            let is_off = self.pending_due(target, &due_of)?.0.abs_diff(due.0) >= DRIFT_MS_MIN
                || unix_ms != wanted;
            is_off.then_some(WallClockDue { target, unix_ms, due })
        });
        changed.collect()
    }

    /// Returns the due time of a schedule, or of an entry that is not due yet.
    pub(crate) fn pending_due(
        &self,
        target: WallClockTarget,
        due_of: impl Fn(EntryId) -> Option<Moment>,
    ) -> Option<Moment> {
        match target {
            WallClockTarget::Entry(id) => due_of(id),
            WallClockTarget::Schedule(url) => self.find(url).map(|schedule| schedule.due),
        }
    }

    /// A schedule is due at this time of day.
    pub(crate) fn set_time_of_day(&mut self, url: UrlKey, due: Moment, unix_ms: i64) {
        if self.move_due(url, due).is_some() {
            self.times.schedules.insert(url, unix_ms);
        }
    }

    /// An entry is due at this time of day.
    pub(crate) fn entry_waits_for(&mut self, entry: EntryId, unix_ms: i64) {
        self.times.entries.insert(entry, unix_ms);
    }

    /// An entry waits for no time of day any more.
    pub(crate) fn entry_waits_no_more(&mut self, entry: EntryId) {
        self.times.entries.remove(&entry);
    }

    /// Returns everything that is due at a time of day, for a snapshot.
    pub(crate) fn wall_clock_dues(
        &self,
        due_of: impl Fn(EntryId) -> Option<Moment>,
    ) -> impl Iterator<Item = WallClockDue> {
        self.times.wanted().filter_map(move |(target, unix_ms)| {
            Some(WallClockDue { target, unix_ms, due: self.pending_due(target, &due_of)? })
        })
    }
}
