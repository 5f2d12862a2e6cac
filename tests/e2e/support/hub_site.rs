//! A site with its own hub: nginx serves the feeds, curl publishes, and the subscribers are a
//! Python server that shares no code with Tidings.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use std::{fs, thread};

use rusqlite::{Connection, OpenFlags};
use serde_json::Value;
use tempfile::TempDir;

use super::http_client::{HttpClient, HttpResponse};
use super::nginx::Nginx;
use super::process::{Process, Server, run_at, run_json_at};
use super::wait::wait_until;

pub(crate) const FORM_CONTENT_TYPE: &str = "application/x-www-form-urlencoded";
pub(crate) const PUBLIC_URL: &str = "https://blog.example/tidings/";

/// A site, its hub and its subscribers.
pub(crate) struct HubSite {
    pub(crate) server: Server,
    pub(crate) http: HttpClient,
    pub(crate) nginx: Nginx,
    pub(crate) subscribers: SubscriberServer,
    pub(crate) arguments: Vec<String>,
}

/// The server of all subscribers.
pub(crate) struct SubscriberServer {
    pub(crate) process: Process,
    pub(crate) port: u16,
}

impl SubscriberServer {
    #[track_caller]
    pub(crate) fn start() -> Self {
        let file =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/support/hub_subscribers.py");
        let process = Process::start(Command::new("python3").arg(file));
        let port = process.wait_for_line("the port", |line| line.parse().ok());
        Self { process, port }
    }

    pub(crate) fn callback_url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// All requests so far with this method and path.
    pub(crate) fn requests(&self, method: &str, path: &str) -> Vec<Value> {
        let mut requests = Vec::new();
        self.process.find_line(|line| -> Option<()> {
            let request: Value = serde_json::from_str(line).unwrap();
            if request["method"] == method && request["path"] == path {
                requests.push(request);
            }
            None
        });
        requests
    }

    /// The bodies that a subscriber has received so far.
    pub(crate) fn received_bodies(&self, path: &str) -> Vec<String> {
        let text = |request: &Value| request["body"].as_str().unwrap().to_owned();
        self.requests("POST", path).iter().map(text).collect()
    }

    /// Waits for `count` requests and returns the last of them.
    #[track_caller]
    pub(crate) fn wait_for_request(&self, method: &str, path: &str, count: usize) -> Value {
        wait_until(&format!("{count} {method} of {path}"), || {
            self.requests(method, path).get(count - 1).cloned()
        })
    }
}

