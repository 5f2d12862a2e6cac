//! The log of a topic: batches of events on disk, ordered by seq.
//!
//! ```text
//!   tail ──batches──▶ append ──▶ ┌ segment ┐┌ segment ┐┌ active segment │ free ┐
//!   (memory)          sync  ──▶  └─────────┘└─────────┘└────────────────┴──────┘
//!                                     ▲ read: readers behind the tail
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | [`mod@format`] | headers of segments and batches |
//! | [`committer`] | group commit: threads that write and sync the pending events of all logs |
//! | [`disk`] | the file system calls, behind a trait |
//! | [`segment_index`] | where the batches of a segment begin, and which seqs have no event |
//! | [`log_end`] | where a log ends, and how it continues after a lost end |
//! | [`read_only_disk`] | a disk that drops all writes, for checks |
//! | [`segment_walk`] | a walk through the batches of one file, damaged or not |
//! | [`segment_log`] | the log as segment files: append, sync, retention |
//! | [`recovery`] | opening a log, after an orderly stop or a crash |
//! | [`log_reader`] | reading from a seq on; verification |
//!
//! Everything here blocks. It runs on threads of [`topic`](crate::topic), never on those of the
//! runtime.

pub(crate) mod committer;
pub(crate) mod disk;
pub(crate) mod format;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod log_end;
mod log_reader;
pub(crate) mod read_only_disk;
mod recovery;
mod segment_index;
mod segment_log;
mod segment_walk;
#[cfg(any(test, feature = "fuzzing"))]
#[cfg_attr(not(test), allow(dead_code, reason = "only tests simulate power loss"))]
pub(crate) mod simulated_disk;
#[cfg(test)]
mod tests;

use std::fmt::Debug;
use std::io;
use std::path::PathBuf;

use bytes::Bytes;
use tidings_protocol::Seq;

pub(crate) use self::recovery::Recovered;
pub(crate) use self::segment_log::{SegmentLog, SegmentOptions};

/// Maximum number of seqs that are reserved at once. Subscribers see an event only if the
/// reservation of its seq is safe, so this bounds how far they can be ahead of the disk. A crash
/// skips at most this many seqs, and twice as many more if the end of the log is torn, because then
/// the last reservation is unknown.
pub(crate) const RESERVED_MAX: u64 = 1 << 16;

/// Events to append: consecutive seqs, encoded as on the wire.
#[derive(Debug, Clone)]
pub(crate) struct LogPiece {
    /// The seq of the first event.
    pub(crate) first: Seq,
    /// Number of events; at least 1.
    pub(crate) count: u64,
    /// Append time; never less than that of the piece before.
    pub(crate) unix_ms: i64,
    /// Whole lines.
    pub(crate) wire: Bytes,
    /// At least one event has an `id=`.
    pub(crate) identified: bool,
}

/// Where a log begins and ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LogBounds {
    /// The oldest seq kept; `end` if there is none.
    pub(crate) first: Seq,
    /// The seq after the newest event that was written.
    pub(crate) end: Seq,
    /// Creation time of the oldest segment; `None` if there is none.
    pub(crate) oldest_unix_ms: Option<i64>,
    /// Bytes of all files.
    pub(crate) bytes: u64,
    /// Number of files.
    pub(crate) segments: usize,
}

/// What is safe after a sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SyncedMarks {
    /// Events before this seq survive a power loss.
    pub(crate) durable: Seq,
    /// Seqs below this are not assigned to other events after a power loss.
    pub(crate) reserved: Seq,
}

/// The result of a read from a seq on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LogRead {
    /// Whole lines without a gap, from event `first` up to before `end`. Reading continues at `at`.
    Lines {
        /// The seq of the first line.
        first: Seq,
        /// The seq after the last line.
        end: Seq,
        /// The place of each run of lines in the buffer, and the seq of its first line.
        runs: Vec<(Seq, std::ops::Range<usize>)>,
        /// Where reading continues.
        at: ReadPosition,
    },
    /// These events were kept and are gone (inclusive range).
    Lag(Seq, Seq),
    /// No kept event ever had these seqs (inclusive range).
    Gap(Seq, Seq),
    /// Nothing before this seq matches the request; reading can continue there.
    Skip(Seq),
    /// There is nothing from the requested seq on.
    End,
}

/// The position of the newest events of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NewestEvents {
    /// How many of the requested events do not exist.
    pub(crate) missing: u64,
    /// The first of the events; if some are missing, the seq below which no event is kept.
    pub(crate) from: Seq,
    /// The segment without an index. Its events, and older ones, were not counted.
    pub(crate) unknown: Option<Seq>,
}

