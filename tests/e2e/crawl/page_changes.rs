//! Whether a page has changed stands in the event about its outcome, and what announced a page in its
//! record.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::Value;

use crate::support::line_connection::{LineConnection, value};
use crate::support::nc::run_nc;
use crate::support::origin::{Origin, OriginResponse, Site, full_response, html_response};
use crate::support::page_database;
use crate::support::postgres::Postgres;
use crate::support::process::{Server, run_tidings};

/// `/` links to `/page`, which may change, and to `/tagged`, which has an `ETag`.
fn start_origin() -> (Origin, Arc<AtomicBool>) {
    let has_changed = Arc::new(AtomicBool::new(false));
    let changes = Arc::clone(&has_changed);
    let requests = AtomicUsize::new(0);
    let origin = Origin::serve_with(Site::default(), move |hit| {
        Some(match hit.path.as_str() {
            "/" => html_response("<a href=/page>page</a> <a href=/tagged>tagged</a>"),
            "/page" if changes.load(Ordering::SeqCst) => html_response("after"),
            "/page" => html_response("before"),
            "/moving" => moving_page(requests.fetch_add(1, Ordering::SeqCst)),
            "/tagged" if hit.header("If-None-Match").is_some() => {
                full_response("304 Not Modified", "ETag: \"x\"\r\n", "")
            }
            "/tagged" => full_response("200 OK", "ETag: \"x\"\r\n", "tagged"),
            _ => return None,
        })
    });
    (origin, has_changed)
}

/// A page of which each answer differs, and which says something else from the fourth on.
fn moving_page(answer: usize) -> OriginResponse {
    let text = if answer < 3 { "before" } else { "after" };
    html_response(&format!(
        "<meta name=csrf content={answer}><script>id = {answer}</script><!-- {answer} ms -->\
         <input type=hidden value={answer}><p>{text}</p> <p>Answer {answer} of many</p>"
    ))
}

/// The next events on `page-ready`: the path of each page with the values of these fields, in the
/// order of the paths.
#[track_caller]
fn events(
    subscriber: &mut LineConnection,
    origin: &Origin,
    count: usize,
    keys: &[&str],
) -> Vec<String> {
    let site = origin.url(0, "");
    let event = |_| {
        let event = subscriber.read_line();
        let url = event.split(' ').find_map(|word| word.strip_prefix(&site)).expect(&event);
        let values = keys.iter().map(|key| format!(" {}", value(&event, key)));
        format!("{url}{}", values.collect::<String>())
    };
    let mut events: Vec<_> = (0..count).map(event).collect();
    events.sort();
    events
}

#[test]
fn the_second_pass_says_which_pages_have_changed() {
    let (origin, has_changed) = start_origin();
    let server = Server::start_up(&["--allow-private"]);
    let mut subscriber = LineConnection::connect_client(server.address);
    assert_eq!(subscriber.request("SUB page-ready from=first"), "+OK");
    let mut pass = || {
        run_tidings(server.folder.path(), &["crawl", &origin.url(0, "/")]).expect_code(0);
        events(&mut subscriber, &origin, 3, &["outcome", "status", "changed"])
    };
    assert_eq!(pass(), ["/ done 200 new", "/page done 200 new", "/tagged done 200 new"]);
    has_changed.store(true, Ordering::SeqCst);
    assert_eq!(pass(), ["/ done 200 no", "/page done 200 yes", "/tagged done 304 no"]);
    assert_eq!(pass(), ["/ done 200 no", "/page done 200 no", "/tagged done 304 no"]);
    // A crawler that starts with these records.
    let server = server.restart("TERM", &["up", "--allow-private"]);
    let mut subscriber = LineConnection::connect_client(server.address);
    assert_eq!(subscriber.request("SUB page-ready"), "+OK");
    has_changed.store(false, Ordering::SeqCst);
    run_tidings(server.folder.path(), &["crawl", &origin.url(0, "/page")]).expect_code(0);
    assert_eq!(events(&mut subscriber, &origin, 1, &["changed"]), ["/page yes"]);
}

#[test]
#[ignore = "needs foreign programs"]
fn what_no_reader_sees_is_no_change() {
    let (origin, _) = start_origin();
    let start = ["up", "--allow-private", "--ignore", "Answer * of"];
    let server = Server::start(&start);
    let mut subscriber = LineConnection::connect_client(server.address);
    assert_eq!(subscriber.request("SUB page-ready from=first"), "+OK");
    for expected in ["/moving new", "/moving no", "/moving no", "/moving yes", "/moving no"] {
        run_nc(server.address, format!("PUB new-url {}\n", origin.url(0, "/moving")));
        assert_eq!(events(&mut subscriber, &origin, 1, &["changed"]), [expected]);
    }
    let count = "select count(distinct hash), count(distinct text_hash) from pages";
    let stored = page_database::query(&server.data_dir(), count);
    assert_eq!(stored.unwrap(), ["5|2"]);
}

#[test]
#[ignore = "needs foreign programs"]
fn an_event_describes_the_stored_page_and_its_record_what_announced_it() {
    let ((origin, _), postgres) = (start_origin(), Postgres::start());
    let url = postgres.url();
    let server = Server::start_up(&[
        "--allow-private",
        "--sqlite",
        "--jsonl=pages.jsonl",
        "--postgres",
        &url,
    ]);
    let mut subscriber = LineConnection::connect_client(server.address);
    assert_eq!(subscriber.request("SUB page-ready from=first"), "+OK");
    let announced = format!("PUB new-url {} item=5%20a source=feed\n", origin.url(0, "/page"));
    run_nc(server.address, announced);
    let keys = ["page", "bytes", "type", "hash", "item", "source"];
    let found = events(&mut subscriber, &origin, 1, &keys);
    // The event comes after the page is safe in all sinks.
    let row = "page, bytes, content_type, hash, item, source";
    let row = format!("select {row} from pages");
    let stored = page_database::query(&server.data_dir(), &row).unwrap();
    let expected = format!("/page {}", stored[0].replace('|', " ").replace("; charset=utf-8", ""));
    assert_eq!(found, [expected]);
    assert!(found[0].ends_with(" 5%20a feed"), "{found:?}");
    assert_eq!(postgres.query(&row), stored);
    let lines = fs::read_to_string(server.folder.path().join("pages.jsonl")).unwrap();
    let line: Value = serde_json::from_str(&lines).unwrap();
    assert_eq!((&line["item"], &line["source"]), (&"5%20a".into(), &"feed".into()));
}
