//! URL patterns of `include=` and `exclude=`, with the syntax of robots.txt (RFC 9309 section
//! 2.2.3).

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use percent_encoding::percent_encode_byte;

use crate::canonical_url::{CanonicalUrl, escaped_octet};
use crate::error::{ProtocolError, bad_argument};

/// Patterns in one list. More than a person writes, and few enough to check every link against
/// them.
pub(crate) const PATTERNS_MAX: usize = 64;

/// Bytes of one list. Each job keeps its lists in memory, and there may be many jobs.
const LIST_BYTES_MAX: usize = 4 << 10;

/// A pattern: `*` matches any text, and `$` at its end matches the end of the URL. It is compared
/// with path and query if it begins with `/` or `*`, and with the whole URL otherwise. It must
/// match from the beginning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    /// The pattern as written.
    text: Box<str>,
    /// The parts between the stars, normalized. The first must match at the
    /// beginning.
    parts: Box<[Box<str>]>,
    /// Whether it must match up to the end.
    is_anchored: bool,
    /// Whether it is compared with path and query.
    matches_path: bool,
}

impl FromStr for Pattern {
    type Err = ProtocolError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let of_path = text.starts_with(['/', '*']);
        if !of_path && !text.starts_with("http") {
            return Err(bad_argument(format!(
                "pattern {text:?}: expected / or * at the beginning (compared with path and query), \
                 or http:// or https://"
            )));
        }
        let (body, ends) = match text.strip_suffix('$') {
            Some(body) => (body, true),
            None => (text, false),
        };
        let parts = body.split('*').map(|part| normalized(part).into()).collect();
        Ok(Self { text: text.into(), parts, is_anchored: ends, matches_path: of_path })
    }
}

impl Pattern {
    /// Reports whether the pattern matches. `path` is path and query of `url`; both are
    /// normalized. Takes time linear in their length: each part is searched only
    /// behind the first match of the part before it.
    fn matches(&self, url: &str, path: &str) -> bool {
        let text = if self.matches_path { path } else { url };
        let (first, rest) = self.parts.split_first().expect("split gives one part at least");
        let Some(mut text) = text.strip_prefix(&**first) else { return false };
        let Some((last, between)) = rest.split_last() else {
            return !self.is_anchored || text.is_empty();
        };
        for part in between {
            let Some(at) = text.find(&**part) else { return false };
            text = &text[at + part.len()..];
        }
        if self.is_anchored { text.ends_with(&**last) } else { text.contains(&**last) }
    }
}

/// The patterns of one list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Patterns(Box<[Pattern]>);

impl FromStr for Patterns {
    type Err = ProtocolError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let patterns = text.split(',').map(str::parse).collect::<Result<Box<[Pattern]>, _>>()?;
        if patterns.len() > PATTERNS_MAX || text.len() > LIST_BYTES_MAX {
            return Err(bad_argument(format!(
                "expected at most {PATTERNS_MAX} patterns with {LIST_BYTES_MAX} bytes together"
            )));
        }
        Ok(Self(patterns))
    }
}

impl FromIterator<Pattern> for Patterns {
    fn from_iter<I: IntoIterator<Item = Pattern>>(patterns: I) -> Self {
        Self(patterns.into_iter().collect())
    }
}

impl Patterns {
    /// Counts them.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Reports whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reports whether one of them matches.
    pub fn match_any(&self, url: &CanonicalUrl) -> bool {
        self.match_text(url.as_str())
    }

    /// The same for a text that is known to be canonical.
    pub fn match_text(&self, canonical: &str) -> bool {
        let path = normalized(path_of(canonical));
        let url = normalized(canonical);
        self.0.iter().any(|pattern| pattern.matches(&url, &path))
    }

    /// The patterns as written, if there are any.
    pub fn texts(&self) -> Option<Vec<String>> {
        let texts = self.0.iter().map(|pattern| pattern.text.to_string());
        (!self.0.is_empty()).then(|| texts.collect())
    }
}

/// The patterns as written, with commas between them.
impl fmt::Display for Patterns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, pattern) in self.0.iter().enumerate() {
            f.write_str(if index > 0 { "," } else { "" })?;
            f.write_str(&pattern.text)?;
        }
        Ok(())
    }
}

