//! The WebSub hub for the operator's own feeds: its flags, and its receiver in the broker's HTTP
//! server.

#![expect(clippy::disallowed_methods, reason = "a request outlives the connection of its client")]

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use clap::Args;
use hyper::body::Bytes;
use hyper::header::RETRY_AFTER;
use hyper::{HeaderMap, Request, Response, StatusCode};
use tidings_broker::openapi::Operation;
use tidings_broker::{
    ClassifyFuture, CountersFuture, EmbeddedHandler, HandlerFuture, HandlerReply, RequestClass,
    is_forwarded,
};
use tidings_connectors::hub::{
    Hub, HubConfig, HubCounts, HubLimits, HubRequestClass, HubResponse, HubRules,
};
use tidings_protocol::{CanonicalUrl, IpNetwork, partial_debug};
use tokio_util::sync::CancellationToken;

use crate::flags::address::BrokerAddress;
use crate::flags::{DataFlag, parse_duration};
use crate::services::hub_operations;
use crate::services::outgoing::OutgoingFlags;
use crate::services::public_url::PublicUrl;
use crate::terminal::failure::Failure;

/// The database of the hub, in the data directory.
const FILE: &str = "hub.db";

/// The shortest lease, unless the default lease is shorter.
const LEASE_MIN: Duration = Duration::from_hours(1);

/// How long deliveries to a subscriber may fail before it is removed.
const FAILING_MAX: Duration = Duration::from_hours(72);

/// The limit of pending verifications.
const PENDING_VERIFICATIONS_MAX: u64 = 10_000;

#[derive(Debug, Clone, Args)]
pub(crate) struct HubFlags {
    /// Act as a hub (WebSub, rssCloud) for feeds and pages below this URL, at PUBLIC-URL/hub
    ///
    /// Needs --public-url. The feeds may be at private addresses; subscribers may be only with
    /// --allow-private. A proxy in front must set X-Forwarded-For, Forwarded, X-Real-IP or Via.
    /// Without one of these, all clients of the proxy count as local and may publish if local
    /// clients may. May be repeated.
    #[arg(long, value_name = "URL")]
    hub: Vec<CanonicalUrl<'static>>,

    /// Networks from which publishers may notify the hub of a change; requests through a proxy
    /// never may
    #[arg(long, value_name = "NET,..", value_delimiter = ',', default_value = "127.0.0.0/8,::1")]
    hub_publishers: Vec<IpNetwork>,

    /// Lease of a hub subscription when the subscriber requests none
    #[arg(long, value_name = "DURATION", default_value = "10d", value_parser = parse_duration)]
    hub_lease: Duration,

    /// Longest lease of a hub subscription
    #[arg(long, value_name = "DURATION", default_value = "30d", value_parser = parse_duration)]
    hub_lease_max: Duration,

    /// Maximum number of hub subscriptions
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    hub_subscribers: u64,

    /// Remove a hub subscription after this many failed deliveries in a row
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    hub_failures: u32,

    /// Requests per minute from one source to the hub
    ///
    /// Renewals and requests without an effect have limits of their own. All clients of a proxy
    /// count as one source.
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    hub_rate: u32,

    #[arg(skip)]
    slot: HubSlot,
}

/// The slot through which requests reach the hub, which starts after the broker.
#[derive(Debug, Clone, Default)]
struct HubSlot(Arc<OnceLock<Arc<Hub>>>);

/// The receiver of hub requests in the HTTP server.
struct HubReceiver {
    slot: HubSlot,
    per_minute: u32,
}

impl HubFlags {
    /// The receiver for the broker's HTTP server, if the hub is on.
    pub(crate) fn receiver(
        &self,
        public: Option<&PublicUrl>,
    ) -> Result<Option<Arc<dyn EmbeddedHandler>>, Failure> {
        if self.hub.is_empty() {
            return Ok(None);
        }
        if public.is_none() {
            let text = "--hub needs --public-url: subscribers must know the URL of the hub";
            return Err(Failure::Usage(text.to_owned()));
        }
        if self.hub_lease > self.hub_lease_max || self.hub_lease.is_zero() {
            let text = "--hub-lease must be more than 0 and at most --hub-lease-max";
            return Err(Failure::Usage(text.to_owned()));
        }
        Ok(Some(Arc::new(HubReceiver { slot: self.slot.clone(), per_minute: self.hub_rate })))
    }

