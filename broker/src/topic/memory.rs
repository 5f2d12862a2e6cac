//! The memory that all tails share.

use std::cmp::Reverse;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::RwLock;

use super::Topic;
use super::recent::{IDS_MAX, IDS_SHARE, IDS_TOTAL};
use super::tail::Tail;
use crate::config::Limits;

/// While all tails together are too much, a topic may be ahead of the disk by this part only.
const SQUEEZE: usize = 16;

/// What the tails of all topics take together.
#[derive(Debug)]
pub(super) struct Memory {
    tail_bytes_max: usize,
    tails_bytes_max: usize,
    ahead_bytes_max: usize,
    /// The sum of all topics' `bytes`.
    bytes: AtomicUsize,
    /// The sum of all topics' `ids`.
    ids: AtomicUsize,
    topics: RwLock<Vec<Weak<Topic>>>,
}

impl Memory {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            tail_bytes_max: limits.tail_bytes_max,
            tails_bytes_max: limits.tails_bytes_max,
            ahead_bytes_max: limits.ahead_bytes_max,
            bytes: AtomicUsize::new(0),
            ids: AtomicUsize::new(0),
            topics: RwLock::default(),
        }
    }

    /// A new topic shares it.
    pub(super) fn add(&self, topic: &Arc<Topic>) {
        let mut topics = self.topics.write();
        topics.retain(|known| known.strong_count() > 0);
        topics.push(Arc::downgrade(topic));
    }

    /// How many ids a topic may remember.
    pub(super) fn ids_max(&self) -> usize {
        if self.ids.load(Ordering::Relaxed) > IDS_TOTAL { IDS_SHARE } else { IDS_MAX }
    }

    /// Whether so much of a tail has to be in memory that nobody should publish.
    pub(super) fn is_held_up(&self, tail: &Tail) -> bool {
        let crowded = self.bytes.load(Ordering::Relaxed) > self.tails_bytes_max;
        let ahead_max = self.ahead_bytes_max / if crowded { SQUEEZE } else { 1 };
        tail.is_held_up(self.tail_bytes_max, ahead_max)
    }

    /// Shrinks the tail to what one may have and counts it; whether it has grown. Called with the
    /// tail's lock, so that a topic's own figures are never mixed up.
    pub(super) fn account(&self, topic: &Topic, tail: &mut Tail) -> bool {
        tail.shrink_to(self.tail_bytes_max);
        // One that was deleted goes with the last who knows it.
        let (bytes, ids) =
            if topic.is_deleted() { (0, 0) } else { (tail.bytes(), tail.recent.len()) };
        recount(&self.ids, &topic.ids, ids);
        recount(&self.bytes, &topic.bytes, bytes)
    }

    /// While all tails together are too much, the longest gives way; one that has to stay cannot
    /// (who publishes there waits), so then the next. Tails grow by blocks, so this is seldom, and
    /// may look at all topics. Called without any tail's lock.
    pub(super) fn relieve(&self) {
        while self.bytes.load(Ordering::Relaxed) > self.tails_bytes_max {
            let mut topics: Vec<Arc<Topic>> =
                self.topics.read().iter().filter_map(Weak::upgrade).collect();
            topics.sort_by_key(|topic| Reverse(topic.bytes.load(Ordering::Relaxed)));
            if !topics.iter().any(|topic| self.relieve_by(topic)) {
                return;
            }
        }
    }

    /// Whether the topic gave some memory back.
    fn relieve_by(&self, topic: &Topic) -> bool {
        let tail = &mut *topic.tail.lock();
        let before = tail.bytes();
        tail.give_way();
        self.account(topic, tail);
        tail.bytes() < before
    }
}

/// Puts a topic's new figure in place of its old one, also in the sum; whether it has grown.
fn recount(sum: &AtomicUsize, of_topic: &AtomicUsize, new: usize) -> bool {
    let before = of_topic.swap(new, Ordering::Relaxed);
    if new >= before {
        sum.fetch_add(new - before, Ordering::Relaxed);
    } else {
        sum.fetch_sub(before - new, Ordering::Relaxed);
    }
    new > before
}
