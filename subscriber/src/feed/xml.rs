//! Reads RSS and Atom.

use std::borrow::Cow;
use std::sync::Arc;

use tidings_protocol::CanonicalUrl;

use super::names::{Names, Vocabulary};
use super::{Entries, Entry, Feed, Kind};
use crate::config::{
    FEED_BASE_BYTES_MAX, FEED_DEPTH_MAX, FEED_ENTRIES_MAX, FEED_HUBS_MAX, FEED_TEXTS_BYTES_MAX,
    LINK_BYTES_MAX, TITLE_BYTES_MAX,
};
use crate::markup::{Joining, Tag, Token, fold, plain_text};

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
pub(crate) struct Elements {
    kind: Option<Kind>,
    names: Names,
    /// Open elements; `len <= FEED_DEPTH_MAX`.
    open: Vec<Open>,
    capture: Option<Capture>,
    feed: Draft,
    /// The open entry.
    entry: Option<Draft>,
    entries: Vec<Draft>,
    /// Bytes of all kept texts; `<= FEED_TEXTS_BYTES_MAX`.
    bytes: usize,
    joining: Joining,
    hubs: Vec<String>,
    cloud: Option<String>,
    hints: super::Hints,
    /// `sy:updatePeriod` in seconds, and the number of updates in it.
    period: (Option<u64>, Option<u64>),
    cut: Option<&'static str>,
    ended: bool,
}

#[derive(Debug)]
struct Open {
    name: Box<str>,
    role: Role,
    declared: usize,
    base: Option<Arc<Base>>,
}

/// A value of `xml:base`.
#[derive(Debug)]
struct Base {
    /// `<= FEED_BASE_BYTES_MAX`
    written: Box<str>,
    /// At most as long; `None` if it depends on the URL of the feed, which is known at the end.
    url: Option<CanonicalUrl<'static>>,
}

impl Open {
    fn is_unseen(&self) -> bool {
        matches!(&*self.name, "script" | "style")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Its children are elements of the feed.
    Feed,
    Entry,
    SkipHours,
    SkipDays,
    Other,
}

/// The text of an element, while it is read.
#[derive(Debug)]
struct Capture {
    field: Field,
    /// The index of its element in `open`.
    depth: usize,
    text: String,
    bytes_max: usize,
    /// The text was longer than the limit.
    cut: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    /// With whether the text is HTML.
    Title(bool),
    /// Used in place of a missing title.
    OtherTitle,
    Link,
    /// With whether it may be the link, too.
    Id(bool),
    OtherId,
    Updated,
    Published,
    Summary,
    Ttl,
    Period,
    Frequency,
    Hour,
    Day,
}

/// What is known about an entry, or about the feed.
#[derive(Debug, Default)]
struct Draft {
    title: Option<String>,
    other_title: Option<String>,
    id: Option<String>,
    other_id: Option<String>,
    /// With its suitability: the highest counts, and the first of equal ones.
    link: Option<(u8, String, Option<Arc<Base>>)>,
    own: Option<(String, Option<Arc<Base>>)>,
    updated: Option<String>,
    published: Option<String>,
    summary: Option<String>,
}

impl Elements {
    /// Reads the next token of the document.
    pub(crate) fn take(&mut self, token: Token<'_>) {
        if self.ended {
            return;
        }
        match token {
            Token::Open(tag) => self.open(tag),
            Token::Close(name) => self.close(name),
            // Scripts are not part of a title.
            Token::Text(_) if self.open.last().is_some_and(Open::is_unseen) => {}
            Token::Text(text) => {
                if let Some(Capture { text: kept, bytes_max, cut, .. }) = &mut self.capture {
                    // After text that did not fit, shorter text would fit, but in the wrong place.
                    let room = if *cut { 0 } else { bytes_max.saturating_sub(kept.len()) };
                    kept.push_str(&text[..text.floor_char_boundary(room)]);
                    *cut |= room < text.len();
                }
            }
        }
    }

