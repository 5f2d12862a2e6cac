//! Reads sitemaps as defined by sitemaps.org: XML, a plain list, or a feed; also OPML; compressed
//! or not.
//!
//! It reads chunk by chunk and passes on each URL, so a sitemap of 50 MB needs no more memory than
//! a small one.

use tidings_protocol::{CanonicalUrl, partial_debug, word_enum};

use crate::feed::{FEED_BYTES_MAX, FeedElements};
use crate::markup::{
    MarkupReader, MarkupTag, MarkupToken, ReferenceResolver, TextDecoder, Unpacker, local_name,
    name_prefix,
};
use crate::page::LINK_BYTES_MAX;

/// Bytes of a sitemap that are read, decoded (sitemaps.org allows 50 MB).
const SITEMAP_BYTES_MAX: u64 = 50 * 1024 * 1024;
/// URLs taken from a sitemap (sitemaps.org allows as many).
pub(crate) const SITEMAP_URLS_MAX: usize = 50_000;

word_enum! {
    /// The kind of a document.
    pub enum SitemapKind {
        /// A list of pages.
        Urlset = "urlset",
        /// A list of sitemaps.
        Index = "index",
        /// A plain list of pages, one per line.
        Text = "text",
        /// An RSS feed that serves as a sitemap.
        Rss = "rss",
        /// An Atom feed that serves as a sitemap.
        Atom = "atom",
        /// A list of feeds and their sites.
        Opml = "opml",
    }
}

/// An entry of a sitemap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SitemapEntry<'a> {
    /// Absolute; as written if it was absolute.
    pub url: &'a str,
    /// The time of the last change, as written.
    pub lastmod: Option<&'a str>,
}

/// The result of reading a sitemap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SitemapSummary {
    /// `None`: it is not a sitemap.
    pub kind: Option<SitemapKind>,
    /// The number of URLs.
    pub urls: usize,
    /// Why part of it was left out.
    pub cut: Option<&'static str>,
}

/// Reads a sitemap.
pub struct SitemapReader {
    unpacker: Unpacker,
    document: SitemapDocument,
}

/// The decompressed document.
struct SitemapDocument {
    content_type: Option<String>,
    bytes: u64,
    body: SitemapBody,
    found: EntryOutput,
}

enum SitemapBody {
    /// The first bytes after white space, until there are `SNIFF_BYTES` of them.
    Begin(Vec<u8>),
    Xml(Box<MarkupReader>, RootElement),
    Text(Box<TextDecoder>, String),
    /// An unknown format.
    Other,
}

/// This many bytes are enough to recognise XML: `<` after any byte order mark, in any encoding.
const SNIFF_BYTES: usize = 4;

/// The root element.
enum RootElement {
    Pending,
    Sitemap(Box<SitemapElements>),
    Feed(Box<FeedElements>),
    Opml,
    /// An unknown element.
    Other,
}

