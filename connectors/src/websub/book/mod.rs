//! All subscriptions. What is changed here is on the disk before anything follows from it.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use parking_lot::RwLock;
use tidings_protocol::CanonicalUrl;
use tidings_subscriber::feed::Hubs;
use tidings_subscriber::feed::watched_feed::KnownItems;

use super::store::{Store, StoreError};
use super::subscription::{Kind, Subscription, Teller};

/// Subscriptions at once. Feeds beyond are looked at as if they had no hub.
const SUBSCRIPTIONS_MAX: usize = 10_000;

/// In memory, and on disk.
#[derive(Debug)]
pub(super) struct Book {
    all: HashMap<String, Subscription>,
    /// Tokens of those that somebody wants.
    by_feed: HashMap<String, String>,
    /// Hubs that are being asked just now.
    asking: HashSet<String>,
    /// The minute of the last delivery, and the deliveries in it.
    deliveries: HashMap<String, (u64, u32)>,
    /// Tokens of all, for whom has to know at once.
    tokens: Arc<RwLock<HashSet<String>>>,
    store: Store,
    is_full: bool,
}

/// Deliveries of one subscription in a minute; a hub that has more to tell gathers it.
const DELIVERIES_A_MINUTE: u32 = 60;
const MINUTE_MS: u64 = 60_000;

/// How a feed or page is watched.
#[derive(Debug, Clone, Copy)]
pub(super) struct Watched<'a> {
    /// The URL that is scheduled.
    pub(super) url: &'a str,
    pub(super) kind: Kind,
}

impl Watched<'_> {
    fn note(self, one: &mut Subscription) {
        self.url.clone_into(&mut one.watched);
        one.kind = self.kind;
    }
}

impl Book {
    pub(super) fn open(path: &Path) -> Result<Self, StoreError> {
        let store = Store::open(path)?;
        let all: HashMap<_, _> =
            store.all()?.into_iter().map(|one| (one.token.clone(), one)).collect();
        let wanted = all.values().filter(|one| !one.is_leaving());
        let by_feed = wanted.map(|one| (one.feed.clone(), one.token.clone())).collect();
        let tokens = Arc::new(RwLock::new(all.keys().cloned().collect()));
        let (asking, deliveries) = (HashSet::new(), HashMap::new());
        Ok(Self { all, by_feed, asking, deliveries, tokens, store, is_full: false })
    }

    /// Those of all subscriptions, as they are at any time.
    pub(super) fn tokens(&self) -> Arc<RwLock<HashSet<String>>> {
        Arc::clone(&self.tokens)
    }

    /// Another one for each book that was begun.
    pub(super) fn id(&self) -> u32 {
        self.store.id
    }

    pub(super) fn get(&self, token: &str) -> Option<&Subscription> {
        self.all.get(token)
    }

    /// Changes one, and keeps it if that came to something. `None`: there is none.
    pub(super) fn change<T>(
        &mut self,
        token: &str,
        change: impl FnOnce(&mut Subscription) -> T,
    ) -> Result<Option<T>, StoreError> {
        let Some(one) = self.all.get_mut(token) else { return Ok(None) };
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
        self.forget(token);
        self.is_full = false;
        Ok(())
    }

    fn forget(&mut self, token: &str) {
        if let Some(one) = self.all.remove(token)
            && self.by_feed.get(&one.feed).is_some_and(|current| current == token)
        {
            self.by_feed.remove(&one.feed);
        }
        self.asking.remove(token);
        self.deliveries.remove(token);
        self.tokens.write().remove(token);
    }

    /// Counts a delivery, unless there are too many in this minute.
    pub(super) fn take_delivery(&mut self, token: &str, now_ms: u64) -> bool {
        let minute = now_ms / MINUTE_MS;
        let deliveries = self.deliveries.entry(token.to_owned()).or_default();
        if deliveries.0 != minute {
            *deliveries = (minute, 0);
        }
        deliveries.1 = deliveries.1.saturating_add(1);
        deliveries.1 <= DELIVERIES_A_MINUTE
    }

    /// A crawler has found in a feed what nobody has told of who should have.
    pub(super) fn was_silent(
        &mut self,
        feed: &CanonicalUrl<'_>,
        now_ms: u64,
    ) -> Result<(), StoreError> {
        if let Some(token) = self.by_feed.get(feed.as_str()).cloned() {
            self.change(&token, |one| one.was_silent(now_ms))?;
        }
        Ok(())
    }

