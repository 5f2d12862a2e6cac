//! Reads input, splits it into lines, and publishes or runs each line.

use std::cell::RefCell;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tidings_protocol::{
    Code, Command, ProtocolError, PublishBatch, Seq, Session, SessionEnd, SessionEvent,
    SessionMode, TaskId, TopicName, Verb, bad_argument,
};
use tokio::io::{AsyncRead, ReadBuf};

use super::closing::CloseReason;
use super::{Connection, IoStatus};
use crate::access::{contains_token, redact_tokens};
use crate::clock::Moment;
use crate::stats::CommandCounts;
use crate::topic::{Topic, dedup_id};

thread_local! {
    /// The buffer of a thread, shared by its connections. Each uses it during its own poll.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// What a connection has read: how it is split into lines, and what is not processed yet.
#[derive(Debug)]
pub(super) struct LineInput {
    session: Session,
    /// A partial line, or more if there is a backlog.
    unread: Vec<u8>,
    /// `unread` may hold whole lines, because too many answers were pending.
    has_backlog: bool,
    /// The time of the last read, or of the last poll in which reading was paused.
    read_at: Moment,
}

impl LineInput {
    pub(super) fn new(now: Moment) -> Self {
        Self { session: Session::new(), unread: Vec::new(), has_backlog: false, read_at: now }
    }

    /// Whether the lines are those of a client or of a peer.
    pub(super) fn mode(&self) -> SessionMode {
        self.session.mode()
    }

    /// Whether whole lines may wait until answers are sent.
    pub(super) fn has_backlog(&self) -> bool {
        self.has_backlog
    }

    /// How many bytes are not processed yet.
    pub(super) fn unread(&self) -> usize {
        self.unread.len()
    }

    /// Drops what is not processed yet.
    pub(super) fn discard(&mut self) {
        self.unread = Vec::new();
    }
}

/// Consecutive publishes to one topic within one read, to be appended as one batch.
#[derive(Default)]
struct PendingPublishes<'a> {
    topic: Option<Arc<Topic>>,
    payloads: Vec<&'a str>,
    /// The index and the dedup id of each payload that has one.
    ids: Vec<(usize, u128)>,
    /// The commands of this read.
    commands: CommandCounts,
}

impl Connection {
    /// Reads once and handles the lines.
    pub(super) fn poll_input(&mut self, cx: &mut Context<'_>) -> IoStatus {
        if let Some(closing) = &self.closing {
            return if closing.is_lingering() { self.poll_discard(cx) } else { IoStatus::Idle };
        }
        if self.is_backpressured(Some(cx.waker())) || self.should_pause_reading() {
            // Sent answers, messages in the mailbox and groups that consume events wake the task.
            // Until then the broker pauses reading, so the client is not late.
            self.input.read_at = self.shared.clock.now();
            return IoStatus::Idle;
        }
        READ_BUFFER.with_borrow_mut(|buffer| self.poll_read(cx, buffer))
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, scratch: &mut Vec<u8>) -> IoStatus {
        let leftover = self.input.unread.len();
        let mut filled = leftover;
        if self.input.has_backlog {
            scratch.resize(scratch.len().max(leftover), 0);
        } else {
            let end = leftover + self.read_size(leftover);
            scratch.resize(scratch.len().max(end), 0);
            let mut buffer = ReadBuf::new(&mut scratch[leftover..end]);
            match Pin::new(&mut self.stream).poll_read(cx, &mut buffer) {
                Poll::Pending => return IoStatus::Idle,
                // A reset drops the partial line.
                Poll::Ready(Err(_)) => return IoStatus::Closed,
                Poll::Ready(Ok(())) => filled += buffer.filled().len(),
            }
            if self.is_write_closed && filled == leftover {
                // A write has already failed, and all input that arrived before is read.
                return IoStatus::Closed;
            }
            self.input.read_at = self.shared.clock.now();
            self.shared.stats.bytes_in.add((filled - leftover) as u64);
        }
        scratch[..leftover].copy_from_slice(&self.input.unread);
        let end_of_input = !self.input.has_backlog && filled == leftover;
        let input = &scratch[..filled];
        let used = self.process_lines(input, end_of_input, cx.waker());
        self.client.session.charge(filled - leftover, self.input.read_at);
        if self.client.must_log_in()
            && !self.input.has_backlog
            && filled - used > self.shared.limits.anonymous_bytes_max
        {
            let text = format!(
                "before a login a line may have at most {} bytes; send HELLO token=<token> first",
                self.shared.limits.anonymous_bytes_max
            );
            self.start_closing(CloseReason::Error(ProtocolError::new(Code::TooLong, text)));
        }
        if self.closing.is_none() && used < filled {
            self.input.unread.clear();
            self.input.unread.extend_from_slice(&input[used..]);
        } else {
            self.input.unread = Vec::new();
        }
        IoStatus::Progress
    }

