//! From a connection to an encrypted one, in a bounded time.
#![expect(clippy::disallowed_methods, reason = "gives up who does not finish")]

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::handshake_socket::HandshakeSocket;
use super::stream::SocketStream;
use crate::config::Limits;
use crate::tls;

/// What is read of somebody who is refused, so that the reason arrives: to close over it would be a
/// reset, which may overtake that.
const REJECTED_BYTES_MAX: u64 = 64 << 10;

/// The connection within TLS, and the name in the certificate of the other side if it has shown
/// one. At most about `bytes_max` bytes of a handshake are read.
///
/// An error says why there is none; the other side has been told by an alert, if it can understand
/// that.
pub(super) async fn handshake(
    (config, bytes_max): (Arc<ServerConfig>, usize),
    stream: TcpStream,
    limits: &Limits,
    stop: &CancellationToken,
) -> io::Result<(SocketStream, Option<Box<str>>)> {
    let patience = Duration::from_millis(limits.handshake_timeout_ms);
    let linger = Duration::from_millis(limits.linger_ms);
    let stream = HandshakeSocket::new(stream, bytes_max);
    let accept = TlsAcceptor::from(config)
        .accept_with(stream, |session| session.set_buffer_limit(Some(tls::ENCRYPT_BYTES_MIN)));
    let accepted = tokio::select! {
        biased;
        () = stop.cancelled() => return Err(io::Error::other("the broker stops")),
        accepted = timeout(patience, accept.into_fallible()) => accepted,
    };
    match accepted {
        Ok(Ok(stream)) => {
            let shown = stream.get_ref().1.peer_certificates();
            let name = shown.and_then(<[_]>::first).and_then(tls::certificate_name);
            Ok((SocketStream::from_tls(stream), name))
        }
        Ok(Err((error, stream))) => {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                _ = timeout(linger, close_and_drain(stream)) => {}
            }
            Err(error)
        }
        Err(_elapsed) => Err(io::ErrorKind::TimedOut.into()),
    }
}

async fn close_and_drain(
    HandshakeSocket { socket: mut stream, .. }: HandshakeSocket,
) -> io::Result<u64> {
    stream.shutdown().await?;
    tokio::io::copy(&mut stream.take(REJECTED_BYTES_MAX), &mut tokio::io::sink()).await
}
