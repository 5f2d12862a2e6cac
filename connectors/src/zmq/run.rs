//! The process: its sockets, and who serves them.

use tokio_util::sync::CancellationToken;

use super::ingest::{self, MessageSource};
use super::socket::{ZmqPublisher, ZmqPuller};
use super::topic_forwarder::TopicForwarder;
use super::{BoundAddresses, BridgeReport, ZmqConfig, ZmqRunError};

/// Opens the sockets, says where they are, and serves them until `stop` or until it cannot go on.
///
/// Returns what a bridge has done. Has to run on a runtime of one thread.
///
/// # Panics
/// If the configuration asks for nothing.
pub async fn run(
    config: ZmqConfig,
    ready: impl FnOnce(&BoundAddresses),
    stop: CancellationToken,
) -> Result<Option<BridgeReport>, ZmqRunError> {
    let key = config.curve_key.as_deref();
    let mut bound = BoundAddresses::default();
    let publisher = match config.publish {
        Some(at) => Some(ZmqPublisher::bind(at.0, key).await?),
        None => None,
    };
    bound.publish = publisher.as_ref().map(ZmqPublisher::address);
    let puller = match config.pull {
        Some(at) => Some(ZmqPuller::bind(at.0, key).await?),
        None => None,
    };
    bound.pull = puller.as_ref().map(ZmqPuller::address);
    assert!(
        publisher.is_some() || puller.is_some() || config.bridge.is_some(),
        "it is to do something"
    );
    ready(&bound);
    let outlet = async {
        match publisher {
            Some(publisher) => TopicForwarder::run(&config, publisher, &stop).await,
            None => Ok(()),
        }
    };
    let intake = async {
        match puller {
            Some(puller) => ingest::run(&config, MessageSource::Pull(puller), &stop).await,
            None => Ok(None),
        }
    };
    let bridge = async {
        match &config.bridge {
            Some(bridge) => match MessageSource::connect_bridge(bridge.clone(), &stop).await? {
                Some(source) => ingest::run(&config, source, &stop).await,
                None => Ok(None),
            },
            None => Ok(None),
        }
    };
    tokio::try_join!(outlet, intake, bridge).map(|((), _, heard)| heard)
}
