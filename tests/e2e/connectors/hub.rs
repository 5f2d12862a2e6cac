//! The hub for the user's own site.

use std::process::Command;
use std::time::{Duration, Instant, SystemTime};
use std::{env, fs};

use rusqlite::Connection;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::http_client::HttpClient;
use crate::support::hub_site::{FORM_CONTENT_TYPE, HubSite, PUBLIC_URL};
use crate::support::nginx::Nginx;
use crate::support::process::{Server, run_at, run_json_at, run_tidings};
use crate::support::wait::wait_until;

// PROTOCOL: B2, B3, B5, B9
#[test]
#[ignore = "needs foreign programs"]
fn a_subscriber_is_verified_notified_and_unsubscribed() {
    let site = HubSite::start_with_fast_retries(8, &[]);
    let (feed, subscribers) = (site.feed_url("feed.xml"), &site.subscribers);
    site.write_feed("feed.xml", "<rss>1</rss>");
    site.subscribe("feed.xml", "/ok/a", &[("hub.secret", "secret of /ok/a")]);
    site.subscribe("feed.xml", "/ok/b", &[("hub.lease_seconds", "86400")]);
    let counts = json!({ "topics": 1, "subscribers": 2, "waiting": 0 });
    wait_until("both subscriptions", || (site.hub_counts() == counts).then_some(()));
    let verification = &subscribers.requests("GET", "/ok/a")[0]["query"];
    assert_eq!(
        (&verification["hub.mode"], &verification["hub.topic"]),
        (&json!("subscribe"), &json!(feed))
    );
    assert_eq!(verification["hub.lease_seconds"], "864000");
    assert_eq!(verification["hub.challenge"].as_str().unwrap().len(), 64);
    let verification = &subscribers.requests("GET", "/ok/b")[0];
    assert_eq!(verification["query"]["hub.lease_seconds"], "86400");
    assert!(verification["agent"].as_str().unwrap().starts_with("tidings/"));

    site.publish_feed("feed.xml", "<rss>2</rss>");
    let delivery = subscribers.wait_for_request("POST", "/ok/a", 1);
    assert_eq!(
        (&delivery["body"], &delivery["type"]),
        (&json!("<rss>2</rss>"), &json!("text/xml"))
    );
    assert_eq!(delivery["signed"], true);
    let links = format!("<{PUBLIC_URL}hub>; rel=\"hub\", <{feed}>; rel=\"self\"");
    assert_eq!(delivery["link"], links);
    assert_eq!(subscribers.wait_for_request("POST", "/ok/b", 1)["signed"], Value::Null);

    // A ping without a change sends nothing.
    site.publish_feed("feed.xml", "<rss>2</rss>");
    site.wait_until_idle();
    site.publish_feed("feed.xml", "<rss>3</rss>");
    assert_eq!(subscribers.wait_for_request("POST", "/ok/a", 2)["body"], "<rss>3</rss>");
    subscribers.wait_for_request("POST", "/ok/b", 2);

    assert_eq!(site.request_subscription("unsubscribe", "feed.xml", "/ok/a", &[]).status, 202);
    let verification = subscribers.wait_for_request("GET", "/ok/a", 2);
    assert_eq!(verification["query"]["hub.mode"], "unsubscribe");
    wait_until("the end of the subscription", || {
        site.subscriptions("feed.xml", "/ok/a").is_empty().then_some(())
    });
    site.publish_feed("feed.xml", "<rss>4</rss>");
    subscribers.wait_for_request("POST", "/ok/b", 3);
    site.wait_until_idle();
    assert_eq!(subscribers.received_bodies("/ok/a"), ["<rss>2</rss>", "<rss>3</rss>"]);
}

