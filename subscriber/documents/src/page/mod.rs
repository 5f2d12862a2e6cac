//! Reads a page while it streams: its title, its links, and its directives for crawlers.
//!
//! It builds no tree. It buffers at most one token, and what it finds is limited in number and
//! bytes; beyond a limit the rest is left out, and [`PageContent::cut`] says so. Pure: bytes go in,
//! in any split, and the same content comes out.
//!
//! ```text
//! bytes ─ charset ─▶ text ─ scanner (tag, raw_text, foreign) ─▶ tags ─ content_builder ─▶ PageContent
//! headers ─ link_header, robots_directives ─────────────────────────▲
//! ```

pub mod charset;
mod content_builder;
mod foreign;
mod ignored_text;
mod link_config;
mod link_header;
mod link_set;
mod raw_text;
mod robots_directives;
mod scanner;
mod signs;
mod tag;
#[cfg(test)]
mod tests;
mod values;
mod visible_digest;
mod word_fingerprint;

use std::sync::Arc;

use charset::EncodingGuess;
use encoding_rs::{CoderResult, Decoder, Encoding, UTF_8};
use tidings_protocol::{CanonicalUrl, partial_debug, with_defaults};

use self::content_builder::ContentBuilder;
pub use self::ignored_text::{IgnoredText, IgnoredTextError, IgnoredTexts};
pub use self::link_config::LinkConfig;
use self::scanner::PageScanner;
pub use self::signs::PageSigns;
pub use self::values::{essence, is_media_type};

/// .. if their base is at most this long. A link may need its base parsed, at some 12 ns a byte.
pub(crate) const QUICK_BASE_BYTES_MAX: usize = 1024;
/// A longer attribute is ignored as a link; also the limit of a canonical URL.
pub(crate) const LINK_BYTES_MAX: usize = 8 * 1024;
/// Of a longer tag only the name counts. Images in `data:` URLs are longer; links are not.
pub(crate) const TAG_BYTES_MAX: usize = 64 * 1024;
/// Bytes searched for a `<meta charset>`, as in browsers.
pub(crate) const CHARSET_PRESCAN_BYTES: usize = 1024;
/// A title is cut after this many bytes, at a character.
pub(crate) const TITLE_BYTES_MAX: usize = 1024;
/// Hubs kept of a feed; most name one, and the others are fallbacks.
pub(crate) const FEED_HUBS_MAX: usize = 4;

/// The content of a page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageContent {
    /// The text of the first `<title>`, with white space folded; `None` if it is missing or empty.
    pub title: Option<String>,
    /// The links of the headers, then those of the page in its order, without repeats: `a`, `area`,
    /// `frame`, `iframe`, `link` with a relation that names a page, refresh; images if requested.
    /// As in `wget --recursive`, without page requisites such as style sheets.
    pub links: Vec<PageLink>,
    /// The URL that the page prefers (`rel=canonical`), in canonical form; the first one counts.
    pub canonical: Option<Box<str>>,
    /// Feeds that the page names: `rel=alternate` with their media types. Not included in the
    /// links.
    pub feeds: Vec<Box<str>>,
    /// Hubs that announce its changes: `rel=hub` (`WebSub`). Not included in the links.
    pub hubs: Vec<Box<str>>,
    /// The URL under which its hubs know it: the first `rel=self` in its head, as written if that
    /// is absolute.
    pub self_url: Option<Box<str>>,
    /// The encoding by its name in the Encoding Standard, such as `UTF-8`; `None` if the document
    /// was not read as text.
    pub charset: Option<&'static str>,
    /// The fingerprint of the words of its text that contain no digit, in their order. `None` if
    /// the URL has no query: the fingerprint shows whether a parameter changes the page, and costs
    /// time for each byte.
    pub word_fingerprint: Option<u64>,
    /// Whether it asks not to be indexed.
    pub noindex: bool,
    /// Whether it asks crawlers not to follow its links; then each link says so, too.
    pub nofollow: bool,
    /// From this time on it asks not to be indexed, in seconds of Unix time.
    pub unavailable_after: Option<i64>,
    /// Signs that it needs its scripts. `None` if they are not wanted, or if the document is not
    /// HTML.
    pub signs: Option<PageSigns>,
    /// A hash of what a reader sees: text, and targets of links and images. `None` if it is not
    /// wanted, or if there is no text.
    pub text_hash: Option<blake3::Hash>,
    /// Why part of the page was left out.
    pub cut: Option<&'static str>,
}

