//! The `OpenAPI` description is true: the tests produce every documented status and no other.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::TcpStream;
use std::process::Command;
use std::{env, fs, thread};

use serde_json::{Value, json};
use tempfile::{NamedTempFile, TempDir};

use crate::access::tokens::broker;
use crate::faults::damage;
use crate::http::{disk_faults as http_disk, rules};
use crate::support::http_client::{HttpClient, HttpExchange};
use crate::support::line_connection::LineConnection;
use crate::support::process::{Process, Server, run_tidings};
use crate::support::wait::wait_until;

/// A token of no principal.
const UNKNOWN_TOKEN: &str = "tdg_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

/// The header by which the webhook recognizes its sender.
pub(crate) const HOOK_SECRET_HEADER: &str = "X-Token: a secret of a form";

const METHODS: [&str; 5] = ["get", "post", "put", "patch", "delete"];

/// Method, path and status of all documented responses.
fn documented_responses(description: &Value) -> BTreeSet<(String, String, u16)> {
    let mut all = BTreeSet::new();
    for (path, methods) in description["paths"].as_object().unwrap() {
        for method in METHODS {
            let Some(responses) = methods[method]["responses"].as_object() else { continue };
            for status in responses.keys() {
                all.insert((method.to_uppercase(), path.clone(), status.parse().unwrap()));
            }
        }
    }
    all
}

/// The path of the description that matches the path of a request.
fn path_template(description: &Value, path: &str) -> Option<String> {
    let words: Vec<_> = path.split('/').collect();
    let fits = |template: &&String| {
        let parts: Vec<_> = template.split('/').collect();
        parts.len() == words.len()
            && parts.iter().zip(&words).all(|(part, word)| part.starts_with('{') || part == word)
    };
    // A literal segment has precedence over a parameter.
    let all = description["paths"].as_object().unwrap().keys();
    all.filter(fits).min_by_key(|template| template.matches('{').count()).cloned()
}

// PROTOCOL: H1
#[test]
#[ignore = "needs foreign programs"]
fn exactly_the_documented_statuses_are_produced() {
    let (_folder, config) = hook_config();
    let server = Server::start(&["broker", "--config", &config]);
    let http = HttpClient::new(&server);
    let description = http.get("/openapi.json").json();
    let expected = documented_responses(&description);

    // Most of the time passes in waiting for slow disks and for the ends of timeouts.
    let answers = thread::scope(|scope| {
        let others = [
            scope.spawn(|| responses_behind_tokens(&expected, &config)),
            scope.spawn(|| http_disk::responses_on_a_full_disk(&description)),
            scope.spawn(|| http_disk::responses_with_failing_syncs(&description)),
            scope.spawn(|| damage::responses_with_a_damaged_group(&description)),
            scope.spawn(http_disk::responses_with_slow_syncs),
        ];
        cover_common_responses(&http, &description);
        cover_hooks(&http);
        cover_topics(&http);
        cover_groups(&http, &server);
        cover_jobs(&http, &server);
        cover_limits(&http);
        let mut answers = http.exchanges();
        for other in others {
            answers.extend(other.join().unwrap());
        }
        answers
    });

    expect_documented(&description, &expected, answers);
}

/// Responses to these requests with a wrong token, from a broker with a hub, WebSub and a
/// principal. A wrong token is rejected even where no token is needed.
#[track_caller]
pub(crate) fn responses_to_a_wrong_token(requests: &[(&str, &str)]) -> BTreeSet<HttpExchange> {
    let flags = ["--public-url", "http://127.0.0.1/", "--hub", "http://blog.example/"];
    let (server, _) = broker([("alice", &["hub"])], &flags);
    let http = HttpClient::new(&server);
    let wrong = format!("Authorization: Bearer {UNKNOWN_TOKEN}");
    for (method, path) in requests {
        assert_eq!(
            http.request(method, path, &["--header", &wrong]).status,
            401,
            "{method} {path}"
        );
    }
    http.exchanges()
}

