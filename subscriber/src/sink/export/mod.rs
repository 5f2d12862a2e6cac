//! Reads pages back from the outputs of crawlers, and writes them to one target: JSON lines, or a
//! database.
//!
//! ```text
//!   pages.db ──┐                                     ┌─▶ JSON lines
//!   pages.db ──┼─▶ records ──▶ (merged, in order) ───┤
//!   lines    ──┘                                     └─▶ SQLite
//! ```
//!
//! Merged records go through a temporary database, which sorts them, so memory does not grow with
//! the number of pages. A file appears when it is complete.

mod input;
mod output;

use std::error::Error;
use std::fmt::Display;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rusqlite::{Connection, params};

use self::input::Input;
use self::output::Output;
use super::row::PageRow;

/// Records that an export reads in one transaction, and after which it reports its progress ..
const EXPORT_STEP_RECORDS: u32 = 1_000;
/// Cache of each database of an export; the rest of it is on disk.
const EXPORT_CACHE_BYTES: i64 = 64 * 1024 * 1024;

/// The target of an export.
pub enum ExportTarget<'a> {
    /// JSON lines to a reader.
    Lines(&'a mut dyn Write),
    /// A new file of JSON lines.
    LinesFile(PathBuf),
    /// A new `SQLite` database, as written by crawlers.
    Database(PathBuf),
}

/// The progress of an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exported {
    /// Records that were read.
    pub read: u64,
    /// Records written to the target; a database has one for each page.
    pub written: u64,
    /// Bodies that were read for a database.
    pub bodies: u64,
}

/// Why an export failed. The inputs are unchanged, and no file was created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The file cannot be read, or a crawler of a readable version has not written it.
    #[error("{path}{reason}", path = path.display())]
    Read {
        /// The input.
        path: PathBuf,
        /// The cause, as it follows the path.
        reason: String,
    },
    /// The target exists; an export never overwrites.
    #[error("{path} exists already; remove it, or name another file", path = path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The output cannot be written.
    #[error("cannot write {path}: {source}", path = path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The reader of the lines is gone.
    #[error(transparent)]
    Reader(io::Error),
    /// The temporary database failed; mostly the disk is full.
    #[error("the temporary database (in $TMPDIR, or /var/tmp): {0}")]
    Temporary(rusqlite::Error),
    /// The caller stopped the export.
    #[error("the export was stopped")]
    Stopped,
}

/// Writes the records of these files to the target; a directory stands for its `pages.db`. Files
/// may change meanwhile: records that are added during the export may be left out. A database also
/// gets all bodies that these files have, each once.
///
/// With `merge` there is one record for each page, that of the newest attempt, in the order of
/// time. `go_on` is called at intervals and may stop the export.
pub fn export(
    inputs: &[PathBuf],
    merge: bool,
    target: ExportTarget<'_>,
    go_on: &mut dyn FnMut(Exported) -> bool,
) -> Result<Exported, ExportError> {
    // All inputs are opened first, so that a wrong name is reported at once.
    let mut inputs = inputs.iter().map(|path| Input::open(path)).collect::<Result<Vec<_>, _>>()?;
    let mut output = Output::open(target)?;
    let mut steps = ExportProgress { so_far: Exported::default(), go_on };
    if merge {
        let mut merged = MergeDatabase::new().map_err(ExportError::Temporary)?;
        for input in &mut inputs {
            input.each(&mut |record| {
                merged.insert(&record).map_err(ExportError::Temporary)?;
                steps.read()
            })?;
        }
        merged.each(&mut |record| {
            output.write(&record)?;
            steps.written()
        })?;
    } else {
        for input in &mut inputs {
            input.each(&mut |record| {
                steps.read()?;
                output.write(&record)?;
                steps.written()
            })?;
        }
    }
    if output.has_bodies() {
        for input in &mut inputs {
            input.each_body(&mut |body| {
                output.write_body(body)?;
                steps.body()
            })?;
        }
    }
    output.finish()?;
    Ok(steps.so_far)
}

/// Counts records, and calls `go_on` at intervals.
struct ExportProgress<'a> {
    so_far: Exported,
    go_on: &'a mut dyn FnMut(Exported) -> bool,
}

impl ExportProgress<'_> {
    fn read(&mut self) -> Result<(), ExportError> {
        self.so_far.read += 1;
        self.report(self.so_far.read)
    }

    fn written(&mut self) -> Result<(), ExportError> {
        self.so_far.written += 1;
        self.report(self.so_far.written)
    }

    fn body(&mut self) -> Result<(), ExportError> {
        self.so_far.bodies += 1;
        self.report(self.so_far.bodies)
    }

    fn report(&mut self, records: u64) -> Result<(), ExportError> {
        let is_due = records.is_multiple_of(EXPORT_STEP_RECORDS.into());
        if is_due && !(self.go_on)(self.so_far) { Err(ExportError::Stopped) } else { Ok(()) }
    }
}

/// One record for each page, on the disk.
struct MergeDatabase {
    /// The database has no name, and is deleted on drop.
    temporary: Connection,
}

const MERGED: &str = "
    CREATE TABLE merged (
        page TEXT NOT NULL UNIQUE, attempt INTEGER NOT NULL, fetched_at TEXT NOT NULL,
        record TEXT NOT NULL
    ) STRICT;
    BEGIN";

const MERGE: &str = "
    INSERT INTO merged (page, attempt, fetched_at, record) VALUES (?1, ?2, ?3, ?4)
    ON CONFLICT (page) DO UPDATE SET attempt = excluded.attempt,
        fetched_at = excluded.fetched_at, record = excluded.record
    WHERE (excluded.attempt, excluded.fetched_at) > (merged.attempt, merged.fetched_at)";

impl ExportError {
    fn unreadable(path: &Path, cause: impl Display) -> Self {
        Self::Read { path: path.to_owned(), reason: format!(": {cause}") }
    }
}

impl MergeDatabase {
    fn new() -> rusqlite::Result<Self> {
        let temporary = Connection::open(Path::new(""))?;
        temporary.pragma_update(None, "journal_mode", "OFF")?;
        temporary.pragma_update(None, "synchronous", "OFF")?;
        // A negative size is in KiB.
        temporary.pragma_update(None, "cache_size", -(EXPORT_CACHE_BYTES / 1024))?;
        temporary.execute_batch(MERGED)?;
        Ok(Self { temporary })
    }

    fn insert(&mut self, record: &PageRow<'_>) -> rusqlite::Result<()> {
        let mut statement = self.temporary.prepare_cached(MERGE)?;
        statement.execute(params![
            record.page,
            record.attempt,
            record.fetched_at,
            record.to_json()
        ])?;
        Ok(())
    }

    fn each(
        &self,
        take: &mut dyn FnMut(PageRow<'static>) -> Result<(), ExportError>,
    ) -> Result<(), ExportError> {
        let failed = ExportError::Temporary;
        // Sorts short keys; the records stay in place.
        let index = "CREATE INDEX by_time ON merged (fetched_at, page)";
        self.temporary.execute_batch(index).map_err(failed)?;
        let sorted = "SELECT record FROM merged INDEXED BY by_time ORDER BY fetched_at, page";
        let mut statement = self.temporary.prepare(sorted).map_err(failed)?;
        let mut rows = statement.query([]).map_err(failed)?;
        while let Some(row) = rows.next().map_err(failed)? {
            let json = row.get_ref(0).and_then(|value| Ok(value.as_str()?)).map_err(failed)?;
            take(PageRow::from_json(json.as_bytes()).expect("it was written as one"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
