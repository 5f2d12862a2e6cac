//! Fuzz targets of this crate: properties of any bytes from a site. For the feature `fuzzing` and
//! for tests only.

use std::sync::Arc;

use http::HeaderMap;
use tidings_protocol::{CanonicalUrl, Payload, text};

use crate::document::DocumentReader;
use crate::feed::watched_feed::KnownItems;
use crate::feed::{self, FeedReader, Hubs, event};
use crate::page::{PageContent, PageOptions, PageReader};
use crate::sitemap::SitemapReader;

/// The name and the function of a target.
pub type Target = (&'static str, fn(&[u8]));

/// The targets of this crate.
pub const TARGETS: &[Target] =
    &[("feed", feed), ("sitemap", sitemap), ("page", page), ("document", document)];

const URL: &str = "https://a.example/dir/page?q";

/// The first line, if it is text, and the rest.
fn first_line(bytes: &[u8]) -> (Option<&str>, &[u8]) {
    let at = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(0);
    let (line, rest) = bytes.split_at(at);
    (std::str::from_utf8(line).ok().filter(|line| !line.is_empty()), rest.get(1..).unwrap_or(rest))
}

/// How much of damaged compressed input is unpacked depends on the size of the pieces.
fn is_damaged(cut: Option<&str>) -> bool {
    cut.is_some_and(|why| why.starts_with("damaged"))
}

/// Input: a `Content-Type` in the first line, and a feed. The result does not depend on how the
/// input is split; each event is one line.
fn feed(bytes: &[u8]) {
    let (content_type, bytes) = first_line(bytes);
    let whole = feed::parse(bytes, content_type, Some(URL));
    let mut reader = FeedReader::new(content_type);
    bytes.chunks(7).for_each(|bytes| reader.feed(bytes));
    let in_pieces = reader.finish(Some(URL));
    if !is_damaged(whole.cut) {
        assert_eq!(format!("{in_pieces:?}"), format!("{whole:?}"), "in pieces");
    }
    let url = CanonicalUrl::parse(URL).expect("a valid URL");
    let items = KnownItems::default().add_new(&whole.entries);
    for event in items.iter().filter_map(|item| event::item_event(&url, item)) {
        assert!(text::check(event.as_bytes()).is_ok(), "{event:?} is not one line");
        let payload = Payload::parse(&event);
        let link = payload.target().map(CanonicalUrl::parse);
        assert!(link.is_some_and(|link| link.is_ok()), "{event:?} has no valid link");
        let keys = payload.attributes().map(|(key, _)| key);
        assert_eq!(keys.collect::<Vec<_>>(), ["item", "source", "id"], "{event:?}");
    }
    let hubs = Hubs::of_feed(&whole, &HeaderMap::new(), &url, &[]);
    let event =
        event::hub_event(&url, &url, &hubs, KnownItems::default(), event::HubEventFlags::default());
    assert!(text::check(event.as_bytes()).is_ok(), "{event:?} is not one line");
    let read = event::parse_hub_event(&event).map(|(of, hubs, _)| (of, hubs));
    assert_eq!(read, (!hubs.is_empty()).then(|| (url.into_owned(), hubs)), "{event:?}");
}

/// Input: a `Content-Type` in the first line, and a sitemap. The result does not depend on how the
/// input is split.
fn sitemap(bytes: &[u8]) {
    let (content_type, bytes) = first_line(bytes);
    let read = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let mut reader = SitemapReader::new(content_type, Some(URL));
        let mut found = Vec::new();
        let mut each = |place: crate::sitemap::SitemapEntry<'_>| found.push(format!("{place:?}"));
        pieces.for_each(|bytes| reader.feed(bytes, &mut each));
        let summary = reader.finish(&mut each);
        (found, is_damaged(summary.cut), format!("{summary:?}"))
    };
    let whole = read(&mut std::iter::once(bytes));
    let in_pieces = [read(&mut bytes.chunks(7)), read(&mut bytes.chunks(1))];
    if !whole.1 {
        assert_eq!(in_pieces, [whole.clone(), whole], "in pieces");
    }
}

/// Input: headers up to an empty line, and a page. Every link is a canonical URL.
fn page(bytes: &[u8]) {
    let (mut headers, mut rest) = (Vec::new(), bytes);
    while let Some(at) = rest.iter().position(|byte| *byte == b'\n') {
        let line = &rest[..at];
        rest = &rest[at + 1..];
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { break };
        let Ok(name) = std::str::from_utf8(&line[..colon]) else { break };
        headers.push((name, line[colon + 1..].trim_ascii()));
    }
    let options = Arc::new(PageOptions { images: true, signs: true, ..PageOptions::default() });
    let url = CanonicalUrl::parse(URL).expect("a valid URL");
    let read = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let mut reader = PageReader::new(&url, headers.iter().copied(), &options);
        pieces.for_each(|bytes| reader.feed(bytes));
        reader.finish(&url)
    };
    let whole = read(&mut std::iter::once(rest));
    check(&whole);
    assert_eq!(read(&mut rest.chunks(7)), whole, "in pieces");
    assert_eq!(read(&mut rest.chunks(1)), whole, "byte by byte");
}

fn check(content: &PageContent) {
    for link in &content.links {
        let parsed = CanonicalUrl::parse(&link.url);
        assert_eq!(parsed.as_ref().map(CanonicalUrl::as_str), Ok(&*link.url), "not canonical");
    }
    let urls = content.feeds.iter().chain(&content.hubs).chain(&content.canonical);
    for url in urls {
        assert!(CanonicalUrl::parse(url).is_ok(), "{url}");
    }
}

/// Input: a `Content-Type` in the first line, and any document.
fn document(bytes: &[u8]) {
    let (content_type, bytes) = first_line(bytes);
    let url = CanonicalUrl::parse(URL).expect("a valid URL");
    let read = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let header = content_type.map(|value| ("Content-Type", value.as_bytes()));
        let page = PageReader::new(&url, header, &Arc::default());
        let mut reader = DocumentReader::new(content_type, &url, page);
        pieces.for_each(|bytes| reader.feed(bytes));
        reader.finish(&url)
    };
    let whole = read(&mut std::iter::once(bytes));
    check(&whole);
    let in_pieces = read(&mut bytes.chunks(100));
    if !is_damaged(whole.cut) {
        assert_eq!(in_pieces, whole, "in pieces");
    }
}

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;
