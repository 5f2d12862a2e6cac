//! Selects which file names are published: those that match a pattern, except hidden and unfinished
//! files.

/// Suffixes of backup files and of unfinished files.
const UNFINISHED_SUFFIXES: [&[u8]; 6] =
    [b"~", b".tmp", b".part", b".partial", b".filepart", b".crdownload"];

/// Why a text is not a pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GlobError {
    /// It is empty.
    #[error("a pattern cannot be empty")]
    Empty,
    /// Patterns match file names, not paths.
    #[error("a pattern matches file names, so it cannot contain /")]
    Slash,
    /// A `[` without its `]`.
    #[error("the pattern has a [ without a ]")]
    Unclosed,
}

/// A shell pattern for names: `*` matches anything, `?` one character, `[a-z]` one of these and
/// `[!a-z]` one of all others. `[*]`, `[?]` and `[[]` match these characters themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GlobPattern(Vec<GlobPart>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum GlobPart {
    Star,
    AnyChar,
    Class { ranges: Vec<(char, char)>, others: bool },
    Char(char),
}

impl std::str::FromStr for GlobPattern {
    type Err = GlobError;

    fn from_str(text: &str) -> Result<Self, GlobError> {
        let mut parts = Vec::new();
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            parts.push(match c {
                '/' => return Err(GlobError::Slash),
                '*' => GlobPart::Star,
                '?' => GlobPart::AnyChar,
                '[' => {
                    let others = chars.next_if_eq(&'!').is_some();
                    let mut ranges = Vec::new();
                    loop {
                        let from = chars.next().ok_or(GlobError::Unclosed)?;
                        if from == ']' && !ranges.is_empty() {
                            break;
                        }
                        let mut to = from;
                        if chars.peek() == Some(&'-') {
                            chars.next();
                            match chars.next_if(|c| *c != ']') {
                                Some(c) => to = c,
                                // A dash at the end stands for itself.
                                None => ranges.push(('-', '-')),
                            }
                        }
                        ranges.push((from, to));
                    }
                    GlobPart::Class { ranges, others }
                }
                c => GlobPart::Char(c),
            });
        }
        if parts.is_empty() { Err(GlobError::Empty) } else { Ok(Self(parts)) }
    }
}

impl GlobPattern {
    /// Whether the whole name matches. ASCII letters match in either case. A byte that is not UTF-8
    /// counts as U+FFFD. Takes at most as many steps as the lengths of pattern and name multiplied.
    pub fn matches(&self, name: &[u8]) -> bool {
        let mut chars = Vec::with_capacity(name.len());
        for chunk in name.utf8_chunks() {
            chars.extend(chunk.valid().chars());
            chars.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
        }
        let (mut at, mut part) = (0, 0);
        // After the last `*`: the part to continue with, and the position in the name that was
        // tried last.
        let mut retry = None;
        while at < chars.len() {
            match self.0.get(part) {
                Some(GlobPart::Star) => {
                    part += 1;
                    retry = Some((part, at));
                }
                Some(one) if one.matches(chars[at]) => (part, at) = (part + 1, at + 1),
                _ => {
                    let Some((behind, from)) = &mut retry else { return false };
                    *from += 1;
                    (part, at) = (*behind, *from);
                }
            }
        }
        self.0[part..].iter().all(|part| *part == GlobPart::Star)
    }
}

impl GlobPart {
    fn matches(&self, c: char) -> bool {
        match self {
            Self::Star => false,
            Self::AnyChar => true,
            Self::Char(one) => one.eq_ignore_ascii_case(&c),
            Self::Class { ranges, others } => {
                let forms = [c, c.to_ascii_lowercase(), c.to_ascii_uppercase()];
                let holds = |(from, to): &(char, char)| {
                    forms.iter().any(|form| (*from..=*to).contains(form))
                };
                ranges.iter().any(holds) != *others
            }
        }
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
        for text in ["[", "a[b", "[]", "[!]"] {
            assert_eq!(text.parse::<GlobPattern>(), Err(GlobError::Unclosed), "{text}");
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
