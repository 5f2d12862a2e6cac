//! A log, behind a trait: batches of events, ordered by seq.

use std::fmt::Debug;
use std::io;
use std::ops::Range;
use std::path::Path;

use bytes::Bytes;
use tidings_protocol::Seq;

/// Maximum number of seqs that are reserved at once. Subscribers see an event only if the
/// reservation of its seq is safe, so this bounds how far they can be ahead of the disk. A crash
/// skips at most this many seqs, and twice as many more if the end of the log is torn, because then
/// the last reservation is unknown.
pub const RESERVED_MAX: u64 = 1 << 16;

/// Events to append: consecutive seqs, encoded as on the wire.
#[derive(Debug, Clone)]
pub struct LogPiece {
    /// The seq of the first event.
    pub first: Seq,
    /// Number of events; at least 1.
    pub count: u64,
    /// Append time; never less than that of the piece before.
    pub unix_ms: i64,
    /// Whole lines.
    pub wire: Bytes,
    /// At least one event has an `id=`.
    pub identified: bool,
}

/// Where a log begins and ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogBounds {
    /// The oldest seq kept; `end` if there is none.
    pub first: Seq,
    /// The seq after the newest event that was written.
    pub end: Seq,
    /// Seqs between them that no event has, as after a crash. Those within old files are not known.
    pub empty: u64,
    /// Creation time of the oldest segment; `None` if there is none.
    pub oldest_unix_ms: Option<i64>,
    /// Bytes of all files.
    pub bytes: u64,
    /// Number of files.
    pub segments: usize,
}

/// What is safe after a sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SyncedMarks {
    /// Events before this seq survive a power loss.
    pub durable: Seq,
    /// Seqs below this are not assigned to other events after a power loss.
    pub reserved: Seq,
}

/// The result of a read from a seq on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogRead {
    /// Whole lines without a gap, from event `first` up to before `end`. Reading continues at `at`.
    Lines {
        /// The seq of the first line.
        first: Seq,
        /// The seq after the last line.
        end: Seq,
        /// The lines, in runs.
        runs: Vec<LineRun>,
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

/// Consecutive lines in the buffer of a read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineRun {
    /// The seq of the first line.
    pub first: Seq,
    /// Append time of the first line.
    pub unix_ms: i64,
    /// The lines at which the second of the append time changes, and their append times.
    pub later: Vec<(Seq, i64)>,
    /// Where the lines are in the buffer.
    pub place: Range<usize>,
}

/// The position of the newest events of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewestEvents {
    /// How many of the requested events do not exist.
    pub missing: u64,
    /// The first of the events; if some are missing, the seq below which no event is kept.
    pub from: Seq,
    /// The segment without an index. Its events, and older ones, were not counted.
    pub unknown: Option<Seq>,
}

/// A place in a log from which reading can continue without a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadPosition {
    pub(crate) base: Seq,
    pub(crate) offset: u64,
    /// The next seq at this place. A reader at another seq must search.
    pub(crate) next: Seq,
}

/// How much of a log is kept.
#[derive(Debug, Clone, Copy)]
pub struct Retention {
    /// Maximum bytes of all files; beyond it the oldest segment is removed.
    pub bytes_max: u64,
    /// Segments are removed if their newest event is older than this.
    pub oldest_unix_ms: Option<i64>,
    /// Maximum number of files; beyond it the oldest is removed.
    pub segments_max: usize,
    /// Everything from this seq on is kept, regardless of the other limits.
    pub keep_from: Seq,
    /// Maximum number of files to remove in one call.
    pub removals_max: usize,
}

/// The result of checking one file, for operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedFile {
    /// Where it is, such as the path of the file.
    pub place: String,
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
    /// The name of the file in its log.
    pub fn name(&self) -> &str {
        self.place.rsplit('/').next().unwrap_or_default()
    }

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
pub enum LogError {
    /// The disk is full. Nothing was changed; the caller may try again later.
    #[error("the disk is full")]
    Full,
    /// A write or sync failed, and the content of the disk is uncertain. The log rejects all
    /// appends until it is opened again.
    #[error("writing to the disk failed: {0}")]
    Broken(String),
    /// A file could not be read or removed.
    #[error("{place}: {source}")]
    Io {
        /// Where, such as the path of the file.
        place: String,
        /// The error of the system.
        source: io::Error,
    },
}

impl LogError {
    /// An error of the system with the file at `path`.
    pub(crate) fn io(path: &Path, source: io::Error) -> Self {
        Self::Io { place: path.display().to_string(), source }
    }
}

/// The log of a topic or group: files here, or perhaps a replicated log elsewhere. Its lines are
/// events or records.
///
/// One thread at a time appends, and one syncs. Any number of threads read and apply retention
/// meanwhile.
pub trait TopicLog: Debug + Send + Sync {
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

    /// Records that `next` is the next seq to assign, so that the next start skips none, and
    /// notes for the [store](crate::Store) where the log ends.
    fn close(&self, next: Seq) -> Result<(), LogError>;

    /// Continues after a lost end ([`Recovered::has_lost_end`](crate::Recovered)) so that every
    /// later start knows of the loss. Otherwise the first event does.
    fn begin_after_loss(&self) -> Result<(), LogError>;

    /// Removes every event.
    fn clear(&self) -> Result<(), LogError>;

    /// Checks every checksum.
    fn verify(&self) -> Result<Vec<CheckedFile>, LogError>;
}
