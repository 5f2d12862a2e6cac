//! The catalog: everything but events that must survive a restart, in one small journal.
//!
//! ```text
//!   write(record, done) ──▶ queue ──▶ its thread: all queued records, one sync
//!                                       │ then
//!                                       ├──▶ contents: all durable records, for any reader
//!                                       └──▶ done
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | [`record`] | one change, as a line |
//! | [`settings`] | the settings of a topic |
//! | [`contents`] | the result of all records; pure |
//! | [`turn`] | records that are written together; pure |
//! | [`batches`] | the encoding of the journal; pure |
//! | [`journal`] | the file |
//!
//! It holds the settings of topics, the next seqs of deleted topics, the reserved seqs of topics in
//! memory, durable cursors, and the positions of groups. All are small. With one file, one sync
//! covers all changes that arrive together.

mod batches;
mod contents;
mod journal;
mod record;
mod settings;
#[cfg(test)]
mod tests;
mod turn;

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use parking_lot::{Condvar, Mutex, RwLock, RwLockReadGuard};
use tidings_protocol::{Code, ProtocolError};

use self::contents::Bounds;
use self::journal::{Journal, JournalError};
use self::turn::Turn;
use crate::clock::Clock;
use crate::config::Limits;
use crate::log::LogEnd;
use crate::log::disk::Disk;

pub(crate) use self::contents::{Contents, Cursor};

pub(crate) use self::record::Record;
pub use self::settings::{Sync, TopicSettings};

/// Checks the catalog in a directory. Returns descriptions of damage, and whether kept data cannot
/// be read. Changes nothing.
pub(crate) fn check(
    disk: &dyn Disk,
    dir: &Path,
    stopped: Option<&LogEnd>,
) -> io::Result<(Vec<String>, bool)> {
    journal::check(disk, dir, stopped)
}

/// The catalog of a broker. Cheap to clone.
///
/// Dropping the last clone closes it.
#[derive(Debug, Clone)]
pub(crate) struct Catalog(Arc<Owner>);

#[derive(Debug)]
struct Owner {
    shared: Arc<Shared>,
    /// `None` without a journal, and after `close`. The thread returns the end of the journal.
    thread: Mutex<Option<JoinHandle<Option<LogEnd>>>>,
}

#[derive(Debug)]
struct Shared {
    contents: RwLock<Contents>,
    bounds: Bounds,
    queue: Mutex<Queue>,
    /// A record was queued, or the catalog was closed.
    changed: Condvar,
}

#[derive(Debug)]
struct Queue {
    waiting: Vec<Waiting>,
    /// A thread writes the queued records to a journal.
    has_journal: bool,
    closed: bool,
}

type Done = Box<dyn FnOnce(Result<(), ProtocolError>) + Send>;

struct Waiting {
    record: Record,
    done: Done,
}

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.record.fmt(f)
    }
}

impl Catalog {
    /// Opens the catalog in an existing directory, and returns it with descriptions of damage.
    /// `stopped` is its end at the last orderly stop, if known. Blocks.
    ///
    /// Fails if an existing journal cannot be read or is of a newer version: it is never treated as
    /// an empty one.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        limits: &Limits,
        clock: Clock,
        stopped: Option<&LogEnd>,
    ) -> io::Result<(Self, Vec<String>)> {
        let (journal, contents, findings) = Journal::open(disk, dir, clock, stopped)?;
        let shared = Arc::new(Shared::new(contents, limits, true));
        let thread = thread::Builder::new().name("tidings-catalog".to_owned()).spawn({
            let shared = Arc::clone(&shared);
            move || shared.serve(journal)
        })?;
        let thread = Mutex::new(Some(thread));
        Ok((Self(Arc::new(Owner { shared, thread })), findings))
    }

    /// A catalog in memory, which ends with the broker.
    pub(crate) fn in_memory(limits: &Limits) -> Self {
        let shared = Arc::new(Shared::new(Contents::default(), limits, false));
        Self(Arc::new(Owner { shared, thread: Mutex::new(None) }))
    }

    /// Writes a record. It takes effect when it is durable, after all earlier records; then `done`
    /// is called on the catalog's thread. A catalog in memory does both within this call, so the
    /// caller must not hold a lock that `done` takes. `done` must not block.
    ///
    /// - [`Code::Full`]: the disk is full. Nothing was changed; the caller may try again later.
    /// - [`Code::Limit`]: a limit was reached. Nothing was changed.
    /// - [`Code::NotDurable`]: a write failed, and all later ones fail as well. The record may take
    ///   effect after a restart.
    /// - [`Code::Closing`]: the catalog is closed.
    pub(crate) fn write(
        &self,
        record: Record,
        done: impl FnOnce(Result<(), ProtocolError>) + Send + 'static,
    ) {
        let shared = &self.0.shared;
        let mut queue = shared.queue.lock();
        if queue.closed {
            drop(queue);
            done(Err(ProtocolError::new(Code::Closing, "the broker stops")));
        } else if queue.has_journal {
            queue.waiting.push(Waiting { record, done: Box::new(done) });
            drop(queue);
            shared.changed.notify_one();
        } else {
            // The queue stays locked, so that records take effect in their order.
            let result = shared.take_effect(record);
            drop(queue);
            done(result);
        }
    }

    /// The durable contents. The caller must not write while it holds the guard.
    pub(crate) fn contents(&self) -> RwLockReadGuard<'_, Contents> {
        self.0.shared.contents.read()
    }

    /// Writes everything queued and ends the thread. The first call returns the end of the journal.
    /// Blocks.
    pub(crate) fn close(&self) -> Option<LogEnd> {
        self.0.close()
    }
}

