//! What is agreed with a hub about one feed. Pure; the time is an argument, in ms since 1970, as
//! leases outlive processes.
//!
//! ```text
//!              ask                verified               most of the lease is over
//!   wanted ─────────▶ asked ─────────────────▶ active ───────────────────────────▶ asked, and active
//!      ▲                │ refused, silent          │ the lease is over, or denied
//!      └── after a while ┴──────────────────────────┘
//! ```
//!
//! A feed may name several who tell. Who has said no, or was asked in vain for a while, is followed
//! by the next one, with a callback and a secret of its own; and the last one by the first, after a
//! pause.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidings_protocol::CanonicalUrl;
use tidings_subscriber::feed::Hubs;

use super::{milliseconds, random_token};

const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 60 * MINUTE_MS;
const DAY_MS: u64 = 24 * HOUR_MS;

/// And for so long at least, unless a shorter one was asked for: nobody is to have us ask them
/// every second.
const LEASE_MS_MIN: u64 = MINUTE_MS;

/// A lease counts for so long at most, whatever a hub says.
const LEASE_MS_MAX: u64 = 30 * DAY_MS;

/// Servers of `rssCloud` forget who has not registered again for 25 hours.
const CLOUD_LEASE_MS: u64 = 25 * HOUR_MS;

/// How long after it was asked a hub may verify that we have asked.
const VERIFICATION_TIMEOUT_MS: u64 = HOUR_MS;

/// From one try to the next: at first, and at most.
const RETRY_MS_MIN: u64 = MINUTE_MS;
const RETRY_MS_MAX: u64 = 6 * HOUR_MS;

/// Who has said no is asked again after so long.
const REFUSAL_PAUSE_MS: u64 = DAY_MS;

/// Between two and one of so many parts of a lease before its end it is asked for again: each at
/// its own time.
const RENEWAL_FRACTION: u64 = 5;

/// Tries in vain until somebody else is asked, if there is somebody.
const TRIES_MAX: u32 = 4;

/// How often a hub that has not told everything is asked before its lease is over.
const SILENT_RENEWAL_INTERVAL_MS: u64 = DAY_MS;

/// How often a feed may say that somebody else tells: one that names another one each time is not
/// followed.
const HUB_CHANGE_INTERVAL_MS: u64 = DAY_MS;

/// Who tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum HubEndpoint {
    /// A hub of `WebSub`, and under which URL it knows the feed.
    Hub { hub: String, topic: String },
    /// A server of `rssCloud`, by the URL where to register.
    Cloud { register: String },
}

impl HubEndpoint {
    /// All that a feed names, in the order in which they are to be asked.
    pub(super) fn of_feed(feed: &CanonicalUrl<'_>, hubs: &Hubs) -> Vec<Self> {
        let Hubs { hubs, topic, cloud } = hubs;
        let topic = topic.as_deref().unwrap_or(feed.as_str());
        let hubs = hubs.iter().cloned().map(|hub| Self::Hub { hub, topic: topic.to_owned() });
        let cloud = cloud.iter().cloned().map(|register| Self::Cloud { register });
        hubs.chain(cloud).collect()
    }

    /// Who is asked.
    pub(super) fn url(&self) -> &str {
        match self {
            Self::Hub { hub, .. } => hub,
            Self::Cloud { register } => register,
        }
    }
}

impl HubEndpoint {
    /// Who that is, for people: the rest of its URL may be a secret.
    pub(super) fn host(&self) -> String {
        CanonicalUrl::parse(self.url()).map_or_else(|_| String::new(), |url| url.host().to_owned())
    }
}

/// What the hub tells of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum WatchedKind {
    #[default]
    Feed,
    /// A page without a feed, which is watched for its versions.
    Page,
}

