//! Hosts behind which most waits, as `GROUP keys` tells them.

use std::time::Duration;

use tidings_protocol::field_number;

use crate::manage::first_word;

/// What waits behind a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) host: String,
    pub(crate) tasks: u64,
    /// Requests under way.
    pub(crate) processing: u64,
    /// What that takes at least, as far as the host's delay decides it.
    pub(crate) left: Duration,
}

impl Waiting {
    /// Reads a line of the answer. What it does not say is 0.
    pub(crate) fn parse(line: &str) -> Self {
        let number = |key| field_number(line, key).unwrap_or(0);
        Self {
            host: first_word(line).to_owned(),
            tasks: number("waiting"),
            processing: number("processing"),
            left: Duration::from_millis(number("left-ms")),
        }
    }
}
