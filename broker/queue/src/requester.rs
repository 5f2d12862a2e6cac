//! The sender of a command.

use std::fmt;

use tidings_protocol::status::BrowserFields;
use tidings_protocol::{MemberId, Slot};

/// The number of a connection, from 1 in the order of arrival; never reused in a run of the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u64);

impl ConnId {
    /// The broker itself, as the origin of events that no connection sent.
    pub const BROKER: Self = Self(0);
}

impl fmt::Display for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What people see of a client.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClientLabel {
    /// The name that it sent in `HELLO`.
    pub name: Option<Box<str>>,
    /// The address of its connection.
    pub address: Option<Box<str>>,
    /// What it reports about its browsers.
    pub browsers: BrowserFields,
}

/// The sender of a command, and where its answer goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Requester {
    /// The sender's connection.
    pub conn: ConnId,
    /// The worker on that connection.
    pub member: MemberId,
    /// The position of the answer among the answers of the connection.
    pub slot: Slot,
}
