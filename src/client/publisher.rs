//! Publishes the events of a source without end.

use tidings_client::{PublishEvent, Publisher};
use tidings_protocol::{Code, ProtocolError, TopicName};
use tokio_util::sync::CancellationToken;

use crate::client::connection::LossNotes;
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

/// Why an event is not stored.
#[derive(Debug)]
pub(crate) struct Rejection {
    /// The reason, for people.
    pub(crate) reason: String,
    /// The cause is the broker and not the event: a later attempt may succeed.
    pub(crate) is_transient: bool,
}

impl From<ProtocolError> for Rejection {
    fn from(error: ProtocolError) -> Self {
        let is_transient = error.code.is_transient() || error.code == Code::NotDurable;
        Self { reason: broker_message::rejection(&error), is_transient }
    }
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
    let (connector, connected) = connection::open(broker, name).await?;
    is_connected();
    // The source has its own ids: the same event has the same id in another process too.
    let mut publisher = Publisher::new(connector.persistent()).on(connected);
    let (mut has_ended, mut notes) = (false, LossNotes::default());
    loop {
        if has_ended && publisher.is_empty() {
            return Ok(());
        }
        let takes_more = !has_ended && publisher.is_connected() && publisher.has_room();
        tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(()),
            event = publisher.next() => match event {
                Ok(PublishEvent::Confirmed { number, .. }) => source.on_answer(number, Ok(()))?,
                Ok(
                    PublishEvent::Refused { number, refusal }
                    | PublishEvent::Deferred { number, refusal },
                ) => source.on_answer(number, Err(refusal.into()))?,
                Ok(PublishEvent::Lost(lost)) => notes.lost(broker, lost),
                Ok(PublishEvent::Connected { .. }) => {
                    notes.connected();
                    note(&format!("{broker}: reconnected"));
                }
                Err(error) => {
                    let error = broker_message::client_error(&error);
                    return Err(Failure::failed(format!("{broker}: {error}")));
                }
            },
            events = source.next(), if takes_more => match events {
                Some(events) => {
                    for (number, payload) in events {
                        publisher.push(number, &topic, payload);
                    }
                }
                None => has_ended = true,
            },
        }
    }
}
