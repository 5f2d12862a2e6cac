//! Requests about jobs: open a job, add seeds, wait for its end.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use serde_json::json;
use tidings_protocol::status::Status;
use tidings_protocol::{
    CanonicalUrl, Command, JobAction, JobCommand, JobName, JobSettings, TRACEPARENT,
};

use super::client::ConnectedClient;
use super::error::{HttpResult, bad_request};
use super::json_fields::{
    FieldType, JsonField, JsonFields, ObjectSchema, as_pairs, setting_fields, take_words,
    to_settings,
};
use super::json_objects::{JsonResponse, object};
use super::manage::{ClientExtension, JsonFuture, JsonResult, list_object};
use super::publish::traceparent_of;
use super::request_input::{NamedRequest, QueryParams};
use super::{HttpState, with_timeout};
use crate::access::{Action, Identity};

/// Seeds of one request.
const SEEDS_MAX: usize = 10_000;

/// The settings of a new job. Its trace context is a header.
fn job_settings() -> Vec<(&'static str, FieldType)> {
    let mut fields = setting_fields::<JobSettings>();
    fields.retain(|(name, _)| *name != TRACEPARENT);
    fields
}

/// Settings that can change while a job runs, and how they are tried.
fn job_changes() -> Vec<(&'static str, FieldType)> {
    let mut fields = setting_fields::<JobSettings>();
    fields.retain(|(name, _)| JobSettings::CHANGEABLE.contains(name));
    fields.extend([("dry", FieldType::Bool), ("after", FieldType::Number)]);
    fields
}

const SEED_SETTINGS: &ObjectSchema =
    &[("prio", FieldType::Number), ("after", FieldType::Text), ("render", FieldType::Text)];

/// `GET /jobs`
pub(super) async fn jobs(Extension(client): ClientExtension, params: QueryParams) -> JsonResult {
    let ls = Command::Job(JobCommand::unnamed(JobAction::Ls, params.settings()));
    let reply = client.run(&ls).await?;
    let mut list = list_object(&reply.ok, "jobs", &reply.lines);
    if let Status::JobListEnd(end) = &reply.ok
        && let Some(matched) = end.jobs
    {
        list.0["matched"] = matched.into();
    }
    Ok(list)
}

/// `POST /jobs`: opens a job, adds its seeds, and closes it if `close` is set.
///
/// `{"job": .., "urls": [..], "close": true, <settings>}`
pub(super) async fn open(
    State(http): State<Arc<HttpState>>,
    Extension(client): ClientExtension,
    params: QueryParams,
    headers: HeaderMap,
    body: Body,
) -> JsonResult {
    // The name of the job is in the body, so the rate is checked before the body is read.
    let body = async {
        client.check_rate()?;
        http.bodies.receive_json(&headers, body).await
    };
    let JsonFields(mut object) =
        client.receive_while_allowed(Identity::check_open_job, body).await??;
    let name: JobName = match object.remove("job") {
        Some(JsonField::Text(name)) => name.parse()?,
        _ => return Err(bad_request("job: expected a string with its name")),
    };
    let close = match object.remove("close") {
        None => false,
        Some(JsonField::Bool(close)) => close,
        Some(_) => return Err(bad_request("close: expected true or false")),
    };
    let urls = take_words(&mut object, "urls", SEEDS_MAX)?.unwrap_or_default();
    // They are taken out above, and the error for an unknown field lists them too.
    let mut known = job_settings();
    known.extend([("job", FieldType::Text), ("urls", FieldType::List), ("close", FieldType::Bool)]);
    let settings = to_settings(&object, &known)?;
    let mut settings = [as_pairs(&settings), group_param(&params)].concat();
    settings.extend(traceparent_of(&headers).map(|trace| (TRACEPARENT, trace)));
    // All checks come before `open`, so a rejected request creates no job.
    client.check_commands(&add_commands(&name, &urls, &group_param(&params)))?;
    if !close {
        client.check_action(Action::ViewJob(name.as_ref()))?;
    }
    charge_seeds(&client, &urls)?;
    client.run(&Command::Job(JobCommand::new(JobAction::Open, name.as_str(), settings))).await?;
    if !urls.is_empty() {
        add_seeds(&client, &name, &urls, group_param(&params)).await?;
    }
    let action = if close { JobAction::Close } else { JobAction::Show };
    run_job_action(&client, action, &name, &params).await
}

/// `GET /jobs/{job}`. With `wait` it responds when the pass is done, or after that time.
pub(super) async fn job(request: NamedRequest<JobName>) -> JsonResult {
    let NamedRequest { http, client, name, params, .. } = request;
    let wait = params.wait(0, http.config.wait_ms_max)?;
    if !wait.is_zero() {
        let command =
            Command::Job(JobCommand::new(JobAction::Wait, name.as_str(), group_param(&params)));
        let done = tokio::select! {
            biased;
            // `show` below is then rejected.
            () = client.revoked(Action::ViewJob(name.as_ref())) => None,
            done = with_timeout(wait, client.run_without_timeout(&command)) => done,
        };
        if done.is_none() {
            client.stop_waiting();
        }
        done.transpose()?;
    }
    run_job_action(&client, JobAction::Show, &name, &params).await
}

