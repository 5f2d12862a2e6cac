//! The hosts that hold up a group, as `GROUP keys` lists them.

use std::time::Duration;

use tidings_protocol::field_number;

use crate::client::manage::first_word;

/// The limit of these hosts in the progress of a crawl.
pub(crate) const WAITING_HOSTS_SHOWN: usize = 3;

/// A host with waiting tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WaitingHost {
    pub(crate) host: String,
    pub(crate) tasks: u64,
    /// Running requests.
    pub(crate) processing: u64,
    /// The least time until the last of them, as far as the delay of the host determines it.
    pub(crate) left: Duration,
}

impl WaitingHost {
    /// Reads a line of the answer. Missing values are 0.
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
