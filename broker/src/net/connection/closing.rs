//! The close of a connection: the last lines, and the lingering.
//!
//! ```text
//!                    pending output               write side           remote end closes,
//!                    is sent                      is shut down         or the deadline passes
//!  start_closing ──▶ final line ────────────────▶ lingering ─────────▶ closed
//!                                                   └─ broker stops: available input is read
//! ```

use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use tidings_protocol::{Code, FAREWELL, ProtocolError, SessionEnd, SessionMode, encode_ok};
use tokio::io::AsyncWrite;

use super::{Connection, IoStatus};
use crate::audit::AuditEvent;
use crate::clock::Moment;
use crate::limits::Limits;

/// Why a connection ends.
pub(super) enum CloseReason {
    /// The client's input ended, or violated the protocol.
    Session(SessionEnd),
    /// A line stayed incomplete for too long.
    PartialLineTimeout,
    /// The client had to log in and did not.
    LoginTimeout,
    /// The worker does not read, and too many bytes of tasks are buffered.
    UnreadTasks,
    /// Another part of the broker reported an error.
    Error(ProtocolError),
    /// The broker stops.
    Shutdown,
}

/// State of a connection that is closing.
#[derive(Debug)]
pub(super) struct Closing {
    /// Why the connection ends, for audit records.
    reason: &'static str,
    /// Pending answers are sent before the final line.
    waits_for_answers: bool,
    /// The last line to send; empty if there is none.
    final_line: Bytes,
    /// The broker stops, so nothing is waited for, except before a farewell.
    is_shutdown: bool,
    /// Everything is sent, and the write side is shut down. Input is read and discarded until the
    /// remote end closes: closing over unread input causes a reset, which may overtake the final
    /// line. If the broker stops, only input that has already arrived is read.
    is_lingering: bool,
    /// When the connection is cut off; each write extends it, unless the broker stops.
    deadline: Moment,
}

impl Closing {
    /// Why the connection ends, for audit records.
    pub(super) fn reason(&self) -> &'static str {
        self.reason
    }

    /// Whether the broker stops.
    pub(super) fn is_shutdown(&self) -> bool {
        self.is_shutdown
    }

    /// Whether everything is sent.
    pub(super) fn is_lingering(&self) -> bool {
        self.is_lingering
    }
}

impl CloseReason {
    /// The reason in audit records.
    fn as_str(&self) -> &'static str {
        match self {
            Self::Session(SessionEnd::Violation(_)) => "refused",
            Self::Session(_) => "left",
            Self::PartialLineTimeout => "incomplete line",
            Self::LoginTimeout => "no login in time",
            Self::UnreadTasks => "unread tasks",
            Self::Error(error) => error.code.as_str(),
            Self::Shutdown => "the broker stops",
        }
    }

    /// The error that the client receives, or the end of the input, which is `None` if the broker
    /// stops.
    fn outcome(self, limits: &Limits) -> Result<Option<SessionEnd>, ProtocolError> {
        let text = match self {
            Self::Session(SessionEnd::Violation(error)) | Self::Error(error) => return Err(error),
            Self::Session(end) => return Ok(Some(end)),
            Self::Shutdown => return Ok(None),
            Self::PartialLineTimeout => {
                let ms = limits.partial_line_timeout_ms;
                format!("a line was incomplete for {ms} ms; send whole lines")
            }
            Self::LoginTimeout => {
                let ms = limits.login_timeout_ms;
                format!("no login within {ms} ms; send HELLO token=<token> first")
            }
            Self::UnreadTasks => {
                let (bytes, ms) = (limits.task_bytes_max, limits.stalled_ms);
                format!(
                    "over {bytes} bytes of tasks are unread, and nothing was read for {ms} ms; \
                     read faster, or join with less credit"
                )
            }
        };
        Err(ProtocolError::new(Code::Idle, text))
    }
}

impl Connection {
    /// Starts to close the connection. If it is closing already, a stop of the broker only shortens
    /// the wait.
    pub(super) fn start_closing(&mut self, reason: CloseReason) {
        let (now, limits) = (self.shared.clock.now(), &self.shared.limits);
        let is_shutdown = matches!(reason, CloseReason::Shutdown);
        let closing_ms = if is_shutdown { limits.stop_ms } else { limits.closing_timeout_ms };
        let deadline = now + closing_ms;
        if let Some(closing) = &mut self.closing {
            if is_shutdown {
                closing.deadline = closing.deadline.min(deadline);
                // A farewell confirms that every line is durable, so it still waits for the disk.
                closing.waits_for_answers &= !closing.final_line.is_empty();
                closing.is_shutdown = true;
            }
            return;
        }
        let reason_word = reason.as_str();
        match &reason {
            CloseReason::Session(SessionEnd::Violation(error)) => {
                self.client.session.audit(AuditEvent::Refused { why: &error.text });
            }
            CloseReason::Error(error) if error.code == Code::Revoked => {
                self.client.session.audit(AuditEvent::Revoked { why: &error.text });
            }
            CloseReason::Error(error) if error.code == Code::Unauthenticated => {
                self.client.session.audit(AuditEvent::Denied { topic: None, why: &error.text });
            }
            _ => {}
        }
        let outcome = reason.outcome(&self.shared.limits);
        let final_line = match &outcome {
            Ok(end) => {
                self.subscriptions.finish();
                match end {
                    Some(end) => self.orderly_final_line(end),
                    None => self
                        .error_final_line(&ProtocolError::new(Code::Closing, "the broker stops")),
                }
            }
            Err(error) => {
                tracing::debug!(conn = %self.id, %error, "closing the connection");
                self.subscriptions.clear();
                self.output.drop_tasks();
                self.error_final_line(error)
            }
        };
        self.input.discard();
        self.closing = Some(Box::new(Closing {
            reason: reason_word,
            waits_for_answers: matches!(outcome, Ok(Some(_))),
            final_line,
            is_shutdown,
            is_lingering: false,
            deadline,
        }));
    }

