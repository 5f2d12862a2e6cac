use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::Command;

use flate2::bufread::GzDecoder;
use flate2::write::GzEncoder;
use tempfile::TempDir;

use super::*;
use crate::report::{Exchange, Original};
use crate::sink::testing::{body_of, folder, record, rendering, transient};
use crate::sink::warc::WARC_CHUNK_BYTES;
use crate::spool::Spools;

struct Output {
    folder: TempDir,
    spools: Spools,
}

/// A record that was read back.
#[derive(Debug)]
struct Entry {
    headers: BTreeMap<String, String>,
    block: Vec<u8>,
}

impl Output {
    fn new() -> Self {
        let folder = folder();
        let spools = Spools::open(&folder.path().join("spools")).unwrap();
        Self { folder, spools }
    }

    fn prefix(&self) -> PathBuf {
        self.folder.path().join("out/crawl")
    }

    fn mark(&self) -> PathBuf {
        self.folder.path().join("out/crawl.mark")
    }

    fn open(&self, bytes_max: u64) -> Warc {
        Warc::open(&self.prefix(), bytes_max, "bot/1").unwrap()
    }

    /// The files, open ones included.
    fn files(&self) -> Vec<PathBuf> {
        let files = fs::read_dir(self.folder.path().join("out")).unwrap();
        let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
        files.retain(|file| file.to_string_lossy().contains(CLOSED));
        files.sort();
        files
    }

    fn records(&self) -> Vec<Entry> {
        self.files().iter().flat_map(|file| records(&fs::read(file).unwrap())).collect()
    }

    /// How often each page occurs.
    fn entries(&self) -> BTreeMap<u64, u32> {
        let mut entries = BTreeMap::new();
        for record in self.records().iter().filter(|record| record.is("metadata")) {
            let text = std::str::from_utf8(&record.block).unwrap();
            let page = text.lines().next().unwrap().strip_prefix("page: ").unwrap();
            *entries.entry(PageId::parse(page).unwrap().entry).or_default() += 1;
        }
        entries
    }

    /// A page with this answer.
    fn page(&self, entry: u64, head: &str, body: Option<&[u8]>) -> PageRecord {
        let mut page = record(entry, 1);
        page.exchange = Some(self.exchange(entry, head, body));
        page
    }

    fn exchange(&self, path: u64, head: &str, body: Option<&[u8]>) -> Exchange {
        Exchange {
            request_head: format!("GET /{path} HTTP/1.1\r\nHost: site.example\r\n\r\n")
                .into_bytes(),
            response_head: head.replace('\n', "\r\n").into_bytes(),
            remote: record(path, 1).remote,
            started_unix_ms: 1_700_000_000_000 + i64::try_from(path).unwrap(),
            body: body.map(|bytes| body_of(&self.spools, bytes)),
            truncated: None,
        }
    }

    /// A rendered page, for which this part was fetched after a preflight.
    fn rendered(&self, entry: u64, part: u64, body: &[u8]) -> PageRecord {
        let mut page = self.page(entry, OK, Some(b"<script src=part></script>"));
        let mut rendering = rendering(&self.spools, self.folder.path());
        let part = (format!("http://site.example/{part}"), self.exchange(part, OK, Some(body)));
        let mut preflight = self.exchange(7, OK, Some(b""));
        preflight.request_head = b"OPTIONS /7 HTTP/1.1\r\n\r\n".to_vec();
        rendering.exchanges = vec![("http://site.example/7".to_owned(), preflight), part];
        page.rendering = Some(rendering);
        page
    }
}

impl Entry {
    fn is(&self, kind: &str) -> bool {
        self["WARC-Type"] == *kind
    }
}

impl std::ops::Index<&str> for Entry {
    type Output = str;

    fn index(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value)
    }
}

/// Checks that every member is a complete record.
#[track_caller]
fn records(bytes: &[u8]) -> Vec<Entry> {
    let (mut records, mut rest) = (Vec::new(), bytes);
    while !rest.is_empty() {
        let mut member = BufReader::new(GzDecoder::new(&mut rest));
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            member.read_line(&mut line).unwrap();
            match line.strip_suffix("\r\n").expect("a line") {
                "" => break,
                line => lines.push(line.to_owned()),
            }
        }
        assert_eq!(lines.remove(0), "WARC/1.1");
        let headers: BTreeMap<_, _> = lines
            .iter()
            .map(|line| line.split_once(": ").unwrap())
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        assert_eq!(headers.len(), lines.len(), "each name once");
        let mut block = Vec::new();
        member.read_to_end(&mut block).unwrap();
        let length: usize = headers["Content-Length"].parse().unwrap();
        assert_eq!(block.split_off(length), b"\r\n\r\n");
        records.push(Entry { headers, block });
    }
    records
}

