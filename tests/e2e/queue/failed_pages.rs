//! `tidings job failed`, `pages` and `retry`: which pages of a job failed and why, and that exactly
//! these are fetched again.

use std::collections::BTreeSet;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use serde_json::json;

use crate::access::audit::wait_for_record;
use crate::support::http_client::HttpClient;
use crate::support::line_connection::LineConnection;
use crate::support::origin::{Origin, OriginResponse, Site, full_response, html_response};
use crate::support::page_database;
use crate::support::process::{Process, Server, run_at, run_json_at, run_tidings, tidings_command};
use crate::support::scripted_broker::start_scripted_broker;
use crate::support::wait::time_left;

/// Paths that fail, each in another way.
const BAD: [&str; 5] = ["/gone", "/broken", "/cut", "/far", "/moved"];

/// A front page with links to good pages and to bad ones, of which `/far` is on another host. Once
/// the returned flag is set, all pages exist except `/gone`; each links to a page of its own, and
/// `/moved` redirects.
fn start_origin() -> (Origin, Arc<AtomicBool>) {
    let is_mended = Arc::new(AtomicBool::new(false));
    let mended = Arc::clone(&is_mended);
    let origin = Origin::serve_with(Site::default(), move |hit| {
        let port = hit.header("Host")?.rsplit_once(':')?.1.to_owned();
        Some(match (hit.path.as_str(), mended.load(Ordering::SeqCst)) {
            ("/robots.txt", _) => return None,
            ("/gone", _) => full_response("404 Not Found", "", ""),
            ("/broken" | "/moved", false) => full_response("500 Internal Server Error", "", ""),
            ("/far", false) => full_response("403 Forbidden", "", ""),
            ("/cut", false) => OriginResponse::Raw(b"HTTP/1.1 2".to_vec()),
            ("/moved", true) => full_response("301 Moved Permanently", "Location: /target\r\n", ""),
            ("/", _) => html_response(&format!(
                "<a href=/gone>1</a><a href=/broken>2</a><a href=/cut>3</a><a href=/moved>4</a>\
                 <a href=/good>5</a><a href=http://{}:{port}/far>6</a>",
                Site::host(1)
            )),
            (path, _) => html_response(&format!("<a href=/behind{path}>more</a>")),
        })
    });
    (origin, is_mended)
}

/// The URLs of the paths, sorted.
fn urls(origin: &Origin, paths: &[&str]) -> Vec<String> {
    let host = |path: &str| u16::from(path == "/far");
    let mut urls: Vec<_> = paths.iter().map(|path| origin.url(host(path), path)).collect();
    urls.sort();
    urls
}

#[track_caller]
fn wait_for_job(server: &Server, name: &str, code: i32) {
    run_at(server, &["job", "wait", name]).expect_code(code);
}

#[test]
fn pages_that_the_origin_fails_are_named_and_fetched_again() {
    let (origin, is_mended) = start_origin();
    let server = Server::start(&["up", "--allow-private", "--delay", "10ms"]);
    run_at(&server, &["group", "set", "crawlers", "max-attempts=1"]).expect_code(0);
    run_at(&server, &["job", "open", "site", "scope=any", "max-depth=1"]).expect_code(0);
    run_at(&server, &["job", "add", "site", &origin.url(0, "/")]).expect_code(0);

    run_at(&server, &["job", "retry", "site"])
        .expect_code(1)
        .expect_stderr("is done: tidings job close site, or tidings job cancel site");
    run_at(&server, &["job", "close", "site"]).expect_code(0);
    wait_for_job(&server, "site", 1);
    let failed = run_at(&server, &["job", "failed", "site", "--urls"]).expect_code(1);
    assert_eq!(failed.stdout(), urls(&origin, &BAD));
    assert_eq!(failed.stderr(), "5 failed: 2 status, 2 try-later, 1 reset");
    let pages = run_at(&server, &["job", "pages", "site"]).expect_code(0);
    assert_eq!(pages.stderr(), "7 pages: 5 failed, 2 done");
    assert_eq!(pages.stdout().len(), 8, "{:#?}", pages.stdout());

    let before = origin.request_count();
    let planned = run_at(&server, &["job", "retry", "site", "--dry-run"]).expect_code(0);
    assert!(planned.stdout()[0].starts_with("5 pages would be fetched again: "));
    assert_eq!(origin.request_count(), before);
    is_mended.store(true, Ordering::SeqCst);
    let retried = run_at(&server, &["job", "retry", "site"]).expect_code(0);
    assert!(retried.stdout()[0].starts_with("site: pass 2, 5 pages: "), "{:?}", retried.stdout());
    wait_for_job(&server, "site", 1);
    let log = origin.request_log();
    let requested: Vec<_> = log.0[before..]
        .iter()
        .map(|hit| hit.path.as_str())
        .filter(|it| *it != "/robots.txt")
        .collect();
    let expected: BTreeSet<_> = BAD.into_iter().chain(["/target"]).collect();
    assert_eq!(requested.len(), expected.len(), "{requested:?}");
    assert_eq!(requested.into_iter().collect::<BTreeSet<_>>(), expected);

    let failed = run_at(&server, &["job", "failed", "site", "--urls"]).expect_code(1);
    assert_eq!(failed.stdout(), urls(&origin, &["/gone"]));
    let first = run_at(&server, &["job", "failed", "site", "--urls", "--pass", "1"]).expect_code(1);
    assert_eq!(first.stdout(), urls(&origin, &BAD));
    let letters = run_json_at(&server, &["dead", "ls"]);
    assert!(letters.iter().all(|letter| letter["url"] == origin.url(0, "/gone")), "{letters:?}");
}

