//! The bodies that are in the output already, for `revisit` records.

use std::collections::{HashMap, VecDeque};

/// Bodies that are known to be in the output already. At some 300 bytes each this is 10 MiB.
const WARC_SEEN_MAX: usize = 32 * 1024;
/// Bytes of the URLs of those bodies.
const WARC_SEEN_BYTES_MAX: usize = 8 * 1024 * 1024;

/// The record that contains a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OriginalRecord {
    pub(super) url: Box<str>,
    pub(super) date: String,
    pub(super) id: String,
}

/// Bodies written by this process, within the limits: the oldest are evicted first.
#[derive(Debug, Default)]
pub(super) struct SeenBodies {
    originals: HashMap<blake3::Hash, OriginalRecord>,
    order: VecDeque<blake3::Hash>,
    /// Bytes of all URLs.
    bytes: usize,
}

impl SeenBodies {
    pub(super) fn find(&self, body: &blake3::Hash) -> Option<&OriginalRecord> {
        self.originals.get(body)
    }

    pub(super) fn insert(&mut self, body: blake3::Hash, original: OriginalRecord) {
        if self.originals.contains_key(&body) {
            return;
        }
        self.bytes += original.url.len();
        self.originals.insert(body, original);
        self.order.push_back(body);
        while self.order.len() > WARC_SEEN_MAX || self.bytes > WARC_SEEN_BYTES_MAX {
            let oldest = self.order.pop_front().expect("a limit is exceeded, so there are entries");
            let oldest = self.originals.remove(&oldest).expect("both contain the same bodies");
            self.bytes -= oldest.url.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_are_evicted_first() {
        let body = |number: usize| blake3::hash(&number.to_le_bytes());
        let mut seen = SeenBodies::default();
        let insert = |seen: &mut SeenBodies, number, bytes| {
            let (url, date, id) = ("x".repeat(bytes).into(), String::new(), String::new());
            seen.insert(body(number), OriginalRecord { url, date, id });
        };
        for number in 0..=WARC_SEEN_MAX {
            insert(&mut seen, number, 3);
        }
        assert!(seen.find(&body(0)).is_none());
        assert!(seen.find(&body(1)).is_some());
        insert(&mut seen, WARC_SEEN_MAX + 1, WARC_SEEN_BYTES_MAX);
        assert_eq!((seen.originals.len(), seen.bytes), (1, WARC_SEEN_BYTES_MAX));
    }
}