// PROTOCOL: B2
#[test]
#[ignore = "needs foreign programs"]
fn a_failed_challenge_neither_subscribes_nor_unsubscribes() {
    let site = HubSite::start_with_fast_retries(8, &[]);
    for subscriber in ["/wrong", "/no", "/moved", "/huge", "/empty", "/late"] {
        assert_eq!(site.request_subscription("subscribe", "feed.xml", subscriber, &[]).status, 202);
        site.subscribers.wait_for_request("GET", subscriber, 1);
    }
    site.subscribe("feed.xml", "/ok", &[]);
    for subscriber in ["/wrong", "/no", "/moved", "/huge", "/empty", "/late"] {
        assert!(site.subscriptions("feed.xml", subscriber).is_empty(), "{subscriber}");
    }
    // All answers were final, except the one that is still pending.
    wait_until("the other verifications to end", || {
        (site.group_status("hub-verify")["processing"] == 1).then_some(())
    });
    assert_eq!(site.group_status("hub-verify")["waiting"], 0);
    // An unsubscription that the subscriber does not confirm.
    let (topic, callback) = (site.feed_url("feed.xml"), site.subscribers.callback_url("/ok"));
    let database = Connection::open(site.server.data_dir().join("hub.db")).unwrap();
    let changed = database
        .execute("UPDATE subscriptions SET callback = replace(callback, '/ok', '/no')", [])
        .unwrap();
    assert_eq!(changed, 1, "{topic} {callback}");
    assert_eq!(site.request_subscription("unsubscribe", "feed.xml", "/no", &[]).status, 202);
    site.subscribers.wait_for_request("GET", "/no", 2);
    site.subscribe("feed.xml", "/ok", &[]);
    assert_eq!(site.subscriptions("feed.xml", "/no").len(), 1);
}

// PROTOCOL: B8
#[test]
#[ignore = "needs foreign programs"]
fn unanswered_verifications_delay_no_delivery() {
    let site = HubSite::start_with_fast_retries(8, &[]);
    site.subscribe("feed.xml", "/ok", &[]);
    // As many verifications as run at the same time, each on its own host.
    let port = site.subscribers.port;
    for host in 0..100 {
        let callback = format!("http://127.0.1.{host}:{port}/late");
        let (mode, topic) = (("hub.mode", "subscribe"), site.feed_url("feed.xml"));
        let fields = [mode, ("hub.topic", &topic), ("hub.callback", &callback)];
        assert_eq!(site.post_form("/hub", &fields).status, 202);
    }
    site.subscribers.wait_for_request("GET", "/late", 32);
    site.publish_feed("feed.xml", "1");
    site.subscribers.wait_for_request("POST", "/ok", 1);
    let sending = site.group_status("hub");
    assert_eq!((&sending["processing"], &sending["waiting"]), (&json!(0), &json!(0)));
}

// PROTOCOL: B1
#[test]
#[ignore = "needs foreign programs"]
fn invalid_hub_requests_are_rejected() {
    let site = HubSite::start(&[]);
    let good = site.feed_url("feed.xml");
    let callback = site.subscribers.callback_url("/ok");
    let request = |topic: &str, callback: &str| {
        let fields = [("hub.mode", "subscribe"), ("hub.topic", topic), ("hub.callback", callback)];
        site.post_form("/hub", &fields)
    };
    let refused = request("https://elsewhere.example/feed.xml", &callback);
    assert_eq!((refused.status, refused.body.trim()), (404, "this hub has no such topic"));
    assert_eq!(request(&good, "ftp://reader.example/").status, 400);
    assert_eq!(request(&good, &format!("{PUBLIC_URL}hub")).status, 400);
    assert_eq!(
        request(&good, "http://reader.example/\r\nX: y").status,
        202,
        "the callback is one word"
    );
    assert_eq!(request(&format!("{good}\r\nX: y"), &callback).status, 400);
    assert_eq!(site.request_subscription("toggle", "feed.xml", "/ok", &[]).status, 400);
    let secret = "s".repeat(200);
    assert_eq!(
        site.request_subscription("subscribe", "feed.xml", "/ok", &[("hub.secret", &secret)])
            .status,
        400
    );
    let got = site.http.get("/hub");
    assert_eq!((got.status, got.header("allow")), (405, Some("POST")));
    assert_eq!(site.http.send_json("POST", "/hub", "{}").status, 415);
    let long = "a".repeat((64 << 10) + 1);
    assert_eq!(site.http.send_body("POST", "/hub", FORM_CONTENT_TYPE, &[], &long).status, 413);
    assert!(site.subscribers.requests("GET", "/ok").is_empty());
}

#[test]
#[ignore = "needs foreign programs"]
fn hub_requests_are_rate_limited() {
    let site = HubSite::start(&["--hub-rate", "3"]);
    let statuses: Vec<_> = (0..4)
        .map(|_| site.request_subscription("toggle", "feed.xml", "/ok", &[]).status)
        .collect();
    assert_eq!(statuses, [400, 400, 400, 429]);
    // Pings of permitted publishers do not count.
    let site = HubSite::start(&["--hub-rate", "3"]);
    for text in ["1", "2", "3", "4", "5"] {
        site.publish_feed("feed.xml", text);
    }
}

