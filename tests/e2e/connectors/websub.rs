//! Hubs that tell what is new: a feed that nginx serves from a file, a hub that is a script, and
//! curl, which verifies and delivers what the hub would; signed by openssl.

use std::fs;
use std::net::TcpListener;

use crate::http::openapi;
use crate::support::history::Heard;
use crate::support::http::Http;
use crate::support::openssl::hmac;
use crate::support::process::{Server, at};
use crate::support::receiver::Receiver;
use crate::support::small_disk::SmallDisk;
use crate::support::subscriber_scene::{
    Form, Named, Scene, confirm, deliver, feed, signed, verify,
};
use crate::support::talk::Talk;
use crate::support::wait::until;

const RSS: &str = "Content-Type: application/rss+xml";

// PROTOCOL: V2, V3, V4, V5, V7
#[test]
fn what_a_hub_delivers_is_announced_once_and_polling_is_the_fallback() {
    let scene = Scene::start(&Named::InHead, &[]);
    let form = scene.asked(0);
    let topic = scene.feed_url();
    assert_eq!((form.get("hub.mode"), form.get("hub.topic")), ("subscribe", topic.as_str()));
    assert_eq!(form.get("hub.lease_seconds"), "864000");
    let token = form.path().rsplit('/').next().unwrap().to_owned();
    assert!(token.len() == 64 && form.get("hub.secret").len() == 64, "nobody guesses them");
    until("the first items", || (scene.announced("old") == 1).then_some(()));

    // Who was not asked, or says something else, is told nothing.
    let body = feed(&["one", "old"], "");
    let stranger = scene.http.get("/websub/0000");
    assert_eq!(stranger.status, 404);
    let guessed = "http://127.0.0.1:9/other";
    let long = "x".repeat(2_000);
    let wrong = [
        verify(&scene, &form, "subscribe", guessed, "x", "100"),
        verify(&scene, &form, "unsubscribe", &topic, "x", "100"),
        verify(&scene, &form, "publish", &topic, "x", "100"),
        verify(&scene, &form, "subscribe", &topic, "", "100"),
        verify(&scene, &form, "subscribe", &topic, &long, "100"),
        verify(&scene, &form, "subscribe", &topic, "x", "-1"),
        deliver(&scene, &form, &body, &signed(&form, &body)),
        scene.http.ask("DELETE", &form.path(), &[]),
    ];
    for got in &wrong {
        assert_eq!((got.status, &got.body), (404, &stranger.body));
    }
    assert_eq!(scene.refused(), 1 + wrong.len());
    assert_eq!(scene.announced("one"), 0);

    confirm(&scene, &form, "864000");
    assert_eq!(verify(&scene, &form, "subscribe", &topic, "x", "9").status, 200, "it knows");
    scene.is_looked_at_every("4s");
    assert!(scene.listed().contains(" by 127.0.0.1 for 9 d "), "{}", scene.listed());

    for (body, signature) in [
        (&*body, String::new()),
        (&body, format!("sha256={}", hmac("sha256", "guessed", &body))),
        (&body, format!("sha1={}", hmac("sha1", "guessed", &body))),
        (&body, signed(&form, &body)[..40].to_owned()),
        (&body[1..], signed(&form, &body)),
    ] {
        assert_eq!(deliver(&scene, &form, body, &signature).status, 404);
    }
    // What is signed by SHA-1 says that there is something, and not what.
    let looks = scene.looks();
    let sha1 = format!("sha1={}", hmac("sha1", form.get("hub.secret"), &body));
    assert_eq!(deliver(&scene, &form, &body, &sha1).status, 204);
    until("a look at the feed", || (scene.looks() > looks).then_some(()));
    assert_eq!(scene.announced("one"), 0);
    // The feed itself has not got it yet: it is the hub's delivery that is announced.
    let got = deliver(&scene, &form, &body, &signed(&form, &body));
    assert_eq!((got.status, got.body.as_str()), (204, ""));
    assert_eq!(scene.announced("one"), 1);
    assert_eq!(deliver(&scene, &form, &body, &signed(&form, &body)).status, 204, "again");
    // And the crawler finds it, too.
    scene.write(&["one", "old"]);
    let looks = scene.looks();
    deliver(&scene, &form, &body, &signed(&form, &body));
    until("a look at the feed", || (scene.looks() > looks).then_some(()));
    // Something else comes after that, so that it has been read.
    let body = feed(&["two", "one", "old"], "");
    deliver(&scene, &form, &body, &signed(&form, &body));
    assert_eq!((scene.announced("one"), scene.announced("two")), (1, 1));
    scene.write(&["two", "one", "old"]);
    deliver(&scene, &form, &body, &signed(&form, &body));
    scene.is_looked_at_every("4s");

    // Nothing that was brought forward is still to come.
    until("all looks", || {
        let mut talk = Talk::client(scene.server.address);
        (talk.ask_lines("GROUP tasks crawlers").len() == 1).then_some(())
    });
    // It falls silent: what it does not tell is found, and from then on it is looked for more
    // often.
    let asked = scene.hub.told_so_far().len();
    scene.write(&["three", "two", "one", "old"]);
    until("what nobody has told", || (scene.announced("three") == 1).then_some(()));
    until("looks as before", || (scene.every()? != "4s").then_some(()));
    // It may have lost the subscription, so it is asked for the same once more. That it agrees is
    // no proof.
    let again = scene.asked(asked);
    assert_eq!((again.path(), again.get("hub.mode")), (form.path(), "subscribe"));
    confirm(&scene, &again, "864000");
    assert!(scene.listed().contains(" polled "), "{}", scene.listed());
    for item in ["old", "one", "two", "three"] {
        assert_eq!(scene.announced(item), 1, "{item}");
    }
}