fn batch(records: impl IntoIterator<Item = PageRecord>) -> Vec<Arc<PageRecord>> {
    records.into_iter().map(Arc::new).collect()
}

const OK: &str = "HTTP/1.1 200 OK\nContent-Type: text/html\nTransfer-Encoding: chunked\n\n";

#[test]
fn a_page_is_request_response_and_metadata() {
    let output = Output::new();
    let mut warc = output.open(u64::MAX);
    let mut disallowed = record(2, 1);
    disallowed.report.outcome = crate::report::PageOutcome::Robots;
    disallowed.report.error = Some("disallowed\r\nby robots.txt".to_owned());
    warc.write(&batch([output.page(1, OK, Some(b"body")), transient(3, 1), disallowed])).unwrap();
    let open = output.files();
    assert!(
        open.len() == 1 && open[0].to_str().unwrap().ends_with("-00000.warc.gz.open"),
        "{open:?}"
    );
    warc.close();
    let records = output.records();
    let kinds: Vec<_> = records.iter().map(|record| &record["WARC-Type"]).collect();
    assert_eq!(kinds, ["warcinfo", "request", "response", "metadata", "metadata"]);
    let [info, request, response, metadata, disallowed] = &records[..] else { unreachable!() };
    assert_eq!(info["WARC-Filename"], *output.files()[0].file_name().unwrap().to_str().unwrap());
    assert_eq!(
        String::from_utf8_lossy(&response.block),
        "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nX-Archive-Orig-Transfer-Encoding: chunked\r\n\
         Content-Length: 4\r\n\r\nbody"
    );
    assert!(request.block.starts_with(b"GET /1 HTTP/1.1\r\n"));
    for record in [request, response] {
        assert_eq!(record["WARC-Target-URI"], *"http://site.example/1");
        assert_eq!(record["WARC-Date"], *"2023-11-14T22:13:20.001Z");
        assert_eq!(record["WARC-IP-Address"], *"192.0.2.1");
        assert_eq!(record["WARC-Warcinfo-ID"], info["WARC-Record-ID"]);
    }
    for record in [request, metadata] {
        assert_eq!(record["WARC-Concurrent-To"], response["WARC-Record-ID"]);
    }
    assert_eq!(response["WARC-Payload-Digest"], *"sha1:AIED6RLZ4CFGCJBFYDA2C7XEPLOXQO4U");
    let text = std::str::from_utf8(&metadata.block).unwrap();
    let expected = "page: crawlers.3.1\r\noutcome: done\r\nstatus: 200\r\nfetched_at: 2023-11-14T22:13:20.007Z\r\n";
    assert!(text.starts_with(expected), "{text}");
    assert!(
        text.ends_with("job: docs\r\npass: 2\r\ndepth: 3\r\ntask: crawlers:7.1\r\nattempt: 1\r\n"),
        "{text}"
    );
    let text = std::str::from_utf8(&disallowed.block).unwrap();
    assert!(text.contains("\r\nerror: disallowed  by robots.txt\r\n"), "{text}");
}

