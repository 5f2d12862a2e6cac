//! The unanswered events of a publisher, with everything that is needed to send them again on
//! another connection.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use tidings_client::{Client, ClientError, PendingConfirmation};
use tidings_protocol::{
    Code, PAYLOAD_BYTES_MAX, Payload, ProtocolError, TopicName, push_attribute, text,
};

/// The limit in bytes above which no more events are read. It equals the limit of the client, so
/// that the client never waits for this side.
const BYTES_MAX: usize = 4 << 20;

/// Memory of an event beside its payload, in bytes.
const OVERHEAD_BYTES: usize = 128;

/// The attribute by which a topic stores an event only once.
const ID: &str = "id";

/// The unanswered events of one topic, in the order of their lines.
#[derive(Debug)]
pub(crate) struct PublishWindow {
    topic: TopicName,
    events: VecDeque<WindowEvent>,
    /// The number of events at the front that were sent on the present connection, or are rejected.
    sent: usize,
    bytes: usize,
    /// The beginning of ids; `None`: events get no id.
    id_prefix: Option<String>,
}

#[derive(Debug)]
struct WindowEvent {
    line: u64,
    payload: String,
    state: SendState,
}

#[derive(Debug)]
enum SendState {
    Unsent,
    Sent(PendingConfirmation),
    Rejected(Rejection),
}

/// Why an event is not stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rejection {
    /// The reason, for people.
    pub(crate) reason: String,
    /// The cause is the broker and not the event: a later attempt may succeed.
    pub(crate) is_transient: bool,
}

/// The result of a line: confirmed, or rejected.
pub(crate) type LineAnswer = (u64, Result<(), Rejection>);

impl PublishWindow {
    /// An empty window. With `ids`, events that can carry an id get one.
    pub(crate) fn new(topic: TopicName, ids: bool) -> Self {
        // 64 random bits distinguish the runs of all publishers.
        let id_prefix =
            ids.then(|| tidings_client::random_member_id().to_string()[..16].to_owned());
        Self { topic, events: VecDeque::new(), sent: 0, bytes: 0, id_prefix }
    }

    /// Adds a line. Empty lines are ignored; a line that cannot be an event is rejected here, in
    /// its turn.
    pub(crate) fn push(&mut self, line: u64, bytes: Result<&[u8], String>) {
        let payload = match bytes {
            Ok([]) => return,
            Ok(bytes) => check(bytes),
            Err(reason) => Err(reason),
        };
        let (payload, state) = match payload {
            Ok(payload) => (self.with_id(payload, line), SendState::Unsent),
            Err(reason) => {
                (String::new(), SendState::Rejected(Rejection { reason, is_transient: false }))
            }
        };
        self.bytes += payload.len() + OVERHEAD_BYTES;
        self.events.push_back(WindowEvent { line, payload, state });
    }

    /// Whether more lines should be read.
    pub(crate) fn has_room(&self) -> bool {
        self.bytes < BYTES_MAX
    }

