//! What the generator has to know about a broker's protocol.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::bail;
use memchr::memmem;

use crate::tls::TlsClient;

/// Something to say at the beginning of a connection, and what to wait for then.
#[derive(Debug, Clone)]
pub struct SetupStep {
    /// What is written.
    pub send: Vec<u8>,
    /// What is read before anything else is done.
    pub until: ReadUntil,
}

impl SetupStep {
    /// Says `send` and waits until `until`.
    pub fn new(send: impl Into<Vec<u8>>, until: ReadUntil) -> Self {
        Self { send: send.into(), until }
    }
}

/// The end of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadUntil {
    /// There is none.
    Nothing,
    /// So many bytes have come.
    Bytes(usize),
    /// A whole line has come that begins with this. A line that begins with `-` is a refusal.
    Line(&'static str),
}

/// How the bytes of a subscriber's stream add up to events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamLayout {
    /// Bytes of an event, without the digits of its number.
    pub event_bytes: u64,
    /// Whether an event carries its number in decimal digits, counted from 1.
    pub is_numbered: bool,
    /// Bytes of a message that the broker sends now and then between events; 0: it sends none.
    pub keepalive_bytes: u64,
}

/// Most stray messages of a connection while a load runs.
const KEEPALIVES_MAX: u64 = 2;

impl StreamLayout {
    /// Every event has the same length.
    pub const fn fixed(event_bytes: u64) -> Self {
        Self { event_bytes, is_numbered: false, keepalive_bytes: 0 }
    }

    /// Every event has the same length but for its number.
    pub const fn numbered(event_bytes: u64) -> Self {
        Self { event_bytes, is_numbered: true, keepalive_bytes: 0 }
    }

    /// Whole events among the first `bytes` of the stream.
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

    /// Bytes of the first `events` of the stream.
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

    /// Bytes of so many events and as many stray messages as there may be.
    pub(crate) fn bytes_max(self, events: u64) -> u64 {
        self.bytes(events) + KEEPALIVES_MAX * self.keepalive_bytes
    }

    /// Whether `bytes` are exactly so many events, and nothing else but stray messages.
    pub fn is_complete(self, bytes: u64, events: u64) -> bool {
        let expected = self.bytes(events);
        let Some(over) = bytes.checked_sub(expected) else { return false };
        over == 0
            || (self.keepalive_bytes > 0
                && over.is_multiple_of(self.keepalive_bytes)
                && over / self.keepalive_bytes <= KEEPALIVES_MAX)
    }
}

/// How a publish that is to be confirmed is said, and how the confirmations are counted.
#[derive(Debug, Clone)]
pub struct ConfirmedPublish {
    /// Said once on a publisher's connection.
    pub setup: Vec<SetupStep>,
    /// One event.
    pub message: Vec<u8>,
    /// What comes back.
    pub confirmations: ConfirmationFormat,
}

/// The form of confirmations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfirmationFormat {
    /// Lines whose last word is the number of publishes that are confirmed by then.
    Cumulative,
    /// So many lines for every publish.
    Lines(u64),
}

/// How stored events are asked for.
#[derive(Debug, Clone)]
pub struct ReplayRequest {
    /// Said before the clock starts.
    pub setup: Vec<SetupStep>,
    /// Asks for everything.
    pub request: Vec<u8>,
    /// When everything is there.
    pub end: ReplayEnd,
}

/// How the end of a replay is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayEnd {
    /// So many bytes have come.
    Bytes(u64),
    /// So many `MSG` messages of the NATS protocol have come, whose header lines vary in length.
    NatsMessages(u64),
}

/// When an event is safe, as the user of a topic wants it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Sync {
    /// Confirmed after the disk has it.
    Always,
    /// Confirmed when written; synced now and then.
    Interval,
    /// Never on disk.
    Memory,
}

impl Sync {
    /// As it is written in flags and commands.
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

/// The workers of a queue, as far as a broker is told of them.
#[derive(Debug, Clone, Copy)]
pub struct WorkerPool {
    /// Connections that work.
    pub workers: usize,
    /// Most tasks that are with each of them at once.
    pub credit: u64,
}

/// How a queue of tasks is made and worked on; it is fed with [`ConfirmedPublish`] publishes.
pub struct QueueSetup {
    /// Makes topic and queue before anybody uses them; said on a connection of its own after
    /// [`WireProtocol::opening`].
    pub create_steps: Vec<SetupStep>,
    /// How each worker's connection begins, after [`WireProtocol::opening`], and how it goes on.
    pub workers: Vec<(Vec<SetupStep>, Box<dyn QueueWorker>)>,
    /// How the broker is asked what it still has.
    pub backlog: BacklogQuery,
}

/// A worker's side of a conversation in lines, of which a task's payload is always one.
pub trait QueueWorker {
    /// Says what has to be said to be sent more tasks, if anything. Nobody has asked yet for
    /// `unasked` of the tasks that are published; returns for how many of them this one has. A
    /// broker that needs no asking, or may be asked for what there is not: 0.
    fn request_tasks(&mut self, unasked: u64, say: &mut Vec<u8>) -> u64 {
        let _ = (unasked, say);
        0
    }

