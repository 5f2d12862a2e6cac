//! Jobs: opened, given seeds, waited for.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::{Extension, Json};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tidings_protocol::{Command, JobName, field_number};

use super::client::Client;
use super::error::Refusal;
use super::input::{Named, Params, word};
use super::manage::{Answered, Asker, borrowed, manage, missing, settings};
use super::{Http, objects, within};

/// Seeds of one request.
const SEEDS_MAX: usize = 10_000;

/// Seeds of a body.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Seeds {
    urls: Vec<String>,
    #[serde(default)]
    prio: Option<i64>,
    #[serde(default)]
    after: Option<String>,
}

/// `GET /jobs`: the newest.
pub(super) async fn jobs(Extension(client): Asker, uri: Uri) -> Answered {
    let params = Params::of(&uri, &["group"])?;
    let answer = client.ask(&Command::Job(manage("ls", None, params.settings()))).await?;
    let jobs: Vec<_> = answer.more.iter().map(|line| objects::job(line)).collect();
    let count = field_number(&answer.ok, "jobs").unwrap_or(0);
    Ok(Json(json!({ "matched": count, "jobs": jobs })))
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
    let mut object: Map<String, Value> = http.bodies.json(&headers, body).await?;
    let name: JobName = match object.remove("job") {
        Some(Value::String(name)) => name.parse()?,
        _ => return Err(missing("a \"job\", which is its name")),
    };
    let urls = object.remove("urls").map(serde_json::from_value::<Vec<String>>).transpose();
    let urls = urls.map_err(|_| missing("\"urls\" as a list of texts, if there are any"))?;
    let close = match object.remove("close") {
        None => false,
        Some(Value::Bool(close)) => close,
        Some(_) => return Err(missing("\"close\" as true or false, if it is there")),
    };
    if object.contains_key("group") {
        return Err(missing("no group; it is a parameter: POST /jobs?group=.."));
    }
    let seeds = Seeds { urls: urls.unwrap_or_default(), ..Seeds::default() };
    seeds.check()?;
    let mut settings = settings(&object)?;
    settings.extend(params.get("group").map(|group| ("group".to_owned(), group.to_owned())));
    let open = manage("open", Some(name.as_ref()), borrowed(&settings));
    client.ask(&Command::Job(open)).await?;
    add_seeds(&client, &name, &params, &seeds).await?;
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
        let done = within(wait, client.ask(&command)).await;
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
    let seeds: Seeds = http.bodies.json(&headers, body).await?;
    seeds.check()?;
    let (new, known) = add_seeds(&client, &name, &params, &seeds).await?;
    Ok(Json(json!({ "job": name.as_ref() as &str, "new": new, "known": known })))
}

impl Seeds {
    /// Before any of them is taken.
    fn check(&self) -> Result<(), Refusal> {
        if self.urls.len() > SEEDS_MAX {
            return Err(Refusal::bad(format!("at most {SEEDS_MAX} urls in one request")));
        }
        self.urls.iter().chain(&self.after).try_for_each(|text| word(text).map(|_| ()))
    }
}

/// How many of them are new and were known. The first one that is refused is told, and says how many
/// were taken.
async fn add_seeds(
    client: &Client,
    name: &JobName,
    params: &Params,
    seeds: &Seeds,
) -> Result<(u64, u64), Refusal> {
    let prio = seeds.prio.map(|prio| prio.to_string());
    let mut others = of_group(params);
    others.extend(prio.as_deref().map(|prio| ("prio", prio)));
    others.extend(seeds.after.as_deref().map(|after| ("after", after)));
    let commands = seeds.urls.iter().map(|url| {
        let settings = [vec![("url", url.as_str())], others.clone()].concat();
        Command::Job(manage("add", Some(name.as_ref()), settings))
    });
    let commands: Vec<_> = commands.collect();
    let (mut new, mut known) = (0, 0);
    for answer in client.ask_all(&commands).await {
        let ok = answer?.ok;
        new += field_number(&ok, "new").unwrap_or(0);
        known += field_number(&ok, "known").unwrap_or(0);
    }
    Ok((new, known))
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
    Ok(Json(objects::job(&client.ask(&command).await?.ok)))
}

/// The group that the request is about, if it says so.
fn of_group(params: &Params) -> Vec<(&str, &str)> {
    params.get("group").map(|group| ("group", group)).into_iter().collect()
}
