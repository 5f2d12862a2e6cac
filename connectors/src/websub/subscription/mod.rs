//! The state of the subscription to one feed at a hub. Pure: the time is an argument, in ms since
//! 1970, because leases outlive processes.
//!
//! ```text
//!          request              verified          most of the lease is over
//!   wanted ───────▶ requested ────────────▶ active ────────────────────────▶ requested, and active
//!      ▲                │ refused, no answer    │ the lease is over, or denied
//!      └── after a pause ┴──────────────────────┘
//! ```
//!
//! A feed may name several hubs. If a hub refuses, or does not answer for a while, the next hub is
//! tried, with its own callback and secret. After the last hub comes the first, after a pause.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidings_documents::feed::Hubs;
use tidings_protocol::CanonicalUrl;

use crate::system::{milliseconds, random_token};

const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 60 * MINUTE_MS;
const DAY_MS: u64 = 24 * HOUR_MS;

/// The shortest lease that counts, unless a shorter one was requested. It prevents a renewal every
/// second.
const LEASE_MS_MIN: u64 = MINUTE_MS;

/// The longest lease that counts, even if a hub grants more.
const LEASE_MS_MAX: u64 = 30 * DAY_MS;

/// Servers of `rssCloud` drop a registration after 25 hours.
const CLOUD_LEASE_MS: u64 = 25 * HOUR_MS;

/// How long after a request a hub may verify it.
const VERIFICATION_TIMEOUT_MS: u64 = HOUR_MS;

/// The first and the longest pause between two attempts.
const RETRY_MS_MIN: u64 = MINUTE_MS;
const RETRY_MS_MAX: u64 = 6 * HOUR_MS;

/// The pause before the next request to a hub that refused.
const REFUSAL_PAUSE_MS: u64 = DAY_MS;

/// With `p = lease / RENEWAL_FRACTION`, a lease is renewed between `2 p` and `p` before its end.
/// Each subscription has its own time.
const RENEWAL_FRACTION: u64 = 5;

/// Failed attempts before the next hub of the feed is tried, if there is one.
const TRIES_MAX: u32 = 4;

/// The shortest time between two early renewals at a hub that is silent.
const SILENT_RENEWAL_INTERVAL_MS: u64 = DAY_MS;

/// The shortest time between two changes of a feed's hub, for feeds that name another hub each
/// time.
const HUB_CHANGE_INTERVAL_MS: u64 = DAY_MS;

/// A server that notifies of changes in a feed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum HubEndpoint {
    /// A hub of `WebSub`, and the URL under which it has the feed.
    #[serde(rename = "hub")]
    WebSub { hub: String, topic: String },
    /// A server of `rssCloud`, with the URL for registrations.
    #[serde(rename = "cloud")]
    RssCloud { register: String },
}

impl HubEndpoint {
    /// All servers that a feed names, in the order in which they are tried.
    pub(super) fn of_feed(feed: &CanonicalUrl<'_>, hubs: &Hubs) -> Vec<Self> {
        let Hubs { hubs, topic, cloud } = hubs;
        let topic = topic.as_deref().unwrap_or(feed.as_str());
        let hubs = hubs.iter().cloned().map(|hub| Self::WebSub { hub, topic: topic.to_owned() });
        let cloud = cloud.iter().cloned().map(|register| Self::RssCloud { register });
        hubs.chain(cloud).collect()
    }

    pub(super) fn url(&self) -> &str {
        match self {
            Self::WebSub { hub, .. } => hub,
            Self::RssCloud { register } => register,
        }
    }

    /// The host, for output. The rest of the URL may be a secret.
    pub(super) fn host(&self) -> String {
        CanonicalUrl::parse(self.url()).map_or_else(|_| String::new(), |url| url.host().to_owned())
    }
}

/// What a subscription is about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum WatchedKind {
    #[default]
    Feed,
    /// A page without a feed: each version is an item.
    Page,
}

