//! The hub of one's own site where something is not as it should be: its addresses, its disk, the
//! room for subscribers, its end.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use rusqlite::Connection;
use serde_json::{Value, json};

use crate::http::openapi;
use crate::support::hub_site::Site;
use crate::support::process::{at, json_at};
use crate::support::small_disk::SmallDisk;
use crate::support::talk::Talk;
use crate::support::wait::until;

impl Site {
    /// As if somebody had subscribed, and had been verified.
    fn plant(&self, feed: &str, subscriber: &str) {
        let database = Connection::open(self.server.data().join("hub.db")).unwrap();
        let (topic, callback) = (self.feed(feed), self.subscribers.callback(subscriber));
        database.execute("INSERT INTO topics (url) VALUES (?1)", [&topic]).unwrap();
        let sql =
            "INSERT INTO subscriptions (topic, callback, kind, named, until_unix_ms, delivered)
            SELECT id, ?2, 0, url, 9000000000000000, 0 FROM topics WHERE url = ?1";
        assert_eq!(database.execute(sql, [&topic, &callback]).unwrap(), 1);
    }

    /// How many contents of a topic the hub has had.
    fn version(&self, feed: &str) -> i64 {
        let sql = "SELECT version FROM topics WHERE url = ?1";
        self.database().query_row(sql, [self.feed(feed)], |row| row.get(0)).unwrap()
    }
}

// PROTOCOL: B5, B8
#[test]
fn a_site_at_a_private_address_is_fetched_and_subscribers_there_are_not_asked() {
    let site = Site::start(&[]);
    at(&site.server, &["group", "set", "hub", "backoff=1ms", "max-attempts=2"]).expect_code(0);
    site.plant("feed.xml", "/ok");
    site.publish("feed.xml", "1");
    let line = site.server.process.line_with("subscribers of the hub that cannot be reached");
    assert!(line.contains("127.0.0.1"), "{line}");
    site.idle();
    assert_eq!(site.version("feed.xml"), 1);
    assert!(site.subscribers.bodies("/ok").is_empty());
    assert_eq!(json_at(&site.server, &["dead", "ls", "--group", "hub"]).len(), 1);
}

// PROTOCOL: B8
#[test]
fn the_work_of_a_hub_has_groups_of_its_own_and_names_no_callback_or_secret() {
    let site = Site::start(&[]);
    let shown = |group: &str, setting: &str, value: Value| {
        assert_eq!(site.group(group)[setting], value, "{setting} of {group}");
    };
    for (group, parallel, attempts) in [("hub", 8, 8), ("hub-verify", 4, 3)] {
        shown(group, "topics", json!(group));
        shown(group, "parallel", json!(parallel));
        shown(group, "max-attempts", json!(attempts));
        shown(group, "backoff", json!("10s"));
    }
    let secret = [("hub.secret", "a secret of /ok")];
    assert_eq!(site.wish("subscribe", "feed.xml", "/ok", &secret).status, 202);
    let mut talk = Talk::client(site.server.address);
    assert_eq!(talk.ask("SUB hub-verify from=first"), "+OK");
    let event = talk.line();
    assert!(event.contains(" host=127.0.0.1 "), "{event}");
    assert!(!event.contains("/ok") && !event.contains("secret"), "{event}");
}

// PROTOCOL: B5
#[test]
fn a_redirect_of_a_topic_is_followed_within_the_site_and_nowhere_else() {
    let site = Site::quick(2, &[]);
    site.write("feed.xml", "1");
    for topic in ["moved", "away", "round"] {
        site.plant(topic, &format!("/ok/{topic}"));
        let url = site.feed(topic);
        assert_eq!(site.post("/hub", &[("hub.mode", "publish"), ("hub.url", &url)]).status, 202);
    }
    assert_eq!(site.subscribers.nth("POST", "/ok/moved", 1)["body"], "1");
    let refused = |reason: &str| site.server.process.line_with(reason);
    let line = refused("it redirects to http://localhost:");
    assert!(line.contains("the hub cannot distribute a topic"), "{line}");
    refused("it redirects too often");
    site.idle();
    assert_eq!((site.version("away"), site.version("round")), (0, 0));
}

