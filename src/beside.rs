//! What works beside a broker in its process, each over a connection of its own as any other client.

#![expect(clippy::disallowed_methods, reason = "ends what does not end by itself")]

use std::time::Duration;

use tidings_broker::{Broker, BrokerConfig};
use tidings_connectors::websub::WebSub;
use tokio::time::timeout;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    failure::Failure,
    flags::{DataFlag, ServerFlags},
    node::{self, stop_broker},
    outgoing::OutgoingFlags,
    zmq::Zmq,
};

/// What the end of all of it may take: their requests are broken off, and what they were about is handed back.
const STOP_MAX: Duration = Duration::from_millis(300);

/// For as long as this value lives.
#[derive(Debug)]
pub(crate) struct Beside {
    zmq: Option<Zmq>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// What is there before there is a broker.
#[derive(Debug)]
pub(crate) struct Prepared<'a> {
    server: &'a ServerFlags,
    outgoing: &'a OutgoingFlags,
    data: &'a DataFlag,
    websub: Option<WebSub>,
}

impl<'a> Prepared<'a> {
    /// Tells the broker of what answers requests.
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

    /// Starts all that the flags ask for; where something cannot be had, the broker is stopped.
    pub(crate) async fn start(self, broker: Broker) -> Result<(Broker, Beside), Failure> {
        match self.try_start(&broker).await {
            Ok(beside) => Ok((broker, beside)),
            Err(failure) => {
                stop_broker(broker).await;
                Err(failure)
            }
        }
    }

    async fn try_start(self, broker: &Broker) -> Result<Beside, Failure> {
        let reach = node::reach(broker);
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let Self { server, outgoing, data, websub } = self;
        let callbacks = server.callbacks.start(broker, &reach, outgoing, &stop)?;
        if let Some(public) = &server.http.public_url
            && let Some(hub) = server.http.hub.start(public, &reach, outgoing, data, &stop).await?
        {
            tasks.spawn(hub);
        }
        let zmq = Zmq::start(&server.zmq, reach.clone()).await?;
        tasks.spawn(callbacks);
        if let Some(websub) = websub {
            let stop = stop.clone();
            tasks.spawn(async move { websub.run(reach.as_str(), stop).await });
        }
        Ok(Beside { zmq, tasks, stop })
    }
}

impl Beside {
    /// What there is to say to people.
    pub(crate) fn said(&self) -> impl Iterator<Item = &str> {
        self.zmq.iter().flat_map(|zmq| &zmq.said).map(String::as_str)
    }

    /// Ends it, before the broker.
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
