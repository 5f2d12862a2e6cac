//! robots.txt by RFC 9309: a parser and a matcher without IO.
//!
//! What the server answered decides first ([`Availability`]); a file that could be read is
//! parsed for one product token into the [`Rules`] that apply to us. Matching costs at most one
//! pass over the path per rule, whatever the rules look like: no backtracking, no regex.
//!
//! Beyond the RFC, as large crawlers do: CR as a line end, NUL as a blank, a part of a byte order
//! mark, a missing colon, misspelt keys, a version after the product token, `User-agent: * anything`,
//! `Crawl-delay`, and `Sitemap` wherever it stands. Not what would allow more than the RFC does: that
//! `Allow: /dir/index.html` is meant for `/dir/`, too, as some read it.

mod rule;
mod text;

#[cfg(test)]
mod oracle_tests;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::time::Duration;

use tidings_protocol::CanonicalUrl;

use self::rule::{Path, Rule};
use self::text::{Key, Line, lines};
use crate::config::{
    CRAWL_DELAY_MAX, ROBOTS_BYTES_MAX, ROBOTS_HOPS_MAX, ROBOTS_RULE_SHOWN_BYTES_MAX,
    ROBOTS_SITEMAPS_MAX,
};
use crate::fetch::Fetched;
use crate::outcome::Failure;

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
    /// By the final status, a redirect being one that was not followed. 429 says "later", not "no
    /// rules", and what is no status of HTTP says nothing: both are on the careful side.
    pub fn of_status(status: u16) -> Self {
        match status {
            // A part, which nobody has asked for, may lack what forbids.
            206 => Self::Unreachable,
            200..=299 => Self::Readable,
            300..=428 | 430..=499 => Self::Unavailable,
            _ => Self::Unreachable,
        }
    }
}

/// The rules of one site for one product token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// In the order of [`Rule::order`], so the first that matches decides.
    rules: Vec<Rule>,
    crawl_delay: Option<Duration>,
}

/// What the rules say of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether it may be asked for.
    pub allowed: bool,
    /// Where the line that decided is in the text that was parsed; none if no rule is about the path.
    pub line: Option<Range<usize>>,
}

/// The part of a `User-Agent` header that robots.txt is matched with: `tidings` of
/// `tidings/0.1 (+https://..)`, and of `Mozilla/5.0 (compatible; tidings/0.1)`. A token alone is
/// itself. Letters beyond ASCII count, though no token should have them.
pub fn product_token(agent: &str) -> &str {
    fn token(text: &str) -> &str {
        &text[..token_length(text.as_bytes())]
    }
    let first = token(agent);
    let second = agent.split_once("(compatible;").map(|(_, rest)| token(rest.trim_start()));
    match second {
        Some(second) if first.eq_ignore_ascii_case("mozilla") && !second.is_empty() => second,
        _ => first,
    }
}

fn token_length(text: &[u8]) -> usize {
    let is_part =
        |byte: &u8| byte.is_ascii_alphanumeric() || b"-_".contains(byte) || !byte.is_ascii();
    text.iter().take_while(|byte| is_part(byte)).count()
}

impl Rules {
    /// Reads the first 500 KiB of a file. Never fails: what is no rule is skipped.
    ///
    /// All groups that name `token` (compared without case) count together; if there is none,
    /// all groups for `*` do.
    pub fn parse(text: &[u8], token: &str) -> Self {
        Self::read(beginning(text), token)
    }

    /// Reads what [`Rules::excerpt`] gave.
    pub fn of_excerpt(text: &[u8]) -> Self {
        Self::read(text, "")
    }

    fn read(text: &[u8], token: &str) -> Self {
        let mut reader = Reader { token: token.as_bytes(), ..Reader::default() };
        lines(text).for_each(|line| reader.take(&line));
        let Said { mut rules, crawl_delay, .. } =
            if reader.ours.named { reader.ours } else { reader.everybodys };
        rules.sort_by(|one, other| one.order().cmp(&other.order()));
        rules.dedup_by(|later, earlier| later.order() == earlier.order());
        rules.shrink_to_fit();
        Self { rules, crawl_delay }
    }

