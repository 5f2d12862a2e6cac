//! The requests of hubs to callback URLs: verifications and deliveries. An unexpected request is
//! answered as if the URL did not exist.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use tidings_database::schema_version::SchemaError;
use tidings_documents::feed::watched_feed::{ItemFingerprint, KnownItems, NewItem};
use tidings_documents::feed::{self, Feed, event};
use tidings_protocol::CanonicalUrl;
use url::form_urlencoded;

use super::service::{WebSub, WebSubError, run_blocking};
use super::signature;
use super::signature::SignatureTrust;
use super::subscription::{HubEndpoint, HubMode, LeaseTerms, Subscription, WatchedKind};
use crate::system::unix_now_ms;

/// The path of callbacks, below the public URL.
pub const CALLBACK_PATH: &str = "/websub/{token}";

/// Bytes of a challenge, which the response repeats.
const CHALLENGE_BYTES_MAX: usize = 1024;

/// New items that are published from one delivery, the newest ones if it has more. The check of the
/// feed finds the others.
pub(super) const ITEMS_PER_DELIVERY_MAX: u32 = 1000;

/// Publishes that wait for the confirmation of the broker at a time.
const CONCURRENT_PUBLISHES_MAX: usize = 64;

/// When a hub may repeat a request that failed.
const RETRY_AFTER_S: u32 = 10;

/// What is decided about the request of a hub.
#[derive(Debug)]
pub enum CallbackReply {
    /// The hub sent it.
    Verified(Response<Bytes>),
    /// The client must learn nothing. The reason is for the logs.
    Rejected(&'static str),
}

struct HubParameters(Vec<(String, String)>);

impl HubParameters {
    fn parse(text: &[u8]) -> Self {
        Self(form_urlencoded::parse(text).into_owned().collect())
    }

    fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// The challenge that the response must repeat.
    fn challenge(&self, key: &str) -> Option<&str> {
        self.get(key).filter(|it| !it.is_empty() && it.len() <= CHALLENGE_BYTES_MAX)
    }
}

impl WebSub {
    /// Whether the path is the secret callback of a subscription. Other paths are not handled.
    pub fn is_callback(&self, path: &str) -> bool {
        self.has_subscription(callback_token(path))
    }

    /// Handles a request to [`CALLBACK_PATH`]. Its body must be complete.
    pub async fn handle_callback(&self, request: Request<Bytes>) -> CallbackReply {
        let (head, body) = request.into_parts();
        let Some(subscription) = self.subscription(callback_token(head.uri.path())).await else {
            return CallbackReply::Rejected("unknown subscription");
        };
        let parameters = HubParameters::parse(head.uri.query().unwrap_or_default().as_bytes());
        match (head.method, &subscription.endpoint) {
            (Method::GET, HubEndpoint::WebSub { .. }) => {
                self.handle_verification(&subscription, &parameters).await
            }
            (Method::GET, HubEndpoint::RssCloud { .. }) => {
                confirm_registration(&subscription, &parameters)
            }
            (Method::POST, HubEndpoint::WebSub { .. }) => {
                self.handle_delivery(&subscription, &head.headers, body).await
            }
            (Method::POST, HubEndpoint::RssCloud { .. }) => {
                if HubParameters::parse(&body).get("url") != Some(subscription.feed.as_str()) {
                    return CallbackReply::Rejected("the request is about another feed");
                }
                self.handle_notification(&subscription, None).await
            }
            _ => CallbackReply::Rejected("expected GET (verification) or POST (delivery)"),
        }
    }

