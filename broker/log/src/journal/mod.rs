//! A journal: records, one line each, that are all read back at a start. What they amount to is
//! small, so every start rewrites the file, and so does compaction.
//!
//! ```text
//!   catalog.log                     the journal
//!   catalog.log.tmp                 a new journal being written; ignored by a start
//!   catalog.log.damaged-<unix ms>   a copy of a damaged journal
//! ```

mod format;
#[cfg(test)]
mod tests;

use std::fmt::Debug;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidings_protocol::Seq;

use crate::clean_stop::{LogEnd, StopSlot};
use crate::disk::{Disk, DiskFile, create_synced, is_full, read_all, replace_file, with_path};
use crate::format::{FormatError, SegmentHeader};

const FILE: &str = "catalog.log";

/// Smaller files are not compacted.
const COMPACT_BYTES_MIN: u64 = 1 << 20;

/// A file is compacted when it has grown by this factor since it was written.
const COMPACT_FACTOR: u64 = 4;

/// What the records of a journal amount to.
pub trait JournalContents: Debug + Send {
    /// Applies these records in order; none of them if one is invalid.
    fn apply(&mut self, records: &[&str]) -> Result<(), InvalidRecord>;

    /// Records that reproduce these contents when they are applied to empty ones.
    fn snapshot(&self) -> Box<dyn Iterator<Item = String> + '_>;
}

/// A record of a newer version, or a damaged one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it holds a line that is not a valid record")]
pub struct InvalidRecord;

/// A journal that was read. Every call blocks.
///
/// `contents` is always the result of all earlier records.
pub trait Journal: Debug + Send {
    /// Makes records durable, all or none of them.
    fn append(
        &mut self,
        records: &[String],
        contents: &dyn JournalContents,
        unix_ms: i64,
    ) -> Result<(), JournalError>;

    /// Compacts the journal if most of it is obsolete.
    fn compact_if_due(&mut self, contents: &dyn JournalContents, unix_ms: i64);

    /// Notes for the [store](crate::Store) where the journal ends.
    fn close(&self);
}

/// A journal in a file. A data directory has one.
#[derive(Debug)]
pub(crate) struct JournalFile {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    stopped: StopSlot,
    /// `None`: the next record begins a new file.
    active: Option<ActiveJournal>,
    next: Seq,
    /// The name under which to keep the damaged file when it is replaced.
    damaged_copy: Option<PathBuf>,
    /// A write failed, and the content of the disk is uncertain.
    broken: bool,
}

#[derive(Debug)]
struct ActiveJournal {
    file: Arc<dyn DiskFile>,
    /// The offset of the next batch.
    bytes: u64,
    /// The size at which to compact the file.
    compact_at: u64,
}

/// Why records were not written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum JournalError {
    /// The disk is full. Nothing was changed.
    #[error("the disk is full")]
    Full,
    /// A write or sync failed, now or earlier.
    #[error("writing to the disk failed")]
    Broken,
}

/// Checks the journal in a directory. Returns descriptions of damage, and whether kept data cannot
/// be read. Changes nothing.
pub(crate) fn check_journal(
    disk: &dyn Disk,
    dir: &Path,
    stopped: Option<&LogEnd>,
    contents: &mut dyn JournalContents,
) -> io::Result<(Vec<String>, bool)> {
    let path = dir.join(FILE);
    let bytes = match disk.open(&path) {
        Ok(file) => read_all(&*file).map_err(|error| with_path(&error, &path))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((Vec::new(), false)),
        Err(error) => return Err(with_path(&error, &path)),
    };
    let found = replay(&bytes, stopped, contents)
        .map_err(|error| with_path(&io::Error::other(error), &path))?;
    Ok((problems(&found, &path), found.damaged))
}

/// Applies every valid batch of a file. `stopped`: where the file ended at the last orderly stop.
fn replay(
    bytes: &[u8],
    stopped: Option<&LogEnd>,
    contents: &mut dyn JournalContents,
) -> Result<format::Replayed, FormatError> {
    let mut found = format::replay(bytes, contents)?;
    let header = SegmentHeader::checksum(bytes);
    let stopped = stopped.filter(|stopped| stopped.is_of(Path::new(FILE), header));
    let ended = stopped.map_or(0, |stopped| usize::try_from(stopped.bytes).unwrap_or(usize::MAX));
    if found.end < ended {
        found.damaged = true;
        found.problems.push(format!(
            "the file had {ended} valid bytes at the last orderly stop, and from byte {} on they cannot be read",
            found.end
        ));
    }
    Ok(found)
}

/// Descriptions of damage, prefixed with the path.
fn problems(found: &format::Replayed, path: &Path) -> Vec<String> {
    found.problems.iter().map(|problem| format!("{}: {problem}", path.display())).collect()
}

