//! Decides which commands, requests and events are allowed.
//!
//! Every command, request and run of events is checked here once, before it has any effect. The
//! decision rests on two things:
//!
//! - the [`Transport`] on which it arrives: some commands are not available on it, and some
//!   [privileged attributes](PrivilegedAttribute) are not accepted from it ([`TransportPolicy`]);
//! - the [`Principal`] that sends it, and its [`PermissionSet`].
//!
//! Without a list of principals the broker is *open*: every client may do everything. With a list,
//! even an empty one, a client that has not logged in is anonymous, and may do what is allowed to
//! anonymous clients.
//!
//! ```text
//!  token, certificate, or user of the machine ──▶ Access ──▶ Identity ──▶ command, request, event
//!                                                   ▲
//!                          principals, replaced while identities are in use
//! ```

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod login_failures;
mod permissions;
mod source_filter;
#[cfg(test)]
mod tests;
mod token;
mod transport;
mod url_prefix;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tidings_protocol::{Code, Command, DEFAULT_TOPIC, ProtocolError, Token, TopicName};
use tidings_rate_limit::Source;
use tokio::sync::watch;

use self::login_failures::LoginFailures;
pub(crate) use self::permissions::Action;
pub use self::permissions::{NamePattern, Permission, PermissionSet};
pub use self::source_filter::SourceFilter;
pub use self::token::{TokenHash, mask_tokens, new_token};
pub(crate) use self::token::{contains_token, is_token, redact_tokens};
use self::transport::LiveTransportPolicy;
pub use self::transport::{PrivilegedAttribute, Transport, TransportPolicy};
pub use self::url_prefix::UrlPrefix;
use crate::clock::Moment;

/// The principal of clients that have not logged in. Audit records contain this name.
const ANONYMOUS: &str = "strangers";
const PEERS: &str = "peers";
/// The principal of the broker's own parts, and of its own user on this machine.
const INTERNAL: &str = "tidings";

/// The configuration of access control.
#[derive(Debug, Clone, Default)]
pub struct AccessConfig {
    /// The privileged attributes that each transport accepts.
    pub transport_policy: TransportPolicy,
    /// The principals that can log in. Default `None`: no login is needed.
    pub principals: Option<Vec<Principal>>,
    /// What anonymous clients may do while there are principals. Default: nothing.
    pub anonymous: PermissionSet,
    /// The topic of peers, which they publish to and receive. Default `None`: the default topic
    /// while the broker is open, and no peers otherwise.
    pub peer_topic: Option<TopicName>,
    /// Users of the machine that may do everything over the unix socket: the user of the broker's
    /// process, which can access its files anyway.
    pub own_users: Vec<u32>,
}

/// What identifies a client.
#[derive(Debug, Clone)]
pub enum Credential {
    /// A token with this hash.
    Token(TokenHash),
    /// A certificate with this name, issued by one of the client authorities.
    Certificate(Box<str>),
    /// A connection over the unix socket by this user of the machine.
    UnixUser(u32),
}

impl Credential {
    /// Takes the same time however much of a token's hash is equal.
    fn matches(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Token(one), Self::Token(other)) => one.matches(other),
            (Self::Certificate(one), Self::Certificate(other)) => one == other,
            (Self::UnixUser(one), Self::UnixUser(other)) => one == other,
            _ => false,
        }
    }
}

/// A person or program that can log in, or all clients that have not logged in.
#[derive(Debug, Clone)]
pub struct Principal {
    name: Box<str>,
    credential: Option<Credential>,
    permissions: PermissionSet,
    /// In milliseconds since 1970. `None`: it does not expire.
    expires_unix_ms: Option<i64>,
}

impl Principal {
    /// A principal with this name: a word without white space and control characters.
    pub fn new(name: &str, proof: Credential, permissions: PermissionSet) -> Self {
        Self { name: name.into(), credential: Some(proof), permissions, expires_unix_ms: None }
    }

