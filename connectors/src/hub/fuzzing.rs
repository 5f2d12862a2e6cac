//! The fuzz target for forms, which come from anonymous clients.

use std::net::IpAddr;
use std::time::Duration;

use tidings_broker::access::is_below;

use super::hub_request::{HubRequest, HubRules, SubscriptionRequest};

/// The first byte selects the parser, the rest is a form. An accepted form names only topics of the
/// hub, and a callback that is valid in a header.
pub(crate) fn form(bytes: &[u8]) {
    let Some((kind, body)) = bytes.split_first() else { return };
    let url = |text: &str| text.parse().expect("it is a URL");
    let rules = HubRules {
        topic_prefixes: vec![url("https://blog.example/"), url("https://site.example/feeds/")],
        hub_url: url("https://blog.example/tidings/hub"),
        default_lease: Duration::from_hours(240),
        lease_min: Duration::from_hours(1),
        lease_max: Duration::from_hours(720),
    };
    let is_own = |topic: &_| rules.topic_prefixes.iter().any(|prefix| is_below(topic, prefix));
    let check = |wish: &SubscriptionRequest| {
        assert!(is_own(&wish.topic.url), "{} is not a topic of the hub", wish.topic.url);
        assert!(!is_below(&wish.callback, &rules.hub_url), "{} is the hub itself", wish.callback);
        for text in
            [wish.topic.verbatim_url.as_str(), wish.topic.url.as_str(), wish.callback.as_str()]
        {
            assert!(text.bytes().all(|byte| byte.is_ascii_graphic()), "{text:?}");
        }
        let lease = wish.lease.unwrap_or(rules.default_lease);
        assert!((rules.lease_min..=rules.lease_max).contains(&lease), "{lease:?}");
    };
    let peer = IpAddr::from([192, 0, 2, 7]);
    match kind % 3 {
        0 => match rules.parse_request(body) {
            Ok(HubRequest::Subscription(wish)) => check(&wish),
            Ok(HubRequest::Publish(topics)) => assert!(topics.iter().all(is_own), "{topics:?}"),
            Err(refused) => assert!((400..600).contains(&refused.status)),
        },
        1 => match rules.parse_registration(body, (kind & 0x80 == 0).then_some(peer)) {
            Ok(wishes) => wishes.iter().for_each(check),
            Err(refused) => assert!((400..600).contains(&refused.status)),
        },
        _ => match rules.parse_ping(body) {
            Ok(topics) => assert!(topics.iter().all(is_own), "{topics:?}"),
            Err(refused) => assert!((400..600).contains(&refused.status)),
        },
    }
}
