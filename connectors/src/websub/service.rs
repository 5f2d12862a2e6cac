//! What is due, over the connection to the broker.

#![expect(
    clippy::disallowed_methods,
    reason = "requests to hubs are tasks, and what is due is waited for"
)]

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tidings_broker::clock::Moment;
use tidings_broker::{Rate, TokenBucket};
use tidings_protocol::client::{self, Client, ClientError, ClientOptions, Deliveries, Delivery};
use tidings_protocol::{
    CanonicalUrl, Command, CursorName, DEFAULT_GROUP, ManageCommand, Payload, Seq, StartAt,
    TopicName, field, field_number, format_ms, push_attribute,
};
use tidings_subscriber::feed::event;
use tidings_subscriber::feed::watched_feed::ItemFingerprint;
use tokio::sync::{Notify, watch};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::ask::ask;
use super::book::{Book, Watched};
use super::receiver::ITEMS_MAX;
use super::store::StoreError;
use super::subscription::{Asked, Kind, Teller, Wish};
use super::{WebSubConfig, milliseconds, unix_ms};
use crate::outgoing::OutgoingClient;
use crate::rate_limited_log::RateLimitedLog;

/// The label that the broker shows, and the name of the cursor.
const NAME: &str = "tidings-websub";
const CURSOR: &str = "websub";

/// Pauses between tries to reach the broker.
const RECONNECT_MIN: Duration = Duration::from_millis(100);
const RECONNECT_MAX: Duration = Duration::from_secs(5);

/// How long a publish may take until a hub is told to come again.
const PUBLISH_MAX: Duration = Duration::from_secs(10);

/// How long to wait at most before it is looked whether something is due: wall clocks are set.
const LOOK_EVERY: Duration = Duration::from_mins(1);

/// How long to wait when the disk or the broker is in trouble.
const TROUBLE_PAUSE: Duration = Duration::from_secs(1);

/// How long a feed that is watched is taken to be so without a question.
const WATCHED_FOR: Duration = Duration::from_mins(1);

/// From one look that a hub has brought forward to the next, of one feed: hubs that have much to
/// tell tell it in pieces.
const LOOK_PACE: Duration = Duration::from_secs(5);

/// Hubs that are asked at once.
const ASKING_MAX: usize = 16;

/// Schedules of a host that are looked at; of one with more everything is taken to be watched.
const SCHEDULES_MAX: &str = "1000";

/// The subscriber, as all of its parts see it.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) config: WebSubConfig,
    /// Locked where nobody waits: what is changed in it is synced to the disk.
    book: Arc<Mutex<Book>>,
    tokens: Arc<RwLock<HashSet<String>>>,
    cursor: CursorName,
    outgoing: OutgoingClient,
    /// Until when feeds are taken to be watched still, by their tokens.
    watched: Mutex<HashMap<String, Instant>>,
    /// Until when feeds are not looked at once more, by their tokens.
    looked: Mutex<HashMap<String, Instant>>,
    /// The connection that stands.
    client: watch::Sender<Option<Client>>,
    /// Something may be due earlier than it was.
    changed: Notify,
    complaints: Mutex<RateLimitedLog>,
    /// What all hubs together may bring, in items; since when it is counted.
    share: Mutex<TokenBucket>,
    began: Instant,
}

