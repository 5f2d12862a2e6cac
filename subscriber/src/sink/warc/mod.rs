//! WARC files, version 1.1 (ISO 28500:2017): requests and answers as sent and received, for
//! archives.
//!
//! A page has these records, each a gzip member of its own, so that a reader can begin at any:
//!
//! | record | |
//! |---|---|
//! | `request` | the head, as sent |
//! | `response` | the head as received, and the body without its transfer coding, still with its content coding |
//! | or `revisit` | the head only: the body is in this output already |
//! | or `revisit` | neither: the page is unchanged (304) |
//! | for a rendered page: `request` and `response` (or `revisit`) | for each part that was requested with `GET`, except status 304; `WARC-Concurrent-To` of the response is that of the page |
//! | `conversion` | the rendered HTML: `urn:rendered:<url>`. `WARC-Refers-To` is the response of the page, which readers replay |
//! | `resource` | the image and the PDF: `urn:fullPage:<url>` (`image/png`) and `urn:pdf:<url>` |
//! | `metadata` | the outcome of the page, with the names of the JSON lines; also for pages without an answer |
//!
//! The `metadata` record comes last: a page is complete when it is there. So that head and body fit
//! together, a `Transfer-Encoding`, and a `Content-Length` that differs from the body's length, are
//! renamed to `X-Archive-Orig-..`, and the right length is added. Digests are SHA-1, which common
//! tools compare; BLAKE3 decides whether two bodies are equal.
//!
//! Files are named `PREFIX-<time of creation>-<serial number>.warc.gz`, with `.open` at the end
//! while they are written. A file is closed at its size limit and at the end. The mark
//! (`ledger.rs`) is `PREFIX.mark`; its position is an offset and the name of a file. A file that a
//! crash has left open is cut after its last complete page, and closed.

#![expect(clippy::disallowed_methods, reason = "files are named after their time of creation")]

mod file;
mod record;
mod scan;
mod seen_bodies;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use std::{fs, io, mem};

use jiff::Timestamp;
use tidings_database::with_suffix;

use self::file::WarcFile;
use self::record::RecordWriter;
use super::append::{AppendFile, sync_directory_of};
use super::ledger::Ledger;
use super::{OpenError, Sink, StoreError, unwritten_final};
use crate::report::{PageId, PageRecord};

/// Bytes of a WARC file that are written at a time, and of a body that are read.
const WARC_CHUNK_BYTES: usize = 64 * 1024;

const OPEN: &str = ".open";
const CLOSED: &str = ".warc.gz";

/// The WARC files of one prefix.
pub(super) struct Warc {
    prefix: PathBuf,
    /// The size at which a file is closed.
    bytes_max: u64,
    file: WarcFile,
    archivist: RecordWriter,
    ledger: Ledger,
    /// Pages written but not synced yet.
    pending: Vec<PageId>,
    refused: Vec<(PageId, String)>,
    /// The mark does not name the current file yet.
    owes_mark: bool,
}

impl Warc {
    /// Begins a file, and closes those that a crash has left open.
    pub(super) fn open(prefix: &Path, bytes_max: u64, agent: &str) -> Result<Self, OpenError> {
        let failed = |source| OpenError::Io { path: prefix.to_owned(), source };
        super::create_parent(prefix)?;
        let mut archivist = RecordWriter::new(agent);
        // Locked first: of two processes with one prefix each sees the file of the other.
        let file = create_file(prefix, &mut archivist).map_err(failed)?;
        let mark = with_suffix(prefix, ".mark");
        let (mut ledger, position) = Ledger::open(&mark).map_err(failed)?;
        let position = position.as_deref().and_then(parse_position);
        if let Err(error) = recover(prefix, &file, position.as_ref(), &mut ledger) {
            remove_file(&file);
            return Err(error);
        }
        let mut warc = Self {
            prefix: prefix.to_owned(),
            bytes_max,
            file,
            archivist,
            ledger,
            pending: Vec::new(),
            refused: Vec::new(),
            owes_mark: true,
        };
        warc.write_mark().map_err(failed)?;
        Ok(warc)
    }

    fn append(&mut self, batch: &[Arc<PageRecord>]) -> io::Result<()> {
        self.file.begin()?;
        if self.owes_mark {
            self.write_mark()?;
        }
        for record in unwritten_final(batch, &self.ledger) {
            if self.file.len() >= self.bytes_max {
                self.commit()?;
                self.rotate()?;
            }
            let page = record.page.clone();
            if self.archivist.put_page(record, &mut self.file)? {
                self.pending.push(page);
            } else {
                // Otherwise the page would be archived as one without an answer.
                self.refused.push((page, "the file of its body was removed".to_owned()));
            }
        }
        self.commit()
    }

    fn commit(&mut self) -> io::Result<()> {
        self.file.commit()?;
        self.archivist.commit();
        for page in self.pending.drain(..) {
            self.ledger.insert(page);
        }
        Ok(())
    }

    /// Begins the next file. If it cannot be created, or the mark cannot be written, the next page
    /// retries it.
    fn rotate(&mut self) -> io::Result<()> {
        let next = create_file(&self.prefix, &mut self.archivist)?;
        if let Err(error) = close_file(&self.file) {
            remove_file(&next);
            return Err(error);
        }
        (self.file, self.owes_mark) = (next, true);
        self.write_mark()
    }

    fn write_mark(&mut self) -> io::Result<()> {
        self.ledger.write(&position(&self.file))?;
        self.owes_mark = false;
        Ok(())
    }
}

impl Sink for Warc {
    fn name(&self) -> String {
        self.file.path().display().to_string()
    }