#[test]
fn a_known_body_or_an_unchanged_page_is_a_revisit() {
    let output = Output::new();
    let mut warc = output.open(u64::MAX);
    warc.write(&batch([output.page(1, OK, Some(b"same")), output.page(2, OK, Some(b""))])).unwrap();
    let mut unchanged = output.page(5, "HTTP/1.1 304 Not Modified\nETag: x\n\n", None);
    unchanged.report.status = Some(304);
    unchanged.original =
        Some(Original { started_unix_ms: Some(1_600_000_000_000), outputs: Vec::new() });
    let mut wrong = output.page(7, "HTTP/1.1 304 Not Modified\n\n", None);
    wrong.report.status = Some(304);
    let mut torn = output.page(6, OK, Some(b"same"));
    torn.exchange.as_mut().unwrap().truncated = Some("length");
    let pages =
        [output.page(3, OK, Some(b"same")), output.page(4, OK, Some(b"")), unchanged, torn, wrong];
    warc.write(&batch(pages)).unwrap();
    warc.close();
    let records = output.records();
    let of = |entry: u64| {
        let url = format!("http://site.example/{entry}");
        let is = |record: &&Entry| {
            record["WARC-Target-URI"] == *url && !record.is("request") && !record.is("metadata")
        };
        records.iter().find(is).unwrap()
    };
    assert!(
        of(1).is("response")
            && of(2).is("response")
            && of(4).is("response")
            && of(6).is("response")
    );
    assert_eq!(of(6)["WARC-Truncated"], *"length");
    let same = of(3);
    assert!(same.is("revisit"));
    assert_eq!(
        same["WARC-Profile"],
        *"http://netpreserve.org/warc/1.1/revisit/identical-payload-digest"
    );
    assert_eq!(same["WARC-Payload-Digest"], of(1)["WARC-Payload-Digest"]);
    assert_eq!(same["WARC-Refers-To"], of(1)["WARC-Record-ID"]);
    assert_eq!(same["WARC-Refers-To-Target-URI"], *"http://site.example/1");
    assert_eq!(same["WARC-Refers-To-Date"], of(1)["WARC-Date"]);
    assert!(same.block.ends_with(b"\r\n\r\n"));
    let unchanged = of(5);
    assert!(unchanged.is("revisit"));
    assert_eq!(
        unchanged["WARC-Profile"],
        *"http://netpreserve.org/warc/1.1/revisit/server-not-modified"
    );
    assert_eq!(unchanged["WARC-Refers-To-Date"], *"2020-09-13T12:26:40.000Z");
    assert_eq!(unchanged.block, b"");
    // Nothing would be known of what it confirms.
    let url = "http://site.example/7";
    let wrong: Vec<_> = records.iter().filter(|it| it["WARC-Target-URI"] == *url).collect();
    assert!(wrong.len() == 1 && wrong[0].is("metadata"), "{wrong:?}");
}

#[test]
fn a_rendered_page_has_its_parts_its_html_and_its_images() {
    let output = Output::new();
    let mut warc = output.open(u64::MAX);
    warc.write(&batch([output.rendered(1, 7, b"part")])).unwrap();
    warc.write(&batch([output.rendered(2, 8, b"part")])).unwrap();
    warc.close();
    let records = output.records();
    let kinds: Vec<_> = records.iter().map(|record| &record["WARC-Type"]).collect();
    let page = ["response", "request", "response", "conversion", "resource", "resource"];
    let mut second = page.map(|kind| if kind == "response" { "revisit" } else { kind }).to_vec();
    let mut expected = vec!["warcinfo", "request"];
    expected.extend(page);
    expected.extend(["metadata", "request"]);
    expected.append(&mut second);
    expected.push("metadata");
    assert_eq!(kinds, expected);
    let [_, _, own, request, part, html, image, pdf, metadata, ..] = &records[..] else { panic!() };
    assert_eq!(request["WARC-Target-URI"], *"http://site.example/7");
    assert_eq!(request["WARC-Concurrent-To"], part["WARC-Record-ID"]);
    assert_eq!(part["WARC-Target-URI"], *"http://site.example/7");
    assert_eq!(part["WARC-Date"], *"2023-11-14T22:13:20.007Z");
    assert!(part.block.ends_with(b"\r\n\r\npart"));
    assert_eq!(html["WARC-Target-URI"], *"urn:rendered:http://site.example/1");
    assert_eq!(html["WARC-Refers-To"], own["WARC-Record-ID"]);
    assert_eq!(html["Content-Type"], *"text/html; charset=utf-8");
    assert_eq!(html.block, b"<title>Rendered</title>");
    assert_eq!(image["WARC-Target-URI"], *"urn:fullPage:http://site.example/1");
    assert_eq!((&image["Content-Type"], &image.block[..]), ("image/png", &b"\x89PNG"[..]));
    assert_eq!(pdf["WARC-Target-URI"], *"urn:pdf:http://site.example/1");
    assert_eq!((&pdf["Content-Type"], &pdf.block[..]), ("application/pdf", &b"%PDF"[..]));
    for record in [part, image, pdf, metadata] {
        assert_eq!(record["WARC-Concurrent-To"], own["WARC-Record-ID"]);
    }
    let text = std::str::from_utf8(&metadata.block).unwrap();
    assert!(text.contains("\r\nrender: {\"outcome\":\"rendered\","), "{text}");
    let seen = &records[expected.len() - 5];
    assert_eq!(seen["WARC-Refers-To"], part["WARC-Record-ID"]);
}

