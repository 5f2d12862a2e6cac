//! Who may do what.
//!
//! Every way in asks here, once for each command, request or run of events, before anything is done: may
//! this pass do that? The answer rests on two things:
//!
//! - the [`Way`] on which it comes: what nobody may do who comes by it, and which attributes with
//!   [`Power`] are taken from there ([`Grants`]);
//! - the [`Principal`] who has the pass, and its [`Rights`].
//!
//! Without principals a broker is *open*: everybody is somebody who may do everything. As soon as there
//! is a list of principals, also an empty one, who shows nothing is a stranger, and may do what strangers
//! are allowed to.
//!
//! ```text
//!  a token, a certificate, a user of the machine ──▶ Access ──▶ Pass ──▶ command, request, events
//!                                                       ▲
//!                            principals, replaced while passes are in use
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

/// What those are called who show nothing.
const STRANGERS: &str = "strangers";
/// And those who are peers of the notifier.
const PEERS: &str = "peers";
/// What those are called who are the broker's own user, as its own parts are.
const OWN: &str = "tidings";

/// What a broker is told of access.
#[derive(Debug, Clone, Default)]
pub struct AccessConfig {
    /// Which attributes with power are taken on which way.
    pub grants: Grants,
    /// Who may log in. Default `None`: nobody needs to.
    pub principals: Option<Vec<Principal>>,
    /// What those may do who do not log in, if others can. Default: nothing.
    pub strangers: Rights,
    /// The topic that peers hear and publish to. Default `None`: the default topic while nobody needs to log in, and
    /// no peers otherwise.
    pub notifier: Option<TopicName>,
    /// Users of the machine who may do everything, over the unix socket: that of the broker's own process, who may read and
    /// write all that it has anyway.
    pub own_users: Vec<u32>,
}

/// What somebody shows to be known by.
#[derive(Debug, Clone)]
pub enum Proof {
    /// A token of that hash.
    Token(TokenHash),
    /// A certificate of one of the client authorities, for that name.
    Certificate(Box<str>),
    /// A connection over the unix socket, by that user of the machine.
    UnixUser(u32),
}

impl Proof {
    /// In a time that does not depend on how much of a token's hash is the same.
    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Token(one), Self::Token(other)) => one.is(other),
            (Self::Certificate(one), Self::Certificate(other)) => one == other,
            (Self::UnixUser(one), Self::UnixUser(other)) => one == other,
            _ => false,
        }
    }
}

/// Somebody: a person, a program, or all who show nothing.
#[derive(Debug, Clone)]
pub struct Principal {
    name: Box<str>,
    proof: Option<Proof>,
    rights: Rights,
}

impl Principal {
    /// Somebody of that name, a word without white space and control characters.
    pub fn new(name: &str, proof: Proof, rights: Rights) -> Self {
        Self { name: name.into(), proof: Some(proof), rights }
    }
}

impl Principal {
    /// Whether it is known by the same, and may do the same.
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

/// What a connection or a request comes with.
#[derive(Debug, Clone)]
pub(crate) struct Pass {
    way: Way,
    principal: Arc<Principal>,
}

impl Pass {
    /// The way of those for whom it speaks.
    pub(crate) fn way(&self) -> Way {
        self.way
    }

    /// Who has it.
    pub(crate) fn name(&self) -> &str {
        &self.principal.name
    }

    /// The name under which is counted what one has: of somebody who is known, and may not do everything.
    pub(crate) fn counted(&self) -> Option<&str> {
        let Principal { name, proof, rights } = &*self.principal;
        (proof.is_some() && !rights.is_unlimited()).then_some(name)
    }

    /// It speaks for those who come by that way from now on.
    pub(crate) fn go_by(&mut self, way: Way) {
        self.way = way;
    }

    /// Whether it is that of the broker itself.
    pub(crate) fn is_own(&self) -> bool {
        *self.principal.name == *OWN && self.principal.proof.is_none()
    }

    /// Whether it is that of somebody who has shown nothing, and is no peer.
    pub(crate) fn is_stranger(&self) -> bool {
        *self.principal.name == *STRANGERS && self.principal.proof.is_none()
    }

    /// Whether both are the same somebody's.
    pub(crate) fn is_of(&self, other: &Self) -> bool {
        let (one, other) = (&*self.principal, &*other.principal);
        one.name == other.name && one.is_known_as(other)
    }

    /// Whether both may do the same.
    pub(crate) fn has_rights_of(&self, other: &Self) -> bool {
        self.principal.rights == other.principal.rights
    }

    /// Whether it is good for nothing but logging in.
    pub(crate) fn is_worthless(&self) -> bool {
        self.principal.rights.is_empty()
    }

    /// Whether a command may be done. Refused with [`Code::Denied`], or
    /// [`Code::Unauthenticated`] if it may be allowed to whoever logs in.
    ///
    /// Of `PUB` only the topic is looked at: [`Access::publish`] looks at events.
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

    /// The same for opening a job, of which the name is not known yet.
    pub(crate) fn may_open_jobs(&self) -> Result<(), ProtocolError> {
        let some = self.principal.rights.allow_some_job();
        if some { Ok(()) } else { Err(denied(self, &Deed::Job("*").to_string())) }
    }