    /// How many bytes to read at once, if `leftover` bytes are unprocessed.
    fn read_size(&self, leftover: usize) -> usize {
        let limits = &self.shared.limits;
        if self.client.must_log_in() {
            return limits.anonymous_bytes_max.saturating_sub(leftover).max(1);
        }
        limits.read_bytes.max(1)
    }

    /// `None` while reading is paused, because the rest of the line may already be in the socket.
    pub(super) fn partial_line_deadline(&self) -> Option<Moment> {
        let is_partial =
            self.input.session.is_mid_line() && !self.input.has_backlog && self.closing.is_none();
        (is_partial && !self.is_congested() && !self.is_backpressured(None))
            .then(|| self.input.read_at + self.shared.limits.partial_line_timeout_ms)
    }

    /// Discards input while the connection lingers, until the remote end closes.
    fn poll_discard(&mut self, cx: &mut Context<'_>) -> IoStatus {
        let is_shutdown = self.closing.as_ref().is_some_and(|closing| closing.is_shutdown());
        let mut bytes = [0; 4096];
        let mut buffer = ReadBuf::new(&mut bytes);
        match Pin::new(&mut self.stream).poll_read(cx, &mut buffer) {
            Poll::Pending if is_shutdown => IoStatus::Closed,
            Poll::Pending => IoStatus::Idle,
            Poll::Ready(Ok(())) if !buffer.filled().is_empty() => IoStatus::Progress,
            Poll::Ready(_) => IoStatus::Closed,
        }
    }

    /// Handles the lines of `input` and returns how many bytes are consumed.
    fn process_lines(&mut self, input: &[u8], end_of_input: bool, waker: &Waker) -> usize {
        let mut pending = PendingPublishes::default();
        let (mut used, mut lines) = (0, 0);
        // Attempts to parse a run of publishes at once: two, as the input may begin within a line.
        let mut batch_attempts = if self.shared.logs_lines() { 0 } else { 2 };
        loop {
            self.input.has_backlog = self.is_congested();
            if self.input.has_backlog || self.closing.is_some() {
                break;
            }
            let unread = &input[used..];
            if batch_attempts > 0 {
                if let Some((consumed, publishes)) = self.input.session.publish_batch(unread) {
                    used += consumed;
                    lines += publishes.len() as u64;
                    pending.commands.add(Verb::Pub, publishes.len());
                    self.publish_batch(publishes, &mut pending);
                    continue;
                }
                batch_attempts -= 1;
            }
            let (consumed, event) = self.input.session.next(unread);
            used += consumed;
            let Some(event) = event else { break };
            lines += 1;
            let consumed = &unread[..consumed];
            self.log_line(consumed);
            self.handle_event(event, consumed, &mut pending, waker);
        }
        if end_of_input && !self.input.has_backlog {
            let consumed = &input[used..];
            for event in self.input.session.finish(consumed) {
                if event != SessionEvent::End(SessionEnd::EndOfInput) {
                    lines += 1;
                    self.log_line(consumed);
                }
                self.handle_event(event, consumed, &mut pending, waker);
            }
        }
        self.flush_publishes(&mut pending);
        self.flush_replies();
        pending.commands.flush(&self.shared.stats);
        self.shared.stats.lines.add(lines);
        used
    }