    /// Whether a path with its query, as it stands in a URL, may be asked for.
    /// `/robots.txt` always may.
    pub fn allows(&self, path_and_query: &str) -> bool {
        self.decide(path_and_query).allowed
    }

    /// The same, with the line that says so.
    pub fn decide(&self, path_and_query: &str) -> Decision {
        if path_and_query == "/robots.txt" || self.rules.is_empty() {
            return Decision { allowed: true, line: None };
        }
        let path = Path::new(path_and_query);
        let rule = self.rules.iter().find(|rule| rule.matches(&path));
        Decision { allowed: rule.is_none_or(|rule| rule.allow), line: rule.map(Rule::at) }
    }

    /// The `Crawl-delay` for us: the longest where there are several, at most a day. It belongs to
    /// the `User-agent` lines right before it.
    pub fn crawl_delay(&self) -> Option<Duration> {
        self.crawl_delay
    }

    /// A robots.txt that says the same to us as `text`, which these rules were parsed from, and
    /// nothing else; [`Rules::of_excerpt`] makes these rules of it again.
    pub fn excerpt(&self, text: &[u8]) -> Vec<u8> {
        let mut excerpt = b"User-agent: *\n".to_vec();
        for rule in &self.rules {
            excerpt.extend_from_slice(&text[rule.at()]);
            excerpt.push(b'\n');
        }
        if let Some(delay) = self.crawl_delay {
            excerpt.extend(format!("Crawl-delay: {}\n", delay.as_secs_f64()).into_bytes());
        }
        excerpt
    }

    /// What they take in memory, roughly.
    pub fn memory_bytes(&self) -> usize {
        let patterns = self.rules.iter().map(Rule::allocated_bytes).sum::<usize>();
        size_of::<Self>() + self.rules.capacity() * size_of::<Rule>() + patterns
    }
}

/// What the answer to a request for robots.txt means (RFC 9309 section 2.3.1).
#[derive(Debug)]
pub enum Answer<'a> {
    /// It can be read; this is its beginning.
    Text(&'a [u8]),
    /// There is none for us, so everything is allowed.
    Nothing,
    /// It is said to be elsewhere.
    Elsewhere(CanonicalUrl<'static>),
    /// Nobody knows, so nothing is allowed. A file that broke off is none: what is missing may be what
    /// forbids.
    Unknown(Failure),
}

impl<'a> Answer<'a> {
    /// Of a request for `asked`, the `hops`th redirect of a robots.txt.
    pub fn of(fetched: &'a Fetched, asked: &CanonicalUrl, hops: u8) -> Self {
        if let Some(failure) = &fetched.failure {
            return Self::Unknown(failure.clone());
        }
        let status = fetched.status.unwrap_or_default();
        if (300..400).contains(&status)
            && hops < ROBOTS_HOPS_MAX
            && let Some(location) = &fetched.location
            && let Ok(target) = asked.join(location)
        {
            return Self::Elsewhere(target);
        }
        match Availability::of_status(status) {
            Availability::Readable => Self::Text(&fetched.text),
            Availability::Unavailable => Self::Nothing,
            Availability::Unreachable => Self::Unknown(Failure::of_status(status)),
        }
    }
}

/// A line of a robots.txt as it is written, for people: cut if it is long.
pub fn shown(text: &[u8], line: Range<usize>) -> String {
    let mut shown = String::from_utf8_lossy(&text[line]).into_owned();
    shown.truncate(shown.floor_char_boundary(ROBOTS_RULE_SHOWN_BYTES_MAX));
    shown
}

/// The sitemaps that a robots.txt names, for whoever reads it: absolute ones, each once, the first of
/// them.
pub fn sitemaps(text: &[u8]) -> Vec<CanonicalUrl<'static>> {
    let mut sitemaps = Vec::new();
    for line in lines(beginning(text)).filter(|line| line.key == Key::Sitemap) {
        if sitemaps.len() == ROBOTS_SITEMAPS_MAX {
            break;
        }
        let url = std::str::from_utf8(line.value).ok();
        let url = url.and_then(|url| CanonicalUrl::parse(url).ok()).map(CanonicalUrl::into_owned);
        sitemaps.extend(url.filter(|url| !sitemaps.contains(url)));
    }
    sitemaps
}

