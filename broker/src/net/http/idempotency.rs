//! `Idempotency-Key`: a publish that is sent again, because its answer was lost, is not done again.
//!
//! What an answer said is remembered in memory. After a restart of the broker the ids that were made of
//! the key say the same, for events that can carry one.

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;
use tidings_protocol::{Seq, TopicName};

use crate::clock::Moment;

/// Requests that are remembered. What an answer said is counted as one number for each event.
const KEYS_MAX: usize = 16_384;
const NUMBERS_MAX: usize = 1 << 20;

/// How long they are.
const REMEMBERED_MS: u64 = 24 * 60 * 60 * 1_000;

/// What became of a request with a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Earlier {
    /// There was none: this one is to be done.
    None,
    /// One is being done right now.
    Underway,
    /// The key was used for something else.
    Other,
    /// It was done; its events got these numbers.
    Done(Vec<Seq>),
}

/// The keys that were used lately.
#[derive(Debug, Default)]
pub(super) struct Keys(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    by_key: HashMap<(TopicName, String), Use>,
    /// Oldest first; `serial` tells a key that was forgotten and used again.
    order: VecDeque<(u64, TopicName, String)>,
    serial: u64,
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
    pub(super) fn begin(&self, topic: &TopicName, key: &str, body: u128, now: Moment) -> Earlier {
        let known = &mut *self.0.lock();
        known.forget(now);
        let id = (topic.clone(), key.to_owned());
        match known.by_key.get(&id) {
            None => {}
            Some(earlier) if earlier.body != body => return Earlier::Other,
            Some(Use { seqs: None, .. }) => return Earlier::Underway,
            Some(Use { seqs: Some(seqs), .. }) => return Earlier::Done(seqs.clone()),
        }
        known.serial += 1;
        let serial = known.serial;
        known.order.push_back((serial, id.0.clone(), id.1.clone()));
        known.by_key.insert(id, Use { body, at: now, serial, seqs: None });
        Earlier::None
    }

    /// It was done, or it was not, and is to be done if it comes again.
    pub(super) fn end(&self, topic: &TopicName, key: &str, seqs: Option<&[Seq]>) {
        let known = &mut *self.0.lock();
        let id = (topic.clone(), key.to_owned());
        let Some(seqs) = seqs else {
            known.by_key.remove(&id);
            return;
        };
        if let Some(earlier) = known.by_key.get_mut(&id) {
            known.numbers += seqs.len();
            earlier.seqs = Some(seqs.to_vec());
        }
    }
}

impl Known {
    /// Forgets what is old, and the oldest if there is too much.
    fn forget(&mut self, now: Moment) {
        while let Some((serial, topic, key)) = self.order.front() {
            let id = (topic.clone(), key.clone());
            let first = self.by_key.get(&id).filter(|first| first.serial == *serial);
            let crowded = self.by_key.len() >= KEYS_MAX || self.numbers >= NUMBERS_MAX;
            let stays = first.is_some_and(|first| now.since(first.at) < REMEMBERED_MS && !crowded);
            if stays {
                return;
            }
            if first.is_some() {
                let gone = self.by_key.remove(&id).and_then(|gone| gone.seqs);
                self.numbers -= gone.map_or(0, |seqs| seqs.len());
            }
            self.order.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic() -> TopicName {
        "t".parse().unwrap()
    }

    #[test]
    fn what_was_done_is_answered_and_not_done_again() {
        let keys = Keys::default();
        assert_eq!(keys.begin(&topic(), "a", 1, Moment(0)), Earlier::None);
        assert_eq!(keys.begin(&topic(), "a", 1, Moment(1)), Earlier::Underway);
        assert_eq!(keys.begin(&topic(), "a", 2, Moment(1)), Earlier::Other);
        assert_eq!(keys.begin(&"u".parse().unwrap(), "a", 2, Moment(1)), Earlier::None);
        keys.end(&topic(), "a", Some(&[Seq(7)]));
        assert_eq!(keys.begin(&topic(), "a", 1, Moment(2)), Earlier::Done(vec![Seq(7)]));
        assert_eq!(keys.begin(&topic(), "a", 1, Moment(REMEMBERED_MS)), Earlier::None);
    }

    #[test]
    fn what_was_refused_may_come_again() {
        let keys = Keys::default();
        assert_eq!(keys.begin(&topic(), "a", 1, Moment(0)), Earlier::None);
        keys.end(&topic(), "a", None);
        assert_eq!(keys.begin(&topic(), "a", 2, Moment(0)), Earlier::None);
    }

    #[test]
    fn memory_is_bounded_in_keys_and_in_numbers() {
        let keys = Keys::default();
        for n in 0..KEYS_MAX as u64 + 10 {
            assert_eq!(keys.begin(&topic(), &n.to_string(), 1, Moment(n)), Earlier::None);
            keys.end(&topic(), &n.to_string(), Some(&[Seq(n)]));
        }
        assert_eq!(keys.0.lock().by_key.len(), KEYS_MAX);
        assert_eq!(keys.begin(&topic(), "0", 2, Moment(KEYS_MAX as u64 + 10)), Earlier::None);
        let many = vec![Seq(1); NUMBERS_MAX / 2];
        for n in 0..10 {
            let key = format!("large-{n}");
            assert_eq!(keys.begin(&topic(), &key, 1, Moment(1 << 20)), Earlier::None);
            keys.end(&topic(), &key, Some(&many));
        }
        assert!(keys.0.lock().numbers <= NUMBERS_MAX + many.len());
        assert!(keys.0.lock().order.len() <= KEYS_MAX);
    }
}
