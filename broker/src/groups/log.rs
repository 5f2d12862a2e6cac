//! Where a group's records go. The machine knows nothing of it; its owner writes here before it lets
//! an output leave.

mod on_disk;

use std::sync::Arc;

pub(in crate::groups) use self::on_disk::DiskLog;
use crate::group::record::Record;
use crate::log::TopicLog;
use crate::topic::Health;

/// Place in a log: the number of the next record. Half-open, so that marks compare directly.
pub(super) type Mark = u64;

/// An append-only sequence of records.
pub(super) trait GroupLog: Send {
    /// Appends a record and returns the mark behind it.
    fn append(&mut self, record: &Record) -> Mark;

    /// What was appended since the last time is on its way: together, or not at all. What is before the mark `awaited`
    /// is [`durable`](Self::durable) as soon as can be; for the rest, nobody waits, and it may take a moment.
    fn flush(&mut self, awaited: Mark);

    /// The same for all of it, if it is so much that the disk should begin with it; whether it was. What one
    /// input led to must have been appended as a whole.
    fn flush_much(&mut self) -> bool;

    /// Everything before this mark outlives the process.
    /// Invariant: `durable <= written <= ` the mark of the last append.
    fn written(&self) -> Mark;

    /// Everything before this mark is as safe as the log promises.
    fn durable(&self) -> Mark;

    /// Whether it can be written. What was appended while it cannot is written when it can again.
    fn health(&self) -> Health;

    /// Whether so much waits for the disk that nothing more should be begun. Who asks is woken when
    /// that has changed.
    fn is_behind(&self) -> bool;

    /// Whether so much waits for the disk that nothing should be added that could wait. As with
    /// [`is_behind`](Self::is_behind), who asks is woken.
    fn is_busy(&self) -> bool;

    /// Finds out whether a full disk has room again. To be called from time to time.
    fn retry(&self);

    /// Whether so much was written since the last snapshot that there should be another one.
    fn wants_snapshot(&self) -> bool;

    /// A snapshot begins with the next record.
    fn begin_snapshot(&mut self);

    /// It has ended with the last one: what is before it goes, once it is safe.
    fn end_snapshot(&mut self);

    /// What it is kept in, if anything.
    fn store(&self) -> Option<Arc<dyn TopicLog>>;
}

/// Without a data directory: safe as long as the process lives.
#[derive(Debug, Default)]
pub(super) struct MemoryLog(Mark);

impl GroupLog for MemoryLog {
    fn append(&mut self, _: &Record) -> Mark {
        self.0 += 1;
        self.0
    }

    fn flush(&mut self, _: Mark) {}

    fn flush_much(&mut self) -> bool {
        false
    }

    fn written(&self) -> Mark {
        self.0
    }

    fn durable(&self) -> Mark {
        self.0
    }

    fn health(&self) -> Health {
        Health::Good
    }

    fn is_behind(&self) -> bool {
        false
    }

    fn is_busy(&self) -> bool {
        false
    }

    fn retry(&self) {}

    fn wants_snapshot(&self) -> bool {
        false
    }

    fn begin_snapshot(&mut self) {}

    fn end_snapshot(&mut self) {}

    fn store(&self) -> Option<Arc<dyn TopicLog>> {
        None
    }
}
