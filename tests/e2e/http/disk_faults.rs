//! HTTP responses with full, slow and failing disks. The test in `openapi` runs these functions and
//! checks the responses against the description.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::http::openapi::{HOOK_SECRET_HEADER, hook_config, send_hook};
use crate::support::http_client::{HttpClient, HttpExchange};
use crate::support::process::Server;
use crate::support::small_disk::SmallDisk;
use crate::support::strace::inject_into_fdatasync;
use crate::support::wait::wait_until;

/// Responses when the disk is full.
pub(crate) fn responses_on_a_full_disk(description: &Value) -> BTreeSet<HttpExchange> {
    let disk = SmallDisk::mount(24);
    let (_folder, config) = hook_config();
    let server = disk.start_broker_with(&["--config", &config]);
    // What becomes free again has room for all that the group has decided.
    disk.fill_except(14 << 20);
    let http = HttpClient::new(&server);
    assert_eq!(http.send_json("POST", "/jobs", r#"{"job":"j"}"#).status, 200);
    let body = "x".repeat(50_000);
    let refused = wait_until("a full disk", || {
        let answer = http.post_lines("/topics/log", &format!("{body}\n").repeat(20));
        // The broker looks for room each second, and may find some between two requests.
        let is_ready = http.get("/ready").status == 200;
        (answer.status != 200 && !is_ready).then_some(answer)
    });
    assert_eq!(refused.status, 507, "{}", refused.body);
    // A shorter write may still fit.
    disk.fill_except(0);
    let mut n = 0;
    let hook = wait_until("a rejected webhook", || {
        n += 1;
        let body = format!(r#"{{"url":"http://a.example/{n}"}}"#);
        let hook = send_hook(&http, "application/json", &body);
        (hook != 200).then_some(hook)
    });
    assert_eq!(hook, 507);
    let put = wait_until("a rejected change of settings", || {
        let answer = http.send_json("PUT", "/topics/log", r#"{"retain-age":"1h"}"#);
        (answer.status != 200).then_some(answer)
    });
    assert_eq!(put.status, 507, "{}", put.body);
    assert_eq!(http.request("DELETE", "/topics/log", &[]).status, 507);

    // The group has decided the requests that meet the full disk, and writes them when there is
    // space. Until then their outcome is unknown.
    let mut seeds = 0;
    let (unanswered, last) = wait_until("a full group", || {
        let urls: Vec<_> = (seeds..seeds + 500).map(long_url).collect();
        seeds += 500;
        let body = json!({ "urls": urls }).to_string();
        let answer = http.send_json("POST", "/jobs/j/urls", &body);
        (answer.status != 200).then_some((answer, body))
    });
    assert_eq!((unanswered.status, &unanswered.json()["code"]), (503, &json!("timeout")));
    assert_eq!(http.send_json("POST", "/jobs/j/urls", &last).status, 507);
    expect_on_group_routes(&http, description, 507);
    assert_eq!(http.get("/jobs/j?wait=1ms").status, 507);

    disk.free_space();
    // 503: the group did not answer in time, because it writes what it has decided first.
    wait_until("free space", || {
        let answer = http.send_json("POST", "/jobs/j/urls", &last);
        assert!([200, 503, 507].contains(&answer.status), "{}", answer.body);
        (answer.status == 200).then_some(())
    });
    let tasks = http.get("/groups/crawlers/tasks?job=j&limit=1").json();
    assert_eq!(tasks["matched"], seeds, "each URL once");
    http.exchanges()
}

/// A long URL, which fills the disk.
fn long_url(n: u64) -> String {
    format!("http://h{n}.example/{}", "x".repeat(2_000))
}

/// Sends every request that the group handles, and expects this status.
#[track_caller]
pub(crate) fn expect_on_group_routes(http: &HttpClient, description: &Value, status: u16) {
    let mut count = 0;
    for (path, methods) in description["paths"].as_object().unwrap() {
        if !["/groups/{group}", "/jobs", "/explain"].iter().any(|it| path.starts_with(it)) {
            continue;
        }
        let query = match path.as_str() {
            "/explain" => "?what=http://a.example/",
            path if path.ends_with("drain") => "?member=x",
            path if path.ends_with("bump") => "?prio=1",
            _ => "",
        };
        let filled = path.replace("{group}", "crawlers").replace("{job}", "j");
        let filled = filled.replace("{key}", "a.example") + query;
        for (method, operation) in methods.as_object().unwrap() {
            // A damaged group can be shown.
            if (status, method.as_str(), path.as_str()) == (409, "get", "/groups/{group}") {
                continue;
            }
            assert!(!operation["responses"][status.to_string()].is_null(), "{method} {path}");
            let body = match path.as_str() {
                "/jobs" => r#"{"job":"another"}"#,
                "/groups/{group}/rules/{key}" => r#"{"block":true}"#,
                "/jobs/{job}" => r#"{"max-pages":1}"#,
                "/jobs/{job}/urls" => r#"{"urls":["http://a.example/"]}"#,
                _ => "{}",
            };
            let method = method.to_uppercase();
            let answer = if operation["requestBody"].is_null() {
                http.request(&method, &filled, &[])
            } else {
                http.send_json(&method, &filled, body)
            };
            assert_eq!(answer.status, status, "{method} {path}: {}", answer.body);
            count += 1;
        }
    }
    assert!(count > 15, "{count}");
}

/// Responses when a sync fails and the content of the disk is unknown.
pub(crate) fn responses_with_failing_syncs(description: &Value) -> BTreeSet<HttpExchange> {
    let server = Server::start_with(&["broker"], |command| {
        // The syncs of the start succeed.
        inject_into_fdatasync(command, "error=EIO:when=9+");
    });
    let http = HttpClient::new(&server);
    let refused = |method: &str, path: &str, body: &dyn Fn(u64) -> String| {
        let mut n = 0;
        let answer = wait_until("a failed sync", || {
            n += 1;
            let answer = http.send_json(method, path, &body(n));
            (answer.status != 200).then_some(answer)
        });
        assert_eq!((answer.status, &answer.json()["code"]), (503, &json!("sync-failed")));
    };
    refused("POST", "/jobs", &|n| json!({ "job": format!("j-{n}") }).to_string());
    expect_on_group_routes(&http, description, 503);
    refused("PUT", "/topics/log", &|n| json!({ "retain-age": format!("{n}h") }).to_string());
    assert_eq!(http.request("DELETE", "/topics/log", &[]).status, 503);
    http.exchanges()
}

/// Responses when events arrive faster than the disk stores them.
pub(crate) fn responses_with_slow_syncs() -> BTreeSet<HttpExchange> {
    let (_folder, config) = hook_config();
    let server = Server::start_with(&["broker", "--config", &config], |command| {
        // In microseconds, longer than a publish waits. The syncs of the start are not delayed.
        inject_into_fdatasync(command, "delay_enter=15000000:when=9+");
    });
    let http = HttpClient::new(&server);
    let file = server.folder.path().join("body");
    std::fs::write(&file, format!("{}\n", "x".repeat(50_000)).repeat(78)).unwrap();
    let body = format!("@{}", file.display());
    let large = ["--header", "content-type: text/plain", "--data-binary", &body];
    let mut pressing = Vec::new();
    // Longer than a publish waits for memory, and shorter than a sync takes.
    let mut held_up = |path: &str, what: &[&str]| {
        wait_until("more events than may wait for the disk", || {
            pressing.extend((0..4).map(|_| http.stream("/topics/log", &large)));
            let soon = [&["--max-time", "12"], what].concat();
            http.try_request("POST", path, &soon).ok().filter(|answer| answer.status != 200)
        })
    };
    let refused = held_up("/topics/log", &["--data-binary", "one more"]);
    assert_eq!(
        (refused.status, refused.header("retry-after")),
        (503, Some("1")),
        "{}",
        refused.body
    );
    let hook = ["--header", HOOK_SECRET_HEADER, "--header", "content-type: application/json"];
    let hook = [&hook[..], &["--data-binary", r#"{"url":"http://a.example/1"}"#]].concat();
    assert_eq!(held_up("/hooks/h", &hook).status, 503);
    let key = ["--header", "Idempotency-Key: late", "--data-binary", "late"];
    let mut before = Vec::new();
    let briefly = [["--max-time", "2"].as_slice(), &key].concat();
    let underway = wait_until("the same request while it is processed", || {
        let request = [&["--request", "POST"], key.as_slice()].concat();
        before.push(http.stream("/topics/log", &request));
        let answer = http.try_request("POST", "/topics/log", &briefly).ok()?;
        (answer.status == 409).then_some(answer)
    });
    assert_eq!(underway.header("retry-after"), Some("1"));
    http.exchanges()
}
