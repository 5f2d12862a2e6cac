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

use super::hub_callbacks::ITEMS_PER_DELIVERY_MAX;
use super::hub_request::send_hub_request;
use super::store::StoreError;
use super::subscription::{HubEndpoint, HubMode, HubRequestOutcome, WatchedKind};
use super::subscription_table::{SubscriptionTable, WatchedUrl};
use super::{WebSubConfig, milliseconds, unix_now_ms};
use crate::outgoing::OutgoingClient;
use crate::rate_limited_log::RateLimitedLog;

/// The label that the broker shows, and the name of the cursor.
const CLIENT_NAME: &str = "tidings-websub";
const CURSOR_PREFIX: &str = "websub";

/// Pauses between tries to reach the broker.
const RECONNECT_MIN: Duration = Duration::from_millis(100);
const RECONNECT_MAX: Duration = Duration::from_secs(5);

/// How long a publish may take until a hub is told to come again.
const BROKER_TIMEOUT: Duration = Duration::from_secs(10);

/// How long to wait at most before it is looked whether something is due: wall clocks are set.
const DUE_CHECK_INTERVAL: Duration = Duration::from_mins(1);

/// How long to wait when the disk or the broker is in trouble.
const ERROR_PAUSE: Duration = Duration::from_secs(1);

/// How long a feed that is watched is taken to be so without a question.
const SCHEDULE_CACHE_TTL: Duration = Duration::from_mins(1);

/// From one look that a hub has brought forward to the next, of one feed: hubs that have much to
/// tell tell it in pieces.
const FEED_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Hubs that are asked at once.
const CONCURRENT_HUB_REQUESTS_MAX: usize = 16;

/// Schedules of a host that are looked at; of one with more everything is taken to be watched.
const SCHEDULES_LISTED_MAX: &str = "1000";

/// The subscriber, as all of its parts see it.
#[derive(Debug)]
pub(super) struct WebSubService {
    pub(super) config: WebSubConfig,
    /// Locked where nobody waits: what is changed in it is synced to the disk.
    subscriptions: Arc<Mutex<SubscriptionTable>>,
    tokens: Arc<RwLock<HashSet<String>>>,
    cursor: CursorName,
    outgoing: OutgoingClient,
    /// Until when feeds are taken to be watched still, by their tokens.
    scheduled_until: Mutex<HashMap<String, Instant>>,
    /// Until when feeds are not looked at once more, by their tokens.
    next_feed_check: Mutex<HashMap<String, Instant>>,
    /// The connection that stands.
    client: watch::Sender<Option<Client>>,
    /// Something may be due earlier than it was.
    due_changed: Notify,
    error_log: Mutex<RateLimitedLog>,
    /// What all hubs together may bring, in items; since when it is counted.
    item_bucket: Mutex<TokenBucket>,
    started: Instant,
}

