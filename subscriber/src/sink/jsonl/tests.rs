use std::collections::BTreeMap;
use std::fs;
use std::io::Seek;
use std::path::PathBuf;

use proptest::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::sink::testing::{folder, record, transient};

struct Output {
    folder: TempDir,
}

impl Output {
    fn new() -> Self {
        Self { folder: folder() }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("pages.jsonl")
    }

    fn mark(&self) -> PathBuf {
        self.folder.path().join("pages.jsonl.mark")
    }

    fn open(&self) -> JsonFile {
        JsonFile::open(&self.path()).unwrap()
    }

    fn text(&self) -> String {
        fs::read_to_string(self.path()).unwrap()
    }

    /// How often each entry occurs; every line must be complete.
    fn entries(&self) -> BTreeMap<u64, u32> {
        entries(&self.text())
    }
}

#[track_caller]
fn entries(text: &str) -> BTreeMap<u64, u32> {
    assert!(text.is_empty() || text.ends_with('\n'));
    let mut entries = BTreeMap::new();
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let page = PageId::parse(line["page"].as_str().unwrap()).unwrap();
        *entries.entry(page.entry).or_default() += 1;
    }
    entries
}

fn batch(records: impl IntoIterator<Item = PageRecord>) -> Vec<Arc<PageRecord>> {
    records.into_iter().map(Arc::new).collect()
}

fn page(entry: u64) -> PageId {
    record(entry, 1).page
}

