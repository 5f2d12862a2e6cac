//! Requests for the parts of pages that members render. They are not recorded, so the parts of tasks
//! from before a start are unknown.

use std::collections::BTreeSet;

use hashbrown::HashMap;

use crate::entry::{EntryId, Key};

/// Most keys that are remembered for a task. A task with as many may request any key.
const KEYS_MAX: usize = 100;

/// The keys that held entries may request for parts of their pages.
#[derive(Debug, Default)]
pub(crate) struct PartRequests(HashMap<EntryId, BTreeSet<Key>>);

impl PartRequests {
    /// The member of an entry may request this key until the request of the entry ends.
    pub(crate) fn begin(&mut self, id: EntryId, key: &str) {
        let keys = self.0.entry(id).or_default();
        if keys.len() < KEYS_MAX {
            keys.insert(key.into());
        }
    }

    /// The request of an entry has ended.
    pub(super) fn end(&mut self, id: EntryId) {
        self.0.remove(&id);
    }

    /// Reports whether the member of an entry may request one of these keys. `any` is the answer for
    /// a task that may request any key.
    pub(crate) fn include(&self, id: EntryId, any: bool, is_one: impl Fn(&str) -> bool) -> bool {
        self.0
            .get(&id)
            .is_some_and(|keys| any && keys.len() >= KEYS_MAX || keys.iter().any(|key| is_one(key)))
    }
}
