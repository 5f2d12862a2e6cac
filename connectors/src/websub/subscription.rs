//! What is agreed with a hub about one feed. Pure; the time is an argument, in ms since 1970, as leases outlive processes.
//!
//! ```text
//!              ask                verified               most of the lease is over
//!   wanted ─────────▶ asked ─────────────────▶ active ───────────────────────────▶ asked, and active
//!      ▲                │ refused, silent          │ the lease is over, or denied
//!      └── after a while ┴──────────────────────────┘
//! ```

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidings_protocol::CanonicalUrl;
use tidings_subscriber::feed::Hubs;

use super::{milliseconds, token};

const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 60 * MINUTE_MS;
const DAY_MS: u64 = 24 * HOUR_MS;

/// And for so long at least, unless a shorter one was asked for: nobody is to have us ask them every second.
const LEASE_MS_MIN: u64 = MINUTE_MS;

/// A lease counts for so long at most, whatever a hub says.
const LEASE_MS_MAX: u64 = 30 * DAY_MS;

/// Servers of `rssCloud` forget who has not registered again for 25 hours.
const CLOUD_LEASE_MS: u64 = 25 * HOUR_MS;

/// How long after it was asked a hub may verify that we have asked.
const VERIFIED_WITHIN_MS: u64 = HOUR_MS;

/// From one try to the next: at first, and at most.
const RETRY_MS_MIN: u64 = MINUTE_MS;
const RETRY_MS_MAX: u64 = 6 * HOUR_MS;

/// Who has said no is asked again after so long.
const REFUSED_MS: u64 = DAY_MS;

/// How often a feed may say that somebody else tells: one that names another one each time is not followed.
const CHANGED_MS: u64 = DAY_MS;

/// Who tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Teller {
    /// A hub of `WebSub`, and under which URL it knows the feed.
    Hub { hub: String, topic: String },
    /// A server of `rssCloud`, by the URL where to register.
    Cloud { register: String },
}

impl Teller {
    /// The best of those that a feed names.
    pub(super) fn of(feed: &CanonicalUrl<'_>, hubs: &Hubs) -> Option<Self> {
        let topic = || hubs.topic.clone().unwrap_or_else(|| feed.as_str().to_owned());
        match (&hubs.hub, &hubs.cloud) {
            (Some(hub), _) => Some(Self::Hub { hub: hub.clone(), topic: topic() }),
            (None, Some(register)) => Some(Self::Cloud { register: register.clone() }),
            (None, None) => None,
        }
    }

    /// Who is asked.
    pub(super) fn url(&self) -> &str {
        match self {
            Self::Hub { hub, .. } => hub,
            Self::Cloud { register } => register,
        }
    }
}

impl Teller {
    /// Who that is, for people: the rest of its URL may be a secret.
    pub(super) fn host(&self) -> String {
        CanonicalUrl::parse(self.url()).map_or_else(|_| String::new(), |url| url.host().to_owned())
    }
}

/// A subscription, and how far it has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Subscription {
    pub(super) feed: String,
    /// The URL that is scheduled: the feed's, or one that leads to it.
    pub(super) watched: String,
    pub(super) teller: Teller,
    /// Stands in the path of the callback, which nobody can guess.
    pub(super) token: String,
    /// What the hub signs with.
    pub(super) secret: String,
    /// It was asked for by us, and may be verified until then.
    asked_until_ms: Option<u64>,
    active_until_ms: Option<u64>,
    /// When there is something to do.
    due_ms: u64,
    /// In vain, since it last worked.
    tries: u32,
    /// Nobody wants it any more.
    leaving: bool,
    /// Until when crawlers were told that news come of themselves; 0: they were not.
    crawlers_know_ms: u64,
    /// When it was begun.
    since_ms: u64,
}

/// What is asked of the hub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wish {
    Subscribe,
    Unsubscribe,
}

/// How long a subscription holds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lease {
    /// What hubs are asked for; at most 30 days.
    pub(super) asked: Duration,
    /// What the hub says.
    pub(super) granted: Option<Duration>,
}

/// How asking has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// It will verify.
    Accepted,
    /// It has no wish to, and will not change its mind soon.
    Refused,
    /// Nobody has answered, or they have trouble; after that time at the earliest.
    Failed(Option<Duration>),
}

