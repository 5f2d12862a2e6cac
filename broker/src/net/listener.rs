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
use super::stream::{PeerAddr, RemoteInfo, SocketStream};
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
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// How often topics are looked after: a full disk is asked again whether it has room, what was not
/// synced is, old events go.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(1);

/// Reads of what somebody has sent who is turned away: all that a polite program says at first.
const REJECTED_READS_MAX: usize = 16;

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
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Stream, PeerAddr)>> + Send;
}

impl Accept for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<(TcpStream, PeerAddr)> {
        Self::accept(self).await.map(|(stream, address)| (stream, PeerAddr::Tcp(address)))
    }
}

#[cfg(unix)]
impl Accept for UnixListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<(UnixStream, PeerAddr)> {
        let (stream, _) = Self::accept(self).await?;
        let who = stream.peer_cred()?;
        let peer = PeerAddr::Unix { uid: who.uid(), gid: who.gid(), pid: who.pid() };
        Ok((stream, peer))
    }
}

/// Accepts connections of lines, each as a task of its own, until `stop`.
pub(crate) fn serve_lines(
    listener: TcpListener,
    hub: Arc<Hub>,
    stop: CancellationToken,
    tasks: &TaskTracker,
) {
    let (connections, stopping) = (tasks.clone(), stop.clone());
    spawn_accept_loop(listener, stop, tasks, move |stream: TcpStream, peer| {
        let entered = match admit_connection(&hub, peer, Transport::Line) {
            Ok(entered) => entered,
            // There is nobody yet to whom it could be said in words.
            Err(_) if hub.tls.is_some() => return,
            Err(error) => return reject(stream.into_std(), &error),
        };
        set_socket_options(&stream, hub.limits.unsent_bytes);
        if hub.tls.is_some() {
            let (hub, stopping) = (Arc::clone(&hub), stopping.clone());
            connections.spawn(serve_tls(hub, entered, stream, peer, stopping));
        } else {
            let remote = RemoteInfo { peer, certificate: None, is_encrypted: false };
            let stream = SocketStream::Plain(stream);
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
    spawn_accept_loop(listener, stop, tasks, move |stream: UnixStream, peer| {
        let entered = match admit_connection(&hub, peer, Transport::Line) {
            Ok(entered) => entered,
            Err(error) => return reject(stream.into_std(), &error),
        };
        let (stream, remote) = (
            SocketStream::Unix(stream),
            RemoteInfo { peer, certificate: None, is_encrypted: false },
        );
        connections.spawn(Connection::new(Arc::clone(&hub), entered, stream, remote).run());
    });
}

/// Hands connections to `welcome` as they come, until `stop`.
pub(super) fn spawn_accept_loop<L: Accept>(
    listener: L,
    stop: CancellationToken,
    tasks: &TaskTracker,
    welcome: impl Fn(L::Stream, PeerAddr) + Send + 'static,
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
                Err(error) if is_connection_error(&error) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept connections at the moment");
                    tokio::select! {
                        biased;
                        () = stop.cancelled() => return,
                        () = tokio::time::sleep(ACCEPT_RETRY_DELAY) => {}
                    }
                }
            }
        }
    });
}

/// Looks after topics and cursors every second, until `stop`.
pub(crate) fn run_maintenance(hub: Arc<Hub>, stop: CancellationToken, tasks: &TaskTracker) {
    tasks.spawn(async move {
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = tokio::time::sleep(MAINTENANCE_INTERVAL) => hub.maintain(),
            }
        }
    });
}

/// A connection that was counted.
#[derive(Debug)]
pub(super) struct AdmittedConnection {
    pub(super) conn: ConnId,
    pub(super) mailbox: Mailbox,
    /// What it has of what one may have.
    pub(super) usage: Usage,
}

/// Counts a connection, unless there are too many, of all or from there.
pub(super) fn admit_connection(
    hub: &Hub,
    peer: PeerAddr,
    way: Transport,
) -> Result<AdmittedConnection, ProtocolError> {
    let entered =
        hub.quotas.begin_connection(peer.network_ip(), hub.clock.now()).and_then(|held| {
            let (conn, mailbox) = hub.registry.register().map_err(|_| {
                let max = hub.limits.connections_max;
                let text =
                    format!("{max} connections are open, and no more are allowed; try again later");
                ProtocolError::new(Code::Limit, text)
            })?;
            Ok(AdmittedConnection { conn, mailbox, usage: held })
        });
    match &entered {
        Ok(AdmittedConnection { conn, .. }) => tracing::debug!(%conn, %peer, "connected"),
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
pub(super) fn set_socket_options(stream: &TcpStream, unsent_bytes: u32) {
    let _ = stream.set_nodelay(true);
    let _ = SockRef::from(stream).set_tcp_notsent_lowat(unsent_bytes);
}

/// A connection from its handshake on.
async fn serve_tls(
    hub: Arc<Hub>,
    entered: AdmittedConnection,
    stream: TcpStream,
    peer: PeerAddr,
    stop: CancellationToken,
) {
    let conn = entered.conn;
    let Some(config) = hub.tls.as_ref().map(Tls::line_config) else { return };
    // Boxed, so that an idle connection does not keep the room that either of the two once took.
    match Box::pin(handshake(config, stream, &hub.limits, &stop)).await {
        Ok((stream, certificate)) => {
            let remote = RemoteInfo { peer, certificate, is_encrypted: true };
            tracing::debug!(%conn, peer = %remote, "encrypted");
            Box::pin(Connection::new(hub, entered, stream, remote).run()).await;
        }
        Err(error) => {
            tracing::debug!(%conn, %peer, %error, "no TLS: closed");
            let why = format!("no TLS: {error}");
            hub.audit.record(|| {
                (AuditEvent::Refused { why: &why }, Initiator::unidentified(conn.0, peer, "line"))
            });
            hub.registry.unregister(conn);
        }
    }
}

/// Says why and closes. Never waits: the buffer of a new socket has room for a line. What has come
/// already is read, because to close over it would be a reset, which may overtake the line.
fn reject(stream: io::Result<impl Read + Write + CloseWrite>, error: &ProtocolError) {
    let mut line = Vec::new();
    error.encode(&mut line);
    if let Ok(mut stream) = stream {
        let _ = stream.write_all(&line);
        stream.close_write();
        let mut bytes = [0; 4096];
        for _ in 0..REJECTED_READS_MAX {
            // The socket does not block.
            if !matches!(stream.read(&mut bytes), Ok(1..)) {
                break;
            }
        }
    }
}

/// What two kinds of sockets have in common, and no trait of the standard library.
trait CloseWrite {
    /// Nothing more comes from here. It may be gone already.
    fn close_write(&self);
}

impl CloseWrite for std::net::TcpStream {
    fn close_write(&self) {
        let _ = self.shutdown(Shutdown::Write);
    }
}

#[cfg(unix)]
impl CloseWrite for std::os::unix::net::UnixStream {
    fn close_write(&self) {
        let _ = self.shutdown(Shutdown::Write);
    }
}

/// The one that was about to be accepted is gone; the next may be fine.
fn is_connection_error(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    )
}

/// Whether `future` ended within `bound`.
pub(crate) async fn completes_within(bound: Duration, future: impl Future<Output = ()>) -> bool {
    tokio::time::timeout(bound, future).await.is_ok()
}
