//! An input of an export: a file that a crawler has written, or is writing.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek};
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use rusqlite::types::Value;
use tidings_database::ReadOnlyDatabase;
use tidings_database::schema_version::check_version;

use super::ExportError;
use crate::sink::export::EXPORT_STEP_RECORDS;
use crate::sink::row::PageRow;
use crate::sink::sqlite::VERSION;
use crate::sink::{JSONL_CHUNK_BYTES, JSONL_LINE_BYTES_MAX, STORE_BUSY_TIMEOUT};

/// .. and bytes of their lists, which are nearly all of a record: what it holds of a file at a
/// time.
const EXPORT_STEP_BYTES: usize = 8 * 1024 * 1024;

/// The first bytes of every `SQLite` database.
const MAGIC: &[u8] = b"SQLite format 3\0";

/// The first bytes of every JSON line.
const LINE_START: &[u8] = b"{\"page\":";

/// A limited number of rows after an id.
const SELECT: &str = "SELECT * FROM pages WHERE id > ?1 ORDER BY id LIMIT ?2";

/// The bodies after an id.
const SELECT_BODIES: &str = "
    SELECT hash, encoding, bytes, body, digest, rowid, length(body) FROM bodies
    WHERE rowid > ?1 ORDER BY rowid";

/// The columns of the table `bodies`, as they are in the file: the digest shows damage also in the
/// target.
pub(super) type BodyRow = [Value; 5];

type RecordHandler<'a> = dyn FnMut(PageRow<'static>) -> Result<(), ExportError> + 'a;

pub(super) struct Input {
    path: PathBuf,
    source: Source,
}

enum Source {
    Database(ReadOnlyDatabase),
    Lines(BufReader<File>),
}

impl Input {
    pub(super) fn open(path: &Path) -> Result<Self, ExportError> {
        let path = if path.is_dir() { path.join("pages.db") } else { path.to_owned() };
        let failed = |error| ExportError::unreadable(&path, error);
        let mut file = File::open(&path).map_err(failed)?;
        let is_database = begins_with(&mut file, MAGIC).map_err(failed)?;
        let source = if is_database {
            Source::Database(open_database(&path)?)
        } else {
            Source::Lines(BufReader::with_capacity(JSONL_CHUNK_BYTES, file))
        };
        Ok(Self { path, source })
    }

    /// Passes every record to `take`, in the order of the file.
    pub(super) fn each(&mut self, take: &mut RecordHandler<'_>) -> Result<(), ExportError> {
        match &mut self.source {
            Source::Database(reading) => each_row(&self.path, reading, some_rows, take),
            Source::Lines(lines) => each_line(&self.path, lines, take),
        }
    }

    /// Passes every body of a database to `take`. Those of all records that were read before are
    /// among them.
    pub(super) fn each_body(
        &mut self,
        take: &mut dyn FnMut(BodyRow) -> Result<(), ExportError>,
    ) -> Result<(), ExportError> {
        let Source::Database(reading) = &mut self.source else { return Ok(()) };
        each_row(&self.path, reading, some_bodies, take)
    }
}

/// Leaves the file at its start. A pipe cannot be rewound, and contains lines.
fn begins_with(file: &mut File, magic: &[u8]) -> io::Result<bool> {
    if !file.metadata()?.is_file() {
        return Ok(false);
    }
    let mut start = Vec::new();
    file.by_ref().take(magic.len() as u64).read_to_end(&mut start)?;
    file.rewind()?;
    Ok(start == magic)
}

