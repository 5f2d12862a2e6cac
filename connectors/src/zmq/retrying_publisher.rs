//! Publishes events, and keeps each until the broker has confirmed it.

#![expect(clippy::disallowed_methods, reason = "waits between attempts to reach the broker")]

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::ready;

use tidings_client::{
    Client, ClientError, ClientOptions, Deliveries, PendingConfirmation, Security,
};
use tidings_protocol::{Code, Seq};
use tokio::time::{Instant, sleep_until};

use super::frames::ZmqEvent;
use super::limits::{EVENT_OVERHEAD_BYTES, RETRY_DELAY, UNCONFIRMED_BYTES_MAX};
use crate::rate_limited_log::RateLimitedLog;

/// A publisher that survives restarts of the broker. It sends unconfirmed events again, so the
/// broker may store them twice.
///
/// Events are confirmed in the order of [`push`](Self::push), except those that the broker rejected
/// because it had no capacity for them.
pub(crate) struct RetryingPublisher {
    broker: String,
    security: Security,
    name: &'static str,
    connection: Option<(Client, Deliveries)>,
    /// Unconfirmed events, oldest first.
    in_flight: VecDeque<InFlightEvent>,
    /// Events that the broker rejected for now. No new event is accepted before they are sent
    /// again.
    retry_queue: VecDeque<ZmqEvent>,
    /// When the next attempt may start. It is not a sleep, because [`advance`](Self::advance) is
    /// cancelled and called again and again.
    retry_at: Option<Instant>,
    unconfirmed_bytes: usize,
    pub(crate) confirmed: u64,
    pub(crate) dropped: RateLimitedLog,
    error_log: RateLimitedLog,
}

struct InFlightEvent {
    event: ZmqEvent,
    /// None: not sent on this connection.
    confirmation: Option<PendingConfirmation>,
}

impl RetryingPublisher {
    /// `name` is the label that the broker shows.
    pub(crate) fn new(broker: String, security: Security, name: &'static str) -> Self {
        Self {
            broker,
            security,
            name,
            connection: None,
            in_flight: VecDeque::new(),
            retry_queue: VecDeque::new(),
            retry_at: None,
            unconfirmed_bytes: 0,
            confirmed: 0,
            dropped: RateLimitedLog::new("messages dropped"),
            error_log: RateLimitedLog::new("the broker is unreachable or rejects events for now"),
        }
    }

    /// Whether there is a connection. If not, a caller that cancels [`advance`](Self::advance) may
    /// interrupt the attempt to connect.
    pub(crate) fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// Whether another event may be pushed.
    pub(crate) fn has_capacity(&self) -> bool {
        self.connection.is_some()
            && self.unconfirmed_bytes < UNCONFIRMED_BYTES_MAX
            && self.retry_queue.is_empty()
    }

    /// Adds an event, and sends it. Requires [`has_capacity`](Self::has_capacity).
    pub(crate) async fn push(&mut self, event: ZmqEvent) {
        self.unconfirmed_bytes += event.payload.len() + EVENT_OVERHEAD_BYTES;
        self.in_flight.push_back(InFlightEvent { event, confirmation: None });
        self.send_unsent().await;
    }

    /// Sends the unsent events in order. They are always at the end of the queue, even if this is
    /// cancelled.
    async fn send_unsent(&mut self) {
        let Some((client, _)) = &self.connection else { return };
        let first_unsent =
            self.in_flight.partition_point(|in_flight| in_flight.confirmation.is_some());
        for in_flight in self.in_flight.range_mut(first_unsent..) {
            match client.publish(&in_flight.event.topic, &in_flight.event.payload).await {
                Ok(confirmation) => in_flight.confirmation = Some(confirmation),
                Err(error) => {
                    self.error_log.add(1, error);
                    self.connection = None;
                    return;
                }
            }
        }
    }

