//! Index of dormant entries by the fingerprint of their URL.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use super::runs::SlotId;

/// Number of tables. Each grows separately: growing one large table would stall the group.
const TABLES: usize = 128;

/// Slots that are inserted together, table by table, so that the current table stays in the cache.
const BUILD_BATCH: usize = 1 << 20;

/// Slots by the fingerprints of their URLs. The fingerprints themselves are in the slots.
#[derive(Debug)]
pub(crate) struct UrlIndex {
    tables: Vec<HashTable<SlotId>>,
    /// The index is empty, and will be built later.
    is_deferred: bool,
    hasher: DefaultHashBuilder,
}

impl Default for UrlIndex {
    fn default() -> Self {
        Self::new(false)
    }
}

impl UrlIndex {
    /// Creates an empty index. With `is_deferred`, it stays empty until
    /// [`build`](Self::build), and may not be searched before: building it at once is faster,
    /// and no table grows.
    pub(crate) fn new(is_deferred: bool) -> Self {
        let tables = std::iter::repeat_with(HashTable::new).take(TABLES).collect();
        Self { tables, is_deferred, hasher: DefaultHashBuilder::default() }
    }

    /// Reports whether the index is still to be built.
    pub(crate) fn is_deferred(&self) -> bool {
        self.is_deferred
    }

    /// Builds a deferred index from all slots and their fingerprints, at most `count`.
    pub(crate) fn build(
        &mut self,
        count: usize,
        mut all: impl Iterator<Item = (SlotId, u64)>,
        fingerprint_of: impl Fn(SlotId) -> u64,
    ) {
        if !std::mem::take(&mut self.is_deferred) {
            return;
        }
        let Self { tables, hasher, .. } = self;
        let hash = |slot: &SlotId| hasher.hash_one(fingerprint_of(*slot));
        // Fingerprints are evenly distributed, so the tables have similar lengths.
        let mean = count / TABLES;
        for table in &mut *tables {
            table.reserve(mean + 4 * mean.isqrt(), hash);
        }
        let mut some = vec![Vec::new(); TABLES];
        loop {
            let mut left = BUILD_BATCH;
            for (slot, fingerprint) in all.by_ref().take(BUILD_BATCH) {
                some[table_of(fingerprint)].push((slot, fingerprint));
                left -= 1;
            }
            for (table, some) in tables.iter_mut().zip(&mut some) {
                for (slot, fingerprint) in some.drain(..) {
                    table.insert_unique(hasher.hash_one(fingerprint), slot, hash);
                }
            }
            if left > 0 {
                return;
            }
        }
    }

    /// Adds a slot that is not present.
    pub(crate) fn insert(&mut self, slot: SlotId, fingerprint_of: impl Fn(SlotId) -> u64) {
        if self.is_deferred {
            return;
        }
        let hash = |slot: &SlotId| self.hasher.hash_one(fingerprint_of(*slot));
        self.tables[table_of(fingerprint_of(slot))].insert_unique(hash(&slot), slot, hash);
    }

    /// Removes a slot, if it is present.
    pub(crate) fn remove(&mut self, fingerprint: u64, slot: SlotId) {
        let table = &mut self.tables[table_of(fingerprint)];
        if let Ok(found) =
            table.find_entry(self.hasher.hash_one(fingerprint), |other| *other == slot)
        {
            found.remove();
        }
    }

    /// Returns the slots of a fingerprint, and possibly some of others, in no order.
    pub(crate) fn find(&self, fingerprint: u64) -> impl Iterator<Item = SlotId> {
        assert!(!self.is_deferred, "the index must be built before a search");
        self.tables[table_of(fingerprint)].iter_hash(self.hasher.hash_one(fingerprint)).copied()
    }
}

fn table_of(fingerprint: u64) -> usize {
    usize::try_from(fingerprint % TABLES as u64).expect("a table number is small")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Adds and removes slots with few fingerprints; the index is built at once or late.
        #[test]
        fn slots_are_found_by_fingerprint(
            fingerprints in prop::collection::vec(1..40_u64, 1..300),
            gone in prop::collection::vec(any::<prop::sample::Index>(), 0..100),
            caught_up_after in any::<prop::sample::Index>(),
        ) {
            let mut by_url = UrlIndex::new(true);
            let caught_up_after = caught_up_after.index(fingerprints.len());
            let fingerprint_of = |slot: SlotId| fingerprints[slot as usize];
            let mut model = BTreeSet::new();
            for slot in (0..).take(fingerprints.len()) {
                by_url.insert(slot, fingerprint_of);
                model.insert((fingerprint_of(slot), slot));
                if slot as usize == caught_up_after {
                    let all = model.iter().map(|(fingerprint, slot)| (*slot, *fingerprint));
                    by_url.build(model.len(), all, fingerprint_of);
                }
            }
            for gone in gone {
                let slot = SlotId::try_from(gone.index(fingerprints.len())).unwrap();
                by_url.remove(fingerprint_of(slot), slot);
                model.remove(&(fingerprint_of(slot), slot));
            }
            for fingerprint in 1..40 {
                let found = by_url.find(fingerprint).filter(|slot| fingerprint_of(*slot) == fingerprint);
                let found: BTreeSet<_> = found.map(|slot| (fingerprint, slot)).collect();
                prop_assert_eq!(found, model.range((fingerprint, 0)..(fingerprint + 1, 0)).copied().collect());
            }
        }
    }
}
