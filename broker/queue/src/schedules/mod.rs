//! Schedules: the URLs that the group fetches again and again (`every=`), or the events that it
//! repeats in a group without keys, and everything that is due at a time of day.
//!
//! ```text
//!   due ───────────── every ─────────────▶ due ─────────────▶ due
//!    │ an entry          │ another fetch of    │ nothing: that   │ an entry
//!    ▼                   ▼ it ends well        ▼ one stands in   ▼
//! ```
//!
//! `Schedules` owns the schedules, their timers and what it knows of the wall clock. It knows
//! neither entries (only their ids) nor keys, jobs or members: the group asks it what is due, and
//! tells it what became of an entry.

mod times_of_day;

use std::collections::BTreeMap;

use tidings_protocol::{Outcome, UrlKey, duration};

use self::times_of_day::TimesOfDay;
pub(crate) use self::times_of_day::WallClockTimes;
pub use self::times_of_day::{WallClockDue, WallClockTarget};
use crate::entry::{EntryId, Key};
use crate::moment::Moment;
use crate::timers::Timers;

/// Bits of the number of a schedule in lists. Programs may read numbers in JSON as floating-point
/// numbers, which are exact up to 53 bits.
const NUMBER_BITS: u32 = 52;

/// A schedule, which is a setting of a URL in its group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// Identity of the URL; in a group without keys, of the target of the event.
    pub url_key: UrlKey,
    /// The canonical URL; in a group without keys, the payload of the event.
    pub text: Box<str>,
    /// The key of its entries.
    pub key: Key,
    /// Priority of its entries.
    pub prio: i16,
    /// Attributes that its entries forward, each with a leading space.
    pub forwarded: Box<str>,
    /// The interval in ms.
    pub every_ms: u64,
    /// The next due time.
    pub due: Moment,
    /// The entry of the last due time, until it is final.
    pub entry: Option<EntryId>,
    /// Whether another fetch of the URL has succeeded since the last due time. It replaces the next
    /// one.
    pub skips_next: bool,
}

impl Schedule {
    /// Returns the first due time after `now`. Missed times count once.
    pub(crate) fn next_after(&self, now: Moment) -> Moment {
        let passed = now.since(self.due) / self.every_ms;
        self.due + self.every_ms * (passed + 1)
    }
}

/// All schedules of a group, and everything that is due at a time of day.
#[derive(Debug, Default)]
pub(crate) struct Schedules {
    /// By the fingerprint of their URL.
    by_url: BTreeMap<u64, Schedule>,
    /// The URL of each entry of a last due time.
    by_entry: BTreeMap<EntryId, u64>,
    /// The due time of each, by the fingerprint of its URL.
    timers: Timers<u64>,
    times: TimesOfDay,
}

impl Schedules {
    /// Returns the schedule of a URL.
    pub(crate) fn find(&self, url: UrlKey) -> Option<&Schedule> {
        self.by_url.get(&url.fingerprint())
    }

    /// Returns all schedules in a fixed order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Schedule> {
        self.by_url.values()
    }

    /// Returns the schedules with numbers above `after`, in the order of their numbers: the first
    /// [`NUMBER_BITS`] of the fingerprint of the URL, counted from 1. Several may have the same.
    pub(crate) fn above(&self, after: u64) -> impl Iterator<Item = (u64, &Schedule)> {
        let others = u64::BITS - NUMBER_BITS;
        let first = after.checked_shl(others).filter(|first| first >> others == after);
        let above = first.into_iter().flat_map(|first| self.by_url.range(first..));
        above.map(move |(url, schedule)| ((url >> others) + 1, schedule))
    }

    /// Returns the schedules, the soonest due first. One that is due and waits for a text is left
    /// out.
    pub(crate) fn soonest_first(&self) -> impl Iterator<Item = &Schedule> {
        self.timers.iter().filter_map(|(_, url)| self.by_url.get(url))
    }

    /// Counts the schedules.
    pub(crate) fn len(&self) -> usize {
        self.by_url.len()
    }

    /// Reports whether the group has no schedules.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_url.is_empty()
    }

    /// Returns when the next schedule is due.
    pub(crate) fn next_due(&self) -> Option<Moment> {
        self.timers.next()
    }

    /// Returns the timers, the earliest first, with the fingerprints of their URLs.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn timers(&self) -> impl Iterator<Item = (Moment, u64)> {
        self.timers.iter().copied()
    }

    /// Returns the next URL with a schedule that is due at `now`, and ends its timer.
    pub(crate) fn pop_due(&mut self, now: Moment) -> Option<UrlKey> {
        let url = self.timers.pop(now)?;
        self.by_url.get(&url).map(|schedule| schedule.url_key)
    }

    /// Adds a schedule, or replaces that of its URL.
    pub(crate) fn set(&mut self, schedule: &Schedule) {
        let url = schedule.url_key;
        self.remove(url);
        self.timers.set(schedule.due, url.fingerprint());
        self.by_entry.extend(schedule.entry.map(|entry| (entry, url.fingerprint())));
        self.by_url.insert(url.fingerprint(), schedule.clone());
    }

    /// Removes the schedule of a URL.
    pub(crate) fn remove(&mut self, url: UrlKey) {
        self.times.remove_schedule(url);
        if let Some(before) = self.by_url.remove(&url.fingerprint()) {
            self.timers.cancel(before.due, url.fingerprint());
            before.entry.and_then(|entry| self.by_entry.remove(&entry));
        }
    }

    /// A schedule was due: it is due again at `next`, and `entry` is its entry now.
    pub(crate) fn advance(&mut self, url: UrlKey, next: Moment, entry: Option<EntryId>) {
        if let Some(schedule) = self.move_due(url, next) {
            schedule.skips_next = false;
            let before = std::mem::replace(&mut schedule.entry, entry);
            before.and_then(|before| self.by_entry.remove(&before));
            self.by_entry.extend(entry.map(|entry| (entry, url.fingerprint())));
        }
    }

    fn move_due(&mut self, url: UrlKey, due: Moment) -> Option<&mut Schedule> {
        let schedule = self.by_url.get_mut(&url.fingerprint())?;
        self.timers.cancel(schedule.due, url.fingerprint());
        self.timers.set(due, url.fingerprint());
        schedule.due = due;
        Some(schedule)
    }

    /// Called when an entry is final, with the fingerprint of its URL, if it has one, and the
    /// worker's outcome if there was one.
    pub(crate) fn entry_ended(
        &mut self,
        url: Option<u64>,
        entry: EntryId,
        outcome: Option<Outcome>,
    ) {
        let of_entry = self.by_entry.remove(&entry);
        let Some(url) = url.or(of_entry) else { return };
        let Some(schedule) = self.by_url.get_mut(&url) else { return };
        // An entry older than the last scheduled one does not replace the next fetch: a worker that
        // changes the interval is fetching the URL at that moment.
        let is_newer = schedule.entry.is_none_or(|look| look < entry);
        if schedule.entry == Some(entry) {
            schedule.entry = None;
        } else if is_newer && matches!(outcome, Some(Outcome::Done | Outcome::Redirect)) {
            schedule.skips_next = true;
        }
    }

    /// Returns the interval of a schedule, or its time of day.
    pub(crate) fn interval_text(&self, schedule: &Schedule) -> String {
        let time = self.times.time_of_day(schedule.url_key);
        time.map_or_else(|| duration::format_ms(schedule.every_ms), |time| time.to_string())
    }
}