/// Checks that the responses below a prefix, with those of `others`, are exactly the documented
/// ones and match their schemas.
#[track_caller]
pub(crate) fn expect_documented_below(
    http: &HttpClient,
    prefix: &str,
    others: BTreeSet<HttpExchange>,
) {
    let description = http.get("/openapi.json").json();
    let expected = documented_responses(&description)
        .into_iter()
        .filter(|(_, path, _)| path.starts_with(prefix));
    let answers = http.exchanges().into_iter().chain(others);
    let answers = answers.filter(|answer| answer.path.starts_with(prefix));
    expect_documented(&description, &expected.collect(), answers.collect());
}

#[track_caller]
fn expect_documented(
    description: &Value,
    expected: &BTreeSet<(String, String, u16)>,
    answers: BTreeSet<HttpExchange>,
) {
    let answers: Vec<_> = answers
        .into_iter()
        .filter_map(|answer| {
            Some(HttpExchange { path: path_template(description, &answer.path)?, ..answer })
        })
        .filter(|answer| METHODS.contains(&answer.method.to_lowercase().as_str()))
        .collect();
    let key = |answer: &HttpExchange| (answer.method.clone(), answer.path.clone(), answer.status);
    let seen: BTreeSet<_> = answers.iter().map(key).collect();
    let missing: Vec<_> = expected.difference(&seen).collect();
    let unknown: Vec<_> =
        seen.difference(expected).filter(|(_, _, status)| *status != 405).collect();
    assert!(!expected.is_empty());
    assert!(
        missing.is_empty() && unknown.is_empty(),
        "not produced: {missing:?}; not documented: {unknown:?}"
    );
    expect_schemas(description, answers.iter().filter(|answer| answer.status != 405));
}

/// Checks every response against the schema of its status.
#[track_caller]
fn expect_schemas<'a>(description: &Value, answers: impl Iterator<Item = &'a HttpExchange>) {
    let python = concat!(env!("CARGO_MANIFEST_DIR"), "/target/venv/bin/python");
    assert!(std::path::Path::new(python).exists(), "tests/run --all installs schemathesis");
    let mut file = NamedTempFile::new().unwrap();
    writeln!(file, "{description}").unwrap();
    let mut count = 0;
    for HttpExchange { method, path, status, content_type: kind, body } in answers {
        let answer = json!({
            "method": method, "path": path, "status": status, "kind": kind, "body": body
        });
        writeln!(file, "{answer}").unwrap();
        count += 1;
    }
    let mut command = Command::new(python);
    command.args(["-c", include_str!("../support/schemas.py")]).arg(file.path());
    let judged = Process::start(&mut command).finish().expect_code(0);
    let verdict = judged.stdout().join("\n");
    assert_eq!(verdict, format!("{count} answers are as described"));
}

/// A client that is generated from the description names an inline schema after its place: that of
/// the field `b` of `A` is `AB`. If a component has this name, the client has no type for `A`.
#[test]
#[ignore = "needs foreign programs"]
fn the_description_in_the_tree_is_served_and_its_names_are_clear() {
    let folder = TempDir::new().unwrap();
    run_tidings(folder.path(), &["identity", "create", "crawler.jwks"]).expect_code(0);
    let site = ["--public-url", "http://127.0.0.1/", "--hub", "http://blog.example/"];
    let flags = [["broker"].as_slice(), &site, &["--sign-key", "crawler.jwks"]].concat();
    let server = Server::start_in(folder, &flags, |_| {});
    let description = HttpClient::new(&server).get("/openapi.json").json();
    let mut inline = BTreeSet::new();
    for (name, schema) in description["components"]["schemas"].as_object().unwrap() {
        for (field, value) in schema["properties"].as_object().into_iter().flatten() {
            let is_named = |value: &Value| !value["enum"].is_null() || value["type"] == "object";
            if is_named(value) || is_named(&value["items"]) {
                inline.insert(format!("{name}{field}").replace('-', "").to_lowercase());
            }
        }
    }
    let components = description["components"]["schemas"].as_object().unwrap().keys();
    let unclear: Vec<_> = components.filter(|name| inline.contains(&name.to_lowercase())).collect();
    assert!(unclear.is_empty() && inline.len() > 10, "{unclear:?} of {inline:?}");

    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/openapi.json");
    let text = format!("{description:#}\n");
    if env::var_os("UPDATE").is_some() {
        fs::write(path, &text).unwrap();
    }
    let in_tree = fs::read_to_string(path).unwrap_or_default();
    assert!(in_tree == text, "UPDATE=1 writes docs/openapi.json again; then look at the diff");
}

