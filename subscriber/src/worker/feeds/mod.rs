//! Checks a watched feed, a URL with `feed=` in its task: announces new items, stores what it has
//! seen, and adjusts the schedule. A page that names a hub but no feed is watched in the same way:
//! each version is an item with the URL of the page. A page that names neither fails, with the
//! reason.
//!
//! The order is fixed: announce and wait for the confirmation; store and sync; then the caller's
//! `ACK`. A worker that ends in between announces the same items again with the same `id=`, and the
//! topic's dedup window drops the duplicates. The stored items decide which are new, so a check
//! fails if its state cannot be loaded or stored. Otherwise it would announce old items again; or,
//! where only new items are wanted, take new items for old ones.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use hyper::HeaderMap;
use tidings_client::{ClientError, WorkerLink};
use tidings_documents::feed::event::{self, HubEventFlags, ITEM_TOPIC, PUSHED, SCHEDULE_TOPIC};
use tidings_documents::feed::watched_feed::{
    CheckOutcome, CheckResult, FeedSettings, KnownItems, NewItem, Validators, WatchedFeed,
};
use tidings_documents::feed::{Feed, Hubs, NO_FEED, NO_FEED_ADVICE, PageHubLinks};
use tidings_protocol::{CanonicalUrl, Payload, format_ms, parse_ms, push_attribute};

use crate::state::StateStore;

/// The state of a feed expires this long after its last check: a watched feed is checked more
/// often.
const FEED_STATE_STORED_FOR: Duration = Duration::from_hours(24 * 365);
/// Items of a feed that are sent with its hubs, 32 bytes each.
const FEED_HUB_ITEMS_MAX: usize = 500;
/// Published new items of a feed that wait for their confirmation.
const FEED_PUBLISHES_MAX: usize = 64;

/// The attribute that makes a URL a watched feed, and the kind of its state in `crawler.db`.
const FEED_ATTRIBUTE: &str = "feed";

/// The attribute of a schedule that was moved from a page to the feed which the page names. The
/// target may be a page again; without this mark two pages that name each other would be fetched in
/// turn without a pause.
const NAMED_ATTRIBUTE: &str = "named";

/// Attributes that are not copied to the new schedule: the broker's own, and those that are set
/// here.
const DROPPED_ATTRIBUTES: &[&str] = &[
    "after", "again", "chain", "depth", "every", "feed", "hops", "id", "item", "job", "kind",
    "last", "number", "pass", "pushed", "schedule", "source", "was",
];

/// Publishes events.
pub(super) trait EventPublisher: Sync {
    /// Returns when the event is confirmed. The error is text for a person; a retry is allowed.
    fn publish(
        &self,
        topic: &'static str,
        payload: String,
    ) -> impl Future<Output = Result<(), String>> + Send;
}

/// Stores the state of feeds.
pub(super) trait FeedStates: Sync {
    /// The newest state of this feed. After an error there may be one; the error is text for a
    /// person.
    fn load(&self, feed: &str) -> impl Future<Output = Result<Option<Bytes>, String>> + Send;
    /// Returns when the state is synced. The error is text for a person.
    fn store(&self, feed: &str, state: Bytes) -> impl Future<Output = Result<(), String>> + Send;
}

/// Feed states in `crawler.db`; they expire when a feed is not checked for long.
#[derive(Debug)]
pub(super) struct StoredFeedStates<'a> {
    pub(super) state: &'a StateStore,
    pub(super) now_unix_s: u64,
}

impl FeedStates for StoredFeedStates<'_> {
    async fn load(&self, feed: &str) -> Result<Option<Bytes>, String> {
        self.state.load_checked(FEED_ATTRIBUTE, feed).await.map_err(|error| error.to_string())
    }

    async fn store(&self, feed: &str, state: Bytes) -> Result<(), String> {
        let expires_unix_s = self.now_unix_s.saturating_add(FEED_STATE_STORED_FOR.as_secs());
        let kept = self.state.store_synced(FEED_ATTRIBUTE, feed, state, expires_unix_s).await;
        kept.map_err(|error| error.to_string())
    }
}

