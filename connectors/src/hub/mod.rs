//! The hub of the operator's own site, for WebSub and rssCloud. Subscribers register here,
//! publishers report changes, and the hub sends each change to all verified subscribers.
//!
//! ```text
//!  forms ─▶ HTTP endpoint ─▶ store (hub.db)
//!               │ 202 once the row and the event are durable
//!               ├▶ topic, group hub-verify ─▶ verify: challenge the callback
//!               └▶ topic, group hub ─▶ fetch: if the topic has changed, an event per subscriber
//!                                   └▶ deliver: POST, signed
//! ```
//!
//! An event names a topic by its URL, and a subscription by the id of its row in the store. So
//! events contain no secrets and no callbacks. The target of an event about a subscription is a URL
//! of the hub for that subscription: a second event is merged with the one that waits, and each
//! topic of a callback has a target of its own. The key is the host that gets the request. So a
//! host gets few requests at a time, and a host that does not respond delays no other.
//!
//! A delivery sends the newest content at the time of sending. Of two changes in quick succession a
//! subscriber may get only the second one, but it always gets the last one.

#![expect(clippy::disallowed_methods, reason = "the database is accessed on blocking threads")]

mod callback_request;
mod content_cache;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod http_endpoint;
mod hub_request;
mod rsscloud;
mod store;
mod task_handler;
mod verification_waiters;

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use parking_lot::Mutex;
use tidings_client::{ClientError, ClientOptions, Connector, GroupSetup, Worker, WorkerLink};
use tidings_egress::client::OutgoingClient;
use tidings_protocol::{
    AttributeFilter, CanonicalUrl, GroupName, HUB_TOPIC, HUB_VERIFY_TOPIC, IpNetwork, MemberId,
    TopicName,
};
use tokio::task::spawn_blocking;
use tokio::time::{interval, timeout};
use tokio_util::sync::CancellationToken;

use self::content_cache::ContentCache;
pub use self::http_endpoint::{HubRequestClass, HubResponse, PATHS};
pub use self::hub_request::HubRules;
pub use self::store::{HubCounts, HubLimits, SCHEMA};
use self::store::{HubStore, RowId, UnixMs};
use self::task_handler::{CONTENT_BYTES_MAX, HubTaskHandler};
use self::verification_waiters::VerificationWaiters;
use crate::rate_limited_log::RateLimitedLog;
use crate::system::unix_now_ms;

/// The label that the broker shows.
const CLIENT_NAME: &str = "tidings-hub";

/// The key of the groups: the host that gets the request.
const GROUP_KEY: &str = "attr:host";

/// A topic of work, and the group of the same name that does it.
#[derive(Debug)]
struct HubQueue {
    name: &'static str,
    /// Limit of requests in flight, to all hosts together.
    credit: u32,
    /// Settings with which the group is created. The operator may change them later.
    /// `page-ready` is off because the tasks are not pages.
    settings: &'static [(&'static str, &'static str)],
}

/// Fetches topics and delivers their content. Eight attempts take about 20 minutes.
const DELIVERY_QUEUE: HubQueue = HubQueue {
    name: HUB_TOPIC,
    credit: 64,
    settings: &[
        ("parallel", "8"),
        ("delay", "0"),
        ("lease", "60s"),
        ("max-attempts", "8"),
        ("backoff", "10s"),
        ("page-ready", "off"),
    ],
};

/// Verifies subscribers. It is a group of its own, so that callbacks that never respond delay no
/// delivery.
const VERIFICATION_QUEUE: HubQueue = HubQueue {
    name: HUB_VERIFY_TOPIC,
    credit: 32,
    settings: &[
        ("parallel", "4"),
        ("delay", "0"),
        ("lease", "60s"),
        ("max-attempts", "3"),
        ("backoff", "10s"),
        ("page-ready", "off"),
    ],
};

