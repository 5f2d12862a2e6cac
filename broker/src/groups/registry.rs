//! The groups of a broker by name, and the groups in which each connection takes part.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use dashmap::DashMap;
use parking_lot::{Mutex, MutexGuard};
use tidings_protocol::{GroupName, ProtocolError};
use tokio::sync::mpsc;

use super::letter::{Letter, stopped};
use super::no_such;
use crate::log::TopicLog;
use crate::mailbox::ConnId;

/// The entries of the maps are independent of one another. A guard of a map lives in one expression.
#[derive(Default)]
pub(super) struct Registry {
    groups: DashMap<GroupName, mpsc::UnboundedSender<Letter>>,
    /// Their logs on disk, to be closed when the broker stops.
    logs: DashMap<GroupName, Arc<dyn TopicLog>>,
    /// Groups that each connection has joined, or in which it waits for a job or watches something. They receive a
    /// letter when the connection ends.
    joined: DashMap<ConnId, BTreeSet<GroupName>>,
    creating: Mutex<()>,
}

impl Registry {
    /// Waits for the right to create groups.
    pub(super) fn create(&self) -> Creation<'_> {
        Creation { groups: &self.groups, logs: &self.logs, _alone: self.creating.lock() }
    }

    /// Sends a letter to the owner of a group, or returns it with the reason.
    ///
    /// The guard is held while the letter is sent: when [`remove`](Self::remove) has returned, no further letter comes.
    pub(super) fn send(
        &self,
        group: &GroupName,
        letter: Letter,
    ) -> Result<(), Box<(Letter, ProtocolError)>> {
        match self.groups.get(group) {
            Some(owner) => owner.send(letter).map_err(|unsent| (unsent.0, stopped(group)).into()),
            None => Err((letter, no_such(group)).into()),
        }
    }

    /// The group has ended.
    pub(super) fn remove(&self, group: &GroupName) {
        self.groups.remove(group);
        self.logs.remove(group);
    }

    /// The logs of all groups, in the order of their names. The registry has none of them from now on.
    pub(super) fn take_logs(&self) -> BTreeMap<GroupName, Arc<dyn TopicLog>> {
        let names: Vec<_> = self.logs.iter().map(|entry| entry.key().clone()).collect();
        names.into_iter().filter_map(|name| self.logs.remove(&name)).collect()
    }

    pub(super) fn has(&self, group: &GroupName) -> bool {
        self.groups.contains_key(group)
    }

    /// Names of all groups, in no order.
    pub(super) fn names(&self) -> Vec<GroupName> {
        self.groups.iter().map(|entry| entry.key().clone()).collect()
    }

    /// A connection takes part in a group.
    pub(super) fn join(&self, conn: ConnId, group: GroupName) {
        self.joined.entry(conn).or_default().insert(group);
    }

    /// The groups in which a connection takes part.
    pub(super) fn joined(&self, conn: ConnId) -> BTreeSet<GroupName> {
        self.joined.get(&conn).map(|groups| groups.clone()).unwrap_or_default()
    }

    /// A connection has ended. Returns the groups in which it took part.
    pub(super) fn leave(&self, conn: ConnId) -> BTreeSet<GroupName> {
        self.joined.remove(&conn).map(|(_, groups)| groups).unwrap_or_default()
    }
}

/// The right to create groups, which one thread has at a time.
///
/// Whether a group may be created depends on its name, on how many there are and on its place on disk. So this is a
/// lock of its own: no guard of the map lives as long as it takes to open topics and a log. Others may remove groups
/// meanwhile, and never add one.
pub(super) struct Creation<'a> {
    groups: &'a DashMap<GroupName, mpsc::UnboundedSender<Letter>>,
    logs: &'a DashMap<GroupName, Arc<dyn TopicLog>>,
    _alone: MutexGuard<'a, ()>,
}

impl Creation<'_> {
    pub(super) fn has(&self, group: &GroupName) -> bool {
        self.groups.contains_key(group)
    }

    /// How many groups there are.
    pub(super) fn count(&self) -> usize {
        self.groups.len()
    }

    /// Adds the log of a group, before the group itself.
    pub(super) fn add_log(&self, group: GroupName, log: Arc<dyn TopicLog>) {
        self.logs.insert(group, log);
    }

    /// Adds a group, whose owner receives its letters.
    pub(super) fn add(&self, group: GroupName, owner: mpsc::UnboundedSender<Letter>) {
        self.groups.insert(group, owner);
    }
}