    /// Verification of intent (W3C `WebSub` section 5.3), and denial (5.2).
    async fn handle_verification(
        &self,
        subscription: &Subscription,
        parameters: &HubParameters,
    ) -> CallbackReply {
        let token = subscription.token.clone();
        let topic = parameters.get("hub.topic").unwrap_or_default().to_owned();
        let mode = match parameters.get("hub.mode") {
            Some("subscribe") => HubMode::Subscribe,
            Some("unsubscribe") => HubMode::Unsubscribe,
            Some("denied") => {
                let deny =
                    move |subscription: &mut Subscription| subscription.deny(&topic, unix_now_ms());
                let result = self.update(&token, deny).await;
                if let Ok(Some(Ok(()))) = result {
                    let (feed, hub) = (&subscription.feed, subscription.endpoint.host());
                    tracing::warn!(feed, hub, "WebSub: the hub denied the subscription");
                }
                self.notify_due_changed();
                return verification_reply(self, result, "");
            }
            _ => {
                return CallbackReply::Rejected(
                    "hub.mode: expected subscribe, unsubscribe or denied",
                );
            }
        };
        let Some(challenge) = parameters.challenge("hub.challenge") else {
            return CallbackReply::Rejected("hub.challenge: expected 1 to 1024 bytes");
        };
        let granted = match parameters.get("hub.lease_seconds").map(str::parse::<u64>) {
            Some(Err(_)) if mode == HubMode::Unsubscribe => None,
            None => None,
            Some(Ok(seconds)) => Some(Duration::from_secs(seconds)),
            Some(Err(_)) => return CallbackReply::Rejected("hub.lease_seconds: expected a number"),
        };
        let lease = LeaseTerms { requested: self.config.lease, granted };
        let result = self.with_subscriptions(move |table| {
            let result = table.update(&token, |subscription| {
                subscription.verify(mode, &topic, lease, unix_now_ms())
            })?;
            if mode == HubMode::Unsubscribe && result == Some(Ok(())) {
                table.remove(&token)?;
            }
            Ok(result)
        });
        let result = result.await;
        self.notify_due_changed();
        verification_reply(self, result, challenge)
    }

    /// Content distribution (section 7).
    async fn handle_delivery(
        &self,
        subscription: &Subscription,
        headers: &HeaderMap,
        body: Bytes,
    ) -> CallbackReply {
        let mut signatures = headers.get_all("x-hub-signature").iter();
        let signature = match (signatures.next(), signatures.next()) {
            (Some(value), None) => value.to_str().unwrap_or_default(),
            _ => return CallbackReply::Rejected("expected one X-Hub-Signature header"),
        };
        match signature::verify(signature, &subscription.secret, &body, self.config.sha1) {
            Ok(SignatureTrust::Content) => {
                let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
                self.handle_notification(
                    subscription,
                    Some((content_type.map(str::to_owned), body)),
                )
                .await
            }
            Ok(SignatureTrust::Ping) => self.handle_notification(subscription, None).await,
            Err(_) => CallbackReply::Rejected("invalid signature"),
        }
    }

    /// Handles a notification: publishes the new items of its content, if it has any, and schedules
    /// a check of the feed.
    async fn handle_notification(
        &self,
        subscription: &Subscription,
        content: Option<(Option<String>, Bytes)>,
    ) -> CallbackReply {
        let Some(until_ms) = subscription.lease_end_ms(unix_now_ms()) else {
            return CallbackReply::Rejected("the subscription has no lease at the moment");
        };
        let token = subscription.token.clone();
        if !self.with_subscriptions(move |table| table.admit_delivery(&token, unix_now_ms())).await
        {
            return CallbackReply::Verified(empty_response(
                StatusCode::TOO_MANY_REQUESTS,
                Some(60),
            ));
        }
        let result = async {
            if !self.is_still_scheduled(&subscription.token, &subscription.watched).await? {
                return Ok(false);
            }
            let mut version = None;
            if let Some((content_type, body)) = content {
                version = self.publish_new_items(subscription, content_type, body).await?;
            }
            let after = self.feed_check_delay(&subscription.token);
            self.schedule_feed_check(&subscription.watched, until_ms, after.as_deref(), version)
                .await?;
            self.update(&subscription.token, move |subscription| {
                subscription.record_delivery(until_ms);
            })
            .await?;
            Ok(true)
        };
        match result.await {
            Ok(true) => CallbackReply::Verified(empty_response(StatusCode::NO_CONTENT, None)),
            Ok(false) => CallbackReply::Rejected("the feed is no longer watched"),
            Err(error) => unavailable_reply(self, &error),
        }
    }