    /// The same principal, which is as one that was revoked from this time on, in milliseconds since
    /// 1970.
    #[must_use]
    pub fn expiring(self, unix_ms: Option<i64>) -> Self {
        Self { expires_unix_ms: unix_ms, ..self }
    }

    /// The principal of all clients with these permissions.
    fn shared(name: &str, permissions: PermissionSet) -> Arc<Self> {
        Arc::new(Self { name: name.into(), credential: None, permissions, expires_unix_ms: None })
    }

    fn has_expired(&self, unix_ms: i64) -> bool {
        self.expires_unix_ms.is_some_and(|expires| expires <= unix_ms)
    }

    /// Whether credential, permissions and expiry are the same.
    fn is_unchanged(&self, other: &Self) -> bool {
        self.has_same_credential(other)
            && self.permissions == other.permissions
            && self.expires_unix_ms == other.expires_unix_ms
    }

    fn has_same_credential(&self, other: &Self) -> bool {
        match (&self.credential, &other.credential) {
            (Some(one), Some(other)) => one.matches(other),
            (one, other) => one.is_none() && other.is_none(),
        }
    }
}

/// The principal and the transport of a connection or request.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    transport: Transport,
    principal: Arc<Principal>,
}

impl Identity {
    /// The transport of the messages that the connection relays, or its own.
    pub(crate) fn transport(&self) -> Transport {
        self.transport
    }

    pub(crate) fn name(&self) -> &str {
        &self.principal.name
    }

    /// The name under which quotas are counted: that of a principal with a credential, unless it
    /// may do everything.
    pub(crate) fn quota_name(&self) -> Option<&str> {
        let Principal { name, credential: proof, permissions: rights, .. } = &*self.principal;
        (proof.is_some() && !rights.is_unlimited()).then_some(name)
    }

    /// The connection relays messages from this transport from now on.
    pub(crate) fn set_transport(&mut self, way: Transport) {
        self.transport = way;
    }

    /// Whether it is the identity of the broker itself.
    pub(crate) fn is_internal(&self) -> bool {
        *self.principal.name == *INTERNAL && self.principal.credential.is_none()
    }

    /// Whether the client has not logged in. False for peers.
    pub(crate) fn is_anonymous(&self) -> bool {
        *self.principal.name == *ANONYMOUS && self.principal.credential.is_none()
    }

    /// Whether the client has logged in, by a token, a certificate or its user on this machine.
    pub(crate) fn is_known(&self) -> bool {
        self.principal.credential.is_some()
    }

    pub(crate) fn permissions(&self) -> &PermissionSet {
        &self.principal.permissions
    }

    /// When the principal expires, in milliseconds since 1970.
    pub(crate) fn expires_unix_ms(&self) -> Option<i64> {
        self.principal.expires_unix_ms
    }

    /// Whether both belong to the same principal, with the same credential.
    pub(crate) fn is_same_principal(&self, other: &Self) -> bool {
        let (one, other) = (&*self.principal, &*other.principal);
        one.name == other.name && one.has_same_credential(other)
    }

    pub(crate) fn has_same_permissions(&self, other: &Self) -> bool {
        self.principal.permissions == other.principal.permissions
    }

    /// Whether the client may only log in.
    pub(crate) fn has_no_permissions(&self) -> bool {
        self.principal.permissions.is_empty()
    }

    /// Checks whether a command is allowed. The error is [`Code::Denied`], or
    /// [`Code::Unauthenticated`] if a login may help.
    ///
    /// For `PUB` it checks the topic only; [`Access::check_publish`] checks the event.
    pub(crate) fn check_command(&self, command: &Command<'_>) -> Result<(), ProtocolError> {
        self.transport.check_verb(command.verb())?;
        let rights = &self.principal.permissions;
        if rights.is_unlimited() {
            return Ok(());
        }
        let deed = Action::of(command);
        if !rights.allows(deed) {
            return Err(denied(self, &deed.to_string()));
        }
        rights.check_options(command).map_err(|what| denied(self, &what))
    }

