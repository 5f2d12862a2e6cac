//! `tidings crawl URL..`: crawls a site as a job, with limits and an exit code.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::line_connection::LineConnection;
use crate::support::origin::{Origin, OriginResponse, Site, full_response};
use crate::support::page_database;
use crate::support::process::{Process, ProcessOutput, Server, run_tidings, tidings_command};
use crate::support::wait::wait_until;

/// Crawls with its own broker in an empty folder, which the result keeps.
#[track_caller]
fn crawl_site(arguments: &[&str]) -> (TempDir, ProcessOutput) {
    let folder = TempDir::new().unwrap();
    let finished = run_tidings(folder.path(), &[&["crawl", "--allow-private"], arguments].concat());
    (folder, finished)
}

#[track_caller]
fn query_pages(folder: &Path, sql: &str) -> Vec<String> {
    page_database::query(&folder.join("tidings-data"), sql).expect("the page database exists")
}

#[test]
#[ignore = "needs foreign programs"]
fn a_whole_site_is_fetched_once_and_stored() {
    let site = Site { pages: 60, ..Site::default() };
    let origin = Origin::serve(site.clone());
    let (folder, finished) = crawl_site(&[&origin.url(0, "/p/0")]);
    let finished = finished.expect_code(0);
    let requests = origin.request_log();
    requests.expect_no_duplicates();
    requests.expect_polite(Duration::ZERO);
    // Each page links to one below /private/, which no robots.txt forbids here.
    assert_eq!(requests.paths().len(), 120);
    let found = query_pages(
        folder.path(),
        "select count(*) from pages where outcome = 'done' and job is not null",
    );
    assert_eq!(found, ["120"]);
    let summary = finished.stdout().pop().unwrap();
    assert!(summary.contains("120 pages, 0 failed"), "{summary}");
}

#[test]
fn depth_scope_and_patterns_select_the_pages_of_a_crawl() {
    let site = Site { hosts: 3, pages: 31, links_across_hosts: true, ..Site::default() };
    let all: Vec<_> = (0..31).collect();
    // The last column: whether the pages below /private/, to which each page links, belong to it.
    for (seeds, flags, expected, is_private_in) in [
        (&[0][..], &["--depth", "2"][..], &[0, 1, 2, 3, 4, 5, 6][..], true),
        (&[0, 5], &["--depth", "0"], &[0, 5], false),
        // The default scope is the host: the first page also links to another one.
        (&[0], &[], &all, true),
        (&[0], &["--scope", "prefix"], &all, false),
        // Of 2 and 9, all pages below are missing, too. Seeds are not filtered.
        (
            &[0, 1],
            &["--include", "/p/", "--exclude", "*/2$", "--exclude", "/p/9,/p/1$"],
            &[0, 1, 3, 4, 7, 8, 10, 15, 16, 17, 18, 21, 22],
            false,
        ),
    ] {
        let origin = Origin::serve(site.clone());
        let seeds: Vec<_> = seeds.iter().map(|page| origin.url(0, &format!("/p/{page}"))).collect();
        let seeds: Vec<_> = seeds.iter().map(|seed| &**seed).collect();
        let (_folder, finished) = crawl_site(&[&seeds, flags].concat());
        finished.expect_code(0);
        let log = origin.request_log();
        let mut pages = log.distinct_pages();
        let count = pages.len();
        pages.retain(|(_, path)| !path.starts_with("/private/"));
        assert_eq!(count > pages.len(), is_private_in, "{flags:?}");
        let expected: Vec<_> = expected.iter().map(|page| format!("/p/{page}")).collect();
        let expected = expected.iter().map(|path| (Site::host(0), &**path));
        assert_eq!(pages, expected.collect(), "{flags:?}");
    }
}

#[test]
#[ignore = "needs foreign programs"]
fn max_pages_is_an_exact_limit() {
    let origin =
        Origin::serve(Site { pages: 200, robots: Some(FORBID_PRIVATE), ..Site::default() });
    let (folder, finished) = crawl_site(&[&origin.url(0, "/p/0"), "--max-pages", "25"]);
    finished.expect_code(0);
    assert_eq!(origin.request_log().paths().len(), 25);
    assert_eq!(
        query_pages(folder.path(), "select count(*) from pages where outcome = 'done'"),
        ["25"]
    );
}

