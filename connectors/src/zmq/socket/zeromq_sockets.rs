//! Sockets of the `zeromq` crate, with the limits that it lacks.
//!
//! Its PUB socket has one queue of 100,000 messages for all subscribers and one for each, and drops
//! silently what exceeds them. On a runtime with one thread every flush empties the first queue, so
//! that one never drops anything. This module counts the bytes in the other queues. Above the limit
//! it disconnects subscribers that do not read.

#![expect(clippy::disallowed_methods, reason = "waits between attempts, and limits checks")]

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout};
use zeromq::{
    Listener, PubSocket, PullSocket, Socket, SocketOptions, SocketRecv, SocketSend, SubSocket,
    ZmqError, ZmqMessage,
};

use super::Frames;
use super::peers::PeerConnections;
use crate::rate_limited_log::RateLimitedLog;
use crate::zmq::limits::{QUEUE_ENTRY_BYTES, QUEUED_BYTES_MAX, RETRY_DELAY, WRITE_TIMEOUT};
use crate::zmq::reachability::{CONNECT_TIMEOUT, ConnectErrorLog};
use crate::zmq::{ConnectEndpoint, ZmqStartError};

/// Time limit for the queues of disconnected subscribers to disappear.
const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Least time between two checks of the connections.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Up to this number of queued messages the connections are not checked.
const CHECKED_MESSAGES_MIN: u64 = 10_000;

/// A PUB socket that listens.
pub(crate) struct ZmqPublisher {
    socket: PubSocket,
    peers: PeerConnections,
    usage: Arc<QueueUsage>,
    next_check: Instant,
    disconnect_log: RateLimitedLog,
}

/// Messages that are in at least one queue, each counted once.
#[derive(Debug, Default)]
struct QueueUsage {
    bytes: AtomicU64,
    messages: AtomicU64,
}

/// A payload in queues. It is counted until the last queue drops it.
struct CountedPayload {
    payload: Bytes,
    usage: Arc<QueueUsage>,
}

impl AsRef<[u8]> for CountedPayload {
    fn as_ref(&self) -> &[u8] {
        &self.payload
    }
}

impl Drop for CountedPayload {
    fn drop(&mut self) {
        self.usage.bytes.fetch_sub(byte_count(&self.payload), Relaxed);
        self.usage.messages.fetch_sub(1, Relaxed);
    }
}

