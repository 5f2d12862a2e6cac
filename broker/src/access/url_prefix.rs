//! URL prefixes: which URLs a sender may publish. Pure.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use percent_encoding::percent_decode;
use tidings_protocol::CanonicalUrl;

/// How many layers of percent-encoding are removed from a path before it counts as one that may
/// lead up.
const DECODINGS_MAX: usize = 3;

/// The beginning of a URL: its scheme, host and port, and its path up to the end of a segment.
/// `/blog` and `/blog/new` are below `http://a.example/blog`, and `/blogger` is not. `/blog` is not
/// below `http://a.example/blog/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UrlPrefix(CanonicalUrl<'static>);

impl UrlPrefix {
    /// Whether a URL is below this prefix. Both are canonical, so a host has one spelling, and the
    /// published text is the one that was checked.
    pub(crate) fn contains(&self, url: &CanonicalUrl<'_>) -> bool {
        is_below(url, &self.0)
    }
}

/// Whether a URL is below another one: on the same server, with a path that continues the other one
/// at the end of a segment, and that no server reads as leading up.
pub fn is_below(url: &CanonicalUrl<'_>, prefix: &CanonicalUrl<'_>) -> bool {
    let is_same_server = prefix.scheme() == url.scheme() && prefix.authority() == url.authority();
    let Some(rest) = url.path().strip_prefix(prefix.path()).filter(|_| is_same_server) else {
        return false;
    };
    let at_boundary = rest.is_empty() || rest.starts_with('/') || prefix.path().ends_with('/');
    at_boundary && (prefix.path() == "/" || !may_leave_prefix(url.path()))
}

impl FromStr for UrlPrefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let url = CanonicalUrl::parse(text).map_err(|error| format!("{text:?}: {error}"))?;
        if text.contains(['?', '#']) {
            return Err(format!("{text:?}: a prefix has no query and no fragment"));
        }
        Ok(Self(url.into_owned()))
    }
}

impl fmt::Display for UrlPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Whether some server may read a path as one that leads up. `..%2f` is one segment by the
/// standard, and two for a server that decodes the path before it splits it; some servers read
/// `..;x` as `..`. A path that is encoded many times over counts as leading up.
fn may_leave_prefix(path: &str) -> bool {
    let mut path = Cow::Borrowed(path.as_bytes());
    // Nearly all paths have neither an escape nor two dots.
    let has_dots = memchr::memchr_iter(b'.', &path).any(|at| path.get(at + 1) == Some(&b'.'));
    if !has_dots && !path.contains(&b'%') {
        return false;
    }
    for _ in 0..DECODINGS_MAX {
        let mut segments = path.split(|byte| matches!(byte, b'/' | b'\\'));
        if segments.any(|segment| segment.split(|byte| *byte == b';').next() == Some(b"..")) {
            return true;
        }
        if !path.contains(&b'%') {
            return false;
        }
        // Borrowed if the path has no escape.
        let Cow::Owned(decoded) = Cow::from(percent_decode(&path)) else { return false };
        path = Cow::Owned(decoded);
    }
    true
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn has(prefix: &str, url: &str) -> bool {
        let prefix: UrlPrefix = prefix.parse().unwrap();
        CanonicalUrl::parse(url).is_ok_and(|url| prefix.contains(&url))
    }

    #[test]
    fn urls_below_the_prefix_are_accepted_in_any_spelling() {
        for url in [
            "https://a.example/blog/",
            "https://a.example/blog/new?x=1",
            "HTTPS://A.Example:443/blog/new",
            "https://a.example./blog/new",
            "https://a.example/x/../blog/new",
            "https://a.example/%62log/new",
            "https:\\\\a.example\\blog\\new",
            "https://a.example/blog/100%25",
            "https://a.example/blog/a%2Fb",
            "https://a.example/blog/..a/...",
        ] {
            assert!(has("https://a.example/blog/", url), "{url}");
        }
        assert!(has("https://a.example/blog", "https://a.example/blog"));
        assert!(has("https://a.example/blog", "https://a.example/blog?x"));
        assert!(has("https://A.example:443", "https://a.example/%2e%2e%2fx"), "all of the host");
        assert!(has("http://[::1]:8080/", "http://[0:0::1]:8080/x"));
    }

    #[test]
    fn urls_outside_the_prefix_are_rejected() {
        for url in [
            "http://a.example/blog/new",
            "https://a.example:444/blog/new",
            "https://a.example/blogger",
            "https://a.example/blog/../admin",
            "https://a.example/blog/%2e%2e/admin",
            "https://a.example/blog/%2E./admin",
            "https://a.example/blog/..%2fadmin",
            "https://a.example/blog/..%5cadmin",
            "https://a.example/blog/%252e%252e/admin",
            "https://a.example/blog/%2525252e%2525252e/admin",
            "https://a.example/blog/..;/admin",
            "https://a.example/blog/x\\..\\..\\admin",
            "https://a.example/BLOG/new",
            "https://a.example@evil.example/blog/",
            "https://a.example:443@evil.example/blog/",
            "https://a.example.evil.example/blog/",
            "https://evil.example/https://a.example/blog/",
            "https://evil.example\\@a.example/blog/",
            "https://evil.example#@a.example/blog/",
            "https://evil.example?@a.example/blog/",
            "//a.example/blog/",
            "/blog/new",
            "blog/new",
            "file:///blog/",
            "javascript:https://a.example/blog/",
            "",
        ] {
            assert!(!has("https://a.example/blog/", url), "{url}");
        }
        assert!(!has("https://a.example/blog/", "https://a.example/blog"));
        assert!(!has("https://a.example/blog", "https://a.example/blogger"));
    }

    #[test]
    fn a_prefix_is_a_url_without_a_query() {
        for text in ["a.example", "https://", "https://a.example/?x", "https://a.example/#x", "/x"]
        {
            assert!(text.parse::<UrlPrefix>().is_err(), "{text}");
        }
        let prefix: UrlPrefix = "HTTPS://A.example".parse().unwrap();
        assert_eq!(prefix.to_string(), "https://a.example/");
    }

    proptest! {
        #[test]
        fn accepted_urls_are_on_that_server_and_below_that_path(
            before in "(https://a\\.example|https://a\\.example/blog/|http://|//|\\\\\\\\|)",
            rest in "[a-z@:/\\\\.%2eEfF5c#?;]{0,30}",
        ) {
            let url = format!("{before}{rest}");
            let prefix: UrlPrefix = "https://a.example/blog/".parse().unwrap();
            if let Ok(url) = CanonicalUrl::parse(&url) && prefix.contains(&url) {
                prop_assert_eq!(url.host(), "a.example");
                prop_assert_eq!(url.port(), 443);
                prop_assert!(url.as_str().starts_with("https://a.example/blog/"));
            }
        }
    }
}
