//! A watched feed, from the view of its server and of the topic with its items.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::support::line_connection::{FAREWELL, value};
use crate::support::nc::run_nc;
use crate::support::origin::{Hit, Origin, OriginResponse, Site, full_response, html_response};
use crate::support::process::{Server, run_at, run_json_at, start_at};
use crate::support::wait::wait_until;

/// A feed with this number of items, newest first, and their pages.
fn respond(hit: &Hit, items: usize) -> Option<OriginResponse> {
    if hit.path.starts_with("/item/") {
        return Some(html_response(&format!("<title>{}</title>", hit.path)));
    }
    if hit.path != "/feed" {
        return None;
    }
    let tag = format!("\"{items}\"");
    let headers = format!("ETag: {tag}\r\nContent-Type: application/rss+xml\r\n");
    if hit.header("If-None-Match") == Some(&tag) {
        return Some(full_response("304 Not Modified", &headers, ""));
    }
    let items = (0..items)
        .rev()
        .map(|item| format!("<item><guid>item-{item}</guid><link>/item/{item}</link></item>"));
    let items: String = items.collect();
    Some(full_response(
        "200 OK",
        &headers,
        &format!("<rss version=\"2.0\"><channel><title>News</title>{items}</channel></rss>"),
    ))
}

fn feed_requests(origin: &Origin) -> Vec<Hit> {
    origin.request_log().0.into_iter().filter(|hit| hit.path == "/feed").collect()
}

/// Waits for one more request for the feed.
#[track_caller]
fn wait_for_feed_request(origin: &Origin) -> Hit {
    let before = feed_requests(origin).len();
    wait_until("a request for the feed", || feed_requests(origin).into_iter().nth(before))
}

#[test]
#[ignore = "needs foreign programs"]
fn each_item_is_published_and_fetched_once() {
    let items = Arc::new(AtomicUsize::new(2));
    let origin = Origin::serve_with(Site::default(), {
        let items = Arc::clone(&items);
        move |hit| respond(hit, items.load(Ordering::SeqCst))
    });
    let feed = origin.url(0, "/feed");
    let server = Server::start_up(&["--allow-private"]);
    let sub = start_at(&server, &["sub", "post-ready", "--from", "first"]);
    let bounds = ["--every", "1s", "--min", "200ms", "--max", "2s"];
    run_at(&server, &[&["watch-feed", &feed], &bounds[..]].concat()).expect_code(0);
    sub.wait_for_stdout_lines(2);
    // The crawler sends a conditional request.
    assert_eq!(wait_for_feed_request(&origin).header("If-None-Match"), Some("\"2\""));
    items.store(3, Ordering::SeqCst);
    sub.wait_for_stdout_lines(3);

    // With this interval the feed is not polled again within the test.
    let hour = ["--every", "1h", "--min", "1h", "--max", "1h"];
    let every = |server: &Server| run_json_at(server, &["group", "schedules"])[0]["every"].clone();
    let before = feed_requests(&origin).len();
    run_at(&server, &[&["watch-feed", &feed], &hour[..]].concat()).expect_code(0);
    wait_until("the longer interval", || (every(&server) == "1h").then_some(()));
    wait_until("the poll that starts it", || feed_requests(&origin).into_iter().nth(before));
    items.store(4, Ordering::SeqCst);
    assert_eq!(run_nc(server.address, format!("{feed}\n")).last().unwrap(), FAREWELL);
    sub.wait_for_stdout_lines(4);

    let fetched = |item: usize| {
        let path = format!("/item/{item}");
        origin.request_log().0.iter().filter(|hit| hit.path == path).count()
    };
    wait_until("the pages of the items", || (0..4).all(|item| fetched(item) > 0).then_some(()));
    drop(sub);
    let server = server.restart("TERM", &["up", "--allow-private"]);
    let before = feed_requests(&origin).len();
    run_nc(server.address, format!("{feed}\n"));
    let poll =
        wait_until("a poll after the restart", || feed_requests(&origin).into_iter().nth(before));
    assert_eq!(poll.header("If-None-Match"), Some("\"4\""));
    items.store(5, Ordering::SeqCst);
    run_nc(server.address, format!("{feed}\n"));
    wait_until("the page of the last item", || (fetched(4) > 0).then_some(()));
    // A poll that was running when the interval changed has not overwritten it.
    assert_eq!(every(&server), "1h");
    run_at(&server, &["watch-feed", &feed, "--stop"]).expect_code(0);
    let schedules = || run_json_at(&server, &["group", "schedules"]);
    wait_until("the end of the schedule", || schedules().is_empty().then_some(()));

    // The end marker, after all items.
    run_at(&server, &["pub", "post-ready", "the end"]).expect_code(0);
    let received = run_at(&server, &["sub", "post-ready", "--from", "first", "--count", "6"]);
    let received = received.expect_code(0).stdout();
    assert_eq!(received[5], "the end", "{received:?}");
    for (item, event) in received[..5].iter().enumerate() {
        assert!(
            event.starts_with(&(origin.url(0, &format!("/item/{item}")) + " ")),
            "{received:?}"
        );
        assert_eq!(value(event, "item"), format!("item-{item}"));
        assert_eq!(value(event, "source"), feed);
        assert_eq!(fetched(item), 1, "requests for item {item}");
    }
    // An unchanged feed is reported with what is known of it, as a page is.
    let sub = start_at(&server, &["sub", "page-ready", "--from", "first"]);
    let unchanged = sub.wait_for_line("an unchanged feed", |line| {
        (line.starts_with(&feed) && line.contains(" status=304 ")).then(|| line.to_owned())
    });
    assert_eq!(value(&unchanged, "type"), "application/rss+xml");
    assert_eq!(value(&unchanged, "hash").len(), 64, "{unchanged}");
    assert_ne!(value(&unchanged, "bytes"), "0", "{unchanged}");
}

