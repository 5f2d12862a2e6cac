//! `Idempotency-Key`: a publish that a client repeats, because the response was lost, is done once.
//!
//! The seqs of completed requests are kept in memory. After a restart of the broker the ids that
//! were made of the key have the same effect, for events that can carry an id.

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;
use tidings_protocol::Seq;

use crate::clock::Moment;

/// Requests that are remembered, and the seqs of their events.
const KEYS_MAX: usize = 16_384;
const STORED_SEQS_MAX: usize = 1 << 20;

/// How long a request is remembered.
const KEY_TTL_MS: u64 = 24 * 60 * 60 * 1_000;

/// Whether a request with this key was made before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum KeyState {
    /// The key is new. The caller does the request and passes this id to
    /// [`IdempotencyKeys::finish`].
    New(KeyUseId),
    /// The first request is in progress.
    InProgress,
    /// The key was used with another body.
    BodyMismatch,
    /// The first request is done, and its events have these seqs.
    Completed(Vec<Seq>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeyUseId(u64);

/// A key in its scope. Keys of different principals are independent: a client can neither learn nor
/// block anything with the key of another principal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct IdempotencyKey {
    /// The number of the topic: a topic that is deleted and created again has another number.
    pub(super) topic_id: u64,
    /// The name of the principal, or of the hook.
    pub(super) principal: String,
    pub(super) key: String,
}

/// The keys that were used recently.
#[derive(Debug, Default)]
pub(super) struct IdempotencyKeys(Mutex<KeyTable>);

#[derive(Debug, Default)]
struct KeyTable {
    uses: HashMap<IdempotencyKey, KeyUse>,
    /// Oldest first. A key that expires and is used again has another use id.
    oldest_first: VecDeque<(u64, IdempotencyKey)>,
    last_use_id: u64,
    /// The number of seqs of all completed uses.
    stored_seqs: usize,
}

#[derive(Debug)]
struct KeyUse {
    body_hash: u128,
    used_at: Moment,
    use_id: u64,
    /// `None` while the request is in progress.
    seqs: Option<Vec<Seq>>,
}

impl IdempotencyKeys {
    /// Returns the state of a key, and records a new one as in progress.
    pub(super) fn begin(&self, key: &IdempotencyKey, body_hash: u128, now: Moment) -> KeyState {
        let table = &mut *self.0.lock();
        table.expire(now);
        match table.uses.get(key) {
            None => {}
            Some(earlier) if earlier.body_hash != body_hash => return KeyState::BodyMismatch,
            Some(KeyUse { seqs: None, .. }) => return KeyState::InProgress,
            Some(KeyUse { seqs: Some(seqs), .. }) => return KeyState::Completed(seqs.clone()),
        }
        table.last_use_id += 1;
        let use_id = table.last_use_id;
        table.oldest_first.push_back((use_id, key.clone()));
        table.uses.insert(key.clone(), KeyUse { body_hash, used_at: now, use_id, seqs: None });
        KeyState::New(KeyUseId(use_id))
    }

    /// Ends a use: completed with these seqs, or failed (`None`), so that the next request with the
    /// key is new. Without effect if another use has replaced this one.
    pub(super) fn finish(&self, key: &IdempotencyKey, use_id: KeyUseId, seqs: Option<&[Seq]>) {
        let table = &mut *self.0.lock();
        let Some(finished) = table.uses.get_mut(key).filter(|it| it.use_id == use_id.0) else {
            return;
        };
        let Some(seqs) = seqs else {
            table.remove(key);
            return;
        };
        let before = finished.seqs.replace(seqs.to_vec());
        table.stored_seqs += seqs.len();
        table.stored_seqs -= before.map_or(0, |seqs| seqs.len());
    }
}

impl KeyTable {
    fn remove(&mut self, key: &IdempotencyKey) {
        let seqs = self.uses.remove(key).and_then(|removed| removed.seqs);
        self.stored_seqs -= seqs.map_or(0, |seqs| seqs.len());
    }

