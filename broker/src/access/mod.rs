//! Decides which commands, requests and events are allowed.
//!
//! Every command, request and run of events is checked here once, before it has any effect. The
//! decision rests on two things:
//!
//! - the [`Way`] on which it arrives: some commands are not available on it, and some [privileged
//!   attributes](Power) are not accepted from it ([`Grants`]);
//! - the [`Principal`] that sends it, and its [`Rights`].
//!
//! Without a list of principals the broker is *open*: every client may do everything. With a list,
//! even an empty one, a client that has not logged in is anonymous, and may do what is allowed to
//! anonymous clients.
//!
//! ```text
//!  token, certificate, or user of the machine ──▶ Access ──▶ Pass ──▶ command, request, event
//!                                                   ▲
//!                          principals, replaced while passes are in use
//! ```

mod failures;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod prefix;
mod rights;
mod secret;
mod senders;
#[cfg(test)]
mod tests;
mod way;

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tidings_protocol::{Code, Command, DEFAULT_TOPIC, ProtocolError, Token, TopicName};
use tokio::sync::watch;

use self::failures::Failures;
pub use self::prefix::{Prefix, lies_below};
pub(crate) use self::rights::Deed;
pub use self::rights::{Pattern, Right, Rights};
pub use self::secret::{TokenHash, mask_tokens, new_token};
pub(crate) use self::secret::{is_token, shows_token, without_tokens};
pub use self::senders::Senders;
use self::way::LiveGrants;
pub use self::way::{Grants, Power, Way};
use crate::clock::Moment;
use crate::throttle::Source;

/// The principal of clients that have not logged in. Audit records contain this name.
const STRANGERS: &str = "strangers";
/// The principal of peers.
const PEERS: &str = "peers";
/// The principal of the broker's own parts, and of its own user on this machine.
const OWN: &str = "tidings";

/// The configuration of access control.
#[derive(Debug, Clone, Default)]
pub struct AccessConfig {
    /// The privileged attributes that each transport accepts.
    pub grants: Grants,
    /// The principals that can log in. Default `None`: no login is needed.
    pub principals: Option<Vec<Principal>>,
    /// What anonymous clients may do while there are principals. Default: nothing.
    pub strangers: Rights,
    /// The topic of peers, which they publish to and receive. Default `None`: the default topic
    /// while the broker is open, and no peers otherwise.
    pub notifier: Option<TopicName>,
    /// Users of the machine that may do everything over the unix socket: the user of the broker's
    /// process, which can access its files anyway.
    pub own_users: Vec<u32>,
}

/// What identifies a client.
#[derive(Debug, Clone)]
pub enum Proof {
    /// A token with this hash.
    Token(TokenHash),
    /// A certificate with this name, issued by one of the client authorities.
    Certificate(Box<str>),
    /// A connection over the unix socket by this user of the machine.
    UnixUser(u32),
}

impl Proof {
    /// Takes the same time however much of a token's hash is equal.
    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Token(one), Self::Token(other)) => one.is(other),
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
    proof: Option<Proof>,
    rights: Rights,
}

impl Principal {
    /// A principal with this name: a word without white space and control characters.
    pub fn new(name: &str, proof: Proof, rights: Rights) -> Self {
        Self { name: name.into(), proof: Some(proof), rights }
    }
}

impl Principal {
    /// Whether credential and permissions are the same.
    fn is_same(&self, other: &Self) -> bool {
        self.is_known_as(other) && self.rights == other.rights
    }

    fn is_known_as(&self, other: &Self) -> bool {
        match (&self.proof, &other.proof) {
            (Some(one), Some(other)) => one.is(other),
            (one, other) => one.is_none() && other.is_none(),
        }
    }
}

/// The principal and the transport of a connection or request.
#[derive(Debug, Clone)]
pub(crate) struct Pass {
    way: Way,
    principal: Arc<Principal>,
}

impl Pass {
    /// The transport of the messages that the connection relays, or its own.
    pub(crate) fn way(&self) -> Way {
        self.way
    }

