//! Recognises the kind of a document (page, sitemap or feed) and reads its links.
//!
//! A document with an HTML content type is read as a page. For any other, the first bytes decide,
//! because servers send sitemaps and feeds as `text/xml`, `application/rss+xml`,
//! `application/gzip`, `text/plain` or without a type.

use std::collections::HashSet;

use tidings_protocol::{CanonicalUrl, UrlKey};

use crate::config::{
    DOCUMENT_SNIFF_BYTES, PAGE_ROOM_BYTES, QUICK_BASE_BYTES_MAX, SITEMAP_LINKS_BYTES_MAX,
    SITEMAP_ROOM_BYTES, SITEMAP_URLS_MAX,
};
use crate::feed::FeedReader;
use crate::page::{Content, Link, PageReader, is_html};
use crate::sitemap::SitemapReader;

/// Reads a document of any kind.
#[derive(Debug)]
pub struct Reader {
    content_type: Option<String>,
    url: String,
    /// The first bytes after the kind is known, as far as they have not been read.
    head: Vec<u8>,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Before the kind is known; with the reader for the case that it is a page.
    Head(Vec<u8>, Box<PageReader>),
    Page(Box<PageReader>),
    Sitemap(Box<(SitemapReader, Places)>),
    /// A JSON feed; XML feeds are read like sitemaps.
    JsonFeed(Box<FeedReader>),
    /// A document without links.
    Other,
}

/// The links of a sitemap or feed.
#[derive(Debug, Default)]
struct Places {
    /// Canonical, without repeats; `<= SITEMAP_URLS_MAX`, of `<= SITEMAP_LINKS_BYTES_MAX` together.
    links: Vec<Link>,
    known: HashSet<UrlKey>,
    bytes: usize,
    cut: Option<&'static str>,
}

/// The kind of a document, as its first bytes suggest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Looks {
    Page,
    /// Also an XML feed, or a plain list.
    Sitemap,
    JsonFeed,
    Other,
}

impl Reader {
    /// For a document with this `Content-Type` header, from this URL. `page` reads it if it is a
    /// page.
    pub fn new(content_type: Option<&str>, url: &CanonicalUrl, page: PageReader) -> Self {
        let page = Box::new(page);
        let state = if content_type.is_some_and(is_html) {
            State::Page(page)
        } else {
            State::Head(Vec::new(), page)
        };
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
        if let State::Head(head, _) = &mut self.state {
            let wanted = DOCUMENT_SNIFF_BYTES - head.len();
            let (first, rest) = bytes.split_at(wanted.min(bytes.len()));
            head.extend_from_slice(first);
            *bytes = rest;
            if head.len() < DOCUMENT_SNIFF_BYTES {
                return false;
            }
            self.begin();
        }
        if self.head.is_empty() {
            return self.take(bytes);
        }
        let head = std::mem::take(&mut self.head);
        let mut rest = &*head;
        let more = self.take(&mut rest);
        self.head = rest.to_vec();
        match self.state {
            // The next chunk of a page is read quickly.
            State::Page(_) => self.take(bytes),
            _ => more || !bytes.is_empty(),
        }
    }

    /// Whether [`Reader::finish`] may block other tasks for too long.
    pub fn is_long(&self) -> bool {
        match &self.state {
            State::Page(page) => page.is_long() || self.url.len() > QUICK_BASE_BYTES_MAX,
            // A compressed document may be long.
            State::Head(head, _) => head.starts_with(&[0x1f, 0x8b]),
            State::Sitemap(_) | State::JsonFeed(_) => true,
            State::Other => false,
        }
    }

    /// The most memory that it may use until it is stored, approximately.
    pub(crate) fn room_bytes(&self) -> usize {
        match &self.state {
            State::Page(_) => PAGE_ROOM_BYTES,
            _ => SITEMAP_ROOM_BYTES,
        }
    }

    /// The memory that it uses, approximately.
    pub(crate) fn held_bytes(&self) -> usize {
        match &self.state {
            State::Page(page) => page.held_bytes(),
            State::Sitemap(sitemap) => sitemap.0.held_bytes() + sitemap.1.held_bytes(),
            State::JsonFeed(feed) => feed.held_bytes(),
            State::Head(..) | State::Other => 0,
        }
    }

