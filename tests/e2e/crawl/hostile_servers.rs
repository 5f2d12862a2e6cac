//! A crawl of hostile servers: each response has a named outcome, the memory stays within its
//! bound, and, as `.ci/long hostile` measures, good hosts are not slowed down.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use crate::support::hostile::{
    GOOD_PAGES, HostileRequest, HostileServers, MISBEHAVIOURS, good_host,
};
use crate::support::page_database;
use crate::support::process::{Server, run_at};

/// How much memory all hostile hosts together may cost, on top of the crawl itself.
const MEMORY_BYTES_MAX: u64 = 64 << 20;

/// Number of good hosts beside the hostile ones.
const GOOD_HOSTS: usize = 10;

/// The pause between two requests to a good host may grow by this factor. Hostile responses cost
/// two or three times the work of good ones, and this machine also serves them.
const SLOWDOWN_MAX: u32 = 10;

/// The time limit of one request to a hostile host. On a busy machine, a debug build reads the largest
/// feed for 20 s.
const TIMEOUT: Duration = Duration::from_mins(1);

#[test]
#[ignore = "needs foreign programs"]
fn hostile_responses_have_an_outcome_and_a_bounded_cost() {
    assert!(MISBEHAVIOURS.len() >= 50, "{} misbehaviours", MISBEHAVIOURS.len());
    let hostile = HostileServers::serve();
    let timeout = format!("{}s", TIMEOUT.as_secs());
    let server = Server::start_up(&["--allow-private", "--quiet", "--timeout", &timeout]);
    run_at(&server, &["group", "set", "crawlers", "max-attempts=1"]).expect_code(0);
    // The memory of a crawl of the same number of good hosts.
    let good = |hosts: Range<usize>| hosts.map(|host| hostile.good_url(host));
    let others = 2 * GOOD_HOSTS..2 * GOOD_HOSTS + MISBEHAVIOURS.len();
    let base: Vec<_> = good(others).chain(good(0..GOOD_HOSTS)).collect();
    // Each good host links to a missing page.
    crawl_seeds(&server, &base).expect_code(1);
    let before = server.process.peak_memory_bytes();

    let bad = MISBEHAVIOURS.iter().map(|(name, ..)| hostile.url(name));
    let all: Vec<_> = bad.chain(good(GOOD_HOSTS..2 * GOOD_HOSTS)).collect();
    crawl_seeds(&server, &all).expect_code(1);
    let grown = server.process.peak_memory_bytes().saturating_sub(before);
    assert!(grown <= MEMORY_BYTES_MAX, "{} MiB more", grown >> 20);

    let is_measured = std::env::var_os("TIDINGS_HOSTILE_PACE").is_some();
    if is_measured {
        expect_pace(&hostile);
    }
    let outcomes = outcomes(&server);
    let is_expected = |expected: &str, end: &str| expected.split('|').any(|it| it == end);
    let (silent, failures): (Vec<_>, Vec<_>) = MISBEHAVIOURS
        .iter()
        .map(|(name, expected, _)| (name, expected, &*outcomes[&hostile.url(name)]))
        .filter(|(_, expected, end)| !is_expected(expected, end))
        .map(|(name, expected, end)| format!("{name}: expected {expected}, got {end}"))
        .partition(|failure| failure.ends_with("failed silent"));
    assert!(failures.is_empty(), "{failures:#?}");
    // On a busy machine, the servers of this test may not get a processor for 15 s.
    let silent_max = if is_measured { 0 } else { MISBEHAVIOURS.len() / 4 };
    assert!(silent.len() <= silent_max, "{silent:#?}");
}

