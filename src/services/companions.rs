//! The services that run beside a broker in its process. Each uses its own connection, like any
//! other client.

#![expect(clippy::disallowed_methods, reason = "a stop has a time limit")]

use std::time::Duration;

use tidings_broker::{Broker, BrokerConfig};
use tidings_connectors::websub::WebSub;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::flags::DataFlag;
use crate::process::stack::{self, stop_broker};
use crate::services::outgoing::OutgoingFlags;
use crate::services::server_flags::ServerFlags;
use crate::services::zmq::ZmqProcess;
use crate::terminal::failure::Failure;

/// The time limit of the stop: open requests are aborted, and unfinished work is returned.
const STOP_MAX: Duration = Duration::from_millis(300);

/// The running services, which [`Companions::stop`] ends.
#[derive(Debug)]
pub(crate) struct Companions {
    zmq: Option<ZmqProcess>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// The services that register with HTTP before the broker starts.
#[derive(Debug)]
pub(crate) struct PreparedCompanions<'a> {
    server: &'a ServerFlags,
    outgoing: &'a OutgoingFlags,
    data: &'a DataFlag,
    websub: Option<WebSub>,
}

impl<'a> PreparedCompanions<'a> {
    /// Opens the services that answer HTTP requests, and adds them to the configuration.
    pub(crate) fn new(
        config: &mut BrokerConfig,
        server: &'a ServerFlags,
        outgoing: &'a OutgoingFlags,
        data: &'a DataFlag,
    ) -> Result<Self, Failure> {
        let flags = &server.http;
        let mut websub = None;
        if let Some(http) = &mut config.http {
            websub = flags.websub.open(flags.public_url.as_ref(), http, outgoing, &data.data)?;
        }
        Ok(Self { server, outgoing, data, websub })
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
        let Self { server, outgoing, data, websub } = self;
        let callbacks = server.callbacks.start(broker, &reach, outgoing, &stop)?;
        if let Some(public) = &server.http.public_url
            && let Some(hub) = server.http.hub.start(public, &reach, outgoing, data, &stop).await?
        {
            tasks.spawn(hub);
        }
        let zmq = ZmqProcess::start(&server.zmq, reach.clone()).await?;
        tasks.spawn(callbacks);
        if let Some(websub) = websub {
            let stop = stop.clone();
            tasks.spawn(async move { websub.run(reach.as_str(), stop).await });
        }
        Ok(Companions { zmq, tasks, stop })
    }
}

impl Companions {
    /// Lines for the operator: addresses and warnings.
    pub(crate) fn notes(&self) -> impl Iterator<Item = &str> {
        self.zmq.iter().flat_map(|zmq| &zmq.notes).map(String::as_str)
    }

    /// Stops the services. Call it before the broker stops.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.tasks.close();
        let zmq = async {
            if let Some(zmq) = self.zmq {
                zmq.stop().await;
            }
        };
        tokio::join!(timeout(STOP_MAX, self.tasks.wait()), zmq).0.ok();
    }
}