    /// Publishes the new items of a delivery, with the ids that crawlers give them. Returns the
    /// version of a page that was published.
    async fn publish_new_items(
        &self,
        subscription: &Subscription,
        content_type: Option<String>,
        body: Bytes,
    ) -> Result<Option<ItemFingerprint>, WebSubError> {
        let (token, base) = (subscription.token.clone(), subscription.feed.clone());
        let is_page = subscription.kind == WatchedKind::Page;
        let tracking = self.config.tracking.clone();
        let mut known = self.with_subscriptions(move |table| table.known_items(&token)).await?;
        let (known, events, version) = run_blocking(move || {
            let mut feed = feed::parse(&body, content_type.as_deref(), Some(&base));
            feed.strip_tracking(&tracking);
            let new = new_items(&feed, is_page, &base, &mut known);
            let url = CanonicalUrl::parse(&base).ok();
            let events = new.iter().filter_map(|item| event::item_event(url.as_ref()?, item));
            let events: Vec<_> = events.collect();
            (known, events, new.first().filter(|_| is_page).map(|item| item.fingerprint))
        })
        .await;
        if events.is_empty() {
            return Ok(None);
        }
        let count = events.len();
        self.take_item_quota(count).map_err(WebSubError::RateLimited)?;
        stream::iter(events)
            .map(|event| async move { self.publish(event::ITEM_TOPIC, &event).await })
            .buffered(CONCURRENT_PUBLISHES_MAX)
            .try_collect::<()>()
            .await
            .inspect_err(|_| self.refund_item_quota(count))?;
        let token = subscription.token.clone();
        self.with_subscriptions(move |table| table.add_known_items(&token, known)).await?;
        Ok(version)
    }
}

/// Adds the items of a delivery to `known`, and returns the new ones; only the newest if there are
/// too many. For a page, the item is its new version.
fn new_items(feed: &Feed, is_page: bool, url: &str, known: &mut KnownItems) -> Vec<NewItem> {
    if is_page {
        // A feed has no version. The check that follows handles it.
        let fingerprint = feed.version.and_then(|version| known.set_version(version));
        return fingerprint
            .map(|fingerprint| NewItem::of_page(url, fingerprint))
            .into_iter()
            .collect();
    }
    let mut new = known.add_delivered(&feed.entries);
    new.drain(..new.len().saturating_sub(ITEMS_PER_DELIVERY_MAX as usize));
    new
}

fn callback_token(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

fn verification_reply(
    service: &WebSub,
    result: Result<Option<Result<(), &'static str>>, SchemaError>,
    challenge: &str,
) -> CallbackReply {
    match result {
        Ok(Some(Ok(()))) => CallbackReply::Verified(challenge_response(challenge)),
        Ok(Some(Err(reason))) => CallbackReply::Rejected(reason),
        Ok(None) => CallbackReply::Rejected("unknown subscription"),
        Err(error) => unavailable_reply(service, &error.into()),
    }
}

/// Answers a server of `rssCloud` that verifies a registration.
fn confirm_registration(subscription: &Subscription, parameters: &HubParameters) -> CallbackReply {
    match (parameters.get("url"), parameters.challenge("challenge")) {
        (Some(url), Some(challenge)) if url == subscription.feed && !subscription.is_cancelled => {
            CallbackReply::Verified(challenge_response(challenge))
        }
        (Some(_), Some(_)) => CallbackReply::Rejected("the request is about another feed"),
        _ => CallbackReply::Rejected("expected the parameters `url` and `challenge`"),
    }
}

/// The challenge as plain text, which a browser must not interpret as HTML.
fn challenge_response(challenge: &str) -> Response<Bytes> {
    let mut response = Response::new(Bytes::copy_from_slice(challenge.as_bytes()));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    response
}

/// Logs the error, and makes the hub retry.
fn unavailable_reply(service: &WebSub, error: &WebSubError) -> CallbackReply {
    service.log_error(error);
    CallbackReply::Verified(match error {
        WebSubError::RateLimited(wait_s) => {
            empty_response(StatusCode::TOO_MANY_REQUESTS, Some(*wait_s))
        }
        _ => empty_response(StatusCode::SERVICE_UNAVAILABLE, Some(RETRY_AFTER_S)),
    })
}

fn empty_response(status: StatusCode, retry_after_s: Option<u32>) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = status;
    if let Some(seconds) = retry_after_s {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}
