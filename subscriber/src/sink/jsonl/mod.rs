//! JSON lines: one object for each finished page, one a line.
//!
//! | field | |
//! |---|---|
//! | `page` | the id of the page within its pass; unique in a file |
//! | `url` | the page |
//! | `outcome`, `reason`, `error` | `done`, `redirect`, `failed`, `robots`, `trap`; the reason as a word of a closed list; the error in one line for people |
//! | `status` | the HTTP status |
//! | `fetched_at`, `duration_ms` | the end of the answer (RFC 3339, UTC), and the duration of the request |
//! | `bytes`, `hash` | of the decoded body; BLAKE3, hexadecimal |
//! | `rendered_hash` | of the HTML after a browser has rendered the page; BLAKE3, hexadecimal |
//! | `content_type`, `etag`, `last_modified` | headers, as the server sent them |
//! | `remote` | address and port of the server |
//! | `redirect`, `canonical` | the target of a redirect; the URL that the page declares as its own |
//! | `title`, `noindex` | from the page |
//! | `job`, `pass`, `depth` | the crawl, and the number of links from a seed |
//! | `item`, `source` | these attributes of the event that announced the page |
//! | `task`, `attempt` | as in the broker's answers |
//! | `links`, `nofollow` | an array of URLs, in the order of the page; the positions (from 0) of those that must not be followed |
//! | `render` | the result of rendering the page, with [these fields](super::rendered) |
//!
//! A field without a value is omitted. An unchanged page (status 304) has `hash`, title and
//! links of the record that is confirmed.
//!
//! A file has a mark file beside it (`ledger.rs`) with a position, an offset in bytes. A crash
//! leaves at most a torn end: when the file is opened, everything after the mark is cut off from
//! the first line that is not a page. A file without a mark may belong to another program: nothing
//! of it is cut.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use tidings_database::with_suffix;

use super::append::AppendFile;
use super::ledger::Ledger;
use super::row::PageRow;
use super::{OpenError, Sink, StoreError, unwritten_final};
use crate::report::{PageId, PageRecord};
use crate::sink::{JSONL_CHUNK_BYTES, JSONL_LINE_BYTES_MAX};

/// A file of JSON lines.
#[derive(Debug)]
pub(super) struct JsonFile {
    file: AppendFile,
    ledger: Ledger,
}

/// JSON lines to standard output. Nothing can be taken back or read again there.
#[derive(Debug)]
pub(super) struct JsonStream {
    out: File,
    /// The rest of a line that was written in part.
    torn: Vec<u8>,
    ledger: Ledger,
}

impl JsonFile {
    /// Opens a file, cuts off a torn end, and reads which of its pages may come again.
    pub(super) fn open(path: &Path) -> Result<Self, OpenError> {
        let failed = |source| OpenError::Io { path: path.to_owned(), source };
        let mut file = AppendFile::open(path)?;
        let (mut ledger, mark) = Ledger::open(&with_suffix(path, ".mark")).map_err(failed)?;
        let mark = mark.and_then(|mark| mark.parse().ok());
        let mark = mark.filter(|mark| is_between_lines(&file, *mark).unwrap_or(false));
        let end = read_pages(&file, mark, &mut ledger).map_err(failed)?;
        if end < file.synced_bytes() && mark.is_some() {
            let torn = file.synced_bytes() - end;
            tracing::info!("{}: cut off {torn} bytes of an incomplete line", path.display());
            file.truncate(end).map_err(failed)?;
        } else if end < file.synced_bytes() {
            file.write_all(b"\n").map_err(failed)?;
        }
        // The lines that were found may not be synced yet.
        file.commit().map_err(failed)?;
        ledger.write(&file.synced_bytes().to_string()).map_err(failed)?;
        Ok(Self { file, ledger })
    }

    fn append(&mut self, batch: &[Arc<PageRecord>]) -> io::Result<()> {
        self.file.begin()?;
        let (mut lines, mut pages) = (Vec::new(), Vec::new());
        for record in unwritten_final(batch, &self.ledger) {
            put_line(record, &mut lines);
            pages.push(record.page.clone());
            if lines.len() >= JSONL_CHUNK_BYTES {
                self.file.write_all(&lines)?;
                lines.clear();
            }
        }
        if !pages.is_empty() {
            self.file.write_all(&lines)?;
            self.file.commit()?;
        }
        for page in pages {
            self.ledger.insert(page);
        }
        Ok(())
    }
}

impl Sink for JsonFile {
    fn name(&self) -> String {
        self.file.path().display().to_string()
    }

