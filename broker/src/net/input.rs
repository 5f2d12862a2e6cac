//! From bytes to events: reading, and what each line does.

use std::cell::RefCell;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tidings_protocol::{Command, DEFAULT_TOPIC, End, Event, Mode, ProtocolError, Seq, TopicName};
use tokio::io::{AsyncRead, ReadBuf};

use super::connection::{Connection, Step};
use super::ending::Cause;
use crate::topic::Topic;

thread_local! {
    /// Where every connection of a worker thread reads into, during its turn.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Publishes to one topic that follow each other within one read: one batch.
#[derive(Default)]
struct Run<'a> {
    topic: Option<Arc<Topic>>,
    payloads: Vec<&'a str>,
}

impl Connection {
    /// Reads once, and does what the lines say.
    pub(super) fn poll_input(&mut self, cx: &mut Context<'_>) -> Step {
        if let Some(ending) = &self.ending {
            return if ending.lingering { self.poll_discard(cx) } else { Step::Waiting };
        }
        if self.is_congested() {
            // Answers that leave, or parcels that come, give another turn.
            return Step::Waiting;
        }
        SCRATCH.with_borrow_mut(|scratch| self.poll_read(cx, scratch))
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, scratch: &mut Vec<u8>) -> Step {
        let kept = self.unread.len();
        let mut filled = kept;
        if self.backlog {
            scratch.resize(scratch.len().max(kept), 0);
        } else {
            let end = kept + self.hub.limits.read_bytes.max(1);
            scratch.resize(scratch.len().max(end), 0);
            let mut buffer = ReadBuf::new(&mut scratch[kept..end]);
            match Pin::new(&mut self.stream).poll_read(cx, &mut buffer) {
                Poll::Pending => return Step::Waiting,
                // A reset: a line without its end is worth nothing.
                Poll::Ready(Err(_)) => return Step::Over,
                Poll::Ready(Ok(())) => filled += buffer.filled().len(),
            }
            self.read_at = self.hub.clock.now();
            self.hub.stats.bytes_in.add((filled - kept) as u64);
        }
        scratch[..kept].copy_from_slice(&self.unread);
        let end_of_input = !self.backlog && filled == kept;
        let input = &scratch[..filled];
        let used = self.take_lines(input, end_of_input, cx.waker());
        if self.ending.is_none() && used < filled {
            self.unread.clear();
            self.unread.extend_from_slice(&input[used..]);
        } else {
            self.unread = Vec::new();
        }
        Step::Progress
    }

    /// After the last words: whatever comes is of no interest, but its end is.
    fn poll_discard(&mut self, cx: &mut Context<'_>) -> Step {
        let mut bytes = [0; 512];
        let mut buffer = ReadBuf::new(&mut bytes);
        match Pin::new(&mut self.stream).poll_read(cx, &mut buffer) {
            Poll::Pending => Step::Waiting,
            Poll::Ready(Ok(())) if !buffer.filled().is_empty() => Step::Progress,
            Poll::Ready(_) => Step::Over,
        }
    }

    /// Does what the lines of `input` say, and returns how many bytes are done with.
    fn take_lines(&mut self, input: &[u8], end_of_input: bool, waker: &Waker) -> usize {
        let logs =
            self.hub.log_lines || tracing::enabled!(target: "tidings::line", tracing::Level::DEBUG);
        let mut run = Run::default();
        let (mut used, mut lines) = (0, 0);
        loop {
            self.backlog = self.is_congested();
            if self.backlog || self.ending.is_some() {
                break;
            }
            let unread = &input[used..];
            let (consumed, event) = self.session.next(unread);
            used += consumed;
            let Some(event) = event else { break };
            lines += 1;
            if logs {
                self.log_line(&unread[..consumed]);
            }
            self.event(event, &mut run, waker);
        }
        if end_of_input && !self.backlog {
            for event in self.session.finish(&input[used..]) {
                self.event(event, &mut run, waker);
            }
        }
        self.flush(&mut run);
        self.hub.stats.lines.add(lines);
        used
    }

