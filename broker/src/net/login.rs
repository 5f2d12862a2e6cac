//! The identity of a connection: credentials, login, and changed permissions.

use std::sync::Arc;

use tidings_protocol::{Code, ProtocolError, Slot, Token, TopicName};

use super::Shared;
use super::closing::CloseReason;
use super::connection::Connection;
use crate::access::{Access, Credential, Identity, LoginError, Transport};
use crate::audit::AuditEvent;
use crate::clock::Moment;
use crate::quota::Usage;
use crate::remote::{PeerAddr, RemoteInfo};
use crate::topic::Topic;

/// The identity of a client that has not sent a token: by certificate, by user of the machine, or
/// anonymous.
pub(super) fn identity_of(access: &Access, transport: Transport, remote: &RemoteInfo) -> Identity {
    let credential = match (&remote.certificate, remote.peer) {
        (Some(name), _) => Some(Credential::Certificate(name.clone())),
        (None, PeerAddr::Unix { uid, .. }) => Some(Credential::UnixUser(uid)),
        (None, PeerAddr::Tcp(_)) => None,
    };
    let identity = credential.and_then(|credential| access.identify(transport, &credential));
    identity.unwrap_or_else(|| access.anonymous(transport))
}

/// Checks that a token on this connection cannot be read on the network.
pub(super) fn check_token_allowed(remote: &RemoteInfo) -> Result<(), ProtocolError> {
    if remote.is_encrypted || remote.peer.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    let text = "this connection is not encrypted, so others may have read the token; revoke it, \
                and send the next one over TLS";
    Err(ProtocolError::new(Code::Denied, text))
}

pub(super) fn wrong_token_error() -> ProtocolError {
    ProtocolError::new(Code::Unauthenticated, "no principal has this token")
}

/// The error for a source that has sent too many wrong tokens.
pub(super) fn too_many_tokens_error(wait_ms: u64) -> ProtocolError {
    let seconds = wait_ms.div_ceil(1_000);
    let text = format!("too many wrong tokens from this address; try again in {seconds} s");
    ProtocolError::new(Code::Limit, text)
}

/// The remote end of a connection, its usage, and the state of its login.
#[derive(Debug)]
pub(super) struct LoginState {
    /// The address and certificate of the remote end.
    pub(super) remote: RemoteInfo,
    /// Its usage of the quotas of its source and its principal.
    pub(super) usage: Usage,
    /// The login deadline of a client that may do nothing but log in.
    login_deadline: Option<Moment>,
    /// After a wrong token: when its error is sent, and the slot of that error. Until then nothing
    /// is read.
    delayed_rejection: Option<(Moment, Slot)>,
    /// Why the connection ended, for audit records.
    pub(super) close_reason: &'static str,
}

impl LoginState {
    pub(super) fn begin(
        shared: &Shared,
        remote: RemoteInfo,
        usage: Usage,
    ) -> (Identity, Box<Self>) {
        let identity = identity_of(&shared.access, Transport::Line, &remote);
        let must_log_in =
            identity.has_no_permissions() && shared.access.peer_topic(&identity).is_none();
        let login_deadline =
            must_log_in.then(|| shared.clock.now() + shared.limits.login_timeout_ms);
        (
            identity,
            Box::new(Self {
                remote,
                usage,
                login_deadline,
                delayed_rejection: None,
                close_reason: "connection lost",
            }),
        )
    }

    /// Whether the client may do nothing but log in.
    pub(super) fn must_log_in(&self) -> bool {
        self.login_deadline.is_some()
    }

    /// Whether the error for a wrong token is pending, which pauses reading.
    pub(super) fn is_rejection_delayed(&self) -> bool {
        self.delayed_rejection.is_some()
    }

    /// Clears the login deadline if the new identity has permissions.
    pub(super) fn clear_deadline_if_permitted(&mut self, identity: &Identity) {
        self.login_deadline.take_if(|_| !identity.has_no_permissions());
    }

    pub(super) fn deadline(&self) -> Option<Moment> {
        // A client that waits for an answer is not late.
        self.delayed_rejection.map(|(at, _)| at).or(self.login_deadline)
    }
}

impl Connection {
    /// The topic to which peers publish and subscribe, if this connection may be a peer.
    pub(super) fn peer_topic(&self) -> Option<Arc<Topic>> {
        let name = TopicName::new(self.shared.access.peer_topic(&self.identity)?.as_str()).ok()?;
        self.shared.topics.open(&name).ok()
    }

