//! Checks a watched feed, a URL with `feed=` in its task: announces new items, stores what it has
//! seen, and adjusts the schedule. A page that names a hub but no feed is watched in the same way:
//! each version is an item with the URL of the page. A page that names neither fails, with the
//! reason. A permanent redirect moves the schedule, once a feed was read at its target; status 410
//! ends it.
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

/// The attribute of a schedule that was moved from a page to the feed which the page names, with the
/// URL of the page. The target may be a page again; without this mark two pages that name each other
/// would be fetched in turn without a pause.
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
    /// The state of `scheduled`, if that is another URL.
    origin: Option<WatchedFeed>,
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
    /// Status 410.
    Gone,
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
    /// There is neither a feed nor a hub; the next check is due after this time, if the URL has a
    /// schedule.
    Nothing { next: Option<Duration> },
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
        let known = load(states, url).await?;
        let origin = if scheduled == *url { None } else { load(states, &scheduled).await? };
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
            origin,
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

    /// Remembers where the scheduled URL redirects permanently; `None`: this redirect is temporary.
    /// The feed moves when it was read there: many a network answers everything with a redirect to
    /// its own page.
    pub(super) async fn record_redirect(
        mut self,
        permanent: Option<&str>,
        states: &impl FeedStates,
    ) -> Result<(), String> {
        // A target that was reached permanently stays the new place, whatever follows.
        let is_followed = *self.url != self.scheduled;
        if is_followed && (!self.has_moved_here() || permanent.is_none()) {
            return Ok(());
        }
        let state = self.origin.as_mut().unwrap_or(&mut self.watched);
        if state.moved_to() == permanent {
            return Ok(());
        }
        state.set_moved_to(permanent);
        states.store(self.scheduled.as_str(), state.to_bytes().into()).await
    }

    /// Whether this is the scheduled URL, or where that redirects permanently.
    fn has_moved_here(&self) -> bool {
        let target = self.origin.as_ref().and_then(WatchedFeed::moved_to);
        *self.url == self.scheduled || target == Some(self.url.as_str())
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
                if let Some(origin) = self.origin.clone() {
                    self.watched.continue_from(origin);
                }
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
            FeedResponse::Gone if self.has_moved_here() => {
                self.end(broker).await?;
                return Ok(FeedTaskOutcome::Failed);
            }
            FeedResponse::Gone | FeedResponse::Failed => CheckOutcome::Failed,
        };
        let has_failed = matches!(outcome, CheckOutcome::Failed);
        let url = self.url.as_str();
        let checked = self.watched.check(url, self.settings, outcome, rest, now_unix_ms);
        let CheckResult { new, next, hub_missed_items: untold } = checked;
        let announced = self.announce(&new, broker).await?;
        let moved_to = self.new_place().filter(|_| !has_failed);
        let old = moved_to.map(|place| std::mem::replace(&mut self.scheduled, place));
        if let Some((came, headers)) = came {
            self.announce_hubs(came, headers, untold, broker).await?;
        }
        let changes = self.interval.is_some_and(|interval| differs_by_a_tenth(interval, next));
        if changes {
            self.watched.record_schedule(next);
        }
        states.store(url, self.watched.to_bytes().into()).await?;
        self.publish_schedule(old, changes.then_some(next), broker).await?;
        Ok(match (is_nothing, has_failed) {
            (true, _) => self.report_nothing(next),
            (_, true) => FeedTaskOutcome::Failed,
            _ => FeedTaskOutcome::Feed { announced },
        })
    }

    /// Publishes the next interval of the schedule, if it changes; or moves the schedule from `old`.
    async fn publish_schedule(
        &self,
        old: Option<CanonicalUrl<'_>>,
        next: Option<Duration>,
        broker: &impl EventPublisher,
    ) -> Result<(), String> {
        let Some(was) = self.every.as_deref() else { return Ok(()) };
        let next = next.map(|next| format_ms(u64::try_from(next.as_millis()).unwrap_or(u64::MAX)));
        match (old, next) {
            (Some(old), next) => {
                let every = next.as_deref().unwrap_or(was);
                self.move_from(&old, (was, every), broker).await
            }
            (None, Some(every)) => {
                broker.publish(SCHEDULE_TOPIC, self.schedule_event(was, &every)).await
            }
            (None, None) => Ok(()),
        }
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
        FeedTaskOutcome::Nothing { next: self.every.is_some().then_some(next) }
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

    /// Where the scheduled URL redirects permanently.
    fn new_place(&self) -> Option<CanonicalUrl<'a>> {
        let place = CanonicalUrl::parse(self.origin.as_ref()?.moved_to()?).ok()?;
        (place.url_key() != self.scheduled.url_key()).then(|| place.into_owned())
    }

    /// Moves the schedule from `old` to the URL that has it by now.
    async fn move_from(
        &self,
        old: &CanonicalUrl<'_>,
        (was, every): (&str, &str),
        broker: &impl EventPublisher,
    ) -> Result<(), String> {
        let new = &self.scheduled;
        let mut event = self.new_schedule(new, every);
        // It was just read. So two URLs that redirect to each other in turn cost no more requests.
        push_attribute(&mut event, "after", every);
        broker.publish(SCHEDULE_TOPIC, event).await?;
        broker.publish(SCHEDULE_TOPIC, self.schedule_of(old, was, "0")).await?;
        tracing::warn!(%old, %new, "the feed has moved for good; it is watched under its new URL");
        Ok(())
    }

    /// Ends the schedule of a feed that is gone for good.
    async fn end(&self, broker: &impl EventPublisher) -> Result<(), String> {
        let Some(every) = &self.every else { return Ok(()) };
        broker.publish(SCHEDULE_TOPIC, self.schedule_event(every, "0")).await?;
        let url = &self.scheduled;
        tracing::warn!(%url, "HTTP status 410: the feed is gone for good, and no longer watched");
        Ok(())
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
        let mut event = self.new_schedule(&feed, every);
        push_attribute(&mut event, NAMED_ATTRIBUTE, self.scheduled.as_str());
        event::push_hubs(&mut event, hubs);
        broker.publish(SCHEDULE_TOPIC, event).await?;
        broker.publish(SCHEDULE_TOPIC, self.schedule_event(every, "0")).await
    }

    /// An event that schedules another URL, with the attributes of this schedule, unless it is
    /// scheduled already.
    fn new_schedule(&self, url: &CanonicalUrl<'_>, every: &str) -> String {
        let mut event = url.as_str().to_owned();
        push_attribute(&mut event, "every", every);
        push_attribute(&mut event, "was", "0");
        push_attribute(&mut event, FEED_ATTRIBUTE, &self.feed);
        event.push_str(&self.carried);
        event
    }

    /// An event that changes the schedule to `every` (`0` ends it), unless it was changed since
    /// this check began.
    fn schedule_event(&self, was: &str, every: &str) -> String {
        self.schedule_of(&self.scheduled, was, every)
    }

    fn schedule_of(&self, url: &CanonicalUrl<'_>, was: &str, every: &str) -> String {
        let mut event = url.as_str().to_owned();
        push_attribute(&mut event, "every", every);
        push_attribute(&mut event, "was", was);
        push_attribute(&mut event, FEED_ATTRIBUTE, &self.feed);
        event
    }
}

/// The state of this URL, if there is one in the current format.
async fn load(
    states: &impl FeedStates,
    url: &CanonicalUrl<'_>,
) -> Result<Option<WatchedFeed>, String> {
    Ok(states.load(url.as_str()).await?.and_then(|state| WatchedFeed::from_bytes(&state)))
}

/// By more than a tenth: each change costs an event and a record of the group.
fn differs_by_a_tenth(every: Duration, next: Duration) -> bool {
    every.abs_diff(next) > every / 10
}

#[cfg(test)]
mod tests;
