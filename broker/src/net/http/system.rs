//! Requests about the broker itself: liveness, readiness, counters and the `OpenAPI` document.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde_json::{Value, json};

use super::HttpState;
use super::client::ConnectedClient;
use super::embedded_handlers::EmbeddedHandler;
use super::error::HttpResult;
use super::json_objects::{JSON, JsonResponse};
use super::request_input::QueryParams;
use crate::access::Action;
use crate::stats::RequestCounts;
use crate::topic::Health;

/// The `OpenAPI` 3.1 document without the paths of embedded handlers.
const OPENAPI: &str = include_str!("openapi.json");

/// `GET /`: name and version, for people with a browser.
pub(super) async fn index(uri: Uri) -> HttpResult<JsonResponse> {
    QueryParams::parse(&uri, &[])?;
    Ok(JsonResponse(json!({
        "name": "tidings",
        "version": env!("CARGO_PKG_VERSION"),
        "description": "openapi.json",
    })))
}

/// `GET /openapi.json`
pub(super) async fn openapi(State(http): State<Arc<HttpState>>, uri: Uri) -> HttpResult<Response> {
    QueryParams::parse(&uri, &[])?;
    Ok(([(header::CONTENT_TYPE, JSON)], http.openapi_document.clone()).into_response())
}

/// The `OpenAPI` document of a broker with these embedded handlers.
pub(super) fn openapi_with(handlers: &[Arc<dyn EmbeddedHandler>]) -> Bytes {
    if handlers.is_empty() {
        return Bytes::from_static(OPENAPI.as_bytes());
    }
    let mut document: Value = serde_json::from_str(OPENAPI).expect("openapi.json is JSON");
    for handler in handlers {
        let paths: Value = serde_json::from_str(handler.openapi_paths())
            .expect("a handler describes its paths in JSON");
        let paths = paths.as_object().cloned().unwrap_or_default();
        document["paths"].as_object_mut().expect("`paths` is an object").extend(paths);
    }
    Bytes::from(document.to_string())
}

/// `GET /health`: any response means that the broker is alive.
pub(super) async fn health(uri: Uri) -> HttpResult<JsonResponse> {
    QueryParams::parse(&uri, &[])?;
    Ok(JsonResponse(json!({ "status": "ok" })))
}

/// `GET /ready`: whether every topic accepts events; if not, 503. Only clients that may monitor the
/// broker see the names of the topics that do not.
pub(super) async fn ready(
    State(http): State<Arc<HttpState>>,
    Extension(client): Extension<Arc<ConnectedClient>>,
    uri: Uri,
) -> HttpResult<Response> {
    QueryParams::parse(&uri, &[])?;
    let (mut full, mut failed) = (Vec::new(), Vec::new());
    for topic in http.shared.topics.list() {
        match topic.stats().health {
            Health::Good => {}
            Health::Full => full.push(topic.name().to_string()),
            Health::Failed => failed.push(topic.name().to_string()),
        }
    }
    let is_stopping = http.stop.is_cancelled();
    let is_ready = full.is_empty() && failed.is_empty() && !is_stopping;
    let status = if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    if client.check_action(Action::Monitor).is_err() {
        (full, failed) = (Vec::new(), Vec::new());
    }
    let body =
        json!({ "ready": is_ready, "stops": is_stopping, "full": full, "sync-failed": failed });
    Ok((status, JsonResponse(body)).into_response())
}

/// `GET /stats`: counters since the start, and those of embedded handlers.
pub(super) async fn stats(
    State(http): State<Arc<HttpState>>,
    Extension(client): Extension<Arc<ConnectedClient>>,
    uri: Uri,
) -> HttpResult<JsonResponse> {
    QueryParams::parse(&uri, &[])?;
    client.check_action(Action::Monitor)?;
    let (shared, stats) = (&http.shared, &http.shared.stats);
    let mut counts = json!({
        "connections": shared.registry.len(),
        "connected": shared.registry.total_connections(),
        "turned-away": stats.rejected_connections.value(),
        "lines": stats.lines.value(),
        "events": stats.events.value(),
        "refused": stats.refused_lines.value(),
        "bytes-in": stats.bytes_in.value(),
        "clock": shared.clock.now().0,
        "hooks": request_counts(&stats.webhooks),
        "notices": request_counts(&stats.receiver_requests),
    });
    for handler in &http.config.embedded_handlers {
        if let Some((name, counters)) = handler.counters().await {
            let counters =
                counters.into_iter().map(|(name, count)| (name.to_owned(), count.into()));
            counts[name] = Value::Object(counters.collect());
        }
    }
    Ok(JsonResponse(counts))
}

fn request_counts(counts: &RequestCounts) -> Value {
    json!({
        "taken": counts.accepted.value(),
        "refused": counts.refused.value(),
        "limited": counts.limited.value(),
    })
}
