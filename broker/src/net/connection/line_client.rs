//! The client of a connection of the line protocol: its session, and how far its login is.

use tidings_protocol::{ProtocolError, Slot};

use crate::access::Identity;
use crate::clock::Moment;
use crate::net::Shared;
use crate::net::client_session::ClientSession;

/// The client of a connection.
#[derive(Debug)]
pub(super) struct LineClient {
    pub(super) session: ClientSession,
    /// The login deadline of a client that may do nothing but log in.
    login_deadline: Option<Moment>,
    /// After a wrong token: when its error is sent, and the slot of that error. Until then nothing
    /// is read.
    delayed_rejection: Option<(Moment, Slot)>,
}

impl LineClient {
    pub(super) fn begin(shared: &Shared, session: ClientSession) -> Self {
        let must_log_in = session.identity().has_no_permissions() && session.peer_topic().is_none();
        let login_deadline =
            must_log_in.then(|| shared.clock.now() + shared.limits.login_timeout_ms);
        Self { session, login_deadline, delayed_rejection: None }
    }

    /// Whether the client may do nothing but log in.
    pub(super) fn must_log_in(&self) -> bool {
        self.login_deadline.is_some()
    }

    /// Replaces the identity. One with permissions has no login deadline.
    pub(super) fn identify(&mut self, identity: Identity) -> Result<(), ProtocolError> {
        self.session.identify(identity)?;
        self.login_deadline.take_if(|_| !self.session.identity().has_no_permissions());
        Ok(())
    }

    /// Sends the error of a wrong token later, in this slot.
    pub(super) fn delay_rejection(&mut self, until: Moment, slot: Slot) {
        self.delayed_rejection = Some((until, slot));
    }

    /// Whether the error for a wrong token is pending, which pauses reading.
    pub(super) fn is_rejection_delayed(&self) -> bool {
        self.delayed_rejection.is_some()
    }

    pub(super) fn deadline(&self) -> Option<Moment> {
        // A client that waits for an answer is not late.
        self.delayed_rejection.map(|(at, _)| at).or(self.login_deadline)
    }

    /// Ends the deadline. Returns the slot of a delayed error; `None`: the login is late.
    pub(super) fn expire(&mut self) -> Option<Slot> {
        let rejection = self.delayed_rejection.take();
        if rejection.is_none() {
            self.login_deadline = None;
        }
        rejection.map(|(_, slot)| slot)
    }
}
