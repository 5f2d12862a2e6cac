//! Opens a database that several processes share, and creates its tables.

#![expect(clippy::disallowed_methods, reason = "waits for other processes that open the file")]

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior};

use crate::digest::{self, Schema};

/// Pause between two attempts to open a file that other processes open too.
const OPEN_RETRY: Duration = Duration::from_millis(20);

/// How long a program waits for another one that reads or copies a small database.
pub const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a database cannot be used. Its file is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    /// It cannot be read or written, or is not a database.
    #[error("{0}")]
    Sqlite(#[from] rusqlite::Error),
    /// Another version of this program wrote it, or another program.
    #[error(
        "its schema version is {found}, but this Tidings uses {known}; use the one that wrote it, or another file"
    )]
    Unknown {
        /// Its version.
        found: i64,
        /// The version of this program.
        known: i64,
    },
}

/// The schema version of a database (`PRAGMA user_version`); 0 for a new one.
pub fn version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

/// Refuses a database of another schema version. A new one passes.
pub fn check_version(connection: &Connection, known: i64) -> Result<(), SchemaError> {
    let found = version(connection)?;
    if [0, known].contains(&found) { Ok(()) } else { Err(SchemaError::Unknown { found, known }) }
}

/// Opens a database with a write-ahead log, and creates it if it is missing. Waits up to
/// `busy_timeout` for each process that writes to it. `prepare` sets up the connection before the
/// first write, and may be repeated; `fill` adds the first rows of a new database.
pub fn open(
    path: &Path,
    schema: &Schema,
    busy_timeout: Duration,
    prepare: impl Fn(&Connection) -> rusqlite::Result<()>,
    fill: impl Fn(&Transaction<'_>) -> rusqlite::Result<()>,
) -> Result<Connection, SchemaError> {
    let mut connection = Connection::open(path)?;
    connection.busy_timeout(busy_timeout)?;
    // Checked before any write, so that another file stays unchanged.
    check_version(&connection, schema.version)?;
    let set_up = |connection: &mut Connection| {
        prepare(connection)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        digest::register(connection)?;
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        // Another process may have created the tables meanwhile.
        if version(&transaction)? == 0 {
            transaction.execute_batch(schema.create)?;
            fill(&transaction)?;
            transaction.pragma_update(None, "user_version", schema.version)?;
        }
        transaction.commit()
    };
    // SQLite does not wait if two processes switch a new file to WAL at once.
    let patience = Instant::now() + busy_timeout;
    loop {
        match set_up(&mut connection) {
            Ok(()) => return Ok(connection),
            Err(error)
                if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
                    && Instant::now() < patience =>
            {
                thread::sleep(OPEN_RETRY);
            }
            Err(error) => return Err(error.into()),
        }
    }
}
