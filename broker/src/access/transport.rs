//! Transports, and what each of them accepts from any sender.

use std::fmt::Display;
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};

use tidings_protocol::{
    Code, HUB_FOUND_TOPIC, HUB_TOPIC, HUB_VERIFY_TOPIC, JOB_DONE_TOPIC, Payload, ProtocolError,
    Verb, field, word_enum,
};

word_enum! {
    /// The way by which a request arrives at the broker.
    pub enum Transport {
        /// The line protocol: `nc`, and all its clients.
        Line = "line",
        /// HTTP requests to topics, jobs and groups.
        Http = "http",
        /// `ZeroMQ` messages. Their senders are unknown, and cannot be answered.
        Zmq = "zmq",
    }
}

impl Transport {
    /// Whether it only publishes: a client of the broker relays the messages of unknown senders.
    pub(crate) const fn is_publish_only(self) -> bool {
        matches!(self, Self::Zmq)
    }

    /// Checks whether a command is available on this transport. The error is [`Code::Denied`].
    pub(super) fn check_verb(self, verb: Verb) -> Result<(), ProtocolError> {
        let is_for_publishers =
            matches!(verb, Verb::Hello | Verb::Pub | Verb::Ping | Verb::Help | Verb::Quit);
        if is_for_publishers || !self.is_publish_only() {
            return Ok(());
        }
        let text = format!("{} is not available over {}", verb.as_str(), self.as_str());
        Err(ProtocolError::new(Code::Denied, text))
    }
}

word_enum! {
    /// What gives the sender of an event influence on other clients: an attribute, or its topic.
    pub enum PrivilegedAttribute {
        /// `every=`: the URL is fetched again and again without end.
        Every = "every",
        /// `prio=`: the URL is fetched before others.
        Prio = "prio",
        /// `job=`: the URL becomes part of a job, and its links are followed; and the topic
        /// `job-done`.
        Job = "job",
        /// `hub=`, `cloud=`, `pushed=`: a hub announces changes of the feed, so it is fetched less
        /// often; and the topics that a hub works with.
        Hub = "hub",
    }
}

impl PrivilegedAttribute {
    /// The privilege that an attribute gives.
    pub(super) fn of_attribute(key: &str) -> Option<Self> {
        match key {
            "every" => Some(Self::Every),
            "prio" => Some(Self::Prio),
            "job" => Some(Self::Job),
            "hub" | "cloud" | "pushed" => Some(Self::Hub),
            _ => None,
        }
    }

    /// The words of a payload that look like a privileged attribute, with their values: all real
    /// ones, and perhaps a word of a text. This is faster than to find out whether the payload has
    /// attributes.
    pub(super) fn candidates_in(payload: &str) -> impl Iterator<Item = (Self, &str)> {
        memchr::memchr_iter(b'=', payload.as_bytes()).filter_map(|equals| {
            let (before, value) = (&payload[..equals], &payload[equals + 1..]);
            let key = before.trim_end_matches(|c: char| c.is_ascii_lowercase()).len();
            let power = Self::of_attribute(&before[key..])?;
            let end = value.find([' ', '\t']).unwrap_or(value.len());
            Some((power, &value[..end]))
        })
    }

