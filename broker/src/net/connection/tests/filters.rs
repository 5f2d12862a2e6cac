//! Tests of subscriptions with a filter. The simulation has power cuts, evicted events, slow sockets
//! and lost connections; it judges what clients read by what was confirmed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::task::Waker;
use std::thread;

use bytes::{Bytes, BytesMut};
use fastrand::Rng;
use tidings_log::{DiskFaults, SimulatedDisk, simulation};
use tidings_protocol::{
    Answers, AttributeFilter, Durability, Reply, Seq, StartAt, Sync, TopicSettings,
};

use super::super::outbound::OutboundQueue;
use super::super::subscriptions::{SubscriptionKind, Subscriptions};
use super::*;
use crate::clock::{Clock, Moment};
use crate::topic::{Topic, Topics};

/// Events of the second topic leave its memory, which a client sees as `LAG`.
const TOPICS: [(&str, Sync); 2] = [("disk", Sync::Always), ("memory", Sync::Memory)];

/// One filter matches some events, one most of them, one none.
const FILTERS: [&[&str]; 3] = [&["k=a"], &["k!=a", "n!=3"], &["k=none"]];

/// Starts of the broker in one simulation, steps between two starts, and simulations.
const LIVES: usize = 4;
const STEPS: usize = 120;
const RUNS: u64 = 200;

/// Calls without progress after which a simulation fails.
const PATIENCE: usize = 1_000_000;

type History = BTreeMap<u64, String>;

/// A topic, and what was published on it.
struct Published {
    topic: Arc<Topic>,
    open: History,
    confirmed: History,
}

impl Published {
    fn append(&mut self, rng: &mut Rng) {
        let payload = |rng: &mut Rng| {
            let key = rng.choice(["a", "b", "c"]).unwrap();
            format!("/x n={} k={key} pad={}", rng.u8(..5), "x".repeat(rng.usize(..60)))
        };
        let payloads: Vec<_> = (0..rng.usize(1..40)).map(|_| payload(rng)).collect();
        let seqs = self.topic.append(ConnId(1), payloads.iter().map(String::as_str)).unwrap();
        self.open.extend((seqs.start.0..).zip(payloads));
        self.confirm();
    }

    fn confirm(&mut self) {
        let topic = &self.topic;
        self.confirmed.extend(
            self.open
                .extract_if(.., |seq, _| matches!(topic.fate(Seq(*seq)).0, Durability::Durable)),
        );
    }

    fn settle(&mut self) {
        for _ in 0..PATIENCE {
            self.confirm();
            if self.open.is_empty() {
                return;
            }
            thread::yield_now();
        }
        panic!("{} events are not durable", self.open.len());
    }
}

/// A client that reconnects, and goes on where it was.
struct Client {
    filter: AttributeFilter,
    /// The next seq of each topic, derived from nothing but the lines of the broker.
    next: [u64; TOPICS.len()],
    link: Option<Link>,
    /// How often each line arrived: `MSG`, `LAG`, `GAP`, `SKIP`.
    lines: [u64; 4],
}

/// Both ends of a connection.
#[derive(Default)]
struct Link {
    subscriptions: Subscriptions,
    outbound: OutboundQueue,
    answers: Answers,
    /// What the client has received of a line.
    partial: Vec<u8>,
}

impl Link {
    fn subscribe(
        &mut self,
        topics: &Topics,
        topic: &str,
        from: Option<StartAt>,
        filter: &AttributeFilter,
    ) {
        let reader = topics.subscribe(&topic.parse().unwrap(), from, Waker::noop().clone());
        let slot = self.answers.reserve();
        self.answers.fill(slot, Bytes::from_static(b"+OK\r\n"));
        self.answers.drain(|_, seq| (Durability::Pending, seq), &mut BytesMut::new());
        let kind = SubscriptionKind::Command(slot);
        self.subscriptions.add(reader.unwrap(), kind, filter.clone());
    }

    fn fetch(&mut self, bytes_max: usize, now: u64) -> bool {
        let Self { subscriptions, outbound, answers, .. } = self;
        subscriptions.fetch(outbound, answers, bytes_max, || Moment(now)).has_more
    }
}

