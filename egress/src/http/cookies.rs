//! Optional cookies. Each is sent only to the scheme, host and port that it came from, and with
//! `Domain` to other hosts of the same registrable domain, by the same scheme and port. The jar has
//! limits; the oldest cookies are dropped first.

use std::cmp::Reverse;
use std::time::{Duration, SystemTime};

use hyper::header::{HeaderMap, HeaderValue, SET_COOKIE};
use indexmap::IndexMap;
use jiff::civil::{Date, DateTime, Time};
use parking_lot::Mutex;
use tidings_protocol::CanonicalUrl;

use super::origin;

/// A cookie's name, value and path together, as in browsers.
const COOKIE_BYTES_MAX: usize = 4 * 1024;
/// Bytes of all cookies of one origin, and of all with `Domain` of one site: a request may grow by
/// both.
const COOKIES_BYTES_MAX: usize = 8 * 1024;
/// Origins and sites with cookies. 32 MiB at most together.
const COOKIE_ORIGINS_MAX: usize = 4 * 1024;

/// By origin, or by site if they have a domain.
#[derive(Default)]
pub(super) struct CookieJar(Mutex<IndexMap<String, Vec<Cookie>>>);

#[derive(Debug)]
struct Cookie {
    name: String,
    value: String,
    /// Begins with `/`.
    path: String,
    /// The host to which it is sent, and to all hosts below. `None`: only to its origin.
    domain: Option<String>,
    /// `None`: when this process ends.
    expires_at: Option<SystemTime>,
}

impl CookieJar {
    /// The value of the `Cookie` header of a request.
    pub(super) fn header_for(&self, url: &CanonicalUrl, now: SystemTime) -> Option<HeaderValue> {
        let mut sources = self.0.lock();
        let mut pairs = Vec::new();
        for source in [origin(url), &site(url)] {
            let Some(cookies) = sources.get_mut(source) else { continue };
            cookies.retain(|cookie| cookie.expires_at.is_none_or(|ends| now < ends));
            let sent = cookies.iter().filter(|cookie| cookie.matches(url));
            let pair = |it: &Cookie| (Reverse(it.path.len()), format!("{}={}", it.name, it.value));
            pairs.extend(sent.map(pair));
        }
        // The longest path first (RFC 6265 section 5.4): of two with one name, servers use the first.
        pairs.sort_by_key(|(path, _)| *path);
        let pairs: Vec<_> = pairs.into_iter().map(|(_, pair)| pair).collect();
        let bytes =
            pairs.join("; ").chars().filter_map(|c| u8::try_from(c).ok()).collect::<Vec<_>>();
        HeaderValue::from_bytes(&bytes).ok().filter(|value| !value.is_empty())
    }

    /// Stores the cookies that a response sets.
    pub(super) fn store(&self, url: &CanonicalUrl, headers: &HeaderMap, now: SystemTime) {
        for value in headers.get_all(SET_COOKIE) {
            let text: String = value.as_bytes().iter().map(|byte| char::from(*byte)).collect();
            let Some(cookie) = Cookie::parse(&text, url, now) else { continue };
            let source = if cookie.domain.is_some() { site(url) } else { origin(url).to_owned() };
            let mut sources = self.0.lock();
            if !sources.contains_key(&source) && sources.len() >= COOKIE_ORIGINS_MAX {
                sources.drain(..COOKIE_ORIGINS_MAX.div_ceil(10));
            }
            let cookies = sources.entry(source).or_default();
            cookies.retain(|old| !old.is_replaced_by(&cookie));
            if cookie.expires_at.is_none_or(|ends| now < ends) {
                cookies.push(cookie);
            }
            while cookies.iter().map(Cookie::bytes).sum::<usize>() > COOKIES_BYTES_MAX {
                cookies.remove(0);
            }
        }
    }
}

