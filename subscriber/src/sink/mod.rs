//! Where pages are kept. A task is answered only when its page is safe in every sink.
//!
//! ```text
//!                 ┌─▶ queue ─▶ thread ─▶ SQLite
//!   store(page) ──┼─▶ queue ─▶ thread ─▶ JSON lines     Ok when the last of them has it
//!                 └─▶ queue ─▶ thread ─▶ WARC
//! ```
//!
//! Each sink has a thread of its own, which takes what has come meanwhile as one batch and makes it safe
//! with one sync. A sink that fails (a full disk, a server that is gone) keeps its batch and tries it again
//! until it succeeds; the others go on. Meanwhile whoever stores waits, and [`Sinks::trouble`] tells the
//! worker to take no new tasks.
//!
//! # The same page again
//!
//! A page is known by its [`PageId`]. It comes again when its task was lost between the sink and the
//! broker, or was handed back because another sink failed; yet no sink may hold it twice. A database
//! replaces the row. A file that only grows skips it: see `ledger.rs` for how it knows. Such files
//! hold final results only.

mod append;
mod exec;
pub mod export;
pub mod jsonl;
mod ledger;
#[cfg(feature = "postgres")]
pub mod postgres;
mod row;
pub mod sqlite;
#[cfg(test)]
pub(crate) mod testing;
mod trouble;
mod warc;
mod writer;

use std::collections::HashSet;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::oneshot;

pub use self::append::share_outputs;
use self::exec::Exec;
use self::jsonl::{JsonFile, JsonStream};
use self::ledger::Ledger;
#[cfg(feature = "postgres")]
use self::postgres::{Postgres, PostgresConfig};
pub use self::sqlite::Last;
use self::sqlite::{Lookup, Sqlite};
pub(crate) use self::trouble::{Place, Troubles};
use self::warc::Warc;
use self::writer::Writer;
use crate::config::{CrawlerConfig, STORE_BATCH_MAX};
use crate::program::Programs;
use crate::report::{Keep, PageId, PageRecord};

/// A place for pages.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum SinkConfig {
    /// An `SQLite` database, shared with whoever else stores there.
    Sqlite(PathBuf),
    /// A file of JSON lines, added to.
    Jsonl(PathBuf),
    /// JSON lines on standard output.
    Stdout,
    /// WARC files, the names of which begin with this.
    Warc {
        /// What their names begin with, and where they are.
        prefix: PathBuf,
        /// A file that has these bytes is closed, and another begun.
        bytes_max: u64,
    },
    /// A `PostgreSQL` database, shared with whoever else stores there.
    #[cfg(feature = "postgres")]
    Postgres(Box<PostgresConfig>),
    /// A program, with its arguments, that is run for each page.
    Exec(Vec<OsString>),
}

impl SinkConfig {
    /// A program to be run: words between white space, which quotes hold together. `None`: nothing, or a quote
    /// without its end.
    pub fn exec(command: &str) -> Option<Self> {
        exec::words(command).map(Self::Exec)
    }
}

/// What people are told of where their pages are.
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

/// Why a sink cannot be used. What was in it is as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The file, its directory or its thread cannot be made.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// What was to be opened.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The file cannot be opened as a database, or is none.
    #[error("{path}: {source}", path = path.display())]
    Sqlite {
        /// What was to be opened.
        path: PathBuf,
        /// Why not.
        source: rusqlite::Error,
    },
    /// A newer Tidings wrote it.
    #[error(
        "{path} has schema version {found}, this Tidings knows up to {known}; use the newer \
         Tidings that wrote it, or another file",
        path = path.display(),
        known = sqlite::VERSION
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: i64,
    },
    /// The server cannot be reached, will not have us, or has tables that are not ours.
    #[cfg(feature = "postgres")]
    #[error("{database}: {reason}")]
    Postgres {
        /// Which database.
        database: String,
        /// Why not.
        reason: String,
    },
    /// Another process writes to it.
    #[error("{path} is being written by another process; give each crawler a file of its own", path = path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
}

/// Pages cannot be stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the page cannot be stored: {text}")]
pub struct StoreError {
    /// Which sink, and what the system says.
    pub text: String,
    /// Nothing will ever be written there again: whoever read the output has gone.
    pub closed: bool,
}

/// One place for pages, used by one thread.
pub(crate) trait Sink: Send {
    /// What people know it by.
    fn name(&self) -> String;

    /// Makes these pages safe. After an error either none of them is there, or those that are will be
    /// recognised: the same batch comes again, perhaps without some that nobody waits for any more.
    fn write(&mut self, batch: &[Arc<PageRecord>]) -> Result<(), StoreError>;

    /// How many pages it takes at a time.
    fn batch_max(&self) -> usize {
        STORE_BATCH_MAX
    }

    /// Pages of the batches that were written which it would not have, and why: their tasks are tried again.
    fn take_refused(&mut self) -> Vec<(PageId, String)> {
        Vec::new()
    }