#[test]
#[ignore = "needs foreign programs"]
fn every_schema_is_closed_or_a_typed_map() {
    let server = Server::start_broker();
    let description = HttpClient::new(&server).get("/openapi.json").json();
    // The schema of OpenAPI itself is open to extensions.
    let openapi = "/paths//openapi.json/";
    let (mut open, mut objects) = (Vec::new(), 0);
    let mut places = vec![(String::new(), &description)];
    while let Some((place, value)) = places.pop() {
        if value["type"] == "object" {
            objects += 1;
            let rest = &value["additionalProperties"];
            let is_map = rest["type"].is_string() && value["properties"].is_null();
            if *rest != Value::Bool(false) && !is_map && !place.starts_with(openapi) {
                open.push(place.clone());
            }
        }
        let fields = value.as_object().into_iter().flatten();
        places.extend(fields.map(|(key, value)| (format!("{place}/{key}"), value)));
        let items = value.as_array().into_iter().flatten().enumerate();
        places.extend(items.map(|(at, value)| (format!("{place}/{at}"), value)));
    }
    assert!(
        open.is_empty() && objects > 30,
        "{objects} schemas, of which these are open: {open:?}"
    );
}

/// Requests that have the same response at every path.
fn cover_common_responses(http: &HttpClient, description: &Value) {
    let mut with_body = Vec::new();
    for (path, methods) in description["paths"].as_object().unwrap() {
        let path = path
            .replace("{topic}", "t")
            .replace("{group}", "g")
            .replace("{job}", "j")
            .replace("{key}", "a.example")
            .replace("{name}", "h");
        let path = path.as_str();
        for method in METHODS.map(str::to_uppercase) {
            let operation = &methods[method.to_lowercase()];
            if operation.is_null() {
                let answer = http.request(&method, path, &[]);
                assert_eq!(answer.status, 405, "{method} {path}");
                assert!(answer.header("allow").is_some(), "{method} {path}");
                continue;
            }
            let unknown = http.request(&method, &format!("{path}?no-such=1"), &[]);
            assert_eq!(unknown.status, 400, "{method} {path}: {}", unknown.body);
            let elsewhere = http.request(&method, path, &["--header", "Host: evil.example"]);
            assert_eq!(elsewhere.status, 403, "{method} {path}");
            for answer in [&unknown, &elsewhere] {
                assert!(answer.json()["message"].is_string() && answer.json()["code"].is_string());
            }
            if !operation["requestBody"].is_null() {
                if !path.starts_with("/hooks/") {
                    cover_bodies(http, &method, path);
                }
                with_body.push((method, path.to_owned()));
            }
        }
    }
    thread::scope(|scope| {
        // Each takes as long as the timeout of a body.
        for (method, path) in &with_body {
            scope.spawn(move || send_unfinished_body(http, method, path));
        }
    });
    for path in [
        "/",
        "/health",
        "/ready",
        "/me",
        "/config",
        "/stats",
        "/metrics",
        "/history",
        "/topics",
        "/groups",
        "/openapi.json",
    ] {
        assert_eq!(http.get(path).status, 200, "{path}");
    }
    let stream = http.request("GET", "/live?on=stats", &["--max-time", "1"]);
    assert_eq!(stream.status, 200);
    // The default group does not exist before it is needed.
    assert_eq!(http.get("/jobs?group=none").status, 404);
    assert_eq!(http.get("/history?of=group:none").status, 404);
    assert_eq!(http.get("/jobs?group=no,such").status, 400);
    assert_eq!(http.get("/jobs").status, 200);
}