    fn open(&mut self, tag: Tag<'_>) {
        if self.open.len() == FEED_DEPTH_MAX {
            self.stop("elements nested too deep; the rest of the feed was left out");
            return;
        }
        let declared = self.names.open(tag);
        let (vocabulary, local) = self.names.resolve(tag.name);
        let base = self.base_of(tag);
        if self.joining.is_over() {
            self.stop("too many relative links; the rest of the feed was left out");
            return;
        }
        let role = self.role(vocabulary, &local, tag, base.as_ref());
        let name = short(tag.name).to_ascii_lowercase().into();
        self.open.push(Open { name, role, declared, base });
    }

    fn base_of(&mut self, tag: Tag<'_>) -> Option<Arc<Base>> {
        let outer = self.open.last().and_then(|open| open.base.clone());
        let Some(base) = tag.attribute("xml:base").filter(|base| base.len() <= FEED_BASE_BYTES_MAX)
        else {
            return outer;
        };
        let url = self.joining.url(&base, outer.as_ref().and_then(|outer| outer.url.as_ref()));
        if url.as_ref().is_some_and(|url| url.as_str().len() > FEED_BASE_BYTES_MAX) {
            return outer;
        }
        Some(Arc::new(Base { written: base.trim().into(), url }))
    }

    fn role(
        &mut self,
        vocabulary: Vocabulary,
        local: &str,
        tag: Tag<'_>,
        base: Option<&Arc<Base>>,
    ) -> Role {
        if self.kind.is_none()
            && let Some(role) = self.root(vocabulary, local)
        {
            return role;
        }
        if self.capture.is_some() {
            return Role::Other;
        }
        let is_own = vocabulary.is_own();
        // An entry may be the whole document.
        match self.open.last().map_or(Role::Feed, |open| open.role) {
            // If an entry is open, its end tag is missing.
            Role::Feed | Role::Entry if is_own && matches!(local, "item" | "entry") => {
                self.end_entry();
                self.begin_entry(tag);
                return Role::Entry;
            }
            Role::Feed if is_own && matches!(local, "channel" | "items") => return Role::Feed,
            Role::Feed if local == "skiphours" => return Role::SkipHours,
            Role::Feed if local == "skipdays" => return Role::SkipDays,
            Role::Feed => self.field((vocabulary, local), tag, base, false),
            Role::Entry => self.field((vocabulary, local), tag, base, true),
            Role::SkipHours if local == "hour" => self.capture(Field::Hour, DATE_BYTES_MAX),
            Role::SkipDays if local == "day" => self.capture(Field::Day, DATE_BYTES_MAX),
            _ => {}
        }
        Role::Other
    }

    fn begin_entry(&mut self, tag: Tag<'_>) {
        let mut attributes = tag.attributes();
        let about = (Vocabulary::Rdf, "about".to_owned());
        let id = attributes.find(|(key, _)| self.names.resolve(key) == about);
        let id = id.map(|(_, value)| value.trim().to_owned());
        let id = id.filter(|id| !id.is_empty() && id.len() <= LINK_BYTES_MAX);
        self.entry = Some(Draft { other_id: id, ..Draft::default() });
    }

    /// Handles an element outside of a feed. Error messages of the server may precede the feed.
    fn root(&mut self, vocabulary: Vocabulary, local: &str) -> Option<Role> {
        let (kind, role) = match local {
            "rss" if vocabulary.is_own() => (Kind::Rss, Some(Role::Feed)),
            "rdf" if vocabulary == Vocabulary::Rdf => (Kind::Rdf, Some(Role::Feed)),
            "feed" if vocabulary.is_own() => (Kind::Atom, Some(Role::Feed)),
            // A document with a single entry.
            "entry" if vocabulary == Vocabulary::Atom => (Kind::Atom, None),
            "html" | "urlset" | "sitemapindex" | "opml" => {
                self.ended = true;
                return Some(Role::Other);
            }
            _ => return Some(Role::Other),
        };
        self.kind = Some(kind);
        role
    }

