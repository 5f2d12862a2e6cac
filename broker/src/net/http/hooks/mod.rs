//! `POST /hooks/{name}`: webhooks of forges, CMSs and others become events.
//!
//! ```text
//!  body, within its limits ─▶ signature ─▶ its rate ─▶ URLs ─▶ prefixes ─▶ share ─▶ topic
//!         408, 413            404, 429      429  400, 415, 422   422        429     200
//! ```
//!
//! Who is not the configured sender is told nothing, and nothing that it sent is looked into: a
//! hook that there is not, an address that may not send and a signature that is wrong have the same
//! answer, after the same work. Sent again, a request has the answer that it had, and nothing is
//! published: its events have ids that are made of what was signed.
//!
//! What is announced is the recipe's, except for URLs, and these lie below the recipe's prefixes.
//! So what gives an event power over others (`every`, `prio`, `job`, `hub`) comes from the
//! configuration alone.

mod encoding;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod recipe;
mod signature;
mod url_location;

use std::borrow::Cow;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use parking_lot::{Mutex, RwLock};
use tidings_protocol::{ProtocolError, Seq};

pub use self::recipe::{Hook, Recipe, SECRET_BYTES_MIN, SecretSource};
pub use self::signature::{
    Algorithm, HeaderLookup, Secret, SignatureError, SignatureHeaders, SignatureScheme,
    VerifiedRequest,
};
use super::HttpState;
use super::client::ConnectedClient;
use super::error::ErrorResponse;
use super::idempotency::{IdempotencyKey, IdempotencyKeys, KeyState};
use super::json_objects::JsonResponse;
use super::publish::{append, confirm, wait_for_memory};
use super::request_input::{PathName, QueryParams, check_encoding};
use crate::audit::{AuditEvent, Initiator};
use crate::rate_limit::{Rate, RateLimiter, SOURCES_MAX, Source, TokenBucket};
use crate::topic::Topic;

/// How often a source is told that it has not signed, of all hooks together, whether there are such
/// or not. Beyond that it is told to wait.
const UNVERIFIED_RATE: Rate = Rate { per_minute: 60, burst: 60 };

/// The address from which a connection came.
#[derive(Debug, Clone, Copy)]
pub(super) struct PeerIp(pub(super) IpAddr);

/// The name of a hook as it is asked for, which may be anything.
pub(super) struct RequestedHookName(String);

impl FromStr for RequestedHookName {
    type Err = ProtocolError;

    fn from_str(name: &str) -> Result<Self, ProtocolError> {
        Ok(Self(name.to_owned()))
    }
}

/// All hooks, and how much they were used.
#[derive(Debug)]
pub(super) struct Hooks {
    table: RwLock<HookTable>,
    /// Which name has which decoy, that nobody can tell.
    decoy_hasher: RandomState,
    /// For each source and each hook, by its place, of what was signed; `None` stands for
    /// everything else.
    source_limits: Mutex<RateLimiter<(Source, Option<usize>)>>,
    /// What all hooks together may publish, in events.
    event_budget: Mutex<TokenBucket>,
    event_rate: RwLock<Rate>,
    /// Requests that were taken lately, and which numbers their events have.
    recent_requests: IdempotencyKeys,
}

/// Hooks, and for each of them one that takes as long and that nobody can use, which is asked where
/// there is no hook. At least one of these.
#[derive(Debug)]
struct HookTable {
    hooks: Vec<Arc<Hook>>,
    decoys: Vec<Arc<Hook>>,
}

impl From<Vec<Hook>> for HookTable {
    fn from(hooks: Vec<Hook>) -> Self {
        let mut decoys: Vec<_> = hooks.iter().map(Hook::decoy).map(Arc::new).collect();
        if decoys.is_empty() {
            decoys.push(Arc::new(default_decoy()));
        }
        Self { hooks: hooks.into_iter().map(Arc::new).collect(), decoys }
    }
}

