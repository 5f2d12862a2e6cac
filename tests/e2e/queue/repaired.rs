//! An operator retries a failed page of a finished job: the page stays a page of that job, and the
//! job counts it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use serde_json::{Value, json};

use crate::support::origin::{Origin, Site, html, whole};
use crate::support::pages;
use crate::support::process::{Server, at, json_at};
use crate::support::talk::Talk;
use crate::support::wait::until;

const UP: [&str; 4] = ["up", "--allow-private", "--delay", "10ms"];

/// What the origin answers for the page `/page`.
const FAILS: u8 = 0;
const IS_THERE: u8 = 1;
const HAS_MOVED: u8 = 2;

/// The front page links to `/page`, which answers as the number says.
fn origin() -> (Origin, Arc<AtomicU8>) {
    let state = Arc::new(AtomicU8::new(FAILS));
    let answers = Arc::clone(&state);
    let origin = Origin::serve_with(Site::default(), move |hit| {
        Some(match (hit.path.as_str(), answers.load(Ordering::SeqCst)) {
            ("/robots.txt", _) => return None,
            ("/page", FAILS) => whole("500 Internal Server Error", "", ""),
            ("/page", HAS_MOVED) => whole("301 Moved Permanently", "Location: /moved\r\n", ""),
            ("/page", _) => html("<a href=/behind>behind</a>"),
            _ => html("<a href=/page>page</a>"),
        })
    });
    (origin, state)
}

/// A crawler that has finished the job `site`: one page completed, one failed.
#[track_caller]
fn finish_site(origin: &Origin) -> Server {
    let server = Server::start(&UP);
    at(&server, &["group", "set", "crawlers", "max-attempts=1"]).expect_code(0);
    at(&server, &["job", "open", "site"]).expect_code(0);
    at(&server, &["job", "add", "site", &origin.url(0, "/")]).expect_code(0);
    at(&server, &["job", "close", "site"]).expect_code(0);
    let ended = at(&server, &["job", "wait", "site"]).expect_code(1);
    assert_eq!(ended.stdout(), ["done: 1 page, 1 failed"]);
    assert_eq!(counts(&server), [1, 0, 1, 2]);
    server
}

/// How many URLs of the job were completed, redirected, failed and found, by `tidings job show`.
#[track_caller]
fn counts(server: &Server) -> [u64; 4] {
    let shown: Value = json_at(server, &["job", "show", "site"]).remove(0);
    assert_eq!((&shown["state"], &shown["pass"]), (&json!("done"), &json!(1)), "{shown}");
    ["completed", "redirects", "failed", "found"].map(|count| shown[count].as_u64().unwrap())
}

#[track_caller]
fn retry(server: &Server) {
    let retried = at(server, &["dead", "retry", "--job", "site"]).expect_code(0);
    assert_eq!(retried.stdout(), ["retried 1"]);
}

#[track_caller]
fn until_counted(server: &Server, wanted: [u64; 4]) {
    until(&format!("counts {wanted:?}"), || (counts(server) == wanted).then_some(()));
}

/// The end of the job is the only event on `job-done`.
#[track_caller]
fn expect_one_end(server: &Server) {
    let mut client = Talk::client(server.address);
    assert_eq!(client.ask("SUB job-done from=first"), "+OK");
    let done = client.line();
    assert!(
        done.contains(" site ") && done.contains(" completed=1 redirects=0 failed=1 "),
        "{done}"
    );
    assert_eq!(Talk::client(server.address).ask("PUB job-done next"), "+OK 2 1");
    assert_eq!(client.line(), "MSG job-done 2 next");
}

// PROTOCOL: G2
#[test]
fn a_page_that_is_retried_after_the_end_of_its_job_belongs_to_it() {
    let (origin, state) = origin();
    let server = finish_site(&origin);
    let mut letters = Talk::client(server.address);
    assert_eq!(letters.ask("SUB dead-letter from=first"), "+OK");
    let first = letters.line();
    retry(&server);
    let again = letters.line();
    for letter in [first, again] {
        assert!(letter.contains(" job=site pass=1 depth=1"), "{letter}");
    }
    assert_eq!(counts(&server), [1, 0, 1, 2], "it failed again");
    state.store(IS_THERE, Ordering::SeqCst);
    retry(&server);
    until_counted(&server, [2, 0, 0, 2]);
    let rows = "SELECT outcome, job, pass, depth FROM pages ORDER BY id";
    assert_eq!(pages::query(&server.data(), rows).unwrap(), ["done|site|1|0", "done|site|1|1"]);
    assert!(!origin.record().paths().contains(&"/behind"), "a finished job takes no links");
    expect_one_end(&server);
}

#[test]
fn a_retried_page_belongs_to_its_job_also_behind_a_crash_and_a_redirect() {
    let (origin, state) = origin();
    let server = finish_site(&origin);
    at(&server, &["group", "pause"]).expect_code(0);
    retry(&server);
    assert_eq!(counts(&server), [1, 0, 0, 2], "it waits");
    state.store(HAS_MOVED, Ordering::SeqCst);
    let server = server.restart("KILL", &UP);
    at(&server, &["group", "resume"]).expect_code(0);
    until_counted(&server, [2, 1, 0, 3]);
    let rows = "SELECT outcome, job FROM pages ORDER BY id";
    let expected = ["done|site", "redirect|site", "done|site"];
    assert_eq!(pages::query(&server.data(), rows).unwrap(), expected);
    expect_one_end(&server);
}
