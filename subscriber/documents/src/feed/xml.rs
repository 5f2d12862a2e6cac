//! Reads RSS and Atom.

use std::borrow::Cow;
use std::sync::Arc;

use tidings_protocol::CanonicalUrl;

use super::entry_draft::{EntryDraft, LinkKind, LinkResolver, XmlBase};
use super::namespaces::{Namespaces, Vocabulary};
use super::{BREAKS_OFF, EntryList, Feed, FeedKind};
use crate::feed::{FEED_ENTRIES_MAX, FEED_TEXTS_BYTES_MAX};
use crate::markup::{MarkupTag, MarkupToken, ReferenceResolver, plain_text};
use crate::page::{FEED_HUBS_MAX, LINK_BYTES_MAX, TITLE_BYTES_MAX};
use crate::text::fold_whitespace;

/// Nested elements. Articles written as XHTML have some dozens; a closing tag is matched against
/// the open ones.
pub(crate) const FEED_DEPTH_MAX: usize = 100;
/// A longer `xml:base` is ignored, both as written and made absolute.
const FEED_BASE_BYTES_MAX: usize = 2_000;

/// Bytes of a summary that count for the id of an item without a better one.
const SUMMARY_BYTES_MAX: usize = 1024;
/// Bytes of an element's name that are compared.
const NAME_BYTES_MAX: usize = 64;
/// A title as written may be longer than its text: it contains references and tags.
const TITLE_SOURCE_BYTES_MAX: usize = 8 * TITLE_BYTES_MAX;
/// Bytes of a date.
const DATE_BYTES_MAX: usize = 64;

/// Finds entries in the elements of a document.
#[derive(Debug, Default)]
pub(crate) struct FeedElements {
    kind: Option<FeedKind>,
    namespaces: Namespaces,
    /// Open elements; `len <= FEED_DEPTH_MAX`.
    open_elements: Vec<OpenElement>,
    capture: Option<TextCapture>,
    feed: EntryDraft,
    /// The open entry.
    entry: Option<EntryDraft>,
    entries: Vec<EntryDraft>,
    /// Bytes of all kept texts; `<= FEED_TEXTS_BYTES_MAX`.
    bytes: usize,
    references: ReferenceResolver,
    hubs: Vec<String>,
    cloud: Option<String>,
    hints: super::PollHints,
    /// `sy:updatePeriod` in seconds, and the number of updates in it.
    period: (Option<u64>, Option<u64>),
    cut: Option<&'static str>,
    ended: bool,
}

#[derive(Debug)]
struct OpenElement {
    name: Box<str>,
    role: ElementRole,
    declarations: usize,
    base: Option<Arc<XmlBase>>,
}

