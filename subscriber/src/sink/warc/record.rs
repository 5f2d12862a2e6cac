//! The WARC records of a page.

use std::fmt::{Display, Write as _};
use std::fs;
use std::io::{self, Read, Write};

use aws_lc_rs::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY};
use data_encoding::BASE32;
use jiff::Timestamp;

use super::file::WarcFile;
use super::seen_bodies::{OriginalRecord, SeenBodies};
use crate::report::{Exchange, Original, PageRecord};
use crate::sink::row::PageRow;
use crate::sink::warc::WARC_CHUNK_BYTES;
use crate::spool::Spool;

const IDENTICAL: &str = "http://netpreserve.org/warc/1.1/revisit/identical-payload-digest";
/// Beginnings of URLs. Browsertrix Crawler and ArchiveWeb.page use the second and the third.
const RENDERED_URN: &str = "urn:rendered:";
const SCREENSHOT_URN: &str = "urn:fullPage:";
const PDF_URN: &str = "urn:pdf:";

const NOT_MODIFIED: &str = "http://netpreserve.org/warc/1.1/revisit/server-not-modified";

/// Writes records, and remembers the bodies that it has written.
#[derive(Debug)]
pub(super) struct RecordWriter {
    agent: String,
    /// The id of the file's `warcinfo`.
    info: String,
    seen: SeenBodies,
    /// Bodies that are not synced yet.
    pending: Vec<(blake3::Hash, OriginalRecord)>,
}

/// The header of a record, or a block of `application/warc-fields`.
#[derive(Default)]
struct WarcFields(String);

/// A body and its digests.
struct RecordBody<'a> {
    spool: Option<&'a Spool>,
    /// Digest of head and body.
    block_digest: String,
    payload_digest: String,
    hash: blake3::Hash,
    len: u64,
}

/// The answer to a request, and the id of its record.
struct Answer<'a> {
    url: &'a str,
    exchange: &'a Exchange,
    head: Vec<u8>,
    body: RecordBody<'a>,
    id: String,
}

/// What the records of a page contain.
struct CapturedPage<'a> {
    answer: Option<Answer<'a>>,
    /// Answers to a browser that has rendered the page.
    parts: Vec<Answer<'a>>,
    /// The rendered HTML.
    html: Option<RecordBody<'a>>,
    /// The beginning of the URL, the media type, and the content.
    images: Vec<(&'static str, &'static str, Vec<u8>)>,
}

impl RecordWriter {
    pub(super) fn new(agent: &str) -> Self {
        let agent = agent.to_owned();
        Self { agent, info: String::new(), seen: SeenBodies::default(), pending: Vec::new() }
    }

    /// The written records are synced: later ones may refer to them.
    pub(super) fn commit(&mut self) {
        for (body, original) in self.pending.drain(..) {
            self.seen.insert(body, original);
        }
    }

    /// The written records were discarded.
    pub(super) fn roll_back(&mut self) {
        self.pending.clear();
    }

    /// Writes the first record of a file with this name.
    pub(super) fn put_info(&mut self, name: &str, out: &mut WarcFile) -> io::Result<()> {
        let mut fields = WarcFields::default();
        fields.put("software", concat!("tidings/", env!("CARGO_PKG_VERSION")));
        fields.put("format", "WARC File Format 1.1");
        let standard =
            "https://iipc.github.io/warc-specifications/specifications/warc-format/warc-1.1/";
        fields.put("conformsTo", standard);
        fields.put("http-header-user-agent", &self.agent);
        self.info = new_id();
        let now = Timestamp::try_from(super::now()).unwrap_or_default();
        let mut header = WarcFields::record("warcinfo", &self.info, &date(now.as_millisecond()));
        header.put("WARC-Filename", name);
        put_fields(header, &fields, out)
    }

