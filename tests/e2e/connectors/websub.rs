//! The WebSub subscriber: nginx serves a feed, a script records the hub's requests, and curl
//! verifies and delivers in place of the hub. openssl signs the deliveries.

use std::fs;

use crate::http::openapi;
use crate::support::callback_server::CallbackServer;
use crate::support::feed_fixture::{
    FeedFixture, FormFields, HubLink, body_signature, confirm_subscription, deliver, rss_feed,
    send_verification,
};
use crate::support::http_client::HttpClient;
use crate::support::line_connection::LineConnection;
use crate::support::openssl::hmac;
use crate::support::ports::free_port;
use crate::support::process::{Server, run_at};
use crate::support::small_disk::SmallDisk;
use crate::support::topic_history::ReceivedEvents;
use crate::support::wait::wait_until;

const RSS: &str = "Content-Type: application/rss+xml";

// PROTOCOL: V2, V3, V4, V5, V7
#[test]
#[ignore = "needs foreign programs"]
fn delivered_items_are_announced_once_and_polling_is_the_fallback() {
    let fixture = FeedFixture::start(&HubLink::Header, &[]);
    let form = fixture.hub_request(0);
    let topic = fixture.feed_url();
    assert_eq!((form.get("hub.mode"), form.get("hub.topic")), ("subscribe", topic.as_str()));
    assert_eq!(form.get("hub.lease_seconds"), "864000");
    let token = form.callback_path().rsplit('/').next().unwrap().to_owned();
    assert!(
        token.len() == 64 && form.get("hub.secret").len() == 64,
        "token and secret are long enough"
    );
    wait_until("the first items", || (fixture.published_count("old") == 1).then_some(()));

    // Requests that fit no pending subscription are all answered alike.
    let body = rss_feed(&["one", "old"], "");
    let unknown = fixture.http.get("/websub/0000");
    assert_eq!(unknown.status, 404);
    let guessed = "http://127.0.0.1:9/other";
    let long = "x".repeat(2_000);
    let wrong = [
        send_verification(&fixture, &form, "subscribe", guessed, "x", "100"),
        send_verification(&fixture, &form, "unsubscribe", &topic, "x", "100"),
        send_verification(&fixture, &form, "publish", &topic, "x", "100"),
        send_verification(&fixture, &form, "subscribe", &topic, "", "100"),
        send_verification(&fixture, &form, "subscribe", &topic, &long, "100"),
        send_verification(&fixture, &form, "subscribe", &topic, "x", "-1"),
        deliver(&fixture, &form, &body, &body_signature(&form, &body)),
        fixture.http.request("DELETE", &form.callback_path(), &[]),
    ];
    for got in &wrong {
        assert_eq!((got.status, &got.body), (404, &unknown.body));
    }
    assert_eq!(fixture.rejected_notices(), 1 + wrong.len());
    assert_eq!(fixture.published_count("one"), 0);

    confirm_subscription(&fixture, &form, "864000");
    assert_eq!(
        send_verification(&fixture, &form, "subscribe", &topic, "x", "9").status,
        200,
        "a repeated verification is confirmed"
    );
    fixture.wait_for_poll_interval("4s");
    assert!(fixture.watch_list().contains(" by 127.0.0.1 for 9 d "), "{}", fixture.watch_list());

    for (body, signature) in [
        (&*body, String::new()),
        (&body, format!("sha256={}", hmac("sha256", "guessed", &body))),
        (&body, format!("sha1={}", hmac("sha1", "guessed", &body))),
        (&body, body_signature(&form, &body)[..40].to_owned()),
        (&body[1..], body_signature(&form, &body)),
    ] {
        assert_eq!(deliver(&fixture, &form, body, &signature).status, 404);
    }
    // A delivery with a SHA-1 signature triggers a fetch, and its content is ignored.
    let fetches = fixture.poll_count();
    let sha1 = format!("sha1={}", hmac("sha1", form.get("hub.secret"), &body));
    assert_eq!(deliver(&fixture, &form, &body, &sha1).status, 204);
    wait_until("a fetch of the feed", || (fixture.poll_count() > fetches).then_some(()));
    assert_eq!(fixture.published_count("one"), 0);
    // The server still has the old feed: the delivered items are announced.
    let got = deliver(&fixture, &form, &body, &body_signature(&form, &body));
    assert_eq!((got.status, got.body.as_str()), (204, ""));
    assert_eq!(fixture.published_count("one"), 1);
    assert_eq!(deliver(&fixture, &form, &body, &body_signature(&form, &body)).status, 204, "again");
    // The crawler finds the item, too.
    fixture.write_items(&["one", "old"]);
    let fetches = fixture.poll_count();
    deliver(&fixture, &form, &body, &body_signature(&form, &body));
    wait_until("a fetch of the feed", || (fixture.poll_count() > fetches).then_some(()));
    // The next delivery comes after that, so the feed was read by then.
    let body = rss_feed(&["two", "one", "old"], "");
    deliver(&fixture, &form, &body, &body_signature(&form, &body));
    assert_eq!((fixture.published_count("one"), fixture.published_count("two")), (1, 1));
    fixture.write_items(&["two", "one", "old"]);
    deliver(&fixture, &form, &body, &body_signature(&form, &body));
    fixture.wait_for_poll_interval("4s");

    // No fetch that a delivery brought forward is still waiting.
    wait_until("all fetches", || {
        let mut connection = LineConnection::connect_client(fixture.server.address);
        (connection.request_lines("GROUP tasks crawlers").len() == 1).then_some(())
    });
    // The hub becomes silent: polling finds an item that it did not deliver, and the feed is polled
    // more often from then on.
    let request_count = fixture.hub.requests_so_far().len();
    fixture.write_items(&["three", "two", "one", "old"]);
    wait_until("the item that no hub delivered", || {
        (fixture.published_count("three") == 1).then_some(())
    });
    wait_until("polling as before", || (fixture.poll_interval()? != "4s").then_some(()));
    // The hub may have lost the subscription, so the broker subscribes once more. The hub's consent
    // alone does not reduce polling again.
    let again = fixture.hub_request(request_count);
    assert_eq!((again.callback_path(), again.get("hub.mode")), (form.callback_path(), "subscribe"));
    confirm_subscription(&fixture, &again, "864000");
    assert!(fixture.watch_list().contains(" polled "), "{}", fixture.watch_list());
    for item in ["old", "one", "two", "three"] {
        assert_eq!(fixture.published_count(item), 1, "{item}");
    }
}

