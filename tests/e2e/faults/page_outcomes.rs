//! Crawlers and the broker are killed in the middle of a job of pages that exist and pages that
//! fail. Each page that a crawler stored, and no other, is announced once on `page-ready`.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;

use crate::support::line_connection::LineConnection;
use crate::support::origin::{Origin, OriginResponse, Site, full_response};
use crate::support::page_database;
use crate::support::process::{Process, Server, tidings_command};
use crate::support::seed::number_from_env;

const HOSTS: u16 = 25;
/// Requests from one kill to the next.
const HITS_PER_KILL: usize = 50;
/// How the pages `/bad/0`, `/bad/1`, .. fail.
const FAILURES: [&str; 12] = [
    "400 Bad Request",
    "401 Unauthorized",
    "403 Forbidden",
    "404 Not Found",
    "406 Not Acceptable",
    "410 Gone",
    "418 I'm a teapot",
    "451 Unavailable For Legal Reasons",
    "500 Internal Server Error",
    "502 Bad Gateway",
    "503 Service Unavailable",
    "504 Gateway Timeout",
];

fn failure(path: &str) -> Option<OriginResponse> {
    let number: usize = path.strip_prefix("/bad/")?.parse().ok()?;
    Some(full_response(FAILURES[number % FAILURES.len()], "", ""))
}

#[test]
fn every_stored_page_is_announced_once_over_kills() {
    let kills = number_from_env("TIDINGS_OUTCOME_KILLS").map(usize::try_from);
    let kills = kills.map_or(8, |kills| kills.expect("a small number"));
    // Enough that the job is not done before the last kill.
    let pages = (kills * HITS_PER_KILL).div_ceil(usize::from(HOSTS)) + 4;
    let site = Site { hosts: HOSTS, pages: u32::try_from(pages).unwrap(), ..Site::default() };
    let origin = Origin::serve_with(site, |hit| failure(&hit.path));
    let mut server = Server::start_broker();
    let mut client = LineConnection::connect_client(server.address);
    let create = "GROUP create crawlers delay=30ms lease=2s max-attempts=1 max-losses=100";
    assert!(client.request(create).starts_with("+OK"));
    assert!(client.request("JOB open site").starts_with("+OK"));
    let bad = (0..u16::try_from(200.min(2 * pages)).unwrap())
        .map(|number| origin.url(number % HOSTS, &format!("/bad/{number}")));
    let bad: Vec<String> = bad.collect();
    for url in origin.seed_urls().iter().chain(&bad) {
        assert!(client.request(&format!("JOB add site url={url}")).starts_with("+OK"));
    }
    assert!(client.request("JOB close site").starts_with("+OK"));

    let data = [TempDir::new().unwrap(), TempDir::new().unwrap()];
    let start = |server: &Server, at: usize| {
        // The pages of a host have the same text, and many of them would be a trap.
        let arguments = ["crawl", "--broker", &server.address_text(), "--allow-private"];
        let arguments = [&arguments[..], &["--no-traps", "--data", "."]].concat();
        let crawler = Process::start(&mut tidings_command(data[at].path(), arguments));
        crawler.wait_for_line_with("fetching for");
        crawler
    };
    let mut crawlers = [0, 1].map(|at| Some(start(&server, at)));
    for kill in 1..=kills {
        origin.wait_for_hits(kill * HITS_PER_KILL);
        if kill % 2 == 0 {
            server = server.restart_at_same_address("KILL", &["broker"]);
        } else {
            let at = kill / 2 % 2;
            let crawler = crawlers[at].take().expect("each is started again");
            crawler.signal_and_finish("KILL");
            crawlers[at] = Some(start(&server, at));
        }
    }
    let mut client = LineConnection::connect_client(server.address);
    let done = client.request("JOB wait site");
    // Each page links to a private one, which this origin does not forbid.
    let good = 2 * usize::from(HOSTS) * pages;
    let counts = format!(" result=done completed={good} redirects=0 failed={} ", bad.len());
    assert!(done.contains(&counts), "{done}");

    let announced = announcements(&server);
    let stored: BTreeMap<_, _> = data.iter().flat_map(|data| stored_pages(data.path())).collect();
    let differs = |(page, is): &(&String, &(String, String))| stored.get(*page) != Some(*is);
    let differing: Vec<_> = announced.iter().filter(differs).collect();
    assert!(differing.is_empty(), "announced, but not stored so: {differing:?}");
    assert_eq!(announced.len(), stored.len());
    assert_eq!(announced.len(), good + bad.len());
    let failed = announced.values().filter(|(_, outcome)| outcome == "failed");
    let mut failed: Vec<_> = failed.map(|(url, _)| url.clone()).collect();
    failed.sort();
    let mut expected = bad;
    expected.sort();
    assert_eq!(failed, expected);
    origin.request_log().expect_polite(Duration::from_millis(30));
}

/// URL and outcome of each announced page, by the id of the page. Fails if one is announced twice.
#[track_caller]
fn announcements(server: &Server) -> BTreeMap<String, (String, String)> {
    let end = LineConnection::connect_client(server.address).request("PUB page-ready end");
    let end: u64 = end.split(' ').nth(1).unwrap().parse().unwrap();
    let mut client = LineConnection::connect_client(server.address);
    assert!(client.request("SUB page-ready from=first").starts_with("+OK"));
    let mut pages = BTreeMap::new();
    loop {
        let line = client.read_line();
        // A broker that is killed in the middle of a write leaves a gap.
        let Some(event) = line.strip_prefix("MSG page-ready ") else {
            assert!(line.starts_with("GAP "), "{line}");
            continue;
        };
        let (seq, payload) = event.split_once(' ').unwrap();
        if seq.parse::<u64>().unwrap() == end {
            return pages;
        }
        let word = |name: &str| {
            let word = payload.split(' ').find_map(|word| word.strip_prefix(name));
            word.unwrap_or_else(|| panic!("{name} in {payload}")).to_owned()
        };
        let url = payload.split(' ').next().unwrap().to_owned();
        let before = pages.insert(word("page="), (url, word("outcome=")));
        assert!(before.is_none(), "announced twice: {payload}");
    }
}

/// The same for the pages that a crawler has stored.
fn stored_pages(data: &Path) -> Vec<(String, (String, String))> {
    let sql = "select page, url, outcome from pages where outcome <> 'retry'";
    let rows = page_database::query(data, sql).expect("the crawler has stored pages");
    let row = |row: String| {
        let mut columns = row.split('|').map(str::to_owned);
        let mut next = || columns.next().expect("three columns");
        (next(), (next(), next()))
    };
    rows.into_iter().map(row).collect()
}
