//! `POST /hooks/{name}`: publishes the webhooks of forges, CMSs and other senders as events.
//!
//! ```text
//!  body, within its limits ─▶ signature ─▶ its rate ─▶ URLs ─▶ prefixes ─▶ budget ─▶ topic
//!         408, 413            404, 429      429  400, 415, 422   422        429      200
//! ```
//!
//! An unverified request is rejected before its body is parsed. An unknown hook, an address that
//! may not send and a wrong signature get the same answer, after the same work. A repeated request
//! gets the answer of the first one and publishes nothing: the ids of its events are made of what
//! was signed.
//!
//! A request without a URL, such as the ping of a new webhook, is accepted and publishes nothing.
//!
//! An event consists of the recipe's attributes and a URL below the recipe's prefixes. So
//! privileged attributes (`every`, `prio`, `job`, `hub`) come from the configuration alone.

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod recipe;
mod url_location;

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::mem::{Discriminant, discriminant};
use std::net::IpAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::http::StatusCode;
use parking_lot::{Mutex, RwLock};
use tidings_protocol::{Seq, is_name};
use tidings_rate_limit::{Rate, RateLimiter, SOURCES_MAX, Source, TokenBucket};
use tidings_signature::SignatureError;

pub use self::recipe::{Hook, Recipe, SECRET_BYTES_MIN, SecretSource};
use super::HttpState;
use super::client::ConnectedClient;
use super::error::{ErrorResponse, HttpResult};
use super::idempotency::{IdempotencyKey, IdempotencyKeys, KeyState};
use super::json_objects::JsonResponse;
use super::publish::{append, confirm, wait_for_backpressure};
use super::request_input::{NamedRequest, check_encoding};
use crate::audit::AuditEvent;
use crate::stats::LogRateLimit;
use crate::topic::Topic;

/// Unverified requests of one source to all hooks together, existing or not. They get 404, and
/// further ones 429.
const UNVERIFIED_RATE: Rate = Rate { per_minute: 60, burst: 60 };

/// All hooks, their limits, and the requests that they have accepted recently.
#[derive(Debug)]
pub(super) struct Hooks {
    table: RwLock<HookTable>,
    /// Assigns a decoy to each unknown name. Random, so that a client cannot predict it.
    decoy_hasher: RandomState,
    /// The rates of verified requests, by source and index of the hook; `None` counts the
    /// unverified requests of a source.
    source_limits: Mutex<RateLimiter<(Source, Option<usize>)>>,
    /// The events that all hooks together may publish.
    event_budget: Mutex<TokenBucket>,
    event_rate: RwLock<Rate>,
    /// Requests that were accepted recently, with the seqs of their events.
    recent_requests: IdempotencyKeys,
    /// Limits the log lines for each hook, or for all unknown names, and each reason.
    log_limits: Mutex<HashMap<(Option<usize>, LogReason), LogRateLimit>>,
}

type LogReason = (Discriminant<Rejection>, Option<Discriminant<SignatureError>>);

/// Why a request is not from the sender of a hook.
#[derive(Debug, thiserror::Error)]
enum Rejection {
    #[error("there is no hook of this name")]
    UnknownName,
    #[error("the address is none of the hook's senders")]
    OtherSender,
    #[error("{0}")]
    Signature(SignatureError),
}

impl Rejection {
    fn log_reason(&self) -> LogReason {
        let error = match self {
            Self::Signature(error) => Some(discriminant(error)),
            Self::UnknownName | Self::OtherSender => None,
        };
        (discriminant(self), error)
    }
}

