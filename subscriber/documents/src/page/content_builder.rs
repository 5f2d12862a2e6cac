//! Collects what is found in a page, and resolves it at the end.

use std::borrow::Cow;
use std::sync::Arc;

use encoding_rs::{Encoding, UTF_8};
use hashbrown::hash_map::{Entry, HashMap};
use percent_encoding::{NON_ALPHANUMERIC, percent_encode};
use tidings_protocol::CanonicalUrl;

use super::link_set::LinkSet;
use super::robots_directives::RobotsDirectives;
use super::signs::SignCounter;
use super::tag::{self, AttributeValue, HtmlTag, TagName, TagPosition, tag_name};
use super::values::{has_word, is_feed, is_page_relation, refresh_target, srcset};
use super::visible_digest::VisibleDigest;
use super::word_fingerprint::WordFingerprint;
use super::{PageContent, PageLink, PageOptions, charset, is_html, link_header, verbatim_url};
use crate::page::{FEED_HUBS_MAX, LINK_BYTES_MAX, QUICK_BASE_BYTES_MAX, TITLE_BYTES_MAX};
use crate::text::fold_whitespace;

/// Bytes of all links of one page, made absolute. Each link counts at least as much as its base up
/// to the query, even if it is invalid or a duplicate. Short links under a long `<base>` or URL
/// grow a thousandfold; honest pages of `LINKS_MAX` links stay below this.
pub(crate) const LINKS_ABSOLUTE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Links of one page that are made absolute on the runtime's thread ..
const QUICK_LINKS_MAX: usize = 500;
/// Links taken from the headers of an answer. Servers send a canonical URL, or the next page.
pub(crate) const HEADER_LINKS_MAX: usize = 100;
/// Feeds that one page may name. Blogs have one of each kind, and one for comments.
pub(crate) const FEEDS_MAX: usize = 16;
/// Bytes kept of a title as written. Entities and white space make it longer than its text.
const TITLE_WRITTEN_BYTES_MAX: usize = 8 * TITLE_BYTES_MAX;

const A: TagName = tag_name(b"a");
const AREA: TagName = tag_name(b"area");
const BASE: TagName = tag_name(b"base");
const BODY: TagName = tag_name(b"body");
const FRAME: TagName = tag_name(b"frame");
const IFRAME: TagName = tag_name(b"iframe");
/// `<image>` means the same.
const IMG: TagName = tag_name(b"img");
const IMAGE: TagName = tag_name(b"image");
const LINK: TagName = tag_name(b"link");
const META: TagName = tag_name(b"meta");
const SOURCE: TagName = tag_name(b"source");
const TITLE: TagName = tag_name(b"title");

/// The findings as written. They are resolved at the end, because a `<base>` may follow.
pub(super) struct ContentBuilder {
    options: Arc<PageOptions>,
    title: TitleState,
    base: Option<String>,
    canonical: Option<String>,
    /// `<= FEEDS_MAX`
    feeds: Vec<String>,
    /// `<= FEED_HUBS_MAX`
    hubs: Vec<String>,
    /// The first `rel=self`.
    self_url: Option<String>,
    /// The head, where hubs and the page's own URL may stand, has ended.
    in_body: bool,
    links: LinkSet,
    /// Header links that were resolved; `<= HEADER_LINKS_MAX`.
    header_links: usize,
    directives: RobotsDirectives,
    /// The encoding in a `<meta>`.
    encoding: Option<&'static Encoding>,
    cut: Option<&'static str>,
    /// `None` if none of them is wanted, as for most pages. So each tag and text costs one check.
    readers: Option<Box<TextReaders>>,
}

/// Reads the text of a page, each only if its result is wanted.
#[derive(Default)]
struct TextReaders {
    visible_digest: Option<VisibleDigest>,
    words: Option<WordFingerprint>,
    signs: Option<SignCounter>,
}

