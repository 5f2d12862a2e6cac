//! Recognises the kind of a document (page, sitemap or feed) and reads its links.
//!
//! The first bytes decide, because servers send sitemaps and feeds as `text/xml`,
//! `application/rss+xml`, `application/gzip`, `text/plain`, `text/html` or without a type. A document
//! with an HTML content type is a page unless it is clearly one of them.

use std::collections::HashSet;

use tidings_protocol::{CanonicalUrl, UrlKey};

use crate::feed::FeedReader;
use crate::page::{
    PageContent, PageLink, PageReader, QUICK_BASE_BYTES_MAX, is_html, is_media_type,
};
use crate::sitemap::{SITEMAP_URLS_MAX, SitemapReader, has_sitemap_root};

/// Bytes examined to find the type of a document. A comment and a style sheet may come before the
/// first element of a feed.
const DOCUMENT_SNIFF_BYTES: usize = 2 * 1024;
/// Bytes of all URLs of a sitemap: 160 for each.
const SITEMAP_LINKS_BYTES_MAX: usize = 8 * 1024 * 1024;
/// The permit of a page: `LINKS_BYTES_MAX` and `LINKS_ABSOLUTE_BYTES_MAX`.
pub const PAGE_BUDGET_BYTES: usize = 6 * 1024 * 1024;
/// The permit of a sitemap or feed: `SITEMAP_LINKS_BYTES_MAX` and the keys of its URLs; or
/// `FEED_JSON_BYTES_MAX` twice.
const SITEMAP_BUDGET_BYTES: usize = 12 * 1024 * 1024;

/// Reads a document of any kind.
#[derive(Debug)]
pub struct DocumentReader {
    content_type: Option<String>,
    url: String,
    /// The first bytes after the kind is known, as far as they have not been read.
    head: Vec<u8>,
    state: DocumentState,
}

#[derive(Debug)]
enum DocumentState {
    /// Before the kind is known; with the reader for the case that it is a page.
    Head(Vec<u8>, Box<PageReader>),
    Page(Box<PageReader>),
    Sitemap(Box<(SitemapReader, LinkCollector)>),
    /// A JSON feed; XML feeds are read like sitemaps.
    JsonFeed(Box<FeedReader>),
    /// A document without links.
    Other,
}

/// The links of a sitemap or feed.
#[derive(Debug, Default)]
struct LinkCollector {
    /// Canonical, without repeats; `<= SITEMAP_URLS_MAX`, of `<= SITEMAP_LINKS_BYTES_MAX` together.
    links: Vec<PageLink>,
    seen: HashSet<UrlKey>,
    bytes: usize,
    cut: Option<&'static str>,
}

/// The kind of a document, as its first bytes suggest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DocumentKind {
    Page,
    /// Also an XML feed, or a plain list.
    Sitemap,
    JsonFeed,
    Other,
}

impl DocumentReader {
    /// For a document with this `Content-Type` header, from this URL. `page` reads it if it is a
    /// page.
    pub fn new(content_type: Option<&str>, url: &CanonicalUrl, page: PageReader) -> Self {
        let content_type = content_type.filter(|content_type| is_media_type(content_type));
        let state = DocumentState::Head(Vec::new(), Box::new(page));
        let content_type = content_type.map(str::to_owned);
        Self { content_type, url: url.as_str().to_owned(), head: Vec::new(), state }
    }

    /// Reads the next bytes.
    pub fn feed(&mut self, mut bytes: &[u8]) {
        while self.step(&mut bytes) {}
    }

    /// Reads some of the next bytes: as many as take a few milliseconds. Returns whether there is
    /// more to do, with the rest of these bytes or, after all of them, with none.
    pub fn step(&mut self, bytes: &mut &[u8]) -> bool {
        if let DocumentState::Head(head, _) = &mut self.state {
            let wanted = DOCUMENT_SNIFF_BYTES - head.len();
            let (first, rest) = bytes.split_at(wanted.min(bytes.len()));
            head.extend_from_slice(first);
            *bytes = rest;
            if head.len() < DOCUMENT_SNIFF_BYTES {
                return false;
            }
            self.detect_kind();
        }
        if self.head.is_empty() {
            return self.consume(bytes);
        }
        let head = std::mem::take(&mut self.head);
        let mut rest = &*head;
        let more = self.consume(&mut rest);
        self.head = rest.to_vec();
        match self.state {
            // The next chunk of a page is read quickly.
            DocumentState::Page(_) => self.consume(bytes),
            _ => more || !bytes.is_empty(),
        }
    }

    /// Whether it is a page, after its last bytes were read.
    pub fn is_page(&mut self) -> bool {
        self.detect_kind();
        matches!(self.state, DocumentState::Page(_))
    }

    /// Whether [`DocumentReader::finish`] may block other tasks for too long.
    pub fn finish_may_block(&self) -> bool {
        match &self.state {
            DocumentState::Page(page) => {
                page.finish_may_block() || self.url.len() > QUICK_BASE_BYTES_MAX
            }
            // A compressed document may be long.
            DocumentState::Head(head, _) => {
                head.starts_with(&[0x1f, 0x8b]) || self.url.len() > QUICK_BASE_BYTES_MAX
            }
            DocumentState::Sitemap(_) | DocumentState::JsonFeed(_) => true,
            DocumentState::Other => false,
        }
    }

    /// The most memory that it may use until it is stored, approximately.
    pub fn memory_bytes_max(&self) -> usize {
        match &self.state {
            DocumentState::Page(_) => PAGE_BUDGET_BYTES,
            _ => SITEMAP_BUDGET_BYTES,
        }
    }

