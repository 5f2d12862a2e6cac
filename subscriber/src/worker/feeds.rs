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
use tidings_protocol::{CanonicalUrl, Payload, format_ms, parse_ms, push_attribute};

use super::link::Link;
use crate::config::{FEED_ANNOUNCED_AT_ONCE, FEED_KNOWN_FOR, FEED_TOLD_MAX};
use crate::feed::event::{self, ITEMS, Notes, PUSHED, SCHEDULES};
use crate::feed::watch::{Checked, Known, NewItem, Outcome, Settings, Validators, Watched};
use crate::feed::{ADVICE, Feed, Hubs, Linked, NOTHING};
use crate::state::State;

/// The attribute that makes a URL a watched feed, and the kind of its state in `crawler.db`.
const WATCHED: &str = "feed";

/// The attribute of a schedule that was moved from a page to the feed which the page names. The
/// target may be a page again; without this mark two pages that name each other would be fetched in
/// turn without a pause.
const NAMED: &str = "named";

/// Attributes that are not copied to the new schedule: the broker's own, and those that are set
/// here.
const NOT_CARRIED: &[&str] = &[
    "after", "again", "depth", "every", "feed", "hops", "id", "item", "job", "kind", "last",
    "number", "pass", "pushed", "schedule", "source", "was",
];

/// Publishes events.
pub(super) trait Announce: Sync {
    /// Returns when the event is confirmed. The error is text for a person; a retry is allowed.
    fn publish(
        &self,
        topic: &'static str,
        payload: String,
    ) -> impl Future<Output = Result<(), String>> + Send;
}

/// Stores the state of feeds.
pub(super) trait States: Sync {
    /// The newest state of this feed. After an error there may be one; the error is text for a
    /// person.
    fn load(&self, feed: &str) -> impl Future<Output = Result<Option<Bytes>, String>> + Send;
    /// Returns when the state is synced. The error is text for a person.
    fn store(&self, feed: &str, state: Bytes) -> impl Future<Output = Result<(), String>> + Send;
}

/// Feed states in `crawler.db`; they expire when a feed is not checked for long.
#[derive(Debug)]
pub(super) struct Remembered<'a> {
    pub(super) state: &'a State,
    pub(super) now_unix_s: u64,
}

impl States for Remembered<'_> {
    async fn load(&self, feed: &str) -> Result<Option<Bytes>, String> {
        self.state.find(WATCHED, feed).await.map_err(|error| error.to_string())
    }

    async fn store(&self, feed: &str, state: Bytes) -> Result<(), String> {
        let expires_unix_s = self.now_unix_s.saturating_add(FEED_KNOWN_FOR.as_secs());
        let kept = self.state.keep(WATCHED, feed, state, expires_unix_s).await;
        kept.map_err(|error| error.to_string())
    }
}

impl Announce for Link {
    async fn publish(&self, topic: &'static str, payload: String) -> Result<(), String> {
        let topic = topic.parse().expect("the constant is a valid topic name");
        Link::publish(self, &topic, &payload).await
    }
}

/// A check in progress.
#[derive(Debug)]
pub(super) struct Watch<'a> {
    url: &'a CanonicalUrl<'a>,
    settings: Settings,
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
    watched: Watched,
}

/// The answer to the request.
#[derive(Debug)]
pub(super) enum Answer<'a> {
    /// A document, parsed as a feed; its `kind` is `None` if it is not a feed. `named`: the links
    /// in the head, if it is a page.
    Document {
        feed: &'a Feed,
        headers: &'a HeaderMap,
        named: &'a Named,
        validators: Validators<'a>,
    },
    /// Status 304.
    NotModified,
    /// Anything else.
    Failed,
}

