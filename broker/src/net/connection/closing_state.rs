//! Why a connection closes, and how far it is.

use bytes::Bytes;
use tidings_protocol::{Code, ProtocolError, SessionEnd};

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
    pub(super) reason: &'static str,
    /// Pending answers are sent before the final line.
    pub(super) waits_for_answers: bool,
    /// The last line to send; empty if there is none.
    pub(super) final_line: Bytes,
    /// The broker stops, so nothing is waited for, except before a farewell.
    pub(super) is_shutdown: bool,
    /// Everything is sent, and the write side is shut down. Input is read and discarded until the
    /// remote end closes: closing over unread input causes a reset, which may overtake the final
    /// line. If the broker stops, only input that has already arrived is read.
    pub(super) is_lingering: bool,
    /// When the connection is cut off; each write extends it, unless the broker stops.
    pub(super) deadline: Moment,
}

impl CloseReason {
    /// The reason in audit records.
    pub(super) fn as_str(&self) -> &'static str {
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
    pub(super) fn outcome(self, limits: &Limits) -> Result<Option<SessionEnd>, ProtocolError> {
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
