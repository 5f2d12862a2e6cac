//! Parses and checks the forms that anonymous clients send to the hub. Pure.

use std::borrow::Cow;
use std::time::Duration;

use tidings_protocol::CanonicalUrl;
use url::form_urlencoded;

pub(super) const FORM_BYTES_MAX: usize = 64 << 10;
const FIELDS_MAX: usize = 256;
/// Limit of a URL in a form, and of a callback in its canonical form. A callback with a topic of
/// this length in its query, each byte escaped as three, is still a valid URL.
pub(super) const URL_BYTES_MAX: usize = 1900;
/// Limit of `hub.secret`. WebSub requires fewer than 200 bytes.
const SECRET_BYTES_MAX: usize = 199;
const TOPICS_MAX: usize = 100;

/// The topics of the hub, its URL, and its leases.
#[derive(Debug, Clone)]
pub struct HubRules {
    /// The topics are the URLs below one of these.
    pub topic_prefixes: Vec<CanonicalUrl<'static>>,
    /// The URL of the hub itself. Callbacks below it are rejected.
    pub hub_url: CanonicalUrl<'static>,
    /// The lease if the subscriber requests none.
    pub default_lease: Duration,
    /// `lease_min <= default_lease <= lease_max`. A requested lease is clamped to this range.
    pub lease_min: Duration,
    /// As above.
    pub lease_max: Duration,
}

/// Why a request is rejected. The text contains nothing from the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HubRejection {
    /// HTTP status, 4xx or 5xx.
    pub(super) status: u16,
    pub(super) text: &'static str,
}

/// A part of a request, or the rejection of the request.
pub(super) type HubResult<T> = Result<T, HubRejection>;

/// A topic, in canonical form and as the subscriber wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HubTopic {
    /// The canonical URL, at which the topic is fetched.
    pub(super) url: CanonicalUrl<'static>,
    /// The URL as the subscriber wrote it, because the subscriber compares it with what the hub
    /// sends. Visible ASCII without `<`, `>` and `"`.
    pub(super) verbatim_url: String,
}

/// How a subscriber is verified and notified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SubscriberProtocol {
    /// WebSub: verified by a challenge, gets the content.
    WebSub,
    /// rssCloud with `domain`: verified by a challenge, gets the URL.
    RssCloud,
    /// rssCloud without `domain`: verified by a notification, gets the URL.
    RssCloudPeer,
}

/// A request to subscribe or unsubscribe. `Debug` omits the secret.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct SubscriptionRequest {
    pub(super) topic: HubTopic,
    /// The URL that gets the notifications.
    pub(super) callback: CanonicalUrl<'static>,
    pub(super) protocol: SubscriberProtocol,
    /// Duration of the subscription; `None`: unsubscribe.
    pub(super) lease: Option<Duration>,
    /// The key that signs the content.
    pub(super) secret: Option<String>,
}

impl std::fmt::Debug for SubscriptionRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} at {} for {:?}", self.topic.url, self.callback, self.lease)
    }
}

/// A parsed request to the hub's WebSub endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HubRequest {
    Subscription(SubscriptionRequest),
    /// Fetch these topics, because they have changed.
    Publish(Vec<CanonicalUrl<'static>>),
}

pub(super) struct FormFields<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'a> FormFields<'a> {
    pub(super) fn parse(body: &'a [u8]) -> HubResult<Self> {
        if body.len() > FORM_BYTES_MAX {
            return Err(HubRejection { status: 413, text: "the form is longer than 64 KiB" });
        }
        let fields: Vec<_> = form_urlencoded::parse(body).take(FIELDS_MAX + 1).collect();
        if fields.len() > FIELDS_MAX {
            return Err(bad_request("the form has more than 256 fields"));
        }
        Ok(Self(fields))
    }

    pub(super) fn values<'f>(&'f self, name: &'f str) -> impl Iterator<Item = &'f str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_ref())
    }

    pub(super) fn fields(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_ref(), value.as_ref()))
    }

    /// The value of a field that must not be repeated. Another parser might use the other value.
    /// `repeated_text` is the error.
    pub(super) fn single(
        &self,
        name: &str,
        repeated_text: &'static str,
    ) -> HubResult<Option<&str>> {
        let mut all = self.0.iter().filter(|(key, _)| key == name);
        let first = all.next().map(|(_, value)| value.as_ref());
        if all.next().is_some() { Err(bad_request(repeated_text)) } else { Ok(first) }
    }
}