#[test]
#[ignore = "needs foreign programs"]
fn invalid_new_and_renewal_requests_have_separate_rate_limits() {
    let site = HubSite::start_with_fast_retries(8, &["--hub-rate", "3"]);
    // All requests come from one address, as through a proxy.
    let until_too_many = |send: &dyn Fn() -> u16| {
        wait_until("the rate limit", || (send() == 429).then_some(()));
    };
    until_too_many(&|| site.post_form("/hub", &[("x", "y")]).status);
    until_too_many(&|| site.post_form("/hub/ping", &[]).status);
    let subscribe =
        |subscriber| site.request_subscription("subscribe", "feed.xml", subscriber, &[]).status;
    assert_eq!(subscribe("/ok"), 202);
    wait_until("the subscription", || (site.hub_counts()["subscribers"] == 1).then_some(()));
    until_too_many(&|| subscribe("/ok/other"));
    // Requests of a verified subscription are still accepted, up to a limit that protects a known
    // callback.
    assert_eq!(subscribe("/ok"), 202);
    assert_eq!(site.request_subscription("unsubscribe", "feed.xml", "/ok", &[]).status, 202);
    until_too_many(&|| subscribe("/ok"));
}

// PROTOCOL: B4
#[test]
#[ignore = "needs foreign programs"]
fn only_publishers_can_ping() {
    let site = HubSite::start(&["--hub-publishers", "192.0.2.0/24"]);
    let url = site.feed_url("feed.xml");
    let unknown = site.http.send_json("POST", "/hooks/none", "{}");
    assert_eq!(unknown.status, 404);
    for (path, field) in [("/hub", "hub.url"), ("/hub/ping", "url")] {
        let got = site.post_form(path, &[("hub.mode", "publish"), (field, &url)]);
        assert_eq!((got.status, got.json()["code"].as_str()), (404, Some("unknown")));
        // The response is the same for an invalid request.
        assert_eq!(site.post_form(path, &[("hub.mode", "publish")]).body, got.body);
    }
    assert_eq!(site.http.get("/stats").json()["notices"]["refused"], 4);

    // A client behind a proxy on this machine does not have the rights of the machine.
    let site = HubSite::start_with_fast_retries(8, &[]);
    let proxied = format!(
        "location /tidings/hub {{ proxy_pass {}/hub; proxy_set_header Host blog.example;
        proxy_set_header X-Forwarded-For $remote_addr; }}",
        site.http.base_url
    );
    let proxy = Nginx::start(TempDir::new().unwrap(), "", &proxied);
    let outside = |fields: &str| {
        let hub = format!("{}tidings/hub", proxy.url());
        let status = ["--silent", "--output", "/dev/null", "--write-out", "%{http_code}"];
        let output = Command::new("curl").args(status).args(["--data", fields, &hub]).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    let topic = site.feed_url("feed.xml");
    assert_eq!(outside(&format!("hub.mode=publish&hub.url={topic}")), "404");
    let callback = site.subscribers.callback_url("/ok");
    let subscribe = format!("hub.mode=subscribe&hub.topic={topic}&hub.callback={callback}");
    assert_eq!(outside(&subscribe), "202");
    site.subscribers.wait_for_request("GET", "/ok", 1);
    for header in ["X-Real-IP: 192.0.2.1", "Forwarded: for=192.0.2.1", "Via: 1.1 proxy"] {
        let ping = format!("hub.mode=publish&hub.url={topic}");
        let got = site.http.send_body("POST", "/hub", FORM_CONTENT_TYPE, &[header], &ping);
        assert_eq!(got.status, 404, "{header}");
    }
}

// PROTOCOL: B8
#[test]
#[ignore = "needs foreign programs"]
fn a_callback_at_a_private_address_is_never_requested() {
    let site = HubSite::start(&[]);
    assert_eq!(site.request_subscription("subscribe", "feed.xml", "/ok", &[]).status, 202);
    let line = site.server.process.wait_for_line_with("unreachable subscribers of the hub");
    assert!(line.contains("127.0.0.1"), "{line}");
    site.wait_until_idle();
    assert!(site.subscribers.requests("GET", "/ok").is_empty());
    assert_eq!(site.group_status("hub-verify")["failed"], 1);
}