    pub(crate) fn len(&self) -> usize {
        self.events.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// The first unanswered line.
    pub(crate) fn first_line(&self) -> Option<u64> {
        self.events.front().map(|event| event.line)
    }

    /// Sends the events that were not sent on this connection.
    pub(crate) async fn send(&mut self, client: &Client) -> Result<(), ClientError> {
        while let Some(event) = self.events.get_mut(self.sent) {
            if let SendState::Unsent = event.state {
                event.state = match client.publish(&self.topic, &event.payload).await {
                    Ok(published) => SendState::Sent(published),
                    Err(ClientError::Refused(error)) => SendState::Rejected(error.into()),
                    Err(error) => return Err(error),
                };
            }
            self.sent += 1;
        }
        Ok(())
    }

    /// Waits for the answer to the first event and removes it; without end if it was not sent.
    /// Cancel-safe.
    pub(crate) async fn answer(&mut self) -> Result<LineAnswer, ClientError> {
        let answer = poll_fn(|context| match self.events.front_mut() {
            Some(event) => event.poll(context),
            None => Poll::Pending,
        });
        let answer = answer.await?;
        let event = self.events.pop_front().expect("it was just answered");
        self.bytes -= event.payload.len() + OVERHEAD_BYTES;
        self.sent = self.sent.saturating_sub(1);
        Ok((event.line, answer))
    }

    /// Prepares all unanswered events for another connection. Returns the number of events that may
    /// be stored twice because they have no id.
    pub(crate) fn rewind(&mut self) -> usize {
        let mut doubtful = 0;
        for event in self.events.iter_mut().take(self.sent) {
            let mut context = Context::from_waker(Waker::noop());
            // Confirmations come in order and were read; but a rejection may follow an event
            // without an answer.
            if let Poll::Ready(Ok(Err(refusal))) = event.poll(&mut context) {
                event.state = SendState::Rejected(refusal);
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
    fn with_id(&self, payload: &str, line: u64) -> String {
        let mut text = payload.to_owned();
        let parsed = Payload::parse(payload);
        if let Some(run) = &self.id_prefix
            && parsed.target().is_some()
            && parsed.attribute(ID).is_none()
        {
            push_attribute(&mut text, ID, &format!("{run}-{line}"));
            if text.len() > PAYLOAD_BYTES_MAX {
                text.truncate(payload.len());
            }
        }
        text
    }
}

impl From<ProtocolError> for Rejection {
    fn from(error: ProtocolError) -> Self {
        let may_pass = error.code.is_transient() || error.code == Code::NotDurable;
        Self { reason: crate::client::broker_message::rejection(&error), is_transient: may_pass }
    }
}

impl WindowEvent {
    /// Polls for the result; must not be called after it was returned.
    fn poll(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Result<(), Rejection>, ClientError>> {
        let answer = match &mut self.state {
            SendState::Unsent => return Poll::Pending,
            SendState::Rejected(refusal) => {
                let refusal = Rejection { reason: std::mem::take(&mut refusal.reason), ..*refusal };
                return Poll::Ready(Ok(Err(refusal)));
            }
            SendState::Sent(published) => ready!(Pin::new(published).poll(context)),
        };
        // An answer comes once; if the connection is lost without one, the event is unchanged.
        self.state = SendState::Unsent;
        Poll::Ready(match answer {
            Ok(_seq) => Ok(Ok(())),
            Err(ClientError::Refused(error)) => Ok(Err(error.into())),
            Err(error) => Err(error),
        })
    }
}

fn check(bytes: &[u8]) -> Result<&str, String> {
    if bytes.len() > PAYLOAD_BYTES_MAX {
        return Err(format!("longer than {PAYLOAD_BYTES_MAX} bytes"));
    }
    text::check(bytes).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payloads(ids: bool, lines: &[&str]) -> Vec<String> {
        let mut window = PublishWindow::new("t".parse().unwrap(), ids);
        for (line, number) in lines.iter().zip(1..) {
            window.push(number, Ok(line.as_bytes()));
        }
        let run = window.id_prefix.unwrap_or_default();
        let shown = |event: WindowEvent| match event.state {
            SendState::Rejected(refusal) => format!("! {}", refusal.reason),
            _ => event.payload.replace(&run, "RUN"),
        };
        window.events.into_iter().map(shown).collect()
    }

    #[test]
    fn an_event_with_a_target_gets_an_id() {
        let lines =
            ["http://a.example/ job=j", "", "/a/b.html", "just text", "/a id=mine", "/a id="];
        assert_eq!(
            payloads(true, &lines),
            [
                "http://a.example/ job=j id=RUN-1",
                "/a/b.html id=RUN-3",
                "just text",
                "/a id=mine",
                "/a id="
            ]
        );
    }

    #[test]
    fn without_retries_events_get_no_id() {
        let mut window = PublishWindow::new("t".parse().unwrap(), false);
        window.push(1, Ok(b"/a"));
        assert_eq!(window.events[0].payload, "/a");
    }

    #[test]
    fn an_id_never_makes_an_event_too_long() {
        let fits = format!("/{}", "a".repeat(PAYLOAD_BYTES_MAX - 1));
        let long = format!("{fits}a");
        let payloads = payloads(true, &[&fits, &long]);
        assert_eq!(payloads, [fits, format!("! longer than {PAYLOAD_BYTES_MAX} bytes")]);
    }

    #[test]
    fn an_id_is_16_hex_digits_and_the_line() {
        let window = PublishWindow::new("t".parse().unwrap(), true);
        let id = window.with_id("/a", 7);
        let run = id.strip_prefix("/a id=").and_then(|id| id.strip_suffix("-7")).unwrap();
        assert!(run.len() == 16 && run.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
    }
}
