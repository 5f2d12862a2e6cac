//! The place of all logs of a broker: which there are, how they are made, opened and removed.

mod foreign_files;
mod replacement;
mod scratch_file;
mod segment_store;

use std::fmt::{self, Debug};
use std::io;
use std::sync::Arc;

use tidings_protocol::{GroupName, Seq, TopicName};

pub use self::replacement::AfterStep;
pub use self::scratch_file::ScratchFile;
pub use self::segment_store::{CheckedLog, SegmentStore, StoredNames};
use crate::disk::DiskSpace;
use crate::journal::{Journal, JournalContents};
use crate::segments::Recovered;
use crate::topic_log::TopicLog;

/// A log of a store.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogId {
    /// The events of a topic.
    Topic(TopicName),
    /// The records of a group.
    Group(GroupName),
}

impl fmt::Display for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Topic(name) => write!(f, "topics/{name}"),
            Self::Group(name) => write!(f, "groups/{name}"),
        }
    }
}

/// What the owner of a log decides about it.
#[derive(Debug, Clone, Copy)]
pub struct LogPlan {
    /// The first seq of a log that holds none yet.
    pub first: Seq,
    /// About how many bytes are kept. The log is trimmed in parts of a fraction of that.
    pub kept_bytes: u64,
}

/// A place for logs. Every call blocks, except [`fresh`](Self::fresh).
pub trait Store: Debug + Send + Sync {
    /// The name of the place for operators, such as the path of a data directory.
    fn place(&self) -> String;

    /// Whether a write waits for other machines. Then many writes wait at the same time, events are
    /// shown only when they are written, and what is given at a start is only for what is new.
    fn is_replicated(&self) -> bool {
        false
    }

    /// Space of the disk. Blocks.
    fn space(&self) -> io::Result<DiskSpace>;

    /// The topics that have a log, in no order. Logs what else it finds and ignores.
    fn topics(&self) -> io::Result<Vec<TopicName>>;

    /// The groups that have a log, in no order. Logs what else it finds and ignores.
    fn groups(&self) -> io::Result<Vec<GroupName>>;

    /// Whether the last call of [`groups`](Self::groups) found something else in the place of that
    /// group's log, so that the group cannot be created.
    fn is_occupied(&self, group: &GroupName) -> bool;

    /// A log that does not exist yet; its first event makes it.
    fn fresh(&self, log: &LogId, plan: LogPlan) -> Arc<dyn TopicLog>;

    /// Opens a log. Reads back at most `identified_max` batches with ids.
    ///
    /// Fails if it exists but cannot be read, or is of a newer version.
    fn open(
        &self,
        log: &LogId,
        plan: LogPlan,
        identified_max: usize,
    ) -> io::Result<(Arc<dyn TopicLog>, Recovered)>;

    /// Opens a log only for reading: nothing is changed, not even damage at its end.
    fn open_read_only(&self, log: &LogId) -> io::Result<Arc<dyn TopicLog>>;

    /// Opens the journal, and applies its records to the empty `contents`. Returns it with
    /// descriptions of damage.
    ///
    /// Fails if an existing journal cannot be read or is of a newer version: it is never treated as
    /// an empty one.
    fn open_journal(
        &self,
        unix_ms: i64,
        contents: &mut dyn JournalContents,
    ) -> io::Result<(Box<dyn Journal>, Vec<String>)>;

    /// A file of a group that ends with the process.
    fn scratch_file(&self, group: &GroupName) -> ScratchFile;

    /// Calls that wait for other machines in vain may fail from now on: no client is left that could take
    /// the failure for an answer.
    fn end_waits(&self) {}

    /// Records where the logs ended that were closed. Call it once, after they were.
    fn close(&self) -> io::Result<()>;
}
