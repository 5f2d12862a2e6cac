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
const NUMBERS_MAX: usize = 1 << 20;

/// How long they are.
const REMEMBERED_MS: u64 = 24 * 60 * 60 * 1_000;

/// What became of a request with a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Earlier {
    /// There was none: this one is to be done, and its end to be told under this number.
    None(Serial),
    /// One is being done right now.
    Underway,
    /// The key was used for something else.
    Other,
    /// It was done; its events got these numbers.
    Done(Vec<Seq>),
}

/// Names a use of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Serial(u64);

/// For whom a key stands for what: nobody learns from a key, or is kept from anything by one, that
/// somebody else has used.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Id {
    /// The topic by its number, as one that is deleted and made again is another.
    pub(super) topic: u64,
    /// The name of whoever uses it.
    pub(super) who: String,
    pub(super) key: String,
}

/// The keys that were used lately.
#[derive(Debug, Default)]
pub(super) struct Keys(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    by_key: HashMap<Id, Use>,
    /// Oldest first; a key that was forgotten and used again has another serial.
    order: VecDeque<(u64, Id)>,
    serial: u64,
    /// Of all uses that are done: the sum of their lengths.
    numbers: usize,
}

#[derive(Debug)]
struct Use {
    body: u128,
    at: Moment,
    serial: u64,
    /// None while it is being done.
    seqs: Option<Vec<Seq>>,
}

impl Keys {
    /// Asks whether a request was made before, and if not notes that it is being done.
    pub(super) fn begin(&self, id: &Id, body: u128, now: Moment) -> Earlier {
        let known = &mut *self.0.lock();
        known.forget(now);
        match known.by_key.get(id) {
            None => {}
            Some(earlier) if earlier.body != body => return Earlier::Other,
            Some(Use { seqs: None, .. }) => return Earlier::Underway,
            Some(Use { seqs: Some(seqs), .. }) => return Earlier::Done(seqs.clone()),
        }
        known.serial += 1;
        let serial = known.serial;
        known.order.push_back((serial, id.clone()));
        known.by_key.insert(id.clone(), Use { body, at: now, serial, seqs: None });
        Earlier::None(Serial(serial))
    }

    /// It was done, or it was not, and is to be done if it comes again. Only who began it says so.
    pub(super) fn end(&self, id: &Id, serial: Serial, seqs: Option<&[Seq]>) {
        let known = &mut *self.0.lock();
        if known.by_key.get(id).is_none_or(|it| it.serial != serial.0) {
            return;
        }
        let Some(seqs) = seqs else {
            known.remove(id);
            return;
        };
        let done = known.by_key.get_mut(id).expect("it was just there");
        let before = done.seqs.replace(seqs.to_vec());
        known.numbers += seqs.len();
        known.numbers -= before.map_or(0, |seqs| seqs.len());
    }
}

impl Known {
    fn remove(&mut self, id: &Id) {
        let gone = self.by_key.remove(id).and_then(|gone| gone.seqs);
        self.numbers -= gone.map_or(0, |seqs| seqs.len());
    }

