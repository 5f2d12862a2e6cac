//! HTTP: access to the same topics, groups and jobs as by the line protocol.
//!
//! ```text
//!  listener ──▶ hyper, one task per connection ──▶ origin_check ──▶ router ──▶ handler
//!
//!  publish       body ─▶ topic ─▶ durable ─▶ 200                   publish, idempotency
//!  read, stream  cursor on a topic ─▶ events                       long_poll, sse, topic_cursor,
//!                                                                  sse_buffers
//!  manage        command of the line protocol ─▶ reply as JSON     client, manage, jobs, retry,
//!                                                                  json_fields, json_objects
//!  webhook       signed body ─▶ URLs ─▶ topic ─▶ durable ─▶ 200    hooks
//!  dashboard     page and files; states, sampled once a second     dashboard
//!  other paths   request ─▶ handler in this process ─▶ response    embedded_handlers
//! ```
//!
//! `routes` declares each request once: path, parameters, answers and handler. The router and the
//! `OpenAPI` document (`openapi`) follow.
//!
//! A handler may do only what the line protocol allows. It runs the same commands and gets the same
//! errors, and the same code checks permissions.
#![expect(clippy::disallowed_methods, reason = "requests have timeouts")]

mod body_memory;
mod client;
mod config;
mod dashboard;
mod embedded_handlers;
mod error;
mod history;
pub mod hooks;
mod idempotency;
mod jobs;
mod json_fields;
mod json_objects;
mod long_poll;
mod manage;
pub mod openapi;
mod origin_check;
mod publish;
mod request_head;
mod request_input;
mod retry;
mod routes;
mod server;
mod sse;
mod sse_buffers;
mod system;
mod topic_cursor;
mod write_timeout;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{Method, StatusCode, Uri};
use axum::routing::get;
use axum::{Extension, Router};
use bytes::Bytes;
use parking_lot::Mutex;
use tidings_protocol::{Command, ProtocolError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::client::ConnectedClient;
pub use self::config::{HTTP_PORT, HttpConfig};
use self::dashboard::Dashboard;
use self::dashboard::live::Live;
pub use self::embedded_handlers::{
    ClassifyFuture, CountersFuture, EmbeddedHandler, HandlerFuture, HandlerReply, RequestClass,
    is_forwarded,
};
use self::error::ErrorResponse;
use self::hooks::Hooks;
use self::idempotency::IdempotencyKeys;
use self::manage::ClientExtension;
pub use self::origin_check::{add_security_headers, is_address_or_localhost};
use self::request_input::{BodyReceiver, QueryParams};
pub(crate) use self::server::serve;
use self::sse_buffers::SseBuffers;
use super::Shared;
use crate::metrics::History;

/// Bytes of a response for which one permit of `page_memory` stands.
const PAGE_PERMIT_BYTES: usize = 1 << 10;

/// State that all requests share.
#[derive(Debug)]
pub(crate) struct HttpState {
    shared: Arc<Shared>,
    config: Arc<HttpConfig>,
    bodies: BodyReceiver,
    /// Receives bodies of webhooks and embedded handlers. Their senders are verified afterwards.
    unverified_bodies: BodyReceiver,
    /// Memory for pages of events that are being sent, in permits of
    /// [`PAGE_PERMIT_BYTES`].
    page_memory: Arc<Semaphore>,
    idempotency_keys: IdempotencyKeys,
    sse_buffers: SseBuffers,
    hooks: Hooks,
    history: Mutex<History>,
    /// `None` if it is off.
    dashboard: Option<Dashboard>,
    /// The body of `GET /openapi.json`.
    openapi_document: Bytes,
    /// Ends connections and event streams when the broker stops.
    stop: CancellationToken,
}

impl HttpState {
    fn new(shared: Arc<Shared>, mut config: HttpConfig, stop: CancellationToken) -> Self {
        let hooks = Hooks::new(std::mem::take(&mut config.hooks), config.hook_events_per_minute);
        let openapi_document = routes::openapi(&config.embedded_handlers);
        let config = Arc::new(config);
        Self {
            dashboard: config.dashboard.then(Dashboard::new),
            shared,
            openapi_document,
            bodies: BodyReceiver::new(Arc::clone(&config)),
            unverified_bodies: BodyReceiver::unverified(Arc::clone(&config)),
            page_memory: Arc::new(Semaphore::new(
                config.pages_bytes_max.div_ceil(PAGE_PERMIT_BYTES),
            )),
            config,
            idempotency_keys: IdempotencyKeys::default(),
            sse_buffers: SseBuffers::default(),
            hooks,
            history: Mutex::new(History::new()),
            stop,
        }
    }

    /// Waits for memory of a page of this length. A longer one than all memory gets all of it.
    async fn reserve_page(&self, bytes: usize) -> OwnedSemaphorePermit {
        let permits = bytes.min(self.config.pages_bytes_max).div_ceil(PAGE_PERMIT_BYTES);
        let permits = u32::try_from(permits).unwrap_or(u32::MAX);
        // The write timeout closes clients that do not read, so permits always become free.
        let permit = Arc::clone(&self.page_memory).acquire_many_owned(permits).await;
        permit.expect("the semaphore is never closed")
    }

    /// Replaces the webhooks and their common limit of events for all later requests.
    pub(crate) fn reload(&self, config: &HttpConfig) {
        self.hooks.replace(config.hooks.clone(), config.hook_events_per_minute);
    }
}

/// Runs a command of the line protocol as the broker itself. Fails with
/// [`Code::Idle`](tidings_protocol::Code::Idle) after `command_timeout`.
pub(crate) async fn run_command(
    shared: &Arc<Shared>,
    command: &Command<'_>,
    command_timeout: Duration,
) -> Result<(), ProtocolError> {
    let client = ConnectedClient::internal(Arc::clone(shared), command_timeout);
    client.run(command).await.map(drop)
}

/// All routes: those of the broker, those of embedded handlers, and the files of the dashboard.
fn router(http: &Arc<HttpState>, tasks: &TaskTracker) -> Router {
    let readable = routes::router()
        .route("/dashboard/{*path}", get(dashboard::file))
        .with_state(Arc::clone(http));
    let live = Arc::new(Live::new(Arc::clone(http), readable.clone(), tasks.clone()));
    let stream = async move |Extension(client): ClientExtension, params: QueryParams| {
        live.stream(&client, &params)
    };
    let router = readable
        .merge(routes::live_router(stream).with_state(Arc::clone(http)))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed);
    embedded_handlers::add_routes(router, http)
}

async fn not_found(uri: Uri) -> ErrorResponse {
    let message = format!("no route {}; /openapi.json lists all routes", uri.path());
    ErrorResponse::new(StatusCode::NOT_FOUND, "unknown", message)
}

async fn method_not_allowed(method: Method, uri: Uri) -> ErrorResponse {
    let message = format!("{} does not accept {method}; see /openapi.json", uri.path());
    ErrorResponse::new(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", message)
}

/// The output of `future`, or `None` if it takes longer than `limit`.
async fn with_timeout<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(limit, future).await.ok()
}
