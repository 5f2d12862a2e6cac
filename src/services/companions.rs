//! The services that run beside a broker in its process. Each uses its own connection, like any
//! other client.

#![expect(clippy::disallowed_methods, reason = "a stop has a time limit")]

use std::sync::Arc;
use std::time::Duration;

use tidings_broker::{Broker, BrokerConfig};
use tidings_connectors::delivery::Delivery;
use tidings_connectors::push;
use tidings_connectors::receivers::Receivers;
use tidings_connectors::websub::WebSub;
use tidings_documents::tracking::TrackingParams;
use tidings_metrics::{Exposition, MetricsSource};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::flags::DataFlag;
use crate::process::stack::{self, stop_broker};
use crate::services::optional::OptionalServices;
use crate::services::outgoing::OutgoingFlags;
use crate::services::server_flags::ServerFlags;
use crate::terminal::failure::Failure;

/// The time limit of the stop: open requests are aborted, and unfinished work is returned.
const STOP_MAX: Duration = Duration::from_millis(300);

/// The running services, which [`Companions::stop`] ends.
#[derive(Debug)]
pub(crate) struct Companions {
    optional: OptionalServices,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// The services that register with HTTP before the broker starts.
#[derive(Debug)]
pub(crate) struct PreparedCompanions<'a> {
    server: &'a ServerFlags,
    outgoing: &'a OutgoingFlags,
    data: &'a DataFlag,
    websub: Option<Arc<WebSub>>,
    receivers: Arc<Receivers>,
}

/// The receivers that refuse messages, as warnings of the broker.
#[derive(Debug)]
struct ReceiverWarnings(Arc<Receivers>);

impl MetricsSource for ReceiverWarnings {
    fn add_to(&self, _: &mut Exposition) {}

    fn warnings(&self) -> Vec<String> {
        self.0.problems()
    }
}

impl<'a> PreparedCompanions<'a> {
    /// Opens the services that answer HTTP requests, and adds them to the configuration, with what
    /// the receivers of the other services refuse.
    pub(crate) fn new(
        config: &mut BrokerConfig,
        server: &'a ServerFlags,
        outgoing: &'a OutgoingFlags,
        data: &'a DataFlag,
        tracking: TrackingParams,
    ) -> Result<Self, Failure> {
        let flags = &server.http;
        let mut websub = None;
        if let Some(http) = &mut config.http {
            let (public_url, data) = (flags.public_url.as_ref(), &data.data);
            websub = flags.websub.open(public_url, http, outgoing, data, tracking)?;
            http.embedded_handlers.extend(outgoing.identity.directory()?);
        }
        let receivers = Arc::<Receivers>::default();
        config.metrics_sources.push(Arc::new(ReceiverWarnings(Arc::clone(&receivers))));
        Ok(Self { server, outgoing, data, websub, receivers })
    }

    /// Starts all services that the flags name. If one cannot start, the broker is stopped.
    pub(crate) async fn start(self, broker: Broker) -> Result<(Broker, Companions), Failure> {
        match self.try_start(&broker).await {
            Ok(beside) => Ok((broker, beside)),
            Err(failure) => {
                stop_broker(broker).await;
                Err(failure)
            }
        }
    }

    async fn try_start(self, broker: &Broker) -> Result<Companions, Failure> {
        let reach = stack::client_address(broker);
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let Self { server, outgoing, data, websub, receivers } = self;
        let client = Arc::new(outgoing.http_client()?);
        let callbacks = server.callbacks.start(broker, &reach, &client, &receivers, &stop)?;
        let pushes = server.pushes()?;
        let public = server.http.public_url.as_ref();
        let optional = server.optional.start(public, &reach, outgoing, data, &tasks, &stop).await?;
        tasks.spawn(callbacks);
        for (push, signer) in pushes {
            let (broker, outgoing) = (reach.to_string(), Arc::clone(&client));
            let receivers = Arc::clone(&receivers);
            let delivery = Delivery { broker, outgoing, signer, receivers };
            tasks.spawn(push::run(push, delivery, stop.clone()));
        }
        if let Some(websub) = websub {
            let stop = stop.clone();
            tasks.spawn(async move { websub.run(reach.as_str(), stop).await });
        }
        Ok(Companions { optional, tasks, stop })
    }
}

impl Companions {
    /// Lines for the operator: addresses and warnings.
    pub(crate) fn notes(&self) -> impl Iterator<Item = &str> {
        self.optional.notes().iter().map(String::as_str)
    }

    /// Stops the services. Call it before the broker stops.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.tasks.close();
        tokio::join!(timeout(STOP_MAX, self.tasks.wait()), self.optional.stop()).0.ok();
    }
}
