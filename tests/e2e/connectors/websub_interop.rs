//! Interoperability with Flask-WebSub: it subscribes to our hub, and our subscriber uses its hub.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::files::write_and_rename;
use crate::support::http_client::HttpClient;
use crate::support::hub_site::HubSite;
use crate::support::line_connection::LineConnection;
use crate::support::nginx::Nginx;
use crate::support::openssl::openssl;
use crate::support::ports::free_port;
use crate::support::process::{Process, Server, run_at};
use crate::support::topic_history::ReceivedEvents;
use crate::support::wait::wait_until;

/// A running program of Flask-WebSub, a subscriber or a hub.
struct FlaskWebsub {
    process: Process,
    port: u16,
}

impl FlaskWebsub {
    /// Starts it. It trusts this certificate, if there is one.
    #[track_caller]
    fn start(words: &[&str], certificate: Option<&Path>) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut command = Command::new(root.join("target/venv/bin/python"));
        command.arg(root.join("tests/e2e/support/websub_peer.py")).args(words);
        command.envs(certificate.map(|file| ("REQUESTS_CA_BUNDLE", file)));
        let process = Process::start(&mut command);
        let port = process.wait_for_line("the port", |line| {
            serde_json::from_str::<Value>(line).ok()?["port"].as_u64()?.try_into().ok()
        });
        Self { process, port }
    }

    /// All its events of this kind.
    fn events(&self, event: &str) -> Vec<Value> {
        let mut found = Vec::new();
        self.process.find_line(|line| -> Option<()> {
            let value: Value = serde_json::from_str(line).ok()?;
            if value["event"] == event {
                found.push(value);
            }
            None
        });
        found
    }

    #[track_caller]
    fn nth_event(&self, event: &str, count: usize) -> Value {
        wait_until(&format!("{count} {event}"), || self.events(event).get(count - 1).cloned())
    }
}

/// A TLS proxy in front of a hub, and its certificate.
struct TlsProxy {
    _nginx: Nginx,
    url: String,
    certificate: PathBuf,
}

impl TlsProxy {
    #[track_caller]
    fn in_front_of(http: &HttpClient) -> Self {
        let (folder, port) = (TempDir::new().unwrap(), free_port());
        let files = ["certificate.pem", "key.pem"].map(|name| folder.path().join(name));
        let [certificate, key] = files.clone();
        let [certificate_text, key_text] = files.map(|file| file.display().to_string());
        let about =
            ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"];
        let new =
            ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
        let out = ["-keyout", &key_text, "-out", &certificate_text];
        openssl(&[&new[..], &about, &out].concat(), b"");
        let server = format!(
            "listen 127.0.0.1:{port} ssl; ssl_certificate {}; ssl_certificate_key {};
            location /tidings/hub {{ proxy_pass {}/hub; proxy_set_header Host $http_host;
            proxy_set_header X-Forwarded-For $remote_addr; }}",
            certificate.display(),
            key.display(),
            http.base_url
        );
        let nginx = Nginx::start(folder, "", &server);
        Self { _nginx: nginx, url: format!("https://127.0.0.1:{port}/tidings/hub"), certificate }
    }
}

#[test]
#[ignore = "needs foreign programs"]
fn flask_websub_subscribes_renews_and_unsubscribes() {
    let site = HubSite::start_with_fast_retries(8, &[]);
    let proxy = TlsProxy::in_front_of(&site.http);
    let (hub, topic) = (&proxy.url, site.feed_url("feed.xml"));
    let feed = |items: &str| {
        format!(
            "<feed xmlns=\"http://www.w3.org/2005/Atom\"><link rel=\"hub\" href=\"{hub}\"/>\
             <link rel=\"self\" href=\"{topic}\"/>{items}</feed>"
        )
    };
    site.write_feed("feed.xml", &feed(""));
    let mut peer = FlaskWebsub::start(&["subscriber", &topic], Some(&proxy.certificate));
    assert_eq!(peer.nth_event("subscribe", 1)["topic"], topic);
    wait_until("the subscription", || (site.hub_counts()["subscribers"] == 1).then_some(()));
    site.publish_feed("feed.xml", &feed("<entry/>"));
    let delivery = peer.nth_event("told", 1);
    assert_eq!((&delivery["body"], &delivery["signed"]), (&json!(feed("<entry/>")), &json!(true)));
    peer.process.write("renew\n");
    peer.nth_event("subscribe", 2);
    site.wait_until_idle();
    site.publish_feed("feed.xml", &feed("<entry/><entry/>"));
    assert_eq!(peer.nth_event("told", 2)["signed"], true);
    peer.process.write("unsubscribe\n");
    peer.nth_event("unsubscribe", 1);
    wait_until("the end of the subscription", || {
        (site.hub_counts()["subscribers"] == 0).then_some(())
    });
    assert!(peer.events("denied").is_empty());
}

