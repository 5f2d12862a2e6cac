//! The log of a topic: batches of events on disk, in the order of their numbers.
//!
//! ```text
//!   tail ──batches──▶ append ──▶ ┌ segment ┐┌ segment ┐┌ active segment │ free ┐
//!   (memory)          sync  ──▶  └─────────┘└─────────┘└────────────────┴──────┘
//!                                     ▲ read: whoever fell out of the tail
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | [`format`] | headers of segments and batches |
//! | [`committer`] | group commit: the threads that write and sync what has gathered |
//! | [`disk`] | the calls to the file system, behind a trait |
//! | [`index`] | where the batches of a segment begin, and which numbers are empty |
//! | [`ending`] | where a log ends, and what follows an end that is lost |
//! | [`read_only`] | a disk that changes nothing, for checks |
//! | [`segment`] | walking through one file, whatever has become of it |
//! | [`segments`] | the log as segment files: appending, syncing, retention |
//! | [`recovery`] | what a start finds |
//! | [`reading`] | reading from a number on; checking everything |
//!
//! Everything here blocks. It is called by threads of its own ([`topic`](crate::topic)), never by
//! the runtime's.

pub(crate) mod committer;
pub(crate) mod disk;
mod ending;
pub(crate) mod format;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod index;
pub(crate) mod read_only;
mod reading;
mod recovery;
mod segment;
mod segments;
#[cfg(any(test, feature = "fuzzing"))]
#[cfg_attr(not(test), allow(dead_code, reason = "only tests have it lose what was written"))]
pub(crate) mod simulated;
#[cfg(test)]
mod tests;

use std::fmt::Debug;
use std::io;
use std::path::PathBuf;

use bytes::Bytes;
use tidings_protocol::Seq;

pub(crate) use self::recovery::Recovered;
pub(crate) use self::segments::{SegmentLog, SegmentOptions};

/// Most numbers that are reserved at once. Subscribers never see a number that is not reserved
/// safely, so this bounds what they are ahead of the disk. After a crash so many are skipped at
/// most, and twice as many more where the end of the log is torn: what was reserved is not known.
pub(crate) const RESERVED_MAX: u64 = 1 << 16;

/// Events to be appended: contiguous numbers, encoded as they go on the wire.
#[derive(Debug, Clone)]
pub(crate) struct Piece {
    /// The first one's number.
    pub(crate) first: Seq,
    /// How many; at least 1.
    pub(crate) count: u64,
    /// When they were appended; never less than the piece before.
    pub(crate) unix_ms: i64,
    /// Whole lines.
    pub(crate) wire: Bytes,
    /// One of them has an `id=`.
    pub(crate) identified: bool,
}

/// Where a log begins and ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// The oldest number kept; `end` if there is none.
    pub(crate) first: Seq,
    /// The number after the newest event that was written.
    pub(crate) end: Seq,
    /// When the oldest segment was begun; `None` if there is none.
    pub(crate) oldest_unix_ms: Option<i64>,
    /// Bytes of files.
    pub(crate) bytes: u64,
    /// Files.
    pub(crate) segments: usize,
}

/// What is safe after a sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Synced {
    /// Everything before this number survives the loss of power.
    pub(crate) durable: Seq,
    /// Numbers below this are not given to other events after it.
    pub(crate) reserved: Seq,
}

/// What there is to read from a number on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Found {
    /// Whole lines without a hole, the first of which is event `first`; `end` is the number after
    /// the last. `at` is where it goes on.
    Lines {
        /// The first line's number.
        first: Seq,
        /// The number after the last line's.
        end: Seq,
        /// Where in the buffer each run of lines lies, and the number of its first line.
        runs: Vec<(Seq, std::ops::Range<usize>)>,
        /// Where reading goes on.
        at: Position,
    },
    /// These were kept and are gone, both included.
    Lag(Seq, Seq),
    /// These were never given to an event that was kept, both included.
    Gap(Seq, Seq),
    /// Nothing that was asked for lies before this number, and there is more from there on.
    Skip(Seq),
    /// There is nothing from there on.
    End,
}

/// Where the newest events begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Newest {
    /// How many events fewer there are than were counted for.
    pub(crate) missing: u64,
    /// The first of these events; if some are missing, the number below which no event is kept.
    pub(crate) from: Seq,
    /// The segment whose events are not known, so that they and older ones were not counted.
    pub(crate) unknown: Option<Seq>,
}

