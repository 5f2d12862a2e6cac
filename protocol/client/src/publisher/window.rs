//! The unanswered events of a publisher, with everything that is needed to send them again on
//! another connection.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use tidings_protocol::{PAYLOAD_BYTES_MAX, Payload, ProtocolError, Seq, TopicName, push_attribute};

use crate::connection::{Client, PendingConfirmation, random_member_id};
use crate::error::ClientError;

/// Memory of an event beside its payload, in bytes.
const OVERHEAD_BYTES: usize = 128;

/// The attribute by which a topic stores an event only once.
const ID: &str = "id";

/// An event and its number.
#[derive(Debug)]
pub(super) struct WindowEvent {
    pub(super) number: u64,
    topic: TopicName,
    payload: String,
    state: SendState,
}

#[derive(Debug)]
enum SendState {
    Unsent,
    Sent(PendingConfirmation),
    Refused(ProtocolError),
}

/// The broker's answer to an event.
pub(super) type EventAnswer = Result<Seq, ProtocolError>;

/// Unanswered events, in the order in which they were pushed.
#[derive(Debug, Default)]
pub(super) struct Window {
    events: VecDeque<WindowEvent>,
    /// The number of events at the front that were sent on the present connection, or are refused.
    sent: usize,
    bytes: usize,
    /// The beginning of ids; `None`: events get no id.
    id_prefix: Option<String>,
}

impl Window {
    /// Gives an id to each event that can carry one.
    pub(super) fn add_ids(&mut self) {
        // 64 random bits distinguish the runs of all publishers.
        self.id_prefix = Some(random_member_id().to_string()[..16].to_owned());
    }

    pub(super) fn push(&mut self, number: u64, topic: TopicName, payload: String) {
        let payload = self.with_id(payload, number);
        self.add(WindowEvent { number, topic, payload, state: SendState::Unsent });
    }

    /// Adds an event that is refused already.
    pub(super) fn push_refused(&mut self, number: u64, topic: TopicName, refusal: ProtocolError) {
        let state = SendState::Refused(refusal);
        self.add(WindowEvent { number, topic, payload: String::new(), state });
    }

    /// Adds an event that was taken out before, to be sent again.
    pub(super) fn push_again(&mut self, event: WindowEvent) {
        self.add(WindowEvent { state: SendState::Unsent, ..event });
    }

    fn add(&mut self, event: WindowEvent) {
        self.bytes += event.payload.len() + OVERHEAD_BYTES;
        self.events.push_back(event);
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn len(&self) -> usize {
        self.events.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Whether the first event gets an answer, or the error that has ended the connection.
    pub(super) fn is_awaited(&self) -> bool {
        self.sent > 0
    }

    /// The number of the first unanswered event.
    pub(super) fn first(&self) -> Option<u64> {
        self.events.front().map(|event| event.number)
    }

    /// Sends the events that were not sent on this connection. Cancel-safe.
    pub(super) async fn send(&mut self, client: &Client) -> Result<(), ClientError> {
        while let Some(event) = self.events.get_mut(self.sent) {
            if let SendState::Unsent = event.state {
                event.state = match client.publish(&event.topic, &event.payload).await {
                    Ok(published) => SendState::Sent(published),
                    Err(ClientError::Refused(refusal)) => SendState::Refused(refusal),
                    Err(error) => return Err(error),
                };
            }
            self.sent += 1;
        }
        Ok(())
    }

    /// Waits for the answer to the first event and removes it; without end if it was not sent.
    /// Cancel-safe.
    pub(super) async fn answer(&mut self) -> Result<(WindowEvent, EventAnswer), ClientError> {
        let answer = poll_fn(|context| match self.events.front_mut() {
            Some(event) => event.poll(context),
            None => Poll::Pending,
        });
        let answer = answer.await?;
        let event = self.events.pop_front().expect("it was just answered");
        self.bytes -= event.payload.len() + OVERHEAD_BYTES;
        self.sent = self.sent.saturating_sub(1);
        Ok((event, answer))
    }

    /// Prepares all unanswered events for another connection. Returns the number of events that may
    /// be stored twice because they have no id.
    pub(super) fn rewind(&mut self) -> usize {
        let mut doubtful = 0;
        for event in self.events.iter_mut().take(self.sent) {
            let mut context = Context::from_waker(Waker::noop());
            // Confirmations come in order and were read; but a refusal may follow an event without
            // an answer.
            if let Poll::Ready(Ok(Err(refusal))) = event.poll(&mut context) {
                event.state = SendState::Refused(refusal);
            } else {
                event.state = SendState::Unsent;
                let has_id = Payload::parse(&event.payload).attribute(ID).is_some();
                doubtful += usize::from(!has_id);
            }
        }
        self.sent = 0;
        doubtful
    }

    /// The payload with an id, if it can carry one and has none.
    fn with_id(&self, mut payload: String, number: u64) -> String {
        let Some(run) = &self.id_prefix else { return payload };
        let parsed = Payload::parse(&payload);
        if parsed.target().is_some() && parsed.attribute(ID).is_none() {
            let length = payload.len();
            push_attribute(&mut payload, ID, &format!("{run}-{number}"));
            if payload.len() > PAYLOAD_BYTES_MAX {
                payload.truncate(length);
            }
        }
        payload
    }
}

impl WindowEvent {
    /// Polls for the answer; must not be called after it was returned.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<EventAnswer, ClientError>> {
        let answer = match &mut self.state {
            SendState::Unsent => return Poll::Pending,
            SendState::Refused(refusal) => return Poll::Ready(Ok(Err(refusal.clone()))),
            SendState::Sent(published) => ready!(Pin::new(published).poll(context)),
        };
        // An answer comes once; if the connection is lost without one, the event is unchanged.
        self.state = SendState::Unsent;
        Poll::Ready(match answer {
            Ok(seq) => Ok(Ok(seq)),
            Err(ClientError::Refused(refusal)) => Ok(Err(refusal)),
            Err(error) => Err(error),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payloads(ids: bool, lines: &[&str]) -> Vec<String> {
        let mut window = Window::default();
        if ids {
            window.add_ids();
        }
        for (line, number) in lines.iter().zip(1..) {
            window.push(number, "t".parse().unwrap(), (*line).to_owned());
        }
        let run = window.id_prefix.unwrap_or_else(|| "no run".to_owned());
        window.events.into_iter().map(|event| event.payload.replace(&run, "RUN")).collect()
    }

    #[test]
    fn an_event_with_a_target_gets_an_id() {
        let lines = ["http://a.example/ job=j", "/a/b.html", "just text", "/a id=mine", "/a id="];
        assert_eq!(
            payloads(true, &lines),
            [
                "http://a.example/ job=j id=RUN-1",
                "/a/b.html id=RUN-2",
                "just text",
                "/a id=mine",
                "/a id="
            ]
        );
        assert_eq!(payloads(false, &["/a"]), ["/a"]);
    }

    #[test]
    fn an_id_never_makes_an_event_too_long() {
        let fits = format!("/{}", "a".repeat(PAYLOAD_BYTES_MAX - 1));
        assert_eq!(payloads(true, &[&fits]), [fits]);
    }

    #[test]
    fn an_id_is_16_hex_digits_and_the_number() {
        let mut window = Window::default();
        window.add_ids();
        let id = window.with_id("/a".to_owned(), 7);
        let run = id.strip_prefix("/a id=").and_then(|id| id.strip_suffix("-7")).unwrap();
        assert!(run.len() == 16 && run.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
    }
}
