//! HTTP: the same topics, groups and jobs as over lines, for programs that speak nothing else.
//!
//! ```text
//!  listener ──▶ hyper, one task a connection ──▶ guard ──▶ router ──▶ handler
//!                 publish: body ─▶ topic ─▶ safe ─▶ 200        (publish, idempotency)
//!                 read, stream: a cursor on a topic            (read, events, following, transcripts)
//!                 manage: a command of the line protocol ─▶ its answer as an object
//!                                                               (client, manage, jobs, objects)
//!                 hook: a signed body ─▶ URLs ─▶ topic ─▶ safe ─▶ 200   (hooks, throttle)
//! ```
//!
//! No handler has a way of its own past what the line protocol does: it asks the same, is refused
//! the same, and access is asked about in the same place.
#![expect(clippy::disallowed_methods, reason = "requests wait for a time that they say")]

mod body_memory;
mod client;
mod config;
mod embedded_handlers;
mod error;
pub mod hooks;
mod idempotency;
mod jobs;
mod json_fields;
mod json_objects;
mod long_poll;
mod manage;
mod origin_check;
mod publish;
mod request_head;
mod request_input;
mod server;
mod sse;
mod sse_buffers;
mod system;
mod topic_cursor;
mod write_timeout;

use std::future::Future;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{Method, StatusCode, Uri};
use axum::routing::{get, post};
use bytes::Bytes;
use tidings_protocol::{Code, Command, ProtocolError};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use self::client::ConnectedClient;
pub use self::config::{HTTP_PORT, HttpConfig};
pub use self::embedded_handlers::{
    ClassifyFuture, CountersFuture, EmbeddedHandler, HandlerFuture, HandlerReply, RequestClass,
    is_forwarded,
};
use self::error::ErrorResponse;
use self::hooks::Hooks;
use self::idempotency::IdempotencyKeys;
use self::request_input::BodyReceiver;
pub(crate) use self::server::serve;
use self::sse_buffers::SseBuffers;
use super::Hub;
use super::stream::{PeerAddr, RemoteInfo};
use crate::access::Transport;
use crate::net::listener::AdmittedConnection;

/// What all requests share.
#[derive(Debug)]
struct HttpState {
    hub: Arc<Hub>,
    config: Arc<HttpConfig>,
    bodies: BodyReceiver,
    /// Those of webhooks, whether there are such or not, which come before it is known from whom.
    unverified_bodies: BodyReceiver,
    /// Room for pages of events that are on their way, in pieces.
    page_memory: Arc<Semaphore>,
    idempotency_keys: IdempotencyKeys,
    sse_buffers: SseBuffers,
    hooks: Hooks,
    /// What can be asked, in `OpenAPI`.
    openapi_document: Bytes,
    /// Ends what has no end of its own.
    stop: CancellationToken,
}

impl HttpState {
    fn new(hub: Arc<Hub>, mut config: HttpConfig, stop: CancellationToken) -> Self {
        let hooks = Hooks::new(std::mem::take(&mut config.hooks), config.hook_events_per_minute);
        let openapi_document = system::openapi_with(&config.embedded_handlers);
        let config = Arc::new(config);
        Self {
            hub,
            openapi_document,
            bodies: BodyReceiver::new(Arc::clone(&config)),
            unverified_bodies: BodyReceiver::unverified(Arc::clone(&config)),
            page_memory: Arc::new(Semaphore::new(
                config.pages_bytes_max.div_ceil(long_poll::PAGE_PERMIT_BYTES),
            )),
            config,
            idempotency_keys: IdempotencyKeys::default(),
            sse_buffers: SseBuffers::default(),
            hooks,
            stop,
        }
    }
}

/// What answers by HTTP, to be told of other settings while it does.
#[derive(Debug)]
pub(crate) struct HttpServer(Arc<HttpState>);

impl HttpServer {
    /// What counts for all requests that come from here on.
    pub(crate) fn reload(&self, config: &HttpConfig) {
        self.0.hooks.replace(config.hooks.clone(), config.hook_events_per_minute);
    }
}

/// Asks what a command of the line protocol asks, as one more connection, and waits for an answer,
/// but not for ever ([`Code::Idle`]).
pub(crate) async fn run_command(
    hub: &Arc<Hub>,
    command: &Command<'_>,
    patience: Duration,
) -> Result<(), ProtocolError> {
    let (conn, mailbox) = hub
        .registry
        .register()
        .map_err(|_| ProtocolError::new(Code::Limit, "there are as many connections as may be"))?;
    let entered = AdmittedConnection { conn, mailbox, usage: None };
    let peer = PeerAddr::Tcp((Ipv4Addr::LOCALHOST, 0).into());
    let remote = RemoteInfo { peer, certificate: None, is_encrypted: false };
    let client = ConnectedClient::new(Arc::clone(hub), entered, remote, patience);
    client.set_identity(hub.access.internal(Transport::Http))?;
    client.run(command).await.map(drop)
}

/// Everything that can be asked. `openapi.json` describes it; what receivers answer they describe
/// themselves.
fn router(http: &Arc<HttpState>) -> Router {
    let router = Router::new()
        .route("/", get(system::index))
        .route("/openapi.json", get(system::openapi))
        .route("/health", get(system::health))
        .route("/ready", get(system::ready))
        .route("/stats", get(system::stats))
        .route("/topics", get(manage::topics))
        .route(
            "/topics/{topic}",
            get(long_poll::read)
                .post(publish::publish)
                .put(manage::put_topic)
                .delete(manage::delete_topic),
        )
        .route("/topics/{topic}/events", get(sse::stream))
        .route("/topics/{topic}/state", get(manage::topic))
        .route("/groups", get(manage::groups))
        .route(
            "/groups/{group}",
            get(manage::group).put(manage::put_group).delete(manage::delete_group),
        )
        .route("/groups/{group}/pause", post(manage::pause_group))
        .route("/groups/{group}/resume", post(manage::resume_group))
        .route("/groups/{group}/purge", post(manage::purge_group))
        .route("/groups/{group}/tasks", get(manage::tasks))
        .route("/groups/{group}/keys", get(manage::keys))
        .route("/groups/{group}/schedules", get(manage::schedules))
        .route("/groups/{group}/dead", get(manage::dead_letters))
        .route("/groups/{group}/dead/retry", post(manage::retry_dead))
        .route("/groups/{group}/dead/drop", post(manage::drop_dead))
        .route("/jobs", get(jobs::jobs).post(jobs::open))
        .route("/jobs/{job}", get(jobs::job).delete(jobs::delete))
        .route("/jobs/{job}/urls", post(jobs::add))
        .route("/jobs/{job}/close", post(jobs::close))
        .route("/jobs/{job}/cancel", post(jobs::cancel))
        .route("/jobs/{job}/pause", post(jobs::pause))
        .route("/jobs/{job}/resume", post(jobs::resume))
        .route("/explain", get(manage::explain))
        .route("/hooks/{hook}", post(hooks::receive))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(Arc::clone(http));
    embedded_handlers::add_routes(router, http)
}

async fn not_found(uri: Uri) -> ErrorResponse {
    let message = format!("there is nothing at {}; /openapi.json says what there is", uri.path());
    ErrorResponse::new(StatusCode::NOT_FOUND, "unknown", message)
}

async fn method_not_allowed(method: Method, uri: Uri) -> ErrorResponse {
    let message = format!("{method} is not for {}; /openapi.json says what is", uri.path());
    ErrorResponse::new(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", message)
}

/// What `future` came to, if it did within `bound`.
async fn with_timeout<T>(bound: Duration, future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(bound, future).await.ok()
}
