//! Requests to hubs, and to servers of `rssCloud`.

use std::time::Duration;

use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{HeaderMap, Method, StatusCode};
use tidings_protocol::CanonicalUrl;
use tidings_subscriber::outcome::{Failure, Reason};
use url::form_urlencoded;

use super::WebSubConfig;
use super::subscription::{HubEndpoint, HubMode, HubRequestOutcome, Subscription};
use crate::outgoing::{OutgoingClient, OutgoingResponse};

/// Bytes of an answer that are read: what it says in words.
const RESPONSE_BYTES_MAX: usize = 4 << 10;

/// Hops that are followed; each is asked the same (307, 308).
const REDIRECTS_MAX: usize = 3;

/// The path of callbacks, without a slash at its beginning.
pub(super) const CALLBACK_PATH: &str = "websub/";

/// Asks, and says what was answered, if that is no yes.
pub(super) async fn send_hub_request(
    outgoing: &OutgoingClient,
    config: &WebSubConfig,
    one: &Subscription,
    wish: HubMode,
) -> (HubRequestOutcome, Option<String>) {
    let form = match &one.teller {
        HubEndpoint::Hub { topic, .. } => subscribe_form(config, one, topic, wish),
        HubEndpoint::Cloud { .. } if wish == HubMode::Unsubscribe => {
            // There is no word for that; it forgets by itself.
            return (HubRequestOutcome::Accepted, None);
        }
        HubEndpoint::Cloud { .. } => please_notify_form(&config.public_url, one),
    };
    match post_form(outgoing, one.teller.url(), &form).await {
        Ok(answer) => classify_response(one, &answer),
        Err(failure) if failure.reason == Reason::Address => {
            (HubRequestOutcome::Refused, Some(failure.text))
        }
        Err(failure) => (HubRequestOutcome::Failed(None), Some(failure.text)),
    }
}

fn subscribe_form(config: &WebSubConfig, one: &Subscription, topic: &str, wish: HubMode) -> String {
    let public_url = &config.public_url;
    let mode = match wish {
        HubMode::Subscribe => "subscribe",
        HubMode::Unsubscribe => "unsubscribe",
    };
    let mut form = form_urlencoded::Serializer::new(String::new());
    form.append_pair("hub.callback", &format!("{public_url}{CALLBACK_PATH}{}", one.token))
        .append_pair("hub.mode", mode)
        // Of PubSubHubbub 0.3, without which its hubs answer nothing.
        .append_pair("hub.verify", "async")
        .append_pair("hub.topic", topic);
    if wish == HubMode::Subscribe {
        form.append_pair("hub.lease_seconds", &config.lease.as_secs().max(1).to_string())
            .append_pair("hub.secret", &one.secret);
    }
    form.finish()
}

/// `pleaseNotify`: it asks back at once whether that is us, as we say a `domain`.
fn please_notify_form(public_url: &str, one: &Subscription) -> String {
    let url = CanonicalUrl::parse(public_url).expect("it was parsed from one");
    let protocol = if url.scheme() == "https" { "https-post" } else { "http-post" };
    let path = format!("{}{CALLBACK_PATH}{}", url.path(), one.token);
    form_urlencoded::Serializer::new(String::new())
        .append_pair("notifyProcedure", "")
        .append_pair("domain", url.host())
        .append_pair("port", &url.port().to_string())
        .append_pair("path", &path)
        .append_pair("protocol", protocol)
        .append_pair("url1", &one.feed)
        .finish()
}

async fn post_form(
    outgoing: &OutgoingClient,
    to: &str,
    form: &str,
) -> Result<OutgoingResponse, Failure> {
    let no_url = |text: String| Failure::new(Reason::BadHttp, text);
    let mut url = CanonicalUrl::parse(to).map_err(|error| no_url(error.to_string()))?.into_owned();
    let body = Bytes::copy_from_slice(form.as_bytes());
    for _ in 0..=REDIRECTS_MAX {
        let mut headers = HeaderMap::new();
        let kind = HeaderValue::from_static("application/x-www-form-urlencoded");
        headers.insert(CONTENT_TYPE, kind);
        let answer =
            outgoing.send(Method::POST, &url, headers, body.clone(), RESPONSE_BYTES_MAX).await?;
        let is_same_again = matches!(answer.status.as_u16(), 307 | 308);
        // Sites that are at https today have old feeds that say http.
        let is_upgrade = |next: &CanonicalUrl<'_>| {
            url.scheme() == "http" && next.scheme() == "https" && next.host() == url.host()
        };
        let next = answer.redirect(&url).filter(|next| is_same_again || is_upgrade(next));
        match next {
            // What is secret stays so.
            Some(next) if url.scheme() == "http" || next.scheme() == "https" => url = next,
            _ => return Ok(answer),
        }
    }
    Err(no_url(format!("more than {REDIRECTS_MAX} redirects")))
}