/// Why an event could not be published, or something could not be kept; the same may be tried
/// again.
#[derive(Debug, thiserror::Error)]
pub(super) enum WebSubError {
    #[error("there is no connection to the broker")]
    NotConnected,
    #[error("the broker does not answer")]
    Timeout,
    #[error("{0}")]
    Broker(#[from] ClientError),
    #[error("websub.db: {0}")]
    Store(#[from] StoreError),
    /// With the seconds after which there is room.
    #[error("hubs bring more than --hook-events allows")]
    RateLimited(u32),
}

impl WebSubService {
    pub(super) fn open(config: WebSubConfig, outgoing: OutgoingClient) -> Result<Self, StoreError> {
        let book = SubscriptionTable::open(&config.database)?;
        let tokens = book.tokens();
        // A book that was begun anew hears everything once more.
        let cursor =
            format!("{CURSOR_PREFIX}-{:08x}", book.database_id()).parse().expect("it is a name");
        let book = Arc::new(Mutex::new(book));
        let (client, changed) = (watch::Sender::new(None), Notify::new());
        let (watched, looked) = Default::default();
        let complaints = Mutex::new(RateLimitedLog::new("WebSub: what cannot be done now"));
        Ok(Self {
            config,
            subscriptions: book,
            tokens,
            cursor,
            outgoing,
            scheduled_until: watched,
            next_feed_check: looked,
            client,
            due_changed: changed,
            error_log: complaints,
            item_bucket: Mutex::default(),
            started: Instant::now(),
        })
    }

    /// Hubs must not bring all that there is: so many items a minute are theirs. Refused with the
    /// seconds after which there is room for as many.
    pub(super) fn take_item_quota(&self, items: usize) -> Result<(), u32> {
        let now = Moment(milliseconds(self.started.elapsed()));
        let items = u32::try_from(items).unwrap_or(u32::MAX);
        let taken = self.item_bucket.lock().take(self.item_rate(), items, now);
        taken.map_err(|wait_ms| u32::try_from(wait_ms.div_ceil(1000)).unwrap_or(u32::MAX))
    }

    /// The same items are brought again: they could not be published.
    pub(super) fn refund_item_quota(&self, items: usize) {
        let items = u32::try_from(items).unwrap_or(u32::MAX);
        self.item_bucket.lock().refund(self.item_rate(), items);
    }

    fn item_rate(&self) -> Rate {
        let per_minute = self.config.items_per_minute;
        Rate { per_minute, burst: per_minute.max(ITEMS_PER_DELIVERY_MAX) }
    }

    /// Whoever runs the broker is told, in the words of this process or of the broker.
    pub(super) fn log_error(&self, trouble: &WebSubError) {
        self.error_log.lock().add(1, trouble);
    }

    /// Whether there is a subscription of this token.
    pub(super) fn has_subscription(&self, token: &str) -> bool {
        self.tokens.read().contains(token)
    }

    /// Does something with the book, on a thread that may wait for the disk.
    pub(super) async fn with_subscriptions<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut SubscriptionTable) -> T + Send + 'static,
    ) -> T {
        let book = Arc::clone(&self.subscriptions);
        run_blocking(move || act(&mut book.lock())).await
    }

    /// Something may be due earlier.
    pub(super) fn notify_due_changed(&self) {
        self.due_changed.notify_one();
    }

    /// Publishes an event; returns when it is as safe as its topic promises.
    pub(super) async fn publish(&self, topic: &str, event: &str) -> Result<(), WebSubError> {
        let client = self.client.borrow().clone().ok_or(WebSubError::NotConnected)?;
        let topic: TopicName = topic.parse().expect("a constant that is a name");
        let published = async { client.publish(&topic, event).await?.await };
        timeout(BROKER_TIMEOUT, published).await.map_err(|_| WebSubError::Timeout)??;
        Ok(())
    }