/// The hooks, and a decoy for each. A request for an unknown hook is verified with a decoy, so that
/// it takes as long as for a hook. There is at least one decoy.
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
    /// `hook_events_per_minute` is the number of events that all hooks together may publish per
    /// minute.
    pub(super) fn new(hooks: Vec<Hook>, hook_events_per_minute: u32) -> Self {
        Self {
            table: RwLock::new(hooks.into()),
            decoy_hasher: RandomState::new(),
            source_limits: Mutex::new(RateLimiter::new(SOURCES_MAX)),
            event_budget: Mutex::default(),
            event_rate: RwLock::new(event_rate(hook_events_per_minute)),
            recent_requests: IdempotencyKeys::default(),
            log_limits: Mutex::default(),
        }
    }

    /// Replaces the hooks and their secrets. Rates are kept by index: for a minute, the requests to
    /// the old hook at an index count towards the rate of the new one.
    pub(super) fn replace(&self, hooks: Vec<Hook>, hook_events_per_minute: u32) {
        *self.table.write() = hooks.into();
        *self.event_rate.write() = event_rate(hook_events_per_minute);
    }

    /// Returns the hook of that name and its index, if `sender` may use it; otherwise a decoy and
    /// the reason. A name always has the same decoy, as it would always have the same hook.
    fn find(
        &self,
        name: &str,
        sender: IpAddr,
    ) -> (Option<usize>, Arc<Hook>, Result<(), Rejection>) {
        let HookTable { hooks, decoys } = &*self.table.read();
        let decoy = self.decoy_hasher.hash_one(name) % decoys.len() as u64;
        let decoy = &decoys[usize::try_from(decoy).expect("the remainder is less than a length")];
        let hook = hooks.iter().enumerate().find(|(_, hook)| hook.recipe().name == name);
        match hook {
            Some((index, hook)) if hook.recipe().senders.allows(sender) => {
                (Some(index), Arc::clone(hook), Ok(()))
            }
            Some((index, _)) => (Some(index), Arc::clone(decoy), Err(Rejection::OtherSender)),
            None => (None, Arc::clone(decoy), Err(Rejection::UnknownName)),
        }
    }
}

fn event_rate(hook_events_per_minute: u32) -> Rate {
    Rate {
        per_minute: hook_events_per_minute,
        // At any rate, one request with the largest number of URLs must fit.
        burst: hook_events_per_minute.max(url_location::URLS_MAX),
    }
}

/// The decoy of a broker without hooks.
fn default_decoy() -> Hook {
    let recipe = r#"{"name":"none","secret-env":"","signature":"github","url":{"field":""},
        "prefixes":["http://localhost/"]}"#;
    let recipe: Recipe = serde_json::from_str(recipe).expect("the recipe above is valid");
    recipe.with_secret(&"x".repeat(32)).expect("the secret is long enough").decoy()
}

/// Responds when all events are as safe as their topic promises.
pub(super) async fn receive(request: NamedRequest<String>, body: Body) -> HttpResult<JsonResponse> {
    let NamedRequest { http, client, name, headers, .. } = request;
    let hooks = &http.hooks;
    let peer = client.peer_ip();
    // An unknown hook has a decoy, so that the client cannot tell the difference.
    let (index, hook, found) = hooks.find(&name, peer);
    // The content type is checked after the signature.
    let received = http.unverified_bodies.receive_untyped(body).await?;
    let body = &received.bytes;
    let now = http.shared.clock.now();
    let source = Source::from(peer);
    let reject = |reason: Rejection| {
        // A separate rate: behind one proxy, unverified requests must not slow down verified ones.
        let permit = hooks.source_limits.lock().take((source, None), UNVERIFIED_RATE, now.0);
        match permit {
            Ok(()) => reject_unverified(&http, &client, (&name, index), &reason),
            Err(wait_ms) => rate_limited(&http, &client, wait_ms, "requests from this address"),
        }
    };
    // A decoy is verified, too, which takes the time of a hook.
    let verified = hook.verify(&headers, body, http.shared.clock.unix_ms());
    let verified = found.and_then(|()| verified.map_err(Rejection::Signature));
    let verified = verified.map_err(reject)?;
    client.mark_verified();
    let limited = |wait_ms| rate_limited(&http, &client, wait_ms, "requests from this address");
    let permit = hooks.source_limits.lock().take((source, index), hook.recipe().rate, now.0);
    permit.map_err(limited)?;
    check_encoding(&headers)?;
    let events = hook.events(&verified, &headers, body)?;
    drop(received);
    let topic = http.shared.topics.open(&hook.recipe().topic)?;
    let payloads: Vec<Cow<'_, str>> = events.payloads.into_iter().map(Cow::Owned).collect();
    if payloads.is_empty() {
        tracing::info!(hook = %name, "a webhook without a URL publishes nothing");
        http.shared.stats.webhooks.accepted.add(1);
        return confirm(&topic, Vec::new()).await;
    }
    let Some(key) = events.idempotency_key else {
        let seqs = publish(&http, &client, &name, &topic, &payloads).await?;
        http.shared.stats.webhooks.accepted.add(1);
        return confirm(&topic, seqs).await;
    };
    // The key is made of the events, so no body hash is compared. If two equal requests run at
    // once, the topic recognizes the events of the second by their ids.
    let key = IdempotencyKey { topic_id: topic.id(), principal: hook.recipe().name.clone(), key };
    let (use_id, seqs) = match hooks.recent_requests.begin(&key, 0, now) {
        KeyState::Completed(seqs) => (None, seqs),
        KeyState::InProgress | KeyState::BodyMismatch => {
            (None, publish(&http, &client, &name, &topic, &payloads).await?)
        }
        KeyState::New(use_id) => {
            let published = publish(&http, &client, &name, &topic, &payloads).await;
            hooks.recent_requests.finish(&key, use_id, published.as_deref().ok());
            (Some(use_id), published?)
        }
    };
    http.shared.stats.webhooks.accepted.add(1);
    let response = confirm(&topic, seqs).await;
    if let (Err(_), Some(use_id)) = (&response, use_id) {
        hooks.recent_requests.finish(&key, use_id, None);
    }
    response
}

