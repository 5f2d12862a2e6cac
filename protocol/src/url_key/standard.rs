//! What the URL standard makes of a text: the `url` crate, and what it lacks of the standard where
//! pages have it.

use url::{Host, ParseError, Url};

use super::registrable;

/// Any URL as the WHATWG URL standard reads and writes it, also one that nobody can fetch. For looking
/// at; what is to be fetched is a [`CanonicalUrl`](super::CanonicalUrl).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StandardUrl {
    /// The whole URL, with fragment, user name and password.
    pub href: String,
    /// Its host as the standard writes it, without port; `None` if it has none, or an empty one.
    pub host: Option<String>,
    /// The registrable domain of the host by the public suffix list; `None` if the host is none of the
    /// names of the DNS, or is a public suffix itself.
    pub domain: Option<String>,
}

impl StandardUrl {
    /// Reads a text, relative to a base if there is one; `None` if that is no URL.
    pub fn parse(text: &str, base: Option<&str>) -> Option<Self> {
        let url = parse(text, base).ok()?;
        let domain = match url.host() {
            // Of a scheme that the standard does not know, a host is just a text.
            Some(Host::Domain(name)) if is_special(&url) => {
                let name = name.strip_suffix('.').unwrap_or(name);
                registrable(name).map(str::to_owned)
            }
            _ => None,
        };
        let host = url.host_str().map(str::to_owned);
        Some(Self { href: href(url), host, domain })
    }
}

/// Parses a text; a base is parsed first, and only if it can matter.
pub(super) fn parse(text: &str, base: Option<&str>) -> Result<Url, ParseError> {
    let Some(base) = base else { return Url::parse(text) };
    let base = Url::parse(base)?;
    if is_special(&base)
        && base.scheme() != "file"
        && let Some(text) = with_two_slashes(text)
    {
        return base.join(&text);
    }
    base.join(text)
}

/// `///example.org/` as `//example.org/`: before a host, any number of slashes from two on, of either
/// kind, counts as two. To the `url` crate the third one ends an empty host.
fn with_two_slashes(text: &str) -> Option<String> {
    let text = text.trim_start_matches(|character| character <= ' ');
    let is_slash = |character| matches!(character, '/' | '\\');
    // The standard drops these wherever they are.
    let is_dropped = |character| matches!(character, '\t' | '\n' | '\r');
    let host = text.trim_start_matches(|character| is_slash(character) || is_dropped(character));
    let slashes = text.strip_suffix(host)?.chars().filter(|slash| is_slash(*slash)).count();
    (slashes > 2).then(|| format!("//{host}"))
}

/// The schemes of which the standard knows what a host is.
fn is_special(url: &Url) -> bool {
    matches!(url.scheme(), "http" | "https" | "ws" | "wss" | "ftp" | "file")
}

/// The text of a URL, with `^` in the path as `%5E`: the standard encodes it since 2023.
fn href(url: Url) -> String {
    if url.cannot_be_a_base() || !url.path().contains('^') {
        return url.into();
    }
    let path = url.path().replace('^', "%5E");
    let before = &url[..url::Position::BeforePath];
    let after = &url[url::Position::AfterPath..];
    format!("{before}{path}{after}")
}