    /// Tells crawlers until when news come of themselves. They look at the feed, at once or `after`
    /// that time; a look that is due sooner is the same one. `item`: the version of a page that was
    /// announced.
    pub(super) async fn schedule_feed_check(
        &self,
        watched: &str,
        until_ms: u64,
        after: Option<&str>,
        item: Option<ItemFingerprint>,
    ) -> Result<(), WebSubError> {
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
    pub(super) fn feed_check_delay(&self, token: &str) -> Option<String> {
        let now = Instant::now();
        let mut looked = self.next_feed_check.lock();
        looked.retain(|_, until| *until > now);
        let until = looked.entry(token.to_owned()).or_insert(now);
        let wait = until.saturating_duration_since(now);
        if wait.is_zero() {
            *until = now + FEED_CHECK_INTERVAL;
            return None;
        }
        Some(format_ms(milliseconds(wait).max(1)))
    }

    /// Whether the feed of a subscription is still watched, as far as was known lately.
    pub(super) async fn is_still_scheduled(
        &self,
        token: &str,
        watched: &str,
    ) -> Result<bool, WebSubError> {
        let now = Instant::now();
        if self.scheduled_until.lock().get(token).is_some_and(|until| *until > now) {
            return Ok(true);
        }
        let client = self.client.borrow().clone().ok_or(WebSubError::NotConnected)?;
        let asked = timeout(BROKER_TIMEOUT, schedule_interval(&client, watched)).await;
        let is_watched = asked.map_err(|_| WebSubError::Timeout)??.is_some();
        if is_watched {
            let mut known = self.scheduled_until.lock();
            known.retain(|_, until| *until > now);
            known.insert(token.to_owned(), now + SCHEDULE_CACHE_TTL);
        } else {
            self.cancel_subscription(token).await?;
        }
        Ok(is_watched)
    }

    /// Nobody watches the feed any more.
    async fn cancel_subscription(&self, token: &str) -> Result<(), WebSubError> {
        let token = token.to_owned();
        self.with_subscriptions(move |book| book.update(&token, |one| one.cancel(unix_now_ms())))
            .await?;
        self.notify_due_changed();
        Ok(())
    }

    /// Lives until `stop`, over as many connections as it takes.
    pub(super) async fn run(self: Arc<Self>, broker: &str, stop: CancellationToken) {
        let living = async {
            let mut pause = RECONNECT_MIN;
            loop {
                let name = Some(CLIENT_NAME.to_owned());
                let options = ClientOptions { name, ..ClientOptions::default() };
                let lost = match client::connect(broker, options).await {
                    Ok((client, deliveries)) => {
                        pause = RECONNECT_MIN;
                        let lost = self.run_connection(client, deliveries).await;
                        self.client.send_replace(None);
                        lost
                    }
                    Err(error) => WebSubError::Broker(error),
                };
                tracing::debug!("WebSub: {lost}; connecting again");
                if let WebSubError::Store(_) = &lost {
                    self.log_error(&lost);
                    pause = pause.max(ERROR_PAUSE);
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

    async fn run_connection(
        self: &Arc<Self>,
        client: Client,
        mut deliveries: Deliveries,
    ) -> WebSubError {
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
            if let Err(trouble) = self.notify_crawlers(&client).await {
                self.log_error(&trouble);
                sleep(ERROR_PAUSE).await;
                if let WebSubError::Broker(ClientError::Closed(_) | ClientError::Ended(_)) = trouble
                {
                    return trouble;
                }
            }
            for token in self
                .with_subscriptions(|book| {
                    book.take_due(unix_now_ms(), CONCURRENT_HUB_REQUESTS_MAX)
                })
                .await
            {
                let (service, client) = (Arc::clone(self), client.clone());
                let asked = InFlightGuard {
                    token: token.clone(),
                    subscriptions: Arc::clone(&self.subscriptions),
                };
                asking.spawn(async move {
                    let _asked = asked;
                    if let Err(trouble) = service.send_due_request(&client, &token).await {
                        service.log_error(&trouble);
                        sleep(ERROR_PAUSE).await;
                    }
                });
            }
            let next_ms =
                self.with_subscriptions(|book| book.next_due_ms().unwrap_or(u64::MAX)).await;
            let idle = Duration::from_millis(next_ms.saturating_sub(unix_now_ms()))
                .min(DUE_CHECK_INTERVAL);
            // While as many are asked as may be, the end of one of them is what is waited for.
            let idle =
                if asking.len() >= CONCURRENT_HUB_REQUESTS_MAX { DUE_CHECK_INTERVAL } else { idle };
            tokio::select! {
                biased;
                delivery = deliveries.next() => match delivery {
                    Some(Delivery::Msg { seq, payload, .. }) => {
                        if let Err(trouble) = self.handle_hub_event(&client, &topic, seq, &payload).await {
                            return trouble;
                        }
                    }
                    Some(_) => {}
                    None => return deliveries.reason().into(),
                },
                Some(_) = asking.join_next() => {}
                () = self.due_changed.notified() => {}
                () = sleep(idle) => {}
            }
        }
    }

    /// A crawler has found a hub.
    async fn handle_hub_event(
        &self,
        client: &Client,
        topic: &TopicName,
        seq: Seq,
        payload: &str,
    ) -> Result<(), WebSubError> {
        if let Some((feed, hubs, known)) = event::parse_hub_event(payload) {
            let payload = Payload::parse(payload);
            let is_silent = payload.attribute(event::SILENT).is_some();
            let is_page = payload.attribute(event::PAGE).is_some();
            let kind = if is_page { WatchedKind::Page } else { WatchedKind::Feed };
            let watched = payload.attribute(event::WATCHED).map(str::to_owned);
            let watched = watched.unwrap_or_else(|| feed.as_str().to_owned());
            let found = move |book: &mut SubscriptionTable| {
                let now_ms = unix_now_ms();
                let watched = WatchedUrl { url: &watched, kind };
                book.update_hubs(&feed, watched, &hubs, known, now_ms)?;
                if is_silent { book.report_silent_hub(&feed, now_ms) } else { Ok(()) }
            };
            self.with_subscriptions(found).await?;
        }
        client.request(&Command::Seen { topic: topic.clone(), seq }).await?;
        Ok(())
    }

    /// Tells crawlers what has changed: where news come of themselves, and where not any more.
    async fn notify_crawlers(&self, client: &Client) -> Result<(), WebSubError> {
        for (token, until_ms) in
            self.with_subscriptions(|book| book.pending_crawler_updates(unix_now_ms())).await
        {
            let of = token.clone();
            let watched = self
                .with_subscriptions(move |book| book.get(&of).map(|one| one.watched.clone()))
                .await;
            let Some(watched) = watched else { continue };
            let Some(every) = schedule_interval(client, &watched).await? else {
                self.cancel_subscription(&token).await?;
                continue;
            };
            // Nothing is new yet, so it is looked at no sooner than it would be.
            self.schedule_feed_check(&watched, until_ms, Some(&every), None).await?;
            self.record_crawlers_notified(&token, until_ms).await?;
        }
        Ok(())
    }

    /// They were told by whom they rely on that there is something new.
    pub(super) async fn record_delivery(
        &self,
        token: &str,
        until_ms: u64,
    ) -> Result<(), WebSubError> {
        let token = token.to_owned();
        self.with_subscriptions(move |book| {
            book.update(&token, |one| one.record_delivery(until_ms))
        })
        .await?;
        Ok(())
    }

    /// They were told.
    async fn record_crawlers_notified(
        &self,
        token: &str,
        until_ms: u64,
    ) -> Result<(), WebSubError> {
        let token = token.to_owned();
        self.with_subscriptions(move |book| {
            book.update(&token, |one| one.record_crawlers_notified(until_ms))
        })
        .await?;
        Ok(())
    }

    /// Asks a hub for what is wanted now.
    async fn send_due_request(&self, client: &Client, token: &str) -> Result<(), WebSubError> {
        let of = token.to_owned();
        let Some(one) = self.with_subscriptions(move |book| book.get(&of).cloned()).await else {
            return Ok(());
        };
        if !one.is_cancelled() && schedule_interval(client, &one.watched).await?.is_none() {
            self.cancel_subscription(token).await?;
        }
        let of = token.to_owned();
        let wish = self.with_subscriptions(move |book| {
            if book.get(&of).is_some_and(|one| one.is_removable(unix_now_ms())) {
                book.remove(&of)?;
                return Ok::<_, StoreError>(None);
            }
            // Which is due at once, or later.
            if book.replace_with_successor(&of, unix_now_ms())? {
                return Ok(None);
            }
            book.update(&of, |one| one.start_request(unix_now_ms()))
        });
        let Some(wish) = wish.await? else { return Ok(()) };
        let (asked, said) = send_hub_request(&self.outgoing, &self.config, &one, wish).await;
        if let Some(said) = said {
            let (feed, hub) = (&one.feed, one.teller.host());
            tracing::warn!(feed, hub, "WebSub: the hub has not agreed to a subscription: {said}");
        }
        let is_cloud = matches!(one.teller, HubEndpoint::Cloud { .. });
        let of = token.to_owned();
        let begins = self.with_subscriptions(move |book| {
            if wish == HubMode::Unsubscribe && is_cloud && asked == HubRequestOutcome::Accepted {
                return book.remove(&of).map(|()| false);
            }
            let change = book.update(&of, |one| one.finish_request(asked, unix_now_ms()));
            change.map(|change| change == Some(true))
        });
        if begins.await? {
            tracing::info!(feed = one.feed, "the feed's server tells what is new from now on");
        }
        Ok(())
    }
}

/// A hub is being asked, for as long as this lives.
struct InFlightGuard {
    token: String,
    subscriptions: Arc<Mutex<SubscriptionTable>>,
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.subscriptions.lock().request_finished(&self.token);
    }
}

/// Does what may take long where nobody waits.
pub(super) async fn run_blocking<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
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
async fn schedule_interval(client: &Client, watched: &str) -> Result<Option<String>, WebSubError> {
    let Ok(url) = CanonicalUrl::parse(watched) else { return Ok(None) };
    // What the group's key is made of is its setting: a host, its domain, or anything.
    for key in [Some(url.host()), Some(url.domain()), None] {
        let mut settings = vec![("limit", SCHEDULES_LISTED_MAX)];
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
