//! An HTTP cache (RFC 9111) of the scripts, styles and data that the pages of a site share. The
//! cache of the browser is of no use, because each page has a context of its own.
//!
//! Pages of one site share responses. Pages of other sites do not find them, so the time of an
//! answer cannot show what other pages have loaded.

use std::time::SystemTime;

use bytes::Bytes;
use http_cache_semantics::{AfterResponse, BeforeRequest, CacheOptions, CachePolicy};
use hyper::http::{request, response};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use indexmap::IndexMap;
use parking_lot::Mutex;
use tidings_protocol::CanonicalUrl;

/// Bytes of all bodies.
const CACHE_BYTES_MAX: usize = 64 << 20;

/// Responses. A response without a body costs memory too.
const RESPONSES_MAX: usize = 2_000;

/// The site of a page, and the URL of a part.
type PartKey = (String, String);

/// Responses of one crawler, the oldest first.
#[derive(Debug, Default)]
pub(super) struct PartCache(Mutex<CachedParts>);

#[derive(Debug, Default)]
struct CachedParts {
    by_key: IndexMap<PartKey, CachedPart>,
    /// Of all bodies; `<= CACHE_BYTES_MAX`.
    bytes: usize,
}

#[derive(Clone, Debug)]
struct CachedPart {
    policy: CachePolicy,
    body: Bytes,
}

/// A response to a page.
#[derive(Clone, Debug)]
pub(super) struct PartResponse {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// What is known about a part before it is requested.
#[derive(Debug)]
pub(super) enum Lookup {
    /// The response, which is fresh.
    Fresh(PartResponse),
    /// A response that may have changed. This is the conditional request for it.
    Stale(Box<request::Parts>),
    /// Nothing.
    Missing,
}

/// The head of a request for a part.
pub(super) fn head(method: &Method, url: &CanonicalUrl<'_>, fields: HeaderMap) -> request::Parts {
    let mut head = Request::new(()).into_parts().0;
    head.method = method.clone();
    // Only compared with that of a cached request; the key is compared too.
    head.uri = url.as_str().parse().unwrap_or_default();
    head.headers = fields;
    head
}

impl PartCache {
    /// Looks for the response to a request.
    pub(super) fn find(&self, site: &str, request: &request::Parts, now: SystemTime) -> Lookup {
        let cached = self.0.lock();
        let Some(part) = cached.by_key.get(&key(site, request)) else { return Lookup::Missing };
        match part.policy.before_request(request, now) {
            BeforeRequest::Fresh(head) => Lookup::Fresh(PartResponse::new(head, part.body.clone())),
            BeforeRequest::Stale { request, matches: true } => Lookup::Stale(Box::new(request)),
            BeforeRequest::Stale { .. } => Lookup::Missing,
        }
    }

    /// Takes the response to a request, and stores it if that is allowed. Returns the response for
    /// the page: that of the cache if it has not changed.
    pub(super) fn store(
        &self,
        site: &str,
        request: &request::Parts,
        response: PartResponse,
        now: SystemTime,
    ) -> PartResponse {
        let key = key(site, request);
        let mut cached = self.0.lock();
        let earlier = cached.remove(&key);
        let head = response.head();
        let (policy, response) = match earlier {
            Some(part) if response.status == StatusCode::NOT_MODIFIED => {
                match part.policy.after_response(request, &head, now) {
                    AfterResponse::NotModified(policy, head) => {
                        (policy, PartResponse::new(head, part.body))
                    }
                    AfterResponse::Modified(policy, _) => (policy, response),
                }
            }
            _ => {
                let options = CacheOptions { shared: false, ..CacheOptions::default() };
                (CachePolicy::new_options(request, &head, now, options), response)
            }
        };
        if policy.is_storable() && response.status == StatusCode::OK {
            cached.insert(key, CachedPart { policy, body: response.body.clone() });
        }
        response
    }
}

impl CachedParts {
    fn remove(&mut self, key: &PartKey) -> Option<CachedPart> {
        let part = self.by_key.shift_remove(key)?;
        self.bytes -= part.body.len();
        Some(part)
    }

    fn insert(&mut self, key: PartKey, part: CachedPart) {
        self.bytes += part.body.len();
        self.by_key.insert(key, part);
        while self.bytes > CACHE_BYTES_MAX || self.by_key.len() > RESPONSES_MAX {
            let Some((_, oldest)) = self.by_key.shift_remove_index(0) else { return };
            self.bytes -= oldest.body.len();
        }
    }
}

impl PartResponse {
    fn new(head: response::Parts, body: Bytes) -> Self {
        Self { status: head.status.as_u16(), headers: head.headers, body }
    }

