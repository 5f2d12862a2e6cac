//! Lists of schedules (`GROUP schedules`).

use tidings_protocol::status::{Answer, ScheduleStatus};
use tidings_protocol::{ListRange, Patterns, ScheduleQuery};

use super::task_list::matches;
use super::{View, match_work};
use crate::entry::attribute;
use crate::moment::Moment;
use crate::schedules::Schedule;

impl View<'_> {
    /// Lists schedules, those first that are due first; or a part of a walk over them.
    pub(crate) fn list_schedules(&self, query: &ScheduleQuery, now: Moment) -> Answer {
        let ScheduleQuery { key, matching, range: ListRange { after, limit } } = query;
        let wanted = |schedule: &&Schedule| {
            key.as_ref().is_none_or(|key| *schedule.key == **key)
                && matching.as_ref().is_none_or(|patterns| matches(patterns, &schedule.text))
        };
        let has_all = key.is_none() && matching.is_none();
        let patterns = matching.as_ref().map_or(0, Patterns::len);
        let work = |schedule: &&Schedule| match_work(patterns, schedule.text.len());
        let (schedules, matched, next) = match after {
            None if has_all => {
                let soonest = self.state.schedules().soonest_first().take(*limit).collect();
                (soonest, Some(self.state.schedules().len()), None)
            }
            None => {
                // To find each by its due time takes ten times as long.
                let all = self.state.schedules().above(0);
                let (mut schedules, rest) = self.walk(all, usize::MAX, work, wanted);
                let matched = rest.is_none().then_some(schedules.len());
                schedules.sort_unstable_by_key(|schedule| (schedule.due, schedule.url_key));
                schedules.truncate(*limit);
                (schedules, matched, None)
            }
            Some(after) => {
                let above = self.state.schedules().above(*after);
                let (schedules, next) = self.walk(above, *limit, work, wanted);
                (schedules, None, next)
            }
        };
        let lines = schedules.into_iter().map(|schedule| self.schedule_status(schedule, now));
        self.list(lines, matched, next)
    }

    fn schedule_status(&self, schedule: &Schedule, now: Moment) -> ScheduleStatus {
        let Schedule { text, key, prio, due, .. } = schedule;
        let (every, due_ms) = (self.state.schedules().interval_text(schedule), due.since(now));
        ScheduleStatus {
            url: text.split(' ').next().unwrap_or_default().to_owned(),
            every,
            due_ms,
            key: key.to_string(),
            prio: *prio,
            entry: schedule.entry,
            skips: schedule.skips_next.then_some(true),
            feed: attribute(&schedule.forwarded, " feed=").map(str::to_owned),
        }
    }
}
