//! Redirects that do not end fail, as the origin's log and the events on `page-ready` show.

use std::collections::BTreeSet;

use crate::support::line_connection::{LineConnection, value};
use crate::support::nc::run_nc;
use crate::support::origin::{Origin, Site, redirect};
use crate::support::page_database;
use crate::support::process::{Server, run_at};

/// Circles of one, two and three pages.
fn start_origin() -> Origin {
    Origin::serve_with(Site::default(), |hit| {
        Some(match hit.path.as_str() {
            "/self" => redirect("/self"),
            "/here" => redirect("/there"),
            "/there" => redirect("/here"),
            "/one" => redirect("/two"),
            "/two" => redirect("/three"),
            "/three" => redirect("/one"),
            _ => return None,
        })
    })
}

#[test]
#[ignore = "needs foreign programs"]
fn a_published_circle_fails_after_ten_redirects() {
    let origin = start_origin();
    let server = Server::start_up(&["--allow-private"]);
    let mut subscriber = LineConnection::connect_client(server.address);
    assert_eq!(subscriber.request("SUB page-ready from=first"), "+OK");
    run_nc(server.address, format!("{} item=5\n", origin.url(0, "/here")));
    let mut events = Vec::new();
    while events.len() < 11 {
        let event = subscriber.read_line();
        assert_eq!(value(&event, "item"), "5");
        events.push((value(&event, "outcome").to_owned(), event));
    }
    let (last, hops) = events.split_last().unwrap();
    assert!(hops.iter().all(|(outcome, _)| outcome == "redirect"), "{events:#?}");
    let targets = [origin.url(0, "/there"), origin.url(0, "/here")];
    for ((_, event), target) in hops.iter().zip(targets.iter().cycle()) {
        assert_eq!(value(event, "location"), target);
    }
    assert_eq!((&*last.0, value(&last.1, "reason")), ("failed", "too-many-redirects"));
    // A further outcome would come before this event.
    run_at(&server, &["pub", "page-ready", "end"]).expect_code(0);
    assert!(subscriber.read_line().ends_with(" end"));
    assert_eq!(origin.request_log().page_requests().count(), 11);
    let failed = "select status, redirect from pages where reason = 'too-many-redirects'";
    assert_eq!(page_database::query(&server.data_dir(), failed).unwrap(), ["302|"]);
}

#[test]
fn circles_of_a_job_are_failed_pages() {
    let origin = start_origin();
    let server = Server::start_up(&["--allow-private"]);
    run_at(&server, &["job", "open", "site"]).expect_code(0);
    for seed in ["/self", "/here", "/one"] {
        run_at(&server, &["job", "add", "site", &origin.url(0, seed)]).expect_code(0);
    }
    run_at(&server, &["job", "close", "site"]).expect_code(0);
    run_at(&server, &["job", "wait", "site"]).expect_code(1);
    let failed = run_at(&server, &["job", "failed", "site", "--urls"]).expect_code(1);
    let expected = ["/self", "/there", "/three"].map(|path| origin.url(0, path));
    assert_eq!(failed.stdout().into_iter().collect::<BTreeSet<_>>(), expected.into());
    assert_eq!(failed.stderr(), "3 failed: 3 too-many-redirects");
    origin.request_log().expect_no_duplicates();
    assert_eq!(origin.request_log().page_requests().count(), 6);
}
