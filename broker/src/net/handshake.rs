//! The TLS handshake of a connection, with limits in time and bytes.
#![expect(clippy::disallowed_methods, reason = "the handshake has a time limit")]

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
use crate::limits::Limits;
use crate::tls;

/// Bytes that are read from a rejected client. Closing over unread input causes a reset, which may
/// overtake the alert.
const REJECTED_BYTES_MAX: u64 = 64 << 10;

/// Accepts TLS on a new connection. Returns the encrypted stream and the name in the client's
/// certificate, if it has one. The handshake may read about `bytes_max` bytes.
///
/// If the handshake itself fails, the client gets a TLS alert. It gets none after the time limit or
/// when the broker stops.
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
            let certificates = stream.get_ref().1.peer_certificates();
            let name = certificates.and_then(<[_]>::first).and_then(tls::certificate_name);
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