impl TextReaders {
    #[cold]
    fn text(&mut self, bytes: &[u8]) {
        if let Some(seen) = &mut self.visible_digest {
            seen.text(bytes);
        }
        if let Some(words) = &mut self.words {
            words.feed(bytes);
        }
        if let Some(signs) = &mut self.signs {
            signs.text(bytes);
        }
    }

    #[cold]
    fn tag(&mut self, bytes: &[u8], last: TagPosition) {
        if let Some(words) = &mut self.words {
            words.end_word();
        }
        if let Some(signs) = &mut self.signs {
            signs.tag(bytes, last);
        }
    }
}

/// The text of the first `<title>`, as written.
enum TitleState {
    Missing,
    Open {
        /// `<= TITLE_WRITTEN_BYTES_MAX`
        text: Vec<u8>,
        /// The length of the whole text.
        length: usize,
    },
    Closed(Vec<u8>),
}

impl ContentBuilder {
    pub(super) fn new(options: Arc<PageOptions>, wants_words: bool) -> Self {
        let ignored = Arc::clone(&options.ignored);
        let is_read = wants_words || options.signs || options.text_hash;
        let readers = TextReaders {
            visible_digest: options.text_hash.then(|| VisibleDigest::new(ignored)),
            words: wants_words.then(WordFingerprint::new),
            signs: options.signs.then(SignCounter::default),
        };
        Self {
            readers: is_read.then(|| Box::new(readers)),
            options,
            title: TitleState::Missing,
            base: None,
            canonical: None,
            feeds: Vec::new(),
            hubs: Vec::new(),
            self_url: None,
            in_body: false,
            links: LinkSet::default(),
            header_links: 0,
            directives: RobotsDirectives::default(),
            encoding: None,
            cut: None,
        }
    }

    /// Computes the digest of the page, too.
    pub(super) fn enable_digest(&mut self) {
        self.readers.get_or_insert_default().visible_digest = Some(VisibleDigest::default());
    }

    /// Ends the page: its digest.
    pub(super) fn version(self) -> blake3::Hash {
        let title = self.title.text().and_then(|title| tidy_title(&title));
        let digest = self.readers.and_then(|readers| readers.visible_digest);
        digest.unwrap_or_default().finish(title.as_deref())
    }

    /// Handles the next piece of text outside of tags and raw texts.
    pub(super) fn text(&mut self, bytes: &[u8]) {
        if let Some(readers) = &mut self.readers {
            readers.text(bytes);
        }
    }

