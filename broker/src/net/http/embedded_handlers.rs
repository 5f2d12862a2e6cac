//! Routes that other parts of the process handle: callbacks from hubs, and our own hub. The limits
//! for requests of unverified senders are here; a handler only decides about requests.
//!
//! ```text
//!  path ─▶ rate limit of ─▶ body, with ─▶ classify ─▶ rate limit ─▶ handle ─▶ response, or 404
//!          classification   its limits                of the class
//!  404, 429     429          408, 413                      429        429
//! ```
//!
//! A request counts after its class is known, so that invalid requests do not use up the rate of
//! valid ones. Both may come through the same proxy and have the same source then.
//!
//! Requests to a hub are not signed. A request about a subscription that was confirmed before has
//! the class of that subscription ([`RequestClass::Resource`]). Valid requests for new
//! subscriptions show nothing about their senders, so all of one source share a rate.

use std::collections::BTreeSet;
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
use tidings_rate_limit::{Rate, RateLimiter, SOURCES_MAX, Source};

use super::HttpState;
use super::client::ConnectedClient;
use super::error::{ErrorResponse, HttpResult};
use super::openapi::Operation;
use crate::audit::AuditEvent;
use crate::clock::Moment;
use crate::stats::RequestCounts;

/// The class of a request, which is known before it is handled and decides its rate limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RequestClass {
    /// The sender is verified. No rate limit applies.
    Verified,
    /// The request concerns only the resource with this number, such as a confirmed subscription. A
    /// few requests per minute are allowed.
    Resource(u64),
    /// The request is valid, and its sender is not verified.
    Anonymous,
    /// The request is invalid, and its sender is not verified.
    Unwanted,
}

/// The result of [`EmbeddedHandler::classify`].
pub type ClassifyFuture<'a> = Pin<Box<dyn Future<Output = RequestClass> + Send + 'a>>;

/// What a handler decides about a request.
#[derive(Debug)]
pub enum HandlerReply {
    /// The sender is verified.
    Verified(Response<Bytes>),
    /// Every client may send this request.
    Public(Response<Bytes>),
    /// The client gets 404 without an explanation. The reason is for the logs.
    Rejected(&'static str),
}

/// The result of [`EmbeddedHandler::handle`].
pub type HandlerFuture<'a> = Pin<Box<dyn Future<Output = HandlerReply> + Send + 'a>>;

/// The result of [`EmbeddedHandler::counters`]: a name, and named numbers under it.
pub type CountersFuture<'a> =
    Pin<Box<dyn Future<Output = Option<(&'static str, Vec<(&'static str, u64)>)>> + Send + 'a>>;

/// Handles requests to some paths.
pub trait EmbeddedHandler: fmt::Debug + Send + Sync {
    /// The requests that it answers. Those with other methods of the same paths come to it too.
    fn operations(&self) -> Vec<Operation>;

    /// Requests that one unverified source may send per minute, and also at once. It applies to
    /// [`RequestClass::Anonymous`] and [`RequestClass::Unwanted`] separately.
    fn requests_per_minute(&self) -> u32 {
        60
    }

    /// Whether the path is secret and was issued to one sender. A request for it counts as verified
    /// until the handler rejects it.
    fn is_issued_path(&self, path: &str) -> bool {
        let _ = path;
        false
    }

    /// Whether paths that were not [issued](Self::is_issued_path) are handled too. Otherwise
    /// requests for them get 404 before their bodies are read.
    fn accepts_unissued_paths(&self) -> bool {
        true
    }

    /// Counters for `GET /stats`, if there are any; the schema `Stats` describes them.
    fn counters(&self) -> CountersFuture<'_> {
        Box::pin(std::future::ready(None))
    }

    /// The class of a request for a path that was not [issued](Self::is_issued_path). It must be
    /// cheap, because unverified clients can cause it as often as they like.
    fn classify<'a>(&'a self, request: &'a Request<Bytes>, peer: IpAddr) -> ClassifyFuture<'a> {
        let _ = (request, peer);
        Box::pin(std::future::ready(RequestClass::Anonymous))
    }

    /// Handles a request with its complete body. `peer` is the address of the connection.
    fn handle(&self, request: Request<Bytes>, peer: IpAddr) -> HandlerFuture<'_>;
}

/// Requests of one source about one resource.
const RESOURCE_RATE: Rate = Rate { per_minute: 6, burst: 6 };

/// Classifications per minute of requests of one source, as a multiple of
/// [`EmbeddedHandler::requests_per_minute`] or of `CLASSIFY_BASE_MIN`, whichever is larger. One
/// classification costs about 0.15 ms, and most of these requests are rate limited afterwards.
const CLASSIFY_FACTOR: u32 = 10;
const CLASSIFY_BASE_MIN: u32 = 600;

/// A handler and its rate limits.
#[derive(Debug)]
struct HandlerRoute {
    handler: Arc<dyn EmbeddedHandler>,
    /// By source, by whether a proxy forwarded the request, and by class. Clients on the machine of
    /// a proxy count separately from clients behind the proxy.
    request_limiter: Mutex<RateLimiter<(Source, bool, RequestClass)>>,
    /// The rate for unverified requests.
    request_rate: Rate,
    /// By source, and by whether a proxy forwarded the request.
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