#[test]
#[ignore = "needs foreign programs"]
fn a_page_that_is_fetched_again_keeps_what_announced_it() {
    let (origin, is_mended) = start_origin();
    let server = Server::start_up(&["--allow-private", "--delay", "10ms"]);
    run_at(&server, &["group", "set", "crawlers", "max-attempts=1"]).expect_code(0);
    run_at(&server, &["job", "open", "site"]).expect_code(0);
    let seed = format!("{} job=site item=5%20a source=feed", origin.url(0, "/broken"));
    run_at(&server, &["pub", "new-url", &seed]).expect_code(0);
    run_at(&server, &["job", "close", "site"]).expect_code(0);
    wait_for_job(&server, "site", 1);
    is_mended.store(true, Ordering::SeqCst);
    run_at(&server, &["job", "retry", "site"]).expect_code(0);
    wait_for_job(&server, "site", 0);
    let stored = "select pass, status, item, source from pages order by pass";
    let stored = page_database::query(&server.data_dir(), stored).unwrap();
    assert_eq!(stored, ["1|500|5%20a|feed", "2|200|5%20a|feed"]);
}

#[test]
fn summary_of_a_crawl_names_the_command_for_its_failures() {
    let (origin, _) = start_origin();
    let server = Server::start(&["up", "--allow-private", "--delay", "10ms"]);
    run_at(&server, &["group", "set", "crawlers", "max-attempts=1"]).expect_code(0);
    let crawled = run_at(&server, &["crawl", &origin.url(0, "/gone")]).expect_code(1);
    let printed = crawled.stderr();
    let command = printed.lines().find_map(|line| line.strip_prefix("which ones: tidings "));
    let command: Vec<_> = command.expect("a command").split(' ').collect();
    let failed = run_tidings(server.folder.path(), &command).expect_code(1);
    assert!(failed.stdout()[1].ends_with(&origin.url(0, "/gone")), "{:?}", failed.stdout());
}

/// A job of these pages, of which a worker reports each with the rest of its line.
struct ReportedJob {
    server: Server,
    worker: LineConnection,
}

impl ReportedJob {
    #[track_caller]
    fn start() -> Self {
        let server = Server::start(&["broker", "--audit", "audit.log"]);
        let mut worker = LineConnection::connect_client(server.address);
        let create = "GROUP create crawlers delay=0ms max-attempts=1";
        worker.request_ok(create);
        worker.request_ok("JOIN crawlers credit=1");
        Self { server, worker }
    }

    #[track_caller]
    fn run_pass(&mut self, replies: &[(&str, &str)]) {
        self.worker.request_ok("JOB open docs");
        // Replies begin after the last answer, so no task arrives between answers.
        self.worker.request_ok("GROUP pause crawlers");
        for (url, _) in replies {
            self.worker.request_ok(&format!("JOB add docs url={url}"));
        }
        self.worker.request_ok("JOB close docs");
        self.resume();
        for _ in replies {
            self.report(replies);
        }
    }

    #[track_caller]
    fn resume(&mut self) {
        let mut operator = LineConnection::connect_client(self.server.address);
        operator.request_ok("GROUP resume crawlers");
    }

    /// Answers the next task.
    #[track_caller]
    fn report(&mut self, replies: &[(&str, &str)]) {
        let task = self.worker.read_line();
        let words: Vec<_> = task.split(' ').collect();
        let reply = replies.iter().find(|(url, _)| *url == words[4]).map(|(_, reply)| *reply);
        let (verb, report) =
            reply.unwrap_or_else(|| panic!("unexpected: {task}")).split_once(' ').unwrap();
        self.worker.request_ok(&format!("{verb} {} {report}", words[1]));
    }