    fn head(&self) -> response::Parts {
        let mut head = Response::new(()).into_parts().0;
        head.status = StatusCode::from_u16(self.status).unwrap_or_default();
        head.headers.clone_from(&self.headers);
        head
    }
}

fn key(site: &str, request: &request::Parts) -> PartKey {
    (site.to_owned(), request.uri.to_string())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hyper::header::{CACHE_CONTROL, ETAG, HeaderValue, IF_NONE_MATCH, VARY};

    use super::*;

    fn request(url: &str, fields: &[(&'static str, &str)]) -> request::Parts {
        let fields = fields
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_str(value).unwrap()));
        head(&Method::GET, &url.parse().unwrap(), fields.collect())
    }

    fn response(cache_control: &'static str, body: &'static str) -> PartResponse {
        let mut headers = HeaderMap::new();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static(cache_control));
        headers.insert(ETAG, HeaderValue::from_static("\"1\""));
        PartResponse { status: 200, headers, body: body.into() }
    }

    const URL: &str = "http://cdn.example/lib.js";

    #[test]
    fn a_fresh_response_is_used_for_the_pages_of_its_site_only() {
        let (cache, now) = (PartCache::default(), SystemTime::now());
        let asked = request(URL, &[]);
        cache.store("http://a.example", &asked, response("max-age=60", "code"), now);
        let Lookup::Fresh(found) = cache.find("http://a.example", &asked, now) else { panic!() };
        assert_eq!((found.status, &*found.body), (200, &b"code"[..]));
        assert!(matches!(cache.find("http://b.example", &asked, now), Lookup::Missing));
        let other = request("http://cdn.example/other.js", &[]);
        assert!(matches!(cache.find("http://a.example", &other, now), Lookup::Missing));
    }

    #[test]
    fn a_stale_response_is_used_again_if_it_has_not_changed() {
        let (cache, now) = (PartCache::default(), SystemTime::now());
        let asked = request(URL, &[]);
        cache.store("a", &asked, response("max-age=60", "code"), now);
        let later = now + Duration::from_secs(61);
        let Lookup::Stale(again) = cache.find("a", &asked, later) else { panic!() };
        assert_eq!(again.headers[IF_NONE_MATCH], "\"1\"");
        let unchanged = PartResponse { status: 304, ..response("max-age=60", "") };
        let found = cache.store("a", &again, unchanged, later);
        assert_eq!((found.status, &*found.body), (200, &b"code"[..]));
        assert!(matches!(cache.find("a", &asked, later), Lookup::Fresh(_)));
    }

    #[test]
    fn what_may_not_be_stored_is_asked_for_again() {
        let (cache, now) = (PartCache::default(), SystemTime::now());
        let asked = request(URL, &[]);
        cache.store("a", &asked, response("no-store", "code"), now);
        assert!(matches!(cache.find("a", &asked, now), Lookup::Missing));
        let error = PartResponse { status: 404, ..response("max-age=60", "none") };
        cache.store("a", &asked, error, now);
        assert!(matches!(cache.find("a", &asked, now), Lookup::Missing));
    }

    #[test]
    fn a_response_for_other_fields_is_not_used() {
        let (cache, now) = (PartCache::default(), SystemTime::now());
        let asked = request(URL, &[("accept-language", "de")]);
        let mut varying = response("max-age=60", "code");
        varying.headers.insert(VARY, HeaderValue::from_static("accept-language"));
        cache.store("a", &asked, varying, now);
        assert!(matches!(cache.find("a", &asked, now), Lookup::Fresh(_)));
        let other = request(URL, &[("accept-language", "en")]);
        assert!(matches!(cache.find("a", &other, now), Lookup::Missing));
    }

    #[test]
    fn the_oldest_responses_are_dropped_first() {
        let (cache, now) = (PartCache::default(), SystemTime::now());
        let body = vec![0; CACHE_BYTES_MAX / 4];
        let url = |n: usize| format!("http://cdn.example/{n}.js");
        for n in 0..6 {
            let part = PartResponse { body: body.clone().into(), ..response("max-age=60", "") };
            cache.store("a", &request(&url(n), &[]), part, now);
        }
        let is_there = |n| matches!(cache.find("a", &request(&url(n), &[]), now), Lookup::Fresh(_));
        assert_eq!((0..6).filter(|n| is_there(*n)).collect::<Vec<_>>(), [2, 3, 4, 5]);
        assert_eq!(cache.0.lock().bytes, CACHE_BYTES_MAX);
    }
}