    /// The encoding in a `<meta>`.
    pub(super) fn encoding(&self) -> Option<&'static Encoding> {
        self.encoding
    }

    /// Handles a `PageLink` header. It is not relative to `<base>`.
    pub(super) fn link_header(&mut self, value: &str, url: &CanonicalUrl<'_>) {
        let mut text = String::new();
        for link in link_header::parse_links(value).filter(|link| !link.has_anchor) {
            let kind = non_empty_type(link.kind.as_deref());
            let relations = &*link.relations;
            let is_known = has_word(relations, HUB) || has_word(relations, SELF);
            if !is_known && !is_feed_relation(relations, kind) && !is_page(relations, kind) {
                continue;
            }
            if self.header_links == HEADER_LINKS_MAX {
                self.cut = Some("too many links in headers; the rest were left out");
                return;
            }
            self.header_links += 1;
            if let Ok(target) = url.join_into(link.target, &mut text) {
                self.add_relation(&link.relations, kind, target.as_str());
            }
        }
    }

    /// Handles a `Refresh` header, which is not relative to `<base>` either.
    pub(super) fn refresh_header(&mut self, value: &str, url: &CanonicalUrl<'_>) {
        let mut text = String::new();
        let target = refresh_target(value).filter(|_| self.header_links < HEADER_LINKS_MAX);
        if let Some(Ok(target)) = target.map(|target| url.join_into(target, &mut text)) {
            self.header_links += 1;
            self.add_link(target.as_str(), false);
        }
    }

    /// Whether resolving the links may take long.
    pub(super) fn resolve_may_block(&self) -> bool {
        let base_bytes = self.base.as_ref().map_or(0, String::len);
        self.links.len() > QUICK_LINKS_MAX || base_bytes > QUICK_BASE_BYTES_MAX
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.links.memory_bytes()
    }

    /// Handles an `X-Robots-Tag` header.
    pub(super) fn robots_header(&mut self, value: &str) {
        self.directives.add_header(value, &self.options.token);
    }

    /// Handles any start or end tag, except the end tag of a raw text. It interrupts the text.
    pub(super) fn any_tag(&mut self, bytes: &[u8], last: TagPosition) {
        if let Some(readers) = &mut self.readers {
            readers.tag(bytes, last);
        }
    }

    /// Handles this many bytes of raw text, except that of a title.
    pub(super) fn raw_text(&mut self, bytes: usize) {
        if let Some(signs) = self.readers.as_mut().and_then(|readers| readers.signs.as_mut()) {
            signs.raw_text(bytes);
        }
    }

    /// Handles a start tag of HTML.
    pub(super) fn start_tag(&mut self, tag: &HtmlTag<'_>) {
        if let Some(seen) = self.readers.as_mut().and_then(|it| it.visible_digest.as_mut()) {
            let target = match tag.name {
                A | AREA => tag.value("href"),
                FRAME | IFRAME | IMG | IMAGE | SOURCE => tag.value("src"),
                _ => None,
            };
            if let Some(target) = target {
                seen.target(&target.text());
            }
        }
        match tag.name {
            A | AREA => self.link(tag, "href"),
            FRAME | IFRAME => self.link(tag, "src"),
            BODY => self.in_body = true,
            LINK => {
                let [href, relations, kind] = tag.values(["href", "rel", "type"]);
                if let (Some(href), Some(relations)) = (href, relations) {
                    let kind = kind.map(AttributeValue::text);
                    self.add_relation(&relations.text(), kind.as_deref(), &href.text());
                }
            }
            BASE if self.base.is_none() => {
                self.base = tag.value("href").map(|href| href.text().into_owned());
            }
            META => self.meta(tag),
            TITLE if matches!(self.title, TitleState::Missing) => {
                self.title = TitleState::Open { text: Vec::new(), length: 0 };
            }
            IMG | IMAGE | SOURCE if self.options.images => self.image(tag),
            _ => {}
        }
    }

    /// Handles a start tag in foreign content.
    pub(super) fn foreign_tag(&mut self, tag: &HtmlTag<'_>) {
        if tag.name == A {
            // Most programs that draw write the name of SVG 1.1.
            let name = tag.value("href").map_or("xlink:href", |_| "href");
            self.link(tag, name);
        }
    }

    /// Handles a tag that is too long; only its name is known.
    pub(super) fn tag_is_too_long(&mut self, name: TagName) {
        let leads = matches!(name, A | AREA | FRAME | IFRAME | LINK | BASE | META)
            || self.options.images && matches!(name, IMG | IMAGE | SOURCE);
        if leads {
            self.cut = Some("a tag is too long; its content was left out");
        }
    }

    /// Handles text of the open `<title>`, which may include its end tag.
    pub(super) fn title_text(&mut self, bytes: &[u8]) {
        if let TitleState::Open { text, length } = &mut self.title {
            let room = TITLE_WRITTEN_BYTES_MAX - text.len();
            text.extend_from_slice(&bytes[..room.min(bytes.len())]);
            *length += bytes.len();
        }
    }

    /// Ends the `<title>`: the last bytes of its text were the end tag.
    pub(super) fn end_title(&mut self, end_bytes: usize) {
        if let TitleState::Open { text, length } = &mut self.title {
            text.truncate(*length - end_bytes);
            self.title = TitleState::Closed(std::mem::take(text));
        }
    }

    fn link(&mut self, tag: &HtmlTag<'_>, attribute: &str) {
        let [target, relations] = tag.values([attribute, "rel"]);
        if let Some(target) = target {
            let nofollow = relations.is_some_and(|it| has_word(&it.text(), NOFOLLOW));
            self.add_link(&target.text(), nofollow);
        }
    }

    fn image(&mut self, tag: &HtmlTag<'_>) {
        let [source, set] = tag.values(["src", "srcset"]);
        // The `src` of a `<source>` is audio or video.
        if let Some(source) = source.filter(|_| tag.name != SOURCE) {
            self.add_link(&source.text(), false);
        }
        if let Some(set) = set {
            srcset(&set.text()).for_each(|url| self.add_link(url, false));
        }
    }

    /// Handles a link with a relation to the page.
    fn add_relation(&mut self, relations: &str, kind: Option<&str>, target: &str) {
        if target.len() > LINK_BYTES_MAX {
            return;
        }
        let kind = non_empty_type(kind);
        if has_word(relations, SELF) && self.self_url.is_none() && !self.in_body {
            self.self_url = Some(target.to_owned());
        }
        if has_word(relations, HUB) {
            if self.hubs.len() < FEED_HUBS_MAX && !self.in_body {
                self.hubs.push(target.to_owned());
            }
        } else if is_feed_relation(relations, kind) {
            if self.feeds.len() < FEEDS_MAX {
                self.feeds.push(target.to_owned());
            }
        } else if is_page(relations, kind) {
            if self.canonical.is_none() && has_word(relations, "canonical") {
                self.canonical = Some(target.to_owned());
            }
            self.add_link(target, has_word(relations, NOFOLLOW));
        }
    }

    fn meta(&mut self, tag: &HtmlTag<'_>) {
        let [name, pragma, content] = tag.values(["name", "http-equiv", "content"]);
        let content = content.map(AttributeValue::text).unwrap_or_default();
        if name.is_some_and(|name| name.is("robots") || name.is(&self.options.token)) {
            self.directives.add_meta(&content);
        } else if pragma.is_some_and(|pragma| pragma.is("refresh"))
            && let Some(target) = refresh_target(&content)
        {
            self.add_link(target, false);
        }
        if self.encoding.is_none() {
            self.encoding = charset::from_late_meta(tag.attributes.clone());
        }
    }

    fn add_link(&mut self, link: &str, nofollow: bool) {
        if let Err(cut) = self.links.add(link, nofollow) {
            self.cut = Some(cut);
        }
    }

    /// Ends the page and resolves its links. `url` is where the page was found.
    pub(super) fn build(self, url: &CanonicalUrl<'_>, encoding: &'static Encoding) -> PageContent {
        let base = self.base.and_then(|base| url.join(&base).ok());
        let base = base.as_ref().unwrap_or(url);
        let mut text = String::new();
        let readers = self.readers.map(|readers| *readers).unwrap_or_default();
        let mut absolute = |link: &str| {
            let target = base.join_into(&query_encoded(link, encoding), &mut text).ok()?;
            Some(Box::<str>::from(target.as_str()))
        };
        let mut content = PageContent {
            title: self.title.text().and_then(|title| tidy_title(&title)),
            canonical: self.canonical.and_then(|link| absolute(&link)),
            feeds: self.feeds.iter().filter_map(|link| absolute(link)).collect(),
            hubs: self.hubs.iter().filter_map(|link| absolute(link)).collect(),
            self_url: self.self_url.and_then(|own| {
                verbatim_url(own.trim()).map(Into::into).or_else(|| absolute(&own))
            }),
            charset: Some(encoding.name()),
            noindex: self.directives.noindex,
            nofollow: self.directives.nofollow,
            unavailable_after: self.directives.unavailable_after,
            cut: self.cut,
            word_fingerprint: readers.words.map(WordFingerprint::finish),
            signs: readers.signs.map(SignCounter::finish),
            ..PageContent::default()
        };
        let seen = readers.visible_digest.filter(VisibleDigest::has_text);
        content.text_hash = seen.map(|seen| seen.finish(content.title.as_deref()));
        resolve_links(&self.links, base, encoding, &mut content);
        content
    }
}

