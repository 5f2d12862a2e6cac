//! The rules of a connection's input: what the first line decides, what each line means, and what
//! ends it.

use crate::command::parse::check_payload;
use crate::line::{LineDecoder, LineItem};
use crate::publish_batch::PublishBatch;
use crate::text::check;
use crate::{Code, Command, LINE_BYTES_MAX, ProtocolError, Verb, other_protocol};

/// The number of consecutive lines without a command that ends a client's connection (`[S13]`).
pub const GARBAGE_LINES_MAX: u32 = 16;

/// The kind of a connection; its first line decides it once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionMode {
    /// No line has arrived yet. The connection receives the default topic like a peer.
    Undecided,
    /// A peer: every line is an event.
    Peer,
    /// A client: every line is a command.
    Client,
}

/// The meaning of a line, or of the end of input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionEvent<'a> {
    /// A line of a peer, for the default topic.
    Publish(&'a str),
    /// A command of a client. Never `QUIT`, which is [`SessionEnd::Quit`].
    Command(Command<'a>),
    /// A client's line that is refused; the refusal is its answer.
    Refused {
        /// The answer.
        error: ProtocolError,
        /// The line was a `PUB`, so it counts as a publish, and the answer contains its number.
        publish: bool,
    },
    /// A line without effect and without answer: a peer's line that cannot be an event, or a
    /// client's `LINK` (which is never answered) that cannot be parsed. For the log, and for the
    /// count of refused children.
    Dropped(ProtocolError),
    /// The end of this connection's input; all later bytes are ignored.
    End(SessionEnd),
}

/// Why a client ended its connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionEnd {
    /// `QUIT` of a client, answered by `+OK` after everything before it; `quit` or `exit` of a
    /// peer, which is not answered.
    Quit,
    /// Ctrl-D as the first byte of a line: pending output is sent, then the farewell.
    EndOfTransmission,
    /// The client has closed its sending side in an orderly way.
    EndOfInput,
    /// The connection must be closed now. Only a client receives the refusal first.
    Violation(ProtocolError),
}

/// The rules of one connection's input, without IO.
///
/// ```text
///               a command                          QUIT, Ctrl-D, end of input,
///            .-------------> Client --------------. headers, 16 lines of garbage
/// Undecided -|                                    |
///    |       '-------------> Peer ----------------+-> ended
///    |        anything else        quit, Ctrl-D,  |
///    '--------------------------- end of input ---'
///     another protocol, control byte, not UTF-8, too long, Ctrl-D, end of input
/// ```
///
/// Usage: pass all bytes that are not consumed, drop the consumed ones, handle the event, and
/// repeat until there is none; then read more. See [`LineDecoder`] for the contract.
#[derive(Debug)]
pub struct Session {
    decoder: LineDecoder,
    mode: SessionMode,
    /// Consecutive lines that were not commands; `< GARBAGE_LINES_MAX`.
    garbage_lines: u32,
    ended: bool,
}

impl Default for Session {
    fn default() -> Self {
        Session::new()
    }
}

impl Session {
    /// The state of a connection that has just been accepted.
    pub fn new() -> Self {
        Session {
            decoder: LineDecoder::new(LINE_BYTES_MAX),
            mode: SessionMode::Undecided,
            garbage_lines: 0,
            ended: false,
        }
    }

    /// The kind of the connection. May change once, with the first event.
    pub fn mode(&self) -> SessionMode {
        self.mode
    }

    /// Whether a line has begun and not ended. The end must arrive within a time limit.
    ///
    /// May change with every call of [`next`](Self::next).
    pub fn is_mid_line(&self) -> bool {
        !self.ended && self.decoder.is_mid_line()
    }

