//! Four workers on crawls of which nobody knows the size, with pages that take long: again and
//! again all that is left of a crawl is one page that somebody is still waiting for, and nobody
//! knows whether it links to more. The end of each is announced once, after its last page.
//!
//! `TIDINGS_DONE_ROUNDS` and `TIDINGS_DONE_SEED` choose more of them and others.

use std::time::Duration;

use fastrand::Rng;
use tempfile::TempDir;

use crate::queue::python_worker::worker;
use crate::support::origin::{Origin, Site};
use crate::support::process::{Running, Server, crawler};
use crate::support::seed::{number_from, seed_from};
use crate::support::talk::Talk;
use crate::support::wait::until;

const ROUNDS: u64 = 20;

/// From a single host with one page, and one below /private/, to a ring of hosts that are found one
/// after the other.
fn site(rng: &mut Rng) -> Site {
    Site {
        hosts: rng.u16(1..=6),
        pages: rng.u32(1..=4),
        robots: None,
        answer_after: Duration::from_millis(rng.u64(50..=300)),
        across: true,
    }
}

/// A crawl that was announced as done: what had been asked for by then.
struct Done {
    origin: Origin,
    hits: usize,
}

impl Done {
    /// Nothing came after the announcement.
    #[track_caller]
    fn expect_no_more(&self) {
        assert_eq!(self.origin.hits(), self.hits, "{:#?}", self.origin.record());
    }
}

#[test]
fn the_end_of_a_crawl_of_unknown_size_is_announced_once_after_its_last_page() {
    let rounds = number_from("TIDINGS_DONE_ROUNDS").unwrap_or(ROUNDS);
    let seed = seed_from("TIDINGS_DONE_SEED");
    eprintln!("TIDINGS_DONE_SEED={seed} TIDINGS_DONE_ROUNDS={rounds}");
    let server = Server::broker();
    let mut client = Talk::client(server.address);
    let mut listener = Talk::client(server.address);
    assert_eq!(listener.ask("SUB job-done"), "+OK");
    // Two kinds, that have nothing in common but the protocol.
    let data = [(); 2].map(|()| TempDir::new().unwrap());
    let mut workers: Vec<Running> =
        data.iter().map(|data| crawler(server.address, data.path())).collect();
    workers.extend([(); 2].map(|()| worker(server.address)));
    until("four members", || {
        client.ask("GROUP show crawlers").contains(" members=4 ").then_some(())
    });

    let mut rng = Rng::with_seed(seed);
    let mut before: Option<Done> = None;
    for round in 1..=rounds {
        let done = crawl(round, &site(&mut rng), &mut client, &mut listener);
        // By now there was all the time in the world for a late request.
        before.replace(done).iter().for_each(Done::expect_no_more);
    }
    let seq = rounds + 1;
    assert_eq!(client.ask("PUB job-done no-more"), format!("+OK {seq} 1"));
    assert_eq!(listener.line(), format!("MSG job-done {seq} no-more"), "each was announced once");
    drop(workers);
    before.iter().for_each(Done::expect_no_more);
}

/// Crawls a site as a job, until the announcement, and judges what had been done by then.
#[track_caller]
fn crawl(round: u64, site: &Site, client: &mut Talk, listener: &mut Talk) -> Done {
    let origin = Origin::serve(site.clone());
    let job = format!("job-{round}");
    for command in [
        format!("JOB open {job} scope=any"),
        format!("JOB add {job} url={}", origin.url(0, "/p/0")),
        format!("JOB close {job}"),
    ] {
        let answer = client.ask(&command);
        assert!(answer.starts_with("+OK"), "{command}: {answer}");
    }
    let announced = listener.line();
    let record = origin.record();
    // Each page has one below /private/ to it.
    let pages = 2 * usize::from(site.hosts) * usize::try_from(site.pages).unwrap();
    let counts = format!(" pass=1 result=done completed={pages} redirects=0 failed=0 ");
    let begin = format!("MSG job-done {round} {job} ");
    assert!(announced.starts_with(&begin) && announced.contains(&counts), "{site:?}: {announced}");
    let open: Vec<_> = record.0.iter().filter(|hit| hit.end.is_none()).collect();
    assert!(open.is_empty(), "{site:?}: {open:#?}");
    assert_eq!(record.pages().count(), pages, "{site:?}");
    record.expect_no_duplicates();
    record.expect_polite(Duration::ZERO);
    Done { origin, hits: record.0.len() }
}
