//! Requests to which others in this process know the answer: hubs that notify, subscribers of a hub of ours. They are told no
//! more than their paths; what a request may cost before somebody vouches for it is bounded here.
//!
//! ```text
//!  source ─▶ known path, or throttle ─▶ body, within its limits ─▶ receiver ─▶ its answer, or 404
//!                              429             408, 413
//! ```

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
use super::error::Refusal;
use super::hooks::PeerIp;
use super::input::Use;
use crate::clock::Moment;
use crate::stats::Visits;
use crate::throttle::{Rate, SOURCES_MAX, Source, Throttle};

/// What a receiver says of a request.
#[derive(Debug)]
pub enum Reply {
    /// It is from somebody who is known, and counts for nothing.
    Known(Response<Bytes>),
    /// Anybody may ask this, so often.
    Anybody(Response<Bytes>),
    /// It is from somebody who has no business here, and who is told nothing. Why is for the log, in our own words.
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

    /// Requests of one source that nobody vouches for: as many a minute, and as many at once.
    fn per_minute(&self) -> u32 {
        60
    }

    /// Whether somebody was told this path whom nobody else could have it from. Others are told nothing, and their bodies are
    /// not waited for.
    fn knows(&self, path: &str) -> bool {
        let _ = path;
        false
    }

    /// Whether a path that is [known](Receiver::knows) to nobody is answered nevertheless.
    fn is_open(&self) -> bool {
        true
    }

    /// What they are: `paths` of `OpenAPI`, in JSON. `openapi.json` is served with it, and its components can be referred to.
    fn describe(&self) -> &'static str {
        "{}"
    }

    /// What `GET /stats` says of it. `openapi.json` describes that.
    fn count(&self) -> Counting<'_> {
        Box::pin(std::future::ready(None))
    }

    /// Answers one, whose body is whole. `peer` is the address of the connection.
    fn receive(&self, request: Request<Bytes>, peer: IpAddr) -> Replying<'_>;
}

/// A receiver, and who asks it.
#[derive(Debug)]
struct Received {
    receiver: Arc<dyn Receiver>,
    /// By source, and whether somebody stands between: who asks from a proxy's machine is not who asks through it.
    strangers: Mutex<Throttle<(Source, bool)>>,
    rate: Rate,
}

/// With the paths of all receivers.
pub(super) fn route(mut router: Router, http: &Arc<Http>) -> Router {
    for receiver in &http.config.receivers {
        let per_minute = receiver.per_minute();
        let received = Arc::new(Received {
            receiver: Arc::clone(receiver),
            strangers: Mutex::new(Throttle::new(SOURCES_MAX)),
            rate: Rate { per_minute, burst: per_minute },
        });
        for path in receiver.paths() {
            let (http, received) = (Arc::clone(http), Arc::clone(&received));
            let answer = move |Extension(PeerIp(peer)): Extension<PeerIp>, request: Request| async move {
                answer(&http, &received, peer, request).await
            };
            router = router.route(path, any(answer));
        }
    }
    router
}

async fn answer(
    http: &Http,
    Received { receiver, strangers, rate }: &Received,
    peer: IpAddr,
    request: Request,
) -> Result<Response<Body>, Refusal> {
    let source = (Source::from(peer), is_forwarded(request.headers()));
    let (now, visits) = (http.hub.clock.now(), &http.hub.stats.notices);
    let is_known = receiver.knows(request.uri().path());
    if !is_known {
        let taken = strangers.lock().take(source, *rate, now);
        taken.map_err(|wait_ms| visits.limited(wait_ms, "requests from this address"))?;
        if !receiver.is_open() {
            return Err(refused(visits, now, peer, "nobody was told that path"));
        }
    }
    let (head, body) = request.into_parts();
    let body = http.hook_bodies.receive_any(body, Use::Kept).await?;
    let request = Request::from_parts(head, body.bytes.clone());
    match receiver.receive(request, peer).await {
        Reply::Known(response) => {
            if !is_known {
                strangers.lock().give_back(source, *rate);
            }
            match response.status() {
                StatusCode::TOO_MANY_REQUESTS => visits.limited.add(1),
                status if status.is_success() => visits.taken.add(1),
                _ => {}
            }
            Ok(response.map(Body::from))
        }
        Reply::Anybody(response) => Ok(response.map(Body::from)),
        Reply::Nobody(reason) => Err(refused(visits, now, peer, reason)),
    }
}

/// Whether a proxy says that it asks for somebody else.
pub fn is_forwarded(headers: &HeaderMap) -> bool {
    ["forwarded", "x-forwarded-for", "x-real-ip", "via"]
        .iter()
        .any(|name| headers.contains_key(*name))
}

/// What everybody hears who has no business here.
fn refused(visits: &Visits, now: Moment, peer: IpAddr, reason: &str) -> Refusal {
    if let Some(held_back) = visits.refuse(now) {
        tracing::warn!(%peer, reason, held_back, "a notice was refused");
    }
    Refusal::new(StatusCode::NOT_FOUND, "unknown", "there is nothing here")
}
