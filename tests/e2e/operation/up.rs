//! `tidings up`: a line typed into netcat becomes a fetched, stored and shown page.

use std::time::Duration;

use tempfile::TempDir;

use crate::support::line_connection::{FAREWELL, LineConnection};
use crate::support::nc::run_nc;
use crate::support::origin::{Origin, Site};
use crate::support::page_database;
use crate::support::process::{Server, run_tidings, tidings_command};

/// The documented limit is one second; a machine that also compiles and tests may take longer.
const STOP_TIME_MAX: Duration = Duration::from_secs(15);

#[test]
#[ignore = "needs foreign programs"]
fn a_url_typed_into_netcat_becomes_a_stored_page() {
    let origin = Origin::serve(Site { pages: 7, ..Site::default() });
    let up = Server::start_up(&["--allow-private"]);
    let url = origin.url(0, "/p/0");
    let output = run_nc(up.address, format!("{url}\n"));
    assert_eq!(output.last().unwrap(), FAREWELL);

    let shown = up.process.wait_for_line_with(&url);
    for part in ["200", "\"Page 0 of 127.1.0.1\"", " links "] {
        assert!(shown.contains(part), "{part} in {shown:?}");
    }
    let data = up.folder.path().join("tidings-data");
    let sql = "select url, status, content_type, title, outcome, error is null from pages";
    assert_eq!(
        page_database::wait_for_rows(&data, sql, 1),
        [format!("{url}|200|text/html; charset=utf-8|Page 0 of 127.1.0.1|done|1")]
    );

    let explain = |url: &str| {
        let broker = up.address.to_string();
        let data = data.to_str().unwrap();
        run_tidings(up.folder.path(), &["explain", url, "--broker", &broker, "--data", data])
            .expect_code(1)
    };
    let fetched = explain(&url).stdout();
    assert!(
        fetched[0].starts_with(&format!("{url} was fetched with status 200 at 20")),
        "{fetched:?}"
    );
    let missing = origin.url(0, "/not/there");
    assert_eq!(run_nc(up.address, format!("{missing}\n")).last().unwrap(), FAREWELL);
    page_database::wait_for_rows(&data, sql, 2);
    let failed = explain(&missing).stdout();
    assert!(failed[0].starts_with(&format!("{missing} failed with status 404")), "{failed:?}");
    let never = explain(&origin.url(0, "/p/5"));
    assert!(never.stdout().is_empty() && !never.stderr().is_empty(), "{never:?}");
    // Of a broker elsewhere, the events about pages are read.
    let elsewhere = TempDir::new().unwrap();
    let words = ["explain", &url, "--broker", &up.address_text()];
    assert_eq!(
        run_tidings(elsewhere.path(), &words).expect_code(1).stdout(),
        [format!("{url} was fetched with status 200; see the topic page-ready")]
    );

    let ended = up.process.signal_and_finish("INT").expect_code(0);
    assert!(ended.elapsed < STOP_TIME_MAX, "{:?}", ended.elapsed);
    // The process has ended, so the log is complete: only these pages were fetched, and none of
    // their links.
    assert_eq!(origin.request_log().paths(), ["/p/0", "/not/there"]);
    let head = &origin.request_log().0[0].head;
    assert!(head.to_ascii_lowercase().contains("\r\nuser-agent: tidings/"), "{head}");
}

#[test]
#[ignore = "needs foreign programs"]
fn a_line_that_crawlers_cannot_use_is_reported_with_a_suggestion() {
    let up = Server::start_up(&[]);
    // The subscription of `up` may begin after the first line.
    for _ in 0..20 {
        run_nc(up.address, "example.com/x\nhttp://a.example/ every=1hr\n");
    }
    up.process.wait_for_line_with("not a URL: example.com/x, did you mean http://example.com/x ?");
    let line = "not fetched: http://a.example/ every=1hr; every= is a duration such as 30m";
    up.process.wait_for_line_with(line);
}