/// The elements of a sitemap.
#[derive(Default)]
struct SitemapElements {
    /// The prefix of the open `<url>` or `<sitemap>`.
    entry: Option<String>,
    capture: Option<(SitemapField, String)>,
    location: String,
    lastmod: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SitemapField {
    Location,
    Lastmod,
}

#[derive(Default)]
struct EntryOutput {
    base: Option<CanonicalUrl<'static>>,
    references: ReferenceResolver,
    summary: SitemapSummary,
}

partial_debug!(SitemapReader {});

/// Receives each entry as it is found.
pub type EntrySink<'a> = &'a mut dyn FnMut(SitemapEntry<'_>);

impl SitemapReader {
    /// For a sitemap with this `Content-Type` header, from this URL.
    pub fn new(content_type: Option<&str>, base: Option<&str>) -> Self {
        let content_type = content_type.map(str::to_owned);
        let base = base.and_then(|base| base.parse().ok());
        let found = EntryOutput { base, ..EntryOutput::default() };
        let document =
            SitemapDocument { content_type, bytes: 0, body: SitemapBody::Begin(Vec::new()), found };
        Self { unpacker: Unpacker::new(), document }
    }

    /// Reads the next bytes.
    pub fn feed(&mut self, mut bytes: &[u8], each: EntrySink<'_>) {
        while self.step(&mut bytes, each) {}
    }

    /// Reads some of the next bytes: as many as take a few milliseconds. Returns whether there is
    /// more to do.
    pub fn step(&mut self, bytes: &mut &[u8], each: EntrySink<'_>) -> bool {
        self.unpacker.step(bytes, &mut |bytes| self.document.take(bytes, each))
    }

    /// The memory that it uses, approximately, without the entries that were passed on.
    pub(crate) fn memory_bytes(&self) -> usize {
        match &self.document.body {
            SitemapBody::Xml(_, RootElement::Feed(elements)) => elements.memory_bytes(),
            _ => 0,
        }
    }

    /// Ends the sitemap.
    pub fn finish(mut self, each: EntrySink<'_>) -> SitemapSummary {
        self.unpacker.finish(&mut |bytes| self.document.take(bytes, each));
        let mut summary = self.document.finish(each);
        summary.cut = summary.cut.or(self.unpacker.cut());
        summary
    }
}

impl SitemapDocument {
    fn finish(mut self, each: EntrySink<'_>) -> SitemapSummary {
        self.detect_format(true, each);
        match self.body {
            SitemapBody::Begin(_) | SitemapBody::Other => {}
            SitemapBody::Xml(mut markup, mut root) => {
                markup.finish(&mut |token| root.take(token, &mut self.found, each));
                if markup.is_cut() {
                    self.found.cut("a tag is too long; the rest was left out");
                }
                match root {
                    RootElement::Sitemap(mut sitemap) if sitemap.capture.is_none() => {
                        sitemap.end_entry(&mut self.found, each);
                    }
                    RootElement::Feed(elements) => self.found.feed(*elements, each),
                    _ => {}
                }
            }
            SitemapBody::Text(mut decoder, mut line) => {
                decoder.decode(&[], true, &mut line);
                self.found.lines(&mut line, true, each);
            }
        }
        self.found.summary
    }

    /// Reads decompressed bytes, and returns whether it needs more.
    fn take(&mut self, bytes: &[u8], each: EntrySink<'_>) -> bool {
        let room = SITEMAP_BYTES_MAX.saturating_sub(self.bytes);
        let fits = usize::try_from(room).map_or(bytes.len(), |room| room.min(bytes.len()));
        self.bytes += bytes.len() as u64;
        let mut kept = &bytes[..fits];
        if let SitemapBody::Begin(head) = &mut self.body {
            if head.is_empty() {
                kept = kept.trim_ascii_start();
            }
            head.extend_from_slice(kept);
            self.detect_format(false, each);
        } else {
            self.read(kept, each);
        }
        if self.bytes > SITEMAP_BYTES_MAX {
            self.found.cut("longer than a sitemap may be; the rest was left out");
        }
        self.found.summary.cut.is_none()
    }

    /// Recognises the format by the first bytes.
    fn detect_format(&mut self, last: bool, each: EntrySink<'_>) {
        let SitemapBody::Begin(head) = &mut self.body else { return };
        if head.len() < SNIFF_BYTES && !last {
            return;
        }
        let head = std::mem::take(head);
        let content_type = self.content_type.as_deref();
        let is_wide = head.starts_with(&[0xff, 0xfe]) || head.starts_with(&[0xfe, 0xff]);
        self.body = if head.iter().take(SNIFF_BYTES).any(|byte| *byte == b'<') {
            SitemapBody::Xml(Box::new(MarkupReader::new(content_type)), RootElement::Pending)
        } else if head.iter().take(SNIFF_BYTES).any(|byte| *byte == 0) && !is_wide {
            SitemapBody::Other
        } else {
            SitemapBody::Text(Box::new(TextDecoder::new(content_type)), String::new())
        };
        self.read(&head, each);
    }

    fn read(&mut self, bytes: &[u8], each: EntrySink<'_>) {
        match &mut self.body {
            SitemapBody::Begin(_) | SitemapBody::Other => {}
            SitemapBody::Xml(markup, root) => {
                markup.feed(bytes, &mut |token| root.take(token, &mut self.found, each));
                if matches!(root, RootElement::Feed(_)) && self.bytes > FEED_BYTES_MAX as u64 {
                    self.found.cut("longer than a feed may be; the rest was left out");
                }
            }
            SitemapBody::Text(decoder, line) => {
                for chunk in bytes.chunks(LINK_BYTES_MAX) {
                    decoder.decode(chunk, false, line);
                    self.found.lines(line, false, each);
                }
            }
        }
    }
}

/// Whether the first element of a document is that of a sitemap or an XML feed.
pub(crate) fn has_sitemap_root(head: &[u8], content_type: Option<&str>) -> bool {
    let mut root = None;
    let mut take = |token: MarkupToken<'_>| {
        if let MarkupToken::Open(tag) = token {
            root.get_or_insert_with(|| SitemapKind::of_root(tag.name));
        }
    };
    let mut markup = MarkupReader::new(content_type);
    markup.feed(head, &mut take);
    markup.finish(&mut take);
    root.flatten().is_some_and(|kind| kind != SitemapKind::Opml)
}

impl SitemapKind {
    fn of_root(name: &str) -> Option<Self> {
        Some(match local_name(name).to_ascii_lowercase().as_str() {
            "urlset" => Self::Urlset,
            "sitemapindex" => Self::Index,
            "rss" | "rdf" => Self::Rss,
            "feed" => Self::Atom,
            "opml" => Self::Opml,
            _ => return None,
        })
    }
}

impl RootElement {
    fn take(&mut self, token: MarkupToken<'_>, found: &mut EntryOutput, each: EntrySink<'_>) {
        if let (Self::Pending, MarkupToken::Open(tag)) = (&*self, &token) {
            found.summary.kind = SitemapKind::of_root(tag.name);
            *self = match found.summary.kind {
                Some(SitemapKind::Urlset | SitemapKind::Index) => Self::Sitemap(Box::default()),
                Some(SitemapKind::Rss | SitemapKind::Atom) => Self::Feed(Box::default()),
                Some(SitemapKind::Opml) => Self::Opml,
                Some(SitemapKind::Text) | None => Self::Other,
            };
        }
        match self {
            Self::Pending | Self::Other => {}
            Self::Sitemap(sitemap) => sitemap.take(token, found, each),
            Self::Feed(elements) => elements.take(token),
            Self::Opml => {
                if let MarkupToken::Open(tag) = token
                    && tag.name.eq_ignore_ascii_case("outline")
                {
                    let urls = ["xmlUrl", "htmlUrl", "url"].map(|name| tag.attribute(name));
                    urls.iter().flatten().for_each(|url| found.location(url, None, each));
                }
            }
        }
    }
}

impl SitemapElements {
    fn take(&mut self, token: MarkupToken<'_>, found: &mut EntryOutput, each: EntrySink<'_>) {
        match token {
            MarkupToken::Open(tag) => self.open(tag, found, each),
            MarkupToken::Close(name) => self.close(name, found, each),
            MarkupToken::Text(text) => {
                if let Some((_, kept)) = &mut self.capture {
                    let room = (2 * LINK_BYTES_MAX).saturating_sub(kept.len());
                    kept.push_str(&text[..text.floor_char_boundary(room)]);
                }
            }
        }
    }

