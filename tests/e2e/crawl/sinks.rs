//! Where pages are stored: in all places at once, each page once, whatever is killed and however
//! full a disk is.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::origin::{Origin, Site};
use crate::support::pages;
use crate::support::process::{Running, Server, run, tidings};
use crate::support::small_disk::SmallDisk;
use crate::support::talk::Talk;
use crate::support::wait::until;

const SITE: Site = Site {
    hosts: 20,
    pages: 10,
    answer_after: Duration::from_millis(20),
    robots: Some("User-agent: *\nDisallow: /private/\n"),
    across: false,
};

/// How often each URL is in a file of JSON lines, none of which may be torn.
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

/// Lists the pages, and compares every digest of a response.
const READ_WARC: &str = "
import base64, hashlib, sys
from warcio.archiveiterator import ArchiveIterator
for path in sys.argv[1:]:
    with open(path, 'rb') as file:
        for record in ArchiveIterator(file, no_record_parse=False):
            raw = record.raw_stream.read()
            if record.rec_type == 'metadata':
                print(record.rec_headers.get_header('WARC-Target-URI'))
            elif record.rec_type == 'response':
                digest = 'sha1:' + base64.b32encode(hashlib.sha1(raw).digest()).decode()
                assert digest == record.rec_headers.get_header('WARC-Payload-Digest')
";

/// How often each URL is in the WARC files of a folder, with which `warcio` must find nothing
/// wrong.
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
        let ran = ran.expect("tests/run has installed warcio into target/venv");
        let error = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{}{error}", String::from_utf8_lossy(&ran.stdout));
        String::from_utf8(ran.stdout).unwrap()
    };
    python(&["-m", "warcio.cli", "check"]);
    let mut urls = BTreeMap::new();
    for line in python(&["-c", READ_WARC]).lines() {
        *urls.entry(line.to_owned()).or_default() += 1;
    }
    urls
}

/// A crawler for this broker that stores everywhere.
#[track_caller]
fn daemon(broker: &Server, folder: &Path, output: &Path) -> Running {
    let (jsonl, warc) = (output.join("pages.jsonl"), output.join("warc/crawl"));
    let mut words = ["crawl", "--allow-private", "--data", ".", "--sqlite", "--broker"]
        .map(str::to_owned)
        .to_vec();
    words.push(broker.text());
    words.push(format!("--jsonl={}", jsonl.display()));
    words.push(format!("--warc={}", warc.display()));
    let crawler = Running::start(&mut tidings(folder, words));
    crawler.line_with("fetching for");
    // The mark is written when all files are there.
    until("the files", || output.join("warc/crawl.mark").exists().then_some(()));
    crawler
}

/// A job on all hosts of a site, at a broker whose group has this lease.
#[track_caller]
fn begin(origin: &Origin, lease: &str) -> (Server, Running) {
    let broker = Server::broker();
    let answer = Talk::client(broker.address)
        .ask(&format!("GROUP create crawlers delay=20ms lease={lease}"));
    assert!(answer.starts_with("+OK"), "{answer}");
    let words = [vec!["crawl".to_owned(), "--broker".to_owned(), broker.text()], origin.seeds()];
    let watcher = Running::start(&mut tidings(broker.folder.path(), words.concat()));
    (broker, watcher)
}

/// The page and what robots.txt forbids are stored; the database says which they are.
#[track_caller]
fn expect_each_once(site: &Site, folder: &Path, output: &Path) {
    let stored = pages::query(folder, "select url from pages where outcome != 'retry'").unwrap();
    let distinct: BTreeSet<_> = stored.iter().cloned().collect();
    assert_eq!(stored.len(), distinct.len());
    // The pages, and those that nobody may ask for: each page links to one.
    assert_eq!(distinct.len(), 2 * site.paths().len() * usize::from(site.hosts));
    let once: BTreeMap<_, _> = distinct.into_iter().map(|url| (url, 1)).collect();
    assert_eq!(json_urls(&fs::read_to_string(output.join("pages.jsonl")).unwrap()), once);
    assert_eq!(warc_urls(&output.join("warc")), once);
}

