//! The stored pages, read with the `sqlite3` command as a user would.

use std::path::Path;
use std::process::Command;

use super::wait::wait_until;

/// Runs a query on the page database in this data directory; one line per row, columns separated by
/// `|`. `None` if the database or its table does not exist yet.
pub(crate) fn query(data: &Path, sql: &str) -> Option<Vec<String>> {
    let file = data.join("pages.db");
    let output =
        Command::new("sqlite3").arg("-readonly").arg(file).arg(sql).output().expect("sqlite3 runs");
    let text = String::from_utf8(output.stdout).expect("the pages are text");
    output.status.success().then(|| text.lines().map(str::to_owned).collect())
}

/// Waits until the query has at least `count` rows.
#[track_caller]
pub(crate) fn wait_for_rows(data: &Path, sql: &str, count: usize) -> Vec<String> {
    wait_until(&format!("{count} rows of {sql}"), || {
        query(data, sql).filter(|rows| rows.len() >= count)
    })
}
