//! The file of the catalog: records are appended, and now and then, also at every start, it is
//! written anew.
//!
//! ```text
//!   catalog.log                     what counts
//!   catalog.log.tmp                 a new one on its way; worth nothing
//!   catalog.log.damaged-<unix ms>   what an earlier start could not read as a whole
//! ```

use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidings_protocol::Seq;

use super::batches;
use super::contents::Contents;
use super::record::Record;
use crate::clock::Clock;
use crate::log::LogEnd;
use crate::log::disk::{Disk, DiskFile, is_full};
use crate::log::format::{FormatError, SEGMENT_HEADER, SegmentHeader};

/// The file's name.
const FILE: &str = "catalog.log";

/// A file of fewer bytes is not written anew.
const COMPACT_BYTES_MIN: u64 = 1 << 20;

/// A file is written anew when it has become so many times as large as it was then.
const COMPACT_FACTOR: u64 = 4;

/// The journal, of which there is one at a time.
#[derive(Debug)]
pub(super) struct Journal {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    clock: Clock,
    /// `None`: there is none yet, or none to append to, so that the next record begins a new one.
    active: Option<Active>,
    /// The number of the next record.
    next: Seq,
    /// The file cannot be read as a whole, and is to be kept under this name when it is replaced.
    aside: Option<PathBuf>,
    /// Writing failed, and what is on the disk is uncertain.
    broken: bool,
}

#[derive(Debug)]
struct Active {
    file: Arc<dyn DiskFile>,
    /// Where the next batch goes.
    bytes: u64,
    /// When it is due to be written anew.
    compact_at: u64,
}

/// Why records were not written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum JournalError {
    /// There is no room. Nothing has changed.
    #[error("there is no room on the disk")]
    Full,
    /// Writing or syncing failed, now or before.
    #[error("writing to the disk failed")]
    Broken,
}

/// What is wrong with the journal in a directory, in words, and whether something that was kept cannot
/// be read. Changes nothing.
pub(super) fn check(
    disk: &dyn Disk,
    dir: &Path,
    stopped: Option<&LogEnd>,
) -> io::Result<(Vec<String>, bool)> {
    let path = dir.join(FILE);
    let bytes = match disk.open(&path) {
        Ok(file) => read(&*file).map_err(|error| named(&error, &path))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((Vec::new(), false)),
        Err(error) => return Err(named(&error, &path)),
    };
    let found = replay(&bytes, stopped).map_err(|error| named(&io::Error::other(error), &path))?;
    Ok((problems(&found, &path), found.damaged))
}

/// Applies every good batch of a file, which ended at `stopped` at the last orderly stop.
fn replay(bytes: &[u8], stopped: Option<&LogEnd>) -> Result<batches::Replayed, FormatError> {
    let mut found = batches::replay(bytes)?;
    let header = SegmentHeader::checksum(bytes);
    let stopped = stopped.filter(|stopped| {
        stopped.file == FILE && header.is_none_or(|checksum| checksum == stopped.header)
    });
    let ended = stopped.map_or(0, |stopped| usize::try_from(stopped.bytes).unwrap_or(usize::MAX));
    if found.end < ended {
        found.damaged = true;
        found.problems.push(format!(
            "the last orderly stop left {ended} whole bytes, and from byte {} on they cannot be read",
            found.end
        ));
    }
    Ok(found)
}

/// What is wrong with a file, in words.
fn problems(found: &batches::Replayed, path: &Path) -> Vec<String> {
    found.problems.iter().map(|problem| format!("{}: {problem}", path.display())).collect()
}

