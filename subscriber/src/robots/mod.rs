//! robots.txt as in RFC 9309: a parser and a matcher, without IO.
//!
//! The status of the response decides first ([`Availability`]). A readable file is parsed for one
//! product token into the [`RobotsRules`] that apply to this crawler. Matching takes at most one
//! pass over the path per rule, for any rules: no backtracking, no regex.
//!
//! Like large crawlers, the parser also accepts what the RFC does not: CR as a line end, NUL as
//! white space, a partial byte order mark, a missing colon, misspelt keys, a version after the
//! product token, `User-agent: * anything`, `Crawl-delay`, and `Sitemap` anywhere. It does not
//! extend permissions beyond the RFC: some parsers let `Allow: /dir/index.html` apply to `/dir/`,
//! too.

mod line;
mod rule;

#[cfg(test)]
mod tests;

use std::ops::Range;
use std::time::Duration;

use tidings_egress::failure::Failure;
use tidings_protocol::CanonicalUrl;

use self::line::{LineKey, RobotsLine, lines};
use self::rule::{RobotsPath, Rule};

/// Decoded bytes of a robots.txt that are read; the rest is ignored. RFC 9309 section 2.5 requires
/// at least 500 KiB.
pub(crate) const ROBOTS_BYTES_MAX: usize = 500 * 1024;
/// Redirects followed for one robots.txt; after that it counts as unavailable, so everything is
/// allowed (RFC 9309 section 2.3.1.2).
pub(crate) const ROBOTS_HOPS_MAX: u8 = 5;
/// Sitemaps taken from one robots.txt: sites have few, and a sitemap can list others.
const ROBOTS_SITEMAPS_MAX: usize = 64;
/// Bytes shown of the robots.txt line that decided.
const ROBOTS_RULE_SHOWN_BYTES_MAX: usize = 512;
/// A longer crawl-delay is cut to this: a day, which is also how long the broker keeps a pace.
const CRAWL_DELAY_MAX: Duration = Duration::from_hours(24);

/// What the status of a robots.txt response means (RFC 9309 section 2.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Availability {
    /// The file can be read, and its rules apply.
    Readable,
    /// The site has no file for this crawler, so everything is allowed.
    Unavailable,
    /// The rules are unknown, so nothing is allowed until the file can be read.
    Unreachable,
}

impl Availability {
    /// Decides by the final status; a redirect here is one that was not followed. 429 means
    /// "later", not "no rules", and an invalid status means nothing: both count as unreachable, to
    /// be safe.
    pub fn of_status(status: u16) -> Self {
        match status {
            // The missing part of an unrequested partial response may forbid the URL.
            206 => Self::Unreachable,
            200..=299 => Self::Readable,
            300..=428 | 430..=499 => Self::Unavailable,
            _ => Self::Unreachable,
        }
    }
}

/// The rules of a site for one product token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RobotsRules {
    /// In the order of [`Rule::order`], so that the first match decides.
    rules: Vec<Rule>,
    crawl_delay: Option<Duration>,
}

/// What the rules say about a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RobotsDecision {
    /// Whether the path may be requested.
    pub allowed: bool,
    /// The range of the deciding line in the parsed text; `None` if no rule matches the path.
    pub line: Option<Range<usize>>,
}

/// The part of a `User-Agent` header that robots.txt rules refer to: `tidings` in `tidings/0.1
/// (+https://..)`, and in `Mozilla/5.0 (compatible; tidings/0.1)`. A token alone is returned as it
/// is. Non-ASCII letters belong to the token, though no token should contain them.
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

impl RobotsRules {
    /// Reads the first 500 KiB of a file. Never fails: invalid lines are skipped.
    ///
    /// All groups that name `token`, in any case, apply together. If there is none, all groups for
    /// `*` apply.
    pub fn parse(text: &[u8], token: &str) -> Self {
        Self::read(within_limit(text), token)
    }

