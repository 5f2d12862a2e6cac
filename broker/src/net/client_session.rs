//! The session of a client: who it is, what it uses, and what it may do. Lines, HTTP requests,
//! streams and webhooks all ask here, in this order, so none of them checks less than another:
//!
//! ```text
//!  command, event, stream ──▶ permission ──▶ quota ──▶ audit ──▶ topics, groups
//!                                 │ denied     │ limit
//!                                 └────────────┴──▶ audit record, error of the client
//! ```
//!
//! A command or request that cannot be parsed does not come here. Its error depends on nothing but
//! its text, so it reveals nothing.

use std::sync::Arc;

use tidings_protocol::{Code, Command, GroupName, ProtocolError, Token, TopicName};

use super::Shared;
use crate::access::{
    Access, Action, Credential, Identity, LoginError, PrivilegedAttribute, Transport,
};
use crate::audit::{AuditEvent, Initiator};
use crate::clock::Moment;
use crate::mailbox::{ConnId, Mailbox};
use crate::quota::{ConnectionUsage, Created, Quantity, Usage};
use crate::remote::{PeerAddr, RemoteInfo};
use crate::topic::Topic;

/// A connection that is registered and counted in the quotas.
#[derive(Debug)]
pub(super) struct AdmittedConnection {
    pub(super) conn: ConnId,
    pub(super) mailbox: Mailbox,
    /// Its usage of the quotas.
    usage: Usage,
}

impl AdmittedConnection {
    /// Registers a connection. Fails if there are too many, in total or from its source.
    pub(super) fn admit(
        shared: &Shared,
        peer: PeerAddr,
        transport: Transport,
    ) -> Result<Self, ProtocolError> {
        let usage = shared.quotas.begin_connection(peer.network_ip(), shared.clock.now());
        let admitted = usage.and_then(|usage| {
            let (conn, mailbox) = shared.registry.register(transport).ok_or_else(|| {
                let max = shared.limits.connections_max;
                let text = format!("{max} connections are open, the maximum; try again later");
                ProtocolError::new(Code::Limit, text)
            })?;
            Ok(Self { conn, mailbox, usage })
        });
        match &admitted {
            Ok(Self { conn, .. }) => tracing::debug!(%conn, %peer, "connected"),
            Err(error) => {
                shared.stats.rejected_connections.add(1);
                let why = error.text.as_str();
                let initiator = || Initiator::unidentified(0, peer, transport.as_str());
                shared.audit.record(|| (AuditEvent::LimitReached { why }, initiator()));
                let now = shared.clock.now();
                if let Some(held_back) = shared.stats.rejected_connections_log.allow(now) {
                    tracing::warn!(%peer, error = error.text, held_back, "connection rejected");
                }
            }
        }
        admitted
    }
}

/// The client of a connection.
#[derive(Debug)]
pub(super) struct ClientSession {
    shared: Arc<Shared>,
    /// Number of the connection.
    conn: ConnId,
    /// The address and certificate of the remote end.
    remote: RemoteInfo,
    /// The permissions of the client, and the transport of the clients that it acts for.
    identity: Identity,
    /// What the connection uses of the quotas of its source and its principal.
    usage: Usage,
}

/// Why a token was rejected.
#[derive(Debug)]
pub(super) struct RejectedToken {
    pub(super) error: ProtocolError,
    /// The client gets the error after this time, in which it can try no other token.
    pub(super) delay_ms: u64,
    /// When another token is checked; 0: at once.
    pub(super) retry_after_ms: u64,
}

impl ClientSession {
    /// The client of a connection that has sent nothing yet, and its mailbox.
    pub(super) fn begin(
        shared: Arc<Shared>,
        AdmittedConnection { conn, mailbox, usage }: AdmittedConnection,
        transport: Transport,
        remote: RemoteInfo,
    ) -> (Self, Mailbox) {
        let identity = identity_of(&shared.access, transport, &remote);
        (Self { shared, conn, remote, identity, usage }, mailbox)
    }