// PROTOCOL: B3
#[test]
#[ignore = "needs foreign programs"]
fn a_subscription_ends_with_its_lease() {
    let site = HubSite::start_with_fast_retries(8, &["--hub-lease", "1s"]);
    site.subscribe("feed.xml", "/ok/a", &[]);
    site.subscribe("feed.xml", "/ok/b", &[("hub.lease_seconds", "3600")]);
    let verification = &site.subscribers.requests("GET", "/ok/a")[0]["query"];
    assert_eq!(verification["hub.lease_seconds"], "1");
    let (_, ends) = site.subscriptions("feed.xml", "/ok/a")[0];
    wait_until("the end of the lease", || {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        (now.as_millis() > u128::from(ends.unsigned_abs())).then_some(())
    });
    site.publish_feed("feed.xml", "1");
    site.subscribers.wait_for_request("POST", "/ok/b", 1);
    site.wait_until_idle();
    assert!(site.subscribers.received_bodies("/ok/a").is_empty());
    // Ended subscriptions are deleted at the next sweep, for example at a start.
    let site = site.restart("TERM");
    wait_until("the sweep", || site.subscriptions("feed.xml", "/ok/a").is_empty().then_some(()));
    assert_eq!(site.subscriptions("feed.xml", "/ok/b").len(), 1);
}

// PROTOCOL: B6, B7
#[test]
#[ignore = "needs foreign programs"]
fn a_retried_delivery_sends_the_newest_content() {
    let site = HubSite::start_with_fast_retries(8, &[]);
    site.subscribe("feed.xml", "/twice", &[]);
    site.publish_feed("feed.xml", "1");
    assert_eq!(site.subscribers.wait_for_request("POST", "/twice", 3)["body"], "1");
    site.wait_until_idle();
    assert_eq!(site.subscribers.received_bodies("/twice").len(), 3);
    // While the group is paused, newer content replaces the pending one; that of another topic
    // stays.
    site.subscribe("other.xml", "/twice", &[]);
    run_at(&site.server, &["group", "pause", "hub"]).expect_code(0);
    site.publish_feed("other.xml", "of the other");
    run_at(&site.server, &["group", "resume", "hub"]).expect_code(0);
    site.publish_feed("feed.xml", "3");
    wait_until("both deliveries", || {
        let bodies = site.subscribers.received_bodies("/twice");
        let has = |text| bodies.iter().any(|body| body == text);
        (has("3") && has("of the other")).then_some(())
    });
    site.wait_until_idle();
    assert_eq!(site.subscribers.received_bodies("/twice").len(), 5);
}

// PROTOCOL: B6, B7
#[test]
#[ignore = "needs foreign programs"]
fn new_content_does_not_shorten_a_backoff() {
    let site = HubSite::start_with_fast_retries(8, &[]);
    site.subscribe("feed.xml", "/later", &[]);
    site.publish_feed("feed.xml", "1");
    site.subscribers.wait_for_request("POST", "/later", 1);
    for text in ["2", "3", "4"] {
        site.publish_feed("feed.xml", text);
    }
    site.subscribers.wait_for_request("POST", "/later", 2);
    site.wait_until_idle();
    assert_eq!(site.subscribers.received_bodies("/later"), ["1", "4"]);
}

// PROTOCOL: B7
#[test]
#[ignore = "needs foreign programs"]
fn a_missed_delivery_is_sent_after_the_next_ping() {
    let site = HubSite::start_with_fast_retries(3, &[]);
    site.subscribe("feed.xml", "/down", &[]);
    site.publish_feed("feed.xml", "1");
    site.subscribers.wait_for_request("POST", "/down", 3);
    site.wait_until_idle();
    assert_eq!(run_json_at(&site.server, &["dead", "ls", "--group", "hub"]).len(), 1);
    site.publish_feed("feed.xml", "1");
    site.subscribers.wait_for_request("POST", "/down", 4);
    site.wait_until_idle();
    site.publish_feed("feed.xml", "1");
    site.wait_until_idle();
    assert_eq!(site.subscribers.received_bodies("/down"), ["1"; 4]);
}