    /// Counts a request. Beyond the rate limit it returns the milliseconds to wait.
    fn count_request(
        &self,
        (source, is_forwarded): (Source, bool),
        class: RequestClass,
        now: Moment,
    ) -> Result<(), u64> {
        let rate = match class {
            RequestClass::Verified => return Ok(()),
            RequestClass::Resource(_) => RESOURCE_RATE,
            RequestClass::Anonymous | RequestClass::Unwanted => self.request_rate,
        };
        self.request_limiter.lock().take((source, is_forwarded, class), rate, now.0)
    }
}

pub(super) fn add_routes(mut router: Router, http: &Arc<HttpState>) -> Router {
    for handler in &http.config.embedded_handlers {
        let route = Arc::new(HandlerRoute::new(Arc::clone(handler)));
        let operations = handler.operations();
        for path in operations.iter().map(|operation| operation.path).collect::<BTreeSet<_>>() {
            let (http, route) = (Arc::clone(http), Arc::clone(&route));
            let service = move |Extension(client): Extension<Arc<ConnectedClient>>,
                                request: Request| async move {
                handle_request(&http, &route, &client, request).await
            };
            router = router.route(path, any(service));
        }
    }
    router
}

async fn handle_request(
    http: &HttpState,
    route: &HandlerRoute,
    client: &ConnectedClient,
    request: Request,
) -> HttpResult<Response<Body>> {
    let (handler, peer) = (&route.handler, client.peer_ip());
    let source = (Source::from(peer), is_forwarded(request.headers()));
    let (now, counts) = (http.shared.clock.now(), &http.shared.stats.receiver_requests);
    let limited = |wait_ms| {
        client.audit(AuditEvent::LimitReached { why: "too many requests from this address" });
        counts.too_many_requests(wait_ms, "requests from this address")
    };
    let count = |class| route.count_request(source, class, now).map_err(limited);
    let is_issued = handler.is_issued_path(request.uri().path());
    if !is_issued && !handler.accepts_unissued_paths() {
        count(RequestClass::Unwanted)?;
        return Err(reject(counts, now, client, "this path was not issued"));
    }
    if !is_issued {
        route.classify_limiter.lock().take(source, route.classify_rate, now.0).map_err(limited)?;
    }
    let (head, body) = request.into_parts();
    let body = http.unverified_bodies.receive_untyped(body).await?;
    let request = Request::from_parts(head, body.bytes.clone());
    let class =
        if is_issued { RequestClass::Verified } else { handler.classify(&request, peer).await };
    count(class)?;
    match handler.handle(request, peer).await {
        HandlerReply::Verified(response) => {
            client.mark_verified();
            match response.status() {
                StatusCode::TOO_MANY_REQUESTS => counts.limited.add(1),
                status if status.is_success() => counts.accepted.add(1),
                _ => {}
            }
            Ok(response.map(Body::from))
        }
        HandlerReply::Public(response) => Ok(response.map(Body::from)),
        HandlerReply::Rejected(reason) => {
            if class == RequestClass::Verified {
                // The client knows the path, but it is not the sender that the path was issued to.
                count(RequestClass::Unwanted)?;
            }
            Err(reject(counts, now, client, reason))
        }
    }
}

/// Whether the headers show that a proxy forwarded the request.
pub fn is_forwarded(headers: &HeaderMap) -> bool {
    ["forwarded", "x-forwarded-for", "x-real-ip", "via"]
        .iter()
        .any(|name| headers.contains_key(*name))
}

/// Records a rejected request, and returns the response, which explains nothing.
fn reject(
    counts: &RequestCounts,
    now: Moment,
    client: &ConnectedClient,
    reason: &str,
) -> ErrorResponse {
    client.audit(AuditEvent::Refused { why: &format!("notice: {reason}") });
    if let Some(held_back) = counts.count_refused(now) {
        let peer = client.peer_ip();
        tracing::warn!(%peer, reason, held_back, "rejected a request to an embedded handler");
    }
    ErrorResponse::new(StatusCode::NOT_FOUND, "unknown", "not found")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio_util::sync::CancellationToken;

    use super::super::HttpConfig;
    use super::*;
    use crate::remote::{PeerAddr, RemoteInfo};
    use crate::{Broker, BrokerConfig};

    /// Verifies no sender, and counts how often it classifies a request.
    #[derive(Debug, Default)]
    struct CountingHandler(AtomicU32);

    impl EmbeddedHandler for CountingHandler {
        fn operations(&self) -> Vec<Operation> {
            Vec::new()
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
            Arc::clone(&broker.shared),
            HttpConfig::default(),
            CancellationToken::new(),
        );
        let remote = RemoteInfo::unencrypted(PeerAddr::Tcp(listen));
        let client = ConnectedClient::connected(&broker.shared, remote);
        let handler = Arc::new(CountingHandler::default());
        let route = HandlerRoute::new(Arc::clone(&handler) as Arc<dyn EmbeddedHandler>);
        tokio::time::pause();
        let mut accepted = 0;
        for _ in 0..CLASSIFY_FACTOR * CLASSIFY_BASE_MIN + 100 {
            let response = handle_request(&http, &route, &client, Request::default()).await;
            accepted += u32::from(response.is_ok());
        }
        assert_eq!(
            (accepted, handler.0.load(Ordering::Relaxed)),
            (1, CLASSIFY_FACTOR * CLASSIFY_BASE_MIN)
        );
        let mut forwarded = Request::default();
        forwarded.headers_mut().insert("via", "1.1 proxy".parse().unwrap());
        assert!(handle_request(&http, &route, &client, forwarded).await.is_ok());
        tokio::time::resume();
        drop(client);
        broker.stop().await;
    }
}