    /// Ends the document and resolves its links. `url` is where it was found.
    pub fn finish(mut self, url: &CanonicalUrl) -> Content {
        self.begin();
        let head = std::mem::take(&mut self.head);
        let mut rest = &*head;
        while self.take(&mut rest) {}
        match self.state {
            State::Page(page) => page.finish(url),
            State::Sitemap(sitemap) => {
                let (reader, mut collector) = *sitemap;
                let summary = reader.finish(&mut |entry| collector.keep(entry.url));
                let cut = collector.cut.or(summary.cut).filter(|_| summary.kind.is_some());
                Content { links: collector.links, cut, ..Content::default() }
            }
            State::JsonFeed(feed) => {
                let feed = feed.finish(Some(url.as_str()));
                let mut collector = Places::default();
                for entry in &feed.entries {
                    collector.keep(entry.link.as_deref().unwrap_or_default());
                }
                let cut = collector.cut.or(feed.cut);
                Content { links: collector.links, cut, ..Content::default() }
            }
            State::Head(..) | State::Other => Content::default(),
        }
    }

    fn begin(&mut self) {
        let (head, page) = match std::mem::replace(&mut self.state, State::Other) {
            State::Head(head, page) => (head, page),
            other => {
                self.state = other;
                return;
            }
        };
        let content_type = self.content_type.as_deref();
        self.state = match looks(&head, content_type) {
            Looks::Page => State::Page(page),
            Looks::Sitemap => {
                let reader = SitemapReader::new(content_type, Some(&self.url));
                State::Sitemap(Box::new((reader, Places::default())))
            }
            Looks::JsonFeed => State::JsonFeed(Box::new(FeedReader::new(content_type))),
            Looks::Other => State::Other,
        };
        self.head = head;
    }

    fn take(&mut self, bytes: &mut &[u8]) -> bool {
        match &mut self.state {
            State::Sitemap(sitemap) => {
                let (reader, collector) = &mut **sitemap;
                reader.step(bytes, &mut |entry| collector.keep(entry.url))
            }
            State::JsonFeed(feed) => feed.step(bytes),
            State::Page(page) => {
                page.feed(std::mem::take(bytes));
                false
            }
            State::Head(..) | State::Other => {
                *bytes = &[];
                false
            }
        }
    }
}

impl Places {
    fn keep(&mut self, url: &str) {
        let Ok(url) = CanonicalUrl::parse(url) else { return };
        if self.cut.is_some() || !self.known.insert(url.url_key()) {
            return;
        }
        self.bytes += url.as_str().len();
        if self.links.len() == SITEMAP_URLS_MAX {
            self.cut = Some("too many links; the rest were left out");
        } else if self.bytes > SITEMAP_LINKS_BYTES_MAX {
            self.cut = Some("links too long together; the rest were left out");
        } else {
            self.links.push(Link { url: url.as_str().into(), nofollow: false });
        }
    }

    fn held_bytes(&self) -> usize {
        self.bytes + self.links.len() * (size_of::<Link>() + 2 * size_of::<UrlKey>())
    }
}

/// The kind of a document without an HTML content type, by its first bytes.
fn looks(head: &[u8], content_type: Option<&str>) -> Looks {
    if head.starts_with(&[0x1f, 0x8b]) {
        return Looks::Sitemap;
    }
    // Of UTF-16, only the ASCII characters are compared.
    let text: Vec<u8> = head
        .iter()
        .filter(|byte| byte.is_ascii() && **byte != 0)
        .map(u8::to_ascii_lowercase)
        .collect();
    let text = text.trim_ascii_start();
    let has = |word: &str| memchr::memmem::find(text, word.as_bytes()).is_some();
    let is_list = text.starts_with(b"http://") || text.starts_with(b"https://");
    let roots =
        ["<urlset", "<sitemapindex", "<rss", "<feed", ":rdf", ":urlset", ":sitemapindex", ":feed"];
    let is_markup = text.starts_with(b"<") && !has("<html") && !has("<!doctype html");
    if is_list || is_markup && roots.iter().any(|root| has(root)) {
        Looks::Sitemap
    } else if text.starts_with(b"{") && has("jsonfeed.org/version/") {
        Looks::JsonFeed
    } else if content_type.is_none() {
        // A document without a type counts as a page, as in wget.
        Looks::Page
    } else {
        Looks::Other
    }
}

#[cfg(test)]
#[path = "document_tests.rs"]
mod tests;
