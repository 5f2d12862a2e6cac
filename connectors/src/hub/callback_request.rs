//! The requests that the hub sends to callbacks. Pure, except for the random challenge.

use aws_lc_rs::hmac;
use bytes::Bytes;
use data_encoding::HEXLOWER;
use hyper::HeaderMap;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue, LINK};
use tidings_egress::client::OutgoingResponse;
use tidings_protocol::CanonicalUrl;
use url::form_urlencoded;

use super::hub_request::{SubscriberProtocol, SubscriptionRequest};
use super::store::{DueDelivery, TopicContent};
use crate::system::random_token;

/// Limit of a `Content-Type`. A longer one is discarded.
const CONTENT_TYPE_BYTES_MAX: usize = 256;

const SIGNATURE_HEADER: HeaderName = HeaderName::from_static("x-hub-signature");

/// How the callback confirms a request.
#[derive(Debug)]
pub(super) enum Challenge {
    /// It gets a GET of this URL, and must respond with the text and nothing else.
    Echo { url: CanonicalUrl<'static>, text: String },
    /// It gets a notification for the topic, and must accept it.
    Notification,
}

impl Challenge {
    pub(super) fn for_request(request: &SubscriptionRequest) -> Self {
        let text = random_token();
        let verbatim_url = request.topic.verbatim_url.as_str();
        let seconds = request.lease.map(|lease| lease.as_secs().to_string());
        let mut query = Vec::new();
        match request.protocol {
            SubscriberProtocol::RssCloudPeer => return Self::Notification,
            SubscriberProtocol::RssCloud => {
                query.extend([("url", verbatim_url), ("challenge", text.as_str())]);
            }
            SubscriberProtocol::WebSub => {
                let mode = if request.lease.is_some() { "subscribe" } else { "unsubscribe" };
                query.extend([
                    ("hub.mode", mode),
                    ("hub.topic", verbatim_url),
                    ("hub.challenge", &text),
                ]);
                query.extend(seconds.iter().map(|seconds| ("hub.lease_seconds", seconds.as_str())));
            }
        }
        match append_query(&request.callback, &query) {
            Some(url) => Self::Echo { url, text },
            None => unreachable!("the limits of both keep the URL valid"),
        }
    }

    pub(super) fn is_passed_by(&self, response: &OutgoingResponse) -> bool {
        let is_right = match self {
            Self::Echo { text, .. } => response.is_complete && response.body == text.as_bytes(),
            Self::Notification => true,
        };
        is_right && response.status.is_success()
    }
}

/// The URL of the denial for a verified subscriber that exceeds a limit. Only WebSub has denials.
pub(super) fn denial_url(request: &SubscriptionRequest) -> Option<CanonicalUrl<'static>> {
    let query = [
        ("hub.mode", "denied"),
        ("hub.topic", request.topic.verbatim_url.as_str()),
        ("hub.reason", "the hub has too many subscribers"),
    ];
    (request.protocol == SubscriberProtocol::WebSub)
        .then(|| append_query(&request.callback, &query))
        .flatten()
}

fn append_query(url: &CanonicalUrl<'_>, query: &[(&str, &str)]) -> Option<CanonicalUrl<'static>> {
    let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(query).finish();
    let path = url.path_and_query();
    let separator = match path.split_once('?') {
        None => "?",
        Some((_, "")) => "",
        Some((_, existing)) if existing.ends_with('&') => "",
        Some(_) => "&",
    };
    CanonicalUrl::parse(&format!("{url}{separator}{query}")).ok().map(CanonicalUrl::into_owned)
}

/// The type of a content, if the server sent one.
pub(super) fn content_type(headers: &HeaderMap) -> Option<Vec<u8>> {
    let value = headers.get(CONTENT_TYPE)?.as_bytes();
    (value.len() <= CONTENT_TYPE_BYTES_MAX).then(|| value.to_vec())
}

pub(super) fn content_headers(
    due: &DueDelivery,
    content: &TopicContent,
    hub: &CanonicalUrl<'_>,
) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let content_type =
        content.content_type.as_deref().and_then(|value| HeaderValue::from_bytes(value).ok());
    let unknown = HeaderValue::from_static("application/octet-stream");
    headers.insert(CONTENT_TYPE, content_type.unwrap_or(unknown));
    let links = format!("<{hub}>; rel=\"hub\", <{}>; rel=\"self\"", due.verbatim_url);
    headers.insert(LINK, HeaderValue::from_str(&links).expect("both are visible ASCII"));
    if let Some(secret) = &due.secret {
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
        let signature =
            format!("sha256={}", HEXLOWER.encode(hmac::sign(&key, &content.body).as_ref()));
        headers.insert(
            SIGNATURE_HEADER,
            HeaderValue::from_str(&signature).expect("hexadecimal digits are valid"),
        );
    }
    headers
}

