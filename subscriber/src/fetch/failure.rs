//! Why a request brought no complete answer: in one line for people, and whether trying again
//! could help.

use std::error::Error;
use std::io;

use crate::address::AddressRefused;
use crate::config::ERROR_TEXT_BYTES_MAX;

/// A request without a complete answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Failure {
    /// One line for a person.
    pub text: String,
    /// Trying again later may help.
    pub transient: bool,
}

impl Failure {
    pub(crate) fn transient(text: impl Into<String>) -> Self {
        Self { text: text.into(), transient: true }
    }

    pub(crate) fn permanent(text: impl Into<String>) -> Self {
        Self { text: text.into(), transient: false }
    }

    /// Before the head of an answer was there.
    pub(super) fn of_request(error: &reqwest::Error) -> Self {
        let text = if error.is_timeout() && error.is_connect() {
            "no connection in time".to_owned()
        } else if error.is_connect() {
            format!("cannot connect: {}", one_line(error))
        } else {
            one_line(error)
        };
        Self { transient: !is_permanent(error), text }
    }

    /// Within the body: from the connection, or from a decoder that cannot make sense of it.
    pub(super) fn of_body(error: &io::Error) -> Self {
        let of_connection = chain(error).iter().any(|error| error.is::<reqwest::Error>());
        let transient = if of_connection {
            !is_permanent(error)
        } else {
            error.kind() == io::ErrorKind::UnexpectedEof
        };
        Self { text: format!("body: {}", one_line(error)), transient }
    }
}

impl From<AddressRefused> for Failure {
    fn from(refused: AddressRefused) -> Self {
        Self::permanent(refused.to_string())
    }
}

/// What the server said is wrong, and it would say it again: refused addresses, answers that are
/// no HTTP, bodies that are not what their header says, certificates. Everything else (names,
/// connections, broken bodies) may be otherwise tomorrow.
fn is_permanent(error: &(dyn Error + 'static)) -> bool {
    chain(error).into_iter().any(|error| {
        error.is::<AddressRefused>()
            || error.downcast_ref().is_some_and(|error: &hyper::Error| error.is_parse())
            || error.downcast_ref().is_some_and(|error: &rustls::Error| {
                matches!(error, rustls::Error::InvalidCertificate(_))
            })
            || error.downcast_ref().is_some_and(|error: &io::Error| {
                matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput)
            })
    })
}

/// The error and its causes, from the outside in. An [`io::Error`] hides what it wraps from
/// [`Error::source`], so it is asked itself.
fn chain<'a>(error: &'a (dyn Error + 'static)) -> Vec<&'a (dyn Error + 'static)> {
    const DEPTH_MAX: usize = 16;
    let mut chain = vec![error];
    while chain.len() < DEPTH_MAX
        && let Some(next) = cause(chain[chain.len() - 1])
    {
        chain.push(next);
    }
    chain
}

fn cause<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(inner) => Some(inner),
        None => error.source(),
    }
}

/// The chain of causes as one line, without links that only say that something below went wrong
/// and without repetitions. URLs are left out: the page's own is known, and the line is shown
/// beside it.
pub(super) fn one_line(error: &(dyn Error + 'static)) -> String {
    let mut line = String::new();
    for error in chain(error) {
        let text = error.to_string();
        let generic = [
            "error sending request",
            "client error",
            "error decoding response body",
            "request or response body error",
            "error reading a body",
            "tcp connect error",
        ]
        .iter()
        .any(|generic| text.starts_with(generic) && cause(error).is_some());
        if generic || line.contains(&text) {
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
