//! Decisions about schedules: those that events make and change, and those that are due.

use std::collections::HashSet;

use tidings_protocol::{After, DAY_MS, EVERY_MS_MIN, URL_BYTES_MAX, UrlKey};

use super::admit::{EventRequest, EventVerdict};
use crate::entry::{Admission, EndReason, Entry, EntryId, EntryState};
use crate::moment::Moment;
use crate::mutants::{self, Mutant};
use crate::record::{Decision, EventEffect};
use crate::schedules::{Schedule, WallClockTimes};
use crate::{Group, Notice};

impl Group {
    /// Creates the entry of a schedule that is due, unless another fetch has replaced it or its
    /// last entry is not final.
    pub(crate) fn fire_schedule(&mut self, url: UrlKey, now: Moment) {
        let Some(schedule) = self.state.schedules().find(url) else { return };
        let at_time = self.state.schedules().due_next_day(url, now);
        let next = at_time.map_or_else(|| schedule.next_after(now), |time| time.due);
        let mut skipped = None;
        let is_replaced = schedule.skips_next || schedule.entry.is_some();
        let is_never = !self.state.config().settings.key.is_own()
            && self.never_list.covers_text(&schedule.text);
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

    /// Ends these entries of ended schedules, if they are not due and no other event or job needs
    /// them.
    pub(crate) fn end_unneeded(&mut self, mut entries: Vec<EntryId>, now: Moment) {
        entries.retain(|id| {
            self.state.frontier().find(*id).is_some_and(|live| {
                let Entry { admitted, state, repairs, .. } = &live.entry;
                let is_needed = admitted.announced || admitted.job.is_some() || repairs.is_some();
                *state == EntryState::Delayed && !is_needed
            })
        });
        if !entries.is_empty() {
            self.commit(Decision::Ended { entries, end: EndReason::Purged }, now);
        }
    }

    /// The entry of the event itself is the first fetch; `due` is the second.
    pub(super) fn judge_schedule(
        &self,
        url_key: UrlKey,
        request: &EventRequest<'_>,
        every_ms: u64,
        due: Moment,
    ) -> Result<Schedule, &'static str> {
        if every_ms < EVERY_MS_MIN {
            return Err("bad-every");
        }
        if request.text.len() > URL_BYTES_MAX {
            return Err("payload-too-long");
        }
        let is_new = self.state.schedules().find(url_key).is_none();
        if is_new && self.state.schedules().len() >= self.state.config().schedules_max {
            return Err("too-many-schedules");
        }
        Ok(Schedule {
            url_key,
            text: request.text.into(),
            key: request.key.clone(),
            prio: request.prio,
            forwarded: request.forwarded.clone(),
            every_ms,
            due,
            entry: None,
            skips_next: false,
        })
    }

    /// Changes the interval of a schedule if the schedule still has the interval `was` and the
    /// attributes that the worker saw. The next fetch counts from now. A fetch in progress does not
    /// replace the one after it.
    pub(super) fn judge_reschedule(
        &self,
        url_key: UrlKey,
        (was, every): (After, After),
        carried: &str,
        now: Moment,
    ) -> Result<EventVerdict, &'static str> {
        let mut at = WallClockTimes::default();
        let (every_ms, due) = match every {
            After::Ms(ms) if ms > 0 && ms < EVERY_MS_MIN => return Err("bad-every"),
            After::Ms(ms) => (ms, now + ms),
            After::Time(time) => {
                let (due, unix_ms) = self.state.schedules().due_at(time, now);
                at.schedule = Some(unix_ms);
                (DAY_MS, due)
            }
        };
        let present = self.state.schedules().find(url_key);
        let Some(present) = present.filter(|present| self.matches_previous(present, was, carried))
        else {
            return Ok(EventVerdict::default());
        };
        if every_ms == 0 {
            let taking = Some(EventEffect::Unscheduled(url_key));
            return Ok(EventVerdict { effect: taking, ..EventVerdict::default() });
        }
        let entry = present.entry.max(self.newest_held(url_key));
        let schedule = Schedule { every_ms, due, entry, skips_next: false, ..present.clone() };
        Ok(EventVerdict { effect: None, schedule: Some(schedule), wall_clock: at })
    }

    /// Reports whether a schedule still has this interval and these attributes.
    fn matches_previous(&self, schedule: &Schedule, every: After, carried: &str) -> bool {
        let present: HashSet<&str> = schedule.forwarded.split(' ').collect();
        let is_same = self.state.schedules().interval_text(schedule) == every.to_string();
        is_same && carried.split(' ').all(|word| present.contains(word))
            || mutants::is(Mutant::IgnoresWas)
    }

    /// In a group without keys, the entry is as that of the event.
    fn scheduled_admission(&self, schedule: &Schedule, now: Moment) -> Admission {
        let is_keyless = self.state.config().settings.key.is_own();
        Admission {
            id: self.state.frontier().next_id(),
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
