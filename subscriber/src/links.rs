//! What a page says: its title and the links a reader could follow, read while it streams by.
//!
//! A page never becomes a tree. The parser holds one token at most, and what was found is
//! bounded in number and bytes; at a bound the rest is left out and [`Content::cut`] says so.
//! Pure: bytes in any split go in, and the same content comes out.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, LazyLock};

use encoding_rs::{CoderResult, Decoder, UTF_8};
use indexmap::IndexMap;
use lol_html::errors::RewritingError;
use lol_html::send::{Element, HtmlRewriter, Settings};
use lol_html::{ElementContentHandlers, MemorySettings, Selector};
use parking_lot::Mutex;
use tidings_protocol::CanonicalUrl;

use crate::charset;
use crate::config::{
    CHARSET_PRESCAN_BYTES, LINK_BYTES_MAX, LINKS_ABSOLUTE_BYTES_MAX, LINKS_BYTES_MAX, LINKS_MAX,
    PARSER_BYTES_MAX, TITLE_BYTES_MAX, WITHOUT_SCRIPTS_BYTES_MAX,
};

/// Elements that lead to other pages; as `wget --recursive` has it, without what only makes a
/// page look right (style sheets, scripts, images).
static LEADS: LazyLock<Selector> = LazyLock::new(|| {
    // Names only, since they are compiled for every page: [`Found::element`] asks for the attributes anyway.
    "a, area, link, frame, iframe, base, title, meta".parse().expect("the selector is valid")
});
static TITLE: LazyLock<Selector> =
    LazyLock::new(|| "title".parse().expect("the selector is valid"));
/// Pictures have titles, too. (The parser counts what is inside of these as HTML again, so the
/// namespace does not tell.)
static PICTURE_TITLE: LazyLock<Selector> =
    LazyLock::new(|| "svg title".parse().expect("the selector is valid"));

/// What those read who run no scripts and show no frames, as we: the parser takes it for text.
static WITHOUT_SCRIPTS: LazyLock<Selector> =
    LazyLock::new(|| "noscript, noframes".parse().expect("the selector is valid"));

/// Relations of `<link>` that name a page for readers.
const PAGE_RELATIONS: &[&str] = &[
    "alternate",
    "author",
    "canonical",
    "contents",
    "copyright",
    "first",
    "glossary",
    "help",
    "home",
    "index",
    "last",
    "license",
    "next",
    "prev",
    "previous",
    "search",
    "start",
    "toc",
    "top",
    "up",
];

/// What was read from a page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// The text of the first `<title>`, white space folded; `None` if there is none or nothing in it.
    pub title: Option<String>,
    /// In the order of the page, each once.
    pub links: Vec<Link>,
    /// Why some of the page was left out.
    pub cut: Option<&'static str>,
}

/// A link of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Canonical.
    pub url: Box<str>,
    /// The page asks crawlers not to follow it: `rel=nofollow` wherever it stands, or a
    /// `<meta name=robots content=nofollow>`.
    pub nofollow: bool,
}

/// Reads one page.
pub struct PageReader {
    content_type: Option<String>,
    state: State,
    found: Arc<Mutex<Found>>,
}

type Parser = HtmlRewriter<'static, fn(&[u8])>;

enum State {
    /// The beginning of the page, until there is enough of it to know its encoding.
    Head(Vec<u8>),
    Body {
        /// `None` for UTF-8, which the parser reads itself.
        decoder: Option<Decoder>,
        parser: Box<Parser>,
    },
    /// The parser gave up; nothing more is read.
    Ended,
}

/// What the parser's handlers have seen.
#[derive(Default)]
struct Found {
    base: Option<String>,
    title: Title,
    /// The `<title>` that begins now is that of a picture.
    title_of_picture: bool,
    /// As written, without entities and fragment, with "every occurrence says nofollow".
    /// Resolved only at the end, since `<base>` may follow.
    links: IndexMap<Box<str>, bool>,
    links_bytes: usize,
    /// The content of `<noscript>` and the like; `<= WITHOUT_SCRIPTS_BYTES_MAX`.
    without_scripts: String,
    nofollow: bool,
    cut: Option<&'static str>,
}