#[test]
fn a_page_with_a_long_description_is_found_after_a_crash() {
    // At one of these lengths a part of the block ends within a character.
    for length in 0..3 {
        let output = Output::new();
        let mut warc = output.open(u64::MAX);
        let mut page = output.rendered(1, 7, b"part");
        let rendered = page.rendering.as_mut().unwrap().result.as_mut().unwrap();
        rendered.console_errors = vec!["\u{4f60}".repeat(600); 50];
        rendered.console_errors.insert(0, "x".repeat(length));
        warc.write(&batch([page])).unwrap();
        drop(warc);
        fs::remove_file(output.mark()).unwrap();
        let mut warc = output.open(u64::MAX);
        warc.write(&batch([record(1, 2)])).unwrap();
        warc.close();
        assert_eq!(output.entries(), BTreeMap::from([(1, 1)]));
        assert_eq!(output.records().len(), 9);
    }
}

#[test]
fn a_file_that_is_large_enough_is_closed_and_none_is_empty() {
    let output = Output::new();
    let mut warc = output.open(WARC_CHUNK_BYTES as u64);
    let mut random = vec![0; WARC_CHUNK_BYTES / 3];
    for entry in 0..9 {
        fastrand::Rng::with_seed(entry).fill(&mut random);
        warc.write(&batch([output.page(entry, OK, Some(&random))])).unwrap();
    }
    // Several in a batch, each as large as a file.
    let pages = (9..12).map(|entry| {
        let mut random = vec![0; 2 * WARC_CHUNK_BYTES];
        fastrand::Rng::with_seed(entry).fill(&mut random);
        output.page(entry, OK, Some(&random))
    });
    warc.write(&batch(pages)).unwrap();
    warc.close();
    drop(warc);
    let files = output.files();
    assert_eq!(files.len(), 6, "{files:?}");
    for file in &files {
        assert!(file.to_str().unwrap().ends_with(CLOSED), "{files:?}");
        assert!(records(&fs::read(file).unwrap()).len() > 1);
    }
    assert_eq!(output.entries(), (0..12).map(|entry| (entry, 1)).collect());
    output.open(1).close();
    assert_eq!(output.files(), files);
}

#[test]
fn two_processes_do_not_share_a_prefix() {
    let output = Output::new();
    let first = output.open(1);
    let Err(error) = Warc::open(&output.prefix(), 1, "bot/1") else { panic!("the file is in use") };
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
    assert_eq!(output.files().len(), 1);
    // Another prefix.
    let longer = with_suffix(&output.prefix(), "-2");
    drop(Warc::open(&longer, 1, "bot/1").unwrap_or_else(|error| panic!("{error}")));
    drop(first);
    output.open(1);
}

#[test]
fn a_page_whose_body_file_was_removed_is_refused_without_a_stall() {
    let output = Output::new();
    let mut warc = output.open(u64::MAX);
    let large = vec![7; crate::spool::SPOOL_BYTES_MAX + 1];
    let (page, other) = (output.page(1, OK, Some(&large)), output.page(2, OK, Some(b"small")));
    fs::remove_file(page.exchange.as_ref().unwrap().body.as_ref().unwrap().file().unwrap())
        .unwrap();
    warc.write(&batch([page, other])).unwrap();
    let refused = warc.take_refused();
    assert_eq!(refused, [(record(1, 1).page, "the file of its body was removed".to_owned())]);
    assert_eq!(output.entries(), BTreeMap::from([(2, 1)]));
    // Fetched again.
    warc.write(&batch([output.page(1, OK, Some(&large))])).unwrap();
    assert!(warc.take_refused().is_empty());
    assert_eq!(output.entries(), BTreeMap::from([(1, 1), (2, 1)]));
}

#[test]
fn an_unreadable_body_is_trouble_and_not_lost() {
    let output = Output::new();
    let mut warc = output.open(u64::MAX);
    let large = vec![7; crate::spool::SPOOL_BYTES_MAX + 1];
    let page = output.page(1, OK, Some(&large));
    let path = page.exchange.as_ref().unwrap().body.as_ref().unwrap().file().unwrap().to_owned();
    let batch = batch([record(2, 1), page]);
    // Reading fails, as without a free descriptor.
    let away = path.with_extension("away");
    fs::rename(&path, &away).unwrap();
    fs::create_dir(&path).unwrap();
    warc.write(&batch).unwrap_err();
    assert!(warc.take_refused().is_empty());
    assert_eq!(output.entries(), BTreeMap::new());
    fs::remove_dir(&path).unwrap();
    fs::rename(&away, &path).unwrap();
    warc.write(&batch).unwrap();
    assert_eq!(output.entries(), BTreeMap::from([(1, 1), (2, 1)]));
    let records = output.records();
    let response = records.iter().find(|record| record.is("response")).unwrap();
    assert!(response.block.ends_with(&large));
}