#[test]
#[ignore = "needs foreign programs"]
fn sha1_signatures_count_with_a_flag() {
    let fixture = FeedFixture::start(&HubLink::Header, &["--websub-sha1"]);
    let form = fixture.hub_request(0);
    confirm_subscription(&fixture, &form, "1000");
    let body = rss_feed(&["one"], "");
    let sha1 = |secret: &str| format!("sha1={}", hmac("sha1", secret, &body));
    assert_eq!(deliver(&fixture, &form, &body, &sha1("guessed")).status, 404);
    assert_eq!(deliver(&fixture, &form, &body, &sha1(form.get("hub.secret"))).status, 204);
    assert_eq!(fixture.published_count("one"), 1);
}

// PROTOCOL: V2, V3
#[test]
#[ignore = "needs foreign programs"]
fn a_lease_is_renewed_and_survives_a_restart() {
    let mut fixture = FeedFixture::start(&HubLink::Feed, &["--websub-lease", "5s"]);
    let form = fixture.hub_request(0);
    confirm_subscription(&fixture, &form, "5");
    // The broker renews the subscription after most of the lease.
    let again = fixture.hub_request(1);
    assert_eq!((again.callback_path(), again.get("hub.mode")), (form.callback_path(), "subscribe"));
    confirm_subscription(&fixture, &again, "1000");

    let flags: Vec<_> = fixture.flags.iter().map(String::as_str).collect();
    fixture.server = fixture.server.restart("KILL", &flags);
    let body = rss_feed(&["one"], "");
    wait_until("the delivery to be accepted", || {
        let got = fixture.http.try_request(
            "POST",
            &form.callback_path(),
            &[
                "-H",
                RSS,
                "-H",
                &format!("X-Hub-Signature: {}", body_signature(&form, &body)),
                "-d",
                &body,
            ],
        );
        got.ok().filter(|got| got.status == 204)
    });
    assert_eq!(fixture.published_count("one"), 1);

    // A hub may end the subscription.
    let denied =
        format!("{}?hub.mode=denied&hub.topic={}", form.callback_path(), fixture.feed_url());
    assert_eq!(fixture.http.get(&denied).status, 200);
    assert_eq!(deliver(&fixture, &form, &body, &body_signature(&form, &body)).status, 404);
}

