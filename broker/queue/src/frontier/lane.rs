//! The lanes of a key.

use crate::entry::JobNumber;

/// The lanes of a key, which take turns: announced entries, and those of each job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Lane {
    /// Entries that an event announced.
    Announced,
    /// Seeds and links of a job.
    Job(JobNumber),
}