    /// Writes all records of a page; none (`false`) if the file of a body is gone.
    pub(super) fn put_page(&mut self, record: &PageRecord, out: &mut WarcFile) -> io::Result<bool> {
        let captured = match CapturedPage::read(record) {
            Ok(captured) => captured,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        let CapturedPage { answer, parts, html, images } = captured;
        let started = answer.as_ref().map(|answer| answer.exchange.started_unix_ms);
        let date = date(started.unwrap_or(record.fetched_unix_ms));
        let own_id = answer.as_ref().map(|answer| answer.id.clone());
        let own_id = own_id.as_deref();
        if let Some(answer) = &answer {
            self.put_request(answer, out)?;
            match record.original.as_ref().filter(|_| record.report.status == Some(304)) {
                Some(original) => self.put_unchanged(answer, original, out)?,
                None => self.put_response(answer, None, out)?,
            }
        }
        for part in &parts {
            self.put_request(part, out)?;
            self.put_response(part, own_id, out)?;
        }
        if let Some(html) = &html {
            // With the URL of the page, it would be replayed in place of the response.
            let url = format!("{RENDERED_URN}{}", record.report.url);
            let mut header = self.header("conversion", &new_id(), &date, &url);
            header.put_some("WARC-Refers-To", own_id);
            header.put("WARC-Block-Digest", &html.block_digest);
            header.put("Content-Type", "text/html; charset=utf-8");
            put_body(header, &[], html, out)?;
        }
        for (urn, media_type, bytes) in &images {
            let url = format!("{urn}{}", record.report.url);
            let mut header = self.header("resource", &new_id(), &date, &url);
            header.put_some("WARC-Concurrent-To", own_id);
            header.put("WARC-Block-Digest", sha1(bytes));
            header.put("Content-Type", media_type);
            put_record(header, bytes, out)?;
        }
        self.put_metadata(record, own_id, &date, out)?;
        out.note_page();
        Ok(true)
    }

    fn put_request(&self, answer: &Answer<'_>, out: &mut WarcFile) -> io::Result<()> {
        let head = &answer.exchange.request_head;
        let mut header = self.header("request", &new_id(), &answer.date(), answer.url);
        header.put_some("WARC-IP-Address", answer.exchange.remote.map(|remote| remote.ip()));
        header.put("WARC-Concurrent-To", &answer.id);
        header.put("WARC-Block-Digest", sha1(head));
        header.put("Content-Type", "application/http;msgtype=request");
        put_record(header, head, out)
    }

    /// The server says that the page has not changed (304). The record has no block: readers replay
    /// the head of a revisit, and a head with status 304 as an empty page.
    fn put_unchanged(
        &self,
        answer: &Answer<'_>,
        original: &Original,
        out: &mut WarcFile,
    ) -> io::Result<()> {
        let mut header = self.header("revisit", &answer.id, &answer.date(), answer.url);
        header.put_some("WARC-IP-Address", answer.exchange.remote.map(|remote| remote.ip()));
        header.put("WARC-Profile", NOT_MODIFIED);
        header.put("WARC-Refers-To-Target-URI", answer.url);
        header.put_some("WARC-Refers-To-Date", original.started_unix_ms.map(date));
        put_record(header, &[], out)
    }

    /// `page_id`: the record of the page that this is a part of.
    fn put_response(
        &mut self,
        answer: &Answer<'_>,
        page_id: Option<&str>,
        out: &mut WarcFile,
    ) -> io::Result<()> {
        let Answer { url, exchange, head, body, id } = answer;
        let is_whole = exchange.truncated.is_none();
        let original = self.seen.find(&body.hash).filter(|_| is_whole && body.len > 0);
        let kind = if original.is_some() { "revisit" } else { "response" };
        let mut header = self.header(kind, id, &answer.date(), url);
        header.put_some("WARC-IP-Address", exchange.remote.map(|remote| remote.ip()));
        header.put_some("WARC-Concurrent-To", page_id);
        if let Some(original) = original {
            header.put("WARC-Profile", IDENTICAL);
            header.put("WARC-Refers-To", &original.id);
            header.put("WARC-Refers-To-Target-URI", &original.url);
            header.put("WARC-Refers-To-Date", &original.date);
        }
        header.put("Content-Type", "application/http;msgtype=response");
        header.put("WARC-Payload-Digest", &body.payload_digest);
        if original.is_some() {
            header.put("WARC-Block-Digest", sha1(head));
            return put_record(header, head, out);
        }
        header.put_some("WARC-Truncated", exchange.truncated);
        header.put("WARC-Block-Digest", &body.block_digest);
        if is_whole && body.len > 0 {
            let original =
                OriginalRecord { url: (*url).into(), date: answer.date(), id: id.clone() };
            self.pending.push((body.hash, original));
        }
        put_body(header, head, body, out)
    }

    fn put_metadata(
        &self,
        record: &PageRecord,
        answer: Option<&str>,
        date: &str,
        out: &mut WarcFile,
    ) -> io::Result<()> {
        let (row, report) = (PageRow::of(record), &record.report);
        let mut fields = WarcFields::default();
        fields.put("page", &row.page);
        fields.put("outcome", report.outcome);
        fields.put_some("reason", report.reason);
        fields.put_some("error", report.error.as_ref());
        fields.put_some("status", report.status);
        fields.put("fetched_at", &row.fetched_at);
        fields.put("duration_ms", row.duration_ms);
        fields.put("bytes", report.bytes);
        fields.put_some("hash", row.hash.as_ref());
        fields.put_some("redirect", record.redirect.as_ref());
        fields.put_some("job", report.job.as_ref());
        fields.put_some("pass", record.pass);
        fields.put_some("depth", record.depth);
        fields.put_some("item", record.item.as_ref());
        fields.put_some("source", record.source.as_ref());
        fields.put("task", &row.task);
        fields.put("attempt", record.task.attempt);
        fields.put_some("rendered_hash", row.rendered_hash.as_ref());
        let render = row.render.as_ref().map(serde_json::to_string).transpose()?;
        fields.put_some("render", render);
        let mut header = self.header("metadata", &new_id(), date, &report.url);
        header.put_some("WARC-Concurrent-To", answer);
        put_fields(header, &fields, out)
    }

    fn header(&self, kind: &str, id: &str, date: &str, url: &str) -> WarcFields {
        let mut header = WarcFields::record(kind, id, date);
        header.put("WARC-Target-URI", url);
        header.put("WARC-Warcinfo-ID", &self.info);
        header
    }
}

impl WarcFields {
    /// The header of a record.
    fn record(kind: &str, id: &str, date: &str) -> Self {
        let mut header = Self("WARC/1.1\r\n".to_owned());
        header.put("WARC-Type", kind);
        header.put("WARC-Record-ID", id);
        header.put("WARC-Date", date);
        header
    }