    /// Looks for the next event in the unread bytes: how many of them are consumed, and the event.
    ///
    /// Without an event, more bytes are needed (some may be consumed nevertheless). After
    /// [`SessionEvent::End`], everything is consumed and no event follows.
    pub fn next<'a>(&mut self, unread: &'a [u8]) -> (usize, Option<SessionEvent<'a>>) {
        let mut consumed = 0;
        while !self.ended {
            let (_, rest) = unread.split_at(consumed);
            if let Some(error) = self.check_first_bytes(rest) {
                return (unread.len(), Some(self.end(SessionEnd::Violation(error))));
            }
            let (used, item) = self.decoder.next(rest);
            consumed += used;
            let Some(item) = item else {
                return (consumed, None);
            };
            if let Some(event) = self.handle_item(item) {
                return (consumed, Some(event));
            }
        }
        (unread.len(), None)
    }

    /// The publishes of a client at the beginning of the unread bytes, and their length in bytes: a
    /// faster way to the same events as [`next`](Self::next). `None` means nothing; another call is
    /// useless before other bytes have arrived.
    pub fn publish_batch<'a>(&mut self, unread: &'a [u8]) -> Option<(usize, PublishBatch<'a>)> {
        if self.mode != SessionMode::Client || self.ended || self.decoder.is_mid_line() {
            return None;
        }
        let publishes = PublishBatch::parse(unread)?;
        self.garbage_lines = 0;
        Some(publishes)
    }

    /// The events of an orderly end of input: that of the last line, if it has no line end, and
    /// [`SessionEnd::EndOfInput`] (unless the line itself is the end). At most two.
    ///
    /// To be called with what [`next`](Self::next) left when it returned no event. Not to be called
    /// after a reset: a last line without an end is then incomplete.
    pub fn finish<'a>(&mut self, unread: &'a [u8]) -> Vec<SessionEvent<'a>> {
        let mut events = Vec::new();
        if self.ended {
            return events;
        }
        if let Some(item) = self.decoder.finish(unread) {
            events.extend(self.handle_item(item));
        }
        if !self.ended {
            events.push(self.end(SessionEnd::EndOfInput));
        }
        events
    }

    /// A control byte in the first line ends the connection at once: a TLS hello has no line end to
    /// wait for.
    fn check_first_bytes(&self, unread: &[u8]) -> Option<ProtocolError> {
        if self.mode != SessionMode::Undecided {
            return None;
        }
        let byte =
            other_protocol::first_control_byte(unread, self.decoder.searched(), LINE_BYTES_MAX)?;
        let text = format!("the first line contains the control byte 0x{byte:02x}");
        Some(ProtocolError::new(Code::Control, text))
    }

    /// `None` for an empty line, which has no meaning.
    fn handle_item<'a>(&mut self, item: LineItem<'a>) -> Option<SessionEvent<'a>> {
        let event = match item {
            LineItem::EndOfTransmission => self.end(SessionEnd::EndOfTransmission),
            LineItem::Line([]) => return None,
            LineItem::Line(line) => self.handle_line(line),
            LineItem::TooLong { start } => self.handle_too_long(start),
        };
        Some(event)
    }

    fn handle_line<'a>(&mut self, line: &'a [u8]) -> SessionEvent<'a> {
        if self.mode == SessionMode::Undecided {
            if let Some(error) = first_line_violation(line) {
                return self.end(SessionEnd::Violation(error));
            }
            // A person who asks for help gets it, and no event for all subscribers.
            let is_help = line.eq_ignore_ascii_case(b"help");
            let is_client = is_help || Verb::of(line).is_some();
            self.mode = if is_client { SessionMode::Client } else { SessionMode::Peer };
            if is_help {
                return SessionEvent::Command(Command::Help);
            }
        }
        if self.mode == SessionMode::Client {
            self.handle_client_line(line)
        } else {
            self.handle_peer_line(line)
        }
    }

    fn handle_peer_line<'a>(&mut self, line: &'a [u8]) -> SessionEvent<'a> {
        if line.eq_ignore_ascii_case(b"quit") || line.eq_ignore_ascii_case(b"exit") {
            return self.end(SessionEnd::Quit);
        }
        let payload = check(line).and_then(|text| check_payload(text).map(|()| text));
        match payload {
            Ok(text) => SessionEvent::Publish(text),
            Err(error) => SessionEvent::Dropped(error),
        }
    }

    fn handle_client_line<'a>(&mut self, line: &'a [u8]) -> SessionEvent<'a> {
        let verb = Verb::of(line);
        if verb.is_none() && is_header(line) {
            let text = "this looks like an HTTP header; this port speaks the Tidings line protocol";
            return self.end(SessionEnd::Violation(ProtocolError::new(Code::Header, text)));
        }
        match check(line).and_then(Command::parse) {
            Ok(Command::Quit) => self.end(SessionEnd::Quit),
            Ok(command) => {
                self.garbage_lines = 0;
                SessionEvent::Command(command)
            }
            Err(error) => self.refused(verb, error),
        }
    }

    fn handle_too_long<'a>(&mut self, start: &'a [u8]) -> SessionEvent<'a> {
        let text = format!("a line is over the limit of {LINE_BYTES_MAX} bytes");
        let error = ProtocolError::new(Code::TooLong, text);
        match self.mode {
            SessionMode::Undecided => self.end(SessionEnd::Violation(error)),
            SessionMode::Peer => SessionEvent::Dropped(error),
            SessionMode::Client => self.refused(Verb::of(start), error),
        }
    }

    /// A client's line without effect. It is answered, unless it is a `LINK`.
    fn refused<'a>(&mut self, verb: Option<Verb>, error: ProtocolError) -> SessionEvent<'a> {
        if verb.is_some() {
            self.garbage_lines = 0;
        } else {
            self.garbage_lines += 1;
            if self.garbage_lines == GARBAGE_LINES_MAX {
                let text = format!(
                    "{GARBAGE_LINES_MAX} lines in a row were not commands; HELP lists the commands"
                );
                return self.end(SessionEnd::Violation(ProtocolError::new(Code::Garbage, text)));
            }
        }
        match verb {
            Some(Verb::Link) => SessionEvent::Dropped(error),
            verb => SessionEvent::Refused { error, publish: verb == Some(Verb::Pub) },
        }
    }

    fn end<'a>(&mut self, end: SessionEnd) -> SessionEvent<'a> {
        self.ended = true;
        SessionEvent::End(end)
    }
}

/// What the first line must not be (`[S4]`).
///
/// The connection is closed without a message. A connection that is not a client's takes every line
/// that it receives for an event, so a refusal would become one. A first line that is not text
/// comes most often from a program of another protocol, which must not receive an answer. The audit
/// record contains the reason.
fn first_line_violation(line: &[u8]) -> Option<ProtocolError> {
    if other_protocol::is_first_line(line) {
        let text = "this looks like another protocol; this port speaks the Tidings line protocol";
        return Some(ProtocolError::new(Code::Header, text));
    }
    check(line).err()
}

/// `^[A-Za-z][A-Za-z0-9-]*:(space or end)`
fn is_header(line: &[u8]) -> bool {
    let name_end = line.iter().position(|byte| !(byte.is_ascii_alphanumeric() || *byte == b'-'));
    let Some((name, rest)) = name_end.and_then(|end| line.split_at_checked(end)) else {
        return false;
    };
    name.first().is_some_and(u8::is_ascii_alphabetic) && matches!(rest, [b':'] | [b':', b' ', ..])
}

#[cfg(test)]
mod tests;