/// What is read of a long file: half a line could forbid much more than the whole one.
fn beginning(text: &[u8]) -> &[u8] {
    let Some(text) = text.get(..ROBOTS_BYTES_MAX) else { return text };
    let end = text.iter().rposition(|&byte| matches!(byte, b'\n' | b'\r'));
    &text[..end.unwrap_or_default()]
}

/// Whom a line is for.
#[derive(Clone, Copy, Default)]
struct Addressed {
    us: bool,
    everybody: bool,
}

/// What the groups of one addressee say together.
#[derive(Default)]
struct Said {
    named: bool,
    rules: Vec<Rule>,
    crawl_delay: Option<Duration>,
}

#[derive(Default)]
struct Reader<'t> {
    token: &'t [u8],
    /// By the `User-agent` lines of this group. A rule is for these, and what is no rule ends nothing.
    group: Addressed,
    /// After the first rule, the next `User-agent` line begins another group.
    group_has_rules: bool,
    /// By the `User-agent` lines of this group since its last `Crawl-delay`.
    delayed: Addressed,
    delayed_enough: bool,
    ours: Said,
    everybodys: Said,
}

impl Reader<'_> {
    fn take(&mut self, line: &Line) {
        match line.key {
            Key::UserAgent => self.address(line.value),
            Key::Allow | Key::Disallow => {
                self.group_has_rules = true;
                if let Some(said) = self.said_to(self.group) {
                    said.rules.extend(Rule::new(line));
                }
            }
            Key::CrawlDelay => {
                let Some(delay) = read_delay(line.value) else { return };
                self.delayed_enough = true;
                if let Some(said) = self.said_to(self.delayed) {
                    said.crawl_delay = said.crawl_delay.max(Some(delay));
                }
            }
            // It is for everybody, and no part of a group.
            Key::Sitemap => {}
        }
    }

    fn address(&mut self, value: &[u8]) {
        if std::mem::take(&mut self.group_has_rules) {
            self.group = Addressed::default();
            self.delayed_enough = true;
        }
        if std::mem::take(&mut self.delayed_enough) {
            self.delayed = Addressed::default();
        }
        let token = &value[..token_length(value)];
        let us = !token.is_empty() && token.eq_ignore_ascii_case(self.token);
        let everybody = matches!(value, [b'*'] | [b'*', b' ' | b'\t', ..]);
        for addressed in [&mut self.group, &mut self.delayed] {
            addressed.us |= us;
            addressed.everybody |= everybody;
        }
        self.ours.named |= us;
    }

    /// What is said to everybody matters only as long as nothing is said to us.
    fn said_to(&mut self, addressed: Addressed) -> Option<&mut Said> {
        if addressed.us {
            Some(&mut self.ours)
        } else if addressed.everybody && !self.ours.named {
            Some(&mut self.everybodys)
        } else {
            None
        }
    }
}

/// Seconds, also with a fraction.
fn read_delay(value: &[u8]) -> Option<Duration> {
    let seconds: f64 = std::str::from_utf8(value).ok()?.parse().ok()?;
    if !seconds.is_finite() || seconds < 0.0 {
        return None;
    }
    Some(Duration::from_secs_f64(seconds.min(CRAWL_DELAY_MAX.as_secs_f64())))
}
