//! Parses the forms of rssCloud, as the cloud. Pure.
//!
//! It supports what aggregators use today: `POST`, without XML-RPC and SOAP. Only these need
//! `notifyProcedure` and `registerProcedure`, which are ignored.

use std::net::IpAddr;
use std::time::Duration;

use tidings_protocol::CanonicalUrl;

use super::hub_request::{
    FormFields, HubResult, HubRules, SubscriberProtocol, SubscriptionRequest, bad_request,
};

/// The lease of a registration, by convention. Subscribers renew every 24 hours.
const RSSCLOUD_LEASE: Duration = Duration::from_hours(25);

/// Limit of feeds in one registration. Each causes a request to a host that has not agreed to it
/// yet.
const FEEDS_MAX: usize = 10;

impl HubRules {
    /// Parses a registration into one subscription request for each feed. Without a `domain` the
    /// callback is at `peer`, if the client is connected directly.
    pub(super) fn parse_registration(
        &self,
        body: &[u8],
        peer: Option<IpAddr>,
    ) -> HubResult<Vec<SubscriptionRequest>> {
        let form = FormFields::parse(body)?;
        let domain = form.single("domain", "domain is repeated")?;
        let (host, protocol) = match (domain.filter(|domain| !domain.is_empty()), peer) {
            (Some(domain), _) => (domain.to_owned(), SubscriberProtocol::RssCloud),
            (None, Some(IpAddr::V6(peer))) => {
                (format!("[{peer}]"), SubscriberProtocol::RssCloudPeer)
            }
            (None, Some(IpAddr::V4(peer))) => (peer.to_string(), SubscriberProtocol::RssCloudPeer),
            (None, None) => {
                return Err(bad_request("domain is missing, and the request came through a proxy"));
            }
        };
        let port =
            form.single("port", "port is repeated")?.ok_or(bad_request("port is missing"))?;
        let port: u16 =
            port.parse().map_err(|_| bad_request("port must be a number of at most 65535"))?;
        let scheme = match form.single("protocol", "protocol is repeated")? {
            Some("https-post") => "https",
            // Subscribers that do not know https-post request TLS by the port.
            Some("http-post") | None if port == 443 => "https",
            Some("http-post") | None => "http",
            Some(_) => return Err(bad_request("protocol must be http-post or https-post")),
        };
        let path =
            form.single("path", "path is repeated")?.ok_or(bad_request("path is missing"))?;
        let slash = if path.starts_with('/') { "" } else { "/" };
        let callback = self.parse_callback(&format!("{scheme}://{host}:{port}{slash}{path}"))?;
        if !has_host_and_port(&callback, &host, port) {
            return Err(bad_request("domain must be a host name or an address"));
        }
        let mut requests: Vec<SubscriptionRequest> = Vec::new();
        for (_, url) in form.fields().filter(|(name, _)| is_feed_field(name)) {
            let (topic, callback) = (self.parse_topic(url)?, callback.clone());
            if requests.iter().any(|request| request.topic.url == topic.url) {
                continue;
            }
            if requests.len() == FEEDS_MAX {
                return Err(bad_request("the request names more than 10 feeds"));
            }
            requests.push(SubscriptionRequest {
                topic,
                callback,
                protocol,
                lease: Some(RSSCLOUD_LEASE),
                secret: None,
            });
        }
        if requests.is_empty() {
            Err(bad_request("the request names no feed: url1, url2, .."))
        } else {
            Ok(requests)
        }
    }

    /// Parses a ping: the feed that has changed.
    pub(super) fn parse_ping(&self, body: &[u8]) -> HubResult<Vec<CanonicalUrl<'static>>> {
        let form = FormFields::parse(body)?;
        self.parse_topics(form.values("url"))
    }
}

/// Whether the callback is at that host and port. A field must not change another part of the URL.
fn has_host_and_port(callback: &CanonicalUrl<'_>, host: &str, port: u16) -> bool {
    callback.port() == port
        && !host.bytes().any(|byte| b"/\\?#@%".contains(&byte))
        && (host.starts_with('[') || !host.contains(':'))
}

