//! The hub under faults: private addresses, a full disk, too many subscribers, and a stop.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use rusqlite::Connection;
use serde_json::{Value, json};

use crate::http::openapi;
use crate::support::hub_site::HubSite;
use crate::support::line_connection::LineConnection;
use crate::support::process::{run_at, run_json_at};
use crate::support::small_disk::SmallDisk;
use crate::support::wait::wait_until;

impl HubSite {
    /// Inserts a verified subscription.
    fn insert_subscription(&self, feed: &str, subscriber: &str) {
        let database = Connection::open(self.server.data_dir().join("hub.db")).unwrap();
        let (topic, callback) = (self.feed_url(feed), self.subscribers.callback_url(subscriber));
        database.execute("INSERT INTO topics (url) VALUES (?1)", [&topic]).unwrap();
        let sql =
            "INSERT INTO subscriptions (topic, callback, kind, named, until_unix_ms, delivered)
            SELECT id, ?2, 0, url, 9000000000000000, 0 FROM topics WHERE url = ?1";
        assert_eq!(database.execute(sql, [&topic, &callback]).unwrap(), 1);
    }

    /// Fills the disk except for this number of bytes, and also the space that the broker has
    /// preallocated for the hub's events, so that no ping is accepted. The group `hub` must be
    /// paused: then equal topics stay one task, and its log hardly grows or shrinks.
    fn fill_disk(&self, disk: &SmallDisk, left: u64) {
        let feed = self.feed_url("feed.xml");
        let topics: Vec<_> = (0..30).map(|n| format!("{feed}?{n}={}", "x".repeat(1500))).collect();
        let mut publish = vec![("hub.mode", "publish")];
        publish.extend(topics.iter().map(|topic| ("hub.url", &**topic)));
        wait_until("a full disk", || {
            // What the broker has deleted since is filled, too.
            disk.fill_except(left);
            (self.post_form("/hub", &publish).status == 503).then_some(())
        });
    }

    /// How many contents of a topic the hub has distributed.
    fn content_version(&self, feed: &str) -> i64 {
        let sql = "SELECT version FROM topics WHERE url = ?1";
        self.database().query_row(sql, [self.feed_url(feed)], |row| row.get(0)).unwrap()
    }
}

// PROTOCOL: B5, B8
#[test]
#[ignore = "needs foreign programs"]
fn a_private_site_is_fetched_and_private_subscribers_are_refused() {
    let site = HubSite::start(&[]);
    run_at(&site.server, &["group", "set", "hub", "backoff=1ms", "max-attempts=2"]).expect_code(0);
    site.insert_subscription("feed.xml", "/ok");
    site.publish_feed("feed.xml", "1");
    let line = site.server.process.wait_for_line_with("unreachable subscribers of the hub");
    assert!(line.contains("127.0.0.1"), "{line}");
    site.wait_until_idle();
    assert_eq!(site.content_version("feed.xml"), 1);
    assert!(site.subscribers.received_bodies("/ok").is_empty());
    assert_eq!(run_json_at(&site.server, &["dead", "ls", "--group", "hub"]).len(), 1);
}

// PROTOCOL: B8
#[test]
#[ignore = "needs foreign programs"]
fn hub_tasks_have_their_own_groups_and_hide_callbacks_and_secrets() {
    let site = HubSite::start(&[]);
    let shown = |group: &str, setting: &str, value: Value| {
        assert_eq!(site.group_status(group)[setting], value, "{setting} of {group}");
    };
    for (group, parallel, attempts) in [("hub", 8, 8), ("hub-verify", 4, 3)] {
        shown(group, "topics", json!(group));
        shown(group, "parallel", json!(parallel));
        shown(group, "max-attempts", json!(attempts));
        shown(group, "backoff", json!("10s"));
        shown(group, "page-ready", json!("off"));
    }
    let secret = [("hub.secret", "a secret of /ok")];
    assert_eq!(site.request_subscription("subscribe", "feed.xml", "/ok", &secret).status, 202);
    let mut connection = LineConnection::connect_client(site.server.address);
    assert_eq!(connection.request("SUB hub-verify from=first"), "+OK");
    let event = connection.read_line();
    assert!(event.contains(" host=127.0.0.1 "), "{event}");
    assert!(!event.contains("/ok") && !event.contains("secret"), "{event}");
}

