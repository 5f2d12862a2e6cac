//! Schedules: URLs that the group fetches again and again (`every=`).
//!
//! ```text
//!   due ───────────── every ─────────────▶ due ─────────────▶ due
//!    │ an entry          │ another fetch of    │ nothing: that   │ an entry
//!    ▼                   ▼ it ends well        ▼ one stands in   ▼
//! ```

use std::collections::{HashMap, HashSet};

use tidings_protocol::status::ScheduleStatus;
use tidings_protocol::{After, Outcome, ProtocolError, UrlKey, duration};

use super::config::{bad_argument, whole_number};
use super::entry::{Admission, EntryId, JobNumber, Key};
use super::mutants::{self, Mutant};
use super::record::{Decision, EventEffect};
use super::task_list::{LISTED_DEFAULT, LISTED_MAX};
use super::timers::Expiry;
use super::{Group, GroupAnswer, Notice};
use crate::moment::Moment;

/// Schedules take turns with jobs, as if they were one. No job has this number.
pub(super) const SCHEDULES_JOB: JobNumber = 0;

/// The shortest interval. Each fetch costs a record, and no host wants more.
pub(super) const EVERY_MS_MIN: u64 = 100;

/// A schedule, which is a setting of a URL in its group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// Identity of the URL.
    pub url_key: UrlKey,
    /// The canonical URL.
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
    fn next_after(&self, now: Moment) -> Moment {
        let passed = now.since(self.due) / self.every_ms;
        self.due + self.every_ms * (passed + 1)
    }
}

/// Query of `GROUP schedules`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduleQuery {
    /// Only schedules of this key; `None`: all.
    pub key: Option<Box<str>>,
    /// The number of schedules to list.
    pub limit: usize,
}

impl ScheduleQuery {
    /// Parses `key=value` settings.
    pub fn parse<'a>(
        settings: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, ProtocolError> {
        let mut query = Self { key: None, limit: LISTED_DEFAULT };
        for (name, value) in settings {
            match name {
                "key" => query.key = Some(value.into()),
                "limit" => query.limit = whole_number(name, value, 0, LISTED_MAX as u64)?,
                _ => {
                    return Err(bad_argument(format!(
                        "unknown option {name}; the options are key, limit"
                    )));
                }
            }
        }
        Ok(query)
    }
}

/// All schedules of a group, by the fingerprint of their URL.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Schedules(HashMap<u64, Schedule>);

impl Schedules {
    pub(super) fn find(&self, url: UrlKey) -> Option<&Schedule> {
        self.0.get(&url.fingerprint())
    }

    pub(super) fn find_mut(&mut self, url: UrlKey) -> Option<&mut Schedule> {
        self.0.get_mut(&url.fingerprint())
    }

    /// Returns the schedule of the URL with this fingerprint.
    pub(super) fn with_fingerprint(&self, url: u64) -> Option<&Schedule> {
        self.0.get(&url)
    }

    /// Returns all schedules in a fixed order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Schedule> {
        let mut all: Vec<_> = self.0.values().collect();
        all.sort_unstable_by_key(|schedule| schedule.url_key);
        all.into_iter()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Called when an entry of the URL is final, with the worker's outcome if there was one.
    pub(super) fn entry_ended(&mut self, url: u64, entry: EntryId, outcome: Option<Outcome>) {
        let Some(schedule) = self.0.get_mut(&url) else { return };
        // An entry older than the last scheduled one does not replace the next fetch: a worker that
        // changes the interval is fetching the URL at that moment.
        let is_newer = schedule.entry.is_none_or(|look| look < entry);
        if schedule.entry == Some(entry) {
            schedule.entry = None;
        } else if is_newer && matches!(outcome, Some(Outcome::Done | Outcome::Redirect)) {
            schedule.skips_next = true;
        }
    }
}

impl Group {
    /// Creates the entry of a schedule that is due, unless another fetch has replaced it or its
    /// last entry is not final.
    pub(super) fn fire_schedule(&mut self, fingerprint: u64, now: Moment) {
        let Some(schedule) = self.schedules.with_fingerprint(fingerprint) else { return };
        let url = schedule.url_key;
        let at_time = self.due_next_day(url, now);
        let next = at_time.map_or_else(|| schedule.next_after(now), |time| time.due);
        let mut skipped = None;
        let item = if schedule.skips_next || schedule.entry.is_some() {
            None
        } else if let Some(entry) = self.waiting_entry(url, None) {
            let (entries, prio) = (vec![entry], schedule.prio);
            let carried = Box::default();
            Some(EventEffect::Coalesced {
                entries,
                announced: false,
                prio,
                due: now,
                forwarded: carried,
            })
        } else if self.is_full() {
            skipped = Some(Notice::FetchSkipped(schedule.text.clone()));
            None
        } else {
            Some(EventEffect::Admitted(self.scheduled_admission(schedule, now)))
        };
        if let Some(notice) = skipped {
            self.notice(notice);
        }
        self.commit(Decision::ScheduleDue { url, next, effect: item.map(Box::new) }, now);
        if let Some(time) = at_time {
            self.commit(Decision::WallClockDues(vec![time]), now);
        }
    }