impl Subscription {
    pub(super) fn new(feed: String, watched: String, teller: Teller, now_ms: u64) -> Self {
        Self {
            feed,
            watched,
            teller,
            token: token(),
            secret: token(),
            asked_until_ms: None,
            active_until_ms: None,
            due_ms: now_ms,
            tries: 0,
            leaving: false,
            crawlers_know_ms: 0,
            since_ms: now_ms,
        }
    }

    /// When there is something to do.
    pub(super) fn due_ms(&self) -> u64 {
        self.due_ms
    }

    /// Until when news are told.
    pub(super) fn told_until_ms(&self, now_ms: u64) -> Option<u64> {
        self.active_until_ms.filter(|until| *until > now_ms && !self.leaving)
    }

    /// What crawlers are to be told, as they know something else: until when news come of themselves, 0 for not at all.
    pub(super) fn untold_ms(&self, now_ms: u64) -> Option<u64> {
        let until_ms = self.told_until_ms(now_ms).unwrap_or(0);
        (until_ms != self.crawlers_know_ms && !self.leaving).then_some(until_ms)
    }

    /// They were told.
    pub(super) fn crawlers_know(&mut self, until_ms: u64) {
        self.crawlers_know_ms = until_ms;
    }

    /// When what crawlers know is not true any more.
    pub(super) fn over_ms(&self) -> u64 {
        if self.leaving || self.crawlers_know_ms == 0 { u64::MAX } else { self.crawlers_know_ms }
    }

    /// Whether nobody wants it any more.
    pub(super) fn is_leaving(&self) -> bool {
        self.leaving
    }

    /// Nobody wants it any more: the hub is told, which has nothing more to tell from now on.
    pub(super) fn leave(&mut self, now_ms: u64) {
        if !self.leaving {
            (self.leaving, self.due_ms, self.tries) = (true, now_ms, 0);
        }
    }

    /// It is due: what to ask. A verification may come before the answer.
    pub(super) fn ask(&mut self, now_ms: u64) -> Wish {
        self.asked_until_ms = Some(now_ms + VERIFIED_WITHIN_MS);
        self.tries = self.tries.saturating_add(1);
        self.due_ms = now_ms + self.patience_ms();
        if self.leaving { Wish::Unsubscribe } else { Wish::Subscribe }
    }

    /// How that has ended. Whether it became active by that: a server of `rssCloud` says yes or no at once.
    pub(super) fn was_asked(&mut self, asked: Asked, now_ms: u64) -> bool {
        if self.asked_until_ms.is_none() {
            // It was verified meanwhile.
            return false;
        }
        match asked {
            Asked::Accepted if matches!(self.teller, Teller::Cloud { .. }) && !self.leaving => {
                self.is_active(CLOUD_LEASE_MS, now_ms);
                return true;
            }
            // It verifies when it likes to.
            Asked::Accepted => self.due_ms = now_ms + VERIFIED_WITHIN_MS,
            Asked::Refused => {
                self.asked_until_ms = None;
                self.due_ms = now_ms + REFUSED_MS;
            }
            Asked::Failed(after) => {
                self.asked_until_ms = None;
                let after_ms = after.map_or(0, milliseconds);
                self.due_ms = now_ms + self.patience_ms().max(after_ms.min(DAY_MS));
            }
        }
        false
    }

    /// Whether asking again makes any sense where a subscription is to end: the hub forgets it by itself.
    pub(super) fn is_hopeless(&self, now_ms: u64) -> bool {
        self.leaving
            && (self.tries >= 5 || self.active_until_ms.is_none_or(|until| until <= now_ms))
    }