/// A subscription, and how far it has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Subscription {
    pub(super) feed: String,
    /// The URL that is scheduled: the feed's, or one that leads to it.
    pub(super) watched: String,
    /// Earlier versions of Tidings had feeds alone.
    #[serde(default)]
    pub(super) kind: WatchedKind,
    pub(super) teller: HubEndpoint,
    /// All that the feed names, this one among them; earlier versions kept none.
    #[serde(default)]
    tellers: Vec<HubEndpoint>,
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
    /// It has said no, or not answered for long: its turn is over, unless there is nobody else.
    #[serde(default)]
    in_vain: bool,
    /// When one of those that the feed names has said no, since the first of them was asked; 0:
    /// none has.
    #[serde(default)]
    refused_ms: u64,
    /// Nobody wants it any more.
    leaving: bool,
    /// Until when crawlers were told that news come of themselves; 0: they were not.
    crawlers_know_ms: u64,
    /// Crawlers have found what nobody had told: they are told of no lease until something is told
    /// again.
    #[serde(default)]
    is_silent: bool,
    /// When it was asked for once more because of that.
    #[serde(default)]
    silent_ms: u64,
    /// When it was begun.
    since_ms: u64,
}

/// What is asked of the hub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HubMode {
    Subscribe,
    Unsubscribe,
}

/// How long a subscription holds.
#[derive(Debug, Clone, Copy)]
pub(super) struct LeaseTerms {
    /// What hubs are asked for; at most 30 days.
    pub(super) requested: Duration,
    /// What the hub says.
    pub(super) granted: Option<Duration>,
}

/// How asking has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HubRequestOutcome {
    /// It will verify.
    Accepted,
    /// It has no wish to, and will not change its mind soon.
    Refused,
    /// Nobody has answered, or they have trouble; after that time at the earliest.
    Failed(Option<Duration>),
}

impl Subscription {
    pub(super) fn new(feed: String, watched: String, teller: HubEndpoint, now_ms: u64) -> Self {
        Self {
            feed,
            watched,
            kind: WatchedKind::Feed,
            tellers: vec![teller.clone()],
            teller,
            token: random_token(),
            secret: random_token(),
            asked_until_ms: None,
            active_until_ms: None,
            due_ms: now_ms,
            tries: 0,
            in_vain: false,
            refused_ms: 0,
            leaving: false,
            crawlers_know_ms: 0,
            is_silent: false,
            silent_ms: 0,
            since_ms: now_ms,
        }
    }

    /// When there is something to do.
    pub(super) fn due_ms(&self) -> u64 {
        self.due_ms
    }

    /// Until when news are told.
    pub(super) fn lease_end_ms(&self, now_ms: u64) -> Option<u64> {
        self.active_until_ms.filter(|until| *until > now_ms && !self.leaving)
    }

    /// Until when news are told, by somebody who has told all that was found so far.
    pub(super) fn trusted_lease_end_ms(&self, now_ms: u64) -> Option<u64> {
        self.lease_end_ms(now_ms).filter(|_| !self.is_silent)
    }

    /// What crawlers are to be told, as they know something else: until when news come of
    /// themselves, 0 for not at all.
    pub(super) fn pending_crawler_update_ms(&self, now_ms: u64) -> Option<u64> {
        let until_ms = self.trusted_lease_end_ms(now_ms).unwrap_or(0);
        (until_ms != self.crawlers_know_ms && !self.leaving).then_some(until_ms)
    }

    /// They were told.
    pub(super) fn record_crawlers_notified(&mut self, until_ms: u64) {
        self.crawlers_know_ms = until_ms;
    }

    /// Something was told, and crawlers know so, and until when there is more to come.
    pub(super) fn record_delivery(&mut self, until_ms: u64) {
        self.is_silent = false;
        self.record_crawlers_notified(until_ms);
    }

    /// Crawlers have found what nobody had told, and go by nobody since. Whoever should have told
    /// it may have lost us, so they are asked once more.
    pub(super) fn report_silent(&mut self, now_ms: u64) {
        if self.lease_end_ms(now_ms).is_none() {
            return;
        }
        (self.is_silent, self.crawlers_know_ms) = (true, 0);
        let is_asked = self.asked_until_ms.is_some_and(|until| until > now_ms);
        if !is_asked && now_ms >= self.silent_ms.saturating_add(SILENT_RENEWAL_INTERVAL_MS) {
            (self.silent_ms, self.due_ms) = (now_ms, self.due_ms.min(now_ms));
        }
    }

