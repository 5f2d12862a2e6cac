//! Times of day: what waits for one follows the wall clock, also when that is set.
//!
//! The machine knows only its own clock, and is told what the wall clock shows ([`Input::Clock`]).
//! When something is due stays a moment of its own clock, decided once and recorded; which time of the
//! wall clock that is for is kept beside it, and the moment is decided anew when the two have come
//! apart.
//!
//! [`Input::Clock`]: super::Input::Clock

use std::collections::BTreeMap;

use tidings_protocol::{After, TimeOfDay, UrlKey};

use super::Group;
use super::entry::{EntryId, State};
use super::record::Decision;
use super::timers::Expiry;
use crate::clock::Moment;

/// A wall clock that is off by less, in ms, is not worth a decision: it is slewed all the time.
const OFF_MS: u64 = 1000;

/// Of how many times one record tells at most.
const RECORD_MAX: usize = 1024;

/// What can wait for a time of day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// An entry: `after=06:00`.
    Entry(EntryId),
    /// The next look at a URL: `every=06:00`.
    Schedule(UrlKey),
}

/// Something is due when the wall clock shows a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockTime {
    /// What.
    pub what: Waiting,
    /// When, on the wall clock, in ms since 1970.
    pub unix_ms: i64,
    /// When, on the broker's clock.
    pub due: Moment,
}

/// All that wait for a time of day.
#[derive(Debug, Default)]
pub(super) struct ClockTimes {
    /// What the wall clock shows at moment 0. Not recorded: whoever drives the machine knows.
    offset_ms: i64,
    /// Of entries that are not due yet.
    entries: BTreeMap<EntryId, i64>,
    /// Of schedules that have a time of day, all of which have a day between two looks.
    schedules: BTreeMap<UrlKey, i64>,
}

/// How long an event's entry and its schedule wait, if not for so long but for a time of day.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Times {
    pub(super) entry: Option<i64>,
    pub(super) schedule: Option<i64>,
}

impl ClockTimes {
    /// What the wall clock shows at a moment.
    fn shows(&self, at: Moment) -> i64 {
        self.offset_ms.saturating_add_unsigned(at.0)
    }

    /// When the wall clock will show that, as far as anybody knows; `now` if it does already.
    fn moment_of(&self, unix_ms: i64, now: Moment) -> Moment {
        now + u64::try_from(unix_ms.saturating_sub(self.shows(now))).unwrap_or(0)
    }

    /// An entry waits for a time no more.
    pub(super) fn forget(&mut self, entry: EntryId) {
        self.entries.remove(&entry);
    }

    /// A URL is not looked at any more, or not at a time of day.
    pub(super) fn forget_schedule(&mut self, url: UrlKey) {
        self.schedules.remove(&url);
    }

    /// The time of day at which a URL is looked at.
    pub(super) fn time_of(&self, url: UrlKey) -> Option<TimeOfDay> {
        self.schedules.get(&url).copied().map(TimeOfDay::of)
    }
}

/// The next time after `unix_ms` that is as late in the day as `wanted`, or `wanted` itself if that has
/// passed: a clock that was set forward has missed it.
fn next_of(wanted: i64, unix_ms: i64) -> i64 {
    if wanted <= unix_ms { wanted } else { TimeOfDay::of(wanted).next_after(unix_ms) }
}

impl Group {
    /// Whether the wall clock shows something else than this group believes.
    pub(crate) fn is_clock_off(&self, unix_ms: i64, now: Moment) -> bool {
        self.clock_times.shows(now).abs_diff(unix_ms) >= OFF_MS
    }

    /// Whether anything waits for a time of day, and so has to follow the wall clock.
    pub(crate) fn has_clock_times(&self) -> bool {
        !(self.clock_times.entries.is_empty() && self.clock_times.schedules.is_empty())
    }

    /// When something is due that an event wants to have later, and for which time of the wall clock,
    /// if it is for one.
    pub(super) fn due_after(&self, after: After, now: Moment) -> (Moment, Option<i64>) {
        match after {
            After::Ms(ms) => (now + ms, None),
            After::Time(time) => {
                let unix_ms = time.next_after(self.clock_times.shows(now));
                (self.clock_times.moment_of(unix_ms, now), Some(unix_ms))
            }
        }
    }

    /// The first time after `at` that the wall clock shows that time of day.
    pub(super) fn due_at(&self, time: TimeOfDay, at: Moment) -> (Moment, i64) {
        let unix_ms = time.next_after(self.clock_times.shows(at));
        (self.clock_times.moment_of(unix_ms, at), unix_ms)
    }

    /// When a URL that is due now is due again, if that is at a time of day.
    pub(super) fn due_next_day(&self, url: UrlKey, now: Moment) -> Option<ClockTime> {
        let unix_ms = *self.clock_times.schedules.get(&url)?;
        let passed = unix_ms.max(self.clock_times.shows(now));
        let unix_ms = TimeOfDay::of(unix_ms).next_after(passed);
        let due = self.clock_times.moment_of(unix_ms, now);
        Some(ClockTime { what: Waiting::Schedule(url), unix_ms, due })
    }

    /// The wall clock shows this.
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

    /// Notes for which times of the wall clock something is due that was just taken in, as far as it
    /// still is.
    pub(super) fn note_clock_times(&mut self, mut times: Vec<ClockTime>, now: Moment) {
        times.retain(|time| self.due_of(time.what) == Some(time.due));
        for some in times.chunks(RECORD_MAX) {
            self.commit(Decision::ClockTimes(some.to_vec()), now);
        }
    }

    /// When something is due that is not yet.
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

    /// Everything that waits for a time of day, for a snapshot.
    pub(super) fn clock_times(&self) -> impl Iterator<Item = ClockTime> {
        let times = &self.clock_times;
        let entries = times.entries.iter().map(|(id, unix_ms)| (Waiting::Entry(*id), *unix_ms));
        let urls = times.schedules.iter().map(|(url, unix_ms)| (Waiting::Schedule(*url), *unix_ms));
        entries.chain(urls).filter_map(|(what, unix_ms)| {
            Some(ClockTime { what, unix_ms, due: self.due_of(what)? })
        })
    }
}
