//! Reads the newest record of a page: for a conditional request, and to see whether it has changed.
//!
//! A connection and a thread of its own, so that a look-up never waits for a sync of the disk.

use std::path::Path;
use std::thread;

use rusqlite::{Connection, OpenFlags, OptionalExtension, Row, TransactionBehavior, params};
use tidings_documents::page::PageLink;
use tidings_egress::http::Validators;
use tidings_protocol::PageChange;
use tokio::sync::{mpsc, oneshot};

use super::url_fingerprint;
use crate::report::{Original, PageId, PageOutcome, PageRecord};
use crate::sink::{OpenError, STORE_BUSY_TIMEOUT};

/// Look-ups of earlier records that wait. Tasks wait when the queue is full.
const LOOKUP_QUEUE_MAX: usize = 1024;
/// Look-ups answered in one transaction.
const LOOKUP_BATCH_MAX: usize = 128;

/// A row keeps the `id` of the first attempt, so a page that was retried may be newer than rows
/// after it. A URL has a row for each pass, of which the last 4 are compared: each costs a read.
pub(super) const NEWEST: &str = "
    SELECT etag, last_modified, hash, text_hash, rendered_hash, title, content_type, bytes, canonical, noindex, link_urls,
        nofollow, original, reading IS ?4 AS has_same_links
    FROM pages WHERE id = (SELECT id FROM (
        SELECT id, fetched_at FROM pages
        WHERE url_print = ?1 AND url = ?2 AND page <> ?3 AND outcome = 'done' AND hash IS NOT NULL
        ORDER BY id DESC LIMIT 4) ORDER BY fetched_at DESC, id DESC LIMIT 1)";

/// In the order of the index, which contains only such rows.
pub(super) const ANY: &str =
    "SELECT url_print FROM pages WHERE outcome = 'done' ORDER BY url_print LIMIT 1";

/// What is known about earlier records of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EarlierRecord {
    /// There is no database, or it cannot be read.
    Unknown,
    /// There is no complete one.
    Never,
    /// The newest complete one.
    Newest(Box<LastRecord>),
}

/// The newest complete record of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastRecord {
    /// The validators for a conditional request. None if its links were extracted under other
    /// settings: they could not be restored.
    pub validators: Validators,
    /// BLAKE3 of the decoded body.
    pub hash: Option<blake3::Hash>,
    /// BLAKE3 of what a reader sees.
    pub text_hash: Option<blake3::Hash>,
    /// BLAKE3 of the rendered HTML. Then its title and links are those of the rendered page.
    pub rendered_hash: Option<blake3::Hash>,
    /// The text of its `<title>`.
    pub title: Option<String>,
    /// `Content-Type`, as the server sent it.
    pub content_type: Option<String>,
    /// Bytes of the decoded body.
    pub bytes: u64,
    /// The URL that the page declares as its own.
    pub canonical: Option<String>,
    /// The page asks search engines not to show it.
    pub noindex: bool,
    /// In the order of the page; empty without validators.
    pub links: Vec<PageLink>,
    /// Where the body is, if an output has stored it.
    pub original: Option<Original>,
}

/// The queue of the reader thread, which ends when this is dropped.
#[derive(Debug)]
pub(in crate::sink) struct LastRecordReader {
    queue: mpsc::Sender<LastRecordRequest>,
}

#[derive(Debug)]
enum LastRecordRequest {
    /// Whether there is a complete record.
    Any(oneshot::Sender<bool>),
    Newest {
        url: String,
        /// The page that is being fetched; its own record is excluded.
        page: String,
        answer: oneshot::Sender<EarlierRecord>,
    },
}

impl LastRecordReader {
    pub(super) fn start(
        path: &Path,
        reading: Option<String>,
    ) -> Result<(Self, thread::JoinHandle<()>), OpenError> {
        let sqlite = |source: rusqlite::Error| OpenError::Database {
            path: path.to_owned(),
            source: source.into(),
        };
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut connection = Connection::open_with_flags(path, flags).map_err(sqlite)?;
        connection.busy_timeout(STORE_BUSY_TIMEOUT).map_err(sqlite)?;
        let (queue, mut questions) = mpsc::channel(LOOKUP_QUEUE_MAX);
        let path = path.to_owned();
        let answering = {
            let path = path.clone();
            move || {
                let mut batch = Vec::new();
                while questions.blocking_recv_many(&mut batch, LOOKUP_BATCH_MAX) > 0 {
                    if let Err(error) = answer(&mut connection, reading.as_deref(), &mut batch) {
                        // Without an answer nothing is known about the page.
                        tracing::debug!("{}: {error}", path.display());
                        batch.clear();
                    }
                }
            }
        };
        let thread = thread::Builder::new().name("pages.db reader".to_owned()).spawn(answering);
        let thread = thread.map_err(|source| OpenError::Io { path, source })?;
        Ok((Self { queue }, thread))
    }