#[test]
#[ignore = "needs foreign programs"]
fn a_url_that_is_too_long_is_refused_by_an_event() {
    let origin = Origin::serve(Site::default());
    let server = Server::start_up(&["--allow-private"]);
    let mut subscriber = LineConnection::connect_client(server.address);
    assert_eq!(subscriber.request("SUB dead-letter from=first"), "+OK");
    let url = |bytes: usize| format!("{:a<bytes$}", origin.url(0, "/"));
    run_nc(server.address, format!("{} item=5\n{} item=6\n", url(8192), url(8193)));
    let letter = subscriber.read_line();
    let expected = "MSG dead-letter 1 reason=url-too-long group=crawlers topic=new-url seq=2 ";
    assert_eq!(letter, format!("{expected}{} item=6", url(8193)));
    page_database::wait_for_rows(&server.data_dir(), "select url from pages where item = 5", 1);
}

#[test]
fn up_prints_its_address_its_data_directory_and_a_next_command() {
    let up = Server::start_up(&[]);
    let next = up.process.wait_for_line_with("nc -N ");
    assert!(next.contains(&format!("127.0.0.1 {}", up.address.port())), "{next}");
    up.process.wait_for_line_with("tidings-data");
    let output = up.process.signal_and_finish("TERM").expect_code(0);
    assert!(output.elapsed < STOP_TIME_MAX, "{:?}", output.elapsed);
}

#[test]
fn up_stops_promptly_with_open_requests_and_peers() {
    let origin = Origin::serve(Site { hosts: 20, ..Site::default() });
    let up = Server::start_up(&["--allow-private"]);
    let mut peer = LineConnection::connect_peer(up.address);
    for host in 0..20 {
        peer.send(format!("{}\n", origin.url(host, "/bad/silent")));
    }
    // Twenty for robots.txt, twenty that never get a response.
    origin.wait_for_hits(40);
    let output = up.process.signal_and_finish("INT").expect_code(0);
    assert!(output.elapsed < STOP_TIME_MAX, "{:?}", output.elapsed);
    peer.read_to_end();
}

#[test]
#[ignore = "needs foreign programs"]
fn private_addresses_are_rejected_and_the_error_names_the_flag() {
    let origin = Origin::serve(Site::default());
    let up = Server::start_up(&[]);
    let url = origin.url(0, "/p/0");
    run_nc(up.address, &url);
    let shown = up.process.wait_for_line_with(&url);
    assert!(shown.contains("--allow-private"), "{shown}");
    let data = up.folder.path().join("tidings-data");
    let rows = page_database::wait_for_rows(&data, "select outcome, error from pages", 1);
    assert!(rows[0].starts_with("failed|") && rows[0].contains("--allow-private"), "{rows:?}");
    assert!(origin.request_log().0.is_empty());
}

#[test]
#[ignore = "needs foreign programs"]
fn only_the_allowed_networks_are_fetched() {
    let origin = Origin::serve(Site { hosts: 2, ..Site::default() });
    let up = Server::start_up(&["--allow-private=127.1.0.2/32"]);
    let (rejected, fetched) = (origin.url(0, "/p/0"), origin.url(1, "/p/0"));
    run_nc(up.address, format!("{rejected}\n{fetched}\n"));
    assert!(up.process.wait_for_line_with(&rejected).contains("--allow-private"));
    assert!(up.process.wait_for_line_with(&fetched).contains("200"));
    assert!(origin.request_log().0.iter().all(|hit| hit.host == Site::host(1)));
}