impl HubQueue {
    fn group(&self) -> GroupName {
        self.name.parse().expect("the constant is a valid name")
    }

    fn topic(&self) -> TopicName {
        self.name.parse().expect("the constant is a valid name")
    }

    /// Connects to the broker as this member, and creates the group if it does not exist.
    async fn connect(&self, broker: &str, member: MemberId) -> Result<Worker, ClientError> {
        let options = ClientOptions {
            name: Some(CLIENT_NAME.to_owned()),
            resume: Some(member),
            ..ClientOptions::default()
        };
        let (group, topic, settings) = (self.group(), self.topic(), self.settings);
        let filter = AttributeFilter::default();
        let setup =
            GroupSetup { group, topic, key: GROUP_KEY, is_exclusive: false, filter, settings };
        let mut connector = Connector::new(broker, options).persistent().with_group(setup);
        let connection = connector.connect().await?;
        Ok(Worker::new(connector, self.group(), self.credit).on(connection))
    }
}

/// Time limit of a publish, which also waits for a connection.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(10);

const SWEEP_INTERVAL: Duration = Duration::from_mins(10);

/// Configuration of a hub.
#[derive(Debug, Clone)]
pub struct HubConfig {
    /// Address of the broker.
    pub broker: String,
    /// The topics, the URL of the hub, and the leases.
    pub rules: HubRules,
    /// Limits of the store.
    pub limits: HubLimits,
    /// Networks from which publishers may send pings.
    pub publisher_networks: Vec<IpNetwork>,
}

/// A running hub.
#[derive(Debug)]
pub struct Hub {
    config: HubConfig,
    store: Arc<HubStore>,
    /// Part of the ids of events. It is random for each `hub.db`, because row ids start at 1 again
    /// in a new file.
    database_id: String,
    /// For requests to subscribers, which may be at any address.
    subscriber_client: OutgoingClient,
    /// For requests to the operator's own site.
    site_client: OutgoingClient,
    /// Publishes events on the connection of the deliveries.
    link: WorkerLink,
    /// Targets of the tasks that are running. Two tasks with the same topic or subscription never
    /// run at once, so none overtakes the other.
    active_targets: Mutex<HashSet<String>>,
    content_cache: Mutex<ContentCache>,
    verification_waiters: VerificationWaiters,
    logs: HubLogs,
}

/// Problems that anonymous clients can cause as often as they like.
#[derive(Debug)]
struct HubLogs {
    /// Requests to subscribers at addresses that are not allowed, or that can never succeed.
    unreachable_subscribers: Mutex<RateLimitedLog>,
    rejected_subscribers: Mutex<RateLimitedLog>,
    /// Events that the hub did not publish.
    invalid_events: Mutex<RateLimitedLog>,
}

/// The members of both groups of the hub.
pub type HubWorkers = (Worker, Worker);

impl Hub {
    /// Opens the database at `path`, and connects to the broker. [`run`](Self::run) does the work.
    /// `subscriber_client` sends the requests to subscribers, `site_client` those to topics, which
    /// lie below the prefixes of the rules.
    pub async fn start(
        config: HubConfig,
        path: &Path,
        subscriber_client: OutgoingClient,
        site_client: OutgoingClient,
    ) -> Result<(Arc<Self>, HubWorkers), String> {
        let file = path.to_owned();
        let store = spawn_blocking(move || HubStore::open(&file)).await;
        let store = store.expect("opening a file does not panic")?;
        let member = store.member_id().map_err(|error| format!("{}: {error}", path.display()))?;
        let workers = tokio::try_join!(
            DELIVERY_QUEUE.connect(&config.broker, member),
            VERIFICATION_QUEUE.connect(&config.broker, MemberId(member.0 ^ 1))
        )
        .map_err(|error| error.to_string())?;
        let hub = Self {
            link: workers.0.link(),
            config,
            database_id: format!("{:08x}", member.0 >> 96),
            store: Arc::new(store),
            subscriber_client,
            site_client,
            active_targets: Mutex::default(),
            content_cache: Mutex::new(ContentCache::new(CONTENT_BYTES_MAX)),
            verification_waiters: VerificationWaiters::default(),
            logs: HubLogs {
                unreachable_subscribers: rate_limited_log("unreachable subscribers of the hub"),
                rejected_subscribers: rate_limited_log(
                    "subscription requests over a limit of the hub",
                ),
                invalid_events: rate_limited_log(
                    "events on the hub's topics that the hub did not publish",
                ),
            },
        };
        Ok((Arc::new(hub), workers))
    }

