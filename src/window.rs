//! Events on their way to a broker: what was read, perhaps sent, and is not answered yet. All that
//! is needed to send it again on another connection.

use std::{
    collections::VecDeque,
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll, Waker, ready},
};

use tidings_protocol::{
    Code, MemberId, PAYLOAD_BYTES_MAX, Payload, ProtocolError, TopicName,
    client::{Client, ClientError, Published},
    push_attribute, text,
};

/// Bytes of events after which no more are read. As much as the client has on its way at once, so
/// it never waits for this side.
const BYTES_MAX: usize = 4 << 20;

/// Bytes that an event takes beside its payload.
const OVERHEAD_BYTES: usize = 128;

/// The attribute under which a broker keeps an event once, however often it is sent.
const ID: &str = "id";

/// The events of one topic that are not answered yet, in the order of their lines.
#[derive(Debug)]
pub(crate) struct Window {
    topic: TopicName,
    events: VecDeque<Event>,
    /// So many at the front were sent on the present connection, or need not be.
    sent: usize,
    bytes: usize,
    /// What ids begin with; `None`: events are left as they are.
    run: Option<String>,
}

#[derive(Debug)]
struct Event {
    line: u64,
    payload: String,
    state: State,
}

#[derive(Debug)]
enum State {
    Unsent,
    Sent(Published),
    Refused(Refusal),
}

/// Why an event is not kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// For people.
    pub(crate) reason: String,
    /// It lies with the broker, not with the event: the same may be kept later.
    pub(crate) may_pass: bool,
}

/// What became of a line: confirmed, or why not.
pub(crate) type Answer = (u64, Result<(), Refusal>);

impl Window {
    /// Nothing yet. With `ids`, events that can carry one are given an id.
    pub(crate) fn new(topic: TopicName, ids: bool) -> Self {
        // 64 bits of chance tell the runs of all publishers apart.
        let run = ids.then(|| MemberId::random().to_string()[..16].to_owned());
        Self { topic, events: VecDeque::new(), sent: 0, bytes: 0, run }
    }

    /// Takes in a line. Empty ones are nothing; what could not stand on one is refused here, in its
    /// turn.
    pub(crate) fn push(&mut self, line: u64, bytes: Result<&[u8], String>) {
        let payload = match bytes {
            Ok([]) => return,
            Ok(bytes) => check(bytes),
            Err(reason) => Err(reason),
        };
        let (payload, state) = match payload {
            Ok(payload) => (self.identified(payload, line), State::Unsent),
            Err(reason) => (String::new(), State::Refused(Refusal { reason, may_pass: false })),
        };
        self.bytes += payload.len() + OVERHEAD_BYTES;
        self.events.push_back(Event { line, payload, state });
    }

    /// Whether more should be read.
    pub(crate) fn has_room(&self) -> bool {
        self.bytes < BYTES_MAX
    }

    pub(crate) fn len(&self) -> usize {
        self.events.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// The first line that is not answered.
    pub(crate) fn first_line(&self) -> Option<u64> {
        self.events.front().map(|event| event.line)
    }

    /// Sends what was not sent on this connection yet.
    pub(crate) async fn send(&mut self, client: &Client) -> Result<(), ClientError> {
        while let Some(event) = self.events.get_mut(self.sent) {
            if let State::Unsent = event.state {
                event.state = match client.publish(&self.topic, &event.payload).await {
                    Ok(published) => State::Sent(published),
                    Err(ClientError::Refused(error)) => State::Refused(error.into()),
                    Err(error) => return Err(error),
                };
            }
            self.sent += 1;
        }
        Ok(())
    }

    /// Waits for the answer to the first event, and takes it out; for ever if it was not sent.
    /// Cancel-safe.
    pub(crate) async fn answer(&mut self) -> Result<Answer, ClientError> {
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

    /// The connection is gone: what was not answered on it has to be sent again. Returns how many
    /// events the broker may then have twice, because they have no id.
    pub(crate) fn rewind(&mut self) -> usize {
        let mut doubtful = 0;
        for event in self.events.iter_mut().take(self.sent) {
            let mut context = Context::from_waker(Waker::noop());
            // Confirmations come in order, and were taken out; but a refusal may stand behind what
            // has no answer.
            if let Poll::Ready(Ok(Err(refusal))) = event.poll(&mut context) {
                event.state = State::Refused(refusal);
            } else {
                event.state = State::Unsent;
                let has_id = Payload::parse(&event.payload).attribute(ID).is_some();
                doubtful += usize::from(!has_id);
            }
        }
        self.sent = 0;
        doubtful
    }

    /// The payload with an id, if it can carry one and has none.
    fn identified(&self, payload: &str, line: u64) -> String {
        let mut text = payload.to_owned();
        let parsed = Payload::parse(payload);
        if let Some(run) = &self.run
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

impl From<ProtocolError> for Refusal {
    fn from(error: ProtocolError) -> Self {
        let may_pass = error.code.is_transient() || error.code == Code::NotDurable;
        Self { reason: error.to_string(), may_pass }
    }
}

impl Event {
    /// What became of it; to be asked no more once that was told.
    fn poll(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Result<(), Refusal>, ClientError>> {
        let answer = match &mut self.state {
            State::Unsent => return Poll::Pending,
            State::Refused(refusal) => {
                let refusal = Refusal { reason: std::mem::take(&mut refusal.reason), ..*refusal };
                return Poll::Ready(Ok(Err(refusal)));
            }
            State::Sent(published) => ready!(Pin::new(published).poll(context)),
        };
        // An answer comes once, and one that the connection has lost leaves the event as it was.
        self.state = State::Unsent;
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
        let mut window = Window::new("t".parse().unwrap(), ids);
        for (line, number) in lines.iter().zip(1..) {
            window.push(number, Ok(line.as_bytes()));
        }
        let run = window.run.unwrap_or_default();
        let shown = |event: Event| match event.state {
            State::Refused(refusal) => format!("! {}", refusal.reason),
            _ => event.payload.replace(&run, "RUN"),
        };
        window.events.into_iter().map(shown).collect()
    }

    #[test]
    fn what_can_carry_an_id_and_has_none_gets_one() {
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
    fn who_never_sends_again_leaves_events_as_they_are() {
        let mut window = Window::new("t".parse().unwrap(), false);
        window.push(1, Ok(b"/a"));
        assert_eq!(window.events[0].payload, "/a");
    }

    #[test]
    fn an_id_makes_no_event_too_long() {
        let fits = format!("/{}", "a".repeat(PAYLOAD_BYTES_MAX - 1));
        let long = format!("{fits}a");
        let payloads = payloads(true, &[&fits, &long]);
        assert_eq!(payloads, [fits, format!("! longer than {PAYLOAD_BYTES_MAX} bytes")]);
    }

    #[test]
    fn an_id_is_16_hex_digits_and_the_line() {
        let window = Window::new("t".parse().unwrap(), true);
        let id = window.identified("/a", 7);
        let run = id.strip_prefix("/a id=").and_then(|id| id.strip_suffix("-7")).unwrap();
        assert!(run.len() == 16 && run.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
    }
}
