//! Seen sets: the URLs that each pass has met. A link is new if it is neither here nor dormant.

use hashbrown::{HashMap, HashSet};

use crate::entry::PassId;

/// Most fingerprints of a single set. A snapshot writes one set at a time, so sets stay small.
const SET_MAX: usize = 1 << 14;

/// Number of sets of a larger pass.
const SETS: usize = 1 << 10;

/// The URLs each running pass has met and that are not parked, by [`UrlKey::fingerprint`].
///
/// [`UrlKey::fingerprint`]: tidings_protocol::UrlKey::fingerprint
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SeenSets {
    passes: HashMap<PassId, Fingerprints>,
}

#[derive(Debug, PartialEq, Eq)]
enum Fingerprints {
    Few(HashSet<u64>),
    Many(Vec<HashSet<u64>>),
}

impl SeenSets {
    /// Reports whether the pass has seen a URL.
    pub(super) fn contains(&self, pass: PassId, fingerprint: u64) -> bool {
        self.passes.get(&pass).is_some_and(|fingerprints| match fingerprints {
            Fingerprints::Few(set) => set.contains(&fingerprint),
            Fingerprints::Many(sets) => sets[set_of(fingerprint)].contains(&fingerprint),
        })
    }

    /// Adds a URL.
    pub(super) fn insert(&mut self, pass: PassId, fingerprint: u64) {
        let fingerprints =
            self.passes.entry(pass).or_insert_with(|| Fingerprints::Few(HashSet::new()));
        match fingerprints {
            Fingerprints::Few(set) => {
                set.insert(fingerprint);
                if set.len() > SET_MAX {
                    let mut sets = vec![HashSet::new(); SETS];
                    for fingerprint in set.drain() {
                        sets[set_of(fingerprint)].insert(fingerprint);
                    }
                    *fingerprints = Fingerprints::Many(sets);
                }
            }
            Fingerprints::Many(sets) => _ = sets[set_of(fingerprint)].insert(fingerprint),
        }
    }

    /// Returns all passes with seen URLs.
    pub(super) fn passes(&self) -> Vec<PassId> {
        let mut passes: Vec<PassId> = self.passes.keys().copied().collect();
        passes.sort_unstable();
        passes
    }

    /// Returns one of the sets of a pass, which are numbered from 0; `None` beyond the last.
    pub(super) fn set(&self, pass: PassId, number: usize) -> Option<&HashSet<u64>> {
        match self.passes.get(&pass)? {
            Fingerprints::Few(set) => (number == 0).then_some(set),
            Fingerprints::Many(sets) => sets.get(number),
        }
    }

    /// Removes a pass that is over.
    pub(super) fn remove(&mut self, pass: PassId) {
        self.passes.remove(&pass);
    }
}

fn set_of(fingerprint: u64) -> usize {
    // Fingerprints are evenly distributed.
    usize::try_from(fingerprint % SETS as u64).expect("a set number is small")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn urls_stay_seen_when_the_set_is_split() {
        let mut seen = SeenSets::default();
        let pass = PassId { number: 1, pass: 1 };
        let fingerprint = |n: u64| n.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let count = 3 * SET_MAX as u64;
        for n in 0..count {
            assert!(!seen.contains(pass, fingerprint(n)));
            seen.insert(pass, fingerprint(n));
        }
        assert!((0..count).all(|n| seen.contains(pass, fingerprint(n))));
        let sets = (0..).map_while(|number| seen.set(pass, number));
        let all: BTreeSet<u64> = sets.flatten().copied().collect();
        assert_eq!(all, (0..count).map(fingerprint).collect());
        assert!((0..).map_while(|number| seen.set(pass, number)).all(|set| set.len() < 1000));
        seen.remove(pass);
        assert!(!seen.contains(pass, fingerprint(0)));
    }
}
