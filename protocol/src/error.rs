//! Refusals: one line `-ERR <code> <text>`, with a code from a closed list.

use std::str::FromStr;

use bytes::BufMut;

use crate::reply::encode_refusal;
use crate::text::truncate;

/// Bytes of the text of a refusal on the wire. The text may quote a word that is as long as a line.
const TEXT_BYTES_MAX: usize = 512;

/// A refusal as it is sent: a code for programs and a text for people.
///
/// The text is one line that says what is wrong and, where that helps, what is expected. It may
/// change between versions, so programs use the code.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {text}")]
pub struct ProtocolError {
    /// The kind of refusal. It decides whether the connection stays open and whether to try again.
    pub code: Code,
    /// For people. When it is encoded, control characters are replaced, and text beyond 512 bytes
    /// is cut off.
    pub text: String,
}

impl ProtocolError {
    /// A refusal with its text.
    pub fn new(code: Code, text: impl Into<String>) -> Self {
        ProtocolError { code, text: text.into() }
    }

    /// Appends `-ERR <code> <text>` and CRLF.
    pub fn encode(&self, out: &mut impl BufMut) {
        self.encode_numbered(None, out);
    }

    /// Appends the refusal of publishes: `-ERR <code> n=8 <text>`, or `n=8-21` for several in a
    /// row, both ends included (`[A4]`).
    pub fn encode_numbered(&self, publishes: Option<(u64, u64)>, out: &mut impl BufMut) {
        let mut text = truncate(&self.text, TEXT_BYTES_MAX);
        if text.contains(char::is_control) {
            text = text.replace(char::is_control, " ").into();
        }
        encode_refusal(self.code.as_str(), publishes, &text, out);
    }
}

/// A refusal with [`Code::BadArgument`].
pub fn bad_argument(text: impl Into<String>) -> ProtocolError {
    ProtocolError::new(Code::BadArgument, text)
}

word_enum! {
    /// The closed list of refusal codes.
    ///
    /// Each states which side is at fault, whether anything has changed, whether to try again, and
    /// whether the connection stays open. The specification has the same as a table.
    #[non_exhaustive]
    pub enum Code {
        /// The line is not a command: its first word is not in the list of verbs. The client's
        /// fault, nothing changed, do not repeat it; the connection stays open (but see
        /// [`Code::Garbage`]).
        UnknownCommand = "unknown-command",
        /// An argument or option is missing, unknown, given twice or out of range. The client's
        /// fault, nothing changed, do not repeat it; the connection stays open.
        BadArgument = "bad-argument",
        /// A name (of a topic, group, job, cursor) that is not valid. The client's fault, nothing
        /// changed, do not repeat it; the connection stays open.
        BadName = "bad-name",
        /// A line or payload over its limit. The client's fault, nothing changed, do not repeat it;
        /// the connection stays open, unless it was the first line.
        TooLong = "too-long",
        /// A control character other than TAB. The client's fault, nothing changed, do not repeat
        /// it; the connection stays open, unless it was in the first line.
        Control = "control",
        /// The line is not valid UTF-8. The client's fault, nothing changed, do not repeat it; the
        /// connection stays open.
        Utf8 = "utf8",
        /// Part of the grammar, but not implemented in this version. No fault, nothing changed, try
        /// a newer broker; the connection stays open.
        NotYet = "not-yet",
        /// This connection does not hold the task any more: it was answered before, expired, given
        /// to another member, or is of an earlier run. The text begins with the task's id. No
        /// fault, nothing changed (its staged children are dropped), do not repeat it; the
        /// connection stays open.
        Stale = "stale",
        /// Held by another connection at the moment. No fault, nothing changed, try again later or
        /// take it over; the connection stays open.
        Busy = "busy",
        /// The named topic, group, job or subscription does not exist. The client's fault, nothing
        /// changed, create it first; the connection stays open.
        NotFound = "unknown",
        /// What should be created exists already: a topic, a group, this connection's subscription
        /// to a topic, or a job that is not done, with other settings. The client's fault, nothing
        /// changed, do not repeat it; the connection stays open.
        Exists = "exists",
        /// Does not fit the current state (for example a subscription from a seq that the topic has
        /// not reached). The client's fault, nothing changed, do not repeat it in this state; the
        /// connection stays open.
        Conflict = "conflict",
        /// A documented limit is reached (topics, subscriptions, groups, unanswered commands). The
        /// client's fault, nothing changed, try again when something was freed; the connection
        /// stays open.
        Limit = "limit",
        /// No room on the disk or in memory. The broker's fault, nothing is kept (although a
        /// published event may have been delivered), try again later; the connection stays open.
        Full = "full",
        /// A published event may not be safe, because writing it to the disk failed. The broker's
        /// fault, the event may have been delivered but is never confirmed; publish it again once
        /// the broker was repaired. The connection stays open.
        NotDurable = "sync-failed",
        /// This connection may not do that. The client's fault, nothing changed, do not repeat it
        /// without other credentials; the connection stays open.
        Denied = "denied",
        /// The client must log in for that, or no principal has its token. The client's fault,
        /// nothing changed, do not repeat it without `HELLO token=`; the connection stays open.
        Unauthenticated = "unauthenticated",
        /// Another broker is responsible: `-ERR moved <id or n> <address>`. No fault, nothing
        /// changed, try again there; the connection stays open.
        Moved = "moved",
        /// The broker failed in an unforeseen way. Its fault; whether anything changed is unknown,
        /// as after a lost connection. The connection stays open.
        Internal = "internal",
        /// The same member came back on another connection, or another connection took over a
        /// cursor. No fault; that connection has tasks and cursor now, so do not reconnect. Ends
        /// the connection.
        Replaced = "replaced",
        /// The client's permissions were changed or revoked, and the connection depends on them. No
        /// fault; what was answered stays, reconnect. Ends the connection.
        Revoked = "revoked",
        /// The broker stops. No fault; commands without an answer may or may not have had their
        /// effect, reconnect later. Ends the connection.
        Closing = "closing",
        /// The client was silent in the middle of a line, or did not read, for longer than the
        /// limit. The client's fault; what was answered stays, reconnect. Ends the connection.
        Idle = "timeout",
        /// A line in the form of HTTP: its first line, or a header from a client. The client's
        /// fault; what was answered stays, do not repeat it. Ends the connection.
        Header = "header",
        /// Sixteen lines in a row were not commands. The client's fault; what was answered stays,
        /// do not repeat it. Ends the connection.
        Garbage = "garbage",
    }
}