// PROTOCOL: B2, B9
#[test]
fn there_are_never_more_subscribers_than_there_may_be_now() {
    let mut site = Site::quick(8, &[]);
    site.subscribe("feed.xml", "/ok/first", &[]);
    at(&site.server, &["group", "pause", "hub-verify"]).expect_code(0);
    for subscriber in ["/ok/first", "/ok/a", "/ok/b"] {
        assert_eq!(site.wish("subscribe", "feed.xml", subscriber, &[]).status, 202);
    }
    assert_eq!(site.counts(), json!({ "topics": 1, "subscribers": 1, "waiting": 3 }));
    site.arguments.extend(["--hub-subscribers", "2"].map(str::to_owned));
    let site = site.restart("TERM");
    at(&site.server, &["group", "resume", "hub-verify"]).expect_code(0);
    site.server.process.line_with("subscribers for whom the hub has no room");
    site.idle();
    assert_eq!(site.counts(), json!({ "topics": 1, "subscribers": 2, "waiting": 0 }));
    assert_eq!(site.subscriptions("feed.xml", "/ok/first").len(), 1);
    let modes = |subscriber| -> Vec<Value> {
        let requests = site.subscribers.requests("GET", subscriber);
        requests.iter().map(|request| request["query"]["hub.mode"].clone()).collect()
    };
    let (taken, denied) = (json!(["subscribe"]), json!(["subscribe", "denied"]));
    let mut both = [json!(modes("/ok/a")), json!(modes("/ok/b"))];
    both.sort_by_key(|modes| modes.as_array().unwrap().len());
    assert_eq!(both, [taken, denied]);
}

// PROTOCOL: B7
#[test]
fn a_redirect_is_no_answer_to_a_delivery() {
    let site = Site::quick(3, &[]);
    for subscriber in ["/307", "/308"] {
        site.subscribe("feed.xml", subscriber, &[]);
    }
    site.publish("feed.xml", "1");
    for subscriber in ["/307", "/308"] {
        site.subscribers.nth("POST", subscriber, 3);
    }
    site.idle();
    let mut last: Vec<Value> = json_at(&site.server, &["dead", "ls", "--group", "hub"])
        .iter_mut()
        .map(|dead| dead["last"].take())
        .collect();
    last.sort_by_key(Value::to_string);
    assert_eq!(last, ["status_307", "status_308"]);
    assert!(site.subscribers.bodies("/ok/instead").is_empty());
}

#[test]
fn what_was_accepted_before_the_disk_was_full_is_done_and_the_rest_is_refused() {
    let disk = SmallDisk::mount(48);
    let site = Site::with(&["--allow-private=127.0.0.0/8"], |flags| disk.broker_with(flags));
    let subscribe = || site.wish("subscribe", "feed.xml", "/ok", &[]);
    let ping = || {
        let url = site.feed("feed.xml");
        site.post("/hub", &[("hub.mode", "publish"), ("hub.url", &url)])
    };
    // First there is room for what the hub remembers, and none for events, then for neither.
    for left in [2 << 20, 0] {
        disk.fill_but(left);
        until("a refusal", || (ping().status == 503).then_some(()));
        // However often it is refused, nothing of it is in the way later.
        for _ in 0..6 {
            let got = subscribe();
            assert_eq!((got.status, got.header("retry-after")), (503, Some("60")), "{}", got.body);
        }
        assert_eq!(site.counts()["waiting"], 0);
    }
    assert!(site.subscribers.requests("GET", "/ok").is_empty());
    disk.make_room();
    until("room again", || (subscribe().status == 202).then_some(()));
    site.subscribers.nth("GET", "/ok", 1);
    until("the subscription", || (site.counts()["subscribers"] == 1).then_some(()));
    site.write("feed.xml", "1");
    disk.fill_but(0);
    // There may be room in the topic's file that was taken in advance; what is heard is done later
    // then.
    assert!([202, 503].contains(&ping().status));
    disk.make_room();
    until("room again", || (ping().status == 202).then_some(()));
    assert_eq!(site.subscribers.nth("POST", "/ok", 1)["body"], "1");
}

