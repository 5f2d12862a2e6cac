//! Jobs: opened, given seeds, waited for.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use serde_json::json;
use tidings_protocol::{Command, JobName, field_number};

use super::client::Client;
use super::error::Refusal;
use super::fields::{Field, Fields, Kind, Known, borrowed, settings, take_words};
use super::input::{Named, Params};
use super::manage::{Answered, Asker, manage};
use super::objects::{self, Object};
use super::{Http, within};
use crate::access::{Action, Identity};
use crate::groups::commands::seed_settings;

/// Seeds of one request.
const SEEDS_MAX: usize = 10_000;

/// Settings of a job.
const JOB: &Known = &[
    ("scope", Kind::Text),
    ("include", Kind::List),
    ("exclude", Kind::List),
    ("max-depth", Kind::Number),
    ("max-pages", Kind::Number),
    ("max-per-host", Kind::Number),
    ("max-time", Kind::Text),
    ("hold", Kind::Truth),
    ("callback", Kind::Text),
];

/// What can be said of seeds.
const SEEDS: &Known = &[("prio", Kind::Number), ("after", Kind::Text)];

/// `GET /jobs`: the newest.
pub(super) async fn jobs(Extension(client): Asker, uri: Uri) -> Answered {
    let params = Params::of(&uri, &["group"])?;
    let answer = client.ask(&Command::Job(manage("ls", None, params.settings()))).await?;
    let jobs: Vec<_> = answer.more.iter().map(|line| objects::job(line)).collect();
    let count = field_number(&answer.ok, "jobs").unwrap_or(0);
    Ok(Object(json!({ "matched": count, "jobs": jobs })))
}

/// `POST /jobs`: opens one, gives it its seeds, and closes it if it has all.
///
/// `{"job": .., "urls": [..], "close": true, <settings>}`
pub(super) async fn open(
    State(http): State<Arc<Http>>,
    Extension(client): Asker,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Answered {
    let params = Params::of(&uri, &["group"])?;
    // Which one is in the body, which is not read for nobody.
    let body = async {
        client.may_go_on()?;
        http.bodies.json(&headers, body).await
    };
    let Fields(mut object) = client.receive(Identity::check_open_job, body).await??;
    let name: JobName = match object.remove("job") {
        Some(Field::Text(name)) => name.parse()?,
        _ => return Err(Refusal::bad("job: it is needed, and a text: its name")),
    };
    let close = match object.remove("close") {
        None => false,
        Some(Field::Truth(close)) => close,
        Some(_) => return Err(Refusal::bad("close: it is true or false")),
    };
    let urls = take_words(&mut object, "urls", SEEDS_MAX)?.unwrap_or_default();
    let settings = settings(&object, JOB)?;
    let settings = [borrowed(&settings), of_group(&params)].concat();
    // What is refused of it leaves nothing behind.
    client.may_all(&adding(&name, &urls, &of_group(&params)))?;
    if !close {
        client.may(Action::ViewJob(name.as_ref()))?;
    }
    count(&client, &urls)?;
    client.ask(&Command::Job(manage("open", Some(name.as_ref()), settings))).await?;
    if !urls.is_empty() {
        add_seeds(&client, &name, &urls, of_group(&params)).await?;
    }
    let action = if close { "close" } else { "show" };
    act(&client, action, &name, &params).await
}

/// `GET /jobs/{job}`; with `wait`, when its pass is done, or after that time.
pub(super) async fn job(
    State(http): State<Arc<Http>>,
    Extension(client): Asker,
    Named(name): Named<JobName>,
    uri: Uri,
) -> Answered {
    let params = Params::of(&uri, &["group", "wait"])?;
    let wait = params.wait(0, http.config.wait_ms_max)?;
    if !wait.is_zero() {
        let command = Command::Job(manage("wait", Some(name.as_ref()), of_group(&params)));
        let done = tokio::select! {
            biased;
            // What is asked below is refused then.
            () = client.loses(Action::ViewJob(name.as_ref())) => None,
            done = within(wait, client.wait(&command)) => done,
        };
        if done.is_none() {
            client.give_up();
        }
        done.transpose()?;
    }
    act(&client, "show", &name, &params).await
}

/// `POST /jobs/{job}/urls`: `{"urls": [..], "prio": .., "after": ..}`
pub(super) async fn add(
    State(http): State<Arc<Http>>,
    Extension(client): Asker,
    Named(name): Named<JobName>,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Answered {
    let params = Params::of(&uri, &["group"])?;
    let deed = Action::ManageJob(name.as_ref());
    client.may(deed)?;
    client.may_go_on()?;
    let body = http.bodies.json(&headers, body);
    let Fields(mut object) = client.receive(|pass| pass.check_action(deed), body).await??;
    let urls = take_words(&mut object, "urls", SEEDS_MAX)?
        .ok_or_else(|| Refusal::bad("urls: they are needed"))?;
    let settings = settings(&object, SEEDS)?;
    let settings = [borrowed(&settings), of_group(&params)].concat();
    // Without URLs there is no command that would check them.
    seed_settings(&manage("add", None, settings.clone()))?;
    count(&client, &urls)?;
    let (new, known) = add_seeds(&client, &name, &urls, settings).await?;
    Ok(Object(json!({ "job": name.as_ref() as &str, "new": new, "known": known })))
}

/// Counts them as events, unless whoever sends them is too fast by now: a body may have taken its
/// time, and others beside it. So nobody owes more at once than a few requests come to, however
/// many there are.
fn count(client: &Client, urls: &[String]) -> Result<(), Refusal> {
    client.may_go_on()?;
    client.sent(urls.len(), urls.iter().map(String::len).sum());
    Ok(())
}

/// What adds these to a job.
fn adding<'a>(
    name: &'a JobName,
    urls: &'a [String],
    settings: &[(&'a str, &'a str)],
) -> Vec<Command<'a>> {
    let add = |url: &'a String| {
        let settings = [&[("url", url.as_str())], settings].concat();
        Command::Job(manage("add", Some(name.as_ref()), settings))
    };
    urls.iter().map(add).collect()
}