    /// The name of the principal.
    pub(crate) fn name(&self) -> &str {
        &self.principal.name
    }

    /// The name under which quotas are counted: that of a principal with a credential, unless it
    /// may do everything.
    pub(crate) fn counted(&self) -> Option<&str> {
        let Principal { name, proof, rights } = &*self.principal;
        (proof.is_some() && !rights.is_unlimited()).then_some(name)
    }

    /// The connection relays messages from this transport from now on.
    pub(crate) fn go_by(&mut self, way: Way) {
        self.way = way;
    }

    /// Whether it is the identity of the broker itself.
    pub(crate) fn is_own(&self) -> bool {
        *self.principal.name == *OWN && self.principal.proof.is_none()
    }

    /// Whether the client has not logged in. False for peers.
    pub(crate) fn is_stranger(&self) -> bool {
        *self.principal.name == *STRANGERS && self.principal.proof.is_none()
    }

    /// Whether both belong to the same principal, with the same credential.
    pub(crate) fn is_of(&self, other: &Self) -> bool {
        let (one, other) = (&*self.principal, &*other.principal);
        one.name == other.name && one.is_known_as(other)
    }

    /// Whether both have the same permissions.
    pub(crate) fn has_rights_of(&self, other: &Self) -> bool {
        self.principal.rights == other.principal.rights
    }

    /// Whether the client may only log in.
    pub(crate) fn is_worthless(&self) -> bool {
        self.principal.rights.is_empty()
    }

    /// Checks whether a command is allowed. The error is [`Code::Denied`], or
    /// [`Code::Unauthenticated`] if a login may help.
    ///
    /// For `PUB` it checks the topic only; [`Access::publish`] checks the event.
    pub(crate) fn may(&self, command: &Command<'_>) -> Result<(), ProtocolError> {
        self.way.may(command.verb())?;
        let rights = &self.principal.rights;
        if rights.is_unlimited() {
            return Ok(());
        }
        let deed = Deed::of(command);
        if !rights.allow(deed) {
            return Err(denied(self, &deed.to_string()));
        }
        rights.allow_options(command).map_err(|what| denied(self, &what))
    }

    /// The same for opening a job without knowing its name.
    pub(crate) fn may_open_jobs(&self) -> Result<(), ProtocolError> {
        let some = self.principal.rights.allow_some_job();
        if some { Ok(()) } else { Err(denied(self, &Deed::Job("*").to_string())) }
    }

    /// The same for an action that is not a command.
    pub(crate) fn may_do(&self, deed: Deed<'_>) -> Result<(), ProtocolError> {
        if self.principal.rights.allow(deed) {
            return Ok(());
        }
        Err(denied(self, &deed.to_string()))
    }
}

/// Why a login failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unknown {
    /// No principal has this token. The answer is due after this number of milliseconds.
    Wrong(u64),
    /// This source tried too many wrong tokens. The next one is checked after this number of
    /// milliseconds.
    TooMany(u64),
}

/// All principals at one moment.
#[derive(Debug)]
struct Known {
    /// No login is needed.
    is_open: bool,
    principals: Vec<Arc<Principal>>,
    strangers: Arc<Principal>,
    /// The principal of all peers.
    peers: Arc<Principal>,
}

/// Knows principals and transports, and issues identities.
#[derive(Debug)]
pub(crate) struct Access {
    grants: LiveGrants,
    strangers: Rights,
    notifier: Option<TopicName>,
    default_topic: TopicName,
    own: Vec<Arc<Principal>>,
    itself: Arc<Principal>,
    known: ArcSwap<Known>,
    failures: Mutex<Failures>,
    changes: watch::Sender<()>,
}

