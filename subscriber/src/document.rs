//! Which kind of document was fetched, and the links that are in it: a page, a sitemap or a feed.
//!
//! What calls itself HTML is read as a page. Of anything else the first bytes decide, since sitemaps and feeds come as
//! `text/xml`, `application/rss+xml`, `application/gzip`, `text/plain` or nothing at all.

use std::collections::HashSet;

use tidings_protocol::{CanonicalUrl, UrlKey};

use crate::config::{
    DOCUMENT_SNIFF_BYTES, PAGE_ROOM_BYTES, QUICK_BASE_BYTES_MAX, SITEMAP_LINKS_BYTES_MAX,
    SITEMAP_ROOM_BYTES, SITEMAP_URLS_MAX,
};
use crate::feed::FeedReader;
use crate::page::{Content, Link, PageReader, is_html};
use crate::sitemap::SitemapReader;

/// Reads a document, whatever it is.
#[derive(Debug)]
pub struct Reader {
    content_type: Option<String>,
    url: String,
    /// The beginning, once it is known what it is, as far as it has not been read.
    head: Vec<u8>,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Until there is enough to know it by; and the reader if it is a page.
    Head(Vec<u8>, Box<PageReader>),
    Page(Box<PageReader>),
    Sitemap(Box<(SitemapReader, Places)>),
    /// A JSON feed; those of XML are read as sitemaps are.
    JsonFeed(Box<FeedReader>),
    /// Nothing that has links.
    Other,
}

/// The links of a sitemap.
#[derive(Debug, Default)]
struct Places {
    /// Canonical, each once; `<= SITEMAP_URLS_MAX`, of `<= SITEMAP_LINKS_BYTES_MAX` together.
    links: Vec<Link>,
    known: HashSet<UrlKey>,
    bytes: usize,
    cut: Option<&'static str>,
}

/// What a document seems to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Looks {
    Page,
    /// Or a feed of XML, or a plain list.
    Sitemap,
    JsonFeed,
    Other,
}

impl Reader {
    /// For a document with this `Content-Type` header, from this URL; and the reader if it is a page.
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

    /// Takes the next bytes.
    pub fn feed(&mut self, mut bytes: &[u8]) {
        while self.step(&mut bytes) {}
    }

    /// Takes some of the next bytes: as many as are read in a few milliseconds. Whether there is more to do, with these
    /// bytes or, when all of them were taken, without any.
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
            // What comes at once of a page is soon read.
            State::Page(_) => self.take(bytes),
            _ => more || !bytes.is_empty(),
        }
    }

    /// Whether [`Reader::finish`] may take longer than others can wait.
    pub fn is_long(&self) -> bool {
        match &self.state {
            State::Page(page) => page.is_long() || self.url.len() > QUICK_BASE_BYTES_MAX,
            // What is compressed may be long.
            State::Head(head, _) => head.starts_with(&[0x1f, 0x8b]),
            State::Sitemap(_) | State::JsonFeed(_) => true,
            State::Other => false,
        }
    }

    /// What it may hold in memory until it is stored, about.
    pub(crate) fn room_bytes(&self) -> usize {
        match &self.state {
            State::Page(_) => PAGE_ROOM_BYTES,
            _ => SITEMAP_ROOM_BYTES,
        }
    }

    /// What it holds in memory, about.
    pub(crate) fn held_bytes(&self) -> usize {
        match &self.state {
            State::Page(page) => page.held_bytes(),
            State::Sitemap(sitemap) => sitemap.0.held_bytes() + sitemap.1.held_bytes(),
            State::JsonFeed(feed) => feed.held_bytes(),
            State::Head(..) | State::Other => 0,
        }
    }

    /// The document is over: resolves what was found. `url` is where it was found.
    pub fn finish(mut self, url: &CanonicalUrl) -> Content {
        self.begin();
        let head = std::mem::take(&mut self.head);
        let mut rest = &*head;
        while self.take(&mut rest) {}
        match self.state {
            State::Page(page) => page.finish(url),
            State::Sitemap(sitemap) => {
                let (reader, mut places) = *sitemap;
                let summary = reader.finish(&mut |place| places.keep(place.url));
                let cut = places.cut.or(summary.cut).filter(|_| summary.kind.is_some());
                Content { links: places.links, cut, ..Content::default() }
            }
            State::JsonFeed(feed) => {
                let feed = feed.finish(Some(url.as_str()));
                let mut places = Places::default();
                for entry in &feed.entries {
                    places.keep(entry.link.as_deref().unwrap_or_default());
                }
                let cut = places.cut.or(feed.cut);
                Content { links: places.links, cut, ..Content::default() }
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
                let (reader, places) = &mut **sitemap;
                reader.step(bytes, &mut |place| places.keep(place.url))
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

/// What a document that does not call itself HTML seems to be, by its first bytes.
fn looks(head: &[u8], content_type: Option<&str>) -> Looks {
    if head.starts_with(&[0x1f, 0x8b]) {
        return Looks::Sitemap;
    }
    // Of UTF-16, what is ASCII.
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
        // Who says nothing forgot to say that it is a page, as wget has it.
        Looks::Page
    } else {
        Looks::Other
    }
}

#[cfg(test)]
#[path = "document_tests.rs"]
mod tests;
