//! What the outside was told of a topic over all lives of a broker, and whether what it keeps is
//! true to that.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::ops::RangeInclusive;

use super::line_connection::LineConnection;

/// Everything that anybody was told of one topic. Whoever tells it contradictions fails.
#[derive(Debug, Default)]
pub(crate) struct TopicHistory {
    topic: String,
    /// Every number that was ever seen, with its payload: of events that were lost in a crash, too.
    events_by_seq: BTreeMap<u64, String>,
    /// Payloads that were confirmed, and their numbers where the confirmation said them.
    confirmed: HashMap<String, Option<u64>>,
    /// Numbers that were said never to have been given to an event that was kept.
    gaps: Vec<RangeInclusive<u64>>,
}

/// What a subscription brought, in order and without a hole.
#[derive(Debug, Default)]
pub(crate) struct ReceivedEvents {
    /// Number and payload.
    pub(crate) events: Vec<(u64, String)>,
    /// What was said never to have been.
    pub(crate) gaps: Vec<RangeInclusive<u64>>,
    /// What was said to be gone.
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
    /// Reads a line about this topic.
    #[track_caller]
    pub(crate) fn parse(topic: &str, line: &str) -> Self {
        let wrong = || -> ! { panic!("no delivery of {topic}: {line:?}") };
        let mut words = line.splitn(4, ' ');
        let (Some(kind), Some(of), Some(first), Some(rest)) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            wrong()
        };
        let (Ok(first), true) = (first.parse::<u64>(), of == topic) else { wrong() };
        let numbers = || match rest.parse::<u64>() {
            Ok(last) if first <= last => first..=last,
            _ => wrong(),
        };
        match kind {
            "MSG" => Self::Event(first, rest.to_owned()),
            "GAP" => Self::Gap(numbers()),
            "LAG" => Self::Lag(numbers()),
            _ => wrong(),
        }
    }

    /// The first number that it is about.
    pub(crate) fn first_seq(&self) -> u64 {
        match self {
            Self::Event(seq, _) => *seq,
            Self::Gap(range) | Self::Lag(range) => *range.start(),
        }
    }

    /// Checks that it is about the number that comes next, and returns the one after it.
    #[track_caller]
    pub(crate) fn expect_next_seq(&self, next: u64) -> u64 {
        assert_eq!(self.first_seq(), next, "{self:?} is not about the number that comes next");
        match self {
            Self::Event(seq, _) => seq + 1,
            Self::Gap(range) | Self::Lag(range) => range.end() + 1,
        }
    }
}

impl ReceivedEvents {
    /// Hears all of a topic from its first number on, up to an event that this publishes: its end.
    /// May be asked again and again with the same end.
    #[track_caller]
    pub(crate) fn read_all(address: SocketAddr, topic: &str, end: &str) -> Self {
        let mut client = LineConnection::connect_client(address);
        client.send(format!("SUB {topic} from=1\nPUB {topic} {end}\n"));
        let (mut heard, mut next) = (Self::default(), 1);
        // To SUB, and to PUB: it begins with the number of the event.
        let mut answers = Vec::new();
        while answers.get(1).is_none_or(|&end| next <= end) {
            let line = client.read_line();
            if let Some(answer) = line.strip_prefix("+OK") {
                let first = answer.split_whitespace().next();
                answers.push(first.map_or(0, |first| first.parse().unwrap()));
                continue;
            }
            let delivery = Delivery::parse(topic, &line);
            next = delivery.expect_next_seq(next);
            match delivery {
                Delivery::Event(seq, payload) => {
                    heard.events.push((seq, payload));
                }
                Delivery::Gap(range) => heard.gaps.push(range),
                Delivery::Lag(range) => heard.lags.push(range),
            }
        }
        heard
    }
}

impl TopicHistory {
    /// Of a topic that was never heard of before.
    pub(crate) fn new(name: &str) -> Self {
        Self { topic: name.to_owned(), ..Self::default() }
    }

