//! What a form asks of the hub, or why it may not: pure. All of it is a stranger's.

use std::borrow::Cow;
use std::time::Duration;

use tidings_broker::access::is_below;
use tidings_protocol::CanonicalUrl;
use url::form_urlencoded;

/// Bytes of a form.
pub(super) const FORM_BYTES_MAX: usize = 64 << 10;
/// Fields of a form.
const FIELDS_MAX: usize = 256;
/// Bytes of a URL in a form, and of a callback as it is then: with a topic in its query, of which
/// each byte may become three, a callback is a URL still.
pub(super) const URL_BYTES_MAX: usize = 1900;
/// Bytes of `hub.secret`, which are fewer than 200 by the specification.
const SECRET_BYTES_MAX: usize = 199;
/// Topics that one request is about.
const TOPICS_MAX: usize = 100;

/// What the hub is for, and for how long it promises anything.
#[derive(Debug, Clone)]
pub struct Rules {
    /// Below which URLs the topics lie.
    pub prefixes: Vec<CanonicalUrl<'static>>,
    /// The URL of the hub itself, at which nobody is called back.
    pub hub: CanonicalUrl<'static>,
    /// For who asks for no other.
    pub lease: Duration,
    /// `lease_min <= lease <= lease_max`; what is asked for beyond them is taken as them.
    pub lease_min: Duration,
    /// As above.
    pub lease_max: Duration,
}

/// Why something is not done, in our own words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refused {
    /// Of HTTP, 4xx or 5xx.
    pub(super) status: u16,
    /// For people.
    pub(super) text: &'static str,
}

/// A topic, as it is known here and as somebody calls it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Topic {
    /// What it is compared by and fetched at.
    pub(super) url: CanonicalUrl<'static>,
    /// As the subscriber wrote it, who compares it with what we say. Visible ASCII without `<`, `>`
    /// and `"`.
    pub(super) named: String,
}

/// How somebody is told, and shows that it wants to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// WebSub: asked with a challenge, told the content.
    WebSub,
    /// rssCloud with `domain`: asked with a challenge, told the URL.
    Cloud,
    /// rssCloud without: told the URL at once as a test.
    CloudOfPeer,
}

/// What a subscriber wants. The secret is shown nowhere.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Wish {
    /// Of what it is to be told, or not any more.
    pub(super) topic: Topic,
    /// Where.
    pub(super) callback: CanonicalUrl<'static>,
    /// How.
    pub(super) kind: Kind,
    /// For how long it is to be told; `None`: not any more.
    pub(super) lease: Option<Duration>,
    /// What contents are signed with.
    pub(super) secret: Option<String>,
}

impl std::fmt::Debug for Wish {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} at {} for {:?}", self.topic.url, self.callback, self.lease)
    }
}

/// What a form asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Request {
    /// To be told, or not any more.
    Subscriber(Wish),
    /// To look at topics, as they have changed.
    Publish(Vec<CanonicalUrl<'static>>),
}

/// The fields of a form.
pub(super) struct Form<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'a> Form<'a> {
    pub(super) fn parse(body: &'a [u8]) -> Result<Self, Refused> {
        if body.len() > FORM_BYTES_MAX {
            return Err(Refused { status: 413, text: "the form is too long" });
        }
        let fields: Vec<_> = form_urlencoded::parse(body).take(FIELDS_MAX + 1).collect();
        if fields.len() > FIELDS_MAX {
            return Err(bad("there are too many fields"));
        }
        Ok(Self(fields))
    }

    pub(super) fn all<'f>(&'f self, name: &'f str) -> impl Iterator<Item = &'f str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_ref())
    }

    pub(super) fn fields(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_ref(), value.as_ref()))
    }

    /// The value of a field that is there once at most. What is there twice may be read otherwise
    /// by somebody else.
    pub(super) fn one(&self, name: &str, twice: &'static str) -> Result<Option<&str>, Refused> {
        let mut all = self.0.iter().filter(|(key, _)| key == name);
        let first = all.next().map(|(_, value)| value.as_ref());
        if all.next().is_some() { Err(bad(twice)) } else { Ok(first) }
    }
}

pub(super) fn bad(text: &'static str) -> Refused {
    Refused { status: 400, text }
}

/// Whether a form says that something has changed, perhaps wrongly.
pub(super) fn is_publish(body: &[u8]) -> bool {
    Form::parse(body).is_ok_and(|form| form.all("hub.mode").any(|mode| mode == "publish"))
}