fn open_database(path: &Path) -> Result<ReadOnlyDatabase, ExportError> {
    let failed = |error| ExportError::unreadable(path, error);
    let reading = ReadOnlyDatabase::open(path).map_err(failed)?;
    let connection = &reading.connection;
    connection.busy_timeout(STORE_BUSY_TIMEOUT).map_err(failed)?;
    let ours = "SELECT count(*) = 3 FROM pragma_table_info('pages')
        WHERE name IN ('task', 'fetched_at', 'link_urls')";
    let is_ours: bool = connection.query_row(ours, [], |row| row.get(0)).map_err(failed)?;
    let reason = match check_version(connection, VERSION) {
        _ if !is_ours => " is a database, but has no pages of a crawler".to_owned(),
        Ok(()) => return Ok(reading),
        Err(error) => format!(": {error}"),
    };
    Err(ExportError::Read { path: path.to_owned(), reason })
}

/// Reads in many short transactions: a long one would let the write-ahead log of a running crawler
/// grow.
fn each_row<T>(
    path: &Path,
    reading: &mut ReadOnlyDatabase,
    some_rows: impl Fn(&Connection, i64) -> rusqlite::Result<(Vec<T>, i64)>,
    take: &mut dyn FnMut(T) -> Result<(), ExportError>,
) -> Result<(), ExportError> {
    let failed = |error| ExportError::unreadable(path, error);
    let mut last = i64::MIN;
    loop {
        let read = some_rows(&reading.connection, last);
        if !reading.is_current() {
            reading.reopen().map_err(failed)?;
            reading.connection.busy_timeout(STORE_BUSY_TIMEOUT).map_err(failed)?;
            continue;
        }
        let (records, until) = read.map_err(failed)?;
        if records.is_empty() {
            return Ok(());
        }
        last = until;
        records.into_iter().try_for_each(&mut *take)?;
    }
}

/// The next rows after `last`, and the id of the last one.
fn some_rows(
    connection: &Connection,
    mut last: i64,
) -> rusqlite::Result<(Vec<PageRow<'static>>, i64)> {
    let mut statement = connection.prepare_cached(SELECT)?;
    let mut rows = statement.query((last, EXPORT_STEP_RECORDS))?;
    let (mut records, mut bytes) = (Vec::new(), 0);
    while bytes < EXPORT_STEP_BYTES
        && let Some(row) = rows.next()?
    {
        last = row.get("id")?;
        let record = PageRow::from_row(row)?;
        bytes += record.list_bytes();
        records.push(record);
    }
    Ok((records, last))
}

/// The next bodies after `last`, and the id of the last one.
fn some_bodies(connection: &Connection, mut last: i64) -> rusqlite::Result<(Vec<BodyRow>, i64)> {
    let mut bodies = Vec::new();
    let mut statement = connection.prepare_cached(SELECT_BODIES)?;
    let mut rows = statement.query([last])?;
    let mut bytes = 0;
    while bytes < EXPORT_STEP_BYTES
        && let Some(row) = rows.next()?
    {
        bodies.push([row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?]);
        last = row.get(5)?;
        bytes += row.get::<_, u32>(6)? as usize;
    }
    Ok((bodies, last))
}

fn each_line(
    path: &Path,
    lines: &mut BufReader<File>,
    take: &mut RecordHandler<'_>,
) -> Result<(), ExportError> {
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let limited = lines.by_ref().take(JSONL_LINE_BYTES_MAX).read_until(b'\n', &mut line);
        let read = limited.map_err(|error| ExportError::unreadable(path, error))?;
        if read == 0 {
            break;
        }
        match PageRow::from_json(&line) {
            Ok(record) => take(record)?,
            Err(_) if is_torn(&line) => break,
            Err(reason) => {
                let reason = format!(":{number} is not a page of a crawler: {reason}");
                return Err(ExportError::Read { path: path.to_owned(), reason });
            }
        }
    }
    Ok(())
}

/// Whether the line is incomplete: it is being written, or a crash has cut it.
fn is_torn(line: &[u8]) -> bool {
    let start = &LINE_START[..LINE_START.len().min(line.len())];
    let is_cut = line.len() as u64 == JSONL_LINE_BYTES_MAX;
    line.starts_with(start) && !line.ends_with(b"\n") && !is_cut
}
