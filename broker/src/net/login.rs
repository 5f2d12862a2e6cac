//! Who a connection is: what it shows, and what becomes of it when rights change.

use std::sync::Arc;

use tidings_protocol::{Code, ProtocolError, Slot, Token, TopicName};

use super::Hub;
use super::closing::CloseReason;
use super::connection::Connection;
use super::stream::{PeerAddr, RemoteInfo};
use crate::access::{Access, Credential, Identity, LoginError, Transport};
use crate::audit::AuditEvent;
use crate::clock::Moment;
use crate::quota::Usage;
use crate::topic::Topic;

/// The pass of whoever is at the other end, as far as the connection itself tells.
pub(super) fn identity_of(access: &Access, way: Transport, remote: &RemoteInfo) -> Identity {
    let proof = match (&remote.certificate, remote.peer) {
        (Some(name), _) => Some(Credential::Certificate(name.clone())),
        #[cfg(unix)]
        (None, PeerAddr::Unix { uid, .. }) => Some(Credential::UnixUser(uid)),
        (None, PeerAddr::Tcp(_)) => None,
    };
    let known = proof.and_then(|proof| access.identify(way, &proof));
    known.unwrap_or_else(|| access.anonymous(way))
}

/// Whether somebody may show a token: nobody reads it on its way.
pub(super) fn check_token_allowed(remote: &RemoteInfo) -> Result<(), ProtocolError> {
    if remote.is_encrypted || remote.peer.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    let text = "this connection is not encrypted: whoever listens on the way has that token now, so revoke it, and show \
                the next one over TLS";
    Err(ProtocolError::new(Code::Denied, text))
}

/// What is said to somebody whose token nobody has.
pub(super) fn wrong_token_error() -> ProtocolError {
    ProtocolError::new(Code::Unauthenticated, "no principal has this token")
}

/// What is said to somebody from where too many wrong tokens have come.
pub(super) fn too_many_tokens_error(wait_ms: u64) -> ProtocolError {
    let seconds = wait_ms.div_ceil(1_000);
    let text = format!("too many wrong tokens from there; try again in {seconds} s");
    ProtocolError::new(Code::Limit, text)
}

/// Who a connection is said to be.
#[derive(Debug)]
pub(super) struct LoginState {
    /// Who is at the other end, as far as the connection itself tells.
    pub(super) remote: RemoteInfo,
    /// What it has of what its address and its name may have.
    pub(super) usage: Usage,
    /// Until when somebody has to log in who can do nothing else.
    login_deadline: Option<Moment>,
    /// A wrong token was shown: when that is answered, until which nothing is read, and where.
    delayed_rejection: Option<(Moment, Slot)>,
    /// Why the connection ends, for audit records.
    pub(super) close_reason: &'static str,
}

impl LoginState {
    /// What a connection begins with.
    pub(super) fn begin(hub: &Hub, remote: RemoteInfo, held: Usage) -> (Identity, Box<Self>) {
        let pass = identity_of(&hub.access, Transport::Line, &remote);
        let must = pass.has_no_permissions() && hub.access.peer_topic(&pass).is_none();
        let by = must.then(|| hub.clock.now() + hub.limits.login_timeout_ms);
        (
            pass,
            Box::new(Self {
                remote,
                usage: held,
                login_deadline: by,
                delayed_rejection: None,
                close_reason: "connection lost",
            }),
        )
    }

    /// Whether it can do nothing but log in.
    pub(super) fn must_log_in(&self) -> bool {
        self.login_deadline.is_some()
    }

    /// Whether nothing is read for a while.
    pub(super) fn is_rejection_delayed(&self) -> bool {
        self.delayed_rejection.is_some()
    }

    /// Somebody has that pass now.
    pub(super) fn clear_deadline_if_permitted(&mut self, pass: &Identity) {
        self.login_deadline.take_if(|_| !pass.has_no_permissions());
    }

    /// When something is to be done.
    pub(super) fn deadline(&self) -> Option<Moment> {
        // Whoever waits for an answer is not late.
        self.delayed_rejection.map(|(at, _)| at).or(self.login_deadline)
    }
}

impl Connection {
    /// The topic that it hears and publishes to as a peer, if it may be one.
    pub(super) fn peer_topic(&self) -> Option<Arc<Topic>> {
        let name = TopicName::new(self.hub.access.peer_topic(&self.identity)?.as_str()).ok()?;
        self.hub.topics.open(&name).ok()
    }