    /// Handles a session event, which comes from the last line of `consumed` or from the end of the
    /// input.
    fn handle_event<'a>(
        &mut self,
        event: SessionEvent<'a>,
        consumed: &[u8],
        pending: &mut PendingPublishes<'a>,
        waker: &Waker,
    ) {
        match event {
            SessionEvent::Publish(payload) => self.publish_as_peer(payload, pending),
            SessionEvent::Command(Command::Pub { topic, payload }) => {
                pending.commands.add(Verb::Pub, 1);
                self.become_client();
                self.publish(topic, payload, pending);
            }
            SessionEvent::Command(command) => {
                pending.commands.add(command.verb(), 1);
                self.become_client();
                // Commands reach topics and groups in the order of the lines.
                self.flush_publishes(pending);
                self.handle_command(command, waker);
            }
            SessionEvent::Refused { error, publish } => {
                self.become_client();
                self.flush_publishes(pending);
                self.shared.stats.refused_lines.add(1);
                if publish {
                    self.shared.stats.count_refusal(error.code);
                    self.answers.publish_refused(&error);
                } else {
                    self.push_error(&error);
                }
            }
            SessionEvent::Dropped(error) => self.report_dropped_line(&error, last_line(consumed)),
            SessionEvent::End(end) => {
                self.flush_publishes(pending);
                let is_orderly = !matches!(end, SessionEnd::Violation(_));
                if is_orderly && self.input.session.mode() == SessionMode::Client {
                    self.become_client();
                }
                self.start_closing(CloseReason::Session(end));
            }
        }
    }

    /// Ends the peer subscription, because the first line shows that this is a client.
    fn become_client(&mut self) {
        if self.is_peer {
            self.is_peer = false;
            self.subscriptions.remove_peer_subscription();
        }
    }

    fn report_dropped_line(&mut self, error: &ProtocolError, line: &[u8]) {
        self.shared.stats.refused_lines.add(1);
        if self.input.session.mode() == SessionMode::Client {
            // A LINK, which has no answer. It is counted in the answer to its task, if the task id
            // is readable.
            self.become_client();
            if let Some(task) = task_of_link(line) {
                let limits = &self.shared.clone().limits;
                self.worker_mut().count_refused_link(limits, task);
            }
            return;
        }
        // A peer receives no errors. The missing farewell tells it that a line is no event.
        self.answers.publish_refused(error);
        if let Some(held_back) = self.shared.stats.dropped_lines_log.allow(self.shared.clock.now())
        {
            tracing::warn!(conn = %self.id, %error, held_back, "a peer's line was dropped");
        }
    }

    fn publish_batch<'a>(
        &mut self,
        mut publishes: PublishBatch<'a>,
        pending: &mut PendingPublishes<'a>,
    ) {
        self.become_client();
        let is_same_topic =
            pending.topic.as_ref().is_some_and(|topic| topic.name().as_str() == publishes.topic);
        if !is_same_topic || publishes.may_contain(" id=") {
            // The first publish looks up the topic.
            let topic = publishes.topic;
            let one_by_one = if publishes.may_contain(" id=") { publishes.len() } else { 1 };
            for payload in publishes.by_ref().take(one_by_one) {
                self.publish(topic, payload, pending);
            }
        }
        let is_unlimited = self.client.session.may_publish_everything(publishes.topic);
        if pending.topic.is_some() && is_unlimited {
            pending.payloads.extend(publishes);
        } else {
            let topic = publishes.topic;
            for payload in publishes {
                self.publish(topic, payload, pending);
            }
        }
    }

    /// Adds a line of a peer to the pending publishes.
    fn publish_as_peer<'a>(&mut self, payload: &'a str, pending: &mut PendingPublishes<'a>) {
        let Some(name) = self.client.session.peer_topic().cloned() else {
            let text = "anonymous publishing is off; log in with HELLO token=<token>, or type HELP";
            return self.start_closing(CloseReason::Error(ProtocolError::new(
                Code::Unauthenticated,
                text,
            )));
        };
        // A peer cannot log in any more, and every subscriber would read its token.
        if contains_token(payload) {
            let text = "the line contains a token, which every subscriber would read; send HELLO \
                        token=<token> as the first line";
            return self.report_dropped_line(&bad_argument(text), b"");
        }
        self.client.session.become_peer();
        self.publish(name.as_str(), payload, pending);
    }

    fn publish<'a>(&mut self, name: &str, payload: &'a str, pending: &mut PendingPublishes<'a>) {
        if let Err(error) = self.client.session.authorize_event(name, payload) {
            self.flush_publishes(pending);
            return self.reject_publishes(&error, 1);
        }
        if pending.topic.as_ref().is_none_or(|topic| topic.name().as_str() != name) {
            self.flush_publishes(pending);
            match self.topic_for_publish(name) {
                Ok(topic) => pending.topic = Some(topic),
                Err(error) => {
                    self.shared.stats.refused_lines.add(1);
                    self.shared.stats.count_refusal(error.code);
                    self.answers.publish_refused(&error);
                    return;
                }
            }
        }
        if let Some(id) = dedup_id(payload) {
            pending.ids.push((pending.payloads.len(), id));
        }
        pending.payloads.push(payload);
    }

    /// Returns the topic of that name, without a lookup if it is that of the last publish.
    fn topic_for_publish(&self, name: &str) -> Result<Arc<Topic>, ProtocolError> {
        match &self.last_topic {
            Some(topic) if topic.name().as_str() == name && !topic.is_deleted() => {
                Ok(Arc::clone(topic))
            }
            _ => self.client.session.topic_for_publish(&TopicName::new(name)?),
        }
    }

    /// Appends the pending publishes as one batch.
    fn flush_publishes(&mut self, pending: &mut PendingPublishes<'_>) {
        let Some(topic) = pending.topic.take() else { return };
        // Commands on tasks were read before these publishes.
        self.flush_replies();
        let count = pending.payloads.len();
        let (payloads, ids) =
            (std::mem::take(&mut pending.payloads), std::mem::take(&mut pending.ids));
        let appended = if ids.is_empty() {
            topic.append(self.id, payloads.iter().copied()).map(|seqs| {
                if seqs.start < seqs.end {
                    let last = Seq(seqs.end.0 - 1);
                    self.answers.publish_run(topic.id(), seqs.start, last);
                }
            })
        } else {
            topic.append_deduplicated(self.id, &payloads, &ids).map(|seqs| {
                for seq in seqs {
                    self.answers.publish(topic.id(), seq);
                }
            })
        };
        match appended {
            Ok(()) => {
                self.client.session.count_events(count);
                self.client.session.record_published(topic.name().as_str(), count, None);
                self.last_topic = Some(topic);
            }
            Err(error) => self.reject_publishes(&error, count),
        }
        pending.payloads = payloads;
        pending.payloads.clear();
    }

    /// Rejects publishes: a client receives an error for each, and those of a peer are logged.
    fn reject_publishes(&mut self, error: &ProtocolError, count: usize) {
        self.shared.stats.refused_lines.add(count as u64);
        let is_client = self.input.session.mode() == SessionMode::Client;
        for _ in 0..count {
            self.answers.publish_refused(error);
            if is_client {
                self.shared.stats.count_refusal(error.code);
            }
        }
        if is_client {
            return;
        }
        if let Some(held_back) = self.shared.stats.dropped_lines_log.allow(self.shared.clock.now())
        {
            tracing::warn!(conn = %self.id, %error, held_back, "lines of a peer were not stored");
        }
    }

    /// Logs the last line of `consumed`. Control characters are escaped, so that it stays one line
    /// in every log.
    fn log_line(&self, consumed: &[u8]) {
        let is_debug = tracing::enabled!(target: "tidings::line", tracing::Level::DEBUG);
        if !(self.shared.logs_lines() || is_debug) {
            return;
        }
        let line: String = redact_tokens(&String::from_utf8_lossy(last_line(consumed)))
            .chars()
            .flat_map(|c| {
                let escape = c.is_control().then(|| c.escape_default());
                let plain = (!c.is_control()).then_some(c);
                escape.into_iter().flatten().chain(plain)
            })
            .collect();
        if self.shared.logs_lines() {
            tracing::info!(target: "tidings::line", conn = %self.id, line);
        } else {
            tracing::debug!(target: "tidings::line", conn = %self.id, line);
        }
    }
}