/// The relations of `WebSub`: the hub, and the URL of the topic (W3C `WebSub` section 4).
const HUB: &str = "hub";
const SELF: &str = "self";

/// The only relation that asks crawlers not to follow a link. `ugc` and `sponsored` only describe
/// the link's origin; sites that also do not want it followed add `nofollow`, as the authors of
/// these relations recommend.
const NOFOLLOW: &str = "nofollow";

/// The length of the query, including its `?`.
fn query_bytes(url: &CanonicalUrl<'_>) -> usize {
    url.path_and_query().len() - url.path().len()
}

fn non_empty_type(kind: Option<&str>) -> Option<&str> {
    kind.map(str::trim).filter(|kind| !kind.is_empty())
}

fn is_feed_relation(relations: &str, kind: Option<&str>) -> bool {
    kind.is_some_and(is_feed) && has_word(relations, "alternate")
}

fn is_page(relations: &str, kind: Option<&str>) -> bool {
    kind.is_none_or(is_html) && is_page_relation(relations)
}

fn resolve_links(
    found: &LinkSet,
    base: &CanonicalUrl<'_>,
    encoding: &'static Encoding,
    content: &mut PageContent,
) {
    let mut known = HashMap::with_capacity(found.len());
    content.links.reserve_exact(found.len());
    let (mut bytes, mut text) = (0, String::new());
    // The query of the base matters only for links that are a query themselves.
    let without_query = &base.as_str()[..base.as_str().len() - query_bytes(base)];
    let without_query = CanonicalUrl::parse(without_query).unwrap_or_else(|_| base.clone());
    for (link, nofollow) in found.iter() {
        let nofollow = nofollow || content.nofollow;
        let below = if link.starts_with('?') { base } else { &without_query };
        let target = below.join_into(&query_encoded(link, encoding), &mut text);
        let target_bytes = target.as_ref().map_or(link.len(), |target| target.as_str().len());
        bytes += target_bytes.max(below.as_str().len());
        if bytes > LINKS_ABSOLUTE_BYTES_MAX {
            content.cut = Some("links too long together; some were left out");
            return;
        }
        let Ok(target) = target else { continue };
        match known.entry(target.url_key()) {
            Entry::Occupied(known) => {
                let known: &mut PageLink = &mut content.links[*known.get()];
                known.nofollow &= nofollow;
            }
            Entry::Vacant(unknown) => {
                unknown.insert(content.links.len());
                content.links.push(PageLink { url: target.as_str().into(), nofollow });
            }
        }
    }
}

