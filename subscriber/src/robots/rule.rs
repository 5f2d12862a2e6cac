//! An `Allow` or `Disallow` rule, and the paths that it matches.

use std::cmp::Reverse;
use std::ops::Range;

use memchr::memmem;
use percent_encoding::percent_encode_byte;
use tidings_protocol::escaped_octet;

use super::line::{LineKey, RobotsLine};

/// A rule of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    /// Normalised, without the final `$`.
    pattern: Box<[u8]>,
    /// The length of the pattern as meant, `$` included: the longest match is the most specific
    /// rule.
    octets: u32,
    is_anchored: bool,
    /// The pattern has a query with slashes or question marks, for which escaped and unescaped
    /// forms are equal.
    folds_query: bool,
    pub(super) allow: bool,
    /// The range of its line in the text.
    start: u32,
    /// See `start`.
    end: u32,
}

/// A path with its query, normalised for the comparison with rules.
pub(super) struct RobotsPath {
    exact: Vec<u8>,
    /// With slashes and question marks of the query unescaped; `None` if there are none.
    folded: Option<Vec<u8>>,
}

impl Rule {
    /// `None` for an empty value, which restricts nothing.
    pub(super) fn new(line: &RobotsLine) -> Option<Self> {
        let allow = line.key == LineKey::Allow;
        let position =
            |at| u32::try_from(at).expect("a robots.txt is limited to far less than 4 GiB");
        let place = (position(line.range.start), position(line.range.end));
        (!line.value.is_empty()).then(|| Self::of_pattern(line.value, allow, place))
    }

    fn of_pattern(value: &[u8], allow: bool, (start, end): (u32, u32)) -> Self {
        let (value, is_anchored) = match value.strip_suffix(b"$") {
            Some(value) => (value, true),
            None => (value, false),
        };
        let (folds_query, mut pattern) = (folds(value), Vec::with_capacity(value.len()));
        let octets = normalise(value, StarMeaning::Wildcard, folds_query, &mut pattern);
        let octets = octets + u32::from(is_anchored);
        Self { pattern: pattern.into(), octets, is_anchored, folds_query, allow, start, end }
    }

    /// In this order the first matching rule decides: most octets first, `allow` before `disallow`.
    pub(super) fn order(&self) -> impl Ord + use<'_> {
        (Reverse(self.octets), !self.allow, &self.pattern, self.is_anchored, self.folds_query)
    }

    /// The range of its line in the text.
    pub(super) fn line_range(&self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    /// Its heap memory; each allocation costs 16 bytes in addition.
    pub(super) fn allocated_bytes(&self) -> usize {
        self.pattern.len() + 16
    }

    /// The parts between stars must occur in this order. Taking the first occurrence of each leaves
    /// the most text for the rest, so no backtracking is needed.
    pub(super) fn matches(&self, path: &RobotsPath) -> bool {
        let path = path.form(self.folds_query);
        let mut pieces = self.pattern.split(|&byte| byte == b'*');
        let first = pieces.next().expect("split yields at least one piece");
        let Some(mut rest) = path.strip_prefix(first) else {
            return false;
        };
        let Some(last) = pieces.next_back() else {
            return !self.is_anchored || rest.is_empty();
        };
        for piece in pieces {
            let Some(at) = memmem::find(rest, piece) else {
                return false;
            };
            rest = &rest[at + piece.len()..];
        }
        if self.is_anchored { rest.ends_with(last) } else { memmem::find(rest, last).is_some() }
    }
}

impl RobotsPath {
    pub(super) fn new(text: &str) -> Self {
        let text = text.as_bytes();
        let form = |folded| {
            let mut form = Vec::with_capacity(text.len());
            normalise(text, StarMeaning::Encoded, folded, &mut form);
            form
        };
        Self { exact: form(false), folded: folds(text).then(|| form(true)) }
    }

    fn form(&self, folded: bool) -> &[u8] {
        self.folded.as_ref().filter(|_| folded).unwrap_or(&self.exact)
    }
}

/// Whether the query contains a character for which escapes matter.
fn folds(text: &[u8]) -> bool {
    let Some(query) = memchr::memchr(b'?', text) else { return false };
    text[query + 1..].iter().any(|byte| b"/?%".contains(byte))
}

/// The meaning of `*` in the text that is normalised.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum StarMeaning {
    /// In a pattern: any sequence of characters.
    Wildcard,
    /// In a path: a literal star, written `%2A` as a pattern must write it.
    Encoded,
}

/// Writes equivalent texts alike, so that octets can be compared (RFC 9309 section 2.2.2). Escapes
/// of unreserved characters are undone, and all other characters are escaped in upper case: an
/// escaped colon equals a colon. There are two exceptions: a slash separates and an escaped slash
/// does not, and the first question mark begins the query. In the query (`folds_query`) both have
/// no meaning, and are unescaped.
///
/// Returns the number of octets. A character that was escaped only for the comparison counts as
/// written.
pub(super) fn normalise(text: &[u8], star: StarMeaning, folded: bool, out: &mut Vec<u8>) -> u32 {
    let (mut rest, mut in_query, mut octets) = (text, false, 0);
    while let [byte, tail @ ..] = rest {
        let here = rest;
        rest = tail;
        octets += 1;
        match *byte {
            b'%' => {
                let Some(value) = escaped_octet(here) else {
                    out.push(b'%');
                    continue;
                };
                rest = &tail[2..];
                if is_unreserved(value) || folded && in_query && matches!(value, b'/' | b'?') {
                    out.push(value);
                } else {
                    octets += 2;
                    out.extend_from_slice(percent_encode_byte(value).as_bytes());
                }
            }
            b'*' if star == StarMeaning::Wildcard => out.push(b'*'),
            byte if is_unreserved(byte) || matches!(byte, b'/' | b'?') => {
                in_query |= byte == b'?';
                out.push(byte);
            }
            byte => {
                octets += if byte.is_ascii() { 0 } else { 2 };
                out.extend_from_slice(percent_encode_byte(byte).as_bytes());
            }
        }
    }
    octets
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}
