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
//! that is known by what they ask about ([`RequestClass::Resource`]). Strangers who ask for something new in the
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

use super::HttpState;
use super::client::ConnectedClient;
use super::error::ErrorResponse;
use crate::audit::AuditEvent;
use crate::clock::Moment;
use crate::rate_limit::{Rate, RateLimiter, SOURCES_MAX, Source};
use crate::stats::RequestCounts;

/// Whose request it is, as far as can be told before anything is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RequestClass {
    /// Somebody who is known, and counts for nothing.
    Verified,
    /// Whoever it is, it is about nothing but what has this number, which was shown to be meant: a
    /// few times a minute.
    Resource(u64),
    /// Anybody, who asks for something that there is to be had.
    Anonymous,
    /// Anybody, for nothing.
    Unwanted,
}

/// The answer to whose request it is.
pub type ClassifyFuture<'a> = Pin<Box<dyn Future<Output = RequestClass> + Send + 'a>>;

/// What a receiver says of a request.
#[derive(Debug)]
pub enum HandlerReply {
    /// It is from somebody who is known.
    Verified(Response<Bytes>),
    /// Anybody may ask this.
    Public(Response<Bytes>),
    /// It is from somebody who has no business here, and who is told nothing. Why is for the log,
    /// in our own words.
    Rejected(&'static str),
}

/// The answer, when there is one.
pub type HandlerFuture<'a> = Pin<Box<dyn Future<Output = HandlerReply> + Send + 'a>>;

/// A name and numbers under it, if they are known.
pub type CountersFuture<'a> =
    Pin<Box<dyn Future<Output = Option<(&'static str, Vec<(&'static str, u64)>)>> + Send + 'a>>;

/// Answers requests.
pub trait EmbeddedHandler: fmt::Debug + Send + Sync {
    /// Of which paths: `/a/{name}`, with `{name}` for a segment.
    fn paths(&self) -> &[&'static str];

    /// Requests of one source that nobody vouches for: as many a minute, and as many at once, of
    /// [`RequestClass::Anybody`] and of [`RequestClass::Nobody`] each.
    fn requests_per_minute(&self) -> u32 {
        60
    }

    /// Whether somebody was told this path whom nobody else could have it from. Others are told
    /// nothing, and their bodies are not waited for.
    fn is_issued_path(&self, path: &str) -> bool {
        let _ = path;
        false
    }

    /// Whether a path that is [known](Receiver::knows) to nobody is answered nevertheless.
    fn accepts_unissued_paths(&self) -> bool {
        true
    }

    /// What they are: `paths` of `OpenAPI`, in JSON. `openapi.json` is served with it, and its
    /// components can be referred to.
    fn openapi_paths(&self) -> &'static str {
        "{}"
    }

    /// What `GET /stats` says of it. `openapi.json` describes that.
    fn counters(&self) -> CountersFuture<'_> {
        Box::pin(std::future::ready(None))
    }

    /// Whose request this is, whose path is [known](Receiver::knows) to nobody. What is asked here
    /// costs as little as it can: it is asked as often as anybody likes.
    fn classify<'a>(&'a self, request: &'a Request<Bytes>, peer: IpAddr) -> ClassifyFuture<'a> {
        let _ = (request, peer);
        Box::pin(std::future::ready(RequestClass::Anonymous))
    }

    /// Answers one, whose body is whole. `peer` is the address of the connection.
    fn handle(&self, request: Request<Bytes>, peer: IpAddr) -> HandlerFuture<'_>;
}

/// Requests about one thing that was shown to be meant, from one source.
const RESOURCE_RATE: Rate = Rate { per_minute: 6, burst: 6 };

/// Requests of one source that are looked at to tell whose they are, for each that it has by
/// [`EmbeddedHandler::requests_per_minute`], and how many it has for this at least: a look costs some 0.15 ms, and
/// most come from those who are told to wait after it.
const CLASSIFY_FACTOR: u32 = 10;
const CLASSIFY_BASE_MIN: u32 = 600;

/// A receiver, and who asks it.
#[derive(Debug)]
struct HandlerRoute {
    handler: Arc<dyn EmbeddedHandler>,
    /// By source, and whether somebody stands between: who asks from a proxy's machine is not who
    /// asks through it.
    request_limiter: Mutex<RateLimiter<(Source, bool, RequestClass)>>,
    /// Of those who are not known.
    request_rate: Rate,
    /// The same sources, whoever asks.
    classify_limiter: Mutex<RateLimiter<(Source, bool)>>,
    classify_rate: Rate,
}

impl HandlerRoute {
    fn new(handler: Arc<dyn EmbeddedHandler>) -> Self {
        let rate = |per_minute| Rate { per_minute, burst: per_minute };
        let per_minute = handler.requests_per_minute();
        Self {
            handler,
            request_limiter: Mutex::new(RateLimiter::new(SOURCES_MAX)),
            request_rate: rate(per_minute),
            classify_limiter: Mutex::new(RateLimiter::new(SOURCES_MAX)),
            classify_rate: rate(per_minute.max(CLASSIFY_BASE_MIN).saturating_mul(CLASSIFY_FACTOR)),
        }
    }

    /// Counts a request. Refused with the ms after which it may be asked again.
    fn count_request(
        &self,
        (source, is_forwarded): (Source, bool),
        asker: RequestClass,
        now: Moment,
    ) -> Result<(), u64> {
        let rate = match asker {
            RequestClass::Verified => return Ok(()),
            RequestClass::Resource(_) => RESOURCE_RATE,
            RequestClass::Anonymous | RequestClass::Unwanted => self.request_rate,
        };
        self.request_limiter.lock().take((source, is_forwarded, asker), rate, now)
    }
}