impl Access {
    pub(crate) fn new(config: AccessConfig) -> Self {
        let AccessConfig { grants, principals, strangers, notifier, own_users } = config;
        let own = own_users.into_iter();
        let own = own.map(|user| Principal::new(OWN, Proof::UnixUser(user), Rights::all()));
        let own = own.map(Arc::new).collect();
        let known = Known::new(principals, &strangers, notifier.as_ref());
        Self {
            grants: LiveGrants::new(grants),
            strangers,
            notifier,
            default_topic: TopicName::new(DEFAULT_TOPIC)
                .expect("the default topic is a valid name"),
            own,
            itself: Arc::new(Principal { name: OWN.into(), proof: None, rights: Rights::all() }),
            known: ArcSwap::from_pointee(known),
            failures: Mutex::default(),
            changes: watch::Sender::new(()),
        }
    }

    /// Replaces the privileged attributes that each transport accepts.
    pub(crate) fn regrant(&self, grants: Grants) {
        self.grants.set(grants);
    }

    /// The identity of the broker itself.
    pub(crate) fn own(&self, way: Way) -> Pass {
        Pass { way, principal: Arc::clone(&self.itself) }
    }

    /// Replaces all principals. Every holder of an identity must [`renew`](Self::renew) it. Returns
    /// the principals that differ from before, and how.
    pub(crate) fn replace(&self, principals: Vec<Principal>) -> Vec<(Box<str>, &'static str)> {
        let known = Known::new(Some(principals), &self.strangers, self.notifier.as_ref());
        let known = Arc::new(known);
        let before = self.known.swap(Arc::clone(&known));
        self.changes.send_replace(());
        known.changes_since(&before)
    }

    /// Changes whenever identities must be renewed.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// The identity of a client that has not logged in.
    pub(crate) fn stranger(&self, way: Way) -> Pass {
        Pass { way, principal: Arc::clone(&self.known.load().strangers) }
    }

    /// The identity of a client that is known by its connection: by its certificate, or by its user
    /// on the unix socket. `None` if no principal has this credential.
    pub(crate) fn enter(&self, way: Way, proof: &Proof) -> Option<Pass> {
        let known = self.known.load();
        self.find(&known, proof).map(|principal| Pass { way, principal })
    }

    /// The identity of a peer, which may also do what anonymous clients may.
    pub(crate) fn peer(&self, way: Way) -> Pass {
        Pass { way, principal: Arc::clone(&self.known.load().peers) }
    }

    /// Whether no login is needed.
    pub(crate) fn is_open(&self) -> bool {
        self.known.load().is_open
    }

    /// The topic that a peer with this identity publishes to and receives: the configured one, or
    /// the default topic if the identity may do both there anyway.
    pub(crate) fn notifier(&self, pass: &Pass) -> Option<&TopicName> {
        let topic = self.default_topic.as_str();
        let allows_default = || {
            pass.may_do(Deed::Publish(topic)).and_then(|()| pass.may_do(Deed::Hear(topic))).is_ok()
        };
        self.notifier.as_ref().or_else(|| allows_default().then_some(&self.default_topic))
    }

    /// The identity of the principal with this token. While the broker is open, any token is
    /// accepted and means nothing. A wrong token counts as a failure of `source`, if there is one.
    pub(crate) fn log_in(
        &self,
        way: Way,
        token: &Token,
        source: Option<Source>,
        now: Moment,
    ) -> Result<Pass, Unknown> {
        let known = self.known.load();
        let proof = Proof::Token(TokenHash::of(token));
        if let Some(principal) = self.find(&known, &proof) {
            // A right token is accepted however many failures its source has: no client guesses 256
            // bits, and none must be locked out by others on its network.
            return Ok(Pass { way, principal });
        }
        if known.is_open {
            return Ok(Pass { way, principal: Arc::clone(&known.strangers) });
        }
        let Some(source) = source else { return Err(Unknown::Wrong(0)) };
        let mut failures = self.failures.lock();
        failures.allow(source, now).map_err(Unknown::TooMany)?;
        Err(Unknown::Wrong(failures.note(source, now)))
    }