impl Code {
    /// Whether a line with this code is the last one of its connection (`[E3]`).
    ///
    /// Such a line never answers a command: commands that have no answer by then may or may not
    /// have had their effect.
    pub const fn ends_connection(self) -> bool {
        matches!(
            self,
            Code::Replaced
                | Code::Revoked
                | Code::Closing
                | Code::Idle
                | Code::Header
                | Code::Garbage
        )
    }

    /// Whether the same line may succeed later without any other change by the client.
    pub const fn is_transient(self) -> bool {
        matches!(
            self,
            Code::Busy | Code::Limit | Code::Full | Code::Internal | Code::Closing | Code::Idle
        )
    }
}

/// The word is not in the list of codes: it comes from a newer broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a refusal code of this version")]
pub struct UnknownCode;

impl FromStr for Code {
    type Err = UnknownCode;

    fn from_str(word: &str) -> Result<Self, UnknownCode> {
        Self::from_word(word).ok_or(UnknownCode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(error: &ProtocolError, publishes: Option<(u64, u64)>) -> String {
        let mut out = Vec::new();
        error.encode_numbered(publishes, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn words_are_lower_case_with_dashes_and_distinct() {
        for (at, code) in Code::ALL.iter().enumerate() {
            let word = code.as_str();
            assert!(
                word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            );
            assert_eq!(word.parse(), Ok(*code));
            assert!(Code::ALL.iter().skip(at + 1).all(|other| other.as_str() != word));
        }
        assert_eq!("no-such-code".parse::<Code>(), Err(UnknownCode));
    }

    // PROTOCOL: E2, E3
    #[test]
    fn the_specification_has_a_row_for_every_code_and_says_which_end_the_connection() {
        for code in Code::ALL {
            let row = crate::SPECIFICATION
                .lines()
                .find(|line| line.starts_with(&format!("| `{code}` |")))
                .unwrap_or_else(|| panic!("no row for {code}"));
            assert_eq!(row.ends_with("| ends |"), code.ends_connection(), "{row}");
        }
    }

    // PROTOCOL: E1
    #[test]
    fn refusals_are_short() {
        let error = ProtocolError::new(Code::BadArgument, "ö".repeat(40_000));
        let line = encoded(&error, Some((1, 2)));
        assert!(line.starts_with("-ERR bad-argument n=1-2 öö"), "{line}");
        assert!(line.ends_with("öö..\r\n"), "{line}");
        let text = &line["-ERR bad-argument n=1-2 ".len()..line.len() - "\r\n".len()];
        assert_eq!(text.len(), 512);
    }

    // PROTOCOL: E1
    #[test]
    fn refusals_are_one_line() {
        let error = ProtocolError::new(Code::Full, "no\r\nroom");
        assert_eq!(encoded(&error, None), "-ERR full no  room\r\n");
        assert_eq!(encoded(&error, Some((8, 8))), "-ERR full n=8 no  room\r\n");
        assert_eq!(encoded(&error, Some((8, 21))), "-ERR full n=8-21 no  room\r\n");
        assert_eq!(encoded(&ProtocolError::new(Code::Busy, ""), None), "-ERR busy\r\n");
    }
}