#[derive(Default)]
enum Title {
    #[default]
    Awaited,
    Open(String),
    Closed(String),
}

impl fmt::Debug for PageReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageReader").finish_non_exhaustive()
    }
}

impl PageReader {
    /// For a page with this `Content-Type` header.
    pub fn new(content_type: Option<&str>) -> Self {
        Self {
            content_type: content_type.map(str::to_owned),
            state: State::Head(Vec::new()),
            found: Arc::default(),
        }
    }

    /// Takes the next bytes of the page.
    pub fn feed(&mut self, mut bytes: &[u8]) {
        if let State::Head(head) = &mut self.state {
            let wanted = CHARSET_PRESCAN_BYTES - head.len();
            let (first, rest) = bytes.split_at(wanted.min(bytes.len()));
            head.extend_from_slice(first);
            if head.len() < CHARSET_PRESCAN_BYTES {
                return;
            }
            bytes = rest;
            self.begin();
        }
        self.parse(bytes, false);
    }

    /// The page is over: resolves what was found. `url` is where the page was found.
    pub fn finish(mut self, url: &CanonicalUrl) -> Content {
        self.begin();
        self.parse(&[], true);
        if let State::Body { parser, .. } = std::mem::replace(&mut self.state, State::Ended) {
            let ended = parser.end();
            self.note(&ended);
        }
        self.parse_without_scripts();
        let found = std::mem::take(&mut *self.found.lock());
        found.resolve(url)
    }

    /// Reads what was kept of `<noscript>` as the HTML that it is.
    fn parse_without_scripts(&mut self) {
        let html = std::mem::take(&mut self.found.lock().without_scripts);
        if html.is_empty() {
            return;
        }
        let mut parser = parser(&self.found);
        let parsed = parser.write(html.as_bytes()).and_then(|()| parser.end());
        self.note(&parsed);
    }

    /// Chooses the encoding, if that has not been done, and reads the head.
    fn begin(&mut self) {
        let State::Head(head) = &mut self.state else {
            return;
        };
        let head = std::mem::take(head);
        let (encoding, skip) = charset::detect(&head, self.content_type.as_deref());
        let decoder = (encoding != UTF_8).then(|| encoding.new_decoder_without_bom_handling());
        self.state = State::Body { decoder, parser: Box::new(parser(&self.found)) };
        self.parse(&head[skip..], false);
    }

    fn parse(&mut self, bytes: &[u8], last: bool) {
        let State::Body { decoder, parser } = &mut self.state else {
            return;
        };
        let parsed = match decoder {
            Some(decoder) => decode(decoder, bytes, last, |text| parser.write(text)),
            None => parser.write(bytes),
        };
        self.note(&parsed);
    }

    fn note(&mut self, parsed: &Result<(), RewritingError>) {
        if parsed.is_err() {
            self.state = State::Ended;
            self.found.lock().cut =
                Some("a tag or nesting too large to read; the rest of the page was left out");
        }
    }
}

/// Handles the text piece by piece, whatever `bytes` grow to.
fn decode<E>(
    decoder: &mut Decoder,
    mut bytes: &[u8],
    last: bool,
    mut handle: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let mut text = [0; 4096];
    loop {
        let (result, read, written, _) = decoder.decode_to_utf8(bytes, &mut text, last);
        handle(&text[..written])?;
        bytes = &bytes[read..];
        if result == CoderResult::InputEmpty {
            return Ok(());
        }
    }
}