// PROTOCOL: V2, V3
#[test]
fn a_lease_is_renewed_while_the_feed_is_watched_and_outlives_the_broker() {
    let mut scene = Scene::start(&Named::InFeed, &["--websub-lease", "5s"]);
    let form = scene.asked(0);
    confirm(&scene, &form, "5");
    // The same again, after most of it.
    let again = scene.asked(1);
    assert_eq!((again.path(), again.get("hub.mode")), (form.path(), "subscribe"));
    confirm(&scene, &again, "1000");

    let flags: Vec<_> = scene.flags.iter().map(String::as_str).collect();
    scene.server = scene.server.restart("KILL", &flags);
    let body = feed(&["one"], "");
    until("who takes it", || {
        let got = scene.http.try_ask(
            "POST",
            &form.path(),
            &["-H", RSS, "-H", &format!("X-Hub-Signature: {}", signed(&form, &body)), "-d", &body],
        );
        got.ok().filter(|got| got.status == 204)
    });
    assert_eq!(scene.announced("one"), 1);

    // A hub may change its mind.
    let denied = format!("{}?hub.mode=denied&hub.topic={}", form.path(), scene.feed_url());
    assert_eq!(scene.http.get(&denied).status, 200);
    assert_eq!(deliver(&scene, &form, &body, &signed(&form, &body)).status, 404);
}

// PROTOCOL: V6
#[test]
fn what_nobody_watches_any_more_is_unsubscribed() {
    let scene = Scene::start(&Named::ByPage, &[]);
    let form = scene.asked(0);
    assert_eq!(form.get("hub.topic"), scene.feed_url());
    confirm(&scene, &form, "100000");
    scene.is_looked_at_every("4s");
    at(&scene.server, &["watch-feed", &scene.feed_url(), "--stop"]).expect_code(0);
    until("the end of it", || scene.every().is_none().then_some(()));
    let body = feed(&["one"], "");
    assert_eq!(deliver(&scene, &form, &body, &signed(&form, &body)).status, 404);
    assert_eq!(scene.announced("one"), 0);
    let end = scene.asked(1);
    assert_eq!((end.path(), end.get("hub.mode")), (form.path(), "unsubscribe"));
    confirm(&scene, &end, "");
    assert_eq!(scene.http.get(&form.path()).status, 404);
}