// PROTOCOL: V6
#[test]
#[ignore = "needs foreign programs"]
fn a_feed_that_is_no_longer_watched_is_unsubscribed() {
    let fixture = FeedFixture::start(&HubLink::FeedPage, &[]);
    let form = fixture.hub_request(0);
    assert_eq!(form.get("hub.topic"), fixture.feed_url());
    confirm_subscription(&fixture, &form, "100000");
    fixture.wait_for_poll_interval("4s");
    run_at(&fixture.server, &["watch-feed", &fixture.feed_url(), "--stop"]).expect_code(0);
    wait_until("the end of the schedule", || fixture.poll_interval().is_none().then_some(()));
    let body = rss_feed(&["one"], "");
    assert_eq!(deliver(&fixture, &form, &body, &body_signature(&form, &body)).status, 404);
    assert_eq!(fixture.published_count("one"), 0);
    let end = fixture.hub_request(1);
    assert_eq!((end.callback_path(), end.get("hub.mode")), (form.callback_path(), "unsubscribe"));
    confirm_subscription(&fixture, &end, "");
    assert_eq!(fixture.http.get(&form.callback_path()).status, 404);
}

#[test]
#[ignore = "needs foreign programs"]
fn forged_deliveries_block_no_hub_and_a_lost_database_is_rebuilt() {
    let mut fixture = FeedFixture::start(&HubLink::Feed, &[]);
    let form = fixture.hub_request(0);
    confirm_subscription(&fixture, &form, "100000");
    wait_until("the rate limit", || {
        (fixture.http.get("/websub/guessed").status == 429).then_some(())
    });
    let body = rss_feed(&["one"], "");
    // The same holds for clients that know the callback path.
    wait_until("the rate limit", || {
        (deliver(&fixture, &form, &body, "sha256=00").status == 429).then_some(())
    });
    assert_eq!(deliver(&fixture, &form, &body, &body_signature(&form, &body)).status, 204);
    // Signed deliveries are limited to sixty a minute.
    let statuses: Vec<_> = (0..130)
        .map(|_| deliver(&fixture, &form, &body, &body_signature(&form, &body)).status)
        .collect();
    assert!(statuses.contains(&429), "{statuses:?}");
    let limited = fixture.http.get("/stats").json()["notices"]["limited"].clone();
    assert!(limited.as_u64().unwrap() > 1, "{limited}");

    let flags: Vec<_> = fixture.flags.iter().map(String::as_str).collect();
    let Server { process, folder, .. } = fixture.server;
    process.signal_and_finish("KILL");
    for file in ["websub.db", "websub.db-wal", "websub.db-shm"] {
        let _ = fs::remove_file(folder.path().join("tidings-data").join(file));
    }
    fixture.server = Server::start_in(folder, &flags, |_| ());
    let resubscribed = fixture.hub_request(1);
    assert_eq!(resubscribed.get("hub.topic"), form.get("hub.topic"));
    assert_ne!(resubscribed.callback_path(), form.callback_path());
}