pub(super) fn bad_request(text: &'static str) -> HubRejection {
    HubRejection { status: 400, text }
}

/// Whether a form is a ping, valid or not.
pub(super) fn is_publish(body: &[u8]) -> bool {
    FormFields::parse(body).is_ok_and(|form| form.values("hub.mode").any(|mode| mode == "publish"))
}

impl HubRules {
    pub(super) fn parse_request(&self, body: &[u8]) -> HubResult<HubRequest> {
        let form = FormFields::parse(body)?;
        let mode = form.single("hub.mode", "hub.mode is repeated")?;
        match mode {
            Some("subscribe") => self.parse_subscribe(&form).map(HubRequest::Subscription),
            Some("unsubscribe") => {
                let (topic, callback) = self.parse_topic_and_callback(&form)?;
                let protocol = SubscriberProtocol::WebSub;
                let request =
                    SubscriptionRequest { topic, callback, protocol, lease: None, secret: None };
                Ok(HubRequest::Subscription(request))
            }
            // Publishers send hub.url today, as they did with PubSubHubbub. Some send hub.topic.
            Some("publish") => {
                let urls = form.values("hub.url").chain(form.values("hub.url[]"));
                self.parse_topics(urls.chain(form.values("hub.topic"))).map(HubRequest::Publish)
            }
            Some(_) => Err(bad_request("hub.mode must be subscribe, unsubscribe or publish")),
            None => Err(bad_request("hub.mode is missing")),
        }
    }

