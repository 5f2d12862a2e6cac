//! Converts between the types of the browser and those of the crawler: the document, requests and
//! answers, and the content of a page.

use std::io::Read;

use hyper::Method;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use indexmap::IndexMap;
use tidings_browser::visit::{Answer, Load, Page, PageError, Rendered, Request};
use tidings_documents::page::{PageContent, PageLink};
use tidings_egress::failure::{Failure, Reason};
use tidings_protocol::CanonicalUrl;

use crate::fetch::{Fetched, Fetcher};
use crate::spool::Spool;

/// A longer document is not rendered.
const DOCUMENT_BYTES_MAX: u64 = 16 << 20;

/// The bytes of the header fields of one request.
const FIELDS_BYTES_MAX: usize = 16 * 1024;

/// Header fields of a browser that are not sent: the client sends its own, or needs the whole body.
const DROPPED_FIELDS: [&str; 9] = [
    "accept-encoding",
    "connection",
    "content-length",
    "cookie",
    "host",
    "if-range",
    "range",
    "upgrade-insecure-requests",
    "user-agent",
];

/// The page to render, from a fetched document with its body. No image of it is taken. Fails if the
/// document is too long.
pub fn page_of(url: &CanonicalUrl<'_>, fetched: &Fetched, load: Load) -> Result<Page, PageError> {
    Ok(Page {
        url: url.as_str().to_owned(),
        status: fetched.status.unwrap_or_default(),
        headers: pairs(&fetched.headers),
        body: read_body(fetched.body.as_ref())?,
        load,
        screenshot: false,
        pdf: false,
    })
}

/// The whole body of a document, if it is not too long.
pub(crate) fn read_body(body: Option<&Spool>) -> Result<Vec<u8>, PageError> {
    let Some(body) = body else { return Ok(Vec::new()) };
    if body.len() > DOCUMENT_BYTES_MAX {
        return Err(PageError::Size(format!("{} bytes of HTML", body.len())));
    }
    let mut bytes = Vec::new();
    let read = body.read().and_then(|mut body| body.read_to_end(&mut bytes));
    read.map_err(|error| PageError::Browser(format!("its document cannot be read: {error}")))?;
    Ok(bytes)
}

/// The content of the page at `url` after it was rendered. `headers` and `document` are those of
/// the fetched document: its directives for crawlers count too.
pub fn content_of(
    url: &CanonicalUrl<'_>,
    headers: &HeaderMap,
    document: PageContent,
    rendered: &Rendered,
    fetcher: &Fetcher,
) -> PageContent {
    let base = CanonicalUrl::parse(&rendered.final_url).unwrap_or_else(|_| url.clone());
    let read = fetcher.read_rendered(&base, headers, &rendered.html);
    let nofollow = document.nofollow || read.nofollow;
    let mut links: IndexMap<Box<str>, bool> = IndexMap::with_capacity(read.links.len());
    let in_html = read.links.into_iter().map(|link| (link.url, link.nofollow));
    // The links in shadow roots, and the URLs that scripts tried to open.
    let in_document = rendered.links.iter().map(|link| (&link.url, link.is_nofollow));
    let opened = rendered.opened.iter().map(|opened| (&opened.url, false));
    let canonical = in_document.chain(opened).filter_map(|(url, nofollow)| {
        Some((Box::from(CanonicalUrl::parse(url).ok()?.as_str()), nofollow))
    });
    for (url, link_nofollow) in in_html.chain(canonical) {
        links.entry(url).or_insert(nofollow || link_nofollow);
    }
    let links = links.into_iter().map(|(url, nofollow)| PageLink { url, nofollow });
    PageContent {
        title: read.title.or(document.title),
        links: links.collect(),
        canonical: read.canonical.or(document.canonical),
        charset: document.charset,
        noindex: document.noindex || read.noindex,
        nofollow,
        unavailable_after: [document.unavailable_after, read.unavailable_after]
            .into_iter()
            .flatten()
            .min(),
        cut: document.cut.or(read.cut),
        ..read
    }
}

/// The URL, the method and the header fields with which a request of a page is sent. The error is
/// the answer.
pub fn part_request(request: &Request) -> Result<(CanonicalUrl<'_>, Method, HeaderMap), Answer> {
    let url = CanonicalUrl::parse(&request.url).map_err(|error| refused(error.to_string()))?;
    let method = Method::from_bytes(request.method.as_bytes());
    let method = method.map_err(|_| refused("method"))?;
    let mut bytes = 0;
    let mut sent = HeaderMap::new();
    for (name, value) in &request.headers {
        let name = name.to_ascii_lowercase();
        // Fields of HTTP/2, and hints about the browser: the User-Agent says what this is.
        let is_dropped = name.starts_with(':') || name.starts_with("sec-ch-");
        if is_dropped || DROPPED_FIELDS.contains(&&*name) {
            continue;
        }
        bytes += name.len() + value.len();
        let field = name.parse::<HeaderName>().ok().zip(HeaderValue::from_str(value).ok());
        let field = field.filter(|_| bytes <= FIELDS_BYTES_MAX);
        let (name, value) = field.ok_or_else(|| refused("header fields"))?;
        sent.append(name, value);
    }
    Ok((url, method, sent))
}

/// Header fields as text.
pub fn pairs(headers: &HeaderMap) -> Vec<(String, String)> {
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    headers.iter().map(|(name, value)| (name.as_str().to_owned(), text(value))).collect()
}

/// The answer to a request that is not made.
pub fn refused(reason: impl Into<String>) -> Answer {
    Answer::Refused(reason.into())
}

/// The answer to a request that failed.
pub fn failed(failure: &Failure) -> Answer {
    match failure.reason {
        Reason::Address => refused("address"),
        Reason::TooLarge | Reason::Bomb => refused("size"),
        _ => Answer::Failed(failure.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use tidings_browser::visit::Kind;

    use super::*;

    #[test]
    fn fields_of_the_browser_are_dropped_in_any_case() {
        let field = |name: &str| (name.to_owned(), "x".to_owned());
        let request = Request {
            url: "http://a.example/data".to_owned(),
            method: "GET".to_owned(),
            kind: Kind::Data,
            headers: ["User-Agent", "cookie", "Sec-CH-UA", ":path", "Accept"].map(field).to_vec(),
            body_bytes_max: 1,
        };
        let (_, _, sent) = part_request(&request).unwrap();
        assert_eq!(pairs(&sent), [field("accept")]);
        let headers = vec![("accept".to_owned(), "x".repeat(FIELDS_BYTES_MAX))];
        assert_eq!(part_request(&Request { headers, ..request }), Err(refused("header fields")));
    }
}
