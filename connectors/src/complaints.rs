//! Complaints that come once a second at most, however often there is a reason.

#![expect(clippy::disallowed_methods, reason = "the pace of a log is that of a clock")]

use std::fmt::Display;
use std::time::{Duration, Instant};

/// How often complaints of one kind are logged at most.
const COMPLAINT_PACE: Duration = Duration::from_secs(1);

/// Complaints of one kind.
#[derive(Debug)]
pub(crate) struct Complaints {
    what: &'static str,
    /// Since the last one that was logged.
    count: u64,
    next: Option<Instant>,
    total: u64,
}

impl Complaints {
    /// `what`: what is wrong, in the words of the log.
    pub(crate) fn new(what: &'static str) -> Self {
        Self { what, count: 0, next: None, total: 0 }
    }

    /// So many came in all.
    #[cfg(any(feature = "zeromq", feature = "libzmq"))]
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// One more. The reason must not hold anything that comes from outside.
    pub(crate) fn add(&mut self, count: u64, reason: impl Display) {
        self.count += count;
        self.total += count;
        let now = Instant::now();
        if self.next.is_none_or(|next| now >= next) {
            tracing::warn!("{}: {}, the last one because {reason}", self.what, self.count);
            self.count = 0;
            self.next = Some(now + COMPLAINT_PACE);
        }
    }
}
