//! The items of a feed that are known, and what makes an item new.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::feed::FeedEntry;
use crate::feed::version::first_u64;

/// Items that are remembered of a watched feed after they have left it: as many as a feed may drop
/// and show again. 32 bytes each.
pub(super) const FEED_SEEN_MAX: usize = 2_000;

/// A new item to be published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewItem {
    /// As written in the feed.
    pub id: String,
    /// Usually absolute; `None` if the feed has no link for it.
    pub link: Option<String>,
    /// Identifies the item within the feed.
    pub fingerprint: ItemFingerprint,
}

/// The identity of an item: a hash of its id, and one of its id and link. For a page: its version,
/// and the number of the version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ItemFingerprint {
    pub(super) id: u64,
    pub(super) link: u64,
}

impl ItemFingerprint {
    fn of(entry: &FeedEntry) -> Self {
        Self::of_texts(&entry.id, entry.link.as_deref().unwrap_or_default())
    }

    /// The item under the other one of http and https: a site that changes to https has no new
    /// items by that.
    fn under_other_scheme(entry: &FeedEntry) -> Self {
        let link = entry.link.as_deref().unwrap_or_default();
        Self::of_texts(&other_scheme(&entry.id), &other_scheme(link))
    }

    fn of_texts(id: &str, link: &str) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(id.as_bytes());
        let id = first_u64(hasher.finalize());
        hasher.update(&[0]).update(link.as_bytes());
        Self { id, link: first_u64(hasher.finalize()) }
    }
}

/// A text that is no URL stays as it is.
fn other_scheme(text: &str) -> Cow<'_, str> {
    match text.split_once("://") {
        Some(("http", rest)) => format!("https://{rest}").into(),
        Some(("https", rest)) => format!("http://{rest}").into(),
        _ => text.into(),
    }
}

impl FromStr for ItemFingerprint {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match *KnownItems::from_str(text)?.0 {
            [print] => Ok(print),
            _ => Err("a fingerprint is 32 hexadecimal digits"),
        }
    }
}

impl fmt::Display for ItemFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:016x}", self.id, self.link)
    }
}

/// Known items, the last seen at the end. As text, 32 hexadecimal digits each.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct KnownItems(pub(super) Vec<ItemFingerprint>);

impl TryFrom<String> for KnownItems {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let print = |digits: &[u8]| {
            let half = |digits| u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
            let (id, link) = digits.split_at_checked(16).filter(|(_, link)| link.len() == 16)?;
            Some(ItemFingerprint { id: half(id)?, link: half(link)? })
        };
        let prints = text.as_bytes().chunks(32).map(print);
        prints.collect::<Option<_>>().map(Self).ok_or("fingerprints are 32 hexadecimal digits each")
    }
}

impl From<KnownItems> for String {
    fn from(known: KnownItems) -> Self {
        known.0.iter().map(ItemFingerprint::to_string).collect()
    }
}

impl FromStr for KnownItems {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.to_owned().try_into()
    }
}

impl KnownItems {
    /// The items of a feed, at most `max`: the newest, which come first in feeds.
    pub fn newest(entries: &[FeedEntry], max: usize) -> Self {
        Self(entries.iter().take(max).rev().map(ItemFingerprint::of).collect())
    }

    /// Adds items that a hub delivered, and returns the new ones. An unknown item after all known
    /// ones is older: it becomes known, but is not new.
    pub fn add_delivered(&mut self, entries: &[FeedEntry]) -> Vec<NewItem> {
        let links: HashSet<_> = self.0.iter().map(|print| print.link).collect();
        let is_known = |entry: &FeedEntry| {
            links.contains(&ItemFingerprint::of(entry).link)
                || links.contains(&ItemFingerprint::under_other_scheme(entry).link)
        };
        let oldest = entries.iter().rposition(is_known);
        let news = oldest.map_or(entries, |oldest| &entries[..oldest]);
        let news: HashSet<_> = news.iter().map(|entry| ItemFingerprint::of(entry).link).collect();
        let mut new = self.add_new(entries);
        new.retain(|item| news.contains(&item.fingerprint.link));
        new
    }

    /// Makes a version of a page the only known one. Returns its fingerprint if the version is new.
    pub fn set_version(&mut self, version: u64) -> Option<ItemFingerprint> {
        if self.is_at_version(version) {
            return None;
        }
        // A version that returns has another number.
        let print = ItemFingerprint { id: version, link: self.version_number().saturating_add(1) };
        self.0 = vec![print];
        Some(print)
    }

    /// From 1; 0 if no version is known.
    fn version_number(&self) -> u64 {
        self.0.last().map_or(0, |print| print.link)
    }

    pub(super) fn is_at_version(&self, version: u64) -> bool {
        self.0.last().is_some_and(|print| print.id == version)
    }

    /// Takes over a version of a page from another process, unless it is older.
    pub fn merge_version(&mut self, other: Self) {
        if other.version_number() > self.version_number() {
            *self = other;
        }
    }

    /// Takes over known items from another process.
    pub fn merge(&mut self, others: Self) {
        let Self(prints) = others;
        self.move_to_end(&prints.iter().map(|print| print.link).collect(), prints);
    }

    /// Adds the items of a feed and returns the new ones. An item that returns is known as long as
    /// it is remembered, and an edited item is the same item. Items with equal ids and different
    /// links are distinguished by both. http and https are the same.
    pub fn add_new(&mut self, entries: &[FeedEntry]) -> Vec<NewItem> {
        let mut links_of: HashMap<u64, u64> = HashMap::new();
        let mut ambiguous = HashSet::new();
        let prints: Vec<_> = entries.iter().map(ItemFingerprint::of).collect();
        for print in &prints {
            if *links_of.entry(print.id).or_insert(print.link) != print.link {
                ambiguous.insert(print.id);
            }
        }
        let ids: HashSet<_> = self.0.iter().map(|print| print.id).collect();
        let links: HashSet<_> = self.0.iter().map(|print| print.link).collect();
        let is_known = |print: &ItemFingerprint| {
            links.contains(&print.link) || ids.contains(&print.id) && !ambiguous.contains(&print.id)
        };
        let mut present = HashSet::new();
        let (mut new, mut seen) = (Vec::new(), Vec::new());
        // The newest come first in feeds.
        for (entry, print) in entries.iter().zip(&prints).rev() {
            let other = ItemFingerprint::under_other_scheme(entry);
            if present.contains(&other.link) && other != *print || !present.insert(print.link) {
                continue;
            }
            seen.push(*print);
            if !is_known(print) && !is_known(&other) {
                let FeedEntry { id, link, .. } = entry.clone();
                new.push(NewItem { id, link, fingerprint: *print });
            }
        }
        self.move_to_end(&present, seen);
        new
    }

    fn move_to_end(&mut self, present: &HashSet<u64>, seen: Vec<ItemFingerprint>) {
        let kept = FEED_SEEN_MAX.max(seen.len());
        let known = &mut self.0;
        known.retain(|print| !present.contains(&print.link));
        known.extend(seen);
        known.drain(..known.len().saturating_sub(kept));
    }
}

impl NewItem {
    /// The item of a version of a page.
    pub fn of_page(url: &str, fingerprint: ItemFingerprint) -> Self {
        Self { id: fingerprint.to_string(), link: Some(url.to_owned()), fingerprint }
    }
}
