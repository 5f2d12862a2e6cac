//! The protocols of the peers, each in its densest form.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use tidings_load::Tidings;
use tidings_load::wire::{
    ConfirmationFormat, ConfirmedPublish, QueueSetup, ReadUntil, ReplayEnd, ReplayRequest,
    SetupStep, StreamLayout, WireProtocol, WorkerPool,
};

use crate::queue_protocols;

pub(crate) fn to_u64(bytes: usize) -> u64 {
    u64::try_from(bytes).expect("a length")
}

/// The text protocol of NATS.
pub(crate) struct Nats {
    /// Events go to a stream of `JetStream` in files, with a confirmation per event.
    pub(crate) has_stream: bool,
}

/// The first line of a client.
const NATS_CONNECT: &str = "CONNECT {\"verbose\":false,\"pedantic\":false}";

/// The stream of all `JetStream` runs.
pub(crate) const STREAM: &str = "BENCH";

/// Commands that end with `PING`; its answer means that they are accepted.
pub(crate) fn nats_step(commands: &str) -> SetupStep {
    SetupStep::new(format!("{commands}\r\nPING\r\n"), ReadUntil::Line("PONG"))
}

/// A request to `JetStream`.
pub(crate) fn jetstream_request(subject: &str, body: &str) -> SetupStep {
    let message = format!("PUB {subject} _INBOX.api {}\r\n{body}\r\n", body.len());
    SetupStep::new(message, ReadUntil::Line("{\"type\":\"io.nats.jetstream.api"))
}

/// Receives the answers of `JetStream`.
pub(crate) fn jetstream_inbox() -> SetupStep {
    nats_step("SUB _INBOX.api 9")
}

impl WireProtocol for Nats {
    fn create_topic(&self, topic: &str) -> Vec<SetupStep> {
        if !self.has_stream {
            return Vec::new();
        }
        let body = format!(
            "{{\"name\":\"{STREAM}\",\"subjects\":[\"{topic}\"],\"storage\":\"file\",\"retention\":\"limits\",\
             \"max_consumers\":-1,\"max_msgs\":-1,\"max_bytes\":-1,\"discard\":\"old\",\"num_replicas\":1}}"
        );
        let create = format!("$JS.API.STREAM.CREATE.{STREAM}");
        vec![jetstream_inbox(), jetstream_request(&create, &body)]
    }

    fn handshake(&self) -> Vec<SetupStep> {
        vec![nats_step(NATS_CONNECT)]
    }

    fn subscribe(&self, topic: &str) -> Vec<SetupStep> {
        vec![nats_step(&format!("SUB {topic} 1"))]
    }

    fn pipelined_subscribe(&self, topic: &str) -> SetupStep {
        nats_step(&format!("{NATS_CONNECT}\r\nSUB {topic} 1"))
    }

    fn publish(&self, topic: &str, payload: &[u8]) -> Vec<u8> {
        let head = format!("PUB {topic} {}\r\n", payload.len());
        [head.as_bytes(), payload, b"\r\n"].concat()
    }

    fn stream_layout(&self, topic: &str, payload_bytes: usize) -> StreamLayout {
        let bytes = format!("MSG {topic} 1 {payload_bytes}\r\n\r\n").len() + payload_bytes;
        // The server measures the round-trip time once, some seconds after the connection began.
        StreamLayout {
            keepalive_bytes: to_u64("PING\r\n".len()),
            ..StreamLayout::fixed(to_u64(bytes))
        }
    }

