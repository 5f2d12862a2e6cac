//! An `SQLite` database: one row per page of a pass, in the table `pages`.
//!
//! Pages that arrive during the sync of a transaction go into the next one together, so one sync of
//! the disk serves many pages. Several processes may write to one file.
//!
//! # Schema
//!
//! See `CREATE`. The version is `PRAGMA user_version`. A file of another version is refused, never
//! changed.
//!
//! `render` is an object with [these fields](super::rendered), NULL if rendering was not tried.

mod last_record;
mod newest;

use std::borrow::Cow;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::thread;

use rusqlite::{Connection, TransactionBehavior, params};
use tidings_database::digest::{Schema, Table, digest_of};
use tidings_database::schema_version;
use xxhash_rust::xxh3::xxh3_64;

pub(super) use self::last_record::LastRecordReader;
pub use self::last_record::{EarlierRecord, LastRecord};
pub use self::newest::{StoredResult, newest_result};
use super::bodies::{BodyCompressor, ENCODING};
use super::row::PageRow;
use super::{OpenError, Sink, StoreError};
use crate::report::{PageId, PageRecord};
use crate::sink::STORE_BUSY_TIMEOUT;

/// `SQLite` moves its write-ahead log into the database at this size, and cuts it to this size:
/// seconds of a fast crawl, so that pages of the database which change often are written once.
const STORE_WAL_BYTES: u32 = 16 * 1024 * 1024;

/// The version of the schema.
pub const VERSION: i64 = 1;

/// The schema, with the digest of each row.
pub const SCHEMA: Schema = Schema {
    file: "pages.db",
    version: VERSION,
    create: CREATE,
    tables: &[
        Table { name: "pages", key: "rowid", also: &[] },
        Table { name: "bodies", key: "rowid", also: &[] },
    ],
};

/// Rows of 2 to 4 KiB fit badly into `SQLite`'s default of 4 KiB; with more than this, each index
/// entry would cost a larger write.
pub(super) const PAGE_BYTES: u32 = 8 * 1024;

pub(super) const CREATE: &str = "
    CREATE TABLE pages (
        id INTEGER PRIMARY KEY,
        page TEXT NOT NULL UNIQUE,      -- group.since.entry; every attempt at it is this row
        task TEXT NOT NULL,             -- group:run.entry, as in the broker's answers
        url TEXT NOT NULL,
        status INTEGER,                 -- of HTTP; NULL without an answer
        content_type TEXT,
        bytes INTEGER NOT NULL,         -- of the body, decoded
        hash TEXT,                      -- BLAKE3 of the decoded body, hexadecimal
        title TEXT,
        fetched_at TEXT NOT NULL,       -- RFC 3339, UTC, when the answer had ended
        duration_ms INTEGER NOT NULL,
        job TEXT,
        pass INTEGER,
        depth INTEGER,
        attempt INTEGER NOT NULL,       -- the highest attempt wins
        outcome TEXT NOT NULL,          -- done, redirect, failed, robots, trap, retry
        reason TEXT,                    -- why, as a word of a closed list
        error TEXT,                     -- why, for people
        redirect TEXT,                  -- where it leads
        canonical TEXT,                 -- what the page says is its URL
        noindex INTEGER NOT NULL,       -- 1: not to be shown by search engines
        etag TEXT,
        last_modified TEXT,
        remote TEXT,                    -- address and port of who answered
        url_print INTEGER NOT NULL,     -- of the URL, for the index
        links INTEGER NOT NULL,         -- how many different ones
        link_urls TEXT NOT NULL,        -- a JSON array, in the order of the page
        nofollow TEXT,                  -- a JSON array: positions among link_urls, from 0
        reading TEXT,                   -- in which way links are not the usual ones
        rendered_hash TEXT,             -- BLAKE3 of the rendered HTML, hexadecimal
        render TEXT,                    -- a JSON object: what a browser made of the page; NULL if none was asked
        item TEXT,                      -- of the event that announced the page
        source TEXT,                    -- of that event
        original TEXT,                  -- a JSON object: where the body is; NULL if outputs store none
        text_hash TEXT,                 -- BLAKE3 of what a reader sees, hexadecimal
        digest INTEGER                  -- of the values, see `digest`; a program that changes a row sets it to NULL
    ) STRICT;
    CREATE INDEX pages_by_url ON pages (url_print) WHERE outcome = 'done';
    CREATE TABLE bodies (
        hash TEXT NOT NULL PRIMARY KEY, -- as hash or rendered_hash in pages: BLAKE3, hexadecimal
        encoding TEXT NOT NULL,         -- of the column body: gzip
        bytes INTEGER NOT NULL,         -- of the body, decoded
        body BLOB NOT NULL,
        digest INTEGER                  -- as in pages
    ) STRICT";

/// Stores a body that the table does not have.
const INSERT_BODY: &str = "
    INSERT INTO bodies (hash, encoding, bytes, body, digest)
    VALUES (?1, ?2, ?3, ?4, row_digest(?1, ?2, ?3, ?4)) ON CONFLICT DO NOTHING";