// PROTOCOL: B5
#[test]
#[ignore = "needs foreign programs"]
fn topic_redirects_are_followed_only_within_the_site() {
    let site = HubSite::start_with_fast_retries(2, &[]);
    site.write_feed("feed.xml", "1");
    for topic in ["moved", "away", "round"] {
        site.insert_subscription(topic, &format!("/ok/{topic}"));
        let url = site.feed_url(topic);
        assert_eq!(
            site.post_form("/hub", &[("hub.mode", "publish"), ("hub.url", &url)]).status,
            202
        );
    }
    assert_eq!(site.subscribers.wait_for_request("POST", "/ok/moved", 1)["body"], "1");
    let refused = |reason: &str| site.server.process.wait_for_line_with(reason);
    let line = refused("it redirects to http://localhost:");
    assert!(line.contains("the hub cannot distribute a topic"), "{line}");
    refused("it has more than 5 redirects");
    site.wait_until_idle();
    assert_eq!((site.content_version("away"), site.content_version("round")), (0, 0));
}

// PROTOCOL: B7
#[test]
#[ignore = "needs foreign programs"]
fn a_redirected_delivery_fails() {
    let site = HubSite::start_with_fast_retries(3, &[]);
    for subscriber in ["/307", "/308"] {
        site.subscribe("feed.xml", subscriber, &[]);
    }
    site.publish_feed("feed.xml", "1");
    for subscriber in ["/307", "/308"] {
        site.subscribers.wait_for_request("POST", subscriber, 3);
    }
    site.wait_until_idle();
    let mut last: Vec<Value> = run_json_at(&site.server, &["dead", "ls", "--group", "hub"])
        .iter_mut()
        .map(|dead| dead["last"].take())
        .collect();
    last.sort_by_key(Value::to_string);
    assert_eq!(last, ["status_307", "status_308"]);
    assert!(site.subscribers.received_bodies("/ok/instead").is_empty());
}

#[test]
#[ignore = "needs foreign programs"]
fn a_full_disk_rejects_hub_requests_and_keeps_accepted_ones() {
    let disk = SmallDisk::mount(48);
    let site = HubSite::start_with(&["--allow-private=127.0.0.0/8"], |flags| {
        disk.start_broker_with(flags)
    });
    let subscribe = |callback: &str| {
        let got = site.request_subscription("subscribe", "feed.xml", callback, &[]);
        if got.status != 202 {
            let answer = (got.status, got.header("retry-after"));
            assert_eq!(answer, (503, Some("60")), "{}", got.body);
        }
        got.status == 202
    };
    let ping = || {
        let url = site.feed_url("feed.xml");
        site.post_form("/hub", &[("hub.mode", "publish"), ("hub.url", &url)])
    };
    for group in ["hub", "hub-verify"] {
        run_at(&site.server, &["group", "pause", group]).expect_code(0);
    }
    // First the disk has space for the hub's database and none for events; then it has none for
    // either. Each second the broker tries whether there is room. What it held when the disk was
    // filled is free afterwards, and a subscription may be accepted. If that has preallocated space for
    // events, thousands would be accepted; forty are enough, and fewer than may wait for one host.
    let (mut accepted, mut rejected) = (0, Vec::new());
    for left in [2 << 20, 0] {
        site.fill_disk(&disk, left);
        let before = rejected.len();
        wait_until("six rejections", || {
            disk.fill_except(left);
            let callback = format!("/ok/{}", accepted + rejected.len());
            if subscribe(&callback) {
                accepted += 1;
            } else {
                rejected.push(callback);
            }
            (rejected.len() == before + 6 || accepted >= 40).then_some(())
        });
        // Rejected requests leave nothing behind, however many there are.
        assert_eq!(site.hub_counts()["waiting"], accepted);
    }
    disk.free_space();
    wait_until("free space", || subscribe("/ok/last").then_some(()));
    for group in ["hub", "hub-verify"] {
        run_at(&site.server, &["group", "resume", group]).expect_code(0);
    }
    wait_until("the subscriptions", || {
        (site.hub_counts()["subscribers"] == accepted + 1).then_some(())
    });
    for callback in rejected {
        assert!(site.subscribers.requests("GET", &callback).is_empty(), "{callback}");
    }
    site.write_feed("feed.xml", "1");
    disk.fill_except(0);
    // The topic's file may have preallocated space; then the hub accepts the request and handles it
    // later.
    assert!([202, 503].contains(&ping().status));
    disk.free_space();
    wait_until("free space", || (ping().status == 202).then_some(()));
    assert_eq!(site.subscribers.wait_for_request("POST", "/ok/last", 1)["body"], "1");
}

