//! What hubs ask and bring. Who was not asked to is told nothing.

use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use tidings_broker::{Receiver, Reply, Replying};
use tidings_protocol::CanonicalUrl;
use tidings_subscriber::feed::{self, event};
use url::form_urlencoded;

use super::service::{Service, Trouble};
use super::subscription::{Lease, Subscription, Teller, Untimely, Wish};
use super::{StoreError, WebSub, signature, unix_ms};

/// Where they come: the paths of callbacks.
const PATHS: [&str; 1] = ["/websub/{token}"];

/// Bytes of a challenge, which is said back.
const CHALLENGE_BYTES_MAX: usize = 1024;

/// New items of a delivery that are announced at once, the newest of them. The check of the feed finds the others.
const ITEMS_MAX: usize = 1000;

/// When a hub may come again that was not served.
const RETRY_S: u32 = 10;

impl Receiver for WebSub {
    fn paths(&self) -> &[&'static str] {
        &PATHS
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
        let token = head.uri.path().rsplit('/').next().unwrap_or_default();
        let Some(one) = self.book.lock().get(token).cloned() else {
            return Reply::Nobody("there is no such subscription");
        };
        let asked = Asked::of(head.uri.query().unwrap_or_default().as_bytes());
        match (head.method, &one.teller) {
            (Method::GET, Teller::Hub { .. }) => self.verify(token, &asked),
            (Method::GET, Teller::Cloud { .. }) => confirm(&one, &asked),
            (Method::POST, Teller::Hub { .. }) => {
                self.deliver(token, &one, &head.headers, &body).await
            }
            (Method::POST, Teller::Cloud { .. }) => {
                if Asked::of(&body).get("url") != Some(one.feed.as_str()) {
                    return Reply::Nobody("it is about another feed");
                }
                self.notified(token, &one).await
            }
            _ => Reply::Nobody("a hub asks by GET, and brings by POST"),
        }
    }

    /// Verification of intent (W3C `WebSub` section 5.3), and denial (5.2).
    fn verify(&self, token: &str, asked: &Asked) -> Reply {
        let topic = asked.get("hub.topic").unwrap_or_default();
        let wish = match asked.get("hub.mode") {
            Some("subscribe") => Wish::Subscribe,
            Some("unsubscribe") => Wish::Unsubscribe,
            Some("denied") => {
                let denied = self.book.lock().change(token, |one| one.deny(topic, unix_ms()));
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
        let mut book = self.book.lock();
        let change = book.change(token, |one| one.verify(wish, topic, lease, unix_ms()));
        if wish == Wish::Unsubscribe
            && matches!(change, Ok(Some(Ok(()))))
            && let Err(error) = book.remove(token)
        {
            return unavailable(self, &error.into());
        }
        drop(book);
        self.wake();
        verified(self, change, challenge)
    }

    /// Content distribution (section 7): what is new in it is announced, and the feed looked at.
    async fn deliver(
        &self,
        token: &str,
        one: &Subscription,
        headers: &HeaderMap,
        body: &Bytes,
    ) -> Reply {
        let mut signatures = headers.get_all("x-hub-signature").iter();
        let signature = match (signatures.next(), signatures.next()) {
            (Some(value), None) => value.to_str().unwrap_or_default(),
            _ => return Reply::Nobody("a delivery has one signature"),
        };
        if signature::verify(signature, &one.secret, body, self.config.sha1).is_err() {
            return Reply::Nobody(if signature.starts_with("sha1=") {
                "the hub signs with SHA-1 (--websub-sha1 takes that)"
            } else {
                "the signature is not the hub's"
            });
        }
        if let Some(refusal) = self.take_delivery(token) {
            return refusal;
        }
        let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        match self.announce(token, one, content_type, body).await {
            Ok(()) => self.look(token, one).await,
            Err(trouble) => unavailable(self, &trouble),
        }
    }

    /// A server of `rssCloud` says that there is something new, and not what.
    async fn notified(&self, token: &str, one: &Subscription) -> Reply {
        match self.take_delivery(token) {
            None => self.look(token, one).await,
            Some(refusal) => refusal,
        }
    }

    /// A delivery is due; or what is said instead.
    fn take_delivery(&self, token: &str) -> Option<Reply> {
        match self.book.lock().change(token, |one| one.take_delivery(unix_ms())) {
            Ok(Some(Ok(()))) => None,
            Ok(Some(Err(Untimely::TooMany))) => {
                Some(Reply::Known(empty(StatusCode::TOO_MANY_REQUESTS, Some(60))))
            }
            Ok(Some(Err(Untimely::Unexpected))) => {
                Some(Reply::Nobody("nothing is expected of that hub any more"))
            }
            Ok(None) => Some(Reply::Nobody("there is no such subscription")),
            Err(error) => Some(unavailable(self, &error.into())),
        }
    }

    /// Announces the items of a delivery that are new, under the ids that crawlers give them.
    async fn announce(
        &self,
        token: &str,
        one: &Subscription,
        content_type: Option<&str>,
        body: &Bytes,
    ) -> Result<(), Trouble> {
        let feed = feed::parse(body, content_type, Some(&one.feed));
        let Ok(url) = CanonicalUrl::parse(&one.feed) else { return Ok(()) };
        let mut known = self.book.lock().known(token)?;
        let new = known.take_new(&feed.entries);
        for item in &new[new.len().saturating_sub(ITEMS_MAX)..] {
            if let Some(event) = event::of_item(&url, item) {
                self.publish(event::ITEMS, &event).await?;
            }
        }
        if !new.is_empty() {
            self.book.lock().keep_known(token, known)?;
        }
        Ok(())
    }

    async fn look(&self, token: &str, one: &Subscription) -> Reply {
        let Some(until_ms) = one.told_until_ms(unix_ms()) else {
            return Reply::Nobody("nothing is expected of that hub any more");
        };
        let looked = async {
            self.bring_forward(&one.watched, until_ms).await?;
            self.book.lock().change(token, |one| one.crawlers_know(until_ms))?;
            Ok(())
        };
        match looked.await {
            Ok(()) => Reply::Known(empty(StatusCode::NO_CONTENT, None)),
            Err(trouble) => unavailable(self, &trouble),
        }
    }
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
    Reply::Known(empty(StatusCode::SERVICE_UNAVAILABLE, Some(RETRY_S)))
}

fn empty(status: StatusCode, retry_after_s: Option<u32>) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = status;
    if let Some(seconds) = retry_after_s {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}
