//! Sockets of the `zeromq` crate, and what it does not know: limits.
//!
//! Its PUB socket has a queue of 100,000 messages for all and one for each subscriber, and drops in
//! silence what they cannot take. On a runtime of one thread the first of them is emptied in each
//! turn, so it never drops anything; what the others hold is counted here, in bytes, and when it is
//! too much those who do not read are cut off.

#![expect(clippy::disallowed_methods, reason = "a socket that fails is asked again after a pause")]

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

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

/// How long those who were cut off have to be gone.
const DISCONNECT_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(1);

/// How often connections are looked at, at most.
const CHECK_INTERVAL: std::time::Duration = std::time::Duration::from_millis(100);

/// So many messages in one queue are nothing to worry about.
const CHECKED_MESSAGES_MIN: u64 = 10_000;

/// A PUB socket that listens.
pub(crate) struct ZmqPublisher {
    socket: PubSocket,
    peers: PeerConnections,
    usage: Arc<QueueUsage>,
    next_check: Instant,
    disconnect_log: RateLimitedLog,
}

/// What was sent and has not left: the messages that some queue still holds, each counted once.
#[derive(Debug, Default)]
struct QueueUsage {
    bytes: AtomicU64,
    messages: AtomicU64,
}

/// A payload in queues. It is counted until the last of them lets go of it.
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

    /// Queues a message. [`flush_queues`](Self::turn) has to come after a few of them.
    pub(crate) async fn send(&mut self, [topic, seq, payload]: [Bytes; 3]) -> io::Result<()> {
        self.usage.bytes.fetch_add(byte_count(&payload), Relaxed);
        self.usage.messages.fetch_add(1, Relaxed);
        let held = Arc::clone(&self.usage);
        let payload = Bytes::from_owner(CountedPayload { payload, usage: held });
        let mut message = ZmqMessage::from(topic);
        message.push_back(seq);
        message.push_back(payload);
        self.socket.send(message).await.map_err(io::Error::other)
    }

    /// Lets what was queued go out as far as it can, and cuts off those who hold too much of it.
    pub(crate) async fn flush_queues(&mut self) -> io::Result<()> {
        yield_now().await;
        let may_be =
            self.is_over_limit(0) || self.usage.messages.load(Relaxed) > CHECKED_MESSAGES_MIN;
        if may_be && Instant::now() >= self.next_check {
            self.next_check = Instant::now() + CHECK_INTERVAL;
            return self.disconnect_slow_readers().await;
        }
        Ok(())
    }

    /// Whether queues hold too much, if so many of them hold all that is held.
    fn is_over_limit(&self, queues: u64) -> bool {
        let entries = self.usage.messages.load(Relaxed) * queues;
        self.usage.bytes.load(Relaxed) + entries * QUEUE_ENTRY_BYTES > QUEUED_BYTES_MAX
    }

    /// Cuts off those who do not read, and waits until what waited for them is gone.
    async fn disconnect_slow_readers(&mut self) -> io::Result<()> {
        let slow = self.peers.slow_readers()?;
        let queues = slow.len() as u64;
        if slow.is_empty() || !self.is_over_limit(queues) {
            return Ok(());
        }
        PeerConnections::disconnect(&slow)?;
        let held = self.usage.bytes.load(Relaxed) >> 20;
        self.disconnect_log
            .add(queues, format_args!("they did not read {held} MiB that waited for them"));
        let gone = async {
            while self.is_over_limit(queues) {
                sleep(std::time::Duration::from_millis(1)).await;
            }
        };
        // Others may be as slow: they are next.
        let _ = timeout(DISCONNECT_TIMEOUT, gone).await;
        Ok(())
    }

    /// Cuts off connections that are too many, and logs what there is still to complain about.
    pub(crate) fn tick(&mut self) -> io::Result<()> {
        let excess = self.peers.disconnect_excess()?;
        if excess > 0 {
            self.disconnect_log.add(excess, "there are too many");
        }
        self.disconnect_log.flush();
        Ok(())
    }

    /// Waits until all has left, which it then has.
    pub(crate) async fn drain(&mut self) -> bool {
        while self.usage.messages.load(Relaxed) > 0 {
            sleep(std::time::Duration::from_millis(1)).await;
        }
        true
    }
}