impl EventPublisher for WorkerLink {
    async fn publish(&self, topic: &'static str, payload: String) -> Result<(), String> {
        let topic = topic.parse().expect("the constant is a valid topic name");
        match WorkerLink::publish(self, &topic, &payload).await {
            Ok(_seq) => Ok(()),
            Err(ClientError::Refused(refusal)) => Err(refusal.to_string()),
            Err(_given_up) => Err("the crawler is stopping".to_owned()),
        }
    }
}

/// A check in progress.
#[derive(Debug)]
pub(super) struct FeedCheck<'a> {
    url: &'a CanonicalUrl<'a>,
    settings: FeedSettings,
    /// The settings, as written in the event.
    feed: Box<str>,
    /// The URL that has the schedule: that of the feed, or the URL that redirected to it.
    scheduled: CanonicalUrl<'a>,
    /// The current interval or time of day, as the broker writes it, if there is a schedule.
    every: Option<Box<str>>,
    /// The current interval; `None` for a time of day, which is not adjusted.
    interval: Option<Duration>,
    /// A page named this URL: if it is a page too, the feeds that it names are not followed.
    is_named: bool,
    /// The hubs that the page named.
    hubs: Vec<String>,
    /// Further attributes of the schedule, each with a leading space.
    carried: String,
    watched: WatchedFeed,
}

/// The answer to the request.
#[derive(Debug)]
pub(super) enum FeedResponse<'a> {
    /// A document, parsed as a feed; its `kind` is `None` if it is not a feed. `named`: the links
    /// in the head, if it is a page.
    Document {
        feed: &'a Feed,
        headers: &'a HeaderMap,
        named: &'a NamedLinks,
        validators: Validators<'a>,
    },
    /// Status 304.
    NotModified,
    /// Anything else.
    Failed,
}

/// The feeds and hubs in the head of a page, as absolute URLs.
#[derive(Debug, Default)]
pub(super) struct NamedLinks {
    pub(super) feeds: Vec<Box<str>>,
    pub(super) hubs: Vec<String>,
    /// The URL of the page by which its hubs know it.
    pub(super) own: Option<Box<str>>,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FeedTaskOutcome {
    /// This number of items was announced.
    Feed { announced: usize },
    /// It is a page; a feed that it names is watched instead.
    Elsewhere,
    /// The check failed.
    Failed,
    /// There is neither a feed nor a hub; the next check is due after this time.
    Nothing { next: Duration },
}

/// The document that was checked.
enum CheckedDocument<'a> {
    Feed(&'a Feed),
    /// A page, with its hubs.
    Page(Hubs),
}

impl<'a> FeedCheck<'a> {
    /// Loads the state of a feed; `None` if the task is not for a feed. After an error the task
    /// should be retried.
    pub(super) async fn of(
        url: &'a CanonicalUrl<'a>,
        payload: &Payload<'_>,
        states: &impl FeedStates,
    ) -> Result<Option<Self>, String> {
        let Some(feed) = payload.attribute(FEED_ATTRIBUTE) else { return Ok(None) };
        let settings = feed.parse().inspect_err(|error| tracing::warn!(%url, "{error}"));
        let Ok(settings) = settings else { return Ok(None) };
        let every = payload.attribute("every");
        let interval = every.and_then(|every| parse_ms(every).ok());
        let interval = interval.filter(|ms| *ms > 0).map(Duration::from_millis);
        let scheduled = payload.attribute("schedule").and_then(|of| CanonicalUrl::parse(of).ok());
        let scheduled = scheduled.unwrap_or_else(|| url.clone()).into_owned();
        let mut carried = String::new();
        for (key, value) in
            payload.attributes().filter(|(key, _)| !DROPPED_ATTRIBUTES.contains(key))
        {
            push_attribute(&mut carried, key, value);
        }
        let known = states.load(url.as_str()).await?;
        let known = known.and_then(|state| WatchedFeed::from_bytes(&state));
        let mut watched =
            known.unwrap_or_else(|| WatchedFeed::new(interval.unwrap_or(Duration::ZERO), settings));
        if let Some(interval) = interval {
            watched.set_schedule(interval, settings);
        }
        if let Some(until) = payload.attribute(PUSHED).and_then(|until| until.parse().ok()) {
            watched.record_push(until);
        }
        if let Some(print) = payload.attribute(event::ITEM).and_then(|item| item.parse().ok()) {
            watched.set_announced(print);
        }
        let (feed, every) = (feed.into(), every.map(Into::into));
        let is_named = payload.attribute(NAMED_ATTRIBUTE).is_some();
        let hubs = event::hub_urls(payload);
        Ok(Some(Self {
            url,
            settings,
            feed,
            scheduled,
            every,
            interval,
            is_named,
            hubs,
            carried,
            watched,
        }))
    }