    fn rejections(&self) -> &'static [&'static str] {
        &["-ERR ", "{\"error\":"]
    }

    fn confirmed_publish(&self, topic: &str, payload: &[u8]) -> Result<ConfirmedPublish> {
        let head = format!("PUB {topic} i {}\r\n", payload.len());
        Ok(ConfirmedPublish {
            setup: vec![nats_step("SUB i 2")],
            message: [head.as_bytes(), payload, b"\r\n"].concat(),
            // `{"stream":"BENCH", "seq":1}` after its header.
            confirmations: ConfirmationFormat::Lines("{\"stream\":"),
        })
    }

    fn queue_setup(&self, topic: &str, pool: WorkerPool) -> Result<QueueSetup> {
        Ok(queue_protocols::jetstream(topic, pool))
    }

    fn replay_request(&self, _: &str, _: usize, events: u64) -> Result<ReplayRequest> {
        let body = format!(
            "{{\"stream_name\":\"{STREAM}\",\"config\":{{\"deliver_subject\":\"d\",\"deliver_policy\":\"all\",\
             \"ack_policy\":\"none\",\"replay_policy\":\"instant\"}}}}"
        );
        let request =
            format!("PUB $JS.API.CONSUMER.CREATE.{STREAM} r {}\r\n{body}\r\n", body.len());
        Ok(ReplayRequest {
            setup: vec![nats_step("SUB d 3")],
            request: request.into_bytes(),
            end: ReplayEnd::NatsMessages(events),
        })
    }
}

/// Pub/sub or streams of Redis.
pub(crate) struct Redis {
    pub(crate) has_streams: bool,
}

/// Entries per answer when a stream is read.
const READ_COUNT: u64 = 10_000;

/// A command in the form that Redis parses fastest.
pub(crate) fn resp(words: &[&[u8]]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
    out
}

impl WireProtocol for Redis {
    fn handshake(&self) -> Vec<SetupStep> {
        vec![SetupStep::new("PING\r\n", ReadUntil::Line("+PONG"))]
    }

    fn pipelined_subscribe(&self, topic: &str) -> SetupStep {
        SetupStep::new(resp(&[b"SUBSCRIBE", topic.as_bytes()]), ReadUntil::Line(":1"))
    }

    fn publish(&self, topic: &str, payload: &[u8]) -> Vec<u8> {
        if self.has_streams {
            return resp(&[b"XADD", topic.as_bytes(), b"*", b"d", payload]);
        }
        resp(&[b"PUBLISH", topic.as_bytes(), payload])
    }

    fn stream_layout(&self, topic: &str, payload_bytes: usize) -> StreamLayout {
        let event = resp(&[b"message", topic.as_bytes(), &vec![b'x'; payload_bytes]]);
        StreamLayout::fixed(to_u64(event.len()))
    }

    fn rejections(&self) -> &'static [&'static str] {
        &["-"]
    }

    fn confirmed_publish(&self, topic: &str, payload: &[u8]) -> Result<ConfirmedPublish> {
        Ok(ConfirmedPublish {
            setup: Vec::new(),
            message: self.publish(topic, payload),
            // `$15` before the id.
            confirmations: ConfirmationFormat::Lines("$"),
        })
    }

    fn queue_setup(&self, topic: &str, pool: WorkerPool) -> Result<QueueSetup> {
        Ok(queue_protocols::redis_streams(topic, pool))
    }

    fn fill_steps(&self, topic: &str, payload: &[u8], events: u64) -> Option<Vec<SetupStep>> {
        let script = "for i=1,tonumber(ARGV[1]) do redis.call('XADD',KEYS[1],'1-'..i,'d',ARGV[2]) end \
                      return 'filled'";
        let events = events.to_string();
        let command =
            resp(&[b"EVAL", script.as_bytes(), b"1", topic.as_bytes(), events.as_bytes(), payload]);
        Some(vec![SetupStep::new(command, ReadUntil::Line("filled"))])
    }

    fn replay_request(
        &self,
        topic: &str,
        payload_bytes: usize,
        events: u64,
    ) -> Result<ReplayRequest> {
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
        Ok(ReplayRequest { setup: Vec::new(), request, end: ReplayEnd::Bytes(to_u64(bytes)) })
    }
}

/// MQTT 3.1.1 at quality of service 0.
pub(crate) struct Mqtt;

