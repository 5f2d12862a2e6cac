//! Real input: the HTML documentation of Python, several hundred pages, served by nginx on a
//! loopback port. The pages that wget reaches are the reference; the access log of nginx shows the
//! requests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use crate::crawl::outputs::write_script;
use crate::crawl::sinks::{json_urls, warc_urls};
use crate::support::nginx::Nginx;
use crate::support::page_database;
use crate::support::postgres::Postgres;
use crate::support::process::{Process, run_tidings};

/// From Debian's package python3-doc, which `tests/run --all` installs.
const DOCUMENTATION_DIR: &str = "/usr/share/doc/python3-doc/html";

/// A line of the access log.
#[derive(Debug)]
struct LoggedRequest {
    path: String,
    status: u16,
    is_html: bool,
    /// In whole milliseconds since 1970, from one clock, truncated and not rounded; see
    /// [`LoggedRequest::parse`].
    start_unix_ms: u64,
    end_unix_ms: u64,
}

impl LoggedRequest {
    /// `$msec` is the time at which nginx logged the request, after it had sent the last byte, and
    /// `$request_time` is the time since it read the first byte. nginx 1.22 reads both from one
    /// clock in whole milliseconds, so their difference is exactly the start by that clock.
    /// Truncation to milliseconds keeps differences of whole milliseconds: where b >= a + 200,
    /// trunc(b) >= trunc(a) + 200. nginx updates the clock when it wakes up, so the logged end is
    /// never late (the client has read the last byte no earlier) and the logged start never early.
    fn parse(line: &str) -> Self {
        let [msec, request_time, status, path, content_type] =
            line.split('\t').collect::<Vec<_>>()[..]
        else {
            panic!("not a line of the log format: {line}")
        };
        let end_unix_ms = parse_milliseconds(msec);
        Self {
            path: path.to_owned(),
            status: status.parse().unwrap(),
            is_html: content_type == "text/html",
            start_unix_ms: end_unix_ms - parse_milliseconds(request_time),
            end_unix_ms,
        }
    }
}

/// Parses seconds with three decimals as milliseconds, without floating point.
fn parse_milliseconds(text: &str) -> u64 {
    let (seconds, thousandths) = text.split_once('.').unwrap();
    assert_eq!(thousandths.len(), 3, "{text}");
    seconds.parse::<u64>().unwrap() * 1000 + thousandths.parse::<u64>().unwrap()
}

/// An nginx that serves the documentation.
struct DocumentationServer(Nginx);

impl DocumentationServer {
    #[track_caller]
    fn serve() -> Self {
        assert!(
            PathBuf::from(DOCUMENTATION_DIR).join("index.html").exists(),
            "{DOCUMENTATION_DIR} is missing; run the tests with tests/run --all, which installs it"
        );
        let log = "log_format times '$msec\t$request_time\t$status\t$request_uri\t$sent_http_content_type';
            access_log access.log times;";
        let server = format!("root {DOCUMENTATION_DIR}; index index.html;");
        Self(Nginx::start(TempDir::new().unwrap(), log, &server))
    }

    /// The start page.
    fn url(&self) -> String {
        self.0.url()
    }

    /// Stops nginx, so that its log is complete, and returns the requests in the order of their
    /// start.
    #[track_caller]
    fn stop_and_read_log(self) -> Vec<LoggedRequest> {
        let Nginx { process, folder, .. } = self.0;
        process.signal_and_finish("QUIT").expect_code(0);
        let log = fs::read_to_string(folder.path().join("access.log")).unwrap();
        let mut requests: Vec<_> = log.lines().map(LoggedRequest::parse).collect();
        requests.sort_by_key(|request| request.start_unix_ms);
        requests
    }
}

/// The paths of the HTML pages with status 200 among the requests.
fn html_paths(requests: &[LoggedRequest]) -> BTreeSet<&str> {
    let is_page = |request: &&LoggedRequest| request.status == 200 && request.is_html;
    requests.iter().filter(is_page).map(|request| request.path.as_str()).collect()
}

