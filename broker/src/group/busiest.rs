//! Which keys hold a group up: those behind which most is left to do.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tidings_protocol::{JobName, ProtocolError};

use super::config::{bad, number};
use super::key_queue::KeyQueue;
use super::tasks::{LISTED_DEFAULT, LISTED_MAX};
use super::{Answer, Group};
use crate::clock::Moment;

/// What `GROUP keys` lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyQuery {
    /// Those behind which something of a job waits; none: all.
    pub job: Option<JobName>,
    /// Of those, so many.
    pub limit: usize,
}

impl KeyQuery {
    /// Reads `key=value` settings.
    pub fn parse<'a>(
        settings: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, ProtocolError> {
        let mut query = Self { job: None, limit: LISTED_DEFAULT };
        for (name, value) in settings {
            match name {
                "job" => query.job = Some(value.parse()?),
                "limit" => query.limit = number(name, value, 0, LISTED_MAX as u64)?,
                _ => return Err(bad(format!("no option {name}; there are job, limit"))),
            }
        }
        Ok(query)
    }
}

impl Group {
    /// Lists keys behind which something waits, first those that take longest, as far as their delays decide it.
    /// Looks at every key.
    pub(super) fn list_keys(&self, query: &KeyQuery, now: Moment) -> Result<Answer, ProtocolError> {
        let job = match &query.job {
            None => None,
            Some(name) => Some(self.job_named(name)?.id.number),
        };
        let keys = (0..).map_while(|place| self.keys.in_place(place).ok()).flatten();
        let waits = |key: &&KeyQueue| match job {
            None => key.has_waiting(),
            Some(job) => key.has_waiting_of(job),
        };
        let mut matched = 0;
        // The least of those so far is on top.
        let mut busiest = BinaryHeap::new();
        for key in keys.filter(waits) {
            matched += 1;
            let left = (self.left_ms(key, now), key.waiting());
            busiest.push((Reverse(left), key.name(), key.busy()));
            if busiest.len() > query.limit {
                busiest.pop();
            }
        }
        let busiest = busiest.into_sorted_vec();
        let more: Vec<_> = busiest
            .into_iter()
            .map(|(Reverse((left_ms, waiting)), name, busy)| {
                format!("{name} waiting={waiting} processing={busy} left-ms={left_ms}")
            })
            .collect();
        let ok = format!("{} matched={matched} listed={}", self.name, more.len());
        Ok(Answer { more, ok })
    }

    /// How long what waits there takes at least: until the last of it may begin.
    fn left_ms(&self, key: &KeyQueue, now: Moment) -> u64 {
        let rest_ms = self.config.delay_of(key.name()).max(key.pace_at(now).unwrap_or(0));
        let others = u64::try_from(key.waiting().saturating_sub(1)).unwrap_or(u64::MAX);
        let pauses_ms = others.saturating_mul(rest_ms) / u64::from(self.config.parallel);
        key.free_at().since(now).saturating_add(pauses_ms)
    }
}