impl JournalFile {
    /// Opens the journal in a directory, and applies its records to the empty `contents`. Returns
    /// it with descriptions of damage.
    ///
    /// Fails if an existing journal cannot be read or is of a newer version: it is never treated as
    /// an empty one.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        unix_ms: i64,
        stopped: StopSlot,
        contents: &mut dyn JournalContents,
    ) -> io::Result<(Self, Vec<String>)> {
        let path = dir.join(FILE);
        let journal = Self {
            disk,
            dir: dir.to_owned(),
            stopped,
            active: None,
            next: Seq(1),
            damaged_copy: None,
            broken: false,
        };
        match journal.disk.open(&path) {
            Ok(file) => journal
                .recover(&path, &*file, unix_ms, contents)
                .map_err(|error| with_path(&error, &path)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok((journal, Vec::new())),
            Err(error) => Err(with_path(&error, &path)),
        }
    }

    fn recover(
        mut self,
        path: &Path,
        file: &dyn DiskFile,
        unix_ms: i64,
        contents: &mut dyn JournalContents,
    ) -> io::Result<(Self, Vec<String>)> {
        let bytes = read_all(file)?;
        let found =
            replay(&bytes, self.stopped.last.as_ref(), contents).map_err(io::Error::other)?;
        let name = path.display();
        let mut findings = problems(&found, path);
        self.next = found.next.unwrap_or(self.next);
        if found.damaged {
            self.damaged_copy = Some(self.dir.join(format!("{FILE}.damaged-{unix_ms}")));
        }
        // After a failed sync of an earlier run, the data that was read may be in the system's
        // memory only, and another sync would prove nothing. So it is written again.
        match self.rewrite(contents.snapshot(), unix_ms) {
            Ok(()) => {}
            // The old file stays, so nothing is lost.
            Err(JournalError::Full) => findings.push(format!("{name}: no room to rewrite it")),
            Err(JournalError::Broken) => return Err(io::Error::other("it cannot be rewritten")),
        }
        Ok((self, findings))
    }

    /// Replaces the file by one with these records. The old file stays in effect until the rename,
    /// so a failure before it changes nothing.
    fn rewrite(
        &mut self,
        records: impl Iterator<Item = String>,
        unix_ms: i64,
    ) -> Result<(), JournalError> {
        let mut bytes = Vec::new();
        format::encode_header(self.next, unix_ms, &mut bytes);
        // The file takes effect only when all of it is synced.
        let durable = Seq(u64::MAX);
        let next = format::encode(records, self.next, durable, unix_ms, &mut bytes);
        match self.replace(&bytes) {
            Ok(file) => {
                self.active = Some(ActiveJournal::new(file, bytes.len() as u64));
                self.next = next;
                self.damaged_copy = None;
                Ok(())
            }
            Err(error) if is_full(&error) => Err(JournalError::Full),
            Err(error) => Err(self.mark_broken(&error)),
        }
    }

    /// The end of the file; `None` if it is uncertain or the file does not exist.
    fn end(&self) -> Option<LogEnd> {
        let active = self.active.as_ref().filter(|_| !self.broken)?;
        let header = SegmentHeader::checksum(&SegmentHeader::read(&*active.file).ok()?)?;
        let (file, bytes) = (FILE.to_owned(), active.bytes);
        Some(LogEnd { file, header, bytes, end: self.next, next: self.next })
    }

    fn replace(&self, bytes: &[u8]) -> io::Result<Arc<dyn DiskFile>> {
        let path = self.dir.join(FILE);
        if let Some(aside) = &self.damaged_copy {
            // A copy rather than a rename, so that a file of the right name always exists.
            create_synced(&*self.disk, aside, &read_all(&*self.disk.open(&path)?)?)?;
            tracing::warn!(file = %aside.display(), "kept a copy of the damaged catalog");
        }
        replace_file(&*self.disk, &self.dir, FILE, bytes)
    }

    fn mark_broken(&mut self, error: &io::Error) -> JournalError {
        let dir = self.dir.display();
        tracing::error!(%dir, %error, "the catalog cannot be written any more; changes are rejected until a restart");
        self.broken = true;
        JournalError::Broken
    }
}

impl Journal for JournalFile {
    fn append(
        &mut self,
        records: &[String],
        contents: &dyn JournalContents,
        unix_ms: i64,
    ) -> Result<(), JournalError> {
        if self.broken {
            return Err(JournalError::Broken);
        }
        if records.is_empty() {
            return Ok(());
        }
        let Some(active) = &mut self.active else {
            return self.rewrite(contents.snapshot().chain(records.iter().cloned()), unix_ms);
        };
        let mut bytes = Vec::new();
        let next = format::encode(records, self.next, self.next, unix_ms, &mut bytes);
        match active.append(&bytes) {
            Ok(true) => self.next = next,
            Ok(false) => return Err(JournalError::Full),
            Err(error) => return Err(self.mark_broken(&error)),
        }
        Ok(())
    }

    fn compact_if_due(&mut self, contents: &dyn JournalContents, unix_ms: i64) {
        let due = self.active.as_ref().is_some_and(|active| active.bytes > active.compact_at);
        if self.broken || !due {
            return;
        }
        // If the disk is full, the file keeps growing and compaction is tried later.
        if self.rewrite(contents.snapshot(), unix_ms) == Err(JournalError::Full)
            && let Some(active) = &mut self.active
        {
            active.compact_at = active.bytes + COMPACT_BYTES_MIN;
        }
    }

    fn close(&self) {
        if let Some(end) = self.end() {
            self.stopped.set(end);
        }
    }
}

impl ActiveJournal {
    fn new(file: Arc<dyn DiskFile>, bytes: u64) -> Self {
        let compact_at = (bytes * COMPACT_FACTOR).max(COMPACT_BYTES_MIN);
        Self { file, bytes, compact_at }
    }

    /// Returns false if the disk is full; the file is then as before.
    fn append(&mut self, bytes: &[u8]) -> io::Result<bool> {
        let has_room = match self.file.write_at(&mut [IoSlice::new(bytes)], self.bytes) {
            // Part of the data may have been written, and must not be found later.
            Err(error) if is_full(&error) => self.file.set_len(self.bytes).map(|()| false),
            written => written.map(|()| true),
        }?;
        self.file.sync_data()?;
        if has_room {
            self.bytes += bytes.len() as u64;
        }
        Ok(has_room)
    }
}
