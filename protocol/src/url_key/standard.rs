//! What the URL standard makes of a text: the `url` crate, and what it lacks of the standard where
//! pages have it.

use url::{Host, ParseError, Position, Url};

use super::{UrlError, registrable};

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
    /// Reads a text, relative to a base if there is one. Of any length.
    pub fn parse(text: &str, base: Option<&str>) -> Result<Self, UrlError> {
        let url = parse(text, base)?;
        let domain = match url.host() {
            // Of a scheme that the standard does not know, a host is just a text.
            Some(Host::Domain(name)) if is_special(&url) => {
                let name = name.strip_suffix('.').unwrap_or(name);
                registrable(name).map(str::to_owned)
            }
            _ => None,
        };
        let host = url.host_str().map(str::to_owned);
        Ok(Self { href: href(url), host, domain })
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

/// The text of a URL, with what the standard encodes since 2023, and the `url` crate does not yet: `^` in
/// a path, and the last blank of a path that is just a text.
fn href(url: Url) -> String {
    let path = url.path();
    let path = match path.strip_suffix(' ').filter(|_| url.cannot_be_a_base()) {
        Some(path) => format!("{path}%20"),
        None if path.contains('^') && !url.cannot_be_a_base() => path.replace('^', "%5E"),
        None => return url.into(),
    };
    let before = &url[..Position::BeforePath];
    format!("{before}{path}{}", &url[Position::AfterPath..])
}
