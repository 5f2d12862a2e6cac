//! Who a connection is: what it shows, and what becomes of it when rights change.

use std::sync::Arc;

use tidings_protocol::{Code, ProtocolError, Slot, Token, TopicName};

use super::Hub;
use super::connection::Connection;
use super::ending::Cause;
use super::stream::{Peer, Remote};
use crate::access::{Access, Credential, Identity, LoginError, Transport};
use crate::audit::AuditEvent;
use crate::clock::Moment;
use crate::quota::Usage;
use crate::topic::Topic;

/// The pass of whoever is at the other end, as far as the connection itself tells.
pub(super) fn pass_of(access: &Access, way: Transport, remote: &Remote) -> Identity {
    let proof = match (&remote.certificate, remote.peer) {
        (Some(name), _) => Some(Credential::Certificate(name.clone())),
        #[cfg(unix)]
        (None, Peer::Unix { uid, .. }) => Some(Credential::UnixUser(uid)),
        (None, Peer::Tcp(_)) => None,
    };
    let known = proof.and_then(|proof| access.identify(way, &proof));
    known.unwrap_or_else(|| access.anonymous(way))
}

/// Whether somebody may show a token: nobody reads it on its way.
pub(super) fn may_show(remote: &Remote) -> Result<(), ProtocolError> {
    if remote.is_encrypted || remote.peer.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    let text = "this connection is not encrypted: whoever listens on the way has that token now, so revoke it, and show \
                the next one over TLS";
    Err(ProtocolError::new(Code::Denied, text))
}

/// What is said to somebody whose token nobody has.
pub(super) fn wrong_token() -> ProtocolError {
    ProtocolError::new(Code::Unauthenticated, "no principal has this token")
}

/// What is said to somebody from where too many wrong tokens have come.
pub(super) fn too_many_tokens(wait_ms: u64) -> ProtocolError {
    let seconds = wait_ms.div_ceil(1_000);
    let text = format!("too many wrong tokens from there; try again in {seconds} s");
    ProtocolError::new(Code::Limit, text)
}

/// Who a connection is said to be.
#[derive(Debug)]
pub(super) struct Login {
    /// Who is at the other end, as far as the connection itself tells.
    pub(super) remote: Remote,
    /// What it has of what its address and its name may have.
    pub(super) held: Usage,
    /// Until when somebody has to log in who can do nothing else.
    by: Option<Moment>,
    /// A wrong token was shown: when that is answered, until which nothing is read, and where.
    punished: Option<(Moment, Slot)>,
    /// Why the connection ends, for audit records.
    pub(super) why: &'static str,
}

impl Login {
    /// What a connection begins with.
    pub(super) fn begin(hub: &Hub, remote: Remote, held: Usage) -> (Identity, Box<Self>) {
        let pass = pass_of(&hub.access, Transport::Line, &remote);
        let must = pass.has_no_permissions() && hub.access.peer_topic(&pass).is_none();
        let by = must.then(|| hub.clock.now() + hub.limits.login_timeout_ms);
        (pass, Box::new(Self { remote, held, by, punished: None, why: "connection lost" }))
    }

    /// Whether it can do nothing but log in.
    pub(super) fn is_due(&self) -> bool {
        self.by.is_some()
    }

    /// Whether nothing is read for a while.
    pub(super) fn is_punished(&self) -> bool {
        self.punished.is_some()
    }

    /// Somebody has that pass now.
    pub(super) fn is_done(&mut self, pass: &Identity) {
        self.by.take_if(|_| !pass.has_no_permissions());
    }

    /// When something is to be done.
    pub(super) fn deadline(&self) -> Option<Moment> {
        // Whoever waits for an answer is not late.
        self.punished.map(|(at, _)| at).or(self.by)
    }
}

impl Connection {
    /// The topic that it hears and publishes to as a peer, if it may be one.
    pub(super) fn notifier(&self) -> Option<Arc<Topic>> {
        let name = TopicName::new(self.hub.access.peer_topic(&self.pass)?.as_str()).ok()?;
        self.hub.topics.open(&name).ok()
    }

