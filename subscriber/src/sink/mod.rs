//! The sinks that store pages. A task is answered only when its page is safe in every sink.
//!
//! ```text
//!                 ┌─▶ queue ─▶ thread ─▶ SQLite
//!   store(page) ──┼─▶ queue ─▶ thread ─▶ JSON lines     Ok when the last of them has it
//!                 └─▶ queue ─▶ thread ─▶ WARC
//! ```
//!
//! Each sink has a thread of its own, which takes all waiting pages as one batch and makes it safe
//! with one sync. A sink that fails (a full disk, a lost server) keeps its batch and retries until
//! it succeeds; the other sinks go on. Meanwhile callers of `store` wait, and [`Sinks::trouble`]
//! tells the worker to take no new tasks.
//!
//! # The same page again
//!
//! A page is identified by its [`PageId`]. It comes again when its task was lost between the sink
//! and the broker, or was returned because another sink failed; yet no sink may hold it twice. A
//! database replaces the row. An append-only file skips the page: see `ledger.rs`. Such files
//! contain final results only.
//!
//! # Conditional requests
//!
//! An unchanged page comes without its body (status 304). So validators are sent only if every
//! output that stores bodies has the body of the last record. The record in `SQLite` says which
//! outputs have it, and is written after they have synced it. An output that is created again, or
//! added later, has an id that no record names.

mod append;
mod bodies;
mod exec;
pub mod export;
pub mod jsonl;
mod ledger;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod rendered;
mod row;
pub mod sqlite;
#[cfg(test)]
pub(crate) mod testing;
mod warc;
mod writer;

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use tidings_database::schema_version::SchemaError;
use tokio::sync::oneshot;

pub use self::append::set_output_mode;
use self::bodies::BodyCompressor;
use self::exec::Exec;
use self::jsonl::{JsonFile, JsonStream};
use self::ledger::Ledger;
#[cfg(feature = "postgres")]
use self::postgres::{Postgres, PostgresConfig};
pub use self::sqlite::{EarlierRecord, LastRecord};
use self::sqlite::{LastRecordReader, Sqlite};
use self::warc::Warc;
use self::writer::SinkWriter;
use crate::metrics::CrawlerMetrics;
use crate::program::Programs;
use crate::report::{KeepBodies, Original, PageId, PageRecord};
pub use crate::store_error::StoreError;
use crate::store_error::{TroubleReporter, Troubles};

/// Pages that are synced together: bounds how long the first waits for the last.
const STORE_BATCH_MAX: usize = 512;
/// How long `SQLite` waits for another process that writes.
const STORE_BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of lines that are written to a file at a time.
const JSONL_CHUNK_BYTES: usize = 256 * 1024;
/// The longest line of JSON: links have `SITEMAP_LINKS_BYTES_MAX` and some words each, the result
/// of rendering has less than 1 MiB, and JSON doubles a character at most.
const JSONL_LINE_BYTES_MAX: u64 = 32 * 1024 * 1024;
/// After that, the sinks may take this long to close. Less than a second together.
pub(crate) const STOP_CLOSE: Duration = Duration::from_millis(200);

/// The configuration of a sink.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum SinkConfig {
    /// An `SQLite` database, which other processes may write too.
    Sqlite(PathBuf),
    /// A file of JSON lines, which is appended to.
    Jsonl(PathBuf),
    /// JSON lines on standard output.
    Stdout,
    /// WARC files.
    Warc {
        /// The directory and the beginning of the file names.
        prefix: PathBuf,
        /// The size at which a file is closed and the next one begun.
        bytes_max: u64,
    },
    /// A `PostgreSQL` database, which other processes may write too.
    #[cfg(feature = "postgres")]
    Postgres(Box<PostgresConfig>),
    /// A program and its arguments, which runs for each page.
    Exec(Vec<OsString>),
}

impl SinkConfig {
    /// A program to run: words separated by white space; quotes keep it in a word. `None` for an
    /// empty text or a missing closing quote.
    pub fn exec(command: &str) -> Option<Self> {
        exec::words(command).map(Self::Exec)
    }

    /// Whether it can keep the bodies of pages.
    pub fn is_database(&self) -> bool {
        !matches!(self, Self::Jsonl(_) | Self::Stdout | Self::Warc { .. } | Self::Exec(_))
    }
}

/// The place of the pages, for people.
impl fmt::Display for SinkConfig {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) | Self::Jsonl(path) => write!(out, "{}", path.display()),
            Self::Stdout => out.write_str("standard output"),
            Self::Warc { prefix, .. } => write!(out, "{}-*.warc.gz", prefix.display()),
            #[cfg(feature = "postgres")]
            Self::Postgres(config) => out.write_str(&config.name()),
            Self::Exec(words) => write!(out, "{}", words[0].display()),
        }
    }
}