    /// Reads the result of [`RobotsRules::excerpt`].
    pub fn of_excerpt(text: &[u8]) -> Self {
        Self::read(text, "")
    }

    fn read(text: &[u8], token: &str) -> Self {
        let mut reader = RobotsParser { token: token.as_bytes(), ..RobotsParser::default() };
        lines(text).for_each(|line| reader.take(&line));
        let GroupRules { mut rules, crawl_delay, .. } =
            if reader.ours.is_named { reader.ours } else { reader.wildcard };
        rules.sort_by(|one, other| one.order().cmp(&other.order()));
        rules.dedup_by(|later, earlier| later.order() == earlier.order());
        rules.shrink_to_fit();
        Self { rules, crawl_delay }
    }

    /// Whether a path with its query, as written in a URL, may be requested. `/robots.txt` is
    /// always allowed.
    pub fn allows(&self, path_and_query: &str) -> bool {
        self.decide(path_and_query).allowed
    }

    /// The decision about a path, with the deciding line.
    pub fn decide(&self, path_and_query: &str) -> RobotsDecision {
        if path_and_query == "/robots.txt" || self.rules.is_empty() {
            return RobotsDecision { allowed: true, line: None };
        }
        let path = RobotsPath::new(path_and_query);
        let rule = self.rules.iter().find(|rule| rule.matches(&path));
        RobotsDecision {
            allowed: rule.is_none_or(|rule| rule.allow),
            line: rule.map(Rule::line_range),
        }
    }

    /// The `Crawl-delay` for this crawler: the longest of several, at most a day. It applies to the
    /// `User-agent` lines directly before it.
    pub fn crawl_delay(&self) -> Option<Duration> {
        self.crawl_delay
    }

    /// A minimal robots.txt with these rules, which were parsed from `text`.
    /// [`RobotsRules::of_excerpt`] reads it back.
    pub fn excerpt(&self, text: &[u8]) -> Vec<u8> {
        let mut excerpt = b"User-agent: *\n".to_vec();
        for rule in &self.rules {
            excerpt.extend_from_slice(&text[rule.line_range()]);
            excerpt.push(b'\n');
        }
        if let Some(delay) = self.crawl_delay {
            excerpt.extend(format!("Crawl-delay: {}\n", delay.as_secs_f64()).into_bytes());
        }
        excerpt
    }

    /// The memory that they use, approximately.
    pub fn memory_bytes(&self) -> usize {
        let patterns = self.rules.iter().map(Rule::allocated_bytes).sum::<usize>();
        size_of::<Self>() + self.rules.capacity() * size_of::<Rule>() + patterns
    }
}