    /// The principal with this credential. Compares all of them, so that the time reveals nothing.
    fn find(&self, known: &Known, proof: &Proof) -> Option<Arc<Principal>> {
        let mut found = None;
        for principal in known.principals.iter().chain(&self.own) {
            if principal.proof.as_ref().is_some_and(|own| own.is(proof)) {
                found = Some(principal);
            }
        }
        found.cloned()
    }

    /// The identity as it is now. `None` if its principal is gone.
    pub(crate) fn renew(&self, pass: &Pass) -> Option<Pass> {
        let known = self.known.load();
        let principal = match &pass.principal.proof {
            None if *pass.principal.name == *PEERS => Arc::clone(&known.peers),
            None if *pass.principal.name == *OWN => Arc::clone(&self.itself),
            None => Arc::clone(&known.strangers),
            Some(proof) => self.find(&known, proof)?,
        };
        (principal.name == pass.principal.name).then_some(Pass { way: pass.way, principal })
    }

    /// Whether every event may be published on this topic, so that no single one needs a check.
    pub(crate) fn is_unlimited(&self, pass: &Pass, topic: &str) -> bool {
        let rights = &pass.principal.rights;
        let is_trusted = || rights.allow(Deed::Publish(topic)) && rights.allow_every_event();
        self.grants.get().is_unlimited(pass.way, topic) && (rights.is_unlimited() || is_trusted())
    }

    /// Whether this privileged attribute may be used without restriction.
    pub(crate) fn may_have(&self, pass: &Pass, power: Power) -> bool {
        self.grants.get().has(pass.way, power) && pass.principal.rights.allow_power(power)
    }

    /// Checks whether an event may be published on this topic. The error is [`Code::Denied`], or
    /// [`Code::Unauthenticated`] if a login may help.
    pub(crate) fn publish(
        &self,
        pass: &Pass,
        topic: &str,
        payload: &str,
    ) -> Result<(), ProtocolError> {
        self.grants.get().publish(pass.way, topic, payload)?;
        let rights = &pass.principal.rights;
        if rights.is_unlimited() {
            return Ok(());
        }
        let deed = Deed::Publish(topic);
        if !rights.allow(deed) {
            return Err(denied(pass, &deed.to_string()));
        }
        if let Some(power) = Power::of_topic(topic)
            && !rights.allow_power(power)
        {
            let of = if power == Power::Job { "job:*" } else { power.as_str() };
            return Err(denied(pass, &format!("publish on {topic} ({of})")));
        }
        rights.allow_event(payload).map_err(|what| denied(pass, &what))
    }
}

impl Known {
    fn new(
        principals: Option<Vec<Principal>>,
        strangers: &Rights,
        notifier: Option<&TopicName>,
    ) -> Self {
        let is_open = principals.is_none();
        let of_strangers = if is_open { Rights::all() } else { strangers.clone() };
        let of_peers = notifier.map(|topic| of_strangers.with_topic(topic));
        let shared =
            |name: &str, rights| Arc::new(Principal { name: name.into(), proof: None, rights });
        Self {
            is_open,
            principals: principals.unwrap_or_default().into_iter().map(Arc::new).collect(),
            peers: shared(PEERS, of_peers.unwrap_or_else(|| of_strangers.clone())),
            strangers: shared(STRANGERS, of_strangers),
        }
    }
}

impl Known {
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
                Some(before) if !before.is_same(&principal) => changes.push((name, "changed")),
                Some(_) => {}
            }
        }
        changes
    }
}

fn denied(pass: &Pass, what: &str) -> ProtocolError {
    let mut name = &*pass.principal.name;
    if pass.principal.proof.is_some() {
        return ProtocolError::new(Code::Denied, format!("{name} may not {what}"));
    }
    if name == STRANGERS {
        name = "anonymous clients";
    }
    let text = format!(
        "{name} may not {what} without a valid token; log in with HELLO token=<token>, or by HTTP with \
         Authorization: Bearer <token>"
    );
    ProtocolError::new(Code::Unauthenticated, text)
}