// PROTOCOL: B7
#[test]
#[ignore = "needs foreign programs"]
fn gone_and_failing_subscribers_are_dropped() {
    let site = HubSite::start_with_fast_retries(3, &["--hub-failures", "2"]);
    for subscriber in ["/dead", "/gone", "/ok"] {
        site.subscribe("feed.xml", subscriber, &[]);
    }
    site.publish_feed("feed.xml", "1");
    site.subscribers.wait_for_request("POST", "/dead", 3);
    site.wait_until_idle();
    assert!(site.subscriptions("feed.xml", "/gone").is_empty());
    assert_eq!(
        site.subscriptions("feed.xml", "/dead").len(),
        1,
        "a failing subscriber stays at first"
    );
    let dead = run_json_at(&site.server, &["dead", "ls", "--group", "hub"]);
    assert_eq!(dead[0]["last"], "status_500", "{dead:?}");
    // A retry by an operator counts, too.
    site.publish_feed("feed.xml", "2");
    site.server.process.wait_for_line_with("a subscriber of the hub is dropped");
    site.wait_until_idle();
    assert!(site.subscriptions("feed.xml", "/dead").is_empty());
    site.publish_feed("feed.xml", "3");
    site.subscribers.wait_for_request("POST", "/ok", 3);
    site.wait_until_idle();
    assert_eq!(site.subscribers.received_bodies("/dead").len(), 6);
    assert_eq!(site.subscribers.received_bodies("/gone").len(), 1);
}

// PROTOCOL: B2, B5
#[test]
#[ignore = "needs foreign programs"]
fn rsscloud_registers_feeds_and_sends_their_urls() {
    let site = HubSite::start_with_fast_retries(8, &[]);
    let (feed, other) = (site.feed_url("feed.xml"), site.feed_url("other.xml"));
    let port = site.subscribers.port.to_string();
    let register = |path: &str, more: &[(&str, &str)]| {
        let fields = [
            ("notifyProcedure", ""),
            ("protocol", "http-post"),
            ("port", port.as_str()),
            ("path", path),
            ("url1", &feed),
            ("url2", &other),
        ];
        site.post_form("/hub/rsscloud", &[&fields[..], more].concat())
    };
    let got = register("/ok/named", &[("domain", "127.0.0.1")]);
    assert_eq!((got.status, got.header("content-type")), (200, Some("text/xml")));
    assert!(got.body.contains("<notifyResult success=\"true\" msg=\""), "{}", got.body);
    site.subscribers.wait_for_request("GET", "/ok/named", 2);
    let verifications = site.subscribers.requests("GET", "/ok/named");
    assert!(verifications.iter().any(|request| request["query"]["url"] == feed));
    assert_eq!(verifications[0]["query"]["challenge"].as_str().unwrap().len(), 64);
    assert!(got.body.contains("The subscription is registered."), "{}", got.body);
    let got = register("/wrong", &[("domain", "127.0.0.1")]);
    assert_eq!(got.status, 400);
    assert!(got.body.contains("success=\"false\""), "{}", got.body);
    assert_eq!(site.subscribers.requests("GET", "/wrong").len(), 2);
    // A callback that does not answer in time is verified later.
    let got = register("/late", &[("domain", "127.0.0.1")]);
    assert!(
        got.status == 200 && got.body.contains("The verification has started."),
        "{}",
        got.body
    );
    // Without a domain the callback gets a notice at once, as a test.
    assert_eq!(register("/ok/peer", &[]).status, 200);
    assert_eq!(site.subscribers.received_bodies("/ok/peer").len(), 2);

    site.write_feed("feed.xml", "<rss>1</rss>");
    let got = site.http.send_body(
        "POST",
        "/hub/ping",
        FORM_CONTENT_TYPE,
        &["Accept: application/json"],
        &format!("url={feed}"),
    );
    assert_eq!((got.status, &got.json()["success"]), (200, &json!(true)));
    let delivery = site.subscribers.wait_for_request("POST", "/ok/named", 1);
    assert_eq!((&delivery["type"], &delivery["signed"]), (&json!(FORM_CONTENT_TYPE), &Value::Null));
    let encoded = feed.replace(':', "%3A").replace('/', "%2F");
    assert_eq!(delivery["body"], format!("url={encoded}"));
    assert_eq!(site.subscribers.wait_for_request("POST", "/ok/peer", 3)["body"], delivery["body"]);
    assert!(site.subscribers.received_bodies("/wrong").is_empty());

    let got = register("/ok", &[("url3", "https://elsewhere.example/feed.xml")]);
    assert_eq!(got.status, 404);
    assert!(got.body.contains("success=\"false\""), "{}", got.body);
}

