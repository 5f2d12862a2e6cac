//! A crawl among servers that send what nobody should: every one of them is an outcome with a name, none takes more
//! than a bounded share of the memory, and none slows down the others.

use std::{collections::BTreeMap, time::Duration};

use crate::support::{
    hostile::{GOOD_PAGES, Hostile, WAYS},
    pages,
    process::{Server, at},
};

/// What all of them together may cost in memory, beside the crawl itself.
const MEMORY_BYTES_MAX: u64 = 64 << 20;

/// Good hosts beside the others.
const GOOD_HOSTS: usize = 10;

/// One request to a bad host may take so long.
const TIMEOUT: Duration = Duration::from_secs(8);

#[test]
fn whatever_servers_send_is_an_outcome_and_costs_little() {
    assert!(WAYS.len() >= 50, "{} ways", WAYS.len());
    let hostile = Hostile::serve();
    let timeout = format!("{}s", TIMEOUT.as_secs());
    let server = Server::up(&["--allow-private", "--quiet", "--timeout", &timeout]);
    at(&server, &["group", "set", "crawlers", "max-attempts=1"]).expect_code(0);
    // What a crawl of as many good hosts takes.
    let good = |hosts: std::ops::Range<usize>| hosts.map(|host| hostile.good(host));
    let base: Vec<_> = good(100..100 + WAYS.len()).collect();
    crawl(&server, &base).expect_code(0);
    let before = server.process.peak_memory_bytes();

    let bad: Vec<_> = WAYS.iter().map(|(way, _)| hostile.url(way)).collect();
    let began = hostile.now();
    let all: Vec<_> = bad.iter().cloned().chain(good(0..GOOD_HOSTS)).collect();
    crawl(&server, &all).expect_code(1);
    let grown = server.process.peak_memory_bytes().saturating_sub(before);
    assert!(grown <= MEMORY_BYTES_MAX, "{} MiB more", grown >> 20);

    // Good hosts were done before the time of a bad one was over.
    let seen = hostile.seen();
    let host = |url: &str| url[7..].split(':').next().unwrap().to_owned();
    for url in good(0..GOOD_HOSTS) {
        let of_host = seen.iter().filter(|seen| seen.host.to_string() == host(&url));
        let times: Vec<_> =
            of_host.filter(|seen| seen.path != "/robots.txt").map(|seen| seen.at).collect();
        assert_eq!(times.len(), GOOD_PAGES + 1, "{url}: its pages and one that is not there");
        let last = times.iter().max().unwrap().saturating_sub(began);
        assert!(last < TIMEOUT, "{url} took {last:?}");
    }
    let outcomes = outcomes(&server);
    for (way, _) in WAYS {
        let found = &outcomes[&hostile.url(way)];
        println!("{way:32} {found}");
    }
    let wrong: Vec<_> = EXPECTED
        .iter()
        .filter(|(way, expected)| outcomes[&hostile.url(way)] != *expected)
        .map(|(way, expected)| {
            format!("{way}: {expected} expected, {}", outcomes[&hostile.url(way)])
        })
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(EXPECTED.len(), WAYS.len(), "every way has its outcome");
}

/// A job of these seeds with a bound for mazes.
#[track_caller]
fn crawl(server: &Server, seeds: &[String]) -> crate::support::process::Finished {
    let mut words = vec!["crawl", "--quiet", "--max-per-host", "25", "--scope", "host"];
    words.extend(seeds.iter().map(String::as_str));
    crate::support::process::run(server.folder.path(), &words)
}

/// Of each page, how it ended and why.
fn outcomes(server: &Server) -> BTreeMap<String, String> {
    let sql = "select url, outcome || coalesce(' ' || reason, '') from pages";
    let rows = pages::query(&server.data(), sql).unwrap();
    rows.iter()
        .map(|row| row.split_once('|').unwrap())
        .map(|(url, end)| (url.to_owned(), end.to_owned()))
        .collect()
}

/// How the first page of each ends.
const EXPECTED: &[(&str, &str)] = &[];