    /// Lists schedules, those first that are due first. Visits each schedule.
    pub(super) fn list_schedules(&self, query: &ScheduleQuery, now: Moment) -> GroupAnswer {
        let wanted =
            |schedule: &&Schedule| query.key.as_ref().is_none_or(|key| *schedule.key == **key);
        let mut matched: Vec<&Schedule> = self.schedules.iter().filter(wanted).collect();
        let order = |schedule: &&Schedule| (schedule.due, schedule.url_key);
        let count = matched.len();
        if query.limit < count {
            matched.select_nth_unstable_by_key(query.limit, order);
            matched.truncate(query.limit);
        }
        matched.sort_unstable_by_key(order);
        let more: Vec<String> =
            matched.iter().map(|schedule| self.describe_schedule(schedule, now)).collect();
        self.list(more, count)
    }

    fn describe_schedule(&self, schedule: &Schedule, now: Moment) -> String {
        let Schedule { text, key, prio, due, .. } = schedule;
        let (every, due_ms) = (self.interval_text(schedule), due.since(now));
        let status = ScheduleStatus {
            url: text.to_string(),
            every,
            due_ms,
            key: key.to_string(),
            prio: *prio,
            entry: schedule.entry,
            skips: schedule.skips_next.then_some(true),
        };
        status.to_string()
    }

    /// Returns the interval or the time of day.
    pub(super) fn interval_text(&self, schedule: &Schedule) -> String {
        let time = self.wall_clock.time_of_day(schedule.url_key);
        time.map_or_else(|| duration::format_ms(schedule.every_ms), |time| time.to_string())
    }

    /// Reports whether a schedule still has this interval and these attributes.
    pub(super) fn matches_previous(
        &self,
        schedule: &Schedule,
        every: After,
        carried: &str,
    ) -> bool {
        let present: HashSet<&str> = schedule.forwarded.split(' ').collect();
        let is_same = self.interval_text(schedule) == every.to_string();
        is_same && carried.split(' ').all(|word| present.contains(word))
            || mutants::is(Mutant::IgnoresWas)
    }

    fn scheduled_admission(&self, schedule: &Schedule, now: Moment) -> Admission {
        Admission {
            id: self.last_entry_id + 1,
            text: schedule.text.clone(),
            url_key: Some(schedule.url_key),
            key: schedule.key.clone(),
            job: None,
            depth: 0,
            hops: 0,
            redirect: false,
            announced: false,
            prio: schedule.prio,
            due: now,
            forwarded: schedule.forwarded.clone(),
        }
    }

    pub(super) fn apply_schedule_due(
        &mut self,
        url: UrlKey,
        next: Moment,
        item: Option<&EventEffect>,
        now: Moment,
    ) {
        if let Some(item) = item {
            self.apply_event_effect(item, now);
        }
        let Some(schedule) = self.schedules.0.get_mut(&url.fingerprint()) else { return };
        self.expiries.cancel(schedule.due, Expiry::Schedule(url.fingerprint()));
        self.expiries.set(next, Expiry::Schedule(url.fingerprint()));
        schedule.due = next;
        schedule.skips_next = false;
        schedule.entry = item.map_or(schedule.entry, entry_of_effect);
    }

    pub(super) fn set_schedule(&mut self, schedule: &Schedule) {
        let url = schedule.url_key;
        self.remove_schedule(url);
        self.expiries.set(schedule.due, Expiry::Schedule(url.fingerprint()));
        self.schedules.0.insert(url.fingerprint(), schedule.clone());
    }

    pub(super) fn remove_schedule(&mut self, url: UrlKey) {
        self.wall_clock.remove_schedule(url);
        if let Some(before) = self.schedules.0.remove(&url.fingerprint()) {
            self.expiries.cancel(before.due, Expiry::Schedule(url.fingerprint()));
        }
    }
}

/// Returns the entry as which an event's URL will be fetched, if it will be.
pub(super) fn entry_of_effect(taking: &EventEffect) -> Option<EntryId> {
    match taking {
        EventEffect::Admitted(admission) => Some(admission.id),
        EventEffect::Coalesced { entries, .. } => entries.first().copied(),
        _ => None,
    }
}
