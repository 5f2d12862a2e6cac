//! The keys with the most work left, which delay the group.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tidings_protocol::status::{Answer, KeyStatus};
use tidings_protocol::{KeyQuery, ProtocolError};

use crate::Group;
use crate::frontier::key_queue::KeyQueue;
use crate::moment::Moment;

impl Group {
    /// Lists the keys with waiting entries, those first that take longest because of their delays.
    /// Visits every key.
    pub(crate) fn list_keys(&self, query: &KeyQuery, now: Moment) -> Result<Answer, ProtocolError> {
        let job = match &query.job {
            None => None,
            Some(name) => Some(self.find_job(name)?.id.number),
        };
        let keys = (0..).map_while(|place| self.frontier.keys().at_index(place).ok()).flatten();
        let waits = |key: &&KeyQueue| match job {
            None => key.has_waiting(),
            Some(job) => key.has_waiting_of(job),
        };
        let mut matched = 0;
        // The top of the heap is the key with the least work left.
        let mut busiest = BinaryHeap::new();
        for key in keys.filter(waits) {
            matched += 1;
            let left = (self.left_ms(key, now), key.waiting());
            busiest.push((Reverse(left), key.name(), key.in_flight()));
            if busiest.len() > query.limit {
                busiest.pop();
            }
        }
        let busiest = busiest.into_sorted_vec();
        let keys = busiest.into_iter().map(|(Reverse((left_ms, waiting)), name, busy)| {
            let (key, waiting, processing) = (name.to_string(), waiting as u64, busy.into());
            KeyStatus { key, waiting, processing, left_ms }
        });
        Ok(self.list(keys, matched))
    }

    /// The minimum time until the last waiting entry of a key may start.
    fn left_ms(&self, key: &KeyQueue, now: Moment) -> u64 {
        let rest_ms = self.config.delay_of(key.name()).max(key.pace_at(now).unwrap_or(0));
        let others = u64::try_from(key.waiting().saturating_sub(1)).unwrap_or(u64::MAX);
        let pauses_ms = others.saturating_mul(rest_ms) / u64::from(self.config.parallel);
        key.free_at().since(now).saturating_add(pauses_ms)
    }
}
