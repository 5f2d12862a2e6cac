//! `crawler.db`: small values by kind and key, in `SQLite`, that a crawler keeps over restarts.
//!
//! Most values are a cache: a lost value is fetched again ([`StateStore::load`],
//! [`StateStore::store`]). So no task waits for the disk longer than `STATE_TIMEOUT`, what does
//! not fit in the queue is dropped, and a commit is not synced: a power failure may cost its last
//! moments, never the file. A file that cannot be used is reported once.
//!
//! Values that correctness depends on use [`StateStore::load_checked`] and
//! [`StateStore::store_synced`], which return errors and wait for the sync.
//!
//! - A damaged file is renamed, with a name that says so, and replaced by a new one.
//! - A file of another version is left alone, for the program that can read it; this process stores
//!   nothing.
//!
//! One thread owns the database; several processes may share it. Expired rows are removed, and when
//! there are too many, the soonest to expire.
//!
//! The schema is `CREATE`; its version is `PRAGMA user_version`.

#![expect(clippy::disallowed_methods, reason = "owns the thread of the database, and waits for it")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};
use std::{fs, io, thread};

use bytes::Bytes;
use rusqlite::{Connection, ErrorCode, OptionalExtension, TransactionBehavior, params};
use tidings_database::digest::{Schema, Table};
use tidings_database::schema_version::{self, SchemaError};
use tidings_database::with_suffix;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// Reads and writes of `crawler.db` that wait. Beyond it, values are dropped instead of stored.
const STATE_QUEUE_MAX: usize = 4096;
/// Bytes of values that wait to be written: the memory that a slow disk can hold.
const STATE_QUEUE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Values in one transaction: bounds how long the first waits for the last.
const STATE_BATCH_MAX: usize = 512;
/// A larger value is not stored: above the largest robots.txt (`ROBOTS_BYTES_MAX`).
const STATE_VALUE_BYTES_MAX: usize = 1024 * 1024;
/// A longer key is not stored: an authority can be as long as a URL, with a token in front.
const STATE_KEY_BYTES_MAX: usize = 16 * 1024;
/// Values kept: one or two for each host of a large crawl. The soonest to expire are removed first.
const STATE_ROWS_MAX: u64 = 1_000_000;
/// Used bytes of `crawler.db`.
const STATE_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// How often expired values are removed; sooner after many writes (`STATE_SWEEP_ROWS`,
/// `STATE_QUEUE_BYTES_MAX`).
const STATE_SWEEP_EVERY: Duration = Duration::from_mins(10);
/// Values removed at a time, and stored before the next count: some tens of milliseconds.
const STATE_SWEEP_ROWS: u32 = 10_000;
/// How long a task waits for a stored value: a request costs about as much. In unit tests, this and
/// the next limit are longer than a stall of a busy machine.
const STATE_TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 60 } else { 1 });
/// How long `SQLite` waits for another process that writes to `crawler.db`.
const STATE_BUSY_TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 60 } else { 2 });

/// The version of the schema.
pub const VERSION: i64 = 1;

/// The tables with digests.
pub const SCHEMA: Schema = Schema {
    file: NAME,
    version: VERSION,
    create: CREATE,
    tables: &[Table { name: "state", key: "rowid", also: &[] }],
};

const NAME: &str = "crawler.db";

/// Values are appended; only the keys have an index of their own. A sweep reads the second index
/// only.
const CREATE: &str = "
    CREATE TABLE state (
        kind TEXT NOT NULL,
        key TEXT NOT NULL,
        expires INTEGER NOT NULL,       -- in seconds since 1970
        value BLOB NOT NULL,
        digest INTEGER,                 -- of the others, see `digest`
        UNIQUE (kind, key)
    ) STRICT;
    CREATE INDEX expiries ON state (expires)";

/// A handle of the store. Cheap to clone; the thread ends when the last clone is dropped and all
/// values are written.
#[derive(Clone, Debug)]
pub struct StateStore {
    queue: mpsc::Sender<StateCommand>,
    shared: Arc<StoreQueue>,
}

/// Resolves when all values are written and the database is closed.
#[derive(Debug)]
pub struct StateClosing(oneshot::Receiver<()>);