#[test]
fn every_place_has_the_same_pages() {
    let site = Site { hosts: 3, ..SITE };
    let origin = Origin::serve(site.clone());
    let folder = TempDir::new().unwrap();
    let mut words = vec!["crawl", "--allow-private", "--sqlite", "--jsonl=out/pages.jsonl"];
    words.push("--warc=out/warc/crawl");
    let seeds = origin.seeds();
    words.extend(seeds.iter().map(String::as_str));
    let finished = run(folder.path(), &words).expect_code(0);
    expect_each_once(&site, &folder.path().join("tidings-data"), &folder.path().join("out"));
    let summary = finished.stdout().pop().unwrap();
    let places =
        "stored in ./tidings-data/pages.db and out/pages.jsonl and out/warc/crawl-*.warc.gz";
    assert!(summary.ends_with(places), "{summary}");
}

#[test]
fn pages_on_standard_output_are_alone_there() {
    let origin = Origin::serve(Site { hosts: 1, ..SITE });
    let folder = TempDir::new().unwrap();
    let words = ["crawl", "--allow-private", "--jsonl", "-", &origin.url(0, "/p/0")];
    let finished = run(folder.path(), &words).expect_code(0);
    let urls = json_urls(&(finished.stdout().join("\n") + "\n"));
    assert_eq!(urls.len(), 2 * SITE.paths().len());
    assert!(urls.values().all(|count| *count == 1), "{urls:?}");
    assert!(finished.stderr().contains("stored in standard output"), "{}", finished.stderr());
    assert!(!folder.path().join("tidings-data/pages.db").exists());
}

#[test]
fn a_reader_of_standard_output_that_has_enough_ends_the_crawl() {
    let origin = Origin::serve(Site { hosts: 1, pages: 1000, ..SITE });
    let folder = TempDir::new().unwrap();
    let tidings = tidings(
        folder.path(),
        ["crawl", "--allow-private", "--jsonl", "-", &origin.url(0, "/p/0")],
    );
    let mut shell = Command::new("bash");
    shell.args(["-c", "\"$0\" \"$@\" | head -3; exit ${PIPESTATUS[0]}"]);
    shell.arg(tidings.get_program()).args(tidings.get_args()).current_dir(folder.path());
    let finished = Running::start(&mut shell).finish().expect_code(0);
    assert_eq!(finished.stdout().len(), 3);
    assert!(origin.record().paths().len() < 500);
}

#[test]
fn crawlers_that_are_killed_leave_every_page_once() {
    let origin = Origin::serve(SITE);
    let (broker, watcher) = begin(&origin, "2s");
    let folder = TempDir::new().unwrap();
    let output = folder.path().join("out");
    for hits in [60, 110, 160] {
        let crawler = daemon(&broker, folder.path(), &output);
        origin.wait_for_hits(hits);
        crawler.finish_by("KILL");
    }
    let last = daemon(&broker, folder.path(), &output);
    watcher.finish().expect_code(0);
    last.finish_by("TERM").expect_code(0);
    expect_each_once(&SITE, folder.path(), &output);
}

#[test]
fn a_full_disk_stops_the_crawl_until_there_is_room() {
    let disk = SmallDisk::mount(8);
    let origin = Origin::serve(SITE);
    let (broker, watcher) = begin(&origin, "1m");
    let folder = TempDir::new().unwrap();
    let output = disk.path().join("out");
    let crawler = daemon(&broker, folder.path(), &output);
    disk.fill_but(0);
    crawler.line("a complaint", |line| {
        (line.contains("pages.jsonl: ") && line.contains("pages wait")).then_some(())
    });
    disk.make_room();
    crawler.line_with("can be written again");
    watcher.finish().expect_code(0);
    crawler.finish_by("TERM").expect_code(0);
    expect_each_once(&SITE, folder.path(), &output);
}