fn classify_response(
    one: &Subscription,
    answer: &OutgoingResponse,
) -> (HubRequestOutcome, Option<String>) {
    let text = String::from_utf8_lossy(&answer.body);
    let is_cloud = matches!(one.teller, HubEndpoint::Cloud { .. });
    let says_no = is_cloud && reports_failure(&text);
    if answer.status.is_success() && !says_no {
        return (HubRequestOutcome::Accepted, None);
    }
    // Some say what they were asked, and this is for a log.
    let text = text.replace(&one.secret, "..").replace(&one.token, "..");
    let printable = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(200);
    let said = format!("{}: {}", answer.status, printable.collect::<String>());
    let is_transient = answer.status.is_server_error()
        || matches!(
            answer.status,
            StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY
        );
    let asked = if is_transient {
        HubRequestOutcome::Failed(retry_after(answer))
    } else {
        HubRequestOutcome::Refused
    };
    (asked, Some(said))
}

/// `notifyResult` of `rssCloud`, as XML or JSON: `success` of it is anything but true. Who says
/// nothing of the kind agrees.
fn reports_failure(text: &str) -> bool {
    let Some((_, value)) = text.split_once("success") else { return false };
    let value = value.trim_start_matches(|c: char| c.is_whitespace() || "=:'\"".contains(c));
    !value.get(..4).is_some_and(|word| word.eq_ignore_ascii_case("true"))
}

/// In seconds; a date is not looked at.
fn retry_after(answer: &OutgoingResponse) -> Option<Duration> {
    let value = answer.headers.get(RETRY_AFTER)?.to_str().ok()?;
    value.trim().parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_have_the_parameters_of_the_specifications() {
        let public = "https://me.example/tidings/";
        let config = WebSubConfig {
            items_per_minute: 1000,
            database: "websub.db".into(),
            public_url: public.into(),
            lease: Duration::from_hours(240),
            sha1: false,
        };
        let (feed, topic) = ("http://a.example/f", "http://a.example/f?x=1&y");
        let hub = HubEndpoint::Hub { hub: "http://hub.example/".into(), topic: topic.into() };
        let one = Subscription::new(feed.into(), feed.into(), hub, 0);
        let form = subscribe_form(&config, &one, topic, HubMode::Subscribe);
        let pairs: Vec<_> = form_urlencoded::parse(form.as_bytes()).into_owned().collect();
        let callback = format!("https://me.example/tidings/websub/{}", one.token);
        let expected = [
            ("hub.callback", callback.as_str()),
            ("hub.mode", "subscribe"),
            ("hub.verify", "async"),
            ("hub.topic", topic),
            ("hub.lease_seconds", "864000"),
            ("hub.secret", &one.secret),
        ];
        assert_eq!(pairs, expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
        let form = subscribe_form(&config, &one, topic, HubMode::Unsubscribe);
        assert!(!form.contains("secret") && form.contains("hub.mode=unsubscribe"), "{form}");
        let form = please_notify_form(public, &one);
        let path = format!("path=%2Ftidings%2Fwebsub%2F{}", one.token);
        for part in ["domain=me.example", "port=443", &path, "protocol=https-post"] {
            assert!(form.split('&').any(|it| it == part), "{form}");
        }
    }

    #[test]
    fn responses_are_accepted_refused_or_failed() {
        let hub = HubEndpoint::Hub { hub: "http://hub.example/".into(), topic: "x".into() };
        let cloud = HubEndpoint::Cloud { register: "http://cloud.example/".into() };
        let judged = |teller: &HubEndpoint, status: u16, body: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, HeaderValue::from_static("7"));
            let status = StatusCode::from_u16(status).unwrap();
            let body = Bytes::from_static(body.as_bytes());
            let answer = OutgoingResponse { status, headers, body, is_complete: true };
            classify_response(
                &Subscription::new("f".into(), "f".into(), teller.clone(), 0),
                &answer,
            )
        };
        assert_eq!(judged(&hub, 202, "").0, HubRequestOutcome::Accepted);
        let seven = HubRequestOutcome::Failed(Some(Duration::from_secs(7)));
        assert_eq!(judged(&hub, 503, "").0, seven);
        assert_eq!(judged(&hub, 429, "").0, seven);
        let (asked, said) = judged(&hub, 400, "no\r\nWARN such topic");
        assert_eq!(
            (asked, said.as_deref()),
            (HubRequestOutcome::Refused, Some("400 Bad Request: no  WARN such topic"))
        );
        for no in [
            "<notifyResult success=\"false\" msg=\"no\"/>",
            "<notifyResult success='false' msg='no' />",
            "{\"success\": false}",
            "<notifyResult success",
        ] {
            assert_eq!(judged(&cloud, 200, no).0, HubRequestOutcome::Refused, "{no}");
        }
        for yes in ["<notifyResult success='true'/>", "{\"success\":true}", "Thanks"] {
            assert_eq!(judged(&cloud, 200, yes).0, HubRequestOutcome::Accepted, "{yes}");
        }
    }
}