impl ZmqPublisher {
    pub(crate) async fn bind(at: SocketAddr, _key: Option<&str>) -> Result<Self, ZmqStartError> {
        let mut socket = PubSocket::new();
        let peers =
            listen(&mut socket, at).await.map_err(|error| ZmqStartError::bind(at, &error))?;
        Ok(Self {
            socket,
            peers,
            usage: Arc::default(),
            next_check: Instant::now(),
            disconnect_log: RateLimitedLog::new("ZeroMQ subscribers cut off"),
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.peers.local_address
    }

    /// Queues a message. The caller must call [`flush_queues`](Self::flush_queues) after a few of
    /// them.
    pub(crate) async fn send(&mut self, [topic, seq, payload]: [Bytes; 3]) -> io::Result<()> {
        self.usage.bytes.fetch_add(byte_count(&payload), Relaxed);
        self.usage.messages.fetch_add(1, Relaxed);
        let usage = Arc::clone(&self.usage);
        let payload = Bytes::from_owner(CountedPayload { payload, usage });
        let mut message = ZmqMessage::from(topic);
        message.push_back(seq);
        message.push_back(payload);
        self.socket.send(message).await.map_err(io::Error::other)
    }

    /// Sends queued messages as far as possible, and disconnects slow readers if the queues exceed
    /// the limit.
    pub(crate) async fn flush_queues(&mut self) -> io::Result<()> {
        yield_now().await;
        let should_check =
            self.is_over_limit(0) || self.usage.messages.load(Relaxed) > CHECKED_MESSAGES_MIN;
        if should_check && Instant::now() >= self.next_check {
            self.next_check = Instant::now() + CHECK_INTERVAL;
            return self.disconnect_slow_readers().await;
        }
        Ok(())
    }

    /// Whether the queues exceed the limit, if each of `queues` queues contains all messages.
    fn is_over_limit(&self, queues: u64) -> bool {
        let entries = self.usage.messages.load(Relaxed) * queues;
        self.usage.bytes.load(Relaxed) + entries * QUEUE_ENTRY_BYTES > QUEUED_BYTES_MAX
    }

    /// Disconnects slow readers, and waits until their queues are gone.
    async fn disconnect_slow_readers(&mut self) -> io::Result<()> {
        let slow = self.peers.slow_readers()?;
        let queues = slow.len() as u64;
        if slow.is_empty() || !self.is_over_limit(queues) {
            return Ok(());
        }
        PeerConnections::disconnect(&slow)?;
        let queued_mib = self.usage.bytes.load(Relaxed) >> 20;
        self.disconnect_log
            .add(queues, format_args!("{queued_mib} MiB were queued for slow readers"));
        let drained = async {
            while self.is_over_limit(queues) {
                sleep(Duration::from_millis(1)).await;
            }
        };
        // Other slow readers are disconnected by the next check.
        let _ = timeout(DISCONNECT_TIMEOUT, drained).await;
        Ok(())
    }

    /// Disconnects excess connections, and logs the problems that were not logged yet.
    pub(crate) fn tick(&mut self) -> io::Result<()> {
        disconnect_excess(&self.peers, &mut self.disconnect_log)
    }

    /// Waits until all messages have been sent. Always returns true.
    pub(crate) async fn drain(&mut self) -> bool {
        while self.usage.messages.load(Relaxed) > 0 {
            sleep(Duration::from_millis(1)).await;
        }
        true
    }
}

/// A PULL socket that listens. It buffers one read of each peer.
pub(crate) struct ZmqPuller {
    socket: PullSocket,
    peers: PeerConnections,
    error_log: RateLimitedLog,
}

impl ZmqPuller {
    pub(crate) async fn bind(at: SocketAddr, _key: Option<&str>) -> Result<Self, ZmqStartError> {
        let mut socket = PullSocket::new();
        let peers =
            listen(&mut socket, at).await.map_err(|error| ZmqStartError::bind(at, &error))?;
        Ok(Self { socket, peers, error_log: RateLimitedLog::new("ZeroMQ connections failed") })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.peers.local_address
    }

    /// The next message. Cancel-safe.
    pub(crate) async fn receive(&mut self) -> Frames {
        receive_any(&mut self.socket, &mut self.error_log).await
    }

    /// Disconnects excess connections, and logs the problems that were not logged yet.
    pub(crate) fn tick(&mut self) -> io::Result<()> {
        disconnect_excess(&self.peers, &mut self.error_log)
    }
}

/// A SUB socket that connects, and reconnects.
pub(crate) struct ZmqSubscriber {
    socket: SubSocket,
    error_log: RateLimitedLog,
}

impl ZmqSubscriber {
    /// Waits until the foreign socket is reachable.
    pub(crate) async fn connect(
        endpoint: &ConnectEndpoint,
        prefixes: &[String],
    ) -> Result<Self, ZmqStartError> {
        let mut options = SocketOptions::default();
        options.no_connect_timeout();
        let mut socket = SubSocket::with_options(options);
        let subscribe_error =
            |error: ZmqError| ZmqStartError::Subscribe { reason: error.to_string() };
        for prefix in prefixes {
            socket.subscribe(prefix).await.map_err(subscribe_error)?;
        }
        let mut connect_errors = ConnectErrorLog::new(endpoint);
        loop {
            match timeout(CONNECT_TIMEOUT, socket.connect(endpoint.as_str())).await {
                Ok(Ok(())) => break,
                Ok(Err(error)) => connect_errors.log(error_text(&error)),
                Err(_) => connect_errors.log("no ZeroMQ handshake in time"),
            }
            sleep(RETRY_DELAY).await;
        }
        Ok(Self { socket, error_log: RateLimitedLog::new("ZeroMQ connections failed") })
    }

    /// The next message. Cancel-safe.
    pub(crate) async fn receive(&mut self) -> Frames {
        receive_any(&mut self.socket, &mut self.error_log).await
    }

    /// Logs the problems that were not logged yet.
    pub(crate) fn tick(&mut self) {
        self.error_log.flush();
    }
}

fn disconnect_excess(peers: &PeerConnections, log: &mut RateLimitedLog) -> io::Result<()> {
    let excess = peers.disconnect_excess()?;
    if excess > 0 {
        log.add(excess, "too many connections");
    }
    log.flush();
    Ok(())
}

/// The next message of any peer. An error concerns one peer, and has ended its connection.
async fn receive_any(socket: &mut impl SocketRecv, error_log: &mut RateLimitedLog) -> Frames {
    loop {
        match socket.recv().await {
            Ok(message) => return message.into_vec(),
            Err(error) => {
                error_log.add(1, error_text(&error));
                // Endless errors must not block other tasks.
                yield_now().await;
            }
        }
    }
}

/// The library's error for a PING, as for any command except the first one. Its error type is not
/// public.
const UNKNOWN_COMMAND_TEXT: &str = "Unknown command received";

/// Describes an error without text from the peer.
fn error_text(error: &ZmqError) -> &'static str {
    match error {
        ZmqError::Network(_) => "a network error",
        ZmqError::Codec(error) if error.to_string() == UNKNOWN_COMMAND_TEXT => {
            "an unknown command; peers with heartbeats need a build with --features libzmq"
        }
        ZmqError::Codec(_) => "a violation of the protocol",
        _ => "another error",
    }
}

/// Listens with a time limit for writes, which the library's own method does not set.
async fn listen(socket: &mut impl Socket, at: SocketAddr) -> io::Result<PeerConnections> {
    let listener = std::net::TcpListener::bind(at)?;
    let local_address = listener.local_addr()?;
    // Connections inherit it: the kernel closes one if its peer acknowledges nothing for so long.
    socket2::SockRef::from(&listener).set_tcp_user_timeout(Some(WRITE_TIMEOUT))?;
    socket.bind_listener(Listener::from(listener)).await.map_err(io::Error::other)?;
    Ok(PeerConnections { local_address })
}

fn byte_count(bytes: &Bytes) -> u64 {
    bytes.len() as u64
}