#[test]
fn strangers_keep_no_hub_away_and_a_lost_book_is_begun_anew() {
    let mut scene = Scene::start(&Named::InFeed, &[]);
    let form = scene.asked(0);
    confirm(&scene, &form, "100000");
    until("too many of them", || (scene.http.get("/websub/guessed").status == 429).then_some(()));
    let body = feed(&["one"], "");
    // Neither do those who have seen where it comes to.
    until("too many of them", || {
        (deliver(&scene, &form, &body, "sha256=00").status == 429).then_some(())
    });
    assert_eq!(deliver(&scene, &form, &body, &signed(&form, &body)).status, 204);
    // Sixty a minute are enough, however well they are signed.
    let statuses: Vec<_> =
        (0..130).map(|_| deliver(&scene, &form, &body, &signed(&form, &body)).status).collect();
    assert!(statuses.contains(&429), "{statuses:?}");
    let limited = scene.http.get("/stats").json()["notices"]["limited"].clone();
    assert!(limited.as_u64().unwrap() > 1, "{limited}");

    let flags: Vec<_> = scene.flags.iter().map(String::as_str).collect();
    let Server { process, folder, .. } = scene.server;
    process.finish_by("KILL");
    for file in ["websub.db", "websub.db-wal", "websub.db-shm"] {
        let _ = fs::remove_file(folder.path().join("tidings-data").join(file));
    }
    scene.server = Server::start_in(folder, &flags, |_| ());
    let anew = scene.asked(1);
    assert_eq!(anew.get("hub.topic"), form.get("hub.topic"));
    assert_ne!(anew.path(), form.path());
}

// PROTOCOL: V4
#[test]
fn sha1_is_taken_where_that_was_said() {
    let scene = Scene::start(&Named::InHead, &["--websub-sha1"]);
    let form = scene.asked(0);
    confirm(&scene, &form, "1000");
    let body = feed(&["one"], "");
    let sha1 = |secret: &str| format!("sha1={}", hmac("sha1", secret, &body));
    assert_eq!(deliver(&scene, &form, &body, &sha1("guessed")).status, 404);
    assert_eq!(deliver(&scene, &form, &body, &sha1(form.get("hub.secret"))).status, 204);
    assert_eq!(scene.announced("one"), 1);
}

// PROTOCOL: V4
#[test]
fn a_cloud_says_that_there_is_something_new() {
    let scene = Scene::start(&Named::Cloud, &[]);
    let form = scene.asked(0);
    assert_eq!((form.get("protocol"), form.get("url1")), ("http-post", scene.feed_url().as_str()));
    let path = form.get("path").to_owned();
    let port: u16 = form.get("port").parse().unwrap();
    assert_eq!(scene.http.authority(), format!("{}:{port}", form.get("domain")));
    let challenge = format!("{path}?url={}&challenge=abc", scene.feed_url());
    let got = scene.http.get(&challenge);
    assert_eq!((got.status, got.body.as_str()), (200, "abc"));
    let other = format!("{path}?url=http://127.0.0.1:9/&challenge=abc");
    assert_eq!(scene.http.get(&other).status, 404);
    scene.is_looked_at_every("4s");

    let notify = |url: &str| {
        let form = format!("url={url}");
        scene.http.with_body("POST", &path, "application/x-www-form-urlencoded", &[], &form).status
    };
    assert_eq!(notify("http://127.0.0.1:9/"), 404);
    scene.write(&["one", "old"]);
    assert_eq!(notify(&scene.feed_url()), 204);
    until("the item", || (scene.announced("one") == 1).then_some(()));
    scene.is_looked_at_every("4s");
}

#[test]
fn a_cloud_is_left_without_a_word_when_nobody_watches_any_more() {
    let scene = Scene::start(&Named::Cloud, &[]);
    let path = scene.asked(0).get("path").to_owned();
    scene.is_looked_at_every("4s");
    at(&scene.server, &["watch-feed", &scene.feed_url(), "--stop"]).expect_code(0);
    until("the end of it", || scene.every().is_none().then_some(()));
    let url = format!("url={}", scene.feed_url());
    let kind = "application/x-www-form-urlencoded";
    assert_eq!(scene.http.with_body("POST", &path, kind, &[], &url).status, 404);
    assert_eq!(scene.http.get(&format!("{path}?{url}&challenge=abc")).status, 404);
    // There is no word for it, so it hears of us when the feed is watched again.
    let often = ["--every", "1s", "--min", "1s", "--max", "4s"];
    at(&scene.server, &[&["watch-feed", &scene.feed_url()][..], &often].concat()).expect_code(0);
    scene.write(&["one", "old"]);
    let again = scene.asked(1).get("path").to_owned();
    assert_ne!(again, path);
    assert_eq!(scene.http.get(&format!("{again}?{url}&challenge=abc")).body, "abc");
    assert_eq!(scene.http.get(&format!("{path}?{url}&challenge=abc")).status, 404, "it is gone");
}

