//! Times of day: entries and schedules that follow the wall clock, also when it is set.
//!
//! The state machine knows only its own clock and learns what the wall clock shows from
//! [`Input::WallClock`]. Each due time is a moment of its own clock, decided once and recorded. The
//! time of the wall clock is stored beside it, and the moment is decided again when the two differ.
//!
//! [`Input::WallClock`]: super::Input::WallClock

use std::collections::BTreeMap;

use tidings_protocol::{After, TimeOfDay, UrlKey};

use super::Group;
use super::entry::{EntryId, EntryState};
use super::record::Decision;
use super::timers::Expiry;
use crate::moment::Moment;

/// A smaller drift of the wall clock, in ms, is ignored: the system corrects the clock all the
/// time.
const DRIFT_MS_MIN: u64 = 1000;

/// Maximum number of due times in one record.
const RECORD_DUES_MAX: usize = 1024;

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
    pub(super) fn entry(&self) -> Option<EntryId> {
        match self.target {
            WallClockTarget::Entry(entry) => Some(entry),
            WallClockTarget::Schedule(_) => None,
        }
    }
}

/// Everything that is due at a time of day.
#[derive(Debug, Default)]
pub(super) struct WallClock {
    /// What the wall clock shows at moment 0. Not recorded, because each start provides it.
    offset_ms: i64,
    /// Entries that are not due yet.
    entries: BTreeMap<EntryId, i64>,
    /// Schedules with a time of day, which are due once a day.
    schedules: BTreeMap<UrlKey, i64>,
}

/// The times of day at which an event's entry and its schedule are due, if they have any.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct WallClockTimes {
    pub(super) entry: Option<i64>,
    pub(super) schedule: Option<i64>,
}

impl WallClock {
    /// Returns what the wall clock shows at a moment.
    fn unix_ms_at(&self, at: Moment) -> i64 {
        self.offset_ms.saturating_add_unsigned(at.0)
    }

    /// Returns when the wall clock will show a time, or `now` if that is past.
    fn moment_of(&self, unix_ms: i64, now: Moment) -> Moment {
        now + u64::try_from(unix_ms.saturating_sub(self.unix_ms_at(now))).unwrap_or(0)
    }

