//! The trace context of an event, with OpenTelemetry as publisher and consumer.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::http_client::HttpClient;
use crate::support::origin::{Origin, Site};
use crate::support::process::{Process, Server, run_tidings};

// PROTOCOL: P6
#[test]
#[ignore = "needs foreign programs"]
fn a_trace_goes_from_a_request_over_the_crawl_to_a_program() {
    let site = Origin::serve(Site::default());
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = root.join("target/venv/bin/python").to_str().unwrap().to_owned();
    let script = root.join("tests/e2e/support/traced.py").to_str().unwrap().to_owned();
    let server = Server::start_up(&["--allow-private", "--quiet"]);
    let http = HttpClient::new(&server);
    let topic = format!("{}/topics/new-url", http.base_url);
    let mut publish = Command::new(&python);
    publish.args([&script, "publish", &topic, &site.url(0, "/p/0")]);
    let trace = Process::start(&mut publish).finish().expect_code(0).stdout().concat();

    let file = server.folder.path().join("trace").to_str().unwrap().to_owned();
    let words = ["sub", "page-ready", "--from", "first", "--count", "1"];
    let program = ["--exec", &python, &script, "consume", &file];
    let broker = ["--broker", &server.address_text()];
    let run = [&words[..], &broker, &program].concat();
    run_tidings(server.folder.path(), &run).expect_code(0);
    assert_eq!(fs::read_to_string(&file).unwrap(), trace);
    let ready = &http.events("page-ready")[0];
    assert!(ready.contains(&format!(" traceparent=00-{trace}-")), "{ready}");
}

// PROTOCOL: P6
#[test]
#[ignore = "needs foreign programs"]
fn a_header_adds_a_trace_context_where_there_is_none() {
    let server = Server::start_broker();
    let http = HttpClient::new(&server);
    let (one, other) = (
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-11111111111111111111111111111111-2222222222222222-00",
    );
    let own = format!("/own traceparent={other}");
    let body = format!("/a size=1\n{own}\na text\n");
    for header in [one, "00-0af7651916cd43dd8448eb211c80319c", ""] {
        let header = format!("traceparent: {header}");
        let words = ["--header", &header, "--data-binary", &body];
        let words = [&["--header", "content-type: text/plain"], &words[..]].concat();
        assert_eq!(http.request("POST", "/topics/t", &words).status, 200);
    }
    let traced = format!("/a size=1 traceparent={one}");
    let events =
        [&traced, &own, "a text", "/a size=1", &own, "a text", "/a size=1", &own, "a text"];
    assert_eq!(http.events("t"), events);
}

// PROTOCOL: P6
#[test]
#[ignore = "needs foreign programs"]
fn log_records_about_a_page_have_its_trace_id() {
    let site = Origin::serve(Site::default());
    let server = Server::start_up(&["--allow-private", "--log-json"]);
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let http = HttpClient::new(&server);
    let page = site.url(0, "/p/0");
    // A page that is watched as a feed, and is none.
    let body = format!("{page} every=1h feed=10m-1d traceparent=00-{trace}-b7ad6b7169203331-01\n");
    let words = ["--header", "content-type: text/plain", "--data-binary", &body];
    assert_eq!(http.request("POST", "/topics/new-url", &words).status, 200);
    let line = server.process.wait_for_line_with(&page);
    let record: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(record["span"]["trace_id"], trace, "{line}");
}