/// Why a sink cannot be opened. Its content is unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The file, its directory or its thread cannot be created.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The path that was to be opened.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file cannot be opened as a database, or is one of another version.
    #[error("{path}: {source}", path = path.display())]
    Database {
        /// The path that was to be opened.
        path: PathBuf,
        /// The cause.
        source: SchemaError,
    },
    /// The server cannot be reached, rejects the login, or has tables of another schema.
    #[cfg(feature = "postgres")]
    #[error("{database}: {reason}")]
    Postgres {
        /// The name of the database.
        database: String,
        /// The cause.
        reason: String,
    },
    /// Another process writes to it.
    #[error("{path} is being written by another process; give each crawler a file of its own", path = path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
}

/// A sink, used by one thread.
trait Sink: Send {
    /// The name for messages.
    fn name(&self) -> String;

    /// Makes these pages safe. After an error either none of them is stored, or the stored ones
    /// will be recognized: the same batch comes again, perhaps without pages that have lost their
    /// caller.
    fn write(&mut self, batch: &[Arc<PageRecord>]) -> Result<(), StoreError>;

    /// The largest batch, in pages.
    fn batch_max(&self) -> usize {
        STORE_BATCH_MAX
    }

    /// The approximate memory of a page while its batch is written.
    fn batch_bytes(&self, record: &PageRecord) -> usize {
        record.bytes_in_memory()
    }

    /// Pages of the written batches that the sink refused, with the reason: their tasks are
    /// retried.
    fn take_refused(&mut self) -> Vec<(PageId, String)> {
        Vec::new()
    }

    /// The pages that may come again, if the sink must recognize them. Those for which the broker
    /// has applied the reply are removed from it.
    fn ledger(&mut self) -> Option<&mut Ledger> {
        None
    }

    /// The id of the output, if it stores bodies of pages. One that is created again has a new id.
    fn body_output(&self) -> Option<String> {
        None
    }

    /// Closes the sink after the last page.
    fn close(&mut self) {}
}

/// All sinks of a crawler. The threads end when this is dropped and all pages are written.
#[derive(Debug)]
pub struct Sinks {
    /// The database with earlier records is the last.
    writers: Vec<SinkWriter>,
    troubles: Troubles,
    /// Reads earlier records, if there is a database.
    lookup: Option<LastRecordReader>,
    /// The ids of the outputs that store bodies.
    body_outputs: Vec<String>,
    keep: KeepBodies,
    /// Whether a sink needs each decoded body as a file.
    need_files: bool,
    /// Killed when this is dropped.
    programs: Programs,
}

/// Resolves when all pages are written and every sink is closed.
#[derive(Debug)]
pub struct SinksClosing(Vec<oneshot::Receiver<()>>);

/// What the sinks of a crawler share.
#[derive(Clone, Debug)]
pub struct SinkContext<'a> {
    /// The `User-Agent` of its requests, for WARC files.
    pub agent: &'a str,
    /// How links are extracted, if not by the defaults.
    pub extraction_mode: Option<String>,
    /// Environment variables that programs inherit, in addition to the usual ones.
    pub exec_variables: &'a [String],
    /// Whether databases keep the bodies of pages.
    pub bodies: bool,
    /// Where the time of writes is counted.
    pub metrics: Arc<CrawlerMetrics>,
}

impl Sinks {
    /// Opens the configured sinks. May take a while to read files that a crash has left.
    pub fn open(
        sinks: &[SinkConfig],
        context: &SinkContext<'_>,
    ) -> Result<(Self, SinksClosing), OpenError> {
        let mut open = Self {
            writers: Vec::new(),
            troubles: Troubles::default(),
            lookup: None,
            body_outputs: Vec::new(),
            keep: KeepBodies::default(),
            need_files: false,
            programs: Programs::with_variables(context.exec_variables),
        };
        let mut closing = Vec::new();
        let mut sinks: Vec<_> = sinks.iter().collect();
        sinks.sort_by_key(|sink| matches!(sink, SinkConfig::Sqlite(_)));
        for sink in sinks {
            let sink = open.open_sink(sink, context)?;
            open.body_outputs.extend(sink.body_output());
            let (writer, closed) =
                SinkWriter::start(sink, open.troubles.reporter(), Arc::clone(&context.metrics))?;
            open.writers.push(writer);
            closing.push(closed);
        }
        Ok((open, SinksClosing(closing)))
    }

    fn open_sink(
        &mut self,
        sink: &SinkConfig,
        context: &SinkContext<'_>,
    ) -> Result<Box<dyn Sink>, OpenError> {
        let bodies = BodyCompressor::new(context.bodies);
        self.keep.decoded |= context.bodies && sink.is_database();
        Ok(match sink {
            SinkConfig::Sqlite(path) => {
                let (sqlite, lookup) = Sqlite::open(path, context.extraction_mode.clone(), bodies)?;
                self.lookup = Some(lookup);
                Box::new(sqlite)
            }
            SinkConfig::Jsonl(path) => Box::new(JsonFile::open(path)?),
            SinkConfig::Stdout => Box::new(
                JsonStream::stdout()
                    .map_err(|source| OpenError::Io { path: "standard output".into(), source })?,
            ),
            SinkConfig::Warc { prefix, bytes_max } => {
                self.keep.raw = true;
                Box::new(Warc::open(prefix, *bytes_max, context.agent)?)
            }
            #[cfg(feature = "postgres")]
            SinkConfig::Postgres(config) => Box::new(Postgres::open(config, bodies)?),
            SinkConfig::Exec(words) => {
                self.keep.decoded = true;
                self.need_files = true;
                Box::new(Exec::open(words, self.programs.clone())?)
            }
        })
    }

