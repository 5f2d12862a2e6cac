//! Maps group names to their actors, and connections to their groups.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use dashmap::DashMap;
use parking_lot::{Mutex, MutexGuard};
use tidings_log::TopicLog;
use tidings_metrics::Counter;
use tidings_protocol::{GroupName, ProtocolError};
use tokio::sync::mpsc;

use super::message::{GroupMessage, group_stopped};
use super::metrics::PublishedMetrics;
use super::unknown_group;
use crate::mailbox::ConnId;

/// Entries of the maps are independent of each other. A guard of a map lives within one expression.
#[derive(Default)]
pub(super) struct GroupRegistry {
    groups: DashMap<GroupName, mpsc::UnboundedSender<GroupMessage>>,
    /// Their logs on disk; they are closed when the broker stops.
    logs: DashMap<GroupName, Arc<dyn TopicLog>>,
    /// What they published last.
    metrics: DashMap<GroupName, Arc<PublishedMetrics>>,
    /// Entries of all groups that were completed, and that failed, since the start.
    answered: [Counter; 2],
    /// Groups in which each connection is a member, waits for a job, or watches something. They
    /// receive a message when the connection ends.
    joined: DashMap<ConnId, BTreeSet<GroupName>>,
    creating: Mutex<()>,
}

impl GroupRegistry {
    /// Waits for the lock for creating groups.
    pub(super) fn lock_creation(&self) -> CreationLock<'_> {
        CreationLock { groups: &self.groups, logs: &self.logs, _alone: self.creating.lock() }
    }

    /// Sends a message to a group's actor, or returns it with the reason.
    ///
    /// The map's guard is held during the send: after [`remove`](Self::remove) has returned, the
    /// actor receives no further message.
    pub(super) fn send(
        &self,
        group: &GroupName,
        message: GroupMessage,
    ) -> Result<(), Box<(GroupMessage, ProtocolError)>> {
        match self.groups.get(group) {
            Some(actor) => {
                actor.send(message).map_err(|unsent| (unsent.0, group_stopped(group)).into())
            }
            None => Err((message, unknown_group(group)).into()),
        }
    }

    /// Removes a group that has ended.
    pub(super) fn remove(&self, group: &GroupName) {
        self.groups.remove(group);
        self.logs.remove(group);
        self.metrics.remove(group);
    }

    /// Replaces the metrics of a group. Only its actor calls this.
    pub(super) fn publish_metrics(&self, group: &GroupName, metrics: PublishedMetrics) {
        let now = [metrics.group.completed, metrics.group.failed];
        // The first metrics of a group count what was before the start.
        if let Some(before) = self.metrics.insert(group.clone(), Arc::new(metrics)) {
            let before = [before.group.completed, before.group.failed];
            for ((sum, now), before) in self.answered.iter().zip(now).zip(before) {
                sum.add(now.saturating_sub(before));
            }
        }
    }

    /// How many entries were completed, and how many failed, since the start. Never falls, even if
    /// groups are deleted.
    pub(super) fn answered(&self) -> [u64; 2] {
        self.answered.each_ref().map(Counter::value)
    }

    /// The metrics of a group.
    pub(super) fn metrics_of(&self, group: &GroupName) -> PublishedMetrics {
        let found = self.metrics.get(group).map(|metrics| (**metrics).clone());
        found.unwrap_or_default()
    }

    /// The metrics of all groups, in any order.
    pub(super) fn metrics(&self) -> Vec<(GroupName, Arc<PublishedMetrics>)> {
        let pairs = self.metrics.iter();
        pairs.map(|entry| (entry.key().clone(), Arc::clone(entry.value()))).collect()
    }

    /// Bytes of the logs of all groups.
    pub(super) fn log_bytes(&self) -> u64 {
        self.logs.iter().map(|log| log.bounds().bytes).sum()
    }

    /// Removes and returns the logs of all groups, ordered by name.
    pub(super) fn take_logs(&self) -> BTreeMap<GroupName, Arc<dyn TopicLog>> {
        let names: Vec<_> = self.logs.iter().map(|entry| entry.key().clone()).collect();
        names.into_iter().filter_map(|name| self.logs.remove(&name)).collect()
    }

    pub(super) fn has(&self, group: &GroupName) -> bool {
        self.groups.contains_key(group)
    }

    /// Names of all groups, in any order.
    pub(super) fn names(&self) -> Vec<GroupName> {
        self.groups.iter().map(|entry| entry.key().clone()).collect()
    }

    /// Records that a connection takes part in a group.
    pub(super) fn join(&self, conn: ConnId, group: GroupName) {
        self.joined.entry(conn).or_default().insert(group);
    }

    /// The groups in which a connection takes part.
    pub(super) fn groups_of(&self, conn: ConnId) -> BTreeSet<GroupName> {
        self.joined.get(&conn).map(|groups| groups.clone()).unwrap_or_default()
    }

    /// Removes a connection that has ended. Returns the groups in which it took part.
    pub(super) fn leave(&self, conn: ConnId) -> BTreeSet<GroupName> {
        self.joined.remove(&conn).map(|(_, groups)| groups).unwrap_or_default()
    }
}

/// The lock for creating groups, which one thread holds at a time.
///
/// Whether a group may be created depends on its name, the number of groups, and the data
/// directory. A lock of its own avoids holding a guard of the map while topics and a log are
/// opened. Without the lock, other threads may remove groups but never add one.
pub(super) struct CreationLock<'a> {
    groups: &'a DashMap<GroupName, mpsc::UnboundedSender<GroupMessage>>,
    logs: &'a DashMap<GroupName, Arc<dyn TopicLog>>,
    _alone: MutexGuard<'a, ()>,
}

impl CreationLock<'_> {
    pub(super) fn has(&self, group: &GroupName) -> bool {
        self.groups.contains_key(group)
    }

    /// The number of groups.
    pub(super) fn count(&self) -> usize {
        self.groups.len()
    }

    /// Adds a group's log; call it before [`add`](Self::add).
    pub(super) fn add_log(&self, group: GroupName, log: Arc<dyn TopicLog>) {
        self.logs.insert(group, log);
    }

    /// Adds a group; its actor receives messages from `actor`'s channel.
    pub(super) fn add(&self, group: GroupName, actor: mpsc::UnboundedSender<GroupMessage>) {
        self.groups.insert(group, actor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_answered_since_the_start_never_falls() {
        let (registry, group) = (GroupRegistry::default(), "g".parse().unwrap());
        let publish = |completed, failed| {
            let mut metrics = PublishedMetrics::default();
            (metrics.group.completed, metrics.group.failed) = (completed, failed);
            registry.publish_metrics(&group, metrics);
            registry.answered()
        };
        assert_eq!(publish(1_000, 7), [0, 0], "from before the start");
        assert_eq!(publish(1_003, 8), [3, 1]);
        registry.remove(&group);
        assert_eq!(publish(0, 0), [3, 1], "another group of this name");
        assert_eq!(publish(2, 0), [5, 1]);
    }
}
