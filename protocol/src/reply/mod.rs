//! The lines of the broker: answers to commands, and deliveries.

use std::fmt;

use bytes::BufMut;

use crate::text::truncate;
use crate::wire::{LineWriter, first_word, number, words};
use crate::{Code, LINE_BYTES_MAX, MemberId, ProtocolError, Seq, TaskId};

/// The greeting, which the broker sends before anything else (`[S1]`); `n` counts connections from
/// 1.
pub fn encode_greeting(n: u64, out: &mut impl BufMut) {
    out.put_slice(b"Connected.  (PID ");
    crate::wire::put_number(n, out);
    out.put_slice(b")\r\n");
}

/// The last line to a peer, without the line end: after Ctrl-D, and after an orderly end of input
/// as the confirmation of everything that was sent (`[S10]`).
pub const FAREWELL: &str = "Received EOF.  Closing connection...";

/// One line of the broker to a client. `parse` and `encode` are inverse to each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply<'a> {
    /// `+OK <seq> <n>`: confirms every publish of this connection up to the n-th that no refusal
    /// named; `seq` is that of the n-th one.
    Published {
        /// The seq of the n-th publish.
        seq: Seq,
        /// Counts the publishes of this connection, from 1.
        n: u64,
    },
    /// `+OK [..]`: the end of any other answer, with its text.
    Ok(&'a str),
    /// `+ <text>`: a line of a longer answer, which ends with `+OK` or `-ERR`.
    More(&'a str),
    /// `-ERR <code> [n=<a>[-<b>]] <text>`
    Err {
        /// The word of a [`Code`], or one that this version does not know.
        code: &'a str,
        /// The numbers of the refused publishes, both ends included.
        n: Option<(u64, u64)>,
        /// For people.
        text: &'a str,
    },
    /// `MSG <topic> <seq> <payload>`: an event.
    Msg {
        /// The topic.
        topic: &'a str,
        /// The seq.
        seq: Seq,
        /// Everything behind the space after the number.
        payload: &'a str,
    },
    /// `TASK <id> <clock> <lease> <payload>`: a task.
    Task {
        /// The id that answers must name.
        id: TaskId,
        /// The broker's clock when it released the task, in milliseconds.
        clock_ms: u64,
        /// The time from then on for which this member holds it, in milliseconds.
        lease_ms: u64,
        /// The URL and its attributes.
        payload: &'a str,
    },
    /// `LAG [<topic>] <from> <to>`: these events were kept and are gone.
    Lag {
        /// The topic; `None` for a peer, which has only one.
        topic: Option<&'a str>,
        /// The first lost event.
        from: Seq,
        /// The last lost event.
        to: Seq,
    },
    /// `GAP <topic> <from> <to>`: a crash left these seqs empty.
    Gap {
        /// The topic.
        topic: &'a str,
        /// The first empty seq.
        from: Seq,
        /// The last empty seq.
        to: Seq,
    },
    /// `SKIP <topic> <seq>`: the subscription has passed all events up to this one. Those that did
    /// not arrive do not match its filter.
    Skip {
        /// The topic.
        topic: &'a str,
        /// The last event that was passed.
        seq: Seq,
    },
    /// `PONG clock=<ms>`: answers `PING`.
    Pong {
        /// The broker's clock, in milliseconds since a fixed moment.
        clock_ms: u64,
    },
}

/// The line cannot come from a broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a line of the Tidings protocol")]
pub struct InvalidReply;

impl<'a> Reply<'a> {
    /// Reads one line of the broker, without its line end.
    pub fn parse(line: &'a str) -> Result<Self, InvalidReply> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let reply = match word {
            "MSG" => message(rest),
            "TASK" => task(rest),
            "+OK" => Some(published(rest).unwrap_or(Reply::Ok(rest))),
            "+" => Some(Reply::More(rest)),
            "-ERR" => refusal(rest),
            "LAG" => lag(rest),
            "GAP" => gap(rest),
            "SKIP" => skip(rest),
            "PONG" => {
                field(rest, "clock").and_then(number).map(|clock_ms| Reply::Pong { clock_ms })
            }
            _ => None,
        };
        reply.ok_or(InvalidReply)
    }

    /// Appends the line and CRLF.
    pub fn encode(&self, out: &mut impl BufMut) {
        match self {
            Reply::Published { seq, n } => encode_published(*seq, *n, out),
            Reply::Ok(text) => encode_ok(text, out),
            Reply::More(text) => encode_more(text, out),
            Reply::Err { code, n, text } => encode_refusal(code, *n, text, out),
            Reply::Msg { topic, seq, payload } => encode_msg(topic, *seq, payload, out),
            Reply::Task { id, clock_ms, lease_ms, payload } => {
                encode_task(id, *clock_ms, *lease_ms, payload, out);
            }
            Reply::Lag { topic: Some(topic), from, to } => encode_lag(topic, *from, *to, out),
            Reply::Lag { topic: None, from, to } => encode_peer_lag(*from, *to, out),
            Reply::Gap { topic, from, to } => encode_gap(topic, *from, *to, out),
            Reply::Skip { topic, seq } => encode_skip(topic, *seq, out),
            Reply::Pong { clock_ms } => encode_pong(*clock_ms, out),
        }
    }
}

