//! What the worker does with a watched feed, a URL whose task carries `feed=`: announces what is new in it, remembers
//! it, and has the broker look again sooner or later.
//!
//! In this order: announce, confirmed; remember; then the caller's ACK. A worker that ends in between announces the same
//! items again under the same `id=`, which the topic keeps once.

use std::fmt::Write;
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use tidings_protocol::{CanonicalUrl, Payload, format_ms, parse_ms, push_attribute};

use super::link::Link;
use crate::config::{FEED_ANNOUNCED_AT_ONCE, FEED_ITEM_BYTES_MAX, FEED_KNOWN_FOR};
use crate::feed::Feed;
use crate::feed::watch::{Checked, NewItem, Outcome, Print, Settings, Validators, Watched};
use crate::state::State;

/// Where new items go.
const ITEMS: &str = "post-ready";
/// Where schedules go.
const SCHEDULES: &str = "new-url";
/// The attribute that makes a URL a watched feed, and the kind of what is remembered of it.
const WATCHED: &str = "feed";

/// The attribute of a schedule that was a page's before it was that of the feed which the page names. What it leads to may
/// be a page again; but two pages that name each other would be asked one after the other without a pause.
const NAMED: &str = "named";

/// Attributes that are not handed on: the broker's own, and those that are given anew.
const NOT_CARRIED: &[&str] = &[
    "after", "again", "depth", "every", "feed", "hops", "id", "item", "job", "kind", "last",
    "pass", "source",
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
    /// What was stored last for this feed.
    fn load(&self, feed: &str) -> impl Future<Output = Option<Bytes>> + Send;
    /// Returns when it is as safe as it will be.
    fn store(&self, feed: &str, state: Bytes) -> impl Future<Output = Result<(), String>> + Send;
}

/// Kept with what else a crawler remembers; forgotten when nobody has looked for long.
#[derive(Debug)]
pub(super) struct Remembered<'a> {
    pub(super) state: &'a State,
    pub(super) now_unix_s: u64,
}

impl States for Remembered<'_> {
    async fn load(&self, feed: &str) -> Option<Bytes> {
        self.state.load(WATCHED, feed).await
    }

    async fn store(&self, feed: &str, state: Bytes) -> Result<(), String> {
        let expires_unix_s = self.now_unix_s.saturating_add(FEED_KNOWN_FOR.as_secs());
        self.state.store(WATCHED, feed, state, expires_unix_s);
        Ok(())
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
    /// How often it is looked at now; `None` if it is at a time of day, which is not changed.
    every: Option<Duration>,
    /// A page led here: if it is one, too, what that names is not followed.
    is_named: bool,
    /// Further attributes of its schedule, each with a leading space.
    carried: String,
    watched: Watched,
}

/// What was answered to the request.
#[derive(Debug)]
pub(super) enum Answer<'a> {
    /// A document, read as a feed; `kind` of it may be none. If it is a page, the feeds that it names, absolute.
    Document { feed: &'a Feed, named: &'a [Box<str>], validators: Validators<'a> },
    /// 304.
    NotModified,
    /// Anything else.
    Failed,
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
}