// PROTOCOL: V4
#[test]
#[ignore = "needs foreign programs"]
fn an_rsscloud_notice_triggers_a_fetch() {
    let fixture = FeedFixture::start(&HubLink::Cloud, &[]);
    let form = fixture.hub_request(0);
    assert_eq!(
        (form.get("protocol"), form.get("url1")),
        ("http-post", fixture.feed_url().as_str())
    );
    let path = form.get("path").to_owned();
    let port: u16 = form.get("port").parse().unwrap();
    assert_eq!(fixture.http.authority(), format!("{}:{port}", form.get("domain")));
    let challenge = format!("{path}?url={}&challenge=abc", fixture.feed_url());
    let got = fixture.http.get(&challenge);
    assert_eq!((got.status, got.body.as_str()), (200, "abc"));
    let other = format!("{path}?url=http://127.0.0.1:9/&challenge=abc");
    assert_eq!(fixture.http.get(&other).status, 404);
    fixture.wait_for_poll_interval("4s");

    let notify = |url: &str| {
        let form = format!("url={url}");
        fixture
            .http
            .send_body("POST", &path, "application/x-www-form-urlencoded", &[], &form)
            .status
    };
    assert_eq!(notify("http://127.0.0.1:9/"), 404);
    fixture.write_items(&["one", "old"]);
    assert_eq!(notify(&fixture.feed_url()), 204);
    wait_until("the item", || (fixture.published_count("one") == 1).then_some(()));
    fixture.wait_for_poll_interval("4s");
}

#[test]
#[ignore = "needs foreign programs"]
fn an_rsscloud_registration_ends_silently_with_the_watch() {
    let fixture = FeedFixture::start(&HubLink::Cloud, &[]);
    let path = fixture.hub_request(0).get("path").to_owned();
    fixture.wait_for_poll_interval("4s");
    run_at(&fixture.server, &["watch-feed", &fixture.feed_url(), "--stop"]).expect_code(0);
    wait_until("the end of the schedule", || fixture.poll_interval().is_none().then_some(()));
    let url = format!("url={}", fixture.feed_url());
    let kind = "application/x-www-form-urlencoded";
    assert_eq!(fixture.http.send_body("POST", &path, kind, &[], &url).status, 404);
    assert_eq!(fixture.http.get(&format!("{path}?{url}&challenge=abc")).status, 404);
    // rssCloud has no unsubscription, so the cloud is contacted again only when the feed is watched
    // again.
    let often = ["--every", "1s", "--min", "1s", "--max", "4s"];
    run_at(&fixture.server, &[&["watch-feed", &fixture.feed_url()][..], &often].concat())
        .expect_code(0);
    fixture.write_items(&["one", "old"]);
    let again = fixture.hub_request(1).get("path").to_owned();
    assert_ne!(again, path);
    assert_eq!(fixture.http.get(&format!("{again}?{url}&challenge=abc")).body, "abc");
    assert_eq!(
        fixture.http.get(&format!("{path}?{url}&challenge=abc")).status,
        404,
        "the old callback does not exist"
    );
}

/// Publishes the event of a crawler that has found a hub, for a watched feed.
#[track_caller]
fn publish_found_hub(server: &Server, feed: &str, hub: &str) {
    let mut connection = LineConnection::connect_client(server.address);
    // As if a crawler had joined it.
    connection.request("GROUP create crawlers");
    connection.request_ok(&format!("PUB new-url {feed} every=1h feed=10m-1d"));
    connection.request_ok(&format!("PUB hub-found {feed} hub={hub}"));
}

/// An address for `--http`, and the URL for `--public-url`.
fn free_http_address() -> (String, String) {
    let port = free_port();
    (format!("127.0.0.1:{port}"), format!("http://127.0.0.1:{port}/"))
}

