//! The free keys that wait until their next entry is read, so that they are not listed as ready.
//! Entries that need a browser have a set of their own, as they have an order of release.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use hashbrown::HashMap;

use super::keys::KeyId;
use super::lane::Lane;
use super::release_order::Rank;
use crate::entry::EntryId;

/// Keys, each with the entry that is being read.
#[derive(Debug, Default)]
pub(crate) struct LoadingKeys {
    keys: HashMap<KeyId, LoadingEntry>,
    /// How many of them there are of each lane and rank.
    classes: BTreeMap<(Lane, Rank), usize>,
}

/// An entry that is being read.
#[derive(Debug)]
struct LoadingEntry {
    entry: EntryId,
    lane: Lane,
    rank: Rank,
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

    /// Reports whether an entry of this lane that goes before this rank is being read.
    pub(crate) fn is_before(&self, lane: Lane, rank: Rank) -> bool {
        self.classes.range((lane, Rank::FIRST)..(lane, rank)).next().is_some()
    }

    /// The next entry of a key is being read.
    pub(super) fn begin(&mut self, key: KeyId, entry: EntryId, lane: Lane, rank: Rank) {
        self.end(key);
        self.keys.insert(key, LoadingEntry { entry, lane, rank });
        *self.classes.entry((lane, rank)).or_default() += 1;
    }

    /// The next entry of a key was read, or the key was removed.
    pub(super) fn end(&mut self, key: KeyId) {
        if self.keys.is_empty() {
            return;
        }
        let Some(LoadingEntry { lane, rank, .. }) = self.keys.remove(&key) else { return };
        if let Entry::Occupied(mut count) = self.classes.entry((lane, rank)) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}