/// The last line of the consumed bytes, without its line end. Empty lines, or the rest of a line
/// that was too long, may precede it.
fn last_line(consumed: &[u8]) -> &[u8] {
    let line = consumed.strip_suffix(b"\n").unwrap_or(consumed);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    memchr::memrchr(b'\n', line).map_or(line, |end| &line[end + 1..])
}

/// The task id of a malformed `LINK`, if it is readable.
fn task_of_link(line: &[u8]) -> Option<TaskId> {
    let mut words = line.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty());
    std::str::from_utf8(words.nth(1)?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_logged_without_its_end() {
        for (consumed, line) in [
            ("a b\r\n", "a b"),
            ("a\n", "a"),
            ("a", "a"),
            ("a\r", "a"),
            ("\n\r\n\na\n", "a"),
            ("the rest of a long one\na\r\n", "a"),
            ("\n\x04", "\x04"),
            ("", ""),
        ] {
            assert_eq!(last_line(consumed.as_bytes()), line.as_bytes(), "{consumed:?}");
        }
    }

    #[test]
    fn a_malformed_link_may_still_name_its_task() {
        let task = task_of_link(b"LINK  crawlers:1.2.3 http://\xff/ x=y").map(|id| id.to_string());
        assert_eq!(task.as_deref(), Some("crawlers:1.2.3"));
        assert_eq!(task_of_link(b"LINK crawlers http://a/"), None);
        assert_eq!(task_of_link(b"LINK"), None);
    }
}
