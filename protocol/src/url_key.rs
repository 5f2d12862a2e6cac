//! The canonical URL and its keys: the one place, used by broker and crawler.
//!
//! Both sides must agree on which texts are the same page, and the answer is a key in databases,
//! so the rules may only change together with [`CANONICAL_VERSION`].

use std::fmt;
use std::str::FromStr;

use url::{Host, ParseError, Url};
use xxhash_rust::xxh3::xxh3_128;

/// The version of the rules of [`CanonicalUrl`]; stored beside keys that rest on them.
pub const CANONICAL_VERSION: u32 = 1;

/// The longest URL, before and after it was made canonical, in bytes.
pub const URL_BYTES_MAX: usize = 8 * 1024;

/// Why a text is not taken as the URL of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UrlError {
    /// Over [`URL_BYTES_MAX`], before or after it was made canonical.
    #[error("the URL is longer than {URL_BYTES_MAX} bytes")]
    TooLong,
    /// Another scheme than `http` or `https`.
    #[error("only http and https URLs can be fetched")]
    Scheme,
    /// A user name or password in front of the host: it would end up in logs and databases.
    #[error("URLs with a user name or password are refused")]
    Credentials,
    /// No host, or one that cannot be.
    #[error("the URL has no valid host")]
    Host,
    /// Not a URL at all, by the WHATWG rules.
    #[error("not a URL: {0}")]
    Syntax(ParseError),
}

/// A URL of a page in its canonical form, version 1 (`[U1]`).
///
/// - parsed and written by the WHATWG URL rules: scheme and host in lower case, IDNA as punycode,
///   default port dropped, `.` and `..` resolved, what must be is percent-encoded;
/// - `http` or `https`, no user name or password, at most [`URL_BYTES_MAX`] bytes;
/// - without fragment, and without the dots of the DNS root after the host.
///
/// What only servers can know to be equal (case of the path, order of a query, a trailing slash,
/// `%7E` or `~`) stays apart.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CanonicalUrl(Url);

/// A canonical URL as 128 bits: the xxh3 hash of its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UrlKey(pub u128);

impl CanonicalUrl {
    /// Makes an absolute URL canonical. Idempotent: the text of the result parses to itself.
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        let text = short_enough(text.trim())?;
        canonical(Url::parse(text))
    }

    /// Resolves a link of a page, and makes it canonical.
    pub fn join(base: &CanonicalUrl, link: &str) -> Result<Self, UrlError> {
        let link = short_enough(link.trim())?;
        canonical(base.0.join(link))
    }

    /// The canonical text.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// The same as the type of the `url` crate.
    pub fn as_url(&self) -> &Url {
        &self.0
    }

    /// `http` or `https`.
    pub fn scheme(&self) -> &str {
        self.0.scheme()
    }

    /// The host in lower case, without port; an IPv6 address in its brackets.
    pub fn host(&self) -> &str {
        self.0.host_str().expect("http and https URLs have a host")
    }

    /// The port that is connected to, also when it is the default one of the scheme.
    pub fn port(&self) -> u16 {
        self.0.port_or_known_default().expect("http and https have a default port")
    }

    /// The host, and the port where it is not the default one.
    pub fn authority(&self) -> &str {
        self.0.authority()
    }

    /// The path, beginning with `/`, without the query.
    pub fn path(&self) -> &str {
        self.0.path()
    }

    /// The registrable domain by the public suffix list (`example.co.uk`); the host itself where
    /// there is none (an address, `localhost`, a public suffix).
    pub fn domain(&self) -> &str {
        match self.0.host() {
            Some(Host::Domain(host)) => psl::domain_str(host).unwrap_or(host),
            _ => self.host(),
        }
    }

    /// The key under which the URL is known: equal for equal canonical texts, stable over
    /// versions of the software with the same [`CANONICAL_VERSION`].
    pub fn url_key(&self) -> UrlKey {
        Self::key_of(self.as_str())
    }

    /// The same, of a text that is known to be canonical.
    pub fn key_of(canonical: &str) -> UrlKey {
        UrlKey(xxh3_128(canonical.as_bytes()))
    }

    /// Whether the host is this machine by its text alone: `localhost`, a name below it, or a
    /// loopback address. A name that merely resolves to one is for the crawler to find out.
    pub fn is_loopback(&self) -> bool {
        match self.0.host() {
            Some(Host::Domain(host)) => host == "localhost" || host.ends_with(".localhost"),
            Some(Host::Ipv4(address)) => address.is_loopback(),
            Some(Host::Ipv6(address)) => address.to_canonical().is_loopback(),
            None => false,
        }
    }
}

