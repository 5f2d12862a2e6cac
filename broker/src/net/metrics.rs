//! Collects what the parts of the broker know, for the table of metrics.

use std::sync::Arc;

use tidings_metrics::MetricsSource;

use super::Shared;
use crate::clock::wall_unix_ms;
use crate::metrics::{Connections, Problem, Snapshot, TopicMetrics};
use crate::tls::Tls;
use crate::topic::Topic;

impl Shared {
    /// What is known now. Waits for no group and no disk.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let connections = self.registry.counts().into_iter().map(|(transport, counts)| {
            Connections { transport, opened: counts.opened, open: counts.open }
        });
        Snapshot {
            stats: self.stats.clone(),
            connections: connections.collect(),
            topics: self.topics.list().iter().map(|topic| self.topic_metrics(topic)).collect(),
            groups: Snapshot::largest_groups(self.groups.metrics()),
            answered: self.groups.answered(),
            damaged_groups: self.groups.damaged_names(),
            group_log_bytes: self.groups.log_bytes(),
            commits: self.topics.committers().map(|committers| committers.durations()),
            disk: self.topics.disk_space(),
            audit_lost: self.audit.lost(),
            certificate_expiry_unix_s: self.tls.as_ref().and_then(Tls::not_after_unix_s),
            now: self.clock.now(),
        }
    }

    /// What is not well, the worst first.
    pub(crate) fn problems(&self, snapshot: &Snapshot) -> Vec<Problem> {
        let unix_s = wall_unix_ms().unsigned_abs() / 1000;
        snapshot.problems(&self.groups.metrics(), &self.metrics_sources, unix_s)
    }

    /// What other parts of the process report.
    pub(crate) fn metrics_sources(&self) -> &[Arc<dyn MetricsSource>] {
        &self.metrics_sources
    }

    fn topic_metrics(&self, topic: &Topic) -> TopicMetrics {
        let stats = topic.stats();
        let cursors = self.cursors.list(topic.name()).into_iter().map(|cursor| cursor.next);
        let hindmost = cursors.min().filter(|next| *next < stats.head);
        TopicMetrics {
            name: topic.name().to_string(),
            stats,
            cursor_behind_max: hindmost.map_or(0, |next| stats.head.0 - next.0),
            cursor_kept_min: hindmost.map(|next| next.0.saturating_sub(stats.first_kept.0)),
        }
    }
}
