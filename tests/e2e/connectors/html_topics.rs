//! Pages that have a hub and no feed: nginx serves one, curl delivers what its hub would, and a
//! foreign hub delivers another.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::feed_fixture::{
    FeedFixture, FormFields, HubLink, body_signature, confirm_subscription, deliver_with_type,
    html_page,
};
use crate::support::line_connection::LineConnection;
use crate::support::origin::{Origin, Site, html_response};
use crate::support::process::{Server, run_at};
use crate::support::wait::wait_until;

/// Delivers a page as its hub would, and returns the status.
fn deliver(scene: &FeedFixture, form: &FormFields, body: &str, signature: &str) -> u16 {
    deliver_with_type(scene, form, "text/html; charset=utf-8", body, signature).status
}

/// Announcements of the page, which is all that there is.
fn announced_pages(scene: &FeedFixture) -> Vec<String> {
    let items = scene.published_items();
    let begin = format!("{} item=", scene.nginx.url());
    assert!(items.iter().all(|item| item.starts_with(&begin)), "{items:?}");
    items
}

fn wait_until_idle(scene: &FeedFixture) {
    wait_until("all looks", || {
        let mut talk = LineConnection::connect_client(scene.server.address);
        (talk.request_lines("GROUP tasks crawlers").len() == 1).then_some(())
    });
}

// PROTOCOL: V8
#[test]
fn a_page_is_announced_once_per_delivery_and_polling_is_the_fallback() {
    let scene = FeedFixture::start(&HubLink::PageWithoutFeed, &[]);
    let form = scene.hub_request(0);
    let hub = scene.hub.url("202", "hub");
    let (topic, file) = (scene.nginx.url(), scene.nginx.folder.path().join("index.html"));
    assert_eq!((form.get("hub.mode"), form.get("hub.topic")), ("subscribe", topic.as_str()));
    wait_until("what is there", || (announced_pages(&scene).len() == 1).then_some(()));
    let two = html_page(&hub, "two");
    assert_eq!(
        deliver(&scene, &form, &two, &body_signature(&form, &two)),
        404,
        "it is not verified yet"
    );
    confirm_subscription(&scene, &form, "864000");
    scene.wait_for_poll_interval("4s");
    assert!(scene.watch_list().contains(" by 127.0.0.1 for 9 d "), "{}", scene.watch_list());

    for (body, signature) in [
        (&*two, String::new()),
        (&two, body_signature(&form, "guessed")),
        (&two[1..], body_signature(&form, &two)),
    ] {
        assert_eq!(deliver(&scene, &form, body, &signature), 404);
    }
    assert_eq!(announced_pages(&scene).len(), 1);
    // The server shows it later: it is the delivery that is announced.
    assert_eq!(deliver(&scene, &form, &two, &body_signature(&form, &two)), 204);
    assert_eq!(announced_pages(&scene).len(), 2);
    // The hub comes again; and what no reader sees has changed.
    for body in [&two, &html_page(&hub, "two")] {
        assert_eq!(deliver(&scene, &form, body, &body_signature(&form, body)), 204);
    }
    fs::write(&file, html_page(&hub, "two")).unwrap();
    // It comes back.
    for text in ["one", "two"] {
        let body = html_page(&hub, text);
        assert_eq!(deliver(&scene, &form, &body, &body_signature(&form, &body)), 204);
    }
    assert_eq!(announced_pages(&scene).len(), 4);
    let looks = scene.request_count("/index.html");
    let sha1 = "sha1=0000000000000000000000000000000000000000";
    assert_eq!(deliver(&scene, &form, &two, sha1), 404);
    assert_eq!(deliver(&scene, &form, &two, &body_signature(&form, &two)), 204);
    wait_until("the look that follows", || {
        (scene.request_count("/index.html") > looks).then_some(())
    });
    wait_until_idle(&scene);
    assert_eq!(announced_pages(&scene).len(), 4, "{:?}", announced_pages(&scene));
    scene.wait_for_poll_interval("4s");

    // It falls silent: what it does not deliver is found, and it is asked once more.
    let asked = scene.hub.requests_so_far().len();
    fs::write(&file, html_page(&hub, "three")).unwrap();
    wait_until("what was not delivered", || (announced_pages(&scene).len() == 5).then_some(()));
    let again = scene.hub_request(asked);
    assert_eq!((again.callback_path(), again.get("hub.mode")), (form.callback_path(), "subscribe"));
    wait_until("looks as before", || (scene.poll_interval()? != "4s").then_some(()));
    assert!(scene.watch_list().contains(" polled "), "{}", scene.watch_list());
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
    let said = refused.stderr();
    let expected = format!("{url}: no feed and no hub at this URL; give the URL of the feed");
    assert!(said.contains(&expected), "{said}");
    server.process.wait_for_line_with("no feed and no hub");
    let explained = run_at(&server, &["explain", &url]).expect_code(0).stdout();
    assert!(explained.join("\n").contains("no_feed_and_no_hub"), "{explained:?}");
    let looks = origin.request_log().0.iter().filter(|hit| hit.path == "/page").count();
    assert_eq!(looks, 1);
    // It is looked at once more when it is given again, and then there is a hub.
    has_hub.store(true, Ordering::SeqCst);
    run_at(&server, &["watch-feed", &url]).expect_code(0);
    let heard = run_at(&server, &["sub", "post-ready", "--from", "first", "--count", "1"]);
    assert!(heard.expect_code(0).stdout()[0].starts_with(&format!("{url} item=")));
    run_at(&server, &["watch-feed", &url, "--stop"]).expect_code(0);
}
