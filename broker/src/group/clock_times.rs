//! Times of day: entries and schedules that follow the wall clock, also when it is set.
//!
//! The state machine knows only its own clock and learns what the wall clock shows from
//! [`Input::Clock`]. Each due time is a moment of its own clock, decided once and recorded. The
//! time of the wall clock is stored beside it, and the moment is decided again when the two differ.
//!
//! [`Input::Clock`]: super::Input::Clock

use std::collections::BTreeMap;

use tidings_protocol::{After, TimeOfDay, UrlKey};

use super::Group;
use super::entry::{EntryId, State};
use super::record::Decision;
use super::timers::Expiry;
use crate::clock::Moment;

/// A smaller drift of the wall clock, in ms, is ignored: the system corrects the clock all the
/// time.
const OFF_MS: u64 = 1000;

/// Maximum number of due times in one record.
const RECORD_MAX: usize = 1024;

/// What can be due at a time of day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// An entry: `after=06:00`.
    Entry(EntryId),
    /// The next fetch of a schedule: `every=06:00`.
    Schedule(UrlKey),
}

/// A due time by the wall clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockTime {
    /// What is due.
    pub what: Waiting,
    /// When, on the wall clock, in ms since 1970.
    pub unix_ms: i64,
    /// When, on the broker's clock.
    pub due: Moment,
}

/// Everything that is due at a time of day.
#[derive(Debug, Default)]
pub(super) struct ClockTimes {
    /// What the wall clock shows at moment 0. Not recorded, because each start provides it.
    offset_ms: i64,
    /// Entries that are not due yet.
    entries: BTreeMap<EntryId, i64>,
    /// Schedules with a time of day, which are due once a day.
    schedules: BTreeMap<UrlKey, i64>,
}

/// The times of day at which an event's entry and its schedule are due, if they have any.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Times {
    pub(super) entry: Option<i64>,
    pub(super) schedule: Option<i64>,
}

impl ClockTimes {
    /// Returns what the wall clock shows at a moment.
    fn shows(&self, at: Moment) -> i64 {
        self.offset_ms.saturating_add_unsigned(at.0)
    }

    /// Returns when the wall clock will show a time, or `now` if that is past.
    fn moment_of(&self, unix_ms: i64, now: Moment) -> Moment {
        now + u64::try_from(unix_ms.saturating_sub(self.shows(now))).unwrap_or(0)
    }

    /// Removes an entry.
    pub(super) fn forget(&mut self, entry: EntryId) {
        self.entries.remove(&entry);
    }

    /// Removes a schedule.
    pub(super) fn forget_schedule(&mut self, url: UrlKey) {
        self.schedules.remove(&url);
    }

    /// Returns the time of day of a schedule.
    pub(super) fn time_of(&self, url: UrlKey) -> Option<TimeOfDay> {
        self.schedules.get(&url).copied().map(TimeOfDay::of)
    }
}

/// Returns the next time after `unix_ms` at the same time of day as `wanted`. If `wanted` is past,
/// it is returned itself, because a clock that was set forward has skipped it.
fn next_of(wanted: i64, unix_ms: i64) -> i64 {
    if wanted <= unix_ms { wanted } else { TimeOfDay::of(wanted).next_after(unix_ms) }
}

impl Group {
    /// Reports whether the wall clock differs from what the group assumes.
    pub(crate) fn is_clock_off(&self, unix_ms: i64, now: Moment) -> bool {
        self.clock_times.shows(now).abs_diff(unix_ms) >= OFF_MS
    }

    /// Reports whether anything is due at a time of day.
    pub(crate) fn has_clock_times(&self) -> bool {
        !(self.clock_times.entries.is_empty() && self.clock_times.schedules.is_empty())
    }

    /// Returns when an event with `after=` is due, and the time of the wall clock if it names one.
    pub(super) fn due_after(&self, after: After, now: Moment) -> (Moment, Option<i64>) {
        match after {
            After::Ms(ms) => (now + ms, None),
            After::Time(time) => {
                let unix_ms = time.next_after(self.clock_times.shows(now));
                (self.clock_times.moment_of(unix_ms, now), Some(unix_ms))
            }
        }
    }

