//! Requests to which others in this process know the answer: hubs that notify, subscribers of a hub
//! of ours. They are told no more than their paths; what a request may cost before somebody vouches
//! for it is bounded here.
//!
//! ```text
//!  path ─▶ throttle of all ─▶ body, within its limits ─▶ whose it is ─▶ throttle of those ─▶ receiver ─▶ its answer, or 404
//!  429, 404     429                 408, 413                                   429                                      429
//! ```
//!
//! A request counts when it is known what it is, so that who asks what can be meant is not held up
//! by who asks anything: they may come through the same proxy, and are of one source then. What
//! asks a hub is not signed; as far as somebody has shown that they want what they ask for again,
//! that is known by what they ask about ([`Asker::Of`]). Strangers who ask for something new in the
//! right form can be told from each other by nothing, and share what there is for them.

use std::fmt;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, Request};
use axum::http::{HeaderMap, Response, StatusCode};
use axum::routing::any;
use bytes::Bytes;
use parking_lot::Mutex;

use super::Http;
use super::client::Client;
use super::error::Refusal;
use crate::audit::AuditEvent;
use crate::clock::Moment;
use crate::rate_limit::{Rate, RateLimiter, SOURCES_MAX, Source};
use crate::stats::RequestCounts;

/// Whose request it is, as far as can be told before anything is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Asker {
    /// Somebody who is known, and counts for nothing.
    Known,
    /// Whoever it is, it is about nothing but what has this number, which was shown to be meant: a
    /// few times a minute.
    Of(u64),
    /// Anybody, who asks for something that there is to be had.
    Anybody,
    /// Anybody, for nothing.
    Nobody,
}

/// The answer to whose request it is.
pub type Recognizing<'a> = Pin<Box<dyn Future<Output = Asker> + Send + 'a>>;

/// What a receiver says of a request.
#[derive(Debug)]
pub enum Reply {
    /// It is from somebody who is known.
    Known(Response<Bytes>),
    /// Anybody may ask this.
    Anybody(Response<Bytes>),
    /// It is from somebody who has no business here, and who is told nothing. Why is for the log,
    /// in our own words.
    Nobody(&'static str),
}

/// The answer, when there is one.
pub type Replying<'a> = Pin<Box<dyn Future<Output = Reply> + Send + 'a>>;

/// A name and numbers under it, if they are known.
pub type Counting<'a> =
    Pin<Box<dyn Future<Output = Option<(&'static str, Vec<(&'static str, u64)>)>> + Send + 'a>>;

/// Answers requests.
pub trait Receiver: fmt::Debug + Send + Sync {
    /// Of which paths: `/a/{name}`, with `{name}` for a segment.
    fn paths(&self) -> &[&'static str];

    /// Requests of one source that nobody vouches for: as many a minute, and as many at once, of
    /// [`Asker::Anybody`] and of [`Asker::Nobody`] each.
    fn per_minute(&self) -> u32 {
        60
    }

    /// Whether somebody was told this path whom nobody else could have it from. Others are told
    /// nothing, and their bodies are not waited for.
    fn knows(&self, path: &str) -> bool {
        let _ = path;
        false
    }

    /// Whether a path that is [known](Receiver::knows) to nobody is answered nevertheless.
    fn is_open(&self) -> bool {
        true
    }

    /// What they are: `paths` of `OpenAPI`, in JSON. `openapi.json` is served with it, and its
    /// components can be referred to.
    fn describe(&self) -> &'static str {
        "{}"
    }

    /// What `GET /stats` says of it. `openapi.json` describes that.
    fn count(&self) -> Counting<'_> {
        Box::pin(std::future::ready(None))
    }

    /// Whose request this is, whose path is [known](Receiver::knows) to nobody. What is asked here
    /// costs as little as it can: it is asked as often as anybody likes.
    fn recognize<'a>(&'a self, request: &'a Request<Bytes>, peer: IpAddr) -> Recognizing<'a> {
        let _ = (request, peer);
        Box::pin(std::future::ready(Asker::Anybody))
    }

    /// Answers one, whose body is whole. `peer` is the address of the connection.
    fn receive(&self, request: Request<Bytes>, peer: IpAddr) -> Replying<'_>;
}

