//! What a connection is, and what its lines mean: the rules of the first line and of the end.

use crate::foreign;
use crate::line::{Item, LineDecoder};
use crate::parse::check_payload;
use crate::publishes::Publishes;
use crate::text::check;
use crate::{Code, Command, LINE_BYTES_MAX, ProtocolError, Verb};

/// So many lines in a row that are no command end a client's connection (`[S13]`).
pub const GARBAGE_LINES_MAX: u32 = 16;

/// What a connection is; decided once by its first line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// No line has come in yet. Treated as a peer where it matters: it hears the default topic.
    Undecided,
    /// A peer of the notifier: every line is an event.
    Peer,
    /// A client: every line is a command.
    Client,
}

/// What a line, or the end of the lines, means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event<'a> {
    /// A line of a peer, for the default topic.
    Publish(&'a str),
    /// A command of a client. Never `QUIT`, which is [`End::Quit`].
    Command(Command<'a>),
    /// A client's line that is refused; the refusal is its answer.
    Refused {
        /// What to answer.
        error: ProtocolError,
        /// It was a `PUB`, so it counts as a publish and the answer names its number.
        publish: bool,
    },
    /// A line without effect and without answer: a peer's that is not fit to be an event, or a
    /// client's `LINK` (which is never answered) that cannot be read. For the log, and for the
    /// count of refused children.
    Dropped(ProtocolError),
    /// Nothing more comes of this connection; what follows is ignored.
    End(End),
}

/// Why a connection ends from its own side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// `QUIT` of a client, answered by `+OK` after everything before it; `quit` or `exit` of a
    /// peer, which is not answered.
    Quit,
    /// Ctrl-D as the first byte of a line: what is pending is sent, then the farewell.
    EndOfTransmission,
    /// The other side has ended its sending, in an orderly way.
    EndOfInput,
    /// It must be closed now. A client is sent the refusal first, anybody else nothing.
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
/// Usage: pass all bytes that are not consumed, drop as many as told, handle the event, and
/// repeat until there is none; then read more. See [`LineDecoder`] for the contract.
#[derive(Debug)]
pub struct Session {
    decoder: LineDecoder,
    mode: Mode,
    /// Lines in a row that were no command; `< GARBAGE_LINES_MAX`.
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
            mode: Mode::Undecided,
            garbage_lines: 0,
            ended: false,
        }
    }

    /// What the connection is. May change once, with the first event.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Whether the other side owes the end of a line, for which it has only so long.
    ///
    /// May change with every call of [`next`](Self::next).
    pub fn is_mid_line(&self) -> bool {
        !self.ended && self.decoder.is_mid_line()
    }

    /// Looks for the next event in the unread bytes: how many of them are consumed, and the event.
    ///
    /// Without an event, more bytes are needed (some may be consumed all the same). After
    /// [`Event::End`] everything is consumed and nothing comes any more.
    pub fn next<'a>(&mut self, unread: &'a [u8]) -> (usize, Option<Event<'a>>) {
        let mut consumed = 0;
        while !self.ended {
            let (_, rest) = unread.split_at(consumed);
            if let Some(error) = self.hopeless_beginning(rest) {
                return (unread.len(), Some(self.end(End::Violation(error))));
            }
            let (used, item) = self.decoder.next(rest);
            consumed += used;
            let Some(item) = item else {
                return (consumed, None);
            };
            if let Some(event) = self.item(item) {
                return (consumed, Some(event));
            }
        }
        (unread.len(), None)
    }

    /// Publishes of a client at the beginning of the unread bytes, and how many bytes they are: a
    /// shorter way to what [`next`](Self::next) would say of them. `None` proves nothing; it is not
    /// worth asking again before other bytes have come.
    pub fn publishes<'a>(&mut self, unread: &'a [u8]) -> Option<(usize, Publishes<'a>)> {
        if self.mode != Mode::Client || self.ended || self.decoder.is_mid_line() {
            return None;
        }
        let publishes = Publishes::begin(unread)?;
        self.garbage_lines = 0;
        Some(publishes)
    }

    /// The events of an orderly end of input: that of the last line, if it has no line end, and
    /// [`End::EndOfInput`] (unless the line itself is the end). At most two.
    ///
    /// To be called with what [`next`](Self::next) left when it had no event. Not after a reset:
    /// then a last line without an end is worth nothing.
    pub fn finish<'a>(&mut self, unread: &'a [u8]) -> Vec<Event<'a>> {
        let mut events = Vec::new();
        if self.ended {
            return events;
        }
        if let Some(item) = self.decoder.finish(unread) {
            events.extend(self.item(item));
        }
        if !self.ended {
            events.push(self.end(End::EndOfInput));
        }
        events
    }

    /// The end of a first line with a control byte is not awaited: a TLS hello has none.
    fn hopeless_beginning(&self, unread: &[u8]) -> Option<ProtocolError> {
        if self.mode != Mode::Undecided {
            return None;
        }
        let byte = foreign::control(unread, self.decoder.searched(), LINE_BYTES_MAX)?;
        let text = format!("the first line holds the control byte 0x{byte:02x}");
        Some(ProtocolError::new(Code::Control, text))
    }

    /// `None` for an empty line, which is nothing.
    fn item<'a>(&mut self, item: Item<'a>) -> Option<Event<'a>> {
        let event = match item {
            Item::EndOfTransmission => self.end(End::EndOfTransmission),
            Item::Line([]) => return None,
            Item::Line(line) => self.line(line),
            Item::TooLong { start } => self.too_long(start),
        };
        Some(event)
    }

    fn line<'a>(&mut self, line: &'a [u8]) -> Event<'a> {
        if self.mode == Mode::Undecided {
            if let Some(error) = first_line_violation(line) {
                return self.end(End::Violation(error));
            }
            self.mode = if Verb::of(line).is_some() { Mode::Client } else { Mode::Peer };
        }
        if self.mode == Mode::Client { self.client_line(line) } else { self.peer_line(line) }
    }

    fn peer_line<'a>(&mut self, line: &'a [u8]) -> Event<'a> {
        if line.eq_ignore_ascii_case(b"quit") || line.eq_ignore_ascii_case(b"exit") {
            return self.end(End::Quit);
        }
        let payload = check(line).and_then(|text| check_payload(text).map(|()| text));
        match payload {
            Ok(text) => Event::Publish(text),
            Err(error) => Event::Dropped(error),
        }
    }

    fn client_line<'a>(&mut self, line: &'a [u8]) -> Event<'a> {
        let verb = Verb::of(line);
        if verb.is_none() && is_header(line) {
            let text = "this looks like a header of HTTP, which is not spoken here";
            return self.end(End::Violation(ProtocolError::new(Code::Header, text)));
        }
        match check(line).and_then(Command::parse) {
            Ok(Command::Quit) => self.end(End::Quit),
            Ok(command) => {
                self.garbage_lines = 0;
                Event::Command(command)
            }
            Err(error) => self.refused(verb, error),
        }
    }

    fn too_long<'a>(&mut self, start: &'a [u8]) -> Event<'a> {
        let text = format!("a line is over the limit of {LINE_BYTES_MAX} bytes");
        let error = ProtocolError::new(Code::TooLong, text);
        match self.mode {
            Mode::Undecided => self.end(End::Violation(error)),
            Mode::Peer => Event::Dropped(error),
            Mode::Client => self.refused(Verb::of(start), error),
        }
    }

    /// A client's line that has no effect: answered, but for a `LINK`, which never is.
    fn refused<'a>(&mut self, verb: Option<Verb>, error: ProtocolError) -> Event<'a> {
        if verb.is_some() {
            self.garbage_lines = 0;
        } else {
            self.garbage_lines += 1;
            if self.garbage_lines == GARBAGE_LINES_MAX {
                let text = format!("{GARBAGE_LINES_MAX} lines in a row were no command");
                return self.end(End::Violation(ProtocolError::new(Code::Garbage, text)));
            }
        }
        match verb {
            Some(Verb::Link) => Event::Dropped(error),
            verb => Event::Refused { error, publish: verb == Some(Verb::Pub) },
        }
    }

    fn end<'a>(&mut self, end: End) -> Event<'a> {
        self.ended = true;
        Event::End(end)
    }
}

/// What a first line must not be, whatever else it is (`[S4]`).
///
/// Nobody is told, also not somebody whose terminal has another encoding: whoever is no client takes every line that it hears
/// for an event, so that a refusal would be one, and what begins with other bytes than text is most often a program of another
/// protocol, which waits for an answer and had better not get any. The audit file says why it was closed.
fn first_line_violation(line: &[u8]) -> Option<ProtocolError> {
    if foreign::begins(line) {
        let text = "this looks like another protocol, which is not spoken here";
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