/// A packet: first byte, length of the rest, rest.
fn mqtt_packet(first: u8, rest: &[u8]) -> Vec<u8> {
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
    let length = u16::try_from(text.len()).expect("topics of benchmarks are short");
    [&length.to_be_bytes()[..], text.as_bytes()].concat()
}

impl Mqtt {
    /// A clean session without keep-alive and without a name.
    fn connect() -> Vec<u8> {
        mqtt_packet(0x10, &[&mqtt_text("MQTT")[..], &[4, 2, 0, 0], &mqtt_text("")].concat())
    }

    fn subscribe_packet(topic: &str) -> Vec<u8> {
        mqtt_packet(0x82, &[&[0, 1][..], &mqtt_text(topic), &[0]].concat())
    }
}

/// Bytes of `CONNACK` and `SUBACK`.
const CONNACK_BYTES: usize = 4;
const SUBACK_BYTES: usize = 5;

impl WireProtocol for Mqtt {
    fn handshake(&self) -> Vec<SetupStep> {
        vec![SetupStep::new(Self::connect(), ReadUntil::Bytes(CONNACK_BYTES))]
    }

    fn subscribe(&self, topic: &str) -> Vec<SetupStep> {
        vec![SetupStep::new(Self::subscribe_packet(topic), ReadUntil::Bytes(SUBACK_BYTES))]
    }

    fn pipelined_subscribe(&self, topic: &str) -> SetupStep {
        let message = [Self::connect(), Self::subscribe_packet(topic)].concat();
        SetupStep::new(message, ReadUntil::Bytes(CONNACK_BYTES + SUBACK_BYTES))
    }

    fn publish(&self, topic: &str, payload: &[u8]) -> Vec<u8> {
        mqtt_packet(0x30, &[&mqtt_text(topic)[..], payload].concat())
    }

    fn stream_layout(&self, topic: &str, payload_bytes: usize) -> StreamLayout {
        StreamLayout::fixed(to_u64(self.publish(topic, &vec![b'x'; payload_bytes]).len()))
    }
}

/// ZMTP 3.0 without security: to a proxy of XSUB and XPUB, or to Tidings, where publishers use the
/// line protocol. Publishers and subscribers have a port each.
pub(crate) struct Zmtp {
    pub(crate) publishers: SocketAddr,
    pub(crate) is_tidings: bool,
}

/// Bytes of a greeting, and of a `READY` with a socket type of four letters.
const GREETING_BYTES: usize = 64;
const READY_BYTES: usize = 28;

impl Zmtp {
    fn greeting(socket: &str) -> Vec<u8> {
        let mut out = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 3, 0];
        out.extend_from_slice(b"NULL");
        out.resize(GREETING_BYTES, 0);
        let size = u32::try_from(socket.len()).expect("three letters");
        let properties =
            [b"\x05READY\x0bSocket-Type", &size.to_be_bytes()[..], socket.as_bytes()].concat();
        out.extend_from_slice(&[4, u8::try_from(properties.len()).expect("a few words")]);
        out.extend_from_slice(&properties);
        out
    }

    /// The greeting, which is answered with a greeting and a `READY`, and the subscription, which
    /// has no answer.
    fn subscription(&self, topic: &str) -> [SetupStep; 2] {
        let subscription = Self::frame(&[b"\x01", topic.as_bytes()].concat());
        // The `READY` of PUB is one letter shorter than that of XPUB.
        let ready_bytes = READY_BYTES - usize::from(self.is_tidings);
        let answer = ReadUntil::Bytes(GREETING_BYTES + ready_bytes);
        [
            SetupStep::new(Self::greeting("SUB"), answer),
            SetupStep::new(subscription, ReadUntil::Nothing),
        ]
    }

    fn frame(body: &[u8]) -> Vec<u8> {
        match u8::try_from(body.len()) {
            Ok(size) => [&[0, size][..], body].concat(),
            Err(_) => [&[2][..], &to_u64(body.len()).to_be_bytes(), body].concat(),
        }
    }
}