/// Everything written in two batches; and for each mark how much was synced, and what was settled
/// by then.
struct Life {
    name: String,
    bytes: Vec<u8>,
    marks: Vec<(String, usize, Vec<u64>)>,
}

fn live() -> Life {
    let output = Output::new();
    let mut warc = output.open(u64::MAX);
    let (mut marks, mut settled) = (Vec::new(), Vec::new());
    for (pages, settle) in [(0..2, vec![0]), (2..4, vec![1, 3]), (4..5, vec![])] {
        let pages = pages.map(|entry| match entry {
            1 | 4 => output.page(entry, OK, Some(b"some text")),
            2 => output.rendered(entry, 9, b"part"),
            _ => record(entry, 1),
        });
        warc.write(&batch(pages)).unwrap();
        for entry in settle {
            warc.ledger.settle(&[record(entry, 1).page]);
            settled.push(entry);
        }
        warc.write_mark().unwrap();
        let safe = usize::try_from(warc.file.safe()).unwrap();
        marks.push((fs::read_to_string(output.mark()).unwrap(), safe, settled.clone()));
    }
    let file = &output.files()[0];
    let name = file.file_name().unwrap().to_str().unwrap().to_owned();
    Life { name, bytes: fs::read(file).unwrap(), marks }
}

#[test]
fn after_a_crash_at_any_byte_every_page_is_in_the_files_once() {
    let life = live();
    for length in 0..=life.bytes.len() {
        let marks = life.marks.iter().filter(|(_, safe, _)| *safe <= length);
        // Older marks, and none, are rarer than the newest.
        let marks_max = if length % 8 == 0 { usize::MAX } else { 1 };
        for mark in [None].into_iter().chain(marks.map(Some)).rev().take(marks_max) {
            let output = Output::new();
            fs::create_dir(output.folder.path().join("out")).unwrap();
            fs::write(output.folder.path().join("out").join(&life.name), &life.bytes[..length])
                .unwrap();
            if let Some((mark, ..)) = mark {
                fs::write(output.mark(), mark).unwrap();
            }
            let mut warc = output.open(u64::MAX);
            let settled = mark.map_or(&[][..], |(_, _, settled)| settled);
            let again = (0..5).filter(|entry| !settled.contains(entry));
            warc.write(&batch(again.map(|entry| record(entry, 2)))).unwrap();
            warc.close();
            let expected: BTreeMap<_, _> = (0..5).map(|entry| (entry, 1)).collect();
            assert_eq!(output.entries(), expected, "cut at {length}");
            assert!(output.files().iter().all(|file| file.extension().unwrap() == "gz"));
        }
    }
}

#[test]
fn a_crash_between_two_files_loses_nothing() {
    let life = live();
    let output = Output::new();
    let out = output.folder.path().join("out");
    fs::create_dir(&out).unwrap();
    fs::write(out.join(life.name.strip_suffix(OPEN).unwrap()), &life.bytes).unwrap();
    let (mark, _, settled) = &life.marks[0];
    fs::write(output.mark(), mark).unwrap();
    let mut warc = output.open(u64::MAX);
    let again = (0..5).filter(|entry| !settled.contains(entry));
    warc.write(&batch(again.map(|entry| record(entry, 2)))).unwrap();
    warc.close();
    assert_eq!(output.entries(), (0..5).map(|entry| (entry, 1)).collect());
}

#[test]
fn a_failed_write_leaves_nothing_and_is_retried() {
    let output = Output::new();
    let mut warc = output.open(u64::MAX);
    warc.write(&batch([record(1, 1)])).unwrap();
    let safe = fs::read(warc.file.path()).unwrap();
    // As much as a full disk accepts.
    let page = output.page(2, OK, Some(b"body"));
    warc.archivist.put_page(&page, &mut warc.file).unwrap();
    warc.file.begin_member();
    warc.file.write_all(&vec![9; 3 * WARC_CHUNK_BYTES]).unwrap();
    warc.pending.push(page.page.clone());
    warc.pending.clear();
    warc.archivist.roll_back();
    warc.file.roll_back();
    assert_eq!(fs::read(warc.file.path()).unwrap(), safe);
    warc.write(&batch([page])).unwrap();
    warc.close();
    assert_eq!(output.entries(), BTreeMap::from([(1, 1), (2, 1)]));
    assert!(output.records().iter().any(|record| record.is("response")));
}

