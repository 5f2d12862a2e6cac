//! What hubs ask and bring. Who was not asked to is told nothing.

use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use tidings_broker::{Receiver, Reply, Replying};
use tidings_protocol::CanonicalUrl;
use tidings_subscriber::feed::watched_feed::{ItemFingerprint, KnownItems, NewItem};
use tidings_subscriber::feed::{self, Feed, event};
use url::form_urlencoded;

use super::service::{Service, Trouble, aside};
use super::signature::Trust;
use super::subscription::{Kind, Lease, Subscription, Teller, Wish};
use super::{StoreError, WebSub, signature, unix_ms};

/// Where they come: the paths of callbacks.
const PATHS: [&str; 1] = ["/websub/{token}"];

/// Bytes of a challenge, which is said back.
const CHALLENGE_BYTES_MAX: usize = 1024;

/// New items of a delivery that are announced at once, the newest of them. The check of the feed
/// finds the others.
pub(super) const ITEMS_MAX: u32 = 1000;

/// Of them so many are on their way to the broker at once.
const ITEMS_AT_ONCE: usize = 64;

/// When a hub may come again that was not served.
const RETRY_S: u32 = 10;

impl Receiver for WebSub {
    fn paths(&self) -> &[&'static str] {
        &PATHS
    }

    fn describe(&self) -> &'static str {
        include_str!("openapi.json")
    }

    fn knows(&self, path: &str) -> bool {
        self.0.knows(token_of(path))
    }

    fn is_open(&self) -> bool {
        false
    }

    fn receive(&self, request: Request<Bytes>, _peer: IpAddr) -> Replying<'_> {
        Box::pin(self.0.receive(request))
    }
}

/// What a hub asks, by the parameters of its request.
struct Asked(Vec<(String, String)>);

