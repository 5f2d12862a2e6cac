//! Forms of strangers.

use std::net::IpAddr;
use std::time::Duration;

use tidings_broker::access::is_below;

use super::request::{Request, Rules, Wish};

/// What is asked for in the first byte, and a form. What comes of it is one's own topic, and a
/// callback that can stand in a header.
pub(crate) fn form(bytes: &[u8]) {
    let Some((kind, body)) = bytes.split_first() else { return };
    let url = |text: &str| text.parse().expect("it is a URL");
    let rules = Rules {
        prefixes: vec![url("https://blog.example/"), url("https://site.example/feeds/")],
        hub: url("https://blog.example/tidings/hub"),
        lease: Duration::from_hours(240),
        lease_min: Duration::from_hours(1),
        lease_max: Duration::from_hours(720),
    };
    let is_own = |topic: &_| rules.prefixes.iter().any(|prefix| is_below(topic, prefix));
    let check = |wish: &Wish| {
        assert!(is_own(&wish.topic.url), "{} is somebody else's", wish.topic.url);
        assert!(!is_below(&wish.callback, &rules.hub), "{} is the hub itself", wish.callback);
        for text in [wish.topic.named.as_str(), wish.topic.url.as_str(), wish.callback.as_str()] {
            assert!(text.bytes().all(|byte| byte.is_ascii_graphic()), "{text:?}");
        }
        let lease = wish.lease.unwrap_or(rules.lease);
        assert!((rules.lease_min..=rules.lease_max).contains(&lease), "{lease:?}");
    };
    let peer = IpAddr::from([192, 0, 2, 7]);
    match kind % 3 {
        0 => match rules.read(body) {
            Ok(Request::Subscriber(wish)) => check(&wish),
            Ok(Request::Publish(topics)) => assert!(topics.iter().all(is_own), "{topics:?}"),
            Err(refused) => assert!((400..600).contains(&refused.status)),
        },
        1 => match rules.register(body, (kind & 0x80 == 0).then_some(peer)) {
            Ok(wishes) => wishes.iter().for_each(check),
            Err(refused) => assert!((400..600).contains(&refused.status)),
        },
        _ => match rules.ping(body) {
            Ok(topics) => assert!(topics.iter().all(is_own), "{topics:?}"),
            Err(refused) => assert!((400..600).contains(&refused.status)),
        },
    }
}
