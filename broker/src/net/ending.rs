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

use super::connection::{Connection, Step};
use crate::audit::AuditEvent;
use crate::clock::Moment;

/// Why a connection ends.
pub(super) enum Cause {
    /// By what it sent, or by the end of that.
    Session(SessionEnd),
    /// A line is silent half-way.
    HalfLine,
    /// Who has to log in has not.
    LateLogIn,
    /// Tasks pile up that are not read.
    Unread,
    /// By another part of the broker.
    Broker(ProtocolError),
    /// The broker stops.
    Stop,
}

/// A connection on its way to its end.
#[derive(Debug)]
pub(super) struct Ending {
    /// Answers that are owed are waited for.
    patient: bool,
    /// What is said last of all; empty: nothing.
    last_words: Bytes,
    /// The broker stops: nothing is waited for, except by a farewell.
    pub(super) hurries: bool,
    /// Everything was said. It is waited for the other side to close, so that what is still coming
    /// from there does not turn the last words into a reset; in a hurry only what is there is read.
    pub(super) lingering: bool,
    /// When it is cut off, unless it makes progress.
    pub(super) deadline: Moment,
}

impl Cause {
    /// For audit records.
    fn word(&self) -> &'static str {
        match self {
            Self::Session(SessionEnd::Violation(_)) => "refused",
            Self::Session(_) => "left",
            Self::HalfLine => "a line was silent half-way",
            Self::LateLogIn => "nobody logged in",
            Self::Unread => "tasks were not read",
            Self::Broker(error) => error.code.as_str(),
            Self::Stop => "the broker stops",
        }
    }
}

impl Connection {
    /// Begins to end the connection. If it is ending already, a stop only makes it hurry.
    pub(super) fn end(&mut self, cause: Cause) {
        let (now, limits) = (self.hub.clock.now(), &self.hub.limits);
        let stops = matches!(cause, Cause::Stop);
        let closing_ms = if stops { limits.stop_ms } else { limits.closing_timeout_ms };
        let deadline = now + closing_ms;
        if let Some(ending) = &mut self.ending {
            if stops {
                ending.deadline = ending.deadline.min(deadline);
                // A farewell that comes before the disk has everything is a lie.
                ending.patient &= !ending.last_words.is_empty();
                ending.hurries = true;
            }
            return;
        }
        self.login.why = cause.word();
        match &cause {
            Cause::Session(SessionEnd::Violation(error)) => {
                self.audit(AuditEvent::Refused { why: &error.text });
            }
            Cause::Broker(error) if error.code == Code::Revoked => {
                self.audit(AuditEvent::Revoked { why: &error.text });
            }
            Cause::Broker(error) if error.code == Code::Unauthenticated => {
                self.audit(AuditEvent::Denied { topic: None, why: &error.text });
            }
            _ => {}
        }
        let end = match cause {
            Cause::Session(SessionEnd::Violation(error)) | Cause::Broker(error) => Err(error),
            Cause::HalfLine => {
                let text =
                    format!("a line was silent half-way for {} ms", limits.partial_line_timeout_ms);
                Err(ProtocolError::new(Code::Idle, text))
            }
            Cause::LateLogIn => {
                let text = format!("nobody has logged in within {} ms", limits.login_timeout_ms);
                Err(ProtocolError::new(Code::Idle, text))
            }
            Cause::Unread => {
                let (bytes, ms) = (limits.task_bytes_max, limits.stalled_ms);
                let text = format!("{bytes} bytes of tasks wait, and nothing was read for {ms} ms");
                Err(ProtocolError::new(Code::Idle, text))
            }
            Cause::Session(end) => Ok(Some(end)),
            Cause::Stop => Ok(None),
        };
        let last_words = match &end {
            Ok(end) => {
                self.subscriptions.finish();
                match end {
                    Some(end) => self.part(end),
                    None => self.dismiss(&ProtocolError::new(Code::Closing, "the broker stops")),
                }
            }
            Err(error) => {
                tracing::debug!(conn = %self.id, %error, "the connection is ended");
                self.subscriptions.clear();
                self.tasks = BytesMut::new();
                self.dismiss(error)
            }
        };
        self.unread = Vec::new();
        self.ending = Some(Box::new(Ending {
            patient: matches!(end, Ok(Some(_))),
            last_words,
            hurries: stops,
            lingering: false,
            deadline,
        }));
    }

    /// The last words to somebody who leaves in an orderly way.
    fn part(&mut self, end: &SessionEnd) -> Bytes {
        if let Some(watching) = self.worker.as_mut().and_then(|worker| worker.watching.take()) {
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
    fn dismiss(&self, error: &ProtocolError) -> Bytes {
        let mut line = BytesMut::new();
        // Who may not be a peer here is told that, too: it has typed a line that is no command.
        if self.session.mode() == SessionMode::Client || error.code == Code::Unauthenticated {
            error.encode(&mut line);
        }
        line.freeze()
    }

    /// Something was written: whoever reads, however slowly, is not cut off.
    pub(super) fn end_later(&mut self) {
        if let Some(ending) = self.ending.as_mut().filter(|ending| !ending.hurries) {
            ending.deadline = self.hub.clock.now() + self.hub.limits.closing_timeout_ms;
        }
    }

    /// The same where what was written waits within TLS, and some of it has left. Nor is that a
    /// stall.
    pub(super) fn end_later_if_taken(&mut self) {
        if self.stream.has_taken() {
            self.outbound.has_moved(self.hub.clock.now());
            self.end_later();
        }
    }

    /// Takes the next step towards the end, once everything that could leave has left.
    pub(super) fn conclude(&mut self, cx: &mut Context<'_>) -> Step {
        let Some(ending) = &self.ending else {
            return Step::Waiting;
        };
        if ending.lingering {
            return Step::Waiting;
        }
        // The farewell confirms what a peer sent, so it comes once the fate of all that is known.
        if ending.patient && (!self.answers.is_empty() || self.subscriptions.wait_for_disk()) {
            return Step::Waiting;
        }
        // Whoever sees the end and comes back finds them free.
        self.release_cursors();
        let Some(ending) = &mut self.ending else { return Step::Waiting };
        if self.unkept && self.session.mode() != SessionMode::Client {
            ending.last_words = Bytes::new();
        }
        if !ending.last_words.is_empty() {
            self.outbound.push(mem::take(&mut ending.last_words));
            return Step::Progress;
        }
        match Pin::new(&mut self.stream).poll_shutdown(cx) {
            Poll::Ready(Ok(())) => {}
            // The last word of TLS waits for the socket.
            Poll::Pending => {
                self.end_later_if_taken();
                return Step::Waiting;
            }
            Poll::Ready(Err(_)) => return Step::Over,
        }
        ending.lingering = true;
        if !ending.hurries {
            ending.deadline = self.hub.clock.now() + self.hub.limits.linger_ms;
        }
        Step::Progress
    }
}