    /// The validators for a conditional request.
    pub(super) fn validators(&self) -> Validators<'_> {
        self.watched.validators()
    }

    /// Processes the answer. `rest` is the time that the server asks for: `Retry-After`, or the
    /// freshness of its answer. After an error nothing was stored, and the task should be retried.
    pub(super) async fn process(
        mut self,
        answer: FeedResponse<'_>,
        rest: Duration,
        now_unix_ms: u64,
        broker: &impl EventPublisher,
        states: &impl FeedStates,
    ) -> Result<FeedTaskOutcome, String> {
        let (mut came, mut is_nothing) = (None, false);
        let outcome = match answer {
            FeedResponse::Document { feed, headers, validators, .. } if feed.kind.is_some() => {
                came = Some((CheckedDocument::Feed(feed), headers));
                CheckOutcome::Feed(feed, validators)
            }
            // A known feed may answer with an error page today.
            FeedResponse::Document { named: NamedLinks { feeds, hubs, .. }, .. }
                if !feeds.is_empty() && !self.watched.was_read() && !self.is_named =>
            {
                self.move_schedule(&feeds[0], hubs, broker).await?;
                return Ok(FeedTaskOutcome::Elsewhere);
            }
            FeedResponse::Document { feed, headers, named, validators } => {
                let page = self.page(feed, headers, named);
                is_nothing = page.is_none() && !self.watched.was_read();
                match page {
                    Some((version, hubs)) => {
                        came = Some((CheckedDocument::Page(hubs), headers));
                        CheckOutcome::Page(version, validators)
                    }
                    None => CheckOutcome::Failed,
                }
            }
            FeedResponse::NotModified => CheckOutcome::NotModified,
            FeedResponse::Failed => CheckOutcome::Failed,
        };
        let has_failed = matches!(outcome, CheckOutcome::Failed);
        let url = self.url.as_str();
        let checked = self.watched.check(url, self.settings, outcome, rest, now_unix_ms);
        let CheckResult { new, next, hub_missed_items: untold } = checked;
        let announced = self.announce(&new, broker).await?;
        if let Some((came, headers)) = came {
            self.announce_hubs(came, headers, untold, broker).await?;
        }
        let changes = self.interval.is_some_and(|interval| differs_by_a_tenth(interval, next));
        if changes {
            self.watched.record_schedule(next);
        }
        states.store(url, self.watched.to_bytes().into()).await?;
        if let Some(was) = self.every.as_deref().filter(|_| changes) {
            let every = format_ms(u64::try_from(next.as_millis()).unwrap_or(u64::MAX));
            broker.publish(SCHEDULE_TOPIC, self.schedule_event(was, &every)).await?;
        }
        Ok(match (is_nothing, has_failed) {
            (true, _) => self.report_nothing(next),
            (_, true) => FeedTaskOutcome::Failed,
            _ => FeedTaskOutcome::Feed { announced },
        })
    }

