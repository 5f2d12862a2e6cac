//! The interface between the generator and the protocol of a broker.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, bail};
use memchr::memmem;

use crate::tls::TlsClient;

/// A message at the beginning of a connection, and the end of its answer.
#[derive(Debug, Clone)]
pub struct SetupStep {
    /// Bytes to write.
    pub send: Vec<u8>,
    /// Read up to here before the next step.
    pub until: ReadUntil,
}

impl SetupStep {
    /// Writes `send` and reads until `until`.
    pub fn new(send: impl Into<Vec<u8>>, until: ReadUntil) -> Self {
        Self { send: send.into(), until }
    }
}

/// The end of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadUntil {
    /// No answer.
    Nothing,
    /// This number of bytes has arrived.
    Bytes(usize),
    /// A complete line that starts with this text has arrived. A line that starts with `-` is a
    /// rejection.
    Line(&'static str),
}

/// Converts the bytes of a subscriber's stream to events and back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamLayout {
    /// Bytes of an event, without the digits of its number.
    pub event_bytes: u64,
    /// Whether an event contains its number in decimal digits, counted from 1.
    pub is_numbered: bool,
    /// Bytes of the keepalive message that the broker sends between events at times; 0: it sends
    /// none.
    pub keepalive_bytes: u64,
}

/// Most keepalive messages per connection during a load.
const KEEPALIVES_MAX: u64 = 2;

impl StreamLayout {
    /// All events have the same length.
    pub const fn fixed(event_bytes: u64) -> Self {
        Self { event_bytes, is_numbered: false, keepalive_bytes: 0 }
    }

    /// All events have the same length, except for the digits of their numbers.
    pub const fn numbered(event_bytes: u64) -> Self {
        Self { event_bytes, is_numbered: true, keepalive_bytes: 0 }
    }

    /// Complete events in the first `bytes` of the stream.
    pub fn events(self, mut bytes: u64) -> u64 {
        if !self.is_numbered {
            return bytes / self.event_bytes;
        }
        let (mut events, mut digits, mut of_digits) = (0, 1, 9);
        loop {
            let event = self.event_bytes + digits;
            if bytes < event * of_digits {
                return events + bytes / event;
            }
            bytes -= event * of_digits;
            events += of_digits;
            digits += 1;
            of_digits *= 10;
        }
    }

    /// Bytes of the first `events` events.
    pub fn bytes(self, events: u64) -> u64 {
        if !self.is_numbered {
            return events * self.event_bytes;
        }
        let (mut bytes, mut left, mut digits, mut of_digits) = (0, events, 1, 9);
        while left > 0 {
            let now = left.min(of_digits);
            bytes += now * (self.event_bytes + digits);
            left -= now;
            digits += 1;
            of_digits *= 10;
        }
        bytes
    }

    /// Bytes of `events` events and the most keepalives that may come.
    pub(crate) fn bytes_max(self, events: u64) -> u64 {
        self.bytes(events) + KEEPALIVES_MAX * self.keepalive_bytes
    }

    /// Whether `bytes` are exactly `events` events, and otherwise only keepalives.
    pub fn is_complete(self, bytes: u64, events: u64) -> bool {
        let expected = self.bytes(events);
        let Some(over) = bytes.checked_sub(expected) else { return false };
        over == 0
            || (self.keepalive_bytes > 0
                && over.is_multiple_of(self.keepalive_bytes)
                && over / self.keepalive_bytes <= KEEPALIVES_MAX)
    }
}

/// The messages of a confirmed publish, and the format of its confirmations.
#[derive(Debug, Clone)]
pub struct ConfirmedPublish {
    /// Sent once on the connection of a publisher.
    pub setup: Vec<SetupStep>,
    /// One event.
    pub message: Vec<u8>,
    /// Format of the confirmations.
    pub confirmations: ConfirmationFormat,
}

/// The format of confirmations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfirmationFormat {
    /// Each line ends with the number of publishes that are confirmed by then.
    Cumulative,
    /// Each publish is confirmed by a line that starts with this text.
    Lines(&'static str),
}

/// A request for stored events.
#[derive(Debug, Clone)]
pub struct ReplayRequest {
    /// Sent before the clock starts.
    pub setup: Vec<SetupStep>,
    /// Requests all events.
    pub request: Vec<u8>,
    /// The end of the replay.
    pub end: ReplayEnd,
}

