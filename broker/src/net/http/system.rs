//! The broker itself: is it alive, does it take events, what has it done, and what can be asked of
//! it.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde_json::{Value, json};

use super::HttpState;
use super::client::ConnectedClient;
use super::embedded_handlers::EmbeddedHandler;
use super::error::ErrorResponse;
use super::json_objects::JsonResponse;
use super::request_input::QueryParams;
use crate::access::Action;
use crate::stats::RequestCounts;
use crate::topic::Health;

/// The description of everything that HTTP offers (`OpenAPI` 3.1).
const OPENAPI: &str = include_str!("openapi.json");

/// `GET /`: what this is, for who came here with a browser.
pub(super) async fn index(uri: Uri) -> Result<JsonResponse, ErrorResponse> {
    QueryParams::parse(&uri, &[])?;
    Ok(JsonResponse(json!({
        "name": "tidings",
        "version": env!("CARGO_PKG_VERSION"),
        "description": "openapi.json",
    })))
}

/// `GET /openapi.json`
pub(super) async fn openapi(
    State(http): State<Arc<HttpState>>,
    uri: Uri,
) -> Result<Response, ErrorResponse> {
    QueryParams::parse(&uri, &[])?;
    let json = HeaderValue::from_static("application/json");
    Ok(([(header::CONTENT_TYPE, json)], http.openapi_document.clone()).into_response())
}

/// What can be asked of a broker with these receivers.
pub(super) fn openapi_with(receivers: &[Arc<dyn EmbeddedHandler>]) -> Bytes {
    if receivers.is_empty() {
        return Bytes::from_static(OPENAPI.as_bytes());
    }
    let mut all: Value = serde_json::from_str(OPENAPI).expect("a test reads it");
    for receiver in receivers {
        let paths: Value =
            serde_json::from_str(receiver.openapi_paths()).expect("its tests read it");
        let paths = paths.as_object().cloned().unwrap_or_default();
        all["paths"].as_object_mut().expect("it has paths").extend(paths);
    }
    Bytes::from(all.to_string())
}

/// `GET /health`: it answers, so it lives.
pub(super) async fn health(uri: Uri) -> Result<JsonResponse, ErrorResponse> {
    QueryParams::parse(&uri, &[])?;
    Ok(JsonResponse(json!({ "status": "ok" })))
}

/// `GET /ready`: whether it takes events, on every topic; if not, 503.
/// Which topics do not is told to those who may know which there are.
pub(super) async fn ready(
    State(http): State<Arc<HttpState>>,
    Extension(client): Extension<Arc<ConnectedClient>>,
    uri: Uri,
) -> Result<Response, ErrorResponse> {
    QueryParams::parse(&uri, &[])?;
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
    if client.check_action(Action::Monitor).is_err() {
        (full, failed) = (Vec::new(), Vec::new());
    }
    let answer = json!({ "ready": ready, "stops": stops, "full": full, "sync-failed": failed });
    Ok((status, JsonResponse(answer)).into_response())
}

/// `GET /stats`: counts since the start, and of what receivers have.
pub(super) async fn stats(
    State(http): State<Arc<HttpState>>,
    Extension(client): Extension<Arc<ConnectedClient>>,
    uri: Uri,
) -> Result<JsonResponse, ErrorResponse> {
    QueryParams::parse(&uri, &[])?;
    client.check_action(Action::Monitor)?;
    let (hub, stats) = (&http.hub, &http.hub.stats);
    let mut counts = json!({
        "connections": hub.registry.len(),
        "connected": hub.registry.total_connections(),
        "turned-away": stats.rejected_connections.value(),
        "lines": stats.lines.value(),
        "events": stats.events.value(),
        "refused": stats.refused_lines.value(),
        "bytes-in": stats.bytes_in.value(),
        "clock": hub.clock.now().0,
        "hooks": request_counts(&stats.webhooks),
        "notices": request_counts(&stats.receiver_requests),
    });
    for receiver in &http.config.embedded_handlers {
        if let Some((name, numbers)) = receiver.counters().await {
            let numbers =
                numbers.into_iter().map(|(name, number)| (name.to_owned(), number.into()));
            counts[name] = Value::Object(numbers.collect());
        }
    }
    Ok(JsonResponse(counts))
}

fn request_counts(visits: &RequestCounts) -> Value {
    json!({
        "taken": visits.accepted.value(),
        "refused": visits.refused.value(),
        "limited": visits.limited.value(),
    })
}
