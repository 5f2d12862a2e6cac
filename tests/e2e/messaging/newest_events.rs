//! `from=last` and `from=-<n>` after `kill -9`: they start at the newest events that exist.

use crate::support::http_client::HttpClient;
use crate::support::nc::run_nc;
use crate::support::process::{Server, run_at};

/// The payloads that `nc` receives, and the lines that report ranges.
#[track_caller]
fn received_lines(server: &Server, options: &str) -> Vec<String> {
    let lines = run_nc(server.address, format!("SUB log {options}\nQUIT\n"));
    assert!(lines.iter().any(|line| line == "+OK"), "{lines:?}");
    let delivery = |line: &String| match line.strip_prefix("MSG log ") {
        Some(event) => event.split_once(' ').map(|(_, payload)| payload.to_owned()),
        None => (line.starts_with("GAP ") || line.starts_with("LAG ")).then(|| line.clone()),
    };
    lines.iter().filter_map(delivery).collect()
}

/// Checks that a subscriber receives these events, without a `LAG` and without a range before the
/// first event.
#[track_caller]
fn expect_events(received: &[String], expected: &[String], context: &str) {
    assert_eq!(received.first(), expected.first(), "{context}: {received:?}");
    let events: Vec<_> = received.iter().filter(|line| !line.starts_with("GAP ")).collect();
    assert_eq!(events, expected.iter().collect::<Vec<_>>(), "{context}: {received:?}");
}

/// The payloads of the HTTP pages from `from` on, until there are `count` of them.
#[track_caller]
fn payloads_by_page(http: &HttpClient, from: &str, count: usize) -> Vec<String> {
    let (mut payloads, mut from) = (Vec::new(), from.to_owned());
    while payloads.len() < count {
        let page = http.get(&format!("/topics/log?from={from}&wait=0s")).json();
        let events = page["events"].as_array().unwrap();
        assert!(!events.is_empty() || !payloads.is_empty(), "no event from {from}: {page}");
        payloads.extend(events.iter().map(|event| event["payload"].as_str().unwrap().to_owned()));
        from = page["next"].to_string();
    }
    payloads
}

/// Checks every way to request the newest n events; no range may precede the first of them.
#[track_caller]
fn check_newest_events(server: &Server, all: &[String]) {
    let http = HttpClient::new(server);
    for count in 1..=all.len() {
        let expected = &all[all.len() - count..];
        let received = received_lines(server, &format!("from=-{count}"));
        expect_events(&received, expected, &format!("SUB log from=-{count}"));
        let payloads = payloads_by_page(&http, &format!("-{count}"), count);
        assert_eq!(payloads, expected, "GET /topics/log?from=-{count}");
        let (from, count) = (format!("-{count}"), count.to_string());
        let output = run_at(server, &["sub", "log", "--from", &from, "--count", &count]);
        assert_eq!(output.expect_code(0).stdout(), expected, "tidings sub --from {from}");
    }
    let newest = &all[all.len() - 1..];
    expect_events(&received_lines(server, "from=last"), newest, "SUB log from=last");
    let more = received_lines(server, &format!("from=-{}", all.len() + 5));
    assert_eq!(more, received_lines(server, "from=first"), "more events requested than exist");
    let output = run_at(server, &["sub", "log", "--from", "last", "--count", "1"]);
    assert_eq!(output.expect_code(0).stdout(), newest);
    let stream = http.stream("/topics/log/events?from=-1", &[]);
    let data = stream.wait_for_line("event", |line| line.strip_prefix("data: ").map(str::to_owned));
    assert_eq!(data, newest[0]);
}

#[test]
#[ignore = "needs foreign programs"]
fn the_newest_events_are_correct_after_every_crash() {
    let mut server = Server::start_broker();
    let mut all = Vec::new();
    for (life, count) in [3, 1, 0, 2].into_iter().enumerate() {
        let new: Vec<_> = (1..=count).map(|n| format!("event-{life}-{n}")).collect();
        let lines: Vec<_> = new.iter().map(|payload| format!("PUB log {payload}\n")).collect();
        let responses = run_nc(server.address, lines.concat() + "QUIT\n");
        assert!(!responses.iter().any(|line| line.starts_with("-ERR")), "{responses:?}");
        all.extend(new);
        check_newest_events(&server, &all);
        server = server.restart("KILL", &["broker"]);
        check_newest_events(&server, &all);
    }
    // A cursor that starts there is stored there, and a crash does not move it.
    let newest = &all[all.len() - 2..];
    expect_events(&received_lines(&server, "from=-2 as=mailer"), newest, "a new cursor");
    let server = server.restart("KILL", &["broker"]);
    expect_events(&received_lines(&server, "as=mailer"), newest, "the stored cursor");
}
