//! Events about feeds: new items, and the hubs of a feed.
//!
//! The crawler and the WebSub client publish the same item or hub under the same `id=`, so the
//! topic keeps one of them.

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use tidings_protocol::{CanonicalUrl, Payload, push_attribute};

use super::hubs::{Hubs, bounded_unique};
use super::watched_feed::{KnownItems, NewItem};
use crate::page::FEED_HUBS_MAX;

/// A longer id of an item is announced as its hash.
const FEED_ITEM_BYTES_MAX: usize = 512;

/// The topic of new items.
pub const ITEM_TOPIC: &str = "post-ready";
/// The topic of feeds with a hub.
pub const HUB_TOPIC: &str = tidings_protocol::HUB_FOUND_TOPIC;
/// The topic in which feeds are scheduled and fetches are brought forward.
pub const SCHEDULE_TOPIC: &str = "new-url";
/// The attribute of an event that brings a fetch forward because a hub has announced a change:
/// until when the hub will announce changes, in ms since 1970, or 0.
pub const PUSHED: &str = "pushed";

/// The attributes for the hubs of a feed, in the order in which they are tried.
const HUB_KEYS: [&str; FEED_HUBS_MAX] = ["hub", "hub-2", "hub-3", "hub-4"];

/// The attribute with the URL under which a feed is scheduled, if that is another URL that leads to
/// the feed.
pub const WATCHED: &str = "watched";

/// The attribute of an event about a feed: its hub did not announce a new item.
pub const SILENT: &str = "silent";

/// The attribute of an event about a page that is watched for new versions.
pub const PAGE: &str = "page";

/// The attribute with the item that was published, in its event and in the fetch that follows.
pub const ITEM: &str = "item";

/// The event of a new item of this feed; `None` if the item has no valid link.
pub fn item_event(feed: &CanonicalUrl<'_>, item: &NewItem) -> Option<String> {
    let NewItem { id, link, fingerprint } = item;
    let link = CanonicalUrl::parse(link.as_deref()?).ok()?;
    let mut event = link.as_str().to_owned();
    push_attribute(&mut event, ITEM, &encode_item_id(id));
    push_attribute(&mut event, "source", feed.as_str());
    push_attribute(&mut event, "id", &short_hash(&format!("{} {fingerprint}", feed.as_str())));
    Some(event)
}

/// Further attributes of an event about the hubs of a feed.
#[derive(Clone, Copy, Debug, Default)]
pub struct HubEventFlags {
    /// The hubs failed to announce an item.
    pub is_silent: bool,
    /// It is a page that is watched for new versions.
    pub is_page: bool,
}

/// The event with the hubs of this feed, and the items that are known. `watched` is the URL that is
/// scheduled.
pub fn hub_event(
    feed: &CanonicalUrl<'_>,
    watched: &CanonicalUrl<'_>,
    hubs: &Hubs,
    known: KnownItems,
    notes: HubEventFlags,
) -> String {
    let mut event = feed.as_str().to_owned();
    if watched != feed {
        push_attribute(&mut event, WATCHED, watched.as_str());
    }
    for (key, is_set) in [(SILENT, notes.is_silent), (PAGE, notes.is_page)] {
        if is_set {
            push_attribute(&mut event, key, "yes");
        }
    }
    let Hubs { hubs, topic, cloud } = hubs;
    push_hubs(&mut event, hubs);
    for (key, url) in [("topic", topic), ("cloud", cloud)] {
        if let Some(url) = url {
            push_attribute(&mut event, key, url);
        }
    }
    push_attribute(&mut event, "known", &String::from(known));
    let id = short_hash(&event);
    push_attribute(&mut event, "id", &id);
    event
}

/// Adds the hubs of a feed to an event.
pub fn push_hubs(event: &mut String, hubs: &[String]) {
    for (key, hub) in HUB_KEYS.iter().zip(hubs) {
        push_attribute(event, key, hub);
    }
}