    /// Parses the topics of a ping, each once.
    pub(super) fn parse_topics<'f>(
        &self,
        urls: impl Iterator<Item = &'f str>,
    ) -> HubResult<Vec<CanonicalUrl<'static>>> {
        let mut topics = Vec::new();
        for url in urls {
            let HubTopic { url, .. } = self.parse_topic(url)?;
            if !topics.contains(&url) {
                topics.push(url);
            }
            if topics.len() > TOPICS_MAX {
                return Err(bad_request("the request names more than 100 topics"));
            }
        }
        if topics.is_empty() { Err(bad_request("the request names no topic")) } else { Ok(topics) }
    }

    /// Parses a topic, and checks that it belongs to this hub.
    pub(super) fn parse_topic(&self, text: &str) -> HubResult<HubTopic> {
        let is_visible = |byte: u8| byte.is_ascii_graphic() && !b"<>\"".contains(&byte);
        if text.len() > URL_BYTES_MAX || !text.bytes().all(is_visible) {
            return Err(bad_request(
                "the topic must be a URL of at most 1,900 visible ASCII characters",
            ));
        }
        let url = CanonicalUrl::parse(text)
            .map_err(|_| bad_request("the topic is not an http or https URL"))?;
        if !self.has_topic(&url) {
            return Err(HubRejection { status: 404, text: "this hub has no such topic" });
        }
        Ok(HubTopic { url: url.into_owned(), verbatim_url: text.to_owned() })
    }

    /// Whether a topic belongs to this hub. The prefixes may have changed since the subscription.
    pub(super) fn has_topic(&self, topic: &CanonicalUrl<'_>) -> bool {
        self.topic_prefixes.iter().any(|prefix| topic.is_below(prefix))
    }

    pub(super) fn parse_callback(&self, text: &str) -> HubResult<CanonicalUrl<'static>> {
        if text.len() > URL_BYTES_MAX {
            return Err(bad_request("the callback is longer than 1,900 bytes"));
        }
        let url = CanonicalUrl::parse(text)
            .map_err(|_| bad_request("the callback is not an http or https URL"))?;
        if url.as_str().len() > URL_BYTES_MAX {
            return Err(bad_request("the callback is longer than 1,900 bytes"));
        }
        url.check_callable().map_err(|_| {
            bad_request("the callback's host has an xn-- label that is not valid IDNA; the hub cannot send to it")
        })?;
        if url.is_below(&self.hub_url) {
            return Err(bad_request("the callback must not be a URL of this hub"));
        }
        Ok(url.into_owned())
    }

    fn parse_subscribe(&self, form: &FormFields<'_>) -> HubResult<SubscriptionRequest> {
        let (topic, callback) = self.parse_topic_and_callback(form)?;
        let secret = form.single("hub.secret", "hub.secret is repeated")?;
        // With an empty secret anyone could sign.
        let secret = secret.filter(|secret| !secret.is_empty());
        if secret.is_some_and(|secret| secret.len() > SECRET_BYTES_MAX) {
            return Err(bad_request("hub.secret is longer than 199 bytes"));
        }
        let requested = form.single("hub.lease_seconds", "hub.lease_seconds is repeated")?;
        let requested = match requested.filter(|requested| !requested.is_empty()) {
            None => None,
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                // A number that does not fit in a u64 exceeds the limit, too.
                Some(Duration::from_secs(digits.parse().unwrap_or(u64::MAX)))
            }
            Some(_) => return Err(bad_request("hub.lease_seconds must be a number")),
        };
        let lease = requested.unwrap_or(self.default_lease);
        let lease = Some(lease.clamp(self.lease_min, self.lease_max));
        let secret = secret.map(str::to_owned);
        let protocol = SubscriberProtocol::WebSub;
        Ok(SubscriptionRequest { topic, callback, protocol, lease, secret })
    }

    fn parse_topic_and_callback(
        &self,
        form: &FormFields<'_>,
    ) -> HubResult<(HubTopic, CanonicalUrl<'static>)> {
        let callback = form.single("hub.callback", "hub.callback is repeated")?;
        let callback =
            self.parse_callback(callback.ok_or(bad_request("hub.callback is missing"))?)?;
        let topic = form.single("hub.topic", "hub.topic is repeated")?;
        Ok((self.parse_topic(topic.ok_or(bad_request("hub.topic is missing"))?)?, callback))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn rules() -> HubRules {
        HubRules {
            topic_prefixes: vec![
                "https://blog.example/".parse().unwrap(),
                "https://site.example/feeds".parse().unwrap(),
            ],
            hub_url: "https://blog.example/tidings/hub".parse().unwrap(),
            default_lease: Duration::from_hours(240),
            lease_min: Duration::from_hours(1),
            lease_max: Duration::from_hours(720),
        }
    }

    pub(crate) fn form(fields: &[(&str, &str)]) -> Vec<u8> {
        form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish().into_bytes()
    }

    const VALID: [(&str, &str); 3] = [
        ("hub.mode", "subscribe"),
        ("hub.topic", "https://Blog.example"),
        ("hub.callback", "https://reader.example/cb?id=1"),
    ];

    fn subscribe_with(more: &[(&str, &str)]) -> HubResult<SubscriptionRequest> {
        match rules().parse_request(&form(&[&VALID[..], more].concat()))? {
            HubRequest::Subscription(request) => Ok(request),
            HubRequest::Publish(topics) => panic!("{topics:?}"),
        }
    }

    #[test]
    fn a_topic_is_kept_as_the_subscriber_wrote_it() {
        let request =
            subscribe_with(&[("hub.secret", "s"), ("hub.lease_seconds", "86400")]).unwrap();
        assert_eq!(request.topic.url.as_str(), "https://blog.example/");
        assert_eq!(request.topic.verbatim_url, "https://Blog.example");
        assert_eq!(request.callback.as_str(), "https://reader.example/cb?id=1");
        assert_eq!(request.lease, Some(Duration::from_hours(24)));
        assert_eq!(request.secret.as_deref(), Some("s"));
        assert!(!format!("{request:?}").contains("\"s\""));
    }

    // PROTOCOL: B3
    #[test]
    fn leases_are_clamped_to_the_limits() {
        let hours = |requested: &str| {
            subscribe_with(&[("hub.lease_seconds", requested)]).unwrap().lease.unwrap().as_secs()
                / 3600
        };
        assert_eq!(hours(""), 240);
        assert_eq!(hours("0"), 1);
        assert_eq!(hours("864000000"), 720);
        assert_eq!(hours("99999999999999999999999999"), 720);
    }

    // PROTOCOL: B1
    #[test]
    fn invalid_forms_are_rejected() {
        let long = format!("https://blog.example/{}", "a".repeat(URL_BYTES_MAX));
        let escaped = format!("https://reader.example/{}", "\u{e9}".repeat(900));
        let secret = "s".repeat(200);
        for (changed, status) in [
            (("hub.mode", "subscribed"), 400),
            (("hub.topic", "https://elsewhere.example/"), 404),
            (("hub.topic", "https://blog.example:444/"), 404),
            (("hub.topic", "http://blog.example/"), 404),
            (("hub.topic", "https://site.example/feeds2"), 404),
            (("hub.topic", "https://blog.example/<x>"), 400),
            (("hub.topic", "https://blog.example/a\r\nb: c"), 400),
            (("hub.topic", long.as_str()), 400),
            (("hub.callback", "ftp://reader.example/"), 400),
            (("hub.callback", "https://me:pw@reader.example/"), 400),
            (("hub.callback", "/cb"), 400),
            (("hub.callback", "https://blog.example/tidings/hub"), 400),
            (("hub.callback", "https://blog.example/tidings/hub/ping?a=b"), 400),
            (("hub.callback", long.as_str()), 400),
            (("hub.callback", escaped.as_str()), 400),
            (("hub.secret", secret.as_str()), 400),
            (("hub.lease_seconds", "-1"), 400),
            (("hub.lease_seconds", "1e9"), 400),
        ] {
            let others = VALID.iter().filter(|(name, _)| *name != changed.0);
            let fields: Vec<_> = others.copied().chain([changed]).collect();
            assert_eq!(
                rules().parse_request(&form(&fields)).unwrap_err().status,
                status,
                "{changed:?}"
            );
        }
        for (missing, _) in VALID {
            let fields: Vec<_> = VALID.into_iter().filter(|(name, _)| *name != missing).collect();
            assert_eq!(rules().parse_request(&form(&fields)).unwrap_err().status, 400, "{missing}");
            let repeated: Vec<_> =
                VALID.into_iter().chain([(missing, "https://blog.example/")]).collect();
            assert_eq!(
                rules().parse_request(&form(&repeated)).unwrap_err().status,
                400,
                "{missing}"
            );
        }
        assert_eq!(rules().parse_request(&vec![b'a'; FORM_BYTES_MAX + 1]).unwrap_err().status, 413);
        assert_eq!(rules().parse_request(&b"a&".repeat(FIELDS_MAX + 1)).unwrap_err().status, 400);
    }

    #[test]
    fn a_publisher_names_topics_in_one_of_three_ways() {
        let publish = |fields: &[(&str, &str)]| {
            rules().parse_request(&form(&[&[("hub.mode", "publish")][..], fields].concat()))
        };
        let (a, b) = ("https://blog.example/a", "https://site.example/feeds/b");
        let both = Ok(HubRequest::Publish(vec![a.parse().unwrap(), b.parse().unwrap()]));
        assert_eq!(publish(&[("hub.url", a), ("hub.url", b), ("hub.url", a)]), both);
        assert_eq!(publish(&[("hub.url[]", a), ("hub.topic", b)]), both);
        assert_eq!(publish(&[]).unwrap_err().status, 400);
        assert_eq!(
            publish(&[("hub.url", a), ("hub.url", "https://x.example/")]).unwrap_err().status,
            404
        );
        let many: Vec<_> = (0..=TOPICS_MAX).map(|n| format!("{a}{n}")).collect();
        let many: Vec<_> = many.iter().map(|url| ("hub.url", url.as_str())).collect();
        assert_eq!(publish(&many).unwrap_err().status, 400);
        assert!(publish(&many[1..]).is_ok());
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_a_panic(body in prop::collection::vec(any::<u8>(), 0..600)) {
            let _ = rules().parse_request(&body);
        }

        #[test]
        fn accepted_urls_are_visible_ascii(
            topic in "https://blog\\.example/[\\PC\\r\\n\\t<> ]{0,20}",
            callback in "https?://[a-z\\PC]{1,8}/[\\PC\\r\\n\\x00-\\x1f]{0,20}",
        ) {
            let mut fields = VALID;
            (fields[1].1, fields[2].1) = (&topic, &callback);
            if let Ok(HubRequest::Subscription(request)) = rules().parse_request(&form(&fields)) {
                let texts = [request.topic.verbatim_url.as_str(), request.topic.url.as_str(), request.callback.as_str()];
                for text in texts {
                    prop_assert!(text.bytes().all(|byte| byte.is_ascii_graphic()), "{text:?}");
                }
            }
        }
    }

    // PROTOCOL: B1
    #[test]
    fn a_topic_cannot_escape_its_prefix() {
        let rules = rules();
        assert!(rules.parse_topic("https://site.example/feeds/a").is_ok());
        for out in ["..%2fsecret", "%2e%2e%2fsecret", "..%5csecret", "..;/secret", "../secret"] {
            let refused =
                rules.parse_topic(&format!("https://site.example/feeds/{out}")).unwrap_err();
            assert_eq!(refused.status, 404, "{out}");
        }
    }
}
