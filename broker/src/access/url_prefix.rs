//! URL prefixes: which URLs a sender may publish. Pure.

use std::fmt;
use std::str::FromStr;

use tidings_protocol::CanonicalUrl;

/// The beginning of a URL: its scheme, host and port, and its path up to the end of a segment.
/// `/blog` and `/blog/new` are below `http://a.example/blog`, and `/blogger` is not. `/blog` is not
/// below `http://a.example/blog/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UrlPrefix(CanonicalUrl<'static>);

impl UrlPrefix {
    /// Whether a URL is below this prefix. Both are canonical, so a host has one spelling, and the
    /// published text is the one that was checked.
    pub(crate) fn contains(&self, url: &CanonicalUrl<'_>) -> bool {
        url.is_below(&self.0)
    }
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