/// Why an event could not be published, or something could not be kept; the same may be tried
/// again.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    #[error("there is no connection to the broker")]
    Away,
    #[error("the broker does not answer")]
    Late,
    #[error("{0}")]
    Broker(#[from] ClientError),
    #[error("websub.db: {0}")]
    Store(#[from] StoreError),
    /// With the seconds after which there is room.
    #[error("hubs bring more than --hook-events allows")]
    TooMuch(u32),
}

impl Service {
    pub(super) fn open(config: WebSubConfig, outgoing: OutgoingClient) -> Result<Self, StoreError> {
        let book = Book::open(&config.database)?;
        let tokens = book.tokens();
        // A book that was begun anew hears everything once more.
        let cursor = format!("{CURSOR}-{:08x}", book.id()).parse().expect("it is a name");
        let book = Arc::new(Mutex::new(book));
        let (client, changed) = (watch::Sender::new(None), Notify::new());
        let (watched, looked) = Default::default();
        let complaints = Mutex::new(RateLimitedLog::new("WebSub: what cannot be done now"));
        Ok(Self {
            config,
            book,
            tokens,
            cursor,
            outgoing,
            watched,
            looked,
            client,
            changed,
            complaints,
            share: Mutex::default(),
            began: Instant::now(),
        })
    }

    /// Hubs must not bring all that there is: so many items a minute are theirs. Refused with the
    /// seconds after which there is room for as many.
    pub(super) fn take_share(&self, items: usize) -> Result<(), u32> {
        let now = Moment(milliseconds(self.began.elapsed()));
        let items = u32::try_from(items).unwrap_or(u32::MAX);
        let taken = self.share.lock().take(self.share_rate(), items, now);
        taken.map_err(|wait_ms| u32::try_from(wait_ms.div_ceil(1000)).unwrap_or(u32::MAX))
    }

    /// The same items are brought again: they could not be published.
    pub(super) fn give_share_back(&self, items: usize) {
        let items = u32::try_from(items).unwrap_or(u32::MAX);
        self.share.lock().refund(self.share_rate(), items);
    }

    fn share_rate(&self) -> Rate {
        let per_minute = self.config.items_per_minute;
        Rate { per_minute, burst: per_minute.max(ITEMS_MAX) }
    }

    /// Whoever runs the broker is told, in the words of this process or of the broker.
    pub(super) fn complain(&self, trouble: &Trouble) {
        self.complaints.lock().add(1, trouble);
    }

    /// Whether there is a subscription of this token.
    pub(super) fn knows(&self, token: &str) -> bool {
        self.tokens.read().contains(token)
    }

    /// Does something with the book, on a thread that may wait for the disk.
    pub(super) async fn with<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut Book) -> T + Send + 'static,
    ) -> T {
        let book = Arc::clone(&self.book);
        aside(move || act(&mut book.lock())).await
    }

    /// Something may be due earlier.
    pub(super) fn wake(&self) {
        self.changed.notify_one();
    }

    /// Publishes an event; returns when it is as safe as its topic promises.
    pub(super) async fn publish(&self, topic: &str, event: &str) -> Result<(), Trouble> {
        let client = self.client.borrow().clone().ok_or(Trouble::Away)?;
        let topic: TopicName = topic.parse().expect("a constant that is a name");
        let published = async { client.publish(&topic, event).await?.await };
        timeout(PUBLISH_MAX, published).await.map_err(|_| Trouble::Late)??;
        Ok(())
    }

    /// Tells crawlers until when news come of themselves. They look at the feed, at once or `after`
    /// that time; a look that is due sooner is the same one. `item`: the version of a page that was
    /// announced.
    pub(super) async fn bring_forward(
        &self,
        watched: &str,
        until_ms: u64,
        after: Option<&str>,
        item: Option<ItemFingerprint>,
    ) -> Result<(), Trouble> {
        let mut event = watched.to_owned();
        push_attribute(&mut event, event::PUSHED, &until_ms.to_string());
        if let Some(item) = item {
            push_attribute(&mut event, event::ITEM, &item.to_string());
        }
        if let Some(after) = after {
            push_attribute(&mut event, "after", after);
        }
        self.publish(event::SCHEDULE_TOPIC, &event).await
    }

    /// How long to wait until the next look at this feed, which has been told of just now.
    pub(super) fn pace(&self, token: &str) -> Option<String> {
        let now = Instant::now();
        let mut looked = self.looked.lock();
        looked.retain(|_, until| *until > now);
        let until = looked.entry(token.to_owned()).or_insert(now);
        let wait = until.saturating_duration_since(now);
        if wait.is_zero() {
            *until = now + LOOK_PACE;
            return None;
        }
        Some(format_ms(milliseconds(wait).max(1)))
    }

    /// Whether the feed of a subscription is still watched, as far as was known lately.
    pub(super) async fn is_still_watched(
        &self,
        token: &str,
        watched: &str,
    ) -> Result<bool, Trouble> {
        let now = Instant::now();
        if self.watched.lock().get(token).is_some_and(|until| *until > now) {
            return Ok(true);
        }
        let client = self.client.borrow().clone().ok_or(Trouble::Away)?;
        let asked = timeout(PUBLISH_MAX, every(&client, watched)).await;
        let is_watched = asked.map_err(|_| Trouble::Late)??.is_some();
        if is_watched {
            let mut known = self.watched.lock();
            known.retain(|_, until| *until > now);
            known.insert(token.to_owned(), now + WATCHED_FOR);
        } else {
            self.leave(token).await?;
        }
        Ok(is_watched)
    }

    /// Nobody watches the feed any more.
    async fn leave(&self, token: &str) -> Result<(), Trouble> {
        let token = token.to_owned();
        self.with(move |book| book.change(&token, |one| one.leave(unix_ms()))).await?;
        self.wake();
        Ok(())
    }

    /// Lives until `stop`, over as many connections as it takes.
    pub(super) async fn run(self: Arc<Self>, broker: &str, stop: CancellationToken) {
        let living = async {
            let mut pause = RECONNECT_MIN;
            loop {
                let name = Some(NAME.to_owned());
                let options = ClientOptions { name, ..ClientOptions::default() };
                let lost = match client::connect(broker, options).await {
                    Ok((client, deliveries)) => {
                        pause = RECONNECT_MIN;
                        let lost = self.serve(client, deliveries).await;
                        self.client.send_replace(None);
                        lost
                    }
                    Err(error) => Trouble::Broker(error),
                };
                tracing::debug!("WebSub: {lost}; connecting again");
                if let Trouble::Store(_) = &lost {
                    self.complain(&lost);
                    pause = pause.max(TROUBLE_PAUSE);
                }
                sleep(pause).await;
                pause = (pause * 2).min(RECONNECT_MAX);
            }
        };
        tokio::select! {
            () = living => {}
            () = stop.cancelled() => {}
        }
    }

    async fn serve(self: &Arc<Self>, client: Client, mut deliveries: Deliveries) -> Trouble {
        let topic: TopicName = event::HUB_TOPIC.parse().expect("a constant that is a name");
        let subscribe = Command::Sub {
            topic: topic.clone(),
            from: Some(StartAt::First),
            cursor: Some(self.cursor.clone()),
            takeover: true,
        };
        if let Err(error) = client.request(&subscribe).await {
            return error.into();
        }
        self.client.send_replace(Some(client.clone()));
        let mut asking = JoinSet::new();
        loop {
            if let Err(trouble) = self.tell_crawlers(&client).await {
                self.complain(&trouble);
                sleep(TROUBLE_PAUSE).await;
                if let Trouble::Broker(ClientError::Closed(_) | ClientError::Ended(_)) = trouble {
                    return trouble;
                }
            }
            for token in self.with(|book| book.take_due(unix_ms(), ASKING_MAX)).await {
                let (service, client) = (Arc::clone(self), client.clone());
                let asked = IsAsked { token: token.clone(), book: Arc::clone(&self.book) };
                asking.spawn(async move {
                    let _asked = asked;
                    if let Err(trouble) = service.ask(&client, &token).await {
                        service.complain(&trouble);
                        sleep(TROUBLE_PAUSE).await;
                    }
                });
            }
            let next_ms = self.with(|book| book.next_ms().unwrap_or(u64::MAX)).await;
            let idle = Duration::from_millis(next_ms.saturating_sub(unix_ms())).min(LOOK_EVERY);
            // While as many are asked as may be, the end of one of them is what is waited for.
            let idle = if asking.len() >= ASKING_MAX { LOOK_EVERY } else { idle };
            tokio::select! {
                biased;
                delivery = deliveries.next() => match delivery {
                    Some(Delivery::Msg { seq, payload, .. }) => {
                        if let Err(trouble) = self.found(&client, &topic, seq, &payload).await {
                            return trouble;
                        }
                    }
                    Some(_) => {}
                    None => return deliveries.reason().into(),
                },
                Some(_) = asking.join_next() => {}
                () = self.changed.notified() => {}
                () = sleep(idle) => {}
            }
        }
    }

    /// A crawler has found a hub.
    async fn found(
        &self,
        client: &Client,
        topic: &TopicName,
        seq: Seq,
        payload: &str,
    ) -> Result<(), Trouble> {
        if let Some((feed, hubs, known)) = event::parse_hub_event(payload) {
            let payload = Payload::parse(payload);
            let is_silent = payload.attribute(event::SILENT).is_some();
            let is_page = payload.attribute(event::PAGE).is_some();
            let kind = if is_page { Kind::Page } else { Kind::Feed };
            let watched = payload.attribute(event::WATCHED).map(str::to_owned);
            let watched = watched.unwrap_or_else(|| feed.as_str().to_owned());
            let found = move |book: &mut Book| {
                let now_ms = unix_ms();
                let watched = Watched { url: &watched, kind };
                book.found(&feed, watched, &hubs, known, now_ms)?;
                if is_silent { book.was_silent(&feed, now_ms) } else { Ok(()) }
            };
            self.with(found).await?;
        }
        client.request(&Command::Seen { topic: topic.clone(), seq }).await?;
        Ok(())
    }

    /// Tells crawlers what has changed: where news come of themselves, and where not any more.
    async fn tell_crawlers(&self, client: &Client) -> Result<(), Trouble> {
        for (token, until_ms) in self.with(|book| book.untold(unix_ms())).await {
            let of = token.clone();
            let watched = self.with(move |book| book.get(&of).map(|one| one.watched.clone())).await;
            let Some(watched) = watched else { continue };
            let Some(every) = every(client, &watched).await? else {
                self.leave(&token).await?;
                continue;
            };
            // Nothing is new yet, so it is looked at no sooner than it would be.
            self.bring_forward(&watched, until_ms, Some(&every), None).await?;
            self.crawlers_know(&token, until_ms).await?;
        }
        Ok(())
    }

    /// They were told by whom they rely on that there is something new.
    pub(super) async fn has_told(&self, token: &str, until_ms: u64) -> Result<(), Trouble> {
        let token = token.to_owned();
        self.with(move |book| book.change(&token, |one| one.has_told(until_ms))).await?;
        Ok(())
    }

    /// They were told.
    async fn crawlers_know(&self, token: &str, until_ms: u64) -> Result<(), Trouble> {
        let token = token.to_owned();
        self.with(move |book| book.change(&token, |one| one.crawlers_know(until_ms))).await?;
        Ok(())
    }

    /// Asks a hub for what is wanted now.
    async fn ask(&self, client: &Client, token: &str) -> Result<(), Trouble> {
        let of = token.to_owned();
        let Some(one) = self.with(move |book| book.get(&of).cloned()).await else { return Ok(()) };
        if !one.is_leaving() && every(client, &one.watched).await?.is_none() {
            self.leave(token).await?;
        }
        let of = token.to_owned();
        let wish = self.with(move |book| {
            if book.get(&of).is_some_and(|one| one.is_hopeless(unix_ms())) {
                book.remove(&of)?;
                return Ok::<_, StoreError>(None);
            }
            // Which is due at once, or later.
            if book.go_on(&of, unix_ms())? {
                return Ok(None);
            }
            book.change(&of, |one| one.ask(unix_ms()))
        });
        let Some(wish) = wish.await? else { return Ok(()) };
        let (asked, said) = ask(&self.outgoing, &self.config, &one, wish).await;
        if let Some(said) = said {
            let (feed, hub) = (&one.feed, one.teller.host());
            tracing::warn!(feed, hub, "WebSub: the hub has not agreed to a subscription: {said}");
        }
        let is_cloud = matches!(one.teller, Teller::Cloud { .. });
        let of = token.to_owned();
        let begins = self.with(move |book| {
            if wish == Wish::Unsubscribe && is_cloud && asked == Asked::Accepted {
                return book.remove(&of).map(|()| false);
            }
            let change = book.change(&of, |one| one.was_asked(asked, unix_ms()));
            change.map(|change| change == Some(true))
        });
        if begins.await? {
            tracing::info!(feed = one.feed, "the feed's server tells what is new from now on");
        }
        Ok(())
    }
}

