//! A page in a browser that listens, and publishes what it heard: an `EventSource` in Chromium,
//! with nginx before the broker, as it would be on a site.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::http::Http;
use crate::support::nginx::Nginx;
use crate::support::process::{Running, Server};
use crate::support::wait::until;

const PAGE: &str = r"<!doctype html><title>Listens</title><script>
const source = new EventSource('/topics/log/events?from=first');
const say = text => fetch('/topics/heard', { method: 'POST', body: text });
source.onmessage = event => say(event.lastEventId + ' ' + event.data);
</script>";

/// A page of another site, which tries to publish, and to listen.
const STRANGER: &str = r"<!doctype html><title>Strange</title><script>
const at = 'http://BROKER/topics/log';
fetch(at, { method: 'POST', mode: 'no-cors', body: 'forged by fetch' });
const source = new EventSource(at + '/events?from=first');
source.onmessage = event => fetch('/stolen?' + event.data);
source.onerror = () => fetch('/refused');
</script>
<form method=post enctype=text/plain action='http://BROKER/topics/log' target=frame><input name=forged value=form></form>
<iframe name=frame></iframe><script>document.forms[0].submit()</script>";

/// Chromium with a profile of its own, at a page.
#[track_caller]
fn browse(url: &str, profile: &TempDir) -> Running {
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
    Running::start(&mut command)
}

fn heard(http: &Http) -> Vec<Value> {
    let page = http.get("/topics/heard?from=first&wait=0").json();
    page["events"].as_array().unwrap().iter().map(|event| event["payload"].clone()).collect()
}

#[test]
fn an_event_source_hears_everything_once_also_when_its_connection_breaks() {
    let server = Server::broker();
    let http = Http::of(&server);
    let (folder, profile) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    fs::write(folder.path().join("index.html"), PAGE).unwrap();
    // A stream that is silent for two seconds is broken off here, and the browser comes back.
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
        "log_format who '$http_last_event_id'; access_log access.log who;",
        &proxy,
    );
    let _browser = browse(&nginx.url(), &profile);
    let log = nginx.folder.path().join("access.log");
    let came_back_behind = |last: &str| {
        let log = fs::read_to_string(&log).unwrap_or_default();
        log.lines().any(|line| line == last).then_some(())
    };
    let mut wanted = Vec::new();
    for n in 1..=3 {
        http.post("/topics/log", &format!("http://a.example/{n}"));
        wanted.push(json!(format!("{n} http://a.example/{n}")));
        until("the browser to hear it", || (heard(&http).len() >= n).then_some(()));
        until("a break", || came_back_behind(&n.to_string()));
    }
    assert_eq!(heard(&http), wanted);
}

#[test]
fn a_page_of_another_site_neither_publishes_nor_hears() {
    let server = Server::broker();
    let http = Http::of(&server);
    http.post("/topics/log", "secret");
    let (folder, profile) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let page = STRANGER.replace("BROKER", http.authority());
    fs::write(folder.path().join("index.html"), page).unwrap();
    let site = format!("root {};", folder.path().display());
    let nginx = Nginx::start(folder, "access_log access.log;", &site);
    let before = refused(&http);
    // Another origin: here the other name of the same machine.
    let url =
        format!("http://localhost:{}/", nginx.port).replace("localhost", "stranger.localhost");
    let _browser = browse(&url, &profile);
    until("three refusals", || (refused(&http) >= before + 3).then_some(()));
    let log = fs::read_to_string(nginx.folder.path().join("access.log")).unwrap();
    assert!(!log.contains("/stolen"), "{log}");
    let events = http.get("/topics/log?from=first").json()["events"].clone();
    assert_eq!(events, json!([{ "seq": 1, "payload": "secret" }]));
}

fn refused(http: &Http) -> u64 {
    http.get("/stats").json()["refused"].as_u64().unwrap()
}
