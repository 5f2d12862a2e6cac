//! `GET /live`, read by curl.

use serde_json::{Value, json};

use crate::access::tokens::broker;
use crate::support::http_client::HttpClient;
use crate::support::process::{Process, Server, run_tidings};
use crate::support::wait::wait_until;

/// Waits for an event of this type with data that fulfils a condition. `from` is the number of
/// lines to skip, and afterwards the number of lines that were searched.
#[track_caller]
fn wait_for_event(
    stream: &Process,
    from: &mut usize,
    kind: &str,
    mut is_wanted: impl FnMut(&Value) -> bool,
) -> Value {
    let expected = format!("event: {kind}");
    wait_until(&expected, || {
        let lines = stream.wait_for_stdout_lines(*from);
        let mut events = lines.windows(2).enumerate().skip(*from);
        events.find_map(|(at, lines)| {
            let data = lines[1].strip_prefix("data: ").filter(|_| lines[0] == expected)?;
            let data: Value = serde_json::from_str(data).unwrap();
            is_wanted(&data).then(|| {
                *from = at + 2;
                data
            })
        })
    })
}

/// All data of events of this type so far.
fn all_data(stream: &Process, kind: &str) -> Vec<String> {
    let (lines, kind) = (stream.wait_for_stdout_lines(0), format!("event: {kind}"));
    let events = lines.windows(2).filter(|lines| lines[0] == kind);
    events.map(|lines| lines[1].clone()).collect()
}

// PROTOCOL: H12
#[test]
#[ignore = "needs foreign programs"]
fn states_come_at_once_and_when_they_change() {
    let server = Server::start_broker();
    let http = HttpClient::new(&server);
    let group = r#"{"topics":["work"],"key":"none"}"#;
    assert_eq!(http.send_json("PUT", "/groups/g", group).status, 200);
    let path = "/live?on=group:g,members:g,keys:g,groups,topics,jobs,job:docs,ready";
    let streams = [http.stream(path, &[]), http.stream(path, &[])];
    for stream in &streams {
        let from = &mut 0;
        let gone = wait_for_event(stream, from, "gone", |gone| gone["on"] == "job:docs");
        assert_eq!(gone["code"], "unknown");
        assert!(gone["message"].is_string(), "{gone}");
        for (kind, path) in [
            ("group:g", "/groups/g"),
            ("members:g", "/groups/g/members?limit=1000"),
            ("keys:g", "/groups/g/keys?limit=50"),
            ("groups", "/groups"),
            ("topics", "/topics"),
            ("jobs", "/jobs?limit=100"),
            ("ready", "/ready"),
        ] {
            let same = http.get(path).json();
            wait_for_event(stream, &mut 0, kind, |data| *data == same);
        }
        // A comment shows that a second has passed in which nothing has changed.
        stream.wait_for_line("a comment", |line| (line == ":").then_some(()));
        assert_eq!(all_data(stream, "group:g").len(), 1, "only changes are sent");
    }
    let from = &mut [0, 0];
    assert_eq!(http.post_lines("/topics/work", "a task").status, 200);
    assert_eq!(http.send_json("POST", "/jobs", r#"{"job":"docs"}"#).status, 200);
    for (stream, from) in streams.iter().zip(&mut *from) {
        wait_for_event(stream, &mut 0, "group:g", |group| group["waiting"] == 1);
        let job = wait_for_event(stream, from, "job:docs", |job| job["state"] == "open");
        assert_eq!(job, http.get("/jobs/docs").json());
    }
    assert_eq!(http.request("DELETE", "/groups/g", &[]).status, 204);
    assert_eq!(http.request("POST", "/jobs/docs/cancel", &[]).status, 200);
    assert_eq!(http.request("DELETE", "/jobs/docs", &[]).status, 204);
    for (stream, from) in streams.iter().zip(from) {
        wait_for_event(stream, &mut 0, "gone", |gone| gone["on"] == "group:g");
        wait_for_event(stream, from, "gone", |gone| gone["on"] == "job:docs");
    }
    // Both have received the same, from the same samples.
    let [one, other] = streams.each_ref().map(|stream| all_data(stream, "job:docs"));
    assert_eq!(one, other);

    // A stop of the broker ends streams, so that clients connect again.
    server.process.signal_and_finish("TERM").expect_code(0);
    for stream in streams {
        stream.finish().expect_code(0);
    }
}

#[test]
#[ignore = "needs foreign programs"]
fn a_request_for_anything_else_says_what_there_is() {
    let server = Server::start_broker();
    let http = HttpClient::new(&server);
    for (on, message) in [
        ("?on=stats,ready,topics,groups,jobs,group:a,members:a,keys:a,job:a", "more than 8"),
        ("?on=stats,nonsense", "expected stats, ready, topics, groups, jobs, group:GROUP"),
        ("?on=group", "group:GROUP"),
        ("?on=", "expected one word"),
        ("", "expected stats"),
        ("?on=stats,stats", "twice"),
        ("?on=group:no%2Fname", "cannot be the name of a group"),
        ("?on=stats&on=jobs", "twice"),
        ("?subject=stats", "expected one of on"),
    ] {
        let answer = http.get(&format!("/live{on}"));
        assert_eq!(answer.status, 400, "{on}: {}", answer.body);
        assert!(answer.json()["message"].as_str().unwrap().contains(message), "{}", answer.body);
    }
}

#[test]
#[ignore = "needs foreign programs"]
fn a_stream_needs_its_permissions_until_its_end() {
    let permissions = [
        ("operator", &["all"][..]),
        ("alice", &["monitor"]),
        ("bob", &["monitor"]),
        ("worker", &["group:crawlers", "job:docs"]),
    ];
    let flags = ["--limit", "principal.subscriptions=2"];
    let (server, [operator, alice, bob, worker]) = broker(permissions, &flags);
    let http = HttpClient::new(&server);
    let folder = server.folder.path();
    let [operator, alice, bob, worker] =
        [operator, alice, bob, worker].map(|token| format!("Authorization: Bearer {token}"));
    let status = |login: &str, on: &str| {
        let path = format!("/live?on={on}");
        http.request("GET", &path, &["--max-time", "1", "--header", login]).status
    };
    assert_eq!(http.get("/live?on=stats").status, 401);
    assert_eq!(status(&worker, "group:crawlers"), 403);
    assert_eq!(status(&operator, "group:crawlers"), 200);
    let open = |login: &str, on: &str| {
        let stream = http.stream(&format!("/live?on={on}"), &["--header", login]);
        stream.wait_for_line_with("event: stats");
        stream
    };
    let streams = [open(&alice, "stats"), open(&bob, "stats,group:crawlers")];
    let second = open(&bob, "stats");
    assert_eq!(status(&bob, "stats"), 429, "the quota of subscriptions");
    run_tidings(folder, &["token", "revoke", "alice", "--yes"]).expect_code(0);
    let denied = ["token", "set", "bob", "--allow", "monitor", "--deny", "group:crawlers"];
    run_tidings(folder, &denied).expect_code(0);
    for stream in streams {
        stream.finish().expect_code(0);
    }
    // It shows nothing that was denied.
    let shown = all_data(&second, "stats").len();
    wait_until("further states", || (all_data(&second, "stats").len() > shown).then_some(()));
    assert_eq!(status(&bob, "group:crawlers"), 403);
    assert_eq!(status(&alice, "stats"), 401);
    run_tidings(folder, &["token", "set", "bob", "--allow", "sub:*"]).expect_code(0);
    second.finish().expect_code(0);
    assert_eq!(
        http.request("GET", "/me", &["--header", &bob]).json()["can"]["monitor"],
        json!(false)
    );
}