    /// Removes an entry.
    pub(super) fn remove_entry(&mut self, entry: EntryId) {
        self.entries.remove(&entry);
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

impl Group {
    /// Reports whether the wall clock differs from what the group assumes.
    pub fn is_wall_clock_off(&self, unix_ms: i64, now: Moment) -> bool {
        self.wall_clock.unix_ms_at(now).abs_diff(unix_ms) >= DRIFT_MS_MIN
    }

    /// Reports whether anything is due at a time of day.
    pub fn has_wall_clock_dues(&self) -> bool {
        !(self.wall_clock.entries.is_empty() && self.wall_clock.schedules.is_empty())
    }

    /// Returns when an event with `after=` is due, and the time of the wall clock if it names one.
    pub(super) fn due_after(&self, after: After, now: Moment) -> (Moment, Option<i64>) {
        match after {
            After::Ms(ms) => (now + ms, None),
            After::Time(time) => {
                let unix_ms = time.next_after(self.wall_clock.unix_ms_at(now));
                (self.wall_clock.moment_of(unix_ms, now), Some(unix_ms))
            }
        }
    }

    /// Returns the first moment after `at` at which the wall clock shows that time of day.
    pub(super) fn due_at(&self, time: TimeOfDay, at: Moment) -> (Moment, i64) {
        let unix_ms = time.next_after(self.wall_clock.unix_ms_at(at));
        (self.wall_clock.moment_of(unix_ms, at), unix_ms)
    }

    /// Returns the next due time of a schedule that is due now, if it has a time of day.
    pub(super) fn due_next_day(&self, url: UrlKey, now: Moment) -> Option<WallClockDue> {
        let unix_ms = *self.wall_clock.schedules.get(&url)?;
        let passed = unix_ms.max(self.wall_clock.unix_ms_at(now));
        let unix_ms = TimeOfDay::from_unix_ms(unix_ms).next_after(passed);
        let due = self.wall_clock.moment_of(unix_ms, now);
        Some(WallClockDue { target: WallClockTarget::Schedule(url), unix_ms, due })
    }

    /// Stores what the wall clock shows, and adjusts the due times.
    pub(super) fn set_wall_clock(&mut self, unix_ms: i64, now: Moment) {
        let now_ms = i64::try_from(now.0).unwrap_or(i64::MAX);
        self.wall_clock.offset_ms = unix_ms.saturating_sub(now_ms);
        let times = &self.wall_clock;
        let entries =
            times.entries.iter().map(|(id, wanted)| (WallClockTarget::Entry(*id), *wanted));
        let urls =
            times.schedules.iter().map(|(url, wanted)| (WallClockTarget::Schedule(*url), *wanted));
        let changed = entries.chain(urls).filter_map(|(what, wanted)| {
            let unix_ms = next_occurrence(wanted, unix_ms);
            let due = times.moment_of(unix_ms, now);
            let is_off =
                self.pending_due(what)?.0.abs_diff(due.0) >= DRIFT_MS_MIN || unix_ms != wanted;
            is_off.then_some(WallClockDue { target: what, unix_ms, due })
        });
        let changed: Vec<WallClockDue> = changed.collect();
        for some in changed.chunks(RECORD_DUES_MAX) {
            self.commit(Decision::WallClockDues(some.to_vec()), now);
        }
    }

    /// Records the times of day of newly admitted entries and schedules that are still pending.
    pub(super) fn record_wall_clock_dues(&mut self, mut times: Vec<WallClockDue>, now: Moment) {
        times.retain(|time| self.pending_due(time.target) == Some(time.due));
        for some in times.chunks(RECORD_DUES_MAX) {
            self.commit(Decision::WallClockDues(some.to_vec()), now);
        }
    }

    /// Returns the due time of a pending entry or a schedule.
    fn pending_due(&self, what: WallClockTarget) -> Option<Moment> {
        match what {
            WallClockTarget::Entry(id) => {
                let entry = &self.active.get(&id)?.entry;
                (entry.state == EntryState::Delayed).then_some(entry.admitted.due)
            }
            WallClockTarget::Schedule(url) => self.schedules.find(url).map(|schedule| schedule.due),
        }
    }

    pub(super) fn apply_wall_clock_due(&mut self, time: &WallClockDue, now: Moment) {
        match time.target {
            WallClockTarget::Entry(id) if self.pending_due(time.target).is_some() => {
                self.detach(id);
                self.entry_mut(id).admitted.due = time.due;
                self.wall_clock.entries.insert(id, time.unix_ms);
                self.enqueue(id, now);
            }
            WallClockTarget::Entry(_) => {}
            WallClockTarget::Schedule(url) => {
                if let Some(schedule) = self.schedules.find_mut(url) {
                    self.expiries.cancel(schedule.due, Expiry::Schedule(url.fingerprint()));
                    self.expiries.set(time.due, Expiry::Schedule(url.fingerprint()));
                    schedule.due = time.due;
                    self.wall_clock.schedules.insert(url, time.unix_ms);
                }
            }
        }
    }

    /// Returns everything that is due at a time of day, for a snapshot.
    pub(super) fn wall_clock_dues(&self) -> impl Iterator<Item = WallClockDue> {
        let times = &self.wall_clock;
        let entries =
            times.entries.iter().map(|(id, unix_ms)| (WallClockTarget::Entry(*id), *unix_ms));
        let urls = times
            .schedules
            .iter()
            .map(|(url, unix_ms)| (WallClockTarget::Schedule(*url), *unix_ms));
        entries.chain(urls).filter_map(|(what, unix_ms)| {
            Some(WallClockDue { target: what, unix_ms, due: self.pending_due(what)? })
        })
    }
}
