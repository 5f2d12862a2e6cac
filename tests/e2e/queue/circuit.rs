//! A host that does not answer rests, and its pages wait for it.

use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::line_connection::LineConnection;
use crate::support::origin::{Origin, Site, full_response, html_response};
use crate::support::ports::free_port;
use crate::support::process::{Server, run_at, run_tidings};
use crate::support::wait::wait_until;

/// More than the requests without an answer after which a host that has answered is down.
const PAGES: usize = 14;

/// Waits until a host is down.
#[track_caller]
fn wait_until_down(server: &Server, host: &str) {
    let mut client = LineConnection::connect_client(server.address);
    wait_until("a host that is down", || {
        let lines = client.request_lines(&format!("EXPLAIN {host}"));
        lines.last()?.contains(" because=down free-in=").then_some(())
    });
}

// PROTOCOL: T17
#[test]
fn outage_of_a_host_loses_no_page() {
    let (host, port) = (Site::host(0).to_string(), free_port());
    let arguments = ["up", "--allow-private", "--delay", "10ms"];
    let server = Server::start(&arguments);
    run_at(&server, &["group", "set", "crawlers", "max-attempts=100", "backoff=1ms"])
        .expect_code(0);
    let busy = Origin::serve_at(port, Site::default(), |hit| {
        (hit.path != "/robots.txt").then(|| full_response("503 Busy", "Connection: close\r\n", ""))
    });
    run_at(&server, &["job", "open", "site"]).expect_code(0);
    let urls: Vec<_> = (0..PAGES).map(|page| format!("http://{host}:{port}/{page}")).collect();
    let urls: Vec<_> = urls.iter().map(String::as_str).collect();
    run_at(&server, &[&["job", "add", "site"], &urls[..]].concat()).expect_code(0);
    run_at(&server, &["job", "close", "site"]).expect_code(0);
    // The host has answered; from now on nothing listens there.
    busy.wait_for_hits(2);
    drop(busy);
    wait_until_down(&server, &host);

    let server = server.restart("KILL", &arguments);
    wait_until_down(&server, &host);
    for (words, expected) in [
        (vec!["explain", &host], "because=down"),
        (vec!["group", "keys", "crawlers"], "down"),
        (vec!["status"], "1 host does not answer"),
    ] {
        let names_it = || run_at(&server, &words).stdout().concat().contains(expected);
        wait_until(expected, || names_it().then_some(()));
    }

    let origin = Origin::serve_at(port, Site::default(), |hit| {
        (hit.path != "/robots.txt").then(|| html_response("a page"))
    });
    run_at(&server, &["group", "set", "crawlers", "circuit=off"]).expect_code(0);
    let waited = run_at(&server, &["job", "wait", "site"]).expect_code(0);
    assert_eq!(waited.stdout(), [format!("done: {PAGES} pages, 0 failed")]);
    assert_eq!(origin.request_count(), PAGES);
}

// PROTOCOL: T17
#[test]
fn host_that_never_answers_is_given_up() {
    let (host, port) = (Site::host(0).to_string(), free_port());
    let server = Server::start(&["up", "--allow-private"]);
    run_at(&server, &["job", "open", "site"]).expect_code(0);
    let url = format!("http://{host}:{port}/");
    run_at(&server, &["job", "add", "site", &url]).expect_code(0);
    run_at(&server, &["job", "close", "site"]).expect_code(0);
    let waited = run_at(&server, &["job", "wait", "site"]).expect_code(1);
    assert_eq!(waited.stdout(), ["done: 0 pages, 1 failed"]);
    // A failed page of a job is a result.
    run_at(&server, &["status"]).expect_code(0);
    let folder = TempDir::new().unwrap();
    let words = ["crawl", &url, "--allow-private", "--quiet", "--jsonl", "pages.jsonl"];
    let crawled = run_tidings(folder.path(), &words).expect_code(1).stdout().concat();
    let pages = fs::read_to_string(folder.path().join("pages.jsonl")).unwrap();
    let page: Value = serde_json::from_str(pages.trim_end()).expect("one page");
    assert_eq!((&page["url"], &page["outcome"]), (&json!(url), &json!("failed")));
    assert!(crawled.contains("without an answer from 1 host:"), "{crawled}");
    assert!(crawled.contains(&format!("{host}:{port}: connect (")), "{crawled}");
}
