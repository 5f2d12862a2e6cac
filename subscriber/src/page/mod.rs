//! Reads a page while it streams: its title, its links, and its directives for crawlers.
//!
//! It builds no tree. It buffers at most one token, and what it finds is limited in number and
//! bytes; beyond a limit the rest is left out, and [`Content::cut`] says so. Pure: bytes go in, in
//! any split, and the same content comes out.
//!
//! ```text
//! bytes ─ charset ─▶ text ─ scan (tag, raw_text, foreign) ─▶ tags ─ found ─▶ Content
//! headers ─ link_header, directives ───────────────────────────▲
//! ```

pub mod charset;
mod directives;
#[cfg(test)]
mod figures;
mod foreign;
mod found;
mod link_header;
mod links;
#[cfg(test)]
mod oracle_tests;
mod raw_text;
mod scan;
mod tag;
#[cfg(test)]
mod tests;
mod values;
mod version;
mod words;

use std::fmt;
use std::sync::Arc;

use charset::Guess;
use encoding_rs::{CoderResult, Decoder, Encoding, UTF_8};
use tidings_protocol::CanonicalUrl;

use self::found::Found;
use self::scan::Scanner;
use crate::config::CHARSET_PRESCAN_BYTES;

/// The content of a page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// The text of the first `<title>`, with white space folded; `None` if it is missing or empty.
    pub title: Option<String>,
    /// The links of the headers, then those of the page in its order, without repeats: `a`, `area`,
    /// `frame`, `iframe`, `link` with a relation that names a page, refresh; images if requested.
    /// As in `wget --recursive`, without page requisites such as style sheets.
    pub links: Vec<Link>,
    /// The URL that the page prefers (`rel=canonical`), canonical in our sense, too; the first one
    /// counts.
    pub canonical: Option<Box<str>>,
    /// Feeds that the page names: `rel=alternate` with their media types. Not included in the
    /// links.
    pub feeds: Vec<Box<str>>,
    /// Hubs that announce its changes: `rel=hub` (`WebSub`). Not included in the links.
    pub hubs: Vec<Box<str>>,
    /// The URL under which its hubs know it: the first `rel=self` in its head, as written if that
    /// is absolute.
    pub own: Option<Box<str>>,
    /// The encoding by its name in the Encoding Standard, such as `UTF-8`; `None` if the document
    /// was not read as text.
    pub charset: Option<&'static str>,
    /// The fingerprint of the words of its text that contain no digit, in their order. `None` if
    /// the URL has no query: the fingerprint shows whether a parameter changes the page, and costs
    /// time for each byte.
    pub words: Option<u64>,
    /// Whether it asks not to be indexed.
    pub noindex: bool,
    /// Whether it asks crawlers not to follow its links; then each link says so, too.
    pub nofollow: bool,
    /// From this time on it asks not to be indexed, in seconds of Unix time.
    pub unavailable_after: Option<i64>,
    /// Why part of the page was left out.
    pub cut: Option<&'static str>,
}

/// Relations and targets of the links of a `Link` header, as written.
pub(crate) fn header_links(value: &str) -> impl Iterator<Item = (String, &str)> {
    let links = link_header::links(value).filter(|link| !link.is_elsewhere);
    links.map(|link| (link.relations.into_owned(), link.target))
}

/// An absolute URL of a topic, as written: hubs compare topics letter by letter.
pub(crate) fn as_written(url: &str) -> Option<String> {
    let is_plain = url.bytes().all(|byte| byte.is_ascii_graphic());
    let is_whole = url.starts_with("https://") || url.starts_with("http://");
    (is_plain && is_whole && CanonicalUrl::parse(url).is_ok()).then(|| url.to_owned())
}

impl Content {
    /// Whether it asks not to be indexed at this time, in seconds of Unix time.
    pub fn is_noindex_at(&self, unix_s: i64) -> bool {
        self.noindex || self.unavailable_after.is_some_and(|end| end <= unix_s)
    }
}

/// A link of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Canonical.
    pub url: Box<str>,
    /// The page asks crawlers not to follow it: each occurrence has `rel=nofollow`, or
    /// [`Content::nofollow`] is set.
    pub nofollow: bool,
}

/// How pages are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageOptions {
    /// The crawler's name in `<meta name=..>` and `X-Robots-Tag`: the product token of robots.txt.
    pub token: Box<str>,
    /// Whether images count as links: `img` with `src` and `srcset`, and the sources of a
    /// `picture`.
    pub images: bool,
}

impl Default for PageOptions {
    fn default() -> Self {
        Self { token: "tidings".into(), images: false }
    }
}

/// Reads one page.
pub struct PageReader {
    of_header: Option<&'static Encoding>,
    /// The last label of the host name, if it may be needed.
    top_level: Option<Box<str>>,
    state: State,
    scanner: Scanner,
    found: Found,
}

enum State {
    /// The beginning of the page, before there is enough to know its encoding.
    Head(Vec<u8>),
    /// The beginning declares no encoding.
    Guess(Box<Guess>),
    Read {
        encoding: &'static Encoding,
        /// `None` for UTF-8, which needs no decoding.
        decoder: Option<Box<Decoder>>,
    },
}

