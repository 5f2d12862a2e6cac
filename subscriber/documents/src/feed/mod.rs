//! Reads feeds: RSS 0.9x, 1.0 (RDF) and 2.0, Atom 0.3 and 1.0, JSON Feed.
//!
//! Feeds are read leniently, as feed readers always did, and chunk by chunk: see `crate::markup`.
//! (feed-rs, a parser for well-formed documents, rejects one of fifteen in the tables of the tests,
//! or panics.)

mod entry_draft;
pub mod event;
mod hubs;
mod json;
mod namespaces;
mod version;
pub mod watched_feed;
mod xml;

pub use self::hubs::{Hubs, PageHubLinks};
use self::json::is_json;
use self::version::VersionDigest;
pub(crate) use self::xml::FeedElements;
use crate::markup::{MarkupReader, Unpacker};
use crate::tracking::TrackingParams;

/// Decoded bytes of a feed that are read. Feeds of busy sites with whole articles have some
/// megabytes.
pub(crate) const FEED_BYTES_MAX: usize = 8 * 1024 * 1024;
/// The same limit for a JSON feed, which is buffered to its end: its fields may come in any order.
const FEED_JSON_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Items kept of a feed. Most have 10 to 50, archives some thousands.
const FEED_ENTRIES_MAX: usize = 10_000;
/// Bytes of the ids, links, titles and dates of a feed: 400 for each of `FEED_ENTRIES_MAX` items.
const FEED_TEXTS_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Why the end of a feed was left out that another fetch may find whole.
const BREAKS_OFF: &str = "the feed breaks off; its unfinished end was left out";

/// The failure of a watched URL that is neither a feed nor names a hub.
pub const NO_FEED: &str = "no feed and no hub at this URL";
/// What the user can do then.
pub const NO_FEED_ADVICE: &str = "give the URL of the feed itself, or of a page whose head names its feed (<link rel=alternate \
    type=application/rss+xml>) or a hub (<link rel=hub>)";

/// The content of a feed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Feed {
    /// `None`: it is not a feed.
    pub kind: Option<FeedKind>,
    /// As text, with white space folded.
    pub title: Option<String>,
    /// The page that the feed is about.
    pub site: Option<String>,
    /// The URL of the feed as it names itself.
    pub self_url: Option<String>,
    /// Hubs that announce its changes (`WebSub`).
    pub hubs: Vec<String>,
    /// The server that announces its changes (`rssCloud`, by HTTP only).
    pub cloud: Option<String>,
    /// In the order of the feed.
    pub entries: Vec<FeedEntry>,
    /// When the publisher wants it to be fetched.
    pub hints: PollHints,
    /// The version of a document that is not a feed: a digest of what its readers see.
    pub version: Option<u64>,
    /// Why part of it was left out.
    pub cut: Option<&'static str>,
}

impl Feed {
    /// Whether the document ended too early, so that another fetch may find more items.
    fn breaks_off(&self) -> bool {
        self.cut == Some(BREAKS_OFF)
    }

    /// Removes tracking parameters from the links of the items, and from ids that are links.
    pub fn strip_tracking(&mut self, tracking: &TrackingParams) {
        for FeedEntry { id, link, .. } in &mut self.entries {
            for url in link.iter_mut().chain([id]) {
                if let Some(stripped) = tracking.strip_text(url) {
                    *url = stripped.as_str().to_owned();
                }
            }
        }
    }
}

/// A family of formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedKind {
    /// RSS 0.91 to 2.0.
    Rss,
    /// RSS 0.90 and 1.0, which are RDF.
    Rdf,
    /// Atom 0.3 and 1.0.
    Atom,
    /// JSON Feed.
    Json,
}

impl FeedKind {
    /// The word in answers.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rss | Self::Rdf => "rss",
            Self::Atom => "atom",
            Self::Json => "json",
        }
    }
}

/// An item of a feed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeedEntry {
    /// Its identity: the id of the feed, otherwise its link, otherwise a hash of its text.
    pub id: String,
    /// Absolute if possible, otherwise as written.
    pub link: Option<String>,
    /// As text, with white space folded.
    pub title: Option<String>,
    /// When it was changed or published, as written.
    pub updated: Option<String>,
}

/// When the publisher wants a feed to be fetched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PollHints {
    /// The least seconds between fetches: `ttl`, `sy:updatePeriod`.
    pub min_interval_s: Option<u64>,
    /// Bit n: not in the hour that begins at n o'clock, UTC.
    pub skip_hours: u32,
    /// Bit n: not on this weekday, UTC; 0 is Monday.
    pub skip_days: u8,
}

/// Reads a feed chunk by chunk, compressed or not. It keeps only what it finds, which is limited.
#[derive(Debug)]
pub struct FeedReader {
    unpacker: Unpacker,
    document: FeedDocument,
}

/// The decompressed document.
#[derive(Debug)]
struct FeedDocument {
    content_type: Option<String>,
    bytes: usize,
    state: FeedState,
    digest: VersionDigest,
}

#[derive(Debug)]
enum FeedState {
    /// The first bytes after white space, until there are `SNIFF_BYTES` of them.
    Begin(Vec<u8>),
    Xml(Box<(MarkupReader, FeedElements)>),
    Json(Vec<u8>),
}