/// Appends `+OK <seq> <n>`.
pub fn encode_published(seq: Seq, n: u64, out: &mut impl BufMut) {
    LineWriter::new(out, "+OK").number(seq.0).number(n).crlf();
}

/// Appends `+OK`, or `+OK <text>`. The text is one line, and not two numbers (`[A3]`); what does
/// not fit in a line (`[L2]`) is cut off.
pub fn encode_ok(text: &str, out: &mut impl BufMut) {
    LineWriter::new(out, "+OK").text(&truncate(text, LINE_BYTES_MAX - "+OK ".len())).crlf();
}

/// Appends `+ <text>`, a line of a longer answer; what does not fit in a line is cut off.
pub fn encode_more(text: &str, out: &mut impl BufMut) {
    LineWriter::new(out, "+").word(&truncate(text, LINE_BYTES_MAX - "+ ".len())).crlf();
}

/// Appends `MSG <topic> <seq> <payload>`. Allocates only to grow the buffer.
pub fn encode_msg(topic: &str, seq: Seq, payload: &str, out: &mut impl BufMut) {
    LineWriter::new(out, "MSG").word(topic).number(seq.0).word(payload).crlf();
}

/// Appends `TASK <id> <clock> <lease> <payload>`.
pub fn encode_task(
    id: &TaskId,
    clock_ms: u64,
    lease_ms: u64,
    payload: &str,
    out: &mut impl BufMut,
) {
    LineWriter::new(out, "TASK").task(id).number(clock_ms).number(lease_ms).word(payload).crlf();
}

/// Appends `LAG <topic> <from> <to>`.
pub fn encode_lag(topic: &str, from: Seq, to: Seq, out: &mut impl BufMut) {
    LineWriter::new(out, "LAG").word(topic).number(from.0).number(to.0).crlf();
}

/// Appends `GAP <topic> <from> <to>`.
pub fn encode_gap(topic: &str, from: Seq, to: Seq, out: &mut impl BufMut) {
    LineWriter::new(out, "GAP").word(topic).number(from.0).number(to.0).crlf();
}

/// Appends `SKIP <topic> <seq>`.
pub fn encode_skip(topic: &str, seq: Seq, out: &mut impl BufMut) {
    LineWriter::new(out, "SKIP").word(topic).number(seq.0).crlf();
}

/// Appends `LAG <from> <to>`, the form for peers.
pub fn encode_peer_lag(from: Seq, to: Seq, out: &mut impl BufMut) {
    LineWriter::new(out, "LAG").number(from.0).number(to.0).crlf();
}

/// Appends `PONG clock=<ms>`.
pub fn encode_pong(clock_ms: u64, out: &mut impl BufMut) {
    LineWriter::new(out, "PONG").option("clock", clock_ms).crlf();
}

/// Appends `-ERR <code> [n=<a>[-<b>]] <text>`. The text is one line.
pub(crate) fn encode_refusal(
    code: &str,
    publishes: Option<(u64, u64)>,
    text: &str,
    out: &mut impl BufMut,
) {
    let line = LineWriter::new(out, "-ERR").word(code);
    let line = match publishes {
        None => line,
        Some((first, last)) if first == last => line.option("n", first),
        Some((first, last)) => line.option("n", format_args!("{first}-{last}")),
    };
    line.text(text).crlf();
}

/// The value of `key=value` in the text of an answer. Unknown keys are thus ignored.
pub fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    words(text).filter_map(|word| word.split_once('=')).find(|(k, _)| *k == key).map(|(_, v)| v)
}

