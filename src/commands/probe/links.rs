//! `tidings probe links`: shows the title, links and directives of a page.

use std::fmt::Write;
use std::sync::Arc;

use serde_json::{Value, json};
use tidings_documents::page::{PageContent, PageLink, PageOptions, PageReader};
use tidings_protocol::CanonicalUrl;
use tidings_subscriber::robots::product_token;

use super::flags::FetchFlags;
use super::source::{Source, fetch, is_url};
use super::{JsonQuery, page, shown, write_row};
use crate::terminal::failure::Failure;
use crate::terminal::output::plural;

/// The base URL of a file's links.
const FILE_URL: &str = "http://localhost/";

/// Reads `body_b64`, `headers`, and `base`, the URL of the page.
pub(super) fn answer(query: &JsonQuery) -> Result<Value, String> {
    let content = page(query, PageOptions::default())?;
    let mut answer = json!({
        "charset": content.charset.map(str::to_ascii_lowercase),
        "title": content.title,
        "links": content.links.iter().map(|link| &*link.url).collect::<Vec<_>>(),
        "noindex": content.noindex,
        "nofollow": content.nofollow,
    });
    if let Some(canonical) = content.canonical {
        answer["canonical"] = json!(canonical);
    }
    Ok(answer)
}

/// Fetches a URL as the crawler would, or reads a file.
pub(super) async fn describe(what: &str, flags: &FetchFlags) -> Result<String, Failure> {
    if is_url(what) {
        let answer = fetch(what, flags).await?;
        let content = answer.fetched.page.map(|page| page.finish(&answer.url)).unwrap_or_default();
        return Ok(page_text(answer.url.as_str(), &content));
    }
    let Source { bytes, .. } = Source::read(what)?;
    let url = CanonicalUrl::parse(FILE_URL).expect("it is a URL");
    let config = flags.config();
    let options =
        PageOptions { token: product_token(&config.agent).into(), ..PageOptions::default() };
    let mut reader = PageReader::new(&url, [], &Arc::new(options));
    reader.feed(&bytes);
    Ok(page_text(&format!("{what}, as if it were {url}"), &reader.finish(&url)))
}

fn page_text(place: &str, content: &PageContent) -> String {
    let mut text = format!("{}\n", shown(content.title.as_deref().unwrap_or("(no title)")));
    let mut row = |name: &str, value: &str| write_row(&mut text, 12, name, value);
    row("  page", place);
    row("  charset", content.charset.unwrap_or("(none)"));
    row("  robots", &directives(content));
    if let Some(canonical) = &content.canonical {
        row("  canonical", canonical);
    }
    for feed in &content.feeds {
        row("  feed", feed);
    }
    if let Some(cut) = content.cut {
        row("  note", cut);
    }
    let mut line = |line: std::fmt::Arguments<'_>| {
        text.write_fmt(line).expect("a String takes everything");
    };
    line(format_args!("{}\n", plural(content.links.len() as u64, "link")));
    for PageLink { url, nofollow } in &content.links {
        let note = if *nofollow { "  (nofollow)" } else { "" };
        line(format_args!("  {}{note}\n", shown(url)));
    }
    text
}

fn directives(content: &PageContent) -> String {
    let mut directives = Vec::new();
    directives.extend(content.noindex.then(|| "noindex".to_owned()));
    directives.extend(content.nofollow.then(|| "nofollow".to_owned()));
    directives.extend(
        content.unavailable_after.map(|end| format!("unavailable after {end} (Unix time)")),
    );
    if directives.is_empty() { "(none)".to_owned() } else { directives.join(", ") }
}