impl<'a> Watch<'a> {
    /// `None` if the task is no feed's. What is known of it is asked for.
    pub(super) async fn of(
        url: &'a CanonicalUrl<'a>,
        payload: &Payload<'_>,
        states: &impl States,
    ) -> Option<Self> {
        let settings = payload.attribute(WATCHED)?.parse::<Settings>();
        let settings = settings.inspect_err(|error| tracing::warn!(%url, "{error}")).ok()?;
        let every = payload.attribute("every").and_then(|every| parse_ms(every).ok());
        // The schedule is that of the URL which led here.
        let is_redirect = payload.attribute("kind") == Some("redirect");
        let every = every.filter(|ms| *ms > 0 && !is_redirect).map(Duration::from_millis);
        let mut carried = String::new();
        for (key, value) in payload.attributes().filter(|(key, _)| !NOT_CARRIED.contains(key)) {
            push_attribute(&mut carried, key, value);
        }
        let known = states.load(url.as_str()).await;
        let known = known.and_then(|state| Watched::from_bytes(&state));
        let mut watched =
            known.unwrap_or_else(|| Watched::new(every.unwrap_or(Duration::ZERO), settings));
        if let Some(every) = every {
            watched.is_scheduled(every, settings);
        }
        let is_named = payload.attribute(NAMED).is_some();
        Some(Self { url, settings, every, is_named, carried, watched })
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
        let outcome = match answer {
            Answer::Document { feed, validators, .. } if feed.kind.is_some() => {
                Outcome::Read(feed, validators)
            }
            // A feed that was one may be a page of an error today.
            Answer::Document { named: [first, ..], .. }
                if !self.watched.was_read() && !self.is_named =>
            {
                self.watch_instead(first, broker).await?;
                return Ok(Looked::Elsewhere);
            }
            Answer::NotModified => Outcome::Same,
            Answer::Document { .. } | Answer::Failed => Outcome::Failed,
        };
        let has_failed = matches!(outcome, Outcome::Failed);
        let Checked { new, next } = self.watched.check(self.settings, outcome, rest, now_unix_ms);
        let announced = self.announce(&new, broker).await?;
        let changes = self.every.is_some_and(|every| differs(every, next));
        if changes {
            self.watched.reschedule(next);
        }
        states.store(self.url.as_str(), self.watched.to_bytes().into()).await?;
        if changes {
            let payload = self.schedule(self.url.as_str(), next, true);
            broker.publish(SCHEDULES, payload).await?;
        }
        Ok(if has_failed { Looked::Failed } else { Looked::Feed { announced } })
    }

    /// Announces items that have a link, in their order.
    async fn announce(&self, new: &[NewItem], broker: &impl Announce) -> Result<usize, String> {
        let events: Vec<_> = new.iter().filter_map(|item| self.event(item)).collect();
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

    fn event(&self, NewItem { id, link, print }: &NewItem) -> Option<String> {
        let link = CanonicalUrl::parse(link.as_deref()?).ok()?;
        let mut event = link.as_str().to_owned();
        push_attribute(&mut event, "item", &item_word(id));
        push_attribute(&mut event, "source", self.url.as_str());
        push_attribute(&mut event, "id", &event_id(self.url, *print));
        Some(event)
    }

    async fn watch_instead(&self, feed: &str, broker: &impl Announce) -> Result<(), String> {
        let Ok(feed) = CanonicalUrl::parse(feed) else {
            return Err("the page names a feed with no URL".to_owned());
        };
        if feed.url_key() == self.url.url_key() {
            return Err("the page names itself as its feed".to_owned());
        }
        if let Some(every) = self.every {
            let mut schedule = self.schedule(feed.as_str(), every, false);
            push_attribute(&mut schedule, NAMED, "yes");
            broker.publish(SCHEDULES, schedule).await?;
        }
        let end = format!("{} every=0", self.url.as_str());
        broker.publish(SCHEDULES, end).await
    }

    /// What has a feed looked at so often; also at once, or only after that time.
    fn schedule(&self, feed: &str, every: Duration, later: bool) -> String {
        let every = format_ms(u64::try_from(every.as_millis()).unwrap_or(u64::MAX));
        let mut event = feed.to_owned();
        push_attribute(&mut event, "every", &every);
        if later {
            push_attribute(&mut event, "after", &every);
        }
        push_attribute(&mut event, WATCHED, &self.settings.to_string());
        event.push_str(&self.carried);
        event
    }
}

/// By more than a tenth: each change is an event, and a record of the group.
fn differs(every: Duration, next: Duration) -> bool {
    every.abs_diff(next) > every / 10
}

/// An id of an item as one word: percent-encoded where it has to be, and a hash where it is too long.
fn item_word(id: &str) -> String {
    let mut word = String::new();
    for byte in id.bytes() {
        if byte.is_ascii_graphic() && byte != b'%' {
            word.push(char::from(byte));
        } else {
            write!(word, "%{byte:02X}").expect("a String takes everything");
        }
        if word.len() > FEED_ITEM_BYTES_MAX {
            return format!("hash:{}", &blake3::hash(id.as_bytes()).to_hex()[..32]);
        }
    }
    word
}

/// The same item of the same feed is the same event.
fn event_id(feed: &CanonicalUrl<'_>, item: Print) -> String {
    let text = format!("{} {item}", feed.as_str());
    blake3::hash(text.as_bytes()).to_hex()[..32].to_owned()
}

#[cfg(test)]
#[path = "feeds_tests.rs"]
mod tests;