    /// Forgets what is old, and the oldest if there is too much.
    fn forget(&mut self, now: Moment) {
        while let Some((serial, id)) = self.order.front() {
            let first = self.by_key.get(id).filter(|first| first.serial == *serial);
            let crowded = self.by_key.len() >= KEYS_MAX || self.numbers >= NUMBERS_MAX;
            if first.is_some_and(|first| now.since(first.at) < REMEMBERED_MS && !crowded) {
                return;
            }
            let is_known = first.is_some();
            let (_, id) = self.order.pop_front().expect("it was just looked at");
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

    const T: u64 = 1;

    fn id(topic: u64, key: &str) -> Id {
        Id { topic, who: "she".into(), key: key.into() }
    }

    fn begun(earlier: &Earlier) -> Serial {
        let Earlier::None(serial) = earlier else { panic!("{earlier:?}") };
        *serial
    }

    // PROTOCOL: H3
    #[test]
    fn what_was_done_is_answered_and_not_done_again() {
        let keys = Keys::default();
        let serial = begun(&keys.begin(&id(T, "a"), 1, Moment(0)));
        assert_eq!(keys.begin(&id(T, "a"), 1, Moment(1)), Earlier::Underway);
        assert_eq!(keys.begin(&id(T, "a"), 2, Moment(1)), Earlier::Other);
        begun(&keys.begin(&id(2, "a"), 2, Moment(1)));
        begun(&keys.begin(&Id { who: "he".into(), ..id(T, "a") }, 2, Moment(1)));
        keys.end(&id(T, "a"), serial, Some(&[Seq(7)]));
        assert_eq!(keys.begin(&id(T, "a"), 1, Moment(2)), Earlier::Done(vec![Seq(7)]));
        begun(&keys.begin(&id(T, "a"), 1, Moment(REMEMBERED_MS)));
    }

    #[test]
    fn what_was_refused_may_come_again_and_its_late_end_is_nothing_to_who_came() {
        let keys = Keys::default();
        let first = begun(&keys.begin(&id(T, "a"), 1, Moment(0)));
        keys.end(&id(T, "a"), first, None);
        let second = begun(&keys.begin(&id(T, "a"), 2, Moment(0)));
        keys.end(&id(T, "a"), first, None);
        assert_eq!(keys.begin(&id(T, "a"), 2, Moment(0)), Earlier::Underway);
        keys.end(&id(T, "a"), second, Some(&[Seq(1)]));
        keys.end(&id(T, "a"), first, Some(&[Seq(9)]));
        assert_eq!(keys.begin(&id(T, "a"), 2, Moment(0)), Earlier::Done(vec![Seq(1)]));
    }

    // PROTOCOL: H3
    #[test]
    fn memory_is_bounded_in_keys_and_in_numbers() {
        let keys = Keys::default();
        for n in 0..KEYS_MAX as u64 + 10 {
            let serial = begun(&keys.begin(&id(T, &n.to_string()), 1, Moment(n)));
            keys.end(&id(T, &n.to_string()), serial, Some(&[Seq(n)]));
        }
        assert_eq!(keys.0.lock().by_key.len(), KEYS_MAX);
        begun(&keys.begin(&id(T, "0"), 2, Moment(KEYS_MAX as u64 + 10)));
        let many = vec![Seq(1); NUMBERS_MAX / 2];
        for n in 0..10 {
            let key = format!("large-{n}");
            let serial = begun(&keys.begin(&id(T, &key), 1, Moment(1 << 20)));
            keys.end(&id(T, &key), serial, Some(&many));
        }
        assert!(keys.0.lock().numbers <= NUMBERS_MAX + many.len());
        assert!(keys.0.lock().order.len() <= KEYS_MAX);
    }

    proptest! {
        #[test]
        fn numbers_are_counted_as_they_are_kept(
            steps in proptest::collection::vec((0..4_u8, 0..3_u8, 0..3_usize, 0..20_u64), 1..60),
        ) {
            let (keys, mut serials, mut now) = (Keys::default(), Vec::new(), 0);
            for (key, what, count, later) in steps {
                let key = key.to_string();
                now += later * REMEMBERED_MS / 20;
                if what == 0 {
                    if let Earlier::None(serial) = keys.begin(&id(T, &key), 1, Moment(now)) {
                        serials.push((key, serial));
                    }
                } else if !serials.is_empty() {
                    let (key, serial) = &serials[count % serials.len()];
                    let seqs = vec![Seq(1); count];
                    keys.end(&id(T, key), *serial, (what == 1).then_some(&seqs));
                }
                let known = keys.0.lock();
                let kept: usize = known.by_key.values().flat_map(|it| &it.seqs).map(Vec::len).sum();
                prop_assert_eq!(known.numbers, kept);
            }
        }
    }
}