    /// Whether there are records now, of this crawler or another; also if the file cannot be read.
    pub(in crate::sink) async fn has_records(&self) -> bool {
        let (answer, answered) = oneshot::channel();
        self.send(LastRecordRequest::Any(answer)).await;
        answered.await.unwrap_or(true)
    }

    pub(in crate::sink) async fn find(&self, url: &str, page: &PageId) -> EarlierRecord {
        let (answer, answered) = oneshot::channel();
        let (url, page) = (url.to_owned(), page.to_string());
        self.send(LastRecordRequest::Newest { url, page, answer }).await;
        answered.await.unwrap_or(EarlierRecord::Unknown)
    }

    async fn send(&self, request: LastRecordRequest) {
        // If the queue is closed, the request is dropped, and its answer with it.
        let _ = self.queue.send(request).await;
    }
}

impl EarlierRecord {
    /// The newest complete record, if there is one.
    pub fn newest(&self) -> Option<&LastRecord> {
        match self {
            Self::Newest(last) => Some(last),
            Self::Unknown | Self::Never => None,
        }
    }

    /// Whether a fetched page differs from the newest complete record, for a reader: another
    /// number in a comment is no change. Of a page that a browser has rendered both times, the
    /// rendered HTML is compared: its documents may all be the same.
    pub(crate) fn change_of(&self, page: &PageRecord) -> Option<PageChange> {
        if page.report.outcome != PageOutcome::Done {
            return None;
        }
        if page.report.status == Some(304) {
            return Some(PageChange::No);
        }
        let last = match self {
            Self::Unknown => return None,
            Self::Never => return Some(PageChange::New),
            Self::Newest(last) => last,
        };
        let now = page.rendered_hash();
        let bytes = last.rendered_hash.zip(now).or_else(|| last.hash.zip(page.hash))?;
        let is_alike = last.rendered_hash.is_some() == now.is_some();
        let text = last.text_hash.zip(page.text_hash).filter(|_| is_alike);
        let is_same = [Some(bytes), text].into_iter().flatten().any(|(before, now)| before == now);
        Some(if is_same { PageChange::No } else { PageChange::Yes })
    }
}

/// Answers all waiting requests in one transaction: beginning one costs more than a look-up.
fn answer(
    connection: &mut Connection,
    reading: Option<&str>,
    batch: &mut Vec<LastRecordRequest>,
) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Deferred)?;
    let mut statement = transaction.prepare_cached(NEWEST)?;
    // Callers may be gone.
    for request in batch.drain(..) {
        match request {
            LastRecordRequest::Any(answer) => {
                let _ = answer.send(transaction.prepare(ANY)?.exists([])?);
            }
            LastRecordRequest::Newest { url, page, answer } => {
                let parameters = params![url_fingerprint(&url), url, page, reading];
                let last = statement.query_row(parameters, read).optional()?;
                let last =
                    last.map_or(EarlierRecord::Never, |last| EarlierRecord::Newest(last.into()));
                let _ = answer.send(last);
            }
        }
    }
    Ok(())
}

/// Reads a row. Users may have changed the file: a malformed list is read as empty.
fn read(row: &Row<'_>) -> rusqlite::Result<LastRecord> {
    let validators = if row.get("has_same_links")? {
        Validators { etag: row.get("etag")?, last_modified: row.get("last_modified")? }
    } else {
        Validators::default()
    };
    let links = if validators.is_empty() { Vec::new() } else { read_links(row)? };
    let hash = |name: &str| {
        let hash: Option<String> = row.get(name)?;
        Ok::<_, rusqlite::Error>(hash.and_then(|hash| blake3::Hash::from_hex(hash).ok()))
    };
    let original: Option<String> = row.get("original")?;
    Ok(LastRecord {
        validators,
        hash: hash("hash")?,
        text_hash: hash("text_hash")?,
        rendered_hash: hash("rendered_hash")?,
        title: row.get("title")?,
        content_type: row.get("content_type")?,
        bytes: row.get::<_, i64>("bytes")?.unsigned_abs(),
        canonical: row.get("canonical")?,
        noindex: row.get("noindex")?,
        links,
        original: original.and_then(|original| serde_json::from_str(&original).ok()),
    })
}

fn read_links(row: &Row<'_>) -> rusqlite::Result<Vec<PageLink>> {
    let links: String = row.get("link_urls")?;
    let links: Vec<Box<str>> = serde_json::from_str(&links).unwrap_or_default();
    let nofollow: Option<String> = row.get("nofollow")?;
    let nofollow: Vec<usize> =
        nofollow.and_then(|nofollow| serde_json::from_str(&nofollow).ok()).unwrap_or_default();
    let mut links: Vec<_> =
        links.into_iter().map(|url| PageLink { url, nofollow: false }).collect();
    for at in nofollow {
        links.get_mut(at).into_iter().for_each(|link| link.nofollow = true);
    }
    Ok(links)
}