fn parser(found: &Arc<Mutex<Found>>) -> Parser {
    let picture_title = {
        let found = Arc::clone(found);
        ElementContentHandlers::default().element(move |_: &mut Element<'_, '_>| {
            found.lock().title_of_picture = true;
            Ok(())
        })
    };
    let leads = {
        let found = Arc::clone(found);
        ElementContentHandlers::default().element(move |element: &mut Element<'_, '_>| {
            found.lock().element(element);
            Ok(())
        })
    };
    let title = {
        let found = Arc::clone(found);
        ElementContentHandlers::default().text(
            move |text: &mut lol_html::html_content::TextChunk<'_>| {
                found.lock().title_text(text.as_str());
                Ok(())
            },
        )
    };
    let without_scripts = {
        let found = Arc::clone(found);
        ElementContentHandlers::default().text(
            move |text: &mut lol_html::html_content::TextChunk<'_>| {
                found.lock().without_scripts_text(text.as_str());
                Ok(())
            },
        )
    };
    let memory = MemorySettings::new()
        .with_preallocated_parsing_buffer_size(0)
        .with_max_allowed_memory_usage(PARSER_BYTES_MAX);
    let settings = Settings::new_send()
        // First, so that the next one knows.
        .append_element_content_handler((Cow::Borrowed(&*PICTURE_TITLE), picture_title))
        .append_element_content_handler((Cow::Borrowed(&*LEADS), leads))
        .append_element_content_handler((Cow::Borrowed(&*TITLE), title))
        .append_element_content_handler((Cow::Borrowed(&*WITHOUT_SCRIPTS), without_scripts))
        .with_memory_settings(memory)
        .with_strict(false);
    HtmlRewriter::new(settings, |_: &[u8]| ())
}

impl Found {
    fn element(&mut self, element: &Element<'_, '_>) {
        match element.tag_name().as_str() {
            "a" | "area" => self.link(element, "href"),
            "frame" | "iframe" => self.link(element, "src"),
            "link" if leads_to_page(element) => self.link(element, "href"),
            "base" if self.base.is_none() => self.base = attribute(element, "href"),
            "title" => self.open_title(),
            "meta" => self.meta(element),
            _ => {}
        }
    }

    fn link(&mut self, element: &Element<'_, '_>, name: &str) {
        let Some(link) = attribute(element, name) else {
            return;
        };
        let nofollow = element.get_attribute("rel").is_some_and(|rel| has_word(&rel, "nofollow"));
        self.keep(&link, nofollow);
    }

    fn keep(&mut self, link: &str, nofollow: bool) {
        let link = link.split('#').next().unwrap_or_default().trim();
        if link.is_empty() || link.len() > LINK_BYTES_MAX {
            return;
        }
        if let Some(so_far) = self.links.get_mut(link) {
            *so_far &= nofollow;
        } else if self.links.len() == LINKS_MAX {
            self.cut = Some("too many links; the rest were left out");
        } else if self.links_bytes + link.len() > LINKS_BYTES_MAX {
            self.cut = Some("links too long together; some were left out");
        } else {
            self.links_bytes += link.len();
            self.links.insert(link.into(), nofollow);
        }
    }

    fn meta(&mut self, element: &Element<'_, '_>) {
        let content = attribute(element, "content").unwrap_or_default();
        let is = |name: &str, value: &str| {
            element.get_attribute(name).is_some_and(|it| it.trim().eq_ignore_ascii_case(value))
        };
        if is("name", "robots") {
            self.nofollow |= has_word(&content, "nofollow") || has_word(&content, "none");
        } else if is("http-equiv", "refresh")
            && let Some(target) = refresh_target(&content)
        {
            self.keep(target, false);
        }
    }

    fn open_title(&mut self) {
        let of_picture = std::mem::take(&mut self.title_of_picture);
        self.title = match std::mem::take(&mut self.title) {
            Title::Awaited if !of_picture => Title::Open(String::new()),
            Title::Open(text) => Title::Closed(text),
            same => same,
        };
    }

