//! Publishes the events of a source without end: it reconnects and sends again what was not
//! confirmed.

#![expect(clippy::disallowed_methods, reason = "waits before it connects again")]

use tidings_client::{Backoff, Client, ClientError, Deliveries};
use tidings_protocol::TopicName;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::client::publish_window::{PublishWindow, Rejection};
use crate::client::{broker_message, connection};
use crate::flags::address::BrokerAddress;
use crate::terminal::failure::Failure;
use crate::terminal::output::note;

/// A source of events, which receives the result of each.
pub(crate) trait EventSource {
    /// Waits for events, each with a number that the source chose; `None`: the source has ended.
    /// Cancel-safe.
    async fn next(&mut self) -> Option<Vec<(u64, String)>>;

    /// The result of the event with this number: confirmed, or rejected for this reason. Results
    /// come in the order of the events.
    fn on_answer(&mut self, number: u64, answer: Result<(), Rejection>) -> Result<(), Failure>;
}

/// Publishes the events of a source until the source ends or `stop` is cancelled. Calls
/// `is_connected` once, after the first answer of the broker. A missing broker is a failure at the
/// start; later it is waited for.
pub(crate) async fn publish_all(
    broker: &BrokerAddress,
    name: &str,
    topic: TopicName,
    source: &mut impl EventSource,
    stop: &CancellationToken,
    is_connected: impl FnOnce(),
) -> Result<(), Failure> {
    let mut connection = connection::connect(broker, name).await?;
    is_connected();
    // The source has its own ids: the same event has the same id in another process too.
    let mut window = PublishWindow::new(topic, false);
    loop {
        let publish = publish_on_connection(&mut connection, &mut window, source);
        let lost = tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(()),
            published = publish => match published? {
                Some(lost) => lost,
                None => return Ok(()),
            },
        };
        let lost = broker_message::client_error(&lost);
        note(&format!("{broker}: {lost}; reconnecting"));
        window.rewind();
        let mut backoff = Backoff::default();
        connection = loop {
            let connected = async {
                sleep(backoff.next_pause()).await;
                connection::try_connect(broker, name).await
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                connected = connected => match connected {
                    Ok(connection) => break connection,
                    Err(_still_gone) => {}
                },
            }
        };
        note(&format!("{broker}: reconnected"));
    }
}

/// Publishes until every event is answered (`None`), or the connection is lost.
async fn publish_on_connection(
    (client, deliveries): &mut (Client, Deliveries),
    window: &mut PublishWindow,
    source: &mut impl EventSource,
) -> Result<Option<ClientError>, Failure> {
    let mut has_ended = false;
    loop {
        if let Err(lost) = window.send(client).await {
            return Ok(Some(lost));
        }
        if has_ended && window.is_empty() {
            return Ok(None);
        }
        let takes_more = !has_ended && window.has_room();
        tokio::select! {
            // In this order, so that answers from before the loss of the connection count.
            biased;
            answer = window.answer() => match answer {
                Ok((number, answer)) => source.on_answer(number, answer)?,
                Err(lost) => return Ok(Some(lost)),
            },
            () = wait_for_close(deliveries) => return Ok(Some(deliveries.reason())),
            events = source.next(), if takes_more => match events {
                Some(events) => {
                    for (number, payload) in events {
                        window.push(number, Ok(payload.as_bytes()));
                    }
                }
                None => has_ended = true,
            },
        }
    }
}

/// Waits for the end of the connection. A publisher receives only answers, so it notices the end
/// only here.
async fn wait_for_close(deliveries: &mut Deliveries) {
    while deliveries.next().await.is_some() {}
}
