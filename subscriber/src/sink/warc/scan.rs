//! Reads a WARC file back: its pages, and the end of its complete part.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use flate2::bufread::GzDecoder;

use crate::report::PageId;
use crate::sink::warc::WARC_CHUNK_BYTES;

/// The longest header of a record written here (two URLs and short words), and the bytes of a
/// `metadata` block in which its page is found.
const WARC_HEAD_BYTES_MAX: u64 = 64 * 1024;

/// The content of a file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ScannedFile {
    /// In order.
    pub(super) pages: Vec<PageId>,
    /// The position after the last complete page.
    pub(super) end: u64,
    /// Whether there are pages, also before the start of the scan.
    pub(super) has_pages: bool,
}

/// The fields of a record that a scan needs.
#[derive(Debug, Default)]
struct ScannedRecord {
    kind: String,
    length: u64,
    page: Option<PageId>,
}

/// Reads from this offset on. If no record begins there, the offset belongs to another file, and
/// the whole file is read.
pub(super) fn pages(path: &Path, from: u64) -> io::Result<ScannedFile> {
    let len = path.metadata()?.len();
    let found = read(path, if from > len { 0 } else { from })?;
    if from > 0 && found.pages.is_empty() && from < len { read(path, 0) } else { Ok(found) }
}

fn read(path: &Path, from: u64) -> io::Result<ScannedFile> {
    let mut found = ScannedFile { end: from, has_pages: from > 0, pages: Vec::new() };
    let mut reader = BufReader::with_capacity(WARC_CHUNK_BYTES, File::open(path)?);
    reader.seek(SeekFrom::Start(from))?;
    loop {
        if reader.fill_buf()?.is_empty() {
            return Ok(found);
        }
        let record = match read_record(&mut reader) {
            Ok(record) => record,
            // Incomplete: it was being written.
            Err(error) if is_about_content(&error) => return Ok(found),
            Err(error) => return Err(error),
        };
        match record {
            ScannedRecord { page: Some(page), .. } => {
                found.pages.push(page);
                (found.end, found.has_pages) = (reader.stream_position()?, true);
            }
            ScannedRecord { kind, .. } if kind == "warcinfo" => {
                found.end = reader.stream_position()?;
            }
            _ => {}
        }
    }
}

fn is_about_content(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
    matches!(error.kind(), InvalidData | InvalidInput | UnexpectedEof)
}

fn read_record(reader: &mut BufReader<File>) -> io::Result<ScannedRecord> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let mut member = BufReader::new(GzDecoder::new(reader));
    let mut head = member.by_ref().take(WARC_HEAD_BYTES_MAX);
    let mut record = ScannedRecord::default();
    let mut line = Vec::new();
    loop {
        line.clear();
        head.read_until(b'\n', &mut line)?;
        match std::str::from_utf8(&line).map_err(|_| invalid())?.trim_end_matches(['\r', '\n']) {
            "" if line.is_empty() => return Err(invalid()),
            "" => break,
            line => match line.split_once(": ") {
                Some(("WARC-Type", kind)) => kind.clone_into(&mut record.kind),
                Some(("Content-Length", length)) => {
                    record.length = length.parse().map_err(|_| invalid())?;
                }
                _ => {}
            },
        }
    }
    if record.kind == "metadata" {
        let mut start = Vec::new();
        member.by_ref().take(record.length.min(WARC_HEAD_BYTES_MAX)).read_to_end(&mut start)?;
        let text = String::from_utf8_lossy(&start);
        let page = text.lines().find_map(|line| line.strip_prefix("page: "));
        record.page = Some(page.and_then(PageId::parse).ok_or_else(invalid)?);
        record.length -= start.len() as u64;
    }
    let block = io::copy(&mut member.by_ref().take(record.length), &mut io::sink())?;
    // To the end of the member, where its checksum is compared.
    let mut rest = Vec::new();
    member.take(5).read_to_end(&mut rest)?;
    if block == record.length && rest == b"\r\n\r\n" { Ok(record) } else { Err(invalid()) }
}