impl Journal {
    /// The journal in a directory, what its records come to, and what was wrong with it, in words.
    pub(super) fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        clock: Clock,
        stopped: Option<&LogEnd>,
    ) -> io::Result<(Self, Contents, Vec<String>)> {
        let path = dir.join(FILE);
        let journal = Self {
            disk,
            dir: dir.to_owned(),
            clock,
            active: None,
            next: Seq(1),
            aside: None,
            broken: false,
        };
        match journal.disk.open(&path) {
            Ok(file) => {
                journal.recover(&path, &*file, stopped).map_err(|error| named(&error, &path))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Ok((journal, Contents::default(), Vec::new()))
            }
            Err(error) => Err(named(&error, &path)),
        }
    }

    fn recover(
        mut self,
        path: &Path,
        file: &dyn DiskFile,
        stopped: Option<&LogEnd>,
    ) -> io::Result<(Self, Contents, Vec<String>)> {
        let bytes = read(file)?;
        let found = replay(&bytes, stopped).map_err(io::Error::other)?;
        let name = path.display();
        let mut findings = problems(&found, path);
        self.next = found.next.unwrap_or(self.next);
        if found.damaged {
            let unix_ms = self.clock.unix_ms();
            self.aside = Some(self.dir.join(format!("{FILE}.damaged-{unix_ms}")));
        }
        // Nobody knows whether what was read is on the disk, or in the system's memory only after a
        // sync that failed: to sync it again would prove nothing. So it is written again.
        match self.rewrite(found.contents.snapshot()) {
            Ok(()) => {}
            // What there is stays, so nothing is lost by going on.
            Err(JournalError::Full) => findings.push(format!("{name}: no room to write it anew")),
            Err(JournalError::Broken) => return Err(io::Error::other("it cannot be written anew")),
        }
        Ok((self, found.contents, findings))
    }

    /// Makes records safe. `contents` are those of all records before.
    pub(super) fn append(
        &mut self,
        records: &[Record],
        contents: &Contents,
    ) -> Result<(), JournalError> {
        if self.broken {
            return Err(JournalError::Broken);
        }
        if records.is_empty() {
            return Ok(());
        }
        let Some(active) = &mut self.active else {
            return self.rewrite(contents.snapshot().chain(records.iter().cloned()));
        };
        let mut bytes = Vec::new();
        let unix_ms = self.clock.unix_ms();
        let next =
            batches::encode(records.iter().cloned(), self.next, self.next, unix_ms, &mut bytes);
        let appended = active.append(&bytes);
        match appended {
            Ok(()) => self.next = next,
            Err(Failure::Full) => return Err(JournalError::Full),
            Err(Failure::Io(error)) => return Err(self.give_up(&error)),
        }
        Ok(())
    }

    /// Writes the file anew if it holds much that does not count any more.
    pub(super) fn compact_if_due(&mut self, contents: &Contents) {
        let due = self.active.as_ref().is_some_and(|active| active.bytes > active.compact_at);
        if self.broken || !due {
            return;
        }
        // If there is no room for it, what there is grows, and it is tried again later.
        if self.rewrite(contents.snapshot()) == Err(JournalError::Full)
            && let Some(active) = &mut self.active
        {
            active.compact_at = active.bytes + COMPACT_BYTES_MIN;
        }
    }

    /// Puts a new file with these records in place of what there is. Until the very end that is
    /// what counts, so a failure before it changes nothing.
    fn rewrite(&mut self, records: impl Iterator<Item = Record>) -> Result<(), JournalError> {
        let mut bytes = Vec::new();
        let unix_ms = self.clock.unix_ms();
        batches::encode_header(self.next, unix_ms, &mut bytes);
        // The file counts once all of it is synced.
        let durable = Seq(u64::MAX);
        let next = batches::encode(records, self.next, durable, unix_ms, &mut bytes);
        match self.replace(&bytes) {
            Ok(file) => {
                self.active = Some(Active::new(file, bytes.len() as u64));
                self.next = next;
                self.aside = None;
                Ok(())
            }
            Err(error) if is_full(&error) => Err(JournalError::Full),
            Err(error) => Err(self.give_up(&error)),
        }
    }

    /// Where the file ends; `None` if that is uncertain, or if there is none.
    pub(super) fn end(&self) -> Option<LogEnd> {
        let active = self.active.as_ref().filter(|_| !self.broken)?;
        let mut header = [0; SEGMENT_HEADER];
        let read = active.file.read_at(&mut header, 0).ok()?;
        let header = SegmentHeader::checksum(&header[..read])?;
        let (file, bytes) = (FILE.to_owned(), active.bytes);
        Some(LogEnd { file, header, bytes, end: self.next, next: self.next })
    }

    fn replace(&self, bytes: &[u8]) -> io::Result<Arc<dyn DiskFile>> {
        let path = self.dir.join(FILE);
        if let Some(aside) = &self.aside {
            // A copy, so that there is a file of the right name at every moment.
            self.create(aside, &read(&*self.disk.open(&path)?)?)?;
            tracing::warn!(file = %aside.display(), "the damaged catalog is kept");
        }
        let temporary = self.dir.join(format!("{FILE}.tmp"));
        let file = self.create(&temporary, bytes)?;
        self.disk.rename(&temporary, &path)?;
        // Whatever is written to the file from here on may be lost with its name, so also a lack of
        // room is no excuse.
        self.disk.sync_dir(&self.dir).map_err(|error| io::Error::other(error.to_string()))?;
        Ok(file)
    }

    fn create(&self, path: &Path, bytes: &[u8]) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.disk.create(path)?;
        file.write_at(&mut [IoSlice::new(bytes)], 0)?;
        file.sync_data()?;
        Ok(file)
    }

    fn give_up(&mut self, error: &io::Error) -> JournalError {
        let dir = self.dir.display();
        tracing::error!(%dir, %error, "the catalog cannot be written any more");
        self.broken = true;
        JournalError::Broken
    }
}

enum Failure {
    Full,
    Io(io::Error),
}

impl Active {
    fn new(file: Arc<dyn DiskFile>, bytes: u64) -> Self {
        let compact_at = (bytes * COMPACT_FACTOR).max(COMPACT_BYTES_MIN);
        Self { file, bytes, compact_at }
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        match self.file.write_at(&mut [IoSlice::new(bytes)], self.bytes) {
            Ok(()) => self.file.sync_data().map_err(Failure::Io)?,
            Err(error) if is_full(&error) => {
                // Some of it may be there, and must not be found later.
                self.file.set_len(self.bytes).map_err(Failure::Io)?;
                self.file.sync_data().map_err(Failure::Io)?;
                return Err(Failure::Full);
            }
            Err(error) => return Err(Failure::Io(error)),
        }
        self.bytes += bytes.len() as u64;
        Ok(())
    }
}

/// Everything in a file.
fn read(file: &dyn DiskFile) -> io::Result<Vec<u8>> {
    let length = usize::try_from(file.len()?).map_err(io::Error::other)?;
    let mut bytes = vec![0; length];
    let read = file.read_at(&mut bytes, 0)?;
    if read < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(bytes)
}

/// An error that says which file it is about.
fn named(error: &io::Error, path: &Path) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests;
