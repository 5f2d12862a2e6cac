//! Publishes events, and keeps each until the broker has answered it.

#![expect(clippy::disallowed_methods, reason = "waits before a refused event is sent again")]

#[cfg(test)]
mod tests;
mod window;

use std::collections::VecDeque;
use std::future;
use std::time::Duration;

use tidings_protocol::{Code, ProtocolError, Seq, TopicName};
use tokio::time::{Instant, sleep_until};

use self::window::{Window, WindowEvent};
use crate::connection::Deliveries;
use crate::connector::{Connection, Connector};
use crate::error::ClientError;

/// The limit in bytes of unanswered events. It equals the limit of a connection, so that this side
/// never waits for the other.
const WINDOW_BYTES_MAX: usize = 4 << 20;

/// What a publisher reports.
#[derive(Debug)]
pub enum PublishEvent {
    /// Connected, for the first time or again; the unanswered events are sent.
    Connected {
        /// How many of them were sent before, and may be stored twice because they have no `id=`.
        doubtful: usize,
    },
    /// The event is as safe as its topic promises.
    Confirmed {
        /// The number of the event.
        number: u64,
        /// Its seq, or that of a later event that was confirmed with it.
        seq: Seq,
    },
    /// The event is not stored, and is not sent again.
    Refused {
        /// The number of the event.
        number: u64,
        /// The broker's reason.
        refusal: ProtocolError,
    },
    /// The broker refuses the event for now, and it is sent again after a pause. Only with
    /// [`Publisher::retrying`].
    Deferred {
        /// The number of the event.
        number: u64,
        /// The broker's reason.
        refusal: ProtocolError,
    },
    /// The connection is lost, or an attempt to connect has failed. The publisher makes another one
    /// after a pause.
    Lost(ClientError),
}

/// A publisher that survives restarts of the broker: after a loss of the connection it sends the
/// unanswered events again, in their order.
///
/// [`push`](Self::push) adds events while there is [room](Self::has_room); [`next`](Self::next)
/// sends them and reports what became of each, in their order. Nothing is sent while neither `next`
/// nor [`flush`](Self::flush) is awaited.
///
/// The broker may have stored an event although its confirmation was lost. With [`with_ids`] it
/// stores the event once if that begins with a URL or an absolute path; other text cannot have an
/// id.
///
/// [`with_ids`]: Self::with_ids
#[derive(Debug)]
pub struct Publisher {
    connector: Connector,
    connection: Option<Connection>,
    window: Window,
    bytes_max: usize,
    /// The pause before events that are refused for now are sent again; `None`: they are not.
    retry_after: Option<Duration>,
    /// Events that are refused for now, in their order, and when they are sent again.
    deferred: VecDeque<WindowEvent>,
    deferred_until: Option<Instant>,
    doubtful: usize,
}

impl Publisher {
    /// It connects with the first [`next`](Self::next).
    pub fn new(connector: Connector) -> Self {
        Self {
            connector,
            connection: None,
            window: Window::default(),
            bytes_max: WINDOW_BYTES_MAX,
            retry_after: None,
            deferred: VecDeque::new(),
            deferred_until: None,
            doubtful: 0,
        }
    }

    /// The same on a connection that its connector has opened already.
    #[must_use]
    pub fn on(self, connection: Connection) -> Self {
        Self { connection: Some(connection), ..self }
    }

    /// The same with an `id=` for each event that can carry one and has none. It contains the
    /// number of the event, so numbers must not repeat.
    #[must_use]
    pub fn with_ids(mut self) -> Self {
        self.window.add_ids();
        self
    }

    /// The same with another limit in bytes of unanswered events.
    #[must_use]
    pub fn with_window(self, bytes_max: usize) -> Self {
        Self { bytes_max, ..self }
    }

    /// The same, but events that the broker refuses for a reason that may pass, such as a full
    /// disk, are kept and sent again after this pause. No further event is accepted meanwhile.
    #[must_use]
    pub fn retrying(self, pause: Duration) -> Self {
        Self { retry_after: Some(pause), ..self }
    }

    /// Adds an event under a number that the caller chooses. One that cannot be an event is refused
    /// in its turn.
    pub fn push(&mut self, number: u64, topic: &TopicName, payload: impl Into<String>) {
        self.window.push(number, topic.clone(), payload.into());
    }

