//! The wall clock is set far forward and back while a broker runs and while it is down. Delays,
//! leases and scheduled events are not affected. The test's own clock shows what comes too soon;
//! what comes too late would be late by a month.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::support::line_connection::LineConnection;
use crate::support::origin::{Origin, Site};
use crate::support::process::{Process, Server, start_crawler};
use crate::support::wall_clock::{WallClock, first_output_line};

const DELAY: Duration = Duration::from_millis(300);
const LEASE: Duration = Duration::from_secs(2);
const SCHEDULED_DELAY_MS: u64 = 1500;

/// A broker with a wall clock that can be set.
#[track_caller]
fn start_with_wall_clock() -> (WallClock, Server) {
    let folder = TempDir::new().unwrap();
    let clock = WallClock::new(folder.path());
    clock.set_offset("-3650d");
    let mut date = Command::new("date");
    clock.apply_to(date.arg("+%Y"));
    let year = Process::start(&mut date).finish().expect_code(0).stdout().swap_remove(0);
    assert_ne!(year, first_output_line("date", &["+%Y"]), "other processes use the settable clock");
    clock.set_offset("+0");
    let server = Server::start_in(folder, &["broker"], |command| clock.apply_to(command));
    let loaded = fs::read_to_string(format!("/proc/{}/maps", server.process.id())).unwrap();
    assert!(loaded.contains("libfaketime"), "the broker uses the settable clock");
    let (delay, lease) = (DELAY.as_millis(), LEASE.as_millis());
    let settings = format!("GROUP create crawlers delay={delay}ms lease={lease}ms");
    let answer = LineConnection::connect_client(server.address).request(&settings);
    assert!(answer.starts_with("+OK"), "{answer}");
    (clock, server)
}

#[test]
#[ignore = "needs foreign programs"]
fn a_crawl_stays_polite_while_the_wall_clock_is_set() {
    let site = Site { hosts: 10, pages: 6, response_delay: Duration::from_millis(20), ..SITE };
    let pages = 10 * 6;
    let origin = Origin::serve(site);
    let (clock, server) = start_with_wall_clock();
    let mut client = LineConnection::connect_client(server.address);
    client.request("JOB open job");
    for url in origin.seed_urls() {
        client.request(&format!("PUB new-url {url} job=job"));
    }
    client.request("JOB close job");
    let data = TempDir::new().unwrap();
    let first = start_crawler(server.address, data.path());
    for (hits, offset) in [(10, "+30d"), (20, "-30d"), (30, "+0"), (40, "-3650d"), (50, "+1h")] {
        origin.wait_for_hits(hits);
        clock.set_offset(offset);
    }
    // The tasks of the killed crawler wait for the end of their lease. A new wall clock must
    // neither end nor extend it.
    first.signal_and_finish("KILL");
    clock.set_offset("+60d");
    let _second = start_crawler(server.address, data.path());
    origin.wait_for_hits(60);
    clock.set_offset("-60d");
    let done = client.request("JOB wait job");
    assert!(done.contains(&format!(" result=done completed={pages} ")), "{done}");
    let record = origin.request_log();
    record.expect_polite(DELAY);
    assert_eq!(record.distinct_pages().len(), pages);
}

const SITE: Site = Site {
    hosts: 1,
    pages: 1,
    robots: Some("User-agent: *\nDisallow: /private/\n"),
    response_delay: Duration::ZERO,
    links_across_hosts: false,
};

#[test]
#[ignore = "needs foreign programs"]
fn leases_and_delays_do_not_depend_on_the_wall_clock() {
    let (clock, mut server) = start_with_wall_clock();
    for (round, offset) in ["+30d", "-30d", "+0", "+365d", "-365d"].into_iter().enumerate() {
        let waits = ExpectedTasks::begin(&server, round);
        clock.set_offset(offset);
        // In every other round the broker is down when the clock is set.
        if round % 2 == 1 {
            let Server { process, folder, .. } = server;
            process.signal_and_finish("KILL");
            server = Server::start_in(folder, &["broker"], |command| clock.apply_to(command));
        }
        waits.finish(&server);
    }
}