    fn title_text(&mut self, text: &str) {
        // Entities may make it shorter, so more than is kept at the end is taken here.
        if let Title::Open(title) = &mut self.title
            && title.len() < TITLE_BYTES_MAX * 8
        {
            title.push_str(text);
        }
    }

    fn without_scripts_text(&mut self, text: &str) {
        let room = WITHOUT_SCRIPTS_BYTES_MAX - self.without_scripts.len();
        let fits = text.floor_char_boundary(room);
        self.without_scripts.push_str(&text[..fits]);
        if fits < text.len() {
            self.cut = Some("too much in <noscript>; some was left out");
        }
    }

    fn resolve(self, url: &CanonicalUrl) -> Content {
        let base = self.base.and_then(|base| CanonicalUrl::join(url, &base).ok());
        let base = base.as_ref().unwrap_or(url);
        let mut known = HashSet::new();
        let mut links: Vec<Link> = Vec::new();
        let (mut links_bytes, mut cut) = (0, self.cut);
        for (link, nofollow) in self.links {
            let Ok(target) = CanonicalUrl::join(base, &link) else {
                continue;
            };
            if known.insert(target.url_key()) {
                links_bytes += target.as_str().len();
                if links_bytes > LINKS_ABSOLUTE_BYTES_MAX {
                    cut = Some("links too long together; some were left out");
                    break;
                }
                links.push(Link {
                    url: target.as_str().into(),
                    nofollow: nofollow || self.nofollow,
                });
            }
        }
        let title = match self.title {
            Title::Awaited => None,
            Title::Open(text) | Title::Closed(text) => tidy_title(&text),
        };
        Content { title, links, cut }
    }
}

/// An attribute's value as a browser sees it; `None` also for one too long to mean anything.
fn attribute(element: &Element<'_, '_>, name: &str) -> Option<String> {
    let value = element.get_attribute(name)?;
    (value.len() <= LINK_BYTES_MAX * 2).then(|| htmlize::unescape_attribute(&value).into_owned())
}

/// Whether a `<link>` is to a page for readers, not a style sheet, icon or feed.
fn leads_to_page(element: &Element<'_, '_>) -> bool {
    let is_html =
        element.get_attribute("type").is_none_or(|kind| is_html(&kind) || kind.trim().is_empty());
    let relations = element.get_attribute("rel").unwrap_or_default();
    let style = has_word(&relations, "stylesheet");
    is_html && !style && PAGE_RELATIONS.iter().any(|relation| has_word(&relations, relation))
}

/// Whether a `Content-Type` names a page that can be read for links.
pub fn is_html(content_type: &str) -> bool {
    let kind = content_type.split(';').next().unwrap_or_default().trim();
    kind.eq_ignore_ascii_case("text/html") || kind.eq_ignore_ascii_case("application/xhtml+xml")
}

fn has_word(list: &str, word: &str) -> bool {
    list.split([' ', '\t', '\n', '\r', '\x0c', ',']).any(|it| it.eq_ignore_ascii_case(word))
}

/// `5; url='there'`.
fn refresh_target(content: &str) -> Option<&str> {
    let (_, target) = content.split_once([';', ','])?;
    let target = target.trim();
    let named = target.get(..3).filter(|name| name.eq_ignore_ascii_case("url"));
    let target = match named.and_then(|_| target[3..].trim_start().strip_prefix('=')) {
        Some(target) => target.trim_start(),
        None => target,
    };
    match target.chars().next()? {
        quote @ ('"' | '\'') => target[1..].split(quote).next(),
        _ => Some(target),
    }
}

fn tidy_title(text: &str) -> Option<String> {
    let text = htmlize::unescape(text);
    let mut title = String::new();
    for word in
        text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty())
    {
        if !title.is_empty() {
            title.push(' ');
        }
        title.push_str(word);
    }
    title.truncate(title.floor_char_boundary(TITLE_BYTES_MAX));
    (!title.is_empty()).then_some(title)
}

#[cfg(test)]
#[path = "links_tests.rs"]
mod tests;
