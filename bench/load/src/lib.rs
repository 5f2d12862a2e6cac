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
//! | [`fan_out`] | deliveries per second, and what tokens or encryption cost |
//! | [`publish`] | confirmed publishes per second, beside a bare loop that writes and syncs |
//! | [`queue`] | tasks per second: published, released to workers, acknowledged exactly once |
//! | [`load`] | what these have in common: a load in turns, its rate and its costs |
//! | [`command`] | measurements as subcommands: flags, the broker that is started, the report |
//!
//! The crate `tidings-bench` measures more with the same generator. Linux only: the costs of the
//! broker are read from `/proc`.
//!
//! **What it must not depend on**: the crates of the broker, its codec and its client, because a
//! mistake there could hide itself in the measurement. Its manifest names none of them, and a step
//! of `.ci/run` checks its dependencies.

pub mod broker;
pub mod command;
pub mod connection;
pub mod disk;
mod encryption;
pub mod fan_out;
pub mod figure;
pub mod load;
pub mod poller;
pub mod publish;
pub mod queue;
mod receive_positions;
pub mod server;
mod task_ledger;
mod text;
pub mod tidings;
pub mod tls;
pub mod wire;

use std::net::SocketAddr;
use std::time::Duration;

pub use crate::figure::Figure;
use crate::poller::Poller;
pub use crate::server::{ReadyWhen, Server};
pub use crate::tidings::Tidings;
use crate::tls::SubscriberSocket;
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
    /// The payload of all events.
    pub fn payload(&self) -> Vec<u8> {
        vec![b'x'; self.payload_bytes]
    }

    /// How the received bytes of a subscriber add up to events.
    pub fn stream_layout(&self) -> wire::StreamLayout {
        self.wire.stream_layout(self.topic, self.payload_bytes)
    }

    /// Connects subscribers; the token of each is its index.
    pub fn subscribers(
        &self,
        poller: &Poller,
        count: u16,
        progress: Progress<'_>,
    ) -> anyhow::Result<Vec<SubscriberSocket>> {
        let mut subscribers = Vec::with_capacity(count.into());
        for token in 0..usize::from(count) {
            if token.is_multiple_of(100) {
                progress(&format!("connecting, {token} of {count}"))?;
            }
            let subscriber = self.subscriber()?;
            poller.register_readable(subscriber.socket(), token)?;
            subscribers.push(subscriber);
        }
        Ok(subscribers)
    }
}

/// Interval of progress reports.
pub const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// Receives the progress of a measurement several times per second. An error ends the measurement.
pub type Progress<'a> = &'a mut (dyn FnMut(&str) -> anyhow::Result<()> + 'a);
