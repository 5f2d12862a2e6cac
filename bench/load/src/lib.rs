//! The load generator of `tidings bench`. Publishers write pre-encoded messages in large pieces,
//! and subscribers only count the bytes that they receive, so that the broker is what is measured.
//!
//! Every event of a run has the same payload. The number of received bytes therefore says which
//! event a subscriber has reached, without any parsing. The sum at the end shows to the byte
//! whether something is missing. A [`WireProtocol`] holds what is special about one broker.
//! Everything else is the same for all of them: the generator, the sizes of writes and the window.
//!
//! A queue of tasks is the exception ([`queue`]): its workers read every line, because they
//! acknowledge each task.
//!
//! One thread does everything. It waits on `epoll`. Bytes that it only counts are discarded inside
//! the kernel (`recv` with `MSG_TRUNC`), at a fifth of the cost of copying them out.
//!
//! | module | content |
//! |---|---|
//! | [`fan`] | deliveries per second, from any number of publishers to any number of subscribers |
//! | [`fan_out`] | the same, and what tokens or encryption cost |
//! | [`compare`] | the load of two brokers in turns |
//! | [`publish`] | confirmed publishes per second, beside a bare loop that writes and syncs |
//! | [`queue`] | tasks per second: published, released to workers, acknowledged exactly once |
//! | [`command`] | measurements as subcommands: flags, the broker that is started, the report |
//!
//! The crate `tidings-bench` measures more with the same generator. Linux only: the costs of the
//! broker are read from `/proc`.
//!
//! **What it must not depend on**: the crates of the broker, its codec and its client, because a
//! mistake there could hide itself in the measurement. Its manifest names none of them, and a step
//! of `.ci/run` checks its dependencies.

pub mod command;
pub mod compare;
pub mod connection;
pub mod disk;
pub mod fan;
pub mod fan_out;
pub mod figure;
pub mod load;
pub mod openssl;
pub mod poller;
pub mod publish;
pub mod queue;
mod receive_positions;
pub mod replies;
pub mod server;
mod task_ledger;
pub mod tidings;
pub mod tls;
pub mod wire;
mod worker_connection;

use std::net::SocketAddr;
use std::time::Duration;

pub use crate::figure::Figure;
pub use crate::server::{Launch, ReadyWhen, Server};
pub use crate::tidings::Tidings;
pub use crate::tls::TlsClient;
pub use crate::wire::WireProtocol;

/// The broker and topic that a load is generated for.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    /// The protocol of the broker.
    pub wire: &'a dyn WireProtocol,
    /// Address that the broker listens on.
    pub address: SocketAddr,
    /// A topic that is unused so far: its events are numbered from 1.
    pub topic: &'a str,
    /// Bytes per payload.
    pub payload_bytes: usize,
    /// The process of the broker; if it is known, its costs are measured too.
    pub server: Option<&'a Server>,
}

impl Target<'_> {
    /// The bytes that publish one event.
    pub fn message(&self) -> Vec<u8> {
        self.wire.publish(self.topic, &vec![b'x'; self.payload_bytes])
    }

    /// How the received bytes of a subscriber add up to events.
    pub fn stream_layout(&self) -> wire::StreamLayout {
        self.wire.stream_layout(self.topic, self.payload_bytes)
    }
}

/// Interval of progress reports.
pub const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// Receives the progress of a measurement several times per second. An error ends the measurement.
pub type Progress<'a> = &'a mut (dyn FnMut(&str) -> anyhow::Result<()> + 'a);
