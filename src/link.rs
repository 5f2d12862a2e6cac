//! Connections to a broker, with errors that say what to do.

#![expect(clippy::disallowed_methods, reason = "an answer is not waited for for ever")]

use std::{path::Path, time::Duration};

use tidings_protocol::client::{self, Client, ClientError, ClientOptions, Deliveries};

use crate::{
    address::{self, BrokerAddress},
    failure::Failure,
    wire,
};

/// How long a broker that was noted in a data directory has to prove that it lives. It is on this
/// machine, or was.
const LIVING_MAX: Duration = Duration::from_secs(1);

/// Connects as `name`, a label that the broker shows to people. The failure says what to do.
pub(crate) async fn connect(
    broker: &BrokerAddress,
    name: &str,
) -> Result<(Client, Deliveries), Failure> {
    try_connect(broker, name).await.map_err(|error| {
        Failure::failed(match error {
            ClientError::Connect { .. } => format!(
                "{error}; start a broker with `tidings up`, or name another one with --broker"
            ),
            error @ ClientError::Tls { .. } => error.to_string(),
            error => format!("{broker}: {}", wire::client_error(&error)),
        })
    })
}

/// The same, for who has plans of their own for when there is no broker.
pub(crate) async fn try_connect(
    broker: &BrokerAddress,
    name: &str,
) -> Result<(Client, Deliveries), ClientError> {
    client::connect(broker.as_str(), options(broker, name)).await
}

/// The broker of a `tidings up` that runs on this data directory. One that is noted there and does
/// not answer as a broker does is stale.
pub(crate) async fn living_broker(data: &Path) -> Option<BrokerAddress> {
    let broker = address::noted(data)?;
    let answer = tokio::time::timeout(LIVING_MAX, try_connect(&broker, "tidings"));
    matches!(answer.await, Ok(Ok(_))).then_some(broker)
}

fn options(broker: &BrokerAddress, name: &str) -> ClientOptions {
    let (name, security) = (Some(name.to_owned()), broker.security().clone());
    ClientOptions { name, security, ..ClientOptions::default() }
}