#[test]
#[ignore = "needs foreign programs"]
fn text_that_is_not_a_url_becomes_a_dead_letter() {
    let origin = Origin::serve(Site::default());
    let up = Server::start_up(&["--allow-private"]);
    let mut subscriber = LineConnection::connect_client(up.address);
    subscriber.request_ok("SUB dead-letter from=first");
    let mut peer = LineConnection::connect_peer(up.address);
    run_nc(up.address, "no url at all\n");
    // The event itself is valid.
    assert_eq!(peer.read_line(), "no url at all");
    let dead_letter = subscriber.read_line();
    assert!(dead_letter.starts_with("MSG dead-letter 1 "), "{dead_letter}");
    assert!(
        dead_letter.contains("no url at all") && dead_letter.contains("reason"),
        "{dead_letter}"
    );
    // The crawler continues.
    let url = origin.url(0, "/p/0");
    run_nc(up.address, &url);
    up.process.wait_for_line_with(&url);
}

#[test]
#[ignore = "needs foreign programs"]
fn a_url_published_twice_is_fetched_twice() {
    let origin = Origin::serve(Site::default());
    let up = Server::start_up(&["--allow-private"]);
    let url = origin.url(0, "/p/0");
    let data = up.folder.path().join("tidings-data");
    for times in 1..=2 {
        run_nc(up.address, &url);
        page_database::wait_for_rows(&data, "select url from pages", times);
    }
    assert_eq!(origin.request_log().paths(), ["/p/0", "/p/0"]);
}

#[test]
#[ignore = "needs foreign programs"]
fn a_redirect_is_followed_without_a_job() {
    let origin = Origin::serve(Site { pages: 1, ..Site::default() });
    let up = Server::start_up(&["--allow-private"]);
    run_nc(up.address, origin.url(0, "/chain/3"));
    up.process.wait_for_line_with("The end of the chain");
    assert_eq!(origin.request_log().paths(), ["/chain/3", "/chain/2", "/chain/1", "/chain/0"]);
    origin.request_log().expect_polite(Duration::ZERO);
}

#[test]
fn a_port_in_use_is_reported_with_the_flag_to_change_it() {
    let first = Server::start_broker();
    let address = first.address_text();
    let second = run_tidings(first.folder.path(), &["up", "--listen", &address, "--data", "other"]);
    assert_ne!(second.code, Some(0));
    let stderr = second.stderr();
    assert!(stderr.contains(&format!("{address} is in use")), "{stderr}");
    assert!(stderr.contains("such as --listen 127.0.0.1:0 for a free one"), "{stderr}");
    let both = ["up", "--listen", &address, "--http", &address, "--data", "other"];
    let stderr = run_tidings(first.folder.path(), &both).expect_code(2).stderr();
    assert!(stderr.contains("have the same port"), "{stderr}");
    // A crawl with its own broker does not work in the directory of another one.
    let own = ["crawl", "http://127.0.0.1:1/", "--data", "tidings-data"];
    let stderr = run_tidings(first.folder.path(), &own).expect_code(1).stderr();
    assert!(stderr.contains("tidings-data is in use by another tidings"), "{stderr}");
    assert!(!first.folder.path().join("tidings-data/pages.db").exists());
    let ignored = ["crawl", "http://127.0.0.1:1/", "--broker", &address];
    for flag in ["--data", "--http"] {
        let words = [&ignored[..], &[flag, "127.0.0.1:0"]].concat();
        let stderr = run_tidings(first.folder.path(), &words).expect_code(2).stderr();
        assert!(
            stderr.contains(&format!("{flag} applies only to a crawl with its own")),
            "{stderr}"
        );
    }
    let crawler = ["crawl", "--broker", &address, "--http", &address, "--data", "other"];
    let stderr = run_tidings(first.folder.path(), &crawler).expect_code(1).stderr();
    assert!(stderr.contains("such as --http 127.0.0.1:0 "), "{stderr}");
}

#[test]
fn the_default_subcommand_is_up() {
    let folder = TempDir::new().unwrap();
    let mut command = tidings_command(folder.path(), ["--listen", "127.0.0.1:0"]);
    let process = crate::support::process::Process::start(&mut command);
    process.wait_for_line_with("listening on 127.0.0.1:");
    process.wait_for_line_with("nc -N ");
    process.signal_and_finish("INT").expect_code(0);
}
