//! Thousands of hosts crawled at once, as the hosts see it: each page once, robots.txt before it,
//! and the delay after each response. `TIDINGS_POLITE_HOSTS` is their number, 2,000 by default.
//! `bench/peers.sh` measures the same for longer, beside other crawlers.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tempfile::TempDir;
use tidings_bench::origin::{Origin, Site, Verdict};

use crate::support::process::run_tidings;
use crate::support::seed::number_from_env;

const SITE: Site = Site {
    hosts: 2_000,
    pages: 3,
    page_bytes: 1000,
    links: 10,
    response_delay: Duration::from_millis(20),
    crawl_delay: Some(Duration::from_millis(300)),
    is_scripted: false,
};

#[test]
fn thousands_of_hosts_are_crawled_politely_and_each_page_once() {
    // The origin, which has one connection for each host, runs in this process.
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    let hosts = number_from_env("TIDINGS_POLITE_HOSTS")
        .map_or(SITE.hosts, |count| u32::try_from(count).expect("a number of hosts"));
    let site = Site { hosts, ..SITE };
    let origin = Origin::serve(site, (Ipv4Addr::UNSPECIFIED, 0).into()).unwrap();
    let seeds: Vec<_> = origin.seeds().collect();
    let mut arguments = vec!["crawl", "--quiet", "--allow-private", "--delay", "300ms"];
    arguments.extend(seeds.iter().map(String::as_str));
    let folder = TempDir::new().unwrap();
    let started = Instant::now();
    let summary = run_tidings(folder.path(), &arguments).expect_code(0).stdout().concat();
    let seconds = started.elapsed().as_secs();

    let verdict = origin.request_log().judge(&site);
    assert!(verdict.is_clean(), "{verdict:?}\n{summary}");
    let Verdict { pages, unlinked, connections, .. } = verdict;
    assert_eq!((pages, unlinked), (u64::from(hosts * site.pages), 0), "{summary}");
    // Affinity: all requests to a host use one connection, unless it is idle for 20 s.
    let most = u64::from(hosts) * (1 + seconds / 20);
    assert!((u64::from(hosts)..=most).contains(&connections), "{connections}\n{summary}");
}