    /// Takes a line that the broker said, without its end, and says what acknowledges the task that
    /// it ends. An error if it is none that may come.
    fn handle_line<'a>(
        &mut self,
        line: &'a [u8],
        say: &mut Vec<u8>,
    ) -> anyhow::Result<WorkerEvent<'a>>;
}

/// What a line was for the count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerEvent<'a> {
    /// A part of something, or nothing to be counted.
    Ignored,
    /// The payload of a task.
    Task(&'a [u8]),
    /// The payload of a task, and its broker does not answer acknowledgements.
    UnconfirmedTask(&'a [u8]),
    /// So many acknowledgements took effect.
    Acked(u64),
}

/// How a broker is asked for the tasks that are not final.
#[derive(Debug, Clone)]
pub struct BacklogQuery {
    /// Said on a connection of its own after [`WireProtocol::opening`].
    pub setup: Vec<SetupStep>,
    /// The question.
    pub request: Vec<u8>,
    /// What stands in the answer before each of the numbers that are to be added.
    pub count_prefixes: &'static [&'static str],
}

impl BacklogQuery {
    /// The sum in an answer; `None` until all of it is there.
    pub(crate) fn total(&self, answer: &[u8]) -> Option<u64> {
        let number = |mark: &&str| {
            let start = memmem::find(answer, mark.as_bytes())? + mark.len();
            let digits = answer[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
            // Behind the last digit that has come there may be one that has not.
            answer.get(start + digits)?;
            str::from_utf8(&answer[start..start + digits]).ok()?.parse::<u64>().ok()
        };
        self.count_prefixes.iter().map(number).sum()
    }
}

/// What became of the stream of a subscriber that had stopped reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CatchUp {
    /// Events that came.
    pub events: u64,
    /// Events of which the broker said that they are gone.
    pub reported_lost: u64,
}

/// A broker's protocol, as far as a load generator speaks it.
pub trait WireProtocol {
    /// Makes the topic before anybody uses it; said on a connection of its own after
    /// [`WireProtocol::opening`].
    fn create_topic(&self, topic: &str) -> Vec<SetupStep> {
        let _ = topic;
        Vec::new()
    }

    /// Whose certificates are taken; without it nothing is encrypted.
    fn tls(&self) -> Option<&TlsClient> {
        None
    }

    /// What every connection begins with.
    fn handshake(&self) -> Vec<SetupStep>;

    /// What a publisher's connection says after [`WireProtocol::opening`].
    fn publisher_setup(&self) -> Vec<SetupStep> {
        Vec::new()
    }

    /// Where publishers connect, if subscribers connect to this address.
    fn publisher_address(&self, subscribers: SocketAddr) -> SocketAddr {
        subscribers
    }

    /// Subscribes, after [`WireProtocol::opening`].
    fn subscribe(&self, topic: &str) -> Vec<SetupStep>;

    /// Everything that a new connection has to say to be subscribed, in one write.
    fn pipelined_subscribe(&self, topic: &str) -> SetupStep;

    /// How long a subscription takes effect that is not answered.
    fn subscribe_delay(&self) -> Duration {
        Duration::ZERO
    }

    /// One publish, in the densest form that the protocol has.
    fn publish(&self, topic: &str, payload: &[u8]) -> Vec<u8>;

    /// How delivered bytes add up.
    fn stream_layout(&self, topic: &str, payload_bytes: usize) -> StreamLayout;

    /// What a refusal of a publish contains; empty: there is none.
    fn rejection_marker(&self) -> &'static [u8] {
        b""
    }

    /// Confirmed publishes, if the broker has them.
    fn confirmed_publish(&self, topic: &str, payload: &[u8]) -> anyhow::Result<ConfirmedPublish> {
        let _ = (topic, payload);
        bail!("it does not confirm publishes")
    }

    /// A queue of the tasks that are published to the topic, if the broker has such a thing.
    fn queue_setup(&self, topic: &str, crew: WorkerPool) -> anyhow::Result<QueueSetup> {
        let _ = (topic, crew);
        bail!("it has no queue of tasks")
    }

    /// Stores events for [`WireProtocol::replay_request`] on a connection of its own; none: they are published.
    fn fill_steps(&self, topic: &str, payload: &[u8], events: u64) -> Option<Vec<SetupStep>> {
        let _ = (topic, payload, events);
        None
    }

    /// How all of so many stored events are asked for.
    fn replay_request(
        &self,
        topic: &str,
        payload_bytes: usize,
        events: u64,
    ) -> anyhow::Result<ReplayRequest> {
        let _ = (topic, payload_bytes, events);
        bail!("it stores nothing")
    }

    /// Reads what a subscriber was sent that had stopped reading; `None` if the protocol has no
    /// notice of what is gone, so that counting bytes says everything.
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
