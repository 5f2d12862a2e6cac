//! During a pass over many feeds, a peer publishes some of them because they have changed. They are
//! fetched next, not a second time in that pass, and again in the following pass.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::support::line_connection::FAREWELL;
use crate::support::nc::run_nc;
use crate::support::origin::{Hit, Origin, Site};
use crate::support::process::{Process, Server, run_at, run_json_at, run_tidings, tidings_command};
use crate::support::wait::wait_until;

const FEEDS: u16 = 500;
const PUBLISHED_FEEDS: usize = 50;

/// The number of requests at once, low enough for the pass to take a while.
const CREDIT: usize = 10;

#[test]
#[ignore = "needs foreign programs"]
fn published_feeds_are_fetched_next_and_once_in_the_running_pass() {
    let origin = Origin::serve(Site {
        hosts: FEEDS,
        response_delay: Duration::from_millis(40),
        ..Site::default()
    });
    let server =
        Server::start_up(&["--allow-private", "--concurrency", &CREDIT.to_string(), "--quiet"]);
    let seeds = origin.seed_urls();
    let mut arguments = vec!["crawl", "--depth", "0", "--quiet"];
    arguments.extend(seeds.iter().map(String::as_str));

    let pass = Process::start(&mut tidings_command(server.folder.path(), &arguments));
    origin.wait_for_hits(100);
    // Published while nothing is fetched: a feed that is fetched first would be fetched again.
    run_at(&server, &["group", "pause"]).expect_code(0);
    wait_until("no task under way", || {
        (run_json_at(&server, &["group", "show"])[0]["processing"] == 0).then_some(())
    });
    let requested: BTreeSet<_> = origin.request_log().0.iter().map(|hit| hit.host).collect();
    let not_requested = (0..FEEDS).filter(|feed| !requested.contains(&Site::host(*feed)));
    let published: Vec<_> = not_requested.take(PUBLISHED_FEEDS).collect();
    let lines: String = published.iter().map(|feed| origin.url(*feed, "/p/0") + "\n").collect();
    let response = run_nc(server.address, lines + "behind them\n");
    let hits_before = origin.request_count();
    assert_eq!(response.last().map(String::as_str), Some(FAREWELL), "{response:?}");
    wait_until("the group has taken them", || {
        (run_json_at(&server, &["group", "show"])[0]["unkeyed"] == 1).then_some(())
    });
    run_at(&server, &["group", "resume"]).expect_code(0);
    pass.finish().expect_code(0);

    let requests = origin.request_log();
    assert_eq!(
        requests_per_host(&requests.0),
        every_host(1),
        "every feed is fetched once in the pass"
    );
    // Two requests for each feed (its robots.txt is not known yet), alternating with the rest of
    // the pass, after the tasks released before.
    let next = &requests.0[..hits_before + 2 * 2 * PUBLISHED_FEEDS + 2 * CREDIT];
    let fetched = requests_per_host(next);
    for feed in published {
        assert!(
            fetched.contains_key(&Site::host(feed).to_string()),
            "feed {feed} was not fetched next"
        );
    }
    assert!(requests.0.len() > next.len() + 100, "the pass was not running any more");

    run_tidings(server.folder.path(), &arguments).expect_code(0);
    assert_eq!(
        requests_per_host(&origin.request_log().0),
        every_host(2),
        "every feed is fetched again in the next pass"
    );
}

/// How often each host was requested for its feed.
fn requests_per_host(hits: &[Hit]) -> BTreeMap<String, usize> {
    let mut times = BTreeMap::new();
    for hit in hits.iter().filter(|hit| hit.path == "/p/0") {
        *times.entry(hit.host.to_string()).or_default() += 1;
    }
    times
}

fn every_host(times: usize) -> BTreeMap<String, usize> {
    (0..FEEDS).map(|feed| (Site::host(feed).to_string(), times)).collect()
}
