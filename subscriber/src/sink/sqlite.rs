//! `pages.db`: one row per page, in `SQLite`.
//!
//! One thread writes. What arrives while a transaction is being synced goes into the next one
//! together, so many pages share a sync of the disk. The answer comes after the commit.
//!
//! # Schema, version 1
//!
//! See `CREATE_V1`. The version is `PRAGMA user_version`. To change it: raise `VERSION`, add the
//! statements that lead from the version before to `prepare`, and a test with an old file. A file
//! of a newer version is refused, never touched.

#![expect(
    clippy::disallowed_methods,
    reason = "waits, while the file is being opened, for others that open it"
)]

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior, params};
use tokio::sync::{mpsc, oneshot};

use crate::config::{STORE_BATCH_MAX, STORE_BUSY_TIMEOUT, STORE_QUEUE_MAX};
use crate::report::PageRecord;

/// The version of the schema.
pub const VERSION: i64 = 1;

/// Pause between two tries to open a file that others open, too.
const OPEN_RETRY: Duration = Duration::from_millis(20);

const CREATE_V1: &str = "
    CREATE TABLE pages (
        task TEXT NOT NULL PRIMARY KEY, -- group:run.entry; every attempt of it is this row
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
        outcome TEXT NOT NULL,          -- done, redirect, failed, robots, retry
        error TEXT,
        links INTEGER NOT NULL,         -- how many different ones
        link_urls TEXT NOT NULL         -- a JSON array, in the order of the page
    ) STRICT";

/// An attempt that was overtaken by a later one must not undo it.
const UPSERT: &str = "
    INSERT INTO pages (task, url, status, content_type, bytes, hash, title, fetched_at, duration_ms,
        job, pass, depth, attempt, outcome, error, links, link_urls)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)
    ON CONFLICT (task) DO UPDATE SET url = excluded.url, status = excluded.status,
        content_type = excluded.content_type, bytes = excluded.bytes, hash = excluded.hash,
        title = excluded.title, fetched_at = excluded.fetched_at,
        duration_ms = excluded.duration_ms, job = excluded.job, pass = excluded.pass,
        depth = excluded.depth, attempt = excluded.attempt, outcome = excluded.outcome,
        error = excluded.error, links = excluded.links, link_urls = excluded.link_urls
    WHERE excluded.attempt >= pages.attempt";

/// Why `pages.db` cannot be used. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The directory or the thread cannot be made.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// What was to be opened.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The file cannot be opened, or is no database.
    #[error("{path}: {source}", path = path.display())]
    Sqlite {
        /// What was to be opened.
        path: PathBuf,
        /// Why not.
        source: rusqlite::Error,
    },
    /// A newer Tidings wrote it.
    #[error(
        "{path} has schema version {found}, this Tidings knows up to {VERSION}; use the newer \
         Tidings that wrote it, or another data directory",
        path = path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: i64,
    },
}

/// A page was not stored: the disk is full or failing. It may be tried again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the page cannot be stored: {text}")]
pub struct StoreError {
    /// What the system says.
    pub text: String,
}

/// The open database. Cheap to clone; the thread ends when the last clone is dropped and
/// everything was written.
#[derive(Clone, Debug)]
pub struct PageStore {
    queue: mpsc::Sender<Letter>,
}

/// Ends when everything was written and the database is closed.
#[derive(Debug)]
pub struct Closing(oneshot::Receiver<()>);

#[derive(Debug)]
struct Letter {
    record: Arc<PageRecord>,
    answer: oneshot::Sender<Result<(), StoreError>>,
}

impl PageStore {
    /// Opens `pages.db` in this directory, and makes both if they are missing.
    pub fn open(data: &Path) -> Result<(Self, Closing), OpenError> {
        let path = data.join("pages.db");
        let io_error = |source| OpenError::Io { path: path.clone(), source };
        std::fs::create_dir_all(data).map_err(io_error)?;
        let connection = prepare(&path)?;
        let (queue, letters) = mpsc::channel(STORE_QUEUE_MAX);
        let (closed, closing) = oneshot::channel();
        let writer = Writer { connection, path: path.clone(), failing: false };
        thread::Builder::new()
            .name("pages.db".to_owned())
            .spawn(move || {
                writer.run(letters);
                // Nobody may be waiting any more.
                let _ = closed.send(());
            })
            .map_err(io_error)?;
        Ok((Self { queue }, Closing(closing)))
    }