#[test]
#[ignore = "needs foreign programs"]
fn every_hub_response_is_documented() {
    let disk = SmallDisk::mount(48);
    let flags = ["--allow-private=127.0.0.0/8", "--hub-rate", "60"];
    let site = HubSite::start_with(&flags, |flags| disk.start_broker_with(flags));
    let (feed, port) = (site.feed_url("feed.xml"), site.subscribers.port.to_string());
    let callback = site.subscribers.callback_url("/ok");
    let subscribe = [("hub.mode", "subscribe"), ("hub.topic", &*feed), ("hub.callback", &callback)];
    let register = [("port", &*port), ("path", "/ok"), ("protocol", "http-post"), ("url1", &feed)];
    let with_length = |path: &str, length: &str| {
        let length = format!("content-length: {length}");
        let arguments = ["--header", &length, "--header", "expect:", "--data", "x"];
        site.http.request("POST", path, &arguments).status
    };
    let requests = [
        ("/hub", &subscribe[..], 202),
        ("/hub/rsscloud", &register[..], 200),
        ("/hub/ping", &[("url", &*feed)][..], 200),
    ];
    run_at(&site.server, &["group", "pause", "hub"]).expect_code(0);
    for (path, fields, _) in requests {
        wait_until("a rejection", || {
            site.fill_disk(&disk, 0);
            (site.post_form(path, fields).status == 503).then_some(())
        });
    }
    disk.free_space();
    for (path, fields, status) in requests {
        wait_until("free space", || (site.post_form(path, fields).status == status).then_some(()));
        assert_eq!(site.post_form(path, &[("x", "y")]).status, 400, "{path}");
        let request = |arguments: &[&str]| site.http.request("POST", path, arguments).status;
        assert_eq!(request(&["--header", "Host: evil.example"]), 403, "{path}");
        let publish = ["--data", "hub.mode=publish&url=x", "--header", "Via: 1.1 proxy"];
        assert_eq!(request(&publish), 404, "{path}");
        assert_eq!(
            request(&["--header", "content-type: text/plain", "--data", "x"]),
            415,
            "{path}"
        );
        assert_eq!(request(&["--data", &"x".repeat(100_000)]), 413, "{path}");
        assert_eq!(with_length(path, "99999999"), 413, "{path}");
    }
    thread::scope(|scope| {
        for (path, ..) in requests {
            scope.spawn(move || assert_eq!(with_length(path, "9"), 408, "{path}"));
        }
    });
    for (path, ..) in requests {
        let publish = ["--data", "hub.mode=publish&url=x", "--header", "Via: 1.1 proxy"];
        wait_until("the rate limit", || {
            (site.http.request("POST", path, &publish).status == 429).then_some(())
        });
    }
    let wrong = openapi::responses_to_a_wrong_token(&requests.map(|(path, ..)| ("POST", path)));
    openapi::expect_documented_below(&site.http, "/hub", wrong);
}

#[test]
#[ignore = "needs foreign programs"]
fn subscriptions_accepted_during_a_stop_survive_the_restart() {
    let site = HubSite::start_with_fast_retries(8, &["--hub-subscribers", "100000"]);
    let next = AtomicUsize::new(0);
    let mut accepted = Vec::new();
    thread::scope(|scope| {
        let subscribe = || {
            let mut accepted = Vec::new();
            let topic = site.feed_url("feed.xml");
            loop {
                let subscriber = format!("/ok/{}", next.fetch_add(1, Ordering::Relaxed));
                let callback = site.subscribers.callback_url(&subscriber);
                let form = format!("hub.mode=subscribe&hub.topic={topic}&hub.callback={callback}");
                match site.http.try_request("POST", "/hub", &["--data", &form]) {
                    Ok(got) if got.status == 202 => accepted.push(subscriber),
                    Ok(got) => assert_eq!(got.status, 503, "{}", got.body),
                    Err(_) => return accepted,
                }
            }
        };
        let handles: Vec<_> = (0..4).map(|_| scope.spawn(subscribe)).collect();
        wait_until("some subscription requests", || {
            (next.load(Ordering::Relaxed) > 40).then_some(())
        });
        site.server.process.signal("TERM");
        accepted.extend(handles.into_iter().flat_map(|handle| handle.join().unwrap()));
    });
    let site = site.restart("TERM");
    site.wait_until_idle();
    let missing = |subscriber: &&String| site.subscriptions("feed.xml", subscriber).is_empty();
    assert_eq!(accepted.iter().find(missing), None, "of {}", accepted.len());
}