/// A hub is being asked, for as long as this lives.
struct IsAsked {
    token: String,
    book: Arc<Mutex<Book>>,
}

impl Drop for IsAsked {
    fn drop(&mut self) {
        self.book.lock().was_asked(&self.token);
    }
}

/// Does what may take long where nobody waits.
pub(super) async fn aside<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    match spawn_blocking(act).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The process ends, and this with it.
            Err(_) => std::future::pending().await,
        },
    }
}

/// How often crawlers look at that URL, in the broker's words; `None`: nobody watches it.
async fn every(client: &Client, watched: &str) -> Result<Option<String>, Trouble> {
    let Ok(url) = CanonicalUrl::parse(watched) else { return Ok(None) };
    // What the group's key is made of is its setting: a host, its domain, or anything.
    for key in [Some(url.host()), Some(url.domain()), None] {
        let mut settings = vec![("limit", SCHEDULES_MAX)];
        settings.extend(key.map(|key| ("key", key)));
        let schedules = ManageCommand { action: "schedules", name: Some(DEFAULT_GROUP), settings };
        let answer = client.request(&Command::Group(schedules)).await?;
        let is_it = |line: &&String| line.split(' ').next() == Some(watched);
        if let Some(line) = answer.more.iter().find(is_it) {
            return Ok(Some(field(line, "every").unwrap_or("1h").to_owned()));
        }
        let (matched, listed) =
            (field_number(&answer.ok, "matched"), field_number(&answer.ok, "listed"));
        if matched > listed {
            // It may be among the others.
            return Ok(Some("1h".to_owned()));
        }
    }
    Ok(None)
}