    /// The same for opening a job without knowing its name.
    pub(crate) fn check_open_job(&self) -> Result<(), ProtocolError> {
        let some = self.principal.permissions.allows_any_job();
        if some { Ok(()) } else { Err(denied(self, &Action::ManageJob("*").to_string())) }
    }

    /// The same for an action that is not a command.
    pub(crate) fn check_action(&self, deed: Action<'_>) -> Result<(), ProtocolError> {
        if self.principal.permissions.allows(deed) {
            return Ok(());
        }
        Err(denied(self, &deed.to_string()))
    }
}

/// Why a login failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LoginError {
    /// No principal has this token. The answer is due after this number of milliseconds.
    InvalidToken(u64),
    /// This source tried too many wrong tokens. The next one is checked after this number of
    /// milliseconds.
    TooManyFailures(u64),
}

/// All principals at one moment.
#[derive(Debug)]
struct PrincipalTable {
    /// No login is needed.
    is_open: bool,
    principals: Vec<Arc<Principal>>,
    anonymous: Arc<Principal>,
    peers: Arc<Principal>,
}

/// Knows principals and transports, and issues identities.
#[derive(Debug)]
pub(crate) struct Access {
    transport_policy: LiveTransportPolicy,
    anonymous: PermissionSet,
    peer_topic: Option<TopicName>,
    default_topic: TopicName,
    own_users: Vec<Arc<Principal>>,
    internal: Arc<Principal>,
    principals: ArcSwap<PrincipalTable>,
    /// The time of day in milliseconds since 1970, as it was set last.
    unix_ms: AtomicI64,
    failures: Mutex<LoginFailures>,
    changes: watch::Sender<()>,
}

impl Access {
    pub(crate) fn new(config: AccessConfig) -> Self {
        let AccessConfig { transport_policy, principals, anonymous, peer_topic, own_users } =
            config;
        let own = |user| Principal::new(INTERNAL, Credential::UnixUser(user), PermissionSet::all());
        let own_users = own_users.into_iter().map(own).map(Arc::new).collect();
        let known = PrincipalTable::new(principals, &anonymous, peer_topic.as_ref());
        Self {
            transport_policy: LiveTransportPolicy::new(transport_policy),
            anonymous,
            peer_topic,
            default_topic: TopicName::new(DEFAULT_TOPIC)
                .expect("the default topic is a valid name"),
            own_users,
            internal: Principal::shared(INTERNAL, PermissionSet::all()),
            principals: ArcSwap::from_pointee(known),
            unix_ms: AtomicI64::new(0),
            failures: Mutex::default(),
            changes: watch::Sender::new(()),
        }
    }

    /// Replaces the privileged attributes that each transport accepts.
    pub(crate) fn set_transport_policy(&self, grants: TransportPolicy) {
        self.transport_policy.set(grants);
    }

    pub(crate) fn internal(&self, way: Transport) -> Identity {
        Identity { transport: way, principal: Arc::clone(&self.internal) }
    }

    /// Replaces all principals. Every holder of an identity must [`renew`](Self::renew) it. Returns
    /// the principals that differ from before, and how.
    pub(crate) fn replace_principals(
        &self,
        principals: Vec<Principal>,
    ) -> Vec<(Box<str>, &'static str)> {
        let known =
            PrincipalTable::new(Some(principals), &self.anonymous, self.peer_topic.as_ref());
        let known = Arc::new(known);
        let before = self.principals.swap(Arc::clone(&known));
        self.changes.send_replace(());
        known.changes_since(&before)
    }

    /// Sets the time of day, in milliseconds since 1970. Returns the principals that have expired
    /// since it was set last; if there are any, every holder of an identity must
    /// [`renew`](Self::renew) it.
    pub(crate) fn set_time(&self, unix_ms: i64) -> Vec<Box<str>> {
        let before = self.unix_ms.swap(unix_ms, Ordering::Relaxed);
        let known = self.principals.load();
        let expired =
            known.principals.iter().filter(|it| !it.has_expired(before) && it.has_expired(unix_ms));
        let expired: Vec<_> = expired.map(|principal| principal.name.clone()).collect();
        if !expired.is_empty() {
            self.changes.send_replace(());
        }
        expired
    }

