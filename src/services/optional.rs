//! The services that a build may lack: the hub (cargo feature `hub`) and ZeroMQ (`zeromq` or
//! `libzmq`). Servers use them only through this module. Without its feature, a service and its
//! flags do not exist.

#![cfg_attr(
    not(all(feature = "hub", feature = "_zmq")),
    allow(
        unused_mut,
        unused_variables,
        clippy::unnecessary_wraps,
        clippy::unused_async,
        clippy::unused_self,
        reason = "a build without one of the services needs less"
    )
)]

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use clap::Args;
use tidings_broker::EmbeddedHandler;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::flags::DataFlag;
use crate::flags::address::BrokerAddress;
#[cfg(feature = "hub")]
use crate::services::hub::HubFlags;
use crate::services::outgoing::OutgoingFlags;
use crate::services::public_url::PublicUrl;
#[cfg(feature = "_zmq")]
use crate::services::zmq::{ZmqFlags, ZmqProcess};
use crate::terminal::failure::Failure;

/// The flags of these services.
#[derive(Debug, Clone, Args)]
pub(crate) struct OptionalFlags {
    #[cfg(feature = "hub")]
    #[command(flatten)]
    hub: Box<HubFlags>,

    #[cfg(feature = "_zmq")]
    #[command(flatten)]
    zmq: ZmqFlags,
}

/// The services that run as processes, which [`OptionalServices::stop`] ends.
#[derive(Debug)]
pub(crate) struct OptionalServices {
    #[cfg(feature = "_zmq")]
    zmq: Option<ZmqProcess>,
}

impl OptionalFlags {
    /// The receivers for the broker's HTTP server.
    pub(crate) fn receivers(
        &self,
        public: Option<&PublicUrl>,
    ) -> Result<Vec<Arc<dyn EmbeddedHandler>>, Failure> {
        let mut receivers = Vec::new();
        #[cfg(feature = "hub")]
        receivers.extend(self.hub.receiver(public)?);
        Ok(receivers)
    }

    /// Whether a service starts this program again, as a process of its own.
    pub(crate) fn runs_itself(&self) -> bool {
        #[cfg(feature = "_zmq")]
        return self.zmq.is_on();
        #[cfg(not(feature = "_zmq"))]
        false
    }

    /// A file outside the data directory that a service reads.
    pub(crate) fn key_file(&self) -> Option<&Path> {
        #[cfg(feature = "_zmq")]
        return self.zmq.key_file();
        #[cfg(not(feature = "_zmq"))]
        None
    }

    /// Refuses an address that a service would open to other machines without a key.
    pub(crate) fn check_exposure(
        &self,
        is_exposed: impl Fn(SocketAddr) -> bool,
    ) -> Result<(), Failure> {
        #[cfg(feature = "_zmq")]
        self.zmq.check_exposure(is_exposed)?;
        Ok(())
    }

    /// Starts the services that the flags name.
    pub(crate) async fn start(
        &self,
        public: Option<&PublicUrl>,
        broker: &BrokerAddress,
        outgoing: &OutgoingFlags,
        data: &DataFlag,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> Result<OptionalServices, Failure> {
        #[cfg(feature = "hub")]
        if let Some(public) = public
            && let Some(hub) = self.hub.start(public, broker, outgoing, data, stop).await?
        {
            tasks.spawn(hub);
        }
        Ok(OptionalServices {
            #[cfg(feature = "_zmq")]
            zmq: ZmqProcess::start(&self.zmq, broker.clone()).await?,
        })
    }
}

impl OptionalServices {
    /// Lines for the operator: addresses and warnings.
    pub(crate) fn notes(&self) -> &[String] {
        #[cfg(feature = "_zmq")]
        return self.zmq.as_ref().map_or(&[], |zmq| &zmq.notes);
        #[cfg(not(feature = "_zmq"))]
        &[]
    }

    /// Stops them.
    pub(crate) async fn stop(self) {
        #[cfg(feature = "_zmq")]
        if let Some(zmq) = self.zmq {
            zmq.stop().await;
        }
    }
}
