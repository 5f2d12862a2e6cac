//! Lists of schedules (`GROUP schedules`).

use tidings_protocol::ProtocolError;
use tidings_protocol::status::ScheduleStatus;

use super::task_list::{LISTED_DEFAULT, LISTED_MAX};
use crate::config::{bad_argument, whole_number};
use crate::moment::Moment;
use crate::schedules::Schedule;
use crate::{Group, GroupAnswer};

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

impl Group {
    /// Lists schedules, those first that are due first. Visits each schedule.
    pub(crate) fn list_schedules(&self, query: &ScheduleQuery, now: Moment) -> GroupAnswer {
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
}