impl Owner {
    fn close(&self) -> Option<LogEnd> {
        self.shared.queue.lock().closed = true;
        self.shared.changed.notify_one();
        let thread = self.thread.lock().take();
        // A `done` may drop the last clone on the catalog's thread, which cannot join itself and
        // ends anyway.
        let thread = thread.filter(|thread| thread.thread().id() != thread::current().id())?;
        thread.join().unwrap_or_else(|_| {
            tracing::error!("the catalog thread has panicked");
            None
        })
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = self.close();
    }
}

impl Shared {
    fn new(contents: Contents, limits: &Limits, has_journal: bool) -> Self {
        Self {
            contents: RwLock::new(contents),
            bounds: Bounds::new(limits),
            queue: Mutex::new(Queue { waiting: Vec::new(), has_journal, closed: false }),
            changed: Condvar::new(),
        }
    }

    fn take_effect(&self, record: Record) -> Result<(), ProtocolError> {
        let mut contents = self.contents.write();
        let mut turn = Turn::default();
        turn.add(record, &contents, &self.bounds)?;
        turn.records().iter().for_each(|record| contents.apply(record));
        Ok(())
    }

    /// Writes queued records until the catalog is closed. Returns the end of the journal.
    fn serve(&self, mut journal: Journal) -> Option<LogEnd> {
        loop {
            let waiting = {
                let mut queue = self.queue.lock();
                while queue.waiting.is_empty() && !queue.closed {
                    self.changed.wait(&mut queue);
                }
                std::mem::take(&mut queue.waiting)
            };
            if waiting.is_empty() {
                return journal.end();
            }
            self.turn(waiting, &mut journal);
            // Compact after the callbacks, so that no caller waits for it.
            journal.compact_if_due(&self.contents.read());
        }
    }

    fn turn(&self, waiting: Vec<Waiting>, journal: &mut Journal) {
        let mut turn = Turn::default();
        let mut results: Vec<(Done, Result<(), ProtocolError>)> = Vec::new();
        let written = {
            let contents = self.contents.read();
            for Waiting { record, done } in waiting {
                results.push((done, turn.add(record, &contents, &self.bounds)));
            }
            journal.append(turn.records(), &contents)
        };
        if written.is_ok() {
            let mut contents = self.contents.write();
            turn.records().iter().for_each(|record| contents.apply(record));
        }
        let written = written.map_err(refusal);
        for (done, admitted) in results {
            done(admitted.and_then(|()| written.clone()));
        }
    }
}

/// The error for a client. The broker's log has the error of the system.
fn refusal(error: JournalError) -> ProtocolError {
    let (code, text) = match error {
        JournalError::Full => {
            (Code::Full, "the disk is full: nothing was changed; try again later")
        }
        JournalError::Broken => (
            Code::NotDurable,
            "writing to the disk failed: nothing is stored until the broker is restarted",
        ),
    };
    ProtocolError::new(code, text)
}