// PROTOCOL: V2
#[test]
#[ignore = "needs foreign programs"]
fn a_hub_redirect_is_followed_unless_it_leads_to_a_private_address() {
    let (listen, public) = free_http_address();
    let hub = CallbackServer::start();
    let allowed = "--allow-private=127.0.0.1/32";
    let server = Server::start(&["broker", "--http", &listen, "--public-url", &public, allowed]);
    publish_found_hub(&server, "http://blog.example/f", &hub.url("307", "hub"));
    let requests = hub.first_requests(2);
    assert_eq!([&*requests[0].path, &requests[1].path], ["/307/hub", "/202/moved"]);
    assert_eq!(requests[0].body, requests[1].body);
    assert_eq!(FormFields::parse(&requests[1]).get("hub.mode"), "subscribe");
    // A redirect with 308 to an address that is not allowed.
    publish_found_hub(&server, "http://blog.example/g", &hub.url("308", "hub"));
    assert_eq!(hub.first_requests(3)[2].path, "/308/hub");
    server.process.wait_for_line_with("127.0.0.2");
    server.process.wait_for_line_with("private");
    assert_eq!(hub.requests_so_far().len(), 3);
}

// PROTOCOL: V4
#[test]
#[ignore = "needs foreign programs"]
fn a_delivery_on_a_full_disk_is_accepted_at_the_retry() {
    let (listen, public) = free_http_address();
    let hub = CallbackServer::start();
    let disk = SmallDisk::mount(24);
    let server = disk.start_broker_with(&[
        "--http",
        &listen,
        "--public-url",
        &public,
        "--allow-private",
        "--hook-events=1",
    ]);
    let http = HttpClient::new(&server);
    publish_found_hub(&server, "http://blog.example/f", &hub.url("202", "hub"));
    let form = FormFields::parse(&hub.first_requests(1)[0]);
    let verification = format!(
        "{}?hub.mode=subscribe&hub.topic=http://blog.example/f&hub.challenge=abc&hub.lease_seconds=9999",
        form.callback_path()
    );
    let book = disk.lock_database("websub.db");
    assert_eq!(http.get(&verification).status, 503, "the database is locked");
    drop(book);
    assert_eq!(http.get(&verification).body, "abc");
    let deliver_all = |items: &[&str]| {
        let body = rss_feed(items, "");
        let signature = format!("X-Hub-Signature: {}", body_signature(&form, &body));
        http.send_body("POST", &form.callback_path(), "application/rss+xml", &[&signature], &body)
    };
    let deliver = |item| deliver_all(&[item]);
    assert_eq!(deliver("before").status, 204);
    let mut connection = LineConnection::connect_client(server.address);
    disk.fill_except(0);
    wait_until("a full disk", || {
        let answer = connection.request(&format!("PUB log {}", "x".repeat(50_000)));
        answer.starts_with("-ERR full").then_some(())
    });
    let got = wait_until("a rejected delivery", || {
        let got = deliver("meanwhile");
        (got.status != 204).then_some(got)
    });
    assert_eq!((got.status, got.header("retry-after")), (503, Some("10")));
    disk.free_space();
    wait_until("the hub's next attempt", || (deliver("meanwhile").status == 204).then_some(()));
    let events = ReceivedEvents::read_all(server.address, "post-ready", "end-of-items").events;
    let of =
        |item: &str| events.iter().filter(|(_, it)| it.contains(&format!(" item={item} "))).count();
    assert_eq!((of("before"), of("meanwhile")), (1, 1));

    // The limit is a thousand, and few are used; it refills by one a minute.
    let many: Vec<_> = (0..1900).map(|item| format!("n{item}")).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    assert_eq!(deliver_all(&many[..900]).status, 204);
    let refused = deliver_all(&many[900..]);
    assert_eq!(refused.status, 429);
    let wait: u32 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!(wait > 3600, "Retry-After of {wait} s for 900 items above the limit");

    // These are all responses of the path, except those that every path has.
    for method in ["GET", "POST"] {
        let elsewhere = ["--header", "Host: evil.example"];
        assert_eq!(http.request(method, &form.callback_path(), &elsewhere).status, 403);
        assert_eq!(
            http.request(method, &form.callback_path(), &[]).status,
            404,
            "unsigned or invalid"
        );
    }
    let with_length = |length: &str| {
        let length = format!("content-length: {length}");
        let arguments = ["--header", &length, "--header", "expect:", "--data-binary", "x"];
        http.request("POST", &form.callback_path(), &arguments).status
    };
    assert_eq!((with_length("9"), with_length("99999999")), (408, 413));
    wait_until("the rate limit of deliveries", || (deliver("again").status == 429).then_some(()));
    wait_until("the rate limit of unknown paths", || {
        (http.get("/websub/made-up").status == 429).then_some(())
    });
    let path = "/websub/made-up";
    let wrong = openapi::responses_to_a_wrong_token(&[("GET", path), ("POST", path)]);
    openapi::expect_documented_below(&http, "/websub/", wrong);
}

