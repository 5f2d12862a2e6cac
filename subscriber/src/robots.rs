//! robots.txt by RFC 9309: a parser and a matcher without IO.
//!
//! What the server answered decides first ([`Availability`]); a file that could be read is
//! parsed for one product token into the [`Rules`] that apply to us. Matching costs at most one
//! pass over the path per rule, whatever the rules look like: no backtracking, no regex.
//!
//! Beyond the RFC, as large crawlers do: CR as a line end, a missing colon, misspelt `disallow`,
//! a version after the product token, `User-agent: * anything`, and `Crawl-delay`.

use std::time::Duration;

use memchr::memmem;

use crate::config::{CRAWL_DELAY_MAX, ROBOTS_BYTES_MAX};

/// What the status of a robots.txt answer means (RFC 9309 section 2.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Availability {
    /// It can be read: its rules count.
    Readable,
    /// There is none for us: everything is allowed.
    Unavailable,
    /// Nobody knows: nothing is allowed until it can be read.
    Unreachable,
}

impl Availability {
    /// By the final status. 429 says "later", not "no rules", so it is on the careful side.
    pub fn of_status(status: u16) -> Self {
        match status {
            200..=299 => Self::Readable,
            429 | 500.. => Self::Unreachable,
            _ => Self::Unavailable,
        }
    }
}

/// The rules of one site for one product token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Longest pattern first, `allow` before `disallow` where lengths are equal, so the first
    /// that matches decides.
    rules: Vec<Rule>,
    crawl_delay: Option<Duration>,
}

/// One line of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    /// Normalised; without the final `$`.
    pattern: Box<[u8]>,
    to_the_end: bool,
    allow: bool,
}

/// Lines that follow one or more `User-agent` lines.
#[derive(Default)]
struct Group {
    names_us: bool,
    names_all: bool,
    /// After the first rule, the next `User-agent` line begins another group.
    has_rules: bool,
    rules: Vec<Rule>,
    crawl_delay: Option<Duration>,
}

enum Key {
    UserAgent,
    Allow,
    Disallow,
    CrawlDelay,
}

/// The part of a `User-Agent` header that robots.txt is matched with: `tidings` of
/// `tidings/0.1 (+https://..)`.
pub fn product_token(agent: &str) -> &str {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let end = agent.bytes().position(|byte| !is_part(byte)).unwrap_or(agent.len());
    &agent[..end]
}

impl Rules {
    /// Reads the first 500 KiB of a file. Never fails: what is no rule is skipped.
    ///
    /// All groups that name `token` (compared without case) count together; if there is none,
    /// all groups for `*` do.
    pub fn parse(text: &[u8], token: &str) -> Self {
        let text = &text[..text.len().min(ROBOTS_BYTES_MAX)];
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        let groups = read_groups(text, token);
        let named = groups.iter().any(|group| group.names_us);
        let mut merged = Self::default();
        for group in groups {
            if if named { group.names_us } else { group.names_all } {
                merged.rules.extend(group.rules);
                merged.crawl_delay = merged.crawl_delay.max(group.crawl_delay);
            }
        }
        merged.rules.sort_by_key(|rule| (std::cmp::Reverse(rule.octets()), !rule.allow));
        merged
    }

    /// Whether a path with its query, as it stands in a URL, may be asked for.
    /// `/robots.txt` always may.
    pub fn allows(&self, path_and_query: &str) -> bool {
        if path_and_query == "/robots.txt" || self.rules.is_empty() {
            return true;
        }
        let mut path = Vec::with_capacity(path_and_query.len());
        normalise(path_and_query.as_bytes(), Special::Encoded, &mut path);
        self.rules.iter().find(|rule| rule.matches(&path)).is_none_or(|rule| rule.allow)
    }

    /// The `Crawl-delay` for us: the longest where there are several, at most a day.
    pub fn crawl_delay(&self) -> Option<Duration> {
        self.crawl_delay
    }
}

impl Rules {
    /// What they take in memory, roughly: an allocation costs 16 bytes beside its content.
    pub fn memory_bytes(&self) -> usize {
        let patterns = self.rules.iter().map(|rule| rule.pattern.len() + 16).sum::<usize>();
        size_of::<Self>() + self.rules.capacity() * size_of::<Rule>() + patterns
    }
}

impl Rule {
    /// `None` for an empty pattern, which restricts nothing.
    fn new(value: &[u8], allow: bool) -> Option<Self> {
        if value.is_empty() {
            return None;
        }
        let (value, to_the_end) = match value.strip_suffix(b"$") {
            Some(value) => (value, true),
            None => (value, false),
        };
        let mut pattern = Vec::with_capacity(value.len());
        normalise(value, Special::Wildcard, &mut pattern);
        Some(Self { pattern: pattern.into(), to_the_end, allow })
    }

    /// The most specific rule is the one with the most octets, `$` included.
    fn octets(&self) -> usize {
        self.pattern.len() + usize::from(self.to_the_end)
    }