    fn field(
        &mut self,
        (vocabulary, local): (Vocabulary, &str),
        tag: Tag<'_>,
        base: Option<&Arc<Base>>,
        in_entry: bool,
    ) {
        use Vocabulary::{DublinCore, Syndication};
        let own = vocabulary.is_own();
        match local {
            "title" if own => {
                let kind = tag.attribute("type").unwrap_or_default();
                let is_html = match self.kind {
                    Some(Kind::Atom) => kind.contains("html") && !kind.contains("xhtml"),
                    _ => true,
                };
                self.capture(Field::Title(is_html), TITLE_SOURCE_BYTES_MAX);
            }
            // From Dublin Core, media or podcasts.
            "title" => self.capture(Field::OtherTitle, TITLE_SOURCE_BYTES_MAX),
            "link" if own && tag.attribute("href").is_some() => self.link(tag, base),
            "link" if own => self.capture(Field::Link, LINK_BYTES_MAX),
            "guid" if own => {
                let may_be_link = tag.attribute("ispermalink");
                let may_be_link = may_be_link.is_none_or(|is| !is.eq_ignore_ascii_case("false"));
                self.capture(Field::Id(may_be_link), LINK_BYTES_MAX);
            }
            "id" if own => self.capture(Field::Id(false), LINK_BYTES_MAX),
            "identifier" if vocabulary == DublinCore => {
                self.capture(Field::OtherId, LINK_BYTES_MAX);
            }
            "updated" | "modified" | "lastbuilddate" if own => {
                self.capture(Field::Updated, DATE_BYTES_MAX);
            }
            "pubdate" | "published" | "issued" if own => {
                self.capture(Field::Published, DATE_BYTES_MAX);
            }
            "date" if vocabulary == DublinCore => self.capture(Field::Published, DATE_BYTES_MAX),
            "description" | "summary" | "content" if own && in_entry => {
                if let Some(source) = tag.attribute("src") {
                    self.keep_link(0, &source, base.cloned());
                }
                self.capture(Field::Summary, SUMMARY_BYTES_MAX);
            }
            "cloud" if own && !in_entry && self.cloud.is_none() => self.cloud = cloud(tag),
            "ttl" if own && !in_entry => self.capture(Field::Ttl, DATE_BYTES_MAX),
            "updateperiod" if vocabulary == Syndication => {
                self.capture(Field::Period, DATE_BYTES_MAX);
            }
            "updatefrequency" if vocabulary == Syndication => {
                self.capture(Field::Frequency, DATE_BYTES_MAX);
            }
            _ => {}
        }
    }

    fn capture(&mut self, field: Field, bytes_max: usize) {
        let depth = self.open.len();
        self.capture = Some(Capture { field, depth, text: String::new(), bytes_max, cut: false });
    }

    /// `<link href=..>` of Atom.
    fn link(&mut self, tag: Tag<'_>, base: Option<&Arc<Base>>) {
        let relation = tag.attribute("rel").unwrap_or(Cow::Borrowed("alternate"));
        let href = tag.attribute("href").unwrap_or_default();
        match relation.trim().to_ascii_lowercase().as_str() {
            "alternate" | "" | "http://www.iana.org/assignments/relation/alternate" => {
                let kind = tag.attribute("type").unwrap_or_default();
                let is_page = kind.is_empty() || kind.contains("html");
                self.keep_link(if is_page { 2 } else { 1 }, &href, base.cloned());
            }
            "hub" if self.entry.is_none() && self.hubs.len() < FEED_HUBS_MAX => {
                let base = base.and_then(|base| base.url.as_ref());
                self.hubs.extend(self.joining.absolute(&href, base));
            }
            "self" if self.entry.is_none() && href.len() <= LINK_BYTES_MAX => {
                self.feed.own = Some((href.into_owned(), base.cloned()));
            }
            _ => {}
        }
    }

