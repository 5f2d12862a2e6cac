//! Topics, groups and jobs: each request asks what a command of the line protocol asks, and gets
//! the same answer as an object.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use serde_json::{Value, json};
use tidings_protocol::{Code, Command, GroupName, ManageCommand, TopicName, field_number};

use super::Http;
use super::client::{Answer, Client};
use super::error::Refusal;
use super::fields::{Fields, Kind, Known, borrowed, settings};
use super::input::{Named, Params};
use super::objects::{self, Object};
use crate::access::Action;

/// A request to a handler has these.
pub(super) type Asker = Extension<Arc<Client>>;

/// What a handler answers.
pub(super) type Answered = Result<Object, Refusal>;

/// `<action> <name> <settings>`.
pub(super) fn manage<'a>(
    action: &'a str,
    name: Option<&'a str>,
    settings: Vec<(&'a str, &'a str)>,
) -> ManageCommand<'a> {
    ManageCommand { action, name, settings }
}

/// Settings of a topic.
const TOPIC: &Known =
    &[("sync", Kind::Text), ("retain-bytes", Kind::Text), ("retain-age", Kind::Text)];

/// Settings of a group.
const GROUP: &Known = &[
    ("topics", Kind::List),
    ("key", Kind::Text),
    ("parallel", Kind::Number),
    ("delay", Kind::Text),
    ("lease", Kind::Text),
    ("max-attempts", Kind::Number),
    ("max-losses", Kind::Number),
    ("backoff", Kind::Text),
];

/// The settings of a body; the request has no parameters.
async fn received(
    http: &Http,
    known: &Known,
    client: &Client,
    (uri, headers, body): (&Uri, &HeaderMap, Body),
) -> Result<Vec<(&'static str, String)>, Refusal> {
    Params::of(uri, &[])?;
    // Nobody has a body read for nothing.
    let body = http.bodies.json(headers, body);
    let Fields(object) = client.receive(|pass| pass.check_action(Action::Admin), body).await??;
    settings(&object, known)
}

/// `GET /topics`
pub(super) async fn topics(Extension(client): Asker, uri: Uri) -> Answered {
    Params::of(&uri, &[])?;
    let answer = client.ask(&Command::Topic(manage("ls", None, Vec::new()))).await?;
    let topics: Vec<_> = answer.more.iter().map(|line| objects::named("topic", line)).collect();
    Ok(Object(json!({ "topics": topics })))
}

/// `GET /topics/{topic}/state`: with its durable cursors.
pub(super) async fn topic(
    Extension(client): Asker,
    Named(name): Named<TopicName>,
    uri: Uri,
) -> Answered {
    Params::of(&uri, &[])?;
    let show = manage("show", Some(name.as_str()), Vec::new());
    let answer = client.ask(&Command::Topic(show)).await?;
    let mut topic = objects::named("topic", &answer.ok);
    let lines = answer.more.iter().filter_map(|line| line.strip_prefix("cursor "));
    topic["cursors"] = lines.map(|line| objects::named("cursor", line)).collect();
    Ok(Object(topic))
}

