//! Tidings, with subscribers that listen to Server-Sent Events.

use std::net::SocketAddr;

use crate::Tidings;
use crate::wire::{Step, Stream, Sync, Until, Wire};

/// Subscribers are where HTTP is, publishers where lines are.
#[derive(Debug, Clone, Copy)]
pub struct Sse {
    /// As for subscribers by lines.
    pub sync: Option<Sync>,
    /// Where the broker speaks the line protocol.
    pub lines: SocketAddr,
}

impl Sse {
    /// As HTTP/1.0 has it: the response goes to the end of the connection, not in chunks, so that
    /// its bytes are those of the events.
    fn request(topic: &str) -> Step {
        let head = format!("GET /topics/{topic}/events HTTP/1.0\r\nHost: localhost\r\n\r\n");
        Step::new(head, Until::Line("retry: "))
    }
}

impl Wire for Sse {
    fn prepare(&self, topic: &str) -> Vec<Step> {
        let put = |sync: Sync| {
            let body = format!("{{\"sync\":\"{}\"}}", sync.as_str());
            let head = format!("PUT /topics/{topic} HTTP/1.0\r\nHost: localhost\r\n");
            let length = body.len();
            let request = format!("{head}Content-Length: {length}\r\n\r\n{body}");
            Step::new(request, Until::Line("HTTP/1.0 200"))
        };
        self.sync.map(put).into_iter().collect()
    }

    fn opening(&self) -> Vec<Step> {
        Vec::new()
    }

    fn publisher(&self) -> Vec<Step> {
        Tidings::open(None).opening()
    }

    fn publisher_address(&self, _: SocketAddr) -> SocketAddr {
        self.lines
    }

    fn subscribe(&self, topic: &str) -> Vec<Step> {
        vec![Self::request(topic)]
    }

    fn at_once(&self, topic: &str) -> Step {
        Self::request(topic)
    }

    fn publish(&self, topic: &str, payload: &[u8]) -> Vec<u8> {
        Tidings::open(None).publish(topic, payload)
    }

    fn stream(&self, _topic: &str, payload_bytes: usize) -> Stream {
        let bytes = "id: \ndata: \n\n".len() + payload_bytes;
        let event_bytes = u64::try_from(bytes).expect("a length");
        // A comment now and then says that the stream is there.
        Stream { stray_bytes: ":\n\n".len() as u64, ..Stream::numbered(event_bytes) }
    }

    fn refusal(&self) -> &'static [u8] {
        b"-ERR "
    }
}
