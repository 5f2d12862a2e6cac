//! Accepts connections of the line protocol, and runs periodic maintenance.
#![expect(clippy::disallowed_methods, reason = "spawns connections and waits after errors")]

use std::future::Future;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tidings_protocol::ProtocolError;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{Mutex, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Shared;
use super::client_session::AdmittedConnection;
use super::connection::Connection;
use super::handshake::handshake;
use super::stream::SocketStream;
use crate::access::Transport;
use crate::audit::{AuditEvent, Initiator};
use crate::limits::Limits;
use crate::mailbox::ConnId;
use crate::remote::{PeerAddr, RemoteInfo};
use crate::tls::Tls;

/// Connections that the kernel completes before they are accepted, enough for many clients that
/// reconnect at once. The kernel lowers it to its own limit.
pub(super) const BACKLOG: i32 = 4096;

/// Wait after `accept` failed for lack of file descriptors or memory, so that the loop does not
/// spin.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// How often maintenance runs. It checks a full disk for free space, syncs what is not synced, and
/// drops old events.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(1);

/// Probes of a silent client without an answer after which its connection ends.
const KEEPALIVE_PROBES: u32 = 4;

/// Reads from a rejected connection; enough for the first commands of a normal client.
const REJECTED_READS_MAX: usize = 16;

/// Opens a listening socket. This needs no runtime, so it can be done before privileges are
/// dropped.
pub(crate) fn bind(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // A restart must not wait for old connections in TIME_WAIT.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Registers a listening socket with the runtime. Returns the listener and its address.
pub(crate) fn listen(
    socket: std::net::TcpListener,
    accepted: Option<AcceptedElsewhere>,
    limits: &Limits,
) -> io::Result<(Listener, SocketAddr)> {
    socket.set_nonblocking(true)?;
    // Connections inherit this. It ends those of silent clients whose machine is gone.
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_millis(limits.keepalive_ms))
        .with_interval(Duration::from_millis(limits.keepalive_ms / u64::from(KEEPALIVE_PROBES)))
        .with_retries(KEEPALIVE_PROBES);
    SockRef::from(&socket).set_tcp_keepalive(&keepalive)?;
    let socket = TcpListener::from_std(socket)?;
    let local_addr = socket.local_addr()?;
    Ok((Listener { socket, accepted: accepted.map(Mutex::new) }, local_addr))
}

/// A listening socket.
pub(super) trait Accept: Send + 'static {
    /// The socket of an accepted connection.
    type Stream: Send;

    /// Accepts the next connection and returns its remote address. Cancel-safe: a connection that
    /// is not accepted stays in the backlog.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Stream, PeerAddr)>> + Send;
}

/// A listening socket for TCP, and connections that were accepted elsewhere.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: TcpListener,
    accepted: Option<Mutex<AcceptedElsewhere>>,
}

/// Connections that were accepted elsewhere, with the addresses of their clients.
pub type AcceptedElsewhere = mpsc::Receiver<(TcpStream, SocketAddr)>;

impl Accept for Listener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<(TcpStream, PeerAddr)> {
        let elsewhere = async {
            match &self.accepted {
                Some(accepted) => accepted.lock().await.recv().await,
                None => None,
            }
        };
        let (stream, address) = tokio::select! {
            accepted = self.socket.accept() => accepted?,
            Some(accepted) = elsewhere => accepted,
        };
        Ok((stream, PeerAddr::Tcp(address)))
    }
}

impl Accept for UnixListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<(UnixStream, PeerAddr)> {
        let (stream, _) = Self::accept(self).await?;
        let process = stream.peer_cred()?;
        let peer = PeerAddr::Unix { uid: process.uid(), gid: process.gid(), pid: process.pid() };
        Ok((stream, peer))
    }
}

/// Accepts connections of the line protocol until `stop`, and spawns a task for each.
pub(crate) fn serve_lines(
    listener: Listener,
    shared: Arc<Shared>,
    stop: CancellationToken,
    tasks: &TaskTracker,
) {
    let (connections, stopping) = (tasks.clone(), stop.clone());
    spawn_accept_loop(listener, stop, tasks, move |stream: TcpStream, peer| {
        let admitted = match AdmittedConnection::admit(&shared, peer, Transport::Line) {
            Ok(admitted) => admitted,
            // Before the handshake no error line can be sent.
            Err(_) if shared.tls.is_some() => return,
            Err(error) => return reject(stream.into_std(), &error),
        };
        set_socket_options(&stream, shared.limits.unsent_bytes);
        let shared = Arc::clone(&shared);
        if shared.tls.is_some() {
            connections.spawn(serve_tls(shared, admitted, stream, peer, stopping.clone()));
        } else {
            let (stream, remote) = (SocketStream::Plain(stream), RemoteInfo::unencrypted(peer));
            connections.spawn(Connection::new(shared, admitted, stream, remote).run());
        }
    });
}

