//! The registry of open connections and their members.

use std::collections::HashMap;

use parking_lot::Mutex;
use tidings_protocol::MemberId;

use crate::mailbox::{ConnId, Mailbox};

/// All open connections, and the connection of each member.
#[derive(Debug)]
pub(super) struct ConnectionRegistry {
    connections_max: usize,
    state: Mutex<RegistryState>,
}

#[derive(Debug, Default)]
struct RegistryState {
    connections: HashMap<ConnId, Mailbox>,
    /// The connection of each member that has sent `HELLO`.
    members: HashMap<MemberId, ConnId>,
    /// Connections since the start.
    total_connections: u64,
    is_closing: bool,
}

impl ConnectionRegistry {
    pub(super) fn new(connections_max: usize) -> Self {
        Self { connections_max, state: Mutex::default() }
    }

    /// Registers a new connection; `None` if the limit is reached. Connections are numbered from 1.
    pub(super) fn register(&self) -> Option<(ConnId, Mailbox)> {
        let state = &mut *self.state.lock();
        if state.connections.len() >= self.connections_max {
            return None;
        }
        state.total_connections += 1;
        let (conn, mailbox) = (ConnId(state.total_connections), Mailbox::new());
        if state.is_closing {
            mailbox.close();
        }
        state.connections.insert(conn, mailbox.clone());
        Some((conn, mailbox))
    }

    /// Assigns `member` to `conn`. Returns the mailbox of the connection that had it before.
    pub(super) fn claim_member(&self, member: MemberId, conn: ConnId) -> Option<Mailbox> {
        let state = &mut *self.state.lock();
        let previous = state.members.insert(member, conn).filter(|previous| *previous != conn)?;
        state.connections.get(&previous).cloned()
    }

    /// Removes a member, unless another connection has claimed it.
    pub(super) fn release_member(&self, member: MemberId, conn: ConnId) {
        let members = &mut self.state.lock().members;
        if members.get(&member) == Some(&conn) {
            members.remove(&member);
        }
    }

    pub(super) fn unregister(&self, conn: ConnId) {
        self.state.lock().connections.remove(&conn);
    }

    pub(super) fn close_all(&self) {
        let mailboxes: Vec<Mailbox> = {
            let state = &mut *self.state.lock();
            state.is_closing = true;
            state.connections.values().cloned().collect()
        };
        mailboxes.iter().for_each(Mailbox::close);
    }

    /// Asks every connection to renew its identity.
    pub(super) fn renew_all(&self) {
        let mailboxes: Vec<Mailbox> = self.state.lock().connections.values().cloned().collect();
        mailboxes.iter().for_each(Mailbox::request_renewal);
    }

    /// Open connections.
    pub(super) fn len(&self) -> usize {
        self.state.lock().connections.len()
    }

    /// Connections since the start.
    pub(super) fn total_connections(&self) -> u64 {
        self.state.lock().total_connections
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_count_from_one_up_to_the_limit() {
        let registry = ConnectionRegistry::new(2);
        let (first, _) = registry.register().unwrap();
        let (second, _) = registry.register().unwrap();
        assert_eq!((first, second), (ConnId(1), ConnId(2)));
        assert!(registry.register().is_none());
        registry.unregister(first);
        assert_eq!(registry.register().unwrap().0, ConnId(3));
    }

    #[test]
    fn a_member_belongs_to_the_connection_that_claimed_it_last() {
        let registry = ConnectionRegistry::new(9);
        let (old, _) = registry.register().unwrap();
        let (new, _) = registry.register().unwrap();
        let member = MemberId(7);
        assert!(registry.claim_member(member, old).is_none());
        assert!(registry.claim_member(member, old).is_none(), "already its own");
        assert!(registry.claim_member(member, new).is_some());
        registry.release_member(member, old);
        assert!(
            registry.claim_member(member, old).is_some(),
            "a late release by the old connection has no effect"
        );
    }
}
