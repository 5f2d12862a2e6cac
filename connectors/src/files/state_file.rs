//! Stores which files of a directory were published, across restarts: an `SQLite` database for each
//! directory and topic.
//!
//! A row is written after the broker has confirmed the event, so the state never claims a file that
//! the topic lacks. A file that the state lacks (the last rows, after a loss of power) is published
//! again, under the same id. A damaged row counts as missing.

#![expect(clippy::disallowed_methods, reason = "syncs at most once a second, on a thread")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rusqlite::{Connection, OptionalExtension, Transaction, params};
use tidings_database::digest::{Schema, Table};
use tidings_database::schema_version::{self, BUSY_TIMEOUT, SchemaError};
use tidings_protocol::TopicName;

use super::path_encoding::encode;
use super::tracker::{FileStamp, RelativePath};

/// The least time between syncs. A power cut repeats at most the events of this time.
const SYNC_EVERY: Duration = Duration::from_secs(1);

/// The extension of the files. Their names are digests.
pub const EXTENSION: &str = "db";

/// The schema, with the digest of each row.
pub const SCHEMA: Schema = Schema {
    file: "watch/*.db",
    version: 1,
    create: CREATE,
    tables: &[
        Table { name: "watch", key: "rowid", also: &[] },
        Table { name: "files", key: "rowid", also: &[] },
        Table { name: "mounts", key: "rowid", also: &[] },
    ],
};

/// Paths are relative to the directory, which has the empty path.
const CREATE: &str = "
    CREATE TABLE watch (                -- one row
        topic TEXT NOT NULL,
        dir BLOB NOT NULL,
        batch INTEGER NOT NULL,         -- the number of the current batch
        batch_files INTEGER NOT NULL,   -- files in it so far
        digest INTEGER
    ) STRICT;
    CREATE TABLE files (                -- published files
        path BLOB NOT NULL UNIQUE,
        inode INTEGER NOT NULL,
        bytes INTEGER NOT NULL,
        modified_s INTEGER NOT NULL,
        modified_ns INTEGER NOT NULL,
        digest INTEGER
    ) STRICT;
    CREATE TABLE mounts (               -- directories that are or were mount points
        path BLOB NOT NULL UNIQUE,
        digest INTEGER
    ) STRICT";

/// Why a state file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateFileError {
    /// Another process uses this state file.
    #[error("{dir} is watched already by another tidings process with the same --data")]
    InUse {
        /// The directory.
        dir: String,
    },
    /// It belongs to another directory.
    #[error("{} is not the state of this directory; remove it to publish all files again", .path.display())]
    Mismatch {
        /// The file.
        path: PathBuf,
    },
    /// It is damaged, or of another version.
    #[error("{}: {source}; remove it to publish all files again", .path.display())]
    Database {
        /// The file.
        path: PathBuf,
        /// The error.
        source: SchemaError,
    },
    /// An IO error.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

/// The content of a state file when it was opened.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SavedState {
    /// Published files.
    pub published: BTreeMap<RelativePath, FileStamp>,
    /// The number of the current batch.
    pub batch_number: u64,
    /// Files in it so far.
    pub batch_files: u64,
    /// Directories that are or were mount points.
    pub mounts: BTreeSet<RelativePath>,
}

/// An open state file. It is locked: no other process can open it.
#[derive(Debug)]
pub struct StateFile {
    connection: Connection,
    /// What is not stored yet, by path; `None`: it is gone.
    unwritten: BTreeMap<RelativePath, Option<Row>>,
    /// The number of the current batch, and files in it so far.
    batch: (u64, u64),
    /// The first write that is not synced, or the last one if it failed.
    unsynced_since: Option<Instant>,
    has_failed: bool,
    _lock: File,
}

#[derive(Debug, Clone, Copy)]
enum Row {
    File(FileStamp),
    Mount,
}

