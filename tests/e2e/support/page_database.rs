//! The page records, read as a user would: with the `sqlite3` command.

use std::path::Path;
use std::process::Command;

use super::wait::wait_until;

/// The answer of `sqlite3` to a query on the page database below this data folder: one line per
/// row, columns separated by `|`. None while the database, or its table, is not there.
pub(crate) fn query(data: &Path, sql: &str) -> Option<Vec<String>> {
    let file = data.join("pages.db");
    let output =
        Command::new("sqlite3").arg("-readonly").arg(file).arg(sql).output().expect("sqlite3 runs");
    let text = String::from_utf8(output.stdout).expect("the pages are text");
    output.status.success().then(|| text.lines().map(str::to_owned).collect())
}

/// Waits until the query has so many rows.
#[track_caller]
pub(crate) fn wait_for_rows(data: &Path, sql: &str, count: usize) -> Vec<String> {
    wait_until(&format!("{count} rows of {sql}"), || {
        query(data, sql).filter(|rows| rows.len() >= count)
    })
}