/// The end of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayEnd {
    /// This number of bytes has arrived.
    Bytes(u64),
    /// This number of `MSG` messages of the NATS protocol has arrived. Their header lines vary in
    /// length.
    NatsMessages(u64),
}

/// When an event counts as safe, in terms of a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Sync {
    /// Confirmed after it is on the disk.
    Always,
    /// Confirmed when it is written; synced at intervals.
    Interval,
    /// Never on the disk.
    Memory,
}

impl Sync {
    /// Its name in flags and commands.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::Interval => "interval",
            Self::Memory => "memory",
        }
    }

    /// Whether figures depend on the disk.
    pub const fn is_durable(self) -> bool {
        !matches!(self, Self::Memory)
    }
}

/// Number and credit of the workers of a queue.
#[derive(Debug, Clone, Copy)]
pub struct WorkerPool {
    /// Number of workers.
    pub workers: usize,
    /// Most tasks that each worker holds at once.
    pub credit: u64,
}

/// The setup of a queue and its workers. Tasks are [`ConfirmedPublish`]es.
pub struct QueueSetup {
    /// Create topic and queue, on a connection of their own after [`WireProtocol::handshake`].
    pub create_steps: Vec<SetupStep>,
    /// For each worker, the steps after [`WireProtocol::handshake`], and the protocol that follows.
    pub workers: Vec<(Vec<SetupStep>, Box<dyn QueueWorker>)>,
    /// Requests the number of tasks that are not final.
    pub backlog: BacklogQuery,
}

/// The protocol of a worker, in lines. The payload of a task is always one line.
pub trait QueueWorker {
    /// Appends a request for more tasks to `output`, if one is due. `unrequested` of the published
    /// tasks are not requested by any worker yet; returns how many of them this worker requests.
    /// The result is 0 for brokers that need no requests, or that accept requests for tasks to
    /// come.
    fn request_tasks(&mut self, unrequested: u64, output: &mut Vec<u8>) -> u64 {
        let _ = (unrequested, output);
        0
    }

    /// Handles a line from the broker, without its end, and appends the acknowledgement of a task
    /// that it completes to `output`. An unexpected line is an error.
    fn handle_line<'a>(&mut self, line: &'a [u8], output: &mut Vec<u8>) -> Result<WorkerEvent<'a>>;
}

/// The meaning of a line for the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerEvent<'a> {
    /// A part of a message, or nothing to count.
    Ignored,
    /// The payload of a task.
    Task(&'a [u8]),
    /// The payload of a task, from a broker that does not answer acknowledgements.
    UnconfirmedTask(&'a [u8]),
    /// This number of acknowledgements took effect.
    Acked(u64),
}

/// A request for the number of tasks that are not final.
#[derive(Debug, Clone)]
pub struct BacklogQuery {
    /// Sent once on a connection of its own after [`WireProtocol::handshake`].
    pub setup: Vec<SetupStep>,
    /// The request.
    pub request: Vec<u8>,
    /// The text before each number in the answer that is to be added.
    pub count_prefixes: &'static [&'static str],
}

impl BacklogQuery {
    /// The sum of the numbers in an answer; `None` while it is incomplete.
    pub(crate) fn total(&self, answer: &[u8]) -> Option<u64> {
        let number = |prefix: &&str| {
            let start = memmem::find(answer, prefix.as_bytes())? + prefix.len();
            let digits = answer[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
            // More digits may follow the last one that has arrived.
            answer.get(start + digits)?;
            str::from_utf8(&answer[start..start + digits]).ok()?.parse::<u64>().ok()
        };
        self.count_prefixes.iter().map(number).sum()
    }
}

/// What a subscriber received after it had stopped reading for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CatchUp {
    /// Events that arrived.
    pub events: u64,
    /// Events that the broker reported as lost.
    pub reported_lost: u64,
}

/// The protocol of a broker, as far as a load generator needs it.
pub trait WireProtocol {
    /// Creates the topic, on a connection of its own after [`WireProtocol::handshake`].
    fn create_topic(&self, topic: &str) -> Vec<SetupStep> {
        let _ = topic;
        Vec::new()
    }

    /// TLS settings; `None`: connections are plain.
    fn tls(&self) -> Option<&TlsClient> {
        None
    }

