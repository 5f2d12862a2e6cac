//! Requests about the broker itself: liveness, readiness, metrics and the `OpenAPI` document.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use serde_json::{Value, json};
use tidings_metrics::{Exposition, Format};

use super::HttpState;
use super::dashboard::prefers_html;
use super::error::{HttpResult, bad_request};
use super::json_objects::{JSON, JsonResponse};
use super::manage::{ClientExtension, JsonResult};
use super::request_input::QueryParams;
use crate::access::{Action, Permission};
use crate::metrics::{BROKER, Problem, TOPICS};
use crate::net::Setting;
use crate::topic::Health;

/// `GET /`: the dashboard for a browser; name, version and line port for all other clients.
pub(super) async fn index(
    State(http): State<Arc<HttpState>>,
    params: HttpResult<QueryParams>,
    headers: HeaderMap,
) -> HttpResult<Response> {
    let response = match &http.dashboard {
        // Links in mails and chats get parameters that the page does not need.
        Some(dashboard) if prefers_html(&headers) => dashboard.page(),
        _ => {
            params?;
            JsonResponse(json!({
                "name": "tidings",
                "version": env!("CARGO_PKG_VERSION"),
                "description": "openapi.json",
                "port": http.shared.listen.port(),
                "tls": http.shared.tls.is_some(),
            }))
            .into_response()
        }
    };
    Ok(([(header::VARY, "accept")], response).into_response())
}

/// `GET /openapi.json`
pub(super) async fn openapi(State(http): State<Arc<HttpState>>, _: QueryParams) -> Response {
    ([(header::CONTENT_TYPE, JSON)], http.openapi_document.clone()).into_response()
}

/// `GET /health`: any response means that the broker is alive.
pub(super) async fn health(_: QueryParams) -> JsonResponse {
    JsonResponse(json!({ "status": "ok" }))
}

/// `GET /ready`: whether every topic accepts events; if not, 503. Only clients that may monitor the
/// broker see the names of the topics that do not.
pub(super) async fn ready(
    State(http): State<Arc<HttpState>>,
    Extension(client): ClientExtension,
    _: QueryParams,
) -> HttpResult<Response> {
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

/// `GET /stats`: counters since the start, those of embedded handlers, and what is not well.
pub(super) async fn stats(
    State(http): State<Arc<HttpState>>,
    Extension(client): ClientExtension,
    _: QueryParams,
) -> JsonResult {
    client.check_action(Action::Monitor)?;
    let snapshot = http.shared.snapshot();
    let mut counts = snapshot.json();
    let stopping = http.stop.is_cancelled().then(Problem::stopping);
    let problems = stopping.into_iter().chain(http.shared.problems(&snapshot));
    counts.insert("problems".to_owned(), problems.map(|problem| problem.json()).collect());
    counts.insert("clock".to_owned(), http.shared.clock.now().0.into());
    for handler in &http.config.embedded_handlers {
        if let Some((name, counters)) = handler.counters().await {
            let counters =
                counters.into_iter().map(|(name, count)| (name.to_owned(), count.into()));
            counts.insert(name.to_owned(), Value::Object(counters.collect()));
        }
    }
    Ok(JsonResponse(counts.into()))
}

/// `GET /me`: the identity of the client, and what it may do.
pub(super) async fn me(Extension(client): ClientExtension, _: QueryParams) -> JsonResult {
    let identity = client.session().identity().clone();
    let permissions = identity.permissions();
    let may_do_all = permissions.is_unlimited();
    let expires = identity.expires_unix_ms().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    let listed = |list: &[Permission]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
    Ok(JsonResponse(json!({
        "name": identity.is_known().then(|| identity.name()),
        "known": identity.is_known(),
        "way": identity.transport().as_str(),
        "can": {
            "monitor": permissions.allows(Action::Monitor),
            "admin": permissions.allows(Action::Admin),
            "all": may_do_all,
        },
        "permissions": (!may_do_all).then(|| listed(permissions.allowed())),
        "denied": listed(permissions.denied()),
        "expires": expires.map(|at| at.to_string()),
    })))
}

/// `GET /config`: where the broker listens and, for an administrator that has logged in, what the
/// operator has set. Values may show more of the machine than the broker itself does, so clients
/// that need no login do not get them.
pub(super) async fn config(
    State(http): State<Arc<HttpState>>,
    Extension(client): ClientExtension,
    _: QueryParams,
) -> JsonResult {
    client.check_action(Action::Monitor)?;
    let shared = &http.shared;
    let is_encrypted = shared.tls.is_some();
    let unix = shared.unix.as_ref().map(|path| ("unix", path.display().to_string(), false));
    let listens = [
        Some(("line", shared.listen.to_string(), is_encrypted)),
        unix,
        Some(("http", http.config.listen.to_string(), is_encrypted)),
    ];
    let listens = listens.into_iter().flatten();
    let listens =
        listens.map(|(way, address, tls)| json!({ "way": way, "address": address, "tls": tls }));
    let identity = client.session().identity().clone();
    let may_see = identity.is_known() && identity.permissions().allows(Action::Admin);
    let setting =
        |Setting { key, value, origin }| json!({ "key": key, "value": value, "origin": origin });
    let settings = may_see.then(|| {
        let mut settings = shared.settings();
        settings.sort_by(|one, other| one.key.cmp(&other.key));
        settings.into_iter().map(setting).collect::<Vec<_>>()
    });
    Ok(JsonResponse(json!({
        "listens": listens.collect::<Vec<_>>(),
        "settings": settings,
    })))
}

/// `GET /metrics`: all metrics in a text format of Prometheus.
pub(super) async fn metrics(
    State(http): State<Arc<HttpState>>,
    Extension(client): ClientExtension,
    params: QueryParams,
    headers: HeaderMap,
) -> HttpResult<Response> {
    client.check_action(Action::Monitor)?;
    let with_topics = match params.get("topics") {
        None => false,
        Some("yes") => true,
        Some(_) => return Err(bad_request("topics: expected yes")),
    };
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    let format = Format::accepted(accept);
    let mut text = Exposition::new(format);
    let snapshot = http.shared.snapshot();
    text.add(BROKER, &snapshot);
    if with_topics {
        text.add(TOPICS, &snapshot);
    }
    for source in http.shared.metrics_sources() {
        source.add_to(&mut text);
    }
    Ok(([(header::CONTENT_TYPE, format.content_type())], text.finish()).into_response())
}