/// Relations and targets of the links of a `PageLink` header, as written.
pub(crate) fn header_links(value: &str) -> impl Iterator<Item = (String, &str)> {
    let links = link_header::parse_links(value).filter(|link| !link.has_anchor);
    links.map(|link| (link.relations.into_owned(), link.target))
}

/// An absolute URL of a topic, as written: hubs compare topics letter by letter.
pub(crate) fn verbatim_url(url: &str) -> Option<String> {
    let is_plain = url.bytes().all(|byte| byte.is_ascii_graphic());
    let is_whole = url.starts_with("https://") || url.starts_with("http://");
    (is_plain && is_whole && CanonicalUrl::parse(url).is_ok()).then(|| url.to_owned())
}

impl PageContent {
    /// Whether it asks not to be indexed at this time, in seconds of Unix time.
    pub fn is_noindex_at(&self, unix_s: i64) -> bool {
        self.noindex || self.unavailable_after.is_some_and(|end| end <= unix_s)
    }
}

/// A link of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageLink {
    /// Canonical.
    pub url: Box<str>,
    /// The page asks crawlers not to follow it: each occurrence has `rel=nofollow`, or
    /// [`PageContent::nofollow`] is set.
    pub nofollow: bool,
}

with_defaults! {
    /// How pages are read.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct PageOptions {
        /// The crawler's name in `<meta name=..>` and `X-Robots-Tag`: the product token of
        /// robots.txt.
        pub token: Box<str> = "tidings".into(),
        /// Whether images count as links: `img` with `src` and `srcset`, and the sources of a
        /// `picture`.
        pub images: bool = false,
        /// Whether [`PageContent::signs`] are counted, which costs time for each byte of text.
        pub signs: bool = false,
        /// Whether [`PageContent::text_hash`] is computed, which costs time as well.
        pub text_hash: bool = false,
        /// Text that does not count for it.
        pub ignored: IgnoredTexts = Arc::default(),
    }
}

/// Reads one page.
pub struct PageReader {
    header_encoding: Option<&'static Encoding>,
    /// The last label of the host name, if it may be needed.
    top_level: Option<Box<str>>,
    state: PageReaderState,
    scanner: PageScanner,
    builder: ContentBuilder,
}

enum PageReaderState {
    /// The beginning of the page, before there is enough to know its encoding.
    Head(Vec<u8>),
    /// The beginning declares no encoding.
    Guess(Box<EncodingGuess>),
    Read {
        encoding: &'static Encoding,
        /// `None` for UTF-8, which needs no decoding.
        decoder: Option<Box<Decoder>>,
    },
}

partial_debug!(PageReader {});

