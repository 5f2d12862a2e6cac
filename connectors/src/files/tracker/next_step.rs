//! The next step for a file that is not published yet, and whether a process has it open.

use std::time::{Duration, Instant};

/// The wait before a file that was renamed into place is inspected. A process that has it open for
/// writing is found in a list of open files, and a list that was begun within this time is newer than
/// the rename.
pub const MOVE_DELAY: Duration = Duration::from_millis(100);

/// The creator of a file opens it within this time. A file that was not opened by then was linked
/// into place.
pub(super) const OPEN_DELAY_MAX: Duration = Duration::from_millis(100);

/// How long a file that its creator has opened and not closed must be unchanged. Then it is
/// complete unless a process is seen writing. An unseen writer that is slower than this is rarer
/// than a program that never closes its file.
pub(super) const UNCLOSED_QUIET_TIME: Duration = Duration::from_mins(1);

/// What is known about processes that have the file open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OpenState {
    /// Nothing: a scan found the file.
    Unknown,
    /// It was created, and has not been opened yet.
    Created,
    /// It has been opened this many times more than closed. The kernel merges equal events in a
    /// row.
    Open(u32),
    /// It was closed after writing.
    Closed,
}

impl OpenState {
    /// How long the file must stay unchanged.
    pub(super) fn quiet_time(self, settle: Duration) -> Duration {
        match self {
            Self::Unknown | Self::Closed => settle,
            Self::Created => settle.max(OPEN_DELAY_MAX),
            Self::Open(_) => settle.max(UNCLOSED_QUIET_TIME),
        }
    }
}

/// The next step for a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NextStep {
    /// Inspect it at this time: complete if it is unchanged and not open for writing.
    InspectAt {
        at: Instant,
        open_state: OpenState,
    },
    Inspecting(OpenState),
    /// Complete; ready to be published.
    Ready,
}

impl NextStep {
    /// What is known about processes that have the file open.
    pub(super) fn open_state(self) -> OpenState {
        match self {
            Self::InspectAt { open_state, .. } | Self::Inspecting(open_state) => open_state,
            Self::Ready => OpenState::Unknown,
        }
    }
}