impl OpenElement {
    fn is_invisible(&self) -> bool {
        matches!(&*self.name, "script" | "style")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ElementRole {
    /// Its children are elements of the feed.
    Feed,
    Entry,
    SkipHours,
    SkipDays,
    Other,
}

/// The text of an element, while it is read.
#[derive(Debug)]
struct TextCapture {
    field: CapturedField,
    /// The index of its element in `open_elements`.
    depth: usize,
    text: String,
    /// The text was longer than the limit.
    cut: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CapturedField {
    /// With whether the text is HTML.
    Title(bool),
    /// Used in place of a missing title.
    FallbackTitle,
    Link,
    /// With what it is as a link, if it may be one.
    Id(Option<LinkKind>),
    FallbackId,
    Updated,
    Published,
    Summary,
    Ttl,
    Period,
    Frequency,
    Hour,
    Day,
}

impl CapturedField {
    /// The limit of its text, as written.
    fn bytes_max(self) -> usize {
        match self {
            Self::Title(_) | Self::FallbackTitle => TITLE_SOURCE_BYTES_MAX,
            Self::Summary => SUMMARY_BYTES_MAX,
            _ if self.is_link() => LINK_BYTES_MAX,
            _ => DATE_BYTES_MAX,
        }
    }

    fn is_link(self) -> bool {
        matches!(self, Self::Link | Self::Id(_) | Self::FallbackId)
    }
}

impl FeedElements {
    /// Reads the next token of the document.
    pub(crate) fn take(&mut self, token: MarkupToken<'_>) {
        if self.ended {
            return;
        }
        match token {
            MarkupToken::Open(tag) => self.open(tag),
            MarkupToken::Close(name) => self.close(name),
            // Scripts are not part of a title.
            MarkupToken::Text(_)
                if self.open_elements.last().is_some_and(OpenElement::is_invisible) => {}
            MarkupToken::Text(text) => {
                if let Some(TextCapture { field, text: kept, cut, .. }) = &mut self.capture {
                    // After text that did not fit, shorter text would fit, but in the wrong place.
                    let room = if *cut { 0 } else { field.bytes_max().saturating_sub(kept.len()) };
                    kept.push_str(&text[..text.floor_char_boundary(room)]);
                    *cut |= room < text.len();
                }
            }
        }
    }

    fn open(&mut self, tag: MarkupTag<'_>) {
        if self.open_elements.len() == FEED_DEPTH_MAX {
            self.stop("elements nested too deep; the rest of the feed was left out");
            return;
        }
        let declared = self.namespaces.enter(tag);
        let (vocabulary, local) = self.namespaces.resolve(tag.name);
        let base = self.base_of(tag);
        if self.references.is_exhausted() {
            self.stop("too many relative links; the rest of the feed was left out");
            return;
        }
        let role = self.role(vocabulary, &local, tag, base.as_ref());
        let name = truncate_name(tag.name).to_ascii_lowercase().into();
        self.open_elements.push(OpenElement { name, role, declarations: declared, base });
    }

    fn base_of(&mut self, tag: MarkupTag<'_>) -> Option<Arc<XmlBase>> {
        let outer = self.open_elements.last().and_then(|open| open.base.clone());
        let Some(base) = tag.attribute("xml:base").filter(|base| base.len() <= FEED_BASE_BYTES_MAX)
        else {
            return outer;
        };
        let url = self.references.url(&base, outer.as_ref().and_then(|outer| outer.url.as_ref()));
        if url.as_ref().is_some_and(|url| url.as_str().len() > FEED_BASE_BYTES_MAX) {
            return outer;
        }
        Some(Arc::new(XmlBase { written: base.trim().into(), url }))
    }

    fn role(
        &mut self,
        vocabulary: Vocabulary,
        local: &str,
        tag: MarkupTag<'_>,
        base: Option<&Arc<XmlBase>>,
    ) -> ElementRole {
        if self.kind.is_none()
            && let Some(role) = self.root(vocabulary, local)
        {
            return role;
        }
        if self.capture.is_some() {
            return ElementRole::Other;
        }
        let is_own = vocabulary.is_feed_vocabulary();
        // An entry may be the whole document.
        match self.open_elements.last().map_or(ElementRole::Feed, |open| open.role) {
            // If an entry is open, its end tag is missing.
            ElementRole::Feed | ElementRole::Entry
                if is_own && matches!(local, "item" | "entry") =>
            {
                self.end_entry();
                self.begin_entry(tag);
                return ElementRole::Entry;
            }
            ElementRole::Feed if is_own && matches!(local, "channel" | "items") => {
                return ElementRole::Feed;
            }
            ElementRole::Feed if local == "skiphours" => return ElementRole::SkipHours,
            ElementRole::Feed if local == "skipdays" => return ElementRole::SkipDays,
            ElementRole::Feed => self.field((vocabulary, local), tag, base, false),
            ElementRole::Entry => self.field((vocabulary, local), tag, base, true),
            ElementRole::SkipHours if local == "hour" => self.capture(CapturedField::Hour),
            ElementRole::SkipDays if local == "day" => self.capture(CapturedField::Day),
            _ => {}
        }
        ElementRole::Other
    }

    fn begin_entry(&mut self, tag: MarkupTag<'_>) {
        let mut attributes = tag.attributes();
        let about = (Vocabulary::Rdf, "about".to_owned());
        let id = attributes.find(|(key, _)| self.namespaces.resolve(key) == about);
        let id = id.map(|(_, value)| value.trim().to_owned());
        let id = id.filter(|id| !id.is_empty() && id.len() <= LINK_BYTES_MAX);
        let link = id.clone().filter(|id| CanonicalUrl::parse(id).is_ok());
        let link = link.map(|link| (LinkKind::Id, link, None));
        self.entry = Some(EntryDraft { fallback_id: id, link, ..EntryDraft::default() });
    }

    /// Handles an element outside of a feed. Error messages of the server may precede the feed.
    fn root(&mut self, vocabulary: Vocabulary, local: &str) -> Option<ElementRole> {
        let (kind, role) = match local {
            "rss" if vocabulary.is_feed_vocabulary() => (FeedKind::Rss, Some(ElementRole::Feed)),
            "rdf" if vocabulary == Vocabulary::Rdf => (FeedKind::Rdf, Some(ElementRole::Feed)),
            "feed" if vocabulary.is_feed_vocabulary() => (FeedKind::Atom, Some(ElementRole::Feed)),
            // A document with a single entry.
            "entry" if vocabulary == Vocabulary::Atom => (FeedKind::Atom, None),
            "html" | "urlset" | "sitemapindex" | "opml" => {
                self.ended = true;
                return Some(ElementRole::Other);
            }
            _ => return Some(ElementRole::Other),
        };
        self.kind = Some(kind);
        role
    }

    fn field(
        &mut self,
        (vocabulary, local): (Vocabulary, &str),
        tag: MarkupTag<'_>,
        base: Option<&Arc<XmlBase>>,
        in_entry: bool,
    ) {
        use Vocabulary::{DublinCore, Syndication};
        let own = vocabulary.is_feed_vocabulary();
        match local {
            "title" if own => {
                let kind = tag.attribute("type").unwrap_or_default();
                let is_html = match self.kind {
                    Some(FeedKind::Atom) => kind.contains("html") && !kind.contains("xhtml"),
                    _ => true,
                };
                self.capture(CapturedField::Title(is_html));
            }
            // From Dublin Core, media or podcasts.
            "title" => self.capture(CapturedField::FallbackTitle),
            "link" if own && tag.attribute("href").is_some() => self.link(tag, base),
            "link" if own => self.capture(CapturedField::Link),
            "guid" if own => {
                let is_link = tag.attribute("ispermalink");
                let is_link = is_link.is_none_or(|is| !is.eq_ignore_ascii_case("false"));
                self.capture(CapturedField::Id(is_link.then_some(LinkKind::Alternate)));
            }
            "id" if own => self.capture(CapturedField::Id(in_entry.then_some(LinkKind::Id))),
            // `content` of Media RSS.
            "enclosure" | "content" if in_entry && tag.attribute("url").is_some() => {
                let url = tag.attribute("url").unwrap_or_default();
                self.keep_link(LinkKind::Enclosure, &url, base.cloned());
            }
            "identifier" if vocabulary == DublinCore => self.capture(CapturedField::FallbackId),
            "updated" | "modified" | "lastbuilddate" if own => self.capture(CapturedField::Updated),
            "pubdate" | "published" | "issued" if own => self.capture(CapturedField::Published),
            "date" if vocabulary == DublinCore => self.capture(CapturedField::Published),
            "description" | "summary" | "content" if own && in_entry => {
                if let Some(source) = tag.attribute("src") {
                    self.keep_link(LinkKind::Content, &source, base.cloned());
                }
                self.capture(CapturedField::Summary);
            }
            "cloud" if own && !in_entry && self.cloud.is_none() => self.cloud = cloud(tag),
            "ttl" if own && !in_entry => self.capture(CapturedField::Ttl),
            "updateperiod" if vocabulary == Syndication => self.capture(CapturedField::Period),
            "updatefrequency" if vocabulary == Syndication => {
                self.capture(CapturedField::Frequency);
            }
            _ => {}
        }
    }

    fn capture(&mut self, field: CapturedField) {
        let depth = self.open_elements.len();
        self.capture = Some(TextCapture { field, depth, text: String::new(), cut: false });
    }

    /// `<link href=..>` of Atom.
    fn link(&mut self, tag: MarkupTag<'_>, base: Option<&Arc<XmlBase>>) {
        let relation = tag.attribute("rel").unwrap_or(Cow::Borrowed("alternate"));
        let href = tag.attribute("href").unwrap_or_default();
        match relation.trim().to_ascii_lowercase().as_str() {
            "alternate" | "" | "http://www.iana.org/assignments/relation/alternate" => {
                let kind = tag.attribute("type").unwrap_or_default();
                let is_page = kind.is_empty() || kind.contains("html");
                let kind = if is_page { LinkKind::Page } else { LinkKind::Alternate };
                self.keep_link(kind, &href, base.cloned());
            }
            "enclosure" if self.entry.is_some() => {
                self.keep_link(LinkKind::Enclosure, &href, base.cloned());
            }
            "hub" if self.entry.is_none() && self.hubs.len() < FEED_HUBS_MAX => {
                let base = base.and_then(|base| base.url.as_ref());
                self.hubs.extend(self.references.absolute(&href, base));
            }
            "self" if self.entry.is_none() && href.len() <= LINK_BYTES_MAX => {
                self.feed.self_url = Some((href.into_owned(), base.cloned()));
            }
            _ => {}
        }
    }

    fn keep_link(&mut self, kind: LinkKind, link: &str, base: Option<Arc<XmlBase>>) {
        let draft = self.entry.as_mut().unwrap_or(&mut self.feed);
        let link = link.trim();
        let is_better = draft.link.as_ref().is_none_or(|(known, ..)| *known < kind);
        if is_better && !link.is_empty() && link.len() <= LINK_BYTES_MAX {
            draft.link = Some((kind, link.to_owned(), base));
        }
    }

    fn close(&mut self, name: &str) {
        let name = truncate_name(name).to_ascii_lowercase();
        // An end tag also closes the elements in it that are still open; an end tag without a start
        // tag is ignored.
        let Some(depth) = self.open_elements.iter().rposition(|open| *open.name == name) else {
            return;
        };
        if self.capture.as_ref().is_some_and(|capture| capture.depth >= depth) {
            self.end_capture();
        }
        while self.open_elements.len() > depth {
            let Some(OpenElement { role, declarations, .. }) = self.open_elements.pop() else {
                return;
            };
            self.namespaces.leave(declarations);
            if role == ElementRole::Entry {
                self.end_entry();
            }
        }
        // Anything after the end of the feed is ignored.
        self.ended = self.open_elements.is_empty() && self.kind.is_some();
    }

    fn end_capture(&mut self) {
        let Some(TextCapture { field, text, cut, depth, .. }) = self.capture.take() else { return };
        let text = text.trim();
        // A truncated link is dropped.
        if text.is_empty() || cut && field.is_link() {
            return;
        }
        let base = self.open_elements.get(depth).and_then(|open| open.base.clone());
        let draft = self.entry.as_mut().unwrap_or(&mut self.feed);
        let set = |field: &mut Option<String>, text: &str| {
            if field.is_none() && !text.is_empty() {
                *field = Some(text.to_owned());
            }
        };
        let title = |html: &str| fold_whitespace(&plain_text(html), TITLE_BYTES_MAX);
        let date = || fold_whitespace(text, DATE_BYTES_MAX);
        match field {
            CapturedField::Title(false) => {
                set(&mut draft.title, &fold_whitespace(text, TITLE_BYTES_MAX));
            }
            CapturedField::Title(true) => set(&mut draft.title, &title(text)),
            CapturedField::FallbackTitle => set(&mut draft.fallback_title, &title(text)),
            CapturedField::Link => self.keep_link(LinkKind::Link, text, base),
            CapturedField::Id(kind) => {
                set(&mut draft.id, text);
                if let Some(kind) = kind
                    && self.references.absolute(text, None).is_some()
                {
                    self.keep_link(kind, text, base);
                }
            }
            CapturedField::FallbackId => set(&mut draft.fallback_id, text),
            CapturedField::Updated => set(&mut draft.updated, &date()),
            CapturedField::Published => set(&mut draft.published, &date()),
            CapturedField::Summary => set(&mut draft.summary, text),
            CapturedField::Ttl => {
                self.hints.min_interval_s = text.parse().ok().map(|m: u64| m.saturating_mul(60));
            }
            CapturedField::Period => self.period.0 = period_s(text),
            CapturedField::Frequency => self.period.1 = text.parse().ok(),
            CapturedField::Hour => {
                if let Ok(hour @ 0..=24) = text.parse::<u32>() {
                    self.hints.skip_hours |= 1 << (hour % 24);
                }
            }
            CapturedField::Day => {
                let text = text.to_ascii_lowercase();
                let days = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
                if let Some(day) = days.iter().position(|day| text.starts_with(day)) {
                    self.hints.skip_days |= 1 << day;
                }
            }
        }
    }

    fn end_entry(&mut self) {
        let Some(entry) = self.entry.take() else { return };
        let bytes = entry.bytes();
        if self.entries.len() == FEED_ENTRIES_MAX {
            self.stop("too many items; the rest were left out");
        } else if self.bytes + bytes > FEED_TEXTS_BYTES_MAX {
            self.stop("items too long together; the rest were left out");
        } else {
            self.bytes += bytes;
            self.entries.push(entry);
        }
    }

    fn stop(&mut self, cut: &'static str) {
        self.cut = Some(cut);
        self.ended = true;
    }

    /// The memory that it uses, approximately.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes + self.entries.capacity() * size_of::<EntryDraft>()
    }

    /// Ends the document. `base` is its URL.
    pub(crate) fn finish(mut self, base: Option<&str>) -> Feed {
        // An entry that is not closed may lack its id: it would be announced twice, now under its
        // link and later under its id.
        if !self.ended && !self.open_elements.is_empty() && self.kind.is_some() {
            self.cut = Some(BREAKS_OFF);
        }
        if let (None, (Some(period), times)) = (self.hints.min_interval_s, self.period) {
            self.hints.min_interval_s = Some(period / times.unwrap_or(1).max(1));
        }
        let document = base.and_then(|base| CanonicalUrl::parse(base).ok());
        let mut resolver =
            LinkResolver { references: self.references, document, cached_base: None };
        let EntryDraft { title, fallback_title: other_title, link, self_url: own, .. } = self.feed;
        let own = own.and_then(|(href, inner)| resolver.absolute(&href, inner.as_ref()));
        let site = link.map(|(_, link, inner)| resolver.resolve(link, inner.as_ref()));
        let mut entries = EntryList::default();
        for draft in self.entries {
            if let Err(cut) = entries.add(draft.resolve(&mut resolver)) {
                self.cut = Some(cut);
                break;
            }
        }
        if resolver.references.is_exhausted() {
            self.cut = Some("too many relative links; some were not resolved");
        }
        Feed {
            kind: self.kind,
            title: title.or(other_title),
            site,
            self_url: own,
            hubs: self.hubs,
            cloud: self.cloud,
            entries: entries.kept,
            hints: self.hints,
            version: None,
            cut: self.cut,
        }
    }
}

/// The URL of the procedure of an RSS `<cloud>`, if it is called by a form. (XML-RPC and SOAP are
/// no longer in use.)
fn cloud(tag: MarkupTag<'_>) -> Option<String> {
    let [protocol, domain, port, path] =
        ["protocol", "domain", "port", "path"].map(|name| tag.attribute(name));
    let scheme = match protocol?.trim() {
        "http-post" => "http",
        "https-post" => "https",
        _ => return None,
    };
    let (domain, path) = (domain?, path.unwrap_or_default());
    let (domain, path) = (domain.trim(), path.trim().trim_start_matches('/'));
    let port = port.and_then(|port| port.trim().parse::<u16>().ok());
    let port = port.map_or(String::new(), |port| format!(":{port}"));
    if domain.len() + path.len() > LINK_BYTES_MAX || domain.contains(['/', '?', '#', '@']) {
        return None;
    }
    let url = format!("{scheme}://{domain}{port}/{path}");
    CanonicalUrl::parse(&url).ok().map(|url| url.as_str().to_owned())
}

fn truncate_name(name: &str) -> &str {
    &name[..name.floor_char_boundary(NAME_BYTES_MAX)]
}

fn period_s(text: &str) -> Option<u64> {
    const DAY_S: u64 = 24 * 60 * 60;
    Some(match text.to_ascii_lowercase().as_str() {
        "hourly" => 60 * 60,
        "daily" => DAY_S,
        "weekly" => 7 * DAY_S,
        "monthly" => 30 * DAY_S,
        "yearly" => 365 * DAY_S,
        _ => return None,
    })
}
