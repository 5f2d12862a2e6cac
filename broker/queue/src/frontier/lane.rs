//! The lanes of a key.

use crate::entry::{Admission, JobNumber, SCHEDULES_JOB};

/// The lanes of a key, which take turns: announced entries, and those of each job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Lane {
    /// Entries that an event announced.
    Announced,
    /// Seeds and links of a job.
    Job(JobNumber),
}

/// Returns the lane of an entry.
pub(crate) fn lane_of(admitted: &Admission) -> Lane {
    match admitted.job {
        _ if admitted.announced => Lane::Announced,
        job => Lane::Job(job.map_or(SCHEDULES_JOB, |job| job.number)),
    }
}
