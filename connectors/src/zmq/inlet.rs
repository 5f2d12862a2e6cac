//! Events on their way into the broker: sent, and kept until it has confirmed them.

#![expect(clippy::disallowed_methods, reason = "waits before it asks the broker again")]

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::ready;

use tidings_protocol::client::{
    self, Client, ClientError, ClientOptions, Deliveries, PendingConfirmation, Security,
};
use tidings_protocol::{Code, Seq};
use tokio::time::{Instant, sleep_until};

use super::frames::Event;
use super::limits::{AGAIN, EVENT_OVERHEAD_BYTES, UNCONFIRMED_BYTES_MAX};
use crate::rate_limited_log::RateLimitedLog;

/// A way into the broker that survives its restarts: what it has not confirmed is sent again, and
/// may be there twice then.
///
/// Events are confirmed in the order in which they were pushed, but for those that the broker had
/// no room for.
pub(crate) struct Inlet {
    broker: String,
    security: Security,
    name: &'static str,
    connection: Option<(Client, Deliveries)>,
    /// Sent, oldest first.
    sent: VecDeque<Sent>,
    /// What the broker could not take just now. Nothing new is let in before these are through.
    refused: VecDeque<Event>,
    /// When the broker is asked again, if that is to wait. Not a sleep: what waits for an answer is
    /// begun anew again and again.
    again_at: Option<Instant>,
    bytes: usize,
    pub(crate) confirmed: u64,
    pub(crate) dropped: RateLimitedLog,
    trouble: RateLimitedLog,
}

struct Sent {
    event: Event,
    /// None: on a connection that is gone.
    published: Option<PendingConfirmation>,
}

impl Inlet {
    /// One to this broker, which sees this name.
    pub(crate) fn new(broker: String, security: Security, name: &'static str) -> Self {
        Self {
            broker,
            security,
            name,
            connection: None,
            sent: VecDeque::new(),
            refused: VecDeque::new(),
            again_at: None,
            bytes: 0,
            confirmed: 0,
            dropped: RateLimitedLog::new("messages dropped"),
            trouble: RateLimitedLog::new("the broker could not be reached or has no room"),
        }
    }

    /// Whether the broker is there. If not, who cancels [`advance`](Self::advance) may do so before
    /// it is reached.
    pub(crate) fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// Whether another event may be pushed.
    pub(crate) fn has_room(&self) -> bool {
        self.connection.is_some() && self.bytes < UNCONFIRMED_BYTES_MAX && self.refused.is_empty()
    }

    /// Takes an event, and sends it. Only while there is room.
    pub(crate) async fn push(&mut self, event: Event) {
        self.bytes += event.payload.len() + EVENT_OVERHEAD_BYTES;
        self.sent.push_back(Sent { event, published: None });
        self.send().await;
    }

    /// Sends all that is not sent yet, in the order in which it came: what is not sent is always
    /// the end of the queue, also if this is cancelled.
    async fn send(&mut self) {
        let Some((client, _)) = &self.connection else { return };
        let place = self.sent.partition_point(|sent| sent.published.is_some());
        for sent in self.sent.range_mut(place..) {
            match client.publish(&sent.event.topic, &sent.event.payload).await {
                Ok(published) => sent.published = Some(published),
                Err(error) => {
                    self.trouble.add(1, error);
                    self.connection = None;
                    return;
                }
            }
        }
    }

    /// Waits for the next answer of the broker, or does what is needed so that there will be one:
    /// connects, and sends again. For ever if nothing is on its way. Cancel-safe: what was not done
    /// is done by the next call.
    pub(crate) async fn advance(&mut self) {
        if self.connection.is_none() {
            self.rest().await;
            return self.connect().await;
        }
        if self.sent.back().is_some_and(|last| last.published.is_none()) {
            return self.send().await;
        }
        if self.sent.is_empty() && !self.refused.is_empty() {
            self.rest().await;
            let again = self.refused.drain(..).map(|event| Sent { event, published: None });
            self.sent.extend(again);
            return self.send().await;
        }
        let answer = self.answer().await;
        let Sent { event, .. } = self.sent.pop_front().expect("it was just answered");
        self.settle(event, answer);
    }

    async fn rest(&mut self) {
        if let Some(at) = self.again_at {
            sleep_until(at).await;
            self.again_at = None;
        }
    }

    /// What the broker says to the first event that waits for that. Cancel-safe.
    async fn answer(&mut self) -> Result<Seq, ClientError> {
        poll_fn(|context| {
            let Some(Sent { published: Some(published), .. }) = self.sent.front_mut() else {
                return std::task::Poll::Pending;
            };
            let answer = ready!(Pin::new(published).poll(context));
            std::task::Poll::Ready(answer)
        })
        .await
    }

    /// What becomes of an event.
    fn settle(&mut self, event: Event, answer: Result<Seq, ClientError>) {
        match answer {
            Ok(_) => self.confirmed += 1,
            Err(ClientError::Refused(error)) if may_succeed(error.code) => {
                self.trouble.add(1, &error);
                self.refused.push_back(event);
                self.again_at = Some(Instant::now() + AGAIN);
                return;
            }
            Err(ClientError::Refused(error)) => self.dropped.add(1, error),
            Err(error) => {
                self.trouble.add(1, error);
                self.sent.push_front(Sent { event, published: None });
                self.connection = None;
                return;
            }
        }
        self.bytes -= event.payload.len() + EVENT_OVERHEAD_BYTES;
    }

    /// One attempt, and a pause behind one that failed. What has no answer is sent again.
    async fn connect(&mut self) {
        let options = ClientOptions {
            name: Some(self.name.to_owned()),
            // Nobody knows who says it: the broker decides what such people may.
            via: Some("zmq".to_owned()),
            security: self.security.clone(),
            ..ClientOptions::default()
        };
        match client::connect(&self.broker, options).await {
            Ok(connection) => {
                self.connection = Some(connection);
                for sent in &mut self.sent {
                    sent.published = None;
                }
                self.send().await;
            }
            Err(error) => {
                self.trouble.add(1, error);
                self.again_at = Some(Instant::now() + AGAIN);
            }
        }
    }

    /// Logs what there is still to complain about.
    pub(crate) fn flush_complaints(&mut self) {
        self.dropped.flush();
        self.trouble.flush();
    }

    /// Events that were pushed and are not confirmed.
    pub(crate) fn unconfirmed(&self) -> u64 {
        (self.sent.len() + self.refused.len()) as u64
    }

    /// Waits until nothing is on its way any more.
    pub(crate) async fn finish(&mut self) {
        while !(self.sent.is_empty() && self.refused.is_empty()) {
            self.advance().await;
        }
    }
}

/// Whether the broker may take the same event later: nothing is wrong with it.
fn may_succeed(code: Code) -> bool {
    matches!(code, Code::Full | Code::NotDurable | Code::Busy | Code::Closing | Code::Internal)
}
