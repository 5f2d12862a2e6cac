//! Index of entries by id.
//!
//! Ids rise as entries come, so entries that come together are stored in one page. A hash table
//! would touch another place for each.

use std::collections::BTreeSet;

use hashbrown::HashMap;

use super::runs::SlotId;
use crate::entry::EntryId;

/// Ids of a page.
const PAGE_IDS: u64 = 1 << 10;

/// Slots by id. No page is empty, and none has capacity for four times its length or more.
#[derive(Debug, Default)]
pub(crate) struct IdIndex {
    pages: HashMap<u64, Vec<PageEntry>>,
    /// The numbers of the pages, for walks.
    numbers: BTreeSet<u64>,
}

/// The position of an id in its page, by which they are sorted, and the slot.
type PageEntry = (u16, SlotId);

impl IdIndex {
    /// Adds an id that is not present.
    pub(crate) fn insert(&mut self, id: EntryId, slot: SlotId) {
        let (number, place) = split(id);
        let page = self.pages.entry(number).or_default();
        if page.is_empty() {
            self.numbers.insert(number);
        }
        let at = page.partition_point(|(other, _)| *other < place);
        page.insert(at, (place, slot));
    }

    /// Returns the slot of an id.
    pub(crate) fn find(&self, id: EntryId) -> Option<SlotId> {
        let (page, place) = split(id);
        let page = self.pages.get(&page)?;
        let at = page.binary_search_by_key(&place, |(place, _)| *place).ok()?;
        Some(page[at].1)
    }

    /// Sets the slot of an id that is present.
    pub(crate) fn set(&mut self, id: EntryId, slot: SlotId) {
        let (number, place) = split(id);
        let Some(page) = self.pages.get_mut(&number) else { return };
        let Ok(at) = page.binary_search_by_key(&place, |(place, _)| *place) else { return };
        page[at].1 = slot;
    }

    /// Returns the ids above `after` with their slots, sorted.
    pub(crate) fn above(&self, after: EntryId) -> impl Iterator<Item = (EntryId, SlotId)> {
        let pages = self.numbers.range(split(after).0..).flat_map(|number| {
            let ids = self.pages[number].iter();
            ids.map(move |(place, slot)| (number * PAGE_IDS + u64::from(*place), *slot))
        });
        pages.skip_while(move |(id, _)| *id <= after)
    }

    /// Removes an id.
    pub(crate) fn remove(&mut self, id: EntryId) {
        let (number, place) = split(id);
        let Some(page) = self.pages.get_mut(&number) else { return };
        let Ok(at) = page.binary_search_by_key(&place, |(place, _)| *place) else { return };
        page.remove(at);
        if page.is_empty() {
            self.pages.remove(&number);
            self.numbers.remove(&number);
        } else if page.len() * 4 <= page.capacity() {
            page.shrink_to(page.len() * 2);
        }
    }
}

/// Returns the page of an id, and its position there.
fn split(id: EntryId) -> (u64, u16) {
    (id / PAGE_IDS, u16::try_from(id % PAGE_IDS).expect("positions in a page have 16 bits"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_are_found_until_they_are_removed(
            steps in prop::collection::vec((0..3 * PAGE_IDS, any::<bool>()), 1..400),
        ) {
            let (mut slots, mut model) = (IdIndex::default(), BTreeMap::new());
            for (slot, (id, is_there)) in (0..).zip(steps) {
                if is_there && !model.contains_key(&id) {
                    slots.insert(id, slot);
                    model.insert(id, slot);
                } else {
                    slots.remove(id);
                    model.remove(&id);
                }
                prop_assert_eq!(slots.find(id), model.get(&id).copied());
                prop_assert!(slots.above(id).eq(model.range(id + 1..).map(|(id, slot)| (*id, *slot))));
            }
            for id in 0..3 * PAGE_IDS {
                prop_assert_eq!(slots.find(id), model.get(&id).copied());
            }
        }
    }

    #[test]
    fn removed_ids_free_their_memory() {
        let mut slots = IdIndex::default();
        let ids = 0..100 * PAGE_IDS;
        ids.clone().zip(0..).for_each(|(id, slot)| slots.insert(id, slot));
        ids.clone().filter(|id| id % 100 != 0).for_each(|id| slots.remove(id));
        let capacity: usize = slots.pages.values().map(Vec::capacity).sum();
        let len = slots.above(0).count();
        assert!(capacity < 4 * len, "capacity {capacity} for {len} ids");
        ids.for_each(|id| slots.remove(id));
        assert!(slots.pages.is_empty() && slots.numbers.is_empty());
    }
}
