//! A subscriber of `WebSub` (W3C) and `rssCloud` hubs, for the feeds that crawlers watch.
//!
//! ```text
//! crawler: hub-found ─▶ service ─▶ request to the hub ─▶ hub verifies (GET) ─▶ active
//!                                                        hub delivers (POST, signed) ─▶ post-ready
//! ```
//!
//! While a subscription is active, crawlers check the feed only rarely. A delivery becomes ordinary
//! events. Its new items have the ids that a crawler gives them, so the topic stores each item
//! once. Another event schedules a check of the feed now. Crawlers detect a silent hub, because
//! they find items that the hub did not deliver.
//!
//! A page that names a hub but no feed is watched like a feed: each delivery that differs from the
//! previous one is an item with the URL of the page.
//!
//! | module | content |
//! |---|---|
//! | `subscription` | the state of one subscription; pure |
//! | `subscription_table`, `store` | all subscriptions, in memory and on disk |
//! | `hub_request` | requests to hubs and servers |
//! | `hub_callbacks` | requests of hubs and servers to the callback URLs |
//! | `service` | the connection to the broker, and requests that are due |

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
use std::time::Duration;

use tidings_database::schema_version::SchemaError;
use tidings_documents::tracking::TrackingParams;

pub use self::hub_callbacks::{CALLBACK_PATH, CallbackReply};
pub use self::service::WebSub;
pub use self::store::SCHEMA;
use self::store::SubscriptionStore;
use crate::system::unix_now_ms;

/// The settings of the subscriber.
#[derive(Debug, Clone)]
pub struct WebSubConfig {
    /// The database file.
    pub database: PathBuf,
    /// The URL under which hubs reach `/` of this broker; ends in a slash.
    pub public_url: String,
    /// The lease that is requested from hubs; each subscription is renewed before it ends.
    pub lease: Duration,
    /// Whether the content of a delivery signed with SHA-1 is trusted. Some hubs support no other
    /// signature.
    pub sha1: bool,
    /// The items per minute that all hubs together may deliver. The burst is this number, or one
    /// delivery if that is more.
    pub items_per_minute: u32,
    /// The parameters that are removed from links of delivered items.
    pub tracking: TrackingParams,
}

/// The lease of a feed's hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubLease {
    /// The host of the hub or server.
    pub hub_host: String,
    /// The rest of the lease.
    pub remaining: Duration,
}

/// Reads the leases of hubs that are not known to be silent, by scheduled URL. The broker of the
/// database may be running.
pub fn read_hub_leases(database: &Path) -> Result<HashMap<String, HubLease>, SchemaError> {
    let now_ms = unix_now_ms();
    let leases =
        SubscriptionStore::load_read_only(database)?.into_iter().filter_map(|subscription| {
            let remaining_ms = subscription.trusted_lease_end_ms(now_ms)? - now_ms;
            let lease = HubLease {
                hub_host: subscription.endpoint.host(),
                remaining: Duration::from_millis(remaining_ms),
            };
            Some((subscription.watched, lease))
        });
    Ok(leases.collect())
}