#[test]
#[ignore = "needs foreign programs"]
fn a_feed_is_received_from_a_flask_websub_hub() {
    let hub = FlaskWebsub::start(&["hub"], None);
    let at_hub = format!("http://127.0.0.1:{}/hub", hub.port);
    let folder = TempDir::new().unwrap();
    let root = folder.path().display().to_string();
    let links = format!(
        "add_header Link '<{at_hub}>; rel=\"hub\", <http://$http_host/feed.rss>; rel=\"self\"';"
    );
    let types = "types { application/rss+xml rss; }";
    let feed = |items: &str| format!("<rss version=\"2.0\"><channel>{items}</channel></rss>");
    let item = |name: &str| format!("<item><guid>{name}</guid><link>/{name}</link></item>");
    fs::write(folder.path().join("feed.rss"), feed(&item("old"))).unwrap();
    let nginx = Nginx::start(folder, types, &format!("root {root}; {links}"));
    let topic = format!("{}feed.rss", nginx.url());
    let port = free_port();
    let (listen, public) = (format!("127.0.0.1:{port}"), format!("http://127.0.0.1:{port}/"));
    let server = ["up", "--quiet", "--allow-private", "--http", &listen, "--public-url", &public];
    let server = Server::start(&server);
    // With an hour between polls, only the hub can cause a fetch in this test.
    run_at(&server, &["watch-feed", &topic, "--every", "1h"]).expect_code(0);
    assert_eq!(hub.nth_event("subscribed", 1)["secret"], true);
    fs::write(nginx.folder.path().join("feed.rss"), feed(&(item("new") + &item("old")))).unwrap();
    let form = ["--data", "hub.mode=publish", "--data-urlencode", &format!("hub.topic={topic}")];
    let published = Command::new("curl").arg("--silent").args(form).arg(&at_hub).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&published.stdout), "Request received: publish\n");
    wait_until("the item", || {
        let events = ReceivedEvents::read_all(server.address, "post-ready", "end-of-items").events;
        events.iter().any(|(_, payload)| payload.contains(" item=new ")).then_some(())
    });
    let notices = &HttpClient::new(&server).get("/stats").json()["notices"];
    assert_eq!((&notices["refused"], hub.events("not taken").len()), (&json!(0), 0));
}

#[test]
#[ignore = "needs foreign programs"]
fn a_page_without_feed_is_received_from_a_flask_websub_hub() {
    let hub = FlaskWebsub::start(&["hub"], None);
    let at_hub = format!("http://127.0.0.1:{}/hub", hub.port);
    let folder = TempDir::new().unwrap();
    let root = folder.path().display().to_string();
    let page = |text: &str| {
        format!(
            "<!doctype html><link rel=hub href={at_hub}><link rel=self href=/page.html><p>{text}"
        )
    };
    fs::write(folder.path().join("page.html"), page("one")).unwrap();
    // That hub reads only HTTP headers, and needs full URLs in a single one.
    let links = format!(
        "add_header Link '<{at_hub}>; rel=\"hub\", <http://$http_host/page.html>; rel=\"self\"';"
    );
    let nginx = Nginx::start(folder, "", &format!("root {root}; {links}"));
    let topic = format!("{}page.html", nginx.url());
    let port = free_port();
    let (listen, public) = (format!("127.0.0.1:{port}"), format!("http://127.0.0.1:{port}/"));
    let server = ["up", "--quiet", "--allow-private", "--http", &listen, "--public-url", &public];
    let server = Server::start(&server);
    run_at(&server, &["watch-feed", &topic, "--every", "1h", "--new-only"]).expect_code(0);
    assert_eq!(hub.nth_event("subscribed", 1)["secret"], true);
    let announced = || {
        let events = ReceivedEvents::read_all(server.address, "post-ready", "end-of-items").events;
        let begin = format!("{topic} item=");
        events.iter().filter(|(_, payload)| payload.starts_with(&begin)).count()
    };
    assert_eq!(announced(), 0);
    for (text, count) in [("two", 1), ("three", 2)] {
        // A check that reads half of a page would find another version.
        write_and_rename(&nginx.folder.path().join("page.html"), &page(text));
        let topic = format!("hub.topic={topic}");
        let form = ["--data", "hub.mode=publish", "--data-urlencode", &topic];
        let published = Command::new("curl").arg("--silent").args(form).arg(&at_hub).output();
        assert_eq!(published.unwrap().stdout, b"Request received: publish\n");
        wait_until(text, || (announced() == count).then_some(()));
    }
    // The verification and both deliveries.
    let notices = || HttpClient::new(&server).get("/stats").json()["notices"].clone();
    wait_until("the last delivery", || (notices()["taken"] == 3).then_some(()));
    let mut connection = LineConnection::connect_client(server.address);
    wait_until("all fetches", || {
        (connection.request_lines("GROUP tasks crawlers").len() == 1).then_some(())
    });
    assert_eq!(announced(), 2);
    assert_eq!((&notices()["refused"], hub.events("not taken").len()), (&json!(0), 0));
}
