//! `Idempotency-Key`: a publish that is sent again, because its answer was lost, is not done again.
//!
//! What an answer said is remembered in memory. After a restart of the broker the ids that were
//! made of the key say the same, for events that can carry one.

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;
use tidings_protocol::Seq;

use crate::clock::Moment;

/// Requests that are remembered. What an answer said is counted as one number for each event.
const KEYS_MAX: usize = 16_384;
const STORED_SEQS_MAX: usize = 1 << 20;

/// How long they are.
const KEY_TTL_MS: u64 = 24 * 60 * 60 * 1_000;

/// What became of a request with a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum KeyState {
    /// There was none: this one is to be done, and its end to be told under this number.
    New(KeyUseId),
    /// One is being done right now.
    InProgress,
    /// The key was used for something else.
    BodyMismatch,
    /// It was done; its events got these numbers.
    Completed(Vec<Seq>),
}

/// Names a use of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeyUseId(u64);

/// For whom a key stands for what: nobody learns from a key, or is kept from anything by one, that
/// somebody else has used.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct IdempotencyKey {
    /// The topic by its number, as one that is deleted and made again is another.
    pub(super) topic_id: u64,
    /// The name of whoever uses it.
    pub(super) principal: String,
    pub(super) key: String,
}

/// The keys that were used lately.
#[derive(Debug, Default)]
pub(super) struct IdempotencyKeys(Mutex<KeyTable>);

#[derive(Debug, Default)]
struct KeyTable {
    uses: HashMap<IdempotencyKey, KeyUse>,
    /// Oldest first; a key that was forgotten and used again has another serial.
    oldest_first: VecDeque<(u64, IdempotencyKey)>,
    last_use_id: u64,
    /// Of all uses that are done: the sum of their lengths.
    stored_seqs: usize,
}

#[derive(Debug)]
struct KeyUse {
    body_hash: u128,
    used_at: Moment,
    use_id: u64,
    /// None while it is being done.
    seqs: Option<Vec<Seq>>,
}

impl IdempotencyKeys {
    /// Asks whether a request was made before, and if not notes that it is being done.
    pub(super) fn begin(&self, id: &IdempotencyKey, body: u128, now: Moment) -> KeyState {
        let known = &mut *self.0.lock();
        known.expire(now);
        match known.uses.get(id) {
            None => {}
            Some(earlier) if earlier.body_hash != body => return KeyState::BodyMismatch,
            Some(KeyUse { seqs: None, .. }) => return KeyState::InProgress,
            Some(KeyUse { seqs: Some(seqs), .. }) => return KeyState::Completed(seqs.clone()),
        }
        known.last_use_id += 1;
        let serial = known.last_use_id;
        known.oldest_first.push_back((serial, id.clone()));
        known.uses.insert(
            id.clone(),
            KeyUse { body_hash: body, used_at: now, use_id: serial, seqs: None },
        );
        KeyState::New(KeyUseId(serial))
    }

    /// It was done, or it was not, and is to be done if it comes again. Only who began it says so.
    pub(super) fn finish(&self, id: &IdempotencyKey, serial: KeyUseId, seqs: Option<&[Seq]>) {
        let known = &mut *self.0.lock();
        if known.uses.get(id).is_none_or(|it| it.use_id != serial.0) {
            return;
        }
        let Some(seqs) = seqs else {
            known.remove(id);
            return;
        };
        let done = known.uses.get_mut(id).expect("it was just there");
        let before = done.seqs.replace(seqs.to_vec());
        known.stored_seqs += seqs.len();
        known.stored_seqs -= before.map_or(0, |seqs| seqs.len());
    }
}

impl KeyTable {
    fn remove(&mut self, id: &IdempotencyKey) {
        let gone = self.uses.remove(id).and_then(|gone| gone.seqs);
        self.stored_seqs -= gone.map_or(0, |seqs| seqs.len());
    }

