//! The keys with the most work left, which delay the group.

use std::cmp::Reverse;

use tidings_protocol::status::{Answer, KeyStatus};
use tidings_protocol::{KeyQuery, ListRange, ProtocolError};

use super::View;
use crate::frontier::key_queue::KeyQueue;
use crate::frontier::keys::KeyId;
use crate::moment::Moment;

/// The work of looking at a key that is compared with others. Looking at an entry is 1.
const COMPARED_WORK: usize = 2;

impl View<'_> {
    /// Lists the keys with waiting entries, those first that take longest because of their delays;
    /// or a part of a walk over them, by their places; or a single key.
    pub(crate) fn list_keys(&self, query: &KeyQuery, now: Moment) -> Result<Answer, ProtocolError> {
        let KeyQuery { key, job, range: ListRange { after, limit } } = query;
        let job = job.as_ref().map(|name| self.find_job(name)).transpose()?;
        let job = job.map(|job| job.id.number);
        let keys = self.state.frontier().keys();
        if let Some(name) = key {
            let of_job = |key: &KeyId| job.is_none_or(|job| keys[*key].has_waiting_of(job));
            let key = keys.find(name).filter(of_job);
            let line = key.map(|key| self.key_status(key, now)).into_iter();
            return Ok(self.list(line, Some(usize::from(key.is_some())), None));
        }
        let waits = |key: &Option<KeyId>| {
            key.is_some_and(|key| match job {
                None => keys[key].has_waiting(),
                Some(job) => keys[key].has_waiting_of(job),
            })
        };
        let (keys, matched, next) = if let Some(after) = after {
            let (keys, next) = self.walk(keys.above(*after), *limit, |_| 1, waits);
            (keys.into_iter().flatten().collect(), None, next)
        } else {
            let (all, rest) = self.walk(keys.above(0), usize::MAX, |_| COMPARED_WORK, waits);
            let matched = rest.is_none().then_some(all.len());
            (self.busiest(all.into_iter().flatten(), *limit, now), matched, None)
        };
        let lines = keys.into_iter().map(|key| self.key_status(key, now));
        Ok(self.list(lines, matched, next))
    }

    /// Returns the keys that take longest, the longest first.
    fn busiest(&self, keys: impl Iterator<Item = KeyId>, limit: usize, now: Moment) -> Vec<KeyId> {
        let ranked = keys.map(|id| {
            let key = &self.state.frontier().keys()[id];
            let left_ms = self.left_ms(key, now).unwrap_or(u64::MAX);
            (Reverse((left_ms, key.waiting())), key.name(), id)
        });
        let mut ranked: Vec<_> = ranked.collect();
        if limit < ranked.len() {
            ranked.select_nth_unstable(limit);
            ranked.truncate(limit);
        }
        ranked.sort_unstable();
        ranked.into_iter().map(|(.., id)| id).collect()
    }

    fn key_status(&self, id: KeyId, now: Moment) -> KeyStatus {
        let key = &self.state.frontier().keys()[id];
        KeyStatus {
            key: key.name().to_string(),
            waiting: key.waiting() as u64,
            processing: key.in_flight().into(),
            left_ms: self.left_ms(key, now),
            because: self.key_reason(id, now),
            free_in: key.next_start().filter(|at| *at > now).map(|at| at.since(now)),
            pace_ms: key.pace_at(now),
            ended_ms: key.ended_at().map(|ended_at| now.since(ended_at)),
        }
    }

    /// The minimum time until the last waiting entry of a key may start. `None` while a rule without
    /// an end holds the key.
    fn left_ms(&self, key: &KeyQueue, now: Moment) -> Option<u64> {
        let first_ms = key.next_start()?.since(now);
        let rest_ms = key.delay_ms(self.state.config()).max(key.pace_at(now).unwrap_or(0));
        let others = u64::try_from(key.waiting().saturating_sub(1)).unwrap_or(u64::MAX);
        let pauses_ms = others.saturating_mul(rest_ms)
            / u64::from(key.parallel(self.state.config().settings.parallel));
        Some(first_ms.saturating_add(pauses_ms))
    }
}