impl Rules {
    /// What a form asks of the hub's endpoint.
    pub(super) fn read(&self, body: &[u8]) -> Result<Request, Refused> {
        let form = Form::parse(body)?;
        let mode = form.one("hub.mode", "hub.mode is there twice")?;
        match mode {
            Some("subscribe") => self.subscribe(&form).map(Request::Subscriber),
            Some("unsubscribe") => {
                let (topic, callback) = self.subject(&form)?;
                let (kind, lease, secret) = (Kind::WebSub, None, None);
                Ok(Request::Subscriber(Wish { topic, callback, kind, lease, secret }))
            }
            // Publishers of today say hub.url, as those of PubSubHubbub did; some say hub.topic.
            Some("publish") => {
                let urls = form.all("hub.url").chain(form.all("hub.url[]"));
                self.published(urls.chain(form.all("hub.topic"))).map(Request::Publish)
            }
            Some(_) => Err(bad("hub.mode is subscribe, unsubscribe or publish")),
            None => Err(bad("hub.mode is missing")),
        }
    }

    /// The topics that somebody says have changed, each once.
    pub(super) fn published<'f>(
        &self,
        urls: impl Iterator<Item = &'f str>,
    ) -> Result<Vec<CanonicalUrl<'static>>, Refused> {
        let mut topics = Vec::new();
        for url in urls {
            let Topic { url, .. } = self.topic(url)?;
            if !topics.contains(&url) {
                topics.push(url);
            }
            if topics.len() > TOPICS_MAX {
                return Err(bad("these are too many topics for one request"));
            }
        }
        if topics.is_empty() { Err(bad("no topic is named")) } else { Ok(topics) }
    }

    /// A topic of this hub.
    pub(super) fn topic(&self, text: &str) -> Result<Topic, Refused> {
        let is_visible = |byte: u8| byte.is_ascii_graphic() && !b"<>\"".contains(&byte);
        if text.len() > URL_BYTES_MAX || !text.bytes().all(is_visible) {
            return Err(bad("the topic is no URL, or too long"));
        }
        let url = CanonicalUrl::parse(text).map_err(|_| bad("the topic is no http(s) URL"))?;
        if !self.prefixes.iter().any(|prefix| is_below(&url, prefix)) {
            return Err(Refused { status: 404, text: "this hub has no such topic" });
        }
        Ok(Topic { url: url.into_owned(), named: text.to_owned() })
    }

    /// Whether a topic is one of this hub, which may have been told otherwise since it was
    /// subscribed to.
    pub(super) fn has(&self, topic: &CanonicalUrl<'_>) -> bool {
        self.prefixes.iter().any(|prefix| is_below(topic, prefix))
    }

    /// Where somebody is called back.
    pub(super) fn callback(&self, text: &str) -> Result<CanonicalUrl<'static>, Refused> {
        if text.len() > URL_BYTES_MAX {
            return Err(bad("the callback is too long"));
        }
        let url = CanonicalUrl::parse(text).map_err(|_| bad("the callback is no http(s) URL"))?;
        if url.as_str().len() > URL_BYTES_MAX {
            return Err(bad("the callback is too long"));
        }
        url.check_callable().map_err(|_| {
            bad("the callback's host has an xn-- label that is no valid IDNA, which this hub cannot send to")
        })?;
        if is_below(&url, &self.hub) {
            return Err(bad("the callback is this hub"));
        }
        Ok(url.into_owned())
    }

    /// A lease within the bounds.
    pub(super) fn lease(&self, asked: Option<Duration>) -> Duration {
        asked.unwrap_or(self.lease).clamp(self.lease_min, self.lease_max)
    }

    fn subscribe(&self, form: &Form<'_>) -> Result<Wish, Refused> {
        let (topic, callback) = self.subject(form)?;
        let secret = form.one("hub.secret", "hub.secret is there twice")?;
        // An empty one would sign what anybody can sign.
        let secret = secret.filter(|secret| !secret.is_empty());
        if secret.is_some_and(|secret| secret.len() > SECRET_BYTES_MAX) {
            return Err(bad("hub.secret has 200 bytes or more"));
        }
        let asked = form.one("hub.lease_seconds", "hub.lease_seconds is there twice")?;
        let asked = match asked.filter(|asked| !asked.is_empty()) {
            None => None,
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                // More digits than a number has are more than the most there is.
                Some(Duration::from_secs(digits.parse().unwrap_or(u64::MAX)))
            }
            Some(_) => return Err(bad("hub.lease_seconds is no number")),
        };
        let (lease, secret) = (Some(self.lease(asked)), secret.map(str::to_owned));
        Ok(Wish { topic, callback, kind: Kind::WebSub, lease, secret })
    }

    fn subject(&self, form: &Form<'_>) -> Result<(Topic, CanonicalUrl<'static>), Refused> {
        let callback = form.one("hub.callback", "hub.callback is there twice")?;
        let callback = self.callback(callback.ok_or(bad("hub.callback is missing"))?)?;
        let topic = form.one("hub.topic", "hub.topic is there twice")?;
        Ok((self.topic(topic.ok_or(bad("hub.topic is missing"))?)?, callback))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn rules() -> Rules {
        Rules {
            prefixes: vec![
                "https://blog.example/".parse().unwrap(),
                "https://site.example/feeds".parse().unwrap(),
            ],
            hub: "https://blog.example/tidings/hub".parse().unwrap(),
            lease: Duration::from_hours(240),
            lease_min: Duration::from_hours(1),
            lease_max: Duration::from_hours(720),
        }
    }

    pub(crate) fn form(fields: &[(&str, &str)]) -> Vec<u8> {
        form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish().into_bytes()
    }

    const GOOD: [(&str, &str); 3] = [
        ("hub.mode", "subscribe"),
        ("hub.topic", "https://Blog.example"),
        ("hub.callback", "https://reader.example/cb?id=1"),
    ];

    fn wish(more: &[(&str, &str)]) -> Result<Wish, Refused> {
        match rules().read(&form(&[&GOOD[..], more].concat()))? {
            Request::Subscriber(wish) => Ok(wish),
            Request::Publish(topics) => panic!("{topics:?}"),
        }
    }

    #[test]
    fn a_subscriber_gets_its_topic_back_as_it_has_written_it() {
        let wish = wish(&[("hub.secret", "s"), ("hub.lease_seconds", "86400")]).unwrap();
        assert_eq!(wish.topic.url.as_str(), "https://blog.example/");
        assert_eq!(wish.topic.named, "https://Blog.example");
        assert_eq!(wish.callback.as_str(), "https://reader.example/cb?id=1");
        assert_eq!(wish.lease, Some(Duration::from_hours(24)));
        assert_eq!(wish.secret.as_deref(), Some("s"));
        assert!(!format!("{wish:?}").contains("\"s\""));
    }

    // PROTOCOL: B3
    #[test]
    fn leases_stay_within_the_bounds() {
        let hours = |asked: &str| {
            wish(&[("hub.lease_seconds", asked)]).unwrap().lease.unwrap().as_secs() / 3600
        };
        assert_eq!(hours(""), 240);
        assert_eq!(hours("0"), 1);
        assert_eq!(hours("864000000"), 720);
        assert_eq!(hours("99999999999999999999999999"), 720);
    }

    // PROTOCOL: B1
    #[test]
    fn what_is_wrong_is_said() {
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
            let others = GOOD.iter().filter(|(name, _)| *name != changed.0);
            let fields: Vec<_> = others.copied().chain([changed]).collect();
            assert_eq!(rules().read(&form(&fields)).unwrap_err().status, status, "{changed:?}");
        }
        for (missing, _) in GOOD {
            let fields: Vec<_> = GOOD.into_iter().filter(|(name, _)| *name != missing).collect();
            assert_eq!(rules().read(&form(&fields)).unwrap_err().status, 400, "{missing}");
            let twice: Vec<_> =
                GOOD.into_iter().chain([(missing, "https://blog.example/")]).collect();
            assert_eq!(rules().read(&form(&twice)).unwrap_err().status, 400, "{missing}");
        }
        assert_eq!(rules().read(&vec![b'a'; FORM_BYTES_MAX + 1]).unwrap_err().status, 413);
        assert_eq!(rules().read(&b"a&".repeat(FIELDS_MAX + 1)).unwrap_err().status, 400);
    }

    #[test]
    fn a_publisher_names_topics_in_one_of_three_ways() {
        let publish = |fields: &[(&str, &str)]| {
            rules().read(&form(&[&[("hub.mode", "publish")][..], fields].concat()))
        };
        let (a, b) = ("https://blog.example/a", "https://site.example/feeds/b");
        let both = Ok(Request::Publish(vec![a.parse().unwrap(), b.parse().unwrap()]));
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
        fn no_bytes_are_too_much(body in prop::collection::vec(any::<u8>(), 0..600)) {
            let _ = rules().read(&body);
        }

        #[test]
        fn nothing_but_visible_ascii_comes_through(
            topic in "https://blog\\.example/[\\PC\\r\\n\\t<> ]{0,20}",
            callback in "https?://[a-z\\PC]{1,8}/[\\PC\\r\\n\\x00-\\x1f]{0,20}",
        ) {
            let mut fields = GOOD;
            (fields[1].1, fields[2].1) = (&topic, &callback);
            if let Ok(Request::Subscriber(wish)) = rules().read(&form(&fields)) {
                let texts = [wish.topic.named.as_str(), wish.topic.url.as_str(), wish.callback.as_str()];
                for text in texts {
                    prop_assert!(text.bytes().all(|byte| byte.is_ascii_graphic()), "{text:?}");
                }
            }
        }
    }

    // PROTOCOL: B1
    #[test]
    fn no_topic_leads_out_of_its_prefix() {
        let rules = rules();
        assert!(rules.topic("https://site.example/feeds/a").is_ok());
        for out in ["..%2fsecret", "%2e%2e%2fsecret", "..%5csecret", "..;/secret", "../secret"] {
            let refused = rules.topic(&format!("https://site.example/feeds/{out}")).unwrap_err();
            assert_eq!(refused.status, 404, "{out}");
        }
    }
}
