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
//! | [`contents`] | the result of all records; pure |
//! | [`write_batch`] | records that are written together; pure |
//!
//! It holds the settings of topics, the next seqs of deleted topics, the reserved seqs of topics in
//! memory, durable cursors, and the positions of groups. All are small. With one file, one sync
//! covers all changes that arrive together.

mod contents;
mod record;
#[cfg(test)]
mod tests;
mod write_batch;

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::{fmt, io};

use parking_lot::{Condvar, Mutex, RwLock, RwLockReadGuard};
use tidings_log::{Journal, JournalContents, JournalError, SegmentStore, Store};
use tidings_protocol::{Code, ProtocolError};

use self::contents::CatalogLimits;
pub(crate) use self::contents::{CatalogContents, StoredCursor};
pub(crate) use self::record::CatalogRecord;
use self::write_batch::WriteBatch;
use crate::clock::Clock;
use crate::limits::Limits;

/// Checks the catalog in a store. Returns descriptions of damage, and whether kept data cannot be
/// read. Changes nothing.
pub(crate) fn check(store: &SegmentStore) -> io::Result<(Vec<String>, bool)> {
    store.check_journal(&mut CatalogContents::default())
}

/// What the records of a catalog amount to, before the first of them. For a copy of its journal.
pub fn empty_catalog() -> Box<dyn JournalContents> {
    Box::new(CatalogContents::default())
}

/// The catalog of a broker. Cheap to clone.
///
/// Dropping the last clone closes it.
#[derive(Debug, Clone)]
pub(crate) struct Catalog(Arc<CatalogHandle>);

#[derive(Debug)]
struct CatalogHandle {
    shared: Arc<CatalogShared>,
    /// `None` without a journal, and after `close`.
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct CatalogShared {
    contents: RwLock<CatalogContents>,
    bounds: CatalogLimits,
    queue: Mutex<WriteQueue>,
    /// A record was queued, or the catalog was closed.
    changed: Condvar,
}

#[derive(Debug)]
struct WriteQueue {
    pending: Vec<PendingWrite>,
    /// A thread writes the queued records to a journal.
    has_journal: bool,
    closed: bool,
}

type DoneCallback = Box<dyn FnOnce(Result<(), ProtocolError>) + Send>;

struct PendingWrite {
    record: CatalogRecord,
    done: DoneCallback,
}

impl fmt::Debug for PendingWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.record.fmt(f)
    }
}

impl Catalog {
    /// Opens the catalog of a store, and returns it with descriptions of damage. Blocks.
    ///
    /// Fails if an existing journal cannot be read or is of a newer version: it is never treated as
    /// an empty one.
    pub(crate) fn open(
        store: &dyn Store,
        limits: &Limits,
        clock: Clock,
    ) -> io::Result<(Self, Vec<String>)> {
        let mut contents = CatalogContents::default();
        let (journal, findings) = store.open_journal(clock.unix_ms(), &mut contents)?;
        let shared = Arc::new(CatalogShared::new(contents, limits, true));
        let thread = thread::Builder::new().name("tidings-catalog".to_owned()).spawn({
            let shared = Arc::clone(&shared);
            move || shared.run(journal, clock)
        })?;
        let thread = Mutex::new(Some(thread));
        Ok((Self(Arc::new(CatalogHandle { shared, thread })), findings))
    }

    /// A catalog in memory, which ends with the broker.
    pub(crate) fn in_memory(limits: &Limits) -> Self {
        let shared = Arc::new(CatalogShared::new(CatalogContents::default(), limits, false));
        Self(Arc::new(CatalogHandle { shared, thread: Mutex::new(None) }))
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
        record: CatalogRecord,
        done: impl FnOnce(Result<(), ProtocolError>) + Send + 'static,
    ) {
        let shared = &self.0.shared;
        let mut queue = shared.queue.lock();
        if queue.closed {
            drop(queue);
            done(Err(ProtocolError::new(Code::Closing, "the broker stops")));
        } else if queue.has_journal {
            queue.pending.push(PendingWrite { record, done: Box::new(done) });
            drop(queue);
            shared.changed.notify_one();
        } else {
            // The queue stays locked, so that records take effect in their order.
            let result = shared.apply_in_memory(record);
            drop(queue);
            done(result);
        }
    }

    /// The durable contents. The caller must not write while it holds the guard.
    pub(crate) fn contents(&self) -> RwLockReadGuard<'_, CatalogContents> {
        self.0.shared.contents.read()
    }

    /// Writes everything queued and ends the thread. Blocks.
    pub(crate) fn close(&self) {
        self.0.close();
    }
}

impl CatalogHandle {
    fn close(&self) {
        self.shared.queue.lock().closed = true;
        self.shared.changed.notify_one();
        let thread = self.thread.lock().take();
        // A `done` may drop the last clone on the catalog's thread, which cannot join itself and
        // ends anyway.
        let thread = thread.filter(|thread| thread.thread().id() != thread::current().id());
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the catalog thread has panicked");
        }
    }
}

impl Drop for CatalogHandle {
    fn drop(&mut self) {
        self.close();
    }
}

impl CatalogShared {
    fn new(contents: CatalogContents, limits: &Limits, has_journal: bool) -> Self {
        Self {
            contents: RwLock::new(contents),
            bounds: CatalogLimits::new(limits),
            queue: Mutex::new(WriteQueue { pending: Vec::new(), has_journal, closed: false }),
            changed: Condvar::new(),
        }
    }

    fn apply_in_memory(&self, record: CatalogRecord) -> Result<(), ProtocolError> {
        let mut contents = self.contents.write();
        let mut turn = WriteBatch::default();
        turn.add(record, &contents, &self.bounds)?;
        turn.records().iter().for_each(|record| contents.apply(record));
        Ok(())
    }

    /// Writes queued records until the catalog is closed.
    fn run(&self, mut journal: Box<dyn Journal>, clock: Clock) {
        loop {
            let waiting = {
                let mut queue = self.queue.lock();
                while queue.pending.is_empty() && !queue.closed {
                    self.changed.wait(&mut queue);
                }
                std::mem::take(&mut queue.pending)
            };
            if waiting.is_empty() {
                return journal.close();
            }
            self.write_batch(waiting, &mut *journal, clock.unix_ms());
            // Compact after the callbacks, so that no caller waits for it.
            journal.compact_if_due(&*self.contents.read(), clock.unix_ms());
        }
    }

    fn write_batch(&self, waiting: Vec<PendingWrite>, journal: &mut dyn Journal, unix_ms: i64) {
        let mut turn = WriteBatch::default();
        let mut results: Vec<(DoneCallback, Result<(), ProtocolError>)> = Vec::new();
        let written = {
            let contents = self.contents.read();
            for PendingWrite { record, done } in waiting {
                results.push((done, turn.add(record, &contents, &self.bounds)));
            }
            let records: Vec<_> = turn.records().iter().map(ToString::to_string).collect();
            journal.append(&records, &*contents, unix_ms)
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