    fn event<'a>(&mut self, event: Event<'a>, run: &mut Run<'a>, waker: &Waker) {
        match event {
            Event::Publish(payload) => self.publish(None, payload, run),
            Event::Command(Command::Pub { topic, payload }) => {
                self.leave_the_peers();
                self.publish(Some(topic), payload, run);
            }
            Event::Command(command) => {
                self.leave_the_peers();
                // Commands reach topics and groups in their order.
                self.flush(run);
                self.command(command, waker);
            }
            Event::Refused { error, publish } => {
                self.leave_the_peers();
                self.flush(run);
                self.hub.stats.refused.add(1);
                if publish {
                    self.answers.publish_refused(&error);
                } else {
                    self.refuse(&error);
                }
            }
            Event::Dropped(error) => self.dropped(&error),
            Event::End(end) => {
                self.flush(run);
                let patient = !matches!(end, End::Violation(_));
                if patient && self.session.mode() == Mode::Client {
                    self.leave_the_peers();
                }
                self.end(Cause::Session(end));
            }
        }
    }

    /// What turned out to be a client hears only what it asks for.
    fn leave_the_peers(&mut self) {
        if self.is_peer {
            self.is_peer = false;
            self.subscriptions.remove_peer();
        }
    }

    fn dropped(&mut self, error: &ProtocolError) {
        self.hub.stats.refused.add(1);
        if self.session.mode() == Mode::Client {
            // A LINK: it is reported with the answer of a task.
            self.leave_the_peers();
            self.worker().staged.stray();
        } else if let Some(held_back) = self.hub.stats.refusal_log.pass(self.hub.clock.now()) {
            // A peer has nobody else to be told by.
            tracing::warn!(conn = %self.id, %error, held_back, "a peer's line is no event");
        }
    }

    /// Adds a publish to the run: to the default topic, or to a named one.
    fn publish<'a>(&mut self, name: Option<&str>, payload: &'a str, run: &mut Run<'a>) {
        let name = name.unwrap_or(DEFAULT_TOPIC);
        if run.topic.as_ref().is_none_or(|topic| topic.name().as_str() != name) {
            self.flush(run);
            match self.topic(name) {
                Ok(topic) => run.topic = Some(topic),
                Err(error) => {
                    self.hub.stats.refused.add(1);
                    self.answers.publish_refused(&error);
                    return;
                }
            }
        }
        run.payloads.push(payload);
    }

    /// The topic of that name, quickly if it is the one that was published to last.
    fn topic(&self, name: &str) -> Result<Arc<Topic>, ProtocolError> {
        match &self.published {
            Some((topic, _)) if topic.name().as_str() == name => Ok(Arc::clone(topic)),
            _ => self.hub.topics.open(&TopicName::new(name)?),
        }
    }

    /// Appends the run as one batch.
    fn flush(&mut self, run: &mut Run<'_>) {
        let Some(topic) = run.topic.take() else {
            return;
        };
        let numbers = topic.append(self.id, run.payloads.drain(..));
        let (first, end) = (numbers.start, numbers.end);
        self.hub.stats.events.add(end.0 - first.0);
        if self.session.mode() == Mode::Client {
            for seq in first.0..end.0 {
                self.answers.publish(topic.id(), Seq(seq));
            }
        }
        self.published = Some((topic, end));
    }

    /// With control characters escaped, so that a line is one line in every log.
    fn log_line(&self, line: &[u8]) {
        let text = String::from_utf8_lossy(line);
        let text = text.trim_end_matches(['\r', '\n']);
        let line: String = text
            .chars()
            .flat_map(|c| {
                let escape = c.is_control().then(|| c.escape_default());
                let plain = (!c.is_control()).then_some(c);
                escape.into_iter().flatten().chain(plain)
            })
            .collect();
        if self.hub.log_lines {
            tracing::info!(target: "tidings::line", conn = %self.id, line);
        } else {
            tracing::debug!(target: "tidings::line", conn = %self.id, line);
        }
    }
}