    fn put(&mut self, name: &str, value: impl Display) {
        let at = self.0.len();
        write!(self.0, "{name}: {value}").expect("a String takes everything");
        one_line(&mut self.0, at);
    }

    fn put_some(&mut self, name: &str, value: Option<impl Display>) {
        if let Some(value) = value {
            self.put(name, value);
        }
    }

    /// Ends the header of a record with a block of this length.
    fn end(mut self, length: u64) -> String {
        self.put("Content-Length", length);
        self.0.push_str("\r\n");
        self.0
    }
}

/// Ends the line that begins here. Line breaks from a site become spaces.
fn one_line(text: &mut String, at: usize) {
    if text[at..].contains(|c: char| c.is_control()) {
        let line = text[at..].replace(|c: char| c.is_control(), " ");
        text.replace_range(at.., &line);
    }
    text.push_str("\r\n");
}

fn put_fields(mut header: WarcFields, fields: &WarcFields, out: &mut WarcFile) -> io::Result<()> {
    header.put("WARC-Block-Digest", sha1(fields.0.as_bytes()));
    header.put("Content-Type", "application/warc-fields");
    put_record(header, fields.0.as_bytes(), out)
}

fn put_record(header: WarcFields, block: &[u8], out: &mut WarcFile) -> io::Result<()> {
    out.begin_member();
    out.write_all(header.end(block.len() as u64).as_bytes())?;
    out.write_all(block)?;
    out.write_all(b"\r\n\r\n")?;
    out.end_member()
}

/// Writes a record with this head, if any, and a body after it.
fn put_body(
    header: WarcFields,
    head: &[u8],
    body: &RecordBody<'_>,
    out: &mut WarcFile,
) -> io::Result<()> {
    out.begin_member();
    out.write_all(header.end(head.len() as u64 + body.len).as_bytes())?;
    out.write_all(head)?;
    let written = body.spool.map_or(Ok(0), |spool| io::copy(&mut spool.read()?, out))?;
    if written != body.len {
        return Err(io::Error::other("a body has changed while it was written"));
    }
    out.write_all(b"\r\n\r\n")?;
    out.end_member()
}

impl<'a> CapturedPage<'a> {
    /// Reads all bodies, so that nothing is written of a page that has lost one.
    fn read(record: &'a PageRecord) -> io::Result<Self> {
        // Without an original, status 304 would be replayed in place of an earlier response.
        let is_lost = record.report.status == Some(304) && record.original.is_none();
        let exchange = record.exchange.as_ref().filter(|_| !is_lost);
        let answer = exchange.map(|exchange| Answer::read(&record.report.url, exchange));
        let answer = answer.transpose()?;
        let mut captured = Self { answer, parts: Vec::new(), html: None, images: Vec::new() };
        let Some(rendering) = &record.rendering else { return Ok(captured) };
        // An answer to another method would be replayed in place of the one to GET.
        let parts = rendering.exchanges.iter();
        for (url, exchange) in parts.filter(|(_, it)| it.request_head.starts_with(b"GET ")) {
            captured.parts.push(Answer::read(url, exchange)?);
        }
        let html = rendering.html.as_ref().map(|html| RecordBody::read(&[], Some(html)));
        captured.html = html.transpose()?;
        for (urn, media_type, image) in [
            (SCREENSHOT_URN, "image/png", &rendering.screenshot),
            (PDF_URN, "application/pdf", &rendering.pdf),
        ] {
            if let Some(image) = image {
                captured.images.push((urn, media_type, fs::read(&image.path)?));
            }
        }
        Ok(captured)
    }
}

impl<'a> Answer<'a> {
    fn read(url: &'a str, exchange: &'a Exchange) -> io::Result<Self> {
        let head = response_head(exchange);
        let body = RecordBody::read(&head, exchange.body.as_ref())?;
        Ok(Self { url, exchange, head, body, id: new_id() })
    }

