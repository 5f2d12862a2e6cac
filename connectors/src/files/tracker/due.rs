//! The next step for a file that is not published yet, and whether a process has it open.

use std::time::{Duration, Instant};

/// The creator of a file opens it within this time. A file that was not opened by then was linked
/// into place.
pub(super) const OPENED_WITHIN: Duration = Duration::from_millis(100);

/// How long a file that its creator has opened and not closed must be unchanged. Then it is
/// complete unless a process is seen writing. An unseen writer that is slower than this is rarer
/// than a program that never closes its file.
pub(super) const UNCLOSED: Duration = Duration::from_mins(1);

/// What is known about processes that have the file open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heard {
    /// Nothing: a scan found the file.
    Nothing,
    /// It was created, and has not been opened yet.
    Made,
    /// It has been opened this many times more than closed. The kernel merges equal events in a
    /// row.
    Opened(u32),
    /// It was closed after writing.
    Closed,
}

impl Heard {
    /// How long the file must stay unchanged.
    pub(super) fn quiet(self, settle: Duration) -> Duration {
        match self {
            Self::Nothing | Self::Closed => settle,
            Self::Made => settle.max(OPENED_WITHIN),
            Self::Opened(_) => settle.max(UNCLOSED),
        }
    }
}

/// The next step for a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// Inspect it at this time: complete if it is unchanged and not open for writing.
    At { at: Instant, heard: Heard },
    /// It is being inspected.
    Looking(Heard),
    /// Complete; ready to be published.
    Ready,
}

impl Due {
    /// What is known about processes that have the file open.
    pub(super) fn heard(self) -> Heard {
        match self {
            Self::At { heard, .. } | Self::Looking(heard) => heard,
            Self::Ready => Heard::Nothing,
        }
    }
}
