//! The catalog: everything but events that must survive, in one small journal.
//!
//! ```text
//!   write(record, done) ──▶ queue ──▶ a thread of its own: one turn of records, one sync
//!                                       │ then
//!                                       ├──▶ contents: what is safe, for everybody to read
//!                                       └──▶ done
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | [`record`] | one change, as a line |
//! | [`settings`] | what a topic is told |
//! | [`contents`] | the sum of the records; pure |
//! | [`turn`] | records that are written together; pure |
//! | [`batches`] | the bytes of the journal; pure |
//! | [`journal`] | the file |
//!
//! Topics' settings, the next numbers of deleted topics, the reserved numbers of topics in memory,
//! durable cursors, and the positions of groups are all small and change often or never. One file
//! for all of them costs one sync for whatever changes at the same time.

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

/// What is wrong with the catalog in a directory, in words, and whether something that was kept cannot be
/// read. Changes nothing.
pub(crate) fn check(
    disk: &dyn Disk,
    dir: &Path,
    stopped: Option<&LogEnd>,
) -> io::Result<(Vec<String>, bool)> {
    journal::check(disk, dir, stopped)
}

/// The catalog of a broker. Cheap to clone.
///
/// The last clone that is dropped closes it.
#[derive(Debug, Clone)]
pub(crate) struct Catalog(Arc<Owner>);

#[derive(Debug)]
struct Owner {
    shared: Arc<Shared>,
    /// `None` without a journal, and once it is closed. Returns where the journal ends.
    thread: Mutex<Option<JoinHandle<Option<LogEnd>>>>,
}

#[derive(Debug)]
struct Shared {
    contents: RwLock<Contents>,
    bounds: Bounds,
    queue: Mutex<Queue>,
    /// Something was queued, or the catalog is closed.
    changed: Condvar,
}

#[derive(Debug)]
struct Queue {
    waiting: Vec<Waiting>,
    /// Somebody writes them.
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
    /// The catalog in a directory that exists, and what was wrong with it, in words. `stopped` is where it ended at
    /// the last orderly stop, if that is known. Blocks.
    ///
    /// Fails if the journal is there and cannot be read, or is of a later version: it is never
    /// taken for an empty one.
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

    /// A catalog that is gone when the broker is.
    pub(crate) fn in_memory(limits: &Limits) -> Self {
        let shared = Arc::new(Shared::new(Contents::default(), limits, false));
        Self(Arc::new(Owner { shared, thread: Mutex::new(None) }))
    }

    /// Has a record take effect once it is safe, after those that were written before, and then calls
    /// `done`, from the catalog's own thread. In memory both happen at once, so nothing is to be
    /// locked that `done` locks. `done` must not block.
    ///
    /// - [`Code::Full`]: there is no room on the disk. Nothing has changed, it may be tried again.
    /// - [`Code::Limit`]: there are too many of the kind. Nothing has changed.
    /// - [`Code::NotDurable`]: writing failed, and does so for ever after. Perhaps it takes effect
    ///   after a restart.
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
            // With the queue's lock, so that records take effect in their order.
            let result = shared.take_effect(record);
            drop(queue);
            done(result);
        }
    }

    /// What is safe. Nothing is to be written while this is held.
    pub(crate) fn contents(&self) -> RwLockReadGuard<'_, Contents> {
        self.0.shared.contents.read()
    }

    /// Writes everything that is queued, and ends the thread. Returns where the journal ends, the first time. Blocks.
    pub(crate) fn close(&self) -> Option<LogEnd> {
        self.0.close()
    }
}

impl Owner {
    fn close(&self) -> Option<LogEnd> {
        self.shared.queue.lock().closed = true;
        self.shared.changed.notify_one();
        let thread = self.thread.lock().take();
        // The last clone may be dropped by a `done`, on the thread itself, which then ends anyway.
        let thread = thread.filter(|thread| thread.thread().id() != thread::current().id())?;
        thread.join().unwrap_or_else(|_| {
            tracing::error!("the catalog's thread has panicked");
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

    /// Writes what is queued until the catalog is closed. Returns where the journal ends.
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
            // Afterwards, so that nobody waits for it.
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

/// What a peer is told. What the disk said is in the broker's own log.
fn refusal(error: JournalError) -> ProtocolError {
    let (code, text) = match error {
        JournalError::Full => {
            (Code::Full, "the disk is full: nothing was changed; try again later")
        }
        JournalError::Broken => {
            (Code::NotDurable, "writing to the disk failed: nothing is stored until a restart")
        }
    };
    ProtocolError::new(code, text)
}
