//! What hubs ask and bring. Who was not asked to is told nothing.

use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use tidings_broker::{EmbeddedHandler, HandlerFuture, HandlerReply};
use tidings_protocol::CanonicalUrl;
use tidings_subscriber::feed::watched_feed::{ItemFingerprint, KnownItems, NewItem};
use tidings_subscriber::feed::{self, Feed, event};
use url::form_urlencoded;

use super::service::{WebSubError, WebSubService, run_blocking};
use super::signature::SignatureTrust;
use super::subscription::{HubEndpoint, HubMode, LeaseTerms, Subscription, WatchedKind};
use super::{StoreError, WebSub, signature, unix_now_ms};

/// Where they come: the paths of callbacks.
const CALLBACK_PATHS: [&str; 1] = ["/websub/{token}"];

/// Bytes of a challenge, which is said back.
const CHALLENGE_BYTES_MAX: usize = 1024;

/// New items of a delivery that are announced at once, the newest of them. The check of the feed
/// finds the others.
pub(super) const ITEMS_PER_DELIVERY_MAX: u32 = 1000;

/// Of them so many are on their way to the broker at once.
const CONCURRENT_PUBLISHES_MAX: usize = 64;

/// When a hub may come again that was not served.
const RETRY_AFTER_S: u32 = 10;

impl EmbeddedHandler for WebSub {
    fn paths(&self) -> &[&'static str] {
        &CALLBACK_PATHS
    }

    fn openapi_paths(&self) -> &'static str {
        include_str!("openapi.json")
    }

    fn is_issued_path(&self, path: &str) -> bool {
        self.0.has_subscription(callback_token(path))
    }

    fn accepts_unissued_paths(&self) -> bool {
        false
    }

    fn handle(&self, request: Request<Bytes>, _peer: IpAddr) -> HandlerFuture<'_> {
        Box::pin(self.0.handle_callback(request))
    }
}

/// What a hub asks, by the parameters of its request.
struct HubParameters(Vec<(String, String)>);

impl HubParameters {
    fn parse(text: &[u8]) -> Self {
        Self(form_urlencoded::parse(text).into_owned().collect())
    }

    fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// What is to be said back.
    fn challenge(&self, key: &str) -> Option<&str> {
        self.get(key).filter(|it| !it.is_empty() && it.len() <= CHALLENGE_BYTES_MAX)
    }
}

impl WebSubService {
    async fn handle_callback(&self, request: Request<Bytes>) -> HandlerReply {
        let (head, body) = request.into_parts();
        let token = callback_token(head.uri.path()).to_owned();
        let Some(one) = self.with_subscriptions(move |book| book.get(&token).cloned()).await else {
            return HandlerReply::Rejected("there is no such subscription");
        };
        let asked = HubParameters::parse(head.uri.query().unwrap_or_default().as_bytes());
        match (head.method, &one.teller) {
            (Method::GET, HubEndpoint::Hub { .. }) => self.handle_verification(&one, &asked).await,
            (Method::GET, HubEndpoint::Cloud { .. }) => confirm_registration(&one, &asked),
            (Method::POST, HubEndpoint::Hub { .. }) => {
                self.handle_delivery(&one, &head.headers, body).await
            }
            (Method::POST, HubEndpoint::Cloud { .. }) => {
                if HubParameters::parse(&body).get("url") != Some(one.feed.as_str()) {
                    return HandlerReply::Rejected("it is about another feed");
                }
                self.handle_notification(&one, None).await
            }
            _ => HandlerReply::Rejected("a hub asks by GET, and brings by POST"),
        }
    }

    /// Verification of intent (W3C `WebSub` section 5.3), and denial (5.2).
    async fn handle_verification(&self, one: &Subscription, asked: &HubParameters) -> HandlerReply {
        let token = one.token.clone();
        let topic = asked.get("hub.topic").unwrap_or_default().to_owned();
        let wish = match asked.get("hub.mode") {
            Some("subscribe") => HubMode::Subscribe,
            Some("unsubscribe") => HubMode::Unsubscribe,
            Some("denied") => {
                let denied = self.with_subscriptions(move |book| {
                    book.update(&token, |one| one.deny(&topic, unix_now_ms()))
                });
                let denied = denied.await;
                if let Ok(Some(Ok(()))) = denied {
                    let (feed, hub) = (&one.feed, one.teller.host());
                    tracing::warn!(
                        feed,
                        hub,
                        "WebSub: the hub tells nothing of this feed (denied)"
                    );
                }
                self.notify_due_changed();
                return verification_reply(self, denied, "");
            }
            _ => {
                return HandlerReply::Rejected("a hub verifies what was asked of it, or denies it");
            }
        };
        let Some(challenge) = asked.challenge("hub.challenge") else {
            return HandlerReply::Rejected("a hub's challenge is 1 to 1024 bytes");
        };
        let granted = match asked.get("hub.lease_seconds").map(str::parse::<u64>) {
            Some(Err(_)) if wish == HubMode::Unsubscribe => None,
            None => None,
            Some(Ok(seconds)) => Some(Duration::from_secs(seconds)),
            Some(Err(_)) => return HandlerReply::Rejected("a lease is seconds"),
        };
        let lease = LeaseTerms { requested: self.config.lease, granted };
        let change = self.with_subscriptions(move |book| {
            let change =
                book.update(&token, |one| one.verify(wish, &topic, lease, unix_now_ms()))?;
            if wish == HubMode::Unsubscribe && change == Some(Ok(())) {
                book.remove(&token)?;
            }
            Ok(change)
        });
        let change = change.await;
        self.notify_due_changed();
        verification_reply(self, change, challenge)
    }