    /// Changes whenever identities must be renewed.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// The identity of a client that has not logged in.
    pub(crate) fn anonymous(&self, way: Transport) -> Identity {
        Identity { transport: way, principal: Arc::clone(&self.principals.load().anonymous) }
    }

    /// The identity of a client that is known by its connection: by its certificate, or by its user
    /// on the unix socket. `None` if no principal has this credential.
    pub(crate) fn identify(&self, way: Transport, proof: &Credential) -> Option<Identity> {
        let known = self.principals.load();
        self.find(&known, proof).map(|principal| Identity { transport: way, principal })
    }

    /// The identity of a peer, which may also do what anonymous clients may.
    pub(crate) fn peer(&self, way: Transport) -> Identity {
        Identity { transport: way, principal: Arc::clone(&self.principals.load().peers) }
    }

    /// Whether no login is needed.
    pub(crate) fn is_open(&self) -> bool {
        self.principals.load().is_open
    }

    /// The topic that a peer with this identity publishes to and receives: the configured one, or
    /// the default topic if the identity may do both there anyway.
    pub(crate) fn peer_topic(&self, pass: &Identity) -> Option<&TopicName> {
        let topic = self.default_topic.as_str();
        let allows_default = || {
            pass.check_action(Action::Publish(topic))
                .and_then(|()| pass.check_action(Action::Subscribe(topic)))
                .is_ok()
        };
        self.peer_topic.as_ref().or_else(|| allows_default().then_some(&self.default_topic))
    }

    /// The identity of the principal with this token. While the broker is open, any token is
    /// accepted and means nothing. A wrong token counts as a failure of `source`, if there is one.
    pub(crate) fn log_in(
        &self,
        way: Transport,
        token: &Token,
        source: Option<Source>,
        now: Moment,
    ) -> Result<Identity, LoginError> {
        let known = self.principals.load();
        let proof = Credential::Token(TokenHash::of(token));
        if let Some(principal) = self.find(&known, &proof) {
            // A right token is accepted however many failures its source has: no client guesses 256
            // bits, and none must be locked out by others on its network.
            return Ok(Identity { transport: way, principal });
        }
        if known.is_open {
            return Ok(Identity { transport: way, principal: Arc::clone(&known.anonymous) });
        }
        let Some(source) = source else { return Err(LoginError::InvalidToken(0)) };
        let mut failures = self.failures.lock();
        failures.check(source, now).map_err(LoginError::TooManyFailures)?;
        Err(LoginError::InvalidToken(failures.record(source, now)))
    }

    /// The principal with this credential that has not expired. Compares all of them, so that the
    /// time reveals nothing.
    fn find(&self, known: &PrincipalTable, proof: &Credential) -> Option<Arc<Principal>> {
        let (mut found, now) = (None, self.unix_ms.load(Ordering::Relaxed));
        for principal in known.principals.iter().chain(&self.own_users) {
            let is_same = principal.credential.as_ref().is_some_and(|own| own.matches(proof));
            if is_same && !principal.has_expired(now) {
                found = Some(principal);
            }
        }
        found.cloned()
    }

    /// The identity as it is now. `None` if its principal is gone.
    pub(crate) fn renew(&self, pass: &Identity) -> Option<Identity> {
        let known = self.principals.load();
        let principal = match &pass.principal.credential {
            None if *pass.principal.name == *PEERS => Arc::clone(&known.peers),
            None if *pass.principal.name == *INTERNAL => Arc::clone(&self.internal),
            None => Arc::clone(&known.anonymous),
            Some(proof) => self.find(&known, proof)?,
        };
        (principal.name == pass.principal.name)
            .then_some(Identity { transport: pass.transport, principal })
    }

