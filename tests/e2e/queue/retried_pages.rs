//! An operator retries a failed page of a finished job: the page still belongs to the job, and the
//! job counts it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use serde_json::{Value, json};

use crate::support::line_connection::LineConnection;
use crate::support::origin::{Origin, Site, full_response, html_response};
use crate::support::page_database;
use crate::support::process::{Server, run_at, run_json_at};
use crate::support::wait::wait_until;

const UP_COMMAND: [&str; 4] = ["up", "--allow-private", "--delay", "10ms"];

/// The response of the origin for `/page`.
const PAGE_FAILS: u8 = 0;
const PAGE_EXISTS: u8 = 1;
const PAGE_MOVED: u8 = 2;

/// The front page links to `/page`; the returned number selects the response for it.
fn start_origin() -> (Origin, Arc<AtomicU8>) {
    let state = Arc::new(AtomicU8::new(PAGE_FAILS));
    let responses = Arc::clone(&state);
    let origin = Origin::serve_with(Site::default(), move |hit| {
        Some(match (hit.path.as_str(), responses.load(Ordering::SeqCst)) {
            ("/robots.txt", _) => return None,
            ("/page", PAGE_FAILS) => full_response("500 Internal Server Error", "", ""),
            ("/page", PAGE_MOVED) => {
                full_response("301 Moved Permanently", "Location: /moved\r\n", "")
            }
            ("/page", _) => html_response("<a href=/behind>behind</a>"),
            _ => html_response("<a href=/page>page</a>"),
        })
    });
    (origin, state)
}

/// A crawler that has finished the job `site`: one page completed, one failed.
#[track_caller]
fn finish_job(origin: &Origin) -> Server {
    let server = Server::start(&UP_COMMAND);
    run_at(&server, &["group", "set", "crawlers", "max-attempts=1"]).expect_code(0);
    run_at(&server, &["job", "open", "site"]).expect_code(0);
    run_at(&server, &["job", "add", "site", &origin.url(0, "/")]).expect_code(0);
    run_at(&server, &["job", "close", "site"]).expect_code(0);
    let output = run_at(&server, &["job", "wait", "site"]).expect_code(1);
    assert_eq!(output.stdout(), ["done: 1 page, 1 failed"]);
    assert_eq!(job_counts(&server), [1, 0, 1, 2]);
    server
}

/// How many URLs of the job are completed, redirected, failed and found, from `tidings job show`.
#[track_caller]
fn job_counts(server: &Server) -> [u64; 4] {
    let shown: Value = run_json_at(server, &["job", "show", "site"]).remove(0);
    assert_eq!((&shown["state"], &shown["pass"]), (&json!("done"), &json!(1)), "{shown}");
    ["completed", "redirects", "failed", "found"].map(|count| shown[count].as_u64().unwrap())
}

#[track_caller]
fn retry_dead_letters(server: &Server) {
    let retried = run_at(server, &["dead", "retry", "--job", "site"]).expect_code(0);
    assert_eq!(retried.stdout(), ["retried 1"]);
}

#[track_caller]
fn wait_for_counts(server: &Server, expected: [u64; 4]) {
    wait_until(&format!("counts {expected:?}"), || (job_counts(server) == expected).then_some(()));
}

/// Checks that the end of the job is the only event on `job-done`.
#[track_caller]
fn expect_one_job_done(server: &Server) {
    let mut client = LineConnection::connect_client(server.address);
    assert_eq!(client.request("SUB job-done from=first"), "+OK");
    let done = client.read_line();
    assert!(
        done.contains(" site ") && done.contains(" completed=1 redirects=0 failed=1 "),
        "{done}"
    );
    assert_eq!(
        LineConnection::connect_client(server.address).request("PUB job-done next"),
        "+OK 2 1"
    );
    assert_eq!(client.read_line(), "MSG job-done 2 next");
}

// PROTOCOL: G2
#[test]
#[ignore = "needs foreign programs"]
fn a_retried_page_counts_for_its_finished_job() {
    let (origin, state) = start_origin();
    let server = finish_job(&origin);
    let mut subscriber = LineConnection::connect_client(server.address);
    assert_eq!(subscriber.request("SUB dead-letter from=first"), "+OK");
    let first = subscriber.read_line();
    retry_dead_letters(&server);
    let again = subscriber.read_line();
    for dead_letter in [first, again] {
        assert!(dead_letter.contains(" job=site pass=1 depth=1"), "{dead_letter}");
    }
    assert_eq!(job_counts(&server), [1, 0, 1, 2], "the retried page must fail again");
    state.store(PAGE_EXISTS, Ordering::SeqCst);
    retry_dead_letters(&server);
    wait_for_counts(&server, [2, 0, 0, 2]);
    let rows = "SELECT outcome, job, pass, depth FROM pages ORDER BY id";
    assert_eq!(
        page_database::query(&server.data_dir(), rows).unwrap(),
        ["done|site|1|0", "done|site|1|1"]
    );
    assert!(!origin.request_log().paths().contains(&"/behind"), "a finished job accepts no links");
    expect_one_job_done(&server);
}

#[test]
#[ignore = "needs foreign programs"]
fn a_retried_page_keeps_its_job_across_a_crash_and_a_redirect() {
    let (origin, state) = start_origin();
    let server = finish_job(&origin);
    run_at(&server, &["group", "pause"]).expect_code(0);
    retry_dead_letters(&server);
    assert_eq!(job_counts(&server), [1, 0, 0, 2], "the retried page must wait");
    state.store(PAGE_MOVED, Ordering::SeqCst);
    let server = server.restart("KILL", &UP_COMMAND);
    run_at(&server, &["group", "resume"]).expect_code(0);
    wait_for_counts(&server, [2, 1, 0, 3]);
    let rows = "SELECT outcome, job FROM pages ORDER BY id";
    let expected = ["done|site", "redirect|site", "done|site"];
    assert_eq!(page_database::query(&server.data_dir(), rows).unwrap(), expected);
    expect_one_job_done(&server);
}
