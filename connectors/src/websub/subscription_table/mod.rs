//! All subscriptions. What is changed here is on the disk before anything follows from it.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use parking_lot::RwLock;
use tidings_protocol::CanonicalUrl;
use tidings_subscriber::feed::Hubs;
use tidings_subscriber::feed::watched_feed::KnownItems;

use super::store::{StoreError, SubscriptionStore};
use super::subscription::{HubEndpoint, Subscription, WatchedKind};

/// Subscriptions at once. Feeds beyond are looked at as if they had no hub.
const SUBSCRIPTIONS_MAX: usize = 10_000;

/// In memory, and on disk.
#[derive(Debug)]
pub(super) struct SubscriptionTable {
    by_token: HashMap<String, Subscription>,
    /// Tokens of those that somebody wants.
    by_feed: HashMap<String, String>,
    /// Hubs that are being asked just now.
    in_flight: HashSet<String>,
    /// The minute of the last delivery, and the deliveries in it.
    delivery_counts: HashMap<String, (u64, u32)>,
    /// Tokens of all, for whom has to know at once.
    tokens: Arc<RwLock<HashSet<String>>>,
    store: SubscriptionStore,
    is_full_logged: bool,
}

/// Deliveries of one subscription in a minute; a hub that has more to tell gathers it.
const DELIVERIES_PER_MINUTE_MAX: u32 = 60;
const MINUTE_MS: u64 = 60_000;

/// How a feed or page is watched.
#[derive(Debug, Clone, Copy)]
pub(super) struct WatchedUrl<'a> {
    /// The URL that is scheduled.
    pub(super) url: &'a str,
    pub(super) kind: WatchedKind,
}

impl WatchedUrl<'_> {
    fn apply_to(self, one: &mut Subscription) {
        self.url.clone_into(&mut one.watched);
        one.kind = self.kind;
    }
}

impl SubscriptionTable {
    pub(super) fn open(path: &Path) -> Result<Self, StoreError> {
        let store = SubscriptionStore::open(path)?;
        let all: HashMap<_, _> =
            store.load_all()?.into_iter().map(|one| (one.token.clone(), one)).collect();
        let wanted = all.values().filter(|one| !one.is_cancelled());
        let by_feed = wanted.map(|one| (one.feed.clone(), one.token.clone())).collect();
        let tokens = Arc::new(RwLock::new(all.keys().cloned().collect()));
        let (asking, deliveries) = (HashSet::new(), HashMap::new());
        Ok(Self {
            by_token: all,
            by_feed,
            in_flight: asking,
            delivery_counts: deliveries,
            tokens,
            store,
            is_full_logged: false,
        })
    }

    /// Those of all subscriptions, as they are at any time.
    pub(super) fn tokens(&self) -> Arc<RwLock<HashSet<String>>> {
        Arc::clone(&self.tokens)
    }

    /// Another one for each book that was begun.
    pub(super) fn database_id(&self) -> u32 {
        self.store.database_id
    }

    pub(super) fn get(&self, token: &str) -> Option<&Subscription> {
        self.by_token.get(token)
    }

    /// Changes one, and keeps it if that came to something. `None`: there is none.
    pub(super) fn update<T>(
        &mut self,
        token: &str,
        change: impl FnOnce(&mut Subscription) -> T,
    ) -> Result<Option<T>, StoreError> {
        let Some(one) = self.by_token.get_mut(token) else { return Ok(None) };
        let before = one.clone();
        let result = change(one);
        if *one != before
            && let Err(error) = self.store.put(one)
        {
            *one = before;
            return Err(error);
        }
        Ok(Some(result))
    }

    pub(super) fn remove(&mut self, token: &str) -> Result<(), StoreError> {
        self.store.remove(token)?;
        self.remove_from_memory(token);
        self.is_full_logged = false;
        Ok(())
    }

    fn remove_from_memory(&mut self, token: &str) {
        if let Some(one) = self.by_token.remove(token)
            && self.by_feed.get(&one.feed).is_some_and(|current| current == token)
        {
            self.by_feed.remove(&one.feed);
        }
        self.in_flight.remove(token);
        self.delivery_counts.remove(token);
        self.tokens.write().remove(token);
    }

    /// Counts a delivery, unless there are too many in this minute.
    pub(super) fn admit_delivery(&mut self, token: &str, now_ms: u64) -> bool {
        let minute = now_ms / MINUTE_MS;
        let deliveries = self.delivery_counts.entry(token.to_owned()).or_default();
        if deliveries.0 != minute {
            *deliveries = (minute, 0);
        }
        deliveries.1 = deliveries.1.saturating_add(1);
        deliveries.1 <= DELIVERIES_PER_MINUTE_MAX
    }

    /// A crawler has found in a feed what nobody has told of who should have.
    pub(super) fn report_silent_hub(
        &mut self,
        feed: &CanonicalUrl<'_>,
        now_ms: u64,
    ) -> Result<(), StoreError> {
        if let Some(token) = self.by_feed.get(feed.as_str()).cloned() {
            self.update(&token, |one| one.report_silent(now_ms))?;
        }
        Ok(())
    }