/// Like [`serve_lines`], for a unix socket. It is never encrypted, because only the kernel carries
/// the bytes.
pub(crate) fn serve_unix(
    listener: UnixListener,
    shared: Arc<Shared>,
    stop: CancellationToken,
    tasks: &TaskTracker,
) {
    let connections = tasks.clone();
    spawn_accept_loop(listener, stop, tasks, move |stream: UnixStream, peer| {
        let admitted = match AdmittedConnection::admit(&shared, peer, Transport::Line) {
            Ok(admitted) => admitted,
            Err(error) => return reject(stream.into_std(), &error),
        };
        let (stream, remote) = (SocketStream::Unix(stream), RemoteInfo::unencrypted(peer));
        connections.spawn(Connection::new(Arc::clone(&shared), admitted, stream, remote).run());
    });
}

/// Spawns a task that passes each accepted connection to `on_accept`, until `stop`.
pub(super) fn spawn_accept_loop<L: Accept>(
    listener: L,
    stop: CancellationToken,
    tasks: &TaskTracker,
    on_accept: impl Fn(L::Stream, PeerAddr) + Send + 'static,
) {
    tasks.spawn(async move {
        loop {
            let accepted = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => on_accept(stream, peer),
                Err(error) if is_connection_error(&error) => {}
                Err(error) => {
                    tracing::warn!(%error, "accept failed; it is retried in 100 ms");
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

/// Runs [`Shared::maintain`] every second, until `stop`.
pub(crate) fn run_maintenance(shared: Arc<Shared>, stop: CancellationToken, tasks: &TaskTracker) {
    tasks.spawn(async move {
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = tokio::time::sleep(MAINTENANCE_INTERVAL) => shared.maintain(),
            }
        }
    });
}

/// Sends small events at once, and limits the unsent bytes in the kernel, because events for a slow
/// reader wait in the log. Fails only if the socket is already closed, so errors are ignored.
pub(super) fn set_socket_options(stream: &TcpStream, unsent_bytes: u32) {
    let _ = stream.set_nodelay(true);
    let _ = SockRef::from(stream).set_tcp_notsent_lowat(unsent_bytes);
}

/// Accepts TLS and serves the connection.
async fn serve_tls(
    shared: Arc<Shared>,
    admitted: AdmittedConnection,
    stream: TcpStream,
    peer: PeerAddr,
    stop: CancellationToken,
) {
    let Some(config) = shared.tls.as_ref().map(Tls::line_config) else { return };
    // Boxed, so that an idle connection does not keep the memory of the handshake.
    let from = (peer, Transport::Line);
    let secured = Box::pin(secure(&shared, admitted.conn, config, stream, from, &stop)).await;
    let Some((stream, remote)) = secured else { return };
    Box::pin(Connection::new(shared, admitted, stream, remote).run()).await;
}

/// Does the TLS handshake of an admitted connection. If it fails, the connection is unregistered.
pub(super) async fn secure(
    shared: &Shared,
    conn: ConnId,
    config: (Arc<ServerConfig>, usize),
    stream: TcpStream,
    (peer, transport): (PeerAddr, Transport),
    stop: &CancellationToken,
) -> Option<(SocketStream, RemoteInfo)> {
    match handshake(config, stream, &shared.limits, stop).await {
        Ok((stream, certificate)) => {
            let remote = RemoteInfo { peer, certificate, is_encrypted: true };
            tracing::debug!(%conn, peer = %remote, "encrypted");
            Some((stream, remote))
        }
        Err(error) => {
            tracing::debug!(%conn, %peer, %error, "no TLS: closed");
            let why = format!("no TLS: {error}");
            let initiator = || Initiator::unidentified(conn.0, peer, transport.as_str());
            shared.audit.record(|| (AuditEvent::Refused { why: &why }, initiator()));
            shared.registry.unregister(conn);
            None
        }
    }
}

/// Sends the error and closes. Never waits, because the buffer of a new socket has space for a
/// line. Input that has arrived is read: closing over it causes a reset, which may overtake the
/// line.
fn reject(stream: io::Result<impl Into<Socket>>, error: &ProtocolError) {
    let Ok(stream) = stream else { return };
    let mut stream: Socket = stream.into();
    let mut line = Vec::new();
    error.encode(&mut line);
    let _ = stream.write_all(&line);
    let _ = stream.shutdown(Shutdown::Write);
    let mut bytes = [0; 4096];
    for _ in 0..REJECTED_READS_MAX {
        // The socket is nonblocking.
        if !matches!(stream.read(&mut bytes), Ok(1..)) {
            break;
        }
    }
}

/// Whether the error concerns only the connection that was being accepted, so that the next
/// `accept` may succeed.
fn is_connection_error(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    )
}

/// Runs `future` and returns whether it completed within `bound`.
pub(crate) async fn completes_within(bound: Duration, future: impl Future<Output = ()>) -> bool {
    tokio::time::timeout(bound, future).await.is_ok()
}
