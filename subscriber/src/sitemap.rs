//! Reads sitemaps as defined by sitemaps.org: XML, a plain list, or a feed; compressed or not.
//!
//! It reads chunk by chunk and passes on each URL, so a sitemap of 50 MB needs no more memory than
//! a small one.

use std::fmt;

use tidings_protocol::CanonicalUrl;

use crate::config::{FEED_BYTES_MAX, LINK_BYTES_MAX, SITEMAP_BYTES_MAX, SITEMAP_URLS_MAX};
use crate::feed::Elements;
use crate::markup::{Decoder, Joining, Markup, Tag, Token, Unpacker, local, prefix};

/// The kind of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A list of pages.
    Urlset,
    /// A list of sitemaps.
    Index,
    /// A plain list of pages, one per line.
    Text,
    /// An RSS feed that serves as a sitemap.
    Rss,
    /// An Atom feed that serves as a sitemap.
    Atom,
}

impl Kind {
    /// The word in answers.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Urlset => "urlset",
            Self::Index => "index",
            Self::Text => "text",
            Self::Rss => "rss",
            Self::Atom => "atom",
        }
    }
}

/// An entry of a sitemap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location<'a> {
    /// Absolute; as written if it was absolute.
    pub url: &'a str,
    /// The time of the last change, as written.
    pub lastmod: Option<&'a str>,
}

/// The result of reading a sitemap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// `None`: it is not a sitemap.
    pub kind: Option<Kind>,
    /// The number of URLs.
    pub urls: usize,
    /// Why part of it was left out.
    pub cut: Option<&'static str>,
}

/// Reads a sitemap.
pub struct SitemapReader {
    unpacker: Unpacker,
    document: Document,
}

/// The decompressed document.
struct Document {
    content_type: Option<String>,
    bytes: u64,
    body: Body,
    found: Found,
}

enum Body {
    /// The first bytes after white space, until there are [`MARK_BYTES`] of them.
    Begin(Vec<u8>),
    Xml(Box<Markup>, Root),
    Text(Box<Decoder>, String),
    /// An unknown format.
    Other,
}

/// This many bytes are enough to recognise XML: `<` after any byte order mark, in any encoding.
const MARK_BYTES: usize = 4;

/// The root element.
enum Root {
    Awaited,
    Sitemap(Box<Places>),
    Feed(Box<Elements>),
    /// An unknown element.
    Other,
}

/// The elements of a sitemap.
#[derive(Default)]
struct Places {
    /// The prefix of the open `<url>` or `<sitemap>`.
    entry: Option<String>,
    capture: Option<(Field, String)>,
    location: String,
    lastmod: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Field {
    Location,
    Lastmod,
}

#[derive(Default)]
struct Found {
    base: Option<CanonicalUrl<'static>>,
    joining: Joining,
    summary: Summary,
}

impl fmt::Debug for SitemapReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SitemapReader").finish_non_exhaustive()
    }
}