/// `tests/run --all` installs it.
const PYTHON: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/venv/bin/python");

const READ_BACK: &str = "
import base64, hashlib, sys
from warcio.archiveiterator import ArchiveIterator
for path in sys.argv[1:]:
    with open(path, 'rb') as file:
        for record in ArchiveIterator(file, no_record_parse=False):
            header = record.rec_headers.get_header
            raw = record.raw_stream.read()
            digest = 'sha1:' + base64.b32encode(hashlib.sha1(raw).digest()).decode()
            if record.rec_type == 'response':
                assert digest == header('WARC-Payload-Digest'), header('WARC-Target-URI')
        file.seek(0)
        for record in ArchiveIterator(file):
            if record.rec_type == 'response':
                content = record.content_stream().read()
                print(record.rec_headers.get_header('WARC-Target-URI'), hashlib.sha256(content).hexdigest())
            elif record.rec_type == 'revisit':
                head = record.http_headers
                print(record.rec_headers.get_header('WARC-Target-URI'), head.get_statuscode() if head else 'no head')
";

#[test]
#[ignore = "needs foreign programs"]
fn warcio_validates_and_reads_the_files() {
    let output = Output::new();
    let mut warc = output.open(100_000);
    let text = "A page. ".repeat(1000);
    let mut gzip = GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(text.as_bytes()).unwrap();
    let gzip = gzip.finish().unwrap();
    let coded = "HTTP/1.1 200 OK\nContent-Encoding: gzip\nTransfer-Encoding: chunked\n\n";
    let mut large = vec![0; 3 * crate::spool::SPOOL_BYTES_MAX];
    fastrand::Rng::with_seed(1).fill(&mut large);
    let mut unchanged = output.page(6, "HTTP/1.1 304 Not Modified\n\n", None);
    unchanged.report.status = Some(304);
    unchanged.original = Some(Original { started_unix_ms: Some(1), outputs: Vec::new() });
    let mut torn = output.page(7, "HTTP/1.1 200 OK\nContent-Length: 900\n\n", Some(b"torn"));
    torn.exchange.as_mut().unwrap().truncated = Some("disconnect");
    let first = [
        output.page(1, OK, Some(b"body")),
        output.page(2, coded, Some(&gzip)),
        output.page(3, "HTTP/1.1 200 OK\n\n", Some(&large)),
        output.page(4, "HTTP/1.1 404 Not Found\nContent-Length: 0\n\n", Some(b"")),
    ];
    warc.write(&batch(first)).unwrap();
    warc.write(&batch([output.page(5, OK, Some(b"body")), unchanged, torn, record(8, 1)])).unwrap();
    warc.write(&batch([output.rendered(9, 10, b"part")])).unwrap();
    warc.close();
    let files = output.files();
    assert_eq!(files.len(), 2);
    let python = |arguments: &[&str]| {
        let ran = Command::new(PYTHON).args(arguments).args(&files).output();
        let ran = ran.expect("tests/run --all has installed warcio into target/venv");
        let text = [ran.stdout, ran.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
        assert!(ran.status.success(), "{text}");
        text
    };
    let checked = python(&["-m", "warcio.cli", "check", "-v"]);
    assert!(!checked.contains("digest failed") && checked.contains("digest pass"), "{checked}");
    let sha256 = |bytes: &[u8]| {
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes);
        data_encoding::HEXLOWER.encode(digest.as_ref())
    };
    let expected = [
        (1, sha256(b"body")),
        (2, sha256(text.as_bytes())),
        (3, sha256(&large)),
        (4, sha256(b"")),
        (5, "200".to_owned()),
        (6, "no head".to_owned()),
        (7, sha256(b"torn")),
        (9, sha256(b"<script src=part></script>")),
        (10, sha256(b"part")),
    ];
    let expected: Vec<_> = expected
        .iter()
        .map(|(entry, what)| format!("http://site.example/{entry} {what}"))
        .collect();
    let read = python(&["-c", READ_BACK]);
    assert_eq!(read.lines().collect::<Vec<_>>(), expected);
}
