//! Crawlers that are killed, stopped or cut off in the middle of a job. The origin judges: no host
//! has two requests at once nor one inside its delay, whoever sends them; the job is done, once,
//! and every page is stored.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;

use crate::support::line_connection::LineConnection;
use crate::support::origin::{Origin, Site};
use crate::support::page_database;
use crate::support::process::{Process, Server, start_crawler, tidings_command};

const DELAY: Duration = Duration::from_millis(100);

/// How often the broker is killed in one job.
const BROKER_KILLS: usize = 5;

const SITE: Site = Site {
    hosts: 25,
    pages: 2,
    robots: Some("User-agent: *\nDisallow: /private/\n"),
    response_delay: Duration::ZERO,
    links_across_hosts: false,
};

/// A broker whose group keeps the delay, with this lease; a job on all hosts of a site; and who
/// watches it.
struct WatchedCrawl {
    origin: Origin,
    server: Server,
    /// Where the crawlers of this broker store.
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

    /// A crawler for this broker, with one of the two data directories.
    #[track_caller]
    fn start_crawler(&self, data: usize) -> Process {
        start_crawler(self.server.address, self.data[data].path())
    }

    /// Waits for the end of the job and judges it.
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
            // Of a broker that was killed in the middle of a write.
            done = client.read_line();
        }
        assert!(done.contains(&format!(" completed={pages} ")), "{done}");
        // Another connection publishes, because a subscriber may hear of an event before it is
        // confirmed.
        let answer =
            LineConnection::connect_client(self.server.address).request("PUB job-done no more");
        let seq: u64 = done.split(' ').nth(2).unwrap().parse().unwrap();
        assert_eq!(answer, format!("+OK {} 1", seq + 1), "the job was announced once");
    }
}

/// The pages stored there; none where no crawler ran.
fn stored_urls(data: &Path) -> Vec<String> {
    page_database::query(data, "select url from pages where outcome = 'done'").unwrap_or_default()
}

#[test]
fn kill_the_crawler_and_start_another() {
    // As short as a lease can sensibly be here: the hosts of lost tasks wait for its end.
    let crawl = WatchedCrawl::start("3s");
    let first = crawl.start_crawler(0);
    crawl.origin.wait_for_hits(80);
    first.signal_and_finish("KILL");
    let _second = crawl.start_crawler(0);
    crawl.finish();
}

#[test]
fn kill_one_of_two_crawlers() {
    let crawl = WatchedCrawl::start("3s");
    let _first = crawl.start_crawler(0);
    let second = crawl.start_crawler(1);
    crawl.origin.wait_for_hits(80);
    second.signal_and_finish("KILL");
    crawl.finish();
}

#[test]
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
fn a_stopped_crawler_returns_its_tasks() {
    // A lease that the test would not survive: what another crawler gets was handed back, not
    // waited for.
    let crawl = WatchedCrawl::start("10m");
    let first = crawl.start_crawler(0);
    crawl.origin.wait_for_hits(80);
    first.signal_and_finish("TERM").expect_code(0);
    let _second = crawl.start_crawler(0);
    crawl.finish();
}

#[test]
fn a_crawler_stalled_for_longer_than_its_lease_does_no_harm() {
    // Every host answers so late that the crawler can be stopped when all are asked and none has
    // answered: nobody can do anything about a crawler that is stopped between its last look at the
    // clock and the request itself.
    let hosts = usize::from(SITE.hosts);
    let crawl =
        WatchedCrawl::start_on("2s", Site { response_delay: Duration::from_secs(1), ..SITE });
    let first = crawl.start_crawler(0);
    crawl.origin.wait_for_hits(2 * hosts);
    first.signal("STOP");
    let _second = crawl.start_crawler(1);
    // The second one gets the hosts of the first after their leases, asks for robots.txt and for
    // the first pages; then the first wakes up, with its old tasks and with what it was sent
    // meanwhile.
    crawl.origin.wait_for_hits(4 * hosts);
    first.signal("CONT");
    crawl.finish();
}

#[test]
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
