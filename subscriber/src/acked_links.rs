//! The links that the broker has already: a worker may leave them out of an `ACK`.
//!
//! Four in five links of a page are known. A worker may omit a link that an applied `ACK` of the
//! same pass and run carried at no greater depth, since the scope last grew: the broker has judged
//! it then and would decide the same now. An unknown link is sent once more and costs a line, so
//! dropping entries is always allowed. A false match would lose a page, so this is not a Bloom
//! filter: it keeps 64 bits of each URL's key, as the broker does. Pure, and bounded by
//! `ACKED_LINKS_BYTES_MAX`.

use std::collections::BTreeMap;
use std::hash::BuildHasher;
use std::mem;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::pass::{PassKey, ScopedPass};

/// Memory of [`AckedLinks`]: enough for 450,000 links at least, and
/// mostly for twice as many.
const ACKED_LINKS_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Passes with known links. A worker with tasks of more passes sends some links again.
const ACKED_LINKS_PASSES_MAX: usize = 1_024;

/// The size of the smallest table in bytes, rounded down.
const TABLE_BYTES_MIN: usize = 128;

/// The links of applied replies, by pass.
#[derive(Debug)]
pub struct AckedLinks {
    passes: BTreeMap<PassKey, PassLinks>,
    hasher: DefaultHashBuilder,
    /// Bytes of all tables; `<= bytes_max`, also while one of them grows.
    bytes: usize,
    bytes_max: usize,
    /// A counter of uses, which tells the pass that was used last.
    uses: u64,
}

/// The links of one pass, in two generations: when the memory is full, the young table becomes the
/// old one, and the old one is dropped.
#[derive(Debug, Default)]
struct PassLinks {
    /// The broker judged all of them with a scope of at least this size.
    scope: u64,
    young: HashTable<LinkEntry>,
    old: HashTable<LinkEntry>,
    last_use: u64,
}

/// The fingerprint of a URL and its least depth, as 10 bytes, where integers would be padded to 16.
#[derive(Debug, Clone, Copy)]
struct LinkEntry {
    fingerprint: [u8; 8],
    depth: [u8; 2],
}

impl Default for AckedLinks {
    fn default() -> Self {
        Self::with_bytes_max(ACKED_LINKS_BYTES_MAX)
    }
}

impl AckedLinks {
    /// An empty set. Its tables never take more than this.
    pub fn with_bytes_max(bytes_max: usize) -> Self {
        let hasher = DefaultHashBuilder::default();
        Self { passes: BTreeMap::new(), hasher, bytes: 0, bytes_max, uses: 0 }
    }

    /// Whether a link at this depth (that of its page and one) may be left out of the reply.
    /// `fingerprint` is the [`UrlKey::fingerprint`](tidings_protocol::UrlKey::fingerprint) of its
    /// URL.
    pub fn may_omit(&mut self, of: ScopedPass, print: u64, depth: u32) -> bool {
        self.uses += 1;
        let Some(prints) = self.passes.get_mut(&of.pass) else { return false };
        prints.last_use = self.uses;
        if prints.scope < of.scope {
            return false;
        }
        let hash = self.hasher.hash_one(print);
        [&prints.young, &prints.old].into_iter().any(|table| {
            let found = table.find(hash, |entry| entry.fingerprint() == print);
            found.is_some_and(|entry| u32::from(entry.depth()) <= depth)
        })
    }

    /// Adds the links, at this depth, of an `ACK` that was answered `+OK`.
    pub fn acked(&mut self, of: ScopedPass, prints: impl IntoIterator<Item = u64>, depth: u32) {
        // A greater depth is sent every time: it does not occur, and all entries save two bytes.
        let Ok(depth) = u16::try_from(depth) else { return };
        if !self.open(of) {
            return;
        }
        for print in prints {
            self.insert(
                of.pass,
                LinkEntry { fingerprint: print.to_ne_bytes(), depth: depth.to_ne_bytes() },
            );
        }
    }

    /// Removes a pass: it is over, or its name may belong to another one from now on.
    pub fn forget(&mut self, pass: PassKey) {
        if let Some(prints) = self.passes.remove(&pass) {
            self.bytes -= prints.bytes();
        }
    }

    /// Bytes of all tables.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Selects a pass; clears it if its scope has grown. `false`: the known scope is larger.
    fn open(&mut self, ScopedPass { pass, scope }: ScopedPass) -> bool {
        if self.passes.get(&pass).is_some_and(|prints| prints.scope < scope) {
            self.forget(pass);
        }
        if self.passes.len() >= ACKED_LINKS_PASSES_MAX && !self.passes.contains_key(&pass) {
            let longest_ago = self.passes.iter().min_by_key(|(_, prints)| prints.last_use);
            if let Some((&pass, _)) = longest_ago {
                self.forget(pass);
            }
        }
        self.uses += 1;
        let prints =
            self.passes.entry(pass).or_insert_with(|| PassLinks { scope, ..PassLinks::default() });
        prints.last_use = self.uses;
        prints.scope == scope
    }