    fn write(&mut self, batch: &[Arc<PageRecord>]) -> Result<(), StoreError> {
        let written = self.append(batch);
        if written.is_err() {
            self.pending.clear();
            self.refused.clear();
            self.archivist.roll_back();
            self.file.roll_back();
        }
        self.ledger.write_if_due(|| position(&self.file));
        written.map_err(|error| StoreError { text: error.to_string(), closed: false })
    }

    fn take_refused(&mut self) -> Vec<(PageId, String)> {
        mem::take(&mut self.refused)
    }

    fn ledger(&mut self) -> Option<&mut Ledger> {
        Some(&mut self.ledger)
    }

    fn body_output(&self) -> Option<String> {
        Some(format!("warc {}", self.ledger.id()))
    }

    fn close(&mut self) {
        let closed = self.write_mark().and_then(|()| {
            if self.file.has_pages() {
                close_file(&self.file)
            } else {
                fs::remove_file(self.file.path())
            }
        });
        if let Err(error) = closed {
            tracing::warn!("{}: {error}", self.name());
        }
    }
}

/// Creates a file with a new name, locks it, and writes its `warcinfo`.
fn create_file(prefix: &Path, archivist: &mut RecordWriter) -> io::Result<WarcFile> {
    let now = Timestamp::try_from(now()).unwrap_or_default();
    let now = now.strftime("%Y%m%d%H%M%S");
    for serial in 0..100_000 {
        let closed = with_suffix(prefix, &format!("-{now}-{serial:05}{CLOSED}"));
        if closed.exists() {
            continue;
        }
        let mut file = match AppendFile::create(&with_suffix(&closed, OPEN)) {
            Ok(file) => WarcFile::new(file),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            Err(error) => return Err(error),
        };
        let name = closed.file_name().unwrap_or_default().to_string_lossy();
        let begun = archivist.put_info(&name, &mut file).and_then(|()| file.commit());
        if begun.is_err() {
            remove_file(&file);
        }
        return begun.map(|()| file);
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

fn now() -> SystemTime {
    SystemTime::now()
}

/// Renames a file that is complete.
fn close_file(file: &WarcFile) -> io::Result<()> {
    let name = file.path().with_extension("");
    fs::rename(file.path(), &name)?;
    sync_directory_of(&name)
}

/// Removes a file without pages. If that fails, the next start removes it.
fn remove_file(file: &WarcFile) {
    if let Err(error) = fs::remove_file(file.path()) {
        tracing::debug!(%error, "cannot remove {}", file.path().display());
    }
}

/// An offset, and the final name of the file.
fn position(file: &WarcFile) -> String {
    let name = file.path().with_extension("");
    format!("{} {}", file.safe(), name.file_name().unwrap_or_default().to_string_lossy())
}

fn parse_position(text: &str) -> Option<(u64, String)> {
    let (offset, name) = text.split_once(' ')?;
    Some((offset.parse().ok()?, name.to_owned()))
}

/// Closes files that were left open, and adds pages that may come again to the ledger: those after
/// the mark's position.
///
/// The mark is written when a file is begun. So every page that it does not know is in the file
/// that it names, or in one that is still open.
fn recover(
    prefix: &Path,
    own: &WarcFile,
    position: Option<&(u64, String)>,
    ledger: &mut Ledger,
) -> Result<(), OpenError> {
    let folder = prefix.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| OpenError::Io { path, source }
    };
    let mut left = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed(folder))? {
        let path = folder.join(entry.map_err(failed(folder))?.file_name());
        if is_ours(prefix, &path) && path.file_name() != own.path().file_name() {
            left.push(path);
        }
    }
    left.sort();
    let from = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let name = name.strip_suffix(OPEN).unwrap_or(&name);
        position.filter(|(_, of)| of == name).map_or(0, |(offset, _)| *offset)
    };
    for path in &left {
        let mut file = WarcFile::new(AppendFile::open(path)?);
        let found = scan::pages(path, from(path)).map_err(failed(path))?;
        if found.end < file.safe() {
            let torn = file.safe() - found.end;
            tracing::info!("{}: cut off {torn} bytes of an incomplete page", path.display());
            file.cut(found.end).map_err(failed(path))?;
        }
        for page in found.pages {
            ledger.insert(page);
        }
        // The pages that were found may not be synced yet.
        file.commit().map_err(failed(path))?;
        let closed = if found.has_pages { close_file(&file) } else { fs::remove_file(path) };
        closed.map_err(failed(path))?;
    }
    if let Some((offset, name)) = position {
        let path = folder.join(name);
        let is_left = left.iter().any(|left| left.with_extension("") == path);
        if !is_left && path.exists() {
            let found = scan::pages(&path, *offset).map_err(failed(&path))?;
            for page in found.pages {
                ledger.insert(page);
            }
        }
    }
    Ok(())
}

/// Whether a path is `PREFIX-<14 digits>-<5 digits>.warc.gz.open`.
fn is_ours(prefix: &Path, path: &Path) -> bool {
    let rest = || {
        let name = path.file_name()?.to_str()?;
        let rest = name.strip_prefix(prefix.file_name()?.to_str()?)?.strip_prefix('-')?;
        let (time, serial) = rest.strip_suffix(OPEN)?.strip_suffix(CLOSED)?.split_once('-')?;
        let is_number = |text: &str, digits| {
            text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit())
        };
        Some(is_number(time, 14) && is_number(serial, 5))
    };
    rest().unwrap_or(false)
}

#[cfg(test)]
mod tests;