#[test]
#[ignore = "needs foreign programs"]
fn pages_that_robots_txt_forbids_are_neither_fetched_nor_failed() {
    let robots = "User-agent: *\nDisallow: /p/1\nDisallow: /private/\nAllow: /p/11\n";
    let origin = Origin::serve(Site { pages: 12, robots: Some(robots), ..Site::default() });
    let (folder, finished) = crawl_site(&[&origin.url(0, "/p/0")]);
    finished.expect_code(0);
    let requests = origin.request_log();
    requests.expect_none_under("/private/");
    // Page 1 is forbidden, so 3, 4 and the pages below are not found; page 11 is below page 5.
    let mut paths: Vec<_> = requests.distinct_pages().into_iter().map(|(_, path)| path).collect();
    paths.sort_unstable();
    assert_eq!(paths, ["/p/0", "/p/11", "/p/2", "/p/5", "/p/6"]);
    let first = &requests.0[0];
    assert_eq!(first.path, "/robots.txt");
    assert_eq!(requests.0.iter().filter(|hit| hit.path == "/robots.txt").count(), 1);
    let forbidden =
        query_pages(folder.path(), "select count(*) from pages where outcome = 'robots'");
    assert_ne!(forbidden, ["0"]);
}

#[test]
fn a_crawl_delay_in_robots_txt_is_respected() {
    let robots = "User-agent: *\nCrawl-delay: 0.3\nDisallow: /private/\n";
    let origin = Origin::serve(Site { pages: 5, robots: Some(robots), ..Site::default() });
    let (_folder, finished) = crawl_site(&[&origin.url(0, "/p/0")]);
    finished.expect_code(0);
    // The gap between robots.txt and the first page counts as well, because the delay is known by
    // then.
    origin.request_log().expect_polite(Duration::from_millis(300));
}

#[test]
fn redirects_and_their_targets_are_fetched_once() {
    let origin = Origin::serve(Site { pages: 3, robots: Some(FORBID_PRIVATE), ..Site::default() });
    let (_folder, finished) =
        crawl_site(&[&origin.url(0, "/redirect/0"), &origin.url(0, "/redirect/2")]);
    finished.expect_code(0);
    let requests = origin.request_log();
    requests.expect_no_duplicates();
    requests.expect_polite(Duration::ZERO);
    assert_eq!(requests.paths().len(), 5);
}

#[test]
#[ignore = "needs foreign programs"]
fn a_failed_page_exits_with_code_1() {
    let origin = Origin::serve(Site { pages: 1, robots: Some(FORBID_PRIVATE), ..Site::default() });
    let (folder, finished) = crawl_site(&[&origin.url(0, "/p/0"), &origin.url(0, "/no/such/page")]);
    let finished = finished.expect_code(1);
    let summary = finished.stdout().pop().unwrap();
    assert!(summary.contains("1 page, 1 failed"), "{summary}");
    let failed = query_pages(
        folder.path(),
        "select status, outcome, error from pages where status is not 200 and outcome != 'robots'",
    );
    assert!(failed.len() == 1 && failed[0].starts_with("404|failed|"), "{failed:?}");
}

#[test]
#[ignore = "needs foreign programs"]
fn a_running_up_takes_the_job_and_publishes_job_done_once() {
    let origin = Origin::serve(Site { pages: 15, robots: Some(FORBID_PRIVATE), ..Site::default() });
    let up = Server::start_up(&["--allow-private"]);
    let mut done = LineConnection::connect_client(up.address);
    done.request_ok("SUB job-done from=first");
    let seed = origin.url(0, "/p/0");
    for pass in 1..=2 {
        // Without --broker and --data, the same folder is enough.
        let crawl = run_tidings(up.folder.path(), &["crawl", &seed, "--job", "docs"]);
        let crawl = crawl.expect_code(0);
        assert!(crawl.stderr().contains(&up.address_text()), "{}", crawl.stderr());
        let event = done.read_line();
        assert!(event.starts_with(&format!("MSG job-done {pass} docs ")), "{event}");
        for word in [format!("pass={pass}"), "completed=15".to_owned(), "result=done".to_owned()] {
            assert!(event.split(' ').any(|found| found == word), "{word} in {event}");
        }
        // When `job-done` arrives, the last page is complete and stored.
        let now = origin.request_log();
        assert_eq!(now.paths().len(), 15 * pass);
        assert!(now.0.iter().all(|hit| hit.end.is_some()));
        assert_eq!(
            query_pages(up.folder.path(), "select count(*) from pages where status = 200"),
            [(15 * pass).to_string()]
        );
    }
    // Published once for each pass: the next event of the topic is this one.
    assert_eq!(
        LineConnection::connect_client(up.address).request("PUB job-done no more"),
        "+OK 3 1"
    );
    assert_eq!(done.read_line(), "MSG job-done 3 no more");
}

