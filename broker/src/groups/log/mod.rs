//! Storage of a group's records. The state machine does not know of it: the actor writes the
//! records here before it sends the outputs that depend on them.

mod disk_log;

use std::sync::Arc;

use tidings_log::TopicLog;
use tidings_queue::record::GroupRecord;

pub(in crate::groups) use self::disk_log::DiskLog;
use crate::topic::Health;

/// A position in a log: the number of the next record. Half-open, so marks compare directly.
pub(super) type RecordMark = u64;

/// An append-only sequence of records. By default, a record is safe once it is appended.
pub(super) trait GroupLog: Send {
    /// Appends a record and returns the mark behind it.
    fn append(&mut self, record: &GroupRecord) -> RecordMark;

    /// Writes the records appended since the last flush, all of them or none. Records before the
    /// mark `awaited` become [`durable`](Self::durable) as soon as possible; the others a moment
    /// later, so that more of them share a sync.
    fn flush(&mut self, _awaited: RecordMark) {}

    /// Flushes if the appended records are large enough that the disk should start on them. Returns
    /// whether it did. All records of one input must have been appended before the call.
    fn flush_if_large(&mut self) -> bool {
        false
    }

    /// Everything before this mark survives a crash of the process.
    /// Invariant: `durable <= written <=` the mark of the last append.
    fn written(&self) -> RecordMark {
        self.durable()
    }

    /// Everything before this mark is as safe as the log promises.
    fn durable(&self) -> RecordMark;

    /// Whether the log can be written. Records that were appended while it cannot are written once
    /// it can.
    fn health(&self) -> Health {
        Health::Good
    }

    /// Whether too many bytes wait for the disk to start any new work. The actor is woken when that
    /// changes.
    fn is_behind(&self) -> bool {
        false
    }

    /// Whether too many bytes wait for the disk to add work that can wait, such as a snapshot. As
    /// with [`is_behind`](Self::is_behind), the actor is woken when that changes.
    fn is_busy(&self) -> bool {
        false
    }

    /// Checks whether a full disk has room again. Must be called from time to time.
    fn retry(&self) {}

    /// Whether enough was written since the last snapshot to make another one worthwhile.
    fn wants_snapshot(&self) -> bool {
        false
    }

    /// Marks the next record as the first of a snapshot.
    fn begin_snapshot(&mut self) {}

    /// Marks the last record as the end of the snapshot. The records before the snapshot are
    /// removed once it is safe.
    fn end_snapshot(&mut self) {}

    /// The segment log behind it, if there is one.
    fn segment_log(&self) -> Option<Arc<dyn TopicLog>> {
        None
    }
}

/// A log without a data directory: records last as long as the process.
#[derive(Debug, Default)]
pub(super) struct MemoryLog(RecordMark);

impl GroupLog for MemoryLog {
    fn append(&mut self, _: &GroupRecord) -> RecordMark {
        self.0 += 1;
        self.0
    }

    fn durable(&self) -> RecordMark {
        self.0
    }
}