/// The form by which rssCloud reports a change.
pub(super) fn rsscloud_notification(verbatim_url: &str) -> (HeaderMap, Bytes) {
    let form =
        form_urlencoded::Serializer::new(String::new()).append_pair("url", verbatim_url).finish();
    let form_type = HeaderValue::from_static("application/x-www-form-urlencoded");
    (HeaderMap::from_iter([(CONTENT_TYPE, form_type)]), form.into())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hyper::StatusCode;

    use super::super::hub_request::{HubTopic, URL_BYTES_MAX};
    use super::*;

    fn request(
        protocol: SubscriberProtocol,
        lease: Option<u64>,
        callback: &str,
    ) -> SubscriptionRequest {
        let verbatim_url = "https://Blog.example/a?b&c".to_owned();
        SubscriptionRequest {
            topic: HubTopic { url: verbatim_url.parse().unwrap(), verbatim_url },
            callback: callback.parse().unwrap(),
            protocol,
            lease: lease.map(Duration::from_secs),
            secret: None,
        }
    }

    /// The URL of the challenge, with `C` for its text.
    #[track_caller]
    fn challenge_url(request: &SubscriptionRequest) -> String {
        match Challenge::for_request(request) {
            Challenge::Echo { url, text } => {
                assert_eq!(text.len(), 64);
                url.as_str().replace(&text, "C")
            }
            Challenge::Notification => panic!("expected a URL"),
        }
    }

    // PROTOCOL: B2
    #[test]
    fn a_challenge_repeats_the_request() {
        let topic = "https%3A%2F%2FBlog.example%2Fa%3Fb%26c";
        assert_eq!(
            challenge_url(&request(SubscriberProtocol::WebSub, Some(60), "https://r.example/cb")),
            format!(
                "https://r.example/cb?hub.mode=subscribe&hub.topic={topic}&hub.challenge=C&hub.lease_seconds=60"
            )
        );
        assert_eq!(
            challenge_url(&request(SubscriberProtocol::WebSub, None, "https://r.example/?id=1")),
            format!(
                "https://r.example/?id=1&hub.mode=unsubscribe&hub.topic={topic}&hub.challenge=C"
            )
        );
        for (callback, separator) in
            [("https://r.example/?", "?"), ("https://r.example/?a&", "?a&")]
        {
            assert_eq!(
                challenge_url(&request(SubscriberProtocol::RssCloud, Some(60), callback)),
                format!("https://r.example/{separator}url={topic}&challenge=C")
            );
        }
        let peer = request(SubscriberProtocol::RssCloudPeer, Some(60), "http://192.0.2.1/");
        assert!(matches!(Challenge::for_request(&peer), Challenge::Notification));
    }

    #[test]
    fn only_websub_has_a_denial() {
        let denied =
            denial_url(&request(SubscriberProtocol::WebSub, Some(60), "https://r.example/cb?id=1"));
        let reason = "the+hub+has+too+many+subscribers";
        let topic = "https%3A%2F%2FBlog.example%2Fa%3Fb%26c";
        assert_eq!(
            denied.unwrap().as_str(),
            format!(
                "https://r.example/cb?id=1&hub.mode=denied&hub.topic={topic}&hub.reason={reason}"
            )
        );
        assert!(
            denial_url(&request(SubscriberProtocol::RssCloud, Some(60), "https://r.example/"))
                .is_none()
        );
    }

    #[test]
    fn the_longest_callback_and_topic_form_a_valid_url() {
        let long = |url: &str| format!("{url}{}", "%".repeat(URL_BYTES_MAX - url.len()));
        let mut request =
            request(SubscriberProtocol::WebSub, Some(60), &long("https://r.example/?"));
        request.topic.verbatim_url = long("https://blog.example/");
        assert!(matches!(Challenge::for_request(&request), Challenge::Echo { .. }));
        assert!(denial_url(&request).is_some());
    }

    // PROTOCOL: B2
    #[test]
    fn only_the_exact_challenge_passes() {
        let challenge = Challenge::for_request(&request(
            SubscriberProtocol::WebSub,
            Some(60),
            "https://r.example/cb",
        ));
        let Challenge::Echo { text, .. } = &challenge else { panic!("{challenge:?}") };
        let response = |status: u16, body: &str, is_complete| OutgoingResponse {
            status: StatusCode::from_u16(status).unwrap(),
            headers: HeaderMap::new(),
            body: body.to_owned().into(),
            is_complete,
        };
        assert!(challenge.is_passed_by(&response(204, text, true)));
        assert!(!challenge.is_passed_by(&response(200, text, false)));
        assert!(!challenge.is_passed_by(&response(200, &text[1..], true)));
        assert!(!challenge.is_passed_by(&response(200, &format!("{text}\n"), true)));
        assert!(!challenge.is_passed_by(&response(302, text, true)));
        assert!(!challenge.is_passed_by(&response(404, text, true)));
        assert!(Challenge::Notification.is_passed_by(&response(200, "", false)));
        assert!(!Challenge::Notification.is_passed_by(&response(410, "", true)));
    }

    // PROTOCOL: B5
    #[test]
    fn content_is_signed_by_hmac_sha256() {
        // RFC 4231, test case 2.
        let due = DueDelivery {
            version: 1,
            topic_id: 1,
            callback: "https://r.example/".parse().unwrap(),
            verbatim_url: "https://Blog.example".to_owned(),
            protocol: SubscriberProtocol::WebSub,
            secret: Some("Jefe".to_owned()),
        };
        let content = TopicContent {
            version: 1,
            content_type: Some(b"application/rss+xml".to_vec()),
            body: Bytes::from_static(b"what do ya want for nothing?"),
        };
        let hub = "https://blog.example/hub".parse().unwrap();
        let headers = content_headers(&due, &content, &hub);
        assert_eq!(
            headers["x-hub-signature"],
            "sha256=5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
        assert_eq!(headers["content-type"], "application/rss+xml");
        assert_eq!(
            headers["link"],
            "<https://blog.example/hub>; rel=\"hub\", <https://Blog.example>; rel=\"self\""
        );
        let unsigned = content_headers(&DueDelivery { secret: None, ..due }, &content, &hub);
        assert!(!unsigned.contains_key("x-hub-signature"));
    }
}