/// Responses to every documented request where login is required: without a token, with a token
/// without permissions, with wrong tokens, and after too many wrong tokens.
fn responses_behind_tokens(
    expected: &BTreeSet<(String, String, u16)>,
    config: &str,
) -> BTreeSet<HttpExchange> {
    let (server, [hub_token]) = broker([("alice", &["hub"])], &["--config", config]);
    let http = HttpClient::new(&server);
    let named = [
        ("{topic}", "t"),
        ("{group}", "g"),
        ("{job}", "j"),
        ("{key}", "a.example"),
        ("{name}", "h"),
        ("/explain", "/explain?what=a"),
    ];
    let path = |template: &str| {
        named.iter().fold(template.to_owned(), |path, (name, real)| path.replace(name, real))
    };
    let all: BTreeSet<_> =
        expected.iter().map(|(method, template, _)| (method.clone(), path(template))).collect();
    let is_open = |path: &str| {
        ["/", "/openapi.json", "/health", "/ready", "/me"].contains(&path)
            || path.starts_with("/hooks/")
    };
    let request = |method: &str, path: &str, token: Option<&str>| {
        let header = token.map(|token| format!("Authorization: Bearer {token}"));
        let words: Vec<_> = header.iter().flat_map(|header| ["--header", header]).collect();
        http.request(method, path, &words).status
    };
    let mut failures = 0;
    for (method, path) in &all {
        if is_open(path) {
            assert_eq!(request(method, path, Some(UNKNOWN_TOKEN)), 401, "{method} {path}");
            failures += 1;
        } else {
            assert_eq!(request(method, path, None), 401, "{method} {path}");
            assert_eq!(request(method, path, Some(&hub_token)), 403, "{method} {path}");
        }
    }
    thread::scope(|scope| {
        // Each of them is answered later than the one before.
        for _ in failures..10 {
            scope.spawn(|| request("GET", "/health", Some(UNKNOWN_TOKEN)));
        }
    });
    for (method, path) in &all {
        assert_eq!(request(method, path, Some(UNKNOWN_TOKEN)), 429, "{method} {path}");
    }
    http.exchanges()
}

/// The configuration of a webhook that recognizes its sender by a token.
pub(crate) fn hook_config() -> (TempDir, String) {
    let folder = TempDir::new().unwrap();
    let [secret, config] = ["secret", "hooks.toml"].map(|name| folder.path().join(name));
    fs::write(&secret, HOOK_SECRET_HEADER.trim_start_matches("X-Token: ")).unwrap();
    let recipe = format!(
        "[[hook]]
        name = 'h'
        topic = 'log'
        secret-file = '{}'
        signature = {{ token = 'X-Token' }}
        url = {{ pointer = '/url' }}
        prefixes = ['http://a.example/']
        burst = 20
        rate = 20
        ",
        secret.display()
    );
    fs::write(&config, recipe).unwrap();
    (folder, config.to_str().unwrap().to_owned())
}

/// Sends a webhook as its sender does.
#[track_caller]
pub(crate) fn send_hook(http: &HttpClient, kind: &str, body: &str) -> u16 {
    let kind = format!("content-type: {kind}");
    let from = ["--header", HOOK_SECRET_HEADER, "--header", &kind, "--data-binary", body];
    http.request("POST", "/hooks/h", &from).status
}

