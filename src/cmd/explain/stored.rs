//! What became of a URL, from the pages that a crawler has stored.

use std::path::Path;

use anyhow::Context;
use rusqlite::{Connection, OpenFlags, OptionalExtension, Row};
use tidings_protocol::CanonicalUrl;

use crate::{failure::Failure, output::printable};

/// An error text of a crawler is shown up to this many characters.
const ERROR_CHARS_MAX: usize = 300;

/// One line about the newest stored attempt; none if nothing is stored about that URL.
pub(super) fn became(data: &Path, what: &str) -> Result<Option<String>, Failure> {
    let file = data.join("pages.db");
    let Ok(url) = CanonicalUrl::parse(what) else { return Ok(None) };
    if !file.is_file() {
        return Ok(None);
    }
    let read = || -> rusqlite::Result<Option<String>> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let pages = Connection::open_with_flags(&file, flags)?;
        let newest = "SELECT fetched_at, outcome, status, error FROM pages WHERE url = ?1
                      ORDER BY fetched_at DESC LIMIT 1";
        pages.query_row(newest, [url.as_str()], in_words).optional()
    };
    let found = read().with_context(|| format!("cannot read {}", file.display()));
    let found = found.map_err(Failure::Failed)?;
    let place = file.display();
    Ok(found.map(|result| format!("{} waits no longer: {result}, see {place}", url.as_str())))
}

fn in_words(row: &Row<'_>) -> rusqlite::Result<String> {
    let (time, outcome): (String, String) = (row.get(0)?, row.get(1)?);
    let (status, error): (Option<u16>, Option<String>) = (row.get(2)?, row.get(3)?);
    let status = status.map(|status| format!(" with status {status}")).unwrap_or_default();
    let error = error.filter(|_| outcome != "done");
    let error = error.map(|error| format!(" ({})", printable(&error, ERROR_CHARS_MAX)));
    let result = match outcome.as_str() {
        "done" => "it was fetched",
        "redirect" => "it redirected",
        "robots" => "robots.txt does not allow it",
        "trap" => "it looked like a trap",
        "retry" => "an attempt failed",
        _ => "it failed",
    };
    Ok(format!("{result}{status}{} at {time}", error.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_attempt_is_in_words() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(became(folder.path(), "http://a.example/").unwrap(), None);
        let pages = Connection::open(folder.path().join("pages.db")).unwrap();
        let rows = "CREATE TABLE pages (url, fetched_at, outcome, status, error);
            INSERT INTO pages VALUES
                ('http://a.example/', '2026-01-01T00:00:00Z', 'done', 200, NULL),
                ('http://a.example/', '2026-01-02T00:00:00Z', 'failed', 404, 'HTTP status 404')";
        pages.execute_batch(rows).unwrap();
        let line = became(folder.path(), "HTTP://a.example").unwrap().unwrap();
        let expected = "http://a.example/ waits no longer: it failed with status 404 \
                        (HTTP status 404) at 2026-01-02T00:00:00Z, see ";
        assert!(line.starts_with(expected), "{line}");
        assert_eq!(became(folder.path(), "http://b.example/").unwrap(), None);
        assert_eq!(became(folder.path(), "a.example").unwrap(), None);
    }
}