    /// The broker itself as a client. It has no connection, so it is neither counted nor limited,
    /// and has no records.
    pub(super) fn internal(shared: Arc<Shared>, transport: Transport) -> (Self, Mailbox) {
        let (conn, mailbox) = shared.registry.internal();
        let remote = RemoteInfo::unencrypted(PeerAddr::Tcp(([127, 0, 0, 1], 0).into()));
        let identity = shared.access.internal(transport);
        (Self { shared, conn, remote, identity, usage: None }, mailbox)
    }

    pub(super) fn conn(&self) -> ConnId {
        self.conn
    }

    pub(super) fn remote(&self) -> &RemoteInfo {
        &self.remote
    }

    pub(super) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Writes an audit record of the client, if the audit is on.
    pub(super) fn audit(&self, event: AuditEvent<'_>) {
        if !self.identity.is_internal() {
            self.shared.audit.record(|| (event, self.initiator()));
        }
    }

    pub(super) fn initiator(&self) -> Initiator {
        Initiator::identified(self.conn.0, &self.remote, &self.identity)
    }

    /// The identity for a token.
    pub(super) fn log_in(&self, token: &Token) -> Result<Identity, RejectedToken> {
        let (source, now) = (self.remote.peer.ip().into(), self.shared.clock.now());
        let transport = self.identity.transport();
        let log_in = |()| self.shared.access.log_in(transport, token, Some(source), now);
        let (error, delay_ms, retry_after_ms) = match check_token_allowed(&self.remote).map(log_in)
        {
            Ok(Ok(identity)) => return Ok(identity),
            Ok(Err(LoginError::TooManyFailures(wait_ms))) => {
                let seconds = wait_ms.div_ceil(1_000);
                let text =
                    format!("too many wrong tokens from this address; try again in {seconds} s");
                (ProtocolError::new(Code::Limit, text), 0, wait_ms)
            }
            Ok(Err(LoginError::InvalidToken(delay_ms))) => (wrong_token(), delay_ms, 0),
            Err(error) => (error, 0, 0),
        };
        self.shared.stats.failed_logins.add(1);
        self.audit(AuditEvent::LogInFailed { why: &error.text });
        Err(RejectedToken { error, delay_ms, retry_after_ms })
    }

    /// The identity of the client if it sends no token.
    pub(super) fn identity_without_token(&self) -> Identity {
        identity_of(&self.shared.access, self.identity.transport(), &self.remote)
    }

    /// Replaces the identity. Fails with [`Code::Limit`], and changes nothing, if its principal has
    /// reached a quota.
    pub(super) fn identify(&mut self, identity: Identity) -> Result<(), ProtocolError> {
        let assigned = self.shared.quotas.assign_principal(&mut self.usage, identity.quota_name());
        self.audit_limit(assigned)?;
        let is_other_principal = self.set_identity(identity);
        if is_other_principal && !self.identity.is_anonymous() {
            self.audit(AuditEvent::LoggedIn);
        }
        Ok(())
    }

    /// Counts the connection for the principal of its first identity.
    pub(super) fn count_principal(&mut self) -> Result<(), ProtocolError> {
        self.identify(self.identity.clone())
    }

    /// An anonymous client that has sent a bare line is a peer.
    pub(super) fn become_peer(&mut self) {
        if self.identity.is_anonymous() {
            self.identity = self.shared.access.peer(self.identity.transport());
        }
    }

    /// The identity with its present permissions; `None` if its principal is gone.
    pub(super) fn renewed_identity(&self) -> Option<Identity> {
        let renewed = self.shared.access.renew(&self.identity)?;
        // A new principal may match the client's certificate or its user of the machine.
        Some(if renewed.is_anonymous() { self.identity_without_token() } else { renewed })
    }

    /// Renews the permissions. A client whose principal is gone is anonymous from now on.
    pub(super) fn renew(&mut self) {
        let anonymous = || self.shared.access.anonymous(self.identity.transport());
        let renewed = self.renewed_identity().unwrap_or_else(anonymous);
        self.set_identity(renewed);
    }

    /// Returns whether the principal is another than before.
    fn set_identity(&mut self, identity: Identity) -> bool {
        let is_other_principal = !identity.is_same_principal(&self.identity);
        if is_other_principal || identity.transport() != self.identity.transport() {
            self.shared.audit.identity_changed(self.conn.0);
        }
        self.identity = identity;
        is_other_principal
    }

