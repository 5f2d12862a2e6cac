//! Opens a database that several processes share, and brings it to the newest schema version.

#![expect(clippy::disallowed_methods, reason = "waits for other processes that open the file")]

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior};

/// Pause between two attempts to open a file that other processes open too.
const OPEN_RETRY: Duration = Duration::from_millis(20);

/// Why a database cannot be used. Its file is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    /// It cannot be read or written, or is not a database.
    #[error("{0}")]
    Sqlite(#[from] rusqlite::Error),
    /// A newer program wrote it.
    #[error("a newer Tidings wrote it (schema version {found}, this version knows up to {newest})")]
    Newer {
        /// Its version.
        found: i64,
        /// The newest known version.
        newest: i64,
    },
}

/// The schema version of a database (`PRAGMA user_version`); 0 for a new one.
pub fn version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

/// The schema version of a database that this program can use.
pub fn check_version(connection: &Connection, newest: i64) -> Result<i64, SchemaError> {
    let found = version(connection)?;
    if found > newest { Err(SchemaError::Newer { found, newest }) } else { Ok(found) }
}

/// Opens a database, and creates it if it is missing. Waits up to `busy_timeout` for each process
/// that writes to it. `prepare` sets up the connection before the first write, and may be repeated;
/// `migrate` creates or changes the tables of an older version, which it receives.
pub fn open(
    path: &Path,
    busy_timeout: Duration,
    newest: i64,
    prepare: impl Fn(&Connection) -> rusqlite::Result<()>,
    migrate: impl Fn(&Transaction<'_>, i64) -> rusqlite::Result<()>,
) -> Result<Connection, SchemaError> {
    let mut connection = Connection::open(path)?;
    connection.busy_timeout(busy_timeout)?;
    // Checked before any write, so that a newer file stays unchanged.
    check_version(&connection, newest)?;
    let create = |connection: &mut Connection| {
        prepare(connection)?;
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        // Another process may have migrated it meanwhile.
        let found = version(&transaction)?;
        if found < newest {
            migrate(&transaction, found)?;
            transaction.pragma_update(None, "user_version", newest)?;
        }
        transaction.commit()
    };
    // SQLite does not wait if two processes switch a new file to WAL at once.
    let patience = Instant::now() + busy_timeout;
    loop {
        match create(&mut connection) {
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
