//! A load generator for brokers of every kind: connections that write pre-encoded messages in large
//! pieces, and connections that only count the bytes they are sent, so that what is measured is the
//! broker.
//!
//! Every event of a run has the same payload. So the number of bytes that a subscriber has received
//! says which event it has come to, without a look at a single one, and at the end the sum shows to
//! the byte whether anything is missing. What is special about a broker's protocol is a [`WireProtocol`];
//! everything else is the same for all of them: the same generator, the same sizes of writes, the
//! same window.
//!
//! A queue of tasks is the exception ([`queue`]): its workers read every line, because each task is
//! answered.
//!
//! One thread does everything. It waits on `epoll`, and discards what it only counts inside the
//! kernel (`recv` with `MSG_TRUNC`), which costs a fifth of copying it out.
//!
//! | module | measures |
//! |---|---|
//! | [`fan`] | deliveries a second, from any number of publishers to any number of subscribers |
//! | [`compare`] | the same from a broker that lets in who has a token, or encrypts, beside one that does neither |
//! | [`latency`] | publish to delivery at a fixed rate |
//! | [`idle`] | what a subscriber costs that hears nothing, and one event to all of them |
//! | [`publish`] | confirmed publishes a second, beside a bare loop that writes and syncs |
//! | [`replay`] | stored events to one subscriber |
//! | [`queue`] | tasks a second: published, released to workers, acknowledged, each of them once |
//! | [`frontier`] | links a second that become waiting URLs, what those cost, and a restart with them |
//! | [`announce`] | announcement to request, as a crawled host sees it |
//! | [`job_done`] | last page of a crawl to the news that it is done |
//! | [`connect`] | connect, subscribe, close |
//! | [`stalled`] | what the others notice of a subscriber that stops reading |
//!
//! Crawlers are measured from the other side: [`origin`] is the web that they crawl, and
//! [`program`] runs one to its end and says what it cost.
//!
//! Linux only: it asks `/proc` what the broker costs.

pub mod announce;
pub mod compare;
pub mod connect;
pub mod connection;
pub mod disk;
pub mod fan;
pub mod figure;
pub mod frontier;
mod histogram;
pub mod idle;
pub mod job_done;
pub mod latency;
mod load;
pub mod openssl;
pub mod origin;
mod poller;
pub mod program;
pub mod publish;
pub mod queue;
mod receive_positions;
pub mod replay;
pub mod server;
pub mod sse;
pub mod stalled;
mod task_ledger;
pub mod tidings;
mod tls;
pub mod wire;
mod worker_connection;

use std::net::SocketAddr;

pub use crate::figure::Figure;
pub use crate::server::{Launch, ReadyWhen, Server};
pub use crate::tidings::Tidings;
pub use crate::tls::TlsClient;
pub use crate::wire::WireProtocol;

/// What a load is generated for.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    /// How the broker is spoken to.
    pub wire: &'a dyn WireProtocol,
    /// Where it listens.
    pub address: SocketAddr,
    /// A topic that nobody used before: its events are numbered from 1.
    pub topic: &'a str,
    /// Bytes of a payload.
    pub payload_bytes: usize,
    /// The broker's process, if it is known: what it costs is measured, too.
    pub server: Option<&'a Server>,
}

impl Target<'_> {
    /// The bytes that publish one event.
    fn message(&self) -> Vec<u8> {
        self.wire.publish(self.topic, &vec![b'x'; self.payload_bytes])
    }

    /// How the bytes of a subscriber add up.
    fn stream_layout(&self) -> wire::StreamLayout {
        self.wire.stream_layout(self.topic, self.payload_bytes)
    }
}

/// Is told several times a second how far a measurement is, and ends it with an error.
pub type ProgressFn<'a> = dyn FnMut(&str) -> anyhow::Result<()> + 'a;
