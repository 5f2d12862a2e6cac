//! A stored page, read from a row or a line, and written as either.

use rusqlite::{CachedStatement, Row, params};
use serde::{Deserialize, Serialize};

use crate::report::PageId;
use crate::sink::sqlite::url_fingerprint;

/// The fields of [`jsonl`](crate::sink::jsonl), in their order; one without a value is omitted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    pub(super) page: String,
    url: String,
    outcome: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<i64>,
    pub(super) fetched_at: String,
    duration_ms: i64,
    bytes: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hash: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    etag: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_modified: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remote: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    redirect: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    canonical: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    noindex: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pass: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    depth: Option<i64>,
    task: String,
    pub(super) attempt: i64,
    links: Vec<Box<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nofollow: Option<Vec<usize>>,
    /// Only in databases.
    #[serde(skip)]
    reading: Option<String>,
}

/// For a line: no conditional request is made for such a page.
const READING_UNKNOWN: &str = "unknown";

/// A limited number of rows after an id.
pub(super) const SELECT: &str = "
    SELECT id, page, url, outcome, reason, error, status, fetched_at, duration_ms, bytes,
        content_type, hash, etag, last_modified, remote, redirect, canonical, title, noindex, job,
        pass, depth, task, attempt, link_urls, nofollow, reading
    FROM pages WHERE id > ?1 ORDER BY id LIMIT ?2";

const JSON: &str = "strings and numbers are always JSON";

impl Record {
    /// Reads a row of `SELECT`. Users may have changed the file: a malformed list is read as
    /// empty.
    pub(super) fn from_row(row: &Row<'_>) -> rusqlite::Result<Self> {
        let links: String = row.get("link_urls")?;
        let nofollow: Option<String> = row.get("nofollow")?;
        Ok(Self {
            page: row.get("page")?,
            url: row.get("url")?,
            outcome: row.get("outcome")?,
            reason: row.get("reason")?,
            error: row.get("error")?,
            status: row.get("status")?,
            fetched_at: row.get("fetched_at")?,
            duration_ms: row.get("duration_ms")?,
            bytes: row.get("bytes")?,
            content_type: row.get("content_type")?,
            hash: row.get("hash")?,
            etag: row.get("etag")?,
            last_modified: row.get("last_modified")?,
            remote: row.get("remote")?,
            redirect: row.get("redirect")?,
            canonical: row.get("canonical")?,
            title: row.get("title")?,
            noindex: row.get("noindex")?,
            job: row.get("job")?,
            pass: row.get("pass")?,
            depth: row.get("depth")?,
            task: row.get("task")?,
            attempt: row.get("attempt")?,
            links: serde_json::from_str(&links).unwrap_or_default(),
            nofollow: nofollow.and_then(|nofollow| serde_json::from_str(&nofollow).ok()),
            reading: row.get("reading")?,
        })
    }

    /// Reads a line; the error is text for a person.
    pub(super) fn from_json(line: &[u8]) -> Result<Self, String> {
        let mut record: Self = serde_json::from_slice(line).map_err(|error| error.to_string())?;
        record.reading = Some(READING_UNKNOWN.to_owned());
        if PageId::parse(&record.page).is_none() {
            return Err(format!("{:?} is not a page id", record.page));
        }
        Ok(record)
    }

    /// Bytes of its links.
    pub(super) fn link_bytes(&self) -> usize {
        self.links.iter().map(|link| link.len()).sum()
    }

    /// The JSON line, without its end.
    pub(super) fn to_json(&self) -> String {
        serde_json::to_string(self).expect(JSON)
    }

    /// Runs a statement with the parameters of [`UPSERT`](crate::sink::sqlite).
    pub(super) fn upsert(&self, statement: &mut CachedStatement<'_>) -> rusqlite::Result<()> {
        statement.execute(params![
            self.page,
            self.task,
            self.url,
            self.status,
            self.content_type,
            self.bytes,
            self.hash,
            self.title,
            self.fetched_at,
            self.duration_ms,
            self.job,
            self.pass,
            self.depth,
            self.attempt,
            self.outcome,
            self.reason,
            self.error,
            self.redirect,
            self.canonical,
            self.noindex,
            self.etag,
            self.last_modified,
            self.remote,
            url_fingerprint(&self.url),
            i64::try_from(self.links.len()).unwrap_or(i64::MAX),
            serde_json::to_string(&self.links).expect(JSON),
            self.nofollow.as_ref().map(|nofollow| serde_json::to_string(nofollow).expect(JSON)),
            self.reading,
        ])?;
        Ok(())
    }
}
