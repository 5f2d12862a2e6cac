//! The set of links of a page as written, in their order. All share one buffer.

use std::hash::BuildHasher;
use std::ops::Range;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::page::LINK_BYTES_MAX;

/// Links kept from one page, without duplicates. Indexes of large manuals have some thousands.
pub(crate) const LINKS_MAX: usize = 16 * 1024;
/// Bytes of all links of one page, before they are made absolute: what one page may hold in memory
/// until it is stored.
pub(crate) const LINKS_BYTES_MAX: usize = 2 * 1024 * 1024;

/// Sizes of an average page, reserved at the first link.
const USUAL_LINKS: usize = 32;
const USUAL_LINK_BYTES: usize = 32;

/// Links as written, without their fragments.
#[derive(Default)]
pub(super) struct LinkSet {
    /// `<= LINKS_BYTES_MAX`
    text: String,
    /// `<= LINKS_MAX`
    all: Vec<StoredLink>,
    /// Indices in `all`, by text. The hash has a random seed, so a page cannot provoke collisions.
    index: HashTable<usize>,
    hasher: DefaultHashBuilder,
}

struct StoredLink {
    /// The range in the text.
    range: Range<usize>,
    /// Every occurrence has `nofollow`.
    nofollow: bool,
}

impl LinkSet {
    /// Adds a link that may lead to a page. The error says why it was left out.
    pub(super) fn add(&mut self, link: &str, nofollow: bool) -> Result<(), &'static str> {
        let link = link.split_once('#').map_or(link, |(link, _fragment)| link);
        let link = link.trim_matches(|c| c <= ' ');
        if link.is_empty() || link.len() > LINK_BYTES_MAX || has_other_scheme(link) {
            return Ok(());
        }
        let Self { text, all, index: known, hasher } = self;
        if all.capacity() == 0 {
            text.reserve(USUAL_LINKS * USUAL_LINK_BYTES);
            all.reserve(USUAL_LINKS);
            known.reserve(USUAL_LINKS, |_| unreachable!("the table is empty"));
        }
        let hash = hasher.hash_one(link);
        if let Some(known) = known.find(hash, |at| text[all[*at].range.clone()] == *link) {
            all[*known].nofollow &= nofollow;
            return Ok(());
        }
        if all.len() == LINKS_MAX {
            return Err("too many links; the rest were left out");
        }
        let place = text.len()..text.len() + link.len();
        if place.end > LINKS_BYTES_MAX {
            return Err("links too long together; some were left out");
        }
        text.push_str(link);
        known.insert_unique(hash, all.len(), |at| hasher.hash_one(&text[all[*at].range.clone()]));
        all.push(StoredLink { range: place, nofollow });
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// The memory that they use, approximately.
    pub(super) fn memory_bytes(&self) -> usize {
        self.text.capacity() + self.all.capacity() * (size_of::<StoredLink>() + size_of::<usize>())
    }

    /// The links, and for each whether all occurrences have `nofollow`.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, bool)> {
        self.all.iter().map(|link| (&self.text[link.range.clone()], link.nofollow))
    }
}

/// Whether a link cannot lead to a page: `mailto:`, `javascript:` and the like.
pub(super) fn has_other_scheme(link: &str) -> bool {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
    let end = link.bytes().position(|byte| !is_part(&byte)).unwrap_or(link.len());
    let (scheme, rest) = link.split_at(end);
    rest.starts_with(':')
        && scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && !["http", "https"].iter().any(|it| scheme.eq_ignore_ascii_case(it))
}