/// Appends the events of a webhook, within the budget of all webhooks.
async fn publish(
    http: &HttpState,
    client: &ConnectedClient,
    hook: &str,
    topic: &Arc<Topic>,
    payloads: &[Cow<'_, str>],
) -> HttpResult<Vec<Seq>> {
    let events = u32::try_from(payloads.len()).unwrap_or(u32::MAX);
    take_event_budget(http, client, events)?;
    let appended = wait_for_backpressure(http, topic)
        .await
        .and_then(|()| append(client, topic, payloads, Some(hook)));
    if appended.is_err() {
        http.hooks.event_budget.lock().refund(*http.hooks.event_rate.read(), events);
    }
    appended
}

/// Takes events from the budget of all webhooks. The budget leaves capacity for the other
/// transports, at any number of requests.
fn take_event_budget(http: &HttpState, client: &ConnectedClient, events: u32) -> HttpResult<()> {
    let now = http.shared.clock.now();
    let permit = http.hooks.event_budget.lock().take(*http.hooks.event_rate.read(), events, now.0);
    permit.map_err(|wait_ms| rate_limited(http, client, wait_ms, "events of all webhooks together"))
}

/// Rejects a request above a rate limit (429), to be repeated after `wait_ms`.
fn rate_limited(
    http: &HttpState,
    client: &ConnectedClient,
    wait_ms: u64,
    what: &str,
) -> ErrorResponse {
    client.audit(AuditEvent::LimitReached { why: &format!("webhook: too many {what}") });
    http.shared.stats.webhooks.too_many_requests(wait_ms, what)
}

/// Rejects an unverified request, with the same answer in all cases. Only the logs have the reason,
/// and the name if it could be that of a hook. They have no other byte of the request.
fn reject_unverified(
    http: &HttpState,
    client: &ConnectedClient,
    (name, index): (&str, Option<usize>),
    reason: &Rejection,
) -> ErrorResponse {
    let peer = client.peer_ip();
    client.audit(AuditEvent::Refused { why: &format!("webhook: {reason}") });
    http.shared.stats.webhooks.refused.add(1);
    let subject = (index, reason.log_reason());
    let now = http.shared.clock.now();
    let held_back = http.hooks.log_limits.lock().entry(subject).or_default().allow(now);
    if let Some(held_back) = held_back {
        let hook = if is_name(name) { name } else { "(not a name)" };
        tracing::warn!(%peer, hook, %reason, held_back, "rejected a webhook");
    }
    ErrorResponse::new(StatusCode::NOT_FOUND, "unknown", "there is no such webhook")
}