#[test]
fn a_feed_that_moves_is_watched_at_its_new_url_until_it_is_gone() {
    let is_gone = Arc::new(AtomicBool::new(false));
    let origin = Origin::serve_with(Site::default(), {
        let is_gone = Arc::clone(&is_gone);
        move |hit| match &*hit.path {
            "/moved" => Some(full_response("301 Moved", "Location: /feed\r\n", "")),
            "/feed" if is_gone.load(Ordering::SeqCst) => Some(full_response("410 Gone", "", "")),
            _ => respond(hit, 1),
        }
    });
    let (moved, feed) = (origin.url(0, "/moved"), origin.url(0, "/feed"));
    let server = Server::start_up(&["--allow-private"]);
    let bounds = ["--every", "1s", "--min", "200ms", "--max", "1s"];
    run_at(&server, &[&["watch-feed", &moved], &bounds[..]].concat()).expect_code(0);
    let watched = || -> Vec<_> {
        let schedules = run_json_at(&server, &["group", "schedules"]).into_iter();
        schedules.map(|schedule| schedule["url"].as_str().unwrap().to_owned()).collect()
    };
    wait_until("the schedule of the new URL", || (watched() == [&*feed]).then_some(()));
    server.process.wait_for_line_with("the feed has moved for good");
    wait_for_feed_request(&origin);
    is_gone.store(true, Ordering::SeqCst);
    server.process.wait_for_line_with("the feed is gone for good");
    wait_until("the end of the schedule", || watched().is_empty().then_some(()));
}

#[test]
fn watch_feed_says_what_is_watched_and_what_is_not() {
    let origin = Origin::serve_with(Site::default(), |hit| match &*hit.path {
        "/page" => {
            let head = "<link rel=alternate type=application/rss+xml href=/feed>";
            Some(html_response(&format!("<html><head>{head}</head></html>")))
        }
        "/missing" => Some(full_response("404 Not Found", "", "")),
        _ => respond(hit, 1),
    });
    let server = Server::start_up(&["--allow-private"]);
    let [page, feed, missing, other] =
        ["/page", "/feed", "/missing", "/other"].map(|path| origin.url(0, path));
    let half_hour = ["--every", "30m", "--min", "30m", "--max", "30m"];
    run_at(&server, &[&["watch-feed", &feed], &half_hour[..]].concat()).expect_code(0);
    // A page that names a watched feed changes nothing about that feed.
    let expected = format!("{page} is a page; its feed {feed} is watched instead, every 30m now");
    wait_until("the name of the feed", || {
        let named = run_at(&server, &["watch-feed", &page, "--every", "20m"]).expect_code(0);
        let is_named = named.stderr().contains(&expected);
        assert!(!is_named || named.stdout().is_empty(), "the page is not watched: {named:?}");
        is_named.then_some(())
    });

    let failed = run_at(&server, &["watch-feed", &missing]).expect_code(0).stderr();
    assert!(failed.contains(&format!("{missing}: the read failed; ")), "{failed}");

    // A URL that is fetched repeatedly as a page is not a feed.
    run_at(&server, &["pub", "new-url", &format!("{other} every=1h")]).expect_code(0);
    let schedules = || run_json_at(&server, &["group", "schedules"]).len();
    wait_until("both feeds and the page", || (schedules() == 3).then_some(()));
    let list = run_at(&server, &["watch-feed", "--list"]).expect_code(0).stdout().join("\n");
    assert!(list.contains(&feed) && list.contains(&missing) && !list.contains(&other), "{list}");
    let refused = run_at(&server, &["watch-feed", "--stop", &other, &feed]).expect_code(1);
    assert!(refused.stderr().contains(&format!("{other} is not watched")), "{refused:?}");
    assert_eq!(refused.stdout(), [format!("{feed} is no longer watched")]);
    wait_until("the end of the feed", || (schedules() == 2).then_some(()));
}