/// Reports whether a URL matches one of the patterns of `include`, if there are any, and none of
/// `exclude`.
pub(crate) fn admits(include: &Patterns, exclude: &Patterns, url: &CanonicalUrl) -> bool {
    let (Patterns(include), Patterns(exclude)) = (include, exclude);
    if include.is_empty() && exclude.is_empty() {
        return true;
    }
    let path = path_of(url.as_str());
    let (url, path) = (normalized(url.as_str()), normalized(path));
    let matches = |pattern: &Pattern| pattern.matches(&url, &path);
    (include.is_empty() || include.iter().any(matches)) && !exclude.iter().any(matches)
}

/// Returns path and query of a canonical URL.
fn path_of(url: &str) -> &str {
    let authority = url.find("://").map_or(0, |at| at + "://".len());
    url[authority..].find('/').map_or("/", |slash| &url[authority + slash..])
}

/// Normalizes percent-encoding, so that equivalent texts are equal: other than ASCII is encoded,
/// what need not be encoded is not, and hexadecimal digits are upper case (RFC 9309 section 2.2.2).
/// `,`, `*` and `$` are also decoded; patterns write them as `%2C`, `%2A` and `%24`.
fn normalized(text: &str) -> Cow<'_, str> {
    if text.bytes().all(|byte| byte.is_ascii() && byte != b'%') {
        return text.into();
    }
    let mut plain = String::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some(byte) = rest.first() {
        let (octet, len, is_plain) = match escaped_octet(rest) {
            Some(octet) => {
                let is_plain = octet.is_ascii_alphanumeric() || b"-._~,*$".contains(&octet);
                (octet, "%xx".len(), is_plain)
            }
            None => (*byte, 1, byte.is_ascii()),
        };
        rest = rest.get(len..).unwrap_or_default();
        if is_plain {
            plain.push(octet.into());
        } else {
            plain.push_str(percent_encode_byte(octet));
        }
    }
    plain.into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn admits(include: &str, exclude: &str, url: &str) -> bool {
        let patterns = |text: &str| match text {
            "" => Patterns::default(),
            text => text.parse().unwrap(),
        };
        super::admits(&patterns(include), &patterns(exclude), &CanonicalUrl::parse(url).unwrap())
    }

    #[track_caller]
    fn assert_pattern(pattern: &str, inside: &[&str], outside: &[&str]) {
        for url in inside {
            assert!(admits(pattern, "", url), "{pattern} should include {url}");
            assert!(!admits("", pattern, url), "{pattern} should exclude {url}");
        }
        for url in outside {
            assert!(!admits(pattern, "", url), "{pattern} should not include {url}");
            assert!(admits("", pattern, url), "{pattern} should not exclude {url}");
        }
    }

    // PROTOCOL: J1
    #[test]
    fn a_path_is_matched_from_its_beginning_on_any_host() {
        assert_pattern(
            "/docs/",
            &["http://a.org/docs/", "https://b.org:8080/docs/x?y"],
            &["http://a.org/docs", "http://a.org/x/docs/", "http://docs/", "http://a.org/?/docs/"],
        );
        assert_pattern("/", &["http://a.org/", "http://a.org/x"], &[]);
        assert_pattern("*", &["http://a.org/"], &[]);
    }

    // PROTOCOL: J1
    #[test]
    fn a_url_is_matched_from_its_beginning() {
        assert_pattern(
            "https://a.org/x",
            &["https://a.org/x", "https://a.org/xy"],
            &["http://a.org/x", "https://a.org/", "https://b.org/?https://a.org/x"],
        );
        assert_pattern(
            "http*://*.a.org/*.pdf$",
            &["https://www.a.org/x.pdf"],
            &["https://a.org/x.pdf"],
        );
    }

    // PROTOCOL: J1
    #[test]
    fn a_star_matches_any_text_and_a_dollar_the_end() {
        assert_pattern(
            "*.pdf$",
            &["http://a.org/x.pdf", "http://a.org/.pdf", "http://a.org/x.pdf?y.pdf"],
            &["http://a.org/x.pdf?y", "http://a.org/pdf"],
        );
        assert_pattern("/$", &["http://a.org/"], &["http://a.org/x", "http://a.org/?"]);
        assert_pattern("/*/$", &["http://a.org/x/", "http://a.org//"], &["http://a.org/"]);
        assert_pattern(
            "/a*b*c",
            &["http://x/abc", "http://x/a.b.c.d"],
            &["http://x/acb", "http://x/ab"],
        );
        assert_pattern("/a*a$", &["http://x/aa", "http://x/a/a"], &["http://x/a"]);
        assert_pattern("/$x", &["http://a.org/$xy"], &["http://a.org/"]);
        assert_pattern("*?*", &["http://a.org/?x"], &["http://a.org/"]);
    }

    // PROTOCOL: J1
    #[test]
    fn equivalent_percent_encodings_match() {
        assert_pattern("/%7Ejoe/", &["http://a.org/~joe/", "http://a.org/%7ejoe/"], &[]);
        assert_pattern("/ü%C3%BC", &["http://a.org/üü", "http://a.org/%c3%bc%C3%bc"], &[]);
        assert_pattern("/a%2Cb", &["http://a.org/a,b", "http://a.org/a%2cb"], &["http://a.org/a"]);
        assert_pattern(
            "/a%2A%24$",
            &["http://a.org/a*$"],
            &["http://a.org/ab$", "http://a.org/a*"],
        );
        assert_pattern("/a%2Fb", &["http://a.org/a%2fb"], &["http://a.org/a/b"]);
        assert_pattern("/a%", &["http://a.org/a%", "http://a.org/a%zz"], &["http://a.org/a"]);
    }

    #[test]
    fn a_url_matches_an_include_and_no_exclude() {
        let admits = |url| admits("/docs/,/blog/", "*.pdf$,/blog/tags/", url);
        assert!(admits("http://a.org/docs/x") && admits("http://a.org/blog/x"));
        assert!(!admits("http://a.org/"), "no include pattern matches");
        assert!(!admits("http://a.org/docs/x.pdf") && !admits("http://a.org/blog/tags/x"));
    }

    // PROTOCOL: J1
    #[test]
    fn lists_are_limited_and_errors_name_the_limit() {
        let error_of = |text: &str| text.parse::<Patterns>().unwrap_err().text;
        assert!(vec!["/x"; 64].join(",").parse::<Patterns>().is_ok());
        assert!(error_of(&vec!["/x"; 65].join(",")).contains("at most 64"));
        assert!(error_of(&format!("/{}", "x".repeat(4096))).contains("4096 bytes"));
        for text in ["", "a.org/x", "/x,", "ftp://a.org/", "$"] {
            assert!(error_of(text).contains("at the beginning"), "{text}");
        }
    }

    /// Matches as the RFC defines it, without regard to time.
    fn matches_by_rfc(pattern: &[u8], text: &[u8]) -> bool {
        match pattern {
            [] => true,
            b"$" => text.is_empty(),
            [b'*', rest @ ..] => (0..=text.len()).any(|at| matches_by_rfc(rest, &text[at..])),
            [byte, rest @ ..] => text.first() == Some(byte) && matches_by_rfc(rest, &text[1..]),
        }
    }

    proptest! {
        #[test]
        fn matches_as_the_rfc_says(pattern in "[/*][ab*]{0,7}\\$?", path in "[ab]{0,9}") {
            let path = format!("/{path}");
            let parsed: Pattern = pattern.parse().unwrap();
            let expected = matches_by_rfc(pattern.as_bytes(), path.as_bytes());
            prop_assert_eq!(parsed.matches(&format!("http://a{path}"), &path), expected);
        }

        #[test]
        fn printed_patterns_parse_again(patterns in prop::collection::vec("[/*][a-z%*$]{0,9}", 1..5)) {
            let text = patterns.join(",");
            prop_assert_eq!(text.parse::<Patterns>().unwrap().to_string(), text);
        }

        #[test]
        fn arbitrary_text_does_not_panic(pattern in "[/*]\\PC{0,9}", url in "http://a/\\PC{0,9}") {
            let _ = admits(&pattern.replace(',', ""), "", &url.replace(['\\', '#'], ""));
        }
    }
}
