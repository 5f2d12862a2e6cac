//! All keys of a group. Entries refer to a key by a small id; its text is stored once.

use std::hash::BuildHasher;
use std::ops::{Index, IndexMut};

use hashbrown::{DefaultHashBuilder, HashTable};

use super::key_queue::KeyQueue;
use super::rules::{KeyRules, is_named};
use crate::entry::Key;

/// Approximate memory of a key, with its text and its places in the indexes.
const KEY_BYTES: usize = 250;

/// Most keys for which memory is reserved at once.
const RESERVED_MAX: usize = 5_000_000;

/// Texts that are looked up together: more loads than a processor runs at a time, and few enough
/// that the first ones are still cached when they are used.
pub(crate) const FIND_MANY_MAX: usize = 64;

/// Id of a key in memory, valid until the key is removed. Ids differ from start to start, so no
/// record contains one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct KeyId(u32);

impl KeyId {
    /// Returns the id as an index.
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// The keys that have entries, are busy or rest.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    queues: Vec<Option<KeyQueue>>,
    free_ids: Vec<KeyId>,
    by_name: HashTable<KeyId>,
    hasher: DefaultHashBuilder,
    /// Rules of an operator, also for keys that are not here.
    rules: KeyRules,
}

impl Keys {
    /// Reserves memory for `count` keys, within limits, because the number may be damaged.
    pub(super) fn reserve(&mut self, count: usize) {
        let count = count.min(RESERVED_MAX);
        self.queues.reserve(count);
        self.by_name.reserve(count, |_| unreachable!("memory is reserved before the first key"));
    }

    /// Returns the key with that text, if the group knows it.
    pub(crate) fn find(&self, name: &str) -> Option<KeyId> {
        let is_it = |id: &KeyId| &**self[*id].name() == name;
        self.by_name.find(self.hasher.hash_one(name), is_it).copied()
    }

    /// Finds several keys, at most [`FIND_MANY_MAX`]. Same result as [`Keys::find`] for each, but
    /// each step is taken for all texts before the next one, so that the processor loads several
    /// places in memory at a time.
    pub(crate) fn find_many<'a>(
        &self,
        names: impl Iterator<Item = &'a str> + Clone,
        found: &mut [Option<KeyId>],
    ) {
        debug_assert!(found.len() <= FIND_MANY_MAX, "at most FIND_MANY_MAX keys are found at once");
        let mut hashes = [0; FIND_MANY_MAX];
        let mut known: [&[u8]; FIND_MANY_MAX] = [&[]; FIND_MANY_MAX];
        for (name, hash) in names.clone().zip(&mut hashes) {
            *hash = self.hasher.hash_one(name);
        }
        // The hash nearly always matches one key only.
        for (hash, found) in hashes.iter().zip(&mut *found) {
            *found = self.by_name.find(*hash, |_| true).copied();
        }
        for (found, known) in found.iter().zip(&mut known) {
            *known = found.map_or(&[], |id| self[id].name().as_bytes());
        }
        // Reading one byte of each loads the names.
        let mut ends = [None; FIND_MANY_MAX];
        for (known, end) in known.iter().zip(&mut ends) {
            *end = known.last().copied();
        }
        for (((name, found), known), end) in names.zip(found).zip(known).zip(ends) {
            if end != name.as_bytes().last().copied() || known != name.as_bytes() {
                *found = found.and_then(|_| self.find(name));
            }
        }
    }

    /// Returns the key with that text, and adds it if it is new.
    pub(super) fn intern(&mut self, name: &Key) -> KeyId {
        if let Some(id) = self.find(name) {
            return id;
        }
        let mut queue = KeyQueue::new(name.clone());
        self.rules.assign(&mut queue);
        let queue = Some(queue);
        let id = if let Some(id) = self.free_ids.pop() {
            self.queues[id.index()] = queue;
            id
        } else {
            let next = u32::try_from(self.queues.len()).expect("keys are fewer than entries");
            self.queues.push(queue);
            KeyId(next)
        };
        let Self { queues, by_name, hasher, .. } = self;
        let hash = |id: &KeyId| hasher.hash_one(&**name_of(queues, *id));
        by_name.insert_unique(hasher.hash_one(&**name), id, hash);
        id
    }

    /// Returns the queue of a key, unless the key was removed.
    pub(super) fn get_mut(&mut self, id: KeyId) -> Option<&mut KeyQueue> {
        self.queues[id.index()].as_mut()
    }

    /// Removes a key. Its id may be reused for another key.
    pub(super) fn remove(&mut self, id: KeyId) {
        let Some(queue) = self.queues[id.index()].take() else { return };
        let hash = self.hasher.hash_one(&**queue.name());
        if let Ok(entry) = self.by_name.find_entry(hash, |known| *known == id) {
            entry.remove();
        }
        self.free_ids.push(id);
    }

    /// Counts the keys.
    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Returns their approximate memory.
    pub(crate) fn bytes(&self) -> usize {
        self.len() * KEY_BYTES
    }

    /// Reports whether it has no keys.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Returns the key at an index from 0; `Err` beyond the last.
    pub(crate) fn at_index(&self, place: usize) -> Result<Option<&KeyQueue>, ()> {
        self.queues.get(place).map(Option::as_ref).ok_or(())
    }

    /// Returns the rules of an operator.
    pub(crate) fn rules(&self) -> &KeyRules {
        &self.rules
    }

    /// Returns the rules of an operator.
    pub(super) fn rules_mut(&mut self) -> &mut KeyRules {
        &mut self.rules
    }

    /// Returns the keys that a rule with this name is about. Unless they are one key, it visits
    /// all.
    pub(crate) fn matching(&self, name: &str, below: bool) -> Vec<KeyId> {
        if !below {
            return self.find(name).into_iter().collect();
        }
        let mut ids = self.ids();
        ids.retain(|id| is_named(self[*id].name(), name, below));
        ids
    }

    /// Looks up the rules of these keys again.
    pub(super) fn assign_rules(&mut self, ids: &[KeyId]) {
        let Self { queues, rules, .. } = self;
        for id in ids {
            rules.assign(queues[id.index()].as_mut().expect("the key exists"));
        }
    }

    /// Returns the keys at places above `after`, with their places; the first one is 1. A key keeps
    /// its place for as long as the group knows it.
    pub(crate) fn above(&self, after: u64) -> impl Iterator<Item = (u64, Option<KeyId>)> {
        let skipped = usize::try_from(after).unwrap_or(usize::MAX);
        let keys = (0..).map(KeyId).zip(&self.queues).skip(skipped);
        keys.map(|(id, queue)| (u64::from(id.0) + 1, queue.as_ref().map(|_| id)))
    }

    /// Returns the ids of all keys, sorted.
    pub(crate) fn ids(&self) -> Vec<KeyId> {
        let known = (0..).map(KeyId).zip(&self.queues).filter(|(_, queue)| queue.is_some());
        known.map(|(id, _)| id).collect()
    }
}

impl Index<KeyId> for Keys {
    type Output = KeyQueue;

    fn index(&self, id: KeyId) -> &KeyQueue {
        self.queues[id.index()].as_ref().expect("a key with references is not removed")
    }
}

impl IndexMut<KeyId> for Keys {
    fn index_mut(&mut self, id: KeyId) -> &mut KeyQueue {
        self.queues[id.index()].as_mut().expect("a key with references is not removed")
    }
}

fn name_of(queues: &[Option<KeyQueue>], id: KeyId) -> &Key {
    queues[id.index()].as_ref().expect("an indexed key exists").name()
}
