//! The logs of a broker: batches of lines on disk, ordered by seq, for topics and groups.
//!
//! ```text
//!   tail ──batches──▶ append ──▶ ┌ segment ┐┌ segment ┐┌ active segment │ free ┐
//!   (memory)          sync  ──▶  └─────────┘└─────────┘└────────────────┴──────┘
//!                                     ▲ read: readers behind the tail
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | [`topic_log`] | a log, behind the trait [`TopicLog`] |
//! | [`disk`] | the file system calls, behind the trait [`Disk`]; a simulated disk; one that drops writes |
//! | [`mod@format`] | headers of segments and batches |
//! | [`segments`] | the log as segment files: append, sync, retention, recovery, reading |
//! | [`read_lines()`] | a log as lines |
//! | [`journal`] | one small file of records, rewritten when most of it is obsolete |
//! | [`committer`] | group commit: threads that write and sync the pending events of all logs |
//!
//! Everything here blocks. It runs on threads that the caller starts for it, never on those of a
//! runtime.
//!
//! The crate knows no socket, no runtime, and neither the rules of topics nor those of groups: a
//! line is bytes. Its manifest proves it, which `.ci/run` checks.

mod committer;
mod disk;
mod format;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod journal;
mod read_lines;
mod segments;
#[cfg(any(test, feature = "simulation"))]
pub mod simulation_seeds;
mod topic_log;

pub use self::committer::{CommitLog, Committers};
pub use self::disk::{Disk, DiskFile, DiskSpace, FileSystem, ReadOnlyDisk, is_full};
#[cfg(any(test, feature = "simulation"))]
pub use self::disk::{DiskFaults, SimulatedDisk};
pub use self::format::{
    BATCH_HEADER, BATCH_MAGIC_1, BatchHeader, FormatError, SEGMENT_HEADER, SegmentHeader, VERSION,
    VERSION_1,
};
pub use self::journal::{
    InvalidRecord, Journal, JournalContents, JournalError, JournalFile, check_journal,
};
pub use self::read_lines::read_lines;
pub use self::segments::{Recovered, SegmentLog, SegmentOptions};
pub use self::topic_log::{
    CheckedFile, LogBounds, LogEnd, LogError, LogPiece, LogRead, NewestEvents, RESERVED_MAX,
    ReadPosition, Retention, SyncedMarks, TopicLog,
};