/// A PULL socket that listens. Of what its peers send it holds what one read of each brought.
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
        Ok(Self { socket, peers, error_log: RateLimitedLog::new("ZeroMQ connections broken") })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.peers.local_address
    }

    /// The next message. Cancel-safe.
    pub(crate) async fn receive(&mut self) -> Frames {
        receive_any(&mut self.socket, &mut self.error_log).await
    }

    /// Cuts off connections that are too many, and logs what there is still to complain about.
    pub(crate) fn tick(&mut self) -> io::Result<()> {
        let excess = self.peers.disconnect_excess()?;
        if excess > 0 {
            self.error_log.add(excess, "there are too many");
        }
        self.error_log.flush();
        Ok(())
    }
}

/// A SUB socket that connects, and connects again.
pub(crate) struct ZmqSubscriber {
    socket: SubSocket,
    error_log: RateLimitedLog,
}

impl ZmqSubscriber {
    /// Waits until somebody is there.
    pub(crate) async fn connect(
        to: &ConnectEndpoint,
        prefixes: &[String],
    ) -> Result<Self, ZmqStartError> {
        let mut options = SocketOptions::default();
        options.no_connect_timeout();
        let mut socket = SubSocket::with_options(options);
        let refuse = |error: ZmqError| ZmqStartError::Subscribe { reason: error.to_string() };
        for prefix in prefixes {
            socket.subscribe(prefix).await.map_err(refuse)?;
        }
        let mut trouble = ConnectErrorLog::new(to);
        loop {
            match timeout(CONNECT_TIMEOUT, socket.connect(to.as_str())).await {
                Ok(Ok(())) => break,
                Ok(Err(error)) => trouble.log(error_text(&error)),
                Err(_) => trouble.log("it does not greet as a socket of ZeroMQ does"),
            }
            sleep(RETRY_DELAY).await;
        }
        Ok(Self { socket, error_log: RateLimitedLog::new("ZeroMQ connections broken") })
    }

    /// The next message. Cancel-safe.
    pub(crate) async fn receive(&mut self) -> Frames {
        receive_any(&mut self.socket, &mut self.error_log).await
    }

    /// Logs what there is still to complain about.
    pub(crate) fn tick(&mut self) {
        self.error_log.flush();
    }
}

/// The next message of any peer. An error is that of one of them, which is gone with it.
async fn receive_any(socket: &mut impl SocketRecv, broken: &mut RateLimitedLog) -> Frames {
    loop {
        match socket.recv().await {
            Ok(message) => return message.into_vec(),
            Err(error) => {
                broken.add(1, error_text(&error));
                // So that errors without end leave others their turn.
                yield_now().await;
            }
        }
    }
}

/// What the library says of a PING, as of all commands but the first. Its type of such errors is
/// not public.
const UNKNOWN_COMMAND_TEXT: &str = "Unknown command received";

/// What an error says, without a word of what its peer has said.
fn error_text(error: &ZmqError) -> &'static str {
    match error {
        ZmqError::Network(_) => "the network failed",
        ZmqError::Codec(error) if error.to_string() == UNKNOWN_COMMAND_TEXT => {
            "a command came that is not known here: peers with heartbeats need a build with --features libzmq"
        }
        ZmqError::Codec(_) => "what came is not of the protocol",
        _ => "something else was wrong",
    }
}

/// Has a socket listen, with what its own way to listen leaves out.
async fn listen(socket: &mut impl Socket, at: SocketAddr) -> io::Result<PeerConnections> {
    let listener = std::net::TcpListener::bind(at)?;
    let local = listener.local_addr()?;
    // Connections inherit it: whoever takes nothing for so long is cut off by the kernel.
    socket2::SockRef::from(&listener).set_tcp_user_timeout(Some(WRITE_TIMEOUT))?;
    socket.bind_listener(Listener::from(listener)).await.map_err(io::Error::other)?;
    Ok(PeerConnections { local_address: local })
}

fn byte_count(bytes: &Bytes) -> u64 {
    bytes.len() as u64
}
