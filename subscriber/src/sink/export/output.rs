//! The output of an export. A file gets its name when it is complete.

use std::error::Error;
use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use tidings_database::{digest, with_suffix};

use super::input::BodyRow;
use super::{ExportError, ExportTarget};
use crate::sink::JSONL_CHUNK_BYTES;
use crate::sink::export::EXPORT_CACHE_BYTES;
use crate::sink::row::PageRow;
use crate::sink::sqlite::{CREATE, PAGE_BYTES, UPSERT, VERSION};

const INSERT_BODY: &str = "
    INSERT INTO bodies (hash, encoding, bytes, body, digest) VALUES (?1, ?2, ?3, ?4, ?5)
    ON CONFLICT DO NOTHING";

pub(super) enum Output<'a> {
    Reader(BufWriter<&'a mut dyn Write>),
    Lines(BufWriter<File>, PartFile),
    Database(Connection, PartFile),
}

impl<'a> Output<'a> {
    pub(super) fn open(target: ExportTarget<'a>) -> Result<Self, ExportError> {
        Ok(match target {
            ExportTarget::Lines(reader) => {
                Self::Reader(BufWriter::with_capacity(JSONL_CHUNK_BYTES, reader))
            }
            ExportTarget::LinesFile(path) => {
                let (part, file) = PartFile::create(path)?;
                Self::Lines(BufWriter::with_capacity(JSONL_CHUNK_BYTES, file), part)
            }
            ExportTarget::Database(path) => {
                let (part, _) = PartFile::create(path)?;
                let connection = create(&part.part).map_err(|source| part.failed(source))?;
                Self::Database(connection, part)
            }
        })
    }

    pub(super) fn write(&mut self, record: &PageRow<'_>) -> Result<(), ExportError> {
        match self {
            Self::Reader(lines) => {
                writeln!(lines, "{}", record.to_json()).map_err(ExportError::Reader)
            }
            Self::Lines(lines, part) => {
                writeln!(lines, "{}", record.to_json()).map_err(|source| part.failed(source))
            }
            Self::Database(connection, part) => {
                let upserted =
                    connection.prepare_cached(&UPSERT).and_then(|mut row| record.upsert(&mut row));
                upserted.map_err(|source| part.failed(source))
            }
        }
    }

    /// Whether bodies can be written.
    pub(super) fn has_bodies(&self) -> bool {
        matches!(self, Self::Database(..))
    }

    /// Writes a body to a database that does not have it.
    pub(super) fn write_body(&mut self, row: BodyRow) -> Result<(), ExportError> {
        let Self::Database(connection, part) = self else { return Ok(()) };
        let inserted = connection.prepare_cached(INSERT_BODY).and_then(|mut it| it.execute(row));
        inserted.map(drop).map_err(|source| part.failed(source))
    }

    pub(super) fn finish(self) -> Result<(), ExportError> {
        match self {
            Self::Reader(mut lines) => lines.flush().map_err(ExportError::Reader),
            Self::Lines(mut lines, part) => {
                lines.flush().map_err(|source| part.failed(source))?;
                part.finish()
            }
            Self::Database(connection, part) => {
                let complete = connection
                    .pragma_update(None, "user_version", VERSION)
                    .and_then(|()| connection.execute_batch("COMMIT"))
                    .and_then(|()| connection.close().map_err(|(_, source)| source));
                complete.map_err(|source| part.failed(source))?;
                part.finish()
            }
        }
    }
}

/// One transaction without a log: after a failure the file is removed.
fn create(path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.pragma_update(None, "page_size", PAGE_BYTES)?;
    connection.pragma_update(None, "journal_mode", "OFF")?;
    connection.pragma_update(None, "synchronous", "OFF")?;
    // A negative size is in KiB.
    connection.pragma_update(None, "cache_size", -(EXPORT_CACHE_BYTES / 1024))?;
    digest::register(&connection)?;
    connection.execute_batch("BEGIN")?;
    connection.execute_batch(CREATE)?;
    Ok(connection)
}

/// A file in progress beside its final path. Removed on drop, unless it was finished.
pub(super) struct PartFile {
    path: PathBuf,
    part: PathBuf,
}

impl PartFile {
    fn create(path: PathBuf) -> Result<(Self, File), ExportError> {
        if path.symlink_metadata().is_ok() {
            return Err(ExportError::Exists { path });
        }
        let part = with_suffix(&path, &format!(".{}.part", std::process::id()));
        match OpenOptions::new().write(true).create_new(true).open(&part) {
            Ok(file) => Ok((Self { path, part }, file)),
            Err(source) => Err(ExportError::Write { path, source: source.into() }),
        }
    }

    /// Syncs the file and gives it its final name.
    fn finish(self) -> Result<(), ExportError> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(&self.part)
            .and_then(|file| file.sync_all())
            .and_then(|()| fs::rename(&self.part, &self.path))
            .and_then(|()| File::open(folder.unwrap_or(Path::new(".")))?.sync_all())
            .map_err(|source| self.failed(source))
    }

    fn failed(&self, source: impl Into<Box<dyn Error + Send + Sync>>) -> ExportError {
        ExportError::Write { path: self.path.clone(), source: source.into() }
    }
}

impl Drop for PartFile {
    fn drop(&mut self) {
        // After `finish` there is nothing to remove.
        let _ = fs::remove_file(&self.part);
    }
}