#[derive(Debug, Default)]
struct StoreQueue {
    /// Bytes of all values that wait to be written; `<= STATE_QUEUE_BYTES_MAX`.
    queued_bytes: AtomicUsize,
    /// A value was dropped; logged once.
    dropped: AtomicBool,
}

/// The kind and key of a value.
#[derive(Debug)]
struct StateKey {
    kind: &'static str,
    key: String,
}

#[derive(Debug)]
enum StateCommand {
    /// Loads a value. The sender is dropped if the value cannot be read.
    Load(StateKey, oneshot::Sender<Option<Bytes>>),
    /// Stores a value. `kept` is answered after the sync, and dropped if the write fails.
    Store { place: StateKey, value: Bytes, expires_unix_s: u64, kept: Option<oneshot::Sender<()>> },
}

/// `crawler.db` did not do what was requested, or perhaps did; the log says why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{NAME} is too slow, or cannot be used")]
pub struct StateUnavailable;

impl StateStore {
    /// Opens `crawler.db` in this directory; creates both if they are missing. Never fails: a
    /// crawler without stored values fetches them again.
    pub fn open(data: &Path) -> (Self, StateClosing) {
        let (queue, commands) = mpsc::channel(STATE_QUEUE_MAX);
        let (closed, closing) = oneshot::channel();
        let shared = Arc::<StoreQueue>::default();
        let database = StateDatabase::open(data.join(NAME), Arc::clone(&shared));
        let spawned = thread::Builder::new().name(NAME.to_owned()).spawn(move || {
            database.run(commands);
            // The receiver may be gone.
            let _ = closed.send(());
        });
        if let Err(error) = spawned {
            tracing::warn!("{NAME}: {error}; nothing is kept over a restart");
        }
        (Self { queue, shared }, StateClosing(closing))
    }

    /// The newest value of this kind and key, unless it has expired or cannot be read in time.
    pub async fn load(&self, kind: &'static str, key: &str) -> Option<Bytes> {
        self.load_checked(kind, key).await.ok()?
    }

    /// Like `load`, but tells a missing value from a failure.
    pub async fn load_checked(
        &self,
        kind: &'static str,
        key: &str,
    ) -> Result<Option<Bytes>, StateUnavailable> {
        let (answer, answered) = oneshot::channel();
        let command = StateCommand::Load(StateKey { kind, key: key.to_owned() }, answer);
        let finding = async {
            self.queue.send(command).await.ok()?;
            answered.await.ok()
        };
        timeout(STATE_TIMEOUT, finding).await.ok().flatten().ok_or(StateUnavailable)
    }

    /// Stores a value in place of the one before, until a time in seconds since 1970; a time in the
    /// past removes it. Does not wait, so it can fail silently; a value that is too large is
    /// ignored.
    pub fn store(&self, kind: &'static str, key: &str, value: Bytes, expires_unix_s: u64) {
        let place = StateKey { kind, key: key.to_owned() };
        self.enqueue(StateCommand::Store { place, value, expires_unix_s, kept: None });
    }

    /// Like `store`, but returns after the sync. After an error the old or the new value may be
    /// stored.
    pub async fn store_synced(
        &self,
        kind: &'static str,
        key: &str,
        value: Bytes,
        expires_unix_s: u64,
    ) -> Result<(), StateUnavailable> {
        let (kept, is_kept) = oneshot::channel();
        let place = StateKey { kind, key: key.to_owned() };
        self.enqueue(StateCommand::Store { place, value, expires_unix_s, kept: Some(kept) });
        is_kept.await.map_err(|_| StateUnavailable)
    }

    fn enqueue(&self, command: StateCommand) {
        let bytes = command.bytes();
        if bytes > STATE_VALUE_BYTES_MAX || command.key().len() > STATE_KEY_BYTES_MAX {
            return;
        }
        let queued = self.shared.queued_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if queued > STATE_QUEUE_BYTES_MAX || self.queue.try_send(command).is_err() {
            self.shared.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
            if !self.shared.dropped.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    "{NAME} is too slow or unusable; some values are not kept over a restart"
                );
            }
        }
    }
}

