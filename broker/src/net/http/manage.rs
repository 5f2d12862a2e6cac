//! Requests about topics and groups. Each runs a command of the line protocol and returns its
//! answer as a JSON object.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use serde::Serialize;
use serde_json::json;
use tidings_protocol::status::{
    CursorStatus, DamagedGroupStatus, GroupStatus, KeyStatus, ListEnd, ScheduleStatus, TaskStatus,
    TopicStatus,
};
use tidings_protocol::{
    Code, Command, GroupAction, GroupCommand, GroupName, TopicAction, TopicCommand, TopicName,
    field_number,
};

use super::HttpState;
use super::client::{CommandReply, ConnectedClient};
use super::error::ErrorResponse;
use super::json_fields::{FieldType, JsonFields, ObjectSchema, as_pairs, to_settings};
use super::json_objects::{JsonResponse, object};
use super::request_input::{PathName, QueryParams};
use crate::access::Action;

/// The client of a request, as a handler receives it.
pub(super) type ClientExtension = Extension<Arc<ConnectedClient>>;

/// What a handler returns.
pub(super) type JsonResult = Result<JsonResponse, ErrorResponse>;

/// Settings of a topic.
const TOPIC_SETTINGS: &ObjectSchema = &[
    ("sync", FieldType::Text),
    ("retain-bytes", FieldType::Text),
    ("retain-age", FieldType::Text),
];

/// Settings of a group.
const GROUP_SETTINGS: &ObjectSchema = &[
    ("topics", FieldType::List),
    ("key", FieldType::Text),
    ("parallel", FieldType::Number),
    ("delay", FieldType::Text),
    ("lease", FieldType::Text),
    ("max-attempts", FieldType::Number),
    ("max-losses", FieldType::Number),
    ("backoff", FieldType::Text),
];

/// Receives the settings in a body. The request may not have parameters.
async fn receive_settings(
    http: &HttpState,
    schema: &ObjectSchema,
    client: &ConnectedClient,
    (uri, headers, body): (&Uri, &HeaderMap, Body),
) -> Result<Vec<(&'static str, String)>, ErrorResponse> {
    QueryParams::parse(uri, &[])?;
    // The body is read only for a client with the permission.
    let body = http.bodies.receive_json(headers, body);
    let JsonFields(object) = client
        .receive_while_allowed(|identity| identity.check_action(Action::Admin), body)
        .await??;
    to_settings(&object, schema)
}

/// `GET /topics`
pub(super) async fn topics(Extension(client): ClientExtension, uri: Uri) -> JsonResult {
    QueryParams::parse(&uri, &[])?;
    let reply =
        client.run(&Command::Topic(TopicCommand::unnamed(TopicAction::Ls, Vec::new()))).await?;
    let topics: Vec<_> = reply.lines.iter().map(|line| TopicStatus::parse(line)).collect();
    Ok(JsonResponse(json!({ "topics": topics })))
}

/// `GET /topics/{topic}/state`: a topic with its durable cursors.
pub(super) async fn topic(
    Extension(client): ClientExtension,
    PathName(name): PathName<TopicName>,
    uri: Uri,
) -> JsonResult {
    QueryParams::parse(&uri, &[])?;
    let show = TopicCommand::new(TopicAction::Show, name.as_str(), Vec::new());
    let reply = client.run(&Command::Topic(show)).await?;
    let mut topic = object(&TopicStatus::parse(&reply.ok));
    let cursors = reply.lines.iter().filter_map(|line| line.strip_prefix("cursor "));
    topic["cursors"] = cursors.map(|line| object(&CursorStatus::parse(line))).collect();
    Ok(JsonResponse(topic))
}