    /// Runs the tasks of both groups until `stop`, which interrupts the tasks that are running.
    pub async fn run(
        self: Arc<Self>,
        (delivery, verification): HubWorkers,
        stop: CancellationToken,
    ) {
        let workers = async {
            tokio::join!(
                self.run_worker(&DELIVERY_QUEUE, delivery, stop.clone()),
                self.run_worker(&VERIFICATION_QUEUE, verification, stop.clone())
            )
        };
        tokio::select! {
            _ = workers => {}
            () = self.sweep_periodically() => {}
        }
        self.verification_waiters.cancel_all();
    }

    /// Counts topics, subscribers and pending requests.
    pub async fn counts(&self) -> rusqlite::Result<HubCounts> {
        self.with_store(HubStore::counts).await
    }

    async fn run_worker(
        self: &Arc<Self>,
        queue: &HubQueue,
        worker: Worker,
        stop: CancellationToken,
    ) {
        let handler = HubTaskHandler { hub: Arc::clone(self), stop: stop.clone() };
        if let Err(error) = worker.run(handler, None, stop).await {
            tracing::error!(group = queue.name, %error, "the hub's worker has stopped");
        }
    }

    /// Returns when all events are as safe as the topic promises. After an error some may be
    /// published.
    async fn publish(&self, queue: &HubQueue, events: &[String]) -> Result<(), ClientError> {
        let topic = queue.topic();
        let published = try_join_all(events.iter().map(|event| self.link.publish(&topic, event)));
        match timeout(PUBLISH_TIMEOUT, published).await {
            Ok(published) => published.map(drop),
            Err(_elapsed) => {
                let address = self.config.broker.clone();
                Err(ClientError::Timeout { address, after: PUBLISH_TIMEOUT })
            }
        }
    }

    async fn sweep_periodically(&self) {
        let mut ticks = interval(SWEEP_INTERVAL);
        loop {
            ticks.tick().await;
            match self.with_store(|store| store.remove_expired(now_unix_ms())).await {
                Ok(0) => {}
                Ok(ended) => tracing::info!(ended, "leases of hub subscriptions have expired"),
                Err(error) => tracing::error!(%error, "cannot access hub.db"),
            }
        }
    }

    async fn with_store<T: Send + 'static>(
        &self,
        query: impl FnOnce(&HubStore) -> rusqlite::Result<T> + Send + 'static,
    ) -> rusqlite::Result<T> {
        let store = Arc::clone(&self.store);
        spawn_blocking(move || query(&store)).await.expect("the store does not panic")
    }

    /// A URL below the hub that serves as the target of an event. No client can request it.
    fn own_url(&self, kind: &str, id: RowId) -> String {
        format!("{}/{kind}/{id}", self.config.rules.hub_url)
    }
}

fn rate_limited_log(message: &'static str) -> Mutex<RateLimitedLog> {
    Mutex::new(RateLimitedLog::new(message))
}

/// The host of a URL, as the value of an attribute.
fn host_of(url: &str) -> String {
    CanonicalUrl::parse(url).map_or_else(|_| "none".to_owned(), |url| url.host().to_owned())
}

fn now_unix_ms() -> UnixMs {
    i64::try_from(unix_now_ms()).unwrap_or(i64::MAX)
}
