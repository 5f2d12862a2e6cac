//! The memory budget that all tails share.

use std::cmp::Reverse;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::RwLock;

use super::Topic;
use super::dedup_window::{IDS_MAX, IDS_REDUCED_MAX, IDS_TOTAL};
use super::tail::Tail;
use crate::limits::Limits;

/// While all tails together exceed their limit, the limit of uncommitted bytes of each topic is
/// divided by this.
const SQUEEZE: usize = 16;

/// Memory use of the tails of all topics.
#[derive(Debug)]
pub(super) struct TailMemory {
    tail_bytes_max: usize,
    tails_bytes_max: usize,
    uncommitted_bytes_max: usize,
    /// Sum of `bytes` of all topics.
    bytes: AtomicUsize,
    /// Sum of `ids` of all topics.
    ids: AtomicUsize,
    topics: RwLock<Vec<Weak<Topic>>>,
}

impl TailMemory {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            tail_bytes_max: limits.tail_bytes_max,
            tails_bytes_max: limits.all_tails_bytes_max,
            uncommitted_bytes_max: limits.unsynced_bytes_max,
            bytes: AtomicUsize::new(0),
            ids: AtomicUsize::new(0),
            topics: RwLock::default(),
        }
    }

    pub(super) fn add(&self, topic: &Arc<Topic>) {
        let mut topics = self.topics.write();
        topics.retain(|known| known.strong_count() > 0);
        topics.push(Arc::downgrade(topic));
    }

    /// Maximum number of ids that a topic may remember now.
    pub(super) fn ids_max(&self) -> usize {
        if self.ids.load(Ordering::Relaxed) > IDS_TOTAL { IDS_REDUCED_MAX } else { IDS_MAX }
    }

    /// Whether publishers to this tail must wait, because too much of it must stay in memory.
    pub(super) fn is_backpressured(&self, tail: &Tail) -> bool {
        let crowded = self.bytes.load(Ordering::Relaxed) > self.tails_bytes_max;
        let ahead_max = self.uncommitted_bytes_max / if crowded { SQUEEZE } else { 1 };
        tail.is_backpressured(self.tail_bytes_max, ahead_max)
    }

    /// Shrinks the tail to the limit of one tail and updates the sums. Returns whether the tail has
    /// grown. The caller holds the tail's lock, so that two updates of a topic do not mix.
    pub(super) fn account(&self, topic: &Topic, tail: &mut Tail) -> bool {
        tail.shrink_to(self.tail_bytes_max);
        // A deleted topic is freed with its last reference.
        let (bytes, ids) =
            if topic.is_deleted() { (0, 0) } else { (tail.bytes(), tail.dedup_window.len()) };
        update_sum(&self.ids, &topic.dedup_ids, ids);
        update_sum(&self.bytes, &topic.tail_bytes, bytes)
    }

    /// Evicts from the largest tail until all tails together are within their limit. It skips a
    /// tail that must keep its events; publishers to that topic wait. Tails grow by whole blocks,
    /// so this is rare and may visit all topics. The caller holds no tail's lock.
    pub(super) fn evict_excess(&self) {
        while self.bytes.load(Ordering::Relaxed) > self.tails_bytes_max {
            let mut topics: Vec<Arc<Topic>> =
                self.topics.read().iter().filter_map(Weak::upgrade).collect();
            topics.sort_by_key(|topic| Reverse(topic.tail_bytes.load(Ordering::Relaxed)));
            if !topics.iter().any(|topic| self.evict_from(topic)) {
                return;
            }
        }
    }

    /// Whether the topic freed memory.
    fn evict_from(&self, topic: &Topic) -> bool {
        let tail = &mut *topic.tail.lock();
        let before = tail.bytes();
        tail.evict_quarter();
        self.account(topic, tail);
        tail.bytes() < before
    }
}

/// Replaces a topic's metric and updates the sum. Returns whether the metric has grown.
fn update_sum(sum: &AtomicUsize, of_topic: &AtomicUsize, new: usize) -> bool {
    let before = of_topic.swap(new, Ordering::Relaxed);
    if new >= before {
        sum.fetch_add(new - before, Ordering::Relaxed);
    } else {
        sum.fetch_sub(before - new, Ordering::Relaxed);
    }
    new > before
}