    /// A crawler has found the hubs of a feed or page, and knows these items.
    pub(super) fn found(
        &mut self,
        feed: &CanonicalUrl<'_>,
        watched: Watched<'_>,
        hubs: &Hubs,
        known: KnownItems,
        now_ms: u64,
    ) -> Result<(), StoreError> {
        let tellers = Teller::all(feed, hubs);
        let Some(first) = tellers.first() else { return Ok(()) };
        if let Some(token) = self.by_feed.get(feed.as_str()).cloned() {
            let one = &self.all[&token];
            let is_the_same = one.is_named_by(&tellers);
            if !one.is_leaving() && (is_the_same || !one.may_change(now_ms)) {
                if is_the_same {
                    self.change(&token, |one| watched.note(one))?;
                }
                return self.learn(&token, known);
            }
            if !one.is_leaving() && tellers.contains(&one.teller) {
                self.change(&token, |one| {
                    watched.note(one);
                    one.is_named_with(tellers, now_ms);
                })?;
                return self.learn(&token, known);
            }
            // Another one tells from now on.
            self.change(&token, |one| one.leave(now_ms))?;
            self.by_feed.remove(feed.as_str());
        }
        if self.all.len() >= SUBSCRIPTIONS_MAX {
            if !std::mem::replace(&mut self.is_full, true) {
                tracing::warn!(
                    "there are {SUBSCRIPTIONS_MAX} subscriptions to hubs; further feeds are looked at as before"
                );
            }
            return Ok(());
        }
        let (url, scheduled) = (feed.as_str().to_owned(), watched.url.to_owned());
        let mut one = Subscription::new(url, scheduled, first.clone(), now_ms);
        watched.note(&mut one);
        one.is_named_with(tellers, now_ms);
        self.store.put(&one)?;
        self.store.keep_known(&one.token, known)?;
        self.add(one);
        Ok(())
    }

    fn add(&mut self, one: Subscription) {
        self.by_feed.insert(one.feed.clone(), one.token.clone());
        self.tokens.write().insert(one.token.clone());
        self.all.insert(one.token.clone(), one);
    }

    /// One that was asked in vain gives way to who else tells of its feed. Whether there is
    /// somebody.
    pub(super) fn go_on(&mut self, token: &str, now_ms: u64) -> Result<bool, StoreError> {
        let successor = self.all.get(token).and_then(|one| one.successor(now_ms));
        let Some(successor) = successor else { return Ok(false) };
        self.store.replace(token, &successor)?;
        self.forget(token);
        self.add(successor);
        Ok(true)
    }

    /// These items of its feed are known, too.
    pub(super) fn learn(&mut self, token: &str, others: KnownItems) -> Result<(), StoreError> {
        let mut known = self.store.known(token)?;
        let before = known.clone();
        if self.all.get(token).is_some_and(|one| one.kind == Kind::Page) {
            known.merge_version(others);
        } else {
            known.merge(others);
        }
        if known == before { Ok(()) } else { self.store.keep_known(token, known) }
    }

    pub(super) fn known(&self, token: &str) -> Result<KnownItems, StoreError> {
        self.store.known(token)
    }

    /// Tokens of those whose hubs are to be asked now, which from here on are being asked; at most
    /// so many at a time.
    pub(super) fn take_due(&mut self, now_ms: u64, max: usize) -> Vec<String> {
        let room = max.saturating_sub(self.asking.len());
        let due = self.all.values().filter(|one| one.due_ms() <= now_ms);
        let due = due.filter(|one| !self.asking.contains(&one.token)).take(room);
        let due: Vec<_> = due.map(|one| one.token.clone()).collect();
        self.asking.extend(due.iter().cloned());
        due
    }

    /// A hub was asked.
    pub(super) fn was_asked(&mut self, token: &str) {
        self.asking.remove(token);
    }

    /// Of what crawlers are to be told something: tokens, and until when news come.
    pub(super) fn untold(&self, now_ms: u64) -> Vec<(String, u64)> {
        let untold =
            self.all.values().filter_map(|one| Some((one.token.clone(), one.untold_ms(now_ms)?)));
        untold.collect()
    }

    /// When there is something to do next, in ms since 1970.
    pub(super) fn next_ms(&self) -> Option<u64> {
        let waiting = self.all.values().filter(|one| !self.asking.contains(&one.token));
        waiting.map(Subscription::due_ms).chain(self.all.values().map(Subscription::over_ms)).min()
    }
}

#[cfg(test)]
mod tests;
