//! Patterns of text that does not count when two versions of a page are compared.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use memchr::memmem;

use super::tag::is_space;
use crate::text::fold_whitespace;

/// Bytes of a pattern.
const PATTERN_BYTES_MAX: usize = 1_000;
/// Bytes that one `*` matches: a missing end must not swallow the rest of the page.
const WILDCARD_BYTES_MAX: usize = 1_000;

/// A pattern: text with white space folded, in which `*` matches any short text; at the end, the
/// rest of the word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IgnoredText {
    /// The texts between the `*`; none is empty.
    parts: Vec<Box<str>>,
    ends_with_wildcard: bool,
}

/// Patterns, in the order in which they are applied.
pub type IgnoredTexts = Arc<[IgnoredText]>;

/// The text is not a pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected text such as 'Generated in * ms' of at most {PATTERN_BYTES_MAX} bytes, with text \
     before each *"
)]
pub struct IgnoredTextError;

impl FromStr for IgnoredText {
    type Err = IgnoredTextError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.len() > PATTERN_BYTES_MAX {
            return Err(IgnoredTextError);
        }
        let folded = fold_whitespace(text, PATTERN_BYTES_MAX);
        let ends_with_wildcard = folded.ends_with('*');
        let parts = folded.strip_suffix('*').unwrap_or(&folded).split('*');
        let parts: Vec<Box<str>> = parts.map(Into::into).collect();
        if parts.iter().any(|part| part.trim().is_empty()) {
            return Err(IgnoredTextError);
        }
        Ok(Self { parts, ends_with_wildcard })
    }
}

impl fmt::Display for IgnoredText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.parts.join("*"), if self.ends_with_wildcard { "*" } else { "" })
    }
}

impl IgnoredText {
    /// The text without what the pattern matches. Each part is searched from left to right once.
    pub(super) fn remove_from(&self, text: &[u8]) -> Vec<u8> {
        let mut kept = Vec::with_capacity(text.len());
        let mut found: Vec<Option<usize>> = vec![None; self.parts.len()];
        let mut find = |part: usize, from: usize| {
            if found[part].is_none_or(|at| at < from) {
                let at = memmem::find(&text[from..], self.parts[part].as_bytes());
                // A part that does not occur any more is beyond the end.
                found[part] = Some(at.map_or(usize::MAX, |at| from + at));
            }
            found[part].filter(|at| *at < text.len())
        };
        let mut from = 0;
        while let Some(start) = find(0, from) {
            let mut end = Some(start + self.parts[0].len());
            for part in 1..self.parts.len() {
                end = end.and_then(|before| {
                    let at = find(part, before).filter(|at| at - before <= WILDCARD_BYTES_MAX)?;
                    Some(at + self.parts[part].len())
                });
            }
            let Some(mut end) = end else {
                kept.extend_from_slice(&text[from..=start]);
                from = start + 1;
                continue;
            };
            if self.ends_with_wildcard {
                let rest = &text[end..];
                let is_end = |byte: &u8| is_space(*byte) || *byte == 0;
                end += rest.iter().position(is_end).unwrap_or(rest.len()).min(WILDCARD_BYTES_MAX);
            }
            kept.extend_from_slice(&text[from..start]);
            from = end;
        }
        kept.extend_from_slice(&text[from..]);
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_pattern_matches_is_removed() {
        let far = format!("a{}b", "x".repeat(WILDCARD_BYTES_MAX + 1));
        for (pattern, text, left) in [
            ("in * ms", "made in 12 ms, sent in 5 ms.", "made , sent ."),
            ("Visitors: *", "Visitors: 17 today, Visitors: 18", " today, "),
            ("a*b*c", "1abc2axbxc3ab4", "123ab4"),
            ("a*b", "aaab a", " a"),
            ("now", "now or never", " or never"),
            ("a  b", "xa by", "xy"),
            ("?sid=*", "\0/x?sid=12\0y", "\0/x\0y"),
            ("a*b", far.as_str(), far.as_str()),
            ("a*b", "", ""),
        ] {
            let pattern: IgnoredText = pattern.parse().unwrap();
            let found = pattern.remove_from(text.as_bytes());
            assert_eq!(String::from_utf8(found).unwrap(), left, "{pattern}: {text:.20}");
        }
    }

    #[test]
    fn a_pattern_has_text_before_each_wildcard() {
        for pattern in ["", "*", "* ms", "a**b", "a* *b", "  ", &"x".repeat(PATTERN_BYTES_MAX + 1)]
        {
            assert_eq!(pattern.parse::<IgnoredText>(), Err(IgnoredTextError), "{pattern:.20}");
        }
    }
}