    /// Waits for the next answer of the broker, or does what must come before: connects, or sends
    /// events again. Pending forever if no event is in flight. Cancel-safe: the next call resumes.
    pub(crate) async fn advance(&mut self) {
        if self.connection.is_none() {
            self.wait_for_retry().await;
            return self.connect().await;
        }
        if self.in_flight.back().is_some_and(|last| last.confirmation.is_none()) {
            return self.send_unsent().await;
        }
        if self.in_flight.is_empty() && !self.retry_queue.is_empty() {
            self.wait_for_retry().await;
            let events =
                self.retry_queue.drain(..).map(|event| InFlightEvent { event, confirmation: None });
            self.in_flight.extend(events);
            return self.send_unsent().await;
        }
        let answer = self.next_confirmation().await;
        let InFlightEvent { event, .. } =
            self.in_flight.pop_front().expect("its answer has arrived");
        self.handle_confirmation(event, answer);
    }

    async fn wait_for_retry(&mut self) {
        if let Some(at) = self.retry_at {
            sleep_until(at).await;
            self.retry_at = None;
        }
    }

    /// The broker's answer to the oldest event. Cancel-safe.
    async fn next_confirmation(&mut self) -> Result<Seq, ClientError> {
        poll_fn(|context| {
            let Some(InFlightEvent { confirmation: Some(confirmation), .. }) =
                self.in_flight.front_mut()
            else {
                return std::task::Poll::Pending;
            };
            let answer = ready!(Pin::new(confirmation).poll(context));
            std::task::Poll::Ready(answer)
        })
        .await
    }

    /// Processes the answer to an event.
    fn handle_confirmation(&mut self, event: ZmqEvent, answer: Result<Seq, ClientError>) {
        match answer {
            Ok(_) => self.confirmed += 1,
            Err(ClientError::Refused(error)) if is_transient(error.code) => {
                self.error_log.add(1, &error);
                self.retry_queue.push_back(event);
                self.retry_at = Some(Instant::now() + RETRY_DELAY);
                return;
            }
            Err(ClientError::Refused(error)) => self.dropped.add(1, error),
            Err(error) => {
                self.error_log.add(1, error);
                self.in_flight.push_front(InFlightEvent { event, confirmation: None });
                self.connection = None;
                return;
            }
        }
        self.unconfirmed_bytes -= event.payload.len() + EVENT_OVERHEAD_BYTES;
    }

    /// Makes one attempt to connect, and sends all unconfirmed events again. After a failure the
    /// next attempt must wait.
    async fn connect(&mut self) {
        let options = ClientOptions {
            name: Some(self.name.to_owned()),
            // Peers are unknown, so the broker applies the permissions of this transport.
            via: Some("zmq".to_owned()),
            security: self.security.clone(),
            ..ClientOptions::default()
        };
        match tidings_client::connect(&self.broker, options).await {
            Ok(connection) => {
                self.connection = Some(connection);
                for in_flight in &mut self.in_flight {
                    in_flight.confirmation = None;
                }
                self.send_unsent().await;
            }
            Err(error) => {
                self.error_log.add(1, error);
                self.retry_at = Some(Instant::now() + RETRY_DELAY);
            }
        }
    }

    /// Logs the problems that were not logged yet.
    pub(crate) fn flush_logs(&mut self) {
        self.dropped.flush();
        self.error_log.flush();
    }

    /// Events that were pushed and are not confirmed.
    pub(crate) fn unconfirmed_count(&self) -> u64 {
        (self.in_flight.len() + self.retry_queue.len()) as u64
    }

    /// Waits until no event is in flight.
    pub(crate) async fn finish(&mut self) {
        while !(self.in_flight.is_empty() && self.retry_queue.is_empty()) {
            self.advance().await;
        }
    }
}

/// Whether the broker may accept the same event later. The event itself is valid.
fn is_transient(code: Code) -> bool {
    matches!(code, Code::Full | Code::NotDurable | Code::Busy | Code::Closing | Code::Internal)
}
