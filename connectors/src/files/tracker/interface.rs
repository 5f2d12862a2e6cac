//! Inputs and outputs of the tracker.

use std::sync::Arc;
use std::time::Duration;

/// The path of a file relative to the root directory, in bytes; empty: the root itself.
pub type RelativePath = Arc<[u8]>;

/// Events in flight at once. Enough for the broker to sync many together.
pub const IN_FLIGHT_MAX: usize = 1_000;

/// Identifies the content of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileStamp {
    /// Inode; 0 on network file systems, which may invent it.
    pub inode: u64,
    /// Bytes.
    pub size: u64,
    /// Modification time in seconds since 1970.
    pub modified_s: i64,
    /// Its nanoseconds, below 10^9.
    pub modified_ns: u32,
}

/// Settings of the tracker.
#[derive(Debug, Clone)]
pub struct TrackerConfig {
    /// How long a file must stay unchanged to be complete.
    pub settle: Duration,
    /// A batch ends after this time without a change.
    pub batch_end: Option<Duration>,
    /// Publishes only what the first scan finds. Files that change meanwhile are skipped.
    pub once: bool,
    /// Pause after the broker has refused an event.
    pub retry: Duration,
    /// Limit of tracked files.
    pub files_max: usize,
}

/// How a file was observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Observation {
    /// A scan found it; it may be open for writing.
    Found,
    /// It was created: by a process that opens it next, or by a link.
    Created,
    /// It was closed after writing.
    ClosedAfterWrite,
    /// It was renamed into place.
    MovedIn,
}

/// What has happened.
#[derive(Debug, Clone)]
pub enum TrackerInput {
    /// The file exists with this content.
    Observed(Observation, RelativePath, FileStamp),
    /// A process opened the file.
    Opened(RelativePath),
    /// A process that could not write to it closed the file.
    ClosedNoWrite(RelativePath),
    /// The file was removed.
    Removed(RelativePath),
    /// Everything below this directory, which ends in `/`, was removed.
    RemovedBelow(RelativePath),
    /// A scan begins. Files that it does not find are removed at its end.
    ScanStarted,
    /// The scan has ended. These directories could not be read; each ends in `/`, or is empty for
    /// the root.
    ScanFinished(Vec<RelativePath>),
    /// The result of [`TrackerOutput::Inspect`]; each has one result.
    Inspected(RelativePath, Option<FileStamp>),
    /// The other result: the file is open for writing.
    Busy(RelativePath),
    /// A directory or file cannot be read for this reason; `None`: it can be read again.
    ErrorChanged(RelativePath, Option<&'static str>),
    /// The broker has confirmed an event.
    Confirmed(u64),
    /// The broker has refused an event for now.
    Refused(u64),
    /// Time has passed.
    Tick,
}

/// What the caller must do, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TrackerOutput {
    /// Inspect the file.
    Inspect {
        /// The file.
        name: RelativePath,
        /// The writer has closed the file. If not, also check whether a process has it open for
        /// writing.
        is_closed: bool,
    },
    /// Publish an event under this number, and report the result.
    Publish(u64, FileEvent),
    /// Store that the file was published.
    Save(RelativePath, FileStamp),
    /// The file is gone: remove it from the store.
    Forget(RelativePath),
    /// Store that this batch has ended.
    BatchEnded(u64),
}

/// The content of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileEvent {
    /// A complete file.
    File(RelativePath, FileStamp),
    /// The end of a batch.
    Batch {
        /// Counts up within a state file.
        number: u64,
        /// Files published since the batch before.
        files: u64,
    },
    /// Something cannot be read; `none`: it can be read again.
    Error(RelativePath, &'static str),
}

/// The word that ends an error.
pub const NO_ERROR: &str = "none";
