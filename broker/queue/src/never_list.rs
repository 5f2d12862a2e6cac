//! The never-list: hosts and URLs that nothing may request. It is the same for all groups of a
//! broker, and no group records it.

use std::str;

use hashbrown::HashMap;
use tidings_protocol::{CanonicalUrl, HostPattern, Pattern, Patterns};

/// Longest text of a list, in bytes.
pub const NEVER_BYTES_MAX: usize = 1 << 20;

/// Most patterns for one host, and most of those that are not for one host. Each URL is compared with
/// all patterns for its host and all for any.
const PATTERNS_MAX: usize = 200;

/// Longest line, in bytes, as for the patterns of a job.
const LINE_BYTES_MAX: usize = 4 << 10;

/// Hosts and URLs that nothing may request.
///
/// In its text each line is one entry: a host (`example.org`); a host and everything below it
/// (`*.example.org`); or, with a slash, a pattern of URLs (`[J1]`). A `#` begins a
/// comment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NeverList {
    /// Whether the names below each host are included.
    hosts: HashMap<Box<str>, bool>,
    /// The patterns for each authority; those for any have the empty one.
    patterns: HashMap<Box<str>, Patterns>,
}

/// A text that is not a list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NeverListError {
    /// The text is too long.
    #[error("longer than {NEVER_BYTES_MAX} bytes")]
    TooLong,
    /// A line is not an entry.
    #[error("line {line}: {problem}")]
    Line {
        /// Its number, from 1.
        line: usize,
        /// What is wrong.
        problem: String,
    },
}

impl NeverList {
    /// Parses a text.
    pub fn parse(text: &[u8]) -> Result<Self, NeverListError> {
        if text.len() > NEVER_BYTES_MAX {
            return Err(NeverListError::TooLong);
        }
        let mut list = Self::default();
        let mut patterns = HashMap::<_, Vec<_>>::new();
        for (line, bytes) in (1..).zip(text.split(|byte| *byte == b'\n')) {
            let wrong = |problem: String| NeverListError::Line { line, problem };
            if bytes.len() > LINE_BYTES_MAX {
                return Err(wrong(format!("longer than {LINE_BYTES_MAX} bytes")));
            }
            let text = str::from_utf8(bytes).map_err(|_| wrong("not UTF-8".to_owned()))?;
            let entry = text.split('#').next().unwrap_or_default().trim();
            if entry.contains('/') {
                let pattern = entry.parse::<Pattern>().map_err(|error| wrong(error.text))?;
                let patterns = patterns.entry(authority_of(entry).into()).or_default();
                patterns.push(pattern);
                if patterns.len() > PATTERNS_MAX {
                    let limit = format!("more than {PATTERNS_MAX} URL patterns for one host");
                    return Err(wrong(limit + ", or as many for any host"));
                }
            } else if !entry.is_empty() {
                let host = entry.parse::<HostPattern>().map_err(|error| {
                    let pattern = "a URL pattern has a slash, as https://example.org/private/";
                    wrong(format!("{entry:?}: {error}; {pattern}"))
                })?;
                *list.hosts.entry(host.host().into()).or_default() |= host.is_below();
            }
        }
        let patterns = patterns.into_iter();
        list.patterns = patterns.map(|(of, some)| (of, some.into_iter().collect())).collect();
        Ok(list)
    }

    /// Counts the entries.
    pub fn len(&self) -> usize {
        self.hosts.len() + self.patterns.values().map(Patterns::len).sum::<usize>()
    }

    /// Reports whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reports whether a URL may not be requested.
    pub fn covers(&self, url: &CanonicalUrl) -> bool {
        let of = |authority: &str| self.patterns.get(authority).is_some_and(|of| of.match_any(url));
        self.covers_host(url.host()) || of(url.authority()) || of("")
    }

    /// Reports the same for the text of a URL.
    pub(crate) fn covers_text(&self, url: &str) -> bool {
        !self.is_empty() && CanonicalUrl::parse(url).is_ok_and(|url| self.covers(&url))
    }

    /// Looks up the host, and each name above it.
    fn covers_host(&self, host: &str) -> bool {
        let above = host.match_indices('.').map(|(dot, _)| &host[dot + 1..]);
        self.hosts.contains_key(host)
            || above.into_iter().any(|name| self.hosts.get(name) == Some(&true))
    }
}

