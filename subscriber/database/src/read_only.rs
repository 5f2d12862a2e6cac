//! Checks and reads an `SQLite` database without changing it or the files beside it.
//!
//! A check finds damage in headers, trees, free lists and indexes (`PRAGMA integrity_check`), in
//! the frames of a write-ahead log (by their checksums), and in the values of rows with a digest
//! ([`crate::digest`]). Unused parts of pages have no checksum, and do not matter.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};

use crate::digest::{self, Schema, Table};
use crate::schema_version::{SchemaError, version};

/// The number of problems that are listed.
const PROBLEMS_MAX: usize = 20;

const WAL_HEADER: usize = 32;
const FRAME_HEADER: usize = 24;

/// A database that is open for reading, so that nothing beside or in it changes.
///
/// Even to read, `SQLite` creates two files beside a database with a write-ahead log, and leaves
/// them there. They are not needed while no program writes: then the file is read as immutable, and
/// [`is_current`](Self::is_current) tells whether it has changed. If there is a log, its index is
/// opened read-only.
#[derive(Debug)]
pub struct ReadOnlyDatabase {
    /// The connection for queries.
    pub connection: Connection,
    path: PathBuf,
    /// The state of the file when it was opened as immutable.
    snapshot: Option<FileSnapshot>,
}

/// Detects writes to a database: by the file itself and the length of its log.
#[derive(Debug, PartialEq, Eq)]
struct FileSnapshot {
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    log_bytes: u64,
}

impl FileSnapshot {
    fn of(path: &Path) -> Option<Self> {
        let found = fs::metadata(path).ok()?;
        let log_bytes = fs::metadata(with_suffix(path, "-wal")).map_or(0, |log| log.len());
        // A journal means that a transaction is in progress, or was interrupted.
        (!with_suffix(path, "-journal").exists()).then(|| Self {
            inode: found.ino(),
            bytes: found.len(),
            modified: (found.mtime(), found.mtime_nsec()),
            log_bytes,
        })
    }
}

impl ReadOnlyDatabase {
    /// Opens a database. Other programs may be writing to it.
    pub fn open(path: &Path) -> rusqlite::Result<Self> {
        match FileSnapshot::of(path) {
            Some(still) if still.log_bytes == 0 => {
                let connection = open(path, "?immutable=1")?;
                Ok(Self { connection, path: path.to_owned(), snapshot: Some(still) })
            }
            _ => Self::open_shared(path),
        }
    }

    /// Opens a database that a program may be writing, or that was not closed.
    fn open_shared(path: &Path) -> rusqlite::Result<Self> {
        let reading = |connection| Self { connection, path: path.to_owned(), snapshot: None };
        let read = |connection: &Connection| {
            connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))
        };
        let quiet = open(path, "?readonly_shm=1")
            .and_then(|connection| read(&connection).map(|()| connection));
        match quiet {
            Ok(connection) => Ok(reading(connection)),
            // The index of the log is missing, or another program is creating it.
            Err(_) => open(path, "").map(reading),
        }
    }

    /// Whether everything read so far is valid. If not, a program has begun to write: call
    /// [`reopen`](Self::reopen), and read again what was read since this was last true.
    pub fn is_current(&self) -> bool {
        self.snapshot
            .as_ref()
            .is_none_or(|still| FileSnapshot::of(&self.path).as_ref() == Some(still))
    }

    /// Opens it again, as a database that programs write to.
    pub fn reopen(&mut self) -> rusqlite::Result<()> {
        *self = Self::open_shared(&self.path)?;
        Ok(())
    }
}

/// The result of a check, in words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Damage.
    pub problems: Vec<String>,
    /// Parts that could not be checked.
    pub notes: Vec<String>,
}

/// Checks a database; with a schema, also the digests of its rows.
///
/// Fails if it cannot be read at all. That is damage, unless permissions are the cause.
pub fn check(path: &Path, schema: Option<&Schema>) -> io::Result<CheckReport> {
    let wal = with_suffix(path, "-wal");
    let log = match fs::read(&wal) {
        Ok(log) => log,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error),
    };
    let mut checked = CheckReport::default();
    let torn = check_wal(&log).map(|problem| format!("{}: {problem}", wal.display()));
    checked.problems.extend(torn);
    if let Err(error) = check_contents(path, !log.is_empty(), schema, &mut checked) {
        checked.problems.push(error.to_string());
    }
    Ok(checked)
}

/// Checks a copy if there is a write-ahead log: to read both in place, `SQLite` would create a
/// third file beside them.
fn check_contents(
    path: &Path,
    has_wal: bool,
    schema: Option<&Schema>,
    checked: &mut CheckReport,
) -> rusqlite::Result<()> {
    if !has_wal {
        return check_connection(&open(path, "?immutable=1")?, schema, checked);
    }
    let failed = |error: io::Error| {
        let text = format!("it cannot be copied for the check: {error}");
        rusqlite::Error::SqliteFailure(
            rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_IOERR),
            Some(text),
        )
    };
    let place = std::env::temp_dir().join(format!(
        "tidings-verify-{}-{:x}",
        std::process::id(),
        fastrand::u64(..)
    ));
    DirBuilder::new().mode(0o700).create(&place).map_err(failed)?;
    let copy = place.join("copy.db");
    let done = fs::copy(path, &copy)
        .and_then(|_| fs::copy(with_suffix(path, "-wal"), with_suffix(&copy, "-wal")))
        .map_err(failed);
    let found = done.and_then(|_| check_connection(&open(&copy, "")?, schema, checked));
    let _ = fs::remove_dir_all(&place);
    found
}