impl StateFile {
    /// Opens the state of this directory and topic in a folder, which must exist.
    pub fn open(
        folder: &Path,
        topic: &TopicName,
        dir: &[u8],
    ) -> Result<(Self, SavedState), StateFileError> {
        let head = format!("topic={topic} dir={}", encode(dir));
        let digest = blake3::hash(head.as_bytes()).to_hex();
        let path = folder.join(format!("{}.{EXTENSION}", &digest[..16]));
        let failed = |source| StateFileError::Io { path: path.clone(), source };
        let lock = open_private(&path.with_extension("lock")).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(StateFileError::InUse { dir: encode(dir) });
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        // SQLite creates its other files with the same mode.
        open_private(&path).map_err(failed)?;
        let fill = |transaction: &Transaction<'_>| {
            let insert = "INSERT INTO watch VALUES (?1, ?2, 0, 0, row_digest(?1, ?2, 0, 0))";
            transaction.execute(insert, params![topic.as_str(), dir]).map(drop)
        };
        let database = |source| StateFileError::Database { path: path.clone(), source };
        let connection = schema_version::open(&path, &SCHEMA, BUSY_TIMEOUT, |_| Ok(()), fill)
            .map_err(database)?;
        let query = "SELECT topic = ?1 AND dir = ?2 FROM watch";
        let is_ours = connection.query_row(query, params![topic.as_str(), dir], |row| row.get(0));
        let is_ours = is_ours.optional().map_err(|error| database(error.into()))?;
        if is_ours != Some(true) {
            return Err(StateFileError::Mismatch { path });
        }
        let saved = load(&connection).map_err(|error| database(error.into()))?;
        let state = Self {
            connection,
            unwritten: BTreeMap::new(),
            batch: (saved.batch_number, saved.batch_files),
            unsynced_since: None,
            has_failed: false,
            _lock: lock,
        };
        Ok((state, saved))
    }

    /// Records a published file; [`write`](Self::write) writes it.
    pub fn record_file(&mut self, name: &RelativePath, stamp: FileStamp) {
        self.batch.1 += 1;
        self.unwritten.insert(Arc::clone(name), Some(Row::File(stamp)));
    }

    /// Records a mount point.
    pub fn record_mount(&mut self, dir: &RelativePath) {
        self.unwritten.insert(Arc::clone(dir), Some(Row::Mount));
    }

    /// Records that a file or a mount point is gone.
    pub fn record_removal(&mut self, name: &RelativePath) {
        self.unwritten.insert(Arc::clone(name), None);
    }

    /// Records the beginning of a batch.
    pub fn begin_batch(&mut self, number: u64, files: u64) {
        self.batch = (number, files);
        self.unsynced_since.get_or_insert_with(Instant::now);
    }

    /// When the next write or sync is due.
    pub fn due(&self) -> Option<Instant> {
        self.unsynced_since.map(|since| since + SYNC_EVERY)
    }

    /// Writes what was recorded, and syncs it when that is due. After a failure it tries again at
    /// that time.
    pub fn write(&mut self) -> rusqlite::Result<()> {
        let now = Instant::now();
        let is_due = self.due().is_some_and(|due| due <= now);
        if !is_due && (self.unwritten.is_empty() || self.has_failed) {
            return Ok(());
        }
        let written = self.commit(is_due);
        self.has_failed = written.is_err();
        self.unsynced_since = match self.unsynced_since {
            _ if self.has_failed => Some(now),
            _ if is_due => None,
            since => since.or(Some(now)),
        };
        written
    }

    /// Writes and syncs everything.
    pub fn close(mut self) -> rusqlite::Result<()> {
        self.commit(true)
    }

    fn commit(&mut self, is_synced: bool) -> rusqlite::Result<()> {
        // In a write-ahead log, NORMAL leaves the sync of a commit to a later one.
        let synchronous = if is_synced { "FULL" } else { "NORMAL" };
        self.connection.pragma_update(None, "synchronous", synchronous)?;
        let transaction = self.connection.transaction()?;
        for (path, row) in &self.unwritten {
            store(&transaction, path, *row)?;
        }
        let sql = "UPDATE watch SET batch = ?1, batch_files = ?2, digest = row_digest(topic, dir, ?1, ?2)";
        let (number, files) = self.batch;
        let values = params![number.cast_signed(), files.cast_signed()];
        transaction.prepare_cached(sql)?.execute(values)?;
        transaction.commit()?;
        self.unwritten.clear();
        Ok(())
    }
}

fn store(
    transaction: &Transaction<'_>,
    path: &RelativePath,
    row: Option<Row>,
) -> rusqlite::Result<()> {
    let path = &**path;
    let execute = |sql: &str, values: &[&dyn rusqlite::ToSql]| {
        transaction.prepare_cached(sql)?.execute(values).map(drop)
    };
    match row {
        Some(Row::File(FileStamp { inode, size, modified_s, modified_ns })) => execute(
            "INSERT OR REPLACE INTO files VALUES (?1, ?2, ?3, ?4, ?5, row_digest(?1, ?2, ?3, ?4, ?5))",
            params![path, inode.cast_signed(), size.cast_signed(), modified_s, modified_ns],
        ),
        Some(Row::Mount) => {
            execute("INSERT OR REPLACE INTO mounts VALUES (?1, row_digest(?1))", params![path])
        }
        None => {
            execute("DELETE FROM files WHERE path = ?1", params![path])?;
            execute("DELETE FROM mounts WHERE path = ?1", params![path])
        }
    }
}

