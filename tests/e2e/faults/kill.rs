//! Crawlers that are killed, stopped or disconnected in the middle of a job. The origin checks that
//! no host has two requests at once and none within its delay, from any crawler. The job is done
//! once, and every page is stored.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;

use crate::support::line_connection::LineConnection;
use crate::support::origin::{Origin, Site};
use crate::support::page_database;
use crate::support::process::{Process, Server, start_crawler, tidings_command};

const DELAY: Duration = Duration::from_millis(100);

/// Kills of the broker in one job.
const BROKER_KILLS: usize = 5;

const SITE: Site = Site {
    hosts: 25,
    pages: 2,
    robots: Some("User-agent: *\nDisallow: /private/\n"),
    response_delay: Duration::ZERO,
    links_across_hosts: false,
};

/// A broker with a group that keeps the delay, with this lease; a job on all hosts of a site; and a
/// command that watches the job.
struct WatchedCrawl {
    origin: Origin,
    server: Server,
    /// The data directories of the crawlers.
    data: [TempDir; 2],
    site: Site,
    watcher: Process,
}

impl WatchedCrawl {
    #[track_caller]
    fn start(lease: &str) -> Self {
        Self::start_on(lease, Site { pages: 8, response_delay: Duration::from_millis(30), ..SITE })
    }

    #[track_caller]
    fn start_on(lease: &str, site: Site) -> Self {
        let origin = Origin::serve(site.clone());
        let server = Server::start_broker();
        let delay = DELAY.as_millis();
        let settings = format!("GROUP create crawlers delay={delay}ms lease={lease}");
        let answer = LineConnection::connect_client(server.address).request(&settings);
        assert!(answer.starts_with("+OK"), "{answer}");
        let folder = server.folder.path().to_owned();
        let words = [
            vec!["crawl".to_owned(), "--broker".to_owned(), server.address_text()],
            origin.seed_urls(),
        ];
        let watcher = Process::start(&mut tidings_command(&folder, words.concat()));
        Self { origin, server, data: [(); 2].map(|()| TempDir::new().unwrap()), site, watcher }
    }

    /// Starts a crawler with one of the two data directories.
    #[track_caller]
    fn start_crawler(&self, data: usize) -> Process {
        start_crawler(self.server.address, self.data[data].path())
    }

    /// Waits for the end of the job and checks it.
    #[track_caller]
    fn finish(self) {
        let watched = self.watcher.finish().expect_code(0);
        let pages = u32::from(self.site.hosts) * self.site.pages;
        let summary = watched.stdout().pop().unwrap();
        assert!(summary.contains(&format!("{pages} pages, 0 failed")), "{summary}");

        let record = self.origin.request_log();
        record.expect_polite(DELAY);
        record.expect_none_under("/private/");
        let expected: BTreeSet<String> = (0..self.site.hosts)
            .flat_map(|host| self.site.paths().into_iter().map(move |path| (host, path)))
            .map(|(host, path)| self.origin.url(host, &path))
            .collect();
        assert_eq!(record.distinct_pages().len(), expected.len());
        let stored: BTreeSet<_> =
            self.data.iter().flat_map(|data| stored_urls(data.path())).collect();
        assert_eq!(stored, expected);

        let mut client = LineConnection::connect_client(self.server.address);
        assert!(client.request("SUB job-done from=first").starts_with("+OK"));
        let mut done = client.read_line();
        while done.starts_with("GAP ") {
            // A broker killed in the middle of a write leaves a gap.
            done = client.read_line();
        }
        assert!(done.contains(&format!(" completed={pages} ")), "{done}");
        // Another connection publishes, because a subscriber may receive an event before its
        // confirmation.
        let answer =
            LineConnection::connect_client(self.server.address).request("PUB job-done no more");
        let seq: u64 = done.split(' ').nth(2).unwrap().parse().unwrap();
        assert_eq!(answer, format!("+OK {} 1", seq + 1), "the job was announced once");
    }
}