/// The moment from which each URL may be released. The group has no others.
#[derive(Default)]
struct ExpectedTasks(BTreeMap<String, Instant>);

impl ExpectedTasks {
    /// Publishes four URLs: one is leased to a lost worker, one is scheduled, one is fetched, and
    /// one waits for the delay of that host.
    #[track_caller]
    fn begin(server: &Server, round: usize) -> Self {
        let mut waits = Self::default();
        let url = |name: &str| format!("http://{name}{round}.example/");
        let (lost, later, fetched, delayed) =
            (url("lost"), url("later"), url("fetched"), url("fetched") + "again");
        let mut client = LineConnection::connect_client(server.address);
        let mut publish = |event: &str| {
            let answer = client.request(&format!("PUB new-url {event}"));
            assert!(answer.starts_with("+OK"), "{answer}");
        };
        let join = || {
            let mut worker = LineConnection::connect_client(server.address);
            let joined = worker.request("JOIN crawlers");
            assert!(joined.starts_with("+OK crawlers credit=1 held=0 "), "{joined}");
            worker
        };
        let joined = Instant::now();
        publish(&lost);
        let mut gone = join();
        assert_eq!(parse_task(&gone.read_line()).1, lost);
        drop(gone);
        waits.0.insert(lost, joined + LEASE + DELAY);

        // A due time is a whole millisecond of the broker's clock, so it may be 1 ms early.
        let due = Instant::now() + Duration::from_millis(SCHEDULED_DELAY_MS - 1);
        waits.0.insert(later.clone(), due);
        publish(&format!("{later} after={SCHEDULED_DELAY_MS}ms"));

        waits.0.insert(fetched.clone(), Instant::now());
        publish(&fetched);
        let mut worker = join();
        loop {
            let line = worker.read_line();
            if !line.starts_with("TASK ") {
                continue;
            }
            let (id, url) = parse_task(&line);
            waits.record_arrival(&url);
            if url != fetched {
                worker.send(format!("ACK {id}\n"));
                continue;
            }
            publish(&delayed);
            waits.0.insert(delayed, Instant::now() + DELAY);
            worker.send(format!("JOIN crawlers credit=0\nACK {id}\nQUIT\n"));
            assert_eq!(worker.read_to_end().last().map(String::as_str), Some("+OK"));
            return waits;
        }
    }

    #[track_caller]
    fn record_arrival(&mut self, url: &str) {
        let since = self.0.remove(url).unwrap_or_else(|| panic!("{url} was released twice"));
        let early = since.saturating_duration_since(Instant::now());
        assert!(early.is_zero(), "{url} was released {early:?} too early");
    }

    /// Receives all remaining tasks.
    #[track_caller]
    fn finish(mut self, server: &Server) {
        let mut worker = LineConnection::connect_client(server.address);
        assert!(worker.request("JOIN crawlers credit=10").starts_with("+OK"));
        while !self.0.is_empty() {
            let line = worker.read_line();
            if line.starts_with("TASK ") {
                let (id, url) = parse_task(&line);
                self.record_arrival(&url);
                worker.send(format!("ACK {id}\n"));
            }
        }
        // When the `QUIT` is answered, all acknowledgements were, too.
        worker.send("QUIT\n");
        assert_eq!(worker.read_to_end().last().map(String::as_str), Some("+OK"));
    }
}

/// The id and the URL of a task.
#[track_caller]
fn parse_task(line: &str) -> (String, String) {
    let words: Vec<_> = line.split(' ').collect();
    let ["TASK", id, _, _, url, ..] = words[..] else { panic!("not a task: {line}") };
    (id.to_owned(), url.to_owned())
}