/// What a crawler says which has found this hub, for a feed that is watched.
#[track_caller]
fn hub_found(server: &Server, feed: &str, hub: &str) {
    let mut talk = Talk::client(server.address);
    assert!(talk.ask(&format!("PUB new-url {feed} every=1h feed=10m-1d")).starts_with("+OK"));
    assert!(talk.ask(&format!("PUB hub-found {feed} hub={hub}")).starts_with("+OK"));
}

/// An address for `--http`, and the URL for `--public-url`.
fn free_http() -> (String, String) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    (format!("127.0.0.1:{port}"), format!("http://127.0.0.1:{port}/"))
}

// PROTOCOL: V2
#[test]
fn a_hub_that_has_moved_is_asked_the_same_where_it_is_unless_that_is_inside() {
    let (listen, public) = free_http();
    let hub = Receiver::start();
    let allowed = "--allow-private=127.0.0.1/32";
    let server = Server::start(&["broker", "--http", &listen, "--public-url", &public, allowed]);
    hub_found(&server, "http://blog.example/f", &hub.url("307", "hub"));
    let told = hub.told(2);
    assert_eq!([&*told[0].path, &told[1].path], ["/307/hub", "/202/moved"]);
    assert_eq!(told[0].body, told[1].body);
    assert_eq!(Form::of(&told[1]).get("hub.mode"), "subscribe");
    // By 308, to an address that is not allowed.
    hub_found(&server, "http://blog.example/g", &hub.url("308", "hub"));
    assert_eq!(hub.told(3)[2].path, "/308/hub");
    server.process.line_with("127.0.0.2");
    server.process.line_with("private");
    assert_eq!(hub.told_so_far().len(), 3);
}

// PROTOCOL: V4
#[test]
fn a_delivery_that_cannot_be_kept_is_heard_when_the_hub_comes_again() {
    let (listen, public) = free_http();
    let hub = Receiver::start();
    let disk = SmallDisk::mount(24);
    let server = disk.broker_with(&[
        "--http",
        &listen,
        "--public-url",
        &public,
        "--allow-private",
        "--hook-events=1",
    ]);
    let http = Http::of(&server);
    hub_found(&server, "http://blog.example/f", &hub.url("202", "hub"));
    let form = Form::of(&hub.told(1)[0]);
    let verification = format!(
        "{}?hub.mode=subscribe&hub.topic=http://blog.example/f&hub.challenge=abc&hub.lease_seconds=9999",
        form.path()
    );
    let book = disk.hold_database("websub.db");
    assert_eq!(http.get(&verification).status, 503, "it cannot be noted");
    drop(book);
    assert_eq!(http.get(&verification).body, "abc");
    let deliver_all = |items: &[&str]| {
        let body = feed(items, "");
        let signature = format!("X-Hub-Signature: {}", signed(&form, &body));
        http.with_body("POST", &form.path(), "application/rss+xml", &[&signature], &body)
    };
    let deliver = |item| deliver_all(&[item]);
    assert_eq!(deliver("before").status, 204);
    let mut talk = Talk::client(server.address);
    disk.fill_but(0);
    until("a full disk", || {
        let answer = talk.ask(&format!("PUB log {}", "x".repeat(50_000)));
        answer.starts_with("-ERR full").then_some(())
    });
    let got = until("a delivery that is not taken", || {
        let got = deliver("meanwhile");
        (got.status != 204).then_some(got)
    });
    assert_eq!((got.status, got.header("retry-after")), (503, Some("10")));
    disk.make_room();
    until("the hub's next try", || (deliver("meanwhile").status == 204).then_some(()));
    let heard = Heard::all_of(server.address, "post-ready", "end-of-items").events;
    let of =
        |item: &str| heard.iter().filter(|(_, it)| it.contains(&format!(" item={item} "))).count();
    assert_eq!((of("before"), of("meanwhile")), (1, 1));

    // A few of a thousand have come, and there is one a minute.
    let many: Vec<_> = (0..1900).map(|item| format!("n{item}")).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    assert_eq!(deliver_all(&many[..900]).status, 204);
    let refused = deliver_all(&many[900..]);
    assert_eq!(refused.status, 429);
    let wait: u32 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!(wait > 3600, "{wait} s for 900 too many");

    // That is all that it may be answered, but for what others are.
    for method in ["GET", "POST"] {
        let elsewhere = ["--header", "Host: evil.example"];
        assert_eq!(http.ask(method, &form.path(), &elsewhere).status, 403);
        assert_eq!(http.ask(method, &form.path(), &[]).status, 404, "unsigned, or about nothing");
    }
    let with_length = |length: &str| {
        let length = format!("content-length: {length}");
        let arguments = ["--header", &length, "--header", "expect:", "--data-binary", "x"];
        http.ask("POST", &form.path(), &arguments).status
    };
    assert_eq!((with_length("9"), with_length("99999999")), (408, 413));
    until("too many deliveries", || (deliver("again").status == 429).then_some(()));
    until("too many strangers", || (http.get("/websub/made-up").status == 429).then_some(()));
    let path = "/websub/made-up";
    let wrong = openapi::with_a_wrong_token(&[("GET", path), ("POST", path)]);
    openapi::expect_all_below(&http, "/websub/", wrong);
}

