//! A publisher that pipelines its publishes and reports which of them were confirmed.

use std::collections::VecDeque;
use std::net::SocketAddr;

use super::line_connection::LineConnection;

/// A connection that publishes without waiting for each response.
#[derive(Debug)]
pub(crate) struct PipelinedPublisher {
    connection: LineConnection,
    /// Unconfirmed publishes, oldest first: topic and payload.
    pending: VecDeque<(String, String)>,
    /// The number of the first of them; the publishes of a connection are counted from 1.
    first_pending_number: u64,
}

/// The result of one publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PublishOutcome {
    pub(crate) topic: String,
    pub(crate) payload: String,
    /// Confirmed, with its seq if the confirmation names it; or the error code of the rejection.
    pub(crate) result: Result<Option<u64>, String>,
}

impl PipelinedPublisher {
    /// Connects; `None` if the broker is down.
    #[track_caller]
    pub(crate) fn connect(address: SocketAddr) -> Option<Self> {
        Some(Self {
            connection: LineConnection::try_connect_client(address)?,
            pending: VecDeque::new(),
            first_pending_number: 1,
        })
    }

    /// Publishes all of these with one write.
    pub(crate) fn send(&mut self, events: impl IntoIterator<Item = (String, String)>) {
        let mut lines = String::new();
        for (topic, payload) in events {
            lines.extend(["PUB ", &topic, " ", &payload, "\n"]);
            self.pending.push_back((topic, payload));
        }
        self.connection.send(lines);
    }

    /// How many publishes have no response yet.
    pub(crate) fn pending_count(&self) -> usize {
        self.pending.len()
    }

    /// Reads the next response and returns its outcomes; `None` if the broker is down or closing.
    ///
    /// A rejection names only its own publishes, so earlier ones may still be open: they stay in
    /// `pending`, in which the rejected publishes become blank.
    #[track_caller]
    pub(crate) fn read_outcomes(&mut self) -> Option<Vec<PublishOutcome>> {
        let line = self.connection.try_read_line()?;
        if let Some(rest) = line.strip_prefix("+OK ") {
            let (seq, n) = rest.split_once(' ').expect("a confirmation with two numbers");
            let (seq, n) = (seq.parse::<u64>().unwrap(), n.parse::<u64>().unwrap());
            let count = usize::try_from(n + 1 - self.first_pending_number)
                .expect("a number of a sent publish");
            self.first_pending_number = n + 1;
            let completed: Vec<_> = self.pending.drain(..count).collect();
            let last = count - 1;
            let outcomes =
                completed.into_iter().enumerate().filter(|(_, event)| !event.0.is_empty());
            return Some(
                outcomes
                    .map(|(at, (topic, payload))| {
                        let number = (at == last).then_some(seq);
                        PublishOutcome { topic, payload, result: Ok(number) }
                    })
                    .collect(),
            );
        }
        if line.starts_with("-ERR closing ") {
            return None;
        }
        let mut words = line.splitn(4, ' ');
        let (Some("-ERR"), Some(code), Some(which)) = (words.next(), words.next(), words.next())
        else {
            panic!("not a response to a publish: {line:?}");
        };
        let which =
            which.strip_prefix("n=").unwrap_or_else(|| panic!("a rejection without n=: {line:?}"));
        let (from, to) = which.split_once('-').unwrap_or((which, which));
        let (from, to) = (from.parse::<u64>().unwrap(), to.parse::<u64>().unwrap());
        let rejected = (from..=to).map(|n| {
            let at =
                usize::try_from(n - self.first_pending_number).expect("a number of a sent publish");
            let (topic, payload) = std::mem::take(&mut self.pending[at]);
            PublishOutcome { topic, payload, result: Err(code.to_owned()) }
        });
        let rejected = rejected.collect();
        // Rejected publishes at the front are complete.
        while self.pending.front().is_some_and(|(topic, _)| topic.is_empty()) {
            self.pending.pop_front();
            self.first_pending_number += 1;
        }
        Some(rejected)
    }

    /// Reads the outcomes of all pending publishes; fails if the broker closes.
    #[track_caller]
    pub(crate) fn read_all_outcomes(&mut self) -> Vec<PublishOutcome> {
        let mut outcomes = Vec::new();
        while !self.pending.is_empty() {
            outcomes.extend(self.read_outcomes().expect("the broker closed"));
        }
        outcomes
    }

    /// The publishes that never got a response, oldest first.
    pub(crate) fn into_pending(self) -> impl Iterator<Item = (String, String)> {
        self.pending.into_iter().filter(|(topic, _)| !topic.is_empty())
    }
}
