//! The requests that are made to subscribers: pure, but for the chance in a challenge.

use aws_lc_rs::{hmac, rand};
use bytes::Bytes;
use data_encoding::HEXLOWER;
use hyper::HeaderMap;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue, LINK};
use tidings_protocol::CanonicalUrl;
use url::form_urlencoded;

use super::request::{Kind, Wish};
use super::store::{Content, Due};
use crate::outgoing::OutgoingResponse;

/// Bytes of chance in a challenge, which nobody guesses.
const CHALLENGE_BYTES: usize = 32;

/// Bytes of a `Content-Type`; a longer one says nothing.
const CONTENT_TYPE_BYTES_MAX: usize = 256;

const SIGNATURE: HeaderName = HeaderName::from_static("x-hub-signature");

/// How somebody shows that it wants what was asked in its name.
#[derive(Debug)]
pub(super) enum Challenge {
    /// It is asked this, and answers with the text and nothing else.
    Asked { url: CanonicalUrl<'static>, text: String },
    /// It is told of the topic, and takes that.
    Told,
}

impl Challenge {
    pub(super) fn of(wish: &Wish) -> Self {
        let text = chance();
        let named = wish.topic.named.as_str();
        let seconds = wish.lease.map(|lease| lease.as_secs().to_string());
        let mut query = Vec::new();
        match wish.kind {
            Kind::CloudOfPeer => return Self::Told,
            Kind::Cloud => query.extend([("url", named), ("challenge", text.as_str())]),
            Kind::WebSub => {
                let mode = if wish.lease.is_some() { "subscribe" } else { "unsubscribe" };
                query.extend([("hub.mode", mode), ("hub.topic", named), ("hub.challenge", &text)]);
                query.extend(seconds.iter().map(|seconds| ("hub.lease_seconds", seconds.as_str())));
            }
        }
        match with_query(&wish.callback, &query) {
            Some(url) => Self::Asked { url, text },
            None => unreachable!("the two are short enough to be one URL"),
        }
    }

    /// Whether the answer shows it.
    pub(super) fn is_met(&self, answered: &OutgoingResponse) -> bool {
        let is_right = match self {
            Self::Asked { text, .. } => answered.is_complete && answered.body == text.as_bytes(),
            Self::Told => true,
        };
        is_right && answered.status.is_success()
    }
}

/// What is asked of whom the hub does not take, though it was wished and meant, if its protocol has
/// a word for that.
pub(super) fn denial(wish: &Wish) -> Option<CanonicalUrl<'static>> {
    let query = [
        ("hub.mode", "denied"),
        ("hub.topic", wish.topic.named.as_str()),
        ("hub.reason", "there is no room for more subscribers"),
    ];
    (wish.kind == Kind::WebSub).then(|| with_query(&wish.callback, &query)).flatten()
}