    /// Adds an event that is refused in its turn, for a reason of the caller.
    pub fn push_refused(&mut self, number: u64, topic: &TopicName, refusal: ProtocolError) {
        self.window.push_refused(number, topic.clone(), refusal);
    }

    /// Whether more events should be pushed: the bytes of unanswered events are limited.
    pub fn has_room(&self) -> bool {
        self.window.bytes() < self.bytes_max && self.deferred.is_empty()
    }

    /// Whether there is a connection that is not known to be lost.
    pub fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// The number of unanswered events.
    pub fn len(&self) -> usize {
        self.window.len() + self.deferred.len()
    }

    /// Whether every event is answered.
    pub fn is_empty(&self) -> bool {
        self.window.is_empty() && self.deferred.is_empty()
    }

    /// The number of the first unanswered event.
    pub fn first_unanswered(&self) -> Option<u64> {
        self.deferred.front().map(|event| event.number).or_else(|| self.window.first())
    }

    /// What happens next, until every event is answered (`None`). A publisher may be dropped then.
    ///
    /// Cancel-safe.
    pub async fn flush(&mut self) -> Result<Option<PublishEvent>, ClientError> {
        if self.is_empty() { Ok(None) } else { self.next().await.map(Some) }
    }

    /// What happens next: connects, sends, and waits for the answer to the oldest event. An error
    /// ends the publisher: another attempt would have the same result. Every later call returns it
    /// again.
    ///
    /// Cancel-safe: nothing is lost if the future is dropped.
    pub async fn next(&mut self) -> Result<PublishEvent, ClientError> {
        loop {
            let Some(connection) = &mut self.connection else {
                return match self.connector.connect().await {
                    Ok(connection) => {
                        self.connection = Some(connection);
                        Ok(PublishEvent::Connected { doubtful: std::mem::take(&mut self.doubtful) })
                    }
                    Err(error) => self.lost(error),
                };
            };
            // After an error the connection has ended: the answers from before come first.
            let _ended = self.window.send(&connection.client).await;
            let is_deferred = self.window.is_empty() && !self.deferred.is_empty();
            tokio::select! {
                biased;
                answer = self.window.answer() => match answer {
                    Ok((event, Ok(seq))) => {
                        return Ok(PublishEvent::Confirmed { number: event.number, seq });
                    }
                    Ok((event, Err(refusal))) => return Ok(self.refused(event, refusal)),
                    Err(error) => return self.lost(error),
                },
                () = end_of(&mut connection.deliveries) => {
                    // Answers may have arrived since the window was polled. Then comes the error.
                    if self.window.is_awaited() {
                        continue;
                    }
                    let error = connection.deliveries.reason();
                    return self.lost(error);
                }
                () = wait_until(self.deferred_until), if is_deferred => {
                    self.deferred_until = None;
                    self.deferred.drain(..).for_each(|event| self.window.push_again(event));
                }
            }
        }
    }

    fn refused(&mut self, event: WindowEvent, refusal: ProtocolError) -> PublishEvent {
        let number = event.number;
        match self.retry_after {
            Some(pause) if may_pass(refusal.code) => {
                self.deferred.push_back(event);
                self.deferred_until = Some(Instant::now() + pause);
                PublishEvent::Deferred { number, refusal }
            }
            _ => PublishEvent::Refused { number, refusal },
        }
    }

    fn lost(&mut self, error: ClientError) -> Result<PublishEvent, ClientError> {
        if self.connection.take().is_some() {
            self.doubtful = self.window.rewind();
        }
        self.connector.lost(error).map(PublishEvent::Lost)
    }
}

/// Whether the broker may accept the same event later. The event itself is valid.
fn may_pass(code: Code) -> bool {
    matches!(code, Code::Full | Code::NotDurable | Code::Busy | Code::Closing | Code::Internal)
}

/// Waits for the end of the connection. A publisher receives only answers, so it notices the end
/// only here.
async fn end_of(deliveries: &mut Deliveries) {
    while deliveries.next().await.is_some() {}
}

async fn wait_until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => future::ready(()).await,
    }
}
