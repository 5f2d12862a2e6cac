//! Accepting connections, and what is done from time to time.
#![expect(clippy::disallowed_methods, reason = "spawns connections and waits after failures")]

use std::future::Future;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tidings_protocol::{Code, ProtocolError};
use tokio::net::{TcpListener, TcpStream};
#[cfg(unix)]
use tokio::net::{UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Hub;
use super::connection::Connection;
use super::handshake::handshake;
use super::stream::{Peer, Remote, Stream};
use crate::access::Transport;
use crate::audit::{AuditEvent, Initiator};
use crate::mailbox::{ConnId, Mailbox};
use crate::quota::Usage;
use crate::tls::Tls;

/// Connections that the kernel completes before they are accepted: a fleet that reconnects at
/// once. The kernel lowers it to its own limit.
pub(super) const BACKLOG: i32 = 4096;

/// Wait after the system refused a connection for want of something (file descriptors, memory),
/// so that a full table is not asked in a circle.
const BACKOFF: Duration = Duration::from_millis(100);

/// How often topics are looked after: a full disk is asked again whether it has room, what was not
/// synced is, old events go.
const TEND_EVERY: Duration = Duration::from_secs(1);

/// Reads of what somebody has sent who is turned away: all that a polite program says at first.
const TURNED_AWAY_READS_MAX: usize = 16;

/// A listening socket. It needs no runtime, so that it can be had before privileges are dropped.
pub(crate) fn bind(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // A restart must not wait for the remains of old connections.
    #[cfg(unix)]
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Connections of a listening socket, and its address.
pub(crate) fn listen(socket: std::net::TcpListener) -> io::Result<(TcpListener, SocketAddr)> {
    socket.set_nonblocking(true)?;
    // Inherited by connections: a peer that only listens, and whose machine is gone, ends some day.
    SockRef::from(&socket).set_keepalive(true)?;
    let listener = TcpListener::from_std(socket)?;
    let local_addr = listener.local_addr()?;
    Ok((listener, local_addr))
}

/// A socket on which connections come.
pub(super) trait Accept: Send + 'static {
    /// What comes.
    type Stream: Send;

    /// The next one, and from where. Cancel-safe: a connection that was not taken stays in the
    /// backlog.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Stream, Peer)>> + Send;
}

impl Accept for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<(TcpStream, Peer)> {
        Self::accept(self).await.map(|(stream, address)| (stream, Peer::Tcp(address)))
    }
}

#[cfg(unix)]
impl Accept for UnixListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<(UnixStream, Peer)> {
        let (stream, _) = Self::accept(self).await?;
        let who = stream.peer_cred()?;
        let peer = Peer::Unix { uid: who.uid(), gid: who.gid(), pid: who.pid() };
        Ok((stream, peer))
    }
}

/// Accepts connections of lines, each as a task of its own, until `stop`.
pub(crate) fn serve(
    listener: TcpListener,
    hub: Arc<Hub>,
    stop: CancellationToken,
    tasks: &TaskTracker,
) {
    let (connections, stopping) = (tasks.clone(), stop.clone());
    accept(listener, stop, tasks, move |stream: TcpStream, peer| {
        let entered = match enter(&hub, peer, Transport::Line) {
            Ok(entered) => entered,
            // There is nobody yet to whom it could be said in words.
            Err(_) if hub.tls.is_some() => return,
            Err(error) => return turn_away(stream.into_std(), &error),
        };
        tune(&stream, hub.limits.unsent_bytes);
        if hub.tls.is_some() {
            let (hub, stopping) = (Arc::clone(&hub), stopping.clone());
            connections.spawn(serve_secured(hub, entered, stream, peer, stopping));
        } else {
            let remote = Remote { peer, certificate: None, is_encrypted: false };
            let stream = Stream::Plain(stream);
            connections.spawn(Connection::new(Arc::clone(&hub), entered, stream, remote).run());
        }
    });
}

/// The same on a unix socket, where nobody can listen in: without encryption.
#[cfg(unix)]
pub(crate) fn serve_unix(
    listener: UnixListener,
    hub: Arc<Hub>,
    stop: CancellationToken,
    tasks: &TaskTracker,
) {
    let connections = tasks.clone();
    accept(listener, stop, tasks, move |stream: UnixStream, peer| {
        let entered = match enter(&hub, peer, Transport::Line) {
            Ok(entered) => entered,
            Err(error) => return turn_away(stream.into_std(), &error),
        };
        let (stream, remote) =
            (Stream::Unix(stream), Remote { peer, certificate: None, is_encrypted: false });
        connections.spawn(Connection::new(Arc::clone(&hub), entered, stream, remote).run());
    });
}

