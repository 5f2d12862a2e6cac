//! Fuzz targets of this crate: properties of any bytes from a site. For the feature `fuzzing` and
//! for tests only.

use tidings_protocol::CanonicalUrl;

use crate::robots::{RobotsRules, display_line, product_token, sitemaps};

/// The name and the function of a target.
pub type Target = (&'static str, fn(&[u8]));

/// The targets of this crate.
pub const TARGETS: &[Target] = &[("robots", robots)];

/// The first line, if it is text, and the rest.
fn first_line(bytes: &[u8]) -> (Option<&str>, &[u8]) {
    let at = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(0);
    let (line, rest) = bytes.split_at(at);
    (std::str::from_utf8(line).ok().filter(|line| !line.is_empty()), rest.get(1..).unwrap_or(rest))
}

/// Input: a path in the first line, and a robots.txt. The stored excerpt of a file has the same
/// rules as the file.
fn robots(bytes: &[u8]) {
    let (path, text) = first_line(bytes);
    let path = path.unwrap_or("/");
    let rules = RobotsRules::parse(text, product_token("Tidings/1.0"));
    let decision = rules.decide(path);
    if let Some(line) = decision.line {
        let _ = display_line(text, line);
    }
    assert!(rules.allows("/robots.txt"));
    let excerpt = rules.excerpt(text);
    let again = RobotsRules::of_excerpt(&excerpt);
    assert_eq!(again.allows(path), decision.allowed, "the excerpt has other rules than the file");
    assert_eq!(again.crawl_delay(), rules.crawl_delay());
    assert_eq!(again.excerpt(&excerpt), excerpt, "the excerpt of an excerpt differs");
    assert!(rules.memory_bytes() < 1 << 20);
    let robots_url = CanonicalUrl::parse("http://a.example/robots.txt").expect("a valid URL");
    for url in sitemaps(text, &robots_url) {
        assert_eq!(CanonicalUrl::parse(url.as_str()).as_ref(), Ok(&url));
    }
}

#[cfg(test)]
#[path = "../../fuzz/replay.rs"]
mod replay;