    fn insert(&mut self, pass: PassKey, entry: LinkEntry) {
        let hash = self.hasher.hash_one(entry.fingerprint());
        let Some(prints) = self.passes.get_mut(&pass) else { return };
        if let Some(known) =
            prints.young.find_mut(hash, |known| known.fingerprint == entry.fingerprint)
        {
            known.depth = known.depth().min(entry.depth()).to_ne_bytes();
            return;
        }
        if !self.make_room(pass) {
            return;
        }
        let hasher = &self.hasher;
        if let Some(prints) = self.passes.get_mut(&pass) {
            prints.young.insert_unique(hash, entry, |entry| hasher.hash_one(entry.fingerprint()));
        }
    }

    /// Makes room for one more entry in the young table of a pass: lets it grow if the limit
    /// permits that; otherwise drops the old table of the largest pass. `false`: the limit is too
    /// low for any table.
    fn make_room(&mut self, pass: PassKey) -> bool {
        loop {
            let Some(prints) = self.passes.get_mut(&pass) else { return false };
            if prints.young.len() < prints.young.capacity() {
                return true;
            }
            // A table that grows doubles, and the old memory is freed afterwards.
            let more = TABLE_BYTES_MIN.max(2 * prints.young.allocation_size());
            if self.bytes + more <= self.bytes_max {
                let before = prints.bytes();
                let hasher = &self.hasher;
                prints.young.reserve(1, |entry| hasher.hash_one(entry.fingerprint()));
                self.bytes = self.bytes - before + prints.bytes();
                return true;
            }
            let most = self.passes.values_mut().max_by_key(|prints| prints.bytes());
            let Some(prints) = most.filter(|prints| prints.bytes() > 0) else { return false };
            // Without an old table this frees nothing yet; the next iteration does.
            let before = prints.bytes();
            prints.old = mem::take(&mut prints.young);
            self.bytes = self.bytes - before + prints.bytes();
        }
    }
}

impl PassLinks {
    fn bytes(&self) -> usize {
        self.young.allocation_size() + self.old.allocation_size()
    }
}

impl LinkEntry {
    fn fingerprint(&self) -> u64 {
        u64::from_ne_bytes(self.fingerprint)
    }

