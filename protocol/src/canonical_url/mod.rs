//! Canonical URLs and their keys, for the broker and the crawler.
//!
//! Both sides must agree on which texts are the same page, and the key is stored in databases, so
//! the rules may only change together with [`CANONICAL_VERSION`].
//!
//! Data with keys of an older version stays as it is: the log of a group, or a database of pages,
//! stores texts and keys, and no version. A URL that now has another text counts as new: it is
//! fetched once more, and an `every=` of the old text stays until its group is deleted.

mod ascii_host;
mod below;
mod escapes;
mod join;
mod parts;
mod standard;

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use url::ParseError;
use xxhash_rust::xxh3::xxh3_128;

pub use self::escapes::escaped_octet;
use self::parts::UrlParts;
use self::standard::ParsedUrl;
pub use self::standard::StandardUrl;

/// The version of the rules of [`CanonicalUrl`], on which stored keys depend.
///
/// - 1: the URL standard, without fragment and dots after the host;
/// - 2: `%41` is `A`, `%c3` is `%C3`, and `^` in a path is `%5E`, as in the standard since 2023;
/// - 3: any ASCII host in lower case, also one with `xn--` labels that IDNA rejects, as in the
///   standard since 2026. Version 2 rejected such a URL, so no key of it is stored; every URL that
///   version 2 accepted keeps its text and its key.
pub const CANONICAL_VERSION: u32 = 3;

/// The longest URL in bytes, before and after canonicalization.
pub const URL_BYTES_MAX: usize = 8 * 1024;

/// Why a text is not accepted as the URL of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UrlError {
    /// Over [`URL_BYTES_MAX`], before or after canonicalization.
    #[error("the URL is longer than {URL_BYTES_MAX} bytes")]
    TooLong,
    /// A scheme other than `http` and `https`.
    #[error("only http and https URLs can be fetched")]
    Scheme,
    /// A user name or password in front of the host, which would end up in logs and databases.
    #[error("the URL has a user name or password; remove it")]
    Credentials,
    /// No host, or an invalid one.
    #[error("the URL has no valid host")]
    Host,
    /// Not a URL by the WHATWG rules.
    #[error("not a URL: {}", syntax_problem(*.0))]
    Syntax(ParseError),
}

fn syntax_problem(error: ParseError) -> String {
    match error {
        ParseError::RelativeUrlWithoutBase => "it does not begin with http:// or https://".into(),
        error => error.to_string(),
    }
}

/// The host of this URL can only be asked for pages. The client of all other requests uses the
/// `url` crate, which rejects the host. See [`CANONICAL_VERSION`], 3.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the host {host} has an xn-- label that is not valid IDNA; only pages can be fetched from it"
)]
pub struct UncallableHost {
    host: Box<str>,
}

/// A URL of a page in its canonical form, version 3 (`[U1]`).
///
/// - parsed and written by the WHATWG URL rules: scheme and host in lower case, IDNA as punycode,
///   an ASCII host as it is, default port dropped, `.` and `..` resolved, percent-encoding where it
///   is required;
/// - in path and query, `%xx` of letters, digits, `-`, `.`, `_` and `~` undone, and all others with
///   capital letters (RFC 3986, 6.2.2.1 and 6.2.2.2): they decode to the same octets;
/// - `http` or `https`, no user name or password, at most [`URL_BYTES_MAX`] bytes;
/// - without fragment, and without the dots of the DNS root after the host.
///
/// What only a server can know to be equal stays distinct: case of the path, order of a query, a
/// trailing slash, `+` or `%20`, an empty query or none.
///
/// It borrows the text that it was parsed from if that passes a fast check for canonical form, as
/// nearly all texts do. The check costs a fraction of parsing with the `url` crate.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CanonicalUrl<'a> {
    text: Cow<'a, str>,
    /// They follow from the text, so URLs compare like their texts.
    parts: UrlParts,
}

/// A canonical URL as 128 bits: the xxh3 hash of its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UrlKey(pub u128);

impl From<ParseError> for UrlError {
    fn from(error: ParseError) -> Self {
        match error {
            ParseError::EmptyHost
            | ParseError::IdnaError
            | ParseError::InvalidIpv4Address
            | ParseError::InvalidIpv6Address
            | ParseError::InvalidDomainCharacter => Self::Host,
            other => Self::Syntax(other),
        }
    }
}

impl<'a> CanonicalUrl<'a> {
    /// Parses an absolute URL into its canonical form. Idempotent: the text of the result parses to
    /// itself.
    pub fn parse(text: &'a str) -> Result<Self, UrlError> {
        let text = check_length(trim_blanks(text))?;
        match UrlParts::parse_plain(text) {
            Some(parts) => Ok(Self { text: Cow::Borrowed(text), parts }),
            None => canonicalize(standard::parse(text, None)),
        }
    }

