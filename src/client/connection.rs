//! Connections to a broker, with errors that name a remedy.

#![expect(clippy::disallowed_methods, reason = "an answer has a time limit")]

use std::path::Path;
use std::time::Duration;

use tidings_client::{Client, ClientError, ClientOptions, Connection, Connector, Deliveries};

use crate::client::broker_message;
use crate::flags::address::{self, BrokerAddress};
use crate::terminal::failure::Failure;
use crate::terminal::output::note;

/// The time limit for an answer of the broker that a data directory names. It is on this machine,
/// if it runs.
const ANSWER_MAX: Duration = Duration::from_secs(1);

/// Notes of a client that reconnects: one when its connection is lost, and one for each new reason
/// for which the broker refuses the next one.
#[derive(Debug, Default)]
pub(crate) struct LossNotes {
    last: Option<ClientError>,
}

impl LossNotes {
    /// A connection has ended, or an attempt to connect.
    pub(crate) fn lost(&mut self, broker: &BrokerAddress, error: ClientError) {
        let is_refusal = matches!(error, ClientError::Refused(_));
        if self.last.as_ref().is_none_or(|last| is_refusal && *last != error) {
            note(&format!("{broker}: {}; reconnecting", broker_message::client_error(&error)));
            self.last = Some(error);
        }
    }

    /// A connection has been opened.
    pub(crate) fn connected(&mut self) {
        self.last = None;
    }
}

/// Connects with this name, which the broker shows. The failure names a remedy.
pub(crate) async fn connect(
    broker: &BrokerAddress,
    name: &str,
) -> Result<(Client, Deliveries), Failure> {
    try_connect(broker, name).await.map_err(|error| connect_failure(broker, &error))
}

/// Connects with this name, and can connect again. The failure names a remedy.
pub(crate) async fn open(
    broker: &BrokerAddress,
    name: &str,
) -> Result<(Connector, Connection), Failure> {
    let mut connector = Connector::new(broker.as_str(), options(broker, name));
    match connector.connect().await {
        Ok(connection) => Ok((connector, connection)),
        Err(error) => Err(connect_failure(broker, &error)),
    }
}

/// The failure of the first attempt to connect.
fn connect_failure(broker: &BrokerAddress, error: &ClientError) -> Failure {
    if let ClientError::Token(_) = error {
        return Failure::Usage(error.to_string());
    }
    let origin = broker.origin();
    Failure::failed(match error {
        ClientError::Connect { .. } => {
            format!(
                "{error}{origin}; start a broker with `tidings up`, or name another one with --broker"
            )
        }
        error @ ClientError::Tls { .. } => format!("{error}{origin}"),
        error => format!("{broker}{origin}: {}", broker_message::client_error(error)),
    })
}

/// The same for callers that handle a missing broker themselves.
pub(crate) async fn try_connect(
    broker: &BrokerAddress,
    name: &str,
) -> Result<(Client, Deliveries), ClientError> {
    tidings_client::connect(broker.as_str(), options(broker, name)).await
}

/// The broker of a `tidings up` that runs on this data directory. An address in the directory
/// without an answer is stale.
pub(crate) async fn running_broker(data: &Path) -> Option<BrokerAddress> {
    let broker = address::read_address_file(data)?;
    let answer = tokio::time::timeout(ANSWER_MAX, try_connect(&broker, "tidings"));
    matches!(answer.await, Ok(Ok(_))).then_some(broker)
}

/// The name of a worker: its program, machine and process, by which an operator recognises it.
pub(crate) fn worker_name(program: &str) -> String {
    /// A name has at most 64 bytes.
    const HOST_CHARS_MAX: usize = 40;
    let system = rustix::system::uname();
    let host = system.nodename().to_string_lossy();
    // A name is one word.
    let is_plain = |c: &char| c.is_ascii_alphanumeric() || "-._".contains(*c);
    let host: String = host.chars().filter(is_plain).take(HOST_CHARS_MAX).collect();
    format!("{program}@{host}.{}", std::process::id())
}

fn options(broker: &BrokerAddress, name: &str) -> ClientOptions {
    let (name, security) = (Some(name.to_owned()), broker.security().clone());
    ClientOptions { name, security, ..ClientOptions::default() }
}