/// Compares the pace of good hosts in the crawl with hostile ones with that in the crawl before. On a
/// busy machine, what hostile responses cost in processor time would decide it.
#[track_caller]
fn expect_pace(hostile: &HostileServers) {
    // Good hosts do not wait: a silent host still has time left when they are done.
    let [calm, among_bad] = [0..GOOD_HOSTS, GOOD_HOSTS..2 * GOOD_HOSTS]
        .map(|hosts| GoodHostPace::measure(&hostile.requests(), hosts));
    let given_up = hostile.first_disconnect("silent").expect("the silent host is given up");
    assert!(among_bad.last_request < given_up, "{among_bad:?}, and {given_up:?}");
    let (gap, most) = (among_bad.median_gap, calm.median_gap * SLOWDOWN_MAX);
    assert!(
        gap <= most,
        "{gap:?} between requests beside hostile hosts, {:?} without them",
        calm.median_gap
    );
}

/// Fifty hosts share the memory budget that one of them could hold. Some wait for their share
/// longer than the timeout.
#[track_caller]
fn crawl_fifty_hosts(misbehaviour: &str) {
    const HOSTS: usize = 50;
    let hostile = HostileServers::serve();
    let server = Server::start_up(&["--allow-private", "--quiet", "--timeout", "8s"]);
    run_at(&server, &["group", "set", "crawlers", "max-attempts=1"]).expect_code(0);
    let base: Vec<_> = (0..HOSTS).map(|host| hostile.good_url(host)).collect();
    crawl_seeds(&server, &base).expect_code(1);
    let before = server.process.peak_memory_bytes();
    let bad: Vec<_> = (0..HOSTS).map(|host| hostile.url_of_many(misbehaviour, host)).collect();
    crawl_seeds(&server, &bad).expect_code(1);
    let grown = server.process.peak_memory_bytes().saturating_sub(before);
    eprintln!("{misbehaviour}: {} KiB more", grown >> 10);
    assert!(grown <= MEMORY_BYTES_MAX, "{} MiB more", grown >> 20);
    let outcomes = outcomes(&server);
    for url in bad {
        let end = &*outcomes[&url];
        assert!(["failed silent", "failed timeout"].contains(&end), "{url}: {end}");
    }
}

#[test]
#[ignore = "needs foreign programs"]
fn many_decoders_share_the_memory_budget() {
    crawl_fifty_hosts("window-and-silence");
}

#[test]
#[ignore = "needs foreign programs"]
fn many_link_lists_share_the_memory_budget() {
    crawl_fifty_hosts("links-and-silence");
}

/// The pace of requests to good hosts, as the hosts saw it.
#[derive(Debug)]
struct GoodHostPace {
    /// The median time between two requests to a host.
    median_gap: Duration,
    /// The time of the last request.
    last_request: Duration,
}

impl GoodHostPace {
    #[track_caller]
    fn measure(requests: &[HostileRequest], hosts: Range<usize>) -> Self {
        let (mut gaps, mut last_request) = (Vec::new(), Duration::ZERO);
        for host in hosts {
            let of_host = |request: &&HostileRequest| {
                request.host == good_host(host) && request.path != "/robots.txt"
            };
            let mut times: Vec<_> =
                requests.iter().filter(of_host).map(|request| request.at).collect();
            times.sort();
            assert_eq!(times.len(), GOOD_PAGES + 1, "its pages and a missing one");
            last_request = last_request.max(times[GOOD_PAGES]);
            gaps.extend(times.array_windows().map(|[one, next]| next.saturating_sub(*one)));
        }
        gaps.sort();
        Self { median_gap: gaps[gaps.len() / 2], last_request }
    }
}

/// Crawls these seeds as a job, with a page limit for endless sites.
#[track_caller]
fn crawl_seeds(server: &Server, seeds: &[String]) -> crate::support::process::ProcessOutput {
    let mut arguments = vec!["crawl", "--quiet", "--max-per-host", "25", "--scope", "host"];
    arguments.extend(seeds.iter().map(String::as_str));
    crate::support::process::run_tidings(server.folder.path(), &arguments)
}

/// The outcome and reason of each page.
fn outcomes(server: &Server) -> BTreeMap<String, String> {
    let sql = "select url, outcome || coalesce(' ' || reason, '') from pages";
    let rows = page_database::query(&server.data_dir(), sql).unwrap();
    rows.iter()
        .map(|row| row.split_once('|').unwrap())
        .map(|(url, end)| (url.to_owned(), end.to_owned()))
        .collect()
}