impl Hooks {
    /// `hook_events_per_minute` is the number of events that all of them together may publish a
    /// minute.
    pub(super) fn new(hooks: Vec<Hook>, hook_events_per_minute: u32) -> Self {
        Self {
            table: RwLock::new(hooks.into()),
            decoy_hasher: RandomState::new(),
            source_limits: Mutex::new(RateLimiter::new(SOURCES_MAX)),
            event_budget: Mutex::default(),
            event_rate: RwLock::new(event_rate(hook_events_per_minute)),
            recent_requests: IdempotencyKeys::default(),
        }
    }

    /// Other hooks from here on, or the same with other secrets. How much a source has asked of the
    /// hook that was at the same place before is held against it for a minute.
    pub(super) fn replace(&self, hooks: Vec<Hook>, hook_events_per_minute: u32) {
        *self.table.write() = hooks.into();
        *self.event_rate.write() = event_rate(hook_events_per_minute);
    }

    /// The hook of that name for those who come from there, and its place; a decoy without a place
    /// if there is none. A name has the same decoy each time, as it would have the same hook.
    fn find(&self, name: &str, from: IpAddr) -> (Option<usize>, Arc<Hook>) {
        let HookTable { hooks, decoys } = &*self.table.read();
        let decoy = self.decoy_hasher.hash_one(name) % decoys.len() as u64;
        let decoy = &decoys[usize::try_from(decoy).expect("it is below a length")];
        let found = hooks.iter().enumerate().find(|(_, hook)| hook.recipe().name == name);
        match found.filter(|(_, hook)| hook.senders().allows(from)) {
            Some((at, hook)) => (Some(at), Arc::clone(hook)),
            None => (None, Arc::clone(decoy)),
        }
    }
}

fn event_rate(hook_events_per_minute: u32) -> Rate {
    Rate {
        per_minute: hook_events_per_minute,
        // One request, however slowly they come, has to fit.
        burst: hook_events_per_minute.max(url_location::URLS_MAX),
    }
}

/// The decoy where there are no hooks at all.
fn default_decoy() -> Hook {
    let recipe = r#"{"name":"none","secret-env":"","signature":"github","url":{"field":""},
        "prefixes":["http://localhost/"]}"#;
    let recipe: Recipe = recipe.parse().expect("it is a recipe");
    recipe.with_secret(&"x".repeat(32)).expect("it is a secret").decoy()
}

