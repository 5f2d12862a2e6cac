//! Pages read back from where crawlers have put them, and written to one place: JSON lines, or a database.
//!
//! ```text
//!   pages.db ──┐                                     ┌─▶ JSON lines
//!   pages.db ──┼─▶ records ──▶ (merged, in order) ───┤
//!   lines    ──┘                                     └─▶ SQLite
//! ```
//!
//! What is merged goes through a temporary database, which does the sorting, so memory does not grow with the
//! number of pages. A file that is written is complete or not there.

mod input;
mod output;
mod record;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rusqlite::{Connection, params};

use self::input::Input;
use self::output::Output;
use self::record::Record;
use super::sqlite;
use crate::config::{EXPORT_CACHE_BYTES, EXPORT_STEP_RECORDS};

/// Where an export goes.
pub enum Target<'a> {
    /// JSON lines, to somebody who reads them.
    Lines(&'a mut dyn Write),
    /// A new file of JSON lines.
    LinesFile(PathBuf),
    /// A new `SQLite` database, as crawlers have it.
    Database(PathBuf),
}

/// How far an export is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exported {
    /// Records that were read.
    pub read: u64,
    /// Records that were handed to the output; a database has one of each page.
    pub written: u64,
}

/// Why there is no export. What was read is as it was, and no file was made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The file cannot be read.
    #[error("{path}: {source}", path = path.display())]
    Read {
        /// What was to be read.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The database cannot be read.
    #[error("{path}: {source}", path = path.display())]
    Database {
        /// What was to be read.
        path: PathBuf,
        /// Why not.
        source: rusqlite::Error,
    },
    /// It is a database, and not one of pages.
    #[error("{path} is a database without pages of a crawler", path = path.display())]
    NotOurs {
        /// The file.
        path: PathBuf,
    },
    /// An older Tidings wrote it.
    #[error(
        "{path} has schema version {found}; a crawler that is started on it brings it to version {known}",
        path = path.display(),
        known = sqlite::VERSION
    )]
    Older {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: i64,
    },
    /// A newer Tidings wrote it.
    #[error(
        "{path} has schema version {found}, this Tidings knows up to {known}; use the newer Tidings that wrote it",
        path = path.display(),
        known = sqlite::VERSION
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: i64,
    },
    /// A line of a file is no page.
    #[error("{path}:{line} is no page of a crawler: {reason}", path = path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Its number, from 1.
        line: u64,
        /// Why not.
        reason: String,
    },
    /// Nothing that exists is overwritten.
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
        /// Why not.
        source: io::Error,
    },
    /// The output cannot be written as a database.
    #[error("cannot write {path}: {source}", path = path.display())]
    WriteDatabase {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: rusqlite::Error,
    },
    /// Whoever reads the lines cannot be written to.
    #[error(transparent)]
    Reader(io::Error),
    /// There is no room to sort in, mostly.
    #[error("the temporary database (in $TMPDIR, or /var/tmp): {0}")]
    Temporary(rusqlite::Error),
    /// The caller did not want it to go on.
    #[error("the export was stopped")]
    Stopped,
}

/// Writes the records of these files to the target; of a directory, those of its `pages.db`. Files may be written
/// to meanwhile: what is added while they are read may be left out.
///
/// With `merge` there is one record of each page, that of the newest attempt, in the order of time. `go_on` is asked
/// now and then.
pub fn export(
    inputs: &[PathBuf],
    merge: bool,
    target: Target<'_>,
    go_on: &mut dyn FnMut(Exported) -> bool,
) -> Result<Exported, ExportError> {
    // All of them before the first is read: who has named a wrong one learns it at once.
    let inputs = inputs.iter().map(|path| Input::open(path)).collect::<Result<Vec<_>, _>>()?;
    let mut output = Output::open(target)?;
    let mut steps = Steps { so_far: Exported::default(), go_on };
    if merge {
        let mut merged = Merged::new().map_err(ExportError::Temporary)?;
        for input in inputs {
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
        for input in inputs {
            input.each(&mut |record| {
                steps.read()?;
                output.write(&record)?;
                steps.written()
            })?;
        }
    }
    output.finish()?;
    Ok(steps.so_far)
}

/// Counts, and asks now and then whether to go on.
struct Steps<'a> {
    so_far: Exported,
    go_on: &'a mut dyn FnMut(Exported) -> bool,
}

impl Steps<'_> {
    fn read(&mut self) -> Result<(), ExportError> {
        self.so_far.read += 1;
        self.ask(self.so_far.read)
    }

    fn written(&mut self) -> Result<(), ExportError> {
        self.so_far.written += 1;
        self.ask(self.so_far.written)
    }

    fn ask(&mut self, records: u64) -> Result<(), ExportError> {
        let is_due = records.is_multiple_of(EXPORT_STEP_RECORDS.into());
        if is_due && !(self.go_on)(self.so_far) { Err(ExportError::Stopped) } else { Ok(()) }
    }
}

/// One record of each page, on the disk.
struct Merged {
    /// It has no name, and goes with this.
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

impl Merged {
    fn new() -> rusqlite::Result<Self> {
        let temporary = Connection::open(Path::new(""))?;
        temporary.pragma_update(None, "journal_mode", "OFF")?;
        temporary.pragma_update(None, "synchronous", "OFF")?;
        // A negative size is in KiB.
        temporary.pragma_update(None, "cache_size", -(EXPORT_CACHE_BYTES / 1024))?;
        temporary.execute_batch(MERGED)?;
        Ok(Self { temporary })
    }

    fn insert(&mut self, record: &Record) -> rusqlite::Result<()> {
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
        take: &mut dyn FnMut(Record) -> Result<(), ExportError>,
    ) -> Result<(), ExportError> {
        let failed = ExportError::Temporary;
        // Sorts what is short, and leaves the records where they are.
        let index = "CREATE INDEX by_time ON merged (fetched_at, page)";
        self.temporary.execute_batch(index).map_err(failed)?;
        let sorted = "SELECT record FROM merged INDEXED BY by_time ORDER BY fetched_at, page";
        let mut statement = self.temporary.prepare(sorted).map_err(failed)?;
        let mut rows = statement.query([]).map_err(failed)?;
        while let Some(row) = rows.next().map_err(failed)? {
            let json = row.get_ref(0).and_then(|value| Ok(value.as_str()?)).map_err(failed)?;
            take(Record::from_json(json.as_bytes()).expect("it was written as one"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "export_tests.rs"]
mod tests;