/// `url1`, `url2` and so on; some subscribers send `url`.
fn is_feed_field(name: &str) -> bool {
    name.strip_prefix("url").is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::hub_request::tests::{form, rules};
    use super::*;

    const VALID: [(&str, &str); 6] = [
        ("notifyProcedure", ""),
        ("domain", "reader.example"),
        ("port", "8080"),
        ("path", "/notify"),
        ("protocol", "http-post"),
        ("url1", "https://blog.example/feed.xml"),
    ];

    fn register_with(changed: &[(&str, &str)]) -> HubResult<Vec<SubscriptionRequest>> {
        let is_changed = |name: &str| changed.iter().any(|(other, _)| *other == name);
        let others = VALID.into_iter().filter(|(name, _)| !is_changed(name));
        let fields: Vec<_> = others.chain(changed.iter().copied()).collect();
        rules().parse_registration(&form(&fields), Some([192, 0, 2, 7].into()))
    }

    fn callback(changed: &[(&str, &str)]) -> String {
        register_with(changed).unwrap()[0].callback.to_string()
    }

    // PROTOCOL: B2, B3
    #[test]
    fn the_fields_form_the_callback_url() {
        assert_eq!(callback(&[]), "http://reader.example:8080/notify");
        assert_eq!(callback(&[("protocol", "https-post")]), "https://reader.example:8080/notify");
        assert_eq!(callback(&[("port", "443")]), "https://reader.example/notify");
        assert_eq!(callback(&[("port", "80"), ("path", "n?a=b")]), "http://reader.example/n?a=b");
        assert_eq!(callback(&[("domain", "")]), "http://192.0.2.7:8080/notify");
        assert_eq!(
            register_with(&[("domain", "")]).unwrap()[0].protocol,
            SubscriberProtocol::RssCloudPeer
        );
        assert_eq!(register_with(&[]).unwrap()[0].protocol, SubscriberProtocol::RssCloud);
        assert_eq!(register_with(&[]).unwrap()[0].lease, Some(Duration::from_hours(25)));
        let ipv6 = rules().parse_registration(
            &form(&[("port", "80"), ("path", "/"), ("url", "https://blog.example/")]),
            Some("2001:db8::1".parse().unwrap()),
        );
        assert_eq!(ipv6.unwrap()[0].callback.as_str(), "http://[2001:db8::1]/");
    }

    #[test]
    fn each_feed_is_one_subscription_request() {
        let feeds = [
            ("url1", "https://blog.example/a"),
            ("url2", "https://blog.example/b"),
            ("url3", "https://blog.example/a"),
            ("urls", "https://blog.example/c"),
        ];
        let requests = register_with(&feeds).unwrap();
        let topics: Vec<_> = requests.iter().map(|request| request.topic.url.path()).collect();
        assert_eq!(topics, ["/a", "/b"]);
    }

    #[test]
    fn invalid_registrations_are_rejected() {
        for changed in [
            ("domain", "reader.example/x"),
            ("domain", "me@reader.example"),
            ("domain", "reader.example:1"),
            ("domain", "reader example"),
            ("domain", "a#"),
            ("port", "0x50"),
            ("port", "65536"),
            ("protocol", "xml-rpc"),
            ("url1", "nothing"),
            ("url1", ""),
        ] {
            assert_eq!(register_with(&[changed]).unwrap_err().status, 400, "{changed:?}");
        }
        let elsewhere = register_with(&[("url2", "https://elsewhere.example/")]);
        assert_eq!(elsewhere.unwrap_err().status, 404);
        let unknown = rules().parse_registration(&form(&VALID[2..]), None);
        assert_eq!(unknown.unwrap_err().status, 400);
        assert_eq!(rules().parse_registration(b"", None).unwrap_err().status, 400);
    }

    proptest! {
        #[test]
        fn the_callback_has_the_requested_host_and_port(
            domain in "[a-z@:/\\\\#?.%\\[\\] ]{1,12}", port in any::<u16>(), path in "\\PC{0,12}",
        ) {
            let port = port.to_string();
            if let Ok(requests) = register_with(&[("domain", &domain), ("port", &port), ("path", &path)]) {
                prop_assert_eq!(requests[0].callback.port().to_string(), port);
                let host = requests[0].callback.host().trim_end_matches('.');
                prop_assert!(domain.trim_end_matches('.') == host || domain.starts_with('['), "{} {}", domain, host);
            }
        }
    }

    #[test]
    fn the_number_of_feeds_is_limited() {
        let form = |count: usize| {
            let feeds = (0..count).map(|n| format!("&url{n}=https://blog.example/{n}"));
            format!("domain=a.example&port=80&path=/x{}", feeds.collect::<String>())
        };
        assert_eq!(
            rules().parse_registration(form(FEEDS_MAX).as_bytes(), None).unwrap().len(),
            FEEDS_MAX
        );
        assert!(rules().parse_registration(form(FEEDS_MAX + 1).as_bytes(), None).is_err());
    }
}