    /// The privilege that publishing on a topic gives.
    pub(super) fn of_topic(topic: &str) -> Option<Self> {
        match topic {
            JOB_DONE_TOPIC => Some(Self::Job),
            HUB_FOUND_TOPIC | HUB_TOPIC | HUB_VERIFY_TOPIC => Some(Self::Hub),
            _ => None,
        }
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// The privileged attributes of one transport, or of one principal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct PrivilegedAttributes(u8);

impl PrivilegedAttributes {
    pub(super) const ALL: Self = Self::of(&PrivilegedAttribute::ALL);
    const NONE: Self = Self(0);

    const fn of(powers: &[PrivilegedAttribute]) -> Self {
        let (mut bits, mut rest) = (0, powers);
        while let [power, others @ ..] = rest {
            bits |= power.bit();
            rest = others;
        }
        Self(bits)
    }

    pub(super) fn contains(self, power: PrivilegedAttribute) -> bool {
        self.0 & power.bit() != 0
    }
}

impl FromIterator<PrivilegedAttribute> for PrivilegedAttributes {
    fn from_iter<T: IntoIterator<Item = PrivilegedAttribute>>(powers: T) -> Self {
        Self(powers.into_iter().fold(0, |bits, power| bits | power.bit()))
    }
}

/// The privileged attributes that each transport accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransportPolicy([PrivilegedAttributes; Transport::ALL.len()]);

impl Default for TransportPolicy {
    /// A client that can open a job can also publish into it, so lines and HTTP have all privileged
    /// attributes. `ZeroMQ` has none.
    fn default() -> Self {
        Self(Transport::ALL.map(|way| {
            if way.is_publish_only() {
                PrivilegedAttributes::NONE
            } else {
                PrivilegedAttributes::ALL
            }
        }))
    }
}

impl TransportPolicy {
    /// Sets the privileged attributes of a transport.
    pub fn grant(&mut self, way: Transport, powers: &[PrivilegedAttribute]) {
        self.0[way as usize] = PrivilegedAttributes::of(powers);
    }

    pub(super) fn accepts(self, way: Transport, power: PrivilegedAttribute) -> bool {
        self.0[way as usize].contains(power)
    }

    /// Whether a transport accepts every event on this topic, so that no single one needs a check.
    pub(super) fn is_unlimited(self, way: Transport, topic: &str) -> bool {
        self.0[way as usize] == PrivilegedAttributes::ALL && topic != JOB_DONE_TOPIC
    }

    /// Checks whether a transport accepts an event on this topic. The error is [`Code::Denied`].
    pub(super) fn check_publish(
        self,
        way: Transport,
        topic: &str,
        payload: &str,
    ) -> Result<(), ProtocolError> {
        if self.is_unlimited(way, topic) {
            return Ok(());
        }
        let lacks = |power: &PrivilegedAttribute| !self.0[way as usize].contains(*power);
        let denied = |what: &str, power: PrivilegedAttribute| {
            let (way, power) = (way.as_str(), power.as_str());
            let text = format!(
                "{what} is not accepted over {way}; start the broker with --grant {way}={power} to allow it"
            );
            Err(ProtocolError::new(Code::Denied, text))
        };
        if let Some(power) = PrivilegedAttribute::of_topic(topic).filter(lacks) {
            return denied(topic, power);
        }
        if topic == JOB_DONE_TOPIC && field(payload, "callback").is_some() {
            // The broker signs and sends callbacks, so only groups may name their URLs.
            let text = format!(
                "callback= on {JOB_DONE_TOPIC} is reserved for the broker: set it with JOB open"
            );
            return Err(ProtocolError::new(Code::Denied, text));
        }
        for (key, _) in Payload::parse(payload).attributes() {
            if let Some(power) = PrivilegedAttribute::of_attribute(key).filter(lacks) {
                return denied(&format!("{key}="), power);
            }
        }
        Ok(())
    }
}

/// The current policy, which can be replaced while connections are open.
#[derive(Debug)]
pub(super) struct LiveTransportPolicy(AtomicU32);

impl LiveTransportPolicy {
    pub(super) fn new(access: TransportPolicy) -> Self {
        let live = Self(AtomicU32::new(0));
        live.set(access);
        live
    }

    /// Replaces the policy for all checks that begin from now on.
    pub(super) fn set(&self, TransportPolicy(ways): TransportPolicy) {
        let [line, http, zmq] = ways.map(|PrivilegedAttributes(bits)| bits);
        self.0.store(u32::from_le_bytes([line, http, zmq, 0]), Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> TransportPolicy {
        let [line, http, zmq, _] = self.0.load(Ordering::Relaxed).to_le_bytes();
        TransportPolicy([line, http, zmq].map(PrivilegedAttributes))
    }
}

impl FromStr for Transport {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        Self::from_word(word).ok_or_else(|| unknown_word(word, "a transport", &Self::ALL))
    }
}

impl FromStr for PrivilegedAttribute {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let unknown = || unknown_word(word, "a privileged attribute", &Self::ALL);
        Self::from_word(word).ok_or_else(unknown)
    }
}

fn unknown_word<T: Display>(word: &str, what: &str, all: &[T]) -> String {
    let known: Vec<_> = all.iter().map(ToString::to_string).collect();
    format!("{word:?} is not {what}; expected one of {}", known.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PUBLISHES: [(&str, Option<PrivilegedAttribute>); 10] = [
        ("http://a.example/ every=1h", Some(PrivilegedAttribute::Every)),
        ("http://a.example/ x=1 prio=5", Some(PrivilegedAttribute::Prio)),
        ("/srv/a\tjob=docs", Some(PrivilegedAttribute::Job)),
        ("http://a.example/feed hub=http://b.example/ id=1", Some(PrivilegedAttribute::Hub)),
        ("http://a.example/feed cloud=http://b.example/", Some(PrivilegedAttribute::Hub)),
        ("http://a.example/feed pushed=1999999999999", Some(PrivilegedAttribute::Hub)),
        ("http://a.example/", None),
        ("http://a.example/?every=1h source=job=x", None),
        ("every=1h", None),
        ("http://a.example/ is new, every=1h", None),
    ];

    // PROTOCOL: C9
    #[test]
    fn a_privileged_attribute_is_accepted_only_where_it_is_granted() {
        for granted in 0..16_u8 {
            let has = |power: PrivilegedAttribute| granted & 1 << (power as u8) != 0;
            let powers: Vec<_> =
                PrivilegedAttribute::ALL.into_iter().filter(|power| has(*power)).collect();
            for way in Transport::ALL {
                let mut grants = TransportPolicy::default();
                grants.grant(way, &powers);
                assert_eq!(grants.is_unlimited(way, "new-url"), granted == 15);
                assert!(!grants.is_unlimited(way, "job-done"));
                for (payload, power) in PUBLISHES {
                    let may = grants.check_publish(way, "new-url", payload);
                    let wanted = power.is_none_or(has);
                    assert_eq!(may.is_ok(), wanted, "{way:?} with {powers:?}: {payload}");
                    assert!(may.is_ok() || may.unwrap_err().code == Code::Denied);
                }
                let topics = [
                    ("job-done", PrivilegedAttribute::Job),
                    ("hub-found", PrivilegedAttribute::Hub),
                    ("hub", PrivilegedAttribute::Hub),
                    ("hub-verify", PrivilegedAttribute::Hub),
                ];
                for (topic, power) in topics {
                    let may = grants.check_publish(way, topic, "docs number=1");
                    assert_eq!(may.is_ok(), has(power), "{way:?} with {powers:?}: {may:?}");
                }
                let may = grants.check_publish(way, "job-done", "docs number=1 callback=http://a/");
                assert!(may.is_err(), "{way:?} with {powers:?}: the broker would sign it");
            }
        }
    }

    // PROTOCOL: C9
    #[test]
    fn by_default_zeromq_publishes_without_privileged_attributes() {
        let grants = TransportPolicy::default();
        for (payload, power) in PUBLISHES {
            assert!(grants.check_publish(Transport::Line, "new-url", payload).is_ok());
            assert!(grants.check_publish(Transport::Http, "new-url", payload).is_ok());
            assert_eq!(
                grants.check_publish(Transport::Zmq, "new-url", payload).is_ok(),
                power.is_none(),
                "{payload}"
            );
        }
        for verb in Verb::ALL {
            assert!(Transport::Line.check_verb(verb).is_ok());
            let publishes =
                matches!(verb, Verb::Hello | Verb::Pub | Verb::Ping | Verb::Help | Verb::Quit);
            assert_eq!(Transport::Zmq.check_verb(verb).is_ok(), publishes, "{verb:?}");
        }
    }

    #[test]
    fn a_replaced_policy_applies() {
        let mut grants = TransportPolicy::default();
        let live = LiveTransportPolicy::new(grants);
        assert_eq!(live.get(), grants);
        grants.grant(Transport::Zmq, &[PrivilegedAttribute::Prio, PrivilegedAttribute::Hub]);
        grants.grant(Transport::Line, &[PrivilegedAttribute::Job]);
        live.set(grants);
        assert_eq!(live.get(), grants);
    }

    #[test]
    fn each_transport_has_its_own_policy() {
        let mut grants = TransportPolicy::default();
        grants.grant(Transport::Zmq, &[PrivilegedAttribute::Prio]);
        grants.grant(Transport::Http, &[]);
        assert!(grants.check_publish(Transport::Zmq, "new-url", "/a prio=1").is_ok());
        assert!(grants.check_publish(Transport::Zmq, "new-url", "/a prio=1 job=x").is_err());
        assert!(grants.check_publish(Transport::Http, "new-url", "/a prio=1").is_err());
        assert!(
            grants.check_publish(Transport::Line, "new-url", "/a prio=1 job=x every=1h").is_ok()
        );
    }
}