    /// The pieces between stars must occur in this order. Taking each at its first occurrence
    /// leaves the most room for the rest, so no choice is ever taken back.
    fn matches(&self, path: &[u8]) -> bool {
        let mut pieces = self.pattern.split(|&byte| byte == b'*');
        let first = pieces.next().expect("split yields at least one piece");
        let Some(mut rest) = path.strip_prefix(first) else {
            return false;
        };
        let Some(last) = pieces.next_back() else {
            return !self.to_the_end || rest.is_empty();
        };
        for piece in pieces {
            let Some(at) = memmem::find(rest, piece) else {
                return false;
            };
            rest = &rest[at + piece.len()..];
        }
        if self.to_the_end { rest.ends_with(last) } else { memmem::find(rest, last).is_some() }
    }
}

fn read_groups(text: &[u8], token: &str) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let lines = text.split(|&byte| matches!(byte, b'\n' | b'\r'));
    for (key, value) in lines.filter_map(read_line) {
        if matches!(key, Key::UserAgent) && groups.last().is_none_or(|group| group.has_rules) {
            groups.push(Group::default());
        }
        // Lines before the first `User-agent` are for nobody.
        let Some(group) = groups.last_mut() else {
            continue;
        };
        match key {
            Key::UserAgent => {
                group.names_all |= matches!(value, [b'*'] | [b'*', b' ' | b'\t', ..]);
                let named = std::str::from_utf8(value).map_or("", product_token);
                group.names_us |= !named.is_empty() && named.eq_ignore_ascii_case(token);
            }
            Key::Allow | Key::Disallow => {
                group.has_rules = true;
                group.rules.extend(Rule::new(value, matches!(key, Key::Allow)));
            }
            // No rule: a `User-agent` line after it still belongs to the same group.
            Key::CrawlDelay => group.crawl_delay = group.crawl_delay.max(read_delay(value)),
        }
    }
    groups
}

/// `key: value # comment`, or `key value` where somebody forgot the colon.
fn read_line(line: &[u8]) -> Option<(Key, &[u8])> {
    let line = line.split(|&byte| byte == b'#').next().unwrap_or_default().trim_ascii();
    let (key, value) = if let Some(colon) = memchr::memchr(b':', line) {
        (&line[..colon], &line[colon + 1..])
    } else {
        let space = line.iter().position(u8::is_ascii_whitespace)?;
        let value = line[space..].trim_ascii();
        if value.iter().any(u8::is_ascii_whitespace) {
            return None;
        }
        (&line[..space], value)
    };
    let key = match key.trim_ascii().to_ascii_lowercase().as_slice() {
        b"user-agent" | b"useragent" | b"user agent" => Key::UserAgent,
        b"allow" => Key::Allow,
        b"disallow" | b"disalow" | b"dissallow" | b"dissalow" | b"disallaw" | b"diasllow" => {
            Key::Disallow
        }
        b"crawl-delay" | b"crawldelay" => Key::CrawlDelay,
        _ => return None,
    };
    Some((key, value.trim_ascii()))
}

/// Seconds, also with a fraction.
fn read_delay(value: &[u8]) -> Option<Duration> {
    let seconds: f64 = std::str::from_utf8(value).ok()?.parse().ok()?;
    if !seconds.is_finite() || seconds < 0.0 {
        return None;
    }
    Some(Duration::from_secs_f64(seconds.min(CRAWL_DELAY_MAX.as_secs_f64())))
}

/// What `*` means in the text that is normalised.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Special {
    /// In a pattern: any sequence of characters.
    Wildcard,
    /// In a path: itself, written `%2A` as a pattern has to write it.
    Encoded,
}

/// One spelling for one resource, so that octets can be compared (RFC 9309 section 2.2.2):
/// escapes of unreserved characters are undone, other escapes are in upper case, everything that
/// may not stand in a URL is escaped, and so are `$` and, in a path, `*`.
fn normalise(text: &[u8], star: Special, out: &mut Vec<u8>) {
    let hex = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let mut rest = text;
    while let [byte, tail @ ..] = rest {
        rest = tail;
        match *byte {
            b'%' => match tail {
                [high, low, tail @ ..] if hex(*high).is_some() && hex(*low).is_some() => {
                    let value = hex(*high).unwrap_or(0) << 4 | hex(*low).unwrap_or(0);
                    if value.is_ascii_alphanumeric() || b"-._~".contains(&value) {
                        out.push(value);
                    } else {
                        escape(value, out);
                    }
                    rest = tail;
                }
                _ => out.push(b'%'),
            },
            b'*' if star == Special::Wildcard => out.push(b'*'),
            byte if byte.is_ascii_alphanumeric() || b"-._~:/?#[]@!&'()+,;=".contains(&byte) => {
                out.push(byte);
            }
            byte => escape(byte, out),
        }
    }
}

fn escape(byte: u8, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    out.extend([b'%', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
}

#[cfg(test)]
#[path = "robots_tests.rs"]
mod tests;
