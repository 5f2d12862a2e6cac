//! Jobs whose scope grows while they are under way: a link that was out of it is fetched when it is found again.

use crate::support::{
    origin::{Answer, Hit, Origin, Site, html, whole},
    process::{Server, at, json_at},
    wait::until,
};

/// On the first host two pages that link to the second one, and a redirect there; on the second one a page that links to
/// another of its own.
fn answer(hit: &Hit) -> Option<Answer> {
    let (_, port) = hit.header("Host")?.split_once(':')?;
    let second = format!("http://{}:{port}", Site::host(1));
    match hit.path.as_str() {
        "/early" | "/late" => Some(html(&format!("<a href='{second}/found'>x</a>"))),
        "/moved" => Some(whole("302 Found", &format!("Location: {second}/start\r\n"), "")),
        "/start" => Some(html("<a href='/found'>x</a>")),
        "/alone" | "/found" => Some(html("<title>nothing more</title>")),
        _ => None,
    }
}

/// What the job `grown` fetches of such seeds, each of which is given when the ones before it are dealt with.
fn fetched(seeds: &[(u16, &str)]) -> Vec<String> {
    let origin = Origin::serve_with(Site { hosts: 2, ..Site::default() }, answer);
    let server = Server::up(&["--allow-private", "--quiet"]);
    at(&server, &["job", "open", "grown", "scope=host"]).expect_code(0);
    for (host, path) in seeds {
        at(&server, &["job", "add", "grown", &origin.url(*host, path)]).expect_code(0);
        until("the end of what is there", || {
            let job = &json_at(&server, &["job", "show", "grown"])[0];
            (job["pending"] == 0 && job["queued"] == 0 && job["processing"] == 0).then_some(())
        });
    }
    at(&server, &["job", "close", "grown"]).expect_code(0);
    at(&server, &["job", "wait", "grown"]).expect_code(0);
    let record = origin.record();
    record.expect_no_duplicates();
    record.paths().into_iter().map(str::to_owned).collect()
}

#[test]
fn a_further_seed_lets_in_what_was_found_before() {
    let paths = fetched(&[(0, "/early"), (1, "/alone"), (0, "/late")]);
    assert_eq!(paths, ["/early", "/alone", "/late", "/found"]);
}

#[test]
fn so_does_the_redirect_of_a_seed() {
    let paths = fetched(&[(0, "/early"), (0, "/moved")]);
    assert_eq!(paths, ["/early", "/moved", "/start", "/found"]);
}
