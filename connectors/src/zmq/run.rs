//! Runs the ZeroMQ process: opens the sockets, and serves them.

use tokio_util::sync::CancellationToken;

use super::ingest::{self, MessageSource};
use super::socket::{ZmqPublisher, ZmqPuller};
use super::topic_forwarder::TopicForwarder;
use super::{BoundAddresses, BridgeReport, ZmqConfig, ZmqRunError};

/// Opens the sockets, reports their addresses to `ready`, and serves them until `stop` or an error.
///
/// Returns the counts of the bridge, if there is one. Must run on a runtime with one thread.
///
/// # Panics
/// If the configuration has no socket.
pub async fn run(
    config: ZmqConfig,
    ready: impl FnOnce(&BoundAddresses),
    stop: CancellationToken,
) -> Result<Option<BridgeReport>, ZmqRunError> {
    let key = config.curve_key.as_deref();
    let mut bound = BoundAddresses::default();
    let publisher = match config.sockets.publish {
        Some(endpoint) => Some(ZmqPublisher::bind(endpoint.0, key).await?),
        None => None,
    };
    bound.publish = publisher.as_ref().map(ZmqPublisher::address);
    let puller = match config.sockets.pull {
        Some(endpoint) => Some(ZmqPuller::bind(endpoint.0, key).await?),
        None => None,
    };
    bound.pull = puller.as_ref().map(ZmqPuller::address);
    assert!(
        publisher.is_some() || puller.is_some() || config.sockets.bridge.is_some(),
        "the configuration must have a socket"
    );
    ready(&bound);
    let forwarding = async {
        match publisher {
            Some(publisher) => TopicForwarder::run(&config, publisher, &stop).await,
            None => Ok(()),
        }
    };
    let pulling = async {
        match puller {
            Some(puller) => ingest::run(&config, MessageSource::Pull(puller), &stop).await,
            None => Ok(None),
        }
    };
    let bridging = async {
        match &config.sockets.bridge {
            Some(bridge) => match MessageSource::connect_bridge(bridge.clone(), &stop).await? {
                Some(source) => ingest::run(&config, source, &stop).await,
                None => Ok(None),
            },
            None => Ok(None),
        }
    };
    tokio::try_join!(forwarding, pulling, bridging).map(|((), _, report)| report)
}