// PROTOCOL: V2
#[test]
#[ignore = "needs foreign programs"]
fn refusing_hubs_fall_back_to_the_next_one_and_to_rsscloud() {
    let fixture = FeedFixture::start(&HubLink::SeveralHubs(&["403", "202", "500"]), &[]);
    let requests = fixture.hub.first_requests(2);
    assert_eq!([&*requests[0].path, &requests[1].path], ["/403/403", "/202/202"]);
    let (first, second) = (fixture.hub_request(0), fixture.hub_request(1));
    assert_ne!(first.get("hub.secret"), second.get("hub.secret"), "each hub gets its own secret");
    assert_eq!(fixture.http.get(&first.callback_path()).status, 404);
    confirm_subscription(&fixture, &second, "1000");
    fixture.wait_for_poll_interval("4s");
    let body = rss_feed(&["one", "old"], "");
    assert_eq!(deliver(&fixture, &second, &body, &body_signature(&second, &body)).status, 204);
    wait_until("the first items", || (fixture.published_count("old") == 1).then_some(()));
    assert_eq!(fixture.published_count("one"), 1);

    // The second hub ends the subscription, too. The third one fails for now, so the cloud is not
    // contacted yet.
    let denied =
        format!("{}?hub.mode=denied&hub.topic={}", second.callback_path(), fixture.feed_url());
    assert_eq!(fixture.http.get(&denied).status, 200);
    assert_eq!(fixture.hub.first_requests(3)[2].path, "/500/500");
    assert_eq!(deliver(&fixture, &second, &body, &body_signature(&second, &body)).status, 404);
    // Polling is as before.
    wait_until("polling as before", || (fixture.poll_interval()? != "4s").then_some(()));

    let fixture = FeedFixture::start(&HubLink::SeveralHubs(&["403", "410"]), &[]);
    let paths: Vec<_> =
        fixture.hub.first_requests(3).into_iter().map(|request| request.path).collect();
    assert_eq!(paths, ["/403/403", "/410/410", "/200/cloud"]);
    fixture.wait_for_poll_interval("4s");
}

#[test]
#[ignore = "needs foreign programs"]
fn a_hub_at_a_private_address_is_not_contacted() {
    let (listen, public) = free_http_address();
    let hub = CallbackServer::start();
    let flags = ["broker", "--http", &listen, "--public-url", &public];
    let server = Server::start(&flags);
    let mut connection = LineConnection::connect_client(server.address);
    connection.request("GROUP create crawlers");
    connection.request("PUB new-url http://blog.example/f every=1h feed=10m-1d");
    let found = format!("PUB hub-found http://blog.example/f hub={}", hub.url("202", "hub"));
    connection.request_ok(&found);
    server.process.wait_for_line_with("private");
    assert!(hub.requests_so_far().is_empty());
}