impl Cookie {
    /// Parses a cookie as in RFC 6265 section 5.2; `None` if it is invalid or too long. The server
    /// gets back the bytes that it sent: here each is a character, in UTF-8 as in any other encoding.
    fn parse(text: &str, url: &CanonicalUrl, now: SystemTime) -> Option<Self> {
        let mut parts = text.split(';');
        let (name, value) = parts.next()?.split_once('=')?;
        let directory = &url.path()[..url.path().rfind('/').filter(|at| *at > 0).unwrap_or(1)];
        let mut cookie = Self {
            name: name.trim_ascii().to_owned(),
            value: value.trim_ascii().to_owned(),
            path: directory.to_owned(),
            domain: None,
            expires_at: None,
        };
        let mut max_age = None;
        for part in parts {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let value = value.trim_ascii();
            match key.trim_ascii().to_ascii_lowercase().as_str() {
                "path" if value.starts_with('/') => value.clone_into(&mut cookie.path),
                "domain" => cookie.domain = parse_domain(value, url),
                "max-age" => max_age = value.parse::<i64>().ok(),
                "expires" => cookie.expires_at = parse_date(value).or(cookie.expires_at),
                _ => {}
            }
        }
        if let Some(seconds) = max_age {
            let age = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
            // `None` if the time is out of range, so the cookie does not expire.
            cookie.expires_at = now.checked_add(age);
        }
        (!cookie.name.is_empty() && cookie.bytes() <= COOKIE_BYTES_MAX).then_some(cookie)
    }

    /// Whether it has the same name, path and domain.
    fn is_replaced_by(&self, newer: &Self) -> bool {
        (&self.name, &self.path, &self.domain) == (&newer.name, &newer.path, &newer.domain)
    }

    fn matches(&self, url: &CanonicalUrl) -> bool {
        let is_host = self.domain.as_ref().is_none_or(|domain| is_within(url.host(), domain));
        is_host && self.matches_path(url.path())
    }

    /// Whether the path matches (RFC 6265 section 5.1.4).
    fn matches_path(&self, path: &str) -> bool {
        path.strip_prefix(&*self.path).is_some_and(|rest| {
            rest.is_empty() || rest.starts_with('/') || self.path.ends_with('/')
        })
    }

    fn bytes(&self) -> usize {
        let domain = self.domain.as_ref().map_or(0, String::len);
        self.name.len() + self.value.len() + self.path.len() + domain
    }
}

/// The key of cookies that all hosts of a registrable domain may set for each other.
fn site(url: &CanonicalUrl) -> String {
    let (scheme, host) = origin(url).split_once("://").unwrap_or_default();
    format!("{scheme}://.{}", host.replacen(url.host(), url.domain(), 1))
}

/// The domain of a cookie. A name that is not above the host, or above its registrable domain, has no
/// effect.
fn parse_domain(text: &str, url: &CanonicalUrl) -> Option<String> {
    let domain = text.strip_prefix('.').unwrap_or(text).to_ascii_lowercase();
    (is_within(url.host(), &domain) && is_within(&domain, url.domain())).then_some(domain)
}

/// Whether a host is this domain or below it.
fn is_within(host: &str, domain: &str) -> bool {
    host.strip_suffix(domain).is_some_and(|below| below.is_empty() || below.ends_with('.'))
}

/// Parses a date of a cookie, with its parts in any order (RFC 6265 section 5.1.1). Dates before
/// 1970 count as 1970.
fn parse_date(text: &str) -> Option<SystemTime> {
    const MONTHS: [&str; 12] =
        ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
    let (mut time, mut day, mut month, mut year) = (None, None, None, None);
    let is_between = |c: char| matches!(c, '\t' | ' '..='/' | ';'..='@' | '['..='`' | '{'..='~');
    for token in text.split(is_between).filter(|token| !token.is_empty()) {
        let number = leading_number(token);
        let named = MONTHS.iter().position(|name| starts_with_word(token, name));
        if time.is_none()
            && let Some(found) = parse_time(token)
        {
            time = Some(found);
        } else if day.is_none()
            && let Some((1 | 2, number)) = number
        {
            day = Some(number);
        } else if month.is_none() && named.is_some() {
            month = named;
        } else if year.is_none()
            && let Some((2 | 4, number)) = number
        {
            year = Some(number);
        }
    }
    let ((hours, minutes, seconds), month) = (time?, i8::try_from(month?).ok()? + 1);
    let (day, year) = (
        day?,
        match year? {
            year @ 70..=99 => year + 1900,
            year @ 0..=69 => year + 2000,
            year => year,
        },
    );
    let date = Date::new(year, month, i8::try_from(day).ok()?).ok().filter(|_| year >= 1601)?;
    let time = Time::new(hours, minutes, seconds, 0).ok()?;
    let since_1970 =
        date.to_datetime(time).duration_since(DateTime::constant(1970, 1, 1, 0, 0, 0, 0));
    SystemTime::UNIX_EPOCH.checked_add(Duration::try_from(since_1970).unwrap_or_default())
}

