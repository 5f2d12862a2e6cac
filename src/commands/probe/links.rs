//! `tidings probe links`: shows the title, links and directives of a page.

use std::fmt::Write;
use std::sync::Arc;

use serde_json::{Value, json};
use tidings_documents::page::{PageContent, PageLink, PageOptions, PageReader};
use tidings_protocol::CanonicalUrl;
use tidings_subscriber::robots::product_token;

use super::flags::FetchFlags;
use super::source::{fetch, is_url};
use super::{JsonQuery, bytes, headers, required_text};
use crate::terminal::failure::Failure;
use crate::terminal::output::{plural, printable};

/// The longest shown text of a page, in characters.
const SHOWN_CHARS_MAX: usize = 200;
/// The base URL of a file's links.
const FILE_URL: &str = "http://localhost/";

/// Reads `body_b64`, `headers`, and `base`, the URL of the page.
pub(super) fn answer(query: &JsonQuery) -> Result<Value, String> {
    let (body, headers) = (bytes(query, "body_b64")?, headers(query)?);
    let url = CanonicalUrl::parse(required_text(query, "base")?)
        .map_err(|error| format!("`base`: {error}"))?;
    let headers = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    let mut reader = PageReader::new(&url, headers, &Arc::default());
    reader.feed(&body);
    let content = reader.finish(&url);
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
    let page = std::fs::read(what)
        .map_err(|error| Failure::failed(format!("cannot read {what}: {error}")))?;
    let url = CanonicalUrl::parse(FILE_URL).expect("it is a URL");
    let config = flags.config();
    let options =
        PageOptions { token: product_token(&config.agent).into(), ..PageOptions::default() };
    let mut reader = PageReader::new(&url, [], &Arc::new(options));
    reader.feed(&page);
    Ok(page_text(&format!("{what}, as if it were {url}"), &reader.finish(&url)))
}

fn page_text(place: &str, content: &PageContent) -> String {
    let shown = |text: &str| printable(text, SHOWN_CHARS_MAX);
    let mut text = format!("{}\n", shown(content.title.as_deref().unwrap_or("(no title)")));
    let mut say = |name: &str, value: &str| {
        writeln!(text, "  {name:<10} {}", shown(value)).expect("a String takes everything");
    };
    say("page", place);
    say("charset", content.charset.unwrap_or("(none)"));
    say("robots", &directives(content));
    if let Some(canonical) = &content.canonical {
        say("canonical", canonical);
    }
    for feed in &content.feeds {
        say("feed", feed);
    }
    if let Some(cut) = content.cut {
        say("note", cut);
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
