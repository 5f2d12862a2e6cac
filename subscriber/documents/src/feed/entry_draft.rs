//! The entries of a feed while it is read, and their links.

use std::sync::Arc;

use tidings_protocol::CanonicalUrl;

use super::FeedEntry;
use crate::markup::ReferenceResolver;

/// What a URL is to its entry; the later ones are better as its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LinkKind {
    /// An id that is an HTTP URL, although its format does not promise a page there.
    Id,
    /// A file that belongs to the entry, such as an episode.
    Enclosure,
    /// The content of the entry, where it is not in the feed.
    Content,
    /// Another form of the entry, or an id that is also its page.
    Alternate,
    /// The page of an Atom entry.
    Page,
    /// `<link>` of RSS.
    Link,
}

/// What is known about an entry, or about the feed.
#[derive(Debug, Default)]
pub(super) struct EntryDraft {
    pub(super) title: Option<String>,
    pub(super) fallback_title: Option<String>,
    pub(super) id: Option<String>,
    pub(super) fallback_id: Option<String>,
    /// The highest kind counts, and the first of equal ones.
    pub(super) link: Option<(LinkKind, String, Option<Arc<XmlBase>>)>,
    pub(super) self_url: Option<(String, Option<Arc<XmlBase>>)>,
    pub(super) updated: Option<String>,
    pub(super) published: Option<String>,
    pub(super) summary: Option<String>,
}

/// A value of `xml:base`.
#[derive(Debug)]
pub(super) struct XmlBase {
    /// `<= FEED_BASE_BYTES_MAX`
    pub(super) written: Box<str>,
    /// At most as long; `None` if it depends on the URL of the feed, which is known at the end.
    pub(super) url: Option<CanonicalUrl<'static>>,
}

impl EntryDraft {
    /// The memory that it uses, approximately.
    pub(super) fn bytes(&self) -> usize {
        let ids = [&self.title, &self.fallback_title, &self.id, &self.fallback_id];
        let texts = ids.into_iter().chain([&self.updated, &self.published, &self.summary]);
        let link = self
            .link
            .as_ref()
            .map_or(0, |(_, link, base)| link.len() + base.as_ref().map_or(0, |base| base.bytes()));
        texts.flatten().map(String::len).sum::<usize>() + link
    }

    pub(super) fn resolve(self, resolver: &mut LinkResolver<'_>) -> FeedEntry {
        let link = self.link.map(|(_, link, inner)| resolver.resolve(link, inner.as_ref()));
        let title = self.title.or(self.fallback_title);
        let updated = self.updated.or(self.published);
        let id = self.id.or(self.fallback_id);
        let id = id.unwrap_or_else(|| {
            let texts = [title.as_deref(), updated.as_deref(), self.summary.as_deref()];
            derived_id(link.as_deref(), texts)
        });
        FeedEntry { id, link, title, updated }
    }
}

impl XmlBase {
    fn bytes(&self) -> usize {
        self.written.len() + self.url.as_ref().map_or(0, |url| url.as_str().len())
    }
}

/// Resolves links with `xml:base` and the URL of the feed.
pub(super) struct LinkResolver<'a> {
    pub(super) references: ReferenceResolver,
    pub(super) document: Option<CanonicalUrl<'a>>,
    /// The base that was resolved last, because many links share one. An `xml:base` may be relative
    /// to the URL of the feed.
    pub(super) cached_base: Option<(Arc<XmlBase>, Option<CanonicalUrl<'static>>)>,
}

impl LinkResolver<'_> {
    pub(super) fn absolute(&mut self, link: &str, inner: Option<&Arc<XmlBase>>) -> Option<String> {
        if let Some(base) = inner
            && !self.cached_base.as_ref().is_some_and(|(known, _)| Arc::ptr_eq(known, base))
        {
            let join = || self.references.url(&base.written, self.document.as_ref());
            let url = base.url.clone().or_else(join);
            self.cached_base = Some((Arc::clone(base), url));
        }
        let known = self.cached_base.as_ref().filter(|_| inner.is_some());
        let base = known.and_then(|(_, url)| url.as_ref()).or(self.document.as_ref());
        self.references.absolute(link, base)
    }

    /// The link as written, if it cannot be resolved.
    pub(super) fn resolve(&mut self, link: String, inner: Option<&Arc<XmlBase>>) -> String {
        self.absolute(&link, inner).unwrap_or(link)
    }
}

/// The id of an item without one: its link, or a hash of its texts.
pub(super) fn derived_id(link: Option<&str>, texts: [Option<&str>; 3]) -> String {
    if let Some(link) = link {
        return link.to_owned();
    }
    let mut hasher = blake3::Hasher::new();
    for text in texts {
        // Separated, so that different items do not hash to the same text.
        hasher.update(text.unwrap_or_default().as_bytes()).update(&[0]);
    }
    format!("hash:{}", &hasher.finalize().to_hex()[..32])
}