/// `PUT /topics/{topic}`: makes it, or changes it if it is there.
pub(super) async fn put_topic(
    State(http): State<Arc<Http>>,
    Extension(client): Asker,
    Named(name): Named<TopicName>,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Answered {
    let settings = received(&http, TOPIC, &client, (&uri, &headers, body)).await?;
    // Who may not be told how it is then is not told so when it is done.
    client.may(Action::ViewTopic(name.as_str()))?;
    let ask = |action| Command::Topic(manage(action, Some(name.as_str()), borrowed(&settings)));
    match client.ask(&ask("create")).await {
        Err(error) if error.code == Code::Exists && settings.is_empty() => {}
        Err(error) if error.code == Code::Exists => {
            client.ask(&ask("set")).await?;
        }
        created => {
            created?;
        }
    }
    let show = manage("show", Some(name.as_str()), Vec::new());
    Ok(Object(objects::named("topic", &client.ask(&Command::Topic(show)).await?.ok)))
}

/// `DELETE /topics/{topic}`
pub(super) async fn delete_topic(
    Extension(client): Asker,
    Named(name): Named<TopicName>,
    uri: Uri,
) -> Result<StatusCode, Refusal> {
    Params::of(&uri, &[])?;
    let delete = manage("delete", Some(name.as_str()), Vec::new());
    client.ask(&Command::Topic(delete)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// `GET /groups`
pub(super) async fn groups(Extension(client): Asker, uri: Uri) -> Answered {
    Params::of(&uri, &[])?;
    let answer = client.ask(&Command::Group(manage("ls", None, Vec::new()))).await?;
    Ok(Object(json!({ "groups": answer.more })))
}

/// `GET /groups/{group}`
pub(super) async fn group(
    Extension(client): Asker,
    Named(name): Named<GroupName>,
    uri: Uri,
) -> Answered {
    Params::of(&uri, &[])?;
    let show = manage("show", Some(name.as_str()), Vec::new());
    let Answer { more, ok } = client.ask(&Command::Group(show)).await?;
    let mut object = objects::named("group", &ok);
    // Of a damaged group: what is wrong, and what can be done.
    for (key, text) in more.iter().filter_map(|line| line.split_once(' ')) {
        object[key] = text.into();
    }
    Ok(Object(object))
}

/// `PUT /groups/{group}`: makes it, or changes it if it is there.
pub(super) async fn put_group(
    State(http): State<Arc<Http>>,
    Extension(client): Asker,
    Named(name): Named<GroupName>,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Answered {
    let settings = received(&http, GROUP, &client, (&uri, &headers, body)).await?;
    client.may(Action::ViewGroup(name.as_str()))?;
    let ask = |action| Command::Group(manage(action, Some(name.as_str()), borrowed(&settings)));
    match client.ask(&ask("create")).await {
        Err(error) if error.code == Code::Exists => {}
        created => {
            created?;
            return act_on_group(&client, "show", &name).await;
        }
    }
    if !settings.is_empty() {
        client.ask(&ask("set")).await?;
    }
    act_on_group(&client, "show", &name).await
}

/// `DELETE /groups/{group}`
pub(super) async fn delete_group(
    Extension(client): Asker,
    Named(name): Named<GroupName>,
    uri: Uri,
) -> Result<StatusCode, Refusal> {
    Params::of(&uri, &[])?;
    let delete = manage("delete", Some(name.as_str()), Vec::new());
    client.ask(&Command::Group(delete)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// `POST /groups/{group}/pause`
pub(super) async fn pause_group(client: Asker, name: Named<GroupName>, uri: Uri) -> Answered {
    Params::of(&uri, &[])?;
    act_on_group(&client, "pause", &name.0).await
}

/// `POST /groups/{group}/resume`
pub(super) async fn resume_group(client: Asker, name: Named<GroupName>, uri: Uri) -> Answered {
    Params::of(&uri, &[])?;
    act_on_group(&client, "resume", &name.0).await
}

/// `POST /groups/{group}/purge`
pub(super) async fn purge_group(client: Asker, name: Named<GroupName>, uri: Uri) -> Answered {
    Params::of(&uri, &[])?;
    act_on_group(&client, "purge", &name.0).await
}

async fn act_on_group(client: &Client, action: &str, name: &GroupName) -> Answered {
    let command = Command::Group(manage(action, Some(name.as_str()), Vec::new()));
    Ok(Object(objects::named("group", &client.ask(&command).await?.ok)))
}

/// `GET /groups/{group}/tasks`
pub(super) async fn tasks(client: Asker, name: Named<GroupName>, uri: Uri) -> Answered {
    let params = Params::of(&uri, &["state", "entry", "key", "job", "limit"])?;
    list(&client, ("tasks", "tasks"), &name.0, params.settings(), objects::task).await
}

/// `GET /groups/{group}/keys`
pub(super) async fn keys(client: Asker, name: Named<GroupName>, uri: Uri) -> Answered {
    let params = Params::of(&uri, &["job", "limit"])?;
    let object = |line: &str| objects::named("key", line);
    list(&client, ("keys", "keys"), &name.0, params.settings(), object).await
}

/// `GET /groups/{group}/schedules`
pub(super) async fn schedules(client: Asker, name: Named<GroupName>, uri: Uri) -> Answered {
    let params = Params::of(&uri, &["key", "limit"])?;
    let object = |line: &str| objects::named("url", line);
    list(&client, ("schedules", "schedules"), &name.0, params.settings(), object).await
}

/// `GET /groups/{group}/dead`: what it gave up.
pub(super) async fn dead(client: Asker, name: Named<GroupName>, uri: Uri) -> Answered {
    let params = Params::of(&uri, &["entry", "key", "job", "limit"])?;
    let settings = [vec![("state", "dead")], params.settings()].concat();
    list(&client, ("tasks", "dead"), &name.0, settings, objects::task).await
}

/// The lines of an answer as objects under `key`, and how many there are in all.
async fn list(
    client: &Client,
    (action, key): (&str, &str),
    name: &GroupName,
    settings: Vec<(&str, &str)>,
    object: impl Fn(&str) -> Value,
) -> Answered {
    let command = Command::Group(manage(action, Some(name.as_str()), settings));
    let Answer { more, ok } = client.ask(&command).await?;
    let objects: Vec<Value> = more.iter().map(|line| object(line)).collect();
    let matched = field_number(&ok, "matched").unwrap_or(0);
    Ok(Object(json!({ "group": name.as_str(), "matched": matched, key: objects })))
}

/// `POST /groups/{group}/dead/retry`
pub(super) async fn retry(client: Asker, name: Named<GroupName>, uri: Uri) -> Answered {
    choose(&client, ("retry", "retried"), &name.0, &uri).await
}

/// `POST /groups/{group}/dead/drop`
pub(super) async fn drop_dead(client: Asker, name: Named<GroupName>, uri: Uri) -> Answered {
    choose(&client, ("drop", "dropped"), &name.0, &uri).await
}

async fn choose(
    client: &Client,
    (action, done): (&str, &str),
    name: &GroupName,
    uri: &Uri,
) -> Answered {
    let params = Params::of(uri, &["entry", "key", "job"])?;
    let command = Command::Group(manage(action, Some(name.as_str()), params.settings()));
    let answer = client.ask(&command).await?;
    let count = field_number(&answer.ok, done).unwrap_or(0);
    Ok(Object(json!({ "group": name.as_str(), done: count })))
}

/// `GET /explain`: why is this URL or key not moving, and when will it?
pub(super) async fn explain(Extension(client): Asker, uri: Uri) -> Answered {
    let params = Params::of(&uri, &["what", "group"])?;
    let what = params.get("what").ok_or_else(|| Refusal::bad("what= is a URL or a key"))?;
    let group = params.get("group").map(str::parse::<GroupName>).transpose()?;
    let answer = client.ask(&Command::Explain { what, group }).await?;
    Ok(Object(json!({ "what": what, "summary": answer.ok, "lines": answer.more })))
}
