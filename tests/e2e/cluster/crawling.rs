//! A crawl over changes of the leader, as the sites see it.

use std::time::Duration;

use super::community::Community;
use crate::support::line_connection::LineConnection;
use crate::support::origin::{Origin, Site};
use crate::support::process::start_crawler;

const DELAY: Duration = Duration::from_millis(100);

const SITE: Site = Site {
    hosts: 20,
    pages: 30,
    robots: Some("User-agent: *\nDisallow: /private/\n"),
    response_delay: Duration::from_millis(20),
    links_across_hosts: true,
};

#[test]
#[ignore = "needs foreign programs"]
fn a_crawl_stays_polite_and_ends_once_when_leaders_are_killed() {
    let (mut community, origin) = (Community::start(), Origin::serve(SITE));
    let mut client = LineConnection::connect_client(community.brokers[0].address);
    let delay = DELAY.as_millis();
    client.request_ok(&format!(
        "GROUP create crawlers delay={delay}ms lease=2s max-attempts=100 max-losses=100 backoff=100ms"
    ));
    client.request_ok("JOB open site scope=any");
    client.request_ok(&format!("PUB new-url {} job=site", origin.url(0, "/p/0")));
    client.request_ok("JOB close site");
    drop(client);
    let crawlers: Vec<_> = community
        .brokers
        .iter()
        .map(|broker| start_crawler(broker.address, broker.folder.path()))
        .collect();
    for hits in [60, 200] {
        origin.wait_for_hits(hits);
        let (leader, _) = community.leader();
        community.end_broker(leader, "KILL");
        community.leader();
        community.start_broker(leader);
    }
    let (leader, _) = community.leader();
    let mut client = LineConnection::connect_client(community.brokers[(leader + 1) % 3].address);
    client.request_ok("JOB wait site");
    let record = origin.request_log();
    record.expect_polite(DELAY);
    let pages = usize::from(SITE.hosts) * usize::try_from(SITE.pages).unwrap();
    assert_eq!(record.distinct_pages().len(), pages);

    client.request_ok("PUB job-done no-more");
    assert_eq!(client.request("SUB job-done from=first"), "+OK");
    let done = client.read_line();
    assert!(done.starts_with("MSG job-done 1 site ") && done.contains(" result=done "), "{done}");
    assert!(done.contains(&format!(" completed={pages} ")), "{done}");
    assert_eq!(client.read_line(), "MSG job-done 2 no-more");
    for crawler in crawlers {
        crawler.signal_and_finish("TERM");
    }
}