#[test]
fn a_page_is_one_object_a_line() {
    let output = Output::new();
    let mut robots = record(2, 1);
    robots.report.outcome = crate::report::PageOutcome::Robots;
    robots.report.error = Some("disallowed\nby robots.txt".to_owned());
    (robots.report.status, robots.report.title, robots.remote) = (None, None, None);
    (robots.hash, robots.content_type, robots.canonical) = (None, None, None);
    (robots.validators, robots.links) = (tidings_egress::http::Validators::default(), Vec::new());
    (robots.report.job, robots.pass, robots.depth) = (None, None, None);
    (robots.item, robots.source) = (Some("5".into()), Some("feed".into()));
    output.open().write(&batch([record(1, 1), transient(3, 1), robots])).unwrap();
    let text = output.text();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let expected = [
        json!({
            "page": "crawlers.3.1",
            "url": "http://site.example/1",
            "outcome": "done",
            "status": 200,
            "fetched_at": "2023-11-14T22:13:20.007Z",
            "duration_ms": 56,
            "bytes": 1234,
            "content_type": "text/html",
            "hash": blake3::hash(b"body").to_hex().as_str(),
            "etag": "W/\"x\"",
            "remote": "192.0.2.1:80",
            "canonical": "http://site.example/",
            "title": "attempt 1",
            "job": "docs",
            "pass": 2,
            "depth": 3,
            "task": "crawlers:7.1",
            "attempt": 1,
            "links": ["http://site.example/\"x\"", "http://a.example/"],
            "nofollow": [1],
        }),
        json!({
            "page": "crawlers.3.2",
            "url": "http://site.example/2",
            "outcome": "robots",
            "error": "disallowed\nby robots.txt",
            "fetched_at": "2023-11-14T22:13:20.007Z",
            "duration_ms": 56,
            "bytes": 1234,
            "item": "5",
            "source": "feed",
            "task": "crawlers:7.2",
            "attempt": 1,
            "links": [],
        }),
    ];
    assert_eq!(lines, expected);
    assert!(text.starts_with(r#"{"page":"crawlers.3.1","url":"#), "{text}");
}

#[test]
fn a_repeated_page_is_written_once_unless_it_was_settled() {
    let output = Output::new();
    let mut file = output.open();
    file.write(&batch([record(1, 1), record(1, 2), record(2, 1)])).unwrap();
    file.write(&batch([record(2, 2), record(1, 3)])).unwrap();
    assert_eq!(output.entries(), BTreeMap::from([(1, 1), (2, 1)]));
    // For example one that an operator has retried from the dead letters.
    file.ledger.settle(&[page(1)]);
    file.write(&batch([record(1, 4), record(2, 3)])).unwrap();
    assert_eq!(output.entries(), BTreeMap::from([(1, 2), (2, 1)]));
}

#[test]
fn two_processes_do_not_write_one_file() {
    let output = Output::new();
    let first = output.open();
    let error = JsonFile::open(&output.path()).unwrap_err();
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
    drop(first);
    output.open();
}

#[test]
fn a_foreign_file_is_appended_to_and_loses_nothing() {
    let foreign = "no json\n{\"page\":7}\n\u{fffd}\n{\"x\":1}";
    let output = Output::new();
    fs::write(output.path(), foreign).unwrap();
    output.open().write(&batch([record(1, 1)])).unwrap();
    let text = output.text();
    assert!(text.starts_with(&format!("{foreign}\n{{\"page\":\"crawlers.3.1\"")), "{text}");
    drop(output.open());
    assert_eq!(output.text(), text);
    // A mark of another file is ignored.
    let long = format!("{}\n{foreign}\n", "x".repeat(20));
    fs::write(output.path(), &long).unwrap();
    fs::write(output.mark(), "tidings mark 1\n13\nend\n").unwrap();
    drop(output.open());
    assert_eq!(output.text(), long);
}

#[test]
fn a_line_longer_than_any_page_is_skipped() {
    let output = Output::new();
    let long = "x".repeat(usize::try_from(JSONL_LINE_BYTES_MAX).unwrap() + 5);
    let mut ours = Vec::new();
    put_line(&record(1, 1), &mut ours);
    let text = format!("{long}\n{}", String::from_utf8(ours).unwrap());
    fs::write(output.path(), &text).unwrap();
    output.open().write(&batch([record(1, 2)])).unwrap();
    assert_eq!(output.text(), text);
}

/// The history of a file: what was written and settled until each mark.
struct Life {
    text: String,
    /// Each mark, how much was synced when it was written, and what was settled by then.
    marks: Vec<(String, usize)>,
    settled: Vec<(usize, PageId)>,
    pages: u64,
}

/// Short lines, so that there are few places to cut.
fn short(entry: u64, attempt: u32) -> PageRecord {
    let mut short = record(entry, attempt);
    (short.report.title, short.report.job, short.pass, short.depth) = (None, None, None, None);
    (short.remote, short.canonical, short.hash, short.content_type) = (None, None, None, None);
    short.links = Vec::new();
    short
}

fn live(steps: &[(u64, Vec<u64>)]) -> Life {
    let output = Output::new();
    let mut file = output.open();
    let mut marks = vec![(fs::read_to_string(output.mark()).unwrap(), 0)];
    let (mut settled, mut next) = (Vec::new(), 0);
    for (count, settle) in steps {
        file.write(&batch((next..next + count).map(|entry| short(entry, 1)))).unwrap();
        next += count;
        let safe = output.text().len();
        for entry in settle.iter().filter(|entry| **entry < next) {
            file.ledger.settle(&[page(*entry)]);
            settled.push((safe, page(*entry)));
        }
        file.ledger.write(&file.file.synced_bytes().to_string()).unwrap();
        marks.push((fs::read_to_string(output.mark()).unwrap(), safe));
    }
    Life { text: output.text(), marks, settled, pages: next }
}

/// After a crash the file has any length that the system has left, and the mark is any earlier one.
/// Of the unsettled pages all come again, or any of them.
fn check_crash(life: &Life, length: usize, (mark, _): &(String, usize)) {
    let output = Output::new();
    fs::write(output.path(), &life.text[..length]).unwrap();
    fs::write(output.mark(), mark).unwrap();
    let mut file = output.open();
    let kept = output.text();
    assert!(life.text.starts_with(&kept) && (kept.is_empty() || kept.ends_with('\n')));
    assert_eq!(kept.len(), life.text[..length].rfind('\n').map_or(0, |end| end + 1));
    // A settled page is synced, so it is there, and never comes again.
    let gone =
        |entry| life.settled.iter().any(|(safe, page)| *safe <= length && page.entry == entry);
    let again: Vec<_> = (0..life.pages).filter(|entry| !gone(*entry)).collect();
    file.write(&batch(again.iter().map(|entry| short(*entry, 2)))).unwrap();
    let expected: BTreeMap<_, _> = (0..life.pages).map(|entry| (entry, 1)).collect();
    assert_eq!(output.entries(), expected, "cut at {length}");
}

#[test]
fn after_a_crash_at_any_byte_every_page_is_in_the_file_once() {
    let life = live(&[(3, vec![0, 2]), (2, vec![]), (0, vec![3]), (2, vec![1, 5])]);
    for length in 0..=life.text.len() {
        // Everything before a mark's position is synced before the mark is written.
        for mark in life.marks.iter().filter(|(_, safe)| *safe <= length) {
            check_crash(&life, length, mark);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn crashes_of_any_life_leave_every_page_once(
        steps in prop::collection::vec((0..5_u64, prop::collection::vec(0..20_u64, 0..4)), 1..6),
        cut in any::<prop::sample::Index>(),
        mark in any::<prop::sample::Index>(),
    ) {
        let life = live(&steps);
        let length = cut.index(life.text.len() + 1);
        let marks: Vec<_> = life.marks.iter().filter(|(_, safe)| *safe <= length).collect();
        check_crash(&life, length, marks[mark.index(marks.len())]);
    }
}

#[test]
fn garbage_after_the_mark_is_cut_off() {
    let life = live(&[(2, vec![0]), (3, vec![])]);
    let (mark, safe) = &life.marks[1];
    let output = Output::new();
    // The length was on the disk, but of the data only the end.
    let mut text = life.text.clone().into_bytes();
    text[*safe..safe + 100].fill(0);
    fs::write(output.path(), &text).unwrap();
    fs::write(output.mark(), mark).unwrap();
    drop(output.open());
    assert_eq!(output.text(), life.text[..*safe]);
}

#[test]
fn the_rest_of_a_failed_write_is_cut_off_before_the_next() {
    let output = Output::new();
    let mut file = output.open();
    file.write(&batch([record(1, 1)])).unwrap();
    let safe = output.text();
    file.file.write_all(b"{\"page\":\"crawlers.3.2\",\"ur").unwrap();
    file.file.roll_back();
    assert_eq!(output.text(), safe);
    // A disk that does not even allow a truncation.
    file.file.write_all(b"{\"page\":\"crawlers.3.2\",\"ur").unwrap();
    file.write(&batch([record(2, 1)])).unwrap();
    assert_eq!(output.entries(), BTreeMap::from([(1, 1), (2, 1)]));
}

fn stream(out: File) -> JsonStream {
    JsonStream { out, torn: Vec::new(), ledger: Ledger::default() }
}

#[test]
fn a_closed_reader_is_a_final_error() {
    let (reader, writer) = io::pipe().unwrap();
    let mut out = stream(File::from(std::os::fd::OwnedFd::from(writer)));
    out.write(&batch([record(1, 1), record(1, 2), transient(2, 1)])).unwrap();
    let mut line = String::new();
    BufReader::new(&reader).read_line(&mut line).unwrap();
    assert_eq!(entries(&line), BTreeMap::from([(1, 1)]));
    drop(reader);
    assert!(out.write(&batch([record(3, 1)])).unwrap_err().closed);
}

/// A file that may be read but not written stands for a full disk.
#[test]
fn a_partial_line_on_standard_output_is_continued() {
    let mut file = tempfile::tempfile().unwrap();
    let mut out = stream(File::open("/dev/full").unwrap());
    let two = batch([record(1, 1), record(2, 1)]);
    assert!(!out.write(&two).unwrap_err().closed);
    // As if the first line and a part of the second had been written.
    let mut lines = Vec::new();
    for record in &two {
        put_line(record, &mut lines);
        out.ledger.insert(record.page.clone());
    }
    let at = lines.len() - 10;
    file.write_all(&lines[..at]).unwrap();
    out.torn = lines.split_off(at);
    out.out = file.try_clone().unwrap();
    out.write(&two).unwrap();
    let mut text = String::new();
    file.rewind().unwrap();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(entries(&text), BTreeMap::from([(1, 1), (2, 1)]));
}