/// Answered when all of the events are as safe as their topic promises.
pub(super) async fn receive(
    State(http): State<Arc<HttpState>>,
    Extension(client): Extension<Arc<ConnectedClient>>,
    Extension(PeerIp(peer)): Extension<PeerIp>,
    PathName(RequestedHookName(name)): PathName<RequestedHookName>,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Result<JsonResponse, ErrorResponse> {
    QueryParams::parse(&uri, &[])?;
    let hooks = &http.hooks;
    // Whether there is such a hook makes no difference for who cannot sign.
    let (at, hook) = hooks.find(&name, peer);
    // Whatever type it says: that is looked at when it is known who sends it.
    let received = http.unverified_bodies.receive_untyped(body).await?;
    let body = &received.bytes;
    let now = http.hub.clock.now();
    let source = Source::from(peer);
    let refuse = |hook: Option<&Hook>, reason: &dyn fmt::Display| {
        // Whoever signs pays nothing for those who do not, who may come through the same proxy.
        let taken = hooks.source_limits.lock().take((source, None), UNVERIFIED_RATE, now);
        match taken {
            Ok(()) => reject_unverified(&http, &client, hook, reason),
            Err(wait_ms) => rate_limited(&http, &client, wait_ms, "requests from this address"),
        }
    };
    let authentic = match hook.verify(&headers, body, http.hub.clock.unix_ms()) {
        Ok(authentic) if at.is_some() => authentic,
        Ok(_) => return Err(refuse(None, &"nobody has that secret")),
        Err(_) if at.is_none() => {
            return Err(refuse(None, &"there is no such hook for this address"));
        }
        Err(doubt) => return Err(refuse(Some(&hook), &doubt)),
    };
    client.mark_verified();
    let taken = hooks.source_limits.lock().take((source, at), hook.rate(), now);
    taken.map_err(|wait_ms| rate_limited(&http, &client, wait_ms, "requests from this address"))?;
    check_encoding(&headers)?;
    let announced = hook.events(&authentic, &headers, body)?;
    drop(received);
    let topic = http.hub.topics.open(hook.topic())?;
    let payloads: Vec<Cow<'_, str>> = announced.payloads.into_iter().map(Cow::Owned).collect();
    let Some(key) = announced.idempotency_key else {
        let seqs = publish(&http, &client, &name, &topic, &payloads).await?;
        http.hub.stats.webhooks.accepted.add(1);
        return confirm(&topic, seqs).await;
    };
    // A key stands for one body, so that there is nothing to compare. Of two at once the topic
    // finds the second by its ids.
    let id = IdempotencyKey { topic_id: topic.id(), principal: hook.recipe().name.clone(), key };
    let (serial, seqs) = match hooks.recent_requests.begin(&id, 0, now) {
        KeyState::Completed(seqs) => (None, seqs),
        KeyState::InProgress | KeyState::BodyMismatch => {
            (None, publish(&http, &client, &name, &topic, &payloads).await?)
        }
        KeyState::New(serial) => {
            let published = publish(&http, &client, &name, &topic, &payloads).await;
            hooks.recent_requests.finish(&id, serial, published.as_deref().ok());
            (Some(serial), published?)
        }
    };
    http.hub.stats.webhooks.accepted.add(1);
    let answer = confirm(&topic, seqs).await;
    if let (Err(_), Some(serial)) = (&answer, serial) {
        hooks.recent_requests.finish(&id, serial, None);
    }
    answer
}

/// Who publishes what a webhook brings.
fn initiator(client: &ConnectedClient, hook: &str) -> Initiator {
    client.initiator().with_name(format!("hook:{hook}"))
}

/// Appends events, as many as webhooks may bring.
async fn publish(
    http: &HttpState,
    client: &ConnectedClient,
    hook: &str,
    topic: &Arc<Topic>,
    payloads: &[Cow<'_, str>],
) -> Result<Vec<Seq>, ErrorResponse> {
    let events = u32::try_from(payloads.len()).unwrap_or(u32::MAX);
    take_event_budget(http, client, events)?;
    // By the same connection others come, and other webhooks.
    let by = initiator(client, hook);
    let conn = by.conn;
    http.hub.audit.identity_changed(conn);
    let appended =
        wait_for_memory(http, topic).await.and_then(|()| append(http, topic, by, payloads));
    http.hub.audit.identity_changed(conn);
    if appended.is_err() {
        http.hooks.event_budget.lock().refund(*http.hooks.event_rate.read(), events);
    }
    appended
}

/// What webhooks bring must not be all that there is: so many events a minute are theirs, in
/// whatever number of requests they come, and all other ways in have the rest.
fn take_event_budget(
    http: &HttpState,
    client: &ConnectedClient,
    events: u32,
) -> Result<(), ErrorResponse> {
    let now = http.hub.clock.now();
    let taken = http.hooks.event_budget.lock().take(*http.hooks.event_rate.read(), events, now);
    taken.map_err(|wait_ms| rate_limited(http, client, wait_ms, "events of all webhooks together"))
}

/// Refuses one that is too many, of `what`; it may be taken after so many ms.
fn rate_limited(
    http: &HttpState,
    client: &ConnectedClient,
    wait_ms: u64,
    what: &str,
) -> ErrorResponse {
    client.audit(AuditEvent::LimitReached { why: &format!("webhook: too many {what}") });
    http.hub.stats.webhooks.too_many_requests(wait_ms, what)
}

/// What everybody hears who is not the sender. Why is for the log, in our own words alone.
fn reject_unverified(
    http: &HttpState,
    client: &ConnectedClient,
    hook: Option<&Hook>,
    reason: impl fmt::Display,
) -> ErrorResponse {
    let peer = client.remote.peer.ip();
    client.audit(AuditEvent::Refused { why: &format!("webhook: {reason}") });
    if let Some(held_back) = http.hub.stats.webhooks.count_refused(http.hub.clock.now()) {
        let hook = hook.map_or("none", |hook| &hook.recipe().name);
        tracing::warn!(%peer, hook, %reason, held_back, "a webhook was refused");
    }
    ErrorResponse::new(StatusCode::NOT_FOUND, "unknown", "there is no such webhook")
}
