//! Selects which file names are published: those that match a pattern, except hidden and unfinished
//! files.

use std::str::FromStr;

use glob::{MatchOptions, Pattern};

/// Suffixes of backup files and of unfinished files.
const UNFINISHED_SUFFIXES: [&[u8]; 6] =
    [b"~", b".tmp", b".part", b".partial", b".filepart", b".crdownload"];

/// ASCII letters match in either case.
const MATCH_OPTIONS: MatchOptions = MatchOptions {
    case_sensitive: false,
    require_literal_separator: false,
    require_literal_leading_dot: false,
};

/// Why a text is not a pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GlobError {
    /// It is empty.
    #[error("a pattern cannot be empty")]
    Empty,
    /// Patterns match file names, not paths.
    #[error("a pattern matches file names, so it cannot contain /")]
    Slash,
    /// It is not of the form that patterns have.
    #[error("invalid pattern: {0}")]
    Invalid(&'static str),
}

/// A shell pattern for names: `*` matches anything, `?` one character, `[a-z]` one of these and
/// `[!a-z]` one of all others. `[*]`, `[?]` and `[[]` match these characters themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GlobPattern(Pattern);

impl FromStr for GlobPattern {
    type Err = GlobError;

    fn from_str(text: &str) -> Result<Self, GlobError> {
        match text {
            "" => Err(GlobError::Empty),
            _ if text.contains('/') => Err(GlobError::Slash),
            _ => Pattern::new(text).map(Self).map_err(|error| GlobError::Invalid(error.msg)),
        }
    }
}

impl GlobPattern {
    /// Whether the whole name matches. Bytes that are not UTF-8 count as U+FFFD.
    pub fn matches(&self, name: &[u8]) -> bool {
        self.0.matches_with(&String::from_utf8_lossy(name), MATCH_OPTIONS)
    }
}

/// Selects files of a directory by name.
#[derive(Debug, Clone, Default)]
pub struct NameFilter {
    /// A name must match one of these; empty: any name.
    pub patterns: Vec<GlobPattern>,
    /// Also selects hidden and unfinished files.
    pub all: bool,
}

impl NameFilter {
    /// Whether a file with this name is published.
    pub fn matches(&self, name: &[u8]) -> bool {
        if !self.all
            && (is_hidden(name) || UNFINISHED_SUFFIXES.iter().any(|end| name.ends_with(end)))
        {
            return false;
        }
        self.patterns.is_empty() || self.patterns.iter().any(|pattern| pattern.matches(name))
    }

    /// Whether a directory with this name is searched.
    pub fn enters_directory(&self, name: &[u8]) -> bool {
        self.all || !is_hidden(name)
    }
}

fn is_hidden(name: &[u8]) -> bool {
    name.starts_with(b".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_ignore_case() {
        assert!(matches("*.pdf", "Scan.PDF") && matches("*.PDF", "scan.pdf"));
        assert!(matches("[a-z].x", "Q.x") && matches("[A-Z].x", "q.x"));
        assert!(!matches("[!a-z].x", "Q.x") && !matches("*.pdf", "scan.png"));
    }

    fn matches(pattern: &str, name: impl AsRef<[u8]>) -> bool {
        pattern.parse::<GlobPattern>().unwrap().matches(name.as_ref())
    }

    #[test]
    fn patterns_match_as_in_a_shell() {
        for (pattern, name) in [
            ("*", ""),
            ("*.pdf", "a.pdf"),
            ("*.pdf", ".pdf"),
            ("a*b*c", "aXbXbc"),
            ("?.txt", "ö.txt"),
            ("[a-c]x", "bx"),
            ("[!a-c]x", "dx"),
            ("[]]", "]"),
            ("[*]", "*"),
            ("[a-]", "-"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("*.pdf", "a.pdf.part"),
            ("a", "ab"),
            ("?", "ab"),
            ("?", ""),
            ("[a-c]", "d"),
            ("[!a-c]", "a"),
            ("[*]", "a"),
        ] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
        assert!(matches("?x", b"\xffx"));
        assert!(matches("*.pdf", b"\xff\xfe.pdf"));
    }

    #[test]
    fn invalid_patterns_are_rejected() {
        assert_eq!("".parse::<GlobPattern>(), Err(GlobError::Empty));
        assert_eq!("a/*.txt".parse::<GlobPattern>(), Err(GlobError::Slash));
        for text in ["[", "a[b", "[]", "[!]", "a**b"] {
            let error = text.parse::<GlobPattern>().unwrap_err();
            assert!(matches!(error, GlobError::Invalid(_)), "{text}");
        }
    }

    #[test]
    fn many_stars_match_in_short_time() {
        let pattern = format!("{}b", "*a".repeat(50));
        assert!(!matches(&pattern, "a".repeat(255)));
    }

    #[test]
    fn unfinished_files_are_selected_only_with_all() {
        let mut select = NameFilter::default();
        let names: [&[u8]; 5] = [b".a", b"a~", b"a.tmp", b"a.part", b"a.crdownload"];
        assert!(names.iter().all(|name| !select.matches(name)));
        assert!(
            select.matches(b"a") && select.matches(b"tmp") && !select.enters_directory(b".git")
        );
        select.all = true;
        assert!(names.iter().all(|name| select.matches(name)) && select.enters_directory(b".git"));
        select.patterns = vec!["*.pdf".parse().unwrap(), "*.txt".parse().unwrap()];
        assert!(select.matches(b"a.txt") && !select.matches(b"a.html"));
    }
}