    /// The bodies that must be kept until a page is stored.
    pub fn keep(&self) -> KeepBodies {
        self.keep
    }

    /// Whether a sink needs each decoded body as a file.
    pub(crate) fn need_files(&self) -> bool {
        self.need_files
    }

    /// Stores a page in place of an earlier attempt; returns once it is safe in every sink. Waits
    /// while a sink fails. If this is cancelled, the page may still be stored.
    pub async fn store(&self, record: &Arc<PageRecord>) -> Result<(), StoreError> {
        let databases = usize::from(self.lookup.is_some());
        let (others, database) = self.writers.split_at(self.writers.len() - databases);
        for writers in [others, database] {
            let mut answers = Vec::with_capacity(writers.len());
            for writer in writers {
                answers.push(writer.send(Arc::clone(record)).await?);
            }
            for answer in answers {
                answer.await.unwrap_or_else(|_| Err(writer::writer_ended()))?;
            }
        }
        Ok(())
    }

    /// The broker has applied the final reply for a page.
    pub fn settled(&self, page: &PageId) {
        for writer in &self.writers {
            writer.settled(page);
        }
    }

    /// A reporter of trouble for another writer that pages depend on.
    pub(crate) fn trouble_reporter(&self) -> TroubleReporter {
        self.troubles.reporter()
    }

    /// Why pages cannot be stored at present.
    pub fn trouble(&self) -> Option<StoreError> {
        self.troubles.first()
    }

    /// Where the body of a page is after it is stored.
    pub(crate) fn original_of(&self, record: &PageRecord) -> Option<Original> {
        let is_stored = record.report.status == Some(200) && !self.body_outputs.is_empty();
        is_stored.then(|| Original {
            started_unix_ms: record.exchange.as_ref().map(|exchange| exchange.started_unix_ms),
            outputs: self.body_outputs.clone(),
        })
    }

    /// Whether every output that stores bodies has that of this record.
    pub(crate) fn have_body_of(&self, last: Option<&LastRecord>) -> bool {
        let original = last.and_then(|last| last.original.as_ref());
        let has = |output| original.is_some_and(|original| original.outputs.contains(output));
        self.body_outputs.iter().all(has)
    }

    /// Waits until the sinks get into trouble or out of it; `was` tells whether there was trouble
    /// before.
    pub async fn trouble_change(&self, was: bool) -> Option<StoreError> {
        self.troubles.change(was).await
    }

    /// Whether there is an `SQLite` database, whose records are compared.
    pub fn may_have_records(&self) -> bool {
        self.lookup.is_some()
    }

    /// Whether the database has complete records, if there is one; also if it cannot be read.
    pub async fn have_records(&self) -> bool {
        match &self.lookup {
            None => false,
            Some(lookup) => lookup.has_records().await,
        }
    }

    /// The newest complete record of a URL, if there is an `SQLite` database. Excludes the record of
    /// this very page, which is of an attempt with a lost reply. Without `may_exist` nothing is read.
    pub async fn earlier_record(&self, url: &str, page: &PageId, may_exist: bool) -> EarlierRecord {
        match &self.lookup {
            None => EarlierRecord::Unknown,
            Some(_) if !may_exist => EarlierRecord::Never,
            Some(lookup) => lookup.find(url, page).await,
        }
    }
}

impl Drop for Sinks {
    fn drop(&mut self) {
        // First, so that killed programs do not count as trouble.
        self.writers.clear();
        self.programs.kill();
    }
}

impl SinksClosing {
    /// Waits until the threads have ended. Drop the sinks first.
    pub async fn wait(self) {
        for closed in self.0 {
            let _ = closed.await;
        }
    }
}

/// The pages of a batch that an append-only file must get: final, and not in it yet. Of several
/// attempts the first is as good as any.
fn unwritten_final<'a>(
    batch: &'a [Arc<PageRecord>],
    ledger: &Ledger,
) -> impl Iterator<Item = &'a PageRecord> + use<'a> {
    let mut seen = HashSet::new();
    let fresh: Vec<_> = batch
        .iter()
        .map(Arc::as_ref)
        .filter(|record| record.is_final() && !ledger.contains(&record.page))
        .filter(|record| seen.insert(&record.page))
        .collect();
    fresh.into_iter()
}

/// Creates the parent directory of a file.
fn create_parent(path: &Path) -> Result<(), OpenError> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => std::fs::create_dir_all(parent)
            .map_err(|source| OpenError::Io { path: parent.to_owned(), source }),
        _ => Ok(()),
    }
}