impl WireProtocol for Zmtp {
    fn publisher_setup(&self) -> Vec<SetupStep> {
        if self.is_tidings {
            return LINES.handshake();
        }
        vec![SetupStep::new(Self::greeting("PUB"), ReadUntil::Bytes(GREETING_BYTES + READY_BYTES))]
    }

    fn subscribe(&self, topic: &str) -> Vec<SetupStep> {
        self.subscription(topic).to_vec()
    }

    fn pipelined_subscribe(&self, topic: &str) -> SetupStep {
        let [greet, subscribe] = self.subscription(topic);
        SetupStep::new([greet.send, subscribe.send].concat(), greet.until)
    }

    fn subscribe_delay(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn publisher_address(&self, _: SocketAddr) -> SocketAddr {
        self.publishers
    }

    fn publish(&self, topic: &str, payload: &[u8]) -> Vec<u8> {
        if self.is_tidings {
            return LINES.publish(topic, payload);
        }
        Self::frame(&[topic.as_bytes(), b" ", payload].concat())
    }

    fn stream_layout(&self, topic: &str, payload_bytes: usize) -> StreamLayout {
        let payload = vec![b'x'; payload_bytes];
        if !self.is_tidings {
            return StreamLayout::fixed(to_u64(self.publish(topic, &payload).len()));
        }
        // Frames of topic, number and payload.
        let frames = [topic.as_bytes(), b"", &payload].map(|frame| Self::frame(frame).len());
        StreamLayout::numbered(to_u64(frames.iter().sum()))
    }

    fn rejections(&self) -> &'static [&'static str] {
        if self.is_tidings { LINES.rejections() } else { &[] }
    }
}

/// The protocol of publishers to Tidings.
const LINES: Tidings = Tidings::plain(None);

/// Bare lines, for the limits. A connection that sends `S` subscribes; all others publish.
pub(crate) struct BareLines;

impl WireProtocol for BareLines {
    fn publisher_setup(&self) -> Vec<SetupStep> {
        vec![SetupStep::new("P\n", ReadUntil::Bytes(2))]
    }

    fn pipelined_subscribe(&self, _: &str) -> SetupStep {
        SetupStep::new("S\n", ReadUntil::Bytes(2))
    }

    fn publish(&self, _: &str, payload: &[u8]) -> Vec<u8> {
        [payload, b"\n"].concat()
    }

    fn stream_layout(&self, _: &str, payload_bytes: usize) -> StreamLayout {
        StreamLayout::fixed(to_u64(payload_bytes + 1))
    }
}

#[cfg(test)]
mod tests {
    use tidings_load::publish::PublishCounter;
    use tidings_load::replies::Replies;

    use super::*;
    use crate::queue_protocols::Beanstalkd;

    fn zmtp(is_tidings: bool) -> Zmtp {
        Zmtp { publishers: SocketAddr::from(([127, 0, 0, 1], 1)), is_tidings }
    }

    #[test]
    fn publishes_are_encoded_as_servers_expect() {
        assert_eq!(
            resp(&[b"PUBLISH", b"t", b"ab"]),
            b"*3\r\n$7\r\nPUBLISH\r\n$1\r\nt\r\n$2\r\nab\r\n"
        );
        assert_eq!(Nats { has_stream: false }.publish("t", b"ab"), b"PUB t 2\r\nab\r\n");
        assert_eq!(Mqtt.publish("t", b"ab"), b"\x30\x05\x00\x01tab");
        let zmtp = zmtp(false);
        assert_eq!(zmtp.publish("t", b"ab"), b"\x00\x04t ab");
        assert_eq!(BareLines.publish("t", b"ab"), b"ab\n");
    }

    /// The number of confirmed publishes in replies that arrive in these pieces.
    fn confirmed<'a>(
        wire: &dyn WireProtocol,
        pieces: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<u64> {
        let mut replies = Replies::new(wire.rejections());
        let mut counter = PublishCounter::new(wire.confirmed_publish("t", b"ab")?.confirmations);
        for piece in pieces {
            replies.read(piece, |line| counter.count_confirmations(line))?;
        }
        Ok(counter.confirmed)
    }