impl Client {
    fn step(&mut self, published: &[Published], topics: &Topics, rng: &mut Rng, now: u64) {
        let mut link = self.link.take().unwrap_or_else(|| self.connect(topics));
        if link.outbound.is_empty() {
            link.fetch(rng.usize(1..3_000), now);
        }
        link.partial.extend(link.outbound.take(rng.usize(..4_000)));
        let end = link.partial.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let lines: Vec<u8> = link.partial.drain(..end).collect();
        for line in std::str::from_utf8(&lines).unwrap().lines() {
            self.judge(Reply::parse(line).unwrap(), published);
        }
        match rng.u8(..12) {
            0 => return,
            // The socket has taken nothing for a while.
            1 => {
                let subscriptions = &mut link.subscriptions;
                link.outbound.release_topic_memory(|id, seq| subscriptions.rewind(id, seq));
                subscriptions.cancel_disk_reads();
            }
            _ => {}
        }
        self.link = Some(link);
    }

    fn connect(&self, topics: &Topics) -> Link {
        let mut link = Link::default();
        for ((name, _), next) in TOPICS.iter().zip(self.next) {
            let from = Some(StartAt::Seq(Seq(next)));
            link.subscribe(topics, name, from, &self.filter);
        }
        link
    }

    fn judge(&mut self, line: Reply<'_>, published: &[Published]) {
        let (topic, kind, range) = match line {
            Reply::Msg { topic, seq, payload } => {
                assert!(self.filter.matches(payload), "{payload}");
                (topic, 0, seq.0..seq.0 + 1)
            }
            Reply::Lag { topic: Some(topic), from, to } => (topic, 1, from.0..to.0 + 1),
            Reply::Gap { topic, from, to } => (topic, 2, from.0..to.0 + 1),
            Reply::Skip { topic, seq } => (topic, 3, seq.0 + 1..seq.0 + 1),
            line => panic!("{line:?}"),
        };
        self.lines[kind] += 1;
        let at = TOPICS.iter().position(|(name, _)| *name == topic).unwrap();
        let confirmed = &published[at].confirmed;
        assert!(range.start >= self.next[at], "{topic} {range:?} again, after {}", self.next[at]);
        self.assert_none_matches(confirmed, self.next[at]..range.start);
        if kind == 2 || (kind == 1 && topic == "disk") {
            assert_eq!(confirmed.range(range.clone()).next(), None, "{topic} {range:?}");
        }
        self.next[at] = range.end;
    }

    fn assert_none_matches(&self, confirmed: &History, skipped: Range<u64>) {
        let lost = confirmed.range(skipped).find(|(_, payload)| self.filter.matches(payload));
        assert_eq!(lost, None, "{:?}", self.filter);
    }

    fn is_behind(&self, published: &[Published]) -> bool {
        self.next.iter().zip(published).any(|(next, on)| *next < on.topic.head().0)
    }
}

fn live(seed: u64) -> [u64; 4] {
    let rng = &mut Rng::with_seed(seed);
    let disk = SimulatedDisk::new(rng.u64(..));
    let limits = Limits { tail_bytes_max: 4_000, ..Limits::default() };
    let mut clients = FILTERS.map(|conditions| Client {
        filter: AttributeFilter::parse(conditions.iter().copied()).unwrap(),
        next: [1; TOPICS.len()],
        link: None,
        lines: [0; 4],
    });
    let mut confirmed = TOPICS.map(|_| History::new());
    let mut now = 0;
    for life in 1..=LIVES {
        let topics = Topics::simulated(&disk, &limits, Sync::Always).unwrap();
        let mut published = TOPICS.map(|(name, sync)| {
            let name = name.parse().unwrap();
            let settings = TopicSettings { sync, ..topics.defaults() };
            let _ = topics.create(&name, settings, |_| {});
            let topic = topics.open(&name).unwrap();
            Published { topic, open: History::new(), confirmed: History::new() }
        });
        // A restart loses what was only in memory.
        published[0].confirmed = std::mem::take(&mut confirmed[0]);
        for _ in 0..STEPS {
            now += rng.u64(..300);
            match rng.u8(..10) {
                0..2 => rng.choice(&mut published).unwrap().append(rng),
                2 => published.iter_mut().for_each(Published::confirm),
                _ => rng.choice(&mut clients).unwrap().step(&published, &topics, rng, now),
            }
        }
        if life == LIVES || rng.bool() {
            published.iter_mut().for_each(Published::settle);
            for client in &mut clients {
                let mut steps = 0;
                while client.is_behind(&published) {
                    now += 100;
                    steps += 1;
                    assert!(steps < PATIENCE, "{:?} at {:?}", client.filter, client.next);
                    client.step(&published, &topics, rng, now);
                    thread::yield_now();
                }
            }
        }
        for client in &mut clients {
            client.link = None;
        }
        disk.set_faults(DiskFaults { power_off_after: Some(0), ..DiskFaults::default() });
        published.iter_mut().for_each(Published::confirm);
        topics.close();
        confirmed = published.map(|published| published.confirmed);
        disk.cut_power();
        disk.set_faults(DiskFaults::default());
    }
    clients.iter().fold([0; 4], |sum, client| std::array::from_fn(|at| sum[at] + client.lines[at]))
}