    /// Whether every event may be published on this topic, so that no single one needs a check.
    pub(crate) fn is_unlimited(&self, pass: &Identity, topic: &str) -> bool {
        let rights = &pass.principal.permissions;
        let is_trusted = || rights.allows(Action::Publish(topic)) && rights.allows_every_event();
        self.transport_policy.get().is_unlimited(pass.transport, topic)
            && (rights.is_unlimited() || is_trusted())
    }

    /// Whether this privileged attribute may be used without restriction.
    pub(crate) fn allows_attribute(&self, pass: &Identity, power: PrivilegedAttribute) -> bool {
        self.transport_policy.get().accepts(pass.transport, power)
            && pass.principal.permissions.allows_attribute(power)
    }

    /// Checks whether an event may be published on this topic. The error is [`Code::Denied`], or
    /// [`Code::Unauthenticated`] if a login may help.
    pub(crate) fn check_publish(
        &self,
        pass: &Identity,
        topic: &str,
        payload: &str,
    ) -> Result<(), ProtocolError> {
        self.transport_policy.get().check_publish(pass.transport, topic, payload)?;
        let rights = &pass.principal.permissions;
        if rights.is_unlimited() {
            return Ok(());
        }
        let deed = Action::Publish(topic);
        if !rights.allows(deed) {
            return Err(denied(pass, &deed.to_string()));
        }
        if let Some(power) = PrivilegedAttribute::of_topic(topic)
            && !rights.allows_attribute(power)
        {
            let of = if power == PrivilegedAttribute::Job { "job:*" } else { power.as_str() };
            return Err(denied(pass, &format!("publish on {topic} ({of})")));
        }
        rights.check_event(payload).map_err(|what| denied(pass, &what))
    }
}

impl PrincipalTable {
    fn new(
        principals: Option<Vec<Principal>>,
        strangers: &PermissionSet,
        notifier: Option<&TopicName>,
    ) -> Self {
        let is_open = principals.is_none();
        let of_strangers = if is_open { PermissionSet::all() } else { strangers.clone() };
        let of_peers = notifier.map(|topic| of_strangers.with_topic(topic));
        Self {
            is_open,
            principals: principals.unwrap_or_default().into_iter().map(Arc::new).collect(),
            peers: Principal::shared(PEERS, of_peers.unwrap_or_else(|| of_strangers.clone())),
            anonymous: Principal::shared(ANONYMOUS, of_strangers),
        }
    }

    /// The principals that were created, changed or revoked since `before`. A name belongs to one
    /// principal.
    fn changes_since(&self, before: &Self) -> Vec<(Box<str>, &'static str)> {
        let by_name = |known: &Self| -> BTreeMap<Box<str>, Arc<Principal>> {
            known.principals.iter().map(|one| (one.name.clone(), Arc::clone(one))).collect()
        };
        let (then, now) = (by_name(before), by_name(self));
        let revoked = then.keys().filter(|name| !now.contains_key(*name));
        let mut changes: Vec<_> = revoked.map(|name| (name.clone(), "revoked")).collect();
        for (name, principal) in now {
            match then.get(&name) {
                None => changes.push((name, "created")),
                Some(before) if !before.is_unchanged(&principal) => changes.push((name, "changed")),
                Some(_) => {}
            }
        }
        changes
    }
}

fn denied(pass: &Identity, what: &str) -> ProtocolError {
    let mut name = &*pass.principal.name;
    if pass.principal.credential.is_some() {
        return ProtocolError::new(Code::Denied, format!("{name} may not {what}"));
    }
    if name == ANONYMOUS {
        name = "anonymous clients";
    }
    let text = format!(
        "{name} may not {what} without a valid token; log in with HELLO token=<token>, or by HTTP with \
         Authorization: Bearer <token> (tokens begin with tdg_)"
    );
    ProtocolError::new(Code::Unauthenticated, text)
}