/// How many of them are new and were known. If one is not allowed none is taken; if one is refused
/// otherwise that is told, and those before it are taken.
async fn add_seeds(
    client: &Client,
    name: &JobName,
    urls: &[String],
    settings: Vec<(&str, &str)>,
) -> Result<(u64, u64), Refusal> {
    if urls.is_empty() {
        // Nothing is asked then, but whether there is such a job.
        client
            .ask(&Command::Job(manage("show", Some(name.as_ref()), group_among(&settings))))
            .await?;
    }
    let commands = adding(name, urls, &settings);
    client.may_all(&commands)?;
    let (mut new, mut known) = (0, 0);
    for answer in client.ask_all(&commands).await {
        let ok = answer?.ok;
        new += field_number(&ok, "new").unwrap_or(0);
        known += field_number(&ok, "known").unwrap_or(0);
    }
    Ok((new, known))
}

fn group_among<'a>(settings: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    settings.iter().copied().filter(|(key, _)| *key == "group").collect()
}

/// `POST /jobs/{job}/close`
pub(super) async fn close(client: Asker, name: Named<JobName>, uri: Uri) -> Answered {
    act(&client, "close", &name.0, &Params::of(&uri, &["group"])?).await
}

/// `POST /jobs/{job}/cancel`
pub(super) async fn cancel(client: Asker, name: Named<JobName>, uri: Uri) -> Answered {
    act(&client, "cancel", &name.0, &Params::of(&uri, &["group"])?).await
}

/// `POST /jobs/{job}/pause`
pub(super) async fn pause(client: Asker, name: Named<JobName>, uri: Uri) -> Answered {
    act(&client, "pause", &name.0, &Params::of(&uri, &["group"])?).await
}

/// `POST /jobs/{job}/resume`
pub(super) async fn resume(client: Asker, name: Named<JobName>, uri: Uri) -> Answered {
    act(&client, "resume", &name.0, &Params::of(&uri, &["group"])?).await
}

/// `DELETE /jobs/{job}`
pub(super) async fn delete(
    Extension(client): Asker,
    Named(name): Named<JobName>,
    uri: Uri,
) -> Result<StatusCode, Refusal> {
    let params = Params::of(&uri, &["group"])?;
    let delete = manage("delete", Some(name.as_ref()), of_group(&params));
    client.ask(&Command::Job(delete)).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn act(client: &Client, action: &str, name: &JobName, params: &Params) -> Answered {
    let command = Command::Job(manage(action, Some(name.as_ref()), of_group(params)));
    Ok(Object(objects::job(&client.ask(&command).await?.ok)))
}

/// The group that the request is about, if it says so.
fn of_group(params: &Params) -> Vec<(&str, &str)> {
    params.get("group").map(|group| ("group", group)).into_iter().collect()
}