    /// A crawler has found the hubs of a feed or page, and knows these items.
    pub(super) fn update_hubs(
        &mut self,
        feed: &CanonicalUrl<'_>,
        watched: WatchedUrl<'_>,
        hubs: &Hubs,
        known: KnownItems,
        now_ms: u64,
    ) -> Result<(), StoreError> {
        let tellers = HubEndpoint::of_feed(feed, hubs);
        let Some(first) = tellers.first() else { return Ok(()) };
        if let Some(token) = self.by_feed.get(feed.as_str()).cloned() {
            let one = &self.by_token[&token];
            let is_the_same = one.has_candidates(&tellers);
            if !one.is_cancelled() && (is_the_same || !one.may_change_hub(now_ms)) {
                if is_the_same {
                    self.update(&token, |one| watched.apply_to(one))?;
                }
                return self.add_known_items(&token, known);
            }
            if !one.is_cancelled() && tellers.contains(&one.teller) {
                self.update(&token, |one| {
                    watched.apply_to(one);
                    one.set_candidates(tellers, now_ms);
                })?;
                return self.add_known_items(&token, known);
            }
            // Another one tells from now on.
            self.update(&token, |one| one.cancel(now_ms))?;
            self.by_feed.remove(feed.as_str());
        }
        if self.by_token.len() >= SUBSCRIPTIONS_MAX {
            if !std::mem::replace(&mut self.is_full_logged, true) {
                tracing::warn!(
                    "there are {SUBSCRIPTIONS_MAX} subscriptions to hubs; further feeds are looked at as before"
                );
            }
            return Ok(());
        }
        let (url, scheduled) = (feed.as_str().to_owned(), watched.url.to_owned());
        let mut one = Subscription::new(url, scheduled, first.clone(), now_ms);
        watched.apply_to(&mut one);
        one.set_candidates(tellers, now_ms);
        self.store.put(&one)?;
        self.store.put_known_items(&one.token, known)?;
        self.insert(one);
        Ok(())
    }

    fn insert(&mut self, one: Subscription) {
        self.by_feed.insert(one.feed.clone(), one.token.clone());
        self.tokens.write().insert(one.token.clone());
        self.by_token.insert(one.token.clone(), one);
    }

    /// One that was asked in vain gives way to who else tells of its feed. Whether there is
    /// somebody.
    pub(super) fn replace_with_successor(
        &mut self,
        token: &str,
        now_ms: u64,
    ) -> Result<bool, StoreError> {
        let successor = self.by_token.get(token).and_then(|one| one.successor(now_ms));
        let Some(successor) = successor else { return Ok(false) };
        self.store.replace(token, &successor)?;
        self.remove_from_memory(token);
        self.insert(successor);
        Ok(true)
    }

    /// These items of its feed are known, too.
    pub(super) fn add_known_items(
        &mut self,
        token: &str,
        others: KnownItems,
    ) -> Result<(), StoreError> {
        let mut known = self.store.known_items(token)?;
        let before = known.clone();
        if self.by_token.get(token).is_some_and(|one| one.kind == WatchedKind::Page) {
            known.merge_version(others);
        } else {
            known.merge(others);
        }
        if known == before { Ok(()) } else { self.store.put_known_items(token, known) }
    }

    pub(super) fn known_items(&self, token: &str) -> Result<KnownItems, StoreError> {
        self.store.known_items(token)
    }

    /// Tokens of those whose hubs are to be asked now, which from here on are being asked; at most
    /// so many at a time.
    pub(super) fn take_due(&mut self, now_ms: u64, max: usize) -> Vec<String> {
        let room = max.saturating_sub(self.in_flight.len());
        let due = self.by_token.values().filter(|one| one.due_ms() <= now_ms);
        let due = due.filter(|one| !self.in_flight.contains(&one.token)).take(room);
        let due: Vec<_> = due.map(|one| one.token.clone()).collect();
        self.in_flight.extend(due.iter().cloned());
        due
    }

    /// A hub was asked.
    pub(super) fn request_finished(&mut self, token: &str) {
        self.in_flight.remove(token);
    }

    /// Of what crawlers are to be told something: tokens, and until when news come.
    pub(super) fn pending_crawler_updates(&self, now_ms: u64) -> Vec<(String, u64)> {
        let untold = self
            .by_token
            .values()
            .filter_map(|one| Some((one.token.clone(), one.pending_crawler_update_ms(now_ms)?)));
        untold.collect()
    }

    /// When there is something to do next, in ms since 1970.
    pub(super) fn next_due_ms(&self) -> Option<u64> {
        let waiting = self.by_token.values().filter(|one| !self.in_flight.contains(&one.token));
        waiting
            .map(Subscription::due_ms)
            .chain(self.by_token.values().map(Subscription::crawler_notice_end_ms))
            .min()
    }
}

#[cfg(test)]
mod tests;