/// The number of leading digits of a token, at most 4, and their value.
fn leading_number(token: &str) -> Option<(usize, i16)> {
    let digits = token.bytes().take_while(u8::is_ascii_digit).count();
    if digits > 4 { None } else { Some((digits, token[..digits].parse().ok()?)) }
}

fn starts_with_word(token: &str, word: &str) -> bool {
    token.get(..word.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(word))
}

fn parse_time(token: &str) -> Option<(i8, i8, i8)> {
    let mut fields = token.splitn(3, ':');
    let mut field = |is_last: bool| {
        let text = fields.next()?;
        let (digits, number) = leading_number(text)?;
        let is_field = digits <= 2 && (is_last || digits == text.len());
        i8::try_from(number).ok().filter(|_| is_field)
    };
    Some((field(false)?, field(false)?, field(true)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_parsed_in_all_forms() {
        let at = |text: &str| {
            parse_date(text).map(|at| at.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs())
        };
        for (text, expected) in [
            ("Thu, 01-Jan-1970 00:00:01 GMT", Some(1)),
            ("Thu, 01 Jan 1970 00:00:00 GMT", Some(0)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(784_111_777)),
            ("Sunday, 06-Nov-94 08:49:37 GMT", Some(784_111_777)),
            ("Sun Nov  6 08:49:37 1994", Some(784_111_777)),
            ("6 november 1994 8:49:37", Some(784_111_777)),
            ("Tue, 29-Feb-2028 00:00:00 GMT", Some(1_835_395_200)),
            ("Mon, 01-Jan-1601 00:00:00 GMT", Some(0)),
            ("Fri, 31-Dec-9999 23:59:59 GMT", Some(253_402_300_799)),
            ("Mon, 01-Jan-1600 00:00:00 GMT", None),
            ("Thu, 32-Jan-1970 00:00:01 GMT", None),
            ("Sat, 31-Feb-2026 00:00:01 GMT", None),
            ("Sat, 29-Feb-2026 00:00:01 GMT", None),
            ("Thu, 01-Jan-1970 24:00:01 GMT", None),
            ("Thu, 01-Jan-1970", None),
            ("00:00:01 Jan 1970", None),
            ("9999999999999999999", None),
            ("", None),
            ("\u{e9}\u{e9} 1:2:3:4 \u{e9}", None),
        ] {
            assert_eq!(at(text), expected, "{text}");
        }
    }

    #[test]
    fn an_expired_date_removes_a_cookie() {
        let jar = CookieJar::default();
        set(&jar, "http://h/", &["a=1", "b=1"]);
        let jar_now = NOW + Duration::from_secs(100);
        let mut headers = HeaderMap::new();
        let gone = "a=; expires=Thu, 01-Jan-1970 00:00:01 GMT; path=/";
        headers.append(SET_COOKIE, gone.parse().unwrap());
        jar.store(&url("http://h/"), &headers, jar_now);
        assert_eq!(sent(&jar, "http://h/", jar_now).as_deref(), Some("b=1"));
    }

    const NOW: SystemTime = SystemTime::UNIX_EPOCH;

    fn url(text: &str) -> CanonicalUrl<'static> {
        text.parse().unwrap()
    }

    fn set(jar: &CookieJar, from: &str, cookies: &[&str]) {
        let mut headers = HeaderMap::new();
        for cookie in cookies {
            headers.append(SET_COOKIE, HeaderValue::from_bytes(cookie.as_bytes()).unwrap());
        }
        jar.store(&url(from), &headers, NOW);
    }

    fn sent(jar: &CookieJar, to: &str, now: SystemTime) -> Option<String> {
        let header = jar.header_for(&url(to), now);
        header.map(|value| String::from_utf8(value.as_bytes().to_vec()).unwrap())
    }

    #[test]
    fn cookies_are_sent_only_to_their_origin() {
        let jar = CookieJar::default();
        set(
            &jar,
            "https://a.example/x/y",
            &["k=v; Domain=example; Path=/", "deep=1", "k2=w; path=/x/"],
        );
        assert_eq!(sent(&jar, "https://a.example/", NOW).as_deref(), Some("k=v"));
        assert_eq!(sent(&jar, "https://a.example/x/z", NOW).as_deref(), Some("k2=w; deep=1; k=v"));
        assert_eq!(sent(&jar, "https://a.example/xz", NOW).as_deref(), Some("k=v"));
        for other in [
            "http://a.example/",
            "https://b.example/",
            "https://example/",
            "https://a.example:8443/",
        ] {
            assert_eq!(sent(&jar, other, NOW), None, "{other}");
        }
    }

    #[test]
    fn cookies_with_a_domain_are_sent_within_their_site() {
        let jar = CookieJar::default();
        let cookies = [
            "a=1; Domain=.Shop.co.uk",
            "b=1; domain=id.shop.co.uk",
            "c=1; Domain=co.uk",
            "d=1; Domain=www.shop.co.uk",
            "e=1; Domain=hop.co.uk",
            "f=1; Domain=",
        ];
        set(&jar, "https://id.shop.co.uk/", &cookies);
        for (url, expected) in [
            ("https://www.shop.co.uk/x", Some("a=1")),
            ("https://shop.co.uk/", Some("a=1")),
            ("https://id.shop.co.uk/", Some("c=1; d=1; e=1; f=1; a=1; b=1")),
            ("https://x.id.shop.co.uk/", Some("a=1; b=1")),
            ("https://workshop.co.uk/", None),
            ("https://co.uk/", None),
            ("http://www.shop.co.uk/", None),
            ("https://www.shop.co.uk:8443/", None),
        ] {
            assert_eq!(sent(&jar, url, NOW).as_deref(), expected, "{url}");
        }
        set(&jar, "https://www.shop.co.uk/", &["a=; Domain=shop.co.uk; Max-Age=0"]);
        assert_eq!(sent(&jar, "https://shop.co.uk/", NOW), None);
        set(&jar, "http://127.0.0.1/", &["a=1; Domain=0.0.1", "b=1; Domain=127.0.0.1"]);
        assert_eq!(sent(&jar, "http://127.0.0.1/", NOW).as_deref(), Some("a=1; b=1"));
        // A host that is a public suffix, and one below it.
        set(&jar, "https://github.io/", &["a=1; Domain=github.io"]);
        assert_eq!(sent(&jar, "https://b.github.io/", NOW), None);
    }

    #[test]
    fn cookies_are_replaced_and_expire() {
        let jar = CookieJar::default();
        set(
            &jar,
            "http://h/",
            &["a=1", "b=1; Max-Age=60", "c=1; Expires=Thu, 01 Jan 1970 00:02:00 GMT"],
        );
        set(&jar, "http://h/", &["a=2"]);
        let at = |seconds| NOW + Duration::from_secs(seconds);
        assert_eq!(sent(&jar, "http://h/", at(59)).as_deref(), Some("b=1; c=1; a=2"));
        assert_eq!(sent(&jar, "http://h/", at(60)).as_deref(), Some("c=1; a=2"));
        assert_eq!(sent(&jar, "http://h/", at(120)).as_deref(), Some("a=2"));
        set(
            &jar,
            "http://h/",
            &["a=; Max-Age=0", "=x", "nonsense", "long=1; max-age=99999999999999999", "é=à ; x"],
        );
        assert_eq!(sent(&jar, "http://h/", at(200)).as_deref(), Some("long=1; é=à"));
    }

    #[test]
    fn a_jar_is_limited() {
        let jar = CookieJar::default();
        for number in 0..100 {
            set(&jar, "http://h/", &[&format!("k{number}={}", "v".repeat(500))]);
        }
        set(&jar, "http://h/", &[&format!("k={}", "v".repeat(COOKIE_BYTES_MAX))]);
        let cookies = sent(&jar, "http://h/", NOW).unwrap();
        assert!(cookies.len() < 2 * COOKIES_BYTES_MAX && cookies.contains("k99="), "{cookies}");
        assert!(!cookies.contains("k0="));
        for number in 0..2 * COOKIE_ORIGINS_MAX {
            set(&jar, &format!("http://h{number}/"), &["k=v"]);
            assert!(jar.0.lock().len() <= COOKIE_ORIGINS_MAX);
        }
    }
}