    /// The pass of whoever shows this; without a token the one it has. A refusal was or will be
    /// said.
    pub(super) fn show(&mut self, token: Option<&Token>) -> Result<Identity, ()> {
        let Some(token) = token else { return Ok(self.pass.clone()) };
        let refuse = |connection: &mut Self, error: ProtocolError| {
            connection.hub.stats.refused_lines.add(1);
            connection.audit(AuditEvent::LogInFailed { why: &error.text });
            connection.refuse(&error);
        };
        if let Err(error) = may_show(&self.login.remote) {
            refuse(self, error);
            return Err(());
        }
        let (now, source) = (self.hub.clock.now(), self.login.remote.peer.ip().into());
        match self.hub.access.log_in(self.pass.transport(), token, Some(source), now) {
            Ok(pass) => Ok(pass),
            Err(LoginError::TooManyFailures(wait_ms)) => {
                refuse(self, too_many_tokens(wait_ms));
                Err(())
            }
            Err(LoginError::InvalidToken(delay_ms)) => {
                self.hub.stats.refused_lines.add(1);
                self.audit(AuditEvent::LogInFailed { why: "no principal has this token" });
                self.login.punished = Some((now + delay_ms, self.answers.reserve()));
                Err(())
            }
        }
    }

    /// The time of somebody who has to log in, or who showed a wrong token, is over.
    pub(super) fn log_in_is_over(&mut self) {
        if let Some((_, slot)) = self.login.punished.take() {
            return self.fill_with(slot, &wrong_token());
        }
        self.login.by = None;
        self.end(Cause::LateLogIn);
    }

    /// Whether it hears, works or waits, which rests on the rights that it had when it asked for
    /// it.
    fn has_asked(&self) -> bool {
        let works = self.worker.as_ref().is_some_and(|worker| {
            let waits = !worker.waiting.is_empty() || worker.watching.is_some();
            worker.known_to_groups || waits || worker.asked.is_some()
        });
        works || self.subscriptions.len() > 0
    }

    /// Whether it may go on as somebody else. What it has as this one would outlive this one's
    /// revocation.
    pub(super) fn may_become(&self, pass: &Identity) -> Result<(), ProtocolError> {
        if pass.is_same_principal(&self.pass) || !self.has_asked() {
            return Ok(());
        }
        let text = format!(
            "this connection hears or works as {} already; token= comes first",
            self.pass.name()
        );
        Err(ProtocolError::new(Code::Conflict, text))
    }

    /// Somebody's rights have changed, perhaps its own. What it holds rests on those that it had:
    /// then it comes back.
    pub(super) fn renew(&mut self) {
        let renewed = self.hub.access.renew(&self.pass).map(|pass| {
            // Somebody may be known by now by what the connection itself tells.
            let is_nobody = pass.is_anonymous();
            if is_nobody {
                pass_of(&self.hub.access, pass.transport(), &self.login.remote)
            } else {
                pass
            }
        });
        let Some(pass) = renewed else {
            let text = format!("{} is not let in any more", self.pass.name());
            return self.end(Cause::Broker(ProtocolError::new(Code::Revoked, text)));
        };
        if !pass.has_same_permissions(&self.pass) && self.has_asked() {
            let text = format!("what {} may do has changed; connect again", self.pass.name());
            return self.end(Cause::Broker(ProtocolError::new(Code::Revoked, text)));
        }
        if let Err(error) = self.hub.belongs_to(&mut self.login.held, &pass) {
            return self.end(Cause::Broker(error));
        }
        self.pass = pass;
        self.login.is_done(&self.pass);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // PROTOCOL: S16
    #[test]
    fn a_token_that_others_could_read_is_not_taken() {
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
            let peer = Peer::Tcp(address.parse().unwrap());
            let shown = may_show(&Remote { peer, certificate: None, is_encrypted });
            assert_eq!(shown.is_ok(), is_taken, "{address}, encrypted {is_encrypted}: {shown:?}");
            assert!(shown.is_ok() || shown.unwrap_err().code == Code::Denied);
        }
    }
}