    /// The hub asks whether it was us. The error is for the log.
    pub(super) fn verify(
        &mut self,
        wish: Wish,
        topic: &str,
        lease: Lease,
        now_ms: u64,
    ) -> Result<(), &'static str> {
        self.is_about(topic)?;
        let is_asked = self.asked_until_ms.is_some_and(|until| until > now_ms);
        match (wish, self.leaving) {
            // It asks once more what it knows: the answer is the same, and the lease what it was.
            (Wish::Subscribe, false) if !is_asked && self.told_until_ms(now_ms).is_some() => Ok(()),
            _ if !is_asked => Err("nothing was asked of that hub, or long ago"),
            (Wish::Subscribe, false) => {
                let asked_ms = milliseconds(lease.asked);
                let granted_ms = lease.granted.map_or(asked_ms, milliseconds);
                let least_ms = LEASE_MS_MIN.min(asked_ms);
                self.is_active(granted_ms.clamp(least_ms, LEASE_MS_MAX), now_ms);
                Ok(())
            }
            (Wish::Unsubscribe, true) => {
                self.asked_until_ms = None;
                Ok(())
            }
            _ => Err("the opposite was asked of that hub"),
        }
    }

    /// The hub does not want it, or not any more.
    pub(super) fn deny(&mut self, topic: &str, now_ms: u64) -> Result<(), &'static str> {
        self.is_about(topic)?;
        (self.asked_until_ms, self.active_until_ms) = (None, None);
        self.due_ms = now_ms + REFUSED_MS;
        Ok(())
    }

    /// Whether another one may take its place.
    pub(super) fn may_change(&self, now_ms: u64) -> bool {
        self.leaving || now_ms >= self.since_ms.saturating_add(CHANGED_MS)
    }

    fn is_about(&self, topic: &str) -> Result<(), &'static str> {
        match &self.teller {
            Teller::Hub { topic: own, .. } if own == topic => Ok(()),
            Teller::Hub { .. } => Err("it is about another topic"),
            Teller::Cloud { .. } => Err("that feed has no hub"),
        }
    }

    fn is_active(&mut self, lease_ms: u64, now_ms: u64) {
        self.active_until_ms = Some(now_ms + lease_ms);
        (self.asked_until_ms, self.tries) = (None, 0);
        // With time for several tries.
        self.due_ms = now_ms + lease_ms - lease_ms / 5;
    }

    fn patience_ms(&self) -> u64 {
        let doubled = 1_u64.checked_shl(self.tries.saturating_sub(1)).unwrap_or(u64::MAX);
        RETRY_MS_MIN.saturating_mul(doubled).min(RETRY_MS_MAX)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: u64 = 1_700_000_000_000;
    const TOPIC: &str = "http://a.example/f";

    fn new() -> Subscription {
        let teller = Teller::Hub { hub: "http://hub.example/".into(), topic: TOPIC.into() };
        Subscription::new(TOPIC.into(), TOPIC.into(), teller, NOW)
    }

    const fn lease(seconds: u64) -> Lease {
        let asked = Duration::from_hours(240);
        Lease { asked, granted: Some(Duration::from_secs(seconds)) }
    }

    #[test]
    fn only_what_was_asked_for_is_verified() {
        let mut one = new();
        let verify = |one: &mut Subscription, wish, now| one.verify(wish, TOPIC, lease(100), now);
        assert!(verify(&mut one, Wish::Subscribe, NOW).is_err(), "nothing was asked");
        assert_eq!(one.ask(NOW), Wish::Subscribe);
        assert!(verify(&mut one, Wish::Unsubscribe, NOW).is_err(), "the opposite");
        assert!(one.verify(Wish::Subscribe, "http://b.example/", lease(9), NOW).is_err());
        assert!(verify(&mut one, Wish::Subscribe, NOW + VERIFIED_WITHIN_MS).is_err(), "too late");
        assert_eq!(one.told_until_ms(NOW), None);
        assert_eq!(verify(&mut one, Wish::Subscribe, NOW + 1), Ok(()));
        assert_eq!(one.verify(Wish::Subscribe, TOPIC, lease(9_999), NOW + 2), Ok(()), "again");
        assert_eq!(one.told_until_ms(NOW + 100_000), Some(NOW + 100_001), "it is what it was");
        assert_eq!(one.told_until_ms(NOW + 100_001), None, "it is over");
        assert!(verify(&mut one, Wish::Subscribe, NOW + 100_001).is_err());
        // Before that it is asked for again.
        assert_eq!(one.due_ms(), NOW + 1 + 80_000);
    }

    #[test]
    fn a_verification_may_come_before_the_answer() {
        let mut one = new();
        one.ask(NOW);
        one.verify(Wish::Subscribe, TOPIC, lease(100), NOW).unwrap();
        for answer in [Asked::Accepted, Asked::Refused, Asked::Failed(None)] {
            let mut one = one.clone();
            assert!(!one.was_asked(answer, NOW + 1));
            assert!(one.told_until_ms(NOW + 2).is_some(), "{answer:?}");
        }
    }

    #[test]
    fn who_is_silent_is_asked_again_more_and_more_seldom() {
        let mut one = new();
        let mut now = NOW;
        let mut pauses = Vec::new();
        for _ in 0..12 {
            one.ask(now);
            one.was_asked(Asked::Failed(None), now);
            pauses.push((one.due_ms() - now) / MINUTE_MS);
            now = one.due_ms();
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 360, 360, 360]);
        one.ask(now);
        one.was_asked(Asked::Failed(Some(Duration::from_secs(1_000_000))), now);
        assert_eq!(one.due_ms(), now + DAY_MS);
    }

    #[test]
    fn a_cloud_says_yes_or_no_at_once() {
        let teller = Teller::Cloud { register: "http://cloud.example/pleaseNotify".into() };
        let mut one = Subscription::new(TOPIC.into(), TOPIC.into(), teller, NOW);
        one.ask(NOW);
        assert!(one.was_asked(Asked::Accepted, NOW));
        assert_eq!(one.told_until_ms(NOW), Some(NOW + CLOUD_LEASE_MS));
        assert!(one.verify(Wish::Subscribe, TOPIC, lease(0), NOW).is_err());
    }

    #[test]
    fn what_nobody_wants_is_left_and_brings_nothing_more() {
        let mut one = new();
        one.ask(NOW);
        one.verify(Wish::Subscribe, TOPIC, lease(1_000_000), NOW).unwrap();
        one.leave(NOW + 1);
        assert_eq!(one.told_until_ms(NOW + 2), None);
        assert_eq!((one.due_ms(), one.ask(NOW + 2)), (NOW + 1, Wish::Unsubscribe));
        assert!(!one.is_hopeless(NOW + 2));
        assert!(one.verify(Wish::Subscribe, TOPIC, lease(0), NOW + 3).is_err());
        assert_eq!(one.verify(Wish::Unsubscribe, TOPIC, lease(0), NOW + 3), Ok(()));
    }

    #[derive(Debug, Clone)]
    enum Step {
        Pass(u64),
        Ask,
        Answer(Asked),
        Verify(Wish, u64),
        Deny,
        Leave,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let wish = prop_oneof![Just(Wish::Subscribe), Just(Wish::Unsubscribe)];
        let answer = prop_oneof![
            Just(Asked::Accepted),
            Just(Asked::Refused),
            (0..1_000_u64).prop_map(|s| Asked::Failed(Some(Duration::from_secs(s))))
        ];
        let step = prop_oneof![
            (0..3 * DAY_MS).prop_map(Step::Pass),
            Just(Step::Ask),
            answer.prop_map(Step::Answer),
            (wish, 0..100 * 86_400_u64).prop_map(|(wish, lease)| Step::Verify(wish, lease)),
            Just(Step::Deny),
            Just(Step::Leave),
        ];
        proptest::collection::vec(step, 1..60)
    }

    proptest! {
        /// Whatever hubs do: nothing is told that was not asked for and verified within its lease, and nobody who wants
        /// something waits longer than a lease, or a day, before they ask again.
        #[test]
        fn what_is_told_was_asked_for(steps in steps()) {
            let mut one = new();
            let (mut now, mut asked, mut until) = (NOW, None, 0);
            for step in steps {
                match step {
                    Step::Pass(ms) => now += ms,
                    Step::Ask => {
                        one.ask(now);
                        asked = Some(now);
                    }
                    Step::Answer(answer) => {
                        one.was_asked(answer, now);
                        if answer != Asked::Accepted {
                            asked = None;
                        }
                    }
                    Step::Verify(wish, seconds) => {
                        let was_told = one.told_until_ms(now).is_some();
                        let verified = one.verify(wish, TOPIC, lease(seconds), now);
                        let is_asked = asked.is_some_and(|was| now < was + VERIFIED_WITHIN_MS);
                        if !is_asked {
                            prop_assert_eq!(verified.is_ok(), was_told && wish == Wish::Subscribe);
                        } else if verified.is_ok() {
                            asked = None;
                            if wish == Wish::Subscribe {
                                until = now + (seconds * 1_000).clamp(LEASE_MS_MIN, LEASE_MS_MAX);
                            }
                        }
                    }
                    Step::Deny => {
                        one.deny(TOPIC, now).unwrap();
                        (until, asked) = (0, None);
                    }
                    Step::Leave => one.leave(now),
                }
                let told = one.told_until_ms(now).is_some();
                prop_assert_eq!(told, now < until && !one.is_leaving());
                prop_assert!(one.due_ms() <= now + LEASE_MS_MAX.max(REFUSED_MS));
            }
        }
    }
}
