//! Subscriptions of this broker to hubs of watched feeds.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use hyper::Request;
use hyper::body::Bytes;
use tidings_broker::openapi::Operation;
use tidings_broker::{EmbeddedHandler, HandlerFuture, HandlerReply, HttpConfig};
use tidings_connectors::websub::{CallbackReply, WebSub, WebSubConfig};
use tidings_documents::tracking::TrackingParams;

use crate::flags::parse_duration;
use crate::process::stack;
use crate::services::operations;
use crate::services::outgoing::OutgoingFlags;
use crate::services::public_url::PublicUrl;
use crate::terminal::failure::Failure;

/// Flags of the subscriptions to hubs.
#[derive(Debug, Clone, Args)]
pub(crate) struct WebSubFlags {
    /// Do not subscribe to hubs (WebSub, rssCloud) of watched feeds; without --public-url there is
    /// no subscription either
    #[arg(long)]
    no_websub: bool,

    /// Accept notifications that are signed with SHA-1; otherwise they only cause a read of the
    /// feed
    #[arg(long)]
    websub_sha1: bool,

    /// Lease to request from hubs; it is renewed before it ends
    #[arg(long, value_name = "DURATION", default_value = "10d", value_parser = parse_lease)]
    websub_lease: Duration,
}

/// Parses a lease of 1 second to 30 days.
fn parse_lease(text: &str) -> Result<Duration, String> {
    let lease = parse_duration(text)?;
    let range = Duration::from_secs(1)..=Duration::from_hours(30 * 24);
    if range.contains(&lease) { Ok(lease) } else { Err("expected 1s to 30d".to_owned()) }
}

impl WebSubFlags {
    /// Whether there are subscriptions.
    #[cfg(feature = "cluster")]
    pub(crate) fn is_on(&self, public_url: Option<&PublicUrl>) -> bool {
        public_url.is_some() && !self.no_websub
    }

    /// Opens the subscriptions, if they are on, and adds their receiver to `http`.
    pub(crate) fn open(
        &self,
        public_url: Option<&PublicUrl>,
        http: &mut HttpConfig,
        outgoing: &OutgoingFlags,
        data: &Path,
        tracking: TrackingParams,
    ) -> Result<Option<Arc<WebSub>>, Failure> {
        let Some(public_url) = public_url.filter(|_| !self.no_websub) else { return Ok(None) };
        stack::make_data_directory(data)?;
        let database = data.join("websub.db");
        let config = WebSubConfig {
            database: database.clone(),
            public_url: public_url.to_string(),
            lease: self.websub_lease,
            sha1: self.websub_sha1,
            items_per_minute: http.hook_events_per_minute,
            tracking,
        };
        let websub = WebSub::open(config, outgoing.http_client()?)
            .map_err(|error| Failure::failed(format!("{}: {error}", database.display())))?;
        let websub = Arc::new(websub);
        http.embedded_handlers.push(Arc::new(CallbackReceiver(Arc::clone(&websub))));
        Ok(Some(websub))
    }
}

/// Receives the requests of hubs from the HTTP server of the broker.
#[derive(Debug)]
struct CallbackReceiver(Arc<WebSub>);

impl EmbeddedHandler for CallbackReceiver {
    fn operations(&self) -> Vec<Operation> {
        operations::of_websub()
    }

    fn is_issued_path(&self, path: &str) -> bool {
        self.0.is_callback(path)
    }

    fn accepts_unissued_paths(&self) -> bool {
        false
    }

    fn handle(&self, request: Request<Bytes>, _: IpAddr) -> HandlerFuture<'_> {
        Box::pin(async move {
            match self.0.handle_callback(request).await {
                CallbackReply::Verified(response) => HandlerReply::Verified(response),
                CallbackReply::Rejected(reason) => HandlerReply::Rejected(reason),
            }
        })
    }
}
