//! Refusals: one line `-ERR <code> <text>`, with a code from a closed list.

use std::fmt;
use std::str::FromStr;

use bytes::BufMut;

use crate::reply::encode_refusal;
use crate::text::cut;

/// Bytes of the text of a refusal on the wire. Texts repeat what they refuse, which may be a word
/// as long as a line.
const TEXT_BYTES_MAX: usize = 512;

/// A refusal, as it goes over the wire: a code for programs and a text for a person.
///
/// The text is one line that says what was wrong and, where that helps, what would be right. It
/// may change between versions; programs look at the code.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {text}")]
pub struct ProtocolError {
    /// What kind of refusal; decides whether the connection lives and whether to try again.
    pub code: Code,
    /// For a person. When it is encoded, control characters are replaced, and what is beyond 512
    /// bytes is cut off.
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
        let mut text = cut(&self.text, TEXT_BYTES_MAX);
        if text.contains(char::is_control) {
            text = text.replace(char::is_control, " ").into();
        }
        encode_refusal(self.code.as_str(), publishes, &text, out);
    }
}

/// Declares the list once: variant, word on the wire, documentation.
macro_rules! codes {
    ($($(#[$docs:meta])* $variant:ident = $word:literal,)*) => {
        /// The closed list of refusal codes.
        ///
        /// Each says whose fault it is, whether anything has changed, whether trying again can
        /// help, and whether the connection lives on. PROTOCOL.md has the same as a table.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Code {
            $($(#[$docs])* $variant,)*
        }

        impl Code {
            /// Every code, in the order of PROTOCOL.md.
            pub const ALL: &[Code] = &[$(Code::$variant,)*];

            /// The word on the wire: lower case with dashes.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Code::$variant => $word,)*
                }
            }
        }
    };
}

codes! {
    /// The line is no command: its first word is not in the list of verbs. The client's fault,
    /// nothing changed, do not repeat it; the connection lives (but see [`Code::Garbage`]).
    UnknownCommand = "unknown-command",
    /// An argument or option is missing, unknown, given twice or out of range. The client's
    /// fault, nothing changed, do not repeat it; the connection lives.
    BadArgument = "bad-argument",
    /// A name (of a topic, group, job, cursor) that cannot be one. The client's fault, nothing
    /// changed, do not repeat it; the connection lives.
    BadName = "bad-name",
    /// A line or payload over its limit. The client's fault, nothing changed, do not repeat it;
    /// the connection lives, unless it was the first line.
    TooLong = "too-long",
    /// A control character that is not TAB. The client's fault, nothing changed, do not repeat
    /// it; the connection lives, unless it was in the first line.
    Control = "control",
    /// The line is not valid UTF-8. The client's fault, nothing changed, do not repeat it; the
    /// connection lives.
    Utf8 = "utf8",
    /// Part of the grammar, but not built in this version. Nobody's fault, nothing changed, try
    /// a newer broker; the connection lives.
    NotYet = "not-yet",
    /// The task is not this connection's any more: answered before, expired, given to another
    /// member, or of an earlier run. The text begins with the task's id. Nobody's fault, nothing
    /// changed (its staged children are dropped), do not repeat it; the connection lives.
    Stale = "stale",
    /// Held by another connection at the moment. Nobody's fault, nothing changed, try again later
    /// or take it over; the connection lives.
    Busy = "busy",
    /// What was named does not exist (topic, group, job, subscription). The client's fault,
    /// nothing changed, create it first; the connection lives.
    NotFound = "unknown",
    /// What was to come into being is there already: a topic, a group, this connection's
    /// subscription to a topic, or a job that is not done, with other settings. The client's
    /// fault, nothing changed, do not repeat it; the connection lives.
    Exists = "exists",
    /// Does not fit the state of what was named (a topic that has not come to the number from
    /// which it was to be heard). The client's fault, nothing changed, do not repeat it in this
    /// state; the connection lives.
    Conflict = "conflict",
    /// A documented limit is reached (topics, subscriptions, groups, unanswered commands). The
    /// client's fault, nothing changed, try again when something was given back; the connection
    /// lives.
    Limit = "limit",
    /// No room on the disk or in memory. The broker's fault, nothing is kept (though what was
    /// published may have been broadcast), try again later; the connection lives.
    Full = "full",
    /// What was published may not be safe: writing it to the disk failed. The broker's fault, the
    /// event may have been broadcast but is not confirmed and never will be; publish again once
    /// the broker was repaired. The connection lives.
    NotDurable = "sync-failed",
    /// This connection may not do that. The client's fault, nothing changed, do not repeat it
    /// without other credentials; the connection lives.
    Denied = "denied",
    /// Who has not logged in may not do that, or the token is nobody's. The client's fault, nothing
    /// changed, do not repeat it without `HELLO token=`; the connection lives.
    Unauthenticated = "unauthenticated",
    /// Another broker leads what was named: `-ERR moved <id or n> <address>`. Nobody's fault,
    /// nothing changed, try again there; the connection lives.
    Moved = "moved",
    /// The broker failed in a way that it did not foresee. Its fault; whether anything changed is
    /// unknown, as after a lost connection. The connection lives.
    Internal = "internal",
    /// The same member came back on another connection, or another connection took a cursor over.
    /// Nobody's fault; tasks and cursor are with that one, do not reconnect. Ends the connection.
    Replaced = "replaced",
    /// What whoever is at the other end may do was changed or taken away, and the connection rests on
    /// it. Nobody's fault; what was answered stays, reconnect. Ends the connection.
    Revoked = "revoked",
    /// The broker stops. Nobody's fault; whatever has no answer may or may not have happened,
    /// reconnect later. Ends the connection.
    Closing = "closing",
    /// A line was silent half-way, or nothing was read, for longer than the limit. The client's
    /// fault; what was answered stays, reconnect. Ends the connection.
    Idle = "timeout",
    /// A line shaped like HTTP: its first line, or a header from a client. The client's fault;
    /// what was answered stays, do not repeat it. Ends the connection.
    Header = "header",
    /// Sixteen lines in a row were no command. The client's fault; what was answered stays, do
    /// not repeat it. Ends the connection.
    Garbage = "garbage",
}

impl Code {
    /// Whether a line with this code is the last one of its connection (`[E3]`).
    ///
    /// Such a line is never the answer to a command: commands that are still without an answer
    /// then may or may not have had their effect.
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

    /// Whether the same line may succeed later, without anything else being changed by the client.
    pub const fn is_transient(self) -> bool {
        matches!(
            self,
            Code::Busy | Code::Limit | Code::Full | Code::Internal | Code::Closing | Code::Idle
        )
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The word is not in the list of codes: it comes from a newer broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a refusal code of this version")]
pub struct UnknownCode;

impl FromStr for Code {
    type Err = UnknownCode;

    fn from_str(word: &str) -> Result<Self, UnknownCode> {
        Code::ALL.iter().copied().find(|code| code.as_str() == word).ok_or(UnknownCode)
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
        let specification = include_str!("../PROTOCOL.md");
        for code in Code::ALL {
            let row = specification
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