    fn run(&self, arguments: &[&str], code: i32) -> (Vec<String>, String) {
        let output = run_at(&self.server, arguments).expect_code(code);
        (output.stdout(), output.stderr())
    }
}

const A: (&str, &str) = ("http://a.org/", "ACK outcome=done status=200 bytes=5 type=text/html");
const B: (&str, &str) =
    ("http://b.org/", "ACK outcome=failed status=404 reason=status error=HTTP_status_404");
const C: (&str, &str) =
    ("http://c.org/", "ACK outcome=failed status=410 reason=status error=HTTP_status_410");
const D: (&str, &str) = ("http://d.org/", "NACK reason=dns error=no_such_host");
const E: (&str, &str) = ("http://e.org/", "ACK outcome=failed");
/// With a word of its worker.
const F: (&str, &str) = ("http://f.org/", "ACK outcome=failed reason=no-price");

#[test]
fn failures_are_listed_and_retried_by_their_reasons() {
    let mut job = ReportedJob::start();
    job.run_pass(&[A, B, C, D, E, F]);
    wait_for_job(&job.server, "docs", 1);
    let (listed, summary) = job.run(&["job", "failed", "docs"], 1);
    assert_eq!(
        listed,
        [
            "STATUS  REASON    ERROR            URL",
            "   404  status    HTTP status 404  http://b.org/",
            "   410  status    HTTP status 410  http://c.org/",
            "     -  dns       no such host     http://d.org/",
            "     -  unknown   -                http://e.org/",
            "     -  no-price  -                http://f.org/",
        ]
    );
    assert_eq!(summary, "5 failed: 2 status, 1 dns, 1 no-price, 1 unknown");
    let (listed, _) = job.run(&["job", "failed", "docs", "--reason", "dns,no-price", "--urls"], 1);
    assert_eq!(listed, [D.0, F.0]);
    let (_, summary) = job.run(&["job", "failed", "docs", "--reason", "timeout"], 0);
    assert_eq!(summary, "nothing failed");
    for command in ["failed", "pages", "retry"] {
        let wrong = ["job", command, "docs", "--reason", "dns,nosuch"];
        let (_, error) = job.run(&wrong, 2);
        let expected = "--reason nosuch: expected one of address, bad-http, bomb, busy, calendar, ";
        assert!(error.contains(expected) && error.ends_with(", url-too-long"), "{error}");
    }
    let page = &run_json_at(&job.server, &["job", "pages", "docs"])[0];
    let expected = json!(["http://a.org/", "done", 200, 5, "text/html", 1]);
    let fields = ["url", "outcome", "status", "bytes", "type", "pass"];
    assert_eq!(json!(fields.map(|field| &page[field])), expected);

    let (queued, _) = job.run(&["job", "retry", "docs", "--reason", "status,dns"], 0);
    assert_eq!(queued, ["docs: pass 2, 3 pages: 2 status, 1 dns"]);
    let found = [B, (C.0, A.1), (D.0, A.1)];
    for _ in found {
        job.report(&found);
    }
    wait_for_job(&job.server, "docs", 1);
    assert_eq!(job.run(&["job", "failed", "docs", "--urls"], 1).0, [B.0]);
    assert_eq!(job.run(&["dead", "ls"], 0).0.len(), 1, "the dead letter of D must be gone");
    let (planned, _) = job.run(&["job", "retry", "docs", "--pass", "1", "--dry-run"], 0);
    assert_eq!(planned, ["5 pages would be fetched again: 2 status, 1 dns, 1 no-price, 1 unknown"]);
}

#[test]
#[ignore = "needs foreign programs"]
fn one_request_over_http_fetches_failed_pages_again() {
    let mut job = ReportedJob::start();
    job.run_pass(&[A, B, C, D]);
    wait_for_job(&job.server, "docs", 1);
    let http = HttpClient::new(&job.server);
    let retry = |query| http.request("POST", &format!("/jobs/docs/retry{query}"), &[]).json();
    assert_eq!(retry("?reason=timeout"), json!({ "job": "docs", "pass": 1, "pages": 0 }));
    assert_eq!(retry("?reason=status,dns"), json!({ "job": "docs", "pass": 2, "pages": 3 }));
    let found = [B, (C.0, A.1), (D.0, A.1)];
    for _ in found {
        job.report(&found);
    }
    wait_for_job(&job.server, "docs", 1);
    assert_eq!(job.run(&["job", "failed", "docs", "--urls"], 1).0, [B.0]);
    assert_eq!(job.run(&["dead", "ls"], 0).0.len(), 1, "the dead letter of D must be gone");
    assert_eq!(retry("?pass=1"), json!({ "job": "docs", "pass": 3, "pages": 3 }));
    let audit = job.server.folder.path().join("audit.log");
    for change in ["JOB open", "GROUP drop", "JOB close"] {
        wait_for_record(&audit, &[("what", "changed"), ("change", change), ("way", "http")]);
    }
}

