//! How a connection ends.
//!
//! ```text
//!                 everything has left          shut down             the other side, too, or
//!  end(cause) ──▶ that was pending ──▶ last words ──▶ lingering ──▶ too late: closed
//!                                                 └─ the broker stops: what is there is read ─▶ closed
//! ```

use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use tidings_protocol::{Code, FAREWELL, ProtocolError, SessionEnd, SessionMode};
use tokio::io::AsyncWrite;

use super::connection::{Connection, IoStatus};
use crate::audit::AuditEvent;
use crate::clock::Moment;

/// Why a connection ends.
pub(super) enum CloseReason {
    /// By what it sent, or by the end of that.
    Session(SessionEnd),
    /// A line is silent half-way.
    PartialLineTimeout,
    /// Who has to log in has not.
    LoginTimeout,
    /// Tasks pile up that are not read.
    UnreadTasks,
    /// By another part of the broker.
    Error(ProtocolError),
    /// The broker stops.
    Shutdown,
}

/// A connection on its way to its end.
#[derive(Debug)]
pub(super) struct Closing {
    /// Answers that are owed are waited for.
    waits_for_answers: bool,
    /// What is said last of all; empty: nothing.
    final_line: Bytes,
    /// The broker stops: nothing is waited for, except by a farewell.
    pub(super) is_shutdown: bool,
    /// Everything was said. It is waited for the other side to close, so that what is still coming
    /// from there does not turn the last words into a reset; in a hurry only what is there is read.
    pub(super) is_lingering: bool,
    /// When it is cut off, unless it makes progress.
    pub(super) deadline: Moment,
}

impl CloseReason {
    /// For audit records.
    fn as_str(&self) -> &'static str {
        match self {
            Self::Session(SessionEnd::Violation(_)) => "refused",
            Self::Session(_) => "left",
            Self::PartialLineTimeout => "a line was silent half-way",
            Self::LoginTimeout => "nobody logged in",
            Self::UnreadTasks => "tasks were not read",
            Self::Error(error) => error.code.as_str(),
            Self::Shutdown => "the broker stops",
        }
    }
}

impl Connection {
    /// Begins to end the connection. If it is ending already, a stop only makes it hurry.
    pub(super) fn start_closing(&mut self, cause: CloseReason) {
        let (now, limits) = (self.hub.clock.now(), &self.hub.limits);
        let stops = matches!(cause, CloseReason::Shutdown);
        let closing_ms = if stops { limits.stop_ms } else { limits.closing_timeout_ms };
        let deadline = now + closing_ms;
        if let Some(ending) = &mut self.closing {
            if stops {
                ending.deadline = ending.deadline.min(deadline);
                // A farewell that comes before the disk has everything is a lie.
                ending.waits_for_answers &= !ending.final_line.is_empty();
                ending.is_shutdown = true;
            }
            return;
        }
        self.login.close_reason = cause.as_str();
        match &cause {
            CloseReason::Session(SessionEnd::Violation(error)) => {
                self.audit(AuditEvent::Refused { why: &error.text });
            }
            CloseReason::Error(error) if error.code == Code::Revoked => {
                self.audit(AuditEvent::Revoked { why: &error.text });
            }
            CloseReason::Error(error) if error.code == Code::Unauthenticated => {
                self.audit(AuditEvent::Denied { topic: None, why: &error.text });
            }
            _ => {}
        }
        let end = match cause {
            CloseReason::Session(SessionEnd::Violation(error)) | CloseReason::Error(error) => {
                Err(error)
            }
            CloseReason::PartialLineTimeout => {
                let text =
                    format!("a line was silent half-way for {} ms", limits.partial_line_timeout_ms);
                Err(ProtocolError::new(Code::Idle, text))
            }
            CloseReason::LoginTimeout => {
                let text = format!("nobody has logged in within {} ms", limits.login_timeout_ms);
                Err(ProtocolError::new(Code::Idle, text))
            }
            CloseReason::UnreadTasks => {
                let (bytes, ms) = (limits.task_bytes_max, limits.stalled_ms);
                let text = format!("{bytes} bytes of tasks wait, and nothing was read for {ms} ms");
                Err(ProtocolError::new(Code::Idle, text))
            }
            CloseReason::Session(end) => Ok(Some(end)),
            CloseReason::Shutdown => Ok(None),
        };
        let last_words = match &end {
            Ok(end) => {
                self.subscriptions.finish();
                match end {
                    Some(end) => self.orderly_final_line(end),
                    None => self
                        .error_final_line(&ProtocolError::new(Code::Closing, "the broker stops")),
                }
            }
            Err(error) => {
                tracing::debug!(conn = %self.id, %error, "the connection is ended");
                self.subscriptions.clear();
                self.task_buffer = BytesMut::new();
                self.error_final_line(error)
            }
        };
        self.input_buffer = Vec::new();
        self.closing = Some(Box::new(Closing {
            waits_for_answers: matches!(end, Ok(Some(_))),
            final_line: last_words,
            is_shutdown: stops,
            is_lingering: false,
            deadline,
        }));
    }

