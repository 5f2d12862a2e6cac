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

mod client;
mod config;
mod error;
mod events;
mod fields;
mod following;
mod guard;
mod head;
pub mod hooks;
mod idempotency;
mod input;
mod jobs;
mod manage;
mod objects;
mod publish;
mod read;
mod receivers;
mod room;
mod server;
mod system;
mod transcripts;
mod watched;

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

use self::client::Client;
pub use self::config::{HTTP_PORT, HttpConfig};
use self::error::Refusal;
use self::hooks::Hooks;
use self::idempotency::Keys;
use self::input::Bodies;
pub use self::receivers::{Asker, Counting, Receiver, Recognizing, Reply, Replying, is_forwarded};
pub(crate) use self::server::serve;
use self::transcripts::TranscriptsOfTopics;
use super::Hub;
use super::stream::{Peer, Remote};
use crate::access::Transport;
use crate::net::listener::Entered;

/// What all requests share.
#[derive(Debug)]
struct Http {
    hub: Arc<Hub>,
    config: Arc<HttpConfig>,
    bodies: Bodies,
    /// Those of webhooks, whether there are such or not, which come before it is known from whom.
    hook_bodies: Bodies,
    /// Room for pages of events that are on their way, in pieces.
    pages: Arc<Semaphore>,
    keys: Keys,
    transcripts: TranscriptsOfTopics,
    hooks: Hooks,
    /// What can be asked, in `OpenAPI`.
    description: Bytes,
    /// Ends what has no end of its own.
    stop: CancellationToken,
}

impl Http {
    fn new(hub: Arc<Hub>, mut config: HttpConfig, stop: CancellationToken) -> Self {
        let hooks = Hooks::new(std::mem::take(&mut config.hooks), config.hook_events_per_minute);
        let description = system::describe(&config.receivers);
        let config = Arc::new(config);
        Self {
            hub,
            description,
            bodies: Bodies::new(Arc::clone(&config)),
            hook_bodies: Bodies::of_strangers(Arc::clone(&config)),
            pages: Arc::new(Semaphore::new(config.pages_bytes_max.div_ceil(read::PIECE_BYTES))),
            config,
            keys: Keys::default(),
            transcripts: TranscriptsOfTopics::default(),
            hooks,
            stop,
        }
    }
}

/// What answers by HTTP, to be told of other settings while it does.
#[derive(Debug)]
pub(crate) struct Serving(Arc<Http>);

impl Serving {
    /// What counts for all requests that come from here on.
    pub(crate) fn reload(&self, config: &HttpConfig) {
        self.0.hooks.replace(config.hooks.clone(), config.hook_events_per_minute);
    }
}

/// Asks what a command of the line protocol asks, as one more connection, and waits for an answer,
/// but not for ever ([`Code::Idle`]).
pub(crate) async fn ask(
    hub: &Arc<Hub>,
    command: &Command<'_>,
    patience: Duration,
) -> Result<(), ProtocolError> {
    let (conn, mailbox) = hub
        .registry
        .enter()
        .map_err(|_| ProtocolError::new(Code::Limit, "there are as many connections as may be"))?;
    let entered = Entered { conn, mailbox, held: None };
    let peer = Peer::Tcp((Ipv4Addr::LOCALHOST, 0).into());
    let remote = Remote { peer, certificate: None, is_encrypted: false };
    let client = Client::new(Arc::clone(hub), entered, remote, patience);
    client.is_of(hub.access.internal(Transport::Http))?;
    client.ask(command).await.map(drop)
}

/// Everything that can be asked. `openapi.json` describes it; what receivers answer they describe
/// themselves.
fn router(http: &Arc<Http>) -> Router {
    let router = Router::new()
        .route("/", get(system::index))
        .route("/openapi.json", get(system::openapi))
        .route("/health", get(system::health))
        .route("/ready", get(system::ready))
        .route("/stats", get(system::stats))
        .route("/topics", get(manage::topics))
        .route(
            "/topics/{topic}",
            get(read::read)
                .post(publish::publish)
                .put(manage::put_topic)
                .delete(manage::delete_topic),
        )
        .route("/topics/{topic}/events", get(events::stream))
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
        .route("/groups/{group}/dead", get(manage::dead))
        .route("/groups/{group}/dead/retry", post(manage::retry))
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
        .fallback(no_such)
        .method_not_allowed_fallback(not_allowed)
        .with_state(Arc::clone(http));
    receivers::route(router, http)
}

async fn no_such(uri: Uri) -> Refusal {
    let message = format!("there is nothing at {}; /openapi.json says what there is", uri.path());
    Refusal::new(StatusCode::NOT_FOUND, "unknown", message)
}

async fn not_allowed(method: Method, uri: Uri) -> Refusal {
    let message = format!("{method} is not for {}; /openapi.json says what is", uri.path());
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", message)
}

/// What `future` came to, if it did within `bound`.
async fn within<T>(bound: Duration, future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(bound, future).await.ok()
}
