//! Requests about topics and groups. Each runs a command of the line protocol and returns its
//! answer as a JSON object. Routes that differ only in their action share a handler.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::http::{StatusCode, Uri};
use axum::routing::{MethodRouter, get, post};
use serde_json::json;
use tidings_protocol::status::{Answer, Status};
use tidings_protocol::{
    Code, Command, GroupAction, GroupCommand, GroupName, ProtocolError, TopicAction, TopicCommand,
    TopicName,
};

use super::HttpState;
use super::client::ConnectedClient;
use super::error::{ErrorResponse, HttpResult, bad_request};
use super::json_fields::{FieldType, JsonFields, ObjectSchema, as_pairs, to_settings};
use super::json_objects::{JsonResponse, object};
use super::request_input::{NamedRequest, QueryParams};
use crate::access::{Action, Identity};

/// The client of a request, as a handler receives it.
pub(super) type ClientExtension = Extension<Arc<ConnectedClient>>;

/// What a handler returns.
pub(super) type JsonResult = HttpResult<JsonResponse>;

const TOPIC_SETTINGS: &ObjectSchema = &[
    ("sync", FieldType::Text),
    ("retain-bytes", FieldType::Text),
    ("retain-age", FieldType::Text),
];

const GROUP_SETTINGS: &ObjectSchema = &[
    ("topics", FieldType::List),
    ("key", FieldType::Text),
    ("parallel", FieldType::Number),
    ("delay", FieldType::Text),
    ("lease", FieldType::Text),
    ("max-attempts", FieldType::Number),
    ("max-losses", FieldType::Number),
    ("backoff", FieldType::Text),
    ("page-ready", FieldType::Text),
    ("circuit", FieldType::Text),
];

const RULE_SETTINGS: &ObjectSchema = &[
    ("block", FieldType::Bool),
    ("pause", FieldType::Bool),
    ("delay", FieldType::Text),
    ("parallel", FieldType::Number),
    ("for", FieldType::Text),
    ("note", FieldType::Text),
];

/// Receives the settings in a body. The request may not have parameters.
async fn receive_settings<N>(
    request: &NamedRequest<N>,
    schema: &ObjectSchema,
    body: Body,
) -> HttpResult<Vec<(&'static str, String)>> {
    request.params(&[])?;
    // The body is read only for a client with the permission.
    let body = request.http.bodies.receive_json(&request.headers, body);
    let may_change = |identity: &Identity| identity.check_action(Action::Admin);
    let JsonFields(object) = request.client.receive_while_allowed(may_change, body).await??;
    to_settings(&object, schema)
}

/// `GET /topics`
pub(super) async fn topics(Extension(client): ClientExtension, uri: Uri) -> JsonResult {
    QueryParams::parse(&uri, &[])?;
    let list = TopicCommand::unnamed(TopicAction::Ls, Vec::new());
    let reply = client.run(&Command::Topic(list)).await?;
    Ok(JsonResponse(json!({ "topics": reply.lines })))
}

/// `GET /topics/{topic}/state`: a topic with its durable cursors.
pub(super) async fn topic(request: NamedRequest<TopicName>) -> JsonResult {
    request.params(&[])?;
    let reply = request.run(TopicAction::Show).await?;
    let mut topic = object(&reply.ok);
    topic["cursors"] = json!(reply.lines);
    Ok(JsonResponse(topic))
}

/// `PUT /topics/{topic}`: creates a topic, or changes its settings.
pub(super) async fn put_topic(request: NamedRequest<TopicName>, body: Body) -> JsonResult {
    let settings = receive_settings(&request, TOPIC_SETTINGS, body).await?;
    let NamedRequest { client, name, .. } = &request;
    // The response shows the topic. A client that may not view it is rejected before any change.
    client.check_action(Action::ViewTopic(name.as_str()))?;
    let command =
        |action| Command::Topic(TopicCommand::new(action, name.as_str(), as_pairs(&settings)));
    let set = command(TopicAction::Set);
    create_or_set(client, &command(TopicAction::Create), &set, settings.is_empty()).await?;
    Ok(JsonResponse(object(&request.run(TopicAction::Show).await?.ok)))
}

