//! A publisher that pipelines and remembers what of it was confirmed.

use std::collections::VecDeque;
use std::net::SocketAddr;

use super::talk::Talk;

/// A connection that publishes without waiting for each answer.
#[derive(Debug)]
pub(crate) struct Pipeline {
    talk: Talk,
    /// Publishes without an answer, oldest first: topic and payload.
    waiting: VecDeque<(String, String)>,
    /// The number of the first of them among the publishes of the connection, which count from 1.
    first: u64,
}

/// What became of a publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) topic: String,
    pub(crate) payload: String,
    /// Confirmed, perhaps with its number; or the code of the refusal.
    pub(crate) fate: Result<Option<u64>, String>,
}

impl Pipeline {
    /// Connects; nothing where the broker is gone.
    #[track_caller]
    pub(crate) fn connect(address: SocketAddr) -> Option<Self> {
        Some(Self { talk: Talk::try_client(address)?, waiting: VecDeque::new(), first: 1 })
    }

    /// Publishes all of these with one write.
    pub(crate) fn send(&mut self, events: impl IntoIterator<Item = (String, String)>) {
        let mut lines = String::new();
        for (topic, payload) in events {
            lines.extend(["PUB ", &topic, " ", &payload, "\n"]);
            self.waiting.push_back((topic, payload));
        }
        self.talk.send(lines);
    }

    /// How many publishes wait for their answer.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The outcomes that the next answer tells; nothing where the broker is gone or about to go.
    ///
    /// A refusal names its publishes alone, so those before it may still be unanswered: they stay
    /// in `waiting`, in which the refused ones are then blank.
    #[track_caller]
    pub(crate) fn answer(&mut self) -> Option<Vec<Outcome>> {
        let line = self.talk.next_line()?;
        if let Some(rest) = line.strip_prefix("+OK ") {
            let (seq, n) = rest.split_once(' ').expect("two numbers");
            let (seq, n) = (seq.parse::<u64>().unwrap(), n.parse::<u64>().unwrap());
            let count = usize::try_from(n + 1 - self.first).expect("publishes that were sent");
            self.first = n + 1;
            let answered: Vec<_> = self.waiting.drain(..count).collect();
            let last = count - 1;
            let outcomes =
                answered.into_iter().enumerate().filter(|(_, event)| !event.0.is_empty());
            return Some(
                outcomes
                    .map(|(at, (topic, payload))| {
                        let number = (at == last).then_some(seq);
                        Outcome { topic, payload, fate: Ok(number) }
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
            panic!("no answer to a publish: {line:?}");
        };
        let which = which.strip_prefix("n=").unwrap_or_else(|| panic!("no answer: {line:?}"));
        let (from, to) = which.split_once('-').unwrap_or((which, which));
        let (from, to) = (from.parse::<u64>().unwrap(), to.parse::<u64>().unwrap());
        let refused = (from..=to).map(|n| {
            let at = usize::try_from(n - self.first).expect("publishes that were sent");
            let (topic, payload) = std::mem::take(&mut self.waiting[at]);
            Outcome { topic, payload, fate: Err(code.to_owned()) }
        });
        let refused = refused.collect();
        // What was refused in front waits for nothing.
        while self.waiting.front().is_some_and(|(topic, _)| topic.is_empty()) {
            self.waiting.pop_front();
            self.first += 1;
        }
        Some(refused)
    }

    /// The outcomes of everything that was sent and not answered; fails where the broker goes.
    #[track_caller]
    pub(crate) fn all_answers(&mut self) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        while !self.waiting.is_empty() {
            outcomes.extend(self.answer().expect("a broker that answers"));
        }
        outcomes
    }

    /// What was never answered, oldest first.
    pub(crate) fn unanswered(self) -> impl Iterator<Item = (String, String)> {
        self.waiting.into_iter().filter(|(topic, _)| !topic.is_empty())
    }
}
