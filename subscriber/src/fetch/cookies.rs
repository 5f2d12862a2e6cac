//! Cookies, if somebody wants them: each goes back to the scheme, host and port that it came from
//! and to no other, whatever its `Domain` says. Bounded; the oldest go first.

use std::time::{Duration, SystemTime};

use hyper::header::{HeaderMap, HeaderValue, SET_COOKIE};
use indexmap::IndexMap;
use parking_lot::Mutex;
use tidings_protocol::CanonicalUrl;

use super::origin;
use crate::config::{COOKIE_BYTES_MAX, COOKIE_ORIGINS_MAX, COOKIES_BYTES_MAX};

#[derive(Default)]
pub(super) struct Jar(Mutex<IndexMap<String, Vec<Cookie>>>);

#[derive(Debug)]
struct Cookie {
    name: String,
    value: String,
    /// Begins with `/`.
    path: String,
    /// `None`: with this process.
    ends: Option<SystemTime>,
}

impl Jar {
    /// The value of a request's `Cookie` header.
    pub(super) fn to(&self, url: &CanonicalUrl, now: SystemTime) -> Option<HeaderValue> {
        let mut origins = self.0.lock();
        let cookies = origins.get_mut(origin(url))?;
        cookies.retain(|cookie| cookie.ends.is_none_or(|ends| now < ends));
        let pairs: Vec<String> = cookies
            .iter()
            .filter(|cookie| cookie.is_for(url.path()))
            .map(|cookie| format!("{}={}", cookie.name, cookie.value))
            .collect();
        HeaderValue::from_str(&pairs.join("; ")).ok().filter(|value| !value.is_empty())
    }

    /// What an answer sets.
    pub(super) fn note(&self, url: &CanonicalUrl, headers: &HeaderMap, now: SystemTime) {
        if !headers.contains_key(SET_COOKIE) {
            return;
        }
        let mut origins = self.0.lock();
        if !origins.contains_key(origin(url)) && origins.len() >= COOKIE_ORIGINS_MAX {
            origins.drain(..COOKIE_ORIGINS_MAX.div_ceil(10));
        }
        let cookies = origins.entry(origin(url).to_owned()).or_default();
        for value in headers.get_all(SET_COOKIE) {
            let Some(cookie) = value.to_str().ok().and_then(|text| Cookie::parse(text, url, now))
            else {
                continue;
            };
            cookies.retain(|old| (&old.name, &old.path) != (&cookie.name, &cookie.path));
            if cookie.ends.is_none_or(|ends| now < ends) {
                cookies.push(cookie);
            }
            while cookies.iter().map(Cookie::bytes).sum::<usize>() > COOKIES_BYTES_MAX {
                cookies.remove(0);
            }
        }
    }
}

impl Cookie {
    /// As RFC 6265 section 5.2 reads it; `None` if it is none, or too long.
    fn parse(text: &str, url: &CanonicalUrl, now: SystemTime) -> Option<Self> {
        let mut parts = text.split(';');
        let (name, value) = parts.next()?.split_once('=')?;
        let directory = &url.path()[..url.path().rfind('/').filter(|at| *at > 0).unwrap_or(1)];
        let mut cookie = Self {
            name: name.trim().to_owned(),
            value: value.trim().to_owned(),
            path: directory.to_owned(),
            ends: None,
        };
        let mut max_age = None;
        for part in parts {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let value = value.trim();
            match key.trim().to_ascii_lowercase().as_str() {
                "path" if value.starts_with('/') => value.clone_into(&mut cookie.path),
                "max-age" => max_age = value.parse::<i64>().ok(),
                "expires" => cookie.ends = httpdate::parse_http_date(value).ok(),
                _ => {}
            }
        }
        if let Some(seconds) = max_age {
            let age = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
            // What lasts longer than time does has no end.
            cookie.ends = now.checked_add(age);
        }
        (!cookie.name.is_empty() && cookie.bytes() <= COOKIE_BYTES_MAX).then_some(cookie)
    }

    /// RFC 6265 section 5.1.4.
    fn is_for(&self, path: &str) -> bool {
        path.strip_prefix(&*self.path).is_some_and(|rest| {
            rest.is_empty() || rest.starts_with('/') || self.path.ends_with('/')
        })
    }

    fn bytes(&self) -> usize {
        self.name.len() + self.value.len() + self.path.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: SystemTime = SystemTime::UNIX_EPOCH;

    fn url(text: &str) -> CanonicalUrl<'static> {
        text.parse().unwrap()
    }

    fn set(jar: &Jar, from: &str, cookies: &[&str]) {
        let mut headers = HeaderMap::new();
        for cookie in cookies {
            headers.append(SET_COOKIE, cookie.parse().unwrap());
        }
        jar.note(&url(from), &headers, NOW);
    }

    fn sent(jar: &Jar, to: &str, now: SystemTime) -> Option<String> {
        jar.to(&url(to), now).map(|value| value.to_str().unwrap().to_owned())
    }

    #[test]
    fn cookies_go_back_to_where_they_came_from_and_nowhere_else() {
        let jar = Jar::default();
        set(
            &jar,
            "https://a.example/x/y",
            &["k=v; Domain=example; Path=/", "deep=1", "k2=w; path=/x/"],
        );
        assert_eq!(sent(&jar, "https://a.example/", NOW).as_deref(), Some("k=v"));
        assert_eq!(sent(&jar, "https://a.example/x/z", NOW).as_deref(), Some("k=v; deep=1; k2=w"));
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
    fn cookies_are_replaced_and_end() {
        let jar = Jar::default();
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
            &["a=; Max-Age=0", "=x", "nonsense", "long=1; max-age=99999999999999999"],
        );
        assert_eq!(sent(&jar, "http://h/", at(200)).as_deref(), Some("long=1"));
    }

    #[test]
    fn a_jar_is_bounded_whatever_servers_set() {
        let jar = Jar::default();
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