impl Asked {
    fn of(text: &[u8]) -> Self {
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

impl Service {
    async fn receive(&self, request: Request<Bytes>) -> Reply {
        let (head, body) = request.into_parts();
        let token = token_of(head.uri.path()).to_owned();
        let Some(one) = self.with(move |book| book.get(&token).cloned()).await else {
            return Reply::Nobody("there is no such subscription");
        };
        let asked = Asked::of(head.uri.query().unwrap_or_default().as_bytes());
        match (head.method, &one.teller) {
            (Method::GET, Teller::Hub { .. }) => self.verify(&one, &asked).await,
            (Method::GET, Teller::Cloud { .. }) => confirm(&one, &asked),
            (Method::POST, Teller::Hub { .. }) => self.deliver(&one, &head.headers, body).await,
            (Method::POST, Teller::Cloud { .. }) => {
                if Asked::of(&body).get("url") != Some(one.feed.as_str()) {
                    return Reply::Nobody("it is about another feed");
                }
                self.look(&one, None).await
            }
            _ => Reply::Nobody("a hub asks by GET, and brings by POST"),
        }
    }

    /// Verification of intent (W3C `WebSub` section 5.3), and denial (5.2).
    async fn verify(&self, one: &Subscription, asked: &Asked) -> Reply {
        let token = one.token.clone();
        let topic = asked.get("hub.topic").unwrap_or_default().to_owned();
        let wish = match asked.get("hub.mode") {
            Some("subscribe") => Wish::Subscribe,
            Some("unsubscribe") => Wish::Unsubscribe,
            Some("denied") => {
                let denied =
                    self.with(move |book| book.change(&token, |one| one.deny(&topic, unix_ms())));
                let denied = denied.await;
                if let Ok(Some(Ok(()))) = denied {
                    let (feed, hub) = (&one.feed, one.teller.host());
                    tracing::warn!(
                        feed,
                        hub,
                        "WebSub: the hub tells nothing of this feed (denied)"
                    );
                }
                self.wake();
                return verified(self, denied, "");
            }
            _ => return Reply::Nobody("a hub verifies what was asked of it, or denies it"),
        };
        let Some(challenge) = asked.challenge("hub.challenge") else {
            return Reply::Nobody("a hub's challenge is 1 to 1024 bytes");
        };
        let granted = match asked.get("hub.lease_seconds").map(str::parse::<u64>) {
            Some(Err(_)) if wish == Wish::Unsubscribe => None,
            None => None,
            Some(Ok(seconds)) => Some(Duration::from_secs(seconds)),
            Some(Err(_)) => return Reply::Nobody("a lease is seconds"),
        };
        let lease = Lease { asked: self.config.lease, granted };
        let change = self.with(move |book| {
            let change = book.change(&token, |one| one.verify(wish, &topic, lease, unix_ms()))?;
            if wish == Wish::Unsubscribe && change == Some(Ok(())) {
                book.remove(&token)?;
            }
            Ok(change)
        });
        let change = change.await;
        self.wake();
        verified(self, change, challenge)
    }

    /// Content distribution (section 7).
    async fn deliver(&self, one: &Subscription, headers: &HeaderMap, body: Bytes) -> Reply {
        let mut signatures = headers.get_all("x-hub-signature").iter();
        let signature = match (signatures.next(), signatures.next()) {
            (Some(value), None) => value.to_str().unwrap_or_default(),
            _ => return Reply::Nobody("a delivery has one signature"),
        };
        match signature::verify(signature, &one.secret, &body, self.config.sha1) {
            Ok(Trust::Content) => {
                let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
                self.look(one, Some((kind.map(str::to_owned), body))).await
            }
            Ok(Trust::Ping) => self.look(one, None).await,
            Err(_) => Reply::Nobody("the signature is not the hub's"),
        }
    }

    /// Somebody has told that there is something new, and perhaps what: that is announced, and the
    /// feed is looked at.
    async fn look(&self, one: &Subscription, content: Option<(Option<String>, Bytes)>) -> Reply {
        let Some(until_ms) = one.told_until_ms(unix_ms()) else {
            return Reply::Nobody("nothing is expected of that hub any more");
        };
        let token = one.token.clone();
        if !self.with(move |book| book.take_delivery(&token, unix_ms())).await {
            return Reply::Known(empty(StatusCode::TOO_MANY_REQUESTS, Some(60)));
        }
        let looked = async {
            if !self.is_still_watched(&one.token, &one.watched).await? {
                return Ok(false);
            }
            let mut version = None;
            if let Some((content_type, body)) = content {
                version = self.announce(one, content_type, body).await?;
            }
            let after = self.pace(&one.token);
            self.bring_forward(&one.watched, until_ms, after.as_deref(), version).await?;
            self.has_told(&one.token, until_ms).await?;
            Ok(true)
        };
        match looked.await {
            Ok(true) => Reply::Known(empty(StatusCode::NO_CONTENT, None)),
            Ok(false) => Reply::Nobody("nobody watches that feed any more"),
            Err(trouble) => unavailable(self, &trouble),
        }
    }

    /// Announces the items of a delivery that are new, under the ids that crawlers give them.
    /// Returns the version of a page that was announced.
    async fn announce(
        &self,
        one: &Subscription,
        content_type: Option<String>,
        body: Bytes,
    ) -> Result<Option<ItemFingerprint>, Trouble> {
        let (token, base) = (one.token.clone(), one.feed.clone());
        let is_page = one.kind == Kind::Page;
        let mut known = self.with(move |book| book.known(&token)).await?;
        let (known, events, version) = aside(move || {
            let feed = feed::parse(&body, content_type.as_deref(), Some(&base));
            let new = new_of(&feed, is_page, &base, &mut known);
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
        self.take_share(count).map_err(Trouble::TooMuch)?;
        stream::iter(events)
            .map(|event| async move { self.publish(event::ITEM_TOPIC, &event).await })
            .buffered(ITEMS_AT_ONCE)
            .try_collect::<()>()
            .await
            .inspect_err(|_| self.give_share_back(count))?;
        let token = one.token.clone();
        self.with(move |book| book.learn(&token, known)).await?;
        Ok(version)
    }
}

/// The new items of a delivery, which are known from now on; at most so many of the newest. Of a
/// page that is its version.
fn new_of(feed: &Feed, is_page: bool, url: &str, known: &mut KnownItems) -> Vec<NewItem> {
    if is_page {
        // A feed is none, so the look that follows finds out what that means.
        let print = feed.version.and_then(|version| known.set_version(version));
        return print.map(|print| NewItem::of_page(url, print)).into_iter().collect();
    }
    let mut new = known.add_delivered(&feed.entries);
    new.drain(..new.len().saturating_sub(ITEMS_MAX as usize));
    new
}

/// The last segment of a path.
fn token_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

fn verified(
    service: &Service,
    change: Result<Option<Result<(), &'static str>>, StoreError>,
    challenge: &str,
) -> Reply {
    match change {
        Ok(Some(Ok(()))) => Reply::Known(said_back(challenge)),
        Ok(Some(Err(reason))) => Reply::Nobody(reason),
        Ok(None) => Reply::Nobody("there is no such subscription"),
        Err(error) => unavailable(service, &error.into()),
    }
}

/// A server of `rssCloud` asks whether it was us.
fn confirm(one: &Subscription, asked: &Asked) -> Reply {
    match (asked.get("url"), asked.challenge("challenge")) {
        (Some(url), Some(challenge)) if url == one.feed && !one.is_leaving() => {
            Reply::Known(said_back(challenge))
        }
        (Some(_), Some(_)) => Reply::Nobody("it is about another feed"),
        _ => Reply::Nobody("a server asks by `url` and `challenge`"),
    }
}

/// As text, whatever a browser might make of it.
fn said_back(challenge: &str) -> Response<Bytes> {
    let mut response = Response::new(Bytes::copy_from_slice(challenge.as_bytes()));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    response
}

/// The hub comes again.
fn unavailable(service: &Service, trouble: &Trouble) -> Reply {
    service.complain(trouble);
    Reply::Known(match trouble {
        Trouble::TooMuch(wait_s) => empty(StatusCode::TOO_MANY_REQUESTS, Some(*wait_s)),
        _ => empty(StatusCode::SERVICE_UNAVAILABLE, Some(RETRY_S)),
    })
}

fn empty(status: StatusCode, retry_after_s: Option<u32>) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = status;
    if let Some(seconds) = retry_after_s {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}
