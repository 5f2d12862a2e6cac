//! The dedup window: the newest ids of a topic's events. An event with one of these ids is not
//! stored again.

use std::collections::{HashMap, VecDeque};
use std::sync::LazyLock;

use memchr::memmem::Finder;
use tidings_protocol::{Payload, Seq};
use xxhash_rust::xxh3::xxh3_128;

/// Ids that one topic remembers. Each takes about 80 bytes.
pub(crate) const IDS_MAX: usize = 16_384;
/// Ids that a topic remembers while all topics together exceed [`IDS_TOTAL`].
pub(crate) const IDS_REDUCED_MAX: usize = 1_024;
/// See [`IDS_REDUCED_MAX`].
pub(crate) const IDS_TOTAL: usize = 262_144;

/// The newest ids of a topic.
#[derive(Debug, Default)]
pub(super) struct DedupWindow {
    by_id: HashMap<u128, Seq>,
    /// Ascending by seq.
    order: VecDeque<(Seq, u128)>,
}

/// The 128-bit hash of an event's `id=`. A collision is as unlikely as one of the random tokens
/// that are used as ids.
pub(crate) fn dedup_id(payload: &str) -> Option<u128> {
    // Few events have an id, and this runs for every event.
    static ID: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b" id="));
    ID.find(payload.as_bytes())?;
    Payload::parse(payload).attribute("id").map(|id| xxh3_128(id.as_bytes()))
}

impl DedupWindow {
    /// The seq of the event with this id.
    pub(super) fn find(&self, id: u128) -> Option<Seq> {
        self.by_id.get(&id).copied()
    }

    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    /// Adds an id, and removes the oldest ones beyond `max`.
    pub(super) fn add(&mut self, id: u128, seq: Seq, max: usize) {
        self.by_id.insert(id, seq);
        self.order.push_back((seq, id));
        while self.order.len() > max
            && let Some((_, oldest)) = self.order.pop_front()
        {
            self.by_id.remove(&oldest);
        }
    }

    /// Removes the ids of the events from `seq` on, because they were lost.
    pub(super) fn forget_from(&mut self, seq: Seq) {
        while let Some((newest, id)) = self.order.back().copied().filter(|(last, _)| *last >= seq) {
            debug_assert!(newest >= seq, "ids are ordered by seq");
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
    fn only_an_attribute_is_an_id() {
        assert!(dedup_id("http://a.example/ id=1").is_some());
        assert_eq!(dedup_id("http://a.example/ x=1 id=7"), dedup_id("/f id=7"));
        assert_ne!(dedup_id("/f id=7"), dedup_id("/f id=8"));
        assert_eq!(dedup_id("some text with id=7"), None);
        assert_eq!(dedup_id("http://a.example/?id=7"), None);
    }

    // PROTOCOL: P5
    #[test]
    fn oldest_and_lost_ids_are_removed() {
        let mut recent = DedupWindow::default();
        for n in 0..16_384 + 10 {
            recent.add(u128::from(n), Seq(n), IDS_MAX);
        }
        assert_eq!(recent.find(9), None);
        assert_eq!(recent.find(10), Some(Seq(10)));
        recent.forget_from(Seq(100));
        assert_eq!(recent.find(99), Some(Seq(99)));
        assert_eq!(recent.find(100), None);
        recent.add(7, Seq(1_000_000), IDS_REDUCED_MAX);
        recent.add(8, Seq(1_000_001), 5);
        assert_eq!((recent.len(), recent.by_id.len()), (5, 5), "a lower limit removes the excess");
    }
}