#[test]
fn page_that_was_repaired_has_not_failed() {
    let mut job = ReportedJob::start();
    job.run_pass(&[A, D]);
    wait_for_job(&job.server, "docs", 1);
    assert_eq!(job.run(&["job", "failed", "docs", "--urls"], 1).0, [D.0]);
    job.run(&["dead", "retry", "--job", "docs"], 0);
    job.report(&[(D.0, A.1)]);
    let (listed, summary) = job.run(&["job", "failed", "docs"], 0);
    assert_eq!((listed, summary.as_str()), (Vec::new(), "nothing failed"));
    assert_eq!(job.run(&["job", "retry", "docs"], 0).0, ["nothing failed"]);
    assert_eq!(
        job.run(&["job", "show", "docs", "--json"], 0).0[0].matches("\"pass\":1").count(),
        1
    );
}

#[test]
fn another_job_of_the_same_name_has_other_pages() {
    let mut job = ReportedJob::start();
    job.run_pass(&[B]);
    wait_for_job(&job.server, "docs", 1);
    job.run(&["job", "delete", "docs", "--yes"], 0);
    for action in ["failed", "retry", "show"] {
        let unknown = job.run(&["job", action, "docs"], 1).1;
        let hint = "; see tidings job ls, or create it with: tidings job open docs";
        assert!(unknown.contains("no job docs") && unknown.contains(hint), "{unknown}");
    }
    job.run_pass(&[A]);
    wait_for_job(&job.server, "docs", 0);
    assert_eq!(job.run(&["job", "failed", "docs"], 0).1, "nothing failed");
    let beyond = job.run(&["job", "pages", "docs", "--pass", "2"], 1).1;
    assert!(beyond.contains("the newest pass of docs is 1"), "{beyond}");
}

#[test]
fn pages_without_events_are_reported_as_missing() {
    let mut job = ReportedJob::start();
    let set = "GROUP set crawlers page-ready=off";
    job.worker.request_ok(set);
    job.run_pass(&[A, B]);
    wait_for_job(&job.server, "docs", 1);
    let (_, notes) = job.run(&["job", "failed", "docs"], 1);
    assert!(notes.contains("only 0 of 1 are known"), "{notes}");
    assert!(notes.ends_with("no failed page is known"), "{notes}");

    job.run_pass(&[A]);
    wait_for_job(&job.server, "docs", 0);
    assert_eq!(job.run(&["job", "failed", "docs"], 0).1, "nothing failed");
    let (_, notes) = job.run(&["job", "failed", "docs", "--pass", "1"], 1);
    assert!(notes.contains("nothing is known of pass 1; its pages have no event"), "{notes}");
    assert!(notes.ends_with("no failed page is known"), "{notes}");
}

/// A relay to the broker that withholds seeds. Returns its address, and reports each seed.
fn start_relay_without_seeds(broker: SocketAddr) -> (String, mpsc::Receiver<()>) {
    let (sender, withheld) = mpsc::channel();
    let (address, _) = start_scripted_broker(move |listener| {
        for client in listener.incoming() {
            let (client, sender) = (client.unwrap(), sender.clone());
            let mut commands = TcpStream::connect(broker).unwrap();
            let mut answers = commands.try_clone().unwrap();
            let mut to_client = client.try_clone().unwrap();
            thread::spawn(move || io::copy(&mut answers, &mut to_client));
            thread::spawn(move || {
                for line in BufReader::new(client).lines() {
                    let Ok(line) = line else { break };
                    if line.contains("JOB add") {
                        let _ = sender.send(());
                    } else if commands.write_all(format!("{line}\n").as_bytes()).is_err() {
                        break;
                    }
                }
            });
        }
    });
    (address, withheld)
}

#[test]
fn an_interrupted_retry_says_that_the_pass_stays_open() {
    let mut job = ReportedJob::start();
    job.run_pass(&[B]);
    wait_for_job(&job.server, "docs", 1);
    let (relay, withheld) = start_relay_without_seeds(job.server.address);
    let arguments = ["job", "retry", "docs", "--broker", &relay];
    let retry = Process::start(&mut tidings_command(job.server.folder.path(), arguments));
    withheld.recv_timeout(time_left()).unwrap();
    let output = retry.signal_and_finish("INT").expect_code(130);
    let note = "pass 2 of docs stays open; end it with: tidings job cancel docs";
    assert!(output.stderr().contains(note), "{output:?}");
    let job = &run_json_at(&job.server, &["job", "show", "docs"])[0];
    assert_eq!((&job["pass"], &job["state"]), (&json!(2), &json!("open")));
}
