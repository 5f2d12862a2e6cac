//! What is known of a file that is not announced yet, and when it is looked at.

use std::time::{Duration, Instant};

/// How long after a file has come into being it is sure that nobody has opened it in that: it was linked into place.
pub(super) const OPENED_WITHIN: Duration = Duration::from_millis(100);

/// How long a file that was opened by whoever made it, and not closed, is left alone. Then nobody must be seen to write
/// to it, and it must not have changed for as long: who writes so slowly, unseen, is rarer than who never closes.
pub(super) const UNCLOSED: Duration = Duration::from_mins(1);

/// What is known of who has a file open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heard {
    /// Nothing: it was found by looking.
    Nothing,
    /// It has come into being, and nobody has it open so far.
    Made,
    /// And has been opened since, so many times more than closed. Of what happens fast the kernel tells once.
    Opened(u32),
    /// It was closed after writing.
    Closed,
}

impl Heard {
    /// How long a file is to be unchanged.
    pub(super) fn quiet(self, settle: Duration) -> Duration {
        match self {
            Self::Nothing | Self::Closed => settle,
            Self::Made => settle.max(OPENED_WITHIN),
            Self::Opened(_) => settle.max(UNCLOSED),
        }
    }
}

/// What is to be done with a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// Complete if it is unchanged then, and nobody writes to it.
    At { at: Instant, heard: Heard },
    /// It is being looked at.
    Looking(Heard),
    /// Complete; waits for its turn.
    Ready,
}

impl Due {
    /// What is known of who has the file open.
    pub(super) fn heard(self) -> Heard {
        match self {
            Self::At { heard, .. } | Self::Looking(heard) => heard,
            Self::Ready => Heard::Nothing,
        }
    }
}
