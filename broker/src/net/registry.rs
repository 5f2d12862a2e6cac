//! The registry of open connections and their members.

use std::collections::HashMap;

use parking_lot::Mutex;
use tidings_protocol::MemberId;

use crate::access::Transport;
use crate::mailbox::{ConnId, Mailbox};

/// All open connections, and the connection of each member.
#[derive(Debug)]
pub(super) struct ConnectionRegistry {
    connections_max: usize,
    state: Mutex<RegistryState>,
}

#[derive(Debug, Default)]
struct RegistryState {
    connections: HashMap<ConnId, (Mailbox, Transport)>,
    /// The connection of each member that has sent `HELLO`.
    members: HashMap<MemberId, ConnId>,
    /// Number of the newest connection.
    last_number: u64,
    /// Those of each transport, in the order of [`Transport::ALL`].
    counts: [ConnectionCounts; Transport::ALL.len()],
    is_closing: bool,
}

/// Connections of one transport.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ConnectionCounts {
    /// Since the start.
    pub(super) opened: u64,
    /// Open now.
    pub(super) open: u64,
}

impl RegistryState {
    fn next_connection(&mut self) -> (ConnId, Mailbox) {
        self.last_number += 1;
        (ConnId(self.last_number), Mailbox::new())
    }
}

impl ConnectionRegistry {
    pub(super) fn new(connections_max: usize) -> Self {
        Self { connections_max, state: Mutex::default() }
    }

    /// Registers a new connection; `None` if the limit is reached. Connections are numbered from 1.
    pub(super) fn register(&self, transport: Transport) -> Option<(ConnId, Mailbox)> {
        let state = &mut *self.state.lock();
        if state.connections.len() >= self.connections_max {
            return None;
        }
        let (conn, mailbox) = state.next_connection();
        let counts = &mut state.counts[transport as usize];
        counts.opened += 1;
        counts.open += 1;
        if state.is_closing {
            mailbox.close();
        }
        state.connections.insert(conn, (mailbox.clone(), transport));
        Some((conn, mailbox))
    }

    /// A number and a mailbox for a part of the broker, which is not registered.
    pub(super) fn internal(&self) -> (ConnId, Mailbox) {
        self.state.lock().next_connection()
    }

    /// Assigns `member` to `conn`. Returns the mailbox of the connection that had it before.
    pub(super) fn claim_member(&self, member: MemberId, conn: ConnId) -> Option<Mailbox> {
        let state = &mut *self.state.lock();
        let previous = state.members.insert(member, conn).filter(|previous| *previous != conn)?;
        Some(state.connections.get(&previous)?.0.clone())
    }

    /// Removes a member, unless another connection has claimed it.
    pub(super) fn release_member(&self, member: MemberId, conn: ConnId) {
        let members = &mut self.state.lock().members;
        if members.get(&member) == Some(&conn) {
            members.remove(&member);
        }
    }

    pub(super) fn unregister(&self, conn: ConnId) {
        let state = &mut *self.state.lock();
        if let Some((_, transport)) = state.connections.remove(&conn) {
            state.counts[transport as usize].open -= 1;
        }
    }

    pub(super) fn close_all(&self) {
        let mailboxes: Vec<Mailbox> = {
            let state = &mut *self.state.lock();
            state.is_closing = true;
            state.connections.values().map(|(mailbox, _)| mailbox.clone()).collect()
        };
        mailboxes.iter().for_each(Mailbox::close);
    }

    /// Asks every connection to renew its identity.
    pub(super) fn renew_all(&self) {
        let mailboxes: Vec<Mailbox> =
            self.state.lock().connections.values().map(|(mailbox, _)| mailbox.clone()).collect();
        mailboxes.iter().for_each(Mailbox::request_renewal);
    }

    /// The connections of each transport.
    pub(super) fn counts(&self) -> [(Transport, ConnectionCounts); Transport::ALL.len()] {
        let counts = self.state.lock().counts;
        Transport::ALL.map(|transport| (transport, counts[transport as usize]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_count_from_one_up_to_the_limit() {
        let registry = ConnectionRegistry::new(2);
        let (first, _) = registry.register(Transport::Line).unwrap();
        let (second, _) = registry.register(Transport::Line).unwrap();
        assert_eq!((first, second), (ConnId(1), ConnId(2)));
        assert!(registry.register(Transport::Line).is_none());
        registry.unregister(first);
        assert_eq!(registry.register(Transport::Line).unwrap().0, ConnId(3));
    }

    #[test]
    fn a_member_belongs_to_the_connection_that_claimed_it_last() {
        let registry = ConnectionRegistry::new(9);
        let (old, _) = registry.register(Transport::Line).unwrap();
        let (new, _) = registry.register(Transport::Line).unwrap();
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
