//! Runs the subscriptions: holds the connection to the broker, and sends requests that are due.

#![expect(clippy::disallowed_methods, reason = "runs requests to hubs as tasks when they are due")]

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tidings_client::{
    Client, ClientError, ClientOptions, Connector, Subscriber, SubscriberEvent,
    Subscription as TopicSubscription,
};
use tidings_database::schema_version::SchemaError;
use tidings_documents::feed::event;
use tidings_documents::feed::watched_feed::ItemFingerprint;
use tidings_egress::client::OutgoingClient;
use tidings_protocol::status::{ListEnd, ScheduleStatus};
use tidings_protocol::{
    AttributeFilter, CanonicalUrl, Command, CursorName, DEFAULT_GROUP, GroupAction, GroupCommand,
    Payload, StartAt, TopicName, format_ms, push_attribute,
};
use tidings_rate_limit::{Rate, TokenBucket};
use tokio::sync::Notify;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::WebSubConfig;
use super::hub_callbacks::ITEMS_PER_DELIVERY_MAX;
use super::hub_request::send_hub_request;
use super::subscription::{HubEndpoint, HubMode, HubRequestOutcome, Subscription, WatchedKind};
use super::subscription_table::{SubscriptionTable, WatchedUrl};
use crate::rate_limited_log::RateLimitedLog;
use crate::system::{milliseconds, unix_now_ms};

/// The client name that the broker shows, and the prefix of the cursor name.
const CLIENT_NAME: &str = "tidings-websub";
const CURSOR_PREFIX: &str = "websub";

/// How long a publish may take before the hub must retry.
const BROKER_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest wait before the next check for due requests, because the wall clock may be set.
const DUE_CHECK_INTERVAL: Duration = Duration::from_mins(1);

/// The pause after an error of the disk or the broker.
const ERROR_PAUSE: Duration = Duration::from_secs(1);

/// How long a feed that was scheduled counts as scheduled without a request to the broker.
const SCHEDULE_CACHE_TTL: Duration = Duration::from_mins(1);

/// The shortest time between two checks of a feed that deliveries cause. A hub may split its news
/// into many deliveries.
const FEED_CHECK_INTERVAL: Duration = Duration::from_secs(5);

const CONCURRENT_HUB_REQUESTS_MAX: usize = 16;

/// Schedules of a key that are read. If a key has more, each of its feeds counts as scheduled.
const SCHEDULES_LISTED_MAX: &str = "1000";

/// The subscriber. The HTTP server of the process passes the requests of hubs to it.
#[derive(Debug)]
pub struct WebSub {
    pub(super) config: WebSubConfig,
    /// Locked only on blocking threads, because changes are synced to disk.
    subscriptions: Arc<Mutex<SubscriptionTable>>,
    tokens: Arc<RwLock<HashSet<String>>>,
    cursor: CursorName,
    outgoing: OutgoingClient,
    /// Until when a feed counts as scheduled, by token.
    scheduled_until: Mutex<HashMap<String, Instant>>,
    /// The earliest time of the next check of a feed, by token.
    next_feed_check: Mutex<HashMap<String, Instant>>,
    client: RwLock<Option<Client>>,
    /// A request may be due earlier than before.
    due_changed: Notify,
    error_log: Mutex<RateLimitedLog>,
    /// The items that all hubs together may deliver.
    item_bucket: Mutex<TokenBucket>,
    started: Instant,
}