// PROTOCOL: D2, D7, D8
#[test]
#[expect(clippy::print_stderr, reason = "the output must contain the seed")]
fn a_filter_loses_no_matching_event_and_passes_none() {
    let seeds = simulation::seeds("FILTER", RUNS);
    let is_whole = seeds.end - seeds.start >= RUNS;
    let mut lines = [0; 4];
    for seed in seeds {
        // Several threads take part, so a seed makes a failure likely but not certain.
        eprintln!("TIDINGS_FILTER_SEED={seed}");
        let of_seed = live(seed);
        lines = std::array::from_fn(|at| lines[at] + of_seed[at]);
    }
    assert!(!is_whole || lines.iter().all(|count| *count > 0), "MSG, LAG, GAP, SKIP: {lines:?}");
}

#[test]
fn a_turn_searches_a_bounded_part_of_a_topic() {
    let topics = Topics::in_memory(&Limits::default(), Clock::new());
    let topic = topics.default_topic();
    let payload = format!("/x k=a pad={}", "x".repeat(1_000));
    for _ in 0..50 {
        topic.append(ConnId(1), [payload.as_str(); 100]).unwrap();
    }
    let mut link = Link::default();
    let filter = AttributeFilter::parse(["k=b"]).unwrap();
    link.subscribe(&topics, topic.name().as_str(), Some(StartAt::First), &filter);
    let mut turns = 1;
    while link.fetch(64 << 10, 0) {
        turns += 1;
    }
    assert!((4..=6).contains(&turns), "{turns} turns for 5 MB");
    assert_eq!(link.outbound.take(100), b"SKIP new-url 5000\r\n");
}

// PROTOCOL: D8
#[tokio::test]
async fn a_long_search_ends_without_another_event() {
    let broker = start_broker(Limits::default()).await;
    let mut client = TestConnection::connect_client(&broker).await;
    let count = 5 * (1 << 20) / 1_000;
    let line = format!("PUB t /x k=a pad={}\n", "x".repeat(1_000));
    for n in 1..=count {
        client.send(&line).await;
        if n % 100 == 0 {
            client.request("PING").await;
        }
    }
    client.request_until("TOPIC show t", &format!(" next={}", count + 1)).await;
    client.send("SUB t from=first where=k=b\n").await;
    while client.next_line().await != format!("SKIP t {count}\r\n") {}
}

// PROTOCOL: D7, D8, S15
#[tokio::test]
async fn skipped_events_are_reported_at_the_end_and_within_a_second() {
    let broker = start_broker(Limits::default()).await;
    let mut publisher = TestConnection::connect_client(&broker).await;
    publisher.send("PUB t /1 k=a\nPUB t /2 k=b\nPUB t just text\n").await;
    while publisher.next_line().await != "+OK 3 3\r\n" {}
    let mut client = TestConnection::connect_client(&broker).await;
    client.send("SUB t from=first where=k=a\n").await;
    client.expect("+OK\r\nMSG t 1 /1 k=a\r\nSKIP t 3\r\n").await;
    publisher.send("PUB t /4 k=b\nPUB t /5 k=a\nPUB t /6 k=b\n").await;
    client.expect("MSG t 5 /5 k=a\r\nSKIP t 6\r\n").await;
    publisher.send("PUB t /7 k=b\n").await;
    while publisher.next_line().await != "+OK 7 7\r\n" {}
    client.send("QUIT\n").await;
    let rest = client.read_until_closed().await;
    assert_eq!(rest.matches("SKIP t 7\r\n").count(), 1, "{rest}");
}
