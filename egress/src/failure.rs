//! Why a request failed: a reason from the closed list, with a line of text for people. Some reasons
//! only the crawler reports, such as `robots`.

use std::error::Error;
use std::io;

pub use tidings_protocol::FailureReason as Reason;

use crate::address::AddressRefused;

/// An error text is cut after this many bytes, so that it fits in a line everywhere.
const ERROR_TEXT_BYTES_MAX: usize = 400;

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
    use super::*;

    #[test]
    fn an_error_is_shown_in_one_short_line() {
        let cause = io::Error::other(format!("line\nline {}", "x".repeat(1000)));
        let error = io::Error::other(io::Error::other(cause));
        let failure = Failure::of(Reason::Connect, &error);
        assert!(failure.text.starts_with("line line xxx"), "{failure}");
        assert_eq!(failure.text.len(), ERROR_TEXT_BYTES_MAX);
    }
}