/// The feeds and hubs in the head of a page, as absolute URLs.
#[derive(Debug, Default)]
pub(super) struct Named {
    pub(super) feeds: Vec<Box<str>>,
    pub(super) hubs: Vec<String>,
    /// The URL of the page by which its hubs know it.
    pub(super) own: Option<Box<str>>,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Looked {
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
enum Came<'a> {
    Feed(&'a Feed),
    /// A page, with its hubs.
    Page(Hubs),
}

impl<'a> Watch<'a> {
    /// Loads the state of a feed; `None` if the task is not for a feed. After an error the task
    /// should be retried.
    pub(super) async fn of(
        url: &'a CanonicalUrl<'a>,
        payload: &Payload<'_>,
        states: &impl States,
    ) -> Result<Option<Self>, String> {
        let Some(feed) = payload.attribute(WATCHED) else { return Ok(None) };
        let settings = feed.parse().inspect_err(|error| tracing::warn!(%url, "{error}"));
        let Ok(settings) = settings else { return Ok(None) };
        let every = payload.attribute("every");
        let interval = every.and_then(|every| parse_ms(every).ok());
        let interval = interval.filter(|ms| *ms > 0).map(Duration::from_millis);
        let scheduled = payload.attribute("schedule").and_then(|of| CanonicalUrl::parse(of).ok());
        let scheduled = scheduled.unwrap_or_else(|| url.clone()).into_owned();
        let mut carried = String::new();
        for (key, value) in payload.attributes().filter(|(key, _)| !NOT_CARRIED.contains(key)) {
            push_attribute(&mut carried, key, value);
        }
        let known = states.load(url.as_str()).await?;
        let known = known.and_then(|state| Watched::from_bytes(&state));
        let mut watched =
            known.unwrap_or_else(|| Watched::new(interval.unwrap_or(Duration::ZERO), settings));
        if let Some(interval) = interval {
            watched.is_scheduled(interval, settings);
        }
        if let Some(until) = payload.attribute(PUSHED).and_then(|until| until.parse().ok()) {
            watched.is_pushed(until);
        }
        if let Some(print) = payload.attribute(event::ITEM).and_then(|item| item.parse().ok()) {
            watched.is_announced(print);
        }
        let (feed, every) = (feed.into(), every.map(Into::into));
        let is_named = payload.attribute(NAMED).is_some();
        let hubs = event::read_hub_urls(payload);
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
    pub(super) async fn look(
        mut self,
        answer: Answer<'_>,
        rest: Duration,
        now_unix_ms: u64,
        broker: &impl Announce,
        states: &impl States,
    ) -> Result<Looked, String> {
        let (mut came, mut is_nothing) = (None, false);
        let outcome = match answer {
            Answer::Document { feed, headers, validators, .. } if feed.kind.is_some() => {
                came = Some((Came::Feed(feed), headers));
                Outcome::Read(feed, validators)
            }
            // A known feed may answer with an error page today.
            Answer::Document { named: Named { feeds, hubs, .. }, .. }
                if !feeds.is_empty() && !self.watched.was_read() && !self.is_named =>
            {
                self.watch_instead(&feeds[0], hubs, broker).await?;
                return Ok(Looked::Elsewhere);
            }
            Answer::Document { feed, headers, named, validators } => {
                let page = self.page(feed, headers, named);
                is_nothing = page.is_none() && !self.watched.was_read();
                match page {
                    Some((version, hubs)) => {
                        came = Some((Came::Page(hubs), headers));
                        Outcome::Page(version, validators)
                    }
                    None => Outcome::Failed,
                }
            }
            Answer::NotModified => Outcome::Same,
            Answer::Failed => Outcome::Failed,
        };
        let has_failed = matches!(outcome, Outcome::Failed);
        let url = self.url.as_str();
        let checked = self.watched.check(url, self.settings, outcome, rest, now_unix_ms);
        let Checked { new, next, untold } = checked;
        let announced = self.announce(&new, broker).await?;
        if let Some((came, headers)) = came {
            self.announce_hubs(came, headers, untold, broker).await?;
        }
        let changes = self.interval.is_some_and(|interval| differs(interval, next));
        if changes {
            self.watched.reschedule(next);
        }
        states.store(url, self.watched.to_bytes().into()).await?;
        if let Some(was) = self.every.as_deref().filter(|_| changes) {
            let every = format_ms(u64::try_from(next.as_millis()).unwrap_or(u64::MAX));
            broker.publish(SCHEDULES, self.change(was, &every)).await?;
        }
        Ok(match (is_nothing, has_failed) {
            (true, _) => self.nothing(next),
            (_, true) => Looked::Failed,
            _ => Looked::Feed { announced },
        })
    }

    /// The version and the hubs of a page, if it is watched for its versions because it names a
    /// hub, or did so before. A URL that was read as a feed is never watched as a page.
    fn page(&self, feed: &Feed, headers: &HeaderMap, named: &Named) -> Option<(u64, Hubs)> {
        if self.watched.was_read() && !self.watched.is_page() {
            return None;
        }
        let linked = Linked { hubs: &named.hubs, own: named.own.as_deref() };
        let hubs = Hubs::of_page(linked, headers, self.url);
        let is_watched = !hubs.is_empty() || self.watched.is_page();
        Some((feed.version?, hubs)).filter(|_| is_watched)
    }

    fn nothing(&self, next: Duration) -> Looked {
        if self.watched.failures() == 1 {
            tracing::warn!(url = %self.url, "{NOTHING}: {ADVICE}");
        }
        Looked::Nothing { next }
    }

    /// Announces the items that have a link, in order.
    async fn announce(&self, new: &[NewItem], broker: &impl Announce) -> Result<usize, String> {
        let events: Vec<_> = new.iter().filter_map(|item| event::of_item(self.url, item)).collect();
        let announced = events.len();
        if announced < new.len() {
            let without = new.len() - announced;
            tracing::debug!(feed = %self.url, "{without} new items have no link");
        }
        stream::iter(events)
            .map(|event| broker.publish(ITEMS, event))
            .buffered(FEED_ANNOUNCED_AT_ONCE)
            .try_collect::<()>()
            .await?;
        Ok(announced)
    }

    /// Announces the hubs of this feed or page, and its newest items. `is_silent`: the hubs have
    /// not reported all of them.
    async fn announce_hubs(
        &self,
        came: Came<'_>,
        headers: &HeaderMap,
        is_silent: bool,
        broker: &impl Announce,
    ) -> Result<(), String> {
        let is_page = matches!(came, Came::Page(_));
        let (hubs, known) = match came {
            Came::Feed(feed) => {
                let hubs = Hubs::of(feed, headers, self.url, &self.hubs);
                (hubs, Known::newest(&feed.entries, FEED_TOLD_MAX))
            }
            Came::Page(hubs) => (hubs, self.watched.known().clone()),
        };
        if hubs.is_empty() {
            return Ok(());
        }
        let notes = Notes { is_silent, is_page };
        let event = event::of_hubs(self.url, &self.scheduled, &hubs, known, notes);
        broker.publish(event::HUBS, event).await
    }

    async fn watch_instead(
        &self,
        feed: &str,
        hubs: &[String],
        broker: &impl Announce,
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
        push_attribute(&mut event, WATCHED, &self.feed);
        event.push_str(&self.carried);
        push_attribute(&mut event, NAMED, "yes");
        event::push_hubs(&mut event, hubs);
        broker.publish(SCHEDULES, event).await?;
        broker.publish(SCHEDULES, self.change(every, "0")).await
    }

    /// An event that changes the schedule to `every` (`0` ends it), unless it was changed since
    /// this check began.
    fn change(&self, was: &str, every: &str) -> String {
        let mut event = self.scheduled.as_str().to_owned();
        push_attribute(&mut event, "every", every);
        push_attribute(&mut event, "was", was);
        push_attribute(&mut event, WATCHED, &self.feed);
        event
    }
}

/// By more than a tenth: each change costs an event and a record of the group.
fn differs(every: Duration, next: Duration) -> bool {
    every.abs_diff(next) > every / 10
}

#[cfg(test)]
#[path = "feeds_tests.rs"]
mod tests;
