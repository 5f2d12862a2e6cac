//! Requests to hubs of `WebSub` and servers of `rssCloud`.

use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{HeaderMap, Method};
use tidings_egress::client::{OutgoingClient, OutgoingResponse};
use tidings_egress::failure::{Failure, Reason};
use tidings_protocol::CanonicalUrl;
use url::form_urlencoded;

use super::WebSubConfig;
use super::subscription::{HubEndpoint, HubMode, HubRequestOutcome, Subscription};

/// Bytes of a response that are read. The text is logged; for rssCloud it also says whether the
/// registration succeeded.
const RESPONSE_BYTES_MAX: usize = 4 << 10;

/// Redirects that are followed with the same form: 307, 308, and from http to https on one host.
const REDIRECTS_MAX: usize = 3;

/// The path of callbacks, without a leading slash.
pub(super) const CALLBACK_PATH: &str = "websub/";

/// Sends a subscription request. Returns its outcome, and the text of a refusal or failure.
pub(super) async fn send_hub_request(
    outgoing: &OutgoingClient,
    config: &WebSubConfig,
    subscription: &Subscription,
    mode: HubMode,
) -> (HubRequestOutcome, Option<String>) {
    let form = match &subscription.endpoint {
        HubEndpoint::WebSub { topic, .. } => subscribe_form(config, subscription, topic, mode),
        HubEndpoint::RssCloud { .. } if mode == HubMode::Unsubscribe => {
            // The protocol has no request for this; the registration expires.
            return (HubRequestOutcome::Accepted, None);
        }
        HubEndpoint::RssCloud { .. } => please_notify_form(&config.public_url, subscription),
    };
    match post_form(outgoing, subscription.endpoint.url(), &form).await {
        Ok(response) => classify_response(subscription, &response),
        Err(failure) if failure.reason == Reason::Address => {
            (HubRequestOutcome::Refused, Some(failure.text))
        }
        Err(failure) => (HubRequestOutcome::Failed(None), Some(failure.text)),
    }
}

fn subscribe_form(
    config: &WebSubConfig,
    subscription: &Subscription,
    topic: &str,
    mode: HubMode,
) -> String {
    let public_url = &config.public_url;
    let mode_name = match mode {
        HubMode::Subscribe => "subscribe",
        HubMode::Unsubscribe => "unsubscribe",
    };
    let mut form = form_urlencoded::Serializer::new(String::new());
    form.append_pair("hub.callback", &format!("{public_url}{CALLBACK_PATH}{}", subscription.token))
        .append_pair("hub.mode", mode_name)
        // Hubs of PubSubHubbub 0.3 require it.
        .append_pair("hub.verify", "async")
        .append_pair("hub.topic", topic);
    if mode == HubMode::Subscribe {
        form.append_pair("hub.lease_seconds", &config.lease.as_secs().max(1).to_string())
            .append_pair("hub.secret", &subscription.secret);
    }
    form.finish()
}

/// The form of `pleaseNotify`. Because of `domain`, the server verifies the callback at once.
fn please_notify_form(public_url: &str, subscription: &Subscription) -> String {
    let url = CanonicalUrl::parse(public_url).expect("public_url is a canonical URL");
    let protocol = if url.scheme() == "https" { "https-post" } else { "http-post" };
    let path = format!("{}{CALLBACK_PATH}{}", url.path(), subscription.token);
    form_urlencoded::Serializer::new(String::new())
        .append_pair("notifyProcedure", "")
        .append_pair("domain", url.host())
        .append_pair("port", &url.port().to_string())
        .append_pair("path", &path)
        .append_pair("protocol", protocol)
        .append_pair("url1", &subscription.feed)
        .finish()
}

async fn post_form(
    outgoing: &OutgoingClient,
    endpoint_url: &str,
    form: &str,
) -> Result<OutgoingResponse, Failure> {
    let bad_http = |text: String| Failure::new(Reason::BadHttp, text);
    let mut url = CanonicalUrl::parse(endpoint_url)
        .map_err(|error| bad_http(error.to_string()))?
        .into_owned();
    let body = Bytes::copy_from_slice(form.as_bytes());
    for _ in 0..=REDIRECTS_MAX {
        let mut headers = HeaderMap::new();
        let content_type = HeaderValue::from_static("application/x-www-form-urlencoded");
        headers.insert(CONTENT_TYPE, content_type);
        let response =
            outgoing.send(Method::POST, &url, headers, body.clone(), RESPONSE_BYTES_MAX).await?;
        let keeps_method = matches!(response.status.as_u16(), 307 | 308);
        // A site that moved to https may have old feeds that name its hub with http.
        let is_upgrade = |next: &CanonicalUrl<'_>| {
            url.scheme() == "http" && next.scheme() == "https" && next.host() == url.host()
        };
        let next = response.redirect(&url).filter(|next| keeps_method || is_upgrade(next));
        match next {
            // The form contains a secret, so it is never sent from https to http.
            Some(next) if url.scheme() == "http" || next.scheme() == "https" => url = next,
            _ => return Ok(response),
        }
    }
    Err(bad_http(format!("more than {REDIRECTS_MAX} redirects")))
}

