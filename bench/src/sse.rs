//! Tidings with subscribers over Server-Sent Events.

use std::net::SocketAddr;

use tidings_load::Tidings;
use tidings_load::wire::{ReadUntil, SetupStep, StreamLayout, Sync, WireProtocol};

/// Subscribers use HTTP; publishers use the line protocol.
#[derive(Debug, Clone, Copy)]
pub struct Sse {
    /// `sync=` of the topics that are created, as in [`Tidings`].
    pub sync: Option<Sync>,
    /// Address of the line protocol.
    pub line_address: SocketAddr,
}

impl Sse {
    /// HTTP/1.0, so that the response is not chunked: it lasts until the connection ends, and its
    /// bytes are those of the events.
    fn request(topic: &str) -> SetupStep {
        let head = format!("GET /topics/{topic}/events HTTP/1.0\r\nHost: localhost\r\n\r\n");
        SetupStep::new(head, ReadUntil::Line("retry: "))
    }
}

impl WireProtocol for Sse {
    fn create_topic(&self, topic: &str) -> Vec<SetupStep> {
        let put = |sync: Sync| {
            let body = format!("{{\"sync\":\"{}\"}}", sync.as_str());
            let head = format!("PUT /topics/{topic} HTTP/1.0\r\nHost: localhost\r\n");
            let length = body.len();
            let request = format!("{head}Content-Length: {length}\r\n\r\n{body}");
            SetupStep::new(request, ReadUntil::Line("HTTP/1.0 200"))
        };
        self.sync.map(put).into_iter().collect()
    }

    fn publisher_setup(&self) -> Vec<SetupStep> {
        Tidings::plain(None).handshake()
    }

    fn publisher_address(&self, _: SocketAddr) -> SocketAddr {
        self.line_address
    }

    fn pipelined_subscribe(&self, topic: &str) -> SetupStep {
        Self::request(topic)
    }

    fn publish(&self, topic: &str, payload: &[u8]) -> Vec<u8> {
        Tidings::plain(None).publish(topic, payload)
    }

    fn stream_layout(&self, _topic: &str, payload_bytes: usize) -> StreamLayout {
        let bytes = "id: \ndata: \n\n".len() + payload_bytes;
        let event_bytes = u64::try_from(bytes).expect("a length");
        // A comment at intervals keeps the stream alive.
        StreamLayout {
            keepalive_bytes: ":\n\n".len() as u64,
            ..StreamLayout::numbered(event_bytes)
        }
    }

    fn rejections(&self) -> &'static [&'static str] {
        Tidings::plain(None).rejections()
    }
}
