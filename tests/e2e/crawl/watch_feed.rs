//! A watched feed, seen from its server and from the topic of its items.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::nc::nc_all;
use crate::support::origin::{Answer, Hit, Origin, Site, html, whole};
use crate::support::process::{Running, Server, at, json_at, tidings};
use crate::support::talk::{FAREWELL, value};
use crate::support::wait::until;

/// A feed with so many items, the newest first, and their pages.
fn answer(hit: &Hit, items: usize) -> Option<Answer> {
    if hit.path.starts_with("/item/") {
        return Some(html(&format!("<title>{}</title>", hit.path)));
    }
    if hit.path != "/feed" {
        return None;
    }
    let tag = format!("\"{items}\"");
    let headers = format!("ETag: {tag}\r\nContent-Type: application/rss+xml\r\n");
    if hit.header("If-None-Match") == Some(&tag) {
        return Some(whole("304 Not Modified", &headers, ""));
    }
    let items = (0..items)
        .rev()
        .map(|item| format!("<item><guid>item-{item}</guid><link>/item/{item}</link></item>"));
    let items: String = items.collect();
    Some(whole(
        "200 OK",
        &headers,
        &format!("<rss version=\"2.0\"><channel><title>News</title>{items}</channel></rss>"),
    ))
}

fn looks(origin: &Origin) -> Vec<Hit> {
    origin.record().0.into_iter().filter(|hit| hit.path == "/feed").collect()
}

/// Waits for one look more than there have been.
#[track_caller]
fn wait_for_a_look(origin: &Origin) -> Hit {
    let before = looks(origin).len();
    until("a look at the feed", || looks(origin).into_iter().nth(before))
}

#[test]
fn each_item_is_announced_once_and_its_page_is_fetched_once() {
    let items = Arc::new(AtomicUsize::new(2));
    let origin = Origin::serve_with(Site::default(), {
        let items = Arc::clone(&items);
        move |hit| answer(hit, items.load(Ordering::SeqCst))
    });
    let feed = origin.url(0, "/feed");
    let server = Server::up(&["--allow-private"]);
    let words = ["sub", "post-ready", "--from", "first", "--broker", &server.text()];
    let sub = Running::start(&mut tidings(server.folder.path(), words));
    let bounds = ["--every", "1s", "--min", "200ms", "--max", "2s"];
    at(&server, &[&["watch-feed", &feed], &bounds[..]].concat()).expect_code(0);
    sub.stdout_lines(2);
    // Nothing has changed: it is only asked.
    assert_eq!(wait_for_a_look(&origin).header("If-None-Match"), Some("\"2\""));
    items.store(3, Ordering::SeqCst);
    sub.stdout_lines(3);

    // Of itself it is not looked at again within this test.
    let hour = ["--every", "1h", "--min", "1h", "--max", "1h"];
    let every = |server: &Server| json_at(server, &["group", "schedules"])[0]["every"].clone();
    let before = looks(&origin).len();
    at(&server, &[&["watch-feed", &feed], &hour[..]].concat()).expect_code(0);
    until("the longer interval", || (every(&server) == "1h").then_some(()));
    until("the look that begins it", || looks(&origin).into_iter().nth(before));
    items.store(4, Ordering::SeqCst);
    assert_eq!(nc_all(server.address, format!("{feed}\n")).last().unwrap(), FAREWELL);
    sub.stdout_lines(4);

    let fetched = |item: usize| {
        let path = format!("/item/{item}");
        origin.record().0.iter().filter(|hit| hit.path == path).count()
    };
    until("the pages of the items", || (0..4).all(|item| fetched(item) > 0).then_some(()));
    drop(sub);
    let server = server.restart("TERM", &["up", "--allow-private"]);
    let before = looks(&origin).len();
    nc_all(server.address, format!("{feed}\n"));
    let look = until("a look after the restart", || looks(&origin).into_iter().nth(before));
    assert_eq!(look.header("If-None-Match"), Some("\"4\""));
    items.store(5, Ordering::SeqCst);
    nc_all(server.address, format!("{feed}\n"));
    until("the page of the last item", || (fetched(4) > 0).then_some(()));
    // A look that was under way when that was said has not changed it.
    assert_eq!(every(&server), "1h");
    at(&server, &["watch-feed", &feed, "--stop"]).expect_code(0);
    let schedules = || json_at(&server, &["group", "schedules"]);
    until("the end of the schedule", || schedules().is_empty().then_some(()));

    // Behind all that was announced.
    at(&server, &["pub", "post-ready", "the end"]).expect_code(0);
    let heard = at(&server, &["sub", "post-ready", "--from", "first", "--count", "6"]);
    let heard = heard.expect_code(0).stdout();
    assert_eq!(heard[5], "the end", "{heard:?}");
    for (item, event) in heard[..5].iter().enumerate() {
        assert!(event.starts_with(&(origin.url(0, &format!("/item/{item}")) + " ")), "{heard:?}");
        assert_eq!(value(event, "item"), format!("item-{item}"));
        assert_eq!(value(event, "source"), feed);
        assert_eq!(fetched(item), 1, "of {item}");
    }
}

#[test]
fn a_feed_that_has_moved_is_looked_at_as_often_as_something_is_new() {
    let origin = Origin::serve_with(Site::default(), |hit| match &*hit.path {
        "/moved" => Some(whole("302 Found", "Location: /feed\r\n", "")),
        _ => answer(hit, 1),
    });
    let (moved, feed) = (origin.url(0, "/moved"), origin.url(0, "/feed"));
    let server = Server::up(&["--allow-private"]);
    let bounds = ["--every", "1s", "--min", "200ms", "--max", "2s"];
    at(&server, &[&["watch-feed", &moved], &bounds[..]].concat()).expect_code(0);
    let schedules = || json_at(&server, &["group", "schedules"]);
    until("a longer interval", || (schedules()[0]["every"] == "2s").then_some(()));
    assert_eq!(schedules().len(), 1);
    assert_eq!(schedules()[0]["url"], moved);
    let heard = at(&server, &["sub", "post-ready", "--from", "first", "--count", "1"]);
    assert_eq!(value(&heard.expect_code(0).stdout()[0], "source"), feed);
}
