//! The broker itself: is it alive, does it take events, what has it done, and what can be asked of
//! it.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde_json::{Value, json};

use super::Http;
use super::client::Client;
use super::error::Refusal;
use super::input::Params;
use super::objects::Object;
use super::receivers::Receiver;
use crate::access::Action;
use crate::stats::RequestCounts;
use crate::topic::Health;

/// The description of everything that HTTP offers (`OpenAPI` 3.1).
const OPENAPI: &str = include_str!("openapi.json");

/// `GET /`: what this is, for who came here with a browser.
pub(super) async fn index(uri: Uri) -> Result<Object, Refusal> {
    Params::of(&uri, &[])?;
    Ok(Object(json!({
        "name": "tidings",
        "version": env!("CARGO_PKG_VERSION"),
        "description": "openapi.json",
    })))
}

/// `GET /openapi.json`
pub(super) async fn openapi(State(http): State<Arc<Http>>, uri: Uri) -> Result<Response, Refusal> {
    Params::of(&uri, &[])?;
    let json = HeaderValue::from_static("application/json");
    Ok(([(header::CONTENT_TYPE, json)], http.description.clone()).into_response())
}

/// What can be asked of a broker with these receivers.
pub(super) fn describe(receivers: &[Arc<dyn Receiver>]) -> Bytes {
    if receivers.is_empty() {
        return Bytes::from_static(OPENAPI.as_bytes());
    }
    let mut all: Value = serde_json::from_str(OPENAPI).expect("a test reads it");
    for receiver in receivers {
        let paths: Value = serde_json::from_str(receiver.describe()).expect("its tests read it");
        let paths = paths.as_object().cloned().unwrap_or_default();
        all["paths"].as_object_mut().expect("it has paths").extend(paths);
    }
    Bytes::from(all.to_string())
}

/// `GET /health`: it answers, so it lives.
pub(super) async fn health(uri: Uri) -> Result<Object, Refusal> {
    Params::of(&uri, &[])?;
    Ok(Object(json!({ "status": "ok" })))
}

/// `GET /ready`: whether it takes events, on every topic; if not, 503.
/// Which topics do not is told to those who may know which there are.
pub(super) async fn ready(
    State(http): State<Arc<Http>>,
    Extension(client): Extension<Arc<Client>>,
    uri: Uri,
) -> Result<Response, Refusal> {
    Params::of(&uri, &[])?;
    let (mut full, mut failed) = (Vec::new(), Vec::new());
    for topic in http.hub.topics.list() {
        match topic.stats().health {
            Health::Good => {}
            Health::Full => full.push(topic.name().to_string()),
            Health::Failed => failed.push(topic.name().to_string()),
        }
    }
    let stops = http.stop.is_cancelled();
    let ready = full.is_empty() && failed.is_empty() && !stops;
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    if client.may(Action::Monitor).is_err() {
        (full, failed) = (Vec::new(), Vec::new());
    }
    let answer = json!({ "ready": ready, "stops": stops, "full": full, "sync-failed": failed });
    Ok((status, Object(answer)).into_response())
}

/// `GET /stats`: counts since the start, and of what receivers have.
pub(super) async fn stats(
    State(http): State<Arc<Http>>,
    Extension(client): Extension<Arc<Client>>,
    uri: Uri,
) -> Result<Object, Refusal> {
    Params::of(&uri, &[])?;
    client.may(Action::Monitor)?;
    let (hub, stats) = (&http.hub, &http.hub.stats);
    let mut counts = json!({
        "connections": hub.registry.len(),
        "connected": hub.registry.total(),
        "turned-away": stats.rejected_connections.value(),
        "lines": stats.lines.value(),
        "events": stats.events.value(),
        "refused": stats.refused_lines.value(),
        "bytes-in": stats.bytes_in.value(),
        "clock": hub.clock.now().0,
        "hooks": visits(&stats.webhooks),
        "notices": visits(&stats.receiver_requests),
    });
    for receiver in &http.config.receivers {
        if let Some((name, numbers)) = receiver.count().await {
            let numbers =
                numbers.into_iter().map(|(name, number)| (name.to_owned(), number.into()));
            counts[name] = Value::Object(numbers.collect());
        }
    }
    Ok(Object(counts))
}

fn visits(visits: &RequestCounts) -> Value {
    json!({
        "taken": visits.accepted.value(),
        "refused": visits.refused.value(),
        "limited": visits.limited.value(),
    })
}
