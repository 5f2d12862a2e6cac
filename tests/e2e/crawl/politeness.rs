//! Two thousand hosts crawled at once, as the hosts see it: each page once, robots.txt before it,
//! and the delay after each response. `bench/peers.sh crawl` measures the same for longer, beside
//! other crawlers.

use std::net::Ipv4Addr;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tempfile::TempDir;
use tidings_bench::origin::{Origin, Site, Verdict};

use crate::support::process::run_tidings;

const SITE: Site = Site {
    hosts: 2000,
    pages: 3,
    page_bytes: 1000,
    links: 10,
    response_delay: Duration::from_millis(20),
    crawl_delay: Some(Duration::from_millis(300)),
    sends_keep_alive: false,
};

#[test]
fn thousands_of_hosts_are_crawled_politely_and_each_page_once() {
    // The origin, which has one connection for each host, runs in this process.
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    let origin = Origin::serve(SITE, (Ipv4Addr::UNSPECIFIED, 0).into()).unwrap();
    let seeds: Vec<_> = origin.seeds().collect();
    let mut arguments = vec!["crawl", "--quiet", "--allow-private", "--delay", "300ms"];
    arguments.extend(seeds.iter().map(String::as_str));
    let folder = TempDir::new().unwrap();
    let summary = run_tidings(folder.path(), &arguments).expect_code(0).stdout().concat();

    let verdict = origin.request_log().judge(&SITE);
    assert!(verdict.is_clean(), "{verdict}\n{summary}");
    // Affinity: all requests to a host used one connection.
    let Verdict { pages, unlinked, connections, .. } = verdict;
    assert_eq!((pages, unlinked, connections), (6000, 0, 2000), "{summary}");
}