#[test]
fn what_the_hub_answers_is_described() {
    let disk = SmallDisk::mount(48);
    let flags = ["--allow-private=127.0.0.0/8", "--hub-rate", "60"];
    let site = Site::with(&flags, |flags| disk.broker_with(flags));
    let (feed, port) = (site.feed("feed.xml"), site.subscribers.port.to_string());
    let callback = site.subscribers.callback("/ok");
    let subscribe = [("hub.mode", "subscribe"), ("hub.topic", &*feed), ("hub.callback", &callback)];
    let register = [("port", &*port), ("path", "/ok"), ("protocol", "http-post"), ("url1", &feed)];
    let asked = [
        ("/hub", &subscribe[..], 202),
        ("/hub/rsscloud", &register[..], 200),
        ("/hub/ping", &[("url", &*feed)][..], 200),
    ];
    disk.fill_but(0);
    for (path, fields, _) in asked {
        until("a refusal", || (site.post(path, fields).status == 503).then_some(()));
    }
    disk.make_room();
    for (path, fields, status) in asked {
        until("room", || (site.post(path, fields).status == status).then_some(()));
        assert_eq!(site.post(path, &[("x", "y")]).status, 400, "{path}");
        let ask = |arguments: &[&str]| site.http.ask("POST", path, arguments).status;
        assert_eq!(ask(&["--header", "Host: evil.example"]), 403, "{path}");
        let publish = ["--data", "hub.mode=publish&url=x", "--header", "Via: 1.1 proxy"];
        assert_eq!(ask(&publish), 404, "{path}");
        assert_eq!(ask(&["--header", "content-type: text/plain", "--data", "x"]), 415, "{path}");
        assert_eq!(ask(&["--data", &"x".repeat(100_000)]), 413, "{path}");
        let with_length = |length: &str| {
            let length = format!("content-length: {length}");
            ask(&["--header", &length, "--header", "expect:", "--data", "x"])
        };
        assert_eq!((with_length("9"), with_length("99999999")), (408, 413), "{path}");
    }
    for (path, ..) in asked {
        let publish = ["--data", "hub.mode=publish&url=x", "--header", "Via: 1.1 proxy"];
        until("too many of them", || {
            (site.http.ask("POST", path, &publish).status == 429).then_some(())
        });
    }
    let wrong = openapi::with_a_wrong_token(&asked.map(|(path, ..)| ("POST", path)));
    openapi::expect_all_below(&site.http, "/hub", wrong);
}

#[test]
fn what_is_accepted_while_the_broker_ends_is_done_when_it_is_back() {
    let site = Site::quick(8, &["--hub-subscribers", "100000"]);
    let next = AtomicUsize::new(0);
    let mut accepted = Vec::new();
    thread::scope(|scope| {
        let wish = || {
            let mut accepted = Vec::new();
            let topic = site.feed("feed.xml");
            loop {
                let subscriber = format!("/ok/{}", next.fetch_add(1, Ordering::Relaxed));
                let callback = site.subscribers.callback(&subscriber);
                let form = format!("hub.mode=subscribe&hub.topic={topic}&hub.callback={callback}");
                match site.http.try_ask("POST", "/hub", &["--data", &form]) {
                    Ok(got) if got.status == 202 => accepted.push(subscriber),
                    Ok(got) => assert_eq!(got.status, 503, "{}", got.body),
                    Err(_) => return accepted,
                }
            }
        };
        let wishing: Vec<_> = (0..4).map(|_| scope.spawn(wish)).collect();
        until("some wishes", || (next.load(Ordering::Relaxed) > 40).then_some(()));
        site.server.process.signal("TERM");
        accepted.extend(wishing.into_iter().flat_map(|wishes| wishes.join().unwrap()));
    });
    let site = site.restart("TERM");
    site.idle();
    let missing = |subscriber: &&String| site.subscriptions("feed.xml", subscriber).is_empty();
    assert_eq!(accepted.iter().find(missing), None, "of {}", accepted.len());
}
