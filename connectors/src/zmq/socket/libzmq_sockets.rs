//! Sockets of libzmq. Receiving blocks, so it runs on a thread of its own.

#![expect(clippy::disallowed_methods, reason = "blocking calls run on threads, with a time limit")]

use std::net::SocketAddr;
use std::time::{Duration, Instant};
use std::{io, thread};

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::{spawn_blocking, yield_now};
use zmq::{Context, DONTWAIT, SNDMORE, Socket, SocketType};

use super::Frames;
use crate::zmq::endpoint::BindEndpoint;
use crate::zmq::limits::{CONNECTIONS_MAX, FRAME_BYTES_MAX, HIGH_WATER_MARK, RECEIVE_QUEUE_MAX};
use crate::zmq::{ConnectEndpoint, ZmqStartError};

/// How long a stop waits for the socket's queues. It must be less than the time limit of the stop.
const LINGER: Duration = Duration::from_millis(100);

/// A PUB socket that listens. It drops messages above a subscriber's high-water mark, and never
/// waits.
pub(crate) struct ZmqPublisher {
    /// `None`: closed.
    socket: Option<Socket>,
    address: SocketAddr,
}

impl ZmqPublisher {
    #[expect(clippy::unused_async, reason = "the other library's method is async")]
    pub(crate) async fn bind(at: SocketAddr, key: Option<&str>) -> Result<Self, ZmqStartError> {
        let (socket, address) = listen(zmq::PUB, at, key)?;
        Ok(Self { socket: Some(socket), address })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    #[expect(clippy::unused_async, reason = "the other library's method is async")]
    pub(crate) async fn send(&mut self, [topic, seq, payload]: [Bytes; 3]) -> io::Result<()> {
        let closed = || io::Error::from(io::ErrorKind::NotConnected);
        let socket = self.socket.as_ref().ok_or_else(closed)?;
        socket.send(&topic[..], SNDMORE | DONTWAIT)?;
        socket.send(&seq[..], SNDMORE | DONTWAIT)?;
        socket.send(&payload[..], DONTWAIT)?;
        Ok(())
    }

    pub(crate) async fn flush_queues(&mut self) -> io::Result<()> {
        yield_now().await;
        Ok(())
    }

    #[expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "as in the other library")]
    pub(crate) fn tick(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Closes the socket, and waits until its queues are empty, up to a limit. Returns whether they
    /// are.
    pub(crate) async fn drain(&mut self) -> bool {
        let Some(socket) = self.socket.take() else { return true };
        let linger = i32::try_from(LINGER.as_millis()).expect("the constant fits");
        // The socket owns its context, and dropping that waits.
        let closing = spawn_blocking(move || {
            let started = Instant::now();
            let is_set = socket.set_linger(linger).is_ok();
            drop(socket);
            is_set && started.elapsed() < LINGER
        });
        closing.await.unwrap_or(false)
    }
}

/// A PULL socket that listens.
pub(crate) struct ZmqPuller {
    messages: mpsc::Receiver<Frames>,
    address: SocketAddr,
}

impl ZmqPuller {
    #[expect(clippy::unused_async, reason = "the other library's method is async")]
    pub(crate) async fn bind(at: SocketAddr, key: Option<&str>) -> Result<Self, ZmqStartError> {
        let (socket, address) = listen(zmq::PULL, at, key)?;
        Ok(Self { messages: receive_on_thread(socket)?, address })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next message. Cancel-safe.
    pub(crate) async fn receive(&mut self) -> Frames {
        next_message(&mut self.messages).await
    }

    #[expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "as in the other library")]
    pub(crate) fn tick(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A SUB socket that connects, and reconnects.
pub(crate) struct ZmqSubscriber {
    messages: mpsc::Receiver<Frames>,
}

impl ZmqSubscriber {
    #[expect(clippy::unused_async, reason = "the other library's method is async")]
    pub(crate) async fn connect(
        endpoint: &ConnectEndpoint,
        prefixes: &[String],
    ) -> Result<Self, ZmqStartError> {
        let connect = || -> Result<Socket, zmq::Error> {
            let socket = limited_socket(zmq::SUB)?;
            for prefix in prefixes {
                socket.set_subscribe(prefix.as_bytes())?;
            }
            socket.connect(endpoint.as_str())?;
            Ok(socket)
        };
        let socket =
            connect().map_err(|error| ZmqStartError::Subscribe { reason: error.to_string() })?;
        Ok(Self { messages: receive_on_thread(socket)? })
    }

    /// The next message. Cancel-safe.
    pub(crate) async fn receive(&mut self) -> Frames {
        next_message(&mut self.messages).await
    }

    #[expect(clippy::unused_self, reason = "the other library's method needs it")]
    pub(crate) fn tick(&mut self) {}
}

/// Receives messages on a thread. The channel is short: when it is full, the socket stops
/// receiving, and its peers stop sending.
fn receive_on_thread(socket: Socket) -> Result<mpsc::Receiver<Frames>, ZmqStartError> {
    let (sender, messages) = mpsc::channel(RECEIVE_QUEUE_MAX);
    let receive = move || {
        while let Ok(frames) = socket.recv_multipart(0) {
            if sender.blocking_send(frames).is_err() {
                return;
            }
        }
    };
    let thread = thread::Builder::new().name("zmq-receive".into()).spawn(receive);
    thread.map_err(|error| ZmqStartError::Subscribe { reason: error.to_string() })?;
    Ok(messages)
}

async fn next_message(messages: &mut mpsc::Receiver<Frames>) -> Frames {
    // The thread ends with the library's context, which ends with the process.
    messages.recv().await.unwrap_or_default()
}

fn listen(
    kind: SocketType,
    at: SocketAddr,
    key: Option<&str>,
) -> Result<(Socket, SocketAddr), ZmqStartError> {
    let bind_error = |error: zmq::Error| ZmqStartError::bind(at, &error.into());
    let socket = limited_socket(kind).map_err(bind_error)?;
    if let Some(key) = key {
        let key = zmq::z85_decode(key.trim()).ok().filter(|key| key.len() == 32);
        let key = key.ok_or(ZmqStartError::InvalidKey)?;
        if !zmq::has("curve").unwrap_or(false) {
            return Err(ZmqStartError::NoCurve);
        }
        socket.set_curve_server(true).map_err(bind_error)?;
        socket.set_curve_secretkey(&key).map_err(bind_error)?;
    }
    socket.bind(&BindEndpoint(at).to_string()).map_err(bind_error)?;
    let bound = socket.get_last_endpoint().map_err(bind_error)?;
    let bound = bound.ok().and_then(|text| text.parse::<BindEndpoint>().ok());
    let BindEndpoint(address) = bound.ok_or_else(|| bind_error(zmq::Error::EINVAL))?;
    Ok((socket, address))
}

/// A socket with all of its limits.
fn limited_socket(kind: SocketType) -> Result<Socket, zmq::Error> {
    let context = Context::new();
    let socket = context.socket(kind)?;
    socket.set_sndhwm(HIGH_WATER_MARK)?;
    // Messages wait in the channel and at their senders, not here.
    socket.set_rcvhwm(i32::try_from(RECEIVE_QUEUE_MAX).expect("the constant fits"))?;
    socket.set_maxmsgsize(FRAME_BYTES_MAX)?;
    socket.set_linger(0)?;
    socket.set_backlog(i32::try_from(CONNECTIONS_MAX).expect("the constant fits"))?;
    Ok(socket)
}