fn classify_response(
    subscription: &Subscription,
    response: &OutgoingResponse,
) -> (HubRequestOutcome, Option<String>) {
    let text = String::from_utf8_lossy(&response.body);
    let is_cloud = matches!(subscription.endpoint, HubEndpoint::RssCloud { .. });
    let is_rejected = is_cloud && reports_failure(&text);
    if response.status.is_success() && !is_rejected {
        return (HubRequestOutcome::Accepted, None);
    }
    // A response may quote the form, and this text is logged.
    let text = text.replace(&subscription.secret, "..").replace(&subscription.token, "..");
    let printable = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(200);
    let reason = format!("{}: {}", response.status, printable.collect::<String>());
    let outcome = if Reason::of_status(response.status.as_u16()).is_transient() {
        HubRequestOutcome::Failed(response.retry_after())
    } else {
        HubRequestOutcome::Refused
    };
    (outcome, Some(reason))
}

/// Whether a `notifyResult` of `rssCloud`, in XML or JSON, has a `success` other than true. A
/// response without `success` counts as accepted.
fn reports_failure(text: &str) -> bool {
    let Some((_, value)) = text.split_once("success") else { return false };
    let value = value.trim_start_matches(|c: char| c.is_whitespace() || "=:'\"".contains(c));
    !value.get(..4).is_some_and(|word| word.eq_ignore_ascii_case("true"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hyper::StatusCode;
    use hyper::header::RETRY_AFTER;
    use tidings_documents::tracking::TrackingParams;

    use super::*;

    #[test]
    fn forms_have_the_parameters_of_the_specifications() {
        let public_url = "https://me.example/tidings/";
        let config = WebSubConfig {
            items_per_minute: 1000,
            database: "websub.db".into(),
            public_url: public_url.into(),
            lease: Duration::from_hours(240),
            sha1: false,
            tracking: TrackingParams::none(),
        };
        let (feed, topic) = ("http://a.example/f", "http://a.example/f?x=1&y");
        let hub = HubEndpoint::WebSub { hub: "http://hub.example/".into(), topic: topic.into() };
        let subscription = Subscription::new(feed.into(), feed.into(), hub, 0);
        let form = subscribe_form(&config, &subscription, topic, HubMode::Subscribe);
        let pairs: Vec<_> = form_urlencoded::parse(form.as_bytes()).into_owned().collect();
        let callback = format!("https://me.example/tidings/websub/{}", subscription.token);
        let expected = [
            ("hub.callback", callback.as_str()),
            ("hub.mode", "subscribe"),
            ("hub.verify", "async"),
            ("hub.topic", topic),
            ("hub.lease_seconds", "864000"),
            ("hub.secret", &subscription.secret),
        ];
        assert_eq!(pairs, expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
        let form = subscribe_form(&config, &subscription, topic, HubMode::Unsubscribe);
        assert!(!form.contains("secret") && form.contains("hub.mode=unsubscribe"), "{form}");
        let form = please_notify_form(public_url, &subscription);
        let path = format!("path=%2Ftidings%2Fwebsub%2F{}", subscription.token);
        for part in ["domain=me.example", "port=443", &path, "protocol=https-post"] {
            assert!(form.split('&').any(|it| it == part), "{form}");
        }
    }

    #[test]
    fn responses_are_accepted_refused_or_failed() {
        let hub = HubEndpoint::WebSub { hub: "http://hub.example/".into(), topic: "x".into() };
        let cloud = HubEndpoint::RssCloud { register: "http://cloud.example/".into() };
        let classify = |endpoint: &HubEndpoint, status: u16, body: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, HeaderValue::from_static("7"));
            let status = StatusCode::from_u16(status).unwrap();
            let body = Bytes::from_static(body.as_bytes());
            let response = OutgoingResponse { status, headers, body, is_complete: true };
            classify_response(
                &Subscription::new("f".into(), "f".into(), endpoint.clone(), 0),
                &response,
            )
        };
        assert_eq!(classify(&hub, 202, "").0, HubRequestOutcome::Accepted);
        let seven = HubRequestOutcome::Failed(Some(Duration::from_secs(7)));
        assert_eq!(classify(&hub, 503, "").0, seven);
        assert_eq!(classify(&hub, 429, "").0, seven);
        let (outcome, reason) = classify(&hub, 400, "no\r\nWARN such topic");
        assert_eq!(
            (outcome, reason.as_deref()),
            (HubRequestOutcome::Refused, Some("400 Bad Request: no  WARN such topic"))
        );
        for no in [
            "<notifyResult success=\"false\" msg=\"no\"/>",
            "<notifyResult success='false' msg='no' />",
            "{\"success\": false}",
            "<notifyResult success",
        ] {
            assert_eq!(classify(&cloud, 200, no).0, HubRequestOutcome::Refused, "{no}");
        }
        for yes in ["<notifyResult success='true'/>", "{\"success\":true}", "Thanks"] {
            assert_eq!(classify(&cloud, 200, yes).0, HubRequestOutcome::Accepted, "{yes}");
        }
    }
}