fn cover_hooks(http: &HttpClient) {
    let send = |kind: &str, body: &str| send_hook(http, kind, body);
    let json = "application/json";
    assert_eq!(send(json, r#"{"url":"http://a.example/1"}"#), 200);
    assert_eq!(send(json, r#"{"url":"http://b.example/1"}"#), 422);
    assert_eq!(send(json, r#"{"url":"#), 400);
    assert_eq!(send("image/png", "x"), 415);
    assert_eq!(send("application/json; charset=latin1", "{}"), 415);
    assert_eq!(http.send_json("POST", "/hooks/h", "{}").status, 404, "without the token");
    let long = ["--header", "content-length: 4194305", "--header", "expect:", "--data-binary", "x"];
    assert_eq!(http.request("POST", "/hooks/h", &long).status, 413);
    let flood = (0..80).map(|_| http.send_json("POST", "/hooks/h", "{}").status);
    assert!(flood.into_iter().any(|status| status == 429));
}

/// Errors that every operation with a body has.
fn cover_bodies(http: &HttpClient, method: &str, path: &str) {
    let json = "content-type: application/json";
    for wrong in [
        ["content-type: image/png", "accept: */*"],
        [json, "content-encoding: gzip"],
        ["content-type: application/json; charset=latin1", "accept: */*"],
    ] {
        let headers = wrong.iter().flat_map(|header| ["--header", header]);
        let request: Vec<_> = headers.chain(["--data-binary", "{}"]).collect();
        assert_eq!(http.request(method, path, &request).status, 415, "{method} {path} {wrong:?}");
    }
    let json = ["--header", "content-type: application/json", "--header", "expect:"];
    let long =
        [json.as_slice(), &["--header", "content-length: 4194305", "--data-binary", "x"]].concat();
    assert_eq!(http.request(method, path, &long).status, 413, "{method} {path}");
}

/// Announces a body and does not send it.
fn send_unfinished_body(http: &HttpClient, method: &str, path: &str) {
    let json = ["--header", "content-type: application/json", "--header", "expect:"];
    let length = ["--header", "content-length: 9", "--data-binary", "{"];
    let answer = http.request(method, path, &[json.as_slice(), &length].concat());
    assert_eq!(answer.status, 408, "{method} {path}: {}", answer.body);
}

fn cover_topics(http: &HttpClient) {
    assert_eq!(http.post_lines("/topics/t", "one").status, 200);
    assert_eq!(http.get("/topics/t?from=first&limit=1&wait=0").status, 200);
    assert_eq!(http.get("/topics/t?from=99").status, 409);
    assert_eq!(http.request("GET", "/topics/t/events?from=99", &[]).status, 409);
    let stream =
        http.request("GET", "/topics/job-done/events", &["--range", "0-1", "--max-time", "1"]);
    assert_eq!(stream.status, 200);
    assert_eq!(http.get("/topics/t/state").status, 200);
    assert_eq!(http.get("/topics/none/state").status, 404);
    assert_eq!(http.send_json("PUT", "/topics/t", r#"{"retain-age":"1h"}"#).status, 200);
    assert_eq!(http.send_json("PUT", "/topics/t", r#"{"sync":"memory"}"#).status, 409);
    let key = |body| ["--header", "Idempotency-Key: k", "--data-binary", body];
    assert_eq!(http.request("POST", "/topics/t", &key("a")).status, 200);
    assert_eq!(http.request("POST", "/topics/t", &key("b")).status, 422);
    let later = http.post_lines("/topics/t", "http://a.example/ every=1h");
    assert_eq!(later.status, 200, "granted by default");
    assert_eq!(http.request("DELETE", "/topics/new-url", &[]).status, 409);
    assert_eq!(http.request("DELETE", "/topics/none", &[]).status, 404);
    assert_eq!(http.request("DELETE", "/topics/t", &[]).status, 204);
}

fn cover_groups(http: &HttpClient, server: &Server) {
    for settings in [r#"{"topics":["work"],"key":"none"}"#, r#"{"max-attempts":1,"lease":"1s"}"#] {
        assert_eq!(http.send_json("PUT", "/groups/g", settings).status, 200, "{settings}");
    }
    assert_eq!(http.post_lines("/topics/work", "a task").status, 200);
    wait_until("the task", || (http.get("/groups/g/tasks").json()["matched"] == 1).then_some(()));
    assert_eq!(http.send_json("PUT", "/groups/g", r#"{"key":"host"}"#).status, 409);
    let mut worker = LineConnection::connect_client(server.address);
    worker.request("JOIN g");
    let id = worker.read_line().split(' ').nth(1).unwrap().to_owned();
    assert_eq!(http.request("DELETE", "/groups/g", &[]).status, 409);
    worker.request(&format!("NACK {id} reason=broken"));
    for path in ["", "/members", "/rules", "/tasks", "/keys", "/schedules", "/dead"] {
        assert_eq!(http.get(&format!("/groups/g{path}")).status, 200, "{path}");
        assert_eq!(http.get(&format!("/groups/none{path}")).status, 404, "{path}");
    }
    assert_eq!(http.get("/groups/g/dead").json()["dead"][0]["reason"], "max-attempts");
    rules::cover(http);
    for wrong in ["bump", "bump?prio=1001", "purge?match=pdf", "purge?dry=maybe"] {
        let refused = http.request("POST", &format!("/groups/g/{wrong}"), &[]);
        assert_eq!(refused.status, 400, "{wrong}");
    }
    let act = |action: &str| {
        assert_eq!(http.request("POST", &format!("/groups/none/{action}"), &[]).status, 404);
        let done = http.request("POST", &format!("/groups/g/{action}"), &[]);
        assert_eq!(done.status, 200, "{action}: {}", done.body);
        done.json()
    };
    // Whether the group is paused, and how many entries wait and are dead.
    let state = || {
        let group = http.get("/groups/g").json();
        let dead = http.get("/groups/g/dead").json()["matched"].clone();
        json!([group["paused"], group["waiting"], dead])
    };
    assert_eq!(state(), json!([false, 0, 1]));
    act("pause");
    assert_eq!(state(), json!([true, 0, 1]));
    assert_eq!(act("dead/retry")["retried"], 1);
    assert_eq!(state(), json!([true, 1, 0]), "a paused group releases nothing");
    let member = http.get("/groups/g/members").json()["members"][0].clone();
    let named = format!("?member={}", member["member"].as_str().unwrap());
    assert_eq!(act(&format!("drain{named}"))["state"], "drained");
    act("resume");
    assert_eq!(state(), json!([false, 1, 0]), "a drained member gets nothing");
    assert_eq!(act(&format!("undrain{named}"))["state"], "active");
    let id = worker.read_line().split(' ').nth(1).unwrap().to_owned();
    worker.request(&format!("NACK {id} reason=broken"));
    assert_eq!(state(), json!([false, 0, 1]));
    assert_eq!(act("dead/drop")["dropped"], 1);
    assert_eq!(state(), json!([false, 0, 0]));
    drop(worker);
    assert_eq!(http.post_lines("/topics/work", "more\nand more").status, 200);
    wait_until("the tasks", || (state() == json!([false, 2, 0])).then_some(()));
    assert_eq!(act("purge?match=/a&dry=yes")["matched"], 0);
    assert_eq!(act("bump?prio=5&key=none")["bumped"], 0);
    assert_eq!(act("purge?match=*&after=0")["dropped"], 2);
    assert_eq!(state(), json!([false, 0, 0]));
    assert_eq!(act("purge")["waiting"], 0);
    assert_eq!(http.post_lines("/topics/work", "a last task").status, 200);
    wait_until("the task", || (state() == json!([false, 1, 0])).then_some(()));
    for action in ["purge", "bump?prio=1", "pause", "dead/drop"] {
        let path = format!("/groups/g/{action}");
        let refused = http.send_json("POST", &path, r#"{"match":"/a","dry":"yes"}"#);
        assert_eq!(refused.status, 400, "{action}: {}", refused.body);
        assert_eq!(refused.json()["code"], "bad-argument");
    }
    assert_eq!(http.send_json("POST", "/jobs/j/cancel", r#"{"group":"g"}"#).status, 400);
    assert_eq!(state(), json!([false, 1, 0]), "a refused request changes nothing");
    assert_eq!(act("purge")["waiting"], 0);
    wait_until("the end of the group", || {
        (http.request("DELETE", "/groups/g", &[]).status == 204).then_some(())
    });
    assert_eq!(http.request("DELETE", "/groups/g", &[]).status, 404);
}

fn cover_jobs(http: &HttpClient, server: &Server) {
    let open = r#"{"job":"j","urls":["http://a.example/"],"max-depth":3,"include":["/a","/b"]}"#;
    let job = http.send_json("POST", "/jobs", open);
    assert_eq!(job.status, 200);
    assert_eq!(http.get("/jobs/j?wait=10ms").json()["include"], serde_json::json!(["/a", "/b"]));
    assert_eq!(http.send_json("POST", "/jobs", r#"{"job":"j"}"#).status, 409);
    assert_eq!(http.send_json("POST", "/jobs?group=none", r#"{"job":"j"}"#).status, 404);
    assert_eq!(http.get("/explain?what=http://a.example/").status, 200);
    assert_eq!(http.get("/explain?what=http://b.example/").status, 404);
    assert_eq!(http.get("/explain").status, 400);
    assert_eq!(
        http.send_json("POST", "/jobs/j/urls", r#"{"urls":["http://b.example/"]}"#).status,
        200
    );
    assert_eq!(
        http.send_json("POST", "/jobs/none/urls", r#"{"urls":["http://b.example/"]}"#).status,
        404
    );
    assert_eq!(http.request("POST", "/jobs/j/retry", &[]).status, 409);
    let change = |job: &str, body| http.send_json("PATCH", &format!("/jobs/{job}"), body);
    let dry = change("j", r#"{"exclude":["/"],"dry":true}"#);
    assert_eq!((dry.status, &dry.json()["examples"]), (200, &json!([])));
    assert_eq!(change("j", r#"{"max-depth":null,"exclude":["/b"]}"#).status, 200);
    assert_eq!(http.get("/jobs/j").json()["exclude"], json!(["/b"]));
    for wrong in
        ["{}", r#"{"scope":"any"}"#, r#"{"no-such":null}"#, r#"{"dry":null,"max-depth":1}"#]
    {
        assert_eq!(change("j", wrong).status, 400, "{wrong}");
    }
    assert_eq!(change("none", r#"{"max-pages":1}"#).status, 404);
    for action in ["pause", "resume", "close", "cancel"] {
        assert_eq!(http.request("POST", &format!("/jobs/j/{action}"), &[]).status, 200, "{action}");
        assert_eq!(
            http.request("POST", &format!("/jobs/none/{action}"), &[]).status,
            404,
            "{action}"
        );
    }
    assert_eq!(
        http.send_json("POST", "/jobs/j/urls", r#"{"urls":["http://b.example/"]}"#).status,
        409
    );
    assert_eq!(change("j", r#"{"max-pages":1}"#).status, 409);
    for action in ["pause", "resume"] {
        assert_eq!(http.request("POST", &format!("/jobs/j/{action}"), &[]).status, 409, "{action}");
    }
    let retry = |of: &str| http.request("POST", &format!("/jobs/{of}"), &[]);
    assert_eq!(retry("none/retry").status, 404);
    assert_eq!(
        retry("j/retry?reason=dns&pass=1").json(),
        json!({"job": "j", "pass": 1, "pages": 0})
    );
    for (wrong, status) in [("reason=nosuch", 404), ("pass=2", 404), ("pass=0", 400)] {
        assert_eq!(retry(&format!("j/retry?{wrong}")).status, status, "{wrong}");
    }
    assert_eq!(http.get("/jobs/none").status, 404);
    assert_eq!(http.get("/jobs").json()["jobs"][0]["state"], "done");
    assert_eq!(http.request("DELETE", "/jobs/j", &[]).status, 204);
    assert_eq!(http.request("DELETE", "/jobs/j", &[]).status, 404);
    let mut connection = LineConnection::connect_client(server.address);
    connection.request("JOB open k");
    assert_eq!(http.request("DELETE", "/jobs/k", &[]).status, 409);
}

/// Creates as many topics as the limit allows; a group needs a topic, too.
fn cover_limits(http: &HttpClient) {
    let stream = TcpStream::connect(http.authority()).unwrap();
    create_until_limited(stream, "topics", "{}");
    assert_eq!(http.send_json("PUT", "/topics/more", "{}").status, 429);
    assert_eq!(http.post_lines("/topics/more", "x").status, 429);
    assert_eq!(http.send_json("PUT", "/groups/more", r#"{"topics":["more"]}"#).status, 429);
}

/// Creates more of them over one connection until the broker reports the limit.
fn create_until_limited(mut stream: TcpStream, what: &str, body: &str) {
    use std::io::{BufRead, BufReader};
    let mut answers = BufReader::new(stream.try_clone().unwrap());
    for n in 0..1_100 {
        let length = body.len();
        let head = format!(
            "PUT /{what}/n{n} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let (mut status, mut length, mut line) = (0, 0_usize, String::new());
        while answers.read_line(&mut line).unwrap() > 2 {
            let lower = line.trim().to_lowercase();
            if let Some(rest) = lower.strip_prefix("http/1.1 ") {
                status = rest[..3].parse().unwrap();
            } else if let Some(rest) = lower.strip_prefix("content-length: ") {
                length = rest.parse().unwrap();
            }
            line.clear();
        }
        std::io::copy(&mut std::io::Read::take(&mut answers, length as u64), &mut std::io::sink())
            .unwrap();
        if status == 429 {
            return;
        }
        assert_eq!(status, 200);
    }
    panic!("no limit on {what}");
}