    /// When what crawlers know is not true any more.
    pub(super) fn crawler_notice_end_ms(&self) -> u64 {
        if self.leaving || self.crawlers_know_ms == 0 { u64::MAX } else { self.crawlers_know_ms }
    }

    /// Whether nobody wants it any more.
    pub(super) fn is_cancelled(&self) -> bool {
        self.leaving
    }

    /// Nobody wants it any more: the hub is told, which has nothing more to tell from now on.
    pub(super) fn cancel(&mut self, now_ms: u64) {
        if !self.leaving {
            (self.leaving, self.due_ms, self.tries) = (true, now_ms, 0);
        }
    }

    /// It is due: what to ask. A verification may come before the answer.
    pub(super) fn start_request(&mut self, now_ms: u64) -> HubMode {
        self.asked_until_ms = Some(now_ms + VERIFICATION_TIMEOUT_MS);
        self.tries = self.tries.saturating_add(1);
        self.in_vain = false;
        self.due_ms = now_ms + self.backoff_ms();
        if self.leaving { HubMode::Unsubscribe } else { HubMode::Subscribe }
    }

    /// How that has ended. Whether it became active by that: a server of `rssCloud` says yes or no
    /// at once.
    pub(super) fn finish_request(&mut self, asked: HubRequestOutcome, now_ms: u64) -> bool {
        if self.asked_until_ms.is_none() {
            // It was verified meanwhile.
            return false;
        }
        match asked {
            HubRequestOutcome::Accepted
                if matches!(self.teller, HubEndpoint::Cloud { .. }) && !self.leaving =>
            {
                self.activate(CLOUD_LEASE_MS, now_ms);
                return true;
            }
            // It verifies when it likes to.
            HubRequestOutcome::Accepted => self.due_ms = now_ms + VERIFICATION_TIMEOUT_MS,
            HubRequestOutcome::Refused => self.record_refusal(now_ms),
            HubRequestOutcome::Failed(after) => {
                self.asked_until_ms = None;
                let after_ms = after.map_or(0, milliseconds).min(DAY_MS);
                let pause_ms = self.backoff_ms().max(after_ms);
                if self.tries < TRIES_MAX {
                    self.due_ms = now_ms + pause_ms;
                } else {
                    self.give_up(pause_ms, now_ms);
                }
            }
        }
        false
    }

    /// Whether asking again makes any sense where a subscription is to end: the hub forgets it by
    /// itself.
    pub(super) fn is_removable(&self, now_ms: u64) -> bool {
        self.leaving
            && (self.tries >= 5 || self.active_until_ms.is_none_or(|until| until <= now_ms))
    }

