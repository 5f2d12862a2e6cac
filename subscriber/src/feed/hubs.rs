//! Who tells of changes of a feed, so that nobody has to ask for them again and again.

use hyper::HeaderMap;
use tidings_protocol::CanonicalUrl;

use super::Feed;
use crate::page::header_links;

/// What a feed and the head of the answer in which it came say of that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hubs {
    /// The first hub (W3C `WebSub` section 4); the header counts for more than the feed.
    pub hub: Option<String>,
    /// Under which URL the hub knows the feed.
    pub topic: Option<String>,
    /// Where to register, of `rssCloud`.
    pub cloud: Option<String>,
}

impl Hubs {
    /// Of a feed that came from this URL with these headers. `named`: the hub that a page has told which led here.
    pub fn of(
        feed: &Feed,
        headers: &HeaderMap,
        url: &CanonicalUrl<'_>,
        named: Option<&str>,
    ) -> Self {
        let values = headers.get_all("link").iter().filter_map(|value| value.to_str().ok());
        let (mut hub, mut topic) = (None, None);
        for (relations, target) in values.flat_map(header_links) {
            let has = |word: &str| {
                relations.split_ascii_whitespace().any(|it| it.eq_ignore_ascii_case(word))
            };
            let absolute = || url.join(target).ok().map(|url| url.as_str().to_owned());
            if has("hub") && hub.is_none() {
                hub = absolute();
            }
            if has("self") && topic.is_none() {
                topic = as_written(target).or_else(absolute);
            }
        }
        let absolute = |text: &str| url.join(text).ok().map(|url| url.as_str().to_owned());
        let hub = hub.or_else(|| feed.hubs.iter().find_map(|hub| absolute(hub)));
        let hub = hub.or_else(|| absolute(named?));
        let own = feed.own.as_deref();
        let topic = topic.or_else(|| as_written(own?)).or_else(|| absolute(own?));
        Self { hub, topic, cloud: feed.cloud.clone() }
    }

    /// Nobody tells.
    pub fn is_empty(&self) -> bool {
        self.hub.is_none() && self.cloud.is_none()
    }
}

/// Hubs compare topics letter by letter, so one is told as it was advertised.
fn as_written(url: &str) -> Option<String> {
    let is_plain = url.bytes().all(|byte| byte.is_ascii_graphic());
    let is_whole = url.starts_with("https://") || url.starts_with("http://");
    (is_plain && is_whole && CanonicalUrl::parse(url).is_ok()).then(|| url.to_owned())
}
