//! The shape of a URL: what is left without numbers, ids and values.

use std::ops::Range;

use tidings_protocol::CanonicalUrl;
use xxhash_rust::xxh3::xxh3_64;

/// The shape of a URL. Texts are stored as fingerprints.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct UrlShape {
    /// The path, without numbers and ids.
    pub(super) path: u64,
    /// The path and the names of the query.
    pub(super) shape: u64,
    /// Whether something was left out, so that other URLs may have the same shape.
    pub(super) is_generalized: bool,
    /// Parameters in the query.
    pub(super) params: usize,
    /// The year of a date with a month.
    pub(super) year: Option<u16>,
    /// The URL without its session id, if it seems to have one.
    pub(super) without_session: Option<u64>,
}

impl UrlShape {
    pub(super) fn of(url: &CanonicalUrl<'_>) -> Self {
        let mut text = String::with_capacity(url.path_and_query().len());
        let mut has_likes = false;
        for segment in url.path().split('/').skip(1) {
            text.push('/');
            has_likes |= generalize(segment, &mut text);
        }
        let path = xxh3_64(text.as_bytes());
        let mut count = 0;
        for (name, _) in params(url) {
            text.push(if count == 0 { '?' } else { '&' });
            generalize(name, &mut text);
            count += 1;
        }
        Self {
            path,
            shape: xxh3_64(text.as_bytes()),
            is_generalized: has_likes || count > 0,
            params: count,
            year: year_of_path(url.path()).or_else(|| year_of_query(url)),
            without_session: without_session(url),
        }
    }
}

/// The shape of the path up to its last segment: the same for all articles of a section.
pub(crate) fn of_directory(url: &CanonicalUrl<'_>) -> u64 {
    let directory = url.path().rsplit_once('/').map_or("", |(directory, _)| directory);
    let mut text = String::with_capacity(directory.len());
    for segment in directory.split('/').skip(1) {
        text.push('/');
        generalize(segment, &mut text);
    }
    xxh3_64(text.as_bytes())
}

/// The parameters of a query. One without `=` is a value without a name.
pub(super) fn params<'a>(url: &'a CanonicalUrl<'_>) -> impl Iterator<Item = (&'a str, &'a str)> {
    let query = url.path_and_query().split_once('?').map_or("", |(_, query)| query);
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs.map(|pair| pair.split_once('=').unwrap_or(("", pair)))
}

/// Writes a text with `x` for an id, or else `0` for each number; returns whether there was any.
fn generalize(text: &str, out: &mut String) -> bool {
    if is_id(text) {
        out.push('x');
        return true;
    }
    let mut rest = text;
    while let Some(at) = rest.find(|character: char| character.is_ascii_digit()) {
        let (before, number) = rest.split_at(at);
        out.push_str(before);
        out.push('0');
        rest = number.trim_start_matches(|character: char| character.is_ascii_digit());
    }
    out.push_str(rest);
    rest.len() < text.len()
}

/// Hex digits, with the dashes of a UUID or without, or a long mixture of letters and digits. Words
/// contain no digits, except after a dash.
fn is_id(text: &str) -> bool {
    let is_hex =
        text.len() >= 8 && text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    let is_long = text.len() >= 16 && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    (is_hex || is_long)
        && text.bytes().any(|byte| byte.is_ascii_digit())
        && text.bytes().any(|byte| byte.is_ascii_alphabetic())
}

/// The year in `/2024/05/` or `/2024-05-17.html`.
fn year_of_path(path: &str) -> Option<u16> {
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let segment = segment.split_once('.').map_or(segment, |(name, _)| name);
        let pair = || year(segment).filter(|_| segments.peek().is_some_and(|next| is_month(next)));
        if let Some(year) = year_of_date(segment).or_else(pair) {
            return Some(year);
        }
    }
    None
}

/// The year in `date=2024-05` under any name, or in `year=2024&month=5`.
fn year_of_query(url: &CanonicalUrl<'_>) -> Option<u16> {
    if let Some(year) = params(url).find_map(|(_, value)| year_of_date(value)) {
        return Some(year);
    }
    let named = |names: &[&str]| {
        let is_named = |name: &str| names.iter().any(|other| name.eq_ignore_ascii_case(other));
        params(url).find(|(name, _)| is_named(name)).map(|(_, value)| value)
    };
    let month = named(&["month", "mon", "m"]);
    named(&["year", "yr", "y"]).and_then(year).filter(|_| month.is_some_and(is_month))
}

/// The year in `2024-05` or `2024-05-17`.
fn year_of_date(text: &str) -> Option<u16> {
    let (first, rest) = text.split_once('-')?;
    let (month, day) = rest.split_once('-').unwrap_or((rest, "1"));
    year(first).filter(|_| is_month(month) && is_number(day, 1..32))
}

/// Four digits.
fn year(text: &str) -> Option<u16> {
    text.parse().ok().filter(|_| text.len() == 4 && !text.starts_with('+'))
}

fn is_month(text: &str) -> bool {
    is_number(text, 1..13)
}

/// One or two digits.
fn is_number(text: &str, range: Range<u8>) -> bool {
    let is_digits = text.len() <= 2 && text.bytes().all(|byte| byte.is_ascii_digit());
    is_digits && text.parse().is_ok_and(|number| range.contains(&number))
}

/// Default names of session ids in PHP, Java, ASP, and the shops and forums made with them.
const SESSION_NAMES: &[&str] =
    &["phpsessid", "jsessionid", "sessionid", "session_id", "sessid", "oscsid", "zenid"];

/// The fingerprint of a URL without its session id, if it has one: a parameter with such a name and
/// a value that looks like an id; `sid=` with 32 hex digits, as in forums; `;jsessionid=` or
/// `(S(..))` in the path.
fn without_session(url: &CanonicalUrl<'_>) -> Option<u64> {
    // The fast path: nearly no URL has one.
    if !url.path().contains(['(', ';']) && !params(url).any(|(name, value)| is_session(name, value))
    {
        return None;
    }
    let mut text = String::with_capacity(url.path_and_query().len());
    let mut found = false;
    for segment in url.path().split('/').skip(1) {
        let (name, param) = segment.split_once(';').unwrap_or((segment, ""));
        let session = param.split_once('=').filter(|(name, value)| is_session(name, value));
        let is_asp = name.starts_with('(') && name.contains("S(") && name.ends_with("))");
        found |= session.is_some() || is_asp;
        if !is_asp {
            text.extend(["/", if session.is_some() { name } else { segment }]);
        }
    }
    for (name, value) in params(url) {
        if is_session(name, value) {
            found = true;
        } else {
            text.extend(["&", name, "=", value]);
        }
    }
    found.then(|| xxh3_64(text.as_bytes()))
}

fn is_session(name: &str, value: &str) -> bool {
    let is_hash = || value.len() == 32 && value.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_token = || {
        value.len() >= 16
            && value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_,.!".contains(&byte))
    };
    (name.eq_ignore_ascii_case("sid") && is_hash())
        || (SESSION_NAMES.iter().any(|other| name.eq_ignore_ascii_case(other)) && is_token())
}