    /// The memory that it uses, approximately.
    pub fn memory_bytes(&self) -> usize {
        match &self.state {
            DocumentState::Page(page) => page.memory_bytes(),
            DocumentState::Sitemap(sitemap) => sitemap.0.memory_bytes() + sitemap.1.memory_bytes(),
            DocumentState::JsonFeed(feed) => feed.memory_bytes(),
            DocumentState::Head(..) | DocumentState::Other => 0,
        }
    }

    /// Ends the document and resolves its links. `url` is where it was found.
    pub fn finish(mut self, url: &CanonicalUrl) -> PageContent {
        self.detect_kind();
        let head = std::mem::take(&mut self.head);
        let mut rest = &*head;
        while self.consume(&mut rest) {}
        match self.state {
            DocumentState::Page(page) => page.finish(url),
            DocumentState::Sitemap(sitemap) => {
                let (reader, mut collector) = *sitemap;
                let summary = reader.finish(&mut |entry| collector.add(entry.url));
                let cut = collector.cut.or(summary.cut).filter(|_| summary.kind.is_some());
                PageContent { links: collector.links, cut, ..PageContent::default() }
            }
            DocumentState::JsonFeed(feed) => {
                let feed = feed.finish(Some(url.as_str()));
                let mut collector = LinkCollector::default();
                for entry in &feed.entries {
                    collector.add(entry.link.as_deref().unwrap_or_default());
                }
                let cut = collector.cut.or(feed.cut);
                PageContent { links: collector.links, cut, ..PageContent::default() }
            }
            DocumentState::Head(..) | DocumentState::Other => PageContent::default(),
        }
    }

    fn detect_kind(&mut self) {
        let (head, page) = match std::mem::replace(&mut self.state, DocumentState::Other) {
            DocumentState::Head(head, page) => (head, page),
            other => {
                self.state = other;
                return;
            }
        };
        let content_type = self.content_type.as_deref();
        self.state = match sniff(&head, content_type) {
            DocumentKind::Page => DocumentState::Page(page),
            DocumentKind::Sitemap => {
                let reader = SitemapReader::new(content_type, Some(&self.url));
                DocumentState::Sitemap(Box::new((reader, LinkCollector::default())))
            }
            DocumentKind::JsonFeed => {
                DocumentState::JsonFeed(Box::new(FeedReader::new(content_type)))
            }
            DocumentKind::Other => DocumentState::Other,
        };
        self.head = head;
    }

    fn consume(&mut self, bytes: &mut &[u8]) -> bool {
        match &mut self.state {
            DocumentState::Sitemap(sitemap) => {
                let (reader, collector) = &mut **sitemap;
                reader.step(bytes, &mut |entry| collector.add(entry.url))
            }
            DocumentState::JsonFeed(feed) => feed.step(bytes),
            DocumentState::Page(page) => {
                page.feed(std::mem::take(bytes));
                false
            }
            DocumentState::Head(..) | DocumentState::Other => {
                *bytes = &[];
                false
            }
        }
    }
}

impl LinkCollector {
    fn add(&mut self, url: &str) {
        let Ok(url) = CanonicalUrl::parse(url) else { return };
        if self.cut.is_some() || !self.seen.insert(url.url_key()) {
            return;
        }
        self.bytes += url.as_str().len();
        if self.links.len() == SITEMAP_URLS_MAX {
            self.cut = Some("too many links; the rest were left out");
        } else if self.bytes > SITEMAP_LINKS_BYTES_MAX {
            self.cut = Some("links too long together; the rest were left out");
        } else {
            self.links.push(PageLink { url: url.as_str().into(), nofollow: false });
        }
    }

    fn memory_bytes(&self) -> usize {
        self.bytes + self.links.len() * (size_of::<PageLink>() + 2 * size_of::<UrlKey>())
    }
}

/// The kind of a document by its first bytes.
fn sniff(head: &[u8], content_type: Option<&str>) -> DocumentKind {
    if head.starts_with(&[0x1f, 0x8b]) {
        return DocumentKind::Sitemap;
    }
    // Of UTF-16, only the ASCII characters are compared. PHP escapes slashes in JSON.
    let text: Vec<u8> = head
        .iter()
        .filter(|byte| byte.is_ascii() && !matches!(**byte, 0 | b'\\'))
        .map(u8::to_ascii_lowercase)
        .collect();
    let text = text.trim_ascii_start();
    let has = |word: &str| memchr::memmem::find(text, word.as_bytes()).is_some();
    let is_declared_page = content_type.is_some_and(is_html);
    let is_declared_feed = content_type.is_some_and(|kind| kind.contains("feed+json"));
    let is_list = (text.starts_with(b"http://") || text.starts_with(b"https://"))
        && !(is_declared_page && has("<"));
    let roots =
        ["<urlset", "<sitemapindex", "<rss", "<feed", ":rdf", ":urlset", ":sitemapindex", ":feed"];
    let is_markup = text.starts_with(b"<") && !has("<html") && !has("<!doctype html");
    let has_root = || {
        roots.iter().any(|root| has(root))
            && (!is_declared_page || has_sitemap_root(head, content_type))
    };
    if is_list || is_markup && has_root() {
        DocumentKind::Sitemap
    } else if text.starts_with(b"{") && (is_declared_feed || has("jsonfeed.org/version/")) {
        DocumentKind::JsonFeed
    } else if content_type.is_none_or(is_html) {
        // A document without a type counts as a page, as in wget.
        DocumentKind::Page
    } else {
        DocumentKind::Other
    }
}

#[cfg(test)]
mod tests;
