//! Revocation while something is in flight: request bodies, streams, long polls and unfinished
//! lines. The broker discards them, and answers without waiting for further input.

use std::net::Ipv4Addr;

use crate::access::audit::wait_for_record;
use crate::access::tokens::{broker, logged_in};
use crate::support::http_client::HttpClient;
use crate::support::line_connection::LineConnection;
use crate::support::pipelined_connection::{PipelinedConnection, connect_tcp_from};
use crate::support::process::{Process, run_tidings, tidings_command};
use crate::support::wait::wait_until;

/// Permissions that allow each of these requests.
const PERMISSIONS: &[&str] = &["pub:*", "sub:*", "job:*", "admin", "monitor"];

/// Sends a request. If it has a body, sends the beginning of the body once the broker asks for it.
#[track_caller]
fn start_request(
    http: &HttpClient,
    token: &str,
    line: &str,
    body: Option<(&str, &str)>,
) -> PipelinedConnection {
    let address = http.authority().parse().unwrap();
    let mut wire = PipelinedConnection::new(connect_tcp_from(address, Ipv4Addr::LOCALHOST));
    let login = format!("Host: localhost\r\nAuthorization: Bearer {token}\r\n");
    let Some((kind, body)) = body else {
        wire.send(format!("{line} HTTP/1.1\r\n{login}\r\n"));
        return wire;
    };
    wire.send(format!(
        "{line} HTTP/1.1\r\n{login}Content-Type: {kind}\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n"
    ));
    assert_eq!(wire.read_head().map(|(status, _)| status), Some(100), "{line}");
    wire.send(format!("{:x}\r\n{body}\r\n", body.len()));
    wire
}

/// Waits until the broker has this many connections and has read their input.
#[track_caller]
fn wait_for_connections(operator: &mut LineConnection, connections: u32) {
    wait_until("all connections", || {
        let stats = operator.request_lines("STATS");
        stats[0].starts_with(&format!("+ connections={connections} ")).then_some(())
    });
}

fn list_topics(http: &HttpClient, token: &str) -> String {
    http.request("GET", "/topics", &["-H", &format!("Authorization: Bearer {token}")]).body
}