/// Why an event was not published, or a change not stored. Each of these can be retried.
#[derive(Debug, thiserror::Error)]
pub(super) enum WebSubError {
    #[error("not connected to the broker")]
    NotConnected,
    #[error("the broker did not answer within 10 s")]
    Timeout,
    #[error("{0}")]
    Broker(#[from] ClientError),
    #[error("websub.db: {0}")]
    Store(#[from] SchemaError),
    /// With the seconds until the items fit.
    #[error("hubs deliver more items than --hook-events allows")]
    RateLimited(u32),
}

impl WebSub {
    /// Opens the database, and reads the stored subscriptions.
    pub fn open(config: WebSubConfig, outgoing: OutgoingClient) -> Result<Self, SchemaError> {
        let table = SubscriptionTable::open(&config.database)?;
        let tokens = table.tokens();
        // A new database reads the topic from its first event.
        let cursor = format!("{CURSOR_PREFIX}-{:08x}", table.database_id())
            .parse()
            .expect("a valid cursor name");
        let subscriptions = Arc::new(Mutex::new(table));
        let (client, scheduled_until, next_feed_check) = Default::default();
        let error_log = Mutex::new(RateLimitedLog::new("WebSub: failed operations"));
        Ok(Self {
            config,
            subscriptions,
            tokens,
            cursor,
            outgoing,
            scheduled_until,
            next_feed_check,
            client,
            due_changed: Notify::new(),
            error_log,
            item_bucket: Mutex::default(),
            started: Instant::now(),
        })
    }

    /// Takes items from the rate limit that all hubs share. The error is the number of seconds
    /// until that many items fit.
    pub(super) fn take_item_quota(&self, items: usize) -> Result<(), u32> {
        let now_ms = milliseconds(self.started.elapsed());
        let items = u32::try_from(items).unwrap_or(u32::MAX);
        let taken = self.item_bucket.lock().take(self.item_rate(), items, now_ms);
        taken.map_err(|wait_ms| u32::try_from(wait_ms.div_ceil(1000)).unwrap_or(u32::MAX))
    }

    /// Returns quota of items that could not be published, because the hub delivers them again.
    pub(super) fn refund_item_quota(&self, items: usize) {
        let items = u32::try_from(items).unwrap_or(u32::MAX);
        self.item_bucket.lock().refund(self.item_rate(), items);
    }

    fn item_rate(&self) -> Rate {
        let per_minute = self.config.items_per_minute;
        Rate { per_minute, burst: per_minute.max(ITEMS_PER_DELIVERY_MAX) }
    }

    /// Logs an error for the operator.
    pub(super) fn log_error(&self, error: &WebSubError) {
        self.error_log.lock().add(1, error);
    }

    pub(super) fn has_subscription(&self, token: &str) -> bool {
        self.tokens.read().contains(token)
    }

    /// Runs `operation` with the subscriptions on a blocking thread.
    pub(super) async fn with_subscriptions<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&mut SubscriptionTable) -> T + Send + 'static,
    ) -> T {
        let subscriptions = Arc::clone(&self.subscriptions);
        run_blocking(move || operation(&mut subscriptions.lock())).await
    }