/// Opens a database for reading.
fn open(path: &Path, query: &str) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_URI;
    let text = path.to_string_lossy().replace('%', "%25").replace('?', "%3f").replace('#', "%23");
    // A relative path would be read as a host name.
    let place = if path.is_absolute() { "" } else { "./" };
    Connection::open_with_flags(format!("file:{place}{text}{query}"), flags)
}

fn check_connection(
    connection: &Connection,
    schema: Option<&Schema>,
    checked: &mut CheckReport,
) -> rusqlite::Result<()> {
    let mut statement = connection.prepare(&format!("PRAGMA integrity_check({PROBLEMS_MAX})"))?;
    let found = statement.query_map([], |row| row.get::<_, String>(0))?;
    let found: Vec<String> = found.collect::<rusqlite::Result<_>>()?;
    checked.problems.extend(found.into_iter().filter(|problem| problem != "ok"));
    let Some(schema) = schema else {
        checked.notes.push("the values in its rows were not checked".to_owned());
        return Ok(());
    };
    let (found, known) = (version(connection)?, schema.version);
    if found != known {
        checked.problems.push(SchemaError::Unknown { found, known }.to_string());
        return Ok(());
    }
    digest::register(connection)?;
    for table in schema.tables {
        if let Err(error) = check_rows(connection, table, &schema.digest(table), checked) {
            checked.problems.push(format!("table {}: {error}", table.name));
        }
    }
    Ok(())
}

/// Compares the values of all rows with their digests.
fn check_rows(
    connection: &Connection,
    table: &Table,
    digest: &str,
    checked: &mut CheckReport,
) -> rusqlite::Result<()> {
    let name = table.name;
    // A text key is never shown, since it may be a secret.
    let number = if table.key == "token" { "NULL" } else { table.key };
    // NOT INDEXED: an index has copies of some values.
    let sql = format!(
        "SELECT {number}, digest IS NULL FROM {name} NOT INDEXED
        WHERE digest IS NULL OR digest <> {digest}"
    );
    let mut statement = connection.prepare(&sql)?;
    let mut rows = statement.query([])?;
    let (mut without, mut wrong) = (0_u64, 0_usize);
    while let Some(row) = rows.next()? {
        if row.get(1)? {
            without += 1;
            continue;
        }
        wrong += 1;
        if wrong <= PROBLEMS_MAX {
            let number: Option<i64> = row.get(0)?;
            let row = number.map_or_else(|| "a row".to_owned(), |number| format!("row {number}"));
            checked.problems.push(format!(
                "{row} of {name}: its values do not match its digest: damaged, or changed by another program"
            ));
        }
    }
    if wrong > PROBLEMS_MAX {
        checked.problems.push(format!("and {} more rows of {name}", wrong - PROBLEMS_MAX));
    }
    if without > 0 {
        let rows = if without == 1 { "row" } else { "rows" };
        let has = if without == 1 { "has" } else { "have" };
        checked.notes.push(format!(
            "{without} {rows} of {name} {has} no digest (written by another program): not checked"
        ));
    }
    Ok(())
}

/// The first damage in a write-ahead log. Frames of an earlier round, with other salts, may follow
/// the last valid one.
fn check_wal(log: &[u8]) -> Option<String> {
    let word = |at: usize| {
        log.get(at..at + 4).map(|word| u32::from_be_bytes(word.try_into().expect("four")))
    };
    let magic = word(0)?;
    let is_big = match magic {
        0x377f_0682 => false,
        0x377f_0683 => true,
        _ => return Some("it does not begin with the header of a write-ahead log".to_owned()),
    };
    let sums = |at| Some((word(at)?, word(at + 4)?));
    let header = log.get(..WAL_HEADER - 8)?;
    let mut sum = wal_checksum((0, 0), header, is_big);
    if Some(sum) != sums(WAL_HEADER - 8) {
        return Some("the checksum of its header is wrong".to_owned());
    }
    let (page, salts) = (word(8)? as usize, sums(16)?);
    let size = FRAME_HEADER + page;
    let frames = (log.len() - WAL_HEADER) / size;
    let at = |frame: usize| WAL_HEADER + frame * size;
    for frame in 0..frames {
        let start = at(frame);
        sum = wal_checksum(sum, &log[start..start + 8], is_big);
        sum = wal_checksum(sum, &log[start + FRAME_HEADER..start + size], is_big);
        let is_ours = sums(start + 8) == Some(salts);
        if is_ours && sums(start + 16) == Some(sum) {
            continue;
        }
        let later = (frame + 1..frames).any(|frame| sums(at(frame) + 8) == Some(salts));
        return (is_ours || later).then(|| {
            format!(
                "frame {} at byte {start} is damaged: it and all frames after it are lost",
                frame + 1
            )
        });
    }
    None
}

/// `SQLite`'s checksum, over a multiple of 8 bytes.
fn wal_checksum((mut a, mut b): (u32, u32), bytes: &[u8], is_big: bool) -> (u32, u32) {
    let word = |bytes: &[u8]| {
        let bytes: [u8; 4] = bytes.try_into().expect("four bytes");
        if is_big { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
    };
    for pair in bytes.chunks_exact(8) {
        a = a.wrapping_add(word(&pair[..4])).wrapping_add(b);
        b = b.wrapping_add(word(&pair[4..])).wrapping_add(a);
    }
    (a, b)
}

/// The path with a suffix, such as that of a file which belongs to a database.
pub fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
