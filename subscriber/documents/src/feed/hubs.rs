//! The hubs of a document, where a client subscribes instead of polling.

use http::HeaderMap;
use tidings_protocol::{CanonicalUrl, URL_BYTES_MAX};

use super::Feed;
use crate::page::{FEED_HUBS_MAX, header_links, verbatim_url};

/// Bytes of all hub URLs; the first one fits. A feed's hubs must fit into one event.
const FEED_HUBS_BYTES_MAX: usize = URL_BYTES_MAX;

/// The hubs that a document and its response headers name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hubs {
    /// All hubs of the first source that names any: the header, the document, the page that led to
    /// it (W3C `WebSub` section 4). Without repeats, `<= FEED_HUBS_MAX`.
    pub hubs: Vec<String>,
    /// The URL of the document as the hub knows it.
    pub topic: Option<String>,
    /// The `rssCloud` server to register with.
    pub cloud: Option<String>,
}

/// The hub links in the head of a page, absolute.
#[derive(Clone, Copy, Debug, Default)]
pub struct PageHubLinks<'a> {
    /// `rel=hub`.
    pub hubs: &'a [String],
    /// `rel=self`.
    pub self_url: Option<&'a str>,
}

impl Hubs {
    /// The hubs of a feed with this URL and these headers. `named` are the hubs of the page that
    /// led to it.
    pub fn of_feed(
        feed: &Feed,
        headers: &HeaderMap,
        url: &CanonicalUrl<'_>,
        named: &[String],
    ) -> Self {
        let found = Self::from_sources(headers, url, [&feed.hubs, named], feed.self_url.as_deref());
        Self { cloud: feed.cloud.clone(), ..found }
    }

    /// The hubs of a page with this URL and these headers.
    pub fn of_page(linked: PageHubLinks<'_>, headers: &HeaderMap, url: &CanonicalUrl<'_>) -> Self {
        Self::from_sources(headers, url, [linked.hubs, &[]], linked.self_url)
    }

    /// Headers come first, then `places` in this order. `own` is the document's URL as its hubs
    /// know it, if no header contains it.
    fn from_sources(
        headers: &HeaderMap,
        url: &CanonicalUrl<'_>,
        sources: [&[String]; 2],
        own: Option<&str>,
    ) -> Self {
        let values = headers.get_all("link").iter().filter_map(|value| value.to_str().ok());
        let absolute = |text: &str| url.join(text).ok().map(|url| url.as_str().to_owned());
        let (mut in_head, mut topic) = (Vec::new(), None);
        for (relations, target) in values.flat_map(header_links) {
            let has = |word: &str| {
                relations.split_ascii_whitespace().any(|it| it.eq_ignore_ascii_case(word))
            };
            if has("hub") {
                in_head.extend(absolute(target));
            }
            if has("self") && topic.is_none() {
                topic = verbatim_url(target).or_else(|| absolute(target));
            }
        }
        let all_of = |hubs: &[String]| bounded_unique(hubs.iter().filter_map(|hub| absolute(hub)));
        let sources = [bounded_unique(in_head), all_of(sources[0]), all_of(sources[1])];
        let hubs = sources.into_iter().find(|hubs| !hubs.is_empty()).unwrap_or_default();
        let topic = topic.or_else(|| verbatim_url(own?)).or_else(|| absolute(own?));
        Self { hubs, topic, cloud: None }
    }

    /// Whether there is neither a hub nor an `rssCloud` server.
    pub fn is_empty(&self) -> bool {
        self.hubs.is_empty() && self.cloud.is_none()
    }
}

/// The first hubs within the limits, without repeats.
pub(super) fn bounded_unique(hubs: impl IntoIterator<Item = String>) -> Vec<String> {
    let (mut few, mut bytes) = (Vec::new(), 0);
    for hub in hubs {
        let is_known = few.contains(&hub);
        if !is_known && few.len() < FEED_HUBS_MAX && bytes + hub.len() <= FEED_HUBS_BYTES_MAX {
            bytes += hub.len();
            few.push(hub);
        }
    }
    few
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hubs_are_unique_and_within_the_limits() {
        let hub = |n: usize| format!("http://{n}.example/");
        let many = (0..9).map(|n| hub(n / 2));
        assert_eq!(bounded_unique(many), [hub(0), hub(1), hub(2), hub(3)]);
        let long = |n: usize| format!("{}{}", hub(n), "x".repeat(FEED_HUBS_BYTES_MAX / 2));
        assert_eq!(bounded_unique([long(0), long(1), hub(2)]), [long(0), hub(2)]);
    }
}