    /// Content distribution (section 7).
    async fn handle_delivery(
        &self,
        one: &Subscription,
        headers: &HeaderMap,
        body: Bytes,
    ) -> HandlerReply {
        let mut signatures = headers.get_all("x-hub-signature").iter();
        let signature = match (signatures.next(), signatures.next()) {
            (Some(value), None) => value.to_str().unwrap_or_default(),
            _ => return HandlerReply::Rejected("a delivery has one signature"),
        };
        match signature::verify(signature, &one.secret, &body, self.config.sha1) {
            Ok(SignatureTrust::Content) => {
                let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
                self.handle_notification(one, Some((kind.map(str::to_owned), body))).await
            }
            Ok(SignatureTrust::Ping) => self.handle_notification(one, None).await,
            Err(_) => HandlerReply::Rejected("the signature is not the hub's"),
        }
    }

    /// Somebody has told that there is something new, and perhaps what: that is announced, and the
    /// feed is looked at.
    async fn handle_notification(
        &self,
        one: &Subscription,
        content: Option<(Option<String>, Bytes)>,
    ) -> HandlerReply {
        let Some(until_ms) = one.lease_end_ms(unix_now_ms()) else {
            return HandlerReply::Rejected("nothing is expected of that hub any more");
        };
        let token = one.token.clone();
        if !self.with_subscriptions(move |book| book.admit_delivery(&token, unix_now_ms())).await {
            return HandlerReply::Verified(empty_response(StatusCode::TOO_MANY_REQUESTS, Some(60)));
        }
        let looked = async {
            if !self.is_still_scheduled(&one.token, &one.watched).await? {
                return Ok(false);
            }
            let mut version = None;
            if let Some((content_type, body)) = content {
                version = self.publish_new_items(one, content_type, body).await?;
            }
            let after = self.feed_check_delay(&one.token);
            self.schedule_feed_check(&one.watched, until_ms, after.as_deref(), version).await?;
            self.record_delivery(&one.token, until_ms).await?;
            Ok(true)
        };
        match looked.await {
            Ok(true) => HandlerReply::Verified(empty_response(StatusCode::NO_CONTENT, None)),
            Ok(false) => HandlerReply::Rejected("nobody watches that feed any more"),
            Err(trouble) => unavailable_reply(self, &trouble),
        }
    }

    /// Announces the items of a delivery that are new, under the ids that crawlers give them.
    /// Returns the version of a page that was announced.
    async fn publish_new_items(
        &self,
        one: &Subscription,
        content_type: Option<String>,
        body: Bytes,
    ) -> Result<Option<ItemFingerprint>, WebSubError> {
        let (token, base) = (one.token.clone(), one.feed.clone());
        let is_page = one.kind == WatchedKind::Page;
        let mut known = self.with_subscriptions(move |book| book.known_items(&token)).await?;
        let (known, events, version) = run_blocking(move || {
            let feed = feed::parse(&body, content_type.as_deref(), Some(&base));
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
        let token = one.token.clone();
        self.with_subscriptions(move |book| book.add_known_items(&token, known)).await?;
        Ok(version)
    }
}

/// The new items of a delivery, which are known from now on; at most so many of the newest. Of a
/// page that is its version.
fn new_items(feed: &Feed, is_page: bool, url: &str, known: &mut KnownItems) -> Vec<NewItem> {
    if is_page {
        // A feed is none, so the look that follows finds out what that means.
        let print = feed.version.and_then(|version| known.set_version(version));
        return print.map(|print| NewItem::of_page(url, print)).into_iter().collect();
    }
    let mut new = known.add_delivered(&feed.entries);
    new.drain(..new.len().saturating_sub(ITEMS_PER_DELIVERY_MAX as usize));
    new
}

/// The last segment of a path.
fn callback_token(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

fn verification_reply(
    service: &WebSubService,
    change: Result<Option<Result<(), &'static str>>, StoreError>,
    challenge: &str,
) -> HandlerReply {
    match change {
        Ok(Some(Ok(()))) => HandlerReply::Verified(challenge_response(challenge)),
        Ok(Some(Err(reason))) => HandlerReply::Rejected(reason),
        Ok(None) => HandlerReply::Rejected("there is no such subscription"),
        Err(error) => unavailable_reply(service, &error.into()),
    }
}

/// A server of `rssCloud` asks whether it was us.
fn confirm_registration(one: &Subscription, asked: &HubParameters) -> HandlerReply {
    match (asked.get("url"), asked.challenge("challenge")) {
        (Some(url), Some(challenge)) if url == one.feed && !one.is_cancelled() => {
            HandlerReply::Verified(challenge_response(challenge))
        }
        (Some(_), Some(_)) => HandlerReply::Rejected("it is about another feed"),
        _ => HandlerReply::Rejected("a server asks by `url` and `challenge`"),
    }
}

/// As text, whatever a browser might make of it.
fn challenge_response(challenge: &str) -> Response<Bytes> {
    let mut response = Response::new(Bytes::copy_from_slice(challenge.as_bytes()));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    response
}

/// The hub comes again.
fn unavailable_reply(service: &WebSubService, trouble: &WebSubError) -> HandlerReply {
    service.log_error(trouble);
    HandlerReply::Verified(match trouble {
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