/// A link with its non-ASCII query in the encoding of the page, as in browsers (URL
/// standard, "query state"). The other parts are always UTF-8.
fn query_encoded<'a>(link: &'a str, encoding: &'static Encoding) -> Cow<'a, str> {
    let encoding = encoding.output_encoding();
    let Some((before, query)) = link.split_once('?').filter(|_| encoding != UTF_8) else {
        return Cow::Borrowed(link);
    };
    if query.is_ascii() {
        return Cow::Borrowed(link);
    }
    let mut encoded = format!("{before}?");
    let mut rest = query;
    while !rest.is_empty() {
        let is_ascii = rest.starts_with(|c: char| c.is_ascii());
        let (run, after) =
            rest.split_at(rest.find(|c: char| c.is_ascii() != is_ascii).unwrap_or(rest.len()));
        rest = after;
        if is_ascii {
            encoded.push_str(run);
        } else {
            // A character that the encoding lacks becomes an HTML entity.
            let (bytes, ..) = encoding.encode(run);
            encoded.extend(percent_encode(&bytes, NON_ALPHANUMERIC));
        }
    }
    Cow::Owned(encoded)
}

impl TitleState {
    fn text(&self) -> Option<Cow<'_, str>> {
        match self {
            Self::Missing => None,
            Self::Open { text, .. } | Self::Closed(text) => Some(tag::decode_text(text)),
        }
    }
}

fn tidy_title(text: &str) -> Option<String> {
    let title = fold_whitespace(&htmlize::unescape(text), TITLE_BYTES_MAX);
    (!title.is_empty()).then_some(title)
}