    /// The version and the hubs of a page, if it is watched for its versions because it names a
    /// hub, or did so before. A URL that was read as a feed is never watched as a page.
    fn page(&self, feed: &Feed, headers: &HeaderMap, named: &NamedLinks) -> Option<(u64, Hubs)> {
        if self.watched.was_read() && !self.watched.is_page() {
            return None;
        }
        let linked = PageHubLinks { hubs: &named.hubs, self_url: named.own.as_deref() };
        let hubs = Hubs::of_page(linked, headers, self.url);
        let is_watched = !hubs.is_empty() || self.watched.is_page();
        Some((feed.version?, hubs)).filter(|_| is_watched)
    }

    fn report_nothing(&self, next: Duration) -> FeedTaskOutcome {
        if self.watched.failures() == 1 {
            tracing::warn!(url = %self.url, "{NO_FEED}: {NO_FEED_ADVICE}");
        }
        FeedTaskOutcome::Nothing { next }
    }

    /// Announces the items that have a link, in order.
    async fn announce(
        &self,
        new: &[NewItem],
        broker: &impl EventPublisher,
    ) -> Result<usize, String> {
        let events: Vec<_> =
            new.iter().filter_map(|item| event::item_event(self.url, item)).collect();
        let announced = events.len();
        if announced < new.len() {
            let without = new.len() - announced;
            tracing::debug!(feed = %self.url, "{without} new items have no link");
        }
        stream::iter(events)
            .map(|event| broker.publish(ITEM_TOPIC, event))
            .buffered(FEED_PUBLISHES_MAX)
            .try_collect::<()>()
            .await?;
        Ok(announced)
    }

    /// Announces the hubs of this feed or page, and its newest items. `is_silent`: the hubs have
    /// not reported all of them.
    async fn announce_hubs(
        &self,
        came: CheckedDocument<'_>,
        headers: &HeaderMap,
        is_silent: bool,
        broker: &impl EventPublisher,
    ) -> Result<(), String> {
        let is_page = matches!(came, CheckedDocument::Page(_));
        let (hubs, known) = match came {
            CheckedDocument::Feed(feed) => {
                let hubs = Hubs::of_feed(feed, headers, self.url, &self.hubs);
                (hubs, KnownItems::newest(&feed.entries, FEED_HUB_ITEMS_MAX))
            }
            CheckedDocument::Page(hubs) => (hubs, self.watched.known().clone()),
        };
        if hubs.is_empty() {
            return Ok(());
        }
        let notes = HubEventFlags { is_silent, is_page };
        let event = event::hub_event(self.url, &self.scheduled, &hubs, known, notes);
        broker.publish(event::HUB_TOPIC, event).await
    }

    async fn move_schedule(
        &self,
        feed: &str,
        hubs: &[String],
        broker: &impl EventPublisher,
    ) -> Result<(), String> {
        let Ok(feed) = CanonicalUrl::parse(feed) else {
            return Err("the page names a feed with an invalid URL".to_owned());
        };
        if feed.url_key() == self.url.url_key() {
            return Err("the page names itself as its feed".to_owned());
        }
        // Without a schedule there is nothing to move.
        let Some(every) = &self.every else { return Ok(()) };
        let mut event = feed.as_str().to_owned();
        push_attribute(&mut event, "every", every);
        push_attribute(&mut event, FEED_ATTRIBUTE, &self.feed);
        event.push_str(&self.carried);
        push_attribute(&mut event, NAMED_ATTRIBUTE, "yes");
        event::push_hubs(&mut event, hubs);
        broker.publish(SCHEDULE_TOPIC, event).await?;
        broker.publish(SCHEDULE_TOPIC, self.schedule_event(every, "0")).await
    }

    /// An event that changes the schedule to `every` (`0` ends it), unless it was changed since
    /// this check began.
    fn schedule_event(&self, was: &str, every: &str) -> String {
        let mut event = self.scheduled.as_str().to_owned();
        push_attribute(&mut event, "every", every);
        push_attribute(&mut event, "was", was);
        push_attribute(&mut event, FEED_ATTRIBUTE, &self.feed);
        event
    }
}

/// By more than a tenth: each change costs an event and a record of the group.
fn differs_by_a_tenth(every: Duration, next: Duration) -> bool {
    every.abs_diff(next) > every / 10
}

#[cfg(test)]
mod tests;
