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
use super::peers::Peers;
use crate::rate_limited_log::RateLimitedLog;
use crate::zmq::limits::{AGAIN, HELD_BYTES_MAX, QUEUED_BYTES, STALLED_MAX};
use crate::zmq::reach::{CONNECT_MAX, Trouble};
use crate::zmq::{Connect, StartError};

/// How long those who were cut off have to be gone.
const CUT_OFF_MAX: std::time::Duration = std::time::Duration::from_secs(1);

/// How often connections are looked at, at most.
const LOOK_PACE: std::time::Duration = std::time::Duration::from_millis(100);

/// So many messages in one queue are nothing to worry about.
const QUEUED_MIN: u64 = 10_000;

/// A PUB socket that listens.
pub(crate) struct Publisher {
    socket: PubSocket,
    peers: Peers,
    held: Arc<Held>,
    next_look: Instant,
    cut_off: RateLimitedLog,
}

/// What was sent and has not left: the messages that some queue still holds, each counted once.
#[derive(Debug, Default)]
struct Held {
    bytes: AtomicU64,
    messages: AtomicU64,
}

/// A payload in queues. It is counted until the last of them lets go of it.
struct Counted {
    payload: Bytes,
    held: Arc<Held>,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.payload
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.held.bytes.fetch_sub(length(&self.payload), Relaxed);
        self.held.messages.fetch_sub(1, Relaxed);
    }
}

