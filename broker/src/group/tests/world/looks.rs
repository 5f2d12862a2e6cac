//! What was announced, and whether somebody has looked since.

use std::collections::BTreeMap;

use super::promises::{Kept, Promise};

/// URLs that somebody was promised a look at, with the place of that promise in the order of things.
#[derive(Debug, Default)]
pub(super) struct Looks(BTreeMap<String, u64>);

impl Looks {
    /// The group has taken an announcement.
    pub(super) fn promise(&mut self, url: &str, order: u64) {
        self.0.insert(url.to_owned(), order);
    }

    /// The group knows the end of a task that was released at this place. A look that began before
    /// the announcement may have missed what was new.
    pub(super) fn ended(&mut self, url: &str, released: u64) {
        if self.0.get(url).is_some_and(|promised| released > *promised) {
            self.0.remove(url);
        }
    }

    /// Somebody was told that nobody will look.
    pub(super) fn given_up(&mut self, url: &str) {
        self.0.remove(url);
    }

    /// Everything was dropped on purpose.
    pub(super) fn purge(&mut self) {
        self.0.clear();
    }

    /// Somebody is to look at it.
    pub(super) fn owes(&self, url: &str) -> bool {
        self.0.contains_key(url)
    }

    /// What is still to be looked at.
    pub(super) fn owed(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Everything was looked at.
    pub(super) fn check_end(&self) -> Kept {
        Promise::NoTaskLost.holds(self.0.is_empty(), || {
            format!("announced, and not fetched since: {:?}", self.0.keys())
        })
    }
}