// PROTOCOL: V2
#[test]
fn a_hub_that_refuses_is_followed_by_the_next_one_and_all_of_them_by_the_cloud() {
    let scene = Scene::start(&Named::Several(&["403", "202", "500"]), &[]);
    let told = scene.hub.told(2);
    assert_eq!([&*told[0].path, &told[1].path], ["/403/403", "/202/202"]);
    let (first, second) = (scene.asked(0), scene.asked(1));
    assert_ne!(first.get("hub.secret"), second.get("hub.secret"), "the first one knows its own");
    assert_eq!(scene.http.get(&first.path()).status, 404);
    confirm(&scene, &second, "1000");
    scene.is_looked_at_every("4s");
    let body = feed(&["one", "old"], "");
    assert_eq!(deliver(&scene, &second, &body, &signed(&second, &body)).status, 204);
    until("the first items", || (scene.announced("old") == 1).then_some(()));
    assert_eq!(scene.announced("one"), 1);

    // It, too, changes its mind. The third one has trouble, so the cloud is not asked yet.
    let denied = format!("{}?hub.mode=denied&hub.topic={}", second.path(), scene.feed_url());
    assert_eq!(scene.http.get(&denied).status, 200);
    assert_eq!(scene.hub.told(3)[2].path, "/500/500");
    assert_eq!(deliver(&scene, &second, &body, &signed(&second, &body)).status, 404);
    // Polling is as before.
    until("looks as before", || (scene.every()? != "4s").then_some(()));

    let scene = Scene::start(&Named::Several(&["403", "410"]), &[]);
    let paths: Vec<_> = scene.hub.told(3).into_iter().map(|told| told.path).collect();
    assert_eq!(paths, ["/403/403", "/410/410", "/200/cloud"]);
    scene.is_looked_at_every("4s");
}

#[test]
fn a_hub_inside_is_not_asked() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (listen, public) = (format!("127.0.0.1:{port}"), format!("http://127.0.0.1:{port}/"));
    let hub = Receiver::start();
    let flags = ["broker", "--http", &listen, "--public-url", &public];
    let server = Server::start(&flags);
    let mut talk = Talk::client(server.address);
    talk.ask("PUB new-url http://blog.example/f every=1h feed=10m-1d");
    let found = format!("PUB hub-found http://blog.example/f hub={}", hub.url("202", "hub"));
    assert!(talk.ask(&found).starts_with("+OK"));
    server.process.line_with("private");
    assert!(hub.told_so_far().is_empty());
}
