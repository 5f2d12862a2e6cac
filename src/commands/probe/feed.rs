//! `tidings probe feed`: shows the contents of an RSS, Atom or JSON feed.

use std::fmt::Write;

use serde_json::{Value, json};
use tidings_documents::feed::{self, Feed};

use super::flags::FetchFlags;
use super::source::Source;
use super::{JsonQuery, bytes, header, headers, optional_text, shown};
use crate::terminal::failure::Failure;
use crate::terminal::output::plural;

/// The limit of items in the output for people; JSON has all.
const SHOWN_MAX: usize = 20;

/// Reads `body_b64` and `headers`, and `base`, the URL of the feed.
pub(super) fn answer(query: &JsonQuery) -> Result<Value, String> {
    let (body, headers) = (bytes(query, "body_b64")?, headers(query)?);
    let base = optional_text(query, "base")?.or_else(|| header(&headers, "content-location"));
    let feed = feed::parse(&body, header(&headers, "content-type"), base);
    let entries = feed
        .entries
        .iter()
        .map(|entry| json!({ "id": entry.id, "link": entry.link, "title": entry.title }));
    Ok(json!({
        "kind": feed.kind.map(feed::FeedKind::as_str),
        "n": feed.entries.len(),
        "entries": entries.collect::<Vec<_>>(),
    }))
}

pub(super) async fn describe(what: &str, flags: &FetchFlags) -> Result<String, Failure> {
    let Source { url, content_type, bytes } = Source::open(what, flags).await?;
    let feed = feed::parse(&bytes, content_type.as_deref(), url.as_deref());
    let Some(kind) = feed.kind else {
        return Err(Failure::failed(format!("{what} is not an RSS, Atom or JSON feed")));
    };
    let mut text = String::new();
    // Writing into a string cannot fail.
    let _ = writeln!(text, "{}", shown(feed.title.as_deref().unwrap_or("(no title)")));
    let items = plural(feed.entries.len() as u64, "item");
    let _ = writeln!(text, "  {}, {items}", kind.as_str());
    for (name, value) in details(&feed) {
        let _ = writeln!(text, "  {name} {}", shown(&value));
    }
    for entry in feed.entries.iter().take(SHOWN_MAX) {
        let title = entry.title.as_deref().unwrap_or("(no title)");
        let _ = writeln!(text, "\n{}", shown(title));
        let link = entry.link.as_deref();
        let _ = writeln!(text, "  {}", shown(link.unwrap_or("(no link)")));
        if link != Some(&entry.id) {
            let _ = writeln!(text, "  id {}", shown(&entry.id));
        }
        if let Some(updated) = &entry.updated {
            let _ = writeln!(text, "  {}", shown(updated));
        }
    }
    if feed.entries.len() > SHOWN_MAX {
        let more = plural((feed.entries.len() - SHOWN_MAX) as u64, "more item");
        let _ = writeln!(text, "\nand {more}");
    }
    Ok(text)
}

fn details(feed: &Feed) -> Vec<(&'static str, String)> {
    let mut details = Vec::new();
    details.extend(feed.site.clone().map(|site| ("site", site)));
    details.extend(feed.self_url.clone().map(|own| ("self", own)));
    details.extend(feed.hubs.iter().map(|hub| ("hub", hub.clone())));
    details.extend(feed.hints.min_interval_s.map(|rest| {
        let rest = tidings_protocol::format_ms(rest.saturating_mul(1000));
        ("requests a rest of", rest)
    }));
    details.extend(feed.cut.map(|cut| ("note:", cut.to_owned())));
    details
}