/// A URL with more in its query, of which what is there stays.
fn with_query(url: &CanonicalUrl<'_>, query: &[(&str, &str)]) -> Option<CanonicalUrl<'static>> {
    let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(query).finish();
    let path = url.path_and_query();
    let before = match path.split_once('?') {
        None => "?",
        Some((_, "")) => "",
        Some((_, there)) if there.ends_with('&') => "",
        Some(_) => "&",
    };
    CanonicalUrl::parse(&format!("{url}{before}{query}")).ok().map(CanonicalUrl::into_owned)
}

fn chance() -> String {
    let mut bytes = [0; CHALLENGE_BYTES];
    rand::fill(&mut bytes).expect("the system has randomness");
    HEXLOWER.encode(&bytes)
}

/// What a content is, if that is said.
pub(super) fn content_type(headers: &HeaderMap) -> Option<Vec<u8>> {
    let value = headers.get(CONTENT_TYPE)?.as_bytes();
    (value.len() <= CONTENT_TYPE_BYTES_MAX).then(|| value.to_vec())
}

/// Whether a subscriber is sent the content, and not only told that there is one.
pub(super) fn has_content(kind: Kind) -> bool {
    kind == Kind::WebSub
}

/// The headers of a content that is sent to a subscriber.
pub(super) fn headers(due: &Due, content: &Content, hub: &CanonicalUrl<'_>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let kind = content.kind.as_deref().and_then(|kind| HeaderValue::from_bytes(kind).ok());
    let unknown = HeaderValue::from_static("application/octet-stream");
    headers.insert(CONTENT_TYPE, kind.unwrap_or(unknown));
    let links = format!("<{hub}>; rel=\"hub\", <{}>; rel=\"self\"", due.named);
    headers.insert(LINK, HeaderValue::from_str(&links).expect("both are visible ASCII"));
    if let Some(secret) = &due.secret {
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
        let signature =
            format!("sha256={}", HEXLOWER.encode(hmac::sign(&key, &content.body).as_ref()));
        headers.insert(SIGNATURE, HeaderValue::from_str(&signature).expect("it is hexadecimal"));
    }
    headers
}

/// How rssCloud says that a topic has changed.
pub(super) fn notice(named: &str) -> (HeaderMap, Bytes) {
    let form = form_urlencoded::Serializer::new(String::new()).append_pair("url", named).finish();
    let form_type = HeaderValue::from_static("application/x-www-form-urlencoded");
    (HeaderMap::from_iter([(CONTENT_TYPE, form_type)]), form.into())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hyper::StatusCode;

    use super::super::request::{Topic, URL_BYTES_MAX};
    use super::*;

    fn wish(kind: Kind, lease: Option<u64>, callback: &str) -> Wish {
        let named = "https://Blog.example/a?b&c".to_owned();
        Wish {
            topic: Topic { url: named.parse().unwrap(), named },
            callback: callback.parse().unwrap(),
            kind,
            lease: lease.map(Duration::from_secs),
            secret: None,
        }
    }

    /// What is asked, with the challenge as `C`.
    #[track_caller]
    fn asked(wish: &Wish) -> String {
        match Challenge::of(wish) {
            Challenge::Asked { url, text } => {
                assert_eq!(text.len(), 64);
                url.as_str().replace(&text, "C")
            }
            Challenge::Told => panic!("told"),
        }
    }

    // PROTOCOL: B2
    #[test]
    fn a_challenge_says_what_the_subscriber_has_said() {
        let topic = "https%3A%2F%2FBlog.example%2Fa%3Fb%26c";
        assert_eq!(
            asked(&wish(Kind::WebSub, Some(60), "https://r.example/cb")),
            format!(
                "https://r.example/cb?hub.mode=subscribe&hub.topic={topic}&hub.challenge=C&hub.lease_seconds=60"
            )
        );
        assert_eq!(
            asked(&wish(Kind::WebSub, None, "https://r.example/?id=1")),
            format!(
                "https://r.example/?id=1&hub.mode=unsubscribe&hub.topic={topic}&hub.challenge=C"
            )
        );
        for (callback, before) in [("https://r.example/?", "?"), ("https://r.example/?a&", "?a&")] {
            assert_eq!(
                asked(&wish(Kind::Cloud, Some(60), callback)),
                format!("https://r.example/{before}url={topic}&challenge=C")
            );
        }
        let peer = wish(Kind::CloudOfPeer, Some(60), "http://192.0.2.1/");
        assert!(matches!(Challenge::of(&peer), Challenge::Told));
    }

    #[test]
    fn a_denial_is_of_websub() {
        let denied = denial(&wish(Kind::WebSub, Some(60), "https://r.example/cb?id=1"));
        let reason = "there+is+no+room+for+more+subscribers";
        let topic = "https%3A%2F%2FBlog.example%2Fa%3Fb%26c";
        assert_eq!(
            denied.unwrap().as_str(),
            format!(
                "https://r.example/cb?id=1&hub.mode=denied&hub.topic={topic}&hub.reason={reason}"
            )
        );
        assert!(denial(&wish(Kind::Cloud, Some(60), "https://r.example/")).is_none());
    }

    #[test]
    fn the_longest_callback_and_topic_still_make_a_url() {
        let long = |url: &str| format!("{url}{}", "%".repeat(URL_BYTES_MAX - url.len()));
        let mut wish = wish(Kind::WebSub, Some(60), &long("https://r.example/?"));
        wish.topic.named = long("https://blog.example/");
        assert!(matches!(Challenge::of(&wish), Challenge::Asked { .. }));
        assert!(denial(&wish).is_some());
    }

    // PROTOCOL: B2
    #[test]
    fn only_the_whole_challenge_and_nothing_else_meets_it() {
        let challenge = Challenge::of(&wish(Kind::WebSub, Some(60), "https://r.example/cb"));
        let Challenge::Asked { text, .. } = &challenge else { panic!("{challenge:?}") };
        let answered = |status: u16, body: &str, is_whole| OutgoingResponse {
            status: StatusCode::from_u16(status).unwrap(),
            headers: HeaderMap::new(),
            body: body.to_owned().into(),
            is_complete: is_whole,
        };
        assert!(challenge.is_met(&answered(204, text, true)));
        assert!(!challenge.is_met(&answered(200, text, false)));
        assert!(!challenge.is_met(&answered(200, &text[1..], true)));
        assert!(!challenge.is_met(&answered(200, &format!("{text}\n"), true)));
        assert!(!challenge.is_met(&answered(302, text, true)));
        assert!(!challenge.is_met(&answered(404, text, true)));
        assert!(Challenge::Told.is_met(&answered(200, "", false)));
        assert!(!Challenge::Told.is_met(&answered(410, "", true)));
    }

    // PROTOCOL: B5
    #[test]
    fn a_content_is_signed_as_the_specification_says() {
        // RFC 4231, test case 2.
        let due = Due {
            version: 1,
            topic: 1,
            callback: "https://r.example/".parse().unwrap(),
            named: "https://Blog.example".to_owned(),
            kind: Kind::WebSub,
            secret: Some("Jefe".to_owned()),
        };
        let content = Content {
            version: 1,
            kind: Some(b"application/rss+xml".to_vec()),
            body: Bytes::from_static(b"what do ya want for nothing?"),
        };
        let hub = "https://blog.example/hub".parse().unwrap();
        let headers = headers(&due, &content, &hub);
        assert_eq!(
            headers["x-hub-signature"],
            "sha256=5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
        assert_eq!(headers["content-type"], "application/rss+xml");
        assert_eq!(
            headers["link"],
            "<https://blog.example/hub>; rel=\"hub\", <https://Blog.example>; rel=\"self\""
        );
        let unsigned = super::headers(&Due { secret: None, ..due }, &content, &hub);
        assert!(!unsigned.contains_key("x-hub-signature"));
    }
}