    /// Changes a subscription, and stores it if it differs. `None`: the token is unknown.
    pub(super) async fn update<T: Send + 'static>(
        &self,
        token: &str,
        change: impl FnOnce(&mut Subscription) -> T + Send + 'static,
    ) -> Result<Option<T>, SchemaError> {
        let token = token.to_owned();
        self.with_subscriptions(move |table| table.update(&token, change)).await
    }

    pub(super) async fn subscription(&self, token: &str) -> Option<Subscription> {
        let token = token.to_owned();
        self.with_subscriptions(move |table| table.get(&token).cloned()).await
    }

    fn connected_client(&self) -> Result<Client, WebSubError> {
        self.client.read().clone().ok_or(WebSubError::NotConnected)
    }

    /// Wakes the loop that sends due requests.
    pub(super) fn notify_due_changed(&self) {
        self.due_changed.notify_one();
    }

    pub(super) async fn publish(&self, topic: &str, event: &str) -> Result<(), WebSubError> {
        let client = self.connected_client()?;
        let topic: TopicName = topic.parse().expect("a constant topic name");
        let published = async { client.publish(&topic, event).await?.await };
        timeout(BROKER_TIMEOUT, published).await.map_err(|_| WebSubError::Timeout)??;
        Ok(())
    }

    /// Notifies crawlers until when the hub delivers, and schedules a check of the feed, now or
    /// `after` that time. A check that is due sooner stays. `item`: the version of a page that was
    /// published.
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

    /// The wait before the check that a delivery causes; `None` for a check now.
    pub(super) fn feed_check_delay(&self, token: &str) -> Option<String> {
        let now = Instant::now();
        let mut next_check = self.next_feed_check.lock();
        next_check.retain(|_, until| *until > now);
        let until = next_check.entry(token.to_owned()).or_insert(now);
        let wait = until.saturating_duration_since(now);
        if wait.is_zero() {
            *until = now + FEED_CHECK_INTERVAL;
            return None;
        }
        Some(format_ms(milliseconds(wait).max(1)))
    }

    /// Whether the feed of a subscription is still scheduled, by an answer of the broker that is at
    /// most a minute old.
    pub(super) async fn is_still_scheduled(
        &self,
        token: &str,
        watched: &str,
    ) -> Result<bool, WebSubError> {
        let now = Instant::now();
        if self.scheduled_until.lock().get(token).is_some_and(|until| *until > now) {
            return Ok(true);
        }
        let client = self.connected_client()?;
        let interval = timeout(BROKER_TIMEOUT, schedule_interval(&client, watched)).await;
        let is_scheduled = interval.map_err(|_| WebSubError::Timeout)??.is_some();
        if is_scheduled {
            let mut scheduled_until = self.scheduled_until.lock();
            scheduled_until.retain(|_, until| *until > now);
            scheduled_until.insert(token.to_owned(), now + SCHEDULE_CACHE_TTL);
        } else {
            self.cancel_subscription(token).await?;
        }
        Ok(is_scheduled)
    }

    /// Cancels a subscription, because its feed has lost its schedule.
    async fn cancel_subscription(&self, token: &str) -> Result<(), WebSubError> {
        self.update(token, |subscription| subscription.cancel(unix_now_ms())).await?;
        self.notify_due_changed();
        Ok(())
    }

    /// Runs the subscriber with the broker at this address, until `stop`.
    pub async fn run(self: Arc<Self>, broker: &str, stop: CancellationToken) {
        tokio::select! {
            () = self.run_subscriber(broker) => {}
            () = stop.cancelled() => {}
        }
    }

    /// Reads the events of crawlers, and sends what is due while there is a connection.
    async fn run_subscriber(self: &Arc<Self>, broker: &str) {
        let mut subscriber = self.subscriber(broker);
        let mut requests = JoinSet::new();
        loop {
            // At the limit, the end of a request is the next event.
            let mut idle = DUE_CHECK_INTERVAL;
            let client = self.client.read().clone();
            if let Some(client) = client {
                self.start_due_requests(&client, &mut requests).await;
                if requests.len() < CONCURRENT_HUB_REQUESTS_MAX {
                    idle = idle.min(self.time_until_due().await);
                }
            }
            tokio::select! {
                biased;
                event = subscriber.next() => match event {
                    Ok(event) => self.handle_event(event, &mut subscriber).await,
                    Err(error) => {
                        // Another process with a copy of the database has taken the cursor.
                        self.lost_connection(&error);
                        self.log_error(&error.into());
                        sleep(ERROR_PAUSE).await;
                        subscriber = self.subscriber(broker);
                    }
                },
                Some(_) = requests.join_next() => {}
                () = self.due_changed.notified() => {}
                () = sleep(idle) => {}
            }
        }
    }

    fn subscriber(&self, broker: &str) -> Subscriber {
        let name = Some(CLIENT_NAME.to_owned());
        let options = ClientOptions { name, ..ClientOptions::default() };
        let subscription = TopicSubscription {
            topic: event::HUB_TOPIC.parse().expect("a constant topic name"),
            from: Some(StartAt::First),
            cursor: Some(self.cursor.clone()),
            takeover: true,
            filter: AttributeFilter::default(),
        };
        Subscriber::new(Connector::new(broker, options).persistent(), subscription)
    }

    fn lost_connection(&self, error: &ClientError) {
        *self.client.write() = None;
        tracing::debug!("WebSub: {error}; reconnecting");
    }

    async fn handle_event(&self, event: SubscriberEvent, subscriber: &mut Subscriber) {
        match event {
            SubscriberEvent::Subscribed { .. } => {
                *self.client.write() = subscriber.client().cloned();
            }
            SubscriberEvent::Event { seq, payload } => {
                // The cursor must not move past an event that is not stored.
                while let Err(error) = self.handle_hub_event(&payload).await {
                    self.log_error(&error.into());
                    sleep(ERROR_PAUSE).await;
                }
                subscriber.seen(seq);
            }
            SubscriberEvent::Lost(error) => self.lost_connection(&error),
            SubscriberEvent::Refused(refusal) => {
                self.lost_connection(&ClientError::Refused(refusal));
            }
            SubscriberEvent::Lag { .. }
            | SubscriberEvent::Gap { .. }
            | SubscriberEvent::Skipped(_)
            | SubscriberEvent::Seen(_)
            | SubscriberEvent::Notice(_) => {}
        }
    }

    /// Notifies crawlers of leases, and starts the requests to hubs that are due.
    async fn start_due_requests(self: &Arc<Self>, client: &Client, requests: &mut JoinSet<()>) {
        if let Err(error) = self.notify_crawlers(client).await {
            self.log_error(&error);
            sleep(ERROR_PAUSE).await;
        }
        let due = self
            .with_subscriptions(|table| table.take_due(unix_now_ms(), CONCURRENT_HUB_REQUESTS_MAX));
        for token in due.await {
            let (service, client) = (Arc::clone(self), client.clone());
            let subscriptions = Arc::clone(&self.subscriptions);
            let guard = InFlightGuard { token: token.clone(), subscriptions };
            requests.spawn(async move {
                let _guard = guard;
                if let Err(error) = service.send_due_request(&client, &token).await {
                    service.log_error(&error);
                    sleep(ERROR_PAUSE).await;
                }
            });
        }
    }

    async fn time_until_due(&self) -> Duration {
        let next_ms = self.with_subscriptions(|table| table.next_due_ms()).await;
        Duration::from_millis(next_ms.unwrap_or(u64::MAX).saturating_sub(unix_now_ms()))
    }

    /// Handles an event of a crawler that has found a hub.
    async fn handle_hub_event(&self, payload: &str) -> Result<(), SchemaError> {
        let Some((feed, hubs, known)) = event::parse_hub_event(payload) else { return Ok(()) };
        let payload = Payload::parse(payload);
        let is_silent = payload.attribute(event::SILENT).is_some();
        let is_page = payload.attribute(event::PAGE).is_some();
        let kind = if is_page { WatchedKind::Page } else { WatchedKind::Feed };
        let watched = payload.attribute(event::WATCHED).unwrap_or(feed.as_str()).to_owned();
        self.with_subscriptions(move |table| {
            let now_ms = unix_now_ms();
            let watched = WatchedUrl { url: &watched, kind };
            table.update_hubs(&feed, watched, &hubs, known, now_ms)?;
            if is_silent { table.report_silent_hub(&feed, now_ms) } else { Ok(()) }
        })
        .await
    }

    /// Notifies crawlers of leases that began or ended.
    async fn notify_crawlers(&self, client: &Client) -> Result<(), WebSubError> {
        for (token, until_ms) in
            self.with_subscriptions(|table| table.pending_crawler_updates(unix_now_ms())).await
        {
            let Some(Subscription { watched, .. }) = self.subscription(&token).await else {
                continue;
            };
            let Some(interval) = schedule_interval(client, &watched).await? else {
                self.cancel_subscription(&token).await?;
                continue;
            };
            // Without news, the check stays at its regular interval.
            self.schedule_feed_check(&watched, until_ms, Some(&interval), None).await?;
            self.update(&token, move |subscription| {
                subscription.record_crawlers_notified(until_ms);
            })
            .await?;
        }
        Ok(())
    }

    /// Sends the request to a hub that is due.
    async fn send_due_request(&self, client: &Client, token: &str) -> Result<(), WebSubError> {
        let Some(subscription) = self.subscription(token).await else { return Ok(()) };
        if !subscription.is_cancelled
            && schedule_interval(client, &subscription.watched).await?.is_none()
        {
            self.cancel_subscription(token).await?;
        }
        let owned_token = token.to_owned();
        let mode = self.with_subscriptions(move |table| {
            if table
                .get(&owned_token)
                .is_some_and(|subscription| subscription.is_removable(unix_now_ms()))
            {
                table.remove(&owned_token)?;
                return Ok::<_, SchemaError>(None);
            }
            // The successor is due now or later.
            if table.replace_with_successor(&owned_token, unix_now_ms())? {
                return Ok(None);
            }
            table.update(&owned_token, |subscription| subscription.start_request(unix_now_ms()))
        });
        let Some(mode) = mode.await? else { return Ok(()) };
        let (outcome, reason) =
            send_hub_request(&self.outgoing, &self.config, &subscription, mode).await;
        if let Some(reason) = reason {
            let (feed, hub) = (&subscription.feed, subscription.endpoint.host());
            tracing::warn!(
                feed,
                hub,
                "WebSub: the request to the hub failed or was refused: {reason}"
            );
        }
        let is_cloud = matches!(subscription.endpoint, HubEndpoint::RssCloud { .. });
        let owned_token = token.to_owned();
        let is_active = self.with_subscriptions(move |table| {
            if mode == HubMode::Unsubscribe && is_cloud && outcome == HubRequestOutcome::Accepted {
                return table.remove(&owned_token).map(|()| false);
            }
            let change = table.update(&owned_token, |subscription| {
                subscription.finish_request(outcome, unix_now_ms())
            });
            change.map(|change| change == Some(true))
        });
        if is_active.await? {
            tracing::info!(
                feed = subscription.feed,
                "WebSub: the rssCloud server of the feed accepted the subscription"
            );
        }
        Ok(())
    }
}