    /// The last words to somebody who leaves in an orderly way.
    fn orderly_final_line(&mut self, end: &SessionEnd) -> Bytes {
        if let Some(watching) = self.worker.as_mut().and_then(|worker| worker.watch_slot.take()) {
            self.fill(watching, Bytes::from_static(b"+OK\r\n"));
        }
        match (self.session.mode(), end) {
            (SessionMode::Client, SessionEnd::Quit) => {
                self.answers.push_lines(b"+OK\r\n");
                Bytes::new()
            }
            (SessionMode::Client, _) | (_, SessionEnd::Quit) => Bytes::new(),
            _ => Bytes::from(format!("{FAREWELL}\r\n")),
        }
    }

    /// The last words to somebody who is shown the door: a client is told why, anybody else may
    /// speak another protocol, and is told nothing.
    fn error_final_line(&self, error: &ProtocolError) -> Bytes {
        let mut line = BytesMut::new();
        // Who may not be a peer here is told that, too: it has typed a line that is no command.
        if self.session.mode() == SessionMode::Client || error.code == Code::Unauthenticated {
            error.encode(&mut line);
        }
        line.freeze()
    }

    /// Something was written: whoever reads, however slowly, is not cut off.
    pub(super) fn extend_closing_deadline(&mut self) {
        if let Some(ending) = self.closing.as_mut().filter(|ending| !ending.is_shutdown) {
            ending.deadline = self.hub.clock.now() + self.hub.limits.closing_timeout_ms;
        }
    }

    /// The same where what was written waits within TLS, and some of it has left. Nor is that a
    /// stall.
    pub(super) fn extend_deadlines_if_sent(&mut self) {
        if self.stream.has_sent() {
            self.outbound.restart_stall_timer(self.hub.clock.now());
            self.extend_closing_deadline();
        }
    }

    /// Takes the next step towards the end, once everything that could leave has left.
    pub(super) fn poll_close(&mut self, cx: &mut Context<'_>) -> IoStatus {
        let Some(ending) = &self.closing else {
            return IoStatus::Idle;
        };
        if ending.is_lingering {
            return IoStatus::Idle;
        }
        // The farewell confirms what a peer sent, so it comes once the fate of all that is known.
        if ending.waits_for_answers
            && (!self.answers.is_empty() || self.subscriptions.is_waiting_for_disk())
        {
            return IoStatus::Idle;
        }
        // Whoever sees the end and comes back finds them free.
        self.release_cursors();
        let Some(ending) = &mut self.closing else { return IoStatus::Idle };
        if self.has_dropped_line && self.session.mode() != SessionMode::Client {
            ending.final_line = Bytes::new();
        }
        if !ending.final_line.is_empty() {
            self.outbound.push(mem::take(&mut ending.final_line));
            return IoStatus::Progress;
        }
        match Pin::new(&mut self.stream).poll_shutdown(cx) {
            Poll::Ready(Ok(())) => {}
            // The last word of TLS waits for the socket.
            Poll::Pending => {
                self.extend_deadlines_if_sent();
                return IoStatus::Idle;
            }
            Poll::Ready(Err(_)) => return IoStatus::Closed,
        }
        ending.is_lingering = true;
        if !ending.is_shutdown {
            ending.deadline = self.hub.clock.now() + self.hub.limits.linger_ms;
        }
        IoStatus::Progress
    }
}
