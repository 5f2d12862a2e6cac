//! Publishes the metrics of the group for readers that must not wait for it.

use tidings_protocol::Code;

use super::GroupActor;
use crate::clock::Moment;
use crate::groups::metrics::{PublishedMetrics, StopReason};
use crate::topic::Health;

/// The shortest time between two publications, in ms.
const INTERVAL_MS: u64 = 1_000;

/// When the metrics are published next, and what that depends on.
#[derive(Debug, Default)]
pub(super) struct MetricsSchedule {
    /// The group may have changed since the last publication.
    pub(super) is_stale: bool,
    next_at: Moment,
    starved_since: Option<Moment>,
}

impl MetricsSchedule {
    /// When the actor must wake up to publish.
    pub(super) fn deadline(&self) -> Option<Moment> {
        self.is_stale.then_some(self.next_at)
    }
}

impl GroupActor {
    /// Publishes the metrics if they may have changed, at most once a second.
    pub(super) fn publish_metrics(&mut self) {
        if self.clock.now() >= self.metrics.next_at {
            self.publish_metrics_now();
        }
    }

    /// Publishes the metrics if they may have changed. Also before `GROUP show` is answered, so that
    /// metrics and problems that a client reads afterwards are not older than that answer.
    pub(super) fn publish_metrics_now(&mut self) {
        if !self.metrics.is_stale || self.is_deleted {
            return;
        }
        let now = self.clock.now();
        (self.metrics.is_stale, self.metrics.next_at) = (false, now + INTERVAL_MS);
        let group = self.group.view().metrics();
        let starved_since = self.metrics.starved_since;
        self.metrics.starved_since = (group.ready_keys > 0).then(|| starved_since.unwrap_or(now));
        let behind = |reader: &crate::topic::Reader| {
            reader.topic().head().0.saturating_sub(reader.cursor().0)
        };
        let mut metrics = PublishedMetrics {
            behind: self.readers.values().map(behind).sum(),
            starved_since: self.metrics.starved_since,
            group,
            ..PublishedMetrics::default()
        };
        let stopped = match self.log.health() {
            Health::Full => Some(StopReason::Full),
            Health::Failed => Some(StopReason::SyncFailed),
            Health::Good => self.group.is_paused().then_some(StopReason::Paused),
        };
        metrics.set_stopped(stopped);
        self.registry.publish_metrics(self.group.name(), metrics);
    }

    /// Publishes that the group has failed. Its state may be inconsistent, so the rest stays what it
    /// was.
    pub(super) fn publish_failure(&self) {
        let Some(error) = &self.failure else { return };
        let name = self.group.name();
        let mut metrics = self.registry.metrics_of(name);
        metrics.set_stopped(Some(match error.code {
            Code::NotDurable => StopReason::SyncFailed,
            _ => StopReason::Fault,
        }));
        self.registry.publish_metrics(name, metrics);
    }
}