/// Returns the authority of all URLs that a pattern matches; an empty text if it is not that of one.
fn authority_of(pattern: &str) -> &str {
    let after_scheme = pattern.strip_prefix("https://").or(pattern.strip_prefix("http://"));
    let authority = after_scheme.and_then(|rest| rest.split_once('/')).map_or("", |(it, _)| it);
    // A star matches any text, and an escape may mean another octet.
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
    if authority.bytes().all(is_plain) { authority } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> NeverList {
        NeverList::parse(text.as_bytes()).unwrap()
    }

    #[track_caller]
    fn assert_list(text: &str, inside: &[&str], outside: &[&str]) {
        let list = list(text);
        let covers = |url: &str| list.covers(&CanonicalUrl::parse(url).unwrap());
        for url in inside {
            assert!(covers(url), "{text:?} covers {url}");
        }
        for url in outside {
            assert!(!covers(url), "{text:?} does not cover {url}");
        }
    }

    #[test]
    fn host_is_one_name_on_any_port() {
        assert_list(
            "Example.org",
            &["http://example.org/", "https://example.org:8080/robots.txt"],
            &["http://www.example.org/", "http://example.org.evil.test/", "http://org/"],
        );
        assert_list("bücher.example", &["http://xn--bcher-kva.example/"], &[]);
        assert_list("127.0.0.1\n[::1]", &["http://127.0.0.1/", "http://[::1]:80/"], &[]);
    }

    #[test]
    fn star_covers_a_host_and_all_below_it() {
        assert_list(
            "*.example.org",
            &["http://example.org/", "http://a.b.example.org/x"],
            &["http://notexample.org/", "http://org/"],
        );
        assert_list("*.a.test\na.test", &["http://b.a.test/"], &[]);
    }

    #[test]
    fn line_with_a_slash_is_a_pattern() {
        assert_list(
            "https://example.org/private/\n/cgi-bin/*.pl$ # scripts",
            &["https://example.org/private/x", "http://a.test/cgi-bin/x.pl"],
            &["http://example.org/private/x", "https://example.org/", "http://a.test/x.pl"],
        );
    }

    #[test]
    fn patterns_of_a_host_are_as_those_of_any() {
        assert_list(
            "http://a.org:8080/x\nhttp*://b.org/\nhttps://*.c.org/\nhttp://[::1]/\n/y",
            &[
                "http://a.org:8080/x",
                "https://b.org/",
                "http://d.org/?https://b.org/",
                "https://www.c.org/",
                "http://[::1]/",
                "http://a.org:8080/y",
            ],
            &["http://a.org/x", "https://a.org:8080/x", "https://c.org/"],
        );
        let of_many_hosts: Vec<_> = (0..10_000).map(|n| format!("http://h{n}.org/x\n")).collect();
        let list = list(&of_many_hosts.concat());
        assert_eq!((list.len(), list.patterns.len()), (10_000, 10_000));
        let of_one_host = "http://a.org/x\n".repeat(PATTERNS_MAX + 1);
        assert!(NeverList::parse(of_one_host.as_bytes()).is_err());
    }

    #[test]
    fn comments_and_blank_lines_are_left_out() {
        let list = list("# kept by the press office\r\n\r\n  example.org # complaint 2381\r\n\t\n");
        assert_eq!(list.len(), 1);
        assert!(NeverList::parse(b"").unwrap().is_empty());
    }

    #[test]
    fn error_names_the_line() {
        let many = "/x\n".repeat(PATTERNS_MAX + 1);
        let long = format!("\n/{}", "x".repeat(LINE_BYTES_MAX));
        for (text, line) in [
            (&b"example.org\n\nexample org"[..], 3),
            (b"*", 1),
            (b"*.", 1),
            (b"*.*.example.org", 1),
            (b"a.*.org", 1),
            (b"example.org:8080", 1),
            (b"user@example.org", 1),
            (b"*.127.0.0.1", 1),
            (b"a..b", 1),
            (b"ftp://example.org/", 1),
            (b"a.org\n\xff", 2),
            (long.as_bytes(), 2),
            (many.as_bytes(), PATTERNS_MAX + 1),
        ] {
            match NeverList::parse(text) {
                Err(NeverListError::Line { line: found, .. }) => assert_eq!(found, line),
                other => panic!("{}: {other:?}", text.escape_ascii()),
            }
        }
        let longest = vec![b'\n'; NEVER_BYTES_MAX];
        assert!(NeverList::parse(&longest).is_ok());
        let longer = vec![b'\n'; NEVER_BYTES_MAX + 1];
        assert_eq!(NeverList::parse(&longer), Err(NeverListError::TooLong));
    }
}
