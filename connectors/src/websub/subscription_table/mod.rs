//! All subscriptions. Each change is on disk before it has an effect.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use parking_lot::RwLock;
use tidings_database::schema_version::SchemaError;
use tidings_documents::feed::Hubs;
use tidings_documents::feed::watched_feed::KnownItems;
use tidings_protocol::CanonicalUrl;

use super::store::SubscriptionStore;
use super::subscription::{HubEndpoint, Subscription, WatchedKind};

/// The limit of subscriptions. Further feeds are polled as if they had no hub.
const SUBSCRIPTIONS_MAX: usize = 10_000;

/// The subscriptions, in memory and on disk.
#[derive(Debug)]
pub(super) struct SubscriptionTable {
    by_token: HashMap<String, Subscription>,
    /// The token of the newest subscription of each feed, which may be cancelled.
    by_feed: HashMap<String, String>,
    /// The tokens of subscriptions with a request to their hub in flight.
    in_flight: HashSet<String>,
    /// The minute of the last delivery and the deliveries in it, by token.
    delivery_counts: HashMap<String, (u64, u32)>,
    /// All tokens, shared with readers that must not wait for the disk.
    tokens: Arc<RwLock<HashSet<String>>>,
    store: SubscriptionStore,
    is_full_logged: bool,
}

/// Deliveries of one subscription. A hub that is rejected here can combine its deliveries.
const DELIVERIES_PER_MINUTE_MAX: u32 = 60;
const MINUTE_MS: u64 = 60_000;

/// A feed or page that a crawler watches.
#[derive(Debug, Clone, Copy)]
pub(super) struct WatchedUrl<'a> {
    pub(super) url: &'a str,
    pub(super) kind: WatchedKind,
}

impl WatchedUrl<'_> {
    fn apply_to(self, subscription: &mut Subscription) {
        self.url.clone_into(&mut subscription.watched);
        subscription.kind = self.kind;
    }
}

impl SubscriptionTable {
    pub(super) fn open(path: &Path) -> Result<Self, SchemaError> {
        let store = SubscriptionStore::open(path)?;
        let by_token: HashMap<_, _> = store
            .load_all()?
            .into_iter()
            .map(|subscription| (subscription.token.clone(), subscription))
            .collect();
        let current = by_token.values().filter(|subscription| !subscription.is_cancelled);
        let by_feed = current
            .map(|subscription| (subscription.feed.clone(), subscription.token.clone()))
            .collect();
        let tokens = Arc::new(RwLock::new(by_token.keys().cloned().collect()));
        let (in_flight, delivery_counts) = (HashSet::new(), HashMap::new());
        Ok(Self {
            by_token,
            by_feed,
            in_flight,
            delivery_counts,
            tokens,
            store,
            is_full_logged: false,
        })
    }

    pub(super) fn tokens(&self) -> Arc<RwLock<HashSet<String>>> {
        Arc::clone(&self.tokens)
    }

    pub(super) fn database_id(&self) -> u32 {
        self.store.database_id
    }

    pub(super) fn get(&self, token: &str) -> Option<&Subscription> {
        self.by_token.get(token)
    }

    /// Changes a subscription, and stores it if it differs. `None`: the token is unknown.
    pub(super) fn update<T>(
        &mut self,
        token: &str,
        change: impl FnOnce(&mut Subscription) -> T,
    ) -> Result<Option<T>, SchemaError> {
        let Some(subscription) = self.by_token.get_mut(token) else { return Ok(None) };
        let before = subscription.clone();
        let result = change(subscription);
        if *subscription != before
            && let Err(error) = self.store.put(subscription)
        {
            *subscription = before;
            return Err(error);
        }
        Ok(Some(result))
    }

    pub(super) fn remove(&mut self, token: &str) -> Result<(), SchemaError> {
        self.store.remove(token)?;
        self.remove_from_memory(token);
        self.is_full_logged = false;
        Ok(())
    }

    fn remove_from_memory(&mut self, token: &str) {
        if let Some(subscription) = self.by_token.remove(token)
            && self.by_feed.get(&subscription.feed).is_some_and(|current| current == token)
        {
            self.by_feed.remove(&subscription.feed);
        }
        self.in_flight.remove(token);
        self.delivery_counts.remove(token);
        self.tokens.write().remove(token);
    }

    /// Counts a delivery. Returns whether it is within the limit of this minute.
    pub(super) fn admit_delivery(&mut self, token: &str, now_ms: u64) -> bool {
        let minute = now_ms / MINUTE_MS;
        let count = self.delivery_counts.entry(token.to_owned()).or_default();
        if count.0 != minute {
            *count = (minute, 0);
        }
        count.1 = count.1.saturating_add(1);
        count.1 <= DELIVERIES_PER_MINUTE_MAX
    }

    /// A crawler has found an item in a feed that the hub did not deliver.
    pub(super) fn report_silent_hub(
        &mut self,
        feed: &CanonicalUrl<'_>,
        now_ms: u64,
    ) -> Result<(), SchemaError> {
        if let Some(token) = self.by_feed.get(feed.as_str()).cloned() {
            self.update(&token, |subscription| subscription.report_silent(now_ms))?;
        }
        Ok(())
    }

