//! Workers that stop after a number of tasks or a time, for a service manager that starts them
//! again: they finish what they have taken, and lose and repeat nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::queue::groups::wait_for_waiting_entries;
use crate::support::line_connection::LineConnection;
use crate::support::origin::{Origin, Site, html_response};
use crate::support::process::{
    Process, ProcessOutput, Server, run_at, run_json_at, start_crawler, tidings_command,
};
use crate::support::wait::wait_until;

/// Runs a crawler for the broker in its folder to its end.
#[track_caller]
fn run_crawler(server: &Server, flags: &[&str]) -> ProcessOutput {
    let broker = server.address_text();
    let arguments = ["crawl", "--broker", &broker, "--allow-private", "--data", "."];
    let arguments = [&arguments[..], flags].concat();
    Process::start(&mut tidings_command(server.folder.path(), arguments)).finish()
}

#[track_caller]
fn publish(server: &Server, urls: impl IntoIterator<Item = String>) {
    let mut client = LineConnection::connect_client(server.address);
    for url in urls {
        client.request_ok(&format!("PUB new-url {url}"));
    }
}

/// Entries of the crawlers' group that are not done.
fn waiting(server: &Server) -> u64 {
    let group = run_json_at(server, &["group", "show", "crawlers"]).remove(0);
    ["waiting", "processing"].iter().map(|state| group[*state].as_u64().unwrap()).sum()
}

#[test]
fn crawlers_with_a_limit_of_tasks_share_all_urls_in_turn() {
    let origin = Origin::serve_with(Site::default(), |hit| {
        (hit.path != "/robots.txt").then(|| html_response("<title>page</title>"))
    });
    let server = Server::start_broker();
    publish(&server, (0..20).map(|n| origin.url(n % 4, &format!("/{n}"))));
    wait_for_waiting_entries(&server, 20);
    for round in 0_u64.. {
        let before = waiting(&server);
        if before == 0 {
            assert!(round >= 3, "{round} crawlers took at most 6 URLs each");
            break;
        }
        if before >= 5 {
            run_crawler(&server, &["--max-tasks=5", "--concurrency=2"]).expect_code(0);
            let done = before - waiting(&server);
            // Some tasks fetch robots.txt, and the page is another task.
            assert!((1..=6).contains(&done), "{done} pages");
        } else {
            run_crawler(&server, &["--max-age=300ms"]).expect_code(0);
        }
    }
    let log = origin.request_log();
    assert_eq!(log.page_requests().count(), 20);
    log.expect_no_duplicates();
}

#[test]
fn a_crawler_finishes_its_page_when_its_time_is_over() {
    let requested = Arc::new(AtomicBool::default());
    let answered = Arc::clone(&requested);
    let origin = Origin::serve_with(Site::default(), move |hit| {
        if hit.path == "/robots.txt" {
            return None;
        }
        answered.store(true, Ordering::SeqCst);
        // Longer than a crawler waits for requests after a signal.
        thread::sleep(Duration::from_secs(3));
        Some(html_response("<title>slow</title>"))
    });
    let server = Server::start_broker();
    publish(&server, [origin.url(0, "/slow")]);
    while !requested.load(Ordering::SeqCst) {
        run_crawler(&server, &["--max-age=1s"]).expect_code(0);
    }
    assert_eq!(waiting(&server), 0);
    let log = origin.request_log();
    assert_eq!(log.page_requests().count(), 1);
}

/// The lease is longer than the test: the second crawler gets the tasks only because they were
/// returned.
#[test]
fn a_stopped_crawler_returns_its_tasks() {
    const PAGES: u16 = 200;
    let response_delay = Duration::from_millis(30);
    let origin = Origin::serve(Site { hosts: 25, pages: 8, response_delay, ..Site::default() });
    let server = Server::start_broker();
    run_at(&server, &["group", "set", "crawlers", "delay=100ms", "lease=10m"]).expect_code(0);
    publish(&server, (0..PAGES).map(|n| origin.url(n % 25, &format!("/p/{}", n / 25))));
    wait_for_waiting_entries(&server, PAGES.into());
    let first = start_crawler(server.address, server.folder.path());
    origin.wait_for_hits(80);
    first.signal_and_finish("TERM").expect_code(0);
    let _second = start_crawler(server.address, server.folder.path());
    wait_until("all pages", || (waiting(&server) == 0).then_some(()));
    let log = origin.request_log();
    assert_eq!(log.distinct_pages().len(), usize::from(PAGES));
    log.expect_polite(Duration::from_millis(100));
}

#[test]
fn a_program_ends_before_its_worker_stops_for_its_age() {
    let server = Server::start_broker();
    let mut client = LineConnection::connect_client(server.address);
    client.request("PUB work one");
    client.request("PUB work two");
    let broker = server.address_text();
    let script = "echo begun $EVENT_PAYLOAD; sleep 3; echo ended $EVENT_PAYLOAD";
    let arguments = ["sub", "work", "--group", "team", "--broker", &broker, "--max-age", "1s"];
    let arguments = [&arguments[..], &["--exec", "sh", "-c", script]].concat();
    let worker = Process::start(&mut tidings_command(server.folder.path(), arguments));
    let printed = worker.finish().expect_code(0).stdout();
    let event = printed[0].strip_prefix("begun ").unwrap();
    assert_eq!(printed[1..], [format!("ended {event}")]);
}

#[test]
fn a_job_has_limits_of_its_own() {
    let server = Server::start_broker();
    let arguments = ["crawl", "http://127.0.0.1:9/", "--max-tasks=3"];
    let crawl = tidings_command(server.folder.path(), arguments);
    Process::start(&mut { crawl })
        .finish()
        .expect_code(2)
        .expect_stderr("--max-tasks is for a crawler without URLs");
}