    fn write(&mut self, batch: &[Arc<PageRecord>]) -> Result<(), StoreError> {
        let written = self.append(batch);
        if written.is_err() {
            self.file.roll_back();
        }
        self.ledger.write_if_due(|| self.file.synced_bytes().to_string());
        written.map_err(|error| StoreError { text: error.to_string(), closed: false })
    }

    fn ledger(&mut self) -> Option<&mut Ledger> {
        Some(&mut self.ledger)
    }

    fn close(&mut self) {
        if let Err(error) = self.ledger.write(&self.file.synced_bytes().to_string()) {
            tracing::warn!("{}: {error}", self.name());
        }
    }
}

impl JsonStream {
    pub(super) fn stdout() -> io::Result<Self> {
        use std::os::fd::AsFd;
        // Without the library's buffer, which would not tell how much was written.
        let out = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        Ok(Self { out, torn: Vec::new(), ledger: Ledger::default() })
    }

    fn append(&mut self, batch: &[Arc<PageRecord>]) -> io::Result<()> {
        let (written, ended) = write_some(&mut self.out, &self.torn);
        self.torn.drain(..written);
        ended?;
        let (mut lines, mut starts) = (Vec::new(), Vec::new());
        for record in unwritten_final(batch, &self.ledger) {
            starts.push((lines.len(), record.page.clone()));
            put_line(record, &mut lines);
        }
        let (written, ended) = write_some(&mut self.out, &lines);
        // The next attempt continues a line that was written in part.
        let rest = starts.iter().map(|(start, _)| *start).find(|start| *start >= written);
        self.torn = lines[written..rest.unwrap_or(lines.len())].to_vec();
        let begun = starts.into_iter().take_while(|(start, _)| *start < written);
        begun.for_each(|(_, page)| self.ledger.insert(page));
        ended?;
        // A pipe needs no sync.
        if self.out.metadata()?.is_file() { self.out.sync_data() } else { Ok(()) }
    }
}

impl Sink for JsonStream {
    fn name(&self) -> String {
        "standard output".to_owned()
    }

    fn write(&mut self, batch: &[Arc<PageRecord>]) -> Result<(), StoreError> {
        self.append(batch).map_err(|error| StoreError {
            text: error.to_string(),
            closed: error.kind() == io::ErrorKind::BrokenPipe,
        })
    }

    fn ledger(&mut self) -> Option<&mut Ledger> {
        Some(&mut self.ledger)
    }
}

fn put_line(record: &PageRecord, lines: &mut Vec<u8>) {
    serde_json::to_writer(&mut *lines, &PageRow::of(record)).expect("a vector takes everything");
    lines.push(b'\n');
}

/// Writes as much as possible; returns the number of bytes written.
fn write_some(out: &mut File, bytes: &[u8]) -> (usize, io::Result<()>) {
    let mut written = 0;
    while written < bytes.len() {
        match out.write(&bytes[written..]) {
            Ok(0) => return (written, Err(io::ErrorKind::WriteZero.into())),
            Ok(more) => written += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (written, Err(error)),
        }
    }
    (written, Ok(()))
}

/// Whether a line may begin at this offset; otherwise the mark belongs to another file.
fn is_between_lines(file: &AppendFile, at: u64) -> io::Result<bool> {
    if at == 0 || at > file.synced_bytes() {
        return Ok(at == 0);
    }
    let mut byte = [0];
    file.read_from(at - 1)?.read_exact(&mut byte)?;
    Ok(byte == *b"\n")
}

/// Adds the pages after the mark, or all of them without a mark; returns the end of the last whole
/// line.
fn read_pages(file: &AppendFile, mark: Option<u64>, ledger: &mut Ledger) -> io::Result<u64> {
    #[derive(Deserialize)]
    struct Known<'a> {
        #[serde(borrow)]
        page: Option<std::borrow::Cow<'a, str>>,
    }
    let mut end = mark.unwrap_or(0);
    let mut reader = BufReader::with_capacity(JSONL_CHUNK_BYTES, file.read_from(end)?);
    // Bytes of a line that is longer than any page, read so far.
    let (mut line, mut before) = (Vec::new(), 0);
    loop {
        line.clear();
        let read = reader.by_ref().take(JSONL_LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
        let known = serde_json::from_slice::<Known<'_>>(&line).ok();
        let page = known.and_then(|known| PageId::parse(&known.page?));
        let is_ended = line.ends_with(b"\n");
        if mark.is_some() && (page.is_none() || !is_ended) || read == 0 {
            return Ok(end);
        }
        if is_ended {
            end += before + read as u64;
            before = 0;
            if let Some(page) = page {
                ledger.insert(page);
            }
        } else {
            before += read as u64;
        }
    }
}

#[cfg(test)]
mod tests;
