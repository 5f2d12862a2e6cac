//! `tidings probe sitemap`: shows the contents of a sitemap.

use std::fmt::Write;

use serde_json::{Value, json};
use tidings_documents::sitemap::{SitemapEntry, SitemapKind, SitemapReader, SitemapSummary};

use super::flags::FetchFlags;
use super::source::Source;
use super::{JsonQuery, bytes, header, headers, optional_text};
use crate::terminal::failure::Failure;
use crate::terminal::output::{plural, printable};

/// The limit of URLs in the output for people.
const SHOWN_MAX: usize = 20;
const TEXT_CHARS_MAX: usize = 300;

/// Reads `body_b64` and `headers`, and `base`, the URL of the sitemap. The body may be compressed,
/// with or without a header for it.
pub(super) fn answer(query: &JsonQuery) -> Result<Value, String> {
    let (body, headers) = (bytes(query, "body_b64")?, headers(query)?);
    let base = optional_text(query, "base")?;
    let (mut first, mut last) = (None, None);
    let summary = read(&body, header(&headers, "content-type"), base, &mut |place| {
        first.get_or_insert_with(|| place.url.to_owned());
        last = Some(place.url.to_owned());
    });
    Ok(json!({
        "kind": summary.kind.map(SitemapKind::as_str),
        "n": summary.urls,
        "first": first,
        "last": last,
    }))
}

pub(super) async fn describe(what: &str, flags: &FetchFlags) -> Result<String, Failure> {
    let Source { url, content_type, bytes } = Source::open(what, flags).await?;
    let mut urls = String::new();
    let mut shown = 0;
    let summary = read(&bytes, content_type.as_deref(), url.as_deref(), &mut |place| {
        shown += 1;
        if shown <= SHOWN_MAX {
            let lastmod = place.lastmod.map_or(String::new(), |lastmod| format!(" ({lastmod})"));
            let line = format!("{}{lastmod}", place.url);
            // Writing into a string cannot fail.
            let _ = writeln!(urls, "  {}", printable(&line, TEXT_CHARS_MAX));
        }
    });
    let Some(kind) = summary.kind else {
        return Err(Failure::failed(format!("{what} is not a sitemap")));
    };
    let count = summary.urls as u64;
    let mut text = match kind {
        SitemapKind::Urlset => format!("a sitemap of {}\n", plural(count, "page")),
        SitemapKind::Index => format!("an index of {}\n", plural(count, "sitemap")),
        SitemapKind::Opml => format!("an OPML list of {}\n", plural(count, "page")),
        SitemapKind::Text => format!("a plain list of {}\n", plural(count, "page")),
        SitemapKind::Rss | SitemapKind::Atom => {
            format!("a feed ({}) of {}\n", kind.as_str(), plural(count, "page"))
        }
    };
    text += &urls;
    if summary.urls > SHOWN_MAX {
        let _ = writeln!(text, "  and {} more", summary.urls - SHOWN_MAX);
    }
    if let Some(cut) = summary.cut {
        let _ = writeln!(text, "note: {cut}");
    }
    Ok(text)
}

fn read(
    body: &[u8],
    content_type: Option<&str>,
    base: Option<&str>,
    each: &mut dyn FnMut(SitemapEntry<'_>),
) -> SitemapSummary {
    let mut reader = SitemapReader::new(content_type, base);
    reader.feed(body, each);
    reader.finish(each)
}
