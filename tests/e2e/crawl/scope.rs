//! The scope of a job may grow while it runs: a link that was out of scope is fetched when it is
//! found again. No page of a crawl is fetched before the scope is complete.

use tempfile::TempDir;

use crate::support::origin::{Hit, Origin, OriginResponse, Site, full_response, html_response};
use crate::support::process::{Process, Server, run_at, run_json_at, tidings_command};
use crate::support::wait::wait_until;

/// The first host has two pages that link to the second host, and a redirect to it. The second host
/// has a page that links to another of its pages.
fn respond(hit: &Hit) -> Option<OriginResponse> {
    let (_, port) = hit.header("Host")?.split_once(':')?;
    let second = format!("http://{}:{port}", Site::host(1));
    match hit.path.as_str() {
        "/early" | "/late" => Some(html_response(&format!("<a href='{second}/found'>x</a>"))),
        "/moved" => Some(full_response("302 Found", &format!("Location: {second}/start\r\n"), "")),
        "/start" => Some(html_response("<a href='/found'>x</a>")),
        "/alone" | "/found" => Some(html_response("<title>nothing more</title>")),
        _ => None,
    }
}

/// The paths that the job `grown` fetches. Each seed is added after the ones before it are done.
fn fetched_paths(seeds: &[(u16, &str)]) -> Vec<String> {
    let origin = Origin::serve_with(Site { hosts: 2, ..Site::default() }, respond);
    let server = Server::start_up(&["--allow-private", "--quiet"]);
    run_at(&server, &["job", "open", "grown", "scope=host"]).expect_code(0);
    for (host, path) in seeds {
        run_at(&server, &["job", "add", "grown", &origin.url(*host, path)]).expect_code(0);
        wait_until("the job to be idle", || {
            let job = &run_json_at(&server, &["job", "show", "grown"])[0];
            (job["pending"] == 0 && job["queued"] == 0 && job["processing"] == 0).then_some(())
        });
    }
    run_at(&server, &["job", "close", "grown"]).expect_code(0);
    run_at(&server, &["job", "wait", "grown"]).expect_code(0);
    let requests = origin.request_log();
    requests.expect_no_duplicates();
    requests.paths().into_iter().map(str::to_owned).collect()
}

#[test]
fn a_later_seed_widens_the_scope_for_earlier_links() {
    let paths = fetched_paths(&[(0, "/early"), (1, "/alone"), (0, "/late")]);
    assert_eq!(paths, ["/early", "/alone", "/late", "/found"]);
}

#[test]
fn a_redirected_seed_widens_the_scope_for_earlier_links() {
    let paths = fetched_paths(&[(0, "/early"), (0, "/moved")]);
    assert_eq!(paths, ["/early", "/moved", "/start", "/found"]);
}

/// Seeds between the first and the last. While they are being added, a page could be fetched many
/// times.
const SEEDS_BETWEEN: usize = 20_000;

/// The page of the first seed links to the host of the last seed; no other page does.
fn respond_to_first_seed(hit: &Hit) -> Option<OriginResponse> {
    let (_, port) = hit.header("Host")?.split_once(':')?;
    let last = format!("http://{}:{port}", Site::host(2));
    match hit.path.as_str() {
        "/first" => Some(html_response(&format!("<a href='{last}/found'>x</a>"))),
        "/robots.txt" => None,
        _ => Some(html_response("<title>nothing more</title>")),
    }
}

/// Crawls many seeds with these arguments and checks that the link of the first page is fetched.
#[track_caller]
fn expect_link_of_first_seed_fetched(arguments: &[&str]) {
    let origin = Origin::serve_with(Site { hosts: 3, ..Site::default() }, respond_to_first_seed);
    let between = (0..SEEDS_BETWEEN).map(|n| origin.url(1, &format!("/{n}")));
    let (first, last) = (origin.url(0, "/first"), origin.url(2, "/last"));
    let seeds: Vec<String> = [first].into_iter().chain(between).chain([last]).collect();
    let folder = TempDir::new().unwrap();
    // At most two of the seeds in between are fetched.
    let arguments =
        [&["crawl", "--seeds", "-", "--max-per-host", "2", "--quiet"], arguments].concat();
    let mut crawl = Process::start(&mut tidings_command(folder.path(), arguments));
    crawl.write(seeds.join("\n"));
    crawl.finish().expect_code(0);
    let requests = origin.request_log();
    requests.expect_no_duplicates();
    let paths = requests.paths();
    assert!(paths.contains(&"/first") && paths.contains(&"/last"), "{paths:?}");
    assert!(
        paths.contains(&"/found"),
        "the first page was fetched before the last seed was added: {paths:?}"
    );
}

#[test]
fn no_page_is_fetched_before_all_seeds_are_added() {
    expect_link_of_first_seed_fetched(&["--allow-private"]);
}

#[test]
fn crawlers_of_another_broker_wait_for_all_seeds() {
    let server = Server::start_up(&["--allow-private", "--quiet"]);
    expect_link_of_first_seed_fetched(&["--broker", &server.address_text()]);
}