/// With the paths of all receivers.
pub(super) fn add_routes(mut router: Router, http: &Arc<HttpState>) -> Router {
    for receiver in &http.config.embedded_handlers {
        let received = Arc::new(HandlerRoute::new(Arc::clone(receiver)));
        for path in receiver.paths() {
            let (http, received) = (Arc::clone(http), Arc::clone(&received));
            let answer = move |Extension(client): Extension<Arc<ConnectedClient>>,
                               request: Request| async move {
                handle_request(&http, &received, &client, request).await
            };
            router = router.route(path, any(answer));
        }
    }
    router
}

async fn handle_request(
    http: &HttpState,
    place: &HandlerRoute,
    client: &ConnectedClient,
    request: Request,
) -> Result<Response<Body>, ErrorResponse> {
    let (receiver, peer) = (&place.handler, client.remote.peer.ip());
    let source = (Source::from(peer), is_forwarded(request.headers()));
    let (now, visits) = (http.hub.clock.now(), &http.hub.stats.receiver_requests);
    let limited = |wait_ms| {
        client.audit(AuditEvent::LimitReached { why: "too many notices from this address" });
        visits.too_many_requests(wait_ms, "requests from this address")
    };
    let count = |asker| place.count_request(source, asker, now).map_err(limited);
    let is_known = receiver.is_issued_path(request.uri().path());
    if !is_known && !receiver.accepts_unissued_paths() {
        count(RequestClass::Unwanted)?;
        return Err(reject(visits, now, client, "nobody was told that path"));
    }
    if !is_known {
        place.classify_limiter.lock().take(source, place.classify_rate, now).map_err(limited)?;
    }
    let (head, body) = request.into_parts();
    let body = http.unverified_bodies.receive_untyped(body).await?;
    let request = Request::from_parts(head, body.bytes.clone());
    let asker =
        if is_known { RequestClass::Verified } else { receiver.classify(&request, peer).await };
    count(asker)?;
    match receiver.handle(request, peer).await {
        HandlerReply::Verified(response) => {
            client.mark_verified();
            match response.status() {
                StatusCode::TOO_MANY_REQUESTS => visits.limited.add(1),
                status if status.is_success() => visits.accepted.add(1),
                _ => {}
            }
            Ok(response.map(Body::from))
        }
        HandlerReply::Public(response) => Ok(response.map(Body::from)),
        HandlerReply::Rejected(reason) => {
            if asker == RequestClass::Verified {
                // Who has the path, and is not who it was told to.
                count(RequestClass::Unwanted)?;
            }
            Err(reject(visits, now, client, reason))
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
fn reject(
    visits: &RequestCounts,
    now: Moment,
    client: &ConnectedClient,
    reason: &str,
) -> ErrorResponse {
    client.audit(AuditEvent::Refused { why: &format!("notice: {reason}") });
    if let Some(held_back) = visits.count_refused(now) {
        let peer = client.remote.peer.ip();
        tracing::warn!(%peer, reason, held_back, "a notice was refused");
    }
    ErrorResponse::new(StatusCode::NOT_FOUND, "unknown", "there is nothing here")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use tokio_util::sync::CancellationToken;

    use super::super::HttpConfig;
    use super::*;
    use crate::access::Transport;
    use crate::net::listener::admit_connection;
    use crate::net::stream::{PeerAddr, RemoteInfo};
    use crate::{Broker, BrokerConfig};

    /// A receiver that knows nobody, and how often it was asked whose a request is.
    #[derive(Debug, Default)]
    struct CountingHandler(AtomicU32);

    impl EmbeddedHandler for CountingHandler {
        fn paths(&self) -> &[&'static str] {
            &["/"]
        }

        fn requests_per_minute(&self) -> u32 {
            1
        }

        fn classify<'a>(&'a self, _: &'a Request<Bytes>, _: IpAddr) -> ClassifyFuture<'a> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Box::pin(std::future::ready(RequestClass::Anonymous))
        }

        fn handle(&self, _: Request<Bytes>, _: IpAddr) -> HandlerFuture<'_> {
            Box::pin(std::future::ready(HandlerReply::Public(Response::default())))
        }
    }

    #[tokio::test]
    async fn classification_of_requests_is_rate_limited() {
        let listen = "127.0.0.1:0".parse().unwrap();
        let broker = Broker::start(BrokerConfig { listen, ..BrokerConfig::default() }).await;
        let broker = broker.unwrap();
        let http = HttpState::new(
            Arc::clone(&broker.hub),
            HttpConfig::default(),
            CancellationToken::new(),
        );
        let remote =
            RemoteInfo { peer: PeerAddr::Tcp(listen), certificate: None, is_encrypted: false };
        let entered = admit_connection(&broker.hub, remote.peer, Transport::Http).unwrap();
        let client =
            ConnectedClient::new(Arc::clone(&broker.hub), entered, remote, Duration::from_secs(1));
        let looking = Arc::new(CountingHandler::default());
        let place = HandlerRoute::new(Arc::clone(&looking) as Arc<dyn EmbeddedHandler>);
        tokio::time::pause();
        let mut taken = 0;
        for _ in 0..CLASSIFY_FACTOR * CLASSIFY_BASE_MIN + 100 {
            let answer = handle_request(&http, &place, &client, Request::default()).await;
            taken += u32::from(answer.is_ok());
        }
        assert_eq!(
            (taken, looking.0.load(Ordering::Relaxed)),
            (1, CLASSIFY_FACTOR * CLASSIFY_BASE_MIN)
        );
        let mut from_elsewhere = Request::default();
        from_elsewhere.headers_mut().insert("via", "1.1 proxy".parse().unwrap());
        assert!(handle_request(&http, &place, &client, from_elsewhere).await.is_ok());
        tokio::time::resume();
        drop(client);
        broker.stop().await;
    }
}