    /// The hub asks whether it was us. The error is for the log.
    pub(super) fn verify(
        &mut self,
        wish: HubMode,
        topic: &str,
        lease: LeaseTerms,
        now_ms: u64,
    ) -> Result<(), &'static str> {
        self.check_topic(topic)?;
        let is_asked = self.asked_until_ms.is_some_and(|until| until > now_ms);
        match (wish, self.leaving) {
            // It asks once more what it knows: the answer is the same, and the lease what it was.
            (HubMode::Subscribe, false) if !is_asked && self.lease_end_ms(now_ms).is_some() => {
                Ok(())
            }
            _ if !is_asked => Err("nothing was asked of that hub, or long ago"),
            (HubMode::Subscribe, false) => {
                let asked_ms = milliseconds(lease.requested);
                let granted_ms = lease.granted.map_or(asked_ms, milliseconds);
                let least_ms = LEASE_MS_MIN.min(asked_ms);
                self.activate(granted_ms.clamp(least_ms, LEASE_MS_MAX), now_ms);
                Ok(())
            }
            (HubMode::Unsubscribe, true) => {
                self.asked_until_ms = None;
                Ok(())
            }
            _ => Err("the opposite was asked of that hub"),
        }
    }

    /// The hub does not want it, or not any more.
    pub(super) fn deny(&mut self, topic: &str, now_ms: u64) -> Result<(), &'static str> {
        self.check_topic(topic)?;
        self.active_until_ms = None;
        self.record_refusal(now_ms);
        Ok(())
    }

    /// What the feed names now, this one among them.
    pub(super) fn set_candidates(&mut self, tellers: Vec<HubEndpoint>, now_ms: u64) {
        if self.tellers != tellers {
            (self.tellers, self.since_ms) = (tellers, now_ms);
        }
    }

    /// Whether the feed names the same as ever.
    pub(super) fn has_candidates(&self, tellers: &[HubEndpoint]) -> bool {
        self.tellers == tellers
    }

    /// The subscription that takes the place of this one, which is due and was asked in vain, and
    /// tells nothing any more. Who was not asked yet in this round is asked now; when all were, the
    /// first of them later.
    pub(super) fn successor(&self, now_ms: u64) -> Option<Self> {
        let is_over = self.in_vain || self.tries >= TRIES_MAX;
        if !is_over || !self.has_other_hubs() || self.lease_end_ms(now_ms).is_some() {
            return None;
        }
        let at = self.tellers.iter().position(|teller| *teller == self.teller)?;
        let next = (at + 1) % self.tellers.len();
        let (feed, watched) = (self.feed.clone(), self.watched.clone());
        let mut one = Self::new(feed, watched, self.tellers[next].clone(), now_ms);
        one.tellers.clone_from(&self.tellers);
        one.kind = self.kind;
        one.silent_ms = self.silent_ms;
        (one.since_ms, one.crawlers_know_ms) = (self.since_ms, self.crawlers_know_ms);
        if next == 0 {
            one.due_ms = (now_ms + RETRY_MS_MAX).max(self.refused_ms + REFUSAL_PAUSE_MS);
        } else {
            one.refused_ms = self.refused_ms;
        }
        Some(one)
    }

    /// Whether another one may take its place.
    pub(super) fn may_change_hub(&self, now_ms: u64) -> bool {
        self.leaving || now_ms >= self.since_ms.saturating_add(HUB_CHANGE_INTERVAL_MS)
    }

    fn check_topic(&self, topic: &str) -> Result<(), &'static str> {
        match &self.teller {
            HubEndpoint::Hub { topic: own, .. } if own == topic => Ok(()),
            HubEndpoint::Hub { .. } => Err("it is about another topic"),
            HubEndpoint::Cloud { .. } => Err("that feed has no hub"),
        }
    }

    fn activate(&mut self, lease_ms: u64, now_ms: u64) {
        self.active_until_ms = Some(now_ms + lease_ms);
        (self.asked_until_ms, self.tries) = (None, 0);
        // With time for several tries, and not all at once that were begun together.
        let spread_ms = lease_ms / RENEWAL_FRACTION * self.spread_position() / u64::from(u32::MAX);
        self.due_ms = now_ms + lease_ms - lease_ms / RENEWAL_FRACTION - spread_ms;
    }

    /// A number up to `u32::MAX`, as random as the token, and always the same.
    fn spread_position(&self) -> u64 {
        self.token.get(..8).and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or(0)
    }

    fn record_refusal(&mut self, now_ms: u64) {
        (self.asked_until_ms, self.refused_ms) = (None, now_ms);
        self.give_up(REFUSAL_PAUSE_MS, now_ms);
    }

    /// It is asked again after a pause, and somebody else as soon as this one tells nothing more.
    fn give_up(&mut self, pause_ms: u64, now_ms: u64) {
        self.in_vain = true;
        self.due_ms = now_ms + pause_ms;
        if self.has_other_hubs() {
            self.due_ms = self.due_ms.min(self.lease_end_ms(now_ms).unwrap_or(now_ms));
        }
    }

    /// Whether somebody else could be asked.
    fn has_other_hubs(&self) -> bool {
        !self.leaving && self.tellers.len() > 1 && self.tellers.contains(&self.teller)
    }

    fn backoff_ms(&self) -> u64 {
        let doubled = 1_u64.checked_shl(self.tries.saturating_sub(1)).unwrap_or(u64::MAX);
        RETRY_MS_MIN.saturating_mul(doubled).min(RETRY_MS_MAX)
    }
}

#[cfg(test)]
mod tests;