impl fmt::Debug for PageReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageReader").finish_non_exhaustive()
    }
}

impl PageReader {
    /// For the page of a response. Of its headers, with names in any case, `Content-Type`, `Link`
    /// and `X-Robots-Tag` matter. `url` is where the page was found.
    pub fn new<'h>(
        url: &CanonicalUrl<'_>,
        headers: impl IntoIterator<Item = (&'h str, &'h [u8])>,
        options: &Arc<PageOptions>,
    ) -> Self {
        let has_query = url.path_and_query().len() > url.path().len();
        let mut found = Found::new(Arc::clone(options), has_query);
        let mut of_header = None;
        for (name, value) in headers {
            let is = |header: &str| name.eq_ignore_ascii_case(header);
            let value = || String::from_utf8_lossy(value);
            if is("content-type") {
                of_header = of_header.or_else(|| charset::of_content_type(&value()));
            } else if is("link") {
                found.link_header(&value(), url);
            } else if is("x-robots-tag") {
                found.robots_header(&value());
            }
        }
        let top_level = match (of_header, url.address()) {
            (None, None) => url.host().rsplit('.').next().map(Box::from),
            _ => None,
        };
        let state = State::Head(Vec::new());
        Self { of_header, top_level, state, scanner: Scanner::new(), found }
    }

    /// For the digest of a page with this `Content-Type` header: see [`PageReader::version`].
    pub(crate) fn of_version(content_type: &str) -> Self {
        let nowhere = CanonicalUrl::parse("http://page.invalid/").expect("the constant is a URL");
        let headers = [("content-type", content_type.as_bytes())];
        let mut reader = Self::new(&nowhere, headers, &Arc::default());
        reader.found.digest();
        reader
    }

    /// Reads the next bytes of the page.
    pub fn feed(&mut self, bytes: &[u8]) {
        let State::Head(head) = &mut self.state else {
            return self.read(bytes, false);
        };
        let wanted = CHARSET_PRESCAN_BYTES - head.len();
        let (first, rest) = bytes.split_at(wanted.min(bytes.len()));
        head.extend_from_slice(first);
        if first.len() == wanted {
            self.begin();
            self.read(rest, false);
        }
    }

    /// Whether [`PageReader::finish`] may take more than a few milliseconds: with many links, or
    /// short ones below a long base.
    pub fn is_long(&self) -> bool {
        self.found.is_long()
    }

    /// The memory that it uses, approximately.
    pub(crate) fn held_bytes(&self) -> usize {
        self.found.held_bytes()
    }

    /// Ends the page and resolves its links. `url` is where the page was found.
    pub fn finish(mut self, url: &CanonicalUrl<'_>) -> Content {
        let encoding = self.end();
        self.found.resolve(url, encoding)
    }

    /// Ends the page: a digest of what a reader of it sees.
    pub(crate) fn version(mut self) -> blake3::Hash {
        self.end();
        self.found.version()
    }

    fn end(&mut self) -> &'static Encoding {
        self.begin();
        self.decide(true);
        self.read(&[], true);
        let State::Read { encoding, .. } = self.state else {
            unreachable!("the encoding was chosen above");
        };
        encoding
    }

    /// Looks for a declared encoding, unless that is done, and reads the head.
    fn begin(&mut self) {
        let State::Head(head) = &mut self.state else {
            return;
        };
        let head = std::mem::take(head);
        let declared = charset::declared(&head, self.of_header);
        let guess = || (State::Guess(Box::new(Guess::new())), 0);
        let skip;
        (self.state, skip) =
            declared.map_or_else(guess, |(encoding, skip)| (State::new(encoding), skip));
        self.read(&head[skip..], false);
    }

    fn read(&mut self, bytes: &[u8], is_last: bool) {
        let Self { scanner, found, .. } = self;
        match &mut self.state {
            State::Head(_) => {}
            State::Read { decoder: None, .. } => scanner.feed(bytes, found),
            State::Read { decoder: Some(decoder), .. } => {
                decode(decoder, bytes, is_last, |text| scanner.feed(text, found));
            }
            State::Guess(guess) => {
                let (ascii, held) = guess.take(bytes);
                scanner.feed(&bytes[..ascii], found);
                let is_declared = found.encoding().is_some() && guess.has_met_other_than_ascii();
                if is_declared || guess.is_full() {
                    self.decide(false);
                    self.read(&bytes[ascii + held..], false);
                }
            }
        }
    }

    /// Chooses the encoding of a page without a declaration in its beginning, and reads what was
    /// buffered.
    fn decide(&mut self, is_all: bool) {
        if !matches!(self.state, State::Guess(_)) {
            return;
        }
        let placeholder = State::new(UTF_8);
        if let State::Guess(guess) = std::mem::replace(&mut self.state, placeholder) {
            let (encoding, held) =
                guess.decide(self.found.encoding(), self.top_level.as_deref(), is_all);
            self.state = State::new(encoding);
            self.read(&held, false);
        }
    }
}

impl State {
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
    let kind = values::essence(content_type);
    kind.eq_ignore_ascii_case("text/html") || kind.eq_ignore_ascii_case("application/xhtml+xml")
}
