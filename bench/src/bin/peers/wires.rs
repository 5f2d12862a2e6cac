//! The protocols of the peers, each in the densest form that it has.

use std::net::SocketAddr;
use std::time::Duration;

use tidings_bench::Tidings;
use tidings_bench::wire::{
    Answers, Confirmed, Crew, Replay, ReplayEnd, Step, Stream, Tasks, Until, Wire,
};

use crate::queues;

pub(crate) fn length(bytes: usize) -> u64 {
    u64::try_from(bytes).expect("a length")
}

/// The text protocol of NATS, and `JetStream` on top of it.
pub(crate) struct Nats;

/// What a client begins with; the answer to the `PING` says that it is accepted.
const NATS_OPENING: &str = "CONNECT {\"verbose\":false,\"pedantic\":false}\r\nPING\r\n";

/// The stream of all `JetStream` runs.
pub(crate) const STREAM: &str = "BENCH";

impl Wire for Nats {
    fn opening(&self) -> Vec<Step> {
        vec![Step::new(NATS_OPENING, Until::Line("PONG"))]
    }

    fn subscribe(&self, topic: &str) -> Vec<Step> {
        vec![Step::new(format!("SUB {topic} 1\r\nPING\r\n"), Until::Line("PONG"))]
    }

    fn at_once(&self, topic: &str) -> Step {
        let said = format!(
            "CONNECT {{\"verbose\":false,\"pedantic\":false}}\r\nSUB {topic} 1\r\nPING\r\n"
        );
        Step::new(said, Until::Line("PONG"))
    }

    fn publish(&self, topic: &str, payload: &[u8]) -> Vec<u8> {
        let head = format!("PUB {topic} {}\r\n", payload.len());
        [head.as_bytes(), payload, b"\r\n"].concat()
    }

    fn stream(&self, topic: &str, payload_bytes: usize) -> Stream {
        let bytes = format!("MSG {topic} 1 {payload_bytes}\r\n\r\n").len() + payload_bytes;
        // The server asks once, some seconds after the connection began, how long an answer takes.
        Stream { stray_bytes: length("PING\r\n".len()), ..Stream::fixed(length(bytes)) }
    }

    fn refusal(&self) -> &'static [u8] {
        b"-ERR"
    }
}

/// `JetStream` with one stream in files, confirmed one by one.
pub(crate) struct JetStream;

impl JetStream {
    pub(crate) fn request(subject: &str, body: &str) -> Step {
        let said = format!("PUB {subject} _INBOX.api {}\r\n{body}\r\n", body.len());
        Step::new(said, Until::Line("{\"type\":\"io.nats.jetstream.api"))
    }
}

impl Wire for JetStream {
    fn prepare(&self, topic: &str) -> Vec<Step> {
        let body = format!(
            "{{\"name\":\"{STREAM}\",\"subjects\":[\"{topic}\"],\"storage\":\"file\",\"retention\":\"limits\",\
             \"max_consumers\":-1,\"max_msgs\":-1,\"max_bytes\":-1,\"discard\":\"old\",\"num_replicas\":1}}"
        );
        let listen = Step::new("SUB _INBOX.api 9\r\nPING\r\n", Until::Line("PONG"));
        vec![listen, Self::request(&format!("$JS.API.STREAM.CREATE.{STREAM}"), &body)]
    }

    fn opening(&self) -> Vec<Step> {
        Nats.opening()
    }

    fn subscribe(&self, topic: &str) -> Vec<Step> {
        Nats.subscribe(topic)
    }

    fn at_once(&self, topic: &str) -> Step {
        Nats.at_once(topic)
    }

    fn publish(&self, topic: &str, payload: &[u8]) -> Vec<u8> {
        Nats.publish(topic, payload)
    }

    fn stream(&self, topic: &str, payload_bytes: usize) -> Stream {
        Nats.stream(topic, payload_bytes)
    }

