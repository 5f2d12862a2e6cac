//! The free keys that wait until their next entry is read, so that they are not listed as ready.
//! Entries that need a browser have a set of their own, as they have an order of release.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use hashbrown::HashMap;

use super::key_queue::NextEntry;
use super::keys::KeyId;
use super::lane::Lane;
use crate::entry::EntryId;

/// Keys, each with the entry that is being read.
#[derive(Debug, Default)]
pub(crate) struct LoadingKeys {
    keys: HashMap<KeyId, LoadingEntry>,
    /// How many of them there are of each lane and priority, highest priority first.
    classes: BTreeMap<(Lane, Reverse<i16>), usize>,
}

/// An entry that is being read.
#[derive(Debug)]
struct LoadingEntry {
    entry: EntryId,
    lane: Lane,
    prio: i16,
}

impl LoadingKeys {
    /// Counts the keys.
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Reports whether the next entry of a key is being read.
    pub(super) fn contains(&self, key: KeyId) -> bool {
        self.keys.contains_key(&key)
    }

    /// Reports whether this entry of a key is being read.
    pub(super) fn is_of(&self, key: KeyId, entry: EntryId) -> bool {
        self.keys.get(&key).is_some_and(|loading| loading.entry == entry)
    }

    /// Reports whether an entry of this lane that goes before this priority is being read.
    pub(crate) fn is_before(&self, lane: Lane, prio: i16) -> bool {
        let first = self.classes.range((lane, Reverse(i16::MAX))..).next();
        first.is_some_and(|((first_lane, first), _)| *first_lane == lane && first.0 > prio)
    }

    /// The next entry of a key is being read.
    pub(super) fn begin(&mut self, key: KeyId, next: NextEntry) {
        let NextEntry { entry, lane, prio } = next;
        self.end(key);
        self.keys.insert(key, LoadingEntry { entry, lane, prio });
        *self.classes.entry((lane, Reverse(prio))).or_default() += 1;
    }

    /// The next entry of a key was read, or the key was removed.
    pub(super) fn end(&mut self, key: KeyId) {
        if self.keys.is_empty() {
            return;
        }
        let Some(LoadingEntry { lane, prio, .. }) = self.keys.remove(&key) else { return };
        if let Entry::Occupied(mut count) = self.classes.entry((lane, Reverse(prio))) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}