    /// Checks that the client may run a command, and that its quotas allow what it would create.
    /// Records the change that the command is.
    pub(super) fn authorize(&self, command: &Command<'_>) -> Result<(), ProtocolError> {
        self.check(topic_of(command), |identity| identity.check_command(command))?;
        self.check_quota(|| Created::by(command))?;
        if !self.identity.is_internal() {
            self.shared.audit.record_command(command, self.conn.0, || self.initiator());
        }
        Ok(())
    }

    /// Checks that the client may do something that is not a command.
    pub(super) fn authorize_action(&self, action: Action<'_>) -> Result<(), ProtocolError> {
        let topic = match action {
            Action::Publish(topic) | Action::Subscribe(topic) | Action::ViewTopic(topic) => {
                Some(topic)
            }
            _ => None,
        };
        self.check(topic, |identity| identity.check_action(action))
    }

    /// Checks that the client may publish an event. Its topic comes from
    /// [`topic_for_publish`](Self::topic_for_publish).
    pub(super) fn authorize_event(&self, topic: &str, payload: &str) -> Result<(), ProtocolError> {
        let check = |identity: &_| self.shared.access.check_publish(identity, topic, payload);
        self.check(Some(topic), check)
    }

    /// Whether the client may publish every event on a topic, so that no single one needs a check.
    pub(super) fn may_publish_everything(&self, topic: &str) -> bool {
        self.shared.access.is_unlimited(&self.identity, topic)
    }

    /// Checks a permission, and records the denial. The error names `topic`.
    pub(super) fn check(
        &self,
        topic: Option<&str>,
        check: impl FnOnce(&Identity) -> Result<(), ProtocolError>,
    ) -> Result<(), ProtocolError> {
        check(&self.identity)
            .inspect_err(|error| self.audit(AuditEvent::Denied { topic, why: &error.text }))
    }

    /// Whether the client may set the priority of links. A priority also overtakes URLs of other
    /// jobs, so it needs its own permission.
    pub(super) fn may_set_priority(&self) -> bool {
        self.shared.access.allows_attribute(&self.identity, PrivilegedAttribute::Prio)
    }

    pub(super) fn may_monitor(&self) -> bool {
        self.identity.check_action(Action::Monitor).is_ok()
    }

    /// The topic to which a peer with this identity publishes, and which it receives.
    pub(super) fn peer_topic(&self) -> Option<&TopicName> {
        self.shared.access.peer_topic(&self.identity)
    }

    /// The topic of events that the client may publish, which is created if its quotas allow that.
    pub(super) fn topic_for_publish(&self, name: &TopicName) -> Result<Arc<Topic>, ProtocolError> {
        self.check_quota(|| vec![Created::Topic(name.clone())])?;
        self.shared.topics.open_for(name, self.identity.transport().is_publish_only())
    }

    /// Counts and records published events; `hook` is the name of the webhook that has them.
    pub(super) fn record_published(&self, topic: &str, events: usize, hook: Option<&str>) {
        let (audit, events) = (&self.shared.audit, events as u64);
        self.shared.stats.events.add(events);
        let Some(hook) = hook else {
            return audit.record_published(topic, events, self.conn.0, || self.initiator());
        };
        // One connection may carry requests of several webhooks and clients.
        audit.identity_changed(self.conn.0);
        audit.record_published(topic, events, self.conn.0, || {
            self.initiator().with_name(format!("hook:{hook}"))
        });
        audit.identity_changed(self.conn.0);
    }

    fn check_quota(&self, created: impl FnOnce() -> Vec<Created>) -> Result<(), ProtocolError> {
        let Some(usage) = &self.usage else { return Ok(()) };
        let exists = |created: &Created| self.shared.exists(created);
        self.audit_limit(created().iter().try_for_each(|new| usage.create(new, &exists)))
    }

    /// Sets the amount of a quantity that the connection holds.
    pub(super) fn hold(&mut self, quantity: Quantity, amount: usize) -> Result<(), ProtocolError> {
        self.hold_more(|usage| usage.set(quantity, amount as u64))
    }

    /// Sets the tasks of a group that the connection may hold.
    pub(super) fn hold_credit(
        &mut self,
        group: &GroupName,
        credit: u32,
    ) -> Result<(), ProtocolError> {
        self.hold_more(|usage| usage.set_credit(group, credit))
    }

