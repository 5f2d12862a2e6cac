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
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Hub;
use super::connection::Connection;

/// Connections that the kernel completes before they are accepted: a fleet that reconnects at
/// once. The kernel lowers it to its own limit.
const BACKLOG: i32 = 4096;

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

/// Accepts connections of lines, each as a task of its own, until `stop`.
pub(crate) fn serve(
    listener: TcpListener,
    hub: Arc<Hub>,
    stop: CancellationToken,
    tasks: &TaskTracker,
) {
    let connections = tasks.clone();
    accept(listener, stop, tasks, move |stream, peer| welcome(&hub, stream, peer, &connections));
}

/// Hands connections to `welcome` as they come, until `stop`.
pub(super) fn accept(
    listener: TcpListener,
    stop: CancellationToken,
    tasks: &TaskTracker,
    welcome: impl Fn(TcpStream, SocketAddr) + Send + 'static,
) {
    tasks.spawn(async move {
        loop {
            // Cancel-safe: a connection that was not taken stays in the backlog.
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

fn welcome(hub: &Arc<Hub>, stream: TcpStream, peer: SocketAddr, tasks: &TaskTracker) {
    let Ok((conn, mailbox)) = hub.registry.enter() else {
        hub.stats.turned_away.add(1);
        let max = hub.limits.connections_max;
        if let Some(held_back) = hub.stats.turned_away_log.pass(hub.clock.now()) {
            tracing::warn!(%peer, max, held_back, "too many connections: turned away");
        }
        turn_away(stream, max);
        return;
    };
    tracing::debug!(%conn, %peer, "connected");
    // Events are small and wanted now. The only failure is a socket that is closed already.
    let _ = stream.set_nodelay(true);
    // What the other side can take is sent; what it cannot waits in the log, not in the kernel.
    let _ = SockRef::from(&stream).set_tcp_notsent_lowat(hub.limits.unsent_bytes);
    tasks.spawn(Connection::new(Arc::clone(hub), conn, mailbox, stream).run());
}

/// Says why and closes. Never waits: the buffer of a new socket has room for a line. What has come
/// already is read, because to close over it would be a reset, which may overtake the line.
fn turn_away(stream: TcpStream, max: usize) {
    let text = format!("{max} connections are open, and no more are allowed; try again later");
    let mut line = Vec::new();
    ProtocolError::new(Code::Limit, text).encode(&mut line);
    if let Ok(mut stream) = stream.into_std() {
        let _ = stream.write_all(&line);
        let _ = stream.shutdown(Shutdown::Write);
        let mut bytes = [0; 4096];
        for _ in 0..TURNED_AWAY_READS_MAX {
            // The socket does not block.
            if !matches!(stream.read(&mut bytes), Ok(1..)) {
                break;
            }
        }
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
