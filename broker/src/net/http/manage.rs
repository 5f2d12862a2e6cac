//! Requests about topics and groups. Each runs a command of the line protocol and returns its
//! answer as a JSON object. Routes that differ only in their action share a handler.

use std::pin::Pin;
use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::http::StatusCode;
use serde_json::json;
use tidings_protocol::status::{Answer, Status};
use tidings_protocol::{
    Code, Command, GroupAction, GroupCommand, GroupName, GroupSettings, ProtocolError, TopicAction,
    TopicCommand, TopicName, TopicSettings,
};

use super::client::ConnectedClient;
use super::error::{HttpResult, bad_request};
use super::json_fields::{
    FieldType, JsonFields, ObjectSchema, as_pairs, setting_fields, to_settings,
};
use super::json_objects::{JsonResponse, object};
use super::request_input::{NamedRequest, QueryParams};
use crate::access::{Action, Identity};

/// The client of a request, as a handler receives it.
pub(super) type ClientExtension = Extension<Arc<ConnectedClient>>;

/// What a handler returns.
pub(super) type JsonResult = HttpResult<JsonResponse>;

/// What a handler for several actions returns.
pub(super) type JsonFuture = Pin<Box<dyn Future<Output = JsonResult> + Send>>;

const RULE_SETTINGS: &ObjectSchema = &[
    ("block", FieldType::Bool),
    ("pause", FieldType::Bool),
    ("delay", FieldType::Text),
    ("parallel", FieldType::Number),
    ("for", FieldType::Text),
    ("note", FieldType::Text),
];

/// Receives the settings in a body.
async fn receive_settings<N>(
    request: &NamedRequest<N>,
    schema: &ObjectSchema,
    body: Body,
) -> HttpResult<Vec<(&'static str, String)>> {
    // The body is read only for a client with the permission.
    let body = request.http.bodies.receive_json(&request.headers, body);
    let may_change = |identity: &Identity| identity.check_action(Action::Admin);
    let JsonFields(object) = request.client.receive_while_allowed(may_change, body).await??;
    to_settings(&object, schema)
}

/// `GET /topics`
pub(super) async fn topics(Extension(client): ClientExtension, _: QueryParams) -> JsonResult {
    let list = TopicCommand::unnamed(TopicAction::Ls, Vec::new());
    let reply = client.run(&Command::Topic(list)).await?;
    Ok(JsonResponse(json!({ "topics": reply.lines })))
}

/// `GET /topics/{topic}/state`: a topic with its durable cursors.
pub(super) async fn topic(request: NamedRequest<TopicName>) -> JsonResult {
    let reply = request.run(TopicAction::Show).await?;
    let mut topic = object(&reply.ok);
    topic["cursors"] = json!(reply.lines);
    Ok(JsonResponse(topic))
}

/// `PUT /topics/{topic}`: creates a topic, or changes its settings.
pub(super) async fn put_topic(request: NamedRequest<TopicName>, body: Body) -> JsonResult {
    let settings = receive_settings(&request, &setting_fields::<TopicSettings>(), body).await?;
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
pub(super) async fn groups(Extension(client): ClientExtension, _: QueryParams) -> JsonResult {
    let list = GroupCommand::unnamed(GroupAction::Ls, Vec::new());
    let reply = client.run(&Command::Group(list)).await?;
    Ok(JsonResponse(json!({ "groups": reply.lines })))
}

/// `GET /groups/{group}`
pub(super) async fn group(request: NamedRequest<GroupName>) -> JsonResult {
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
    let settings = receive_settings(&request, &setting_fields::<GroupSettings>(), body).await?;
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
    request.run(GroupAction::Delete, request.params.settings()).await?;
    Ok(StatusCode::NO_CONTENT)
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
    request.run(GroupAction::Unrule, vec![("key", request.part()?)]).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Runs `action` with the settings `fixed` and the parameters of the request. Returns the lines of
/// the answer as objects under `key`, and its end.
pub(super) fn list(
    action: GroupAction<'static>,
    key: &'static str,
    fixed: &'static [(&'static str, &'static str)],
) -> impl Fn(NamedRequest<GroupName>) -> JsonFuture + Clone + Send + Sync + 'static {
    move |request| {
        Box::pin(async move {
            let settings = [fixed, &request.params.settings()].concat();
            let Answer { lines, ok } = request.run(action, settings).await?;
            Ok(list_object(&ok, key, &lines))
        })
    }
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

/// Runs `action` with the parameters of the request, and returns the last line of the answer.
pub(super) fn change(
    action: GroupAction<'static>,
) -> impl Fn(NamedRequest<GroupName>, Body) -> JsonFuture + Clone + Send + Sync + 'static {
    move |request, body| {
        Box::pin(async move {
            request.expect_no_body(&body)?;
            let reply = request.run(action, request.params.settings()).await?;
            Ok(JsonResponse(object(&reply.ok)))
        })
    }
}

/// `GET /explain`: why a URL or a key waits, and until when.
pub(super) async fn explain(Extension(client): ClientExtension, params: QueryParams) -> JsonResult {
    let what = params.get("what").ok_or_else(|| bad_request("what=: expected a URL or a key"))?;
    let group = params.get("group").map(str::parse::<GroupName>).transpose()?;
    let reply = client.run(&Command::Explain { what, group }).await?;
    Ok(JsonResponse(json!({ "what": what, "summary": reply.ok, "lines": reply.lines })))
}