    /// The final line for a client or peer that ended its input in order.
    fn orderly_final_line(&mut self, end: &SessionEnd) -> Bytes {
        if let Some(slot) = self.worker.as_mut().and_then(|worker| worker.take_watch()) {
            self.fill(slot, Bytes::from_static(b"+OK\r\n"));
        }
        match (self.input.mode(), end) {
            (SessionMode::Client, SessionEnd::Quit) => {
                self.answers.push(|lines| encode_ok("", lines));
                Bytes::new()
            }
            (SessionMode::Client, _) | (_, SessionEnd::Quit) => Bytes::new(),
            _ => Bytes::from(format!("{FAREWELL}\r\n")),
        }
    }

    /// Answers the commands that still wait, after the end of the input. Returns whether there were
    /// any. A connection without input may belong to a client that is gone.
    pub(super) fn end_waits(&mut self) -> bool {
        let Some(closing) = &self.closing else { return false };
        if !closing.waits_for_answers || closing.is_shutdown {
            return false;
        }
        let slots = self.worker.as_mut().map(|worker| worker.take_waits());
        let slots = slots.unwrap_or_default();
        let text = "the input has ended before the answer; keep the connection open to wait for it";
        for slot in &slots {
            self.fill_error(*slot, &ProtocolError::new(Code::Conflict, text));
        }
        !slots.is_empty()
    }

    /// The final line for a connection that the broker closes. A client receives the error. Other
    /// connections may speak another protocol and receive nothing.
    fn error_final_line(&self, error: &ProtocolError) -> Bytes {
        let mut line = BytesMut::new();
        // A connection that sent a bare line while anonymous publishing is off also gets the error,
        // because a person may have typed the line.
        if self.input.mode() == SessionMode::Client || error.code == Code::Unauthenticated {
            error.encode(&mut line);
        }
        line.freeze()
    }

    pub(super) fn closing_deadline(&self) -> Option<Moment> {
        self.closing.as_ref().map(|ending| ending.deadline)
    }

    /// Extends the closing deadline after a write, so that a slow reader is not cut off.
    pub(super) fn extend_closing_deadline(&mut self) {
        if let Some(closing) = self.closing.as_mut().filter(|closing| !closing.is_shutdown) {
            closing.deadline = self.shared.clock.now() + self.shared.limits.closing_timeout_ms;
        }
    }

    /// Extends the deadlines if the socket accepted bytes that TLS had buffered: the remote end is
    /// reading, so the connection is not stalled.
    pub(super) fn extend_deadlines_if_sent(&mut self) {
        if self.stream.has_sent() {
            self.output.restart_stall_timer(self.shared.clock.now());
            self.extend_closing_deadline();
        }
    }

    /// Continues to close the connection, once all output is written.
    pub(super) fn poll_close(&mut self, cx: &mut Context<'_>) -> IoStatus {
        let Some(closing) = &self.closing else { return IoStatus::Idle };
        if closing.is_lingering {
            return IoStatus::Idle;
        }
        // The farewell confirms a peer's lines, so it waits until each is durable or lost.
        if closing.waits_for_answers
            && (!self.answers.is_empty() || self.subscriptions.is_waiting_for_disk())
        {
            return IoStatus::Idle;
        }
        // Released before the close, so that a client that reconnects can acquire them.
        self.release_cursors(None);
        let Some(closing) = &mut self.closing else { return IoStatus::Idle };
        if self.answers.has_failed_publish() && self.input.mode() != SessionMode::Client {
            closing.final_line = Bytes::new();
        }
        if !closing.final_line.is_empty() {
            self.output.push(mem::take(&mut closing.final_line));
            return IoStatus::Progress;
        }
        match Pin::new(&mut self.stream).poll_shutdown(cx) {
            Poll::Ready(Ok(())) => {}
            // The socket has not accepted TLS's close-notify alert yet.
            Poll::Pending => {
                self.extend_deadlines_if_sent();
                return IoStatus::Idle;
            }
            Poll::Ready(Err(_)) => return IoStatus::Closed,
        }
        closing.is_lingering = true;
        if !closing.is_shutdown {
            closing.deadline = self.shared.clock.now() + self.shared.limits.linger_ms;
        }
        IoStatus::Progress
    }
}
