//! The interface between the generator and the protocol of a broker.

use anyhow::{Result, bail};

use crate::tls::TlsClient;

/// A message at the beginning of a connection, and the end of its answer.
#[derive(Debug, Clone)]
pub struct SetupStep {
    /// Bytes to write.
    pub send: Vec<u8>,
    /// Read until a complete line that starts with this text, before the next step. A line that
    /// starts with `-` is a rejection.
    pub until_line: &'static str,
}

impl SetupStep {
    /// Writes `send` and reads until a line that starts with `until_line`.
    pub fn new(send: impl Into<Vec<u8>>, until_line: &'static str) -> Self {
        Self { send: send.into(), until_line }
    }
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
        let Some(over) = bytes.checked_sub(self.bytes(events)) else { return false };
        over == 0
            || (self.keepalive_bytes > 0
                && over.is_multiple_of(self.keepalive_bytes)
                && over / self.keepalive_bytes <= KEEPALIVES_MAX)
    }
}

/// The format of confirmations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfirmationFormat {
    /// Publishes are not confirmed.
    None,
    /// Each line ends with the number of publishes that are confirmed by then.
    Cumulative,
    /// Each publish is confirmed by a line that starts with this text.
    Lines(&'static str),
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

/// The setup of a queue and its workers. Tasks are confirmed publishes.
pub struct QueueSetup {
    /// Create topic and queue, on a connection of their own.
    pub create_steps: Vec<SetupStep>,
    /// For each worker, its first steps, and the protocol that follows.
    pub workers: Vec<(Vec<SetupStep>, Box<dyn QueueWorker>)>,
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

/// The protocol of a broker, as far as a load generator needs it.
pub trait WireProtocol {
    /// TLS settings; `None`: connections are plain.
    fn tls(&self) -> Option<&TlsClient> {
        None
    }

    /// The first steps of every connection.
    fn handshake(&self) -> Vec<SetupStep> {
        Vec::new()
    }

    /// Creates the topic, on a connection of its own after [`WireProtocol::handshake`].
    fn create_topic(&self, topic: &str) -> Vec<SetupStep> {
        let _ = topic;
        Vec::new()
    }

    /// Steps of a publisher after [`WireProtocol::handshake`].
    fn publisher_setup(&self) -> Vec<SetupStep> {
        Vec::new()
    }

    /// Steps of a subscriber after [`WireProtocol::handshake`].
    fn subscribe(&self, topic: &str) -> Vec<SetupStep>;

    /// One publish, in the densest form that the protocol has.
    fn publish(&self, topic: &str, payload: &[u8]) -> Vec<u8>;

    /// Layout of the delivered bytes.
    fn stream_layout(&self, topic: &str, payload_bytes: usize) -> StreamLayout;

    /// Beginnings of the lines that reject a publish.
    fn rejections(&self) -> &'static [&'static str] {
        &[]
    }

    /// How publishes are confirmed.
    fn confirmations(&self) -> ConfirmationFormat {
        ConfirmationFormat::None
    }

    /// A queue of the tasks that are published to the topic. An error if the broker has no queues.
    fn queue_setup(&self, topic: &str, pool: WorkerPool) -> Result<QueueSetup> {
        let _ = (topic, pool);
        bail!("this broker has no task queues")
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
    fn a_keepalive_is_neither_an_event_nor_an_error() {
        let stream = StreamLayout { keepalive_bytes: 6, ..StreamLayout::fixed(150) };
        assert!(stream.is_complete(1500, 10) && stream.is_complete(1506, 10));
        assert!(!stream.is_complete(1500 - 6, 10), "something is missing");
        assert!(!stream.is_complete(1503, 10) && !stream.is_complete(1500 + 18, 10));
        assert!(!StreamLayout::fixed(150).is_complete(1506, 10));
    }
}