impl PageReader {
    /// For the page of a response. Of its headers, with names in any case, `Content-Type`,
    /// `PageLink`, `Refresh` and `X-Robots-Tag` matter. `url` is where the page was found.
    pub fn new<'h>(
        url: &CanonicalUrl<'_>,
        headers: impl IntoIterator<Item = (&'h str, &'h [u8])>,
        options: &Arc<PageOptions>,
    ) -> Self {
        let has_query = url.path_and_query().len() > url.path().len();
        let mut builder = ContentBuilder::new(Arc::clone(options), has_query);
        let mut header_encoding = None;
        for (name, value) in headers {
            let is = |header: &str| name.eq_ignore_ascii_case(header);
            let value = || String::from_utf8_lossy(value);
            if is("content-type") {
                header_encoding = header_encoding.or_else(|| charset::from_content_type(&value()));
            } else if is("link") {
                builder.link_header(&value(), url);
            } else if is("refresh") {
                builder.refresh_header(&value(), url);
            } else if is("x-robots-tag") {
                builder.robots_header(&value());
            }
        }
        let top_level = match (header_encoding, url.address()) {
            (None, None) => url.host().rsplit('.').next().map(Box::from),
            _ => None,
        };
        let state = PageReaderState::Head(Vec::new());
        Self { header_encoding, top_level, state, scanner: PageScanner::new(), builder }
    }

    /// For the digest of a page with this `Content-Type` header: see [`PageReader::version`].
    pub(crate) fn for_digest(content_type: &str) -> Self {
        let nowhere = CanonicalUrl::parse("http://page.invalid/").expect("the constant is a URL");
        let headers = [("content-type", content_type.as_bytes())];
        let mut reader = Self::new(&nowhere, headers, &Arc::default());
        reader.builder.enable_digest();
        reader
    }

    /// Reads the next bytes of the page.
    pub fn feed(&mut self, bytes: &[u8]) {
        let PageReaderState::Head(head) = &mut self.state else {
            return self.read(bytes, false);
        };
        let wanted = CHARSET_PRESCAN_BYTES - head.len();
        let (first, rest) = bytes.split_at(wanted.min(bytes.len()));
        head.extend_from_slice(first);
        if first.len() == wanted {
            self.detect_encoding();
            self.read(rest, false);
        }
    }

    /// Whether [`PageReader::finish`] may take more than a few milliseconds: with many links, or
    /// short ones below a long base.
    pub fn finish_may_block(&self) -> bool {
        self.builder.resolve_may_block()
    }

    /// The memory that it uses, approximately.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.builder.memory_bytes()
    }

    /// Ends the page and resolves its links. `url` is where the page was found.
    pub fn finish(mut self, url: &CanonicalUrl<'_>) -> PageContent {
        let encoding = self.end();
        self.builder.build(url, encoding)
    }

    /// Ends the page: a digest of what a reader of it sees.
    pub(crate) fn version(mut self) -> blake3::Hash {
        self.end();
        self.builder.version()
    }

    fn end(&mut self) -> &'static Encoding {
        self.detect_encoding();
        self.choose_encoding(true);
        self.read(&[], true);
        let PageReaderState::Read { encoding, .. } = self.state else {
            unreachable!("the encoding was chosen above");
        };
        encoding
    }

    /// Looks for a declared encoding, unless that is done, and reads the head.
    fn detect_encoding(&mut self) {
        let PageReaderState::Head(head) = &mut self.state else {
            return;
        };
        let head = std::mem::take(head);
        let declared = charset::declared(&head, self.header_encoding);
        let guess = || (PageReaderState::Guess(Box::new(EncodingGuess::new())), 0);
        let skip;
        (self.state, skip) =
            declared.map_or_else(guess, |(encoding, skip)| (PageReaderState::new(encoding), skip));
        self.read(&head[skip..], false);
    }

    fn read(&mut self, bytes: &[u8], is_last: bool) {
        let Self { scanner, builder: found, .. } = self;
        match &mut self.state {
            PageReaderState::Head(_) => {}
            PageReaderState::Read { decoder: None, .. } => scanner.feed(bytes, found),
            PageReaderState::Read { decoder: Some(decoder), .. } => {
                decode(decoder, bytes, is_last, |text| scanner.feed(text, found));
            }
            PageReaderState::Guess(guess) => {
                let (ascii, held) = guess.feed(bytes);
                scanner.feed(&bytes[..ascii], found);
                let is_declared = found.encoding().is_some() && guess.has_non_ascii();
                if is_declared || guess.is_full() {
                    self.choose_encoding(false);
                    self.read(&bytes[ascii + held..], false);
                }
            }
        }
    }

    /// Chooses the encoding of a page without a declaration in its beginning, and reads what was
    /// buffered.
    fn choose_encoding(&mut self, is_all: bool) {
        if !matches!(self.state, PageReaderState::Guess(_)) {
            return;
        }
        let placeholder = PageReaderState::new(UTF_8);
        if let PageReaderState::Guess(guess) = std::mem::replace(&mut self.state, placeholder) {
            let (encoding, held) =
                guess.decide(self.builder.encoding(), self.top_level.as_deref(), is_all);
            self.state = PageReaderState::new(encoding);
            self.read(&held, false);
        }
    }
}

impl PageReaderState {
    fn new(encoding: &'static Encoding) -> Self {
        let decoder = || Box::new(encoding.new_decoder_without_bom_handling());
        Self::Read { encoding, decoder: (encoding != UTF_8).then(decoder) }
    }
}

/// Decodes and handles the text piece by piece, however long it becomes.
fn decode(decoder: &mut Decoder, mut bytes: &[u8], is_last: bool, mut handle: impl FnMut(&[u8])) {
    let mut text = [0; 4096];
    loop {
        let (result, read, written, _) = decoder.decode_to_utf8(bytes, &mut text, is_last);
        handle(&text[..written]);
        bytes = &bytes[read..];
        if result == CoderResult::InputEmpty {
            return;
        }
    }
}

/// Whether a `Content-Type` names a page that is searched for links.
pub fn is_html(content_type: &str) -> bool {
    let kind = essence(content_type);
    kind.eq_ignore_ascii_case("text/html") || kind.eq_ignore_ascii_case("application/xhtml+xml")
}
