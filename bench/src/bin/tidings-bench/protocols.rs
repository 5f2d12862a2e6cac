//! The protocols of the peers, each in its densest form.

use anyhow::Result;
use tidings_load::wire::{
    ConfirmationFormat, QueueSetup, SetupStep, StreamLayout, WireProtocol, WorkerPool,
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
    SetupStep::new(format!("{commands}\r\nPING\r\n"), "PONG")
}

/// A message on a subject, behind which the subject of the reply may stand.
pub(crate) fn nats_publish(subject: &str, payload: &[u8]) -> Vec<u8> {
    [format!("PUB {subject} {}\r\n", payload.len()).as_bytes(), payload, b"\r\n"].concat()
}

/// A request to `JetStream`.
pub(crate) fn jetstream_request(subject: &str, body: &str) -> SetupStep {
    let message = nats_publish(&format!("{subject} _INBOX.api"), body.as_bytes());
    SetupStep::new(message, "{\"type\":\"io.nats.jetstream.api")
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
        // The inbox receives the answers of `JetStream`.
        vec![nats_step("SUB _INBOX.api 9"), jetstream_request(&create, &body)]
    }

    fn handshake(&self) -> Vec<SetupStep> {
        vec![nats_step(NATS_CONNECT)]
    }

    fn subscribe(&self, topic: &str) -> Vec<SetupStep> {
        vec![nats_step(&format!("SUB {topic} 1"))]
    }

    /// Receives the confirmations.
    fn publisher_setup(&self) -> Vec<SetupStep> {
        if self.has_stream { vec![nats_step("SUB i 2")] } else { Vec::new() }
    }

    fn publish(&self, topic: &str, payload: &[u8]) -> Vec<u8> {
        let reply = if self.has_stream { " i" } else { "" };
        nats_publish(&format!("{topic}{reply}"), payload)
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

    fn confirmations(&self) -> ConfirmationFormat {
        // `{"stream":"BENCH", "seq":1}` after its header.
        let confirmation = ConfirmationFormat::Lines("{\"stream\":");
        if self.has_stream { confirmation } else { ConfirmationFormat::None }
    }

    fn queue_setup(&self, topic: &str, pool: WorkerPool) -> Result<QueueSetup> {
        Ok(queue_protocols::jetstream(topic, pool))
    }
}

/// Pub/sub or streams of Redis.
pub(crate) struct Redis {
    pub(crate) has_streams: bool,
}

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
        vec![SetupStep::new("PING\r\n", "+PONG")]
    }

    fn subscribe(&self, topic: &str) -> Vec<SetupStep> {
        vec![SetupStep::new(resp(&[b"SUBSCRIBE", topic.as_bytes()]), ":1")]
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

    fn confirmations(&self) -> ConfirmationFormat {
        // `$15` before the id.
        if self.has_streams { ConfirmationFormat::Lines("$") } else { ConfirmationFormat::None }
    }

    fn queue_setup(&self, topic: &str, pool: WorkerPool) -> Result<QueueSetup> {
        Ok(queue_protocols::redis_streams(topic, pool))
    }
}

/// Bare lines, for the relay. A connection that sends `S` subscribes; all others publish.
pub(crate) struct BareLines;

impl WireProtocol for BareLines {
    fn publisher_setup(&self) -> Vec<SetupStep> {
        vec![SetupStep::new("P\n", "P")]
    }

    fn subscribe(&self, _: &str) -> Vec<SetupStep> {
        vec![SetupStep::new("S\n", "S")]
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
    use super::*;

    #[test]
    fn publishes_are_encoded_as_servers_expect() {
        assert_eq!(
            resp(&[b"PUBLISH", b"t", b"ab"]),
            b"*3\r\n$7\r\nPUBLISH\r\n$1\r\nt\r\n$2\r\nab\r\n"
        );
        assert_eq!(Nats { has_stream: false }.publish("t", b"ab"), b"PUB t 2\r\nab\r\n");
        assert_eq!(Nats { has_stream: true }.publish("t", b"ab"), b"PUB t i 2\r\nab\r\n");
        assert_eq!(BareLines.publish("t", b"ab"), b"ab\n");
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
    }
}