// PROTOCOL: B6
#[test]
#[ignore = "needs foreign programs"]
fn a_kill_during_a_distribution_loses_no_delivery() {
    const SUBSCRIBERS: usize = 200;
    let site = HubSite::start_with_fast_retries(8, &[]);
    site.subscribe_many("feed.xml", SUBSCRIBERS);
    site.publish_feed("feed.xml", "1");
    wait_until("some deliveries", || (site.notified_count("1") > SUBSCRIBERS / 8).then_some(()));
    let site = site.restart("KILL");
    wait_until("all deliveries", || (site.notified_count("1") == SUBSCRIBERS).then_some(()));
    site.wait_until_idle();
    let counts: Vec<_> = (0..SUBSCRIBERS)
        .map(|number| site.subscribers.received_bodies(&format!("/ok/{number}")).len())
        .collect();
    // Deliveries in flight at the kill are repeated. One host has at most eight of them.
    let twice = counts.iter().filter(|count| **count > 1).count();
    assert!(counts.iter().all(|count| (1..=2).contains(count)), "{counts:?}");
    assert!(twice <= 8, "{twice} subscribers received two deliveries");
}

#[test]
#[ignore = "needs foreign programs"]
fn thousands_of_subscribers_are_notified() {
    let count = env::var("TIDINGS_HUB_SUBSCRIBERS").map_or(5_000, |count| count.parse().unwrap());
    let site = HubSite::start_with_fast_retries(8, &[]);
    site.subscribe("feed.xml", "/ok/0", &[]);
    // Copies the subscription in the database, which is faster than subscribing.
    let sql = "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < CAST(?1 AS INTEGER) - 1)
        INSERT INTO subscriptions (topic, callback, kind, named, secret, until_unix_ms, delivered)
        SELECT topic, replace(callback, '/ok/0', '/ok/' || n), kind, named, secret, until_unix_ms, delivered
        FROM subscriptions, numbers";
    let database = Connection::open(site.server.data_dir().join("hub.db")).unwrap();
    database.busy_timeout(Duration::from_mins(1)).unwrap();
    assert_eq!(database.execute(sql, [count.to_string()]).unwrap(), count - 1);
    let began = Instant::now();
    site.publish_feed("feed.xml", "1");
    wait_until("all deliveries", || (site.notified_count("1") == count).then_some(()));
    eprintln!("{count} subscribers were notified within {:?}", began.elapsed());
    site.wait_until_idle();
    let mut posts = 0;
    site.subscribers.process.find_line(|line| -> Option<()> {
        posts += usize::from(line.contains("\"POST\""));
        None
    });
    assert_eq!((posts, &site.group_status("hub")["dead"]), (count, &json!(0)));
}

#[test]
#[ignore = "needs foreign programs"]
fn a_hub_requires_a_public_url_and_http() {
    let folder = TempDir::new().unwrap();
    let hub = ["broker", "--listen", "0", "--hub", "https://blog.example/"];
    for (more, flag) in [
        (&[][..], "--public-url"),
        (&["--public-url", PUBLIC_URL, "--http", "off"][..], "--http off"),
        (&["--public-url", PUBLIC_URL, "--hub-lease", "31d"][..], "--hub-lease-max"),
        (&["--public-url", PUBLIC_URL, "--hub", "ftp://blog.example/"][..], "--hub"),
        (&["--public-url", PUBLIC_URL, "--hub-publishers", "10/8"][..], "--hub-publishers"),
    ] {
        run_tidings(folder.path(), &[&hub[..], more].concat()).expect_code(2).expect_stderr(flag);
    }
    let config = format!("hub = ['https://blog.example/']\npublic-url = '{PUBLIC_URL}'\n");
    fs::write(folder.path().join("tidings.toml"), config).unwrap();
    let server = Server::start_in(folder, &["up", "--config", "tidings.toml"], |_| ());
    let http = HttpClient::new(&server);
    assert_eq!(http.get("/hub").status, 405);
    // Without a hub the path does not exist.
    let server = Server::start_broker();
    assert_eq!(HttpClient::new(&server).get("/hub").status, 404);
}
