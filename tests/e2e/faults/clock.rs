//! The wall clock is set far forward and back while a broker runs. Delays and leases are not
//! affected: the origin shows what comes too soon; what comes too late would be late by a month.

use std::fs;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::support::line_connection::LineConnection;
use crate::support::origin::{Origin, Site};
use crate::support::process::{Process, Server, start_crawler};
use crate::support::wall_clock::{WallClock, first_output_line};

const DELAY: Duration = Duration::from_millis(300);
const LEASE: Duration = Duration::from_secs(2);

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
    LineConnection::connect_client(server.address).request_ok(&settings);
    (clock, server)
}

#[test]
#[ignore = "needs foreign programs"]
fn a_crawl_stays_polite_while_the_wall_clock_is_set() {
    let pages = 10 * 6;
    let origin = Origin::serve(Site {
        hosts: 10,
        pages: 6,
        robots: Some("User-agent: *\nDisallow: /private/\n"),
        response_delay: Duration::from_millis(20),
        links_across_hosts: false,
    });
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