#[test]
fn an_interrupted_crawl_exits_with_code_130() {
    let origin = Origin::serve(Site {
        pages: 500,
        response_delay: Duration::from_millis(20),
        ..Site::default()
    });
    let folder = TempDir::new().unwrap();
    let crawl =
        tidings_command(folder.path(), ["crawl", "--allow-private", &origin.url(0, "/p/0")]);
    let crawl = Process::start(&mut { crawl });
    origin.wait_for_hits(10);
    crawl.signal_and_finish("INT").expect_code(130).expect_stderr("interrupted");
}

#[test]
#[ignore = "needs foreign programs"]
fn an_interrupted_crawl_resumes() {
    // The pages link to the same number of pages below /private/.
    const PAGES: u32 = 200;
    let origin = Origin::serve(Site {
        pages: PAGES / 2,
        response_delay: Duration::from_millis(5),
        ..Site::default()
    });
    let folder = TempDir::new().unwrap();
    let start = || {
        let crawl =
            tidings_command(folder.path(), ["crawl", "--allow-private", &origin.url(0, "/p/0")]);
        Process::start(&mut { crawl })
    };
    for (hits, signal) in [(30, "INT"), (80, "KILL"), (130, "TERM")] {
        let crawl = start();
        origin.wait_for_hits(hits);
        crawl.signal_and_finish(signal);
    }
    let summary = start().finish().expect_code(0).stdout().pop().unwrap();
    assert!(summary.contains(&format!("{PAGES} pages, 0 failed")), "{summary}");
    let pages = "select count(distinct url) from pages where status = 200";
    assert_eq!(query_pages(folder.path(), pages), [PAGES.to_string()]);
    // Only requests that were in flight at an interruption are repeated.
    let requests = origin.request_log();
    let paths = requests.paths();
    let again = paths.len() - paths.iter().collect::<BTreeSet<_>>().len();
    assert!(again <= 6, "{again} requests were repeated: {paths:?}");
    assert!(!folder.path().join("tidings-data/crawls").read_dir().unwrap().any(|_| true));
}

#[test]
fn output_in_a_pipe_has_neither_colour_nor_progress() {
    let origin = Origin::serve(Site { pages: 5, robots: Some(FORBID_PRIVATE), ..Site::default() });
    let (_folder, finished) = crawl_site(&[&origin.url(0, "/p/0")]);
    let finished = finished.expect_code(0);
    let all = finished.stdout().join("\n") + &finished.stderr();
    assert!(!all.contains(['\x1b', '\r']), "{all:?}");
    // A line for each page, including those that robots.txt forbids, and the summary.
    let lines = finished.stdout();
    let pages = lines.iter().filter(|line| line.contains("  http://")).count();
    assert_eq!(pages, 10, "{all}");
    assert_eq!(lines[10], "status   2xx 5", "{all}");
    assert!(lines[11].starts_with("answers  "), "{all}");
    assert!(lines[12].starts_with("done: 5 pages, 0 failed, 5 kept out by robots.txt; "), "{all}");
    assert_eq!(lines.len(), 13, "{all}");
}

#[test]
#[ignore = "needs foreign programs"]
fn a_terminal_shows_progress_below_the_pages() {
    let origin = Origin::serve(Site {
        pages: 40,
        robots: Some(FORBID_PRIVATE),
        response_delay: Duration::from_millis(20),
        ..Site::default()
    });
    let folder = TempDir::new().unwrap();
    let binary = env!("CARGO_BIN_EXE_tidings");
    let crawl = format!("stty cols 60; {binary} crawl --allow-private {}", origin.url(0, "/p/0"));
    let mut command = Command::new("script");
    command.args(["-qec", &crawl, "/dev/null"]).current_dir(folder.path()).stdin(Stdio::null());
    let shown = command.output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains(" completed, ") && shown.contains(" pages/s, "), "{shown}");
    // When a page arrives, the terminal moves from the speed line to the first line of the block
    // and clears both.
    assert!(shown.contains("\r\x1b[1A\x1b[J"), "{shown:?}");
    let (_, end) = shown.rsplit_once('\x1b').unwrap();
    assert!(end.starts_with("[J") && end.contains("done: 40 pages, 0 failed"), "{end:?}");
    let drawn = shown.split(['\r', '\n']).filter(|line| line.contains(" completed, "));
    assert!(drawn.clone().all(|line| line.chars().count() < 60), "{shown}");
}

