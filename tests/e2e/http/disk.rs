//! What HTTP answers on disks that are full, slow or broken: part of the test in `http_openapi`,
//! which knows what has to be answered.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::http::openapi::{HOOK_SECRET, hooked, send_hook};
use crate::support::http::{Answered, Http};
use crate::support::process::Server;
use crate::support::small_disk::SmallDisk;
use crate::support::trace::traced;
use crate::support::wait::until;

/// What is answered when nothing can be kept any more.
pub(crate) fn without_room(description: &Value) -> BTreeSet<Answered> {
    let disk = SmallDisk::mount(24);
    let (_folder, config) = hooked();
    let server = disk.broker_with(&["--config", &config]);
    let http = Http::of(&server);
    assert_eq!(http.send("POST", "/jobs", r#"{"job":"j"}"#).status, 200);
    let body = "x".repeat(50_000);
    let refused = until("a full disk", || {
        let answer = http.post("/topics/log", &format!("{body}\n").repeat(20));
        (answer.status != 200).then_some(answer)
    });
    assert_eq!(refused.status, 507, "{}", refused.body);
    assert_eq!(http.get("/ready").status, 503);
    // What is as short may still have had room.
    disk.fill_but(0);
    let mut n = 0;
    let hook = until("a webhook that cannot be kept", || {
        n += 1;
        let body = format!(r#"{{"url":"http://a.example/{n}"}}"#);
        let hook = send_hook(&http, "application/json", &body);
        (hook != 200).then_some(hook)
    });
    assert_eq!(hook, 507);
    let put = until("a settings that cannot be kept", || {
        let answer = http.send("PUT", "/topics/log", r#"{"retain-age":"1h"}"#);
        (answer.status != 200).then_some(answer)
    });
    assert_eq!(put.status, 507, "{}", put.body);
    assert_eq!(http.ask("DELETE", "/topics/log", &[]).status, 507);

    // What meets the full disk is decided, and written when there is room; it is not known when.
    let mut seeds = 0;
    let (unanswered, last) = until("a group without room", || {
        let urls: Vec<_> = (seeds..seeds + 500).map(seed).collect();
        seeds += 500;
        let body = json!({ "urls": urls }).to_string();
        let answer = http.send("POST", "/jobs/j/urls", &body);
        (answer.status != 200).then_some((answer, body))
    });
    assert_eq!((unanswered.status, &unanswered.json()["code"]), (503, &json!("timeout")));
    assert_eq!(http.send("POST", "/jobs/j/urls", &last).status, 507);
    expect_everywhere(&http, description, 507);
    assert_eq!(http.get("/jobs/j?wait=1ms").status, 507);

    disk.make_room();
    let again = until("room again", || {
        let answer = http.send("POST", "/jobs/j/urls", &last);
        (answer.status != 507).then_some(answer)
    });
    assert_eq!(again.status, 200, "{}", again.body);
    let tasks = http.get("/groups/crawlers/tasks?job=j&limit=1").json();
    assert_eq!(tasks["matched"], seeds, "each once");
    http.seen()
}

/// A URL that fills a disk.
fn seed(n: u64) -> String {
    format!("http://h{n}.example/{}", "x".repeat(2_000))
}

/// Asks the group, and everything in it, whatever the description says may be answered so.
#[track_caller]
pub(crate) fn expect_everywhere(http: &Http, description: &Value, status: u16) {
    let mut asked = 0;
    for (path, methods) in description["paths"].as_object().unwrap() {
        if !["/groups/{group}", "/jobs", "/explain"].iter().any(|it| path.starts_with(it)) {
            continue;
        }
        let query = if path == "/explain" { "?what=http://a.example/" } else { "" };
        let filled = path.replace("{group}", "crawlers").replace("{job}", "j") + query;
        for (method, operation) in methods.as_object().unwrap() {
            // A damaged group is shown.
            if (status, method.as_str(), path.as_str()) == (409, "get", "/groups/{group}") {
                continue;
            }
            assert!(!operation["responses"][status.to_string()].is_null(), "{method} {path}");
            let body = match path.as_str() {
                "/jobs" => r#"{"job":"another"}"#,
                "/jobs/{job}/urls" => r#"{"urls":["http://a.example/"]}"#,
                _ => "{}",
            };
            let method = method.to_uppercase();
            let answer = if operation["requestBody"].is_null() {
                http.ask(&method, &filled, &[])
            } else {
                http.send(&method, &filled, body)
            };
            assert_eq!(answer.status, status, "{method} {path}: {}", answer.body);
            asked += 1;
        }
    }
    assert!(asked > 15, "{asked}");
}

/// What is answered when writing fails, and it is not known what is on the disk.
pub(crate) fn that_fails(description: &Value) -> BTreeSet<Answered> {
    let server = Server::start_with(&["broker"], |command| {
        let folder = command.get_current_dir().unwrap().to_owned();
        // Those of the start do not.
        traced(command, &folder, &["-e", "inject=fdatasync:error=EIO:when=9+"]);
    });
    let http = Http::of(&server);
    let refused = |method: &str, path: &str, body: &dyn Fn(u64) -> String| {
        let mut n = 0;
        let answer = until("a failed sync", || {
            n += 1;
            let answer = http.send(method, path, &body(n));
            (answer.status != 200).then_some(answer)
        });
        assert_eq!((answer.status, &answer.json()["code"]), (503, &json!("sync-failed")));
    };
    refused("POST", "/jobs", &|n| json!({ "job": format!("j-{n}") }).to_string());
    expect_everywhere(&http, description, 503);
    refused("PUT", "/topics/log", &|n| json!({ "retain-age": format!("{n}h") }).to_string());
    assert_eq!(http.ask("DELETE", "/topics/log", &[]).status, 503);
    http.seen()
}

/// What is answered when more is published than can be kept.
pub(crate) fn that_is_slow() -> BTreeSet<Answered> {
    let (_folder, config) = hooked();
    let server = Server::start_with(&["broker", "--config", &config], |command| {
        let folder = command.get_current_dir().unwrap().to_owned();
        // Longer than a publish waits, in microseconds. Those of the start are as fast as ever.
        traced(command, &folder, &["-e", "inject=fdatasync:delay_enter=15000000:when=9+"]);
    });
    let http = Http::of(&server);
    let file = server.folder.path().join("body");
    std::fs::write(&file, format!("{}\n", "x".repeat(50_000)).repeat(78)).unwrap();
    let body = format!("@{}", file.display());
    let large = ["--header", "content-type: text/plain", "--data-binary", &body];
    let mut pressing = Vec::new();
    // Longer than a publish waits for room, and shorter than a sync takes.
    let mut held_up = |path: &str, what: &[&str]| {
        until("more than may be ahead of the disk", || {
            pressing.extend((0..4).map(|_| http.follow("/topics/log", &large)));
            let soon = [&["--max-time", "12"], what].concat();
            http.try_ask("POST", path, &soon).ok().filter(|answer| answer.status != 200)
        })
    };
    let refused = held_up("/topics/log", &["--data-binary", "one more"]);
    assert_eq!(
        (refused.status, refused.header("retry-after")),
        (503, Some("1")),
        "{}",
        refused.body
    );
    let hook = ["--header", HOOK_SECRET, "--header", "content-type: application/json"];
    let hook = [&hook[..], &["--data-binary", r#"{"url":"http://a.example/1"}"#]].concat();
    assert_eq!(held_up("/hooks/h", &hook).status, 503);
    let key = ["--header", "Idempotency-Key: late", "--data-binary", "late"];
    let mut before = Vec::new();
    let briefly = [["--max-time", "2"].as_slice(), &key].concat();
    let underway = until("the same request while it is being done", || {
        let request = [&["--request", "POST"], key.as_slice()].concat();
        before.push(http.follow("/topics/log", &request));
        let answer = http.try_ask("POST", "/topics/log", &briefly).ok()?;
        (answer.status == 409).then_some(answer)
    });
    assert_eq!(underway.header("retry-after"), Some("1"));
    http.seen()
}