impl StateClosing {
    /// Waits until the thread has ended. Drop all clones of the state first.
    pub async fn wait(self) {
        let _ = self.0.await;
    }
}

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
enum StateFileError {
    Io(#[from] io::Error),
    Database(#[from] SchemaError),
}

impl StateFileError {
    fn is_damage(&self) -> bool {
        matches!(self, Self::Database(SchemaError::Sqlite(error)) if is_damage(error))
    }
}

/// The state of the thread.
#[derive(Default)]
struct StateDatabase {
    path: PathBuf,
    shared: Arc<StoreQueue>,
    /// `None`: unusable, which was logged.
    connection: Option<Connection>,
    /// A write failed; logged once, until one succeeds.
    failing: bool,
    /// A second damaged file means that the disk is damaged.
    was_set_aside: bool,
    /// `None`: not yet since the start.
    swept: Option<Instant>,
    rows_since_sweep: usize,
    bytes_since_sweep: usize,
}

impl StateDatabase {
    fn open(path: PathBuf, shared: Arc<StoreQueue>) -> Self {
        let mut database = Self { path, shared, ..Self::default() };
        match prepare(&database.path) {
            Ok(connection) => database.connection = Some(connection),
            Err(error) => database.replace_or_disable(&error),
        }
        database
    }

    fn run(mut self, mut commands: mpsc::Receiver<StateCommand>) {
        let mut batch = Vec::new();
        while commands.blocking_recv_many(&mut batch, STATE_BATCH_MAX) > 0 {
            self.serve(&mut batch);
            let is_due = self.swept.is_none_or(|swept| swept.elapsed() >= STATE_SWEEP_EVERY)
                || self.rows_since_sweep >= STATE_SWEEP_ROWS as usize
                || self.bytes_since_sweep >= STATE_QUEUE_BYTES_MAX;
            if is_due {
                self.sweep(STATE_ROWS_MAX, STATE_BYTES_MAX);
            }
        }
    }

    /// Serves a batch in order, in one transaction if it writes.
    fn serve(&mut self, batch: &mut Vec<StateCommand>) {
        let bytes = batch.iter().map(StateCommand::bytes).sum::<usize>();
        let rows =
            batch.iter().filter(|command| matches!(command, StateCommand::Store { .. })).count();
        let waiting = batch.iter_mut().filter_map(StateCommand::take_waiting).collect::<Vec<_>>();
        let result = self.connection.as_mut().map(|connection| {
            if rows == 0 {
                return batch.drain(..).try_for_each(|command| command.serve(connection));
            }
            if !waiting.is_empty() {
                connection.pragma_update(None, "synchronous", "FULL")?;
            }
            let transaction =
                connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            batch.drain(..).try_for_each(|command| command.serve(&transaction))?;
            transaction.commit()?;
            // Also after a failed sync.
            connection.pragma_update(None, "synchronous", "NORMAL")
        });
        if let Some(Ok(())) = result {
            // The caller may be gone.
            for kept in waiting {
                let _ = kept.send(());
            }
        }
        // Dropping the senders of the rest reports a missing value.
        batch.clear();
        self.shared.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.rows_since_sweep += rows;
        self.bytes_since_sweep += bytes;
        if let Some(result) = result {
            self.log_write_result(result);
        }
    }

    fn sweep(&mut self, rows_max: u64, bytes_max: u64) {
        self.swept = Some(Instant::now());
        (self.rows_since_sweep, self.bytes_since_sweep) = (0, 0);
        let Some(connection) = &self.connection else { return };
        self.log_write_result(sweep(connection, rows_max, bytes_max));
    }

    fn log_write_result(&mut self, result: rusqlite::Result<()>) {
        match result {
            Err(error) if is_damage(&error) => {
                self.replace_or_disable(&SchemaError::from(error).into());
            }
            Err(error) => {
                if !std::mem::replace(&mut self.failing, true) {
                    let path = self.path.display();
                    tracing::warn!(
                        "{path}: {error}; nothing is kept over a restart until it can be written"
                    );
                }
            }
            Ok(()) if std::mem::take(&mut self.failing) => {
                tracing::info!("{}: can be written again", self.path.display());
            }
            Ok(()) => {}
        }
    }

    /// Replaces a damaged file by a new one; otherwise goes on without a file.
    fn replace_or_disable(&mut self, error: &StateFileError) {
        self.connection = None;
        let path = self.path.display();
        if !error.is_damage() || std::mem::replace(&mut self.was_set_aside, true) {
            tracing::warn!("{path}: {error}; nothing is kept over a restart");
            return;
        }
        match set_aside(&self.path).map_err(StateFileError::from).and_then(|aside| {
            tracing::warn!("{path}: {error}; renamed to {}", aside.display());
            prepare(&self.path)
        }) {
            Ok(connection) => self.connection = Some(connection),
            Err(error) => tracing::warn!("{path}: {error}; nothing is kept over a restart"),
        }
    }
}

impl StateCommand {
    fn bytes(&self) -> usize {
        match self {
            Self::Load(..) => 0,
            Self::Store { value, .. } => value.len(),
        }
    }

    fn key(&self) -> &str {
        let (Self::Load(place, _) | Self::Store { place, .. }) = self;
        &place.key
    }

    fn take_waiting(&mut self) -> Option<oneshot::Sender<()>> {
        let Self::Store { kept, .. } = self else { return None };
        kept.take()
    }

    fn serve(self, connection: &Connection) -> rusqlite::Result<()> {
        match self {
            Self::Load(StateKey { kind, key }, answer) => {
                let found: Option<Vec<u8>> = connection
                    .prepare_cached(
                        "SELECT value FROM state WHERE kind = ?1 AND key = ?2 AND expires > ?3",
                    )?
                    .query_row(params![kind, key, now_unix_s()], |row| row.get(0))
                    .optional()?;
                // The caller may be gone.
                let _ = answer.send(found.map(Bytes::from));
            }
            Self::Store { place: StateKey { kind, key }, value, expires_unix_s, .. } => {
                let expires = i64::try_from(expires_unix_s).unwrap_or(i64::MAX);
                if expires <= now_unix_s() {
                    let sql = "DELETE FROM state WHERE kind = ?1 AND key = ?2";
                    connection.prepare_cached(sql)?.execute(params![kind, key])?;
                } else {
                    let sql = "INSERT OR REPLACE INTO state (kind, key, expires, value, digest)
                        VALUES (?1, ?2, ?3, ?4, row_digest(?1, ?2, ?3, ?4))";
                    connection.prepare_cached(sql)?.execute(params![
                        kind,
                        key,
                        expires,
                        &value[..]
                    ])?;
                }
            }
        }
        Ok(())
    }
}

/// Removes expired values, in steps so that other work does not wait for long; then, while there
/// are too many, those that expire soonest.
fn sweep(connection: &Connection, rows_max: u64, bytes_max: u64) -> rusqlite::Result<()> {
    let number = |sql: &str| -> rusqlite::Result<u64> {
        let number = connection.query_row(sql, [], |row| row.get::<_, i64>(0))?;
        Ok(u64::try_from(number).unwrap_or_default())
    };
    let delete = |until: i64| {
        let sql = "DELETE FROM state WHERE rowid IN
            (SELECT rowid FROM state WHERE expires <= ?1 ORDER BY expires LIMIT ?2)";
        connection.execute(sql, params![until, STATE_SWEEP_ROWS])
    };
    delete(now_unix_s())?;
    loop {
        let rows = number("SELECT count(*) FROM state INDEXED BY expiries")?;
        let pages = number("PRAGMA page_count")?.saturating_sub(number("PRAGMA freelist_count")?);
        let bytes = pages.saturating_mul(number("PRAGMA page_size")?);
        if rows == 0 || rows <= rows_max && bytes <= bytes_max {
            return Ok(());
        }
        delete(i64::MAX)?;
    }
}

fn prepare(path: &Path) -> Result<Connection, StateFileError> {
    if let Some(data) = path.parent() {
        fs::create_dir_all(data)?;
    }
    let set_up = |connection: &Connection| connection.pragma_update(None, "synchronous", "NORMAL");
    Ok(schema_version::open(path, &SCHEMA, STATE_BUSY_TIMEOUT, set_up, |_| Ok(()))?)
}

/// Renames the file, and those that `SQLite` has beside it.
fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let mut number = now_unix_s();
    let aside = loop {
        let aside = with_suffix(path, &format!(".damaged-{number}"));
        if !aside.exists() {
            break aside;
        }
        number += 1;
    };
    for end in ["-wal", "-shm"] {
        match fs::rename(with_suffix(path, end), with_suffix(&aside, end)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    fs::rename(path, &aside)?;
    Ok(aside)
}

fn is_damage(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error_code();
    matches!(code, Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
}

fn now_unix_s() -> i64 {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_1970.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
