//! Who a connection is: what it shows, and what becomes of it when rights change.

use std::net::SocketAddr;
use std::sync::Arc;

use tidings_protocol::{Code, ProtocolError, Token, TopicName};

use super::connection::Connection;
use super::ending::Cause;
use crate::access::{Pass, Unknown};
use crate::throttle::Source;
use crate::topic::Topic;

/// The source for which wrong tokens from there are counted.
pub(super) fn source_of(peer: SocketAddr) -> Source {
    peer.ip().into()
}

/// Whether somebody from there may show a token: nobody reads it on its way.
pub(super) fn may_show(peer: SocketAddr) -> Result<(), ProtocolError> {
    if peer.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    let text = "this connection is not encrypted: whoever listens on the way has that token now, so revoke it, and show \
                the next one over TLS";
    Err(ProtocolError::new(Code::Denied, text))
}

/// What is said to somebody whose token nobody has.
pub(super) fn wrong_token() -> ProtocolError {
    ProtocolError::new(Code::Unauthenticated, "nobody has that token")
}

/// What is said to somebody from where too many wrong tokens have come.
pub(super) fn too_many_tokens(wait_ms: u64) -> ProtocolError {
    let seconds = wait_ms.div_ceil(1_000);
    let text = format!("too many wrong tokens from there; none is looked at for {seconds} s");
    ProtocolError::new(Code::Limit, text)
}

impl Connection {
    /// The topic that it hears and publishes to as a peer, if it may be one.
    pub(super) fn notifier(&self) -> Option<Arc<Topic>> {
        let name = TopicName::new(self.hub.access.notifier()?.as_str()).ok()?;
        self.hub.topics.open(&name).ok()
    }

    /// The pass of whoever shows this; without a token the one it has. A refusal was or will be said.
    pub(super) fn show(&mut self, token: Option<&Token>) -> Result<Pass, ()> {
        let Some(token) = token else { return Ok(self.pass.clone()) };
        let refuse = |connection: &mut Self, error: ProtocolError| {
            connection.hub.stats.refused.add(1);
            connection.refuse(&error);
        };
        if let Err(error) = may_show(self.peer) {
            refuse(self, error);
            return Err(());
        }
        let (now, source) = (self.hub.clock.now(), source_of(self.peer));
        match self.hub.access.log_in(self.pass.way(), token, Some(source), now) {
            Ok(pass) => Ok(pass),
            Err(Unknown::TooMany(wait_ms)) => {
                refuse(self, too_many_tokens(wait_ms));
                Err(())
            }
            Err(Unknown::Wrong(delay_ms)) => {
                self.hub.stats.refused.add(1);
                self.punished = Some((now + delay_ms, self.answers.later()));
                Err(())
            }
        }
    }

    /// The time of somebody who showed a wrong token is over.
    pub(super) fn refuse_token(&mut self) {
        if let Some((_, slot)) = self.punished.take() {
            self.fill_with(slot, &wrong_token());
        }
    }

    /// Somebody's rights have changed, perhaps its own. What it holds rests on those that it had: then it comes back.
    pub(super) fn renew(&mut self) {
        let Some(pass) = self.hub.access.renew(&self.pass) else {
            let text = format!("{} is not let in any more", self.pass.name());
            return self.end(Cause::Broker(ProtocolError::new(Code::Revoked, text)));
        };
        let works = self
            .worker
            .as_ref()
            .is_some_and(|worker| worker.known_to_groups || worker.waits || worker.asked.is_some());
        if !pass.has_rights_of(&self.pass) && (works || self.subscriptions.len() > 0) {
            let text = format!("what {} may do has changed; connect again", self.pass.name());
            return self.end(Cause::Broker(ProtocolError::new(Code::Revoked, text)));
        }
        self.pass = pass;
    }
}