/// A subscription and its state. Stored as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Subscription {
    pub(super) feed: String,
    /// The scheduled URL: that of the feed, or one that redirects to it.
    pub(super) watched: String,
    pub(super) kind: WatchedKind,
    pub(super) endpoint: HubEndpoint,
    /// All hubs that the feed names, including this one.
    candidates: Vec<HubEndpoint>,
    /// The unguessable part of the callback path.
    pub(super) token: String,
    /// The key with which the hub signs.
    pub(super) secret: String,
    /// Until when the hub may verify the pending request.
    pending_until_ms: Option<u64>,
    active_until_ms: Option<u64>,
    pub(super) due_ms: u64,
    /// Attempts since the last success.
    tries: u32,
    /// The hub refused or did not answer, so the next hub is tried, if there is one.
    has_failed: bool,
    /// When a hub of the feed last refused, since the first hub was tried; 0 if none has.
    refused_ms: u64,
    /// Set when the feed has lost its schedule, or has another hub.
    pub(super) is_cancelled: bool,
    /// The end of the lease that crawlers were last notified about; 0 if none.
    crawlers_notified_ms: u64,
    /// Crawlers have found an item that the hub did not deliver. They rely on no lease until the
    /// next delivery.
    is_silent: bool,
    /// When it was last renewed early for that reason.
    silent_ms: u64,
    /// When the hubs of the feed last changed.
    since_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HubMode {
    Subscribe,
    Unsubscribe,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct LeaseTerms {
    /// Requested by us; at most 30 days.
    pub(super) requested: Duration,
    pub(super) granted: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HubRequestOutcome {
    /// The hub will verify it.
    Accepted,
    /// The hub refuses, and will not accept it soon.
    Refused,
    /// No answer, or a temporary error; to be retried after this time at the earliest.
    Failed(Option<Duration>),
}

impl Subscription {
    pub(super) fn new(feed: String, watched: String, endpoint: HubEndpoint, now_ms: u64) -> Self {
        Self {
            feed,
            watched,
            kind: WatchedKind::Feed,
            candidates: vec![endpoint.clone()],
            endpoint,
            token: random_token(),
            secret: random_token(),
            pending_until_ms: None,
            active_until_ms: None,
            due_ms: now_ms,
            tries: 0,
            has_failed: false,
            refused_ms: 0,
            is_cancelled: false,
            crawlers_notified_ms: 0,
            is_silent: false,
            silent_ms: 0,
            since_ms: now_ms,
        }
    }

    /// The end of the current lease, in which the hub delivers.
    pub(super) fn lease_end_ms(&self, now_ms: u64) -> Option<u64> {
        self.active_until_ms.filter(|until| *until > now_ms && !self.is_cancelled)
    }

    /// The end of the current lease, if the hub is not silent.
    pub(super) fn trusted_lease_end_ms(&self, now_ms: u64) -> Option<u64> {
        self.lease_end_ms(now_ms).filter(|_| !self.is_silent)
    }

    /// The end of the lease that crawlers must be notified about; 0 if the lease has ended. `None`
    /// if crawlers are up to date.
    pub(super) fn pending_crawler_update_ms(&self, now_ms: u64) -> Option<u64> {
        let until_ms = self.trusted_lease_end_ms(now_ms).unwrap_or(0);
        (until_ms != self.crawlers_notified_ms && !self.is_cancelled).then_some(until_ms)
    }

    /// Crawlers were notified of the lease that ends at `until_ms`.
    pub(super) fn record_crawlers_notified(&mut self, until_ms: u64) {
        self.crawlers_notified_ms = until_ms;
    }

    /// A delivery arrived, and crawlers were notified of it and of the lease.
    pub(super) fn record_delivery(&mut self, until_ms: u64) {
        self.is_silent = false;
        self.record_crawlers_notified(until_ms);
    }

    /// Crawlers have found an item that the hub did not deliver, and no longer rely on the hub. It
    /// may have lost the subscription, so the subscription is renewed early.
    pub(super) fn report_silent(&mut self, now_ms: u64) {
        if self.lease_end_ms(now_ms).is_none() {
            return;
        }
        (self.is_silent, self.crawlers_notified_ms) = (true, 0);
        let is_pending = self.pending_until_ms.is_some_and(|until| until > now_ms);
        if !is_pending && now_ms >= self.silent_ms.saturating_add(SILENT_RENEWAL_INTERVAL_MS) {
            (self.silent_ms, self.due_ms) = (now_ms, self.due_ms.min(now_ms));
        }
    }

    /// The end of the lease that crawlers were notified about; `u64::MAX` if there is none.
    pub(super) fn crawler_notice_end_ms(&self) -> u64 {
        if self.is_cancelled || self.crawlers_notified_ms == 0 {
            u64::MAX
        } else {
            self.crawlers_notified_ms
        }
    }

    /// Cancels the subscription. The next request unsubscribes; deliveries are rejected from now
    /// on.
    pub(super) fn cancel(&mut self, now_ms: u64) {
        if !self.is_cancelled {
            (self.is_cancelled, self.due_ms, self.tries) = (true, now_ms, 0);
        }
    }

    /// Starts the request that is due, and returns its kind. The verification may come before the
    /// response.
    pub(super) fn start_request(&mut self, now_ms: u64) -> HubMode {
        self.pending_until_ms = Some(now_ms + VERIFICATION_TIMEOUT_MS);
        self.tries = self.tries.saturating_add(1);
        self.has_failed = false;
        self.due_ms = now_ms + self.backoff_ms();
        if self.is_cancelled { HubMode::Unsubscribe } else { HubMode::Subscribe }
    }

    /// Records the outcome of the request. Returns whether that activated the subscription; only
    /// a server of `rssCloud` decides at once.
    pub(super) fn finish_request(&mut self, outcome: HubRequestOutcome, now_ms: u64) -> bool {
        if self.pending_until_ms.is_none() {
            // It was already verified.
            return false;
        }
        match outcome {
            HubRequestOutcome::Accepted
                if matches!(self.endpoint, HubEndpoint::RssCloud { .. }) && !self.is_cancelled =>
            {
                self.activate(CLOUD_LEASE_MS, now_ms);
                return true;
            }
            // The hub may verify at any time.
            HubRequestOutcome::Accepted => self.due_ms = now_ms + VERIFICATION_TIMEOUT_MS,
            HubRequestOutcome::Refused => self.record_refusal(now_ms),
            HubRequestOutcome::Failed(after) => {
                self.pending_until_ms = None;
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

    /// Whether a cancelled subscription may be dropped without another request. The hub lets it
    /// expire.
    pub(super) fn is_removable(&self, now_ms: u64) -> bool {
        self.is_cancelled
            && (self.tries >= 5 || self.active_until_ms.is_none_or(|until| until <= now_ms))
    }

    /// The hub verifies a request. The error is for the log.
    pub(super) fn verify(
        &mut self,
        mode: HubMode,
        topic: &str,
        lease: LeaseTerms,
        now_ms: u64,
    ) -> Result<(), &'static str> {
        self.check_topic(topic)?;
        let is_pending = self.pending_until_ms.is_some_and(|until| until > now_ms);
        match (mode, self.is_cancelled) {
            // The hub repeats a verification: same response, same lease.
            (HubMode::Subscribe, false) if !is_pending && self.lease_end_ms(now_ms).is_some() => {
                Ok(())
            }
            _ if !is_pending => Err("no request to that hub is pending"),
            (HubMode::Subscribe, false) => {
                let requested_ms = milliseconds(lease.requested);
                let granted_ms = lease.granted.map_or(requested_ms, milliseconds);
                let min_ms = LEASE_MS_MIN.min(requested_ms);
                self.activate(granted_ms.clamp(min_ms, LEASE_MS_MAX), now_ms);
                Ok(())
            }
            (HubMode::Unsubscribe, true) => {
                self.pending_until_ms = None;
                Ok(())
            }
            _ => Err("hub.mode differs from the pending request"),
        }
    }

    /// The hub denies the subscription, before or after it was active.
    pub(super) fn deny(&mut self, topic: &str, now_ms: u64) -> Result<(), &'static str> {
        self.check_topic(topic)?;
        self.active_until_ms = None;
        self.record_refusal(now_ms);
        Ok(())
    }

    /// Sets the hubs that the feed names, including this one.
    pub(super) fn set_candidates(&mut self, candidates: Vec<HubEndpoint>, now_ms: u64) {
        if self.candidates != candidates {
            (self.candidates, self.since_ms) = (candidates, now_ms);
        }
    }

    pub(super) fn has_candidates(&self, candidates: &[HubEndpoint]) -> bool {
        self.candidates == candidates
    }

    /// The subscription at the next hub, if this one failed and has no lease. A hub that was not
    /// tried in this round is due now. After the last hub, the first is due after a pause.
    pub(super) fn successor(&self, now_ms: u64) -> Option<Self> {
        let is_over = self.has_failed || self.tries >= TRIES_MAX;
        if !is_over || !self.has_other_hubs() || self.lease_end_ms(now_ms).is_some() {
            return None;
        }
        let position = self.candidates.iter().position(|endpoint| *endpoint == self.endpoint)?;
        let next = (position + 1) % self.candidates.len();
        let (feed, watched) = (self.feed.clone(), self.watched.clone());
        let mut successor = Self::new(feed, watched, self.candidates[next].clone(), now_ms);
        successor.candidates.clone_from(&self.candidates);
        successor.kind = self.kind;
        successor.silent_ms = self.silent_ms;
        (successor.since_ms, successor.crawlers_notified_ms) =
            (self.since_ms, self.crawlers_notified_ms);
        if next == 0 {
            successor.due_ms = (now_ms + RETRY_MS_MAX).max(self.refused_ms + REFUSAL_PAUSE_MS);
        } else {
            successor.refused_ms = self.refused_ms;
        }
        Some(successor)
    }

    /// Whether the feed may change its hub now.
    pub(super) fn may_change_hub(&self, now_ms: u64) -> bool {
        self.is_cancelled || now_ms >= self.since_ms.saturating_add(HUB_CHANGE_INTERVAL_MS)
    }

    fn check_topic(&self, topic: &str) -> Result<(), &'static str> {
        match &self.endpoint {
            HubEndpoint::WebSub { topic: subscribed, .. } if subscribed == topic => Ok(()),
            HubEndpoint::WebSub { .. } => Err("the request is about another topic"),
            HubEndpoint::RssCloud { .. } => Err("the feed has no WebSub hub"),
        }
    }

    fn activate(&mut self, lease_ms: u64, now_ms: u64) {
        self.active_until_ms = Some(now_ms + lease_ms);
        (self.pending_until_ms, self.tries) = (None, 0);
        // Early enough for several attempts, and not at once for subscriptions that began together.
        let spread_ms = lease_ms / RENEWAL_FRACTION * self.spread_position() / u64::from(u32::MAX);
        self.due_ms = now_ms + lease_ms - lease_ms / RENEWAL_FRACTION - spread_ms;
    }

    /// A number up to `u32::MAX`, random but constant, from the token.
    fn spread_position(&self) -> u64 {
        self.token.get(..8).and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or(0)
    }

    fn record_refusal(&mut self, now_ms: u64) {
        (self.pending_until_ms, self.refused_ms) = (None, now_ms);
        self.give_up(REFUSAL_PAUSE_MS, now_ms);
    }

    /// Retries this hub after a pause, or the next hub as soon as this one has no lease.
    fn give_up(&mut self, pause_ms: u64, now_ms: u64) {
        self.has_failed = true;
        self.due_ms = now_ms + pause_ms;
        if self.has_other_hubs() {
            self.due_ms = self.due_ms.min(self.lease_end_ms(now_ms).unwrap_or(now_ms));
        }
    }

    fn has_other_hubs(&self) -> bool {
        !self.is_cancelled && self.candidates.len() > 1 && self.candidates.contains(&self.endpoint)
    }

    fn backoff_ms(&self) -> u64 {
        let doubled = 1_u64.checked_shl(self.tries.saturating_sub(1)).unwrap_or(u64::MAX);
        RETRY_MS_MIN.saturating_mul(doubled).min(RETRY_MS_MAX)
    }
}

#[cfg(test)]
mod tests;