    /// The pass of whoever shows this; without a token the one it has. A refusal was or will be
    /// said.
    pub(super) fn log_in(&mut self, token: Option<&Token>) -> Result<Identity, ()> {
        let Some(token) = token else { return Ok(self.identity.clone()) };
        let refuse = |connection: &mut Self, error: ProtocolError| {
            connection.hub.stats.refused_lines.add(1);
            connection.audit(AuditEvent::LogInFailed { why: &error.text });
            connection.push_error(&error);
        };
        if let Err(error) = check_token_allowed(&self.login.remote) {
            refuse(self, error);
            return Err(());
        }
        let (now, source) = (self.hub.clock.now(), self.login.remote.peer.ip().into());
        match self.hub.access.log_in(self.identity.transport(), token, Some(source), now) {
            Ok(pass) => Ok(pass),
            Err(LoginError::TooManyFailures(wait_ms)) => {
                refuse(self, too_many_tokens_error(wait_ms));
                Err(())
            }
            Err(LoginError::InvalidToken(delay_ms)) => {
                self.hub.stats.refused_lines.add(1);
                self.audit(AuditEvent::LogInFailed { why: "no principal has this token" });
                self.login.delayed_rejection = Some((now + delay_ms, self.answers.reserve()));
                Err(())
            }
        }
    }

    /// The time of somebody who has to log in, or who showed a wrong token, is over.
    pub(super) fn handle_login_deadline(&mut self) {
        if let Some((_, slot)) = self.login.delayed_rejection.take() {
            return self.fill_error(slot, &wrong_token_error());
        }
        self.login.login_deadline = None;
        self.start_closing(CloseReason::LoginTimeout);
    }

    /// Whether it hears, works or waits, which rests on the rights that it had when it asked for
    /// it.
    fn depends_on_permissions(&self) -> bool {
        let works = self.worker.as_ref().is_some_and(|worker| {
            let waits = !worker.wait_slots.is_empty() || worker.watch_slot.is_some();
            worker.is_known_to_groups || waits || worker.pending_slot.is_some()
        });
        works || self.subscriptions.len() > 0
    }

    /// Whether it may go on as somebody else. What it has as this one would outlive this one's
    /// revocation.
    pub(super) fn check_identity_change(&self, pass: &Identity) -> Result<(), ProtocolError> {
        if pass.is_same_principal(&self.identity) || !self.depends_on_permissions() {
            return Ok(());
        }
        let text = format!(
            "this connection hears or works as {} already; token= comes first",
            self.identity.name()
        );
        Err(ProtocolError::new(Code::Conflict, text))
    }

    /// Somebody's rights have changed, perhaps its own. What it holds rests on those that it had:
    /// then it comes back.
    pub(super) fn renew_identity(&mut self) {
        let renewed = self.hub.access.renew(&self.identity).map(|pass| {
            // Somebody may be known by now by what the connection itself tells.
            let is_nobody = pass.is_anonymous();
            if is_nobody {
                identity_of(&self.hub.access, pass.transport(), &self.login.remote)
            } else {
                pass
            }
        });
        let Some(pass) = renewed else {
            let text = format!("{} is not let in any more", self.identity.name());
            return self.start_closing(CloseReason::Error(ProtocolError::new(Code::Revoked, text)));
        };
        if !pass.has_same_permissions(&self.identity) && self.depends_on_permissions() {
            let text = format!("what {} may do has changed; connect again", self.identity.name());
            return self.start_closing(CloseReason::Error(ProtocolError::new(Code::Revoked, text)));
        }
        if let Err(error) = self.hub.assign_usage(&mut self.login.usage, &pass) {
            return self.start_closing(CloseReason::Error(error));
        }
        self.identity = pass;
        self.login.clear_deadline_if_permitted(&self.identity);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // PROTOCOL: S16
    #[test]
    fn an_unencrypted_token_is_rejected_unless_it_comes_over_loopback() {
        for (address, is_encrypted, is_taken) in [
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
            let shown = check_token_allowed(&RemoteInfo { peer, certificate: None, is_encrypted });
            assert_eq!(shown.is_ok(), is_taken, "{address}, encrypted {is_encrypted}: {shown:?}");
            assert!(shown.is_ok() || shown.unwrap_err().code == Code::Denied);
        }
    }
}