/// What the response to a request for robots.txt means (RFC 9309 section 2.3.1).
#[derive(Debug)]
pub enum RobotsResponse<'a> {
    /// The file can be read; this is its beginning.
    Text(&'a [u8]),
    /// The site has no file for this crawler, so everything is allowed.
    Missing,
    /// A redirect to this URL.
    Redirect(CanonicalUrl<'static>),
    /// The rules are unknown, so nothing is allowed. This includes a truncated file: the missing
    /// part may forbid the URL.
    Unreachable(Failure),
}

/// A line of a robots.txt as written, for people; truncated if it is long.
pub fn display_line(text: &[u8], line: Range<usize>) -> String {
    let mut shown = String::from_utf8_lossy(&text[line]).into_owned();
    shown.truncate(shown.floor_char_boundary(ROBOTS_RULE_SHOWN_BYTES_MAX));
    shown
}

/// The first sitemaps that the robots.txt at this URL names, without repeats.
pub fn sitemaps(text: &[u8], robots_url: &CanonicalUrl<'_>) -> Vec<CanonicalUrl<'static>> {
    let mut sitemaps = Vec::new();
    for line in lines(within_limit(text)).filter(|line| line.key == LineKey::Sitemap) {
        if sitemaps.len() == ROBOTS_SITEMAPS_MAX {
            break;
        }
        let link = std::str::from_utf8(line.value).ok().filter(|link| !link.is_empty());
        let url = link.and_then(|link| robots_url.join(link).ok());
        sitemaps.extend(url.filter(|url| !sitemaps.contains(url)));
    }
    sitemaps
}

/// The part of a long file that is read. It ends with a whole line, because half a line could
/// forbid much more.
fn within_limit(text: &[u8]) -> &[u8] {
    let Some(text) = text.get(..ROBOTS_BYTES_MAX) else { return text };
    let end = text.iter().rposition(|&byte| matches!(byte, b'\n' | b'\r'));
    &text[..end.unwrap_or_default()]
}

/// The crawlers that a line applies to.
#[derive(Clone, Copy, Default)]
struct Addressees {
    us: bool,
    everybody: bool,
}

/// The rules for one of the two addressees, from all of its groups.
#[derive(Default)]
struct GroupRules {
    is_named: bool,
    rules: Vec<Rule>,
    crawl_delay: Option<Duration>,
}

#[derive(Default)]
struct RobotsParser<'t> {
    token: &'t [u8],
    /// From the `User-agent` lines of this group. The rules apply to these; invalid lines do not
    /// end a group.
    group_agents: Addressees,
    /// After the first rule, the next `User-agent` line begins a new group.
    group_has_rules: bool,
    /// From the `User-agent` lines of this group since its last `Crawl-delay`.
    delay_agents: Addressees,
    delay_was_read: bool,
    ours: GroupRules,
    wildcard: GroupRules,
}

impl RobotsParser<'_> {
    fn take(&mut self, line: &RobotsLine) {
        match line.key {
            LineKey::UserAgent => self.add_user_agent(line.value),
            LineKey::Allow | LineKey::Disallow => {
                self.group_has_rules = true;
                if let Some(said) = self.rules_for(self.group_agents) {
                    said.rules.extend(Rule::new(line));
                }
            }
            LineKey::CrawlDelay => {
                let Some(delay) = read_delay(line.value) else { return };
                self.delay_was_read = true;
                if let Some(said) = self.rules_for(self.delay_agents) {
                    said.crawl_delay = said.crawl_delay.max(Some(delay));
                }
            }
            // Applies to all crawlers, and does not belong to a group.
            LineKey::Sitemap => {}
        }
    }

    fn add_user_agent(&mut self, value: &[u8]) {
        if std::mem::take(&mut self.group_has_rules) {
            self.group_agents = Addressees::default();
            self.delay_was_read = true;
        }
        if std::mem::take(&mut self.delay_was_read) {
            self.delay_agents = Addressees::default();
        }
        let token = &value[..token_length(value)];
        let us = !token.is_empty() && token.eq_ignore_ascii_case(self.token);
        let everybody = matches!(value, [b'*'] | [b'*', b' ' | b'\t', ..]);
        for addressed in [&mut self.group_agents, &mut self.delay_agents] {
            addressed.us |= us;
            addressed.everybody |= everybody;
        }
        self.ours.is_named |= us;
    }

    /// The groups for `*` matter only while no group names this crawler.
    fn rules_for(&mut self, addressed: Addressees) -> Option<&mut GroupRules> {
        if addressed.us {
            Some(&mut self.ours)
        } else if addressed.everybody && !self.ours.is_named {
            Some(&mut self.wildcard)
        } else {
            None
        }
    }
}

/// Seconds, possibly with a fraction.
fn read_delay(value: &[u8]) -> Option<Duration> {
    let seconds: f64 = std::str::from_utf8(value).ok()?.parse().ok()?;
    if !seconds.is_finite() || seconds < 0.0 {
        return None;
    }
    Some(Duration::from_secs_f64(seconds.min(CRAWL_DELAY_MAX.as_secs_f64())))
}
