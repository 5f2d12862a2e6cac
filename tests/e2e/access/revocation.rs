//! What is on its way when the right to it is taken away: bodies that are still being sent, streams
//! and long polls that are being heard, and lines of which the end is missing. Nothing of it is
//! done after that, and whoever sends or hears it is told, without anything further from them.

use std::net::Ipv4Addr;

use crate::access::audit::wait_for_record;
use crate::access::tokens::{broker, logged_in};
use crate::support::http_client::HttpClient;
use crate::support::line_connection::LineConnection;
use crate::support::pipelined_connection::{PipelinedConnection, connect_tcp_from};
use crate::support::process::run_tidings;
use crate::support::wait::wait_until;

/// Rights with which each of these requests is allowed.
const PERMISSIONS: &[&str] = &["pub:*", "sub:*", "job:*", "admin", "monitor"];

/// Sends a request, with a body that does not end; as soon as that is wanted, if it is one that has
/// any.
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

/// Waits until so many connections are there, and everything that they sent was read.
#[track_caller]
fn wait_for_connections(operator: &mut LineConnection, connections: u32) {
    wait_until("all of them to be there", || {
        let stats = operator.request_lines("STATS");
        stats[0].starts_with(&format!("+ connections={connections} ")).then_some(())
    });
}

fn list_topics(http: &HttpClient, token: &str) -> String {
    http.request("GET", "/topics", &["-H", &format!("Authorization: Bearer {token}")]).body
}

// PROTOCOL: H2
#[test]
fn a_body_in_flight_is_rejected_when_its_sender_is_revoked() {
    let flags = ["--audit", "audit.log"];
    let (server, [all, hers, his]) =
        broker([("op", &["all"]), ("she", PERMISSIONS), ("he", PERMISSIONS)], &flags);
    let http = HttpClient::new(&server);
    let mut operator = logged_in(&server, &all);
    assert!(operator.request("JOB open old").starts_with("+OK"));
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
    let (she, he) = (send(&hers), send(&his));
    wait_for_connections(&mut operator, 13);
    let folder = server.folder.path();
    run_tidings(folder, &["token", "revoke", "she"]).expect_code(0);
    // Whoever may do less by now may be let in.
    run_tidings(folder, &["token", "set", "he", "--allow", "sub:news"]).expect_code(0);
    for (status, wires) in [(401, she), (403, he)] {
        for (line, mut wire) in wires {
            let (got, body) = wire.read_response().unwrap_or_else(|| panic!("{line}: closed"));
            assert_eq!(got, status, "{line}: {body}");
            // What would have made it whole comes too late.
            wire.send("2\r\n]}\r\n0\r\n\r\n");
            assert_eq!(wire.read_to_end(), [""; 0], "{line}");
        }
    }
    let why = "the permissions of a running request were changed or revoked";
    wait_for_record(
        &folder.join("audit.log"),
        &[("what", "revoked"), ("way", "http"), ("why", why)],
    );
    let topics = list_topics(&http, &all);
    assert!(!topics.contains("secret"), "{topics}");
    for ask in ["GROUP ls", "JOB ls", "GROUP tasks crawlers"] {
        let said = operator.request_lines(ask).join("\n");
        assert!(!said.contains("secret") && !said.contains("a.example"), "{ask}: {said}");
    }
}

#[test]
fn http_streams_end_when_their_permission_is_revoked() {
    let (server, [all, hers, his]) =
        broker([("op", &["all"]), ("she", &["sub:news"]), ("he", &["sub:news"])], &[]);
    let http = HttpClient::new(&server);
    let mut operator = logged_in(&server, &all);
    let hear = |token: &str| {
        ["/topics/news?wait=5m", "/topics/news/events", "/topics/news/events?host=a.example"]
            .map(|path| (path, start_request(&http, token, &format!("GET {path}"), None)))
    };
    let (she, he) = (hear(&hers), hear(&his));
    let mut streams = Vec::new();
    for (path, mut wire) in she.into_iter().chain(he) {
        if path.contains("/events") {
            assert_eq!(wire.read_head().map(|(status, _)| status), Some(200), "{path}");
        }
        streams.push((path, wire));
    }
    wait_for_connections(&mut operator, 7);
    let folder = server.folder.path();
    run_tidings(folder, &["token", "revoke", "she"]).expect_code(0);
    run_tidings(folder, &["token", "set", "he", "--allow", "sub:other"]).expect_code(0);
    // They end by themselves: nothing has been published yet.
    for (path, mut wire) in streams {
        if path.contains("/events") {
            // Up to the end of the body; the connection may be used for something else.
            let heard: Vec<_> =
                std::iter::from_fn(|| wire.read_line().filter(|line| line != "0")).collect();
            let is_silent = heard.iter().all(|line| !line.starts_with("data:"));
            assert!(is_silent && heard.contains(&"retry: 1000".to_owned()), "{path}: {heard:?}");
        } else {
            let (status, body) = wire.read_response().unwrap();
            assert_eq!(status, 401, "{path}: {body}");
        }
    }
    assert_eq!(operator.request("PUB news http://a.example/"), "+OK 1 1");
}

#[test]
fn an_unfinished_line_is_discarded_when_its_sender_is_revoked() {
    let (server, [all, hers]) = broker([("op", &["all"]), ("she", PERMISSIONS)], &[]);
    let mut operator = logged_in(&server, &all);
    let halves = ["PUB secret http://a.example/", "TOPIC create secr", "JOB open secret", "HELL"];
    let wires = halves.map(|half| {
        let mut wire = logged_in(&server, &hers);
        wire.send(half);
        wire
    });
    wait_for_connections(&mut operator, 5);
    run_tidings(server.folder.path(), &["token", "revoke", "she"]).expect_code(0);
    for (half, mut wire) in halves.into_iter().zip(wires) {
        let said = wire.read_line();
        assert!(said.starts_with("-ERR revoked she is revoked"), "{half}: {said}");
        wire.send("et\nPUB secret x\n");
        wire.expect_closed();
    }
    let told =
        [operator.request_lines("TOPIC ls"), operator.request_lines("JOB ls")].concat().join("\n");
    assert!(!told.contains("secr"), "{told}");
}