    /// Starts the hub, if it is on, and returns the future that runs it until `stop`.
    pub(crate) async fn start(
        &self,
        public: &PublicUrl,
        broker: &BrokerAddress,
        outgoing: &OutgoingFlags,
        data: &DataFlag,
        stop: &CancellationToken,
    ) -> Result<Option<impl Future<Output = ()> + Send + use<>>, Failure> {
        if self.hub.is_empty() {
            return Ok(None);
        }
        let hub: CanonicalUrl<'static> = format!("{public}hub")
            .parse()
            .map_err(|error| Failure::Usage(format!("--public-url {public}: {error}")))?;
        let config = HubConfig {
            broker: broker.as_str().to_owned(),
            rules: HubRules {
                topic_prefixes: self.hub.clone(),
                hub_url: hub,
                default_lease: self.hub_lease,
                lease_min: LEASE_MIN.min(self.hub_lease),
                lease_max: self.hub_lease_max,
            },
            limits: HubLimits {
                subscriptions_max: self.hub_subscribers,
                pending_requests_max: PENDING_VERIFICATIONS_MAX,
                failed_deliveries_max: self.hub_failures,
                failing_max: FAILING_MAX,
            },
            publisher_networks: self.hub_publishers.clone(),
        };
        let (strangers, own_site) =
            (outgoing.http_client()?, outgoing.http_client_for_named_hosts()?);
        let (hub, connected) = Hub::start(config, &data.data.join(FILE), strangers, own_site)
            .await
            .map_err(|error| Failure::failed(format!("the hub cannot start: {error}")))?;
        let running = Arc::clone(&hub).run(connected, stop.clone());
        self.slot.0.set(hub).expect("it is started once");
        Ok(Some(running))
    }
}

partial_debug!(HubReceiver { per_minute });

impl EmbeddedHandler for HubReceiver {
    fn operations(&self) -> Vec<Operation> {
        hub_operations::operations()
    }

    fn requests_per_minute(&self) -> u32 {
        self.per_minute
    }

    fn counters(&self) -> CountersFuture<'_> {
        Box::pin(async move {
            let HubCounts { topics, subscribers, pending_requests } =
                self.slot.0.get()?.counts().await.ok()?;
            let numbers = vec![
                ("topics", topics),
                ("subscribers", subscribers),
                ("waiting", pending_requests),
            ];
            Some(("hub", numbers))
        })
    }

    fn classify<'a>(&'a self, request: &'a Request<Bytes>, peer: IpAddr) -> ClassifyFuture<'a> {
        Box::pin(async move {
            let Some(hub) = self.slot.0.get() else { return RequestClass::Anonymous };
            match hub.classify(request, direct_client(request, peer)).await {
                HubRequestClass::Publisher => RequestClass::Verified,
                HubRequestClass::ExistingSubscription(number) => RequestClass::Resource(number),
                HubRequestClass::NewSubscription => RequestClass::Anonymous,
                HubRequestClass::Invalid => RequestClass::Unwanted,
            }
        })
    }

    fn handle(&self, request: Request<Bytes>, peer: IpAddr) -> HandlerFuture<'_> {
        Box::pin(async move {
            let Some(hub) = self.slot.0.get() else {
                return HandlerReply::Public(starting_response());
            };
            // A request that was stored is completed even if the client disconnects.
            let hub = Arc::clone(hub);
            let client = direct_client(&request, peer);
            let answer = tokio::spawn(async move { hub.handle(request, client).await });
            match answer.await.expect("it does not panic") {
                HubResponse::Trusted(response) => HandlerReply::Verified(response),
                HubResponse::Public(response) => HandlerReply::Public(response),
                HubResponse::Rejected(reason) => HandlerReply::Rejected(reason),
            }
        })
    }
}

/// The address of the client, unless a proxy is in between.
fn direct_client(request: &Request<Bytes>, peer: IpAddr) -> Option<IpAddr> {
    (!is_forwarded(request.headers())).then_some(peer)
}

fn starting_response() -> Response<Bytes> {
    let mut response = Response::new(Bytes::from_static(b"the hub is starting\n"));
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    *response.headers_mut() = HeaderMap::from_iter([(RETRY_AFTER, 1.into())]);
    response
}