/// Marks the request to a hub as over when it is dropped.
struct InFlightGuard {
    token: String,
    subscriptions: Arc<Mutex<SubscriptionTable>>,
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.subscriptions.lock().request_finished(&self.token);
    }
}

/// Runs a slow function on a blocking thread.
pub(super) async fn run_blocking<T: Send + 'static>(
    operation: impl FnOnce() -> T + Send + 'static,
) -> T {
    match spawn_blocking(operation).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is shutting down, and drops this future.
            Err(_) => std::future::pending().await,
        },
    }
}

/// The interval of a URL's schedule, as the broker writes it; `None` without a schedule.
async fn schedule_interval(client: &Client, watched: &str) -> Result<Option<String>, WebSubError> {
    let Ok(url) = CanonicalUrl::parse(watched) else { return Ok(None) };
    // The group's setting decides whether a key is a host, a domain or something else.
    for key in [Some(url.host()), Some(url.domain()), None] {
        let mut settings = vec![("limit", SCHEDULES_LISTED_MAX)];
        settings.extend(key.map(|key| ("key", key)));
        let schedules = GroupCommand::new(GroupAction::Schedules, DEFAULT_GROUP, settings);
        let answer = client.request(&Command::Group(schedules)).await?;
        let mut schedules = answer.more.iter().map(|line| ScheduleStatus::parse(line));
        if let Some(schedule) = schedules.find(|schedule| schedule.url == watched) {
            return Ok(Some(schedule.every));
        }
        let end = ListEnd::parse(&answer.ok);
        if end.matched.is_none_or(|matched| matched > end.listed) {
            // It may be among the schedules that were not listed.
            return Ok(Some("1h".to_owned()));
        }
    }
    Ok(None)
}