fn load(connection: &Connection) -> rusqlite::Result<SavedState> {
    let mut saved = SavedState::default();
    let mut damaged = 0_u64;
    let mut statement = connection.prepare(
        "SELECT digest IS row_digest(path, inode, bytes, modified_s, modified_ns),
            path, inode, bytes, modified_s, modified_ns FROM files",
    )?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        if !row.get(0)? {
            damaged += 1;
            continue;
        }
        let stamp = FileStamp {
            inode: row.get::<_, i64>(2)?.cast_unsigned(),
            size: row.get::<_, i64>(3)?.cast_unsigned(),
            modified_s: row.get(4)?,
            modified_ns: row.get(5)?,
        };
        saved.published.insert(row.get::<_, Vec<u8>>(1)?.into(), stamp);
    }
    let mut statement = connection.prepare("SELECT path FROM mounts")?;
    let mounts = statement.query_map([], |row| row.get::<_, Vec<u8>>(0))?;
    saved.mounts = mounts.map(|path| path.map(RelativePath::from)).collect::<Result<_, _>>()?;
    (saved.batch_number, saved.batch_files) =
        connection.query_row("SELECT batch, batch_files FROM watch", [], |row| {
            Ok((row.get::<_, i64>(0)?.cast_unsigned(), row.get::<_, i64>(1)?.cast_unsigned()))
        })?;
    if damaged > 0 {
        tracing::warn!(
            rows = damaged,
            "skipped damaged rows in the state of a watched directory: their files are announced again"
        );
    }
    Ok(saved)
}

/// Only the owner may read it: names of files can be secret.
fn open_private(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tidings_database::CheckReport;

    use super::*;

    fn name(text: &[u8]) -> RelativePath {
        RelativePath::from(text)
    }

    fn stamp(n: u64) -> FileStamp {
        FileStamp { inode: n, size: n, modified_s: -1, modified_ns: 5 }
    }

    fn open(folder: &Path) -> Result<(StateFile, SavedState), StateFileError> {
        StateFile::open(folder, &"t".parse().unwrap(), b"/srv/a b")
    }

    fn path(folder: &Path) -> PathBuf {
        let mut files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        files.find(|path| path.extension().unwrap() == EXTENSION).unwrap()
    }

    #[test]
    fn published_files_are_stored_until_they_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let (mut state, saved) = open(folder.path()).unwrap();
        assert_eq!(saved, SavedState::default());
        state.record_file(&name(b"a\n\xff"), stamp(u64::MAX));
        state.begin_batch(3, 0);
        for (text, number) in [(&b"b"[..], 2), (b"b", 3), (b"c", 4)] {
            state.record_file(&name(text), stamp(number));
            state.write().unwrap();
        }
        state.record_removal(&name(b"c"));
        for dir in [b"".as_slice(), b"a b/", b"c/"] {
            state.record_mount(&name(dir));
        }
        state.record_removal(&name(b"c/"));
        assert!(matches!(open(folder.path()), Err(StateFileError::InUse { .. })));
        state.close().unwrap();
        let (_, saved) = open(folder.path()).unwrap();
        let published = [(name(b"a\n\xff"), stamp(u64::MAX)), (name(b"b"), stamp(3))].into();
        let mounts = [name(b""), name(b"a b/")].into();
        assert_eq!(saved, SavedState { published, batch_number: 3, batch_files: 3, mounts });
    }

    #[test]
    fn a_write_survives_the_process_before_it_is_synced_and_a_failed_one_is_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let (mut state, _) = open(folder.path()).unwrap();
        state.record_file(&name(b"a"), stamp(1));
        state.write().unwrap();
        assert!(state.due().is_some(), "a sync follows");
        // The lock is kept, as by a process that has stopped.
        let copy = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(folder.path()).unwrap() {
            let file = entry.unwrap();
            fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
        }
        let saved = open(copy.path()).unwrap().1;
        assert_eq!(saved.published, [(name(b"a"), stamp(1))].into());

        state.connection.execute_batch("ALTER TABLE files RENAME TO away").unwrap();
        state.record_file(&name(b"b"), stamp(2));
        state.unsynced_since = Instant::now().checked_sub(SYNC_EVERY);
        state.write().unwrap_err();
        state.connection.execute_batch("ALTER TABLE away RENAME TO files").unwrap();
        state.unsynced_since = Instant::now().checked_sub(SYNC_EVERY);
        state.write().unwrap();
        assert!(state.due().is_none());
        drop(state);
        assert_eq!(open(folder.path()).unwrap().1.published.len(), 2);
    }

    #[test]
    fn a_damaged_row_counts_as_missing_and_another_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (mut state, _) = open(folder.path()).unwrap();
        for n in [1, 2] {
            state.record_file(&name(format!("{n}").as_bytes()), stamp(n));
        }
        state.close().unwrap();
        let path = path(folder.path());
        let check = || tidings_database::check(&path, Some(&SCHEMA)).unwrap();
        assert_eq!(check(), CheckReport::default());
        let other = Connection::open(&path).unwrap();
        other.execute_batch("UPDATE files SET bytes = 7 WHERE path = x'32'").unwrap();
        assert!(check().problems[0].starts_with("row 2 of files: "), "{:?}", check());
        let saved = open(folder.path()).unwrap().1;
        assert_eq!(saved.published, [(name(b"1"), stamp(1))].into());
        other.execute_batch("UPDATE watch SET dir = x'2f'").unwrap();
        assert!(matches!(open(folder.path()), Err(StateFileError::Mismatch { .. })));
        drop(other);
        fs::write(&path, vec![b'x'; 20_000]).unwrap();
        assert!(matches!(open(folder.path()), Err(StateFileError::Database { .. })));
        assert_eq!(fs::read(&path).unwrap(), vec![b'x'; 20_000]);
    }
}
