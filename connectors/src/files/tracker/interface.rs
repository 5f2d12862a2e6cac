//! What a tracker is told, and what it wants.

use std::{sync::Arc, time::Duration};

/// The path of a file below its directory, in the bytes of the file system; empty: the directory itself.
pub type Name = Arc<[u8]>;

/// Announcements under way at once. Enough that the broker's disk syncs many together.
pub const IN_FLIGHT_MAX: usize = 1_000;

/// What tells one content of a name from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stamp {
    /// Whose content it is; 0 where file systems make such numbers up.
    pub inode: u64,
    /// Bytes.
    pub size: u64,
    /// When it was written last: seconds since 1970.
    pub modified_s: i64,
    /// And nanoseconds, below 10^9.
    pub modified_ns: u32,
}

/// What the tracker goes by.
#[derive(Debug, Clone)]
pub struct Rules {
    /// How long a file stays unchanged until it is complete.
    pub settle: Duration,
    /// After this time without any change what was announced until then is a batch.
    pub batch_end: Option<Duration>,
    /// Only what the first look finds; what changes meanwhile is left for another time.
    pub once: bool,
    /// How long nothing is announced after a refusal.
    pub retry: Duration,
    /// Files that are kept track of.
    pub files_max: usize,
}

/// What happens.
#[derive(Debug, Clone)]
pub enum Input {
    /// A file was seen; who may be writing to it is not known.
    Found(Name, Stamp),
    /// A file has come into being: somebody has opened it, which is told next, or linked it there.
    Created(Name, Stamp),
    /// A file was opened, for whatever.
    Opened(Name),
    /// It was closed by somebody who could not write to it.
    ClosedUnwritten(Name),
    /// It was closed after writing, and this is what it is now.
    Closed(Name, Stamp),
    /// It was renamed into place.
    Placed(Name, Stamp),
    /// There is no such file any more.
    Gone(Name),
    /// Nor any below this directory, which ends in `/`.
    GoneBelow(Name),
    /// Everything is looked at from here on: what is not found until the end is gone.
    ScanBegins,
    /// Everything was looked at but what is below these directories (each ends in `/`, or is empty for all of it).
    ScanEnds(Vec<Name>),
    /// The answer to [`Output::Look`], once to each.
    Looked(Name, Option<Stamp>),
    /// Or that somebody is writing to it.
    Busy(Name),
    /// A directory or file cannot be read, for this reason; or can again.
    Trouble(Name, Option<&'static str>),
    /// The broker has kept an announcement.
    Confirmed(u64),
    /// Or has refused it for now.
    Refused(u64),
    /// Time has passed.
    Tick,
}

/// What is to be done, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// See what the file is now.
    Look {
        /// Which file.
        name: Name,
        /// It is known that whoever wrote to it has closed it. If not, see whether somebody has it open, too.
        is_closed: bool,
    },
    /// Announce, under this number, and say what became of it.
    Announce(u64, Announced),
    /// Remember over restarts that it was announced.
    Remember(Name, Stamp),
    /// It is gone and need not be remembered.
    Forget(Name),
    /// Remember that the batch of this number has ended.
    BatchEnded(u64),
}

/// What is announced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Announced {
    /// A complete file.
    File(Name, Stamp),
    /// The end of the batch of this number, with as many files.
    Batch {
        /// Counts from 0 in the life of a state file.
        number: u64,
        /// Announced since the one before.
        files: u64,
    },
    /// Something cannot be read; `none`: it can be again.
    Trouble(Name, &'static str),
}

/// The end of a trouble, as a word.
pub const NO_TROUBLE: &str = "none";