/// Requests about one thing that was shown to be meant, from one source.
const OF_ONE: Rate = Rate { per_minute: 6, burst: 6 };

/// Requests of one source that are looked at to tell whose they are, for each that it has by
/// [`Receiver::per_minute`], and how many it has for this at least: a look costs some 0.15 ms, and
/// most come from those who are told to wait after it.
const LOOKS: u32 = 10;
const LOOKS_OF_MIN: u32 = 600;

/// A receiver, and who asks it.
#[derive(Debug)]
struct Received {
    receiver: Arc<dyn Receiver>,
    /// By source, and whether somebody stands between: who asks from a proxy's machine is not who
    /// asks through it.
    askers: Mutex<RateLimiter<(Source, bool, Asker)>>,
    /// Of those who are not known.
    rate: Rate,
    /// The same sources, whoever asks.
    looks: Mutex<RateLimiter<(Source, bool)>>,
    look_rate: Rate,
}

impl Received {
    fn new(receiver: Arc<dyn Receiver>) -> Self {
        let rate = |per_minute| Rate { per_minute, burst: per_minute };
        let per_minute = receiver.per_minute();
        Self {
            receiver,
            askers: Mutex::new(RateLimiter::new(SOURCES_MAX)),
            rate: rate(per_minute),
            looks: Mutex::new(RateLimiter::new(SOURCES_MAX)),
            look_rate: rate(per_minute.max(LOOKS_OF_MIN).saturating_mul(LOOKS)),
        }
    }

    /// Counts a request. Refused with the ms after which it may be asked again.
    fn count(
        &self,
        (source, is_forwarded): (Source, bool),
        asker: Asker,
        now: Moment,
    ) -> Result<(), u64> {
        let rate = match asker {
            Asker::Known => return Ok(()),
            Asker::Of(_) => OF_ONE,
            Asker::Anybody | Asker::Nobody => self.rate,
        };
        self.askers.lock().take((source, is_forwarded, asker), rate, now)
    }
}

/// With the paths of all receivers.
pub(super) fn route(mut router: Router, http: &Arc<Http>) -> Router {
    for receiver in &http.config.receivers {
        let received = Arc::new(Received::new(Arc::clone(receiver)));
        for path in receiver.paths() {
            let (http, received) = (Arc::clone(http), Arc::clone(&received));
            let answer = move |Extension(client): Extension<Arc<Client>>, request: Request| async move {
                answer(&http, &received, &client, request).await
            };
            router = router.route(path, any(answer));
        }
    }
    router
}

async fn answer(
    http: &Http,
    place: &Received,
    client: &Client,
    request: Request,
) -> Result<Response<Body>, Refusal> {
    let (receiver, peer) = (&place.receiver, client.remote.peer.ip());
    let source = (Source::from(peer), is_forwarded(request.headers()));
    let (now, visits) = (http.hub.clock.now(), &http.hub.stats.receiver_requests);
    let limited = |wait_ms| {
        client.audit(AuditEvent::LimitReached { why: "too many notices from this address" });
        visits.limited(wait_ms, "requests from this address")
    };
    let count = |asker| place.count(source, asker, now).map_err(limited);
    let is_known = receiver.knows(request.uri().path());
    if !is_known && !receiver.is_open() {
        count(Asker::Nobody)?;
        return Err(refused(visits, now, client, "nobody was told that path"));
    }
    if !is_known {
        place.looks.lock().take(source, place.look_rate, now).map_err(limited)?;
    }
    let (head, body) = request.into_parts();
    let body = http.hook_bodies.receive_any(body).await?;
    let request = Request::from_parts(head, body.bytes.clone());
    let asker = if is_known { Asker::Known } else { receiver.recognize(&request, peer).await };
    count(asker)?;
    match receiver.receive(request, peer).await {
        Reply::Known(response) => {
            client.vouch();
            match response.status() {
                StatusCode::TOO_MANY_REQUESTS => visits.limited.add(1),
                status if status.is_success() => visits.accepted.add(1),
                _ => {}
            }
            Ok(response.map(Body::from))
        }
        Reply::Anybody(response) => Ok(response.map(Body::from)),
        Reply::Nobody(reason) => {
            if asker == Asker::Known {
                // Who has the path, and is not who it was told to.
                count(Asker::Nobody)?;
            }
            Err(refused(visits, now, client, reason))
        }
    }
}