    #[test]
    fn confirmations_and_rejections_are_found_in_any_split() {
        let acks = "MSG i 2 26\r\n{\"stream\":\"BENCH\",\"seq\":1}\r\nPING\r\n\
                    MSG i 2 26\r\n{\"stream\":\"BENCH\",\"seq\":2}\r\n";
        let full = "{\"error\":{\"code\":503},\"stream\":\"BENCH\",\"seq\":0}";
        let ids = "$15\r\n1764347434000-0\r\n$15\r\n1764347434000-1\r\n";
        let protocols: [(&dyn WireProtocol, &str, &str); 5] = [
            (&LINES, "+OK 40 1\r\n+OK 41 2\r\n", "-ERR limit no space"),
            (&Redis { has_streams: true }, ids, "-OOM command not allowed"),
            (&Nats { has_stream: true }, acks, full),
            (&Nats { has_stream: true }, acks, "-ERR 'Maximum Payload Violation'"),
            (&Beanstalkd, "INSERTED 1\r\nINSERTED 2\r\n", "OUT_OF_MEMORY"),
        ];
        for (wire, accepted, rejection) in protocols {
            assert_eq!(confirmed(wire, accepted.as_bytes().chunks(1)).unwrap(), 2);
            for split in 0..=accepted.len() {
                let (first, second) = accepted.as_bytes().split_at(split);
                assert_eq!(confirmed(wire, [first, second]).unwrap(), 2, "split at {split}");
            }
            let rejected = format!("{accepted}{rejection}\r\n");
            for split in 0..=rejected.len() {
                let (first, second) = rejected.as_bytes().split_at(split);
                let error = confirmed(wire, [first, second]).unwrap_err().to_string();
                assert_eq!(error, format!("the broker rejects: {rejection}"), "split at {split}");
            }
        }
    }

    #[test]
    fn lengths_that_need_a_second_byte() {
        assert_eq!(mqtt_packet(0x30, &[0; 128])[..3], [0x30, 0x80, 0x01]);
        assert_eq!(Zmtp::frame(&[0; 256])[..9], [2, 0, 0, 0, 0, 0, 0, 1, 0]);
        assert_eq!(Zmtp::greeting("PUB").len(), GREETING_BYTES + READY_BYTES - 1);
    }

    #[test]
    fn deliveries_have_the_length_of_their_layout() {
        assert_eq!(
            Nats { has_stream: false }.stream_layout("t", 128).bytes(1),
            to_u64(b"MSG t 1 128\r\n".len() + 130)
        );
        let redis = b"*3\r\n$7\r\nmessage\r\n$1\r\nt\r\n$128\r\n\r\n".len() + 128;
        assert_eq!(Redis { has_streams: false }.stream_layout("t", 128).bytes(1), to_u64(redis));
        assert_eq!(BareLines.stream_layout("t", 128).bytes(1), 129);
        let zmtp = zmtp(true);
        let messages = b"\x01\x01t\x01\x019\x00\x02ab\x01\x01t\x01\x0210\x00\x02ab";
        let stream = zmtp.stream_layout("t", 2);
        assert_eq!(stream.bytes(10) - stream.bytes(8), to_u64(messages.len()));
    }

    #[test]
    fn a_stream_read_has_the_length_of_its_entries() {
        let replay = Redis { has_streams: true }.replay_request("t", 2, 1).unwrap();
        let answer =
            "*1\r\n*2\r\n$1\r\nt\r\n*1\r\n*2\r\n$3\r\n1-1\r\n*2\r\n$1\r\nd\r\n$2\r\nab\r\n";
        assert_eq!(replay.end, ReplayEnd::Bytes(to_u64(answer.len())));
        assert_eq!(replay.request, resp(&[b"XREAD", b"COUNT", b"10000", b"STREAMS", b"t", b"1-0"]));
    }
}