/// Everything that wget requests when it follows the links of the documentation. Like the crawler,
/// it requests each URL once without its fragment and stays on the host. It ignores robots.txt,
/// which does not exist there.
#[track_caller]
fn crawl_with_wget() -> Vec<LoggedRequest> {
    let documentation = DocumentationServer::serve();
    let folder = TempDir::new().unwrap();
    let mut wget = Command::new("wget");
    wget.args(["--recursive", "--level=inf", "--no-verbose", "--execute=robots=off", "--no-proxy"])
        .arg(documentation.url())
        .current_dir(folder.path());
    let wget = Process::start(&mut wget).finish();
    // 8: some links of the documentation are broken.
    assert!(matches!(wget.code, Some(0 | 8)), "{}", wget.stderr());
    documentation.stop_and_read_log()
}

#[test]
#[ignore = "needs foreign programs"]
fn every_sink_stores_every_page_that_wget_reaches_once() {
    let wget = crawl_with_wget();
    let reference = html_paths(&wget);
    let (documentation, postgres) = (DocumentationServer::serve(), Postgres::start());
    let folder = TempDir::new().unwrap();
    let seed = documentation.url();
    let program = write_script(
        folder.path(),
        "#!/bin/sh\ntest -s \"$PAGE_PATH\" && echo \"$PAGE_URL\" >> done\n",
    );
    let arguments = ["crawl", "--allow-private", "--quiet", "--sqlite", "--jsonl=pages.jsonl"];
    let more = ["--warc=warc/docs", "--postgres", &postgres.url(), "--exec", &program, &seed];
    let crawl = run_tidings(folder.path(), &[&arguments[..], &more].concat());
    let requests = documentation.stop_and_read_log();
    assert!(reference.len() > 400, "only {} pages", reference.len());
    assert_eq!(html_paths(&requests), reference);
    let distinct: BTreeSet<_> = requests.iter().map(|request| &request.path).collect();
    assert_eq!(distinct.len(), requests.len(), "requested twice: {requests:#?}");
    let failed = requests.iter().any(|r| r.status >= 400 && r.path != "/robots.txt");
    assert_eq!(crawl.code, Some(i32::from(failed)), "{crawl:?}");

    let sqlite =
        |sql: &str| page_database::query(&folder.path().join("tidings-data"), sql).unwrap();
    let once = |urls: Vec<String>| {
        let count = urls.len();
        let once: BTreeMap<_, _> = urls.into_iter().map(|url| (url, 1)).collect();
        assert_eq!(once.len(), count, "some URLs are stored twice");
        once
    };
    let all = "select url from pages";
    let everything = once(sqlite(all));
    assert_eq!(once(postgres.query(all)), everything);
    let json = fs::read_to_string(folder.path().join("pages.jsonl")).unwrap();
    assert_eq!(json_urls(&json), everything);
    assert_eq!(warc_urls(&folder.path().join("warc")), everything);

    // The fetched URLs, which include files that are not pages.
    let fetched = once(sqlite("select url from pages where outcome = 'done'"));
    let run = fs::read_to_string(folder.path().join("done")).unwrap();
    assert_eq!(once(run.lines().map(str::to_owned).collect()), fetched);
    let pages =
        sqlite("select url from pages where outcome = 'done' and content_type = 'text/html'");
    let paths = pages.iter().map(|url| &url[seed.len() - 1..]).collect::<BTreeSet<_>>();
    assert_eq!(paths, reference);
}

#[test]
#[ignore = "needs foreign programs"]
fn the_delay_is_kept_between_all_requests() {
    const DELAY_MS: u64 = 200;
    let documentation = DocumentationServer::serve();
    let folder = TempDir::new().unwrap();
    let url = documentation.url();
    let crawl = run_tidings(
        folder.path(),
        &["crawl", &url, "--allow-private", "--delay", "200ms", "--max-pages", "30"],
    );
    crawl.expect_code(0);
    let requests = documentation.stop_and_read_log();
    // Thirty pages, after robots.txt.
    assert_eq!(requests.len(), 31);
    for pair in requests.windows(2) {
        let [before, after] = pair else { unreachable!("windows of two") };
        assert!(after.start_unix_ms >= before.end_unix_ms + DELAY_MS, "{before:?} {after:?}");
    }
}