    /// The first steps of every connection.
    fn handshake(&self) -> Vec<SetupStep> {
        Vec::new()
    }

    /// Steps of a publisher after [`WireProtocol::handshake`].
    fn publisher_setup(&self) -> Vec<SetupStep> {
        Vec::new()
    }

    /// Address for publishers, given the address for subscribers.
    fn publisher_address(&self, subscribers: SocketAddr) -> SocketAddr {
        subscribers
    }

    /// Steps of a subscriber after [`WireProtocol::handshake`].
    fn subscribe(&self, topic: &str) -> Vec<SetupStep> {
        vec![self.pipelined_subscribe(topic)]
    }

    /// Handshake and subscription of a new connection in one write.
    fn pipelined_subscribe(&self, topic: &str) -> SetupStep;

    /// Time until a subscription without an answer takes effect.
    fn subscribe_delay(&self) -> Duration {
        Duration::ZERO
    }

    /// One publish, in the densest form that the protocol has.
    fn publish(&self, topic: &str, payload: &[u8]) -> Vec<u8>;

    /// Layout of the delivered bytes.
    fn stream_layout(&self, topic: &str, payload_bytes: usize) -> StreamLayout;

    /// Beginnings of the lines that reject a publish; empty: the replies to a publisher are not
    /// lines, and are ignored.
    fn rejections(&self) -> &'static [&'static str] {
        &[]
    }

    /// Confirmed publishes. An error if the broker has none.
    fn confirmed_publish(&self, topic: &str, payload: &[u8]) -> Result<ConfirmedPublish> {
        let _ = (topic, payload);
        bail!("this broker does not confirm publishes")
    }

    /// A queue of the tasks that are published to the topic. An error if the broker has no queues.
    fn queue_setup(&self, topic: &str, pool: WorkerPool) -> Result<QueueSetup> {
        let _ = (topic, pool);
        bail!("this broker has no task queues")
    }

    /// Steps that store events for [`WireProtocol::replay_request`], on a connection of their own;
    /// `None`: the events are published.
    fn fill_steps(&self, topic: &str, payload: &[u8], events: u64) -> Option<Vec<SetupStep>> {
        let _ = (topic, payload, events);
        None
    }

    /// A request for `events` stored events. An error if the broker stores none.
    fn replay_request(
        &self,
        topic: &str,
        payload_bytes: usize,
        events: u64,
    ) -> Result<ReplayRequest> {
        let _ = (topic, payload_bytes, events);
        bail!("this broker stores no events")
    }

    /// Counts what a subscriber received after it had stopped reading. `None` if the protocol does
    /// not report lost events, so that the number of bytes says everything.
    fn count_catch_up(&self, stream: &[u8]) -> Option<CatchUp> {
        let _ = stream;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_events_agree_over_every_change_of_digits() {
        let stream = StreamLayout::numbered(140);
        let mut bytes = 0;
        for event in 1_u64..20_000 {
            bytes += 140 + u64::from(event.ilog10()) + 1;
            assert_eq!(stream.bytes(event), bytes);
            assert_eq!(stream.events(bytes), event);
            assert_eq!(stream.events(bytes - 1), event - 1);
        }
        assert_eq!(stream.events(0), 0);
        assert_eq!(stream.bytes(0), 0);
    }

    #[test]
    fn the_backlog_is_added_up_once_the_answer_is_complete() {
        let left = BacklogQuery {
            setup: Vec::new(),
            request: Vec::new(),
            count_prefixes: &["waiting=", "held="],
        };
        let answer = b"+OK g members=4 waiting=12 held=30\r\n";
        assert_eq!(left.total(answer), Some(42));
        let end = answer.len() - b"\r\n".len();
        assert!((0..=end).all(|cut| left.total(&answer[..cut]).is_none()), "digits may follow");
    }

    #[test]
    fn a_keepalive_is_neither_an_event_nor_an_error() {
        let stream = StreamLayout { keepalive_bytes: 6, ..StreamLayout::fixed(150) };
        assert!(stream.is_complete(1500, 10) && stream.is_complete(1506, 10));
        assert!(!stream.is_complete(1500 - 6, 10), "something is missing");
        assert!(!stream.is_complete(1503, 10) && !stream.is_complete(1500 + 18, 10));
        assert!(!StreamLayout::fixed(150).is_complete(1506, 10));
    }
}