    fn refusal(&self) -> &'static [u8] {
        b"\"error\""
    }

    fn confirmed(&self, topic: &str, payload: &[u8]) -> anyhow::Result<Confirmed> {
        let head = format!("PUB {topic} i {}\r\n", payload.len());
        Ok(Confirmed {
            opening: vec![Step::new("SUB i 2\r\nPING\r\n", Until::Line("PONG"))],
            message: [head.as_bytes(), payload, b"\r\n"].concat(),
            // The header and `{"stream":"BENCH", "seq":1}`.
            answers: Answers::Lines(2),
        })
    }

    fn queue(&self, topic: &str, crew: Crew) -> anyhow::Result<Tasks> {
        Ok(queues::jetstream(topic, crew))
    }

    fn replay(&self, _: &str, _: usize, events: u64) -> anyhow::Result<Replay> {
        let body = format!(
            "{{\"stream_name\":\"{STREAM}\",\"config\":{{\"deliver_subject\":\"d\",\"deliver_policy\":\"all\",\
             \"ack_policy\":\"none\",\"replay_policy\":\"instant\"}}}}"
        );
        let request =
            format!("PUB $JS.API.CONSUMER.CREATE.{STREAM} r {}\r\n{body}\r\n", body.len());
        Ok(Replay {
            opening: vec![Step::new("SUB d 3\r\nPING\r\n", Until::Line("PONG"))],
            request: request.into_bytes(),
            end: ReplayEnd::NatsMessages(events),
        })
    }
}

/// Pub/sub of Redis.
pub(crate) struct Redis;

/// A command as Redis reads it fastest.
pub(crate) fn resp(words: &[&[u8]]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
    out
}

impl Wire for Redis {
    fn opening(&self) -> Vec<Step> {
        vec![Step::new("PING\r\n", Until::Line("+PONG"))]
    }

    fn subscribe(&self, topic: &str) -> Vec<Step> {
        vec![self.at_once(topic)]
    }

    fn at_once(&self, topic: &str) -> Step {
        Step::new(resp(&[b"SUBSCRIBE", topic.as_bytes()]), Until::Line(":1"))
    }

    fn publish(&self, topic: &str, payload: &[u8]) -> Vec<u8> {
        resp(&[b"PUBLISH", topic.as_bytes(), payload])
    }

    fn stream(&self, topic: &str, payload_bytes: usize) -> Stream {
        let event = resp(&[b"message", topic.as_bytes(), &vec![b'x'; payload_bytes]]);
        Stream::fixed(length(event.len()))
    }

    fn refusal(&self) -> &'static [u8] {
        b"-"
    }
}

/// Streams of Redis.
pub(crate) struct RedisStreams;

/// Entries of one answer when a stream is read.
const READ_COUNT: u64 = 10_000;

impl Wire for RedisStreams {
    fn opening(&self) -> Vec<Step> {
        Redis.opening()
    }

    fn subscribe(&self, topic: &str) -> Vec<Step> {
        Redis.subscribe(topic)
    }

    fn at_once(&self, topic: &str) -> Step {
        Redis.at_once(topic)
    }

    fn publish(&self, topic: &str, payload: &[u8]) -> Vec<u8> {
        resp(&[b"XADD", topic.as_bytes(), b"*", b"d", payload])
    }

    fn stream(&self, topic: &str, payload_bytes: usize) -> Stream {
        Redis.stream(topic, payload_bytes)
    }

    fn confirmed(&self, topic: &str, payload: &[u8]) -> anyhow::Result<Confirmed> {
        Ok(Confirmed {
            opening: Vec::new(),
            message: self.publish(topic, payload),
            // `$15` and the id.
            answers: Answers::Lines(2),
        })
    }

    fn queue(&self, topic: &str, crew: Crew) -> anyhow::Result<Tasks> {
        Ok(queues::redis_streams(topic, crew))
    }

