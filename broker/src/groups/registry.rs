//! The groups of a broker by name, and the groups in which each connection takes part.

use std::collections::BTreeSet;

use dashmap::DashMap;
use parking_lot::{Mutex, MutexGuard};
use tidings_protocol::{GroupName, ProtocolError};
use tokio::sync::mpsc;

use super::letter::{Letter, stopped};
use super::no_such;
use crate::mailbox::ConnId;

/// The entries of both maps are independent of one another. A guard of a map lives in one expression.
#[derive(Default)]
pub(super) struct Registry {
    groups: DashMap<GroupName, mpsc::UnboundedSender<Letter>>,
    /// Groups that each connection has joined, or in which it waits for a job or watches something. They receive a
    /// letter when the connection ends.
    joined: DashMap<ConnId, BTreeSet<GroupName>>,
    creating: Mutex<()>,
}

impl Registry {
    /// Waits for the right to create groups.
    pub(super) fn create(&self) -> Creation<'_> {
        Creation { groups: &self.groups, _alone: self.creating.lock() }
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

    /// Adds a group, whose owner receives its letters.
    pub(super) fn add(&self, group: GroupName, owner: mpsc::UnboundedSender<Letter>) {
        self.groups.insert(group, owner);
    }
}