    /// Forgets what is old, and the oldest if there is too much.
    fn expire(&mut self, now: Moment) {
        while let Some((serial, id)) = self.oldest_first.front() {
            let first = self.uses.get(id).filter(|first| first.use_id == *serial);
            let crowded = self.uses.len() >= KEYS_MAX || self.stored_seqs >= STORED_SEQS_MAX;
            if first.is_some_and(|first| now.since(first.used_at) < KEY_TTL_MS && !crowded) {
                return;
            }
            let is_known = first.is_some();
            let (_, id) = self.oldest_first.pop_front().expect("it was just looked at");
            if is_known {
                self.remove(&id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TOPIC_ID: u64 = 1;

    fn key_of(topic: u64, key: &str) -> IdempotencyKey {
        IdempotencyKey { topic_id: topic, principal: "she".into(), key: key.into() }
    }

    fn expect_new(earlier: &KeyState) -> KeyUseId {
        let KeyState::New(serial) = earlier else { panic!("{earlier:?}") };
        *serial
    }

    // PROTOCOL: H3
    #[test]
    fn a_completed_request_is_answered_and_not_repeated() {
        let keys = IdempotencyKeys::default();
        let serial = expect_new(&keys.begin(&key_of(TOPIC_ID, "a"), 1, Moment(0)));
        assert_eq!(keys.begin(&key_of(TOPIC_ID, "a"), 1, Moment(1)), KeyState::InProgress);
        assert_eq!(keys.begin(&key_of(TOPIC_ID, "a"), 2, Moment(1)), KeyState::BodyMismatch);
        expect_new(&keys.begin(&key_of(2, "a"), 2, Moment(1)));
        expect_new(&keys.begin(
            &IdempotencyKey { principal: "he".into(), ..key_of(TOPIC_ID, "a") },
            2,
            Moment(1),
        ));
        keys.finish(&key_of(TOPIC_ID, "a"), serial, Some(&[Seq(7)]));
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
            let serial = expect_new(&keys.begin(&key_of(TOPIC_ID, &n.to_string()), 1, Moment(n)));
            keys.finish(&key_of(TOPIC_ID, &n.to_string()), serial, Some(&[Seq(n)]));
        }
        assert_eq!(keys.0.lock().uses.len(), KEYS_MAX);
        expect_new(&keys.begin(&key_of(TOPIC_ID, "0"), 2, Moment(KEYS_MAX as u64 + 10)));
        let many = vec![Seq(1); STORED_SEQS_MAX / 2];
        for n in 0..10 {
            let key = format!("large-{n}");
            let serial = expect_new(&keys.begin(&key_of(TOPIC_ID, &key), 1, Moment(1 << 20)));
            keys.finish(&key_of(TOPIC_ID, &key), serial, Some(&many));
        }
        assert!(keys.0.lock().stored_seqs <= STORED_SEQS_MAX + many.len());
        assert!(keys.0.lock().oldest_first.len() <= KEYS_MAX);
    }

    proptest! {
        #[test]
        fn numbers_are_counted_as_they_are_kept(
            steps in proptest::collection::vec((0..4_u8, 0..3_u8, 0..3_usize, 0..20_u64), 1..60),
        ) {
            let (keys, mut serials, mut now) = (IdempotencyKeys::default(), Vec::new(), 0);
            for (key, what, count, later) in steps {
                let key = key.to_string();
                now += later * KEY_TTL_MS / 20;
                if what == 0 {
                    if let KeyState::New(serial) = keys.begin(&key_of(TOPIC_ID, &key), 1, Moment(now)) {
                        serials.push((key, serial));
                    }
                } else if !serials.is_empty() {
                    let (key, serial) = &serials[count % serials.len()];
                    let seqs = vec![Seq(1); count];
                    keys.finish(&key_of(TOPIC_ID, key), *serial, (what == 1).then_some(&seqs));
                }
                let known = keys.0.lock();
                let kept: usize = known.uses.values().flat_map(|it| &it.seqs).map(Vec::len).sum();
                prop_assert_eq!(known.stored_seqs, kept);
            }
        }
    }
}