/// Runs `create`, and `set` if the topic or group exists, unless the request has no settings.
async fn create_or_set(
    client: &ConnectedClient,
    create: &Command<'_>,
    set: &Command<'_>,
    has_no_settings: bool,
) -> Result<(), ProtocolError> {
    match client.run(create).await {
        Err(error) if error.code == Code::Exists && has_no_settings => Ok(()),
        Err(error) if error.code == Code::Exists => client.run(set).await.map(drop),
        created => created.map(drop),
    }
}

/// `DELETE /topics/{topic}`
pub(super) async fn delete_topic(request: NamedRequest<TopicName>) -> HttpResult<StatusCode> {
    request.params(&[])?;
    request.run(TopicAction::Delete).await?;
    Ok(StatusCode::NO_CONTENT)
}

impl NamedRequest<TopicName> {
    async fn run(&self, action: TopicAction<'_>) -> Result<Answer, ProtocolError> {
        let command = TopicCommand::new(action, self.name.as_str(), Vec::new());
        self.client.run(&Command::Topic(command)).await
    }
}

/// `GET /groups`
pub(super) async fn groups(Extension(client): ClientExtension, uri: Uri) -> JsonResult {
    QueryParams::parse(&uri, &[])?;
    let list = GroupCommand::unnamed(GroupAction::Ls, Vec::new());
    let reply = client.run(&Command::Group(list)).await?;
    Ok(JsonResponse(json!({ "groups": reply.lines })))
}

/// `GET /groups/{group}`
pub(super) async fn group(request: NamedRequest<GroupName>) -> JsonResult {
    request.params(&[])?;
    let reply = request.run(GroupAction::Show, Vec::new()).await?;
    let mut object = object(&reply.ok);
    // `problem` and `remedy` of a damaged group.
    for line in reply.lines {
        if let Some((key, text)) = line.to_string().split_once(' ') {
            object[key] = text.into();
        }
    }
    Ok(JsonResponse(object))
}

/// `PUT /groups/{group}`: creates a group, or changes its settings.
pub(super) async fn put_group(request: NamedRequest<GroupName>, body: Body) -> JsonResult {
    let settings = receive_settings(&request, GROUP_SETTINGS, body).await?;
    let NamedRequest { client, name, .. } = &request;
    client.check_action(Action::ViewGroup(name.as_str()))?;
    let command =
        |action| Command::Group(GroupCommand::new(action, name.as_str(), as_pairs(&settings)));
    let set = command(GroupAction::Set);
    create_or_set(client, &command(GroupAction::Create), &set, settings.is_empty()).await?;
    Ok(JsonResponse(object(&request.run(GroupAction::Show, Vec::new()).await?.ok)))
}

