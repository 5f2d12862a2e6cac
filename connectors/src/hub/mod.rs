//! The hub of one's own site: subscribers of WebSub and rssCloud ask here to be told, publishers
//! say that something has changed, and everybody who has shown to want it is sent it.
//!
//! ```text
//!  forms ─▶ receiver ─▶ store (hub.db) ─▶ event on hub-verify ─▶ group hub-verify ─▶ verify: does it want that?
//!             202 once both are safe   └▶ event on hub ─▶ group hub ─▶ fetch: has it changed? an event per subscriber
//!                                         numbers only            └▶ deliver: POST, signed
//! ```
//!
//! An event names what is to be done by its number in the store, so that no secret and no callback
//! is in one. Its target is a URL of the hub's own for each subscription: what waits for the same
//! one already is enough, and that of another topic is another one, also where the callback is the
//! same. Its key is the host that will be asked, so that none has more than a few requests at once,
//! and one that does not answer holds nobody else up.
//!
//! A delivery sends the newest content that there is when it is made: of two that follow each other
//! closely a subscriber may see the second one only, but always that.

#![expect(
    clippy::disallowed_methods,
    reason = "leases end by the wall clock, and the file is read and written by threads"
)]

mod callback_request;
mod content_cache;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod http_endpoint;
mod hub_request;
mod publisher;
mod rsscloud;
mod store;
mod task_handler;
mod verification_waiters;

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use tidings_protocol::client::{self, Client, ClientOptions, Deliveries};
use tidings_protocol::{
    CanonicalUrl, GroupName, HUB_TOPIC, HUB_VERIFY_TOPIC, IpNetwork, MemberId, TopicName,
};
use tokio::task::spawn_blocking;
use tokio::time::{interval, sleep};
use tokio_util::sync::CancellationToken;

use self::content_cache::ContentCache;
pub use self::http_endpoint::{HubResponse, OPENAPI_PATHS, PATHS};
pub use self::hub_request::HubRules;
use self::publisher::HubPublisher;
pub use self::store::{HubCounts, HubLimits, SCHEMA};
use self::store::{HubStore, UnixMs};
use self::task_handler::{CONTENT_BYTES_MAX, HubTaskHandler};
use self::verification_waiters::VerificationWaiters;
use crate::outgoing::OutgoingClient;
use crate::rate_limited_log::RateLimitedLog;
use crate::worker::{self, WorkerConfig, WorkerError};

/// The label that the broker shows.
const CLIENT_NAME: &str = "tidings-hub";

/// Whom a request is made to.
const GROUP_KEY: &str = "attr:host";

/// A topic of what is to be done, and the group of the same name that does it.
#[derive(Debug)]
struct HubQueue {
    name: &'static str,
    /// Requests at once, to all hosts together.
    credit: u32,
    /// What the group is told when it is made; what it is told later is the operator's.
    settings: [(&'static str, &'static str); 5],
}

/// Looks at topics, and sends what they say. Eight attempts take some 20 minutes.
const DELIVERY_QUEUE: HubQueue = HubQueue {
    name: HUB_TOPIC,
    credit: 64,
    settings: [
        ("parallel", "8"),
        ("delay", "0"),
        ("lease", "60s"),
        ("max-attempts", "8"),
        ("backoff", "10s"),
    ],
};

/// Asks strangers whether they meant it: apart, so that those who never answer hold up nothing that
/// is sent.
const VERIFICATION_QUEUE: HubQueue = HubQueue {
    name: HUB_VERIFY_TOPIC,
    credit: 32,
    settings: [
        ("parallel", "4"),
        ("delay", "0"),
        ("lease", "60s"),
        ("max-attempts", "3"),
        ("backoff", "10s"),
    ],
};

impl HubQueue {
    fn group(&self) -> GroupName {
        self.name.parse().expect("it is a name")
    }

    fn topic(&self) -> TopicName {
        self.name.parse().expect("it is a name")
    }

    /// Comes to the group as this member, and makes it if there is none.
    async fn join(&self, broker: &str, member: MemberId) -> Result<GroupConnection, String> {
        let options = ClientOptions {
            name: Some(CLIENT_NAME.to_owned()),
            resume: Some(member),
            ..ClientOptions::default()
        };
        let connected =
            client::connect(broker, options).await.map_err(|error| error.to_string())?;
        worker::ensure_group(&connected.0, &self.group(), &self.topic(), GROUP_KEY, &self.settings)
            .await
            .map_err(|error| error.to_string())?;
        Ok(connected)
    }
}

/// How long to wait when the broker does not have the hub.
const RECONNECT_DELAY: Duration = Duration::from_secs(5);

/// Between two looks at what has ended.
const SWEEP_INTERVAL: Duration = Duration::from_mins(10);

/// What a hub is told.
#[derive(Debug, Clone)]
pub struct HubConfig {
    /// Address of the broker.
    pub broker: String,
    /// What it is for.
    pub rules: HubRules,
    /// How much it takes.
    pub limits: HubLimits,
    /// From where publishers ping.
    pub publisher_networks: Vec<IpNetwork>,
}

/// A running hub.
#[derive(Debug)]
pub struct Hub {
    config: HubConfig,
    store: Arc<HubStore>,
    /// In the ids of its events: another one where the file is another one, whose numbers begin
    /// anew.
    database_id: String,
    /// To subscribers, who are strangers.
    subscriber_client: OutgoingClient,
    /// To the site itself.
    site_client: OutgoingClient,
    publisher: HubPublisher,
    /// What is being worked on: of one topic, and of one subscription, never two things at once, so
    /// that none overtakes the other.
    active_targets: Mutex<HashSet<String>>,
    content_cache: Mutex<ContentCache>,
    verification_waiters: VerificationWaiters,
    logs: HubLogs,
}