// PROTOCOL: H2
#[test]
#[ignore = "needs foreign programs"]
fn a_body_in_flight_is_rejected_when_its_sender_is_revoked() {
    let flags = ["--audit", "audit.log"];
    let (server, [operator_token, alice_token, bob_token]) =
        broker([("op", &["all"]), ("alice", PERMISSIONS), ("bob", PERMISSIONS)], &flags);
    let http = HttpClient::new(&server);
    let mut operator = logged_in(&server, &operator_token);
    operator.request_ok("JOB open old");
    let requests = [
        ("POST /topics/secret", "text/plain", "http://a.example/1\nhttp://a.example/2\n"),
        ("POST /topics/secret", "application/json", r#"{"events":["http://a.example/3""#),
        ("PUT /topics/secret", "application/json", r#"{"sync":"memory""#),
        ("PUT /groups/secret", "application/json", r#"{"key":"none""#),
        ("POST /jobs", "application/json", r#"{"job":"secret""#),
        ("POST /jobs/old/urls", "application/json", r#"{"urls":["http://a.example/4"]"#),
    ];
    let send = |token: &str| {
        requests
            .map(|(line, kind, body)| (line, start_request(&http, token, line, Some((kind, body)))))
    };
    let (alice_requests, bob_requests) = (send(&alice_token), send(&bob_token));
    wait_for_connections(&mut operator, 13);
    let folder = server.folder.path();
    run_tidings(folder, &["token", "revoke", "alice", "--yes"]).expect_code(0);
    // The permissions that are left would allow other requests.
    run_tidings(folder, &["token", "set", "bob", "--allow", "sub:news"]).expect_code(0);
    for (status, wires) in [(401, alice_requests), (403, bob_requests)] {
        for (line, mut wire) in wires {
            let (got, body) = wire.read_response().unwrap_or_else(|| panic!("{line}: closed"));
            assert_eq!(got, status, "{line}: {body}");
            // The rest of the body comes too late.
            wire.send("2\r\n]}\r\n0\r\n\r\n");
            assert_eq!(wire.read_to_end(), [""; 0], "{line}");
        }
    }
    let why = "the permissions of a running request were changed or revoked";
    wait_for_record(
        &folder.join("audit.log"),
        &[("what", "revoked"), ("way", "http"), ("why", why)],
    );
    let topics = list_topics(&http, &operator_token);
    assert!(!topics.contains("secret"), "{topics}");
    for command in ["GROUP ls", "JOB ls", "GROUP tasks crawlers"] {
        let response = operator.request_lines(command).join("\n");
        assert!(
            !response.contains("secret") && !response.contains("a.example"),
            "{command}: {response}"
        );
    }
}

#[test]
fn http_streams_end_when_their_permission_is_revoked() {
    let (server, [operator_token, alice_token, bob_token]) =
        broker([("op", &["all"]), ("alice", &["sub:news"]), ("bob", &["sub:news"])], &[]);
    let http = HttpClient::new(&server);
    let mut operator = logged_in(&server, &operator_token);
    let subscribe = |token: &str| {
        ["/topics/news?wait=5m", "/topics/news/events", "/topics/news/events?host=a.example"]
            .map(|path| (path, start_request(&http, token, &format!("GET {path}"), None)))
    };
    let (alice_requests, bob_requests) = (subscribe(&alice_token), subscribe(&bob_token));
    let mut streams = Vec::new();
    for (path, mut wire) in alice_requests.into_iter().chain(bob_requests) {
        if path.contains("/events") {
            assert_eq!(wire.read_head().map(|(status, _)| status), Some(200), "{path}");
        }
        streams.push((path, wire));
    }
    wait_for_connections(&mut operator, 7);
    let folder = server.folder.path();
    run_tidings(folder, &["token", "revoke", "alice", "--yes"]).expect_code(0);
    run_tidings(folder, &["token", "set", "bob", "--allow", "sub:other"]).expect_code(0);
    // The streams end although no event was published.
    for (path, mut wire) in streams {
        if path.contains("/events") {
            // Reads to the end of the body, because the connection may be reused.
            let received: Vec<_> =
                std::iter::from_fn(|| wire.read_line().filter(|line| line != "0")).collect();
            let is_silent = received.iter().all(|line| !line.starts_with("data:"));
            assert!(
                is_silent && received.contains(&"retry: 1000".to_owned()),
                "{path}: {received:?}"
            );
        } else {
            let (status, body) = wire.read_response().unwrap();
            assert_eq!(status, 401, "{path}: {body}");
        }
    }
    assert_eq!(operator.request("PUB news http://a.example/"), "+OK 1 1");
}

#[test]
fn an_unfinished_line_is_discarded_when_its_sender_is_revoked() {
    let (server, [operator_token, alice_token]) =
        broker([("op", &["all"]), ("alice", PERMISSIONS)], &[]);
    let mut operator = logged_in(&server, &operator_token);
    let inputs = ["PUB secret http://a.example/", "TOPIC create secr", "JOB open secret", "HELL"];
    let wires = inputs.map(|input| {
        let mut wire = logged_in(&server, &alice_token);
        wire.send(input);
        wire
    });
    wait_for_connections(&mut operator, 5);
    run_tidings(server.folder.path(), &["token", "revoke", "alice", "--yes"]).expect_code(0);
    for (input, mut wire) in inputs.into_iter().zip(wires) {
        let response = wire.read_line();
        assert!(response.starts_with("-ERR revoked alice is revoked"), "{input}: {response}");
        wire.send("et\nPUB secret x\n");
        wire.expect_closed();
    }
    let listing =
        [operator.request_lines("TOPIC ls"), operator.request_lines("JOB ls")].concat().join("\n");
    assert!(!listing.contains("secr"), "{listing}");
}

/// A terminal shows nothing else of a token that is no longer valid. A service may get a new one.
#[test]
fn clients_that_reconnect_end_or_say_that_their_token_is_revoked() {
    let (server, [token]) = broker([("alice", &["all"])], &[]);
    let at = server.address_text();
    let start = |words: &[&str]| {
        let mut command =
            tidings_command(server.folder.path(), [words, &["--broker", &at]].concat());
        Process::start(command.env("TIDINGS_TOKEN", &token))
    };
    let connected = |process: &Process, line: &str| drop(process.wait_for_line_with(line));
    let sub = start(&["sub", "a"]);
    connected(&sub, "topic a is new");
    let group = start(&["sub", "a", "--group", "g"]);
    connected(&group, "group g is new");
    let crawl = start(&["crawl", "--data", "crawler"]);
    connected(&crawl, "fetching for");
    let watch = start(&["watch", "--data", "watcher", "."]);
    connected(&watch, "watching");
    let mut operator = logged_in(&server, &token);
    wait_for_connections(&mut operator, 5);
    run_tidings(server.folder.path(), &["token", "revoke", "alice", "--yes"]).expect_code(0);
    for process in [sub, group, crawl] {
        let stderr = process.finish().expect_code(1).stderr();
        assert!(stderr.contains("no principal has this token"), "{stderr}");
    }
    watch.wait_for_line_with("no principal has this token");
    watch.signal_and_finish("TERM").expect_code(0);
}

/// Otherwise it would retry a login without end that can no longer succeed.
#[test]
fn a_command_that_waits_ends_when_its_token_is_revoked() {
    let (server, [token]) = broker([("alice", PERMISSIONS)], &["--log-lines"]);
    let at = ["--broker", &server.address_text()];
    let start = |words: [&str; 3]| {
        let mut command = tidings_command(server.folder.path(), [&words[..], &at].concat());
        Process::start(command.env("TIDINGS_TOKEN", &token))
    };
    start(["job", "open", "docs"]).finish().expect_code(0);
    let waiting = start(["job", "wait", "docs"]);
    server.process.wait_for_line_with("JOB wait docs");
    run_tidings(server.folder.path(), &["token", "revoke", "alice", "--yes"]).expect_code(0);
    waiting.finish().expect_code(1).expect_stderr("no principal has this token");
}