/// The items of a feed, up to the limit.
#[derive(Debug, Default)]
struct EntryList {
    kept: Vec<FeedEntry>,
    /// Bytes of their texts; `<= FEED_TEXTS_BYTES_MAX`.
    bytes: usize,
}

impl EntryList {
    /// The error says why this item and those after it were left out.
    fn add(&mut self, entry: FeedEntry) -> Result<(), &'static str> {
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        self.bytes +=
            entry.id.len() + text(&entry.link) + text(&entry.title) + text(&entry.updated);
        if self.bytes > FEED_TEXTS_BYTES_MAX {
            return Err("items too long together; the rest were left out");
        }
        self.kept.push(entry);
        Ok(())
    }
}

/// This many bytes are enough to recognise JSON, also after a byte order mark.
const SNIFF_BYTES: usize = 4;

/// Reads a whole feed. Relative links are resolved with `base`, the URL of the feed.
pub fn parse(bytes: &[u8], content_type: Option<&str>, base: Option<&str>) -> Feed {
    let mut reader = FeedReader::new(content_type);
    reader.feed(bytes);
    reader.finish(base)
}

impl FeedReader {
    /// For a feed with this `Content-Type` header.
    pub fn new(content_type: Option<&str>) -> Self {
        let digest = VersionDigest::new(content_type);
        let content_type = content_type.map(str::to_owned);
        let state = FeedState::Begin(Vec::new());
        let document = FeedDocument { content_type, bytes: 0, state, digest };
        Self { unpacker: Unpacker::new(), document }
    }

    /// Reads the next bytes.
    pub fn feed(&mut self, mut bytes: &[u8]) {
        while self.step(&mut bytes) {}
    }

    /// Reads some of the next bytes: as many as take a few milliseconds. Returns whether there is
    /// more to do.
    pub fn step(&mut self, bytes: &mut &[u8]) -> bool {
        self.unpacker.step(bytes, &mut |bytes| self.document.consume(bytes))
    }

    /// The memory that it uses, approximately.
    pub(crate) fn memory_bytes(&self) -> usize {
        match &self.document.state {
            FeedState::Begin(_) => 0,
            FeedState::Xml(xml) => xml.1.memory_bytes(),
            FeedState::Json(text) => text.capacity(),
        }
    }

    /// Ends the feed. `base` is its URL.
    pub fn finish(mut self, base: Option<&str>) -> Feed {
        self.unpacker.finish(&mut |bytes| self.document.consume(bytes));
        let mut feed = self.document.finish(base);
        feed.cut = self.unpacker.cut().or(feed.cut);
        feed
    }
}

impl FeedDocument {
    /// Reads decompressed bytes, and returns whether it needs more.
    fn consume(&mut self, bytes: &[u8]) -> bool {
        let room = FEED_BYTES_MAX.saturating_sub(self.bytes);
        self.bytes += bytes.len();
        let kept = &bytes[..bytes.len().min(room)];
        self.digest.update(kept);
        if let FeedState::Begin(head) = &mut self.state {
            head.extend_from_slice(if head.is_empty() { kept.trim_ascii_start() } else { kept });
            if head.len() >= SNIFF_BYTES {
                self.detect_format();
            }
        } else {
            self.read(kept);
        }
        self.bytes <= FEED_BYTES_MAX
    }

    fn read(&mut self, bytes: &[u8]) {
        match &mut self.state {
            FeedState::Begin(_) => {}
            FeedState::Xml(xml) => {
                let (markup, elements) = &mut **xml;
                markup.feed(bytes, &mut |token| elements.take(token));
            }
            FeedState::Json(text) => {
                let room = FEED_JSON_BYTES_MAX.saturating_sub(text.len());
                text.extend_from_slice(&bytes[..bytes.len().min(room)]);
            }
        }
    }

    fn finish(mut self, base: Option<&str>) -> Feed {
        self.detect_format();
        let mut feed = match self.state {
            FeedState::Begin(_) => Feed::default(),
            FeedState::Xml(xml) => {
                let (mut markup, mut elements) = *xml;
                markup.finish(&mut |token| elements.take(token));
                let mut feed = elements.finish(base);
                if markup.is_cut() {
                    feed.cut = Some("a tag is too long; the rest of the feed was left out");
                }
                feed
            }
            FeedState::Json(text) => {
                let mut feed = json::read(&text, base);
                if self.bytes > FEED_JSON_BYTES_MAX && feed.kind.is_some() {
                    feed.cut = Some("longer than a JSON feed may be; the rest was left out");
                }
                feed
            }
        };
        if self.bytes > FEED_BYTES_MAX {
            feed.cut = Some("longer than a feed may be; the rest was left out");
        }
        feed.version = feed.kind.is_none().then(|| self.digest.finish());
        feed
    }

    /// Recognises the format by the first bytes.
    fn detect_format(&mut self) {
        let FeedState::Begin(head) = &mut self.state else { return };
        let head = std::mem::take(head);
        self.state = if is_json(&head) {
            FeedState::Json(Vec::new())
        } else {
            let markup = MarkupReader::new(self.content_type.as_deref());
            FeedState::Xml(Box::new((markup, FeedElements::default())))
        };
        self.read(&head);
    }
}

#[cfg(test)]
mod tests;
