//! Crawlers that are killed, stopped or cut off in the middle of a job. The origin judges: no host
//! has two requests at once nor one inside its delay, whoever sends them; the job is done, once,
//! and every page is stored.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;

use crate::support::origin::{Origin, Site};
use crate::support::pages;
use crate::support::process::{Running, Server, crawler, tidings};
use crate::support::talk::Talk;

const DELAY: Duration = Duration::from_millis(100);

/// How often the broker is killed in one job.
const BROKER_KILLS: usize = 5;

const SITE: Site = Site {
    hosts: 25,
    pages: 2,
    robots: Some("User-agent: *\nDisallow: /private/\n"),
    answer_after: Duration::ZERO,
    across: false,
};

/// A broker whose group keeps the delay, with this lease; a job on all hosts of a site; and who
/// watches it.
struct Crawl {
    origin: Origin,
    server: Server,
    /// Where the crawlers of this broker store.
    data: [TempDir; 2],
    site: Site,
    watcher: Running,
}

impl Crawl {
    #[track_caller]
    fn begin(lease: &str) -> Self {
        Self::of_site(lease, Site { pages: 8, answer_after: Duration::from_millis(30), ..SITE })
    }

    #[track_caller]
    fn of_site(lease: &str, site: Site) -> Self {
        let origin = Origin::serve(site.clone());
        let server = Server::broker();
        let delay = DELAY.as_millis();
        let settings = format!("GROUP create crawlers delay={delay}ms lease={lease}");
        let answer = Talk::client(server.address).ask(&settings);
        assert!(answer.starts_with("+OK"), "{answer}");
        let folder = server.folder.path().to_owned();
        let words =
            [vec!["crawl".to_owned(), "--broker".to_owned(), server.text()], origin.seeds()];
        let watcher = Running::start(&mut tidings(&folder, words.concat()));
        Self { origin, server, data: [(); 2].map(|()| TempDir::new().unwrap()), site, watcher }
    }

    /// A crawler for this broker, with one of the two data directories.
    #[track_caller]
    fn daemon(&self, data: usize) -> Running {
        crawler(self.server.address, self.data[data].path())
    }

    /// Waits for the end of the job and judges it.
    #[track_caller]
    fn end(self) {
        let watched = self.watcher.finish().expect_code(0);
        let pages = u32::from(self.site.hosts) * self.site.pages;
        let summary = watched.stdout().pop().unwrap();
        assert!(summary.contains(&format!("{pages} pages, 0 failed")), "{summary}");

        let record = self.origin.record();
        record.expect_polite(DELAY);
        record.expect_none_under("/private/");
        let expected: BTreeSet<String> = (0..self.site.hosts)
            .flat_map(|host| self.site.paths().into_iter().map(move |path| (host, path)))
            .map(|(host, path)| self.origin.url(host, &path))
            .collect();
        assert_eq!(record.distinct().len(), expected.len());
        let stored: BTreeSet<_> = self.data.iter().flat_map(|data| stored(data.path())).collect();
        assert_eq!(stored, expected);

        let mut client = Talk::client(self.server.address);
        assert!(client.ask("SUB job-done from=first").starts_with("+OK"));
        let mut done = client.line();
        while done.starts_with("GAP ") {
            // Of a broker that was killed in the middle of a write.
            done = client.line();
        }
        assert!(done.contains(&format!(" completed={pages} ")), "{done}");
        // Another connection publishes, because a subscriber may hear of an event before it is
        // confirmed.
        let answer = Talk::client(self.server.address).ask("PUB job-done no more");
        let seq: u64 = done.split(' ').nth(2).unwrap().parse().unwrap();
        assert_eq!(answer, format!("+OK {} 1", seq + 1), "the job was announced once");
    }
}

/// The pages stored there; none where no crawler ran.
fn stored(data: &Path) -> Vec<String> {
    pages::query(data, "select url from pages where outcome = 'done'").unwrap_or_default()
}

#[test]
fn kill_the_crawler_and_start_another() {
    // As short as a lease can sensibly be here: the hosts of lost tasks wait for its end.
    let crawl = Crawl::begin("3s");
    let first = crawl.daemon(0);
    crawl.origin.wait_for_hits(80);
    first.finish_by("KILL");
    let _second = crawl.daemon(0);
    crawl.end();
}

#[test]
fn kill_one_of_two_crawlers() {
    let crawl = Crawl::begin("3s");
    let _first = crawl.daemon(0);
    let second = crawl.daemon(1);
    crawl.origin.wait_for_hits(80);
    second.finish_by("KILL");
    crawl.end();
}

#[test]
fn kill_the_broker_again_and_again() {
    let mut crawl = Crawl::begin("3s");
    let _crawlers = [crawl.daemon(0), crawl.daemon(1)];
    for kill in 1..=BROKER_KILLS {
        crawl.origin.wait_for_hits(kill * 40);
        let server = crawl.server.restart_here("KILL", &["broker"]);
        crawl = Crawl { server, ..crawl };
    }
    crawl.end();
}

#[test]
fn a_stopped_crawler_hands_its_tasks_back() {
    // A lease that the test would not survive: what another crawler gets was handed back, not
    // waited for.
    let crawl = Crawl::begin("10m");
    let first = crawl.daemon(0);
    crawl.origin.wait_for_hits(80);
    first.finish_by("TERM").expect_code(0);
    let _second = crawl.daemon(0);
    crawl.end();
}

#[test]
fn a_crawler_stalled_for_longer_than_its_lease_does_no_harm() {
    // Every host answers so late that the crawler can be stopped when all are asked and none has
    // answered: nobody can do anything about a crawler that is stopped between its last look at the
    // clock and the request itself.
    let hosts = usize::from(SITE.hosts);
    let crawl = Crawl::of_site("2s", Site { answer_after: Duration::from_secs(1), ..SITE });
    let first = crawl.daemon(0);
    crawl.origin.wait_for_hits(2 * hosts);
    first.signal("STOP");
    let _second = crawl.daemon(1);
    // The second one gets the hosts of the first after their leases, asks for robots.txt and for
    // the first pages; then the first wakes up, with its old tasks and with what it was sent
    // meanwhile.
    crawl.origin.wait_for_hits(4 * hosts);
    first.signal("CONT");
    crawl.end();
}

#[test]
fn the_crawler_connects_again_when_the_broker_is_back() {
    let origin = Origin::serve(Site::default());
    let server = Server::broker();
    let address = server.text();
    let data = TempDir::new().unwrap();
    let daemon = Running::start(&mut tidings(
        data.path(),
        ["crawl", "--broker", &address, "--allow-private", "--data", "."],
    ));
    let url = origin.url(0, "/p/0");
    Talk::peer(server.address).send(format!("{url}?before\n"));
    pages::wait_for_rows(data.path(), "select url from pages", 1);
    server.process.finish_by("KILL");

    let folder = TempDir::new().unwrap();
    let again = Running::start(&mut tidings(folder.path(), ["broker", "--listen", &address]));
    again.line_with("listening on");
    Talk::peer(server.address).send(format!("{url}?after\n"));
    pages::wait_for_rows(data.path(), "select url from pages", 2);
    daemon.finish_by("INT").expect_code(0);
}
