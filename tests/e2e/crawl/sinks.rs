//! Sinks: a crawl with several outputs stores each page once in each of them, even if crawlers are
//! killed or the disk is full.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::line_connection::LineConnection;
use crate::support::origin::{Origin, Site};
use crate::support::page_database;
use crate::support::process::{Process, Server, run_tidings, started_by, tidings_command};
use crate::support::small_disk::SmallDisk;
use crate::support::wait::wait_until;

const SITE: Site = Site {
    hosts: 20,
    pages: 10,
    response_delay: Duration::from_millis(20),
    robots: Some("User-agent: *\nDisallow: /private/\n"),
    links_across_hosts: false,
};

/// How often each URL is in a file of JSON lines; no line may be truncated.
#[track_caller]
pub(crate) fn json_urls(text: &str) -> BTreeMap<String, u32> {
    assert!(text.is_empty() || text.ends_with('\n'), "{text}");
    let mut urls = BTreeMap::new();
    for line in text.lines() {
        let page: Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        *urls.entry(page["url"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    urls
}

/// Lists the pages, and checks the digest of every response, and that every revisit refers to one.
const READ_WARC_SCRIPT: &str = "
import base64, hashlib, sys
from warcio.archiveiterator import ArchiveIterator
responses, revisited = set(), set()
for path in sys.argv[1:]:
    with open(path, 'rb') as file:
        for record in ArchiveIterator(file, no_record_parse=False):
            raw = record.raw_stream.read()
            of = record.rec_headers.get_header
            if record.rec_type == 'metadata':
                print(of('WARC-Target-URI'))
            elif record.rec_type == 'response':
                digest = 'sha1:' + base64.b32encode(hashlib.sha1(raw).digest()).decode()
                assert digest == of('WARC-Payload-Digest')
                responses.add((of('WARC-Target-URI'), of('WARC-Date')))
            elif record.rec_type == 'revisit':
                revisited.add((of('WARC-Refers-To-Target-URI'), of('WARC-Refers-To-Date')))
assert revisited <= responses, revisited - responses
";

/// How often each URL is in the WARC files of a folder; `warcio` must find no error in them.
#[track_caller]
pub(crate) fn warc_urls(folder: &Path) -> BTreeMap<String, u32> {
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let (files, others): (Vec<PathBuf>, Vec<_>) =
        files.partition(|file| file.extension().is_some_and(|end| end == "gz"));
    assert!(
        others.iter().all(|file| file.extension().is_some_and(|end| end == "mark")),
        "{others:?}"
    );
    let python = |arguments: &[&str]| {
        let python = concat!(env!("CARGO_MANIFEST_DIR"), "/target/venv/bin/python");
        let ran = Command::new(python).args(arguments).args(&files).output();
        let ran = ran
            .expect("run the tests with tests/run --all, which installs warcio into target/venv");
        let error = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{}{error}", String::from_utf8_lossy(&ran.stdout));
        String::from_utf8(ran.stdout).unwrap()
    };
    python(&["-m", "warcio.cli", "check"]);
    let mut urls = BTreeMap::new();
    for line in python(&["-c", READ_WARC_SCRIPT]).lines() {
        *urls.entry(line.to_owned()).or_default() += 1;
    }
    urls
}

fn has_open_file(warc: &Path) -> bool {
    let mut files = fs::read_dir(warc).unwrap().map(|file| file.unwrap().path());
    files.any(|file| file.extension().is_some_and(|end| end == "open"))
}

/// Starts a crawler for this broker that stores in all sinks.
#[track_caller]
fn start_storing_crawler(broker: &Server, folder: &Path, output: &Path) -> Process {
    let (jsonl, warc) = (output.join("pages.jsonl"), output.join("warc/crawl"));
    let mut arguments = ["crawl", "--allow-private", "--data", ".", "--sqlite", "--broker"]
        .map(str::to_owned)
        .to_vec();
    arguments.push(broker.address_text());
    arguments.push(format!("--jsonl={}", jsonl.display()));
    arguments.push(format!("--warc={}", warc.display()));
    let crawler = Process::start(&mut tidings_command(folder, arguments));
    crawler.wait_for_line_with("fetching for");
    // The mark is written after all files have been created.
    wait_until("the output files", || output.join("warc/crawl.mark").exists().then_some(()));
    crawler
}

/// Starts a job on all hosts of a site, at a broker with this lease.
#[track_caller]
fn start_job(origin: &Origin, lease: &str) -> (Server, Process) {
    let broker = Server::start_broker();
    LineConnection::connect_client(broker.address)
        .request_ok(&format!("GROUP create crawlers delay=20ms lease={lease}"));
    let arguments = [
        vec!["crawl".to_owned(), "--broker".to_owned(), broker.address_text()],
        origin.seed_urls(),
    ];
    let watcher = Process::start(&mut tidings_command(broker.folder.path(), arguments.concat()));
    (broker, watcher)
}

/// Checks that each page, and each URL that robots.txt forbids, is stored once in every sink.
#[track_caller]
fn expect_each_once(site: &Site, folder: &Path, output: &Path) {
    let stored =
        page_database::query(folder, "select url from pages where outcome != 'retry'").unwrap();
    let distinct: BTreeSet<_> = stored.iter().cloned().collect();
    assert_eq!(stored.len(), distinct.len());
    // Each page links to one that robots.txt forbids.
    assert_eq!(distinct.len(), 2 * site.paths().len() * usize::from(site.hosts));
    let once: BTreeMap<_, _> = distinct.into_iter().map(|url| (url, 1)).collect();
    assert_eq!(json_urls(&fs::read_to_string(output.join("pages.jsonl")).unwrap()), once);
    assert_eq!(warc_urls(&output.join("warc")), once);
}

#[test]
#[ignore = "needs foreign programs"]
fn all_sinks_store_the_same_pages() {
    let site = Site { hosts: 3, ..SITE };
    let origin = Origin::serve(site.clone());
    let folder = TempDir::new().unwrap();
    let mut arguments = vec!["crawl", "--allow-private", "--sqlite", "--jsonl=out/pages.jsonl"];
    arguments.push("--warc=out/warc/crawl");
    let seeds = origin.seed_urls();
    arguments.extend(seeds.iter().map(String::as_str));
    let finished = run_tidings(folder.path(), &arguments).expect_code(0);
    expect_each_once(&site, &folder.path().join("tidings-data"), &folder.path().join("out"));
    let summary = finished.stdout().pop().unwrap();
    let places =
        "stored in ./tidings-data/pages.db and out/pages.jsonl and out/warc/crawl-*.warc.gz";
    assert!(summary.ends_with(places), "{summary}");
}

#[test]
fn standard_output_contains_only_pages() {
    let origin = Origin::serve(Site { hosts: 1, ..SITE });
    let folder = TempDir::new().unwrap();
    let arguments = ["crawl", "--allow-private", "--jsonl", "-", &origin.url(0, "/p/0")];
    let finished = run_tidings(folder.path(), &arguments).expect_code(0);
    let urls = json_urls(&(finished.stdout().join("\n") + "\n"));
    assert_eq!(urls.len(), 2 * SITE.paths().len());
    assert!(urls.values().all(|count| *count == 1), "{urls:?}");
    assert!(finished.stderr().contains("stored in standard output"), "{}", finished.stderr());
    assert!(!folder.path().join("tidings-data/pages.db").exists());
}

#[test]
fn a_closed_standard_output_ends_the_crawl() {
    let origin = Origin::serve(Site { hosts: 1, pages: 1000, ..SITE });
    let folder = TempDir::new().unwrap();
    let tidings = tidings_command(
        folder.path(),
        ["crawl", "--allow-private", "--jsonl", "-", &origin.url(0, "/p/0")],
    );
    let mut shell = Command::new("bash");
    shell.args(["-c", "\"$0\" \"$@\" | head -3; exit ${PIPESTATUS[0]}"]);
    let finished = Process::start(&mut started_by(shell, &tidings)).finish().expect_code(0);
    assert_eq!(finished.stdout().len(), 3);
    assert!(origin.request_log().paths().len() < 500);
}

#[test]
#[ignore = "needs foreign programs"]
fn killed_crawlers_store_every_page_once() {
    let origin = Origin::serve(SITE);
    let (broker, watcher) = start_job(&origin, "2s");
    let folder = TempDir::new().unwrap();
    let output = folder.path().join("out");
    for hits in [60, 110, 160] {
        let crawler = start_storing_crawler(&broker, folder.path(), &output);
        origin.wait_for_hits(hits);
        crawler.signal_and_finish("KILL");
    }
    let mut last = start_storing_crawler(&broker, folder.path(), &output);
    watcher.finish().expect_code(0);
    last.signal_and_finish("TERM").expect_code(0);
    // On a slow disk a stop leaves the file open, as a kill does.
    while has_open_file(&output.join("warc")) {
        last = start_storing_crawler(&broker, folder.path(), &output);
        last.signal_and_finish("TERM").expect_code(0);
    }
    expect_each_once(&SITE, folder.path(), &output);
}

#[test]
#[ignore = "needs foreign programs"]
fn a_full_disk_pauses_the_crawl_until_space_is_free() {
    let disk = SmallDisk::mount(8);
    let origin = Origin::serve(SITE);
    let (broker, watcher) = start_job(&origin, "1m");
    let folder = TempDir::new().unwrap();
    let output = disk.disk_path().join("out");
    let crawler = start_storing_crawler(&broker, folder.path(), &output);
    disk.fill_except(0);
    crawler.wait_for_line("warning about the full disk", |line| {
        (line.contains("pages.jsonl: ") && line.contains("pages wait")).then_some(())
    });
    disk.free_space();
    crawler.wait_for_line_with("can be written again");
    watcher.finish().expect_code(0);
    crawler.signal_and_finish("TERM").expect_code(0);
    expect_each_once(&SITE, folder.path(), &output);
}