/// A place in a log from which reading can continue without a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReadPosition {
    base: Seq,
    offset: u64,
    /// The next seq at this place. A reader at another seq must search.
    next: Seq,
}

/// The end of a log that was closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogEnd {
    /// The name of the newest file.
    pub(crate) file: String,
    /// The checksum in the header of that file. A file that replaces it has another checksum.
    pub(crate) header: u32,
    /// The offset after the last batch.
    pub(crate) bytes: u64,
    /// The seq after the last event.
    pub(crate) end: Seq,
    /// The next seq to assign.
    pub(crate) next: Seq,
}

/// How much of a log is kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Retention {
    /// Maximum bytes of all files; beyond it the oldest segment is removed.
    pub(crate) bytes_max: u64,
    /// Segments are removed if their newest event is older than this.
    pub(crate) oldest_unix_ms: Option<i64>,
    /// Maximum number of files; beyond it the oldest is removed.
    pub(crate) segments_max: usize,
    /// Everything from this seq on is kept, regardless of the other limits.
    pub(crate) keep_from: Seq,
    /// Maximum number of files to remove in one call.
    pub(crate) removals_max: usize,
}

/// The result of checking one file, for operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedFile {
    /// The file.
    pub path: PathBuf,
    /// Number of readable events.
    pub events: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// What is wrong with the file, as text.
    pub problems: Vec<String>,
    /// Events that were kept and cannot be read (inclusive ranges).
    pub lost: Vec<(Seq, Seq)>,
}

impl CheckedFile {
    /// Whether the file differs from what was written.
    pub fn is_damaged(&self) -> bool {
        !(self.problems.is_empty() && self.lost.is_empty())
    }

    /// Number of events that were kept and cannot be read.
    pub fn lost_events(&self) -> u64 {
        self.lost.iter().map(|(from, to)| to.0 - from.0 + 1).sum()
    }
}

/// Why an operation on a log failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LogError {
    /// The disk is full. Nothing was changed; the caller may try again later.
    #[error("the disk is full")]
    Full,
    /// A write or sync failed, and the content of the disk is uncertain. The log rejects all
    /// appends until it is opened again.
    #[error("writing to the disk failed: {0}")]
    Broken(String),
    /// A file could not be read or removed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

/// The log of a topic: files here, or perhaps a replicated log elsewhere.
///
/// One thread at a time appends, and one syncs. Any number of threads read and apply retention
/// meanwhile.
pub(crate) trait TopicLog: Debug + Send + Sync {
    /// Writes `pieces` and reserves the seqs below `reserve`. The seqs of the pieces ascend and may
    /// leave gaps. `next` is the seq after the pieces; without pieces, the next seq to assign.
    fn append(&self, pieces: &[LogPiece], next: Seq, reserve: Seq) -> Result<(), LogError>;

    /// Writes one piece if that costs only one write to allocated space and no other thread is
    /// writing. Otherwise changes nothing and returns false; use [`append`](Self::append) then.
    fn try_append(&self, piece: &LogPiece) -> bool;

    /// Makes everything appended before the call durable. Other threads may append meanwhile.
    fn sync(&self) -> Result<SyncedMarks, LogError>;

    /// Whether the disk seems to have room again, after [`LogError::Full`].
    fn has_room(&self) -> bool;

    /// Reads whole lines from `from` on into `buffer`, as many as fit. `at` saves the search if it
    /// is known. Batches are skipped if their newest event is older than `since` (unix ms).
    fn read(
        &self,
        from: Seq,
        at: Option<ReadPosition>,
        since: Option<i64>,
        buffer: &mut [u8],
    ) -> Result<LogRead, LogError>;

    /// Finds the newest `count` events before a seq, without reading the disk. Seqs without an
    /// event do not count, nor do events that were damaged when their segment was indexed.
    fn newest(&self, count: u64, before: Seq) -> NewestEvents;

    /// Builds the index of the segment that begins at `base`, for [`newest`](Self::newest).
    fn index(&self, base: Seq) -> Result<(), LogError>;

    /// Where the log begins and ends.
    fn bounds(&self) -> LogBounds;

    /// Removes the oldest segments as `retention` says; returns how many.
    fn retain(&self, retention: &Retention) -> Result<usize, LogError>;

    /// Records that `next` is the next seq to assign, so that the next start skips none. Returns
    /// where the log ends, if it has a file.
    fn close(&self, next: Seq) -> Result<Option<LogEnd>, LogError>;

    /// Removes every event.
    fn clear(&self) -> Result<(), LogError>;

    /// Checks every checksum.
    fn verify(&self) -> Result<Vec<CheckedFile>, LogError>;
}