    /// Stores a page, in place of an earlier attempt of the same task. `Ok` once it is on the
    /// disk. Waits while too many others wait.
    pub async fn store(&self, record: Arc<PageRecord>) -> Result<(), StoreError> {
        let (answer, answered) = oneshot::channel();
        let letter = Letter { record, answer };
        let gone = || StoreError { text: "its writer has ended".to_owned() };
        self.queue.send(letter).await.map_err(|_| gone())?;
        answered.await.unwrap_or_else(|_| Err(gone()))
    }
}

impl Closing {
    /// Waits until the thread has ended. Drop all clones of the store first.
    pub async fn wait(self) {
        let _ = self.0.await;
    }
}

fn prepare(path: &Path) -> Result<Connection, OpenError> {
    let sqlite = |source| OpenError::Sqlite { path: path.to_owned(), source };
    let mut connection = Connection::open(path).map_err(sqlite)?;
    connection.busy_timeout(STORE_BUSY_TIMEOUT).map_err(sqlite)?;
    let version = |connection: &Connection| {
        connection.pragma_query_value(None, "user_version", |row| row.get::<_, i64>(0))
    };
    // Before anything is written, so that a newer file stays as it is.
    let found = version(&connection).map_err(sqlite)?;
    if found > VERSION {
        return Err(OpenError::Newer { path: path.to_owned(), found });
    }
    let create = |connection: &mut Connection| {
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        // Another process may have been faster.
        if version(&transaction)? == 0 {
            transaction.execute_batch(CREATE_V1)?;
            transaction.pragma_update(None, "user_version", VERSION)?;
        }
        transaction.commit()
    };
    // SQLite does not wait when two switch a new file to WAL at once.
    let patience = Instant::now() + STORE_BUSY_TIMEOUT;
    loop {
        match create(&mut connection) {
            Ok(()) => return Ok(connection),
            Err(error) if is_busy(&error) && Instant::now() < patience => thread::sleep(OPEN_RETRY),
            Err(error) => return Err(sqlite(error)),
        }
    }
}

fn is_busy(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
}

struct Writer {
    connection: Connection,
    path: PathBuf,
    /// The last transaction failed; said once, until one succeeds.
    failing: bool,
}

impl Writer {
    fn run(mut self, mut letters: mpsc::Receiver<Letter>) {
        let mut batch = Vec::new();
        while letters.blocking_recv_many(&mut batch, STORE_BATCH_MAX) > 0 {
            let result = self.write(&batch).map_err(|error| StoreError { text: error.to_string() });
            self.note(result.as_ref().err());
            for letter in batch.drain(..) {
                // Whoever asked may have been abandoned meanwhile.
                let _ = letter.answer.send(result.clone());
            }
        }
    }

    fn write(&mut self, batch: &[Letter]) -> rusqlite::Result<()> {
        let transaction =
            self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        for letter in batch {
            upsert(&transaction, &letter.record)?;
        }
        transaction.commit()
    }

    fn note(&mut self, error: Option<&StoreError>) {
        match error {
            Some(error) if !self.failing => {
                tracing::error!(
                    "{}: {}; pages wait until it can be written again",
                    self.path.display(),
                    error.text
                );
            }
            None if self.failing => tracing::info!("{}: can be written again", self.path.display()),
            _ => {}
        }
        self.failing = error.is_some();
    }
}

fn upsert(transaction: &Transaction<'_>, record: &PageRecord) -> rusqlite::Result<()> {
    let PageRecord { task, report, .. } = record;
    let links: Vec<&str> = record.links.iter().map(|link| &*link.url).collect();
    let fetched_at = Timestamp::from_millisecond(record.fetched_unix_ms).unwrap_or_default();
    transaction.prepare_cached(UPSERT)?.execute(params![
        format!("{}:{}.{}", task.group, task.run, task.entry),
        report.url,
        report.status,
        record.content_type,
        signed(report.bytes),
        record.hash.map(|hash| hash.to_hex().to_string()),
        report.title,
        format!("{fetched_at:.3}"),
        signed(u64::try_from(report.duration.as_millis()).unwrap_or(u64::MAX)),
        report.job,
        record.pass.map(signed),
        record.depth.map(signed),
        task.attempt,
        report.outcome.as_str(),
        report.error,
        signed(links.len() as u64),
        serde_json::to_string(&links).expect("strings are always JSON"),
    ])?;
    Ok(())
}

/// `SQLite` has no unsigned integers.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
#[path = "sqlite_tests.rs"]
mod tests;
