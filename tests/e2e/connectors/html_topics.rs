//! Pages that have a hub and no feed: nginx serves one, curl delivers what its hub would, and a
//! foreign hub delivers another.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::origin::{Origin, Site, html};
use crate::support::process::{Server, at};
use crate::support::subscriber_scene::{Form, Named, Scene, confirm, deliver_as, page, signed};
use crate::support::talk::Talk;
use crate::support::wait::until;

/// Delivers a page as its hub would, and returns the status.
fn deliver(scene: &Scene, form: &Form, body: &str, signature: &str) -> u16 {
    deliver_as(scene, form, "text/html; charset=utf-8", body, signature).status
}

/// Announcements of the page, which is all that there is.
fn announced(scene: &Scene) -> Vec<String> {
    let items = scene.items();
    let begin = format!("{} item=", scene.nginx.url());
    assert!(items.iter().all(|item| item.starts_with(&begin)), "{items:?}");
    items
}

fn idle(scene: &Scene) {
    until("all looks", || {
        let mut talk = Talk::client(scene.server.address);
        (talk.ask_lines("GROUP tasks crawlers").len() == 1).then_some(())
    });
}

// PROTOCOL: V8
#[test]
fn a_page_with_a_hub_is_announced_once_for_each_delivery_and_polling_is_the_fallback() {
    let scene = Scene::start(&Named::Page, &[]);
    let form = scene.asked(0);
    let hub = scene.hub.url("202", "hub");
    let (topic, file) = (scene.nginx.url(), scene.nginx.folder.path().join("index.html"));
    assert_eq!((form.get("hub.mode"), form.get("hub.topic")), ("subscribe", topic.as_str()));
    until("what is there", || (announced(&scene).len() == 1).then_some(()));
    let two = page(&hub, "two");
    assert_eq!(deliver(&scene, &form, &two, &signed(&form, &two)), 404, "it is not verified yet");
    confirm(&scene, &form, "864000");
    scene.is_looked_at_every("4s");
    assert!(scene.listed().contains(" by 127.0.0.1 for 9 d "), "{}", scene.listed());

    for (body, signature) in
        [(&*two, String::new()), (&two, signed(&form, "guessed")), (&two[1..], signed(&form, &two))]
    {
        assert_eq!(deliver(&scene, &form, body, &signature), 404);
    }
    assert_eq!(announced(&scene).len(), 1);
    // The server shows it later: it is the delivery that is announced.
    assert_eq!(deliver(&scene, &form, &two, &signed(&form, &two)), 204);
    assert_eq!(announced(&scene).len(), 2);
    // The hub comes again; and what no reader sees has changed.
    for body in [&two, &page(&hub, "two")] {
        assert_eq!(deliver(&scene, &form, body, &signed(&form, body)), 204);
    }
    fs::write(&file, page(&hub, "two")).unwrap();
    // It comes back.
    for text in ["one", "two"] {
        let body = page(&hub, text);
        assert_eq!(deliver(&scene, &form, &body, &signed(&form, &body)), 204);
    }
    assert_eq!(announced(&scene).len(), 4);
    let looks = scene.looks_at("/index.html");
    let sha1 = "sha1=0000000000000000000000000000000000000000";
    assert_eq!(deliver(&scene, &form, &two, sha1), 404);
    assert_eq!(deliver(&scene, &form, &two, &signed(&form, &two)), 204);
    until("the look that follows", || (scene.looks_at("/index.html") > looks).then_some(()));
    idle(&scene);
    assert_eq!(announced(&scene).len(), 4, "{:?}", announced(&scene));
    scene.is_looked_at_every("4s");

    // It falls silent: what it does not deliver is found, and it is asked once more.
    let asked = scene.hub.told_so_far().len();
    fs::write(&file, page(&hub, "three")).unwrap();
    until("what was not delivered", || (announced(&scene).len() == 5).then_some(()));
    let again = scene.asked(asked);
    assert_eq!((again.path(), again.get("hub.mode")), (form.path(), "subscribe"));
    until("looks as before", || (scene.every()? != "4s").then_some(()));
    assert!(scene.listed().contains(" polled "), "{}", scene.listed());
}

// PROTOCOL: V8
#[test]
fn a_page_without_a_feed_and_a_hub_is_reported_and_asked_for_no_more_often() {
    let has_hub = Arc::new(AtomicBool::new(false));
    let origin = Origin::serve_with(Site::default(), {
        let has_hub = Arc::clone(&has_hub);
        move |_| {
            let hub = if has_hub.load(Ordering::SeqCst) { "<link rel=hub href=/hub>" } else { "" };
            Some(html(&format!("<title>t</title>{hub}<a href=/x>x</a>")))
        }
    });
    let url = origin.url(0, "/page");
    let server = Server::up(&["--allow-private"]);
    let refused = at(&server, &["watch-feed", &url]).expect_code(1);
    let said = refused.stderr();
    let expected = format!("{url}: no feed and no hub at this URL; give the URL of the feed");
    assert!(said.contains(&expected), "{said}");
    server.process.line_with("no feed and no hub");
    let explained = at(&server, &["explain", &url]).expect_code(0).stdout();
    assert!(explained.join("\n").contains("no_feed_and_no_hub"), "{explained:?}");
    let looks = origin.record().0.iter().filter(|hit| hit.path == "/page").count();
    assert_eq!(looks, 1);
    // It is looked at once more when it is given again, and then there is a hub.
    has_hub.store(true, Ordering::SeqCst);
    at(&server, &["watch-feed", &url]).expect_code(0);
    let heard = at(&server, &["sub", "post-ready", "--from", "first", "--count", "1"]);
    assert!(heard.expect_code(0).stdout()[0].starts_with(&format!("{url} item=")));
    at(&server, &["watch-feed", &url, "--stop"]).expect_code(0);
}