/// `PUT /topics/{topic}`: creates a topic, or changes its settings.
pub(super) async fn put_topic(
    State(http): State<Arc<HttpState>>,
    Extension(client): ClientExtension,
    PathName(name): PathName<TopicName>,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> JsonResult {
    let settings = receive_settings(&http, TOPIC_SETTINGS, &client, (&uri, &headers, body)).await?;
    // The response shows the topic. A client that may not view it is rejected before any change.
    client.check_action(Action::ViewTopic(name.as_str()))?;
    let command =
        |action| Command::Topic(TopicCommand::new(action, name.as_str(), as_pairs(&settings)));
    match client.run(&command(TopicAction::Create)).await {
        Err(error) if error.code == Code::Exists && settings.is_empty() => {}
        Err(error) if error.code == Code::Exists => {
            client.run(&command(TopicAction::Set)).await?;
        }
        created => {
            created?;
        }
    }
    let show = TopicCommand::new(TopicAction::Show, name.as_str(), Vec::new());
    Ok(JsonResponse(object(&TopicStatus::parse(&client.run(&Command::Topic(show)).await?.ok))))
}

/// `DELETE /topics/{topic}`
pub(super) async fn delete_topic(
    Extension(client): ClientExtension,
    PathName(name): PathName<TopicName>,
    uri: Uri,
) -> Result<StatusCode, ErrorResponse> {
    QueryParams::parse(&uri, &[])?;
    let delete = TopicCommand::new(TopicAction::Delete, name.as_str(), Vec::new());
    client.run(&Command::Topic(delete)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// `GET /groups`
pub(super) async fn groups(Extension(client): ClientExtension, uri: Uri) -> JsonResult {
    QueryParams::parse(&uri, &[])?;
    let reply =
        client.run(&Command::Group(GroupCommand::unnamed(GroupAction::Ls, Vec::new()))).await?;
    Ok(JsonResponse(json!({ "groups": reply.lines })))
}

/// `GET /groups/{group}`
pub(super) async fn group(
    Extension(client): ClientExtension,
    PathName(name): PathName<GroupName>,
    uri: Uri,
) -> JsonResult {
    QueryParams::parse(&uri, &[])?;
    let show = GroupCommand::new(GroupAction::Show, name.as_str(), Vec::new());
    let CommandReply { lines, ok } = client.run(&Command::Group(show)).await?;
    let damaged = DamagedGroupStatus::parse(&ok);
    if !damaged.damaged {
        return Ok(JsonResponse(object(&GroupStatus::parse(&ok))));
    }
    let mut object = object(&damaged);
    // `problem` and `remedy`.
    for (key, text) in lines.iter().filter_map(|line| line.split_once(' ')) {
        object[key] = text.into();
    }
    Ok(JsonResponse(object))
}

/// `PUT /groups/{group}`: creates a group, or changes its settings.
pub(super) async fn put_group(
    State(http): State<Arc<HttpState>>,
    Extension(client): ClientExtension,
    PathName(name): PathName<GroupName>,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> JsonResult {
    let settings = receive_settings(&http, GROUP_SETTINGS, &client, (&uri, &headers, body)).await?;
    client.check_action(Action::ViewGroup(name.as_str()))?;
    let command =
        |action| Command::Group(GroupCommand::new(action, name.as_str(), as_pairs(&settings)));
    match client.run(&command(GroupAction::Create)).await {
        Err(error) if error.code == Code::Exists => {}
        created => {
            created?;
            return run_group_action(&client, GroupAction::Show, &name).await;
        }
    }
    if !settings.is_empty() {
        client.run(&command(GroupAction::Set)).await?;
    }
    run_group_action(&client, GroupAction::Show, &name).await
}

/// `DELETE /groups/{group}`
pub(super) async fn delete_group(
    Extension(client): ClientExtension,
    PathName(name): PathName<GroupName>,
    uri: Uri,
) -> Result<StatusCode, ErrorResponse> {
    QueryParams::parse(&uri, &[])?;
    let delete = GroupCommand::new(GroupAction::Delete, name.as_str(), Vec::new());
    client.run(&Command::Group(delete)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// `POST /groups/{group}/pause`
pub(super) async fn pause_group(
    client: ClientExtension,
    name: PathName<GroupName>,
    uri: Uri,
) -> JsonResult {
    QueryParams::parse(&uri, &[])?;
    run_group_action(&client, GroupAction::Pause, &name.0).await
}

/// `POST /groups/{group}/resume`
pub(super) async fn resume_group(
    client: ClientExtension,
    name: PathName<GroupName>,
    uri: Uri,
) -> JsonResult {
    QueryParams::parse(&uri, &[])?;
    run_group_action(&client, GroupAction::Resume, &name.0).await
}

/// `POST /groups/{group}/purge`
pub(super) async fn purge_group(
    client: ClientExtension,
    name: PathName<GroupName>,
    uri: Uri,
) -> JsonResult {
    QueryParams::parse(&uri, &[])?;
    run_group_action(&client, GroupAction::Purge, &name.0).await
}

async fn run_group_action(
    client: &ConnectedClient,
    action: GroupAction<'_>,
    name: &GroupName,
) -> JsonResult {
    let command = Command::Group(GroupCommand::new(action, name.as_str(), Vec::new()));
    Ok(JsonResponse(object(&GroupStatus::parse(&client.run(&command).await?.ok))))
}

/// `GET /groups/{group}/tasks`
pub(super) async fn tasks(
    client: ClientExtension,
    name: PathName<GroupName>,
    uri: Uri,
) -> JsonResult {
    let params = QueryParams::parse(&uri, &["state", "entry", "key", "job", "limit"])?;
    list_objects(
        &client,
        (GroupAction::Tasks, "tasks"),
        &name.0,
        params.settings(),
        TaskStatus::parse,
    )
    .await
}

/// `GET /groups/{group}/keys`
pub(super) async fn keys(
    client: ClientExtension,
    name: PathName<GroupName>,
    uri: Uri,
) -> JsonResult {
    let params = QueryParams::parse(&uri, &["job", "limit"])?;
    list_objects(&client, (GroupAction::Keys, "keys"), &name.0, params.settings(), KeyStatus::parse)
        .await
}

/// `GET /groups/{group}/schedules`
pub(super) async fn schedules(
    client: ClientExtension,
    name: PathName<GroupName>,
    uri: Uri,
) -> JsonResult {
    let params = QueryParams::parse(&uri, &["key", "limit"])?;
    let what = (GroupAction::Schedules, "schedules");
    list_objects(&client, what, &name.0, params.settings(), ScheduleStatus::parse).await
}

/// `GET /groups/{group}/dead`: the dead letters of a group.
pub(super) async fn dead_letters(
    client: ClientExtension,
    name: PathName<GroupName>,
    uri: Uri,
) -> JsonResult {
    let params = QueryParams::parse(&uri, &["entry", "key", "job", "limit"])?;
    let settings = [vec![("state", "dead")], params.settings()].concat();
    list_objects(&client, (GroupAction::Tasks, "dead"), &name.0, settings, TaskStatus::parse).await
}

/// Returns the lines of an answer as objects under `key`, and the number of all that match.
async fn list_objects<S: Serialize>(
    client: &ConnectedClient,
    (action, key): (GroupAction<'_>, &str),
    name: &GroupName,
    settings: Vec<(&str, &str)>,
    parse: impl Fn(&str) -> S,
) -> JsonResult {
    let command = Command::Group(GroupCommand::new(action, name.as_str(), settings));
    let CommandReply { lines, ok } = client.run(&command).await?;
    let objects: Vec<S> = lines.iter().map(|line| parse(line)).collect();
    let matched = ListEnd::parse(&ok).matched;
    Ok(JsonResponse(json!({ "group": name.as_str(), "matched": matched, key: objects })))
}

/// `POST /groups/{group}/dead/retry`
pub(super) async fn retry_dead(
    client: ClientExtension,
    name: PathName<GroupName>,
    uri: Uri,
) -> JsonResult {
    act_on_dead(&client, (GroupAction::Retry, "retried"), &name.0, &uri).await
}

/// `POST /groups/{group}/dead/drop`
pub(super) async fn drop_dead(
    client: ClientExtension,
    name: PathName<GroupName>,
    uri: Uri,
) -> JsonResult {
    act_on_dead(&client, (GroupAction::Drop, "dropped"), &name.0, &uri).await
}

async fn act_on_dead(
    client: &ConnectedClient,
    (action, count_key): (GroupAction<'_>, &str),
    name: &GroupName,
    uri: &Uri,
) -> JsonResult {
    let params = QueryParams::parse(uri, &["entry", "key", "job"])?;
    let command = Command::Group(GroupCommand::new(action, name.as_str(), params.settings()));
    let reply = client.run(&command).await?;
    let count = field_number(&reply.ok, count_key).unwrap_or(0);
    Ok(JsonResponse(json!({ "group": name.as_str(), count_key: count })))
}

/// `GET /explain`: why a URL or a key waits, and until when.
pub(super) async fn explain(Extension(client): ClientExtension, uri: Uri) -> JsonResult {
    let params = QueryParams::parse(&uri, &["what", "group"])?;
    let what = params
        .get("what")
        .ok_or_else(|| ErrorResponse::bad_request("what=: expected a URL or a key"))?;
    let group = params.get("group").map(str::parse::<GroupName>).transpose()?;
    let reply = client.run(&Command::Explain { what, group }).await?;
    Ok(JsonResponse(json!({ "what": what, "summary": reply.ok, "lines": reply.lines })))
}
