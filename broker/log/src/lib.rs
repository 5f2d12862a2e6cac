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
//! | `store` | which logs there are, how they are made, opened and removed: the trait [`Store`], and its implementation in a data directory |
//! | `topic_log` | one log: the trait [`TopicLog`] |
//! | `segments` | its implementation in segment files: append, sync, retention, recovery, reading |
//! | `format` | headers of segments and batches |
//! | `journal` | one small file of records, rewritten when most of it is obsolete |
//! | `clean_stop` | where each log ended at the last orderly stop |
//! | `read_lines` | a log as lines |
//! | `summed_text` | a small file of lines with a checksum |
//! | `committer` | group commit: threads that write and sync the pending events of all logs |
//! | `disk` | the file system calls, behind the trait [`Disk`]; one that drops writes |
//! | `simulation` | a simulated disk, for tests |
//!
//! Everything here blocks. It runs on the threads of its caller, never on those of a runtime.
//!
//! The crate does not know
//!
//! - a runtime or a socket: `pure_crates` in `.ci/run` checks its dependencies;
//! - what a topic, a group or a catalog is: a line is bytes, and the crate cannot import the broker
//!   or the queue, which import it;
//! - the file system, except in `disk/file_system.rs`, and clocks, except in `committer`:
//!   `clippy.toml` forbids the calls, so a simulated disk sees everything that a real one does.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests prepare and damage files"))]

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
pub mod simulation;
mod store;
mod summed_text;
mod topic_log;

pub use self::clean_stop::StopRecord;
pub use self::committer::{CommitLog, Committers};
pub use self::disk::{Disk, DiskFile, DiskSpace, FileSystem, read_file, replace_file};
pub use self::journal::{InvalidRecord, Journal, JournalContents, JournalError};
pub use self::read_lines::read_lines;
pub use self::segments::Recovered;
#[cfg(any(test, feature = "simulation"))]
pub use self::simulation::{DiskFaults, SimulatedDisk};
pub use self::store::{
    AfterStep, CheckedLog, LogId, LogPlan, ScratchFile, SegmentStore, Store, StoredNames,
};
pub use self::summed_text::{before_checksum, with_checksum};
pub use self::topic_log::{
    CheckedFile, LineRun, LogBounds, LogError, LogPiece, LogRead, NewestEvents, RESERVED_MAX,
    ReadPosition, Retention, SyncedMarks, TopicLog,
};