    fn keep_link(&mut self, suits: u8, link: &str, base: Option<Arc<Base>>) {
        let draft = self.entry.as_mut().unwrap_or(&mut self.feed);
        let link = link.trim();
        let is_better = draft.link.as_ref().is_none_or(|(known, ..)| *known < suits);
        if is_better && !link.is_empty() && link.len() <= LINK_BYTES_MAX {
            draft.link = Some((suits, link.to_owned(), base));
        }
    }

    fn close(&mut self, name: &str) {
        let name = short(name).to_ascii_lowercase();
        // An end tag also closes the elements in it that are still open; an end tag without a start
        // tag is ignored.
        let Some(depth) = self.open.iter().rposition(|open| *open.name == name) else { return };
        if self.capture.as_ref().is_some_and(|capture| capture.depth >= depth) {
            self.end_capture();
        }
        while self.open.len() > depth {
            let Some(Open { role, declared, .. }) = self.open.pop() else { return };
            self.names.close(declared);
            if role == Role::Entry {
                self.end_entry();
            }
        }
        // Anything after the end of the feed is ignored.
        self.ended = self.open.is_empty() && self.kind.is_some();
    }

    fn end_capture(&mut self) {
        let Some(Capture { field, text, cut, depth, .. }) = self.capture.take() else { return };
        let text = text.trim();
        // A truncated link is dropped.
        let is_whole = !cut || !matches!(field, Field::Link | Field::Id(_) | Field::OtherId);
        if text.is_empty() || !is_whole {
            return;
        }
        let base = self.open.get(depth).and_then(|open| open.base.clone());
        let draft = self.entry.as_mut().unwrap_or(&mut self.feed);
        let set = |field: &mut Option<String>, text: &str| {
            if field.is_none() && !text.is_empty() {
                *field = Some(text.to_owned());
            }
        };
        match field {
            Field::Title(false) => set(&mut draft.title, &fold(text, TITLE_BYTES_MAX)),
            Field::Title(true) => {
                set(&mut draft.title, &fold(&plain_text(text), TITLE_BYTES_MAX));
            }
            Field::OtherTitle => {
                set(&mut draft.other_title, &fold(&plain_text(text), TITLE_BYTES_MAX));
            }
            Field::Link => self.keep_link(3, text, base),
            Field::Id(may_be_link) => {
                set(&mut draft.id, text);
                if may_be_link && self.joining.absolute(text, None).is_some() {
                    self.keep_link(1, text, base);
                }
            }
            Field::OtherId => set(&mut draft.other_id, text),
            Field::Updated => set(&mut draft.updated, &fold(text, DATE_BYTES_MAX)),
            Field::Published => set(&mut draft.published, &fold(text, DATE_BYTES_MAX)),
            Field::Summary => set(&mut draft.summary, text),
            Field::Ttl => self.hints.rest_s = text.parse().ok().map(|m: u64| m.saturating_mul(60)),
            Field::Period => self.period.0 = period_s(text),
            Field::Frequency => self.period.1 = text.parse().ok(),
            Field::Hour => {
                if let Ok(hour @ 0..=24) = text.parse::<u32>() {
                    self.hints.skip_hours |= 1 << (hour % 24);
                }
            }
            Field::Day => {
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
    pub(crate) fn held_bytes(&self) -> usize {
        self.bytes + self.entries.capacity() * size_of::<Draft>()
    }

    /// Ends the document. `base` is its URL.
    pub(crate) fn finish(mut self, base: Option<&str>) -> Feed {
        self.end_capture();
        self.end_entry();
        if let (None, (Some(period), times)) = (self.hints.rest_s, self.period) {
            self.hints.rest_s = Some(period / times.unwrap_or(1).max(1));
        }
        let document = base.and_then(|base| CanonicalUrl::parse(base).ok());
        let mut resolver = Places { joining: self.joining, document, inner: None };
        let Draft { title, other_title, link, own, .. } = self.feed;
        let own = own.and_then(|(href, inner)| resolver.absolute(&href, inner.as_ref()));
        let site = link.map(|(_, link, inner)| resolver.resolve(link, inner.as_ref()));
        let mut entries = Entries::default();
        for draft in self.entries {
            if let Err(cut) = entries.keep(draft.resolve(&mut resolver)) {
                self.cut = Some(cut);
                break;
            }
        }
        if resolver.joining.is_over() {
            self.cut = Some("too many relative links; some were not resolved");
        }
        Feed {
            kind: self.kind,
            title: title.or(other_title),
            site,
            own,
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
fn cloud(tag: Tag<'_>) -> Option<String> {
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

impl Draft {
    /// The memory that it uses, approximately.
    fn bytes(&self) -> usize {
        let texts = [
            &self.title,
            &self.other_title,
            &self.id,
            &self.other_id,
            &self.updated,
            &self.published,
            &self.summary,
        ];
        let link = self
            .link
            .as_ref()
            .map_or(0, |(_, link, base)| link.len() + base.as_ref().map_or(0, |base| base.bytes()));
        texts.into_iter().flatten().map(String::len).sum::<usize>() + link
    }

    fn resolve(self, resolver: &mut Places<'_>) -> Entry {
        let link = self.link.map(|(_, link, inner)| resolver.resolve(link, inner.as_ref()));
        let title = self.title.or(self.other_title);
        let updated = self.updated.or(self.published);
        let id = self.id.or(self.other_id);
        let id = id.unwrap_or_else(|| {
            let texts = [title.as_deref(), updated.as_deref(), self.summary.as_deref()];
            own_id(link.as_deref(), texts)
        });
        Entry { id, link, title, updated }
    }
}

impl Base {
    fn bytes(&self) -> usize {
        self.written.len() + self.url.as_ref().map_or(0, |url| url.as_str().len())
    }
}

/// Resolves links with `xml:base` and the URL of the feed.
struct Places<'a> {
    joining: Joining,
    document: Option<CanonicalUrl<'a>>,
    /// The base that was resolved last, because many links share one. An `xml:base` may be relative
    /// to the URL of the feed.
    inner: Option<(Arc<Base>, Option<CanonicalUrl<'static>>)>,
}

impl Places<'_> {
    fn absolute(&mut self, link: &str, inner: Option<&Arc<Base>>) -> Option<String> {
        if let Some(base) = inner
            && !self.inner.as_ref().is_some_and(|(known, _)| Arc::ptr_eq(known, base))
        {
            let join = || self.joining.url(&base.written, self.document.as_ref());
            let url = base.url.clone().or_else(join);
            self.inner = Some((Arc::clone(base), url));
        }
        let known = self.inner.as_ref().filter(|_| inner.is_some());
        let base = known.and_then(|(_, url)| url.as_ref()).or(self.document.as_ref());
        self.joining.absolute(link, base)
    }

    /// The link as written, if it cannot be resolved.
    fn resolve(&mut self, link: String, inner: Option<&Arc<Base>>) -> String {
        self.absolute(&link, inner).unwrap_or(link)
    }
}

/// The id of an item without one: its link, or a hash of its texts.
pub(super) fn own_id(link: Option<&str>, texts: [Option<&str>; 3]) -> String {
    if let Some(link) = link {
        return link.to_owned();
    }
    let mut hasher = blake3::Hasher::new();
    for text in texts {
        // Separated, so that different items do not hash to the same text.
        hasher.update(text.unwrap_or_default().as_bytes()).update(&[0]);
    }
    format!("hash:{}", &hasher.finalize().to_hex()[..32])
}

fn short(name: &str) -> &str {
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
