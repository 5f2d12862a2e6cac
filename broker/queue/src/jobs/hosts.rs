//! Counts the pages of one pass per key, for a job with a limit per host.

use std::collections::BTreeSet;

use hashbrown::HashMap;

use crate::entry::{EntryId, Key};

/// Pages per key of a pass. Stays empty without a limit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct HostPages {
    pages_max: Option<u64>,
    by_key: HashMap<Key, HostPageCount>,
    /// Keys that have used up their budget while entries still wait behind them.
    exhausted: BTreeSet<Key>,
}

/// An entry that is counted for its key.
#[derive(Debug, Clone, Copy)]
pub(crate) enum HostEntry {
    /// It is dormant.
    Dormant,
    /// It is active and waits.
    Waiting(EntryId),
    /// A member holds it, or it is pinned for its member's next request.
    InFlight,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct HostPageCount {
    completed: u64,
    /// Entries that may become pages: held by a member, or pinned for their member's next request.
    in_flight: u64,
    /// Waiting active entries.
    waiting: BTreeSet<EntryId>,
    /// Number of waiting dormant entries.
    dormant: u64,
}

impl HostPages {
    pub(super) fn new(pages_max: Option<u64>) -> Self {
        Self { pages_max, ..Self::default() }
    }

    /// The same limit without any counts.
    pub(super) fn without_counts(&self) -> Self {
        Self { pages_max: self.pages_max, ..Self::default() }
    }

    /// Applies another limit, and forgets all entries, which the caller counts again. Without a
    /// limit, completed pages are forgotten too.
    pub(super) fn restart(&mut self, pages_max: Option<u64>) {
        let completed = std::mem::replace(self, Self::new(pages_max)).by_key;
        if self.is_limited() {
            for (key, host) in completed.into_iter().filter(|(_, host)| host.completed > 0) {
                self.restore(&key, host.completed);
            }
        }
    }

    /// Keys with completed pages, and their numbers.
    pub(super) fn completed(&self) -> impl Iterator<Item = (&Key, u64)> {
        let some = self.by_key.iter().filter(|(_, host)| host.completed > 0);
        some.map(|(key, host)| (key, host.completed))
    }

    /// Restores the number of completed pages of a key.
    pub(super) fn restore(&mut self, key: &Key, completed: u64) {
        self.by_key.entry(key.clone()).or_default().completed = completed;
    }

    /// Whether there is a limit.
    pub(super) fn is_limited(&self) -> bool {
        self.pages_max.is_some()
    }

    /// Whether the key's budget allows no further release now.
    pub(super) fn is_blocked(&self, key: &str) -> bool {
        let used = self.by_key.get(key).map_or(0, |host| host.completed + host.in_flight);
        self.pages_max.is_some_and(|max| used >= max)
    }

    /// Whether the key's budget is used up.
    pub(super) fn is_exhausted(&self, key: &str) -> bool {
        let completed = self.by_key.get(key).map_or(0, |host| host.completed);
        self.pages_max.is_some_and(|max| completed >= max)
    }

    /// Keys that have used up their budget while entries still wait behind them.
    pub(super) fn exhausted(&self) -> impl Iterator<Item = &Key> {
        self.exhausted.iter()
    }

    /// Active entries that wait behind a key.
    pub(super) fn waiting(&self, key: &str) -> impl Iterator<Item = EntryId> {
        self.by_key.get(key).into_iter().flat_map(|host| host.waiting.iter().copied())
    }

    /// Adds a dormant entry.
    pub(super) fn add_dormant(&mut self, key: &Key) {
        self.add(key, |host| host.dormant += 1);
    }

    /// Removes a dormant entry.
    pub(super) fn remove_dormant(&mut self, key: &Key) {
        self.remove(key, |host| host.dormant -= 1);
    }

    /// Adds a waiting active entry.
    pub(super) fn add_waiting(&mut self, entry: EntryId, key: &Key) {
        self.add(key, |host| _ = host.waiting.insert(entry));
    }

    /// Removes a waiting active entry.
    pub(super) fn remove_waiting(&mut self, entry: EntryId, key: &Key) {
        self.remove(key, |host| _ = host.waiting.remove(&entry));
    }

    fn add(&mut self, key: &Key, change: impl FnOnce(&mut HostPageCount)) {
        if self.is_limited() {
            change(self.by_key.entry(key.clone()).or_default());
            if self.is_exhausted(key) {
                self.exhausted.insert(key.clone());
            }
        }
    }

    fn remove(&mut self, key: &Key, change: impl FnOnce(&mut HostPageCount)) {
        self.change(key, change);
        if self.by_key.get(key).is_none_or(|host| !host.has_waiting()) {
            self.exhausted.remove(key);
        }
    }

    /// Counts an entry that may become a page.
    pub(super) fn begin_page(&mut self, key: &Key) {
        if self.is_limited() {
            self.by_key.entry(key.clone()).or_default().in_flight += 1;
        }
    }

    /// The entry became no page, at least not now.
    pub(super) fn cancel_page(&mut self, key: &Key) {
        self.change(key, |host| host.in_flight -= 1);
    }

    /// The entry became a page.
    pub(super) fn complete_page(&mut self, key: &Key) {
        let Some(max) = self.pages_max else { return };
        let host =
            self.by_key.get_mut(key).expect("a page in flight was counted before it completes");
        host.in_flight -= 1;
        host.completed += 1;
        if host.completed >= max && host.has_waiting() {
            self.exhausted.insert(key.clone());
        }
    }

    /// Changes the counts of a key, and removes them if all are zero.
    fn change(&mut self, key: &Key, change: impl FnOnce(&mut HostPageCount)) {
        if let Some(host) = self.by_key.get_mut(key) {
            change(host);
            if *host == HostPageCount::default() {
                self.by_key.remove(key);
            }
        }
    }
}

impl HostPageCount {
    fn has_waiting(&self) -> bool {
        !self.waiting.is_empty() || self.dormant > 0
    }
}