    /// Somebody heard this.
    #[track_caller]
    pub(crate) fn record_delivery(&mut self, delivery: Delivery) {
        match delivery {
            Delivery::Event(seq, payload) => self.record_event(seq, &payload),
            Delivery::Gap(range) => self.gaps.push(range),
            Delivery::Lag(range) => panic!("{}: {range:?} are gone", self.topic),
        }
    }

    /// Somebody was told that this number is this event's.
    #[track_caller]
    pub(crate) fn record_event(&mut self, seq: u64, payload: &str) {
        let known = self.events_by_seq.entry(seq).or_insert_with(|| payload.to_owned());
        assert_eq!(*known, payload, "{}: {seq} is the number of two events", self.topic);
    }

    /// A publish was confirmed, perhaps with its number.
    #[track_caller]
    pub(crate) fn record_confirmation(&mut self, payload: String, seq: Option<u64>) {
        if let Some(seq) = seq {
            self.record_event(seq, &payload);
        }
        self.confirmed.insert(payload, seq);
    }

    /// The highest number that a confirmation said.
    pub(crate) fn highest_confirmed_seq(&self) -> Option<u64> {
        self.confirmed.values().copied().flatten().max()
    }

    /// How many events were confirmed.
    pub(crate) fn confirmed_count(&self) -> usize {
        self.confirmed.len()
    }

    /// Checks what the topic is said to hold against everything that was ever told of it.
    ///
    /// Payloads are distinct, and of the form `<who>-<n>..`: those of one publisher come in the
    /// order of their n.
    #[track_caller]
    pub(crate) fn check_contents(&mut self, heard: ReceivedEvents) {
        assert!(heard.lags.is_empty(), "{}: gone are {:?}", self.topic, heard.lags);
        self.check_seqs(heard.gaps, &heard.events);
        let mut places = HashMap::new();
        let mut newest: HashMap<&str, u64> = HashMap::new();
        for (seq, payload) in &heard.events {
            if let Some(other) = places.insert(payload.as_str(), *seq) {
                panic!("{}: {payload:?} is there as {other} and as {seq}", self.topic);
            }
            let (who, n) = publisher_and_number(payload);
            if let Some(before) = newest.insert(who, n) {
                assert!(before < n, "{}: {who}-{n} comes behind {who}-{before}", self.topic);
            }
        }
        for (payload, number) in &self.confirmed {
            let Some(place) = places.get(payload.as_str()) else {
                panic!("{}: {payload:?} ({number:?}) was confirmed and is not there", self.topic);
            };
            assert!(
                number.is_none_or(|number| number == *place),
                "{}: {payload:?} was confirmed as {number:?} and is there as {place}",
                self.topic
            );
        }
    }

    /// Checks only that no number ever named two events, and that none is there that was said not
    /// to be.
    #[track_caller]
    pub(crate) fn check_seqs(&mut self, gaps: Vec<RangeInclusive<u64>>, events: &[(u64, String)]) {
        for (seq, payload) in events {
            self.record_event(*seq, payload);
        }
        // What was said in an earlier life counts, too: a gap is for ever.
        self.gaps.extend(gaps);
        self.gaps.sort_unstable_by_key(|gap| (*gap.start(), *gap.end()));
        self.gaps.dedup();
        for gap in &self.gaps {
            let at = events.partition_point(|(seq, _)| seq < gap.start());
            if let Some((seq, payload)) = events.get(at).filter(|(seq, _)| seq <= gap.end()) {
                panic!("{}: {seq} is {payload:?}, and lies in the gap {gap:?}", self.topic);
            }
        }
    }
}

/// Who published, and as the how-manieth.
#[track_caller]
fn publisher_and_number(payload: &str) -> (&str, u64) {
    let first = payload.split(' ').next().unwrap_or_default();
    first
        .rsplit_once('-')
        .and_then(|(who, n)| Some((who, n.parse().ok()?)))
        .unwrap_or_else(|| panic!("no payload of these tests: {payload:?}"))
}