    /// Returns the first moment after `at` at which the wall clock shows that time of day.
    pub(super) fn due_at(&self, time: TimeOfDay, at: Moment) -> (Moment, i64) {
        let unix_ms = time.next_after(self.clock_times.shows(at));
        (self.clock_times.moment_of(unix_ms, at), unix_ms)
    }

    /// Returns the next due time of a schedule that is due now, if it has a time of day.
    pub(super) fn due_next_day(&self, url: UrlKey, now: Moment) -> Option<ClockTime> {
        let unix_ms = *self.clock_times.schedules.get(&url)?;
        let passed = unix_ms.max(self.clock_times.shows(now));
        let unix_ms = TimeOfDay::of(unix_ms).next_after(passed);
        let due = self.clock_times.moment_of(unix_ms, now);
        Some(ClockTime { what: Waiting::Schedule(url), unix_ms, due })
    }

    /// Stores what the wall clock shows, and adjusts the due times.
    pub(super) fn see_clock(&mut self, unix_ms: i64, now: Moment) {
        let now_ms = i64::try_from(now.0).unwrap_or(i64::MAX);
        self.clock_times.offset_ms = unix_ms.saturating_sub(now_ms);
        let times = &self.clock_times;
        let entries = times.entries.iter().map(|(id, wanted)| (Waiting::Entry(*id), *wanted));
        let urls = times.schedules.iter().map(|(url, wanted)| (Waiting::Schedule(*url), *wanted));
        let changed = entries.chain(urls).filter_map(|(what, wanted)| {
            let unix_ms = next_of(wanted, unix_ms);
            let due = times.moment_of(unix_ms, now);
            let is_off = self.due_of(what)?.0.abs_diff(due.0) >= OFF_MS || unix_ms != wanted;
            is_off.then_some(ClockTime { what, unix_ms, due })
        });
        let changed: Vec<ClockTime> = changed.collect();
        for some in changed.chunks(RECORD_MAX) {
            self.commit(Decision::ClockTimes(some.to_vec()), now);
        }
    }

    /// Records the times of day of newly admitted entries and schedules that are still pending.
    pub(super) fn note_clock_times(&mut self, mut times: Vec<ClockTime>, now: Moment) {
        times.retain(|time| self.due_of(time.what) == Some(time.due));
        for some in times.chunks(RECORD_MAX) {
            self.commit(Decision::ClockTimes(some.to_vec()), now);
        }
    }

    /// Returns the due time of a pending entry or a schedule.
    fn due_of(&self, what: Waiting) -> Option<Moment> {
        match what {
            Waiting::Entry(id) => {
                let entry = &self.live.get(&id)?.entry;
                (entry.state == State::Delayed).then_some(entry.admitted.due)
            }
            Waiting::Schedule(url) => self.schedules.find(url).map(|schedule| schedule.due),
        }
    }

    pub(super) fn apply_clock_time(&mut self, time: &ClockTime, now: Moment) {
        match time.what {
            Waiting::Entry(id) if self.due_of(time.what).is_some() => {
                self.take_out(id);
                self.entry_mut(id).admitted.due = time.due;
                self.clock_times.entries.insert(id, time.unix_ms);
                self.enqueue(id, now);
            }
            Waiting::Entry(_) => {}
            Waiting::Schedule(url) => {
                if let Some(schedule) = self.schedules.find_mut(url) {
                    self.expiries.cancel(schedule.due, Expiry::Schedule(url.print()));
                    self.expiries.set(time.due, Expiry::Schedule(url.print()));
                    schedule.due = time.due;
                    self.clock_times.schedules.insert(url, time.unix_ms);
                }
            }
        }
    }

    /// Returns everything that is due at a time of day, for a snapshot.
    pub(super) fn clock_times(&self) -> impl Iterator<Item = ClockTime> {
        let times = &self.clock_times;
        let entries = times.entries.iter().map(|(id, unix_ms)| (Waiting::Entry(*id), *unix_ms));
        let urls = times.schedules.iter().map(|(url, unix_ms)| (Waiting::Schedule(*url), *unix_ms));
        entries.chain(urls).filter_map(|(what, unix_ms)| {
            Some(ClockTime { what, unix_ms, due: self.due_of(what)? })
        })
    }
}
