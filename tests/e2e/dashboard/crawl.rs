//! A crawl of 30 hosts, of which some are paused for a while.

use std::collections::BTreeSet;
use std::ops::Range;

use serde_json::{Value, json};

use super::Script;
use crate::support::http_client::HttpClient;
use crate::support::origin::{Origin, Site, full_response};
use crate::support::process::{Server, run_at, run_json_at};
use crate::support::wait::wait_until;

const HOSTS: u16 = 30;
const PAUSED: Range<u16> = 27..HOSTS;

/// Of each host, without those that its robots.txt excludes. The last one fails.
const PAGES: u32 = 10;

/// The job, which has all its seeds, once this many of its URLs are left.
#[track_caller]
fn wait_for_left(server: &Server, left: u16) -> Value {
    wait_until("the URLs that are left", || {
        let job = run_json_at(server, &["job", "show", "census"]).remove(0);
        let count = |name: &str| job[name].as_u64().unwrap();
        let unfinished = count("pending") + count("queued") + count("processing");
        (unfinished == u64::from(left)).then_some(job)
    })
}

#[test]
#[ignore = "needs foreign programs"]
fn a_crawl_is_shown_as_it_is_until_its_end() {
    let site = Site {
        hosts: HOSTS,
        pages: PAGES,
        robots: Some("User-agent: *\nDisallow: /private/\n"),
        ..Site::default()
    };
    let last = format!("/p/{}", PAGES - 1);
    let path = last.clone();
    let origin = Origin::serve_with(site, move |hit| {
        (hit.path == path).then(|| full_response("404 Not Found", "", ""))
    });
    let server = Server::start_up(&["--allow-private", "--delay", "10ms"]);
    let run = |arguments: &[&str]| run_at(&server, arguments).expect_code(0);
    let rule = |verb: &str| {
        for host in PAUSED {
            run(&["host", verb, &Site::host(host).to_string()]);
        }
    };
    let address = format!("{}/", HttpClient::new(&server).base_url);
    let mut script = Script::start("crawl", &[&address, &server.address_text()]);
    script.when("crawl all hosts but those that are paused", || {
        rule("pause");
        run(&["job", "open", "census"]);
        let seeds = origin.seed_urls();
        let add: Vec<_> = seeds.iter().map(|url| &**url).collect();
        run(&[&["job", "add", "census"], &add[..]].concat());
        run(&["job", "close", "census"]);
        wait_for_left(&server, HOSTS - PAUSED.start)
    });
    let mut end = Value::Null;
    script.when("crawl the rest", || {
        rule("clear");
        end = wait_for_left(&server, 0);
        end.clone()
    });
    script.when("wait for the second pass", || {
        let job = wait_until("the end of the second pass", || {
            let job = run_json_at(&server, &["job", "show", "census"]).remove(0);
            (job["pass"] == 2 && job["state"] == "done").then_some(job)
        });
        assert_eq!((&job["completed"], &job["failed"]), (&json!(0), &json!(HOSTS)), "{job}");
        job
    });
    let said = script.finish();

    assert_eq!(said["holding"], json!(PAUSED.map(Site::host).collect::<Vec<_>>()));
    assert_eq!(said["retry"], format!("{HOSTS} pages of census will be fetched again."));
    assert_eq!(said["reason"], format!("{HOSTS} status: a status without a page, such as 404"));
    assert_eq!(said["hosts"], json!(vec!["10"; 20]));
    let seeds: BTreeSet<_> =
        said["seeds"].as_array().unwrap().iter().map(Value::to_string).collect();
    let expected = origin.seed_urls().into_iter().map(|url| Value::from(url).to_string());
    assert_eq!(seeds, expected.collect());
    let log = origin.request_log();
    let (failed, crawled): (Vec<_>, Vec<_>) =
        log.distinct_pages().into_iter().partition(|(_, path)| *path == last);
    assert_eq!(end["completed"], crawled.len(), "{end}");
    let failed = failed.iter().map(|(host, path)| origin.url_at(host, path).into());
    let listed: BTreeSet<_> =
        said["failed"].as_array().unwrap().iter().map(Value::to_string).collect();
    assert_eq!(listed, failed.map(|url: Value| url.to_string()).collect());
}