/// A place in a log, to go on from without a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    base: Seq,
    offset: u64,
    /// The number that is next there. A reader at another one searches.
    next: Seq,
}

/// Where a log ends after it was closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogEnd {
    /// The name of its newest file.
    pub(crate) file: String,
    /// The checksum in the header of that file. A file that replaces it has another one.
    pub(crate) header: u32,
    /// Where its last batch ends.
    pub(crate) bytes: u64,
    /// The number after its last event.
    pub(crate) end: Seq,
    /// The next number to be given.
    pub(crate) next: Seq,
}

/// What a log should keep.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Retention {
    /// Bytes of files; beyond them the oldest segment goes.
    pub(crate) bytes_max: u64,
    /// Segments whose newest event is older go.
    pub(crate) oldest_unix_ms: Option<i64>,
    /// Files; beyond them the oldest goes.
    pub(crate) segments_max: usize,
    /// From here on everything is kept, whatever the above say.
    pub(crate) keep_from: Seq,
    /// Files that go at once.
    pub(crate) at_once: usize,
}

/// What became of one file, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// The file.
    pub path: PathBuf,
    /// Events that can be read.
    pub events: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// What is wrong with it, in words.
    pub problems: Vec<String>,
    /// Events that were kept and cannot be read, both included.
    pub lost: Vec<(Seq, Seq)>,
}

impl Checked {
    /// Whether it is not what was written.
    pub fn is_damaged(&self) -> bool {
        !(self.problems.is_empty() && self.lost.is_empty())
    }

    /// Events that were kept and cannot be read.
    pub fn lost_events(&self) -> u64 {
        self.lost.iter().map(|(from, to)| to.0 - from.0 + 1).sum()
    }
}

/// Why a log did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LogError {
    /// There is no room. Nothing has changed; it may be tried again later.
    #[error("there is no room on the disk")]
    Full,
    /// Writing or syncing failed, and what is on the disk is uncertain: nothing is appended any
    /// more until the log was recovered.
    #[error("writing to the disk failed: {0}")]
    Broken(String),
    /// A file could not be read, or removed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// A log that a topic can be kept in: as files here, or replicated elsewhere.
///
/// One thread appends at a time, and one syncs; any number read and retain meanwhile.
pub(crate) trait TopicLog: Debug + Send + Sync {
    /// Writes `pieces`, whose numbers rise and may leave a hole, and reserves the numbers below
    /// `reserve`. `next` is the number after them, or the next one to be given if there are none.
    fn append(&self, pieces: &[Piece], next: Seq, reserve: Seq) -> Result<(), LogError>;

    /// Writes one piece, if that takes no more than handing it to the system: there is a place for it, and nobody
    /// else writes. Otherwise nothing has changed, and [`append`](Self::append) says why.
    fn append_at_once(&self, piece: &Piece) -> bool;

    /// Makes everything that was appended before safe. More may be appended meanwhile.
    fn sync(&self) -> Result<Synced, LogError>;

    /// Whether there seems to be room again, after [`LogError::Full`].
    fn has_room(&self) -> bool;

    /// Reads lines from `from` on into `buffer`, as many as fit into its length, going on at `at`
    /// if that is known. Batches whose newest event is older than `since` (unix ms) are skipped.
    fn read(
        &self,
        from: Seq,
        at: Option<Position>,
        since: Option<i64>,
        buffer: &mut [u8],
    ) -> Result<Found, LogError>;

    /// Counts the newest `count` events before a number, without reading the disk. Empty numbers do not count, nor do
    /// events that were damaged when their segment was indexed.
    fn newest(&self, count: u64, before: Seq) -> Newest;

    /// Reads which events the segment that begins at `base` has, for [`newest`](Self::newest).
    fn index(&self, base: Seq) -> Result<(), LogError>;

    /// Where it begins and ends.
    fn bounds(&self) -> Bounds;

    /// Lets go of the oldest segments; returns how many.
    fn retain(&self, retention: &Retention) -> Result<usize, LogError>;

    /// Notes that `next` is the next number to be given, and that nobody has seen more. Returns where the log ends
    /// now, if it has a file.
    fn close(&self, next: Seq) -> Result<Option<LogEnd>, LogError>;

    /// Removes every event.
    fn clear(&self) -> Result<(), LogError>;

    /// Checks every checksum.
    fn verify(&self) -> Result<Vec<Checked>, LogError>;
}
