//! Decisions about schedules that are due, and their list.

use std::collections::HashSet;

use tidings_protocol::status::ScheduleStatus;
use tidings_protocol::{After, ScheduleQuery, UrlKey};

use super::entry::{Admission, EntryId};
use super::mutants::{self, Mutant};
use super::record::{Decision, EventEffect};
use super::schedules::Schedule;
use super::{Group, GroupAnswer, Notice};
use crate::moment::Moment;

impl Group {
    /// Creates the entry of a schedule that is due, unless another fetch has replaced it or its
    /// last entry is not final.
    pub(super) fn fire_schedule(&mut self, url: UrlKey, now: Moment) {
        let Some(schedule) = self.schedules.find(url) else { return };
        let at_time = self.schedules.due_next_day(url, now);
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
        let (every, due_ms) = (self.schedules.interval_text(schedule), due.since(now));
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

    /// Reports whether a schedule still has this interval and these attributes.
    pub(super) fn matches_previous(
        &self,
        schedule: &Schedule,
        every: After,
        carried: &str,
    ) -> bool {
        let present: HashSet<&str> = schedule.forwarded.split(' ').collect();
        let is_same = self.schedules.interval_text(schedule) == every.to_string();
        is_same && carried.split(' ').all(|word| present.contains(word))
            || mutants::is(Mutant::IgnoresWas)
    }

    fn scheduled_admission(&self, schedule: &Schedule, now: Moment) -> Admission {
        Admission {
            id: self.frontier.next_id(),
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
        let before = self.schedules.find(url).and_then(|schedule| schedule.entry);
        self.schedules.advance(url, next, item.map_or(before, entry_of_effect));
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