impl Publisher {
    pub(crate) async fn bind(at: SocketAddr, _key: Option<&str>) -> Result<Self, StartError> {
        let mut socket = PubSocket::new();
        let peers = listen(&mut socket, at).await.map_err(|error| StartError::bind(at, &error))?;
        Ok(Self {
            socket,
            peers,
            held: Arc::default(),
            next_look: Instant::now(),
            cut_off: RateLimitedLog::new("ZeroMQ subscribers cut off"),
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.peers.local
    }

    /// Queues a message. [`turn`](Self::turn) has to come after a few of them.
    pub(crate) async fn send(&mut self, [topic, seq, payload]: [Bytes; 3]) -> io::Result<()> {
        self.held.bytes.fetch_add(length(&payload), Relaxed);
        self.held.messages.fetch_add(1, Relaxed);
        let held = Arc::clone(&self.held);
        let payload = Bytes::from_owner(Counted { payload, held });
        let mut message = ZmqMessage::from(topic);
        message.push_back(seq);
        message.push_back(payload);
        self.socket.send(message).await.map_err(io::Error::other)
    }

    /// Lets what was queued go out as far as it can, and cuts off those who hold too much of it.
    pub(crate) async fn turn(&mut self) -> io::Result<()> {
        yield_now().await;
        let may_be = self.is_too_much(0) || self.held.messages.load(Relaxed) > QUEUED_MIN;
        if may_be && Instant::now() >= self.next_look {
            self.next_look = Instant::now() + LOOK_PACE;
            return self.cut_off().await;
        }
        Ok(())
    }

    /// Whether queues hold too much, if so many of them hold all that is held.
    fn is_too_much(&self, queues: u64) -> bool {
        let entries = self.held.messages.load(Relaxed) * queues;
        self.held.bytes.load(Relaxed) + entries * QUEUED_BYTES > HELD_BYTES_MAX
    }

    /// Cuts off those who do not read, and waits until what waited for them is gone.
    async fn cut_off(&mut self) -> io::Result<()> {
        let slow = self.peers.slow()?;
        let queues = slow.len() as u64;
        if slow.is_empty() || !self.is_too_much(queues) {
            return Ok(());
        }
        Peers::cut_off(&slow)?;
        let held = self.held.bytes.load(Relaxed) >> 20;
        self.cut_off.add(queues, format_args!("they did not read {held} MiB that waited for them"));
        let gone = async {
            while self.is_too_much(queues) {
                sleep(std::time::Duration::from_millis(1)).await;
            }
        };
        // Others may be as slow: they are next.
        let _ = timeout(CUT_OFF_MAX, gone).await;
        Ok(())
    }

    /// Cuts off connections that are too many, and logs what there is still to complain about.
    pub(crate) fn tend(&mut self) -> io::Result<()> {
        let excess = self.peers.cut_off_excess()?;
        if excess > 0 {
            self.cut_off.add(excess, "there are too many");
        }
        self.cut_off.flush();
        Ok(())
    }

    /// Waits until all has left, which it then has.
    pub(crate) async fn drain(&mut self) -> bool {
        while self.held.messages.load(Relaxed) > 0 {
            sleep(std::time::Duration::from_millis(1)).await;
        }
        true
    }
}

/// A PULL socket that listens. Of what its peers send it holds what one read of each brought.
pub(crate) struct Puller {
    socket: PullSocket,
    peers: Peers,
    broken: RateLimitedLog,
}

impl Puller {
    pub(crate) async fn bind(at: SocketAddr, _key: Option<&str>) -> Result<Self, StartError> {
        let mut socket = PullSocket::new();
        let peers = listen(&mut socket, at).await.map_err(|error| StartError::bind(at, &error))?;
        Ok(Self { socket, peers, broken: RateLimitedLog::new("ZeroMQ connections broken") })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.peers.local
    }

    /// The next message. Cancel-safe.
    pub(crate) async fn receive(&mut self) -> Frames {
        received(&mut self.socket, &mut self.broken).await
    }

    /// Cuts off connections that are too many, and logs what there is still to complain about.
    pub(crate) fn tend(&mut self) -> io::Result<()> {
        let excess = self.peers.cut_off_excess()?;
        if excess > 0 {
            self.broken.add(excess, "there are too many");
        }
        self.broken.flush();
        Ok(())
    }
}

/// A SUB socket that connects, and connects again.
pub(crate) struct Subscriber {
    socket: SubSocket,
    broken: RateLimitedLog,
}

impl Subscriber {
    /// Waits until somebody is there.
    pub(crate) async fn connect(to: &Connect, prefixes: &[String]) -> Result<Self, StartError> {
        let mut options = SocketOptions::default();
        options.no_connect_timeout();
        let mut socket = SubSocket::with_options(options);
        let refuse = |error: ZmqError| StartError::Subscribe { reason: error.to_string() };
        for prefix in prefixes {
            socket.subscribe(prefix).await.map_err(refuse)?;
        }
        let mut trouble = Trouble::new(to);
        loop {
            match timeout(CONNECT_MAX, socket.connect(to.as_str())).await {
                Ok(Ok(())) => break,
                Ok(Err(error)) => trouble.say(fixed(&error)),
                Err(_) => trouble.say("it does not greet as a socket of ZeroMQ does"),
            }
            sleep(AGAIN).await;
        }
        Ok(Self { socket, broken: RateLimitedLog::new("ZeroMQ connections broken") })
    }

    /// The next message. Cancel-safe.
    pub(crate) async fn receive(&mut self) -> Frames {
        received(&mut self.socket, &mut self.broken).await
    }

    /// Logs what there is still to complain about.
    pub(crate) fn tend(&mut self) {
        self.broken.flush();
    }
}

/// The next message of any peer. An error is that of one of them, which is gone with it.
async fn received(socket: &mut impl SocketRecv, broken: &mut RateLimitedLog) -> Frames {
    loop {
        match socket.recv().await {
            Ok(message) => return message.into_vec(),
            Err(error) => {
                broken.add(1, fixed(&error));
                // So that errors without end leave others their turn.
                yield_now().await;
            }
        }
    }
}

/// What the library says of a PING, as of all commands but the first. Its type of such errors is
/// not public.
const UNKNOWN_COMMAND: &str = "Unknown command received";

/// What an error says, without a word of what its peer has said.
fn fixed(error: &ZmqError) -> &'static str {
    match error {
        ZmqError::Network(_) => "the network failed",
        ZmqError::Codec(error) if error.to_string() == UNKNOWN_COMMAND => {
            "a command came that is not known here: peers with heartbeats need a build with --features libzmq"
        }
        ZmqError::Codec(_) => "what came is not of the protocol",
        _ => "something else was wrong",
    }
}

/// Has a socket listen, with what its own way to listen leaves out.
async fn listen(socket: &mut impl Socket, at: SocketAddr) -> io::Result<Peers> {
    let listener = std::net::TcpListener::bind(at)?;
    let local = listener.local_addr()?;
    // Connections inherit it: whoever takes nothing for so long is cut off by the kernel.
    socket2::SockRef::from(&listener).set_tcp_user_timeout(Some(STALLED_MAX))?;
    socket.bind_listener(Listener::from(listener)).await.map_err(io::Error::other)?;
    Ok(Peers { local })
}

fn length(bytes: &Bytes) -> u64 {
    bytes.len() as u64
}
