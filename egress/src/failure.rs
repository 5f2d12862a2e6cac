//! Why a request failed: the closed list of reasons. Each has a fixed name, described in
//! `subscriber/OUTCOMES.md`, and comes with a line of text for people. Some of them only the
//! crawler reports, such as `robots`.

use std::error::Error;
use std::io;

use tidings_protocol::word_enum;

use crate::address::AddressRefused;

/// An error text is cut after this many bytes, so that it fits in a line everywhere.
const ERROR_TEXT_BYTES_MAX: usize = 400;

word_enum! {
    /// Why a page was not fetched.
    #[derive(PartialOrd, Ord)]
    #[non_exhaustive]
    pub enum Reason {
        /// The task contains no URL that can be requested.
        Url = "url",
        /// robots.txt does not allow it.
        Robots = "robots",
        /// The address does not belong to the public internet.
        Address = "address",
        /// The name could not be resolved.
        Dns = "dns",
        /// The connection was refused, or the server is unreachable.
        Connect = "connect",
        /// The connection took too long.
        ConnectTimeout = "connect-timeout",
        /// Too many requests to this address are in flight.
        Busy = "busy",
        /// The proxy did not connect to the server.
        Proxy = "proxy",
        /// The TLS handshake failed.
        Tls = "tls",
        /// The certificate is not trusted.
        Certificate = "certificate",
        /// The connection ended before the response.
        Reset = "reset",
        /// The server sent nothing for too long.
        Silent = "silent",
        /// The server sends too slowly.
        Slow = "slow",
        /// The time limit of the whole request was reached.
        Timeout = "timeout",
        /// The response is not HTTP.
        BadHttp = "bad-http",
        /// The headers are too many or too long.
        HeadTooLarge = "head-too-large",
        /// Too many bytes arrived before the response.
        Interim = "interim",
        /// The body ended early.
        Truncated = "truncated",
        /// The body is over the limit.
        TooLarge = "too-large",
        /// The body grows too much when it is decompressed.
        Bomb = "bomb",
        /// The body does not match its encoding, or the encoding is unknown.
        Encoding = "encoding",
        /// The target of a redirect cannot be requested.
        Redirect = "redirect",
        /// A final status without a page.
        Status = "status",
        /// A status that may change later.
        TryLater = "try-later",
        /// The body could not be stored on this machine.
        Storage = "storage",
    }
}

impl Reason {
    /// Whether a retry may help. A decision of the server is final; names, connections and broken
    /// bodies may be fine tomorrow.
    pub const fn is_transient(self) -> bool {
        matches!(
            self,
            Self::Dns
                | Self::Connect
                | Self::ConnectTimeout
                | Self::Busy
                | Self::Proxy
                | Self::Reset
                | Self::Silent
                | Self::Slow
                | Self::Timeout
                | Self::Truncated
                | Self::TryLater
                | Self::Storage
        )
    }

    /// The reason for a status that is neither a page nor a redirect.
    pub const fn of_status(status: u16) -> Self {
        match status {
            408 | 425 | 429 | 500..=599 => Self::TryLater,
            _ => Self::Status,
        }
    }
}

/// A request without a complete response, or a response without a page.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Failure {
    /// For programs.
    pub reason: Reason,
    /// One line for people.
    pub text: String,
}

impl Failure {
    /// With this text of one line.
    pub fn new(reason: Reason, text: impl Into<String>) -> Self {
        Self { reason, text: text.into() }
    }

    /// With the error and its causes as text.
    pub fn of(reason: Reason, error: &(dyn Error + 'static)) -> Self {
        Self::new(reason, one_line(error))
    }

    /// For a status that is neither a page nor a redirect.
    pub fn of_status(status: u16) -> Self {
        Self::new(Reason::of_status(status), format!("HTTP status {status}"))
    }

    /// Whether a retry may help.
    pub fn is_transient(&self) -> bool {
        self.reason.is_transient()
    }

    /// The same failure with the place of the error before its text.
    #[must_use]
    pub fn with_context(mut self, place: &str) -> Self {
        self.text.insert_str(0, place);
        self
    }
}

impl From<AddressRefused> for Failure {
    fn from(refused: AddressRefused) -> Self {
        Self::new(Reason::Address, refused.to_string())
    }
}

/// The error and its causes, from the outside in. [`Error::source`] does not return the error that
/// an [`io::Error`] wraps, so it is read with `get_ref`.
pub fn causes<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    const DEPTH_MAX: usize = 16;
    std::iter::successors(Some(error), |error| cause(*error)).take(DEPTH_MAX)
}

fn cause<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(inner) => Some(inner),
        None => error.source(),
    }
}

/// The error and its causes as one line, without repetitions.
pub fn one_line(error: &(dyn Error + 'static)) -> String {
    let mut line = String::new();
    for error in causes(error) {
        let text = error.to_string();
        if line.contains(&text) {
            continue;
        }
        if !line.is_empty() {
            line.push_str(": ");
        }
        line.extend(text.chars().map(|c| if c.is_control() { ' ' } else { c }));
    }
    line.truncate(line.floor_char_boundary(ERROR_TEXT_BYTES_MAX));
    line
}

#[cfg(test)]
mod tests {
    use tidings_protocol::UNANSWERED_REASONS;

    use super::*;

    // PROTOCOL: T17
    #[test]
    fn hosts_that_do_not_answer_are_known_by_the_words_of_the_protocol() {
        for word in UNANSWERED_REASONS {
            assert!(Reason::from_word(word).is_some(), "{word}");
        }
    }

    // PROTOCOL: T12
    #[test]
    fn a_status_that_may_change_is_retried_and_any_other_is_final() {
        for status in [408, 425, 429, 500, 502, 503, 504, 599] {
            assert!(Reason::of_status(status).is_transient(), "{status}");
        }
        for status in [304, 400, 401, 403, 404, 407, 409, 410, 424, 426, 428, 430, 499, 600] {
            assert!(!Reason::of_status(status).is_transient(), "{status}");
        }
    }

    #[test]
    fn an_error_is_shown_in_one_short_line() {
        let cause = io::Error::other(format!("line\nline {}", "x".repeat(1000)));
        let error = io::Error::other(io::Error::other(cause));
        let failure = Failure::of(Reason::Connect, &error);
        assert!(failure.text.starts_with("line line xxx"), "{failure}");
        assert_eq!(failure.text.len(), ERROR_TEXT_BYTES_MAX);
    }
}
