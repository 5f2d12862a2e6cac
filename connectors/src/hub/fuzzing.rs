//! The fuzz target for forms, which come from anonymous clients.

use std::net::IpAddr;
use std::time::Duration;

use tidings_protocol::CanonicalUrl;

use super::hub_request::{HubRequest, HubRules, SubscriptionRequest};

/// The first byte selects the parser, the rest is a form. An accepted form names only topics of the
/// hub, and a callback that is valid in a header.
pub(crate) fn form(bytes: &[u8]) {
    let Some((selector, body)) = bytes.split_first() else { return };
    let url = |text: &str| text.parse().expect("it is a URL");
    let rules = HubRules {
        topic_prefixes: vec![url("https://blog.example/"), url("https://site.example/feeds/")],
        hub_url: url("https://blog.example/tidings/hub"),
        default_lease: Duration::from_hours(240),
        lease_min: Duration::from_hours(1),
        lease_max: Duration::from_hours(720),
    };
    let is_own =
        |topic: &CanonicalUrl<'_>| rules.topic_prefixes.iter().any(|prefix| topic.is_below(prefix));
    let check = |request: &SubscriptionRequest| {
        assert!(is_own(&request.topic.url), "{} is not a topic of the hub", request.topic.url);
        assert!(
            !request.callback.is_below(&rules.hub_url),
            "{} is the hub itself",
            request.callback
        );
        for text in [
            request.topic.verbatim_url.as_str(),
            request.topic.url.as_str(),
            request.callback.as_str(),
        ] {
            assert!(text.bytes().all(|byte| byte.is_ascii_graphic()), "{text:?}");
        }
        let lease = request.lease.unwrap_or(rules.default_lease);
        assert!((rules.lease_min..=rules.lease_max).contains(&lease), "{lease:?}");
    };
    let peer = IpAddr::from([192, 0, 2, 7]);
    match selector % 3 {
        0 => match rules.parse_request(body) {
            Ok(HubRequest::Subscription(request)) => check(&request),
            Ok(HubRequest::Publish(topics)) => assert!(topics.iter().all(is_own), "{topics:?}"),
            Err(rejection) => assert!((400..600).contains(&rejection.status)),
        },
        1 => match rules.parse_registration(body, (selector & 0x80 == 0).then_some(peer)) {
            Ok(requests) => requests.iter().for_each(check),
            Err(rejection) => assert!((400..600).contains(&rejection.status)),
        },
        _ => match rules.parse_ping(body) {
            Ok(topics) => assert!(topics.iter().all(is_own), "{topics:?}"),
            Err(rejection) => assert!((400..600).contains(&rejection.status)),
        },
    }
}
