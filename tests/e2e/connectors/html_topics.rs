//! Pages with a hub and without a feed: nginx serves one, and curl delivers it in place of its hub.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::feed_fixture::{
    FeedFixture, FormFields, HubLink, body_signature, confirm_subscription, deliver_with_type,
    html_page,
};
use crate::support::line_connection::LineConnection;
use crate::support::origin::{Origin, Site, html_response};
use crate::support::process::{Server, run_at, run_json_at};
use crate::support::wait::wait_until;

/// Delivers a page in place of its hub, and returns the status.
fn deliver(fixture: &FeedFixture, form: &FormFields, body: &str, signature: &str) -> u16 {
    deliver_with_type(fixture, form, "text/html; charset=utf-8", body, signature).status
}

/// All announcements, which must be about the page.
fn announced_pages(fixture: &FeedFixture) -> Vec<String> {
    let items = fixture.published_items();
    let begin = format!("{} item=", fixture.nginx.url());
    assert!(items.iter().all(|item| item.starts_with(&begin)), "{items:?}");
    items
}

fn wait_until_idle(fixture: &FeedFixture) {
    wait_until("all fetches", || {
        let mut connection = LineConnection::connect_client(fixture.server.address);
        (connection.request_lines("GROUP tasks crawlers").len() == 1).then_some(())
    });
}

// PROTOCOL: V8
#[test]
#[ignore = "needs foreign programs"]
fn a_page_is_announced_once_per_delivery_and_polling_is_the_fallback() {
    let fixture = FeedFixture::start(&HubLink::PageWithoutFeed, &[]);
    let form = fixture.hub_request(0);
    let hub = fixture.hub.url("202", "hub");
    let (topic, file) = (fixture.nginx.url(), fixture.nginx.folder.path().join("index.html"));
    assert_eq!((form.get("hub.mode"), form.get("hub.topic")), ("subscribe", topic.as_str()));
    wait_until("the first announcement", || (announced_pages(&fixture).len() == 1).then_some(()));
    let two = html_page(&hub, "two");
    assert_eq!(
        deliver(&fixture, &form, &two, &body_signature(&form, &two)),
        404,
        "not verified yet"
    );
    confirm_subscription(&fixture, &form, "864000");
    fixture.wait_for_poll_interval("1h");
    assert!(fixture.watch_list().contains(" by 127.0.0.1 for 9 d "), "{}", fixture.watch_list());

    for (body, signature) in [
        (&*two, String::new()),
        (&two, body_signature(&form, "guessed")),
        (&two[1..], body_signature(&form, &two)),
    ] {
        assert_eq!(deliver(&fixture, &form, body, &signature), 404);
    }
    assert_eq!(announced_pages(&fixture).len(), 1);
    // The server still has the old page: the delivered one is announced.
    assert_eq!(deliver(&fixture, &form, &two, &body_signature(&form, &two)), 204);
    assert_eq!(announced_pages(&fixture).len(), 2);
    // The hub delivers again; then only an invisible part of the page has changed.
    for body in [&two, &html_page(&hub, "two")] {
        assert_eq!(deliver(&fixture, &form, body, &body_signature(&form, body)), 204);
    }
    fs::write(&file, html_page(&hub, "two")).unwrap();
    // An earlier content comes back, then the later one.
    for text in ["one", "two"] {
        let body = html_page(&hub, text);
        assert_eq!(deliver(&fixture, &form, &body, &body_signature(&form, &body)), 204);
    }
    assert_eq!(announced_pages(&fixture).len(), 4);
    let fetches = fixture.request_count("/index.html");
    let sha1 = "sha1=0000000000000000000000000000000000000000";
    assert_eq!(deliver(&fixture, &form, &two, sha1), 404);
    assert_eq!(deliver(&fixture, &form, &two, &body_signature(&form, &two)), 204);
    wait_until("the fetch that follows", || {
        (fixture.request_count("/index.html") > fetches).then_some(())
    });
    wait_until_idle(&fixture);
    assert_eq!(announced_pages(&fixture).len(), 4, "{:?}", announced_pages(&fixture));
    fixture.wait_for_poll_interval("1h");

    // The hub becomes silent: polling finds a change that it did not deliver, and the broker
    // subscribes again.
    let request_count = fixture.hub.requests_so_far().len();
    fixture.watch(&topic, "4s");
    fixture.wait_for_poll_interval("4s");
    wait_until_idle(&fixture);
    fs::write(&file, html_page(&hub, "three")).unwrap();
    wait_until("the undelivered change", || (announced_pages(&fixture).len() == 5).then_some(()));
    let again = fixture.hub_request(request_count);
    assert_eq!((again.callback_path(), again.get("hub.mode")), (form.callback_path(), "subscribe"));
    wait_until("polling as before", || (fixture.poll_interval()? != "4s").then_some(()));
    assert!(fixture.watch_list().contains(" polled "), "{}", fixture.watch_list());
}

// PROTOCOL: V8
#[test]
fn a_page_without_feed_and_hub_is_reported_and_not_polled() {
    let has_hub = Arc::new(AtomicBool::new(false));
    let origin = Origin::serve_with(Site::default(), {
        let has_hub = Arc::clone(&has_hub);
        move |_| {
            let hub = if has_hub.load(Ordering::SeqCst) { "<link rel=hub href=/hub>" } else { "" };
            Some(html_response(&format!("<title>t</title>{hub}<a href=/x>x</a>")))
        }
    });
    let url = origin.url(0, "/page");
    let server = Server::start_up(&["--allow-private"]);
    let refused = run_at(&server, &["watch-feed", &url]).expect_code(1);
    assert_eq!(refused.stdout(), [""; 0], "it is not watched");
    let stderr = refused.stderr();
    let expected = format!("{url}: no feed and no hub at this URL; give the URL of the feed");
    assert!(stderr.contains(&expected), "{stderr}");
    server.process.wait_for_line_with("no feed and no hub");
    assert!(stderr.contains("It is not watched"), "{stderr}");
    let left = || run_json_at(&server, &["group", "schedules"]).is_empty().then_some(());
    wait_until("nothing is scheduled", left);
    let fetches = origin.request_log().0.iter().filter(|hit| hit.path == "/page").count();
    assert_eq!(fetches, 1);
    // When the URL is given again, the page is fetched once more, and has a hub now.
    has_hub.store(true, Ordering::SeqCst);
    run_at(&server, &["watch-feed", &url]).expect_code(0);
    let events = run_at(&server, &["sub", "post-ready", "--from", "first", "--count", "1"]);
    assert!(events.expect_code(0).stdout()[0].starts_with(&format!("{url} item=")));
    run_at(&server, &["watch-feed", &url, "--stop"]).expect_code(0);
}
