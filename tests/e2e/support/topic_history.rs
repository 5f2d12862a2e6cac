//! What clients have observed of a topic across restarts of the broker, and checks that the stored
//! topic agrees with it.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::ops::RangeInclusive;

use super::line_connection::LineConnection;

/// All observations of one topic. A contradiction fails the test.
#[derive(Debug, Default)]
pub(crate) struct TopicHistory {
    topic: String,
    /// Every seq ever seen with its payload, including events that a crash lost.
    events_by_seq: BTreeMap<u64, String>,
    /// Confirmed payloads, with their seqs if the confirmation named them.
    confirmed: HashMap<String, Option<u64>>,
    /// Ranges that the broker has reported as never used by a stored event.
    gaps: Vec<RangeInclusive<u64>>,
}

/// The deliveries of a subscription, in order and complete.
#[derive(Debug, Default)]
pub(crate) struct ReceivedEvents {
    /// Seq and payload.
    pub(crate) events: Vec<(u64, String)>,
    /// Ranges that `GAP` reported as never used.
    pub(crate) gaps: Vec<RangeInclusive<u64>>,
    /// Ranges that `LAG` reported as gone.
    pub(crate) lags: Vec<RangeInclusive<u64>>,
}

/// A line of a subscription.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Delivery {
    Event(u64, String),
    Gap(RangeInclusive<u64>),
    Lag(RangeInclusive<u64>),
}

impl Delivery {
    /// Parses a line about this topic.
    #[track_caller]
    pub(crate) fn parse(topic: &str, line: &str) -> Self {
        let invalid = || -> ! { panic!("not a delivery of {topic}: {line:?}") };
        let mut words = line.splitn(4, ' ');
        let (Some(kind), Some(of), Some(first), Some(rest)) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            invalid()
        };
        let (Ok(first), true) = (first.parse::<u64>(), of == topic) else { invalid() };
        let numbers = || match rest.parse::<u64>() {
            Ok(last) if first <= last => first..=last,
            _ => invalid(),
        };
        match kind {
            "MSG" => Self::Event(first, rest.to_owned()),
            "GAP" => Self::Gap(numbers()),
            "LAG" => Self::Lag(numbers()),
            _ => invalid(),
        }
    }

    /// The first seq of the delivery.
    pub(crate) fn first_seq(&self) -> u64 {
        match self {
            Self::Event(seq, _) => *seq,
            Self::Gap(range) | Self::Lag(range) => *range.start(),
        }
    }

    /// Checks that the delivery starts at `next`, and returns the seq after its last.
    #[track_caller]
    pub(crate) fn expect_next_seq(&self, next: u64) -> u64 {
        assert_eq!(self.first_seq(), next, "{self:?} does not start at the expected seq");
        match self {
            Self::Event(seq, _) => seq + 1,
            Self::Gap(range) | Self::Lag(range) => range.end() + 1,
        }
    }
}

impl ReceivedEvents {
    /// Reads a topic from its first seq to the event `end`, which this call publishes. It may be
    /// called again with the same `end`.
    #[track_caller]
    pub(crate) fn read_all(address: SocketAddr, topic: &str, end: &str) -> Self {
        let mut client = LineConnection::connect_client(address);
        client.send(format!("SUB {topic} from=1\nPUB {topic} {end}\n"));
        let (mut received, mut next) = (Self::default(), 1);
        // Responses to SUB and PUB; the one to PUB begins with the seq of the event.
        let mut responses = Vec::new();
        while responses.get(1).is_none_or(|&end| next <= end) {
            let line = client.read_line();
            if let Some(response) = line.strip_prefix("+OK") {
                let first = response.split_whitespace().next();
                responses.push(first.map_or(0, |first| first.parse().unwrap()));
                continue;
            }
            let delivery = Delivery::parse(topic, &line);
            next = delivery.expect_next_seq(next);
            match delivery {
                Delivery::Event(seq, payload) => {
                    received.events.push((seq, payload));
                }
                Delivery::Gap(range) => received.gaps.push(range),
                Delivery::Lag(range) => received.lags.push(range),
            }
        }
        received
    }
}

