//! The process: its sockets, and who serves them.

use tokio_util::sync::CancellationToken;

use super::intake::{self, Source};
use super::outlet::Outlet;
use super::socket::{Publisher, Puller};
use super::{Bound, Config, Heard, RunError};

/// Opens the sockets, says where they are, and serves them until `stop` or until it cannot go on.
///
/// Returns what a bridge has done. Has to run on a runtime of one thread.
///
/// # Panics
/// If the configuration asks for nothing.
pub async fn run(
    config: Config,
    ready: impl FnOnce(&Bound),
    stop: CancellationToken,
) -> Result<Option<Heard>, RunError> {
    let key = config.key.as_deref();
    let mut bound = Bound::default();
    let publisher = match config.publish {
        Some(at) => Some(Publisher::bind(at.0, key).await?),
        None => None,
    };
    bound.publish = publisher.as_ref().map(Publisher::address);
    let puller = match config.pull {
        Some(at) => Some(Puller::bind(at.0, key).await?),
        None => None,
    };
    bound.pull = puller.as_ref().map(Puller::address);
    assert!(
        publisher.is_some() || puller.is_some() || config.bridge.is_some(),
        "it is to do something"
    );
    ready(&bound);
    let outlet = async {
        match publisher {
            Some(publisher) => Outlet::run(&config, publisher, &stop).await,
            None => Ok(()),
        }
    };
    let intake = async {
        match puller {
            Some(puller) => intake::run(&config, Source::Pull(puller), &stop).await,
            None => Ok(None),
        }
    };
    let bridge = async {
        match &config.bridge {
            Some(bridge) => match Source::bridge(bridge.clone(), &stop).await? {
                Some(source) => intake::run(&config, source, &stop).await,
                None => Ok(None),
            },
            None => Ok(None),
        }
    };
    tokio::try_join!(outlet, intake, bridge).map(|((), _, heard)| heard)
}