/// Of what strangers do, who may do it often.
#[derive(Debug)]
struct HubLogs {
    /// Subscribers at addresses that must not be asked, or that will never do.
    unreachable_subscribers: Mutex<RateLimitedLog>,
    /// Wishes for which there is no room.
    rejected_subscribers: Mutex<RateLimitedLog>,
    /// Events that are none of the hub's.
    invalid_events: Mutex<RateLimitedLog>,
}

/// A connection of one who shares the events of a group.
type GroupConnection = (Client, Deliveries);

/// The two of a hub.
pub type HubConnections = (GroupConnection, GroupConnection);

impl Hub {
    /// Opens what it remembers, in this file, and connects to the broker. What it made is worked on
    /// by [`run`](Self::run). Subscribers are asked by `outgoing`; by `site_client` nothing but what
    /// lies below the prefixes of the rules.
    pub async fn start(
        config: HubConfig,
        path: &Path,
        outgoing: OutgoingClient,
        own_site: OutgoingClient,
    ) -> Result<(Arc<Self>, HubConnections), String> {
        let file = path.to_owned();
        let store = spawn_blocking(move || HubStore::open(&file)).await;
        let store = store.expect("opening a file does not panic")?;
        let member = store.member_id().map_err(|error| format!("{}: {error}", path.display()))?;
        let joined = (
            DELIVERY_QUEUE.join(&config.broker, member).await?,
            VERIFICATION_QUEUE.join(&config.broker, MemberId(member.0 ^ 1)).await?,
        );
        let hub = Self {
            publisher: HubPublisher::new(config.broker.clone(), CLIENT_NAME),
            config,
            database_id: format!("{:08x}", member.0 >> 96),
            store: Arc::new(store),
            subscriber_client: outgoing,
            site_client: own_site,
            active_targets: Mutex::default(),
            content_cache: Mutex::new(ContentCache::new(CONTENT_BYTES_MAX)),
            verification_waiters: VerificationWaiters::default(),
            logs: HubLogs {
                unreachable_subscribers: rate_limited_log(
                    "subscribers of the hub that cannot be reached",
                ),
                rejected_subscribers: rate_limited_log("subscribers for whom the hub has no room"),
                invalid_events: rate_limited_log(
                    "events of the hub's topics that are none of the hub's",
                ),
            },
        };
        Ok((Arc::new(hub), joined))
    }

    /// Does what there is to do until `stop`, which breaks off what is under way.
    pub async fn run(self: Arc<Self>, (sending, asking): HubConnections, stop: CancellationToken) {
        let working = async {
            tokio::join!(
                self.run_worker(&DELIVERY_QUEUE, sending, stop.clone()),
                self.run_worker(&VERIFICATION_QUEUE, asking, stop.clone())
            )
        };
        tokio::select! {
            _ = working => {}
            () = self.sweep_periodically() => {}
        }
        self.verification_waiters.cancel_all();
    }

    /// How much there is.
    pub async fn counts(&self) -> rusqlite::Result<HubCounts> {
        self.with_store(HubStore::counts).await
    }

    /// Takes the tasks of a group, to the end.
    async fn run_worker(
        self: &Arc<Self>,
        work: &HubQueue,
        connected: GroupConnection,
        stop: CancellationToken,
    ) {
        let config = WorkerConfig {
            broker: self.config.broker.clone(),
            name: CLIENT_NAME,
            group: work.group(),
            credit: work.credit,
            count: None,
        };
        let mut connected = connected;
        loop {
            let handler = HubTaskHandler { hub: Arc::clone(self), stop: stop.clone() };
            let member = connected.0.hello().resume;
            match worker::run(config.clone(), connected, handler, stop.clone()).await {
                Ok(()) => return,
                Err(WorkerError::Broker(error)) => {
                    tracing::error!(group = work.name, %error, "the hub does nothing at the moment");
                }
                Err(WorkerError::Handler(never)) => match never {},
            }
            connected = loop {
                sleep(RECONNECT_DELAY).await;
                if let Ok(connected) = work.join(&config.broker, member).await {
                    break connected;
                }
            };
        }
    }

    /// Again and again forgets what has ended.
    async fn sweep_periodically(&self) {
        let mut times = interval(SWEEP_INTERVAL);
        loop {
            times.tick().await;
            match self.with_store(|store| store.remove_expired(now_unix_ms())).await {
                Ok(0) => {}
                Ok(ended) => tracing::info!(ended, "leases of subscribers of the hub have ended"),
                Err(error) => tracing::error!(%error, "hub.db"),
            }
        }
    }

    /// Asks the store, on a thread that may wait for a disk.
    async fn with_store<T: Send + 'static>(
        &self,
        question: impl FnOnce(&HubStore) -> rusqlite::Result<T> + Send + 'static,
    ) -> rusqlite::Result<T> {
        let store = Arc::clone(&self.store);
        spawn_blocking(move || question(&store)).await.expect("the store does not panic")
    }

    /// The URL of something of the hub's: of nothing that anybody could ask for.
    fn own_url(&self, what: &str, number: i64) -> String {
        format!("{}/{what}/{number}", self.config.rules.hub_url)
    }
}

fn rate_limited_log(what: &'static str) -> Mutex<RateLimitedLog> {
    Mutex::new(RateLimitedLog::new(what))
}

/// A host as the value of an attribute.
fn host_of(url: &str) -> String {
    CanonicalUrl::parse(url).map_or_else(|_| "none".to_owned(), |url| url.host().to_owned())
}

fn now_unix_ms() -> UnixMs {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
