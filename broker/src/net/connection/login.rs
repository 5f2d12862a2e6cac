//! `HELLO`, and changed permissions.

use tidings_protocol::{
    Code, Hello, HelloAnswer, MemberId, ProtocolError, Token, bad_argument, encode_ok,
};

use super::Connection;
use super::closing::CloseReason;
use crate::access::{Identity, Transport};
use crate::mailbox::ConnMessage;
use crate::net::client_session::{RejectedToken, wrong_token};

/// The version in the answer to `HELLO`.
const VERSION: &str = env!("CARGO_PKG_VERSION");

impl Connection {
    pub(super) fn handle_hello(&mut self, hello: &Hello) -> Result<(), ProtocolError> {
        let Some(mut identity) = self.log_in(hello.token.as_ref())? else { return Ok(()) };
        self.check_identity_change(&identity)?;
        identity.set_transport(self.transport_for_via(hello.via.as_deref())?);
        let member = self.worker_mut().member_after(hello.resume)?;
        // Nothing fails after this, so a rejected `HELLO` takes no member over.
        self.client.identify(identity)?;
        self.claim_member(member);
        if let Some(name) = &hello.name {
            tracing::debug!(conn = %self.id, name, "HELLO from a client");
            self.worker_mut().set_name(name);
        }
        let answer = HelloAnswer {
            version: VERSION.to_owned(),
            id: self.id.0,
            clock_ms: self.shared.clock.now().0,
            echo: hello.echo.clone(),
            resume: member,
        };
        self.answers.push(|lines| encode_ok(&answer.to_string(), lines));
        Ok(())
    }

    /// The transport of the clients that this connection acts for from now on. It cannot change
    /// back, and it must be set before the first subscription or task: those were checked for the
    /// old transport.
    fn transport_for_via(&self, via: Option<&str>) -> Result<Transport, ProtocolError> {
        let before = self.client.session.identity().transport();
        let Some(via) = via else { return Ok(before) };
        let transport = via.parse::<Transport>();
        let transport = transport.map_err(|text| bad_argument(format!("via={text}")))?;
        if before == transport {
            return Ok(transport);
        }
        if before != Transport::Line {
            let text = format!(
                "this connection already acts for clients of {}; use another connection",
                before.as_str()
            );
            return Err(ProtocolError::new(Code::Denied, text));
        }
        let is_working = self.worker.as_ref().is_some_and(|worker| worker.is_known_to_groups());
        if is_working || self.subscriptions.len() > 0 {
            let text = "this connection already subscribes or works; send via= in its first HELLO";
            return Err(ProtocolError::new(Code::Conflict, text));
        }
        Ok(transport)
    }

    /// Makes the connection that of a member, and ends its older connection.
    fn claim_member(&mut self, member: MemberId) {
        let before = self.worker_mut().replace_member(member);
        if before != member {
            self.shared.registry.release_member(before, self.id);
        }
        if let Some(older) = self.shared.registry.claim_member(member, self.id) {
            let text = "another connection has resumed this member";
            older.send(ConnMessage::End(ProtocolError::new(Code::Replaced, text)));
        }
    }

    /// The identity for a token; without a token the current identity. `None`: the token is wrong,
    /// and its error comes later.
    fn log_in(&mut self, token: Option<&Token>) -> Result<Option<Identity>, ProtocolError> {
        let Some(token) = token else { return Ok(Some(self.client.session.identity().clone())) };
        let RejectedToken { error, delay_ms, .. } = match self.client.session.log_in(token) {
            Ok(identity) => return Ok(Some(identity)),
            Err(rejected) => rejected,
        };
        self.shared.stats.refused_lines.add(1);
        if delay_ms == 0 {
            return Err(error);
        }
        let at = self.shared.clock.now() + delay_ms;
        self.client.delay_rejection(at, self.answers.reserve());
        Ok(None)
    }

    /// Handles the login deadline: sends the delayed error of a wrong token, or closes a connection
    /// that has not logged in.
    pub(super) fn handle_login_deadline(&mut self) {
        match self.client.expire() {
            Some(slot) => self.fill_error(slot, &wrong_token()),
            None => self.start_closing(CloseReason::LoginTimeout),
        }
    }

    /// Whether the connection subscribes, works or waits. These were allowed by its current
    /// permissions, and they continue without another check.
    fn depends_on_permissions(&self) -> bool {
        let is_working = self.worker.as_ref().is_some_and(|worker| worker.depends_on_permissions());
        is_working || self.subscriptions.len() > 0
    }

    /// Checks that the connection may change its principal. What it subscribes to or works on as
    /// the old principal would survive the revocation of that principal.
    pub(super) fn check_identity_change(&self, identity: &Identity) -> Result<(), ProtocolError> {
        if identity.is_same_principal(self.client.session.identity())
            || !self.depends_on_permissions()
        {
            return Ok(());
        }
        let text = format!(
            "this connection already subscribes or works as {}; log in on a new connection",
            self.client.session.identity().name()
        );
        Err(ProtocolError::new(Code::Conflict, text))
    }

    /// Renews the identity after principals have changed. The connection ends if its principal is
    /// revoked, or if its permissions changed while it depends on them; the client then reconnects.
    pub(super) fn renew_identity(&mut self) {
        let renewed = self.renewed_identity();
        if let Err(error) = renewed.and_then(|identity| self.client.identify(identity)) {
            self.start_closing(CloseReason::Error(error));
        }
    }

    fn renewed_identity(&self) -> Result<Identity, ProtocolError> {
        let before = self.client.session.identity();
        let revoked = |text| ProtocolError::new(Code::Revoked, text);
        let Some(identity) = self.client.session.renewed_identity() else {
            return Err(revoked(format!("{} is revoked", before.name())));
        };
        if !identity.has_same_permissions(before) && self.depends_on_permissions() {
            let text = format!("the permissions of {} have changed; connect again", before.name());
            return Err(revoked(text));
        }
        Ok(identity)
    }
}
