//! Decisions about schedules that are due.

use std::collections::HashSet;

use tidings_protocol::{After, UrlKey};

use crate::entry::Admission;
use crate::moment::Moment;
use crate::mutants::{self, Mutant};
use crate::record::{Decision, EventEffect};
use crate::schedules::Schedule;
use crate::{Group, Notice};

impl Group {
    /// Creates the entry of a schedule that is due, unless another fetch has replaced it or its
    /// last entry is not final.
    pub(crate) fn fire_schedule(&mut self, url: UrlKey, now: Moment) {
        let Some(schedule) = self.schedules.find(url) else { return };
        let at_time = self.schedules.due_next_day(url, now);
        let next = at_time.map_or_else(|| schedule.next_after(now), |time| time.due);
        let mut skipped = None;
        let is_replaced = schedule.skips_next || schedule.entry.is_some();
        let is_never = !self.config.key.is_own() && self.never_list.covers_text(&schedule.text);
        let item = if is_replaced || is_never || self.blocks(&schedule.key) {
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

    /// Reports whether a schedule still has this interval and these attributes.
    pub(crate) fn matches_previous(
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

    /// In a group without keys, the entry is as that of the event.
    fn scheduled_admission(&self, schedule: &Schedule, now: Moment) -> Admission {
        let is_keyless = self.config.key.is_own();
        Admission {
            id: self.frontier.next_id(),
            text: schedule.text.clone(),
            url_key: (!is_keyless).then_some(schedule.url_key),
            key: schedule.key.clone(),
            job: None,
            depth: 0,
            hops: 0,
            redirect: false,
            announced: is_keyless,
            prio: schedule.prio,
            due: now,
            forwarded: schedule.forwarded.clone(),
        }
    }
}
