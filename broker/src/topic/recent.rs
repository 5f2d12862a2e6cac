//! Events with an `id=` that were published lately, so that one that is sent again is known.

use std::collections::{HashMap, VecDeque};
use std::sync::LazyLock;

use memchr::memmem::Finder;
use tidings_protocol::{Payload, Seq};
use xxhash_rust::xxh3::xxh3_128;

/// Ids that one topic remembers, about 80 bytes each.
pub(crate) const IDS_MAX: usize = 16_384;
/// Ids that a topic remembers while all topics together have more than [`IDS_TOTAL`].
pub(crate) const IDS_SHARE: usize = 1_024;
/// See [`IDS_SHARE`].
pub(crate) const IDS_TOTAL: usize = 262_144;

/// The newest ids of a topic.
#[derive(Debug, Default)]
pub(super) struct Recent {
    by_id: HashMap<u128, Seq>,
    /// In the order of their numbers.
    order: VecDeque<(Seq, u128)>,
}

/// The id of an event, as it is compared: 128 bits of a hash, whose collisions are as unlikely as
/// those of the random tokens that they stand for.
pub(crate) fn id_of(payload: &str) -> Option<u128> {
    // Few events have one, and this is asked of all.
    static ID: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b" id="));
    ID.find(payload.as_bytes())?;
    Payload::parse(payload).attribute("id").map(|id| xxh3_128(id.as_bytes()))
}

impl Recent {
    /// The number of the event that had this id.
    pub(super) fn find(&self, id: u128) -> Option<Seq> {
        self.by_id.get(&id).copied()
    }

    /// How many it remembers.
    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    /// Remembers an id, and forgets the oldest beyond `max`.
    pub(super) fn add(&mut self, id: u128, seq: Seq, max: usize) {
        self.by_id.insert(id, seq);
        self.order.push_back((seq, id));
        while self.order.len() > max
            && let Some((_, oldest)) = self.order.pop_front()
        {
            self.by_id.remove(&oldest);
        }
    }

    /// The events from `seq` on do not exist.
    pub(super) fn forget_from(&mut self, seq: Seq) {
        while let Some((newest, id)) = self.order.back().copied().filter(|(last, _)| *last >= seq) {
            debug_assert!(newest >= seq, "they are in order");
            self.order.pop_back();
            self.by_id.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // PROTOCOL: P5
    #[test]
    fn an_id_is_an_attribute_and_not_any_word() {
        assert!(id_of("http://a.example/ id=1").is_some());
        assert_eq!(id_of("http://a.example/ x=1 id=7"), id_of("/f id=7"));
        assert_ne!(id_of("/f id=7"), id_of("/f id=8"));
        assert_eq!(id_of("some text with id=7"), None);
        assert_eq!(id_of("http://a.example/?id=7"), None);
    }

    // PROTOCOL: P5
    #[test]
    fn the_oldest_are_forgotten_and_what_was_lost_is() {
        let mut recent = Recent::default();
        for n in 0..16_384 + 10 {
            recent.add(u128::from(n), Seq(n), IDS_MAX);
        }
        assert_eq!(recent.find(9), None);
        assert_eq!(recent.find(10), Some(Seq(10)));
        recent.forget_from(Seq(100));
        assert_eq!(recent.find(99), Some(Seq(99)));
        assert_eq!(recent.find(100), None);
        recent.add(7, Seq(1_000_000), IDS_SHARE);
        recent.add(8, Seq(1_000_001), 5);
        assert_eq!((recent.len(), recent.by_id.len()), (5, 5), "it has to make do with less");
    }
}