    /// The broker has taken the answers for these pages: they come no more.
    fn settle(&mut self, _pages: &[PageId]) {}

    /// Whether it is to be told with [`Sink::settle`].
    fn wants_settled(&self) -> bool {
        false
    }

    /// Nothing comes any more.
    fn close(&mut self) {}
}

/// All sinks of a crawler. The threads end when this is dropped and everything was written.
#[derive(Debug)]
pub struct Sinks {
    writers: Vec<Writer>,
    troubles: Troubles,
    /// Answers from the database, if there is one.
    lookup: Option<Lookup>,
    keep: Keep,
    /// End with this.
    programs: Programs,
}

/// Ends when everything was written and every sink is closed.
#[derive(Debug)]
pub struct Closing(Vec<oneshot::Receiver<()>>);

impl Sinks {
    /// Opens what the configuration names. May read for a while, of files that a crash has left.
    pub fn open(config: &CrawlerConfig) -> Result<(Self, Closing), OpenError> {
        let mut open = Self {
            writers: Vec::new(),
            troubles: Troubles::default(),
            lookup: None,
            keep: Keep::default(),
            programs: Programs::with_variables(&config.exec_variables),
        };
        let mut closing = Vec::new();
        for sink in config.sinks() {
            let sink = open.open_sink(&sink, config)?;
            let (writer, closed) = Writer::start(sink, open.troubles.place())?;
            open.writers.push(writer);
            closing.push(closed);
        }
        Ok((open, Closing(closing)))
    }

    fn open_sink(
        &mut self,
        sink: &SinkConfig,
        config: &CrawlerConfig,
    ) -> Result<Box<dyn Sink>, OpenError> {
        Ok(match sink {
            SinkConfig::Sqlite(path) => {
                let (sqlite, lookup) = Sqlite::open(path, config.links.reading())?;
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
                Box::new(Warc::open(prefix, *bytes_max, &config.agent)?)
            }
            #[cfg(feature = "postgres")]
            SinkConfig::Postgres(config) => Box::new(Postgres::open(config)?),
            SinkConfig::Exec(words) => {
                self.keep.decoded = true;
                Box::new(Exec::open(words, self.programs.clone())?)
            }
        })
    }

    /// What must be kept of a page until it is stored.
    pub fn keep(&self) -> Keep {
        self.keep
    }

    /// Stores a page, in place of an earlier attempt at it: `Ok` once it is safe in every sink. Waits
    /// as long as one of them fails. A page of which this was not awaited may still be stored.
    pub async fn store(&self, record: &Arc<PageRecord>) -> Result<(), StoreError> {
        let mut answers = Vec::with_capacity(self.writers.len());
        for writer in &self.writers {
            answers.push(writer.send(Arc::clone(record)).await?);
        }
        for answer in answers {
            answer.await.unwrap_or_else(|_| Err(writer::gone()))?;
        }
        Ok(())
    }

    /// The broker has taken the final answer for a page.
    pub fn settled(&self, page: &PageId) {
        for writer in &self.writers {
            writer.settled(page);
        }
    }

    /// Where somebody else who writes what pages need says that it fails.
    pub(crate) fn place(&self) -> Place {
        self.troubles.place()
    }

    /// Why nothing can be stored at present.
    pub fn trouble(&self) -> Option<StoreError> {
        self.troubles.first()
    }

    /// Waits until there is trouble, or none any more, after there `was` some or none.
    pub async fn change(&self, was: bool) -> Option<StoreError> {
        self.troubles.change(was).await
    }

    /// Whether the database had records when it was opened that servers can be asked about.
    pub fn have_records(&self) -> bool {
        self.lookup.as_ref().is_some_and(Lookup::has_records)
    }

    /// The newest complete record of a URL that its server can be asked about (`ETag`, `Last-Modified`), if there
    /// is a database. Not that of this very page, which is of an attempt whose answer was lost; nor one of which
    /// the links were read in another way.
    pub async fn last(&self, url: &str, page: &PageId) -> Option<Last> {
        self.lookup.as_ref()?.last(url, page).await
    }
}

impl Drop for Sinks {
    fn drop(&mut self) {
        // First, so that those who are ended do not count as trouble.
        self.writers.clear();
        self.programs.kill();
    }
}

impl Closing {
    /// Waits until the threads have ended. Drop the sinks first.
    pub async fn wait(self) {
        for closed in self.0 {
            let _ = closed.await;
        }
    }
}

/// Those of a batch that a file that only grows is to have: final, and not there yet. Of several attempts at
/// a page the first is as good as any.
fn fresh<'a>(
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

/// Makes the directory that a file is to be in.
fn make_parent(path: &Path) -> Result<(), OpenError> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => std::fs::create_dir_all(parent)
            .map_err(|source| OpenError::Io { path: parent.to_owned(), source }),
        _ => Ok(()),
    }
}
