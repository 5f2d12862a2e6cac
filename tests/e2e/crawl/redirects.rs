//! Redirects that do not end fail, as the origin's log and the events on `page-ready` show.

use std::collections::BTreeSet;

use tempfile::TempDir;

use crate::support::line_connection::{LineConnection, value};
use crate::support::nc::run_nc;
use crate::support::origin::{
    Hit, Origin, OriginResponse, Site, full_response, html_response, redirect,
};
use crate::support::page_database;
use crate::support::process::{Server, run_at, run_tidings};

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

/// A redirect that sets a cookie for its host.
fn with_cookie(target: &str, cookie: &str) -> OriginResponse {
    let headers = format!("Location: {target}\r\nSet-Cookie: {cookie}; Path=/\r\n");
    full_response("302 Found", &headers, "")
}

/// Hosts that show their pages to clients with the cookie `ok=1`:
///
/// - 0, 1: Of two pages in a row, the first or the second one sets it.
/// - 2: It is never accepted.
/// - 3: Each page has a URL of its own that sets it.
/// - 4: Robots may not request the page that sets it.
/// - 5: Another host leads to the page that sets it.
/// - 6: There is another cookie at first, which the page deletes.
fn gate(hit: &Hit) -> Option<OriginResponse> {
    let host = (0..16).find(|host| Site::host(*host) == hit.host)?;
    let on_host = |host, path: &str| {
        let (_, port) = hit.header("Host")?.rsplit_once(':')?;
        Some(format!("http://{}:{port}{path}", Site::host(host)))
    };
    Some(match (host, &*hit.path, hit.header("Cookie")) {
        (4, "/robots.txt", _) => full_response("200 OK", "", "User-agent: *\nDisallow: /check\n"),
        (_, "/robots.txt", _) => return None,
        (0 | 1 | 5 | 6, "/", Some("ok=1")) => html_response("<a href=/inside>i</a>"),
        (0 | 1 | 5 | 6, "/inside", _) | (3, _, Some("ok=1")) => html_response("in"),
        (0 | 1, "/", _) => redirect("/a"),
        (0, "/a", _) => with_cookie("/b", "ok=1"),
        (1, "/a", _) => redirect("/b"),
        (2 | 4, "/", _) => redirect("/check"),
        (3, path, _) if path.starts_with("/check?to=") => with_cookie(&path[10..], "ok=1"),
        (3, path, _) => redirect(&format!("/check?to={path}")),
        (5, "/", _) => redirect(&on_host(15, "/login")?),
        (15, "/login", _) => redirect(&on_host(5, "/set")?),
        (6, "/", None) => redirect("/begin"),
        (6, "/begin", _) => with_cookie("/check", "ok=0"),
        (6, "/", _) => with_cookie("/check", "ok=0; Max-Age=0"),
        (0, "/b", _) | (6, "/check", Some(_)) => redirect("/"),
        (1, "/b", _) | (2 | 6, "/check", _) | (5, "/set", _) => with_cookie("/", "ok=1"),
        _ => return None,
    })
}

#[test]
#[ignore = "needs foreign programs"]
fn with_cookies_a_redirect_may_lead_back() {
    let origin = Origin::serve_with(Site::default(), gate);
    let folder = TempDir::new().unwrap();
    let mut seeds: Vec<_> = [0, 1, 2, 4, 5, 6].map(|host| origin.url(host, "/")).into();
    seeds.extend((0..10).map(|page| origin.url(3, &format!("/p{page}"))));
    let flags = ["crawl", "--allow-private", "--cookies", "--data", "data", "--json"];
    let flags: Vec<_> = flags.into_iter().chain(seeds.iter().map(String::as_str)).collect();
    let crawl = run_tidings(folder.path(), &flags).expect_code(1);
    let requests = origin.request_log();
    let of = |host| {
        let hits = requests.page_requests().filter(move |hit| hit.host == Site::host(host));
        hits.map(|hit| hit.path.as_str()).collect::<Vec<_>>()
    };
    for host in [0, 1] {
        assert_eq!(of(host), ["/", "/a", "/b", "/", "/inside"], "{host}");
    }
    assert_eq!(of(2), ["/", "/check", "/"]);
    assert_eq!((of(3).len(), of(4)), (12, vec!["/"]));
    assert_eq!(of(5), ["/", "/set", "/", "/inside"]);
    assert_eq!(of(6), ["/", "/begin", "/check", "/", "/check", "/", "/inside"]);
    let outcomes = "select outcome, count(*) from pages group by outcome order by outcome";
    let outcomes = page_database::query(&folder.path().join("data"), outcomes).unwrap();
    assert_eq!(
        outcomes,
        ["done|18", "failed|1", "redirect|19", "robots|1"],
        "{:?}",
        crawl.stdout()
    );
    let failed = "select url, error from pages where reason = 'too-many-redirects'";
    let back = format!(
        "{}|a circle of redirects, back to {}",
        origin.url(2, "/"),
        origin.url(2, "/check")
    );
    assert_eq!(page_database::query(&folder.path().join("data"), failed).unwrap(), [back]);
}