impl HubSite {
    #[track_caller]
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::start_with(arguments, |arguments| Server::start(&[&["broker"], arguments].concat()))
    }

    /// Starts the broker with this function.
    #[track_caller]
    pub(crate) fn start_with(arguments: &[&str], start: impl FnOnce(&[&str]) -> Server) -> Self {
        let folder = TempDir::new().unwrap();
        let root = folder.path().display().to_string();
        let moved = "location /moved { return 301 $scheme://$http_host/feed.xml; }
            location /away { return 302 $scheme://localhost:$server_port/feed.xml; }
            location /round { return 302 $scheme://$http_host/round; }";
        let nginx = Nginx::start(folder, "", &format!("root {root}; {moved}"));
        let prefix = nginx.url();
        let fixed = ["--public-url", PUBLIC_URL, "--hub", &prefix];
        // All subscribers have the same address, so the default rate limit is too low for tests.
        let rate =
            if arguments.contains(&"--hub-rate") { &[][..] } else { &["--hub-rate", "100000"] };
        let all = fixed.iter().chain(arguments).chain(rate);
        let arguments: Vec<_> = all.map(|word| (*word).to_owned()).collect();
        let server = start(&as_strs(&arguments));
        let http = HttpClient::new(&server);
        Self { server, http, nginx, subscribers: SubscriberServer::start(), arguments }
    }

    /// With a group that retries at once and gives up after this number of attempts.
    #[track_caller]
    pub(crate) fn start_with_fast_retries(attempts: u32, arguments: &[&str]) -> Self {
        let site = Self::start(&[&["--allow-private=127.0.0.0/8"], arguments].concat());
        let attempts = format!("max-attempts={attempts}");
        run_at(&site.server, &["group", "set", "hub", "backoff=1ms", &attempts]).expect_code(0);
        site
    }

    /// Ends the broker with a signal and starts it again with the current `arguments`.
    #[track_caller]
    pub(crate) fn restart(self, signal: &str) -> Self {
        let Self { server, http: _, nginx, subscribers, arguments } = self;
        let words = [&["broker"], &as_strs(&arguments)[..]].concat();
        let server = server.restart(signal, &words);
        Self { http: HttpClient::new(&server), server, nginx, subscribers, arguments }
    }

    pub(crate) fn feed_url(&self, name: &str) -> String {
        format!("{}{name}", self.nginx.url())
    }

    #[track_caller]
    pub(crate) fn post_form(&self, path: &str, fields: &[(&str, &str)]) -> HttpResponse {
        let fields: Vec<_> = fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let each = fields.iter().flat_map(|field| ["--data-urlencode", field]);
        self.http.request("POST", path, &each.collect::<Vec<_>>())
    }

    #[track_caller]
    pub(crate) fn request_subscription(
        &self,
        mode: &str,
        feed: &str,
        subscriber: &str,
        further: &[(&str, &str)],
    ) -> HttpResponse {
        let (topic, callback) = (self.feed_url(feed), self.subscribers.callback_url(subscriber));
        let fields = [("hub.mode", mode), ("hub.topic", &topic), ("hub.callback", &callback)];
        self.post_form("/hub", &[&fields[..], further].concat())
    }

    /// Subscribes and waits until `hub.db` contains the subscription.
    #[track_caller]
    pub(crate) fn subscribe(&self, feed: &str, subscriber: &str, more: &[(&str, &str)]) {
        let before = self.subscriptions(feed, subscriber);
        assert_eq!(self.request_subscription("subscribe", feed, subscriber, more).status, 202);
        wait_until("the subscription", || {
            let now = self.subscriptions(feed, subscriber);
            (now.len() == 1 && now != before).then_some(())
        });
    }

    /// The id and expiry time of a subscription in `hub.db`.
    pub(crate) fn subscriptions(&self, feed: &str, subscriber: &str) -> Vec<(i64, i64)> {
        let sql = "SELECT subscriptions.id, until_unix_ms FROM subscriptions
            JOIN topics ON topics.id = topic WHERE url = ?1 AND callback = ?2";
        let database = self.database();
        let mut statement = database.prepare(sql).unwrap();
        let key = [self.feed_url(feed), self.subscribers.callback_url(subscriber)];
        let rows = statement.query_map(key, |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        rows.map(Result::unwrap).collect()
    }

    pub(crate) fn database(&self) -> Connection {
        let file = self.server.data_dir().join("hub.db");
        let database = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
        database.busy_timeout(Duration::from_mins(1)).unwrap();
        database
    }

    /// Changes a feed without notifying the hub.
    pub(crate) fn write_feed(&self, feed: &str, text: &str) {
        fs::write(self.nginx.folder.path().join(feed), text).unwrap();
    }

    /// Changes a feed and notifies the hub.
    #[track_caller]
    pub(crate) fn publish_feed(&self, feed: &str, text: &str) {
        self.write_feed(feed, text);
        let ping = [("hub.mode", "publish"), ("hub.url", &self.feed_url(feed))];
        assert_eq!(self.post_form("/hub", &ping).status, 202);
    }

    /// The status of a group.
    #[track_caller]
    pub(crate) fn group_status(&self, name: &str) -> Value {
        run_json_at(&self.server, &["group", "show", name]).remove(0)
    }

    /// The hub's counts in `GET /stats`.
    #[track_caller]
    pub(crate) fn hub_counts(&self) -> Value {
        self.http.get("/stats").json()["hub"].clone()
    }

    /// Waits until the hub has no work left.
    #[track_caller]
    pub(crate) fn wait_until_idle(&self) {
        wait_until("the hub to be idle", || {
            let mut groups = ["hub", "hub-verify"].map(|name| self.group_status(name)).into_iter();
            groups.all(|group| group["waiting"] == 0 && group["processing"] == 0).then_some(())
        });
    }

    /// Subscribes `/ok/0` and so on, and waits until all are verified.
    #[track_caller]
    pub(crate) fn subscribe_many(&self, feed: &str, count: usize) {
        thread::scope(|scope| {
            for part in 0..4 {
                scope.spawn(move || {
                    for number in (part..count).step_by(4) {
                        let got = self.request_subscription(
                            "subscribe",
                            feed,
                            &format!("/ok/{number}"),
                            &[],
                        );
                        assert_eq!(got.status, 202);
                    }
                });
            }
        });
        let sql = "SELECT count(*) FROM subscriptions";
        wait_until("all subscriptions", || {
            let all: i64 = self.database().query_row(sql, [], |row| row.get(0)).unwrap();
            (usize::try_from(all) == Ok(count)).then_some(())
        });
    }

    /// How many subscribers have received this body.
    pub(crate) fn notified_count(&self, body: &str) -> usize {
        let mut paths = BTreeSet::new();
        self.subscribers.process.find_line(|line| -> Option<()> {
            if line.contains("\"POST\"") {
                let request: Value = serde_json::from_str(line).unwrap();
                if request["body"] == body {
                    paths.insert(request["path"].as_str().unwrap().to_owned());
                }
            }
            None
        });
        paths.len()
    }
}

fn as_strs(arguments: &[String]) -> Vec<&str> {
    arguments.iter().map(String::as_str).collect()
}