/// `PATCH /jobs/{job}`: changes settings of a job that runs; `null` removes one. With
/// `"dry": true` it returns what the change would drop.
pub(super) async fn set(request: NamedRequest<JobName>, body: Body) -> JsonResult {
    let mut fields = receive_fields(&request, body).await?;
    let NamedRequest { client, name, params, .. } = request;
    let changes = job_changes();
    let removed: Vec<_> = changes
        .iter()
        .filter(|(key, _)| fields.get(*key) == Some(&JsonField::Null))
        .map(|(key, _)| (*key, "none"))
        .collect();
    fields.retain(|key, _| !removed.iter().any(|(removed, _)| removed == key));
    let settings = to_settings(&fields, &changes)?;
    let settings = as_pairs(&settings).into_iter().chain(removed).chain(group_param(&params));
    let set = JobCommand::new(JobAction::Set, name.as_str(), settings.collect());
    let reply = client.run(&Command::Job(set)).await?;
    let mut object = object(&reply.ok);
    if let Status::JobDryRun(_) = &reply.ok {
        object["examples"] = json!(reply.lines);
    }
    Ok(JsonResponse(object))
}

/// Receives the body of a request that changes a job, while the client may change it.
async fn receive_fields(
    request: &NamedRequest<JobName>,
    body: Body,
) -> HttpResult<BTreeMap<String, JsonField>> {
    let NamedRequest { http, client, name, headers, .. } = request;
    let action = Action::ManageJob(name.as_ref());
    client.check_action(action)?;
    client.check_rate()?;
    let body = http.bodies.receive_json(headers, body);
    let JsonFields(fields) =
        client.receive_while_allowed(|identity| identity.check_action(action), body).await??;
    Ok(fields)
}

/// `POST /jobs/{job}/urls`: `{"urls": [..], "prio": .., "after": ..}`
pub(super) async fn add(request: NamedRequest<JobName>, body: Body) -> JsonResult {
    let mut object = receive_fields(&request, body).await?;
    let NamedRequest { client, name, params, .. } = request;
    let urls = take_words(&mut object, "urls", SEEDS_MAX)?
        .ok_or_else(|| bad_request("urls: expected a list of URLs"))?;
    let known = [&[("urls", FieldType::List)], SEED_SETTINGS].concat();
    let settings = to_settings(&object, &known)?;
    let settings = [as_pairs(&settings), group_param(&params)].concat();
    // If `urls` is empty, no command checks the settings.
    JobCommand::unnamed(JobAction::Add, settings.clone()).seed_settings()?;
    charge_seeds(&client, &urls)?;
    let (new, known) = add_seeds(&client, &name, &urls, settings).await?;
    Ok(JsonResponse(json!({ "job": name.as_ref() as &str, "new": new, "known": known })))
}

/// Charges seeds to the rate of the client as events, or rejects them if it is over its rate, or if
/// one of them cannot be the URL of a page. It checks the rate again after the body, because bodies
/// of other requests may have arrived in the meantime. So even with many requests at once a client
/// exceeds its rate only by a few of them.
fn charge_seeds(client: &ConnectedClient, urls: &[String]) -> HttpResult<()> {
    client.check_rate()?;
    for url in urls {
        CanonicalUrl::parse(url).map_err(|error| bad_request(format!("url={url}: {error}")))?;
    }
    client.count_published(urls.len(), urls.iter().map(String::len).sum());
    Ok(())
}

/// One `JOB add` per URL.
fn add_commands<'a>(
    name: &'a JobName,
    urls: &'a [String],
    settings: &[(&'a str, &'a str)],
) -> Vec<Command<'a>> {
    let add = |url: &'a String| {
        let settings = [&[("url", url.as_str())], settings].concat();
        Command::Job(JobCommand::new(JobAction::Add, name.as_str(), settings))
    };
    urls.iter().map(add).collect()
}

/// Adds seeds, and returns how many are new and how many known. If one of them is not allowed, none
/// is added. On any other error the seeds before it are added, and the error is returned.
async fn add_seeds(
    client: &ConnectedClient,
    name: &JobName,
    urls: &[String],
    settings: Vec<(&str, &str)>,
) -> HttpResult<(u64, u64)> {
    if urls.is_empty() {
        // No command runs below, so this one checks that the job exists.
        let group = settings.iter().copied().filter(|(key, _)| *key == "group").collect();
        client.run(&Command::Job(JobCommand::new(JobAction::Show, name.as_str(), group))).await?;
    }
    let commands = add_commands(name, urls, &settings);
    client.check_commands(&commands)?;
    let (mut new, mut known) = (0, 0);
    for reply in client.run_all(&commands).await {
        if let Status::Seed(seed) = reply?.ok {
            new += seed.new;
            known += seed.known;
        }
    }
    Ok((new, known))
}

/// `POST /jobs/{job}/..`: runs `action`, and returns the status of the job.
pub(super) fn change(
    action: JobAction<'static>,
) -> impl Fn(NamedRequest<JobName>, Body) -> JsonFuture + Clone + Send + Sync + 'static {
    move |request, body| {
        Box::pin(async move {
            request.expect_no_body(&body)?;
            run_job_action(&request.client, action, &request.name, &request.params).await
        })
    }
}

/// `DELETE /jobs/{job}`
pub(super) async fn delete(request: NamedRequest<JobName>) -> HttpResult<StatusCode> {
    let group = group_param(&request.params);
    let delete = JobCommand::new(JobAction::Delete, request.name.as_str(), group);
    request.client.run(&Command::Job(delete)).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn run_job_action(
    client: &ConnectedClient,
    action: JobAction<'_>,
    name: &JobName,
    params: &QueryParams,
) -> JsonResult {
    let command = Command::Job(JobCommand::new(action, name.as_str(), group_param(params)));
    Ok(JsonResponse(object(&client.run(&command).await?.ok)))
}

fn group_param(params: &QueryParams) -> Vec<(&str, &str)> {
    params.get("group").map(|group| ("group", group)).into_iter().collect()
}
