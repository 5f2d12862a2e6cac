//! `GET /history`: metrics of the last 5 minutes, hour or day, and the task that samples them.
#![expect(clippy::disallowed_methods, reason = "samples once a second")]

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use serde_json::{Value, json};
use tidings_metrics::resident_bytes;
use tidings_protocol::DEFAULT_GROUP;
use tokio_util::sync::CancellationToken;

use super::HttpState;
use super::client::ConnectedClient;
use super::error::{HttpResult, bad_request};
use super::json_objects::JsonResponse;
use super::request_input::QueryParams;
use crate::access::Action;
use crate::clock::wall_unix_ms;
use crate::metrics::{RANGES, Subject, Table};
use crate::net::topic_commands::unknown_topic;

/// Samples the metrics once a second, in the middle of a second of the wall clock, so that a timer
/// that is late misses none. Runs until `stop`.
pub(super) async fn run_sampler(http: Arc<HttpState>, stop: CancellationToken) {
    loop {
        let snapshot = http.shared.snapshot();
        let unix_ms = wall_unix_ms();
        http.history.lock().sample(&snapshot, resident_bytes(), unix_ms.div_euclid(1_000));
        drop(snapshot);
        let wait_ms = 1_500 - unix_ms.rem_euclid(1_000);
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(Duration::from_millis(wait_ms.unsigned_abs())) => {}
        }
    }
}

/// `GET /history?of=..&range=..`
pub(super) async fn history(
    State(http): State<Arc<HttpState>>,
    Extension(client): Extension<Arc<ConnectedClient>>,
    params: QueryParams,
) -> HttpResult<JsonResponse> {
    client.check_action(Action::Monitor)?;
    let of = params.get("of").unwrap_or("stats");
    let subject = parse_subject(of, params.get("group"))?;
    let name = params.get("range").unwrap_or(RANGES[0].name);
    let range = RANGES.iter().position(|range| range.name == name).ok_or_else(|| {
        let known = RANGES.map(|range| range.name).join(", ");
        bad_request(format!("range={name}: expected one of {known}"))
    })?;
    client.check_action(match &subject {
        Subject::Stats | Subject::Topics => Action::Monitor,
        Subject::Group(name) => Action::ViewGroup(name.as_str()),
        Subject::Topic(name) => Action::ViewTopic(name.as_str()),
        Subject::Job(_, name) => Action::ViewJob(name.as_str()),
    })?;
    check_exists(&http, &subject)?;
    let Table { columns, times, values } = http.history.lock().table(&subject, range);
    // A topic that is gone keeps its series for a while.
    let identity = client.session().identity().clone();
    let is_shown = |topic: &str| {
        http.shared.topics.find(topic).is_some()
            && identity.permissions().allows(Action::ViewTopic(topic))
    };
    let rest = columns.into_iter().zip(values);
    let rest = rest.filter(|(name, _)| subject != Subject::Topics || is_shown(name));
    let rest = rest.map(|(name, column)| (name, column.into_iter().map(number).collect()));
    let time = ("time".to_owned(), json!(times));
    let (columns, values): (Vec<_>, Vec<Value>) = [time].into_iter().chain(rest).unzip();
    Ok(JsonResponse(json!({
        "of": of,
        "range": name,
        "step-ms": RANGES[range].step_s * 1_000,
        "columns": columns,
        "values": values,
    })))
}

/// The subject of `of`. `group` is that of a job, by default the default group.
fn parse_subject(of: &str, group: Option<&str>) -> HttpResult<Subject> {
    match of.split_once(':') {
        None if of == "stats" => Ok(Subject::Stats),
        None if of == "topics" => Ok(Subject::Topics),
        Some(("group", name)) => Ok(Subject::Group(name.parse()?)),
        Some(("topic", name)) => Ok(Subject::Topic(name.parse()?)),
        Some(("job", name)) => {
            Ok(Subject::Job(group.unwrap_or(DEFAULT_GROUP).parse()?, name.parse()?))
        }
        _ => {
            let text = "expected stats, topics, group:<group>, topic:<topic> or job:<job>";
            Err(bad_request(format!("of={of}: {text}")))
        }
    }
}

/// Fails if the subject does not exist.
fn check_exists(http: &HttpState, subject: &Subject) -> HttpResult<()> {
    let groups = &http.shared.groups;
    match subject {
        Subject::Stats | Subject::Topics => {}
        Subject::Group(name) => groups.check_known(name)?,
        Subject::Topic(name) => {
            let name = name.as_str();
            http.shared.topics.find(name).ok_or_else(|| unknown_topic(name))?;
        }
        Subject::Job(group, name) => groups.check_known_job(group, name)?,
    }
    Ok(())
}

/// A number with three decimals. NaN is `null` in JSON.
fn number(value: f32) -> Value {
    json!((f64::from(value) * 1e3).round() / 1e3)
}