    /// A crawler has found the hubs of a feed or page, and has these known items.
    pub(super) fn update_hubs(
        &mut self,
        feed: &CanonicalUrl<'_>,
        watched: WatchedUrl<'_>,
        hubs: &Hubs,
        known: KnownItems,
        now_ms: u64,
    ) -> Result<(), SchemaError> {
        let candidates = HubEndpoint::of_feed(feed, hubs);
        let Some(first) = candidates.first() else { return Ok(()) };
        if let Some(token) = self.by_feed.get(feed.as_str()).cloned() {
            let subscription = &self.by_token[&token];
            let is_unchanged = subscription.has_candidates(&candidates);
            if !subscription.is_cancelled && (is_unchanged || !subscription.may_change_hub(now_ms))
            {
                if is_unchanged {
                    self.update(&token, |subscription| watched.apply_to(subscription))?;
                }
                return self.add_known_items(&token, known);
            }
            if !subscription.is_cancelled && candidates.contains(&subscription.endpoint) {
                self.update(&token, |subscription| {
                    watched.apply_to(subscription);
                    subscription.set_candidates(candidates, now_ms);
                })?;
                return self.add_known_items(&token, known);
            }
            // The feed has another hub now.
            self.update(&token, |subscription| subscription.cancel(now_ms))?;
            self.by_feed.remove(feed.as_str());
        }
        if self.by_token.len() >= SUBSCRIPTIONS_MAX {
            if !std::mem::replace(&mut self.is_full_logged, true) {
                tracing::warn!(
                    "WebSub: reached the limit of {SUBSCRIPTIONS_MAX} subscriptions; further feeds are polled"
                );
            }
            return Ok(());
        }
        let (url, scheduled) = (feed.as_str().to_owned(), watched.url.to_owned());
        let mut subscription = Subscription::new(url, scheduled, first.clone(), now_ms);
        watched.apply_to(&mut subscription);
        subscription.set_candidates(candidates, now_ms);
        self.store.put(&subscription)?;
        self.store.put_known_items(&subscription.token, known)?;
        self.insert(subscription);
        Ok(())
    }

    fn insert(&mut self, subscription: Subscription) {
        self.by_feed.insert(subscription.feed.clone(), subscription.token.clone());
        self.tokens.write().insert(subscription.token.clone());
        self.by_token.insert(subscription.token.clone(), subscription);
    }

    /// After a failure of the hub, replaces a subscription by its successor at the next hub.
    /// Returns false if it has none.
    pub(super) fn replace_with_successor(
        &mut self,
        token: &str,
        now_ms: u64,
    ) -> Result<bool, SchemaError> {
        let successor =
            self.by_token.get(token).and_then(|subscription| subscription.successor(now_ms));
        let Some(successor) = successor else { return Ok(false) };
        self.store.replace(token, &successor)?;
        self.remove_from_memory(token);
        self.insert(successor);
        Ok(true)
    }

    pub(super) fn add_known_items(
        &mut self,
        token: &str,
        items: KnownItems,
    ) -> Result<(), SchemaError> {
        let mut known = self.store.known_items(token)?;
        let before = known.clone();
        if self
            .by_token
            .get(token)
            .is_some_and(|subscription| subscription.kind == WatchedKind::Page)
        {
            known.merge_version(items);
        } else {
            known.merge(items);
        }
        if known == before { Ok(()) } else { self.store.put_known_items(token, known) }
    }

    pub(super) fn known_items(&self, token: &str) -> Result<KnownItems, SchemaError> {
        self.store.known_items(token)
    }

    /// Marks due subscriptions as in flight, and returns their tokens. At most `max` are in flight
    /// at a time.
    pub(super) fn take_due(&mut self, now_ms: u64, max: usize) -> Vec<String> {
        let free = max.saturating_sub(self.in_flight.len());
        let due = self.by_token.values().filter(|subscription| subscription.due_ms <= now_ms);
        let due =
            due.filter(|subscription| !self.in_flight.contains(&subscription.token)).take(free);
        let due: Vec<_> = due.map(|subscription| subscription.token.clone()).collect();
        self.in_flight.extend(due.iter().cloned());
        due
    }

    /// The request to the hub is over.
    pub(super) fn request_finished(&mut self, token: &str) {
        self.in_flight.remove(token);
    }

    /// The subscriptions about which crawlers must be notified: the token, and the end of the lease
    /// or 0.
    pub(super) fn pending_crawler_updates(&self, now_ms: u64) -> Vec<(String, u64)> {
        let updates = self.by_token.values().filter_map(|subscription| {
            Some((subscription.token.clone(), subscription.pending_crawler_update_ms(now_ms)?))
        });
        updates.collect()
    }

    /// The time of the next due request or notification, in ms since 1970.
    pub(super) fn next_due_ms(&self) -> Option<u64> {
        let waiting = self
            .by_token
            .values()
            .filter(|subscription| !self.in_flight.contains(&subscription.token));
        waiting
            .map(|subscription| subscription.due_ms)
            .chain(self.by_token.values().map(Subscription::crawler_notice_end_ms))
            .min()
    }
}

#[cfg(test)]
mod tests;