/// The stored pages. There are none if no crawler ran.
fn stored_urls(data: &Path) -> Vec<String> {
    page_database::query(data, "select url from pages where outcome = 'done'").unwrap_or_default()
}

#[test]
#[ignore = "needs foreign programs"]
fn kill_the_crawler_and_start_another() {
    // As short a lease as is reasonable here: the hosts of lost tasks wait for its end.
    let crawl = WatchedCrawl::start("3s");
    let first = crawl.start_crawler(0);
    crawl.origin.wait_for_hits(80);
    first.signal_and_finish("KILL");
    let _second = crawl.start_crawler(0);
    crawl.finish();
}

#[test]
#[ignore = "needs foreign programs"]
fn kill_one_of_two_crawlers() {
    let crawl = WatchedCrawl::start("3s");
    let _first = crawl.start_crawler(0);
    let second = crawl.start_crawler(1);
    crawl.origin.wait_for_hits(80);
    second.signal_and_finish("KILL");
    crawl.finish();
}

#[test]
#[ignore = "needs foreign programs"]
fn kill_the_broker_again_and_again() {
    let mut crawl = WatchedCrawl::start("3s");
    let _crawlers = [crawl.start_crawler(0), crawl.start_crawler(1)];
    for kill in 1..=BROKER_KILLS {
        crawl.origin.wait_for_hits(kill * 40);
        let server = crawl.server.restart_at_same_address("KILL", &["broker"]);
        crawl = WatchedCrawl { server, ..crawl };
    }
    crawl.finish();
}

#[test]
#[ignore = "needs foreign programs"]
fn a_stopped_crawler_returns_its_tasks() {
    // The lease is longer than the test: the other crawler gets the tasks only because they were
    // returned.
    let crawl = WatchedCrawl::start("10m");
    let first = crawl.start_crawler(0);
    crawl.origin.wait_for_hits(80);
    first.signal_and_finish("TERM").expect_code(0);
    let _second = crawl.start_crawler(0);
    crawl.finish();
}

#[test]
#[ignore = "needs foreign programs"]
fn a_crawler_stalled_for_longer_than_its_lease_does_no_harm() {
    // Every host answers so late that the crawler can be stopped when all requests are sent and
    // none is answered. Politeness cannot be guaranteed for a crawler that is stopped between its
    // last check of the clock and the request itself.
    let hosts = usize::from(SITE.hosts);
    let crawl =
        WatchedCrawl::start_on("2s", Site { response_delay: Duration::from_secs(1), ..SITE });
    let first = crawl.start_crawler(0);
    crawl.origin.wait_for_hits(2 * hosts);
    first.signal("STOP");
    let _second = crawl.start_crawler(1);
    // The second crawler gets the hosts of the first when the leases end, and fetches robots.txt
    // and the first pages. Then the first one resumes, with its old tasks and with those that the
    // broker sent it meanwhile.
    crawl.origin.wait_for_hits(4 * hosts);
    first.signal("CONT");
    crawl.finish();
}

#[test]
#[ignore = "needs foreign programs"]
fn the_crawler_reconnects_when_the_broker_is_back() {
    let origin = Origin::serve(Site::default());
    let server = Server::start_broker();
    let address = server.address_text();
    let data = TempDir::new().unwrap();
    let daemon = Process::start(&mut tidings_command(
        data.path(),
        ["crawl", "--broker", &address, "--allow-private", "--data", "."],
    ));
    let url = origin.url(0, "/p/0");
    LineConnection::connect_peer(server.address).send(format!("{url}?before\n"));
    page_database::wait_for_rows(data.path(), "select url from pages", 1);
    server.process.signal_and_finish("KILL");

    let folder = TempDir::new().unwrap();
    let again =
        Process::start(&mut tidings_command(folder.path(), ["broker", "--listen", &address]));
    again.wait_for_line_with("listening on");
    LineConnection::connect_peer(server.address).send(format!("{url}?after\n"));
    page_database::wait_for_rows(data.path(), "select url from pages", 2);
    daemon.signal_and_finish("INT").expect_code(0);
}
