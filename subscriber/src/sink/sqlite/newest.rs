//! The newest stored result of a URL, for `tidings explain`.

use std::path::Path;

use rusqlite::{OptionalExtension, params};
use tidings_database::ReadOnlyDatabase;

use super::url_fingerprint;
use crate::sink::OpenError;

/// Rows that are searched, from the newest. The index has only fetched pages, and a search of a
/// whole file takes minutes when it has millions of rows.
const ROWS_MAX: i64 = 100_000;

const NEWEST: &str = "
    SELECT fetched_at, outcome, status, error FROM pages
    WHERE id > (SELECT max(id) FROM pages) - ?1 AND url_print = ?2 AND url = ?3
    ORDER BY fetched_at DESC, id DESC LIMIT 1";

/// The result of one page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredResult {
    /// RFC 3339, UTC: when the answer had ended.
    pub fetched_at: String,
    /// A word of [`PageOutcome`](crate::PageOutcome).
    pub outcome: String,
    /// Of HTTP; none without an answer.
    pub status: Option<u16>,
    /// Why it failed, as text for people. It may hold bytes from a server.
    pub error: Option<String>,
}

/// Reads the newest result of a canonical URL. Nothing changes in or beside the file, and crawlers
/// may be writing to it.
pub fn newest_result(path: &Path, url: &str) -> Result<Option<StoredResult>, OpenError> {
    let read = || {
        let mut reading = ReadOnlyDatabase::open(path)?;
        let mut found = query(&reading, url);
        if !reading.is_current() {
            reading.reopen()?;
            found = query(&reading, url);
        }
        found
    };
    read().map_err(|source| OpenError::Database { path: path.to_owned(), source: source.into() })
}

fn query(reading: &ReadOnlyDatabase, url: &str) -> rusqlite::Result<Option<StoredResult>> {
    let newest = |row: &rusqlite::Row<'_>| {
        Ok(StoredResult {
            fetched_at: row.get(0)?,
            outcome: row.get(1)?,
            status: row.get(2)?,
            error: row.get(3)?,
        })
    };
    let parameters = params![ROWS_MAX, url_fingerprint(url), url];
    reading.connection.query_row(NEWEST, parameters, newest).optional()
}
