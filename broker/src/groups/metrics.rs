//! What is known about a group without asking its actor.

use tidings_queue::queries::metrics::GroupMetrics;

use crate::clock::Moment;

/// The metrics that a group published last, at most a second ago if it runs; or the sum of those of
/// several groups.
#[derive(Debug, Clone, Default)]
pub(crate) struct PublishedMetrics {
    /// Those of the state machine.
    pub(crate) group: GroupMetrics,
    /// Events of its topics that it has not consumed.
    pub(crate) behind: u64,
    /// Since when there has always been an entry that waits only for a member.
    pub(crate) starved_since: Option<Moment>,
    /// How many groups release nothing, in the order of [`StopReason::ALL`].
    pub(crate) stopped: [u64; StopReason::ALL.len()],
}

/// Why a group releases nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopReason {
    /// The disk is full.
    Full,
    /// Its log cannot be written until a restart.
    SyncFailed,
    /// It has panicked, or cannot read its texts.
    Fault,
    /// An operator has paused it.
    Paused,
}

impl StopReason {
    pub(crate) const ALL: [Self; 4] = [Self::Full, Self::SyncFailed, Self::Fault, Self::Paused];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::SyncFailed => "sync-failed",
            Self::Fault => "fault",
            Self::Paused => "paused",
        }
    }
}

impl PublishedMetrics {
    /// Marks the group as stopped.
    pub(super) fn set_stopped(&mut self, reason: Option<StopReason>) {
        self.stopped = StopReason::ALL.map(|each| u64::from(reason == Some(each)));
    }

    /// Adds the metrics of another group.
    pub(crate) fn merge(&mut self, other: &Self) {
        let Self { group, behind, starved_since, stopped } = other;
        self.group.merge(group);
        self.behind += behind;
        self.starved_since = self.starved_since.into_iter().chain(*starved_since).min();
        for (count, more) in self.stopped.iter_mut().zip(stopped) {
            *count += more;
        }
    }
}
