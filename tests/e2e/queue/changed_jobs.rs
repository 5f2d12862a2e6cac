//! An operator changes a job that runs.

use serde_json::{Value, json};

use crate::support::origin::{Origin, Site, html_response};
use crate::support::process::{Server, run_at, run_json_at};
use crate::support::wait::wait_until;

const UP_COMMAND: [&str; 4] = ["up", "--allow-private", "--delay", "10ms"];
const NARROWING: [&str; 5] = ["job", "set", "site", "--exclude", "/drop/"];

/// Links of the front page below `/keep/` and below `/drop/`.
const KEPT: u64 = 30;
const DROPPED: u64 = 2_000;

fn start_origin() -> Origin {
    let links = |folder, count| {
        let link = move |number| format!("<a href=/{folder}/{number}>{number}</a>");
        (0..count).map(link).collect::<String>()
    };
    let front = links("keep", KEPT) + &links("drop", DROPPED);
    Origin::serve_with(Site::default(), move |hit| match hit.path.as_str() {
        "/robots.txt" => None,
        "/" => Some(html_response(&front)),
        _ => Some(html_response("a page")),
    })
}

#[track_caller]
fn shown(server: &Server) -> Value {
    run_json_at(server, &["job", "show", "site"]).remove(0)
}

/// A job that has fetched some pages and is paused, with no page in work.
#[track_caller]
fn start_paused(origin: &Origin) -> Server {
    let server = Server::start(&UP_COMMAND);
    run_at(&server, &["job", "open", "site"]).expect_code(0);
    run_at(&server, &["job", "add", "site", &origin.url(0, "/")]).expect_code(0);
    run_at(&server, &["job", "close", "site"]).expect_code(0);
    origin.wait_for_hits(5);
    run_at(&server, &["job", "pause", "site"]).expect_code(0);
    wait_until("no page is in work", || (shown(&server)["processing"] == 0).then_some(()));
    server
}

// PROTOCOL: J2
#[test]
fn a_narrowed_job_requests_what_its_dry_run_left() {
    let origin = start_origin();
    let server = start_paused(&origin);
    let requests_before = origin.request_count() as u64;
    let dry = run_json_at(&server, &[&NARROWING[..], &["--dry-run"]].concat()).remove(0);
    let (dropped, waiting) = (dry["would-drop"].as_u64().unwrap(), dry["of"].as_u64().unwrap());
    let examples = dry["examples"].as_array().unwrap();
    assert_eq!(examples.len(), 20, "{dry}");
    assert!(examples.iter().all(|url| url.as_str().unwrap().contains("/drop/")), "{dry}");
    let text = run_at(&server, &[&NARROWING[..], &["--dry-run"]].concat()).expect_code(0);
    assert!(text.stdout()[0].contains(" waiting URLs would be dropped"), "{:?}", text.stdout());
    let before = shown(&server);
    assert_eq!(before["pending"].as_u64().unwrap() + before["queued"].as_u64().unwrap(), waiting);
    assert_eq!((&before["exclude"], &before["scope"]), (&Value::Null, &json!(0)), "unchanged");

    run_at(&server, &NARROWING).expect_code(0);
    assert_eq!(shown(&server)["exclude"], "/drop/");
    let server = server.restart("KILL", &UP_COMMAND);
    run_at(&server, &["job", "resume", "site"]).expect_code(0);
    let done = run_at(&server, &["job", "wait", "site"]).expect_code(0);
    assert!(done.stdout()[0].contains(&format!("{} out of scope", grouped(dropped))), "{done:?}");
    let new = origin.request_log().0.split_off(usize::try_from(requests_before).unwrap());
    let new = new.iter().filter(|hit| hit.path != "/robots.txt");
    assert_eq!(new.clone().count() as u64, waiting - dropped, "all others were requested");
    assert!(new.clone().all(|hit| hit.path.starts_with("/keep/")), "and nothing else");
    let pages = run_json_at(&server, &["job", "pages", "site"]);
    let out_of_scope = pages.iter().filter(|page| page["outcome"] == "scope").count();
    assert_eq!(out_of_scope as u64, dropped, "each is announced");
    assert_eq!(pages.len() as u64, 1 + KEPT + DROPPED);
}

/// With commas between groups of three digits.
fn grouped(number: u64) -> String {
    match (number / 1000, number % 1000) {
        (0, rest) => rest.to_string(),
        (thousands, rest) => format!("{thousands},{rest:03}"),
    }
}