    /// Resolves a link of a page into its canonical form. A relative link costs a parse of the
    /// page's URL, too.
    pub fn join(&self, link: &str) -> Result<CanonicalUrl<'static>, UrlError> {
        let link = check_length(trim_blanks(link))?;
        match UrlParts::parse_plain(link) {
            Some(parts) => Ok(CanonicalUrl { text: Cow::Owned(link.to_owned()), parts }),
            None => canonicalize(standard::parse(link, Some(self.as_str()))),
        }
    }

    /// The same URL with an owned text.
    pub fn into_owned(self) -> CanonicalUrl<'static> {
        CanonicalUrl { text: Cow::Owned(self.text.into_owned()), parts: self.parts }
    }

    /// The canonical text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// `http` or `https`.
    pub fn scheme(&self) -> &str {
        self.part(0, self.parts.host_start - "://".len())
    }

    /// The host in lower case, without port; an IPv6 address in its brackets.
    pub fn host(&self) -> &str {
        self.part(self.parts.host_start, self.parts.host_end)
    }

    /// Checks whether callbacks and other requests than those for pages can be sent to it.
    pub fn check_callable(&self) -> Result<(), UncallableHost> {
        // Anything else that the crate rejects was rejected before.
        url::Url::parse(&self.text)
            .map(drop)
            .map_err(|_| UncallableHost { host: self.host().into() })
    }

    /// The host if it is an address.
    pub fn address(&self) -> Option<IpAddr> {
        match self.host().strip_prefix('[') {
            Some(host) => host.strip_suffix(']')?.parse().ok().map(IpAddr::V6),
            None => self.host().parse().ok().map(IpAddr::V4),
        }
    }

    /// The port to connect to, also if it is the default of the scheme.
    pub fn port(&self) -> u16 {
        match self.part(self.parts.host_end, self.parts.path_start).strip_prefix(':') {
            Some(port) => port.parse().expect("a port is 16 bits"),
            None if self.scheme() == "https" => 443,
            None => 80,
        }
    }

    /// The host, and the port unless it is the default.
    pub fn authority(&self) -> &str {
        self.part(self.parts.host_start, self.parts.path_start)
    }

    /// Scheme and authority, as in `https://site.example:8443`.
    pub fn origin(&self) -> &str {
        self.part(0, self.parts.path_start)
    }

    /// The path, beginning with `/`, without the query.
    pub fn path(&self) -> &str {
        self.part(self.parts.path_start, self.parts.path_end)
    }

    /// The path, and the query with its `?` if there is one: the target of a request.
    pub fn path_and_query(&self) -> &str {
        self.part(self.parts.path_start, self.text.len())
    }

    /// The registrable domain by the public suffix list (`example.co.uk`); the host itself if there
    /// is none (an address, `localhost`, a public suffix).
    pub fn domain(&self) -> &str {
        match self.address() {
            None => registrable_domain(self.host()).unwrap_or(self.host()),
            Some(_) => self.host(),
        }
    }

    /// The key of the URL: equal for equal canonical texts, stable over versions of the software
    /// with the same [`CANONICAL_VERSION`].
    pub fn url_key(&self) -> UrlKey {
        Self::key_of(self.as_str())
    }

    /// The same for a text that is known to be canonical.
    pub fn key_of(canonical: &str) -> UrlKey {
        UrlKey(xxh3_128(canonical.as_bytes()))
    }

    /// Whether the text of the host means this machine: `localhost`, a name below it, or a loopback
    /// address. The crawler checks names that merely resolve to one.
    pub fn is_loopback(&self) -> bool {
        match self.address() {
            None => self.host() == "localhost" || self.host().ends_with(".localhost"),
            Some(address) => address.to_canonical().is_loopback(),
        }
    }

    fn part(&self, start: usize, end: usize) -> &str {
        self.text.get(start..end).expect("parts begin and end in the text, at ASCII bytes")
    }
}

fn check_length(text: &str) -> Result<&str, UrlError> {
    if text.len() <= URL_BYTES_MAX { Ok(text) } else { Err(UrlError::TooLong) }
}

/// Removes what the standard ignores around a URL: control characters and ASCII spaces, and no
/// other white space.
fn trim_blanks(text: &str) -> &str {
    text.trim_matches(|character| character <= ' ')
}

fn canonicalize(parsed: Result<ParsedUrl, ParseError>) -> Result<CanonicalUrl<'static>, UrlError> {
    let ParsedUrl { mut url, host } = parsed?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(UrlError::Scheme);
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(UrlError::Credentials);
    }
    url.set_fragment(None);
    // `example.org.` is the same server as `example.org`, and must be the same key.
    if let Some(host) = url.domain().and_then(|host| host.strip_suffix('.')) {
        let host = host.trim_end_matches('.').to_owned();
        url.set_host(Some(&host)).map_err(|_| UrlError::Host)?;
    }
    let mut parts = UrlParts::from_url(&url);
    let mut text = String::from(url);
    if let Some(host) = host {
        // Dots at its end were dropped above.
        let host_end = parts.host_end - parts.host_start;
        let host = host.get(..host_end).expect("a placeholder is as long as its host");
        text.replace_range(parts.host_start..parts.host_end, host);
    }
    if let Some(better) = escapes::normalize(&text, parts) {
        (text, parts.path_end) = better;
    }
    check_length(&text)?;
    Ok(CanonicalUrl { text: Cow::Owned(text), parts })
}

/// The registrable domain of a name by the public suffix list; `None` for a public suffix, and for
/// a name with an empty label.
pub(crate) fn registrable_domain(name: &str) -> Option<&str> {
    if name.split('.').any(str::is_empty) { None } else { psl::domain_str(name) }
}

impl FromStr for CanonicalUrl<'static> {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        CanonicalUrl::parse(text).map(CanonicalUrl::into_owned)
    }
}

impl AsRef<str> for CanonicalUrl<'_> {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Display for CanonicalUrl<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for CanonicalUrl<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// 32 hex digits.
impl UrlKey {
    /// Half of the key, for large sets: with 100 million URLs in a set, a further one matches by
    /// accident with a chance of 5 in 10^12. Never 0.
    pub fn fingerprint(self) -> u64 {
        let half = u64::try_from(self.0 >> 64).expect("these are the upper 64 bits");
        half.max(1)
    }
}

impl fmt::Display for UrlKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

#[cfg(test)]
mod tests;