/// `DELETE /groups/{group}`
pub(super) async fn delete_group(request: NamedRequest<GroupName>) -> HttpResult<StatusCode> {
    let params = request.params(&["force"])?;
    request.run(GroupAction::Delete, params.settings()).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// `POST /groups/{group}/..`: runs `action`, and returns the status of the group.
pub(super) fn change_group(action: GroupAction<'static>) -> MethodRouter<Arc<HttpState>> {
    change(action, &[])
}

impl NamedRequest<GroupName> {
    async fn run(
        &self,
        action: GroupAction<'_>,
        settings: Vec<(&str, &str)>,
    ) -> Result<Answer, ProtocolError> {
        let command = GroupCommand::new(action, self.name.as_str(), settings);
        self.client.run(&Command::Group(command)).await
    }
}

/// `GET /groups/{group}/tasks`
pub(super) fn tasks() -> MethodRouter<Arc<HttpState>> {
    let params = &["state", "entry", "key", "job", "match", "after", "limit"];
    list(GroupAction::Tasks, "tasks", params, &[])
}

/// `GET /groups/{group}/dead`: the dead letters of a group.
pub(super) fn dead_letters() -> MethodRouter<Arc<HttpState>> {
    let params = &["entry", "key", "job", "match", "after", "limit"];
    list(GroupAction::Tasks, "dead", params, &[("state", "dead")])
}

/// `GET /groups/{group}/keys`
pub(super) fn keys() -> MethodRouter<Arc<HttpState>> {
    list(GroupAction::Keys, "keys", &["key", "job", "after", "limit"], &[])
}

/// `GET /groups/{group}/schedules`
pub(super) fn schedules() -> MethodRouter<Arc<HttpState>> {
    list(GroupAction::Schedules, "schedules", &["key", "match", "after", "limit"], &[])
}

/// `GET /groups/{group}/members`
pub(super) fn members() -> MethodRouter<Arc<HttpState>> {
    list(GroupAction::Members, "members", &["after", "limit"], &[])
}

/// `GET /groups/{group}/rules`
pub(super) fn rules() -> MethodRouter<Arc<HttpState>> {
    list(GroupAction::Rules, "rules", &["after", "limit"], &[])
}

/// `PUT /groups/{group}/rules/{key}`: sets the rule of a key. It responds when no request to the
/// key is in flight, if the rule blocks or pauses it.
pub(super) async fn put_rule(request: NamedRequest<GroupName>, body: Body) -> JsonResult {
    let settings = receive_settings(&request, RULE_SETTINGS, body).await?;
    let settings = [&[("key", request.part()?)], &as_pairs(&settings)[..]].concat();
    let reply = request.run(GroupAction::Rule, settings).await?;
    Ok(JsonResponse(object(&reply.ok)))
}

/// `DELETE /groups/{group}/rules/{key}`
pub(super) async fn delete_rule(request: NamedRequest<GroupName>) -> HttpResult<StatusCode> {
    request.params(&[])?;
    request.run(GroupAction::Unrule, vec![("key", request.part()?)]).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Runs `action` with the settings `fixed` and the parameters of the request. Returns the lines of
/// the answer as objects under `key`, and its end.
fn list(
    action: GroupAction<'static>,
    key: &'static str,
    params: &'static [&'static str],
    fixed: &'static [(&'static str, &'static str)],
) -> MethodRouter<Arc<HttpState>> {
    let handler = async move |request: NamedRequest<GroupName>| {
        let params = request.params(params)?;
        let settings = [fixed, &params.settings()].concat();
        let Answer { lines, ok } = request.run(action, settings).await?;
        Ok::<_, ErrorResponse>(list_object(&ok, key, &lines))
    };
    get(handler)
}

/// The end of a list, with the listed lines instead of their number.
pub(super) fn list_object(end: &Status, key: &str, lines: &[Status]) -> JsonResponse {
    let mut list = object(end);
    if let Some(list) = list.as_object_mut() {
        list.remove("listed");
    }
    list[key] = json!(lines);
    JsonResponse(list)
}

/// `POST /groups/{group}/dead/..`: runs `action` on dead letters, and returns their number.
pub(super) fn change_dead(action: GroupAction<'static>) -> MethodRouter<Arc<HttpState>> {
    change(action, &["entry", "key", "job", "match"])
}

/// `POST /groups/{group}/purge`: drops what waits, all or a part of a selection.
pub(super) fn purge() -> MethodRouter<Arc<HttpState>> {
    change(GroupAction::Purge, &["key", "job", "match", "dry", "after"])
}

/// `POST /groups/{group}/bump`: gives a part of what waits a priority.
pub(super) fn bump() -> MethodRouter<Arc<HttpState>> {
    change(GroupAction::Bump, &["prio", "key", "job", "match", "dry", "after"])
}

/// `POST /groups/{group}/drain` and `undrain`: returns the state of the member.
pub(super) fn drain(action: GroupAction<'static>) -> MethodRouter<Arc<HttpState>> {
    change(action, &["member"])
}

/// Runs `action` with the parameters of the request, and returns the last line of the answer.
fn change(
    action: GroupAction<'static>,
    params: &'static [&'static str],
) -> MethodRouter<Arc<HttpState>> {
    let handler = async move |request: NamedRequest<GroupName>, body: Body| {
        let params = request.only_params(params, &body)?;
        let reply = request.run(action, params.settings()).await?;
        Ok::<_, ErrorResponse>(JsonResponse(object(&reply.ok)))
    };
    post(handler)
}

/// `GET /explain`: why a URL or a key waits, and until when.
pub(super) async fn explain(Extension(client): ClientExtension, uri: Uri) -> JsonResult {
    let params = QueryParams::parse(&uri, &["what", "group"])?;
    let what = params.get("what").ok_or_else(|| bad_request("what=: expected a URL or a key"))?;
    let group = params.get("group").map(str::parse::<GroupName>).transpose()?;
    let reply = client.run(&Command::Explain { what, group }).await?;
    Ok(JsonResponse(json!({ "what": what, "summary": reply.ok, "lines": reply.lines })))
}