fn short_enough(text: &str) -> Result<&str, UrlError> {
    if text.len() <= URL_BYTES_MAX { Ok(text) } else { Err(UrlError::TooLong) }
}

fn canonical(parsed: Result<Url, ParseError>) -> Result<CanonicalUrl, UrlError> {
    let mut url = parsed.map_err(|error| match error {
        ParseError::EmptyHost
        | ParseError::IdnaError
        | ParseError::InvalidIpv4Address
        | ParseError::InvalidIpv6Address
        | ParseError::InvalidDomainCharacter => UrlError::Host,
        other => UrlError::Syntax(other),
    })?;
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
    short_enough(url.as_str())?;
    Ok(CanonicalUrl(url))
}

impl FromStr for CanonicalUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        CanonicalUrl::parse(text)
    }
}

impl AsRef<str> for CanonicalUrl {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Display for CanonicalUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for CanonicalUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// 32 hex digits.
impl UrlKey {
    /// Half of it, for sets of many: among 100 million URLs, the chance that a further one is taken
    /// for one of them is 5 in 10^12. Never 0.
    pub fn print(self) -> u64 {
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn same(text: &str, canonical: &str) {
        assert_eq!(CanonicalUrl::parse(text).map(|url| url.to_string()).as_deref(), Ok(canonical));
    }

    #[test]
    fn equal_pages_have_equal_texts() {
        same("HTTP://Example.ORG", "http://example.org/");
        same("http://example.org:80/a#b", "http://example.org/a");
        same("https://example.org:443/", "https://example.org/");
        same("http://example.org:443/", "http://example.org:443/");
        same("http://example.org./a", "http://example.org/a");
        same("http://example.org/a/./b/../c", "http://example.org/a/c");
        same("http://exämple.org/ä b", "http://xn--exmple-cua.org/%C3%A4%20b");
        same("http://127.1/", "http://127.0.0.1/");
        same("http://127.0.0.1./", "http://127.0.0.1/");
        same("http://[::0001]:80/", "http://[::1]/");
        same("  http://example.org/\t", "http://example.org/");
    }

    #[test]
    fn what_only_a_server_can_know_stays_apart() {
        same("http://example.org/A/?b=2&a=1", "http://example.org/A/?b=2&a=1");
        same("http://example.org/?", "http://example.org/?");
        same("http://example.org/%7Ea", "http://example.org/%7Ea");
    }

    #[test]
    fn what_is_no_page_is_refused_with_its_reason() {
        for (text, error) in [
            ("ftp://example.org/", UrlError::Scheme),
            ("mailto:a@b", UrlError::Scheme),
            ("file:///etc/passwd", UrlError::Scheme),
            ("http://a:b@example.org/", UrlError::Credentials),
            ("http://a@example.org/", UrlError::Credentials),
            ("http://", UrlError::Host),
            ("http://[::1", UrlError::Host),
            ("http://1.2.3.4.5/", UrlError::Host),
            ("http://./", UrlError::Host),
            ("/a", UrlError::Syntax(ParseError::RelativeUrlWithoutBase)),
            ("hello", UrlError::Syntax(ParseError::RelativeUrlWithoutBase)),
        ] {
            assert_eq!(CanonicalUrl::parse(text).map(|url| url.to_string()), Err(error), "{text}");
        }
    }

    #[test]
    fn the_limit_holds_before_and_after() {
        let at_limit = format!("http://a/{}", "x".repeat(URL_BYTES_MAX - 9));
        assert!(CanonicalUrl::parse(&at_limit).is_ok());
        assert_eq!(CanonicalUrl::parse(&format!("{at_limit}x")), Err(UrlError::TooLong));
        let grows = format!("http://a/{}", "ä".repeat(URL_BYTES_MAX / 4));
        assert_eq!(CanonicalUrl::parse(&grows), Err(UrlError::TooLong));
    }

    #[test]
    fn parts() {
        let url = CanonicalUrl::parse("https://www.Example.co.uk:8443/a/b?c").unwrap();
        assert_eq!(url.scheme(), "https");
        assert_eq!(url.host(), "www.example.co.uk");
        assert_eq!(url.authority(), "www.example.co.uk:8443");
        assert_eq!(url.port(), 8443);
        assert_eq!(url.path(), "/a/b");
        assert_eq!(url.domain(), "example.co.uk");
        let address = CanonicalUrl::parse("http://[::1]/").unwrap();
        assert_eq!((address.host(), address.domain(), address.port()), ("[::1]", "[::1]", 80));
        let address = CanonicalUrl::parse("http://127.0.0.2:8000/").unwrap();
        assert_eq!((address.host(), address.domain()), ("127.0.0.2", "127.0.0.2"));
    }

    #[test]
    fn links_are_resolved_against_their_page() {
        let base = CanonicalUrl::parse("http://example.org/a/b?c").unwrap();
        for (link, url) in [
            ("d#e", "http://example.org/a/d"),
            ("/d", "http://example.org/d"),
            ("//Other.org", "http://other.org/"),
            ("#top", "http://example.org/a/b?c"),
            ("?x", "http://example.org/a/b?x"),
            (" d ", "http://example.org/a/d"),
        ] {
            assert_eq!(CanonicalUrl::join(&base, link).unwrap().as_str(), url);
        }
        assert_eq!(CanonicalUrl::join(&base, "mailto:a@b"), Err(UrlError::Scheme));
    }

    #[test]
    fn loopback_is_seen_in_every_spelling() {
        for text in [
            "http://localhost/",
            "http://a.localhost/",
            "http://127.9.9.9/",
            "http://[::1]/",
            "http://[::ffff:127.0.0.1]/",
        ] {
            assert!(CanonicalUrl::parse(text).unwrap().is_loopback(), "{text}");
        }
        for text in ["http://localhost.org/", "http://10.0.0.1/", "http://128.0.0.1/"] {
            assert!(!CanonicalUrl::parse(text).unwrap().is_loopback(), "{text}");
        }
    }

    #[test]
    fn keys_are_stable() {
        // A fixed value: the key is stored, so a change of the hash must not go unnoticed.
        let url = CanonicalUrl::parse("http://example.org/").unwrap();
        assert_eq!(url.url_key().to_string(), "13dab8d42ad2218070c0198247c2304a");
    }

    proptest! {
        #[test]
        fn canonical_is_idempotent(
            text in "(http|HTTPS)://[a-zA-Z0-9.ä%-]{1,12}(:[0-9]{1,4})?(/[ -~ä]{0,20}){0,3}",
        ) {
            if let Ok(url) = CanonicalUrl::parse(&text) {
                prop_assert_eq!(CanonicalUrl::parse(url.as_str()), Ok(url));
            }
        }

        #[test]
        fn no_text_panics(base in "https?://[!-~]{1,20}", link in ".{0,40}") {
            if let Ok(base) = CanonicalUrl::parse(&base)
                && let Ok(url) = CanonicalUrl::join(&base, &link)
            {
                prop_assert_eq!(CanonicalUrl::parse(url.as_str()), Ok(url));
            }
        }
    }
}
