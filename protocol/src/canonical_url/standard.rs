//! URLs by the URL standard: the `url` crate, and the parts of the standard that it lacks and pages
//! use.

use url::{Host, ParseError, Position, Url};

use super::ascii_host::{HostPlaceholder, has_host, is_special};
use super::{UrlError, registrable_domain};

/// Any URL as the WHATWG URL standard reads and writes it, also one that cannot be fetched. For
/// display; a URL to fetch is a [`CanonicalUrl`](super::CanonicalUrl).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StandardUrl {
    /// The whole URL, with fragment, user name and password.
    pub href: String,
    /// Its host as the standard writes it, without port; `None` if it has none, or an empty one.
    pub host: Option<String>,
    /// The registrable domain of the host by the public suffix list; `None` if the host is not a
    /// DNS name, or is a public suffix itself.
    pub domain: Option<String>,
}

impl StandardUrl {
    /// Reads a text, relative to a base if there is one. The text may have any length.
    pub fn parse(text: &str, base: Option<&str>) -> Result<Self, UrlError> {
        let ParsedUrl { url, host } = parse(text, base)?;
        let host = host.or_else(|| url.host_str().map(str::to_owned));
        let domain = match url.host() {
            // With an unknown scheme, a host is opaque text.
            Some(Host::Domain(_)) if is_special(url.scheme()) => {
                let name = host.as_deref().map(|name| name.strip_suffix('.').unwrap_or(name));
                name.and_then(registrable_domain).map(str::to_owned)
            }
            _ => None,
        };
        Ok(Self { href: href(&url, host.as_deref()), host, domain })
    }
}

/// The result of the `url` crate.
pub(super) struct ParsedUrl {
    /// If `host` is set, this URL contains its placeholder, which has the same length.
    pub(super) url: Url,
    /// A host that the standard accepts and the crate rejects.
    pub(super) host: Option<String>,
}

impl From<Url> for ParsedUrl {
    fn from(url: Url) -> Self {
        Self { url, host: None }
    }
}

/// Parses a text. The base is parsed first.
pub(super) fn parse(text: &str, base: Option<&str>) -> Result<ParsedUrl, ParseError> {
    let base = base.map(|base| resolve(base, None)).transpose()?;
    resolve(text, base.as_ref())
}

fn resolve(text: &str, base: Option<&ParsedUrl>) -> Result<ParsedUrl, ParseError> {
    let base_url = base.map(|base| &base.url);
    match parse_with_crate(text, base_url) {
        Ok(url) => {
            let host = base.and_then(|base| base.inherited_host(&url, text));
            Ok(ParsedUrl { url, host })
        }
        Err(ParseError::IdnaError) => {
            let HostPlaceholder { text, host } =
                HostPlaceholder::of(text, base_url).ok_or(ParseError::IdnaError)?;
            Ok(ParsedUrl { url: parse_with_crate(&text, base_url)?, host: Some(host) })
        }
        Err(error) => Err(error),
    }
}

impl ParsedUrl {
    /// The host of this base, if `url` inherits it because `text` contains none.
    fn inherited_host(&self, url: &Url, text: &str) -> Option<String> {
        let host = self.host.as_ref()?;
        let is_same = url.scheme() == self.url.scheme() && url.host() == self.url.host();
        (is_same && !has_host(text, &self.url)).then(|| host.clone())
    }
}

fn parse_with_crate(text: &str, base: Option<&Url>) -> Result<Url, ParseError> {
    let Some(base) = base else { return Url::parse(text) };
    if is_special(base.scheme())
        && base.scheme() != "file"
        && let Some(text) = with_two_slashes(text)
    {
        return base.join(&text);
    }
    base.join(text)
}

/// Reads `///example.org/` as `//example.org/`: before a host, two or more slashes of either kind
/// count as two. To the `url` crate the third one ends an empty host.
fn with_two_slashes(text: &str) -> Option<String> {
    let text = text.trim_start_matches(|character| character <= ' ');
    let is_slash = |character| matches!(character, '/' | '\\');
    // The standard ignores these anywhere.
    let is_dropped = |character| matches!(character, '\t' | '\n' | '\r');
    let host = text.trim_start_matches(|character| is_slash(character) || is_dropped(character));
    let slashes = text.strip_suffix(host)?.chars().filter(|slash| is_slash(*slash)).count();
    (slashes > 2).then(|| format!("//{host}"))
}

/// The text of a URL, with what the standard encodes since 2023 and the `url` crate does not yet:
/// `^` in a path, and the last blank of an opaque path.
fn href(url: &Url, host: Option<&str>) -> String {
    let path = url.path();
    let path = match path.strip_suffix(' ').filter(|_| url.cannot_be_a_base()) {
        Some(path) => format!("{path}%20"),
        None if path.contains('^') && !url.cannot_be_a_base() => path.replace('^', "%5E"),
        None => path.to_owned(),
    };
    let (before, port) =
        (&url[..Position::BeforeHost], &url[Position::AfterHost..Position::BeforePath]);
    let host = host.unwrap_or_default();
    format!("{before}{host}{port}{path}{}", &url[Position::AfterPath..])
}