    /// Removes expired uses, and the oldest ones while the table is full.
    fn expire(&mut self, now: Moment) {
        while let Some((use_id, key)) = self.oldest_first.front() {
            let oldest = self.uses.get(key).filter(|oldest| oldest.use_id == *use_id);
            let is_full = self.uses.len() >= KEYS_MAX || self.stored_seqs >= STORED_SEQS_MAX;
            if oldest.is_some_and(|oldest| now.since(oldest.used_at) < KEY_TTL_MS && !is_full) {
                return;
            }
            let is_current = oldest.is_some();
            let (_, key) = self.oldest_first.pop_front().expect("`front` was `Some`");
            if is_current {
                self.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TOPIC_ID: u64 = 1;

    fn key_of(topic_id: u64, key: &str) -> IdempotencyKey {
        IdempotencyKey { topic_id, principal: "alice".into(), key: key.into() }
    }

    fn expect_new(state: &KeyState) -> KeyUseId {
        let KeyState::New(use_id) = state else { panic!("{state:?}") };
        *use_id
    }

    // PROTOCOL: H3
    #[test]
    fn a_completed_request_is_answered_and_not_repeated() {
        let keys = IdempotencyKeys::default();
        let use_id = expect_new(&keys.begin(&key_of(TOPIC_ID, "a"), 1, Moment(0)));
        assert_eq!(keys.begin(&key_of(TOPIC_ID, "a"), 1, Moment(1)), KeyState::InProgress);
        assert_eq!(keys.begin(&key_of(TOPIC_ID, "a"), 2, Moment(1)), KeyState::BodyMismatch);
        expect_new(&keys.begin(&key_of(2, "a"), 2, Moment(1)));
        expect_new(&keys.begin(
            &IdempotencyKey { principal: "bob".into(), ..key_of(TOPIC_ID, "a") },
            2,
            Moment(1),
        ));
        keys.finish(&key_of(TOPIC_ID, "a"), use_id, Some(&[Seq(7)]));
        assert_eq!(
            keys.begin(&key_of(TOPIC_ID, "a"), 1, Moment(2)),
            KeyState::Completed(vec![Seq(7)])
        );
        expect_new(&keys.begin(&key_of(TOPIC_ID, "a"), 1, Moment(KEY_TTL_MS)));
    }

    #[test]
    fn a_late_finish_of_a_failed_request_does_not_change_its_retry() {
        let keys = IdempotencyKeys::default();
        let first = expect_new(&keys.begin(&key_of(TOPIC_ID, "a"), 1, Moment(0)));
        keys.finish(&key_of(TOPIC_ID, "a"), first, None);
        let second = expect_new(&keys.begin(&key_of(TOPIC_ID, "a"), 2, Moment(0)));
        keys.finish(&key_of(TOPIC_ID, "a"), first, None);
        assert_eq!(keys.begin(&key_of(TOPIC_ID, "a"), 2, Moment(0)), KeyState::InProgress);
        keys.finish(&key_of(TOPIC_ID, "a"), second, Some(&[Seq(1)]));
        keys.finish(&key_of(TOPIC_ID, "a"), first, Some(&[Seq(9)]));
        assert_eq!(
            keys.begin(&key_of(TOPIC_ID, "a"), 2, Moment(0)),
            KeyState::Completed(vec![Seq(1)])
        );
    }

    // PROTOCOL: H3
    #[test]
    fn memory_is_bounded_in_keys_and_in_seqs() {
        let keys = IdempotencyKeys::default();
        for n in 0..KEYS_MAX as u64 + 10 {
            let use_id = expect_new(&keys.begin(&key_of(TOPIC_ID, &n.to_string()), 1, Moment(n)));
            keys.finish(&key_of(TOPIC_ID, &n.to_string()), use_id, Some(&[Seq(n)]));
        }
        assert_eq!(keys.0.lock().uses.len(), KEYS_MAX);
        expect_new(&keys.begin(&key_of(TOPIC_ID, "0"), 2, Moment(KEYS_MAX as u64 + 10)));
        let many = vec![Seq(1); STORED_SEQS_MAX / 2];
        for n in 0..10 {
            let key = format!("large-{n}");
            let use_id = expect_new(&keys.begin(&key_of(TOPIC_ID, &key), 1, Moment(1 << 20)));
            keys.finish(&key_of(TOPIC_ID, &key), use_id, Some(&many));
        }
        assert!(keys.0.lock().stored_seqs <= STORED_SEQS_MAX + many.len());
        assert!(keys.0.lock().oldest_first.len() <= KEYS_MAX);
    }

    proptest! {
        #[test]
        fn stored_seqs_is_the_number_of_seqs_in_the_table(
            steps in proptest::collection::vec((0..4_u8, 0..3_u8, 0..3_usize, 0..20_u64), 1..60),
        ) {
            let (keys, mut begun, mut now) = (IdempotencyKeys::default(), Vec::new(), 0);
            for (key, action, count, elapsed) in steps {
                let key = key.to_string();
                now += elapsed * KEY_TTL_MS / 20;
                if action == 0 {
                    if let KeyState::New(use_id) = keys.begin(&key_of(TOPIC_ID, &key), 1, Moment(now)) {
                        begun.push((key, use_id));
                    }
                } else if !begun.is_empty() {
                    let (key, use_id) = &begun[count % begun.len()];
                    let seqs = vec![Seq(1); count];
                    keys.finish(&key_of(TOPIC_ID, key), *use_id, (action == 1).then_some(&seqs));
                }
                let table = keys.0.lock();
                let seqs: usize = table.uses.values().flat_map(|it| &it.seqs).map(Vec::len).sum();
                prop_assert_eq!(table.stored_seqs, seqs);
            }
        }
    }
}