/// Whether a proxy says that it asks for somebody else.
pub fn is_forwarded(headers: &HeaderMap) -> bool {
    ["forwarded", "x-forwarded-for", "x-real-ip", "via"]
        .iter()
        .any(|name| headers.contains_key(*name))
}

/// What everybody hears who has no business here.
fn refused(visits: &RequestCounts, now: Moment, client: &Client, reason: &str) -> Refusal {
    client.audit(AuditEvent::Refused { why: &format!("notice: {reason}") });
    if let Some(held_back) = visits.count_refused(now) {
        let peer = client.remote.peer.ip();
        tracing::warn!(%peer, reason, held_back, "a notice was refused");
    }
    Refusal::new(StatusCode::NOT_FOUND, "unknown", "there is nothing here")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use tokio_util::sync::CancellationToken;

    use super::super::HttpConfig;
    use super::*;
    use crate::access::Transport;
    use crate::net::listener::enter;
    use crate::net::stream::{Peer, Remote};
    use crate::{Broker, BrokerConfig};

    /// A receiver that knows nobody, and how often it was asked whose a request is.
    #[derive(Debug, Default)]
    struct Looking(AtomicU32);

    impl Receiver for Looking {
        fn paths(&self) -> &[&'static str] {
            &["/"]
        }

        fn per_minute(&self) -> u32 {
            1
        }

        fn recognize<'a>(&'a self, _: &'a Request<Bytes>, _: IpAddr) -> Recognizing<'a> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Box::pin(std::future::ready(Asker::Anybody))
        }

        fn receive(&self, _: Request<Bytes>, _: IpAddr) -> Replying<'_> {
            Box::pin(std::future::ready(Reply::Anybody(Response::default())))
        }
    }

    #[tokio::test]
    async fn whoever_asks_without_an_end_is_not_looked_at_without_an_end() {
        let listen = "127.0.0.1:0".parse().unwrap();
        let broker = Broker::start(BrokerConfig { listen, ..BrokerConfig::default() }).await;
        let broker = broker.unwrap();
        let http =
            Http::new(Arc::clone(&broker.hub), HttpConfig::default(), CancellationToken::new());
        let remote = Remote { peer: Peer::Tcp(listen), certificate: None, is_encrypted: false };
        let entered = enter(&broker.hub, remote.peer, Transport::Http).unwrap();
        let client = Client::new(Arc::clone(&broker.hub), entered, remote, Duration::from_secs(1));
        let looking = Arc::new(Looking::default());
        let place = Received::new(Arc::clone(&looking) as Arc<dyn Receiver>);
        tokio::time::pause();
        let mut taken = 0;
        for _ in 0..LOOKS * LOOKS_OF_MIN + 100 {
            let answer = answer(&http, &place, &client, Request::default()).await;
            taken += u32::from(answer.is_ok());
        }
        assert_eq!((taken, looking.0.load(Ordering::Relaxed)), (1, LOOKS * LOOKS_OF_MIN));
        let mut from_elsewhere = Request::default();
        from_elsewhere.headers_mut().insert("via", "1.1 proxy".parse().unwrap());
        assert!(answer(&http, &place, &client, from_elsewhere).await.is_ok());
        tokio::time::resume();
        drop(client);
        broker.stop().await;
    }
}