/// Hands connections to `welcome` as they come, until `stop`.
pub(super) fn accept<L: Accept>(
    listener: L,
    stop: CancellationToken,
    tasks: &TaskTracker,
    welcome: impl Fn(L::Stream, Peer) + Send + 'static,
) {
    tasks.spawn(async move {
        loop {
            let accepted = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => welcome(stream, peer),
                Err(error) if concerns_one_connection(&error) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept connections at the moment");
                    tokio::select! {
                        biased;
                        () = stop.cancelled() => return,
                        () = tokio::time::sleep(BACKOFF) => {}
                    }
                }
            }
        }
    });
}

/// Looks after topics and cursors every second, until `stop`.
pub(crate) fn tend(hub: Arc<Hub>, stop: CancellationToken, tasks: &TaskTracker) {
    tasks.spawn(async move {
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = tokio::time::sleep(TEND_EVERY) => hub.tend(),
            }
        }
    });
}

/// A connection that was counted.
#[derive(Debug)]
pub(super) struct Entered {
    pub(super) conn: ConnId,
    pub(super) mailbox: Mailbox,
    /// What it has of what one may have.
    pub(super) held: Usage,
}

/// Counts a connection, unless there are too many, of all or from there.
pub(super) fn enter(hub: &Hub, peer: Peer, way: Transport) -> Result<Entered, ProtocolError> {
    let entered = hub.quotas.begin_connection(peer.network(), hub.clock.now()).and_then(|held| {
        let (conn, mailbox) = hub.registry.enter().map_err(|_| {
            let max = hub.limits.connections_max;
            let text =
                format!("{max} connections are open, and no more are allowed; try again later");
            ProtocolError::new(Code::Limit, text)
        })?;
        Ok(Entered { conn, mailbox, held })
    });
    match &entered {
        Ok(Entered { conn, .. }) => tracing::debug!(%conn, %peer, "connected"),
        Err(error) => {
            hub.stats.rejected_connections.add(1);
            let why = error.text.as_str();
            hub.audit.record(|| {
                (AuditEvent::LimitReached { why }, Initiator::unidentified(0, peer, way.as_str()))
            });
            if let Some(held_back) = hub.stats.rejected_connections_log.allow(hub.clock.now()) {
                tracing::warn!(%peer, error = error.text, held_back, "turned away");
            }
        }
    }
    entered
}

/// Events are small and wanted now; and what the other side cannot take waits in the log, not in
/// the kernel. The only failure is a socket that is closed already.
pub(super) fn tune(stream: &TcpStream, unsent_bytes: u32) {
    let _ = stream.set_nodelay(true);
    let _ = SockRef::from(stream).set_tcp_notsent_lowat(unsent_bytes);
}

/// A connection from its handshake on.
async fn serve_secured(
    hub: Arc<Hub>,
    entered: Entered,
    stream: TcpStream,
    peer: Peer,
    stop: CancellationToken,
) {
    let conn = entered.conn;
    let Some(config) = hub.tls.as_ref().map(Tls::line_config) else { return };
    // Boxed, so that an idle connection does not keep the room that either of the two once took.
    match Box::pin(handshake(config, stream, &hub.limits, &stop)).await {
        Ok((stream, certificate)) => {
            let remote = Remote { peer, certificate, is_encrypted: true };
            tracing::debug!(%conn, peer = %remote, "encrypted");
            Box::pin(Connection::new(hub, entered, stream, remote).run()).await;
        }
        Err(error) => {
            tracing::debug!(%conn, %peer, %error, "no TLS: closed");
            let why = format!("no TLS: {error}");
            hub.audit.record(|| {
                (AuditEvent::Refused { why: &why }, Initiator::unidentified(conn.0, peer, "line"))
            });
            hub.registry.leave(conn);
        }
    }
}

/// Says why and closes. Never waits: the buffer of a new socket has room for a line. What has come
/// already is read, because to close over it would be a reset, which may overtake the line.
fn turn_away(stream: io::Result<impl Read + Write + Closes>, error: &ProtocolError) {
    let mut line = Vec::new();
    error.encode(&mut line);
    if let Ok(mut stream) = stream {
        let _ = stream.write_all(&line);
        stream.close_writing();
        let mut bytes = [0; 4096];
        for _ in 0..TURNED_AWAY_READS_MAX {
            // The socket does not block.
            if !matches!(stream.read(&mut bytes), Ok(1..)) {
                break;
            }
        }
    }
}

/// What two kinds of sockets have in common, and no trait of the standard library.
trait Closes {
    /// Nothing more comes from here. It may be gone already.
    fn close_writing(&self);
}

impl Closes for std::net::TcpStream {
    fn close_writing(&self) {
        let _ = self.shutdown(Shutdown::Write);
    }
}

#[cfg(unix)]
impl Closes for std::os::unix::net::UnixStream {
    fn close_writing(&self) {
        let _ = self.shutdown(Shutdown::Write);
    }
}

/// The one that was about to be accepted is gone; the next may be fine.
fn concerns_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    )
}

/// Whether `future` ended within `bound`.
pub(crate) async fn within(bound: Duration, future: impl Future<Output = ()>) -> bool {
    tokio::time::timeout(bound, future).await.is_ok()
}