    /// The same for what is no command.
    pub(crate) fn may_do(&self, deed: Deed<'_>) -> Result<(), ProtocolError> {
        if self.principal.rights.allow(deed) {
            return Ok(());
        }
        Err(denied(self, &deed.to_string()))
    }
}

/// Why nobody was let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unknown {
    /// No principal has that token. Said after so many milliseconds.
    Wrong(u64),
    /// There were too many of them from there: another one is as welcome as this in so many milliseconds.
    TooMany(u64),
}

/// Everybody who is known, at one time.
#[derive(Debug)]
struct Known {
    /// Nobody needs to log in.
    is_open: bool,
    principals: Vec<Arc<Principal>>,
    strangers: Arc<Principal>,
    /// Whoever is a peer of the notifier.
    peers: Arc<Principal>,
}

/// Who may do what.
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
            default_topic: TopicName::new(DEFAULT_TOPIC).expect("it is one"),
            own,
            itself: Arc::new(Principal { name: OWN.into(), proof: None, rights: Rights::all() }),
            known: ArcSwap::from_pointee(known),
            failures: Mutex::default(),
            changes: watch::Sender::new(()),
        }
    }

    /// Which attributes are taken on which way from now on.
    pub(crate) fn regrant(&self, grants: Grants) {
        self.grants.set(grants);
    }

    /// The pass of the broker itself.
    pub(crate) fn own(&self, way: Way) -> Pass {
        Pass { way, principal: Arc::clone(&self.itself) }
    }

    /// Everybody who is known from now on. Whoever has a pass has to [`renew`](Self::renew) it. Returns who is another one
    /// than before, and how.
    pub(crate) fn replace(&self, principals: Vec<Principal>) -> Vec<(Box<str>, &'static str)> {
        let known = Known::new(Some(principals), &self.strangers, self.notifier.as_ref());
        let known = Arc::new(known);
        let before = self.known.swap(Arc::clone(&known));
        self.changes.send_replace(());
        known.changes_since(&before)
    }

    /// Changes whenever passes have to be renewed.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// The pass of somebody who has shown nothing yet.
    pub(crate) fn stranger(&self, way: Way) -> Pass {
        Pass { way, principal: Arc::clone(&self.known.load().strangers) }
    }

    /// The pass of somebody of whom the connection itself tells who it is, if somebody is known by that.
    pub(crate) fn enter(&self, way: Way, proof: &Proof) -> Option<Pass> {
        let known = self.known.load();
        self.find(&known, proof).map(|principal| Pass { way, principal })
    }

    /// The pass of a peer of the notifier, who may also do what strangers may.
    pub(crate) fn peer(&self, way: Way) -> Pass {
        Pass { way, principal: Arc::clone(&self.known.load().peers) }
    }

    /// Whether nobody needs to log in.
    pub(crate) fn is_open(&self) -> bool {
        self.known.load().is_open
    }

    /// The topic that whoever has that pass hears and publishes to as a peer, if that may be: the one that was named for
    /// everybody, or the default topic for those who may do so anyway.
    pub(crate) fn notifier(&self, pass: &Pass) -> Option<&TopicName> {
        let topic = self.default_topic.as_str();
        let may = || {
            pass.may_do(Deed::Publish(topic)).and_then(|()| pass.may_do(Deed::Hear(topic))).is_ok()
        };
        self.notifier.as_ref().or_else(|| may().then_some(&self.default_topic))
    }

    /// The pass of somebody who shows a token: that of its owner. While the broker is open every token is as good as
    /// none. A wrong one is counted for `source`, if that is given.
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
            // Whatever others try from there: nobody guesses 256 bits, and nobody is to be kept out by them.
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

    /// Whoever has that proof. Looks at all of them, so that the time tells nothing.
    fn find(&self, known: &Known, proof: &Proof) -> Option<Arc<Principal>> {
        let mut found = None;
        for principal in known.principals.iter().chain(&self.own) {
            if principal.proof.as_ref().is_some_and(|its| its.is(proof)) {
                found = Some(principal);
            }
        }
        found.cloned()
    }

    /// The same pass, as it is now. `None` if whoever has it is not known any more.
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

    /// Whether anything whatever may be published on that topic, so that no event of it need be asked about.
    pub(crate) fn is_unlimited(&self, pass: &Pass, topic: &str) -> bool {
        let rights = &pass.principal.rights;
        let is_trusted = || rights.allow(Deed::Publish(topic)) && rights.allow_every_event();
        self.grants.get().is_unlimited(pass.way, topic) && (rights.is_unlimited() || is_trusted())
    }

    /// Whether somebody may have that power over what is everybody's.
    pub(crate) fn may_have(&self, pass: &Pass, power: Power) -> bool {
        self.grants.get().has(pass.way, power) && pass.principal.rights.allow_power(power)
    }

    /// Whether an event of this topic may be published. Refused with [`Code::Denied`], or
    /// [`Code::Unauthenticated`] if it may be allowed to whoever logs in.
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
        let nobody =
            |name: &str, rights| Arc::new(Principal { name: name.into(), proof: None, rights });
        Self {
            is_open,
            principals: principals.unwrap_or_default().into_iter().map(Arc::new).collect(),
            peers: nobody(PEERS, of_peers.unwrap_or_else(|| of_strangers.clone())),
            strangers: nobody(STRANGERS, of_strangers),
        }
    }
}

impl Known {
    /// Who was created, changed or revoked. A name is one principal's.
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
