//! Splits a robots.txt into its valid lines.

use std::ops::Range;

/// The key of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineKey {
    UserAgent,
    Allow,
    Disallow,
    CrawlDelay,
    Sitemap,
}

/// `key: value # comment`.
#[derive(Debug)]
pub(super) struct RobotsLine<'a> {
    pub(super) key: LineKey,
    pub(super) value: &'a [u8],
    /// The range of key and value in the text.
    pub(super) range: Range<usize>,
}

const BYTE_ORDER_MARK: [u8; 3] = *b"\xef\xbb\xbf";

/// The spellings of keys, misspelt ones included, also with a space for the hyphen.
const KEYS: [(&str, LineKey); 16] = [
    ("disallow", LineKey::Disallow),
    ("allow", LineKey::Allow),
    ("user-agent", LineKey::UserAgent),
    ("useragent", LineKey::UserAgent),
    ("user agent", LineKey::UserAgent),
    ("crawl-delay", LineKey::CrawlDelay),
    ("crawldelay", LineKey::CrawlDelay),
    ("crawl delay", LineKey::CrawlDelay),
    ("sitemap", LineKey::Sitemap),
    ("site-map", LineKey::Sitemap),
    ("site map", LineKey::Sitemap),
    ("disalow", LineKey::Disallow),
    ("dissallow", LineKey::Disallow),
    ("dissalow", LineKey::Disallow),
    ("disallaw", LineKey::Disallow),
    ("diasllow", LineKey::Disallow),
];

/// The valid lines of a text, which may begin with a whole or partial byte order mark. A single CR
/// ends a line, too.
pub(super) fn lines(text: &[u8]) -> impl Iterator<Item = RobotsLine<'_>> {
    let mark = text.iter().zip(BYTE_ORDER_MARK).take_while(|(byte, mark)| *byte == mark).count();
    let mut next = mark;
    text[mark..].split(|&byte| matches!(byte, b'\n' | b'\r')).filter_map(move |line| {
        let start = next;
        next += line.len() + 1;
        RobotsLine::read(line, start)
    })
}

impl<'a> RobotsLine<'a> {
    fn read(line: &'a [u8], start: usize) -> Option<Self> {
        let line = &line[..memchr::memchr(b'#', line).unwrap_or(line.len())];
        let leading = line.iter().take_while(|&&byte| is_blank(byte)).count();
        let content = trim(line);
        let (key, value) = with_colon(content).or_else(|| without_colon(content))?;
        let start = start + leading;
        Some(Self { key, value, range: start..start + content.len() })
    }
}

fn with_colon(content: &[u8]) -> Option<(LineKey, &[u8])> {
    let colon = memchr::memchr(b':', content)?;
    Some((LineKey::of(&content[..colon])?, trim(&content[colon + 1..])))
}

/// If the colon is missing, a value of one word is still distinguishable from prose.
fn without_colon(content: &[u8]) -> Option<(LineKey, &[u8])> {
    let space = content.iter().rposition(|&byte| is_blank(byte))?;
    Some((LineKey::of(&content[..space])?, &content[space + 1..]))
}

impl LineKey {
    fn of(text: &[u8]) -> Option<Self> {
        let text = trim(text);
        let found = KEYS.iter().find(|(key, _)| key.as_bytes().eq_ignore_ascii_case(text));
        found.map(|(_, key)| *key)
    }
}

/// Some servers pad their files with NUL.
fn is_blank(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0
}

fn trim(text: &[u8]) -> &[u8] {
    let Some(start) = text.iter().position(|&byte| !is_blank(byte)) else { return &[] };
    let end = text.iter().rposition(|&byte| !is_blank(byte)).map_or(start, |last| last + 1);
    &text[start..end]
}