    /// The identity for a token; without a token the current identity. On an error the answer is
    /// already queued, or its slot is reserved.
    pub(super) fn log_in(&mut self, token: Option<&Token>) -> Result<Identity, ()> {
        let Some(token) = token else { return Ok(self.identity.clone()) };
        let reject = |connection: &mut Self, error: ProtocolError| {
            connection.shared.stats.refused_lines.add(1);
            connection.shared.stats.failed_logins.add(1);
            connection.audit(AuditEvent::LogInFailed { why: &error.text });
            connection.push_error(&error);
        };
        if let Err(error) = check_token_allowed(&self.login.remote) {
            reject(self, error);
            return Err(());
        }
        let (now, source) = (self.shared.clock.now(), self.login.remote.peer.ip().into());
        match self.shared.access.log_in(self.identity.transport(), token, Some(source), now) {
            Ok(identity) => Ok(identity),
            Err(LoginError::TooManyFailures(wait_ms)) => {
                reject(self, too_many_tokens_error(wait_ms));
                Err(())
            }
            Err(LoginError::InvalidToken(delay_ms)) => {
                self.shared.stats.refused_lines.add(1);
                self.shared.stats.failed_logins.add(1);
                self.audit(AuditEvent::LogInFailed { why: "no principal has this token" });
                self.login.delayed_rejection = Some((now + delay_ms, self.answers.reserve()));
                Err(())
            }
        }
    }

    /// Handles the login deadline: sends the delayed error of a wrong token, or closes a connection
    /// that has not logged in.
    pub(super) fn handle_login_deadline(&mut self) {
        if let Some((_, slot)) = self.login.delayed_rejection.take() {
            return self.fill_error(slot, &wrong_token_error());
        }
        self.login.login_deadline = None;
        self.start_closing(CloseReason::LoginTimeout);
    }

    /// Whether the connection subscribes, works or waits. These were allowed by its current
    /// permissions, and they continue without another check.
    fn depends_on_permissions(&self) -> bool {
        let is_working = self.worker.as_ref().is_some_and(|worker| {
            let is_waiting = !worker.wait_slots.is_empty() || worker.watch_slot.is_some();
            worker.is_known_to_groups || is_waiting || worker.pending_slot.is_some()
        });
        is_working || self.subscriptions.len() > 0
    }

    /// Checks that the connection may change its principal. What it subscribes to or works on as
    /// the old principal would survive the revocation of that principal.
    pub(super) fn check_identity_change(&self, identity: &Identity) -> Result<(), ProtocolError> {
        if identity.is_same_principal(&self.identity) || !self.depends_on_permissions() {
            return Ok(());
        }
        let text = format!(
            "this connection already subscribes or works as {}; log in on a new connection",
            self.identity.name()
        );
        Err(ProtocolError::new(Code::Conflict, text))
    }

    /// Renews the identity after principals have changed. The connection ends if its principal is
    /// revoked, or if its permissions changed while it depends on them; the client then reconnects.
    pub(super) fn renew_identity(&mut self) {
        let renewed = self.shared.access.renew(&self.identity).map(|identity| {
            // A new principal may match the client's certificate or its user of the machine.
            let is_anonymous = identity.is_anonymous();
            if is_anonymous {
                identity_of(&self.shared.access, identity.transport(), &self.login.remote)
            } else {
                identity
            }
        });
        let Some(identity) = renewed else {
            let text = format!("{} is revoked", self.identity.name());
            return self.start_closing(CloseReason::Error(ProtocolError::new(Code::Revoked, text)));
        };
        if !identity.has_same_permissions(&self.identity) && self.depends_on_permissions() {
            let text =
                format!("the permissions of {} have changed; connect again", self.identity.name());
            return self.start_closing(CloseReason::Error(ProtocolError::new(Code::Revoked, text)));
        }
        if let Err(error) = self.shared.assign_usage(&mut self.login.usage, &identity) {
            return self.start_closing(CloseReason::Error(error));
        }
        self.identity = identity;
        self.login.clear_deadline_if_permitted(&self.identity);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // PROTOCOL: S16
    #[test]
    fn an_unencrypted_token_is_rejected_unless_it_comes_over_loopback() {
        for (address, is_encrypted, is_accepted) in [
            ("127.0.0.1:7", false, true),
            ("[::1]:7", false, true),
            ("[::ffff:127.0.0.1]:7", false, true),
            ("203.0.113.1:7", false, false),
            ("10.0.0.1:7", false, false),
            ("[::ffff:10.0.0.1]:7", false, false),
            ("[2001:db8::1]:7", false, false),
            ("203.0.113.1:7", true, true),
        ] {
            let peer = PeerAddr::Tcp(address.parse().unwrap());
            let checked =
                check_token_allowed(&RemoteInfo { peer, certificate: None, is_encrypted });
            assert_eq!(
                checked.is_ok(),
                is_accepted,
                "{address}, encrypted {is_encrypted}: {checked:?}"
            );
            assert!(checked.is_ok() || checked.unwrap_err().code == Code::Denied);
        }
    }
}
