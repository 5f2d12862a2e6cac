//! An operator drops what waits for a host, and changes the order of what waits.

use serde_json::json;

use crate::support::http_client::HttpClient;
use crate::support::line_connection::value;
use crate::support::nc::run_nc;
use crate::support::origin::{Origin, Site, html_response};
use crate::support::process::{Server, run_at, run_json_at};
use crate::support::wait::wait_until;

const UP_COMMAND: [&str; 4] = ["up", "--allow-private", "--delay", "10ms"];

/// Pages of the host that is dropped: more than one command drops.
const DROPPED: u64 = 2_500;

fn start_origin() -> Origin {
    Origin::serve_with(Site::default(), |hit| {
        (hit.path != "/robots.txt").then(|| html_response("a page"))
    })
}

/// A broker and its crawler, with a paused group and a closed job of these URLs.
#[track_caller]
fn start_paused(urls: impl Iterator<Item = String>) -> Server {
    let server = Server::start(&UP_COMMAND);
    run_at(&server, &["group", "pause"]).expect_code(0);
    let urls: Vec<_> = urls.map(|url| format!("JOB add site url={url}\n")).collect();
    let lines = format!("JOB open site\n{}JOB close site\n", urls.concat());
    let answers = run_nc(server.address, lines);
    assert!(answers.last().unwrap().contains(" state=closed "), "{:?}", answers.last());
    server
}

// PROTOCOL: G13
#[test]
#[ignore = "needs foreign programs"]
fn dropped_host_is_never_requested_and_its_job_ends_with_exact_counts() {
    let origin = start_origin();
    let kept = (0..3).map(|page| origin.url(0, &format!("/{page}")));
    let dropped = (0..DROPPED).map(|page| origin.url(1, &format!("/{page}")));
    let server = start_paused(kept.chain(dropped));
    let host = Site::host(1).to_string();

    let listed = run_json_at(&server, &["group", "tasks", "--all", "--key", &host]);
    assert_eq!(listed.len() as u64, DROPPED);
    let purge = ["group", "purge", "crawlers", "--key", &host];
    run_at(&server, &purge).expect_code(2);
    let planned = run_at(&server, &[&purge[..], &["--dry-run"]].concat()).expect_code(0);
    assert_eq!(planned.stdout(), ["2,500 waiting entries would be dropped"]);
    let part = run_nc(server.address, format!("GROUP purge crawlers key={host} match=*99$\n"));
    assert_eq!(part.last().unwrap(), "+OK crawlers dropped=25");
    let rest = run_json_at(&server, &[&purge[..], &["--yes"]].concat());
    assert_eq!(rest, [json!({ "group": "crawlers", "dropped": DROPPED - 25 })]);

    let server = server.restart("KILL", &UP_COMMAND);
    let job = run_json_at(&server, &["job", "show", "site"]).remove(0);
    assert_eq!((&job["cancelled"], &job["state"]), (&json!(DROPPED), &json!("closed")), "{job}");
    run_at(&server, &["group", "resume"]).expect_code(0);
    run_at(&server, &["job", "wait", "site"]);
    let http = HttpClient::new(&server);
    let done = wait_until("the end of the job", || {
        Some(http.events("job-done")).filter(|events| !events.is_empty())
    });
    let counts = ["completed", "failed", "cancelled"].map(|name| value(&done[0], name));
    assert_eq!(counts, ["3", "0", &DROPPED.to_string()]);
    let hosts: Vec<_> = origin.request_log().0.iter().map(|hit| hit.host).collect();
    assert_eq!(hosts, [Site::host(0); 4], "robots.txt and three pages");
}

// PROTOCOL: G13
#[test]
#[ignore = "needs foreign programs"]
fn bumped_pages_are_fetched_first_and_lowered_ones_last() {
    let origin = start_origin();
    let paths = ["/1", "/2.pdf", "/3", "/4.pdf", "/5", "/6.pdf"];
    let server = start_paused(paths.iter().map(|path| origin.url(0, path)));
    let bump = ["job", "bump", "site", "--match", "*.pdf$", "--prio", "10"];
    let planned = run_json_at(&server, &[&bump[..], &["--dry-run"]].concat());
    assert_eq!(planned, [json!({ "group": "crawlers", "matched": 3 })]);
    let bumped = run_at(&server, &bump).expect_code(0);
    assert_eq!(bumped.stdout(), ["bumped 3"]);
    let lower = "/groups/crawlers/bump?prio=-5&match=/1$,/4.pdf";
    let lowered = HttpClient::new(&server).request("POST", lower, &[]);
    assert_eq!(lowered.json(), json!({ "group": "crawlers", "bumped": 2 }));

    let server = server.restart("KILL", &UP_COMMAND);
    run_at(&server, &["group", "resume"]).expect_code(0);
    run_at(&server, &["job", "wait", "site"]).expect_code(0);
    let log = origin.request_log();
    assert_eq!(log.paths(), ["/2.pdf", "/6.pdf", "/3", "/5", "/1", "/4.pdf"]);
}

#[test]
#[ignore = "needs foreign programs"]
fn wrong_changes_of_what_waits_are_rejected_and_change_nothing() {
    let origin = start_origin();
    let server = start_paused(std::iter::once(origin.url(0, "/1")));
    let purge = ["group", "purge", "crawlers", "--yes"];
    let bump = ["job", "bump", "site"];
    for (words, code, problem) in [
        (&[&purge[..], &["--match", "pdf"]].concat()[..], 2, "pdf"),
        (&[&purge[..], &["--job", "a b"]].concat(), 2, "a b"),
        (&[&purge[..], &["--job", "none"]].concat(), 1, "none"),
        (&["group", "purge", "none", "--key", "a.example", "--yes"], 1, "none"),
        (&["group", "bump", "none", "--prio", "1"], 1, "none"),
        (&bump, 2, "--prio"),
        (&[&bump[..], &["--prio", "1001"]].concat(), 2, "from -1000 to 1000"),
        (&[&bump[..], &["--prio", "first"]].concat(), 2, "from -1000 to 1000"),
        (&[&bump[..], &["--prio", "1", "--match", "pdf"]].concat(), 2, "pdf"),
        (&["job", "bump", "none", "--prio", "1"], 1, "none"),
    ] {
        run_at(&server, words).expect_code(code).expect_stderr(problem);
    }
    let wrong = ["bump crawlers", "bump crawlers prio=1001", "purge crawlers match=pdf"];
    let wrong = [&wrong[..], &["purge crawlers state=dead", "purge crawlers dry=maybe"]].concat();
    let lines: Vec<_> = wrong.iter().map(|words| format!("GROUP {words}\n")).collect();
    let answers = run_nc(server.address, lines.concat());
    assert_eq!(answers.len(), 1 + wrong.len(), "after the greeting: {answers:?}");
    for (words, answer) in wrong.iter().zip(&answers[1..]) {
        assert!(answer.starts_with("-ERR bad-argument "), "{words}: {answer}");
    }
    let job = run_json_at(&server, &["job", "show", "site"]).remove(0);
    assert_eq!((&job["cancelled"], &job["state"]), (&json!(0), &json!("closed")), "{job}");

    run_at(&server, &["job", "cancel", "site", "--yes"]).expect_code(0);
    for words in
        [&[&purge[..], &["--job", "site"]].concat()[..], &[&bump[..], &["--prio", "1"]].concat()]
    {
        run_at(&server, words).expect_code(1).expect_stderr("done or cancelled");
    }
}