#[test]
fn json_output_has_an_object_for_each_page_and_a_summary() {
    let origin = Origin::serve(Site { pages: 3, robots: Some(FORBID_PRIVATE), ..Site::default() });
    let (_folder, finished) =
        crawl_site(&[&origin.url(0, "/p/0"), &origin.url(0, "/no/such/page"), "--json"]);
    let objects: Vec<Value> = finished
        .expect_code(1)
        .stdout()
        .iter()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}")))
        .collect();
    let (summary, pages) = objects.split_last().unwrap();
    let first = pages.iter().find(|page| page["url"] == origin.url(0, "/p/0")).unwrap();
    assert_eq!((&first["status"], &first["outcome"]), (&200.into(), &"done".into()));
    assert!(first["job"].as_str().unwrap().starts_with("crawl-"), "{first}");
    let missing = pages.iter().find(|page| page["status"] == 404).unwrap();
    assert_eq!(
        (&missing["reason"], &missing["error"]),
        (&"status".into(), &"HTTP status 404".into())
    );
    let summary = &summary["summary"];
    for (key, value) in [("pages", 3), ("failed", 1), ("robots", 3), ("found", 7)] {
        assert_eq!(summary[key], value, "{summary}");
    }
    assert_eq!(summary["status"], json!({ "2xx": 3, "4xx": 1 }));
    let urls = [origin.url(0, "/no/such/page")];
    assert_eq!(summary["reasons"], json!([{ "reason": "status", "count": 1, "urls": urls }]));
    assert_eq!(pages.len(), 7);
}

#[test]
fn compressed_pages_count_decoded_and_wire_bytes() {
    let gzip = "printf '<title>Zeros</title>%02000d' 0 | gzip -9";
    let body = Command::new("sh").args(["-c", gzip]).output().unwrap().stdout;
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let (wire, decoded) = (body.len(), "<title>Zeros</title>".len() + 2000);
    let whole = [head.into_bytes(), body].concat();
    let origin = Origin::serve_with(Site::default(), move |hit| {
        (hit.path == "/zeros").then(|| OriginResponse::Raw(whole.clone()))
    });
    let (_folder, finished) = crawl_site(&[&origin.url(0, "/zeros"), "--json"]);
    let lines = finished.expect_code(0).stdout();
    let objects: Vec<Value> =
        lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    for object in [&objects[0], &objects[1]["summary"]] {
        assert_eq!((&object["bytes"], &object["wire_bytes"]), (&decoded.into(), &wire.into()));
    }
    let (_folder, finished) = crawl_site(&[&origin.url(0, "/zeros")]);
    let lines = finished.expect_code(0).stdout();
    let responses = lines.iter().find(|line| line.starts_with("answers ")).unwrap();
    assert!(responses.contains(&format!("2.0 kB ({wire} B on the wire) in all")), "{responses}");
}

#[test]
fn a_header_for_one_origin_is_sent_to_no_other() {
    const SECRET: &str = "Bearer for the first alone";
    let origin = Origin::serve_with(Site { hosts: 2, pages: 3, ..Site::default() }, |hit| {
        let (_, port) = hit.header("Host")?.split_once(':')?;
        let target = format!("Location: http://{}:{port}/p/0\r\n", Site::host(1));
        (hit.path == "/away").then(|| full_response("302 Found", &target, ""))
    });
    let header = format!("{}=Authorization: {SECRET}", origin.url(0, "").trim_end_matches('/'));
    let seeds = [origin.url(0, "/p/0"), origin.url(0, "/away")];
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("config.toml"), format!("header = ['{header}']\n")).unwrap();
    for arguments in [&["--header", &*header], &["--config", "config.toml"]] {
        let before = origin.request_count();
        let job = ["crawl", "--allow-private", &seeds[0], &seeds[1]];
        run_tidings(folder.path(), &[&job[..], arguments].concat()).expect_code(0);
        let requests = origin.request_log();
        let (first, second): (Vec<_>, Vec<_>) =
            requests.0[before..].iter().partition(|hit| hit.host == Site::host(0));
        assert!(first.iter().all(|hit| hit.header("Authorization") == Some(SECRET)), "{first:#?}");
        assert!(second.iter().any(|hit| hit.path == "/p/2"), "{second:#?}");
        assert!(second.iter().all(|hit| !hit.head.contains("for the first")), "{second:#?}");
    }
}