    /// Counts one more subscription, until it is [ended](Self::end_subscription).
    pub(super) fn begin_subscription(&mut self) -> Result<(), ProtocolError> {
        self.hold_more(|usage| usage.add(Quantity::Subscriptions))
    }

    pub(super) fn end_subscription(&mut self) {
        if let Some(usage) = &mut self.usage {
            usage.remove(Quantity::Subscriptions);
        }
    }

    fn hold_more(
        &mut self,
        more: impl FnOnce(&mut ConnectionUsage) -> Result<(), ProtocolError>,
    ) -> Result<(), ProtocolError> {
        let held = self.usage.as_mut().map_or(Ok(()), |usage| more(usage));
        self.audit_limit(held)
    }

    /// Counts events, and URLs that were added to jobs. The next [charge](Self::charge) includes
    /// them.
    pub(super) fn count_events(&mut self, events: usize) {
        if let Some(usage) = &mut self.usage {
            usage.count_published(events as u64);
        }
    }

    /// Charges received bytes and the counted events to the rates.
    pub(super) fn charge(&mut self, bytes: usize, now: Moment) {
        if let Some(usage) = &mut self.usage {
            usage.charge(bytes as u64, now);
        }
    }

    /// Until when nothing is read from a client that is over its rate.
    pub(super) fn paused_until(&self) -> Option<Moment> {
        self.usage.as_ref().and_then(|usage| usage.paused_until())
    }

    /// Computes again until when nothing is read.
    pub(super) fn end_pause(&mut self, now: Moment) {
        if let Some(usage) = &mut self.usage {
            usage.resume(now);
        }
    }

    /// Checks the rates of a client that can be told to come back. The error has the number of
    /// seconds after which it may.
    pub(super) fn check_rate(&self) -> Result<(), (ProtocolError, u32)> {
        let now = self.shared.clock.now();
        let wait_ms = self.usage.as_ref().map_or(0, |usage| usage.wait_ms(now));
        if wait_ms == 0 {
            return Ok(());
        }
        let seconds = u32::try_from(wait_ms.div_ceil(1_000)).unwrap_or(u32::MAX);
        let text = format!("rate limit exceeded; try again in {seconds} s");
        let limited = self.audit_limit(Err(ProtocolError::new(Code::Limit, text)));
        limited.map_err(|error| (error, seconds))
    }

    /// Records a limit that was reached, and returns the result.
    fn audit_limit(&self, result: Result<(), ProtocolError>) -> Result<(), ProtocolError> {
        result.inspect_err(|error| self.audit(AuditEvent::LimitReached { why: &error.text }))
    }
}

/// The identity of a client that has not sent a token: by certificate, by user of the machine, or
/// anonymous.
fn identity_of(access: &Access, transport: Transport, remote: &RemoteInfo) -> Identity {
    let credential = match (&remote.certificate, remote.peer) {
        (Some(name), _) => Some(Credential::Certificate(name.clone())),
        (None, PeerAddr::Unix { uid, .. }) => Some(Credential::UnixUser(uid)),
        (None, PeerAddr::Tcp(_)) => None,
    };
    let identity = credential.and_then(|credential| access.identify(transport, &credential));
    identity.unwrap_or_else(|| access.anonymous(transport))
}

/// Checks that a token on this connection cannot be read on the network.
fn check_token_allowed(remote: &RemoteInfo) -> Result<(), ProtocolError> {
    if remote.is_encrypted || remote.peer.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    let text = "this connection is not encrypted, so others may have read the token; revoke it, \
                and send the next one over TLS";
    Err(ProtocolError::new(Code::Denied, text))
}

pub(super) fn wrong_token() -> ProtocolError {
    ProtocolError::new(Code::Unauthenticated, "no principal has this token")
}

/// The topic that a command names, for audit records.
fn topic_of<'a>(command: &'a Command<'_>) -> Option<&'a str> {
    match command {
        Command::Sub { topic, .. } | Command::Seen { topic, .. } | Command::Unsub { topic } => {
            Some(topic.as_str())
        }
        Command::Topic(manage) => manage.name,
        _ => None,
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