/// The value of `key=<number>` in the text of an answer.
pub fn field_number(text: &str, key: &str) -> Option<u64> {
    field(text, key).and_then(number)
}

fn published(rest: &str) -> Option<Reply<'_>> {
    let (seq, n) = rest.split_once(' ')?;
    Some(Reply::Published { seq: Seq(number(seq)?), n: number(n)? })
}

fn message(rest: &str) -> Option<Reply<'_>> {
    let (topic, rest) = rest.split_once(' ')?;
    let (seq, payload) = rest.split_once(' ')?;
    Some(Reply::Msg { topic, seq: Seq(number(seq)?), payload })
}

fn task(rest: &str) -> Option<Reply<'_>> {
    let (id, rest) = rest.split_once(' ')?;
    let (clock, rest) = rest.split_once(' ')?;
    let (lease, payload) = rest.split_once(' ')?;
    Some(Reply::Task {
        id: id.parse().ok()?,
        clock_ms: number(clock)?,
        lease_ms: number(lease)?,
        payload,
    })
}

fn refusal(rest: &str) -> Option<Reply<'_>> {
    let (code, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    let (word, after) = rest.split_once(' ').unwrap_or((rest, ""));
    let (n, text) = match word.strip_prefix("n=").and_then(range) {
        Some(n) => (Some(n), after),
        None => (None, rest),
    };
    (!code.is_empty()).then_some(Reply::Err { code, n, text })
}

/// `8` or `8-21`.
fn range(text: &str) -> Option<(u64, u64)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range = (number(first)?, number(last)?);
    (range.0 <= range.1).then_some(range)
}

fn lag(rest: &str) -> Option<Reply<'_>> {
    if let Some((topic, from, to)) = topic_and_range(rest) {
        return Some(Reply::Lag { topic: Some(topic), from, to });
    }
    let (from, to) = rest.split_once(' ')?;
    Some(Reply::Lag { topic: None, from: Seq(number(from)?), to: Seq(number(to)?) })
}

fn gap(rest: &str) -> Option<Reply<'_>> {
    topic_and_range(rest).map(|(topic, from, to)| Reply::Gap { topic, from, to })
}

fn skip(rest: &str) -> Option<Reply<'_>> {
    let (topic, seq) = rest.split_once(' ')?;
    Some(Reply::Skip { topic, seq: Seq(number(seq)?) })
}

fn topic_and_range(rest: &str) -> Option<(&str, Seq, Seq)> {
    let (topic, rest) = rest.split_once(' ')?;
    let (from, to) = rest.split_once(' ')?;
    Some((topic, Seq(number(from)?), Seq(number(to)?)))
}

/// A refusal from its parts on the wire.
///
/// An unknown code (of a newer broker) becomes [`Code::Internal`] with the word in front of the
/// text, because its meaning is unknown.
pub fn error_from_wire(code: &str, text: &str) -> ProtocolError {
    match code.parse() {
        Ok(code) => ProtocolError::new(code, text),
        Err(_) => ProtocolError::new(Code::Internal, format!("{code} {text}")),
    }
}

/// The text behind the `+OK` that answers `HELLO`:
/// `tidings <version> id=<n> clock=<ms> [echo=..] resume=<member>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HelloAnswer {
    /// The broker's version.
    pub version: String,
    /// The number of this connection, from 1.
    pub id: u64,
    /// The broker's clock, in milliseconds since a fixed moment.
    pub clock_ms: u64,
    /// The `echo=` of the client.
    pub echo: Option<String>,
    /// The member, with which the client can resume.
    pub resume: MemberId,
}

impl HelloAnswer {
    /// Reads the text behind `+OK`; `None` if it does not answer a `HELLO`.
    pub fn parse(text: &str) -> Option<Self> {
        let (name, rest) = first_word(text);
        let (version, rest) = first_word(rest);
        (name == "tidings").then_some(())?;
        Some(HelloAnswer {
            version: version.to_owned(),
            id: field_number(rest, "id")?,
            clock_ms: field_number(rest, "clock")?,
            echo: field(rest, "echo").map(str::to_owned),
            resume: field(rest, "resume")?.parse().ok()?,
        })
    }
}

impl fmt::Display for HelloAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tidings {} id={} clock={}", self.version, self.id, self.clock_ms)?;
        if let Some(echo) = &self.echo {
            write!(f, " echo={echo}")?;
        }
        write!(f, " resume={}", self.resume)
    }
}