    fn open(&mut self, tag: MarkupTag<'_>, found: &mut EntryOutput, each: EntrySink<'_>) {
        let prefix = name_prefix(tag.name);
        // Images and videos have elements of their own, with another prefix.
        if self.entry.as_deref().is_some_and(|entry| entry != prefix) {
            return;
        }
        let field = match local_name(tag.name).to_ascii_lowercase().as_str() {
            "url" | "sitemap" => {
                self.end_entry(found, each);
                self.entry = (prefix.len() < LINK_BYTES_MAX).then(|| prefix.to_owned());
                return;
            }
            "loc" if self.entry.is_some() => SitemapField::Location,
            "lastmod" if self.entry.is_some() => SitemapField::Lastmod,
            _ => return,
        };
        self.end_capture();
        self.capture = Some((field, String::new()));
    }

    fn close(&mut self, name: &str, found: &mut EntryOutput, each: EntrySink<'_>) {
        let is_ours = self.entry.as_deref() == Some(name_prefix(name));
        match local_name(name).to_ascii_lowercase().as_str() {
            "loc" | "lastmod" if is_ours => self.end_capture(),
            "url" | "sitemap" | "urlset" | "sitemapindex" if is_ours => self.end_entry(found, each),
            _ => {}
        }
    }

    fn end_capture(&mut self) {
        match self.capture.take() {
            Some((SitemapField::Location, text)) if self.location.is_empty() => {
                self.location = text;
            }
            Some((SitemapField::Lastmod, text)) => self.lastmod = text,
            _ => {}
        }
    }

    fn end_entry(&mut self, found: &mut EntryOutput, each: EntrySink<'_>) {
        self.end_capture();
        if self.entry.take().is_some() {
            let lastmod = self.lastmod.trim();
            found.location(&self.location, Some(lastmod).filter(|it| !it.is_empty()), each);
        }
        self.location.clear();
        self.lastmod.clear();
    }
}

impl EntryOutput {
    fn cut(&mut self, why: &'static str) {
        self.summary.cut.get_or_insert(why);
    }

    fn location(&mut self, text: &str, lastmod: Option<&str>, each: EntrySink<'_>) {
        let url = self.references.absolute(text, self.base.as_ref());
        if self.references.is_exhausted() {
            self.cut("too many relative URLs; the rest were left out");
        }
        let Some(url) = url else { return };
        if self.summary.urls == SITEMAP_URLS_MAX {
            self.cut("too many URLs; the rest were left out");
            return;
        }
        self.summary.urls += 1;
        each(SitemapEntry { url: &url, lastmod });
    }

    /// Removes the whole lines from the text and reads them. A line that is not a URL is skipped.
    fn lines(&mut self, text: &mut String, last: bool, each: EntrySink<'_>) {
        let whole = if last { text.len() } else { text.rfind(['\n', '\r']).map_or(0, |at| at + 1) };
        for line in text[..whole].split(['\n', '\r']) {
            let line = line.trim();
            let is_url = line.get(..4).is_some_and(|begin| begin.eq_ignore_ascii_case("http"));
            if is_url && line.contains("://") && !line.contains(char::is_whitespace) {
                self.summary.kind = Some(SitemapKind::Text);
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
    fn feed(&mut self, elements: FeedElements, each: EntrySink<'_>) {
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
mod tests;