#[test]
fn seeds_are_read_from_a_file_or_standard_input() {
    let origin =
        Origin::serve(Site { hosts: 4, pages: 9, robots: Some(FORBID_PRIVATE), ..Site::default() });
    let folder = TempDir::new().unwrap();
    let seeds: String = (0..3).map(|host| origin.url(host, "/p/0") + "\n").collect();
    let table = seeds.replace("http://", "7,").replace('\n', ",x\n");
    fs::write(folder.path().join("seeds"), format!("# three\nrank,host\n\n{table}9,,\n")).unwrap();
    let arguments = ["crawl", "--allow-private", "--seeds", "seeds", "--max-per-host", "4"];
    let fourth = origin.url(3, "/p/0");
    let arguments = [&arguments[..], &[&fourth]].concat();
    run_tidings(folder.path(), &arguments)
        .expect_code(0)
        .expect_stderr("seeds: skipped 1 line without a URL (7: 9");
    let requests = origin.request_log();
    for host in 0..4 {
        let pages = requests.0.iter().filter(|hit| hit.host == Site::host(host));
        assert_eq!(pages.filter(|hit| hit.path.starts_with("/p/")).count(), 4, "{requests:?}");
    }
    // Another crawl with the same seeds from standard input.
    let mut piped = tidings_command(
        folder.path(),
        ["crawl", "--allow-private", "--seeds", "-", "--depth", "0"],
    );
    let mut piped = piped.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    piped.stdin.take().unwrap().write_all(seeds.as_bytes()).unwrap();
    assert!(piped.wait().unwrap().success());
    assert_eq!(origin.request_log().paths().len(), 4 * 4 + 3);
    // An invalid seed prevents the whole crawl, if it must.
    fs::write(folder.path().join("seeds"), format!("{seeds}nonsense\n")).unwrap();
    let strict = ["crawl", "--allow-private", "--seeds", "seeds", "--strict-seeds"];
    let rejected = run_tidings(folder.path(), &strict);
    rejected.expect_code(2).expect_stderr("seeds:4: nonsense is not a URL");
    assert_eq!(origin.request_log().paths().len(), 4 * 4 + 3);
}

#[test]
fn a_job_ends_at_its_time_limit() {
    let origin = Origin::serve(Site { pages: 500, ..Site::default() });
    let seed = origin.url(0, "/p/0");
    let (_folder, finished) = crawl_site(&[&seed, "--delay", "100ms", "--max-time", "1s"]);
    let summary = finished.expect_code(0).stdout().pop().unwrap();
    assert!(summary.contains(" over budget"), "{summary}");
}

#[test]
fn crawling_other_sites_without_a_contact_warns() {
    let warning_count = |arguments: &[&str]| {
        let folder = TempDir::new().unwrap();
        let stderr = run_tidings(folder.path(), &[&["crawl"], arguments].concat()).stderr();
        stderr.matches("--contact URL|MAIL").count()
    };
    // These addresses are private, so neither is requested.
    let other = ["http://10.255.255.1/", "http://10.255.255.2/"];
    assert_eq!(warning_count(&other), 1);
    assert_eq!(warning_count(&[&other[..], &["--contact", "me@example.org"]].concat()), 0);
    assert_eq!(warning_count(&[&other[..], &["--agent", "bot/1"]].concat()), 0);
    assert_eq!(warning_count(&["http://127.0.0.1:9/"]), 0);
}

#[test]
fn the_data_directory_is_created() {
    let origin = Origin::serve(Site::default());
    let (folder, finished) =
        crawl_site(&[&origin.url(0, "/p/0"), "--depth", "0", "--data", "a/b/c"]);
    finished.expect_code(0);
    let file = folder.path().join("a/b/c/pages.db");
    assert!(wait_until("the database", || fs::metadata(&file).ok()).len() > 0);
    assert!(!folder.path().join("tidings-data").exists());
}

const FORBID_PRIVATE: &str = "User-agent: *\nDisallow: /private/\n";