/// Stores a row with its columns as parameters. A later attempt is never replaced by an earlier one.
pub(super) static UPSERT: LazyLock<String> = LazyLock::new(|| {
    let columns = PageRow::COLUMNS;
    let parameters =
        |columns: &[&str]| columns.iter().map(|column| format!(":{column}")).collect::<Vec<_>>();
    let digest = digest_of(&parameters(&SCHEMA.columns("pages")));
    let (names, values) = (columns.join(", "), parameters(columns).join(", "));
    let updates = columns.iter().filter(|column| **column != "page");
    let updates: Vec<_> = updates.map(|column| format!("{column} = excluded.{column}")).collect();
    let updates = updates.join(", ");
    format!(
        "INSERT INTO pages ({names}, digest) VALUES ({values}, {digest})
        ON CONFLICT (page) DO UPDATE SET {updates}, digest = excluded.digest
        WHERE (excluded.attempt, excluded.fetched_at) >= (pages.attempt, pages.fetched_at)"
    )
});

/// An open database.
#[derive(Debug)]
pub(super) struct Sqlite {
    connection: Connection,
    path: PathBuf,
    /// The extraction settings of all pages of this crawler.
    reading: Option<String>,
    bodies: BodyCompressor,
    /// The thread that reads earlier records; ends by itself.
    reader: Option<thread::JoinHandle<()>>,
}

impl Sqlite {
    /// Opens a database, and creates it if it is missing. `reading`: the extraction settings of the
    /// pages to store and to look up.
    pub(super) fn open(
        path: &Path,
        reading: Option<String>,
        bodies: BodyCompressor,
    ) -> Result<(Self, LastRecordReader), OpenError> {
        super::create_parent(path)?;
        let connection = prepare(path)?;
        let (lookup, reader) = LastRecordReader::start(path, reading.clone())?;
        let path = path.to_owned();
        Ok((Self { connection, path, reading, bodies, reader: Some(reader) }, lookup))
    }

    fn upsert(&mut self, batch: &[Arc<PageRecord>]) -> Result<(), Box<dyn Error>> {
        let mut bodies = self.bodies.bodies_of(batch);
        let mut find = self.connection.prepare_cached("SELECT 1 FROM bodies WHERE hash = ?1")?;
        for hash in bodies.keys().cloned().collect::<Vec<_>>() {
            if find.exists([&hash])? {
                bodies.remove(&hash);
            }
        }
        drop(find);
        let bodies = self.bodies.compress(bodies)?;
        let transaction =
            self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        for body in bodies {
            let mut statement = transaction.prepare_cached(INSERT_BODY)?;
            statement.execute(params![body.hash, ENCODING, body.bytes, body.gzip])?;
        }
        let mut statement = transaction.prepare_cached(&UPSERT)?;
        for record in batch {
            let reading = self.reading.as_deref().map(Cow::Borrowed);
            PageRow { reading, ..PageRow::of(record) }.upsert(&mut statement)?;
        }
        drop(statement);
        Ok(transaction.commit()?)
    }
}

impl Sink for Sqlite {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn write(&mut self, batch: &[Arc<PageRecord>]) -> Result<(), StoreError> {
        self.upsert(batch).map_err(|error| StoreError { text: error.to_string(), closed: false })
    }

    fn batch_bytes(&self, record: &PageRecord) -> usize {
        self.bodies.batch_bytes(record)
    }

    fn take_refused(&mut self) -> Vec<(PageId, String)> {
        self.bodies.take_refused()
    }

    fn body_output(&self) -> Option<String> {
        self.bodies.is_on().then(|| "sqlite".to_owned())
    }

    fn close(&mut self) {
        // The process that closes the file last cleans up, which a reader may not.
        if self.reader.take().is_some_and(|reader| reader.join().is_err()) {
            tracing::error!("the reader of {} panicked", self.path.display());
        }
    }
}

fn prepare(path: &Path) -> Result<Connection, OpenError> {
    schema_version::open(path, &SCHEMA, STORE_BUSY_TIMEOUT, set_up, |_| Ok(()))
        .map_err(|source| OpenError::Database { path: path.to_owned(), source })
}

fn set_up(connection: &Connection) -> rusqlite::Result<()> {
    // Only possible for a new file.
    connection.pragma_update(None, "page_size", PAGE_BYTES)?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    let page_bytes: u32 = connection.pragma_query_value(None, "page_size", |row| row.get(0))?;
    connection.pragma_update(None, "wal_autocheckpoint", STORE_WAL_BYTES / page_bytes)?;
    connection.pragma_update(None, "journal_size_limit", STORE_WAL_BYTES)
}

/// Half of the fingerprint is that of the host, so that the pages of a host are together in the
/// index. Two URLs may have the same.
pub(super) fn url_fingerprint(url: &str) -> i64 {
    const HALF: u64 = u32::MAX as u64;
    let host = url.split('/').nth(2).unwrap_or_default();
    (xxh3_64(host.as_bytes()) & !HALF | xxh3_64(url.as_bytes()) & HALF).cast_signed()
}

#[cfg(test)]
mod tests;
