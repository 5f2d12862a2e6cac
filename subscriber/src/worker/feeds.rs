//! What the worker does with a watched feed, a URL whose task carries `feed=`: announces what is new in it, remembers
//! it, and has the broker look again sooner or later. A page that names a hub and no feed is watched likewise: each of its
//! versions is an item, with the URL of the page. A page that names neither fails, with the reason.
//!
//! In this order: announce, confirmed; remember, synced; then the caller's ACK. A worker that ends in between announces the
//! same items again under the same `id=`, which the topic keeps once. What is known decides what is new, so a look at a
//! feed of which that cannot be read or kept has failed: it would announce again what was announced long ago, or, where
//! only what is new is wanted, take what has come since for what was there.

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

/// The attribute that makes a URL a watched feed, and the kind of what is remembered of it.
const WATCHED: &str = "feed";

/// The attribute of a schedule that was a page's before it was that of the feed which the page names. What it leads to may
/// be a page again; but two pages that name each other would be asked one after the other without a pause.
const NAMED: &str = "named";

/// Attributes that are not handed on: the broker's own, and those that are given anew.
const NOT_CARRIED: &[&str] = &[
    "after", "again", "depth", "every", "feed", "hops", "id", "item", "job", "kind", "last",
    "number", "pass", "pushed", "schedule", "source", "was",
];

/// Publishes events.
pub(super) trait Announce: Sync {
    /// Returns when the event is confirmed. The error is for people, and the same may be tried again.
    fn publish(
        &self,
        topic: &'static str,
        payload: String,
    ) -> impl Future<Output = Result<(), String>> + Send;
}

/// Keeps what is known of feeds.
pub(super) trait States: Sync {
    /// What was stored last for this feed. The error is for people: there may be something.
    fn load(&self, feed: &str) -> impl Future<Output = Result<Option<Bytes>, String>> + Send;
    /// Returns when it is synced. The error is for people.
    fn store(&self, feed: &str, state: Bytes) -> impl Future<Output = Result<(), String>> + Send;
}

/// Kept with what else a crawler remembers; forgotten when nobody has looked for long.
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
        let topic = topic.parse().expect("a constant that is a name");
        Link::publish(self, &topic, &payload).await
    }
}

/// A feed that is being looked at.
#[derive(Debug)]
pub(super) struct Watch<'a> {
    url: &'a CanonicalUrl<'a>,
    settings: Settings,
    /// The same, in the words of the event.
    feed: Box<str>,
    /// The URL that has the schedule: its own, or the one that has moved there.
    scheduled: CanonicalUrl<'a>,
    /// How often that is looked at now, in the broker's words, if it has one.
    every: Option<Box<str>>,
    /// The same, unless it is at a time of day, which is not changed.
    interval: Option<Duration>,
    /// A page led here: if it is one, too, what that names is not followed.
    is_named: bool,
    /// The hubs that the page named.
    hubs: Vec<String>,
    /// Further attributes of its schedule, each with a leading space.
    carried: String,
    watched: Watched,
}

/// What was answered to the request.
#[derive(Debug)]
pub(super) enum Answer<'a> {
    /// A document, read as a feed; `kind` of it may be none. If it is a page, what its head names.
    Document {
        feed: &'a Feed,
        headers: &'a HeaderMap,
        named: &'a Named,
        validators: Validators<'a>,
    },
    /// 304.
    NotModified,
    /// Anything else.
    Failed,
}

/// What the head of a page names, absolute.
#[derive(Debug, Default)]
pub(super) struct Named {
    pub(super) feeds: Vec<Box<str>>,
    pub(super) hubs: Vec<String>,
    /// The page itself, as its hubs know it.
    pub(super) own: Option<Box<str>>,
}

/// How a look has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Looked {
    /// So many items were announced.
    Feed { announced: usize },
    /// It is a page; a feed that it names is watched instead.
    Elsewhere,
    /// Nothing could be learned.
    Failed,
    /// There is no feed, and no hub; it is looked at again after that time.
    Nothing { next: Duration },
}

/// What came that is new may be in.
enum Came<'a> {
    Feed(&'a Feed),
    /// The page's hubs.
    Page(Hubs),
}

impl<'a> Watch<'a> {
    /// `None` if the task is no feed's. What is known of it is asked for; after an error the task should be tried again.
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

    /// What to make the request conditional on.
    pub(super) fn validators(&self) -> Validators<'_> {
        self.watched.validators()
    }

    /// Does all that follows from the answer. `rest` is what the server has asked for, `Retry-After` or how long its answer is
    /// fresh. After an error nothing was remembered, and the task should be tried again.
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
            // A feed that was one may be a page of an error today.
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

    /// The version and the hubs of a page, if it is watched for its versions: it names a hub, or did once. What was read as
    /// a feed is none.
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

    /// Announces items that have a link, in their order.
    async fn announce(&self, new: &[NewItem], broker: &impl Announce) -> Result<usize, String> {
        let events: Vec<_> = new.iter().filter_map(|item| event::of_item(self.url, item)).collect();
        let announced = events.len();
        if announced < new.len() {
            let without = new.len() - announced;
            tracing::debug!(feed = %self.url, "{without} new items lead nowhere");
        }
        stream::iter(events)
            .map(|event| broker.publish(ITEMS, event))
            .buffered(FEED_ANNOUNCED_AT_ONCE)
            .try_collect::<()>()
            .await?;
        Ok(announced)
    }

    /// Says which hubs tell of this feed or page, and what is known of it. `is_silent`: they have not told all of that.
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
            return Err("the page names a feed with no URL".to_owned());
        };
        if feed.url_key() == self.url.url_key() {
            return Err("the page names itself as its feed".to_owned());
        }
        // Somebody wanted it once.
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

    /// What has it looked at so often from now on, or no more, unless somebody has said otherwise since this look began.
    fn change(&self, was: &str, every: &str) -> String {
        let mut event = self.scheduled.as_str().to_owned();
        push_attribute(&mut event, "every", every);
        push_attribute(&mut event, "was", was);
        push_attribute(&mut event, WATCHED, &self.feed);
        event
    }
}

/// By more than a tenth: each change is an event, and a record of the group.
fn differs(every: Duration, next: Duration) -> bool {
    every.abs_diff(next) > every / 10
}

#[cfg(test)]
#[path = "feeds_tests.rs"]
mod tests;