/// Reads what [`push_hubs`] has written.
pub fn hub_urls(payload: &Payload<'_>) -> Vec<String> {
    let urls = HUB_KEYS.iter().filter_map(|key| {
        let url = CanonicalUrl::parse(payload.attribute(key)?).ok()?;
        Some(url.as_str().to_owned())
    });
    bounded_unique(urls)
}

/// Reads what [`hub_event`] has written: the feed, its hubs, and the known items.
pub fn parse_hub_event(payload: &str) -> Option<(CanonicalUrl<'static>, Hubs, KnownItems)> {
    let payload = Payload::parse(payload);
    let feed = CanonicalUrl::parse(payload.target()?).ok()?.into_owned();
    let cloud = payload.attribute("cloud").and_then(|url| CanonicalUrl::parse(url).ok());
    // As the hub writes it.
    let topic = payload.attribute("topic").filter(|topic| CanonicalUrl::parse(topic).is_ok());
    let hubs = Hubs {
        hubs: hub_urls(&payload),
        topic: topic.map(str::to_owned),
        cloud: cloud.map(|url| url.as_str().to_owned()),
    };
    let known = payload.attribute("known").and_then(|known| known.parse().ok());
    (!hubs.is_empty()).then(|| (feed, hubs, known.unwrap_or_default()))
}

/// The ASCII characters that are escaped in an id. Other characters are always escaped.
const ESCAPED_IN_IDS: &AsciiSet = &CONTROLS.add(b' ').add(b'%');

/// The id of an item as one word: percent-encoded, or a hash if it is too long.
fn encode_item_id(id: &str) -> String {
    // Encoding never shortens, so an id over the limit is not encoded.
    let word = (id.len() <= FEED_ITEM_BYTES_MAX)
        .then(|| utf8_percent_encode(id, ESCAPED_IN_IDS).to_string())
        .filter(|word| word.len() <= FEED_ITEM_BYTES_MAX);
    word.unwrap_or_else(|| format!("hash:{}", short_hash(id)))
}

/// 128 bits.
fn short_hash(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex()[..32].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::feed::FeedEntry;

    #[test]
    fn hubs_of_a_feed_round_trip() {
        let feed = CanonicalUrl::parse("https://blog.example/feed").unwrap();
        let hubs = Hubs {
            hubs: vec!["https://hub.example/?a=b".into(), "https://other.example/,".into()],
            topic: Some("https://blog.example/%e6%97%a5?x".into()),
            cloud: None,
        };
        let entry = |id: &str| FeedEntry { id: id.into(), ..FeedEntry::default() };
        let known = KnownItems::newest(&[entry("a"), entry("b"), entry("c")], 2);
        let event = hub_event(&feed, &feed, &hubs, known.clone(), HubEventFlags::default());
        assert!(!event.contains(char::is_control), "{event}");
        assert_eq!(parse_hub_event(&event), Some((feed.clone(), hubs.clone(), known)));
        // The same content is the same event; another item makes another event.
        let id = |event: &str| Payload::parse(event).attribute("id").unwrap().to_owned();
        let other = hub_event(
            &feed,
            &feed,
            &hubs,
            KnownItems::newest(&[entry("a")], 2),
            HubEventFlags::default(),
        );
        assert_ne!(id(&event), id(&other));
        for none in ["text", "https://blog.example/feed", "https://blog.example/feed hub=no"] {
            assert_eq!(parse_hub_event(none), None, "{none}");
        }
    }

    #[test]
    fn ids_are_one_word_and_not_too_long() {
        assert_eq!(encode_item_id("tag:a.example,2026:é x"), "tag:a.example,2026:%C3%A9%20x");
        assert!(encode_item_id(&" ".repeat(FEED_ITEM_BYTES_MAX)).starts_with("hash:"));
        assert_eq!(encode_item_id(&"x".repeat(FEED_ITEM_BYTES_MAX)).len(), FEED_ITEM_BYTES_MAX);
    }
}
