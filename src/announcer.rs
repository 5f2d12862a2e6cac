//! Publishes what comes, for ever: connects again and sends again what was not confirmed, as often as it takes.

#![expect(clippy::disallowed_methods, reason = "waits before it connects again")]

use std::time::Duration;

use tidings_protocol::{
    TopicName,
    client::{Client, ClientError, Deliveries},
};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::{
    address::BrokerAddress,
    failure::Failure,
    link,
    output::note,
    window::{Refusal, Window},
};

/// How long it waits before it connects again: at first, and at most.
const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// Where events come from, and who hears what became of them.
pub(crate) trait Source {
    /// Waits for some events, each with a number of the source's own; `None`: nothing comes any more. Cancel-safe.
    async fn next(&mut self) -> Option<Vec<(u64, String)>>;

    /// The event that was pushed under this number was confirmed, or refused for this reason. Answers come in order.
    fn answered(&mut self, number: u64, answer: Result<(), Refusal>) -> Result<(), Failure>;
}

/// Publishes all that a source has, until that ends or it is to stop; `is_connected` is called once, when the broker has
/// answered for the first time. A broker that is not there then is a failure, later it is waited for.
pub(crate) async fn announce(
    broker: &BrokerAddress,
    name: &str,
    topic: TopicName,
    source: &mut impl Source,
    stop: &CancellationToken,
    is_connected: impl FnOnce(),
) -> Result<(), Failure> {
    let mut connection = link::connect(broker, name).await?;
    is_connected();
    // Ids are the source's own: the same for the same thing, also in another process.
    let mut window = Window::new(topic, false);
    loop {
        let publish = publish_on(&mut connection, &mut window, source);
        let lost = tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(()),
            published = publish => match published? {
                Some(lost) => lost,
                None => return Ok(()),
            },
        };
        note(&format!("{broker}: {lost}; connecting again"));
        window.rewind();
        let mut backoff = BACKOFF_MIN;
        connection = loop {
            let connected = async {
                sleep(backoff).await;
                link::try_connect(broker, name).await
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                connected = connected => match connected {
                    Ok(connection) => break connection,
                    Err(_still_gone) => backoff = (backoff * 2).min(BACKOFF_MAX),
                },
            }
        };
        note(&format!("{broker}: connected again"));
    }
}

/// Publishes until everything is answered (`None`), or the connection is lost.
async fn publish_on(
    (client, deliveries): &mut (Client, Deliveries),
    window: &mut Window,
    source: &mut impl Source,
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
            // In this order: what was answered before the connection was lost counts.
            biased;
            answer = window.answer() => match answer {
                Ok((number, answer)) => source.answered(number, answer)?,
                Err(lost) => return Ok(Some(lost)),
            },
            () = connection_ends(deliveries) => return Ok(Some(deliveries.reason())),
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

/// A publisher is told nothing but answers, so it may only notice here that the broker is gone.
async fn connection_ends(deliveries: &mut Deliveries) {
    while deliveries.next().await.is_some() {}
}