    fn fill(&self, topic: &str, payload: &[u8], events: u64) -> Option<Vec<Step>> {
        let script = "for i=1,tonumber(ARGV[1]) do redis.call('XADD',KEYS[1],'1-'..i,'d',ARGV[2]) end \
                      return 'filled'";
        let events = events.to_string();
        let command =
            resp(&[b"EVAL", script.as_bytes(), b"1", topic.as_bytes(), events.as_bytes(), payload]);
        Some(vec![Step::new(command, Until::Line("filled"))])
    }

    fn replay(&self, topic: &str, payload_bytes: usize, events: u64) -> anyhow::Result<Replay> {
        let (mut request, mut bytes) = (Vec::new(), 0);
        for first in (0..events).step_by(usize::try_from(READ_COUNT)?) {
            let (id, count) = (format!("1-{first}"), READ_COUNT.to_string());
            let words: [&[u8]; 6] =
                [b"XREAD", b"COUNT", count.as_bytes(), b"STREAMS", topic.as_bytes(), id.as_bytes()];
            request.extend(resp(&words));
            let entries = READ_COUNT.min(events - first);
            bytes += format!("*1\r\n*2\r\n${}\r\n{topic}\r\n*{entries}\r\n", topic.len()).len();
            for entry in first + 1..=first + entries {
                let id = format!("1-{entry}");
                let head = format!("*2\r\n${}\r\n{id}\r\n*2\r\n$1\r\nd\r\n", id.len()).len();
                bytes += head + format!("${payload_bytes}\r\n\r\n").len() + payload_bytes;
            }
        }
        Ok(Replay { opening: Vec::new(), request, end: ReplayEnd::Bytes(length(bytes)) })
    }
}

/// MQTT 3.1.1 at its lowest quality of service, 0.
pub(crate) struct Mqtt;

/// A packet: its first byte, the length of the rest, the rest.
fn mqtt(first: u8, rest: &[u8]) -> Vec<u8> {
    let (mut out, mut left) = (vec![first], rest.len());
    loop {
        let byte = u8::try_from(left % 128).expect("below 128");
        left /= 128;
        out.push(if left > 0 { byte | 0x80 } else { byte });
        if left == 0 {
            out.extend_from_slice(rest);
            return out;
        }
    }
}

fn mqtt_text(text: &str) -> Vec<u8> {
    let length = u16::try_from(text.len()).expect("a topic of a benchmark is short");
    [&length.to_be_bytes()[..], text.as_bytes()].concat()
}

impl Mqtt {
    /// A clean session, no keep-alive, no name.
    fn connect() -> Vec<u8> {
        mqtt(0x10, &[&mqtt_text("MQTT")[..], &[4, 2, 0, 0], &mqtt_text("")].concat())
    }

    fn subscription(topic: &str) -> Vec<u8> {
        mqtt(0x82, &[&[0, 1][..], &mqtt_text(topic), &[0]].concat())
    }
}

/// Bytes of `CONNACK` and `SUBACK`.
const CONNACK: usize = 4;
const SUBACK: usize = 5;

impl Wire for Mqtt {
    fn opening(&self) -> Vec<Step> {
        vec![Step::new(Self::connect(), Until::Bytes(CONNACK))]
    }

    fn subscribe(&self, topic: &str) -> Vec<Step> {
        vec![Step::new(Self::subscription(topic), Until::Bytes(SUBACK))]
    }

    fn at_once(&self, topic: &str) -> Step {
        let said = [Self::connect(), Self::subscription(topic)].concat();
        Step::new(said, Until::Bytes(CONNACK + SUBACK))
    }

    fn publish(&self, topic: &str, payload: &[u8]) -> Vec<u8> {
        mqtt(0x30, &[&mqtt_text(topic)[..], payload].concat())
    }

    fn stream(&self, topic: &str, payload_bytes: usize) -> Stream {
        Stream::fixed(length(self.publish(topic, &vec![b'x'; payload_bytes]).len()))
    }
}

/// ZMTP 3.0 without security, to a proxy of XSUB and XPUB, which listens on two ports: publishers
/// on one, subscribers on the other.
pub(crate) struct Zmtp {
    pub(crate) publishers: SocketAddr,
}

