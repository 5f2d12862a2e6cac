//! The time of day is set far forward and far back while a broker works, and while it is down:
//! delays, leases and what is to come later go on as if nothing had happened. What is too soon the
//! times of this side show; what would be late would be so by a month.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::support::clock::{WallClock, output};
use crate::support::origin::{Origin, Site};
use crate::support::process::{Running, Server, crawler};
use crate::support::talk::Talk;

const DELAY: Duration = Duration::from_millis(300);
const LEASE: Duration = Duration::from_secs(2);
const LATER: Duration = Duration::from_millis(1500);

/// A broker that goes by a clock that can be set.
#[track_caller]
fn start() -> (WallClock, Server) {
    let folder = TempDir::new().unwrap();
    let clock = WallClock::new(folder.path());
    clock.set("-3650d");
    let mut date = Command::new("date");
    clock.rule(date.arg("+%Y"));
    let year = Running::start(&mut date).finish().expect_code(0).stdout().swap_remove(0);
    assert_ne!(year, output("date", &["+%Y"]), "the clock of other processes can be set");
    clock.set("+0");
    let server = Server::start_in(folder, &["broker"], |command| clock.rule(command));
    let loaded = fs::read_to_string(format!("/proc/{}/maps", server.process.id())).unwrap();
    assert!(loaded.contains("libfaketime"), "the broker goes by that clock");
    let (delay, lease) = (DELAY.as_millis(), LEASE.as_millis());
    let settings = format!("GROUP create crawlers delay={delay}ms lease={lease}ms");
    let answer = Talk::client(server.address).ask(&settings);
    assert!(answer.starts_with("+OK"), "{answer}");
    (clock, server)
}

#[test]
fn a_crawl_goes_on_politely_while_the_time_of_day_is_set() {
    let site = Site { hosts: 10, pages: 6, answer_after: Duration::from_millis(20), ..SITE };
    let pages = 10 * 6;
    let origin = Origin::serve(site);
    let (clock, server) = start();
    let mut client = Talk::client(server.address);
    client.ask("JOB open job");
    for url in origin.seeds() {
        client.ask(&format!("PUB new-url {url} job=job"));
    }
    client.ask("JOB close job");
    let data = TempDir::new().unwrap();
    let first = crawler(server.address, data.path());
    for (hits, offset) in [(10, "+30d"), (20, "-30d"), (30, "+0"), (40, "-3650d"), (50, "+1h")] {
        origin.wait_for_hits(hits);
        clock.set(offset);
    }
    // What it held waits for its lease, which is not over by setting a clock, nor never.
    first.finish_by("KILL");
    clock.set("+60d");
    let _second = crawler(server.address, data.path());
    origin.wait_for_hits(60);
    clock.set("-60d");
    let done = client.ask("JOB wait job");
    assert!(done.contains(&format!(" result=done completed={pages} ")), "{done}");
    let record = origin.record();
    record.expect_polite(DELAY);
    assert_eq!(record.distinct().len(), pages);
}

const SITE: Site = Site {
    hosts: 1,
    pages: 1,
    robots: Some("User-agent: *\nDisallow: /private/\n"),
    answer_after: Duration::ZERO,
    across: false,
};

#[test]
fn leases_and_delays_last_as_long_as_ever_when_the_time_of_day_is_set() {
    let (clock, mut server) = start();
    for (round, offset) in ["+30d", "-30d", "+0", "+365d", "-365d"].into_iter().enumerate() {
        let waits = Waits::begin(&server, round);
        clock.set(offset);
        // Every other one is set while it is down, as far as it knows.
        if round % 2 == 1 {
            let Server { process, folder, .. } = server;
            process.finish_by("KILL");
            server = Server::start_in(folder, &["broker"], |command| clock.rule(command));
        }
        waits.end(&server);
    }
}

/// From when on each URL may be given to a worker. There is no other one in the group.
#[derive(Default)]
struct Waits(BTreeMap<String, Instant>);

impl Waits {
    /// One URL is held by a worker that is gone, one is on a host that was just asked, and one is
    /// announced for later.
    #[track_caller]
    fn begin(server: &Server, round: usize) -> Self {
        let mut waits = Self::default();
        let url = |name: &str| format!("http://{name}{round}.example/");
        let (lost, later, asked, rests) =
            (url("lost"), url("later"), url("asked"), url("asked") + "again");
        let mut client = Talk::client(server.address);
        let mut publish = |event: &str| {
            let answer = client.ask(&format!("PUB new-url {event}"));
            assert!(answer.starts_with("+OK"), "{answer}");
        };
        let join = || {
            let mut worker = Talk::client(server.address);
            let joined = worker.ask("JOIN crawlers");
            assert!(joined.starts_with("+OK crawlers credit=1 held=0 "), "{joined}");
            worker
        };
        let joined = Instant::now();
        publish(&lost);
        let mut gone = join();
        assert_eq!(task(&gone.line()).1, lost);
        drop(gone);
        waits.0.insert(lost, joined + LEASE + DELAY);

        waits.0.insert(later.clone(), Instant::now() + LATER);
        publish(&format!("{later} after={}ms", LATER.as_millis()));

        waits.0.insert(asked.clone(), Instant::now());
        publish(&asked);
        let mut worker = join();
        loop {
            let line = worker.line();
            if !line.starts_with("TASK ") {
                continue;
            }
            let (id, url) = task(&line);
            waits.came(&url);
            if url != asked {
                worker.send(format!("ACK {id}\n"));
                continue;
            }
            publish(&rests);
            waits.0.insert(rests, Instant::now() + DELAY);
            worker.send(format!("JOIN crawlers credit=0\nACK {id}\nQUIT\n"));
            assert_eq!(worker.lines_to_end().last().map(String::as_str), Some("+OK"));
            return waits;
        }
    }

    #[track_caller]
    fn came(&mut self, url: &str) {
        let since = self.0.remove(url).unwrap_or_else(|| panic!("{url} comes again"));
        let early = since.saturating_duration_since(Instant::now());
        assert!(early.is_zero(), "{url} comes {early:?} early");
    }

    /// All that is left comes.
    #[track_caller]
    fn end(mut self, server: &Server) {
        let mut worker = Talk::client(server.address);
        assert!(worker.ask("JOIN crawlers credit=10").starts_with("+OK"));
        while !self.0.is_empty() {
            let line = worker.line();
            if line.starts_with("TASK ") {
                let (id, url) = task(&line);
                self.came(&url);
                worker.send(format!("ACK {id}\n"));
            }
        }
        // Everything before it has been answered then.
        worker.send("QUIT\n");
        assert_eq!(worker.lines_to_end().last().map(String::as_str), Some("+OK"));
    }
}

/// The id and the URL of a task.
#[track_caller]
fn task(line: &str) -> (String, String) {
    let words: Vec<_> = line.split(' ').collect();
    let ["TASK", id, _, _, url, ..] = words[..] else { panic!("no task: {line}") };
    (id.to_owned(), url.to_owned())
}
