//! Resolves XML namespaces of feeds.

use crate::markup::{MarkupTag, local_name, name_prefix};

/// A longer namespace is not a known one.
const NAMESPACE_BYTES_MAX: usize = 100;
/// Limit of declarations in scope. Feeds with many modules have some thirty. Each name is searched
/// in all of them.
const DECLARATIONS_MAX: usize = 64;

/// A vocabulary of feeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Vocabulary {
    /// RSS or none: a feed without namespaces, or with an unknown default namespace.
    Plain,
    Atom,
    Rdf,
    DublinCore,
    Syndication,
    Other,
}

impl Vocabulary {
    /// Whether its elements are titles, links and ids of a feed.
    pub(super) fn is_feed_vocabulary(self) -> bool {
        matches!(self, Self::Plain | Self::Atom)
    }

    fn of_namespace(name: &str) -> Option<Self> {
        let name = name.trim().trim_end_matches(['/', '#']).to_ascii_lowercase();
        Some(match name.as_str() {
            ""
            | "http://backend.userland.com/rss"
            | "http://backend.userland.com/rss2"
            | "http://blogs.law.harvard.edu/tech/rss"
            | "http://channel.netscape.com/rdf/simple/0.9"
            | "http://my.netscape.com/rdf/simple/0.9"
            | "http://my.netscape.com/publish/formats/rss-0.91.dtd"
            | "http://purl.org/net/rss1.1"
            | "http://purl.org/rss/1.0"
            | "http://purl.org/rss/1.0/modules/rss091" => Self::Plain,
            "http://www.w3.org/2005/atom" | "http://purl.org/atom/ns" => Self::Atom,
            "http://www.w3.org/1999/02/22-rdf-syntax-ns" => Self::Rdf,
            "http://purl.org/dc/elements/1.0"
            | "http://purl.org/dc/elements/1.1"
            | "http://purl.org/dc/terms" => Self::DublinCore,
            "http://purl.org/rss/1.0/modules/syndication" => Self::Syndication,
            _ => return None,
        })
    }

    /// The meaning of a prefix without a declaration.
    fn of_prefix(prefix: &str) -> Self {
        match prefix.to_ascii_lowercase().as_str() {
            "" | "rss" => Self::Plain,
            "a10" | "atom" | "atom03" | "atom10" => Self::Atom,
            "rdf" => Self::Rdf,
            "dc" | "dcterms" => Self::DublinCore,
            "sy" => Self::Syndication,
            _ => Self::Other,
        }
    }
}

/// The namespaces in scope.
#[derive(Debug, Default)]
pub(super) struct Namespaces {
    /// The innermost last; `len <= DECLARED_MAX`.
    declarations: Vec<(Box<str>, Vocabulary)>,
}

impl Namespaces {
    /// Adds the declarations of a tag. Returns how many, for [`Namespaces::leave`].
    pub(super) fn enter(&mut self, tag: MarkupTag<'_>) -> usize {
        let before = self.declarations.len();
        for (key, value) in tag.attributes() {
            let prefix = match key.split_once(':') {
                None if key == "xmlns" => "",
                Some(("xmlns", prefix)) => prefix,
                _ => continue,
            };
            if self.declarations.len() < DECLARATIONS_MAX && prefix.len() <= NAMESPACE_BYTES_MAX {
                let namespace = Some(&*value).filter(|name| name.len() <= NAMESPACE_BYTES_MAX);
                let unknown = if prefix.is_empty() { Vocabulary::Plain } else { Vocabulary::Other };
                let vocabulary = namespace.and_then(Vocabulary::of_namespace).unwrap_or(unknown);
                self.declarations.push((prefix.into(), vocabulary));
            }
        }
        self.declarations.len() - before
    }

    /// Removes the last declarations.
    pub(super) fn leave(&mut self, declared: usize) {
        self.declarations.truncate(self.declarations.len() - declared);
    }

    /// The vocabulary of a name, and its local part in lower case.
    pub(super) fn resolve(&self, name: &str) -> (Vocabulary, String) {
        let (prefix, local) = (name_prefix(name), local_name(name).to_ascii_lowercase());
        let declared = self.declarations.iter().rev().find(|(known, _)| **known == *prefix);
        let vocabulary =
            declared.map_or_else(|| Vocabulary::of_prefix(prefix), |(_, vocabulary)| *vocabulary);
        (vocabulary, local)
    }
}
