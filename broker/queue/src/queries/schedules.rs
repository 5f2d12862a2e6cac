//! Lists of schedules (`GROUP schedules`).

use tidings_protocol::ScheduleQuery;
use tidings_protocol::status::{Answer, ScheduleStatus};

use crate::Group;
use crate::moment::Moment;
use crate::schedules::Schedule;

impl Group {
    /// Lists schedules, those first that are due first. Visits each schedule.
    pub(crate) fn list_schedules(&self, query: &ScheduleQuery, now: Moment) -> Answer {
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
        self.list(matched.iter().map(|schedule| self.schedule_status(schedule, now)), count)
    }

    fn schedule_status(&self, schedule: &Schedule, now: Moment) -> ScheduleStatus {
        let Schedule { text, key, prio, due, .. } = schedule;
        let (every, due_ms) = (self.schedules.interval_text(schedule), due.since(now));
        ScheduleStatus {
            url: text.to_string(),
            every,
            due_ms,
            key: key.to_string(),
            prio: *prio,
            entry: schedule.entry,
            skips: schedule.skips_next.then_some(true),
        }
    }
}
