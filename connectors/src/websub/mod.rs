//! Hears from hubs what is new: a subscriber of `WebSub` (W3C) and of `rssCloud`, for the feeds
//! that crawlers watch.
//!
//! ```text
//!  crawler: hub-found ─▶ service ─▶ asks the hub ─▶ hub verifies (GET) ─▶ active ─▶ crawlers look at the feed seldom
//!                                                  hub delivers (POST, signed) ─▶ post-ready, and the feed's check now
//! ```
//!
//! What comes in is an event as any other: new items under the ids that a crawler gives them, which
//! the topic keeps once, and a notification that brings the check of the feed forward. When a hub
//! proves silent the crawlers notice by themselves: they find what nobody has told them.
//!
//! A page that names a hub and no feed is watched as a feed is: each delivery that differs from the
//! one before is an item, with the URL of the page.
//!
//! | module | what it knows |
//! |---|---|
//! | `subscription` | what is agreed with a hub; pure |
//! | `subscription_table`, `store` | all subscriptions, in memory and on disk |
//! | `hub_request` | the requests to hubs and servers |
//! | `hub_callbacks` | theirs to us |
//! | `service` | the connection to the broker, and what is due |

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod hub_callbacks;
mod hub_request;
mod service;
mod signature;
mod store;
mod subscription;
mod subscription_table;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use data_encoding::HEXLOWER;
use tokio_util::sync::CancellationToken;

use self::service::WebSubService;
use self::store::SubscriptionStore;
pub use self::store::{DIGEST_SCHEMA, StoreError};
use crate::outgoing::OutgoingClient;

/// Where everything is.
#[derive(Debug, Clone)]
pub struct WebSubConfig {
    /// The file of the database.
    pub database: PathBuf,
    /// Under which URL hubs reach what is below `/` here; ends in a slash.
    pub public_url: String,
    /// How long hubs are asked to tell; before that is over they are asked again.
    pub lease: Duration,
    /// Whether deliveries that are signed with SHA-1 are taken. There are hubs that know nothing
    /// else.
    pub sha1: bool,
    /// Items that all hubs together may bring a minute; and as many at once, or one delivery,
    /// whatever is more.
    pub items_per_minute: u32,
}

/// The subscriber. As a [`Receiver`](tidings_broker::Receiver) it answers hubs.
#[derive(Debug, Clone)]
pub struct WebSub(Arc<WebSubService>);

impl WebSub {
    /// Reads what was agreed in earlier lives.
    pub fn open(config: WebSubConfig, outgoing: OutgoingClient) -> Result<Self, StoreError> {
        WebSubService::open(config, outgoing).map(|service| Self(Arc::new(service)))
    }

    /// Does what is due at the broker of this address, until `stop`.
    pub async fn run(&self, broker: &str, stop: CancellationToken) {
        Arc::clone(&self.0).run(broker, stop).await;
    }
}

/// Who tells what is new in a feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubLease {
    /// The host of the hub, or of the server.
    pub hub_host: String,
    /// How long they are still going to.
    pub remaining: Duration,
}

/// Of which scheduled URLs somebody tells what is new, and has so far, by a database whose broker
/// may be running.
pub fn read_hub_leases(database: &Path) -> Result<HashMap<String, HubLease>, StoreError> {
    let now_ms = unix_now_ms();
    let telling = SubscriptionStore::load_read_only(database)?.into_iter().filter_map(|one| {
        let left_ms = one.trusted_lease_end_ms(now_ms)? - now_ms;
        let telling =
            HubLease { hub_host: one.teller.host(), remaining: Duration::from_millis(left_ms) };
        Some((one.watched, telling))
    });
    Ok(telling.collect())
}

/// 256 random bits, which nobody can guess.
fn random_token() -> String {
    let mut bits = [0_u8; 32];
    aws_lc_rs::rand::fill(&mut bits).expect("the system has randomness");
    HEXLOWER.encode(&bits)
}

/// Milliseconds since 1970.
#[expect(
    clippy::disallowed_methods,
    reason = "leases outlive processes, so they are told by the wall clock"
)]
fn unix_now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    milliseconds(now)
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