    fn depth(&self) -> u16 {
        u16::from_ne_bytes(self.depth)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn pass(number: u64) -> ScopedPass {
        ScopedPass { pass: PassKey::new(1, "a", number), scope: 2 }
    }

    /// Evenly distributed, as those of URLs.
    fn print(number: u64) -> u64 {
        number.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1
    }

    // PROTOCOL: C7
    #[test]
    fn a_link_is_omitted_at_no_lesser_depth_than_before() {
        let mut known = AckedLinks::default();
        known.acked(pass(1), [print(1), print(2)], 3);
        assert!(known.may_omit(pass(1), print(1), 3));
        assert!(known.may_omit(pass(1), print(2), 9));
        assert!(!known.may_omit(pass(1), print(1), 2));
        assert!(!known.may_omit(pass(1), print(3), 3));
        assert!(!known.may_omit(pass(2), print(1), 3));
        known.acked(pass(1), [print(1)], 1);
        known.acked(pass(1), [print(1)], 8);
        assert!(known.may_omit(pass(1), print(1), 1));
        assert!(!known.may_omit(pass(1), print(1), 0));
        known.forget(pass(1).pass);
        assert!(!known.may_omit(pass(1), print(1), 9));
        assert_eq!(known.bytes(), 0);
    }

    // PROTOCOL: C7
    #[test]
    fn a_grown_scope_sends_all_links_again() {
        let mut known = AckedLinks::default();
        let grown = ScopedPass { scope: 3, ..pass(1) };
        known.acked(pass(1), [print(1)], 1);
        assert!(!known.may_omit(grown, print(1), 1));
        assert!(known.may_omit(pass(1), print(1), 1), "a task with the earlier scope");
        known.acked(grown, [print(2)], 1);
        // A late answer: the broker judged it by either scope.
        known.acked(pass(1), [print(3)], 1);
        for of in [pass(1), grown] {
            let left_out = [1, 2, 3].map(|link| known.may_omit(of, print(link), 1));
            assert_eq!(left_out, [false, true, false]);
        }
    }

    #[test]
    fn passes_differ_by_each_part_of_their_key() {
        let keys = [(1, "a", 1), (2, "a", 1), (1, "b", 1), (1, "a", 2), (1, "", 1)];
        let keys = keys.map(|(run, job, pass)| PassKey::new(run, job, pass));
        assert_eq!(keys.iter().collect::<std::collections::BTreeSet<_>>().len(), keys.len());
        assert_eq!(PassKey::new(1, "a", 1), keys[0]);
    }

    #[test]
    fn very_deep_links_are_always_sent() {
        let mut known = AckedLinks::default();
        known.acked(pass(1), [print(1)], 65_535);
        known.acked(pass(1), [print(2)], 65_536);
        assert!(known.may_omit(pass(1), print(1), 65_535));
        assert!(!known.may_omit(pass(1), print(2), u32::MAX));
    }

    #[test]
    fn a_pass_has_hundreds_of_thousands_and_keeps_the_newest() {
        let mut known = AckedLinks::default();
        let count = 2_000_000;
        known.acked(pass(1), (0..count).map(print), 1);
        assert!(known.bytes() <= ACKED_LINKS_BYTES_MAX);
        let kept = (0..count).rev().take_while(|n| known.may_omit(pass(1), print(*n), 1));
        let kept = kept.count();
        assert!(kept > 450_000, "{kept}");
        assert!(known.bytes() / kept < 26, "{} bytes for {kept}", known.bytes());
    }

    #[test]
    fn the_least_recently_used_pass_is_evicted_first() {
        let mut known = AckedLinks::default();
        let many = ACKED_LINKS_PASSES_MAX as u64;
        for number in 0..many {
            known.acked(pass(number), [print(1)], 1);
        }
        assert!(known.may_omit(pass(0), print(1), 1));
        known.acked(pass(many), [print(1)], 1);
        assert!(!known.may_omit(pass(1), print(1), 1));
        for number in (2..=many).chain([0]) {
            assert!(known.may_omit(pass(number), print(1), 1), "{number}");
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Acked(u64, u64, Vec<u64>, u32),
        Asked(u64, u64, u64, u32),
        Forgotten(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let (pass, link, depth) = (0..4_u64, 0..200_u64, prop_oneof![0..5_u32, 65_530..65_540_u32]);
        let scope = prop_oneof![9 => Just(0_u64), 1 => 0..4_u64];
        let links = prop::collection::vec(link.clone(), 0..60);
        prop_oneof![
            8 => (pass.clone(), scope.clone(), links, depth.clone())
                .prop_map(|(pass, scope, links, depth)| Step::Acked(pass, scope, links, depth)),
            16 => (pass.clone(), scope, link, depth)
                .prop_map(|(pass, scope, link, depth)| Step::Asked(pass, scope, link, depth)),
            1 => pass.prop_map(Step::Forgotten),
        ]
    }

    proptest! {
        /// With enough memory it equals a map; with less it omits nothing that the map does not;
        /// with none, nothing.
        #[test]
        fn as_a_map_and_never_more(
            steps in prop::collection::vec(step(), 1..200),
            bytes_max in 0..8_000_usize,
        ) {
            let (mut all, mut some) = (AckedLinks::default(), AckedLinks::with_bytes_max(bytes_max));
            let mut model = BTreeMap::new();
            let mut scopes = BTreeMap::new();
            let scoped = |number, scope| ScopedPass { scope, ..pass(number) };
            for step in steps {
                match step {
                    Step::Acked(number, scope, links, depth) => {
                        let of = scoped(number, scope);
                        all.acked(of, links.iter().copied().map(print), depth);
                        some.acked(of, links.iter().copied().map(print), depth);
                        let mut is_kept = u16::try_from(depth).is_ok();
                        if is_kept {
                            let newest = scopes.entry(number).or_insert(scope);
                            if *newest < scope {
                                model.retain(|(other, _), _| *other != number);
                                *newest = scope;
                            }
                            is_kept = *newest == scope;
                        }
                        for link in links.into_iter().filter(|_| is_kept) {
                            let least = model.entry((number, link)).or_insert(depth);
                            *least = depth.min(*least);
                        }
                    }
                    Step::Asked(number, scope, link, depth) => {
                        let of = scoped(number, scope);
                        let known = model.get(&(number, link)).is_some_and(|least| *least <= depth)
                            && scopes[&number] >= scope;
                        prop_assert_eq!(all.may_omit(of, print(link), depth), known);
                        prop_assert!(known || !some.may_omit(of, print(link), depth));
                    }
                    Step::Forgotten(number) => {
                        all.forget(pass(number).pass);
                        some.forget(pass(number).pass);
                        scopes.remove(&number);
                        model.retain(|(other, _), _| *other != number);
                    }
                }
                prop_assert!(some.bytes() <= bytes_max);
                let bytes: usize = some.passes.values().map(PassLinks::bytes).sum();
                prop_assert_eq!(some.bytes(), bytes);
            }
        }
    }
}
