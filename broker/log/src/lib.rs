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

mod clean_stop;
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
mod store;
mod topic_log;

pub use self::clean_stop::StopRecord;
pub use self::committer::{CommitLog, Committers};
pub use self::disk::{Disk, DiskFile, DiskSpace, FileSystem};
#[cfg(any(test, feature = "simulation"))]
pub use self::disk::{DiskFaults, SimulatedDisk};
pub use self::journal::{InvalidRecord, Journal, JournalContents, JournalError};
pub use self::read_lines::read_lines;
pub use self::segments::Recovered;
pub use self::store::{
    AfterStep, CheckedLog, LogId, LogPlan, ScratchFile, SegmentStore, Store, StoredNames,
};
pub use self::topic_log::{
    CheckedFile, LogBounds, LogError, LogPiece, LogRead, NewestEvents, RESERVED_MAX, ReadPosition,
    Retention, SyncedMarks, TopicLog,
};