    fn date(&self) -> String {
        date(self.exchange.started_unix_ms)
    }
}

impl<'a> RecordBody<'a> {
    fn read(head: &[u8], spool: Option<&'a Spool>) -> io::Result<Self> {
        let mut block = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
        let mut payload = block.clone();
        let mut hasher = blake3::Hasher::new();
        let mut len = 0;
        block.update(head);
        if let Some(spool) = spool {
            let (mut reader, mut chunk) = (spool.read()?, vec![0; WARC_CHUNK_BYTES]);
            loop {
                let read = reader.read(&mut chunk)?;
                if read == 0 {
                    break;
                }
                len += read as u64;
                block.update(&chunk[..read]);
                payload.update(&chunk[..read]);
                hasher.update(&chunk[..read]);
            }
        }
        let (block_digest, payload_digest) = (digest(block), digest(payload));
        Ok(Self { spool, block_digest, payload_digest, hash: hasher.finalize(), len })
    }
}

/// The head, with `Content-Length` and `Transfer-Encoding` changed to fit the stored body.
fn response_head(exchange: &Exchange) -> Vec<u8> {
    let len = exchange.body.as_ref().map_or(0, Spool::len);
    let lines = || exchange.response_head.split_inclusive(|byte| *byte == b'\n');
    let is = |line: &[u8], name: &str| {
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or(0);
        line[..colon].trim_ascii().eq_ignore_ascii_case(name.as_bytes())
    };
    let lengths: Vec<_> = lines().filter(|line| is(line, "content-length")).collect();
    let is_right = |line: &&[u8]| {
        let value = line.splitn(2, |byte| *byte == b':').nth(1).unwrap_or_default();
        value.trim_ascii() == len.to_string().as_bytes()
    };
    let was_coded = lines().any(|line| is(line, "transfer-encoding"));
    // An answer without a body may have the length of another answer.
    let has_body = exchange.body.is_some();
    let is_wrong = has_body && (was_coded || !lengths.iter().all(is_right));
    let mut head = Vec::with_capacity(exchange.response_head.len() + 64);
    for line in lines() {
        if is_wrong && line.trim_ascii().is_empty() {
            write!(head, "Content-Length: {len}\r\n").expect("a vector takes everything");
        }
        if is(line, "transfer-encoding") || is_wrong && is(line, "content-length") {
            head.extend_from_slice(b"X-Archive-Orig-");
        }
        head.extend_from_slice(line);
    }
    head
}

/// RFC 3339, in milliseconds, UTC.
fn date(unix_ms: i64) -> String {
    format!("{:.3}", Timestamp::from_millisecond(unix_ms).unwrap_or_default())
}

/// A random UUID (RFC 9562 section 5.4).
fn new_id() -> String {
    let random = fastrand::u128(..) & !(0xf << 76 | 0x3 << 62) | 0x4 << 76 | 0x2 << 62;
    let hex = format!("{random:032x}");
    let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    format!("<urn:uuid:{}>", parts.join("-"))
}

fn sha1(bytes: &[u8]) -> String {
    let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
    context.update(bytes);
    digest(context)
}

fn digest(context: Context) -> String {
    format!("sha1:{}", BASE32.encode(context.finish().as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_have_the_common_form() {
        assert_eq!(sha1(b""), "sha1:3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ");
    }

    #[test]
    fn ids_are_random_uuids() {
        let (one, two) = (new_id(), new_id());
        assert_ne!(one, two);
        assert_eq!(one.len(), "<urn:uuid:00000000-0000-4000-8000-000000000000>".len());
        assert_eq!(&one[24..25], "4", "{one}");
        assert!("89ab".contains(&one[29..30]), "{one}");
    }

    fn head(head: &str, body: Option<&[u8]>) -> String {
        let folder = tempfile::tempdir().unwrap();
        let spools = crate::spool::Spools::open(folder.path()).unwrap();
        let body = body.map(|bytes| crate::sink::testing::body_of(&spools, bytes));
        let exchange = Exchange {
            request_head: Vec::new(),
            response_head: head.replace('\n', "\r\n").into_bytes(),
            remote: None,
            started_unix_ms: 0,
            body,
            truncated: None,
        };
        String::from_utf8(response_head(&exchange)).unwrap().replace("\r\n", "\n")
    }

    #[test]
    fn a_head_fits_its_body() {
        for fine in ["HTTP/1.1 200 OK\nContent-Length: 3\nX: y\n\n", "HTTP/1.1 200 OK\n\n", ""] {
            assert_eq!(head(fine, Some(b"abc")), fine);
        }
        assert_eq!(
            head("HTTP/1.1 200 OK\ntransfer-Encoding: chunked\nX: y\n\n", Some(b"abc")),
            "HTTP/1.1 200 OK\nX-Archive-Orig-transfer-Encoding: chunked\nX: y\nContent-Length: 3\n\n"
        );
        assert_eq!(
            head("HTTP/1.1 200 OK\nContent-Length: 9\ncontent-length: 3\n\n", Some(b"abc")),
            "HTTP/1.1 200 OK\nX-Archive-Orig-Content-Length: 9\nX-Archive-Orig-content-length: 3\n\
             Content-Length: 3\n\n"
        );
        // The length of a body that was not sent.
        let unchanged = "HTTP/1.1 304 Not Modified\nContent-Length: 9\n\n";
        assert_eq!(head(unchanged, None), unchanged);
    }

    #[test]
    fn text_of_a_site_adds_no_line() {
        let mut fields = WarcFields::default();
        fields.put("error", "one\r\npage: crawlers.1.1\u{0}");
        assert_eq!(fields.0, "error: one  page: crawlers.1.1 \r\n");
    }
}