/// Receives each entry as it is found.
pub type Each<'a> = &'a mut dyn FnMut(Location<'_>);

impl SitemapReader {
    /// For a sitemap with this `Content-Type` header, from this URL.
    pub fn new(content_type: Option<&str>, base: Option<&str>) -> Self {
        let content_type = content_type.map(str::to_owned);
        let base = base.and_then(|base| base.parse().ok());
        let found = Found { base, ..Found::default() };
        let document = Document { content_type, bytes: 0, body: Body::Begin(Vec::new()), found };
        Self { unpacker: Unpacker::new(), document }
    }

    /// Reads the next bytes.
    pub fn feed(&mut self, mut bytes: &[u8], each: Each<'_>) {
        while self.step(&mut bytes, each) {}
    }

    /// Reads some of the next bytes: as many as take a few milliseconds. Returns whether there is
    /// more to do.
    pub fn step(&mut self, bytes: &mut &[u8], each: Each<'_>) -> bool {
        self.unpacker.step(bytes, &mut |bytes| self.document.take(bytes, each))
    }

    /// The memory that it uses, approximately, without the entries that were passed on.
    pub(crate) fn held_bytes(&self) -> usize {
        match &self.document.body {
            Body::Xml(_, Root::Feed(elements)) => elements.held_bytes(),
            _ => 0,
        }
    }

    /// Ends the sitemap.
    pub fn finish(mut self, each: Each<'_>) -> Summary {
        self.unpacker.finish(&mut |bytes| self.document.take(bytes, each));
        let mut summary = self.document.finish(each);
        summary.cut = summary.cut.or(self.unpacker.cut());
        summary
    }
}

impl Document {
    fn finish(mut self, each: Each<'_>) -> Summary {
        self.begin_body(true, each);
        match self.body {
            Body::Begin(_) | Body::Other => {}
            Body::Xml(mut markup, mut root) => {
                markup.finish(&mut |token| root.take(token, &mut self.found, each));
                if markup.is_cut() {
                    self.found.cut("a tag is too long; the rest was left out");
                }
                match root {
                    Root::Sitemap(mut sitemap) if sitemap.capture.is_none() => {
                        sitemap.end_entry(&mut self.found, each);
                    }
                    Root::Feed(elements) => self.found.feed(*elements, each),
                    _ => {}
                }
            }
            Body::Text(mut decoder, mut line) => {
                decoder.decode(&[], true, &mut line);
                self.found.lines(&mut line, true, each);
            }
        }
        self.found.summary
    }

    /// Reads decompressed bytes, and returns whether it needs more.
    fn take(&mut self, bytes: &[u8], each: Each<'_>) -> bool {
        let room = SITEMAP_BYTES_MAX.saturating_sub(self.bytes);
        let fits = usize::try_from(room).map_or(bytes.len(), |room| room.min(bytes.len()));
        self.bytes += bytes.len() as u64;
        let mut kept = &bytes[..fits];
        if let Body::Begin(head) = &mut self.body {
            if head.is_empty() {
                kept = kept.trim_ascii_start();
            }
            head.extend_from_slice(kept);
            self.begin_body(false, each);
        } else {
            self.read(kept, each);
        }
        if self.bytes > SITEMAP_BYTES_MAX {
            self.found.cut("longer than a sitemap may be; the rest was left out");
        }
        self.found.summary.cut.is_none()
    }

    /// Recognises the format by the first bytes.
    fn begin_body(&mut self, last: bool, each: Each<'_>) {
        let Body::Begin(head) = &mut self.body else { return };
        if head.len() < MARK_BYTES && !last {
            return;
        }
        let head = std::mem::take(head);
        let content_type = self.content_type.as_deref();
        let is_wide = head.starts_with(&[0xff, 0xfe]) || head.starts_with(&[0xfe, 0xff]);
        self.body = if head.iter().take(MARK_BYTES).any(|byte| *byte == b'<') {
            Body::Xml(Box::new(Markup::new(content_type)), Root::Awaited)
        } else if head.iter().take(MARK_BYTES).any(|byte| *byte == 0) && !is_wide {
            Body::Other
        } else {
            Body::Text(Box::new(Decoder::new(content_type)), String::new())
        };
        self.read(&head, each);
    }

    fn read(&mut self, bytes: &[u8], each: Each<'_>) {
        match &mut self.body {
            Body::Begin(_) | Body::Other => {}
            Body::Xml(markup, root) => {
                markup.feed(bytes, &mut |token| root.take(token, &mut self.found, each));
                if matches!(root, Root::Feed(_)) && self.bytes > FEED_BYTES_MAX as u64 {
                    self.found.cut("longer than a feed may be; the rest was left out");
                }
            }
            Body::Text(decoder, line) => {
                for chunk in bytes.chunks(LINK_BYTES_MAX) {
                    decoder.decode(chunk, false, line);
                    self.found.lines(line, false, each);
                }
            }
        }
    }
}

impl Root {
    fn take(&mut self, token: Token<'_>, found: &mut Found, each: Each<'_>) {
        if let (Self::Awaited, Token::Open(tag)) = (&*self, &token) {
            let (root, kind) = match local(tag.name).to_ascii_lowercase().as_str() {
                "urlset" => (Self::Sitemap(Box::default()), Some(Kind::Urlset)),
                "sitemapindex" => (Self::Sitemap(Box::default()), Some(Kind::Index)),
                "rss" | "rdf" => (Self::Feed(Box::default()), Some(Kind::Rss)),
                "feed" => (Self::Feed(Box::default()), Some(Kind::Atom)),
                _ => (Self::Other, None),
            };
            *self = root;
            found.summary.kind = kind;
        }
        match self {
            Self::Awaited | Self::Other => {}
            Self::Sitemap(sitemap) => sitemap.take(token, found, each),
            Self::Feed(elements) => elements.take(token),
        }
    }
}

impl Places {
    fn take(&mut self, token: Token<'_>, found: &mut Found, each: Each<'_>) {
        match token {
            Token::Open(tag) => self.open(tag, found, each),
            Token::Close(name) => self.close(name, found, each),
            Token::Text(text) => {
                if let Some((_, kept)) = &mut self.capture {
                    let room = (2 * LINK_BYTES_MAX).saturating_sub(kept.len());
                    kept.push_str(&text[..text.floor_char_boundary(room)]);
                }
            }
        }
    }

    fn open(&mut self, tag: Tag<'_>, found: &mut Found, each: Each<'_>) {
        match local(tag.name) {
            name if name.eq_ignore_ascii_case("url") || name.eq_ignore_ascii_case("sitemap") => {
                self.end_entry(found, each);
                let prefix = prefix(tag.name);
                self.entry = (prefix.len() < LINK_BYTES_MAX).then(|| prefix.to_owned());
            }
            name => {
                // Images and videos have locations of their own, with another prefix.
                let is_ours = self.entry.as_deref() == Some(prefix(tag.name));
                let field = match name.to_ascii_lowercase().as_str() {
                    "loc" if is_ours => Field::Location,
                    "lastmod" if is_ours => Field::Lastmod,
                    _ => return,
                };
                self.end_capture();
                self.capture = Some((field, String::new()));
            }
        }
    }

    fn close(&mut self, name: &str, found: &mut Found, each: Each<'_>) {
        match local(name).to_ascii_lowercase().as_str() {
            "loc" | "lastmod" if self.entry.as_deref() == Some(prefix(name)) => self.end_capture(),
            "url" | "sitemap" | "urlset" | "sitemapindex" => self.end_entry(found, each),
            _ => {}
        }
    }

    fn end_capture(&mut self) {
        match self.capture.take() {
            Some((Field::Location, text)) if self.location.is_empty() => self.location = text,
            Some((Field::Lastmod, text)) => self.lastmod = text,
            _ => {}
        }
    }

    fn end_entry(&mut self, found: &mut Found, each: Each<'_>) {
        self.end_capture();
        if self.entry.take().is_some() {
            let lastmod = self.lastmod.trim();
            found.location(&self.location, Some(lastmod).filter(|it| !it.is_empty()), each);
        }
        self.location.clear();
        self.lastmod.clear();
    }
}

impl Found {
    fn cut(&mut self, why: &'static str) {
        self.summary.cut.get_or_insert(why);
    }

    fn location(&mut self, text: &str, lastmod: Option<&str>, each: Each<'_>) {
        let url = self.joining.absolute(text, self.base.as_ref());
        if self.joining.is_over() {
            self.cut("too many relative URLs; the rest were left out");
        }
        let Some(url) = url else { return };
        if self.summary.urls == SITEMAP_URLS_MAX {
            self.cut("too many URLs; the rest were left out");
            return;
        }
        self.summary.urls += 1;
        each(Location { url: &url, lastmod });
    }

    /// Removes the whole lines from the text and reads them. A line that is not a URL is skipped.
    fn lines(&mut self, text: &mut String, last: bool, each: Each<'_>) {
        let whole = if last { text.len() } else { text.rfind(['\n', '\r']).map_or(0, |at| at + 1) };
        for line in text[..whole].split(['\n', '\r']) {
            let line = line.trim();
            let is_url = line.get(..4).is_some_and(|begin| begin.eq_ignore_ascii_case("http"));
            if is_url && line.contains("://") && !line.contains(char::is_whitespace) {
                self.summary.kind = Some(Kind::Text);
                self.location(line, None, each);
            }
        }
        text.drain(..whole);
        if text.len() > 2 * LINK_BYTES_MAX {
            // No URL is as long, so the rest of this line is not a URL either.
            text.replace_range(.., "?");
        }
    }

    /// Passes on the items of a feed.
    fn feed(&mut self, elements: Elements, each: Each<'_>) {
        let feed = elements.finish(self.base.as_ref().map(CanonicalUrl::as_str));
        if feed.kind.is_none() {
            self.summary.kind = None;
        }
        for entry in &feed.entries {
            if let Some(link) = &entry.link {
                self.location(link, entry.updated.as_deref(), each);
            }
        }
        if let Some(cut) = feed.cut {
            self.cut(cut);
        }
    }
}

#[cfg(test)]
#[path = "sitemap_tests.rs"]
mod tests;