/// Bytes of a greeting, and of the `READY` of a socket whose type has four letters.
const GREETING: usize = 64;
const READY: usize = 28;

impl Zmtp {
    fn greeting(socket: &str) -> Vec<u8> {
        let mut out = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 3, 0];
        out.extend_from_slice(b"NULL");
        out.resize(GREETING, 0);
        let size = u32::try_from(socket.len()).expect("three letters");
        let properties =
            [b"\x05READY\x0bSocket-Type", &size.to_be_bytes()[..], socket.as_bytes()].concat();
        out.extend_from_slice(&[4, u8::try_from(properties.len()).expect("a few words")]);
        out.extend_from_slice(&properties);
        out
    }

    fn frame(body: &[u8]) -> Vec<u8> {
        match u8::try_from(body.len()) {
            Ok(size) => [&[0, size][..], body].concat(),
            Err(_) => [&[2][..], &length(body.len()).to_be_bytes(), body].concat(),
        }
    }
}

impl Wire for Zmtp {
    fn opening(&self) -> Vec<Step> {
        Vec::new()
    }

    fn publisher(&self) -> Vec<Step> {
        vec![Step::new(Self::greeting("PUB"), Until::Bytes(GREETING + READY))]
    }

    fn subscribe(&self, topic: &str) -> Vec<Step> {
        let subscription = Self::frame(&[b"\x01", topic.as_bytes()].concat());
        vec![
            Step::new(Self::greeting("SUB"), Until::Bytes(GREETING + READY)),
            Step::new(subscription, Until::Nothing),
        ]
    }

    fn at_once(&self, topic: &str) -> Step {
        let subscription = Self::frame(&[b"\x01", topic.as_bytes()].concat());
        Step::new([Self::greeting("SUB"), subscription].concat(), Until::Bytes(GREETING + READY))
    }

    fn settling(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn publisher_address(&self, _: SocketAddr) -> SocketAddr {
        self.publishers
    }

    fn publish(&self, topic: &str, payload: &[u8]) -> Vec<u8> {
        Self::frame(&[topic.as_bytes(), b" ", payload].concat())
    }

    fn stream(&self, topic: &str, payload_bytes: usize) -> Stream {
        Stream::fixed(length(self.publish(topic, &vec![b'x'; payload_bytes]).len()))
    }
}

/// Tidings with subscribers over ZMTP: publishers speak in lines, to another port.
pub(crate) struct TidingsZmtp {
    pub(crate) publishers: SocketAddr,
}

/// A `READY` of PUB is one letter shorter than one of XPUB.
const READY_PUB: usize = READY - 1;

impl Wire for TidingsZmtp {
    fn opening(&self) -> Vec<Step> {
        Vec::new()
    }

    fn publisher(&self) -> Vec<Step> {
        LINES.opening()
    }

    fn subscribe(&self, topic: &str) -> Vec<Step> {
        let subscription = Zmtp::frame(&[b"\x01", topic.as_bytes()].concat());
        vec![
            Step::new(Zmtp::greeting("SUB"), Until::Bytes(GREETING + READY_PUB)),
            Step::new(subscription, Until::Nothing),
        ]
    }

    fn at_once(&self, topic: &str) -> Step {
        let subscription = Zmtp::frame(&[b"\x01", topic.as_bytes()].concat());
        let send = [Zmtp::greeting("SUB"), subscription].concat();
        Step::new(send, Until::Bytes(GREETING + READY_PUB))
    }

