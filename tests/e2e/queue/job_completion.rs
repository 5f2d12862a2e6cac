//! Four workers crawl sites of unknown size with slow pages. Again and again one page is all that
//! is left of a crawl, and it may link to more. `job-done` is published once for each crawl, after
//! its last page.
//!
//! `TIDINGS_DONE_ROUNDS` and `TIDINGS_DONE_SEED` set the number of crawls and the seed.

use std::time::Duration;

use fastrand::Rng;
use tempfile::TempDir;

use crate::queue::python_worker::start_python_worker;
use crate::support::line_connection::LineConnection;
use crate::support::origin::{Origin, Site};
use crate::support::process::{Process, Server, start_crawler};
use crate::support::seed::{number_from_env, seed_from_env};
use crate::support::wait::wait_until;

const ROUNDS: u64 = 20;

/// From one host with one page, and one below /private/, to a ring of hosts, each linking to
/// the next.
fn random_site(rng: &mut Rng) -> Site {
    Site {
        hosts: rng.u16(1..=6),
        pages: rng.u32(1..=4),
        robots: None,
        response_delay: Duration::from_millis(rng.u64(50..=300)),
        links_across_hosts: true,
    }
}

/// A completed crawl, and the number of requests by then.
struct CompletedCrawl {
    origin: Origin,
    requests_at_completion: usize,
}

impl CompletedCrawl {
    /// Checks that no request came after `job-done`.
    #[track_caller]
    fn expect_no_further_requests(&self) {
        assert_eq!(
            self.origin.request_count(),
            self.requests_at_completion,
            "{:#?}",
            self.origin.request_log()
        );
    }
}

#[test]
#[ignore = "needs foreign programs"]
fn job_done_is_published_once_after_the_last_page() {
    let rounds = number_from_env("TIDINGS_DONE_ROUNDS").unwrap_or(ROUNDS);
    let seed = seed_from_env("TIDINGS_DONE_SEED");
    eprintln!("TIDINGS_DONE_SEED={seed} TIDINGS_DONE_ROUNDS={rounds}");
    let server = Server::start_broker();
    let mut client = LineConnection::connect_client(server.address);
    let mut listener = LineConnection::connect_client(server.address);
    assert_eq!(listener.request("SUB job-done"), "+OK");
    // Two kinds of workers that share only the protocol.
    let data = [(); 2].map(|()| TempDir::new().unwrap());
    let mut workers: Vec<Process> =
        data.iter().map(|data| start_crawler(server.address, data.path())).collect();
    workers.extend([(); 2].map(|()| start_python_worker(server.address)));
    wait_until("four members", || {
        client.request("GROUP show crawlers").contains(" members=4 ").then_some(())
    });

    let mut rng = Rng::with_seed(seed);
    let mut before: Option<CompletedCrawl> = None;
    for round in 1..=rounds {
        let done = crawl_site(round, &random_site(&mut rng), &mut client, &mut listener);
        // A late request would have arrived during the crawl in between.
        before.replace(done).iter().for_each(CompletedCrawl::expect_no_further_requests);
    }
    let seq = rounds + 1;
    assert_eq!(client.request("PUB job-done no-more"), format!("+OK {seq} 1"));
    assert_eq!(
        listener.read_line(),
        format!("MSG job-done {seq} no-more"),
        "each job-done is published once"
    );
    drop(workers);
    before.iter().for_each(CompletedCrawl::expect_no_further_requests);
}

/// Crawls a site as a job until `job-done`, and checks the requests up to then.
#[track_caller]
fn crawl_site(
    round: u64,
    site: &Site,
    client: &mut LineConnection,
    listener: &mut LineConnection,
) -> CompletedCrawl {
    let origin = Origin::serve(site.clone());
    let job = format!("job-{round}");
    for command in [
        format!("JOB open {job} scope=any"),
        format!("JOB add {job} url={}", origin.url(0, "/p/0")),
        format!("JOB close {job}"),
    ] {
        client.request_ok(&command);
    }
    let done = listener.read_line();
    let requests = origin.request_log();
    // Each page links to one below /private/.
    let pages = 2 * usize::from(site.hosts) * usize::try_from(site.pages).unwrap();
    let counts = format!(" pass=1 result=done completed={pages} redirects=0 failed=0 ");
    let begin = format!("MSG job-done {round} {job} ");
    assert!(done.starts_with(&begin) && done.contains(&counts), "{site:?}: {done}");
    let open: Vec<_> = requests.0.iter().filter(|hit| hit.end.is_none()).collect();
    assert!(open.is_empty(), "{site:?}: {open:#?}");
    assert_eq!(requests.page_requests().count(), pages, "{site:?}");
    requests.expect_no_duplicates();
    requests.expect_polite(Duration::ZERO);
    CompletedCrawl { origin, requests_at_completion: requests.0.len() }
}
