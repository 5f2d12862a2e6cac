//! Which URLs a pass has met. A found link is checked against this and nothing else.

use std::collections::{HashMap, HashSet};

use tidings_protocol::UrlKey;

use super::entry::JobRef;

/// The URLs each running pass has admitted.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    passes: HashMap<JobRef, HashSet<UrlKey>>,
}

impl Seen {
    /// Whether the pass has met this URL.
    pub(super) fn has(&self, pass: JobRef, url: UrlKey) -> bool {
        self.passes.get(&pass).is_some_and(|urls| urls.contains(&url))
    }

    /// Remembers it.
    pub(super) fn add(&mut self, pass: JobRef, url: UrlKey) {
        self.passes.entry(pass).or_default().insert(url);
    }

    /// All passes with what they have met.
    pub(super) fn iter(&self) -> impl Iterator<Item = (JobRef, &HashSet<UrlKey>)> {
        self.passes.iter().map(|(pass, urls)| (*pass, urls))
    }

    /// The pass is over: what it has met is nobody's question any more.
    pub(super) fn forget(&mut self, pass: JobRef) {
        self.passes.remove(&pass);
    }
}