    fn settling(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn publisher_address(&self, _: SocketAddr) -> SocketAddr {
        self.publishers
    }

    fn publish(&self, topic: &str, payload: &[u8]) -> Vec<u8> {
        LINES.publish(topic, payload)
    }

    /// Frames of topic, number and payload.
    fn stream(&self, topic: &str, payload_bytes: usize) -> Stream {
        let number = Zmtp::frame(b"").len();
        let payload = Zmtp::frame(&vec![b'x'; payload_bytes]).len();
        Stream::numbered(length(Zmtp::frame(topic.as_bytes()).len() + number + payload))
    }

    fn refusal(&self) -> &'static [u8] {
        LINES.refusal()
    }
}

/// How publishers speak to Tidings.
const LINES: Tidings = Tidings::open(None);

/// Bare lines, for programs that know nothing else: who says `S` listens, everybody else is heard.
pub(crate) struct Lines;

impl Wire for Lines {
    fn opening(&self) -> Vec<Step> {
        Vec::new()
    }

    fn publisher(&self) -> Vec<Step> {
        vec![Step::new("P\n", Until::Bytes(2))]
    }

    fn subscribe(&self, topic: &str) -> Vec<Step> {
        vec![self.at_once(topic)]
    }

    fn at_once(&self, _: &str) -> Step {
        Step::new("S\n", Until::Bytes(2))
    }

    fn publish(&self, _: &str, payload: &[u8]) -> Vec<u8> {
        [payload, b"\n"].concat()
    }

    fn stream(&self, _: &str, payload_bytes: usize) -> Stream {
        Stream::fixed(length(payload_bytes + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_in_the_form_that_servers_read() {
        assert_eq!(
            resp(&[b"PUBLISH", b"t", b"ab"]),
            b"*3\r\n$7\r\nPUBLISH\r\n$1\r\nt\r\n$2\r\nab\r\n"
        );
        assert_eq!(Nats.publish("t", b"ab"), b"PUB t 2\r\nab\r\n");
        assert_eq!(Mqtt.publish("t", b"ab"), b"\x30\x05\x00\x01tab");
        let zmtp = Zmtp { publishers: SocketAddr::from(([127, 0, 0, 1], 1)) };
        assert_eq!(zmtp.publish("t", b"ab"), b"\x00\x04t ab");
        assert_eq!(Lines.publish("t", b"ab"), b"ab\n");
    }

    #[test]
    fn lengths_that_need_a_second_byte() {
        assert_eq!(mqtt(0x30, &[0; 128])[..3], [0x30, 0x80, 0x01]);
        assert_eq!(Zmtp::frame(&[0; 256])[..9], [2, 0, 0, 0, 0, 0, 0, 1, 0]);
        assert_eq!(Zmtp::greeting("PUB").len(), GREETING + READY - 1);
    }

    #[test]
    fn deliveries_are_counted_by_their_bytes() {
        assert_eq!(Nats.stream("t", 128).bytes(1), length(b"MSG t 1 128\r\n".len() + 130));
        let redis = b"*3\r\n$7\r\nmessage\r\n$1\r\nt\r\n$128\r\n\r\n".len() + 128;
        assert_eq!(Redis.stream("t", 128).bytes(1), length(redis));
        assert_eq!(Lines.stream("t", 128).bytes(1), 129);
        let zmtp = TidingsZmtp { publishers: SocketAddr::from(([127, 0, 0, 1], 1)) };
        let messages = b"\x01\x01t\x01\x019\x00\x02ab\x01\x01t\x01\x0210\x00\x02ab";
        let stream = zmtp.stream("t", 2);
        assert_eq!(stream.bytes(10) - stream.bytes(8), length(messages.len()));
    }

    #[test]
    fn a_read_of_a_stream_is_as_long_as_its_entries() {
        let replay = RedisStreams.replay("t", 2, 1).unwrap();
        let answer =
            "*1\r\n*2\r\n$1\r\nt\r\n*1\r\n*2\r\n$3\r\n1-1\r\n*2\r\n$1\r\nd\r\n$2\r\nab\r\n";
        assert_eq!(replay.end, ReplayEnd::Bytes(length(answer.len())));
        assert_eq!(replay.request, resp(&[b"XREAD", b"COUNT", b"10000", b"STREAMS", b"t", b"1-0"]));
    }
}