impl TopicHistory {
    /// A topic without observations.
    pub(crate) fn new(name: &str) -> Self {
        Self { topic: name.to_owned(), ..Self::default() }
    }

    /// A client has received this.
    #[track_caller]
    pub(crate) fn record_delivery(&mut self, delivery: Delivery) {
        match delivery {
            Delivery::Event(seq, payload) => self.record_event(seq, &payload),
            Delivery::Gap(range) => self.gaps.push(range),
            Delivery::Lag(range) => panic!("{}: {range:?} was dropped", self.topic),
        }
    }

    /// A client has learned that this event has this seq.
    #[track_caller]
    pub(crate) fn record_event(&mut self, seq: u64, payload: &str) {
        let recorded = self.events_by_seq.entry(seq).or_insert_with(|| payload.to_owned());
        assert_eq!(*recorded, payload, "{}: seq {seq} names two events", self.topic);
    }

    /// A publish was confirmed, perhaps with its seq.
    #[track_caller]
    pub(crate) fn record_confirmation(&mut self, payload: String, seq: Option<u64>) {
        if let Some(seq) = seq {
            self.record_event(seq, &payload);
        }
        self.confirmed.insert(payload, seq);
    }

    /// The highest seq that a confirmation named.
    pub(crate) fn highest_confirmed_seq(&self) -> Option<u64> {
        self.confirmed.values().copied().flatten().max()
    }

    /// The number of confirmed events.
    pub(crate) fn confirmed_count(&self) -> usize {
        self.confirmed.len()
    }

    /// Checks the contents of the topic against all observations.
    ///
    /// Payloads are distinct and of the form `<publisher>-<n>..`; those of one publisher must be in
    /// the order of n.
    #[track_caller]
    pub(crate) fn check_contents(&mut self, received: ReceivedEvents) {
        assert!(received.lags.is_empty(), "{}: dropped events {:?}", self.topic, received.lags);
        self.check_seqs(received.gaps, &received.events);
        let mut seqs = HashMap::new();
        let mut newest: HashMap<&str, u64> = HashMap::new();
        for (seq, payload) in &received.events {
            if let Some(other) = seqs.insert(payload.as_str(), *seq) {
                panic!("{}: {payload:?} is stored twice, as {other} and {seq}", self.topic);
            }
            let (publisher, n) = publisher_and_number(payload);
            if let Some(before) = newest.insert(publisher, n) {
                assert!(
                    before < n,
                    "{}: {publisher}-{n} is stored after {publisher}-{before}",
                    self.topic
                );
            }
        }
        for (payload, number) in &self.confirmed {
            let Some(stored) = seqs.get(payload.as_str()) else {
                panic!("{}: {payload:?} ({number:?}) was confirmed but is not stored", self.topic);
            };
            assert!(
                number.is_none_or(|number| number == *stored),
                "{}: {payload:?} was confirmed as {number:?} and is stored as {stored}",
                self.topic
            );
        }
    }

    /// Checks only that no seq ever named two events and that no event has a seq inside a gap.
    #[track_caller]
    pub(crate) fn check_seqs(&mut self, gaps: Vec<RangeInclusive<u64>>, events: &[(u64, String)]) {
        for (seq, payload) in events {
            self.record_event(*seq, payload);
        }
        // Gaps from before a restart count as well: a gap is permanent.
        self.gaps.extend(gaps);
        self.gaps.sort_unstable_by_key(|gap| (*gap.start(), *gap.end()));
        self.gaps.dedup();
        for gap in &self.gaps {
            let at = events.partition_point(|(seq, _)| seq < gap.start());
            if let Some((seq, payload)) = events.get(at).filter(|(seq, _)| seq <= gap.end()) {
                panic!("{}: seq {seq} is {payload:?} but lies in the gap {gap:?}", self.topic);
            }
        }
    }
}

/// The publisher in a payload, and the number of the event among those of the publisher.
#[track_caller]
fn publisher_and_number(payload: &str) -> (&str, u64) {
    let first = payload.split(' ').next().unwrap_or_default();
    first
        .rsplit_once('-')
        .and_then(|(publisher, n)| Some((publisher, n.parse().ok()?)))
        .unwrap_or_else(|| panic!("not a payload of the form <publisher>-<n>: {payload:?}"))
}
